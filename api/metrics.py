"""A gateway's figures as Prometheus reads them (``docs/metrics.md``)."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

GONE: Final = 499  # in the figures alone: nobody was there to be told
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BOUNDS: Final = [*map(floatToGoString, (*_BUCKETS, float("inf")))]


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

    def page(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
