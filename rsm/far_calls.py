"""Calls and answers that fit no datagram: they go over the bulk channel, to any replica.

A client's call above a packet is given to a replica on a connection of its own, and its answer comes back the
same way, however large. An answer that fits no datagram, to a call that came in one, is answered with
``FETCH``: the client then sends the same call once more over the bulk channel. Nothing new has to be kept for
that, and no certain replica has to live:

- a command has its session and its number in it. Where it was executed, its reply is in the replicated
  session, at every replica, until the client acknowledges it; and the client acknowledges what it *has*.
- a query is read once more. The client has seen no answer of it yet, so it may as well be that of now.

If a connection breaks, another replica is asked the same. Whatever reaches the ring twice is executed once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from struct import Struct as Layout
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from ordering.errors import OrderingError
from ordering.events import Reply
from ordering.multirpc import REPLY_BYTES_MAX
from ordering.transports.bulk_tcp import BulkLimits, BulkStream
from rsm import links, repetitions
from rsm.calls import Call, Calls
from rsm.envelope import FETCH, REFUSED, Language, Unread, call_too_large, too_large
from rsm.errors import OutcomeUnknown, Refusal, RsmError
from rsm.logs import logger
from rsm.quality import Held
from rsm.sessions import Answer
from rsm.transfer import CallWanted, HoldersWanted, Peer

log = logger(__name__)

T = TypeVar("T")

ANSWERS_MAX: Final = 32  # at once, of one replica: the rest of its connections is for the others' questions
ANSWER_SECONDS: Final = 30.0
UNDER_WAY_MAX: Final = 8  # at once, of one client
PAUSE_SECONDS: Final = 0.05  # when nobody had an answer; it doubles
PAUSE_SECONDS_MAX: Final = 1.0
SLACK_BYTES: Final = 4096
# A replica that is silent for so long is left for another; longer each time, for all may be busy.
PATIENCE: Final = tuple(BulkLimits(handshake_ms=1_000 << n, idle_ms=3_000 << n) for n in range(4))

_HEAD: Final = Layout(">Q?")  # slot, and whether the call was put on the ring exactly once


class FarAnswer(NamedTuple):
    """``once``: no other copy of the call can have been ordered. ``ts`` is 0 if this replica takes no such
    call, which says nothing of the others."""

    ts: int
    reply: bytes
    once: bool = False


def _parts(answer: FarAnswer) -> list[bytes]:
    return [_HEAD.pack(answer.ts, answer.once), answer.reply]


def fitting(reply: Reply) -> Reply:
    """What a datagram has room for."""
    return reply if len(reply.payload) <= REPLY_BYTES_MAX else Reply(reply.call, reply.ts, FETCH)


# -- at a replica --------------------------------------------------------------------------------


class Host(repetitions.Host, links.Host, Protocol):
    """What a replica must have to answer for."""

    def forward(self, message: bytes) -> Call: ...

    async def held(self, ts: int, voters: int) -> Held | None: ...


class Desk:
    """Answers calls that come over the bulk channel, so many at once, of so many bytes."""

    def __init__(self, host: Host, language: Language, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._host = host
        self._language = language
        self._busy = 0
        self._exchange = links.Exchange(host, language, bytes_max)

    async def link(self, stream: BulkStream, first: bytes) -> None:
        await self._exchange.serve(stream, first)

    async def serve(self, stream: BulkStream, wanted: CallWanted | HoldersWanted) -> None:
        """Silence means: ask another."""
        if self._busy >= ANSWERS_MAX:
            return
        self._busy += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await (self._find(wanted) if isinstance(wanted, CallWanted) else self._held(wanted))
            for part in found:
                await stream.send(part)
        except (TimeoutError, OrderingError, RsmError) as error:
            log.debug("a call over the bulk channel was not answered", error=str(error))
        finally:
            self._busy -= 1

    async def refuse(self, stream: BulkStream, size: int) -> None:
        """A call of so many bytes, or more."""
        for part in _parts(self._too_large(size)):
            await stream.send(part)

    def _too_large(self, size: int) -> FarAnswer:
        return FarAnswer(0, call_too_large(size, self.bytes_max))

    async def _held(self, wanted: HoldersWanted) -> list[bytes]:
        await self._host.when_applied(wanted.ts)
        held = await self._host.held(wanted.ts, wanted.voters)
        return [] if held is None else [msgspec.msgpack.encode(held)]

    async def _find(self, wanted: CallWanted) -> list[bytes]:
        answer = await self._answer(wanted)
        return [] if answer is None else _parts(answer)

    async def _answer(self, wanted: CallWanted) -> FarAnswer | None:
        host, language = self._host, self._language
        if not wanted.ts and len(wanted.message) > self.bytes_max:
            return self._too_large(len(wanted.message))
        read: Any = language.decode(wanted.message)
        if type(read) is language.ask:
            return self._bounded(await host.read(read.query))
        if type(read) is not language.execute and type(read) is not Unread:
            return None  # whatever else a member would say for itself, it does not say for others
        if wanted.ts:
            await host.when_applied(wanted.ts)
        if not host.is_serving:
            return None
        kept = host.executor.sessions.reply_to(read.session, read.number)
        if kept is not None:
            return FarAnswer(kept.ts, kept.reply)
        if wanted.ts:
            return FarAnswer(wanted.ts, REFUSED[Refusal.SESSION_UNKNOWN])
        call = host.forward(wanted.message)
        answer = await call.future
        return FarAnswer(answer.ts, answer.reply, once=call.tries == 1)

    def _bounded(self, answer: Answer) -> FarAnswer:
        most = self._host.executor.group.limits.reply_bytes_max
        size = len(answer.reply)
        return FarAnswer(answer.ts, answer.reply if size <= most else too_large(size, most))


# -- at a client ---------------------------------------------------------------------------------


class FarCalls:
    """A client's calls over the bulk channel. ``addresses`` are those of the replicas, the best first."""

    def __init__(
        self,
        calls: Callable[[], Calls],
        addresses: Callable[[], tuple[str, ...]],
        peer: Callable[[str], Peer],
        *,
        call_ms: int,
        reply_bytes_max: int,
        rng: Random,
    ) -> None:
        self._calls = calls
        self._addresses = addresses
        self._peer = peer
        self._call_seconds = call_ms / 1000
        self._bytes_max = reply_bytes_max + SLACK_BYTES
        self._rng = rng
        self._places = asyncio.Semaphore(UNDER_WAY_MAX)
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def send(self, seq: int, message: bytes, ts: int = 0) -> None:
        """``ts``: it was executed there, and only its answer is missing."""
        self._begin(self._run(seq, CallWanted(message, ts)))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def held(self, ts: int, voters: int) -> Held | None:
        """How many voters hold a slot, once that is enough or all there is; None if nobody can say."""
        asking = self._begin(self._ask_held(ts, voters))
        try:
            await asyncio.wait([asking])
        finally:
            asking.cancel()
        return None if asking.cancelled() else asking.result()

    async def _ask_held(self, ts: int, voters: int) -> Held | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._call_seconds):
                for address, limits, pause in self._turns():
                    peer = msgspec.structs.replace(self._peer(address), limits=limits)
                    received = await peer.ask(HoldersWanted(ts, voters), SLACK_BYTES)
                    if received:
                        return msgspec.msgpack.decode(received, type=Held)
                    await asyncio.sleep(pause)
        return None

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """After ``close``: connections are closed too."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, seq: int, wanted: CallWanted) -> None:
        calls = self._calls()
        tries = 0
        async with self._places:
            try:
                async with asyncio.timeout(self._call_seconds):
                    for tries, (address, limits, pause) in enumerate(self._turns(), 1):
                        if not calls.is_awaited(seq):
                            break
                        answer = await self._ask(address, limits, wanted)
                        if answer is not None and not answer.ts and tries > 1:
                            break  # it takes none of that size; who was asked before may have
                        if answer is not None:
                            once = tries == 1 and answer.once
                            calls.take(seq, answer.ts, [answer.reply], {}, once=once)
                            calls.unblock()
                            return
                        await asyncio.sleep(pause)
            except TimeoutError:
                pass
        done = f"it was executed at slot {wanted.ts}, but" if wanted.ts else "it may have been executed:"
        calls.lose(seq, OutcomeUnknown(f"{done} no replica gave its answer ({tries} were asked)"))

    def _turns(self) -> Iterator[tuple[str, BulkLimits, float]]:
        """Whom to ask, how patiently, and how long to wait before the next; without end."""
        pause = PAUSE_SECONDS
        turn = 0
        while True:
            addresses = self._addresses()
            for place, address in enumerate(addresses, 1):
                last = place == len(addresses)
                wait = pause * (1 + self._rng.random()) if last else 0.0
                yield address, PATIENCE[min(turn, len(PATIENCE) - 1)], wait
            turn += 1
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _ask(self, address: str, limits: BulkLimits, wanted: CallWanted) -> FarAnswer | None:
        peer = msgspec.structs.replace(self._peer(address), limits=limits)
        received = await peer.ask(wanted, self._bytes_max)
        if received is None or len(received) <= _HEAD.size:
            return None
        ts, once = _HEAD.unpack_from(received)
        return FarAnswer(ts, bytes(memoryview(received)[_HEAD.size :]), once)
