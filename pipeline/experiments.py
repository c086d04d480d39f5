"""Which trials does ``sweep`` play? The papers' experiments, as grids.

==========  =========================================================  =====================================
``rate``    packets and times against the load, from a trickle up       RMP §5, Jia (figure 17), DTP §5
``sites``   times, buffers and overhead against the size of the group   DTP figures 2–5
``loss``    what a network that loses costs                             RMP §5
``size``    the delay of small and large messages                       Jia figure 15
``qos``     one sender: the delay of each rung of the ladder            RMP figures 3.2 and 5.3, Jia figure 16
==========  =========================================================  =====================================

All messages are of 500 bytes, and all sites send, unless that is what is varied, as in DTP §5.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, Final

from pipeline.errors import BadSetting

MESSAGES_MIN: Final = 100  # a trial lasts at least so long that it has about as many
GAPS_MS: Final = (50, 100, 200)  # DTP's 1/λ: between the messages of one site

DISCIPLINES: Final = ("rotating", "sequencer")
RATE: Final = 100  # messages a second, where it is not varied

Point = dict[str, Any]  # settings of a trial (``ordering.simulator.measurement``)


def _rate() -> Iterator[Point]:
    for rate in (10, 20, 50, 100, 200, 400, 800, 1600):
        yield {"rate": rate}


def _sites() -> Iterator[Point]:
    for sites, gap_ms in product((2, 3, 4, 6, 8, 12, 16), GAPS_MS):
        yield {"sites": sites, "rate": sites * 1000 // gap_ms}


def _loss() -> Iterator[Point]:
    for sites, loss in product((3, 8), (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1)):
        yield {"sites": sites, "loss": loss}


def _size() -> Iterator[Point]:
    for sites, message_bytes in product((3, 8, 16), (64, 256, 1024, 4096, 16384)):
        yield {"sites": sites, "message_bytes": message_bytes, "rate": 20}


def _qos() -> Iterator[Point]:
    rungs = (
        "unreliable",
        "unordered",
        "source_ordered",
        "totally_ordered",
        "k=1",
        "k=2",
        "majority",
        "total",
    )
    for sites, qos in product((3, 5, 9), rungs):
        yield {"sites": sites, "qos": qos, "senders": 1, "rate": 50}


EXPERIMENTS: Final[Mapping[str, Callable[[], Iterator[Point]]]] = {
    "rate": _rate,
    "sites": _sites,
    "loss": _loss,
    "size": _size,
    "qos": _qos,
}
ALL: Final = "all"


def chosen(name: str) -> tuple[str, ...]:
    """``all``, or some names with commas between."""
    names = tuple(EXPERIMENTS) if name == ALL else tuple(word.strip() for word in name.split(","))
    for each in names:
        if each not in EXPERIMENTS:
            raise BadSetting(
                f"experiment: {each!r} is unknown; use {ALL}, or some of {', '.join(EXPERIMENTS)}"
            )
    return names


def points(experiment: str, seeds: int, seconds: int) -> Iterator[Point]:
    """Everything of an experiment with one seed, then with the next: what is cut short is still whole."""
    for seed, point, discipline in product(range(seeds), EXPERIMENTS[experiment](), DISCIPLINES):
        whole = {"rate": RATE} | point
        lasts = max(seconds, -(-MESSAGES_MIN // whole["rate"]))
        yield {"seed": seed, "discipline": discipline, "seconds": lasts} | whole
