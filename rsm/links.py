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
answers is not read from, and none are made for it that it has no room for. All links together have so long in
a turn of the event loop, and those who wait for something to happen a share of its time.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from struct import Struct as Layout
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from ordering.errors import BulkCorrupt, BulkError, OrderingError
from ordering.transports.bulk_tcp import BulkStream
from rsm.envelope import REFUSED, Language, too_large
from rsm.errors import Refusal, RsmError
from rsm.executor import Executor
from rsm.logs import logger
from rsm.pace import aside
from rsm.proxy import Consistency
from rsm.state_machine import GroupView

log = logger(__name__)

HELLO_SECONDS: Final = 0.5
LINKS_MAX: Final = 32
UNDER_WAY_MAX: Final = 4096
UNSENT_BYTES_MAX: Final = 4 << 20
APPLY_SECONDS: Final = 0.25  # that a sequential read waits for its slot, before it asks whether there is one
TURN_SECONDS: Final = 0.005  # of answering, before the event loop turns
PROGRESS_SECONDS: Final = 10.0  # after which a feed without events tells how far it has looked
SLOT_SECONDS: Final = 1.0  # that slots of one chain are waited for; there may be another chain by then
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
    was true once (``stale``). Slots compare within a ``chain``. It takes queries of ``bytes_max``."""

    address: str
    chain: int
    view: str
    serving: bool
    stale: bool
    bytes_max: int
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


def framed(message: msgspec.Struct) -> bytes:
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream into messages of at most ``bytes_max``."""

    def __init__(self, kind: Any, bytes_max: int) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    @property
    def is_within(self) -> bool:
        """Whether a part of a message is here."""
        return bool(self._buffer)

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
    def address(self) -> str: ...

    @property
    def executor(self) -> Executor: ...

    @property
    def is_serving(self) -> bool: ...

    @property
    def has_state(self) -> bool: ...

    def age_ns(self) -> int: ...

    def caught_up(self) -> "asyncio.Future[None]": ...

    def when_applied(self, ts: int) -> "asyncio.Future[None]": ...


