"""A replica's figures as Prometheus reads them (``docs/metrics.md`` has the table of them all).

Nothing is counted for the metrics' sake on the way of a command, but for the latency of own calls: a scrape
reads what driver, engine, storage and status have anyway. Each replica has a registry of its own, for several
may live in one process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ordering.statistics import DriverStats, GroupStats
from rsm.figures import Figure, Kind, Labels
from rsm.histogram import Histogram
from rsm.pages import Headers, Page
from rsm.status import LockStatus, ReplicaStatus, Role, Standing
from rsm.storage import StorageStats

# Bounds of a bucket: from 2^16 ns, 66 microseconds, to 2^34, 17 seconds.
_FIRST, _LAST = 16, 34

L = TypeVar("L", bound=Labels)
_OURS: Final = ("group", "site")
_NO_LABELS: Final[Labels] = ()


class Source(NamedTuple):
    """Where the figures are."""

    status: Callable[[], ReplicaStatus]
    driver: Callable[[], DriverStats]
    storage: StorageStats | None
    latency: Histogram | None
    waiting_rows: Callable[[], int]
    beside: Callable[[], Iterable[Figure]] = tuple  # those of the application


class Figures(Collector):
    """Reads everything once for each scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        """Nothing before the replica is open."""
        return []

    def collect(self) -> Iterator[Metric]:
        source = self._source
        status, driver = source.status(), source.driver()
        engine = next((each for each in driver.groups if each.group == status.group), None)
        storage = source.storage
        make = _Maker((status.group, status.address))
        yield from _replica(make, status)
        yield from _members(make, status)
        yield from _network(make, driver)
        if engine is not None:
            yield from _engine(make, engine)
        if storage is not None:
            yield from _storage(make, storage, status)
        if status.recording is not None:
            kept = status.recording
            yield make.counter("recording_rows", "Rows recorded.", kept.rows)
            yield make.counter(
                "recording_rows_dropped", "Rows that the writer was too slow for.", kept.dropped
            )
            yield make.gauge("recording_rows_waiting", "Rows noted and not written.", source.waiting_rows())
            yield make.gauge("recording_failed", "Whether the recording has stopped.", bool(kept.error))
        if source.latency is not None:
            words = "Own commands, from the call to the answer."
            yield make.histogram(
                "command_duration_seconds", words, source.latency.counts, source.latency.sum_ns
            )
        for figure in source.beside():
            yield make.figure(figure)


