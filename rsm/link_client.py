"""A client's end of a link: reads that need no log, and feeds (``links``).

The link is made when it is first needed, to one of the replicas, and kept. If it breaks, or the replica says
that it does not serve, or it has stopped to answer, another is asked; reads that were under way end with
``LinkLost``, and whoever asked decides what to do. So does a single read that takes too long where others are
answered. One that does not serve is kept for a moment, for stale reads: perhaps nobody serves.

Each client has an order of its own in which it prefers the replicas, by chance: so they spread, and when one
fails, over all that are left. A link to another than the first goes back after a while, when one that is
preferred serves again: without that, all would be at one replica after a rolling restart. Reads that are
under way then are asked again over the new link.
"""

import asyncio
import contextlib
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ordering.errors import BulkCorrupt, BulkError, MessageTooLarge, Overloaded
from ordering.transports.bulk_tcp import BulkLimits, BulkStream
from rsm.errors import RsmError
from rsm.links import (
    UNDER_WAY_MAX,
    UNSENT_BYTES_MAX,
    Frames,
    Hello,
    Pulse,
    ReadAnswered,
    ReadLeft,
    ReadWanted,
    Said,
    framed,
)
from rsm.logs import logger
from rsm.proxy import Consistency, Reading
from rsm.transfer import Peer

log = logger(__name__)

LINK_LIMITS: Final = BulkLimits(handshake_ms=1_000, idle_ms=2_500, stall_ms=2_500, linger_ms=500)
PULSE_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 1.0  # that a read may take before it goes another way
LOOK_SECONDS: Final = 0.1
STALE_SECONDS: Final = 1.0  # on a replica that does not serve
PAUSE_SECONDS: Final = 0.05  # when nobody takes the link; it doubles
PAUSE_SECONDS_MAX: Final = 1.0
HOME_SECONDS: Final = 30.0  # before a link looks for one that is preferred, and up to twice as long
HOME_SECONDS_MAX: Final = 600.0  # it doubles with every move: who is preferred may come and go
SLACK_BYTES: Final = 4096


class LinkLost(RsmError):
    """There is no link, or not any more, or not for this read: ask another way. ``is_broken``: another link
    may do."""

    def __init__(self, message: str, *, is_broken: bool = False) -> None:
        super().__init__(message)
        self.is_broken = is_broken


class _Read(NamedTuple):
    future: "asyncio.Future[Reading]"
    wanted: ReadWanted
    since: float
    lost: "Lost | None"


Noted: TypeAlias = Callable[[Reading, Consistency], None]
Lost: TypeAlias = Callable[["asyncio.Future[Reading]", ReadWanted, LinkLost], None]


