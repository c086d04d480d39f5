"""Simulated sites: what ``rsm.replica.Replica`` is in a process of its own, in virtual time.

The intake, the executor, the sessions and the calls are the shipped ones. A host stays while memberships
come and go, as a program does; a crash takes its calls with it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from ordering.config import MS
from ordering.effects import (
    Accepted,
    Deliver,
    Delivery,
    Effect,
    Ending,
    EndMembership,
    InstallView,
    LevelReached,
    ReadReady,
    RequestState,
    Retract,
    Tick,
    WindowOpened,
)
from ordering.errors import NotMember, SubmitError
from ordering.events import ReadRequested
from ordering.qos import MAJORITY
from ordering.simulator.cluster import Cluster
from ordering.simulator.disk import Snapshot
from ordering.simulator.process import Process, Replica
from ordering.views import Member, handler_holder
from rsm.alarms import AlarmClock
from rsm.calls import Call, Calls
from rsm.config import HANDLER
from rsm.envelope import BARRIER, Language
from rsm.errors import Halted
from rsm.executor import Executor
from rsm.intake import Intake
from rsm.methods import Catalogue
from rsm.sessions import Answer, SessionLimits

if TYPE_CHECKING:
    from rsm.testing.judge import Judge

PAUSE_POLL: Final = 5 * MS
FIRST_READ: Final = 1 << 40  # the simulator numbers its own from 1 on
OUTSTANDING_MAX: Final = 10_000


class Broken(Exception):
    """A replica cannot go on. The run is over, and this is its finding."""


class MachineSnapshot(Snapshot, frozen=True):
    """An executor's, on a simulated disk or on its way to another site."""

    chunks: tuple[bytes, ...] = ()


class VirtualLoop:
    """As much of an event loop as futures need. It stands still while its process is paused, and what it
    was about to do is lost in a crash."""

    def __init__(self, cluster: Cluster, is_paused: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._is_paused = is_paused
        self._ready: deque[asyncio.Handle] = deque()
        self._closed = False
        self.as_loop = cast(asyncio.AbstractEventLoop, self)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Variables | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.as_loop, context)
        self._put(handle)
        return handle

    def _put(self, handle: asyncio.Handle) -> None:
        if not self._closed:
            self._ready.append(handle)
            if len(self._ready) == 1:
                self._cluster.clock.after(0, self._turn)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.as_loop)
        self._cluster.clock.after(int(seconds * 1000 * MS), partial(self._put, handle))
        return handle

    def time(self) -> float:
        return self._cluster.clock.now / (1000 * MS)

    def _turn(self) -> None:
        if self._closed:
            return
        if self._is_paused():
            self._cluster.clock.after(PAUSE_POLL, self._turn)
            return
        ready, self._ready = self._ready, deque()
        for handle in ready:
            if not handle.cancelled() and not self._closed:
                handle._run()

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self.as_loop)

    def get_debug(self) -> bool:
        return False

    def close(self) -> None:
        self._closed = True
        self._ready.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Only what a callback raised: exceptions of futures that nobody asks are of no interest."""
        error = context.get("exception")
        if isinstance(error, Broken):
            raise error
        if "handle" in context:
            raise Broken(f"{context['message']}: {error!r}") from error


class SimulatedCalls(Calls):
    """Tells which session and number a call got: what the checkers know it by."""

    latest: Call

    def _put(self, call: Call) -> "asyncio.Future[Answer]":
        self.latest = call
        return super()._put(call)


class Owner(Protocol):
    """Who lives in a host's process and dies with it."""

    def died(self) -> None: ...