class Exchange:
    """All links of one replica: who of them has its turn, and who waits for something to be applied."""

    def __init__(self, host: Host, language: Language, bytes_max: int) -> None:
        self.host = host
        self.language = language
        self.bytes_max = bytes_max
        self._links: dict[_Link, None] = {}
        self._busy: deque[_Link] = deque()
        self._turning = False
        self._looking: asyncio.Task[None] | None = None

    @property
    def links(self) -> int:
        return len(self._links)

    async def serve(self, stream: BulkStream, first: bytes) -> None:
        """``first``: what came behind ``LINK`` already. Silence means: ask another."""
        if len(self._links) >= LINKS_MAX:
            return
        link = _Link(self, stream)
        self._links[link] = None
        sending = asyncio.ensure_future(link.send())
        try:
            frames = Frames(Asked, self.bytes_max + 256)
            link.take(frames.take(first))
            async for chunk in stream:
                link.take(frames.take(chunk))
                await link.has_room()
        finally:
            del self._links[link]
            link.end()
            sending.cancel()
            if not self._links and self._looking is not None:
                self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError, BulkError):
                await sending

    # -- turns -----------------------------------------------------------------------------------

    def wake(self, link: "_Link") -> None:
        """It has something to answer."""
        if not link.is_queued:
            link.is_queued = True
            self._busy.append(link)
        if not self._turning:
            self._turning = True
            self._turn()

    def _turn(self) -> None:
        """One link after the other; a client that asks for much does not keep the others waiting."""
        until = monotonic() + TURN_SECONDS
        while self._busy:
            link = self._busy.popleft()
            link.is_queued = False
            with link.failing():
                link.work()
            if link.has_work:
                link.is_queued = True
                self._busy.append(link)
            if self._busy and monotonic() >= until:
                asyncio.get_running_loop().call_soon(self._turn)
                return
        self._turning = False

    # -- who waits -------------------------------------------------------------------------------

    def look_out(self) -> None:
        """Some read waits for what is to be applied."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """At everybody who waits, whenever more is applied, as long as anybody does."""
        host = self.host
        while any(link.waits for link in self._links):
            executor, applied = host.executor, host.executor.applied
            slot = host.when_applied(applied + 1)
            try:
                await asyncio.wait([slot], timeout=SLOT_SECONDS)
            finally:
                slot.cancel()
            if not slot.cancelled() and slot.exception() is not None:
                return  # this replica is over, and its greetings say so
            moved = (host.executor, host.executor.applied) != (executor, applied)
            looks = (step for link in list(self._links) for step in link.look(moved=moved))
            async for _ in aside(looks):
                pass


class _Link:
    """One client's."""

    def __init__(self, exchange: Exchange, stream: BulkStream) -> None:
        self.is_queued = False
        self._exchange = exchange
        self._host = exchange.host
        self._language = exchange.language
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, ReadWanted] = {}
        self._due: deque[ReadWanted] = deque()  # those that can be answered
        self._later: dict[int, float] = {}  # those whose slot is not here, and until when they wait
        self._feeds: dict[int, tuple[Any, float]] = {}  # those that wait, as bound queries, and since when
        self._skipped = False  # some feed was not looked at, for want of room
        self._out = bytearray()
        self._greeted: tuple[GroupView | None, bool, bool] | None = None
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._over = False

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """What goes wrong for one client, memory that is not there say, ends its link: it asks elsewhere."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whoever called answers other clients too
            log.warning("a link failed", error=f"{type(error).__name__}: {error}")
            self.end()
            self._stream.abort()

    def end(self) -> None:
        self._over = True
        self._under_way.clear()
        self._due.clear()
        self._later.clear()
        self._feeds.clear()

    # -- sending ---------------------------------------------------------------------------------

    async def send(self) -> None:
        """Everything that is said, and a greeting every so often."""
        greeting_at = 0.0
        try:
            while True:
                if self._loop.time() >= greeting_at:
                    greeting_at = self._loop.time() + HELLO_SECONDS
                    with self.failing():
                        self._greet(always=True)
                        self._sweep()
                out, self._out = self._out, bytearray()
                self._wake.clear()
                if out:
                    await self._stream.send(out)
                if self._due:
                    self._exchange.wake(self)
                self._drained.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(greeting_at):
                        await self._wake.wait()
        except BulkError:
            self._stream.abort()
        finally:
            self._over = True
            self._drained.set()

    async def has_room(self) -> None:
        """Returns when the client has read enough to be asked again."""
        while (self._due or self.is_full) and not self._over:
            self._drained.clear()
            await self._drained.wait()

    @property
    def is_full(self) -> bool:
        return len(self._out) >= UNSENT_BYTES_MAX

    def _greet(self, *, always: bool = False) -> tuple[bool, bool]:
        """Say how the replica stands, if that has changed: whether it has a state, and a current one."""
        host = self._host
        view, stale = host.executor.group.view, host.has_state
        current = stale and host.is_serving
        stands = (view, stale, current)
        if always or stands != self._greeted:
            self._greeted = stands
            name, members = "", {}
            if view is not None:
                name = f"{view.epoch}.{view.revision}"
                members = {int(site): where for site, where in view.addresses.items()}
            chain, most = host.executor.group.chain, self._exchange.bytes_max
            self._out += framed(Hello(host.address, chain, name, current, stale, most, members))
            self._wake.set()
        return stale, current

    def _say(self, number: int, ts: int, age_ns: int, reply: bytes) -> None:
        self._out += framed(ReadAnswered(number, ts, age_ns, reply))
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
                    self._later.pop(number, None)
                    self._feeds.pop(number, None)
        self._sort(now)

    def _sort(self, reads: list[ReadWanted]) -> None:
        """By what each has to wait for."""
        linearizable: list[ReadWanted] = []
        applied = self._host.executor.applied
        for read in reads:
            if read.number not in self._under_way:  # it came and went
                continue
            if read.consistency is Consistency.LINEARIZABLE:
                linearizable.append(read)
            elif read.consistency is Consistency.SEQUENTIAL and read.after > applied:
                self._later[read.number] = self._loop.time() + APPLY_SECONDS
                self._exchange.look_out()
            else:
                self._due.append(read)
        if linearizable:
            self._catch_up(linearizable)
        if self._due:
            self._exchange.wake(self)

    def _catch_up(self, reads: list[ReadWanted]) -> None:
        """Answer when all is here that was answered to anybody; who does not serve has no such time."""

        def done(future: "asyncio.Future[None]") -> None:
            if self._over:
                return
            if future.cancelled() or future.exception() is not None:
                for read in reads:
                    self._refuse(read.number)
            else:
                self._due += reads
                self._exchange.wake(self)

        try:
            if not self._greet()[1]:
                raise RsmError("this replica does not serve")
            self._host.caught_up().add_done_callback(done)
        except (OrderingError, RsmError):
            for read in reads:
                self._refuse(read.number)

    @property
    def has_work(self) -> bool:
        return bool(self._due) and not self.is_full

    def work(self) -> None:
        """Answer what is due, for a moment, and while there is room for answers."""
        until = monotonic() + TURN_SECONDS
        stale, current = self._greet()
        age_ns = self._host.age_ns() if stale else 0
        while self._due and not self.is_full:
            read = self._due.popleft()
            if read.number not in self._under_way:
                continue
            if read.consistency is Consistency.STALE:
                self._answer(read, age_ns, can=stale)
            else:
                self._answer(read, 0, can=current)
            if monotonic() >= until:
                return

    def _answer(self, read: ReadWanted, age_ns: int, *, can: bool) -> None:
        number, query = read.number, self._language.decode(read.message)
        if not can:
            self._refuse(number)
        elif type(query) is not self._language.ask:
            self._give(number, REFUSED[Refusal.UNREADABLE])
        elif read.wait:
            self._look_at(number, query.query, self._loop.time())
        else:
            self._give(number, self._host.executor.query(query.query), age_ns)

    def _give(self, number: int, reply: bytes, age_ns: int = 0) -> None:
        group = self._host.executor.group
        if len(reply) > group.limits.reply_bytes_max:
            reply = too_large(len(reply), group.limits.reply_bytes_max)
        del self._under_way[number]
        self._say(number, group.applied, age_ns, reply)

    # -- waiting ---------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return bool(self._feeds or self._later)

    def _look_at(self, number: int, query: Any, since: float) -> None:
        """Whether there is something for one that waits; if not, again when more is applied."""
        reply = self._host.executor.feed(query)
        if reply is not None:
            self._give(number, reply)
        else:
            self._feeds[number] = (query, since)
            self._exchange.look_out()

    def look(self, *, moved: bool) -> Iterator[None]:
        """A step for each that waits. ``moved``: there is more to see; else only who had no room is due."""
        if not moved and not self._skipped:
            return
        applied = self._host.executor.applied
        for number in [each for each in self._later if self._under_way[each].after <= applied]:
            del self._later[number]
            self._due.append(self._under_way[number])
        if self._due:
            self._exchange.wake(self)
        self._skipped = False
        for number in list(self._feeds):
            if self.is_full:
                self._skipped = True
                return
            if number in self._feeds:
                with self.failing():
                    self._look_again(number)
                yield

    def _look_again(self, number: int) -> None:
        waiting = self._feeds.pop(number)
        if self._greet()[1]:
            self._look_at(number, *waiting)
        else:
            self._refuse(number)

    def _sweep(self) -> None:
        """Who waits and does not know for what. A slot may be one that nobody has seen yet; a feed without
        events goes on elsewhere from where it began, unless it is told how far it was looked through."""
        now = self._loop.time()
        if not self._greet()[1]:
            for number in [*self._later, *self._feeds]:
                self._refuse(number)
            self._later.clear()
            self._feeds.clear()
        late = [number for number, until in self._later.items() if until <= now]
        if late:
            for number in late:
                del self._later[number]
            self._catch_up([self._under_way[number] for number in late])
        for number, (query, since) in list(self._feeds.items()):
            if now - since >= PROGRESS_SECONDS and not self.is_full:
                del self._feeds[number]
                self._give(number, self._host.executor.query(query))
