"""Figures that an application adds to those of its replica: of its state, or of what works beside it.

::

    class Shop(StateMachine):
        def figures(self) -> Iterable[Figure]:
            yield gauge("shop_orders", "Orders that are open.", len(self.orders))

    replica.show_figures("counter", till.figures)    # what is no part of the state; None: not any more

They are made for each scrape, between two commands: they should be cheap, and must change nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias, TypeVar

Labels: TypeAlias = tuple[str, ...]
L = TypeVar("L", bound=Labels)


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Durations(NamedTuple):
    """Counts by powers of two nanoseconds (``rsm.histogram``)."""

    counts: tuple[int, ...]
    sum_ns: int


class Figure(NamedTuple):
    """``name`` is without ``rsm_``, and a counter's without ``_total``. ``values``: by the values of
    ``labels``, beside which each has the replica's ``group`` and ``site``."""

    kind: Kind
    name: str
    words: str
    labels: Labels
    values: Mapping[Labels, float]
    durations: Durations | None = None

    def with_those_of(self, other: "Figure") -> "Figure":
        """One family, though two have shown of it."""
        return self._replace(values={**self.values, **other.values})


Source: TypeAlias = Callable[[], Iterable[Figure]]


def gauge(name: str, words: str, value: float) -> Figure:
    return Figure(Kind.GAUGE, name, words, (), {(): value})


def gauges(name: str, words: str, label: str, values: Mapping[str, float]) -> Figure:
    return Figure(Kind.GAUGE, name, words, (label,), {(each,): value for each, value in values.items()})


def counters(name: str, words: str, labels: Labels, values: Mapping[L, float]) -> Figure:
    return Figure(Kind.COUNTER, name, words, labels, {tuple(each): value for each, value in values.items()})


def histogram(name: str, words: str, durations: Durations) -> Figure:
    return Figure(Kind.HISTOGRAM, name, words, (), {}, durations)
