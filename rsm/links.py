"""A link: a client's own connection to one replica, kept open, for what needs no log (R11).

    client     LINK, then any number of ReadWanted and ReadLeft
    replica    Hello, and again when it changes, and every so often; ReadAnswered for each ReadWanted

Each is MessagePack behind its length; what is ready at the same time goes in one piece. A read carries how
consistent it is to be. Those that come together share one round of the ring, and none takes a slot. A read of
a feed may *wait*: it is answered when there is something behind its position, once. Who follows a feed asks
again, so a replica keeps nothing for it, gives it as much as it asks for, and any other can go on.

A link is never the only way. A replica that does not serve says so, and one that is silent is left; reads go
over the ring instead, or over the next link (``link_client``).

*Bounds.* So many links of a replica, so many reads under way of a link; a client that does not read its
answers is not read from.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from struct import Struct as Layout
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from ordering.errors import BulkCorrupt, BulkError, OrderingError
from ordering.transports.bulk_tcp import BulkStream
from rsm.envelope import Language, too_large
from rsm.errors import RsmError
from rsm.executor import Executor
from rsm.proxy import Consistency
from rsm.sessions import Origin

HELLO_SECONDS: Final = 0.5
LINKS_MAX: Final = 32
UNDER_WAY_MAX: Final = 4096
UNSENT_BYTES_MAX: Final = 4 << 20
APPLY_SECONDS: Final = 5.0  # that a sequential read waits for its slot
_LENGTH: Final = Layout(">I")


class ReadWanted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """``after``: of a state that has at least this slot. ``wait``: until the feed has something."""

    number: int
    consistency: Consistency
    after: int
    wait: bool
    message: bytes


class ReadLeft(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Nobody waits for it any more."""

    number: int


class Pulse(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The client is there."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """How the replica stands, and who is in its view. One that is not ``serving`` may still have a state that
    was true once (``stale``)."""

    address: str
    view: str
    serving: bool
    stale: bool
    members: dict[int, str]


class ReadAnswered(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """No ``reply``: ask another."""

    number: int
    ts: int
    age_ns: int
    reply: bytes


Asked: TypeAlias = ReadWanted | ReadLeft | Pulse
Said: TypeAlias = Hello | ReadAnswered

_ENCODER: Final = msgspec.msgpack.Encoder()


def framed(message: Asked | Said) -> bytes:
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream into messages of at most ``bytes_max``."""

    def __init__(self, kind: Any, bytes_max: int) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def take(self, chunk: bytes) -> Iterator[Any]:
        self._buffer += chunk
        view = memoryview(self._buffer)
        at = 0
        try:
            while len(view) - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, at)
                if length > self._bytes_max:
                    raise BulkCorrupt(f"a message of {length} bytes, more than {self._bytes_max}")
                end = at + _LENGTH.size + length
                if end > len(view):
                    break
                yield self._decode(view[at + _LENGTH.size : end])
                at = end
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BulkCorrupt(f"a message cannot be read: {error}") from None
        finally:
            view.release()
            del self._buffer[:at]


class Host(Protocol):
    """What a replica must have to answer for."""

    @property
    def executor(self) -> Executor: ...

    @property
    def is_serving(self) -> bool: ...

    @property
    def has_state(self) -> bool: ...

    def origin(self) -> Origin: ...

    def age_ns(self) -> int: ...

    def caught_up(self) -> "asyncio.Future[None]": ...

    def when_applied(self, ts: int) -> "asyncio.Future[None]": ...


def _hello(host: Host) -> Hello:
    view = host.executor.group.view
    members = {} if view is None else {int(site): where for site, where in view.addresses.items()}
    return Hello(*host.origin(), host.is_serving, host.has_state, members)


class Exchange:
    """All links of one replica."""

    def __init__(self, host: Host, language: Language, bytes_max: int) -> None:
        self.links = 0
        self._host = host
        self._language = language
        self._bytes_max = bytes_max

    async def serve(self, stream: BulkStream, first: bytes) -> None:
        """``first``: what came behind ``LINK`` already. Silence means: ask another."""
        if self.links >= LINKS_MAX:
            return
        self.links += 1
        link = _Link(self._host, self._language, stream)
        sending = asyncio.ensure_future(link.send())
        try:
            frames = Frames(Asked, self._bytes_max + 256)
            link.take(frames.take(first))
            async for chunk in stream:
                link.take(frames.take(chunk))
                await link.has_room()
        finally:
            self.links -= 1
            sending.cancel()
            link.end()
            with contextlib.suppress(asyncio.CancelledError, BulkError):
                await sending


