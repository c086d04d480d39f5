"""Somebody answers."""

from typing import TYPE_CHECKING

from ordering.effects import Effect, InstallView
from ordering.simulator.checkers.base import Checker
from ordering.views import View

if TYPE_CHECKING:
    from ordering.simulator.process import Process

HANDLERS = (1, 2, 3, 4, 5, 6)


class HandlerLocks(Checker):
    """In every view with a voter in its ring each of the six handler locks has one owner: a voter in the
    ring, under the boot the view names (R13)."""

    name = "handler_locks"

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[int, int]] = set()  # view_agreement has it that a view is the same for all

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is not InstallView or (effect.chain, effect.ts) in self._seen:
            return
        self._seen.add((effect.chain, effect.ts))
        if any(site in effect.view.electorate for site in effect.view.ring):
            for number in HANDLERS:
                self._check(number, effect.view, now)

    def _check(self, number: int, view: View, now: int) -> None:
        found = [lock for lock in view.locks.locks if lock.name == number]
        owner = found[0].holder.owner if len(found) == 1 else None
        member = None if owner is None else view.member(owner.site)
        sound = (
            member is not None
            and owner is not None
            and member.boot == owner.boot
            and member.site in view.ring
            and member.site in view.electorate
        )
        if not sound:
            self.fail(
                now,
                f"view {view.id}: handler lock {number} is of {owner}, ring {view.ring},"
                f" electorate {view.electorate}",
            )
