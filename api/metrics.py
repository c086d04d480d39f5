"""A gateway's figures as Prometheus reads them (``docs/metrics.md``)."""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


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

    def page(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
