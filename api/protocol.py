"""A connection to a client, bounded in everything: uvicorn's, which has no such bounds of its own.

A head has a time and a size. What still comes of a request that is answered is thrown away, so that the
client gets to read the answer and not that the connection was reset; but not for ever. Who does not take
what is sent is left. Bytes that are no HTTP get a problem like all other errors.

Most requests are for keys. They have no ASGI task: an ``Exchange`` takes the place of uvicorn's cycle, and
answers with one write. Of each connection one request is under way at a time, of whichever kind; the others
wait in ``pipeline``, the oldest last. At most one begins in a turn of the event loop, so that a client that
sends thousands at once does not keep the others waiting.

One timer serves all the waiting there is on a connection. It is not moved with each request: when it rings,
it looks how long there is still to wait.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.admission import Standing
from api.problems import Headers, Problem, lines_of, wire_of
from api.settings import GatewaySettings

LINGER_BYTES: Final = 16 << 20
LINGER_SECONDS: Final = 5.0
CONNECTION: Final = "rsm.connection"  # in the scope of a request
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n\r\n"
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})

# What a connection waits for.
_NOTHING, _IDLE, _HEAD, _LINGER, _EXCHANGE = range(5)


class Exchange(ABC):
    """A request that is answered without ASGI, in the place of uvicorn's cycle. To tell them apart, look for
    the cycle: what an abstract class has for instances takes five times as long to find out."""

    __slots__ = ("body_due", "is_complete_request", "keep_alive", "response_complete")

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.response_complete = False
        self.is_complete_request = False  # all of its body has come
        self.body_due = 0.0  # when more of it must have come, if it is waited for

    @abstractmethod
    def begin(self) -> None:
        """Its turn has come; perhaps before its body."""

    @abstractmethod
    def take(self, body: bytes) -> bool:
        """A part of the body, perhaps before its turn; whether it is wanted."""

    @abstractmethod
    def end(self) -> None:
        """There is no more of the body; perhaps before its turn."""

    @abstractmethod
    def late(self) -> None:
        """What it waits for has not come in time."""

    @abstractmethod
    def broken(self, problem: Problem) -> None:
        """The rest of its body cannot be read, and it is the last request. Where the body is wanted, this is
        the answer; at once, or when its turn has come."""

    @abstractmethod
    def lost(self) -> None:
        """Nobody is there any more to be answered."""


class Directly(Protocol):
    """What is served without ASGI: paths that begin like this."""

    @property
    def prefix(self) -> bytes: ...

    def exchange(
        self,
        connection: "BoundedProtocol",
        method: bytes,
        path: bytes,
        query: bytes,
        headers: Headers,
        *,
        keep_alive: bool,
    ) -> Exchange: ...


def protocol_for(settings: GatewaySettings, served: Directly | None) -> type[asyncio.Protocol]:
    """The class that uvicorn makes one of for each connection."""

    class Configured(BoundedProtocol):
        bounds = settings
        directly = served

    return Configured


class _Leaving:
    """The transport of a request that is the last of its connection."""

    def __init__(self, transport: asyncio.Transport, hang_up: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = hang_up


class BoundedProtocol(HttpToolsProtocol):
    """``bounds`` and ``directly`` are set by ``protocol_for``."""

    bounds: GatewaySettings
    directly: Directly | None
    _said: tuple[Headers, bytes] = ([], b"")  # the server's headers, and as lines; they change every second

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.standing = Standing()
        self.cycle: Any = None  # the newest request: a cycle of uvicorn's, or an exchange
        self._current: Any = None  # the one that is under way, or was
        self._in_head = True
        self._has_head_begun = False
        self._unread = 0  # bytes that came of a head, or of anything that is no body
        self._lingered = 0
        self._is_leaving = False
        self._is_deaf = False  # what comes cannot be read
        self._has_left_body = False  # the parser: it comes as if it were another protocol's
        self._has_begun = False  # a request, in this turn of the loop
        self._awaited = _NOTHING
        self._due = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._stalled: asyncio.TimerHandle | None = None

    # -- the transport's side --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections_max:
            self._refuse(Problem("overloaded", "there are too many connections; use fewer, or come later"))
            return
        self._wait(self.bounds.head_s, _HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._awaited = _NOTHING
        for timer in (self._alarm, self._stalled):
            if timer is not None:
                timer.cancel()
        self._alarm = self._stalled = None
        self.pipeline.clear()
        current, self._current = self._current, None
        if current is None or isinstance(current, RequestResponseCycle):
            self.cycle = current
        else:
            self.cycle = None
            if not current.response_complete:
                current.lost()
        super().connection_lost(exc)
        self.cycle = self.scope = None  # type: ignore[assignment]  # they refer to this

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_over():
            self._throw_away(data)
            return
        self._has_begun = False
        self._unread += len(data)
        self._feed(data)
        if self._is_over() or self.transport.is_closing():
            return
        if self._unread > self.bounds.head_bytes_max:
            self._break_off(self._head_too_large())
        elif not self._in_head:
            self._watch_body()
        elif self._has_head_begun and self._awaited != _HEAD and not self._is_under_way():
            self._wait(self.bounds.head_s, _HEAD)

    def _feed(self, data: bytes) -> None:
        """To the parser, which stops behind each request that asks for another protocol, and leaves its body
        to that. It goes on with this one."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._has_left_body:
                    self._read_body_again()
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def _read_body_again(self) -> None:
        """By a parser that has seen how long the body is, and nothing of an upgrade."""
        lines = lines_of([header for header in self.headers if header[0] in _FRAMING])
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"PUT / HTTP/1.1\r\n%s\r\n" % lines)  # nothing of it is heard
        self._has_left_body = False

    def _is_over(self) -> bool:
        """Whether what comes is not looked at any more."""
        return self._is_leaving or self._is_deaf

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.bounds.stalled_s, self.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self.flow.resume_writing()
        if self.pipeline:
            self.loop.call_soon(self._advance)

    def abort(self) -> None:
        self.transport.abort()

    # -- the parser's side -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._has_left_body:
            return
        self._has_head_begun = True
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # and not behind a chunked body
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._has_left_body:
            return
        if self._is_leaving or self.transport.is_closing():
            raise ValueError("the request before it was the last")  # the parser ends
        if self._unread > self.bounds.head_bytes_max:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > self.bounds.head_bytes_max:
                raise ValueError("the head is too large")  # the parser ends; ``send_400_response`` follows
        self._unread = 0
        self._in_head = False
        self._lingered = 0
        self._has_left_body = self.parser.should_upgrade() and _says_body(self.headers)
        if self._awaited <= _HEAD:
            self._awaited = _NOTHING
        url = httptools.parse_url(self.url)
        if self.directly is not None and (url.path or b"").startswith(self.directly.prefix):
            parser = self.parser
            cycle = self.directly.exchange(
                self,
                parser.get_method(),
                url.path,
                url.query or b"",
                self.headers,
                keep_alive=parser.get_http_version() != "1.0" and parser.should_keep_alive(),
            )
            before, self.cycle = self.cycle, cycle
            if before is None or before.response_complete:
                self._start_asgi_task(cycle, self.app)
            else:
                self._put_off(cycle, self.app)
        else:
            self._make_scope()
            super().on_headers_complete()
            if not self.cycle.keep_alive:
                self.cycle.transport = cast(asyncio.Transport, _Leaving(self.transport, self.hang_up))

    def _make_scope(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.scope["headers"] = self.headers = headers
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self.expect_100_continue = expects_continue(headers)

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        if self.pipeline:  # it is of one that waits; who is before it may have asked to go on reading
            self.flow.pause_reading()
        cycle = self.cycle
        if cycle.response_complete:
            self._throw_away(body)
        elif isinstance(cycle, RequestResponseCycle):
            super().on_body(body)
        elif not cycle.take(body):
            self._throw_away(body)

    def _throw_away(self, data: bytes) -> None:
        self._lingered += len(data)
        if self._lingered > LINGER_BYTES:
            self.abort()

    def on_message_complete(self) -> None:
        if self._has_left_body:
            return
        self._in_head = True
        self._has_head_begun = False
        self._unread = 0
        cycle = self.cycle
        is_asgi = isinstance(cycle, RequestResponseCycle)
        if is_asgi:
            cycle.more_body = False
        else:
            cycle.is_complete_request = True
        if cycle.response_complete:
            if not self._is_leaving:
                self._wait(self.timeout_keep_alive, _IDLE)
        elif is_asgi:
            super().on_message_complete()
        else:
            cycle.end()

    # -- one request after the other -------------------------------------------------------------

    def _is_under_way(self) -> bool:
        return self._current is not None and not self._current.response_complete

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """The request before it is answered. uvicorn calls this, and it need not be an ASGI task."""
        if self._has_begun or self.flow.write_paused:
            self._put_off(cycle, app)
            self.loop.call_soon(self._advance)
        else:
            self._begin(cycle, app)

    def _put_off(self, cycle: Any, app: Any) -> None:
        self.flow.pause_reading()
        self.pipeline.appendleft((cycle, app))

    def _advance(self) -> None:
        """Begin the next request, unless another is under way, or its client has to read first."""
        if not self.pipeline or self._is_under_way() or self.flow.write_paused:
            return
        if self._is_leaving or self.transport.is_closing():
            return
        cycle, app = self.pipeline.pop()
        if not self.pipeline:
            self.flow.resume_reading()
        self._begin(cycle, app)
        self._watch_body()

    def _begin(self, cycle: Any, app: Any) -> None:
        self._has_begun = True
        self._awaited = _NOTHING  # the next head has its time when this one is answered
        self._current = cycle
        if isinstance(cycle, RequestResponseCycle):
            super()._start_asgi_task(cycle, app)
        else:
            cycle.begin()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self._is_leaving or self.transport.is_closing():
            return
        if self.pipeline:
            self.loop.call_soon(self._advance)
            return
        self.flow.resume_reading()
        if not self._in_head:
            self._wait(LINGER_SECONDS, _LINGER)
        elif self._has_head_begun:
            self._wait(self.bounds.head_s, _HEAD)
        else:
            self._wait(self.timeout_keep_alive, _IDLE)

    # -- an exchange's side ----------------------------------------------------------------------

    def ask_for_body(self) -> None:
        self.transport.write(_CONTINUE)

    def wait_for_answer(self, seconds: float) -> None:
        """``late`` is called if there is none by then."""
        self._wait(seconds, _EXCHANGE)

    def wait_no_more(self) -> None:
        """Whoever answers has a clock."""
        self._awaited = _NOTHING

    def respond(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        """``head`` are lines. All of it is one write."""
        exchange.response_complete = True
        self._awaited = _NOTHING
        end = b"\r\n" if exchange.keep_alive else _CLOSE
        self.transport.write(b"".join((STATUS_LINE[status], self._own_lines(), head, end, body)))
        if not exchange.keep_alive:
            self.hang_up()
        self.on_response_complete()

    def _own_lines(self) -> bytes:
        headers = self.server_state.default_headers
        if headers is not self._said[0]:
            type(self)._said = (headers, lines_of(headers))
        return self._said[1]

    # -- ends ------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        if self._is_leaving or self.transport.is_closing():
            return
        if self._in_head and self._unread > self.bounds.head_bytes_max:
            self._break_off(self._head_too_large())
        else:
            self._break_off(Problem("bad_request", "this is no HTTP/1.1 that can be read"))

    def _unsupported_upgrade_warning(self) -> None:
        """It is answered as if it had not asked to; others must not be able to fill a log."""

    def _head_too_large(self) -> Problem:
        most = self.bounds.head_bytes_max
        return Problem("headers_too_large", f"request line and headers have more than {most} bytes")

    def _break_off(self, problem: Problem) -> None:
        """What comes cannot be read. What came before it is still answered, and is the last; so is a request
        whose body it is."""
        newest = self.cycle
        if newest is None:
            self._refuse(problem)
            return
        is_asgi = isinstance(newest, RequestResponseCycle)
        is_body = newest.more_body if is_asgi else not newest.is_complete_request
        if newest.response_complete:
            if is_body:  # of a request that has its answer
                self.hang_up()
            else:
                self._refuse(problem)
            return
        self._is_deaf = True
        newest.keep_alive = False
        if not is_asgi:
            if is_body:
                newest.broken(problem)
        elif is_body:
            self.hang_up()
        else:
            newest.transport = cast(asyncio.Transport, _Leaving(self.transport, self.hang_up))

    def _head_is_late(self) -> None:
        if self._has_head_begun:
            words = f"the head of a request did not come in {self.bounds.head_s:g} s"
            self._refuse(Problem("too_slow", words))
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Say so, and hang up; no request is under way."""
        self._awaited = _NOTHING
        lines, body = wire_of(problem)
        self.transport.write(b"".join((STATUS_LINE[problem.status], self._own_lines(), lines, _CLOSE, body)))
        self.hang_up()

    def hang_up(self) -> None:
        """Say that this is all; if the client is still sending, close when it has ended, or after a while."""
        if self.transport.is_closing() or self._is_leaving:
            return
        is_sending = not self._in_head or self._has_head_begun or self._unread or self._is_deaf
        if not is_sending:
            self.transport.close()
            return
        self._is_leaving = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with suppress(OSError):  # it was reset just now
                self.transport.write_eof()
        self._wait(LINGER_SECONDS, _LINGER)

    # -- time ------------------------------------------------------------------------------------

    def _watch_body(self) -> None:
        current = self._current
        if current is None or isinstance(current, RequestResponseCycle):
            return
        if current.body_due and not current.response_complete:
            self._wait(current.body_due - self.loop.time(), _EXCHANGE)

    def _wait(self, seconds: float, what: int) -> None:
        self._awaited = what
        self._due = self.loop.time() + seconds
        if self._alarm is None or self._due < self._alarm_at:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = self._due
        self._alarm = self.loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._awaited == _NOTHING:
            return
        if self.loop.time() < self._due:
            self._set_alarm()
            return
        what, self._awaited = self._awaited, _NOTHING
        if what == _EXCHANGE:
            self._current.late()
        elif what == _HEAD:
            self._head_is_late()
        elif what == _IDLE:
            self.transport.close()
        else:
            self.abort()


def _says_body(headers: Headers) -> bool:
    return any(name in _FRAMING and value.strip(b" \t0") for name, value in headers)


def expects_continue(headers: Headers) -> bool:
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