class Host:
    """The program at one address."""

    def __init__(self, address: str, catalogue: Catalogue, limits: SessionLimits, judge: "Judge") -> None:
        self.address = address
        self.catalogue = catalogue
        self.language = Language(catalogue)
        self.limits = limits
        self.judge = judge
        self.replica: MachineReplica | None = None
        self.process: Process | None = None
        self.residents: list[Owner] = []
        self.accepted = 0
        self._running = False
        self._is_ending = False
        self._reads: dict[int, tuple[msgspec.Struct, Callable[[Answer | None], None]]] = {}
        self._read_number = FIRST_READ
        self._cluster: Cluster
        self.loop: VirtualLoop
        self.calls: SimulatedCalls
        self.alarm: AlarmClock

    # -- life ------------------------------------------------------------------------------------

    def begin(self, cluster: Cluster, member: Member) -> "MachineReplica":
        """A membership, of a new program or of the one that is there, unless that is about to end."""
        if self._is_ending:
            self._stop()
        first = not self._running
        if first:
            self._running = True
            self._cluster = cluster
            self.loop = VirtualLoop(cluster, self._is_paused)
            self.calls = SimulatedCalls(
                self.language,
                self._submit,
                self.loop.as_loop,
                outstanding_max=OUTSTANDING_MAX,
                bytes_max=cluster.config.message_bytes_max,
            )
            self.alarm = AlarmClock(self._order_a_slot, self.loop.as_loop, self._wall)
        self.process = None
        self.replica = MachineReplica(self, member)
        return self.replica

    def crash(self) -> None:
        self._is_ending = False
        if self._running:
            self._running = False
            self.loop.close()
        self.process = self.replica = None
        self._reads.clear()
        for resident in self.residents:
            resident.died()

    def membership_over(self, ending: Ending) -> None:
        self.calls.pause()
        self.loop.call_soon(self._end_reads)
        if ending in (Ending.STOPPED, Ending.RETIRED):
            why = "the disk failed" if ending is Ending.STOPPED else "this replica was stopped"
            self.calls.fail(Halted(why))
            self._is_ending = True
            self.loop.call_soon(self._stop)

    def _stop(self) -> None:
        """Whoever waited has been told."""
        self._is_ending = self._running = False
        self.loop.close()
        for resident in self.residents:
            resident.died()

    @property
    def is_up(self) -> bool:
        """Whether a client can connect."""
        return self._running

    def _is_paused(self) -> bool:
        return self.process is not None and self.process.paused

    # -- calls -----------------------------------------------------------------------------------

    def query(self, bound: msgspec.Struct, answered: Callable[[Answer | None], None]) -> None:
        """A linearizable read at this replica (R11). None: it will not be answered here."""
        process = self.process
        if process is None or not process.alive or process.paused or process.ended is not None:
            answered(None)
            return
        self._read_number += 1
        self._reads[self._read_number] = (bound, answered)
        try:
            self._cluster.handle(process, ReadRequested(self._read_number))
        except SubmitError:
            self._end_read(self._read_number, None)

    def answer_reads(self, numbers: list[int], executor: Executor) -> None:
        for number in numbers:
            if number in self._reads:
                answer = Answer(executor.applied, executor.query(self._reads[number][0]))
                self._end_read(number, answer)

    def _end_read(self, number: int, answer: Answer | None) -> None:
        _, answered = self._reads.pop(number)
        answered(answer)

    def _wall(self) -> int:
        """What this site's clock says; 0 without one, and then the group's time stands still."""
        errors, now = self._cluster.wall_errors, self._cluster.clock.now
        return 0 if errors is None else self._cluster.true_wall(now) + errors.get(self.address, 0)

    def _order_a_slot(self) -> None:
        if self.replica is not None and self.replica.intake.ready and not self.calls.outstanding:
            self.calls.mention(BARRIER)

    def _end_reads(self) -> None:
        for number in list(self._reads):
            self._end_read(number, None)

    def _submit(self, messages: Sequence[bytes]) -> int:
        process = self.process
        if process is None or not process.alive or process.ended is not None:
            raise NotMember("this replica has joined no group")
        self.accepted = 0
        refusal = self._cluster.submit(process, tuple(messages), MAJORITY)
        if refusal is not None:
            raise refusal
        if not self.accepted:
            raise NotMember("the engine stopped; the outcome is unknown")
        return self.accepted


