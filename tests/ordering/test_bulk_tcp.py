"""The bulk channel over real sockets on the loopback, under asyncio's loop and uvloop."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest
import uvloop

from ordering.bulk import CHUNK_MAX, FRAME_HEADER_BYTES, GREETING_BYTES
from ordering.errors import BulkCorrupt, BulkError, BulkLost, BulkMisuse, BulkRefused, BulkTimeout
from ordering.sealing import Keyring
from ordering.transports.bulk_tcp import (
    DEFAULT_LIMITS,
    BulkHandler,
    BulkLimits,
    BulkServer,
    BulkStream,
    open_bulk,
    serve_bulk,
)

KEYRING = Keyring([b"k" * 32])
OTHER = Keyring([b"o" * 32])
GROUP, OUR_BOOT, THEIR_BOOT = 7, 1 << 100, 2 << 100
MIB = 1 << 20

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_in_loop(scene: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scene)

    return run_in_loop


async def serve(
    handler: BulkHandler,
    keyring: Keyring | None = KEYRING,
    limits: BulkLimits = DEFAULT_LIMITS,
    host: str = "127.0.0.1",
) -> BulkServer:
    return await serve_bulk(host, 0, keyring, handler, boot=THEIR_BOOT, limits=limits)


async def connect(
    port: int,
    keyring: Keyring | None = KEYRING,
    limits: BulkLimits = DEFAULT_LIMITS,
    host: str = "127.0.0.1",
) -> BulkStream:
    return await open_bulk(host, port, keyring, group=GROUP, boot=OUR_BOOT, limits=limits)


async def echo(stream: BulkStream) -> None:
    async for chunk in stream:
        await stream.send(chunk)


async def everything(stream: BulkStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


async def counted(server: BulkServer, expected: dict[str, int]) -> None:
    """Connections end at a server shortly after they ended here."""
    while sum(server.counters.values()) < sum(expected.values()):
        await asyncio.sleep(0)
    assert server.counters == expected


class Ending:
    """A handler that reads all, and how that went."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.came = asyncio.Event()
        self.error: asyncio.Future[BulkError | None] = asyncio.get_running_loop().create_future()

    async def __call__(self, stream: BulkStream) -> None:
        try:
            async for chunk in stream:
                self.chunks.append(chunk)
                self.came.set()
        except BulkError as error:
            self.error.set_result(error)
            raise
        self.error.set_result(None)


