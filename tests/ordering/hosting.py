"""Processes that host several groups, for tests: one socket and one timer each, in virtual time.

Every group is a ``Cluster`` of the simulator with all its checkers. Only the way in is another: packets
wait in a host's socket and are drained together, and all events go through the host's ``Groups``.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from ordering.config import MS, Config
from ordering.effects import Accepted, Deliver, Effect
from ordering.errors import InvariantViolation, SubmitError
from ordering.events import (
    ChangeRequested,
    Event,
    PacketsReceived,
    Started,
    StateTransferred,
    SubmitRequested,
    TimerFired,
)
from ordering.groups import Groups, GroupsEvent, InGroup, Outcome
from ordering.packets import ChangeKind, Packet
from ordering.qos import MAJORITY, Qos
from ordering.simulator.checkers import make_checkers
from ordering.simulator.checkers.base import Checker
from ordering.simulator.clock import Clock
from ordering.simulator.cluster import Cluster
from ordering.simulator.disk import Disk
from ordering.simulator.network import US, Network
from ordering.simulator.process import Process
from ordering.views import Member, SiteId

DRAIN = 200 * US  # how long packets wait for others in the socket
STEP = 1 * MS
PATIENCE = 10_000 * MS
LIVENESS_FACTOR = 10


class Reaction(NamedTuple):
    """One event at a host, and what its groups made of it."""

    now: int
    event: GroupsEvent
    outcomes: list[Outcome]
    wake_at: int | None


class Told(Checker):
    """Every message each site's application was told."""

    name = "told"

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[SiteId, list[str]] = {}

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        if isinstance(effect, Deliver):
            told = self.messages.setdefault(process.member.site, [])
            told += [message.decode() for delivery in effect.deliveries for message in delivery.messages]


class Host:
    """One process."""

    def __init__(self, world: "World", address: str) -> None:
        self.world = world
        self.address = address
        self.groups = Groups()
        self.alive = True
        self.mixed_drains = 0
        self.record: list[Reaction] = []
        self.members: dict[str, list[Member]] = {}  # whom each group was opened for
        self._identity = world.draw_identity()
        self._socket: list[Packet] = []
        self._armed: int | None = None

    def identity(self, group: str) -> tuple[SiteId, int]:
        """Site and boot: those of the process in every group, new ones for who comes back to a group."""
        return self.world.draw_identity() if group in self.members else self._identity

    def arrive(self, packet: Packet) -> None:
        self._socket.append(packet)
        if len(self._socket) == 1:
            self.world.clock.after(DRAIN, self._drain)

    def _drain(self) -> None:
        packets, self._socket = tuple(self._socket), []
        if self.alive:
            self.mixed_drains += len({packet.head.group for packet in packets}) > 1
            self.react(PacketsReceived(packets))

    def react(self, event: GroupsEvent) -> list[Outcome]:
        """Handle an event and do what the groups ask for."""
        now = self.world.clock.now
        outcomes = self.groups.handle(event, now)
        self.record.append(Reaction(now, event, outcomes, self.groups.wake_at))
        for outcome in outcomes:
            self.world.clusters[outcome.group].perform(self.address, event, outcome)
        self._arm()
        return outcomes

    def _arm(self) -> None:
        at = self.groups.wake_at
        if at != self._armed:
            self._armed = at
            if at is not None:
                self.world.clock.at(at, lambda: self._tick(at))

    def _tick(self, at: int) -> None:
        if self.alive and self._armed == at:
            self._armed = None
            self.react(TimerFired())


class GroupCluster(Cluster):
    """One group among others: its processes are seats in the hosts of a world."""

    def __init__(self, world: "World", config: Config, seed: int) -> None:
        self.told = Told()
        super().__init__(config, seed, [*make_checkers(), self.told])
        self.world = world
        self.clock = world.clock
        self.network = world.network

    def start(self, address: str, *, founder: bool) -> Process:
        host = self.world.hosts[address]
        if self.config.group in host.groups.names:
            host.groups.close(self.config.group)
        member = Member(*host.identity(self.config.group), address)
        host.members.setdefault(self.config.group, []).append(member)
        process = Process(self.config, member, Random(member.boot), member.site, Disk())
        process.engine = host.groups.open(self.config, member, Random(member.boot))
        self.processes[address] = process
        self.handle(process, Started(founder))
        return process

    def handle(self, process: Process, event: Event) -> None:
        assert isinstance(event, Started | ChangeRequested | StateTransferred)
        self.world.hosts[process.address].react(InGroup(self.config.group, event))

    def submit(self, process: Process, messages: tuple[bytes, ...], qos: Qos) -> SubmitError | None:
        host = self.world.hosts[process.address]
        event = SubmitRequested(messages, qos)
        try:
            outcomes = host.react(InGroup(self.config.group, event))
        except SubmitError as refusal:
            return refusal
        for effect in (effect for outcome in outcomes for effect in outcome.effects):
            if isinstance(effect, Accepted):
                for checker in self.checkers:
                    checker.on_submit(process, effect.first_seq, messages, qos, self.clock.now)
        return None

    def perform(self, address: str, event: GroupsEvent, outcome: Outcome) -> None:
        process = self.processes[address]
        if isinstance(outcome.error, InvariantViolation):
            self._stop(process, outcome.error)
        else:
            assert outcome.error is None
            self._settle(process, event.event if isinstance(event, InGroup) else event, outcome.effects)


