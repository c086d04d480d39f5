"""A voter has the state it votes for."""

from typing import TYPE_CHECKING

from ordering.effects import Effect, InstallView
from ordering.simulator.checkers.base import Checker

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class VotersHaveState(Checker):
    """Who enters an electorate founded the group or was given the application's state (R7)."""

    name = "voters_have_state"

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is not InstallView:
            return
        site = process.member.site
        if site in effect.view.electorate and not (process.has_state or process.engine.founded):
            self.fail(now, f"site {site} is a voter of view {effect.view.id} and has no state")
