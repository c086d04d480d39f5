"""A connection to a client, bounded in everything: uvicorn's, which has no such bounds of its own.

A head has a time and a size. What still comes of a request that is answered is thrown away, so that the
client gets to read the answer and not that the connection was reset; but not for ever. Who does not take
what is sent is left. Bytes that are no HTTP get a problem like all other errors.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.admission import Standing
from api.problems import Problem
from api.settings import GatewaySettings

LINGER_BYTES: Final = 16 << 20
LINGER_SECONDS: Final = 5.0
CONNECTION: Final = "rsm.connection"  # in the scope of a request


class Connection(Protocol):
    """As far as the application has to do with it."""

    standing: Standing

    def abort(self) -> None:
        """Leave the client, and what it has not read."""


def protocol_for(settings: GatewaySettings) -> type[asyncio.Protocol]:
    """The class that uvicorn makes one of for each connection."""

    class Configured(BoundedProtocol):
        bounds = settings

    return Configured


class _Leaving:
    """The transport of a request that is the last of its connection."""

    def __init__(self, transport: asyncio.Transport, hang_up: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = hang_up


class BoundedProtocol(HttpToolsProtocol):
    """``bounds`` is set by ``protocol_for``."""

    bounds: GatewaySettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.standing = Standing()
        self._in_head = True
        self._head_bytes = 0  # that came of a head that is not complete
        self._fields_bytes = 0  # of its parts that are
        self._lingered = 0
        self._is_leaving = False
        self._timer: asyncio.TimerHandle | None = None  # of a head, or of what is thrown away
        self._stalled: asyncio.TimerHandle | None = None

    # -- the transport's side --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections_max:
            self._refuse(Problem("overloaded", "there are too many connections; use fewer, or come later"))
            return
        self._wait(self.bounds.head_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_leaving:
            self._throw_away(data)
            return
        if self._in_head:
            if self._timer is None:
                self._wait(self.bounds.head_s, self._head_is_late)
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.bounds.head_bytes_max:
            self._refuse(self._head_too_large())

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.bounds.stalled_s, self.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self.flow is not None:
            self.flow.resume_writing()

    def abort(self) -> None:
        self.transport.abort()

    # -- the parser's side -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._fields_bytes = 0
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def _count(self, size: int) -> None:
        self._fields_bytes += size
        if self._fields_bytes > self.bounds.head_bytes_max:
            raise ValueError("the head is too large")  # the parser ends, and ``send_400_response`` is called

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._lingered = 0
        self._stop_waiting()
        super().on_headers_complete()
        if not self.cycle.keep_alive:
            self.cycle.transport = cast(asyncio.Transport, _Leaving(self.transport, self.hang_up))

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._throw_away(body)
        else:
            super().on_body(body)

    def _throw_away(self, data: bytes) -> None:
        self._lingered += len(data)
        if self._lingered > LINGER_BYTES:
            self.abort()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._is_leaving:
            return
        if not self._in_head:
            self._wait(LINGER_SECONDS, self.abort)
        super().on_response_complete()

    # -- ends ------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        if self._fields_bytes > self.bounds.head_bytes_max:
            self._refuse(self._head_too_large())
        else:
            self._refuse(Problem("bad_request", "this is no HTTP/1.1 that can be read"))

    def _unsupported_upgrade_warning(self) -> None:
        """It is answered as if it had not asked to; others must not be able to fill a log."""

    def _head_too_large(self) -> Problem:
        most = self.bounds.head_bytes_max
        return Problem("headers_too_large", f"request line and headers have more than {most} bytes")

    def _head_is_late(self) -> None:
        if self._head_bytes:
            words = f"the head of a request did not come in {self.bounds.head_s:g} s"
            self._refuse(Problem("too_slow", words))
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Say so, unless an answer is under way, and hang up."""
        self._stop_waiting()
        if not self._answers_under_way():
            body = problem.body()
            headers = [
                *self.server_state.default_headers,
                *problem.headers(),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            lines = [STATUS_LINE[problem.status], *(b"%s: %s\r\n" % header for header in headers)]
            self.transport.write(b"".join([*lines, b"\r\n", body]))
        self.hang_up()

    def hang_up(self) -> None:
        """Say that this is all; if the client is still sending, close when it has ended, or after a while."""
        if self.transport.is_closing() or self._is_leaving:
            return
        if self._in_head and not self._head_bytes:
            self.transport.close()
            return
        self._is_leaving = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait(LINGER_SECONDS, self.abort)

    def _answers_under_way(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wait(self, seconds: float, late: Any) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
