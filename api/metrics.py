"""A gateway's figures as Prometheus reads them (``docs/metrics.md``)."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

GONE: Final = 499  # in the figures alone: nobody was there to be told
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BOUNDS: Final = [*map(floatToGoString, (*_BUCKETS, float("inf")))]


_READS: Final = frozenset({"GET", "HEAD"})
_DATA: Final = ("/v1/kv", "/v1/txn", "/v1/counters", "/v1/history", "/v1/leases", "/v1/actions")
_STREAM: Final = "/v1/actions/events"


class Answered(NamedTuple):
    """Requests for data so far, but for those that wait on purpose: how many, how many of them came to
    nothing through no fault of who asked; and of those that read and those that write, how many took no
    longer than so many seconds."""

    requests: int
    failed: int
    reads: dict[float, int]
    writes: dict[float, int]


class _Durations:
    """How many answers took how long."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.total = 0.0


class Metrics(Collector):
    """Of one gateway, in a registry of its own: several may live in one process. Requests are counted here
    and not in the library's counters: those have locks, and cost more than all the rest of it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._answers: dict[tuple[str, str, int], int] = {}
        self._durations: dict[tuple[str, str], _Durations] = {}

    def gauge(self, name: str, words: str, value: Callable[[], float]) -> None:
        """Read at each scrape."""
        Gauge(f"rsm_gateway_{name}", words, registry=self._registry).set_function(value)

    def note(self, route: str, method: str, status: int, seconds: float) -> None:
        """``route`` is one of ours, so that there are not more of them than there are."""
        answer = (route, method, status)
        self._answers[answer] = self._answers.get(answer, 0) + 1
        durations = self._durations.get(answer[:2])
        if durations is None:
            durations = self._durations[answer[:2]] = _Durations()
        durations.counts[bisect_left(_BUCKETS, seconds)] += 1
        durations.total += seconds

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "rsm_gateway_requests", "Requests answered.", labels=("route", "method", "status")
        )
        for (route, method, status), count in self._answers.items():
            requests.add_metric((route, method, str(status)), count)
        seconds = HistogramMetricFamily(
            "rsm_gateway_request_duration_seconds",
            "From the head of a request to its answer; of streams, to their end.",
            labels=("route", "method"),
        )
        for labels, durations in self._durations.items():
            counts = list(zip(_BOUNDS, accumulate(durations.counts), strict=True))
            seconds.add_metric(labels, counts, durations.total)
        return [requests, seconds]

    def answered(self) -> Answered:
        """Read out of what is counted anyway: it costs who asks, not who is answered."""
        bounds = (*_BUCKETS, float("inf"))
        took = {True: [0] * len(bounds), False: [0] * len(bounds)}  # by whether it reads
        for (route, method), durations in self._durations.items():
            if _is_asked(route):
                counts = took[method in _READS]
                for place, count in enumerate(durations.counts):
                    counts[place] += count
        requests = failed = 0
        for (route, _, status), count in self._answers.items():
            if _is_asked(route):
                requests += count
                failed += count if status == 429 or status >= 500 else 0
        reads, writes = (dict(zip(bounds, accumulate(took[each]), strict=True)) for each in (True, False))
        return Answered(requests, failed, reads, writes)

    def page(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def _is_asked(route: str) -> bool:
    return route.startswith(_DATA) and route != _STREAM
