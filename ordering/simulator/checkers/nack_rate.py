"""NACKs are rare, whatever is lost."""

from typing import TYPE_CHECKING

from ordering.effects import Effect, Multicast
from ordering.packets import Nack
from ordering.simulator.checkers.base import Checker

if TYPE_CHECKING:
    from ordering.simulator.process import Process

SECOND = 1_000_000_000
MOST_PER_SECOND = 400


class NackRate(Checker):
    """No site sends more than a few hundred NACKs in a second (R16: no NACK implosion)."""

    name = "nack_rate"

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[int, tuple[int, int]] = {}  # the second, and how many in it

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is not Multicast or type(effect.packet) is not Nack:
            return
        site = process.key
        second, count = self._sent.get(site, (-1, 0))
        count = count + 1 if second == now // SECOND else 1
        self._sent[site] = (now // SECOND, count)
        if count == MOST_PER_SECOND + 1:
            self.fail(now, f"site {site} sent more than {MOST_PER_SECOND} NACKs within a second")
