"""A delivery names the chain that gave it its slots: a fork's first ones come before the fork's view."""

from typing import Any

from ordering.effects import Deliver, Effect, InstallView
from ordering.qos import Level
from ordering.simulator.checkers.base import Checker
from ordering.simulator.plan import Plan
from ordering.simulator.run import simulate

SEED = 15  # two sites that fork have slots that no majority of the old chain was known to hold


class Chains(Checker):
    def __init__(self) -> None:
        super().__init__()
        self.home: dict[int, int] = {}
        self.before_their_view: list[tuple[str, int]] = []
        self.slots: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def on_effect(self, process: Any, effect: Effect, now: int) -> None:
        if isinstance(effect, InstallView):
            self.home[process.key] = effect.chain
        if not isinstance(effect, Deliver):
            return
        for each in effect.deliveries:
            if each.first_ts and each.reached >= Level.MAJORITY:
                if effect.chain != self.home.get(process.key):
                    self.before_their_view.append((process.address, each.first_ts))
                for offset in range(len(each.messages)):
                    place = (effect.chain, each.first_ts + offset)
                    self.slots.setdefault(place, set()).add((each.source, each.first_seq + offset))


def test_when_a_chain_forks_then_its_first_deliveries_are_not_those_of_the_old_chain() -> None:
    chains = Chains()
    report = simulate(Plan(seed=SEED), (chains,))
    assert not report.violations
    assert chains.before_their_view
    assert all(len(messages) == 1 for messages in chains.slots.values())
