"""What an order costs when nothing fails but packets: one trial, one row of figures.

The papers' experiments are of this kind (DTP §5, RMP §5, Jia's *Performance*): a group that is whole, sites
that multicast messages of one size at a steady rate, and a network with a delay, a bandwidth and perhaps a
loss. A trial is the whole cause of its figures: two that are equal give equal rows. All checkers watch it.

A message is *delivered* when the last site's application has it, and *stable* when its source knows that all
have it (RMP §2). Packets are counted as a host with IP multicast sends them: one, to however many.
"""

import argparse
from random import Random
from typing import ClassVar, Final, NamedTuple

import msgspec

from ordering.config import MS, Config
from ordering.disciplines import DISCIPLINES
from ordering.effects import Deliver, Effect, InstallView, LevelReached, Multicast, Unicast
from ordering.errors import ConfigurationError
from ordering.packets import Ack, Confirm, Data, DataConfirm, NewList, Packet, Piece, PieceConfirm, Probe
from ordering.qos import Qos, parse_qos
from ordering.simulator.checkers import make_checkers
from ordering.simulator.checkers.base import Checker
from ordering.simulator.cluster import Cluster
from ordering.simulator.process import Process

SECOND: Final = 1000 * MS
MESSAGE_BYTES_MIN: Final = 16
_NUMBER_BYTES: Final = 8
_BIRTH: Final = 100 * MS
_DRAIN_STEP: Final = 20 * MS
_DRAIN_DETECTIONS: Final = 10  # as long as the swarm's runs have to get well
_SAMPLE: Final = 5 * MS
# As in the papers: Ethernet packets on links of 10 Mbit/s, and room for whatever waits for them.
PACKET_BYTES: Final = 1_400
BYTES_PER_MS: Final = 1_250
_QUEUE_BYTES: Final = 1 << 24


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """``rate``: messages per second, all senders together; at each they are a Poisson process of their own.
    ``senders``: how many sites send, 0 for all. ``loss``: of a packet, on each link by itself."""

    command: ClassVar[str] = "python -m ordering.simulator.measurement"

    seed: int
    discipline: str = "rotating"
    sites: int = 5
    senders: int = 0
    rate: int = 100
    message_bytes: int = 500
    loss: float = 0.0
    qos: str = "majority"
    seconds: int = 2

    def __post_init__(self) -> None:
        if self.discipline not in DISCIPLINES:
            raise ConfigurationError(f"discipline: {self.discipline!r} is none of {', '.join(DISCIPLINES)}")
        if not 2 <= self.sites <= 16:
            raise ConfigurationError(f"sites: {self.sites} must be between 2 and 16")
        if not 0 <= self.senders <= self.sites:
            raise ConfigurationError(f"senders: {self.senders} must be 0 (all) to {self.sites}")
        if self.rate < 1:
            raise ConfigurationError(f"rate: {self.rate} messages per second must be at least 1")
        if self.message_bytes < MESSAGE_BYTES_MIN:
            raise ConfigurationError(f"message_bytes: {self.message_bytes} is below {MESSAGE_BYTES_MIN}")
        if not 0 <= self.loss < 1:
            raise ConfigurationError(f"loss: {self.loss} must be from 0 to below 1")
        if self.seconds < 1:
            raise ConfigurationError(f"seconds: {self.seconds} must be at least 1")
        parse_qos(self.qos)

    @property
    def replay(self) -> str:
        """The command that plays this trial again; also its name."""
        default = type(self)(seed=self.seed)
        options = [
            f"--{name.replace('_', '-')} {getattr(self, name)}"
            for name in self.__struct_fields__[1:]
            if getattr(self, name) != getattr(default, name)
        ]
        return " ".join([f"{self.command} --seed {self.seed}", *options])

    def config(self) -> Config:
        addresses = tuple(f"s{number}" for number in range(1, self.sites + 1))
        return Config(
            group="measured",
            founders=addresses,
            contacts=addresses,
            discipline=self.discipline,
            packet_bytes=PACKET_BYTES,
        )


class Times(msgspec.Struct, frozen=True):
    """Of how many messages, and how long it took. None: of none."""

    samples: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """``kinds``: packets by what they are. ``overhead``: those beyond such as bring a message, or a part of
    one, for the first time. ``retransmissions``: packets whose content was sent before. ``buffer_bytes``: of
    messages that a site keeps because somebody may lack them, over all sites and the time under load."""

    messages: int
    refused: int
    undelivered: int
    at_source: Times
    at_all: Times
    stable: Times
    packets: int
    kinds: dict[str, int]
    overhead: int
    retransmissions: int
    lost: int
    datagrams: int
    token_passes: int
    buffer_bytes_mean: float
    buffer_bytes_max: int
    views: int
    simulated_ns: int
    violations: list[str]


