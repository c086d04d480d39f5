"""What replicas ask each other over the bulk channel: above all for the state (R7).

    asks      StateWanted(chain, ts, have)    a state of this history, at this slot or later
    answers   StateOffered(ts), then for each chunk of the executor's snapshot ChunkKnown(name, length), if
              the name is among those that the other has, or ChunkSent(name, length) and the chunk; then
              StateEnded; or nothing, if it cannot

    asks      ResultsWanted()                 what was executed lately: who finds itself diverged looks where
    answers   pairs of slot and checksum

    asks      StatusWanted()
    answers   ReplicaStatus

    asks      CallWanted(message, ts)         a client's call that fits no datagram, or whose answer does not
    answers   slot and reply (``far_calls``)

    asks      LINK, and goes on                a client wants to read, again and again (``links``)

    asks      ASKING, and goes on              questions to the application beside a replica (``asking``)

    asks      HoldersWanted(ts, voters)       for a client: how many voters hold a slot (``quality``)
    answers   how many do, of how many

    asks      LogWanted(chain, since, limit)  a replica's log in words, from behind a slot (``logbook``)
    answers   LogPage

    asks      an operator's order             ``rsm.operations``
    answers   Outcome

Each of these but the chunks is MessagePack behind its length, the questions without. A chunk's name is its
digest, and the end has a digest of all names: what comes is verified chunk by chunk, kept at once
(``spool``), and not asked for again when the donor dies, the connection breaks or a chunk is not what its
name says. The next donor may be at a later slot; it leaves out what did not change.

*Bounds.* So many states are given at a time; who is one too many is refused, and asks another. Making chunks
takes a share of the event loop's time, sending them no more bytes a second than is set. Who takes a state too
slowly is left to try again: until it is given, the donor keeps what was in the state and is not any more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from struct import Struct as Layout
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec

from ordering.errors import BulkCorrupt, BulkError, BulkTimeout
from ordering.sealing import Keyring
from ordering.transports.addresses import parse_address
from ordering.transports.bulk_tcp import DEFAULT_LIMITS, BulkLimits, BulkStream, open_bulk
from ordering.views import NO_SITE, SiteId
from rsm import operations
from rsm.chunks import CHUNK_MAX, DIGEST_BYTES, Whole, name_of
from rsm.errors import MachineError
from rsm.executor import Executor
from rsm.logbook import LogPage, LogWanted
from rsm.logs import Throttle, logger
from rsm.operations import Outcome
from rsm.pace import aside
from rsm.spool import NAMES_MAX, Spool
from rsm.status import ReplicaStatus

log = logger(__name__)
T = TypeVar("T")

GIVEN_AT_ONCE: Final = 2
BYTES_PER_S_MIN: Final = 256 * 1024  # that a state is taken with, after the first while
PATIENCE_SECONDS: Final = 60.0
SAID_AGAIN_S: Final = 10.0
_throttle: Final = Throttle(SAID_AGAIN_S)
_LENGTH: Final = Layout(">I")
_HEAD_MAX: Final = 256
_QUESTION_MAX: Final = NAMES_MAX * DIGEST_BYTES + 256


class StateWanted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """``have``: names of chunks that need not be sent."""

    chain: int
    ts: int
    have: bytes = b""


class ResultsWanted(msgspec.Struct, frozen=True, array_like=True, tag=2):
    pass


class StateOffered(msgspec.Struct, frozen=True, array_like=True, tag=1):
    ts: int


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    name: bytes
    length: int


class ChunkSent(_Chunk, frozen=True, tag=2):
    """It follows."""


class ChunkKnown(_Chunk, frozen=True, tag=3):
    """It need not."""


class StateEnded(msgspec.Struct, frozen=True, array_like=True, tag=4):
    chunks: int
    length: int
    digest: bytes


Head: TypeAlias = StateOffered | ChunkSent | ChunkKnown | StateEnded


class Offer(msgspec.Struct, frozen=True):
    """A state that can be given, or that has come. ``chunks`` of the first kind can be read once."""

    ts: int
    chunks: Iterable[bytes]
    length: int = 0  # known when all has come
    donor: SiteId = NO_SITE  # known to who has asked


class StatusWanted(msgspec.Struct, frozen=True, array_like=True, tag=3):
    pass


class CallWanted(msgspec.Struct, frozen=True, array_like=True, tag=10):
    message: bytes
    ts: int = 0  # where it was executed, if that is known


class HoldersWanted(msgspec.Struct, frozen=True, array_like=True, tag=11):
    ts: int
    voters: int


LINK: Final = msgspec.msgpack.encode([12])
ASKING: Final = msgspec.msgpack.encode([13])

Question: TypeAlias = (
    StateWanted | ResultsWanted | StatusWanted | CallWanted | HoldersWanted | LogWanted | operations.Order
)
Results: TypeAlias = list[tuple[int, int]]


class Gifts:
    """What a replica gives away, and how much of it at a time. ``bytes_per_s``: 0 for no limit."""

    def __init__(self, bytes_per_s: int = 0, given: Callable[[int, int], None] | None = None) -> None:
        self.given = given  # is told slot and length of each that was given whole
        self.under_way = 0
        self.chunks_sent = 0
        self.bytes_sent = 0
        self.chunks_known = 0
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0  # until then enough was sent

    @property
    def bytes_per_s_min(self) -> int:
        return min(BYTES_PER_S_MIN, self._bytes_per_s // 4 or BYTES_PER_S_MIN)

    @contextmanager
    def one(self) -> Iterator[bool]:
        """Whether there is room for one more; if so, it is taken meanwhile."""
        admitted = self.under_way < GIVEN_AT_ONCE
        self.under_way += admitted
        try:
            yield admitted
        finally:
            self.under_way -= admitted

    async def sent(self, size: int) -> None:
        """Count it, and wait until more may be sent."""
        self.chunks_sent += 1
        self.bytes_sent += size
        if self._bytes_per_s:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + size / self._bytes_per_s
            await asyncio.sleep(self._free_at - now)


class Answers(Protocol):
    """Who answers for the application."""

    async def serve(self, stream: BulkStream, first: bytes) -> None: ...


class Source(Protocol):
    """Who is asked."""

    @property
    def answers(self) -> Answers: ...

    @property
    def gifts(self) -> Gifts: ...

    @property
    def executor(self) -> Executor: ...

    async def offer(self, wanted: StateWanted) -> Offer | None: ...

    def status(self) -> ReplicaStatus: ...

    async def operate(self, order: operations.Order) -> Outcome: ...

    async def log(self, wanted: LogWanted) -> LogPage: ...


class Desk(Protocol):
    """Who answers clients."""

    bytes_max: int

    async def serve(self, stream: BulkStream, wanted: CallWanted | HoldersWanted) -> None: ...

    async def refuse(self, stream: BulkStream, size: int) -> None: ...

    async def link(self, stream: BulkStream, first: bytes) -> None: ...


async def serve(stream: BulkStream, source: Source, desk: Desk) -> None:
    """Answer one question."""
    question = bytearray()
    async for chunk in stream:
        question += chunk
        if question.startswith(LINK):
            await desk.link(stream, bytes(question[len(LINK) :]))
            return
        if question.startswith(ASKING):
            await source.answers.serve(stream, bytes(question[len(ASKING) :]))
            return
        if len(question) > _QUESTION_MAX + desk.bytes_max:
            await desk.refuse(stream, len(question))  # nothing but a call has that size
            return
    try:
        wanted = msgspec.msgpack.decode(question, type=Question)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    match wanted:
        case ResultsWanted():
            await stream.send(msgspec.msgpack.encode(source.executor.results()))
        case StatusWanted():
            await stream.send(msgspec.msgpack.encode(source.status()))
        case StateWanted():
            with source.gifts.one() as admitted:
                try:
                    offer = await source.offer(wanted) if admitted else None
                except MachineError as error:
                    _complain("a state cannot be given", error)
                    return
                if offer is not None:
                    await _give(stream, offer, wanted.have, source.gifts)
        case CallWanted() | HoldersWanted():
            await desk.serve(stream, wanted)
        case LogWanted():
            await stream.send(msgspec.msgpack.encode(await source.log(wanted)))
        case order:
            await stream.send(msgspec.msgpack.encode(await source.operate(order)))


async def _give(stream: BulkStream, offer: Offer, have: bytes, gifts: Gifts) -> None:
    known = {have[at : at + DIGEST_BYTES] for at in range(0, len(have), DIGEST_BYTES)}
    whole = Whole(offer.ts)
    clock = asyncio.get_running_loop().time
    began = clock()
    await stream.send(_framed(StateOffered(offer.ts)))
    async for name, chunk in aside((name_of(chunk), chunk) for chunk in offer.chunks):
        whole.add(name, len(chunk))
        if name in known:
            await stream.send(_framed(ChunkKnown(name, len(chunk))))
            gifts.chunks_known += 1
        else:
            await stream.send(_framed(ChunkSent(name, len(chunk))) + chunk)
            known.add(name)
            await gifts.sent(len(chunk))
        if clock() - began > PATIENCE_SECONDS + whole.length / gifts.bytes_per_s_min:
            raise BulkTimeout(f"{whole.length} bytes of a state were taken in {clock() - began:.0f} s")
    await stream.send(_framed(StateEnded(whole.chunks, whole.length, whole.digest())))
    if gifts.given is not None:
        gifts.given(offer.ts, whole.length)


def _framed(head: Head) -> bytes:
    said = msgspec.msgpack.encode(head)
    return _LENGTH.pack(len(said)) + said


class _Incoming:
    """An answer, read in parts of given sizes."""

    def __init__(self, stream: BulkStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def head(self) -> Head | None:
        """None at the end."""
        if not await self._has(_LENGTH.size) and not self._buffer:
            return None
        (length,) = _LENGTH.unpack(await self.take(_LENGTH.size))
        if length > _HEAD_MAX:
            raise BulkCorrupt(f"a head of {length} bytes, more than {_HEAD_MAX}")
        try:
            head: Head = msgspec.msgpack.decode(await self.take(length), type=Head)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BulkCorrupt(f"a head cannot be read: {error}") from None
        return head

    async def take(self, count: int) -> bytes:
        if not await self._has(count):
            raise BulkCorrupt("the answer is cut off")
        data = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return data

    async def _has(self, count: int) -> bool:
        while len(self._buffer) < count:
            try:
                self._buffer += await anext(self._stream)
            except StopAsyncIteration:
                return False
        return True


async def _receive(incoming: _Incoming, spool: Spool) -> Offer | None:
    """Everything into the spool; None if there is no such state."""
    offered = await incoming.head()
    if offered is None:
        return None
    if not isinstance(offered, StateOffered):
        raise BulkCorrupt("no offer, but something else")
    whole = Whole(offered.ts)
    names: list[bytes] = []
    try:
        while True:
            match await incoming.head():
                case ChunkSent(name, length) if 0 < length <= CHUNK_MAX:
                    chunk = await incoming.take(length)
                    if name_of(chunk) != name:
                        raise BulkCorrupt(f"chunk {len(names)} is not what its name says")
                    await spool.put(name, chunk)
                case ChunkKnown(name, length) if spool.has(name):
                    pass
                case StateEnded(chunks, length, digest):
                    if (chunks, length, digest) != (whole.chunks, whole.length, whole.digest()):
                        raise BulkCorrupt("what came is not what was offered")
                    return Offer(offered.ts, spool.read(names), whole.length)
                case other:
                    raise BulkCorrupt(f"{type(other).__name__} stands where it cannot")
            whole.add(name, length)
            names.append(name)
    finally:
        spool.named(whole.length)


class Peer(msgspec.Struct, frozen=True):
    """Another replica, and how to be believed there."""

    address: str
    keyring: Keyring | None
    group: int
    boot: int
    limits: BulkLimits = DEFAULT_LIMITS

    @asynccontextmanager
    async def _asked(self, question: Question) -> AsyncIterator[BulkStream]:
        """The answer, as it comes."""
        host, port = parse_address(self.address).endpoint
        async with await open_bulk(
            host, port, self.keyring, group=self.group, boot=self.boot, limits=self.limits
        ) as stream:
            await stream.send(msgspec.msgpack.encode(question))
            await stream.finish()
            yield stream

    @asynccontextmanager
    async def linked(self, question: bytes = LINK) -> AsyncIterator[BulkStream]:
        """A connection that stays open, with its question asked."""
        host, port = parse_address(self.address).endpoint
        async with await open_bulk(
            host, port, self.keyring, group=self.group, boot=self.boot, limits=self.limits
        ) as stream:
            await stream.send(question)
            yield stream

    async def ask(self, question: Question, bytes_max: int | None = None) -> bytearray | None:
        """Everything it answers; None if the connection broke, or it is more than ``bytes_max``."""
        received = bytearray()
        try:
            async with self._asked(question) as stream:
                async for chunk in stream:
                    received += chunk
                    if bytes_max is not None and len(received) > bytes_max:
                        stream.abort()
                        return None
        except BulkError as error:
            log.debug("a peer did not answer", peer=self.address, error=str(error))
            return None
        return received

    async def state(self, wanted: StateWanted, spool: Spool) -> Offer | None:
        """None if it has no such state, or not all of it came. What came is in the spool."""
        question = StateWanted(wanted.chain, wanted.ts, spool.names())
        try:
            async with self._asked(question) as stream:
                return await _receive(_Incoming(stream), spool)
        except BulkError as error:
            _complain("a state did not come", error, peer=self.address)
            return None

    async def status(self) -> ReplicaStatus | None:
        return await self._told(StatusWanted(), ReplicaStatus)

    async def order(self, order: operations.Order) -> Outcome | None:
        """None if it did not answer: whether it heard is not known."""
        return await self._told(order, Outcome)

    async def log(self, wanted: LogWanted) -> LogPage | None:
        return await self._told(wanted, LogPage)

    async def results(self) -> Results:
        return await self._told(ResultsWanted(), Results) or []

    async def _told(self, question: Question, kind: type[T]) -> T | None:
        received = await self.ask(question)
        try:
            return msgspec.msgpack.decode(received or b"", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


def _complain(what: str, error: Exception, **who: str) -> None:
    """Who fetches a state tries again at once, and for as long as it takes."""
    if (fields := _throttle.admits((what, *who.values()))) is not None:
        log.warning(what, **who, error=str(error), **fields)