def page_of(source: Source) -> Callable[[Headers], Page]:
    """The page that a scraper asks for, in the format that it prefers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(source))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)

    def page(headers: Headers) -> Page:
        encode, content_type = choose_encoder(headers.get("accept", ""))
        return Page(encode(registry), content_type)

    return page


class _Maker:
    """Families of one replica: every sample has its group and its address."""

    def __init__(self, ours: Labels) -> None:
        self._ours = ours

    def gauge(self, name: str, words: str, value: float) -> Metric:
        return self.gauges(name, words, (), {_NO_LABELS: value})

    def counter(self, name: str, words: str, value: float) -> Metric:
        return self.counters(name, words, (), {_NO_LABELS: value})

    def gauges(self, name: str, words: str, labels: Labels, values: Mapping[L, float]) -> Metric:
        family = GaugeMetricFamily(f"rsm_{name}", words, labels=(*_OURS, *labels))
        for those, value in values.items():
            family.add_metric((*self._ours, *those), float(value))
        return family

    def counters(self, name: str, words: str, labels: Labels, values: Mapping[L, float]) -> Metric:
        family = CounterMetricFamily(f"rsm_{name}", words, labels=(*_OURS, *labels))
        for those, value in values.items():
            family.add_metric((*self._ours, *those), value)
        return family

    def figure(self, figure: Figure) -> Metric:
        if figure.durations is not None:
            return self.histogram(figure.name, figure.words, *figure.durations)
        make = self.gauges if figure.kind is Kind.GAUGE else self.counters
        return make(figure.name, figure.words, figure.labels, figure.values)

    def info(self, name: str, words: str, **values: str) -> Metric:
        family = InfoMetricFamily(f"rsm_{name}", words, labels=_OURS)
        family.add_metric(self._ours, values)
        return family

    def histogram(self, name: str, words: str, counts: Iterable[int], sum_ns: int) -> Metric:
        """Of buckets by powers of two nanoseconds."""
        family = HistogramMetricFamily(f"rsm_{name}", words, labels=_OURS)
        buckets: list[tuple[str, float]] = []
        total = 0
        for exponent, count in enumerate(counts):
            total += count
            if _FIRST <= exponent <= _LAST:
                buckets.append((f"{2**exponent / 1e9:.9g}", total))
        family.add_metric(self._ours, [*buckets, ("+Inf", total)], sum_ns / 1e9)
        return family


def _replica(make: _Maker, status: ReplicaStatus) -> Iterator[Metric]:
    yield make.info(
        "replica",
        "Who this is.",
        id=status.site,
        chain=status.chain,
        machine=status.machine,
        version=str(status.version),
        mode=status.mode,
    )
    standings = {(each.value,): float(status.standing is each) for each in Standing}
    yield make.gauges("standing", "1 for how the replica stands, 0 for the others.", ("standing",), standings)
    yield make.gauge("uptime_seconds", "Since the replica was opened.", status.uptime_s)
    epoch, _, revision = status.view.partition(".")
    yield make.gauge("view_epoch", "Epoch of the view that is executed.", int(epoch or 0))
    yield make.gauge("view_revision", "Revision of that view.", int(revision or 0))
    yield make.gauge("applied_slot", "Everything up to it is executed.", status.applied)
    yield make.gauge("received_slot", "Everything up to it is here.", status.received)
    yield make.gauge("held_slot", "Everything up to it is held, in durable mode on disk.", status.held)
    yield make.gauge("majority_slot", "A majority is known to hold everything up to it.", status.majority)
    yield make.gauge("stable_slot", "The whole ring is known to hold everything up to it.", status.stable)
    yield make.gauge("lag_slots", "Not executed here, of what is known to be ordered.", status.lag)
    yield make.gauge("waiting_deliveries", "Delivered, and not executed yet.", status.waiting)
    yield make.gauge("backlog_bytes", "Delivered, and reported as not taken.", status.backlog_bytes)
    yield make.gauge("outstanding_calls", "Own calls without an answer.", status.outstanding)
    yield make.gauge("sessions", "Sessions of the whole group.", status.sessions)
    yield make.gauge("majority_age_seconds", "Since a majority was last heard.", status.age_s)
    yield make.gauge("handler", "Whether this replica answers clients.", status.handler)
    yield make.gauge("locks", "Locks of the group that somebody has.", sum(map(_is_held, status.locks)))
    defects = {tuple(key.split(": ", 1)): count for key, count in status.defects.items()}
    words = "Exceptions that commands and queries raised here, other than Rejected."
    yield make.counters("defects", words, ("method", "error"), defects)
    counts = status.counters
    yield make.counter("view_changes", "Views installed here.", counts["view changes"])
    yield make.counter("memberships", "Memberships begun: 1, and 1 for each return.", counts["memberships"])
    yield make.counters(
        "transfers",
        "State transfers.",
        ("event",),
        {(word,): counts[f"transfers {word}"] for word in ("begun", "taken", "given")},
    )
    sizes = {(word,): counts[f"transfer bytes {word}"] for word in ("taken", "given")}
    yield make.counters("transfer_bytes", "Bytes of transferred states.", ("event",), sizes)
    yield make.counter("snapshots_failed", "Snapshots that could not be saved.", counts["snapshots failed"])


def _is_held(lock: LockStatus) -> bool:
    return bool(lock.site)


def _members(make: _Maker, status: ReplicaStatus) -> Iterator[Metric]:
    members = status.members
    yield make.gauge("ring_members", "Members that get the token.", sum(each.in_ring for each in members))
    yield make.gauge("voters", "Members whose majorities count.", sum(each.voter for each in members))
    learners = sum(each.role is Role.LEARNER for each in members)
    yield make.gauge("learners", "Members that do not vote yet.", learners)
    me = next((each for each in members if each.site == status.site), None)
    yield make.gauge("in_ring", "Whether this replica gets the token.", me is not None and me.in_ring)
    label = ("member",)
    lags = {(each.address,): float(each.lag) for each in members}
    yield make.gauges("member_lag_slots", "Behind the newest slot known here.", label, lags)
    silences = {(each.address,): each.silent_s for each in members if each is not me}
    yield make.gauges("member_silent_seconds", "Since the member was last heard here.", label, silences)


def _engine(make: _Maker, engine: GroupStats) -> Iterator[Metric]:
    yield make.counter("messages_submitted", "Own messages that the ring accepted.", engine.submitted)
    yield make.counter("messages_delivered", "Messages of everybody, delivered here.", engine.delivered)
    yield make.gauge("window_messages", "Own messages neither ordered nor confirmed.", engine.window.messages)
    yield make.gauge("window_bytes", "Their bytes.", engine.window.bytes)
    yield make.counter("polls", "Times the others were asked whether they miss somebody.", engine.polls)
    dropped = {(_reason(key),): count for key, count in engine.counters.items() if _is_drop(key)}
    events = {(key,): count for key, count in engine.counters.items() if not _is_drop(key)}
    yield make.counters("packets_dropped", "Packets without a meaning here, by reason.", ("reason",), dropped)
    yield make.counters("engine_events", "What the ordering engine counts.", ("event",), events)
    # A submission's bucket is known, its duration is not: the middle of the bucket stands for it.
    sum_ns = sum(count * 3 * 2**exponent // 4 for exponent, count in enumerate(engine.latency))
    words = "Own submissions, until a majority holds all of them; the sum is an estimate."
    yield make.histogram("ordering_duration_seconds", words, engine.latency, sum_ns)


def _is_drop(key: str) -> bool:
    return key.startswith("dropped: ")


def _reason(key: str) -> str:
    return key.removeprefix("dropped: ")


def _network(make: _Maker, driver: DriverStats) -> Iterator[Metric]:
    yield make.counter("datagrams_received", "Datagrams that came.", driver.datagrams_in)
    yield make.counter("datagrams_sent", "Datagrams that went.", driver.datagrams_out)
    yield make.counter("datagram_received_bytes", "Their bytes.", driver.bytes_in)
    yield make.counter("datagram_sent_bytes", "Their bytes.", driver.bytes_out)
    yield make.counter("datagrams_fragmented", "Sent in more than one piece.", driver.fragmented)
    dropped: dict[Labels, float] = {}
    for layer, counts in (
        ("wire", driver.wire_drops),
        ("group", driver.group_drops),
        ("send", driver.send_drops),
    ):
        dropped |= {(layer, reason): count for reason, count in counts.items()}
    words = "Datagrams that were dropped before an engine saw them, or could not be sent."
    yield make.counters("datagrams_dropped", words, ("layer", "reason"), dropped)
    kernel = sum(each.dropped_by_kernel or 0 for each in driver.sockets)
    yield make.counter("datagrams_dropped_by_kernel", "They found the receive buffer full.", kernel)
    stalls = driver.stalls
    late = {(f"{ms / 1000:g}",): count for ms, count in stalls.late.items()}
    yield make.counters("loop_late", "Timers that came later than so many seconds.", ("seconds",), late)
    busy = {(f"{ms / 1000:g}",): count for ms, count in stalls.busy.items()}
    yield make.counters("loop_busy", "Turns of the ring that took longer.", ("seconds",), busy)
    yield make.gauge("loop_late_max_seconds", "The latest timer so far.", stalls.late_max_ns / 1e9)
    yield make.counter("groups_stopped", "Engines that broke.", driver.groups_stopped)


def _storage(make: _Maker, storage: StorageStats, status: ReplicaStatus) -> Iterator[Metric]:
    words = "Transactions of the log, each synced twice; count is the number of them."
    yield make.histogram("sync_duration_seconds", words, storage.sync.counts, storage.sync.sum_ns)
    yield make.gauge("log_bytes", "Bytes of the database on disk.", status.log_bytes)
    yield make.counter("snapshots", "Snapshots saved.", storage.snapshots)
    if status.snapshot is not None:
        yield make.gauge("snapshot_slot", "Slot of the last snapshot.", status.snapshot.slot)
        yield make.gauge("snapshot_bytes", "Its size.", status.snapshot.bytes)
        yield make.gauge("snapshot_age_seconds", "Since it was saved.", status.snapshot.age_s)