class _Born(NamedTuple):
    """What there was when the measurement began."""

    datagrams: int
    lost: int
    orders: int


class Measurement(Checker):
    """Not a check: a listener that follows each message, by the number that it begins with, and looks at
    every packet."""

    name = "measurement"

    def __init__(self, sites: int) -> None:
        super().__init__()
        self._sites = sites
        self._submitted: dict[int, tuple[str, int]] = {}  # number → its source, and when
        self._missing: dict[int, int] = {}  # number → sites that have not delivered it
        self._unstable: dict[str, list[tuple[int, int]]] = {}  # source → (slot, when it was submitted)
        self.at_source: list[int] = []
        self.at_all: list[int] = []
        self.stable: list[int] = []
        self.kinds = dict.fromkeys(("data", "order", "confirm", "probe", "other"), 0)
        self.retransmissions = 0
        self._payloads: set[tuple[int, ...]] = set()
        self._orders: set[tuple[int, int]] = set()
        self._views: set[tuple[int, int]] = set()
        self._buffered: list[int] = []
        self._born = _Born(0, 0, 0)

    def on_submit(
        self, process: Process, first_seq: int, messages: tuple[bytes, ...], qos: Qos, now: int
    ) -> None:
        for message in messages:
            number = number_of(message)
            self._submitted[number] = (process.address, now)
            self._missing[number] = self._sites

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        match effect:
            case Multicast(_, packet) | Unicast(_, packet):
                self._count(packet)
            case Deliver(_, deliveries):
                for delivery in deliveries:
                    for offset, message in enumerate(delivery.messages):
                        slot = delivery.first_ts + offset if delivery.first_ts else 0
                        self._deliver(process.address, number_of(message), slot, now)
            case LevelReached(_, stable):
                waiting = self._unstable.get(process.address, [])
                self.stable += [now - at for slot, at in waiting if slot <= stable]
                self._unstable[process.address] = [each for each in waiting if each[0] > stable]
            case InstallView(_, _, view, _, False):
                self._views.add((view.id.epoch, view.id.revision))
            case _:
                pass

    def _deliver(self, address: str, number: int, slot: int, now: int) -> None:
        source, at = self._submitted[number]
        if address == source:
            self.at_source.append(now - at)
            if slot:
                self._unstable.setdefault(source, []).append((slot, at))
        left = self._missing.get(number, 1) - 1
        if left:
            self._missing[number] = left
        elif self._missing.pop(number, None) is not None:
            self.at_all.append(now - at)

    def _count(self, packet: Packet) -> None:
        match packet:
            case Data(_, batch):  # by what is in it: unreliable ones have no sequence numbers
                self.kinds["data"] += 1
                self._note_payload((number_of(batch.messages[0]), len(batch.messages)))
            case Piece(_, part, _):
                self.kinds["data"] += 1
                self._note_payload((part.source, part.seq, part.qos.rides_the_ring, part.offset))
            case Ack(_, order) | NewList(_, order):
                self.kinds["order"] += 1
                known = len(self._orders)
                self._orders.add((order.epoch, order.ts))
                self.retransmissions += len(self._orders) == known
            case Confirm() | DataConfirm() | PieceConfirm():
                self.kinds["confirm"] += 1
            case Probe():
                self.kinds["probe"] += 1
            case _:
                self.kinds["other"] += 1

    def begin(self, cluster: Cluster) -> None:
        """What was sent up to now, the birth, does not count. Orders of it are known: one that is sent now is
        sent again."""
        self.kinds = dict.fromkeys(self.kinds, 0)
        self.retransmissions = 0
        self._born = _Born(cluster.network.sent, cluster.network.lost, len(self._orders))

    def _note_payload(self, name: tuple[int, ...]) -> None:
        known = len(self._payloads)
        self._payloads.add(name)
        self.retransmissions += len(self._payloads) == known

    def sample(self, cluster: Cluster) -> None:
        self._buffered += [process.engine.site.queue.bytes for process in cluster.live()]

    @property
    def is_quiet(self) -> bool:
        """Whether all that was submitted is delivered everywhere, and known to be."""
        return not self._missing and not any(self._unstable.values())

    def figures(self, cluster: Cluster, load: "SteadyLoad", violations: list[str]) -> Figures:
        buffered = self._buffered
        packets = sum(self.kinds.values())
        return Figures(
            messages=len(self._submitted),
            refused=load.refused,
            undelivered=len(self._missing),
            at_source=_times(self.at_source),
            at_all=_times(self.at_all),
            stable=_times(self.stable),
            packets=packets,
            kinds=dict(self.kinds),
            overhead=packets - len(self._payloads),
            retransmissions=self.retransmissions,
            lost=cluster.network.lost - self._born.lost,
            datagrams=cluster.network.sent - self._born.datagrams,
            token_passes=len(self._orders) - self._born.orders,
            buffer_bytes_mean=sum(buffered) / len(buffered) if buffered else 0.0,
            buffer_bytes_max=max(buffered, default=0),
            views=len(self._views),
            simulated_ns=cluster.clock.now,
            violations=violations,
        )


