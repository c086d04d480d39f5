"""The bulk channel over TCP, with asyncio streams; any event loop does.

    async with await serve_bulk("0.0.0.0", 7400, keyring, handler, boot=boot) as server: ...

    async def handler(stream):                     # one task for each connection
        async for chunk in stream: ...
        await stream.send(answer)                  # END follows when the handler returns

    async with await open_bulk("10.0.0.7", 7400, keyring, group=group, boot=boot) as stream:
        await stream.send(request)
        await stream.finish()
        async for chunk in stream: ...             # ends with the peer's END, and with nothing else

A stream that does not reach its END raises a ``BulkError``; what came before is genuine. Chunks have no
meaning of their own: they come as the wire cut them.

Bounds (R16). A sender waits while more than a frame is unsent, and a receiver reads no more than a few
frames ahead, so a slow reader slows its sender and costs neither of them memory. A peer that is silent
or does not read is given up after a time. Strangers can connect, so they cost as little as possible:
so many may be in their handshake at once, for so long, and when they are too many the oldest gives
way, which a real peer is not for long. Only who has shown a key counts as a connection.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from ordering.bulk import (
    CHUNK_MAX,
    GREETING_BYTES,
    SALT_BYTES,
    BulkReceiver,
    BulkSender,
    Greeting,
    Role,
    agree,
)
from ordering.errors import BulkError, BulkLost, BulkMisuse, BulkTimeout
from ordering.sealing import Keyring


class BulkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a bulk channel. Times are milliseconds."""

    handshake_ms: int = 5_000
    # No whole frame comes for this long while we want to receive; 0: it may be so (a watch stream).
    idle_ms: int = 30_000
    # The peer reads less than a frame in this long while we want to send.
    stall_ms: int = 30_000
    # How long an orderly close waits for the peer's end.
    linger_ms: int = 5_000
    connections_max: int = 64
    handshakes_max: int = 64


DEFAULT_LIMITS = BulkLimits()


class BulkStream:
    """One end of a bulk channel. One task at a time may send, and one receive."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: BulkLimits
    ) -> None:
        self.peer: Greeting  # once the handshake is done: its boot, and the group it is about
        self._sender: BulkSender
        self._receiver: BulkReceiver
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._error: BulkError | None = None
        writer.transport.set_write_buffer_limits(high=CHUNK_MAX)
        _keep_alive(writer)

    # -- the stream ------------------------------------------------------------------------------

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it, as fast as the peer reads. If this is cancelled, a part may have gone: abort."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK_MAX):
            self._check()
            self._writer.write(self._sender.data(view[start : start + CHUNK_MAX]))
            await self._drain()

    async def finish(self) -> None:
        """End our stream; the peer's goes on until it does the same."""
        self._check()
        self._writer.write(self._sender.end())
        await self._drain()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._check()
        chunk = await self._receive()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def abort(self, reason: BulkError | None = None) -> None:
        """End both streams at once; the peer gets a ``BulkLost``, who uses them here the reason."""
        self._fail(reason or BulkMisuse("the channel was aborted at this end"))

    async def close(self) -> None:
        """End our stream, leave the rest of the peer's unread, and close.

        Waiting for the peer's end is what makes ours arrive: TCP forgets what it has not delivered
        when a socket is closed with unread bytes.
        """
        try:
            if self._error is None:
                await self._finish_both()
        except BaseException:
            self.abort()
            raise
        finally:
            self._writer.close()
            with suppress(OSError):  # whoever used the stream knows already
                await self._writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        await self.close()

    # -- inside ----------------------------------------------------------------------------------

    async def greet(self, keyring: Keyring | None, group: int, boot: int) -> None:
        """The initiator's handshake."""
        mine = Greeting(Role.INITIATOR, keyring is not None, group, boot, os.urandom(SALT_BYTES))
        self._writer.write(mine.encode())
        await self._shake_hands(keyring, mine, await self._read_greeting(Role.ACCEPTOR))

    async def answer(self, keyring: Keyring | None, boot: int) -> None:
        """The acceptor's handshake. A peer of the other mode gets a greeting too, so it can tell why."""
        theirs = await self._read_greeting(Role.INITIATOR)
        mine = Greeting(Role.ACCEPTOR, keyring is not None, theirs.group, boot, os.urandom(SALT_BYTES))
        self._writer.write(mine.encode())
        await self._shake_hands(keyring, mine, theirs)

    async def _read_greeting(self, role: Role) -> Greeting:
        try:
            return Greeting.decode(await self._reader.readexactly(GREETING_BYTES), role)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self._fail(BulkLost("the connection ended in the handshake")) from error
        except BulkError as error:
            raise self._fail(error) from None

    async def _shake_hands(self, keyring: Keyring | None, mine: Greeting, theirs: Greeting) -> None:
        try:
            self._sender, self._receiver = agree(keyring, mine, theirs)
        except BulkError as error:
            raise self._fail(error) from None
        self.peer = theirs
        self._writer.write(self._sender.ready())
        while not self._receiver.ready:
            await self._take()

    async def _receive(self) -> bytes | None:
        """The next chunk; None at the end."""
        idle_ms = self._limits.idle_ms
        try:
            async with asyncio.timeout(idle_ms / 1_000 if idle_ms else None):
                while not self._receiver.ended:
                    chunk = await self._take()
                    if chunk is not None:
                        return chunk
        except TimeoutError:
            raise self._fail(BulkTimeout(f"the peer sent too little for {idle_ms} ms")) from None
        return None

    async def _take(self) -> bytes | None:
        """One step of the receiver. Cancelled, it has taken nothing."""
        try:
            return self._receiver.take(await self._reader.readexactly(self._receiver.wants))
        except asyncio.IncompleteReadError as error:
            raise self._fail(BulkLost("the connection ended before the peer's stream did")) from error
        except OSError as error:
            raise self._fail(BulkLost(f"the connection broke: {error}")) from error
        except BulkError as error:
            raise self._fail(error) from None

    async def _drain(self) -> None:
        stall_ms = self._limits.stall_ms
        try:
            async with asyncio.timeout(stall_ms / 1_000):
                await self._writer.drain()
        except TimeoutError:
            raise self._fail(BulkTimeout(f"the peer read too little for {stall_ms} ms")) from None
        except OSError as error:
            raise self._fail(BulkLost(f"the connection broke: {error}")) from error

    async def _finish_both(self) -> None:
        if not self._sender.ended:
            await self.finish()
        linger_ms = self._limits.linger_ms
        try:
            async with asyncio.timeout(linger_ms / 1_000):
                while await self._receive() is not None:
                    pass
        except TimeoutError:
            raise self._fail(BulkTimeout(f"the peer did not end its stream within {linger_ms} ms")) from None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: BulkError) -> BulkError:
        """The first error is the channel's; what was under way fails of it."""
        if self._error is None:
            self._error = error
            self._writer.transport.abort()
        return self._error


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """The kernel notices within a minute or so that the peer's machine is gone, whoever waits for what."""
    connection = writer.get_extra_info("socket")
    with suppress(OSError):  # it is gone already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def open_bulk(
    host: str,
    port: int,
    keyring: Keyring | None,
    *,
    group: int,
    boot: int,
    limits: BulkLimits = DEFAULT_LIMITS,
) -> BulkStream:
    """Connect to a site and shake hands. Without a keyring, which must be said, all goes in plain."""
    stream = None
    try:
        async with asyncio.timeout(limits.handshake_ms / 1_000):
            reader, writer = await asyncio.open_connection(host, port, limit=CHUNK_MAX)
            stream = BulkStream(reader, writer, limits)
            await stream.greet(keyring, group, boot)
    except BaseException as error:
        if stream is not None:
            stream.abort()
            await stream.close()
        if isinstance(error, TimeoutError):
            raise BulkTimeout(f"{host}:{port} did not shake hands within {limits.handshake_ms} ms") from None
        if isinstance(error, OSError | UnicodeError):  # the latter of a name that can be none
            raise BulkLost(f"{host}:{port} cannot be reached: {error}") from error
        raise
    return stream