class MachineReplica(Replica):
    """The user's machine as the application of one membership."""

    def __init__(self, host: Host, member: Member) -> None:
        super().__init__()
        self.host = host
        self.member = member
        self.announced = False
        self.is_first = False  # to order a slot for an alarm
        self.read_ready: list[int] = []
        self.intake = Intake(self._new_executor(), ready=True)

    def _new_executor(self) -> Executor:
        catalogue = self.host.catalogue
        return Executor(catalogue.machine(), catalogue, self.host.language)

    def hear(self, effect: Effect) -> None:
        host = self.host
        match effect:
            case Deliver() | Retract() | Tick():
                self.intake.hear(effect)
            case InstallView():
                self.intake.hear(effect)
                self.is_first = handler_holder(effect.view, HANDLER) == self.member.site
                self._announce(effect)
            case Accepted():
                host.accepted = effect.first_seq
            case WindowOpened():
                host.loop.call_soon(host.calls.unblock)
            case ReadReady(numbers):
                self.read_ready += numbers
                self._answer_reads()
            case RequestState():
                self.intake.ready = False
            case EndMembership(ending):
                self.intake.ready = False
                host.membership_over(ending)
        if isinstance(effect, InstallView | Tick):
            host.judge.heard(effect)

    def _answer_reads(self) -> None:
        """What was delivered before is executed by now, unless the state is still to come."""
        if self.intake.ready and self.read_ready:
            numbers, self.read_ready = self.read_ready, []
            self.host.loop.call_soon(self.host.answer_reads, numbers, self.intake.executor)

    def _announce(self, installed: InstallView) -> None:
        """From the first view on that names this boot messages can be sent."""
        named = installed.view.member(self.member.site)
        if self.announced or named is None or named.boot != self.member.boot:
            return
        self.announced = True
        self.host.loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self.host.replica is self:
            said = self.intake.executor.announcement(self.member.boot, self.host.limits)
            self.host.calls.begin(said)

    def apply(self, majority: int) -> list[tuple[int, bytes]]:
        """What the simulator's own checkers compare is the order; the machine is the judge's business."""
        done: list[tuple[int, bytes]] = []
        self.intake.hear(LevelReached(majority, 0))
        with _Guard(self.host.address):
            for delivery, replies in self.intake.run():
                executor = self.intake.executor
                self.host.judge.applied(self.member.site, delivery, replies, executor)
                if delivery.source == self.member.site:
                    taken = (delivery.first_seq, delivery.first_ts, replies, dict(executor.repeats))
                    self.host.loop.call_soon(self._take, *taken)
                done.append((delivery.first_ts, _digest_of(delivery)))
        self.ts = self.intake.executor.applied
        if self.host.replica is self:
            self.host.alarm.set(self.intake.executor, first=self.is_first)
        self._answer_reads()
        return done

    def _take(self, first_seq: int, first_ts: int, replies: list[bytes], repeats: dict[int, int]) -> None:
        if self.host.replica is self:
            self.host.calls.take(first_seq, first_ts, replies, repeats)

    # -- states ----------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        with _Guard(self.host.address):
            return MachineSnapshot(self.ts, chunks=tuple(filter(None, self.intake.executor.snapshot())))

    def restore(self, snapshot: Snapshot) -> None:
        if not isinstance(snapshot, MachineSnapshot):
            return  # a disk without one
        executor = self._new_executor()
        with _Guard(self.host.address):
            executor.restore(snapshot.chunks)
        self.intake.replace(executor)
        self.ts = executor.applied

    def transferred(self) -> None:
        """The state came, or the order had been faster."""
        self.intake.replace(self.intake.executor)
        self.host.loop.call_soon(partial(self._reconcile, self.intake.executor))

    def _reconcile(self, executor: Executor) -> None:
        if self.host.replica is self:
            self.host.calls.reconcile(executor.sessions.reply_to)


class _Guard:
    """What a machine or the framework raises outside of a command ends the run, with the site's name."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None and isinstance(error, Exception) and not isinstance(error, Broken):
            raise Broken(f"{self.address}: {type(error).__name__}: {error}") from error


def _digest_of(delivery: Delivery) -> bytes:
    digest = blake2b(digest_size=16)
    for message in delivery.messages:
        digest.update(message)
    return digest.digest()