def _times(ns: list[int]) -> Times:
    """Percentiles by nearest rank: always one that was measured."""
    if not ns:
        return Times(0, None, None, None)
    ordered = sorted(ns)
    p50, p99 = (ordered[-(-len(ordered) * percent // 100) - 1] / MS for percent in (50, 99))
    return Times(len(ordered), sum(ordered) / len(ordered) / MS, p50, p99)


def number_of(message: bytes) -> int:
    return int.from_bytes(message[:_NUMBER_BYTES], "big")


class SteadyLoad:
    """Each sender submits single messages, independently of the others, at exponential intervals."""

    def __init__(self, cluster: Cluster, rng: Random, trial: Trial) -> None:
        self.cluster = cluster
        self.active = True
        self.refused = 0
        self._qos = parse_qos(trial.qos)
        self._padding = bytes(trial.message_bytes - _NUMBER_BYTES)
        self._number = 0
        self._addresses = cluster.config.founders[: trial.senders or trial.sites]
        self._gap_ns = SECOND * len(self._addresses) / trial.rate
        self._rngs = {address: Random(rng.getrandbits(64)) for address in self._addresses}

    def start(self) -> None:
        for address in self._addresses:
            self._schedule(address)

    def _schedule(self, address: str) -> None:
        wait = int(self._rngs[address].expovariate(1.0) * self._gap_ns)
        self.cluster.clock.after(wait, lambda: self._send(address))

    def _send(self, address: str) -> None:
        if not self.active:
            return
        self._number += 1
        message = self._number.to_bytes(_NUMBER_BYTES, "big") + self._padding
        if self.cluster.submit(self.cluster.processes[address], (message,), self._qos) is not None:
            self.refused += 1
        self._schedule(address)


def measure(trial: Trial, extra: tuple[Checker, ...] = ()) -> Figures:
    """Play a trial to its end. ``extra`` checkers watch too."""
    rng = Random(f"measured {trial.seed}")
    measurement = Measurement(trial.sites)
    checkers = [*make_checkers(), measurement, *extra]
    cluster = Cluster(trial.config(), rng.getrandbits(64), checkers)
    load = SteadyLoad(cluster, rng, trial)
    for address in cluster.config.founders:
        cluster.start(address, founder=True)
    clock = cluster.clock
    clock.run_until(_BIRTH)
    # The birth is not measured, so it is not disturbed either.
    weather = cluster.network.weather
    weather.loss = trial.loss
    weather.bytes_per_ms, weather.queue_bytes = BYTES_PER_MS, _QUEUE_BYTES
    measurement.begin(cluster)
    load.start()
    end = clock.now + trial.seconds * SECOND
    while clock.now < end:
        clock.run_until(min(clock.now + _SAMPLE, end))
        measurement.sample(cluster)
    load.active = False
    for checker in cluster.checkers:
        checker.on_healed(cluster, clock.now)
    bound = clock.now + _DRAIN_DETECTIONS * cluster.config.detection_ms * MS
    while clock.now < bound and not measurement.is_quiet:
        clock.run_until(clock.now + _DRAIN_STEP)
    for checker in cluster.checkers:
        checker.finish(cluster, clock.now)
    violations = cluster.broken + [each for checker in checkers for each in checker.violations]
    return measurement.figures(cluster, load, violations)


def main(arguments: list[str] | None = None) -> int:
    """Print the figures of one trial; 1 if a checker complained."""
    parser = argparse.ArgumentParser(prog=Trial.command, description="One trial, its figures as JSON.")
    default = Trial(seed=0)
    for name in Trial.__struct_fields__:
        value = getattr(default, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    figures = measure(Trial(**vars(parser.parse_args(arguments))))
    print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    return 1 if figures.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
