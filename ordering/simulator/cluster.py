"""Hosts, their processes, the network between them, and everyone who watches."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from ordering.config import MS, Config
from ordering.effects import (
    Accepted,
    CallRepeated,
    CallsTaken,
    Deliver,
    Effect,
    Ending,
    EndMembership,
    HoldersKnown,
    InstallView,
    LevelReached,
    Multicast,
    Persist,
    ReadReady,
    RequestState,
    Retract,
    SetTimer,
    Tick,
    Unicast,
    WindowOpened,
)
from ordering.errors import InvariantViolation, LockError, SubmitError
from ordering.events import (
    Event,
    LockReleased,
    LockRequested,
    PacketsReceived,
    Persisted,
    PersistFailed,
    ReplyRequested,
    Restarted,
    SnapshotSaved,
    Started,
    StateTransferred,
    SubmitRequested,
    WallClockSet,
)
from ordering.packets import Packet
from ordering.qos import Qos
from ordering.simulator.checkers.base import Checker
from ordering.simulator.clock import Clock
from ordering.simulator.disk import Disk, Snapshot
from ordering.simulator.network import US, Network, wire_size
from ordering.simulator.process import TIMER, Process, Replica
from ordering.simulator.sealed_network import SealedNetwork
from ordering.state import State
from ordering.views import Member, SiteId, View

if TYPE_CHECKING:
    from ordering.simulator.callers import CallerProcess

TRANSFER_RETRY = 20 * MS
RESTART_AFTER_END = 50 * MS
REJOIN_AFTER_LEAVE = 1000 * MS
PAUSE_BACKLOG_MAX = 20_000
SYNC_US = (100, 300, 1_000)  # how long a sync may take
SNAPSHOT_EVERY = 60  # messages
SNAPSHOT_TAKES = 20 * MS
WALL_EPOCH = 1_700_000_000_000_000_000  # the wall-clock time at which a run begins


class Cluster:
    """A group under simulation."""

    def __init__(
        self,
        config: Config,
        seed: int,
        checkers: list[Checker],
        *,
        sealed: bool = False,
        replicas: Callable[[Member], Replica] | None = None,
    ) -> None:
        self.config = config
        self._replicas = replicas  # who makes the application of a process; None: the simulator's own
        self.rng = Random(seed)
        self.clock = Clock()
        network_rng = Random(self.rng.getrandbits(64))
        self.network = Network(self.clock, network_rng, self._arrive)
        if sealed:
            self.network = SealedNetwork(self.clock, network_rng, self._arrive, self._boot_at)
            checkers.append(self.network.judge)
        self.checkers = checkers
        self.processes: dict[str, Process] = {}
        self.graveyard: list[Process] = []
        self.callers: dict[str, CallerProcess] = {}
        self.trace = 0
        self.pairs: dict[tuple[State, type], int] = {}
        self.broken: list[str] = []  # engines that stopped on an invariant
        self._on_effect = [c.on_effect for c in checkers if type(c).on_effect is not Checker.on_effect]
        self._on_settled = [c.on_settled for c in checkers if type(c).on_settled is not Checker.on_settled]
        self.left_broken: set[str] = set()
        self.transfer_ms: tuple[int, ...] = (0,)  # how long a state may travel
        self.transfer_rng = Random(seed)
        self.disks: dict[str, Disk] = {}
        self.disk_rng = Random(seed ^ 0xD15C)
        self.sync_us: tuple[int, ...] = SYNC_US
        self.failing_disks: set[str] = set()  # addresses whose next sync fails
        self._next_key = 0
        self.wall_errors: dict[str, int] | None = None  # how wrong each wall clock is; None: there are none

    def watch(self, listener: Checker) -> None:
        """Let one more observer see what happens from now on."""
        self.checkers.append(listener)
        self._on_settled.append(listener.on_settled)
        if type(listener).on_effect is not Checker.on_effect:
            self._on_effect.append(listener.on_effect)

    # -- processes -------------------------------------------------------------------------------

    def start(self, address: str, *, founder: bool) -> Process:
        """Start a process with a new boot, hence a new site."""
        self._next_key += 1
        return self._launch(
            address, SiteId(self._next_key), Started(founder and address in self.config.founders)
        )

    def _launch(self, address: str, site: SiteId, event: Started | Restarted) -> Process:
        member = Member(site, self.rng.getrandbits(127) + 1, address)
        disk = self.disks.setdefault(address, Disk())
        rng = Random(self.rng.getrandbits(64))
        replica = None if self._replicas is None else self._replicas(member)
        process = Process(self.config, member, rng, self._next_key, disk, replica)
        self.processes[address] = process
        if isinstance(event, Restarted):
            process.replica.restore(disk.snapshot)
            process.has_state = disk.ledger.transferred > 0
        for listener in self.checkers:
            listener.on_start(process, self.clock.now)
        self.set_clock(process)
        self.handle(process, event)
        return process

    def crash(self, address: str) -> None:
        process = self.processes[address]
        process.alive = False
        self.graveyard.append(process)
        process.disk.crash(self.disk_rng)
        for listener in self.checkers:
            listener.on_crash(process, self.clock.now)

    def restart(self, address: str) -> None:
        """After a crash or an ended membership: the same program again; it finds the group and joins."""
        if not self.processes[address].alive or self.processes[address].ended:
            self._start_again(address)

    def _start_again(self, address: str) -> None:
        """From its disk, if that tells of a membership that is not over."""
        disk = self.disks.setdefault(address, Disk())
        if not disk.has_member:
            self.start(address, founder=True)
            return
        self._next_key += 1
        self._launch(address, disk.ledger.site, Restarted(disk.ledger.copy()))

    def wipe(self, address: str) -> None:
        """The directory is empty from now on."""
        self.disks[address] = Disk()

    def pause(self, address: str) -> None:
        self.processes[address].paused = True

    def resume(self, address: str) -> None:
        process = self.processes[address]
        process.paused = False
        backlog, process.backlog = process.backlog, []
        # What piled up in the socket is drained in one go; what else happened keeps its order.
        arrived: tuple[Packet, ...] = ()
        for event in (*backlog, TIMER):
            if isinstance(event, PacketsReceived):
                arrived += event.packets
                continue
            if arrived and process.alive:
                self.handle(process, PacketsReceived(arrived))
            arrived = ()
            if process.alive:
                self.handle(process, event)

    def skew(self, process: Process, per_mille: int) -> None:
        """Let a process' clock run faster or slower from now on; it never goes back."""
        process.local_epoch = process.local_time(self.clock.now)
        process.real_epoch = self.clock.now
        process.per_mille = per_mille
        if process.timer_at > process.local_epoch:  # set by the old pace
            at = process.timer_at
            self.clock.at(process.real_time(at), lambda: self._tick(process, at))

    def set_clock(self, process: Process) -> None:
        """Tell a process its wall-clock time, right or wrong, as a host does that sees its clock set."""
        if self.wall_errors is not None:
            error = self.wall_errors.get(process.address, 0)
            wall = self.true_wall(self.clock.now) + error
            self.handle(process, WallClockSet(wall - process.local_time(self.clock.now)))

    def true_wall(self, now: int) -> int:
        return WALL_EPOCH + now

    def live(self) -> list[Process]:
        return [p for p in self.processes.values() if p.alive and p.ended is None]

    def newest_view(self) -> View | None:
        """The latest view any live process follows: what fault injection measures a majority by."""
        views = [p.engine.site.view for p in self.live() if not p.engine.site.outside]
        return max(views, key=lambda view: view.id, default=None)

    # -- the host loop ---------------------------------------------------------------------------

    def handle(self, process: Process, event: Event) -> None:
        if process.paused:
            if len(process.backlog) < PAUSE_BACKLOG_MAX:
                process.backlog.append(event)
            return
        if process.ended is not None:
            return
        if isinstance(event, PacketsReceived):
            for packet in event.packets:
                key = (process.engine.state, type(packet))
                self.pairs[key] = self.pairs.get(key, 0) + 1
        try:
            effects = process.engine.handle(event, process.local_time(self.clock.now))
        except InvariantViolation as broken:
            self._stop(process, broken)
        else:
            self._settle(process, event, effects)

    def _stop(self, process: Process, broken: InvariantViolation) -> None:
        """Fail-stop: an engine that cannot trust its state is a crashed process."""
        site = process.member.site
        self.broken.append(f"{self.clock.now / 1e9:.6f}s invariant: site {site}: {broken}")
        self.crash(process.address)

    def _settle(self, process: Process, event: Event, effects: list[Effect]) -> None:
        now = self.clock.now
        for effect in effects:
            self._perform(process, effect, now)
        for on_settled in self._on_settled:
            on_settled(process, now)
        state = process.engine.state
        line = f"{now} {process.member.site} {type(event).__name__} {state.value} {len(effects)}"
        self.trace = crc32(line.encode(), self.trace)
        if process.replica.answers:
            answers, process.replica.answers = tuple(process.replica.answers), []
            self.handle(process, ReplyRequested(answers))

    def _perform(self, process: Process, effect: Effect, now: int) -> None:
        for on_effect in self._on_effect:
            on_effect(process, effect, now)
        match effect:
            case Multicast(to, packet):
                for address in to:
                    self.network.send(process.address, address, packet)
            case Unicast(to, packet):
                self.network.send(process.address, to, packet)
            case SetTimer(at):
                process.timer_at = at
                self.clock.at(process.real_time(at), lambda: self._tick(process, at))
            case (
                Deliver()
                | Retract()
                | CallRepeated()
                | Accepted()
                | Tick()
                | WindowOpened()
                | ReadReady()
                | HoldersKnown()
            ):
                process.replica.hear(effect)
            case LevelReached(majority, _):
                process.majority = majority
                self._apply(process)
            case InstallView(ts, _, view):
                process.view = view
                process.view_ts = ts
                process.replica.hear(effect)
            case Persist():
                process.disk.writing = effect
                delay = self.disk_rng.choice(self.sync_us) * US
                self.clock.after(delay, lambda: self._sync(process, effect))
            case CallsTaken(batch):
                for listener in self.checkers:
                    listener.on_submit(process, batch.first_seq, batch.messages, batch.qos, now)
            case RequestState(ts, _, donors):
                process.wanted_state = ts
                process.replica.hear(effect)
                delay = self.transfer_rng.choice(self.transfer_ms) * MS
                self.clock.after(delay, lambda: self._transfer(process, ts, donors))
            case EndMembership(ending):
                process.ended = effect
                process.replica.hear(effect)
                process.disk.writing = None
                if ending not in (Ending.STOPPED, Ending.RETIRED):
                    self.wipe(process.address)
                if ending is not Ending.RETIRED:  # it is to be down for a while
                    wait = REJOIN_AFTER_LEAVE if ending is Ending.LEFT else RESTART_AFTER_END
                    self.clock.after(wait, lambda: self._supervise(process))

    def _supervise(self, process: Process) -> None:
        """A host starts an ended site anew, as an operator's supervisor would."""
        if self.processes[process.address] is process and process.alive:
            self._start_again(process.address)

    def _tick(self, process: Process, at: int) -> None:
        if process.alive and process.timer_at == at:
            if process.local_time(self.clock.now) < at:  # the clock was slowed down meanwhile
                self.clock.at(process.real_time(at), lambda: self._tick(process, at))
            else:
                self.handle(process, TIMER)

    def _boot_at(self, address: str) -> int:
        """Which process is at an address; 0: none."""
        process = self.processes.get(address)
        if process is not None:
            return process.member.boot if process.alive else 0
        return self.callers[address].member.boot if address in self.callers else 0

    def _arrive(self, address: str, packet: Packet) -> None:
        process = self.processes.get(address)
        if process is not None and process.alive:
            process.datagrams_in += 1
            process.bytes_in += wire_size(packet)
            self.handle(process, PacketsReceived((packet,)))
        elif process is None and address in self.callers:
            self.callers[address].arrive(packet)

    def _apply(self, process: Process) -> None:
        if process.engine.site.queue.base and not process.has_state and not self._founded(process):
            return
        for ts, digest in process.replica.apply(process.majority):
            process.applied_since_snapshot += 1
            for listener in self.checkers:
                listener.on_applied(process, ts, digest, self.clock.now)
        if self.config.durable and process.applied_since_snapshot >= SNAPSHOT_EVERY:
            process.applied_since_snapshot = 0
            snapshot = process.replica.snapshot()
            self.clock.after(SNAPSHOT_TAKES, lambda: self._save(process, snapshot))

    def _save(self, process: Process, snapshot: Snapshot) -> None:
        """The application's snapshot is on the disk; now and then somebody copies the directory."""
        if process.alive and process.ended is None and snapshot.ts > process.disk.snapshot.ts:
            process.disk.snapshot = snapshot
            if process.disk.has_member and self.disk_rng.random() < 0.3:
                process.disk.back_up()
            self.handle(process, SnapshotSaved(snapshot.ts))

    def _sync(self, process: Process, persist: Persist) -> None:
        if process.disk.writing is not persist:
            return  # it crashed meanwhile
        if process.address in self.failing_disks:
            self.failing_disks.discard(process.address)
            process.disk.crash(self.disk_rng)
            self.handle(process, PersistFailed(persist.seq))
            return
        process.disk.finish(persist)
        self.handle(process, Persisted(persist.seq))

    def _founded(self, process: Process) -> bool:
        """Whether the process has the state because it was there from the first slot on."""
        return process.engine.founded

    # -- state transfer --------------------------------------------------------------------------

    def _transfer(self, process: Process, ts: int, donors: tuple[SiteId, ...]) -> None:
        """The host's bulk channel: copy the state of a reachable voter that has applied enough."""
        if not process.alive or process.ended is not None or process.wanted_state != ts:
            return
        for donor in self.live():
            reachable = self.network.connected(donor.address, process.address)
            ready = donor.majority >= ts and (donor.has_state or self._founded(donor))
            ready = ready and donor.engine.site.chain == process.engine.site.chain
            if donor.member.site in donors and reachable and ready and not donor.paused:
                if donor.replica.ts >= process.replica.ts:  # else the order itself was faster
                    process.replica.restore(donor.replica.snapshot())
                process.disk.snapshot = process.replica.snapshot()
                process.has_state = True
                for listener in self.checkers:
                    listener.on_restored(process, donor, self.clock.now)
                self._apply(process)
                self.handle(process, StateTransferred(donor.majority))
                return
        self.clock.after(TRANSFER_RETRY, lambda: self._transfer(process, ts, donors))

    # -- the application -------------------------------------------------------------------------

    def ask_lock(self, process: Process, event: LockRequested | LockReleased) -> LockError | None:
        """Ask for a lock, or give it back, as an application would."""
        if process.paused:
            return None
        try:
            self.handle(process, event)
        except LockError as refusal:
            return refusal
        return None

    def submit(self, process: Process, messages: tuple[bytes, ...], qos: Qos) -> SubmitError | None:
        """Submit as an application would; a refusal is an answer, not a failure."""
        return self._submit(process, SubmitRequested(messages, qos))

    def request(
        self,
        process: Process,
        messages: tuple[bytes, ...],
        qos: Qos,
        *,
        handler: int = 1,
        to_group: bool = False,
    ) -> SubmitError | None:
        """Submit what the holder of a handler lock is to reply to."""
        return self._submit(process, SubmitRequested(messages, qos, handler, to_group))

    def _submit(self, process: Process, event: SubmitRequested) -> SubmitError | None:
        if process.paused:
            return None
        try:
            effects = process.engine.handle(event, process.local_time(self.clock.now))
        except SubmitError as refusal:
            return refusal
        except InvariantViolation as broken:
            self._stop(process, broken)
            return None
        for effect in effects:
            if isinstance(effect, Accepted):
                for listener in self.checkers:
                    listener.on_submit(process, effect.first_seq, event.messages, event.qos, self.clock.now)
                    if effect.first_number:
                        listener.on_called(process.member, effect.first_number, event, self.clock.now)
        self._settle(process, event, effects)
        return None