class Link:
    """``addresses`` are those of the replicas; ``peer`` tells how to be believed there. ``noted`` hears each
    answer before who waits for it."""

    def __init__(
        self,
        addresses: Callable[[], tuple[str, ...]],
        peer: Callable[[str], Peer],
        noted: Noted,
        reply_bytes_max: int,
        rng: Random,
    ) -> None:
        self.hello: Hello | None = None  # of the replica that is linked, or was
        self._is_greeted = False  # over this link
        self.made = 0  # links so far
        self._addresses = addresses
        self._peer = peer
        self._noted = noted
        self._bytes_max = reply_bytes_max + SLACK_BYTES
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._keeping: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._stale = asyncio.Event()  # there is a link, if only to a replica that does not serve
        self._last = 0
        self._reads: dict[int, _Read] = {}
        self._out = bytearray()
        self._wake = asyncio.Event()
        self._leave_at = 0.0
        self._moved_at = 0.0  # when something of an answer has come
        self._seed = rng.randbytes(16)
        self._turn = 0  # whose it is, in the order of preference
        self._patience = HOME_SECONDS
        self._closed = False

    # -- asking ----------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self._up.is_set() and not self._closed

    @property
    def chain(self) -> int:
        return 0 if self.hello is None else self.hello.chain

    def begin(self) -> None:
        """Make the link, if nobody has yet; it is there in a moment."""
        if self._keeping is None and not self._closed:
            self._keeping = self._loop.create_task(self._keep())

    async def up(self, *, stale: bool = False) -> None:
        """Returns when there is a link; ``stale``: to whomever."""
        self.begin()
        if not self._closed:
            await (self._stale if stale else self._up).wait()
        self._check()

    def _check(self) -> None:
        if self._closed:
            raise RsmError("this client was closed")

    async def read(
        self, message: bytes, consistency: Consistency, after: int = 0, *, wait: bool = False
    ) -> Reading:
        """What the linked replica answers, or ``LinkLost``, at once if there is no link."""
        future = self.ask(message, consistency, after, wait=wait)
        number = self._last
        try:
            return await future
        except asyncio.CancelledError:
            if self._reads.pop(number, None) is not None and self._stale.is_set():
                self._say(framed(ReadLeft(number)))
            raise

    def ask(
        self,
        message: bytes,
        consistency: Consistency,
        after: int = 0,
        *,
        wait: bool = False,
        lost: Lost | None = None,
    ) -> "asyncio.Future[Reading]":
        """The same as a future. What becomes of it if the link is lost is up to ``lost``, if there is one.
        Where it is cancelled, the read goes when its answer comes, or is late."""
        self._check()
        linked = self._stale if consistency is Consistency.STALE else self._up
        if not linked.is_set():
            raise LinkLost("there is no link to a replica at present")
        assert self.hello is not None
        if len(message) > self.hello.bytes_max:
            raise MessageTooLarge(
                f"the query has {len(message)} bytes, {self.hello.address} takes {self.hello.bytes_max}"
            )
        if len(self._reads) >= UNDER_WAY_MAX or len(self._out) >= UNSENT_BYTES_MAX:
            raise Overloaded(f"{len(self._reads)} reads are under way; wait for some of them first")
        self._last += 1
        wanted = ReadWanted(self._last, consistency, after, wait, message)
        future: asyncio.Future[Reading] = self._loop.create_future()
        self._reads[self._last] = _Read(future, wanted, self._loop.time(), lost)
        self._say(framed(wanted))
        return future

    def _say(self, frame: bytes) -> None:
        self._out += frame
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._lose("the client was closed")
        self._up.set()
        self._stale.set()  # who waits finds that there will be none
        if self._keeping is not None:
            self._keeping.cancel()

    async def closed(self) -> None:
        if self._keeping is not None:
            await asyncio.gather(self._keeping, return_exceptions=True)

    # -- keeping it ------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """One replica after the other as long as the client lives."""
        pause = PAUSE_SECONDS
        while True:
            addresses = self._preferred()
            address = addresses[self._turn % len(addresses)]
            self._turn += 1
            self._is_greeted = False
            try:
                async with self._linked(address) as stream:
                    await self._use(stream, address)
            except BulkError as error:
                log.debug("a link ended", peer=address, error=str(error))
            except Exception as error:  # noqa: BLE001 - whatever one of them is: without this task there is no link
                log.warning("a link failed", peer=address, error=f"{type(error).__name__}: {error}")
            finally:
                self._lose(f"the link to {address} is gone")
            if self._is_greeted:
                pause = PAUSE_SECONDS
            elif self._turn % len(addresses) == 0:
                await asyncio.sleep(pause * (1 + self._rng.random()))
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _linked(self, address: str) -> contextlib.AbstractAsyncContextManager[BulkStream]:
        return msgspec.structs.replace(self._peer(address), limits=LINK_LIMITS).linked()

    def _preferred(self) -> list[str]:
        """An order that stays as it is when others come and go, and is another one at every client."""
        return sorted(self._addresses(), key=lambda each: blake2b(each.encode(), key=self._seed).digest())

    async def _go_home(self, stream: BulkStream, address: str) -> None:
        """End a link when one that is preferred can be had; ``_keep`` makes it."""
        while True:
            await asyncio.sleep(self._patience * (1 + self._rng.random()))
            for turn, other in enumerate(self._preferred()):
                if other == address:
                    if turn == 0:
                        self._patience = HOME_SECONDS
                    break
                if await self._serves(other):
                    self._turn = turn
                    self._patience = min(2 * self._patience, HOME_SECONDS_MAX)
                    stream.abort()
                    return

    async def _serves(self, address: str) -> bool:
        """Whether it would take the link."""
        frames = Frames(Said, self._bytes_max)
        with contextlib.suppress(Exception):  # as in ``_keep``: without this task no link goes back
            async with self._linked(address) as stream:
                async for chunk in stream:
                    for said in frames.take(chunk):
                        return isinstance(said, Hello) and said.serving
        return False

    async def _use(self, stream: BulkStream, address: str) -> None:
        """Until it breaks, is silent, the replica does not serve, or there is one that is preferred."""
        self._moved_at = self._loop.time()
        self._leave_at = self._moved_at + STALE_SECONDS
        work = [self._send(stream), self._look(stream), self._go_home(stream, address)]
        tasks = [asyncio.ensure_future(each) for each in work]
        frames = Frames(Said, self._bytes_max)
        try:
            async for chunk in stream:
                for said in frames.take(chunk):
                    if isinstance(said, Hello) and not self._greeted(said):
                        return
                    if isinstance(said, ReadAnswered):
                        self._answered(said)
                if frames.is_within:  # a long answer is coming
                    self._moved_at = self._loop.time()
        finally:
            for task in tasks:
                task.cancel()
            stream.abort()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _greeted(self, hello: Hello) -> bool:
        """Whether to stay."""
        if not hello.stale:
            return False
        self.hello, self._is_greeted = hello, True
        self._stale.set()
        now = self._loop.time()
        if not hello.serving:
            self._up.clear()
            return now < self._leave_at
        self._leave_at = now + STALE_SECONDS
        if not self._up.is_set():
            self.made += 1
            self._up.set()
        return True

    def _answered(self, said: ReadAnswered) -> None:
        hello = self.hello
        if hello is None or not self._is_greeted:
            raise BulkCorrupt("an answer came before the greeting")
        read = self._reads.pop(said.number, None)
        if read is None or read.future.done():
            return
        if said.reply:
            self._moved_at = self._loop.time()
            age_s = said.age_ns / 1e9
            reading = Reading(said.reply, said.ts, age_s, hello.address, hello.view, hello.chain)
            self._noted(reading, read.wanted.consistency)
            read.future.set_result(reading)
        else:
            self._fail(read, LinkLost(f"{hello.address} cannot answer this read"))

    async def _send(self, stream: BulkStream) -> None:
        try:
            while True:
                self._wake.clear()
                out, self._out = self._out, bytearray()
                if out:
                    await stream.send(out)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PULSE_SECONDS):
                        await self._wake.wait()
                if not self._wake.is_set():
                    self._out += framed(Pulse())
        except BulkError:
            stream.abort()

    async def _look(self, stream: BulkStream) -> None:
        """Leave a replica that greets and does not answer: it may have stopped to execute."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            late = self._loop.time() - ANSWER_SECONDS
            reads = [read for read in self._reads.values() if not read.wanted.wait and read.since < late]
            if reads and self._moved_at < late:
                stream.abort()
                return
            for read in reads:
                self._say(framed(ReadLeft(read.wanted.number)))
                self._end(read, LinkLost("the linked replica takes too long for this read"))

    def _lose(self, why: str) -> None:
        self._up.clear()
        self._stale.clear()
        self._out.clear()
        for read in list(self._reads.values()):
            self._end(read, LinkLost(why, is_broken=True))

    def _end(self, read: _Read, why: LinkLost) -> None:
        del self._reads[read.wanted.number]
        if not read.future.done():
            self._fail(read, why)

    @staticmethod
    def _fail(read: _Read, why: LinkLost) -> None:
        if read.lost is None:
            read.future.set_exception(why)
        else:
            read.lost(read.future, read.wanted, why)