BulkHandler = Callable[[BulkStream], Awaitable[None]]


class BulkServer:
    """Accepts bulk channels and runs the handler for each. ``counters`` says how they ended."""

    def __init__(self, keyring: Keyring | None, handler: BulkHandler, boot: int, limits: BulkLimits) -> None:
        self.counters: dict[str, int] = {}
        self._keyring = keyring
        self._handler = handler
        self._boot = boot
        self._limits = limits
        self._server: asyncio.Server
        self._greeting: dict[BulkStream, None] = {}  # oldest first
        self._serving: dict[BulkStream, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    @property
    def port(self) -> int:
        """The port that is listened to, if 0 was asked for."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def rotate(self, keyring: Keyring) -> None:
        """Use these keys for connections to come. Those that exist keep theirs."""
        self._keyring = keyring

    async def listen(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._connected, host, port, limit=CHUNK_MAX)

    async def close(self) -> None:
        """Stop listening, and end what is under way; peers get a ``BulkLost``."""
        self._server.close()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # -- a connection ----------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = BulkStream(reader, writer, self._limits)
        task = asyncio.get_running_loop().create_task(self._run(stream))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._ended(done, stream))

    def _ended(self, task: "asyncio.Task[None]", stream: BulkStream) -> None:
        """A task that is cancelled before its first step has closed nothing."""
        del self._tasks[task]
        stream.abort()

    async def _run(self, stream: BulkStream) -> None:
        try:
            await self._admit(stream)
            if len(self._serving) >= self._limits.connections_max:
                self._count("overloaded")
                stream.abort()
            else:
                self._serving[stream] = None
                await self._handler(stream)
                await stream.close()
                self._count("served")
        except BulkError as error:
            self._count(type(error).__name__)
        except Exception as error:  # noqa: BLE001 - a handler's defect ends its connection, not the server
            self._count("handler failed")
            context = {"message": "the handler of a bulk channel failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            self._serving.pop(stream, None)
            stream.abort()
            await stream.close()

    async def _admit(self, stream: BulkStream) -> None:
        """The handshake, among so many at once; of too many the oldest gives way."""
        self._greeting[stream] = None
        if len(self._greeting) > self._limits.handshakes_max:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.abort(BulkTimeout("too many handshakes at once, and this was the oldest"))
        handshake_ms = self._limits.handshake_ms
        try:
            async with asyncio.timeout(handshake_ms / 1_000):
                await stream.answer(self._keyring, self._boot)
        except TimeoutError:
            raise BulkTimeout(f"no handshake within {handshake_ms} ms") from None
        finally:
            self._greeting.pop(stream, None)

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1


async def serve_bulk(
    host: str,
    port: int,
    keyring: Keyring | None,
    handler: BulkHandler,
    *,
    boot: int,
    limits: BulkLimits = DEFAULT_LIMITS,
) -> BulkServer:
    """Listen for bulk channels. Without a keyring, which must be said, all goes in plain."""
    server = BulkServer(keyring, handler, boot, limits)
    await server.listen(host, port)
    return server
