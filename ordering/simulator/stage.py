"""A cluster with everyone who watches it, driven step by step by a test or a scenario."""

from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from ordering.caller import CallRequested
from ordering.config import MS, Config
from ordering.effects import Deliver, Effect, EndMembership, InstallView, Retract
from ordering.errors import SubmitError
from ordering.events import (
    ChangeRequested,
    ForkRequested,
    LockReleased,
    LockRequested,
)
from ordering.packets import ChangeKind, Packet
from ordering.qos import MAJORITY, Qos
from ordering.simulator.callers import FIRST_SITE, CallerProcess
from ordering.simulator.checkers import make_checkers
from ordering.simulator.checkers.base import Checker
from ordering.simulator.clock import Clock
from ordering.simulator.cluster import Cluster
from ordering.simulator.narrator import Line, Narrator, Topic
from ordering.simulator.network import Network, Sink, Weather
from ordering.simulator.process import Process
from ordering.state import PACKET_TYPES, State
from ordering.views import LockName, Member, SiteId, View

US: Final = MS // 1000
LATENCY_US: Final = 1000
SYNC_US: Final = 500
STEP: Final = 100 * US  # of ``until``: well below the latency, so nothing arrives in between
PATIENCE: Final = 10_000 * MS
SETTLING: Final = 100 * MS
LIVENESS_FACTOR: Final = 10
NACK: Final = "nack"
NETWORK: Final = "network"
QUIET: Final = frozenset({Topic.TOKEN.value, Topic.RUN.value, Topic.PACKET.value})
TOPICS: Final = frozenset({topic.value for topic in Topic} | {NACK, NETWORK})
KINDS: Final = frozenset(kind.__name__ for kind in PACKET_TYPES)


class ScenarioError(Exception):
    """The text is not a scenario; the message says where and what would be one."""


class ScenarioViolation(Exception):
    """A checker found something. No rewriting makes this an expectation."""


class Meddler(Network):
    """A network of fixed latency that loses or repeats exactly the packets it is told to."""

    def __init__(self, clock: Clock, deliver: Sink) -> None:
        super().__init__(clock, Random(0), deliver)
        self.weather = Weather(latency_us=LATENCY_US, spread_us=0)
        self.tell: Callable[[str], None] = lambda text: None
        self.counts: dict[tuple[str, str], int] = {}  # (sender, packet type) → how many were sent
        self._drops: dict[tuple[str, str, str], int] = {}
        self._repeats: dict[tuple[str, str, str], int] = {}

    def drop(self, source: str, to: str, kind: str, count: int) -> None:
        self._drops[source, to, kind] = count

    def duplicate(self, source: str, to: str, kind: str, count: int) -> None:
        self._repeats[source, to, kind] = count

    def send(self, source: str, to: str, packet: Packet | bytes) -> None:
        kind = type(packet).__name__
        self.counts[source, kind] = self.counts.get((source, kind), 0) + 1
        if self._due(self._drops, source, to, kind):
            self.lost += 1
            self.tell(f"{kind} from {source} to {to} is lost")
            return
        super().send(source, to, packet)
        if self._due(self._repeats, source, to, kind):
            self.duplicated += 1
            self.tell(f"{kind} from {source} to {to} comes twice")
            super().send(source, to, packet)

    def _due(self, rules: dict[tuple[str, str, str], int], source: str, to: str, kind: str) -> bool:
        link = (source, to, kind)
        left = rules.get(link, 0)
        if left:
            rules[link] = left - 1
        return left > 0

    def mend_all(self) -> None:
        self.clear()
        self._drops.clear()
        self._repeats.clear()


class StageCluster(Cluster):
    """A cluster whose network obeys."""

    network: Meddler

    def __init__(self, config: Config, seed: int, checkers: list[Checker]) -> None:
        super().__init__(config, seed, checkers)
        self.network = Meddler(self.clock, self._arrive)


class Journal(Checker):
    """What each application was told: messages that were not taken back, views, and the end."""

    name = "journal"

    def __init__(self) -> None:
        super().__init__()
        self.delivered: dict[int, list[tuple[int, str]]] = {}
        self.delivered_at: dict[tuple[int, str], int] = {}
        self.views: dict[int, list[tuple[int, View]]] = {}
        self.retracted: dict[int, list[int]] = {}
        self.ended: dict[int, EndMembership] = {}
        self.effects: list[tuple[int, Effect]] = []

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        site = process.member.site
        self.effects.append((site, effect))
        match effect:
            case Deliver(_, deliveries):
                told = self.delivered.setdefault(site, [])
                for delivery in deliveries:
                    for offset, message in enumerate(delivery.messages):
                        text = message.decode(errors="replace")
                        told.append((delivery.first_ts and delivery.first_ts + offset, text))
                        self.delivered_at[site, text] = now
            case Retract(after):
                self.retracted.setdefault(site, []).append(after)
                told = self.delivered.get(site, [])
                self.delivered[site] = [(ts, text) for ts, text in told if ts <= after]
            case InstallView(ts, _, view):
                self.views.setdefault(site, []).append((ts, view))
            case EndMembership():
                self.ended[site] = effect
            case _:
                pass


