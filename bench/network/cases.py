"""The cases: what is broken, who has to go on, and who has to refuse."""

from enum import StrEnum
from itertools import product
from typing import Any

import msgspec

Pairs = tuple[tuple[int, int], ...]


class Kind(StrEnum):
    RULES = "rules"
    PULLED = "pulled"
    FLAPPING = "flapping"
    LOSS = "loss"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One fault on a bridge with ``sites`` ports.

    ``primary``: those that have to go on; empty: any majority may. ``minority``: those that have to refuse.
    """

    name: str
    kind: Kind
    sites: int
    blocked: Pairs = ()
    site: int = 0  # the one whose link is pulled
    percent: int = 0
    primary: tuple[int, ...] = ()
    minority: tuple[int, ...] = ()
    transfers: bool = False  # whether the site that was away needs the state
    settings: dict[str, Any] = {}

    @property
    def title(self) -> str:
        return f"{self.name}, {self.sites} sites"

    @property
    def majority(self) -> int:
        return self.sites // 2 + 1

    @property
    def needs_nft(self) -> bool:
        return self.kind in {Kind.RULES, Kind.LOSS}

    @property
    def keeps_its_ring(self) -> bool:
        """RMP §4.4: a ring is changed for a failure. So much loss is none."""
        return self.kind is Kind.LOSS and self.percent <= 5


def _apart(left: tuple[int, ...], right: tuple[int, ...]) -> Pairs:
    return (*product(left, right), *product(right, left))


def _partitions(sites: int) -> list[Case]:
    everyone = tuple(range(sites))
    few, many = everyone[: (sites - 1) // 2], everyone[(sites - 1) // 2 :]
    left, right = everyone[: sites // 2], everyone[sites // 2 + 1 :]
    away: dict[str, Any] = {
        "kind": Kind.PULLED, "sites": sites, "site": 0, "primary": everyone[1:], "minority": (0,),
    }  # fmt: skip
    return [
        Case(
            name="halves", kind=Kind.RULES, sites=sites, blocked=_apart(few, many), primary=many, minority=few
        ),
        Case(name="away", **away),
        # Away for longer than the others' logs reach: only their state brings it back.
        Case(name="far-away", **away, transfers=True, settings={"retain_slots": 200}),
        # Away for so long that the group goes on without it: it comes back as another.
        Case(
            name="removed", **away, transfers=True, settings={"remove_ms": 1500, "electorate_min": sites - 1}
        ),
        Case(name="one-way", kind=Kind.RULES, sites=sites, blocked=((0, 1),)),
        Case(name="bridge", kind=Kind.RULES, sites=sites, blocked=_apart(left, right)),
        Case(name="flapping", kind=Kind.FLAPPING, sites=sites, site=0, primary=everyone[1:]),
    ]


def _losses(sites: int) -> list[Case]:
    return [
        Case(name=f"loss-{percent}", kind=Kind.LOSS, sites=sites, percent=percent) for percent in (1, 5, 20)
    ]


def all_cases(sites: int) -> list[Case]:
    return [*_partitions(sites), *_losses(sites)]


NAMES = tuple(case.name for case in all_cases(3))