class World:
    """Hosts, the network between them, and the groups they host. ``founders`` is by group."""

    def __init__(self, founders: Mapping[str, tuple[str, ...]], seed: int = 1, **settings: int | str) -> None:
        self.rng = rng = Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, Random(rng.getrandbits(64)), self._arrive)
        self._sites = 0
        self.hosts: dict[str, Host] = {}
        self.clusters: dict[str, GroupCluster] = {}
        for group, addresses in founders.items():
            config = Config(group=group, founders=addresses, **settings)  # type: ignore[arg-type]
            self.clusters[group] = GroupCluster(self, config, rng.getrandbits(64))
        for address in sorted({address for addresses in founders.values() for address in addresses}):
            self.boot(address)

    def _arrive(self, address: str, packet: Packet) -> None:
        self.hosts[address].arrive(packet)

    # -- processes -------------------------------------------------------------------------------

    def draw_identity(self) -> tuple[SiteId, int]:
        self._sites += 1
        return SiteId(self._sites), self.rng.getrandbits(127) + 1

    def boot(self, address: str) -> None:
        """Start a process and, in it, its site of every group that counts on this address."""
        self.hosts[address] = Host(self, address)
        for cluster in self.clusters.values():
            if address in cluster.config.founders:
                cluster.start(address, founder=True)

    def crash(self, address: str) -> None:
        self.hosts[address].alive = False
        for cluster in self.clusters.values():
            process = cluster.processes.get(address)
            if process is not None and process.alive:
                cluster.crash(address)

    def submit(self, address: str, group: str, *texts: str, qos: Qos = MAJORITY) -> SubmitError | None:
        cluster = self.clusters[group]
        return cluster.submit(cluster.processes[address], tuple(text.encode() for text in texts), qos)

    def change(self, address: str, group: str, kind: ChangeKind, subject: str = "") -> None:
        cluster = self.clusters[group]
        site = cluster.processes[subject or address].member.site
        cluster.handle(cluster.processes[address], ChangeRequested(kind, site))

    # -- time ------------------------------------------------------------------------------------

    def run(self, ns: int) -> None:
        self.clock.run_until(self.clock.now + ns)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        end = self.clock.now + PATIENCE
        while not is_so():
            assert self.clock.now < end, f"waited {PATIENCE // MS} ms, and it is not so that {what}"
            self.run(STEP)

    def until_ring(self, group: str, *addresses: str) -> None:
        """Until those at these addresses are voters and know that they are the ring, and no one else."""
        self.until(lambda: self._is_ring(group, addresses), f"the ring of {group} is {addresses}")

    def _is_ring(self, group: str, addresses: tuple[str, ...]) -> bool:
        processes = [self.clusters[group].processes[address] for address in addresses]
        sites = {process.member.site for process in processes}
        return all(
            process.is_member()
            and process.view is not None
            and set(process.view.ring) == sites
            and sites.issubset(process.view.electorate)
            for process in processes
        )

    def until_told(self, group: str, *texts: str) -> None:
        """Until all who are members now have been told all these messages."""
        cluster = self.clusters[group]
        self.until(
            lambda: all(set(texts).issubset(self.told(p.address, group)) for p in cluster.live()),
            f"{group} delivers {texts}",
        )

    # -- what came of it -------------------------------------------------------------------------

    def told(self, address: str, group: str) -> list[str]:
        cluster = self.clusters[group]
        return cluster.told.messages.get(cluster.processes[address].member.site, [])

    def finish(self) -> None:
        """Heal, wait, and let all checkers of all groups judge."""
        self.network.clear()
        self.network.weather.loss = self.network.weather.reordering = 0.0
        clusters = list(self.clusters.values())
        for cluster in clusters:
            for checker in cluster.checkers:
                checker.on_healed(cluster, self.clock.now)
        self.run(LIVENESS_FACTOR * max(cluster.config.detection_ms for cluster in clusters) * MS)
        for cluster in clusters:
            for checker in cluster.checkers:
                checker.finish(cluster, self.clock.now)
            assert [text for checker in cluster.checkers for text in checker.violations] == []
            for messages in cluster.told.messages.values():
                assert all(text.startswith(cluster.config.group) for text in messages)