def pattern(name: bytes) -> bytes:
    """A mebibyte that is nowhere like itself."""
    return b"".join(sha256(name + number.to_bytes(4, "big")).digest() for number in range(MIB // 32))


# -- streams -------------------------------------------------------------------------------------


async def send_64_mib(stream: BulkStream, name: bytes) -> str:
    mib, digest = pattern(name), sha256()
    for number in range(64):
        part = mib[number:] + mib[:number]
        digest.update(part)
        await stream.send(part)
    await stream.finish()
    return digest.hexdigest()


async def digest_of(stream: BulkStream) -> str:
    digest = sha256()
    async for chunk in stream:
        digest.update(chunk)
    return digest.hexdigest()


@pytest.mark.parametrize("keyring", [None, KEYRING], ids=["plain", "sealed"])
def test_when_64_mib_go_each_way_at_once_then_they_arrive_unaltered(
    run: Run, keyring: Keyring | None
) -> None:
    async def scene() -> None:
        theirs: list[str] = []

        async def handler(stream: BulkStream) -> None:
            theirs.extend(await asyncio.gather(send_64_mib(stream, b"acceptor"), digest_of(stream)))

        async with await serve(handler, keyring) as server, await connect(server.port, keyring) as stream:
            ours = await asyncio.gather(send_64_mib(stream, b"initiator"), digest_of(stream))
            await stream.close()
            await counted(server, {"served": 1})
        assert [ours[1], ours[0]] == theirs
        assert ours[0] != ours[1]

    run(scene())


def test_when_both_ends_shake_hands_then_each_knows_the_other(run: Run) -> None:
    async def scene() -> None:
        peers = []

        async def handler(stream: BulkStream) -> None:
            peers.append((stream.peer.group, stream.peer.boot))

        async with await serve(handler) as server, await connect(server.port) as stream:
            assert (stream.peer.group, stream.peer.boot) == (GROUP, THEIR_BOOT)
            assert await everything(stream) == b""
        assert peers == [(GROUP, OUR_BOOT)]

    run(scene())


def test_when_a_stream_is_finished_then_the_other_direction_goes_on(run: Run) -> None:
    async def scene() -> None:
        async def handler(stream: BulkStream) -> None:
            question = await everything(stream)
            await stream.send(memoryview(b"the answer to " + question))

        async with await serve(handler) as server, await connect(server.port) as stream:
            await stream.send(bytearray(b"a question"))
            await stream.finish()
            with pytest.raises(BulkMisuse, match="is finished"):
                await stream.send(b"more")
            assert await everything(stream) == b"the answer to a question"

    run(scene())


def test_when_the_loopback_speaks_ipv6_then_so_does_the_channel(run: Run) -> None:
    async def scene() -> None:
        async with await serve(echo, host="::1") as server, await connect(server.port, host="::1") as stream:
            await stream.send(b"over six")
            await stream.finish()
            assert await everything(stream) == b"over six"

    run(scene())


def test_when_keys_are_being_rotated_then_channels_go_on(run: Run) -> None:
    async def scene() -> None:
        old, new = b"k" * 32, b"n" * 32
        async with await serve(echo) as server:
            before = await connect(server.port)
            server.rotate(Keyring([old, new]))
            after = await connect(server.port, Keyring([new, old]))
            for stream in (before, after):
                await stream.send(b"still here")
                await stream.finish()
                assert await everything(stream) == b"still here"
                await stream.close()
            await counted(server, {"served": 2})

    run(scene())


def test_when_receiving_is_cancelled_then_nothing_of_the_stream_is_lost(run: Run) -> None:
    async def scene() -> None:
        go = asyncio.Event()

        async def handler(stream: BulkStream) -> None:
            await stream.send(b"first")
            await go.wait()
            await stream.send(b"second")

        async with await serve(handler) as server, await connect(server.port) as stream:
            assert await anext(stream) == b"first"
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            go.set()
            assert await everything(stream) == b"second"

    run(scene())


# -- who may speak -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "complaint"),
    [
        (KEYRING, OTHER, "has no key of this keyring"),
        (KEYRING, None, "has no keyring"),
        (None, KEYRING, "is sealed"),
    ],
    ids=["another key", "theirs is plain", "ours is plain"],
)
def test_when_keyrings_do_not_match_then_both_ends_refuse(
    run: Run, ours: Keyring | None, theirs: Keyring | None, complaint: str
) -> None:
    async def scene() -> None:
        served = []

        async def handler(stream: BulkStream) -> None:
            served.append(stream)

        async with await serve(handler, theirs) as server:
            with pytest.raises(BulkRefused, match=complaint):
                await connect(server.port, ours)
            await counted(server, {"BulkRefused": 1})
        assert not served

    run(scene())


def test_when_a_stranger_calls_then_it_is_refused_and_others_are_served(run: Run) -> None:
    async def scene() -> None:
        async with await serve(echo) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nUser-Agent: stranger\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
            await counted(server, {"BulkRefused": 1})
            async with await connect(server.port) as stream:
                await stream.send(b"x")
                await stream.finish()
                assert await everything(stream) == b"x"

    run(scene())


def test_when_strangers_crowd_the_door_then_the_oldest_gives_way_to_a_peer(run: Run) -> None:
    async def scene() -> None:
        async with await serve(echo, limits=BulkLimits(handshakes_max=3)) as server:
            strangers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            async with await connect(server.port) as stream:
                await stream.send(b"let in")
                await stream.finish()
                assert await everything(stream) == b"let in"
            assert await strangers[0][0].read() == b""
            await counted(server, {"BulkTimeout": 1, "served": 1})
            for _, writer in strangers:
                writer.close()
                await writer.wait_closed()

    run(scene())


def test_when_a_stranger_says_nothing_then_it_is_given_up(run: Run) -> None:
    async def scene() -> None:
        async with await serve(echo, limits=BulkLimits(handshake_ms=20)) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert await reader.read() == b""
            await counted(server, {"BulkTimeout": 1})
            writer.close()
            await writer.wait_closed()

    run(scene())


def test_when_a_server_says_nothing_then_connecting_is_given_up(run: Run) -> None:
    async def scene() -> None:
        done = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()
            done.set()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BulkTimeout, match="did not shake hands within 20 ms"):
            await connect(port, limits=BulkLimits(handshake_ms=20))
        await done.wait()
        server.close()
        await server.wait_closed()
        with pytest.raises(BulkLost, match="cannot be reached"):
            await connect(port)

    run(scene())