class Stage:
    """A cluster with everyone who watches it, driven step by step by a test or a scenario."""

    def __init__(self, config: Config, seed: int = 1) -> None:
        self.lines: list[str] = []
        self.topics = TOPICS - QUIET
        self.born_at = 0
        self._callers = 0
        self.journal = Journal()
        self._judges = make_checkers()
        nacks = Narrator(self._hear_nack, verbosity=2)
        self.cluster = StageCluster(config, seed, [*self._judges, Narrator(self._hear), nacks, self.journal])
        self.cluster.sync_us = (SYNC_US,)
        self.network = self.cluster.network
        self.network.tell = self._hear_network

    @classmethod
    def born(cls, sites: int = 3, seed: int = 1, **settings: int | str) -> "Stage":
        """Founders ``s1`` … that have been born and rest."""
        stage = cls(make_config(sites, settings), seed)
        stage.bear()
        return stage

    def bear(self) -> None:
        for address in self.cluster.config.founders:
            self.cluster.start(address, founder=True)
        self.until(lambda: all(p.view is not None for p in self.cluster.live()), "every founder has a view")
        self.run(SETTLING)
        self.born_at = self.cluster.clock.now
        self.lines.clear()

    # -- time ------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """Nanoseconds since birth."""
        return self.cluster.clock.now - self.born_at

    def run(self, ns: int) -> None:
        self.cluster.clock.run_until(self.cluster.clock.now + ns)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        end = self.cluster.clock.now + PATIENCE
        while not is_so():
            if self.cluster.clock.now >= end:
                raise ScenarioError(f"waited {PATIENCE // MS} ms, and it is not so that {what}")
            self.run(STEP)

    # -- processes -------------------------------------------------------------------------------------

    def process(self, address: str) -> Process:
        """The process that runs, or ran last, at an address."""
        try:
            return self.cluster.processes[address]
        except KeyError:
            known = ", ".join(self.cluster.processes)
            raise ScenarioError(f"{address!r} was never started; use one of {known}") from None

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self.cluster.processes)

    def token_site(self) -> Process:
        """Who holds the token now."""
        holders = [p for p in self.cluster.live() if p.engine.state is State.TOKEN_SITE]
        if len(holders) != 1:
            raise ScenarioError(f"{len(holders)} sites hold the token; run until one rests with it")
        return holders[0]

    def submit(self, address: str, *messages: str, qos: Qos = MAJORITY) -> SubmitError | None:
        process = self.process(address)
        if process.paused or not process.alive:
            raise ScenarioError(f"{address} is paused or dead and cannot submit")
        refusal = self.cluster.submit(process, tuple(m.encode() for m in messages), qos)
        if refusal is not None:
            self._write(name_of(process), f"refuses: {type(refusal).__name__}: {refusal}")
        return refusal

    # -- callers ---------------------------------------------------------------------------------------

    def caller(self, address: str, *contacts: str, **settings: int | str) -> CallerProcess:
        """A process outside the group that knows ``contacts`` (else the founders)."""
        known = contacts or self.cluster.config.founders
        config = msgspec.structs.replace(self.cluster.config, founders=(), contacts=known, **settings)
        self._callers += 1
        site = SiteId(FIRST_SITE + self._callers)
        return CallerProcess(self.cluster, config, Member(site, 10**6 + site, address), Random(site))

    def call(self, address: str, request: CallRequested) -> SubmitError | None:
        if address not in self.cluster.callers:
            raise ScenarioError(f"{address!r} is no caller; write 'caller {address}' first")
        process = self.cluster.callers[address]
        refusal = process.call(request)
        if refusal is not None:
            name = f"{address}#{process.member.site}"
            self._write(name, f"is refused: {type(refusal).__name__}: {refusal}")
        return refusal

    def change(self, address: str, change: ChangeRequested) -> None:
        self.cluster.handle(self.process(address), change)

    def leave(self, address: str) -> None:
        self.change(address, ChangeRequested(ChangeKind.LEAVE))

    def retire(self, address: str) -> None:
        self.change(address, ChangeRequested(ChangeKind.RETIRE))

    def remove(self, address: str, at: str) -> None:
        self.change(at, ChangeRequested(ChangeKind.REMOVE, self.process(address).member.site))

    def lock(self, address: str, name: LockName, lease_ms: int = 0) -> None:
        self._ask_lock(address, LockRequested(name, lease_ms))

    def release(self, address: str, name: LockName) -> None:
        self._ask_lock(address, LockReleased(name))

    def _ask_lock(self, address: str, event: LockRequested | LockReleased) -> None:
        process = self.process(address)
        refusal = self.cluster.ask_lock(process, event)
        if refusal is not None:
            self._write(name_of(process), f"refuses: {type(refusal).__name__}: {refusal}")

    def set_clock(self, address: str, error: int) -> None:
        if self.cluster.wall_errors is None:
            raise ScenarioError("there are no clocks; begin with 'cluster clocks=yes'")
        self.cluster.wall_errors[address] = error
        self.cluster.set_clock(self.process(address))

    def force(self, address: str) -> None:
        self.cluster.handle(self.process(address), ForkRequested())

    # -- the network -----------------------------------------------------------------------------------

    def links(self, source: str, to: str) -> list[tuple[str, str]]:
        """Links between two addresses; ``*`` stands for every other one."""
        everyone = (*self.addresses, *self.cluster.callers)
        sources = everyone if source == "*" else (self._address(source),)
        targets = everyone if to == "*" else (self._address(to),)
        return [(a, b) for a in sources for b in targets if a != b]

    def _address(self, name: str) -> str:
        return name if name in self.cluster.callers else self.process(name).address

    def cut(self, source: str, to: str) -> None:
        self.network.cut(*self.links(source, to))

    def isolate(self, address: str) -> None:
        self.network.cut(*self.links(address, "*"), *self.links("*", address))

    def drop(self, source: str, to: str, kind: type[Packet] | str, count: int = 1) -> None:
        for link in self.links(source, to):
            self.network.drop(*link, kind_name(kind), count)

    def duplicate(self, source: str, to: str, kind: type[Packet] | str, count: int = 1) -> None:
        for link in self.links(source, to):
            self.network.duplicate(*link, kind_name(kind), count)

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Heal, wait, and let the checkers judge."""
        self.network.mend_all()
        for process in self.cluster.live():
            if process.paused:
                self.cluster.resume(process.address)
        for judge in self._judges:
            judge.on_healed(self.cluster, self.cluster.clock.now)
        self.run(LIVENESS_FACTOR * self.cluster.config.detection_ms * MS)
        for judge in self._judges:
            judge.finish(self.cluster, self.cluster.clock.now)
        self.check()

    def check(self) -> None:
        violations = [text for judge in self._judges for text in judge.violations] + self.cluster.broken
        if violations:
            raise ScenarioViolation("\n".join(violations))

    # -- what is told ----------------------------------------------------------------------------------

    def _hear(self, line: Line) -> None:
        if line.topic.value in self.topics:
            self._write(line.site, line.text)

    def _hear_nack(self, line: Line) -> None:
        if line.topic is Topic.PACKET and line.text.startswith("Nack ") and NACK in self.topics:
            self._write(line.site, line.text.partition(": ")[2])

    def _hear_network(self, text: str) -> None:
        if NETWORK in self.topics:
            self._write("-", text)

    def _write(self, who: str, text: str) -> None:
        self.lines.append(f"{self.now // MS:>6}ms {who:<5} {text}")


def make_config(sites: int, settings: dict[str, int | str]) -> Config:
    """The group of ``sites`` founders, with the defaults except for ``settings``."""
    known = {field.name for field in msgspec.structs.fields(Config)}
    for name in settings:
        if name not in known:
            raise ScenarioError(f"{name!r} is not a setting; use one of {', '.join(sorted(known))}")
    addresses = tuple(f"s{number}" for number in range(1, sites + 1))
    values = {"group": "scenario", "founders": addresses, "contacts": addresses, **settings}
    values["durable"] = bool(values.get("durable"))
    return msgspec.convert(values, Config)


def name_of(process: Process) -> str:
    """Address and incarnation, as the narrator writes them."""
    return f"{process.address}#{process.member.site}"


def kind_name(kind: type[Packet] | str) -> str:
    name = kind if isinstance(kind, str) else kind.__name__
    if name not in KINDS:
        raise ScenarioError(f"{name!r} is not a packet; use one of {', '.join(sorted(KINDS))}")
    return name
