"""A gateway's figures as Prometheus reads them (``docs/metrics.md``)."""

from collections import defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


_DATA: Final = ("/v1/kv", "/v1/txn", "/v1/counters", "/v1/history", "/v1/leases")


class Answered(NamedTuple):
    """Requests for data so far, but for those that wait on purpose: how many, how many of them came to
    nothing through no fault of who asked; and of those that read and those that write, how many took no
    longer than so many seconds."""

    requests: float
    failed: float
    reads: dict[float, float]
    writes: dict[float, float]


class Metrics:
    """Of one gateway, in a registry of its own: several may live in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "rsm_gateway_requests",
            "Requests answered.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "rsm_gateway_request_duration_seconds",
            "From the head of a request to its answer; of streams, to their end.",
            ("route", "method"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def gauge(self, name: str, words: str, value: Callable[[], float]) -> None:
        """Read at each scrape."""
        Gauge(f"rsm_gateway_{name}", words, registry=self._registry).set_function(value)

    def note(self, route: str, method: str, status: int, seconds: float) -> None:
        """``route`` is one of ours, so that there are not more of them than there are."""
        children = self._children.get((route, method, status))
        if children is None:
            children = (
                self._requests.labels(route, method, str(status)),
                self._seconds.labels(route, method),
            )
            self._children[route, method, status] = children
        children[0].inc()
        children[1].observe(seconds)

    def answered(self) -> Answered:
        """Read out of what is counted anyway: it costs who asks, not who is answered."""
        reads: defaultdict[float, float] = defaultdict(float)
        writes: defaultdict[float, float] = defaultdict(float)
        requests = failed = 0.0
        for family in self._seconds.collect():
            for sample in family.samples:
                if sample.name.endswith("_bucket") and _is_asked(sample.labels["route"]):
                    kind = reads if sample.labels["method"] in {"GET", "HEAD"} else writes
                    kind[float(sample.labels["le"])] += sample.value
        for family in self._requests.collect():
            for sample in family.samples:
                if sample.name.endswith("_total") and _is_asked(sample.labels["route"]):
                    requests += sample.value
                    status = int(sample.labels["status"])
                    failed += sample.value if status == 429 or status >= 500 else 0
        return Answered(requests, failed, dict(sorted(reads.items())), dict(sorted(writes.items())))

    def page(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def _is_asked(route: str) -> bool:
    return route.startswith(_DATA)