def test_when_there_are_too_many_connections_then_the_next_is_turned_away(run: Run) -> None:
    async def scene() -> None:
        async with await serve(echo, limits=BulkLimits(connections_max=1)) as server:
            async with await connect(server.port) as stream:
                await stream.send(b"x")
                assert await anext(stream) == b"x"
                extra = await connect(server.port)
                with pytest.raises(BulkLost):
                    await everything(extra)
                with pytest.raises(BulkLost):
                    await extra.send(b"x")
                await extra.close()
            await counted(server, {"overloaded": 1, "served": 1})
            async with await connect(server.port) as stream:
                await stream.finish()
                assert await everything(stream) == b""
            await counted(server, {"overloaded": 1, "served": 2})

    run(scene())


# -- what can be done to a stream ----------------------------------------------------------------

Tamper = Callable[[list[bytes]], list[bytes]]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(FRAME_HEADER_BYTES)
    return header + await reader.readexactly(int.from_bytes(header[1:], "big"))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_MAX):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@asynccontextmanager
async def relay(port: int, tamper: Tamper) -> AsyncIterator[int]:
    """A man in the middle: the initiator's READY, two DATA and END go through his hands."""
    tasks: list[asyncio.Task[None]] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
        back_writer.write(await reader.readexactly(GREETING_BYTES))
        answers = asyncio.create_task(pump(back_reader, writer))
        frames = tamper([await read_frame(reader) for _ in range(4)])
        back_writer.write(b"".join(frames))
        back_writer.write_eof()
        await asyncio.wait([answers])
        for each in (writer, back_writer):
            each.transport.abort()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(forward(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*tasks)
        await server.wait_closed()


def flipped(frames: list[bytes], index: int, offset: int) -> list[bytes]:
    frame = bytearray(frames[index])
    frame[offset] ^= 1
    return [*frames[:index], bytes(frame), *frames[index + 1 :]]


TAMPERINGS: dict[str, tuple[Tamper, type[BulkError], int]] = {
    "a byte of the payload flipped": (lambda frames: flipped(frames, 2, 100), BulkCorrupt, 1),
    "a byte of the tag flipped": (lambda frames: flipped(frames, 2, -1), BulkCorrupt, 1),
    "a length altered": (lambda frames: flipped(frames, 2, 4), BulkCorrupt, 1),
    "a type altered": (lambda frames: flipped(frames, 2, 0), BulkCorrupt, 1),
    "the proof of the key altered": (lambda frames: flipped(frames, 0, -1), BulkRefused, 0),
    "a frame repeated": (lambda frames: [*frames[:2], frames[1], *frames[2:]], BulkCorrupt, 1),
    "frames swapped": (lambda frames: [frames[0], frames[2], frames[1], frames[3]], BulkCorrupt, 0),
    "a frame dropped": (lambda frames: [frames[0], *frames[2:]], BulkCorrupt, 0),
    "the end dropped": (lambda frames: frames[:-1], BulkLost, 2),
    "the tail dropped in a frame": (lambda frames: [*frames[:2], frames[2][:-7]], BulkLost, 1),
    "everything dropped": (lambda frames: [], BulkLost, 0),
}


@pytest.mark.parametrize(
    ("tamper", "expected", "chunks"), list(TAMPERINGS.values()), ids=list(TAMPERINGS.keys())
)
def test_when_a_relay_tampers_then_the_stream_stops_before_it(
    run: Run, tamper: Tamper, expected: type[BulkError], chunks: int
) -> None:
    async def scene() -> None:
        ending = Ending()
        async with await serve(ending) as server, relay(server.port, tamper) as port:
            stream = await connect(port)
            await stream.send(b"1" * 200)
            await stream.send(b"2" * 200)
            await stream.finish()
            with pytest.raises(BulkLost):
                await everything(stream)
            await stream.close()
            await counted(server, {expected.__name__: 1})
            assert ending.chunks == [b"1" * 200, b"2" * 200][:chunks]

    run(scene())


def test_when_a_relay_leaves_all_as_it_is_then_the_stream_is_whole(run: Run) -> None:
    """The table above fails for what it does, not for the relay."""

    async def scene() -> None:
        ending = Ending()
        async with await serve(ending) as server, relay(server.port, lambda frames: frames) as port:
            stream = await connect(port)
            await stream.send(b"1" * 200)
            await stream.send(b"2" * 200)
            await stream.finish()
            assert await everything(stream) == b""
            await stream.close()
            await counted(server, {"served": 1})
        assert ending.chunks == [b"1" * 200, b"2" * 200]

    run(scene())


# -- slowness and death --------------------------------------------------------------------------


class Slow:
    """A handler that reads when it is told to, and keeps an eye on what is buffered for it."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.size = 0
        self.buffered = 0

    async def __call__(self, stream: BulkStream) -> None:
        await self.go.wait()
        async for chunk in stream:
            self.size += len(chunk)
            self.buffered = max(self.buffered, len(stream._reader._buffer))  # type: ignore[attr-defined]


def test_when_the_reader_is_slow_then_the_sender_waits_and_memory_stays_bounded(run: Run) -> None:
    async def scene() -> None:
        slow = Slow()
        sent = []
        unsent = []

        async def send_all(stream: BulkStream) -> None:
            for _ in range(128):
                await stream.send(bytes(MIB))
                sent.append(MIB)
                unsent.append(transport.get_write_buffer_size())

        async with await serve(slow) as server, await connect(server.port) as stream:
            transport = stream._writer.transport
            sending = asyncio.create_task(send_all(stream))
            while transport.get_write_buffer_size() <= CHUNK_MAX and not sending.done():
                await asyncio.sleep(0)
            # Nobody reads: what is under way is in the kernel, and a frame or two here.
            assert not sending.done()
            assert len(sent) < 64
            unsent.append(transport.get_write_buffer_size())
            slow.go.set()
            await sending
            await stream.finish()
            assert await everything(stream) == b""
        assert slow.size == 128 * MIB
        assert max(unsent) <= 2 * (CHUNK_MAX + 64)
        assert slow.buffered <= 4 * CHUNK_MAX

    run(scene())


def test_when_the_reader_never_reads_then_the_sender_gives_up(run: Run) -> None:
    async def scene() -> None:
        async def handler(stream: BulkStream) -> None:
            await asyncio.Event().wait()

        async with await serve(handler) as server:
            stream = await connect(server.port, limits=BulkLimits(stall_ms=50))
            with pytest.raises(BulkTimeout, match="read too little for 50 ms"):
                await stream.send(bytes(256 * MIB))
            with pytest.raises(BulkTimeout):
                await stream.finish()
            await stream.close()

    run(scene())


def test_when_the_sender_is_silent_then_the_reader_gives_up(run: Run) -> None:
    async def scene() -> None:
        ending = Ending()
        async with await serve(ending, limits=BulkLimits(idle_ms=20)) as server:
            stream = await connect(server.port)
            assert isinstance(await ending.error, BulkTimeout)
            with pytest.raises(BulkLost):
                await everything(stream)
            await stream.close()
            await counted(server, {"BulkTimeout": 1})

    run(scene())


def test_when_the_peer_does_not_end_its_stream_then_closing_gives_up(run: Run) -> None:
    async def scene() -> None:
        async def handler(stream: BulkStream) -> None:
            await asyncio.Event().wait()

        async with await serve(handler) as server:
            stream = await connect(server.port, limits=BulkLimits(linger_ms=20))
            with pytest.raises(BulkTimeout, match="did not end its stream within 20 ms"):
                await stream.close()

    run(scene())


DOOMED = """
import asyncio, sys
from ordering.sealing import Keyring
from ordering.transports.bulk_tcp import open_bulk

async def main():
    stream = await open_bulk("127.0.0.1", int(sys.argv[1]), Keyring([b"k" * 32]), group=7, boot=1)
    for _ in range(100_000):
        await stream.send(bytes(1000))
        if sys.argv[2] == "receiving":
            await anext(stream)

asyncio.run(main())
"""


async def dies_in_the_middle(doing: str, handler: Callable[[Ending], BulkHandler]) -> None:
    ending = Ending()
    async with await serve(handler(ending)) as server:
        process = subprocess.Popen([sys.executable, "-c", DOOMED, str(server.port), doing])
        try:
            await ending.came.wait()
        finally:
            process.kill()
            process.wait()
        assert isinstance(await ending.error, BulkLost)
        await counted(server, {"BulkLost": 1})


def test_when_the_sending_process_is_killed_then_the_reader_knows_that_it_is_not_the_end(run: Run) -> None:
    run(dies_in_the_middle("sending", lambda ending: ending))


def test_when_the_receiving_process_is_killed_then_the_sender_knows(run: Run) -> None:
    def handler(ending: Ending) -> BulkHandler:
        async def send_forever(stream: BulkStream) -> None:
            try:
                while True:
                    await stream.send(bytes(1000))
                    ending.came.set()
            except BulkError as error:
                ending.error.set_result(error)
                raise

        return send_forever

    run(dies_in_the_middle("receiving", handler))


def test_when_a_stream_is_aborted_then_the_peer_knows_and_nothing_more_goes(run: Run) -> None:
    async def scene() -> None:
        ending = Ending()
        async with await serve(ending) as server:
            stream = await connect(server.port)
            await stream.send(b"x")
            await ending.came.wait()
            stream.abort()
            assert isinstance(await ending.error, BulkLost)
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: stream.send(b"y"),
                stream.finish,
                stream.__anext__,
            ]
            for call in calls:
                with pytest.raises(BulkMisuse, match="aborted at this end"):
                    await call()
            await stream.close()

    run(scene())


def test_when_the_block_of_a_stream_fails_then_the_peer_does_not_take_it_for_the_end(run: Run) -> None:
    async def scene() -> None:
        ending = Ending()
        async with await serve(ending) as server:
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what fails
                async with await connect(server.port) as stream:
                    await stream.send(b"half of it")
                    raise ZeroDivisionError
            assert isinstance(await ending.error, BulkLost)

    run(scene())


def test_when_a_handler_fails_then_it_is_told_and_the_peer_does_not_take_it_for_the_end(run: Run) -> None:
    async def scene() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

        async def handler(stream: BulkStream) -> None:
            raise ZeroDivisionError

        async with await serve(handler) as server:
            stream = await connect(server.port)
            with pytest.raises(BulkLost):
                await everything(stream)
            await stream.close()
            await counted(server, {"handler failed": 1})
        (context,) = told
        assert isinstance(context["exception"], ZeroDivisionError)

    run(scene())


def test_when_a_server_closes_then_what_is_under_way_ends_and_is_not_taken_for_the_end(run: Run) -> None:
    async def scene() -> None:
        server = await serve(echo)
        stream = await connect(server.port)
        await stream.send(b"x")
        assert await anext(stream) == b"x"
        await server.close()
        with pytest.raises(BulkLost):
            await everything(stream)
        await stream.close()

    run(scene())


def test_when_a_server_closes_before_it_has_looked_at_a_connection_then_that_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        server = BulkServer(None, echo, THEIR_BOOT, DEFAULT_LIMITS)
        connected = server._connected

        def closed_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected(reader, writer)
            for task in server._tasks:
                task.cancel()

        monkeypatch.setattr(server, "_connected", closed_at_once)
        await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            async with asyncio.timeout(10):
                assert await reader.read() == b""
        except ConnectionError:
            pass
        writer.close()
        await server.close()

    run(scene())
