"""The ledger alone in the simulator: replicas that crash, states that travel, and sets in another order."""

from random import Random
from typing import Any

from apps.actions.ledger import ActionLedger
from apps.actions.types import Registered, State
from rsm.errors import Rejected
from rsm.state_machine import command
from rsm.testing import simulate
from tests.apps.actions.kit import SITES, at, new


class Guessed(ActionLedger):
    """Calls are drawn before it is known which members and units there will be; here they are named by their
    places."""

    @command
    def register_at(self, name: str, place: int) -> Registered:
        ring = list(self._ring.items())
        return self.register(name, *ring[place % len(ring)])

    @command
    def vote_at(self, place: int, yes: bool) -> State:
        voting = [unit for unit in self._units.values() if unit.state is State.VOTING]
        if not voting:
            raise Rejected("unknown")
        unit = voting[place % len(voting)]
        site = next(name for name, part in unit.parts.items() if part.vote is None)
        return self.vote(unit.name, site, unit.parts[site].incarnation, yes, "drawn")

    @command
    def finished_at(self, place: int, error: str) -> int:
        name = SITES[place % len(SITES)]
        units = [unit.name for unit in self._units.values() if unit.state is State.COMMITTED]
        return self.finished(
            name, self._seat(name).incarnation, [(unit, error) for unit in units[place % 3 :]]
        )


def draw(rng: Random) -> tuple[str, Any]:
    name, number, site = f"{rng.randrange(60)}", rng.randrange(100), rng.choice(SITES)
    sites = rng.sample(SITES, rng.randrange(1, 4))
    depends = (f"{rng.randrange(60)}",) if rng.random() < 0.3 else ()
    operations = (at(each, *rng.sample("kl", 1), whole=rng.random() < 0.1) for each in sites)
    some: list[tuple[str, Any]] = [
        ("request", (new(name, *operations, depends=depends, timeout_ms=rng.choice((50, 2_000))),)),
        ("vote_at", (number, rng.random() < 0.9)),
        ("vote_at", (number, rng.random() < 0.9)),
        ("finished_at", (number, rng.choice(("", "full")))),
    ]
    seldom: list[tuple[str, Any]] = [
        ("register_at", (site, number)),
        ("open", (new(name, at(site, "k")),)),
        ("commit", (name,)),
        ("abort", (name, "drawn")),
        ("forget", (site,)),
        ("duties", (0, site)),
        ("actions", (None, "", 20)),
        ("changes", (number,)),
    ]
    return rng.choice(seldom if rng.random() < 0.3 else some)


def test_replicas_agree_under_faults() -> None:
    report = simulate(Guessed, draw, sites=3, seeds=range(4), seconds=2).check()
    assert report.executed > 100
    assert list(report.notes) == ["black box: the machine changes with time alone"]  # the twin has run