class _Link:
    """One client's."""

    def __init__(self, host: Host, language: Language, stream: BulkStream) -> None:
        self._host = host
        self._language = language
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, ReadWanted] = {}
        self._feeds: dict[int, Any] = {}  # those that wait, as bound queries, by number
        self._next_slot: asyncio.Future[None] | None = None
        self._out = bytearray()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._over = False

    def end(self) -> None:
        self._over = True
        self._under_way.clear()
        self._feeds.clear()
        if self._next_slot is not None:
            self._next_slot.cancel()

    # -- sending ---------------------------------------------------------------------------------

    async def send(self) -> None:
        """Everything that is said, and a greeting every so often."""
        greeting_at = 0.0
        try:
            while True:
                if self._loop.time() >= greeting_at:
                    greeting_at = self._loop.time() + HELLO_SECONDS
                    self._out += framed(_hello(self._host))
                out, self._out = self._out, bytearray()
                self._wake.clear()
                if out:
                    await self._stream.send(out)
                self._drained.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(greeting_at):
                        await self._wake.wait()
        except BulkError:
            self._stream.abort()

    async def has_room(self) -> None:
        """Returns when the client has read enough to be asked again."""
        await self._drained.wait()

    def _say(self, number: int, ts: int, age_ns: int, reply: bytes) -> None:
        self._out += framed(ReadAnswered(number, ts, age_ns, reply))
        if len(self._out) > UNSENT_BYTES_MAX:
            self._drained.clear()
        self._wake.set()

    def _refuse(self, number: int) -> None:
        if self._under_way.pop(number, None) is not None:
            self._say(number, 0, 0, b"")

    # -- reading ---------------------------------------------------------------------------------

    def take(self, messages: Iterator[Asked]) -> None:
        """What came together is answered together."""
        now: list[ReadWanted] = []
        for message in messages:
            match message:
                case ReadWanted(number):
                    if len(self._under_way) >= UNDER_WAY_MAX or number in self._under_way:
                        raise BulkCorrupt(f"{len(self._under_way)} reads are under way, or one twice")
                    self._under_way[number] = message
                    now.append(message)
                case ReadLeft(number):
                    self._under_way.pop(number, None)
                    self._feeds.pop(number, None)
        self._sort(now)

    def _sort(self, reads: list[ReadWanted]) -> None:
        """By what each has to wait for."""
        linearizable: list[ReadWanted] = []
        applied = self._host.executor.applied
        for read in reads:
            if read.consistency is Consistency.LINEARIZABLE:
                linearizable.append(read)
            elif read.consistency is Consistency.SEQUENTIAL and read.after > applied:
                self._answer_when(self._host.when_applied(read.after), [read], APPLY_SECONDS)
            else:
                self._answer([read])
        if linearizable:
            try:
                caught_up = self._host.caught_up()
            except (OrderingError, RsmError):
                for read in linearizable:
                    self._refuse(read.number)
            else:
                self._answer_when(caught_up, linearizable)

    def _answer_when(
        self, future: "asyncio.Future[None]", reads: list[ReadWanted], seconds: float | None = None
    ) -> None:
        timer = None if seconds is None else self._loop.call_later(seconds, future.cancel)

        def done(future: "asyncio.Future[None]") -> None:
            if timer is not None:
                timer.cancel()
            if future.cancelled() or future.exception() is not None:
                for read in reads:
                    self._refuse(read.number)
            else:
                self._answer(reads)

        future.add_done_callback(done)

    def _answer(self, reads: list[ReadWanted]) -> None:
        host = self._host
        stale = host.has_state
        current = stale and host.is_serving
        for read in reads:
            if read.number not in self._under_way:
                continue
            query = self._language.decode(read.message)
            wanted = type(query) is self._language.ask
            if not wanted or not (stale if read.consistency is Consistency.STALE else current):
                self._refuse(read.number)
            elif read.wait:
                self._feeds[read.number] = query.query
                self._look(read.number)
            else:
                del self._under_way[read.number]
                self._give(read.number, host.executor.query(query.query))

    def _give(self, number: int, reply: bytes) -> None:
        executor = self._host.executor
        most = executor.group.limits.reply_bytes_max
        if len(reply) > most:
            reply = too_large(len(reply), most)
        self._say(number, executor.applied, self._host.age_ns(), reply)

    # -- feeds -----------------------------------------------------------------------------------

    def _look(self, number: int) -> None:
        """Whether there is something for one that waits; if not, again when more is applied."""
        reply = self._host.executor.feed(self._feeds[number])
        if reply is not None:
            del self._feeds[number], self._under_way[number]
            self._give(number, reply)
        elif self._next_slot is None:
            self._next_slot = self._host.when_applied(self._host.executor.applied + 1)
            self._next_slot.add_done_callback(self._advanced)

    def _advanced(self, slot: "asyncio.Future[None]") -> None:
        self._next_slot = None
        if self._over:
            return
        lost = slot.cancelled() or not self._host.is_serving
        for number in list(self._feeds):
            if lost:
                del self._feeds[number]
                self._refuse(number)
            else:
                self._look(number)
