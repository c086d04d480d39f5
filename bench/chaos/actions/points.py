"""Sites of actions that can be made to die, or to stop, at the places of ``Point``."""

import asyncio
from collections.abc import Sequence

from apps.actions.handles import Early
from apps.actions.manager import ActionManager
from apps.actions.operations import Operations
from apps.actions.participant import Recovered, Unit
from apps.actions.site import SiteCore
from apps.actions.sql import SqlParticipant
from apps.actions.types import Action, CastVote, Duty, NewAction, Operation, Task
from bench.chaos.actions.history import Found
from bench.chaos.failpoints import Cut, Failpoints, Point
from bench.chaos.history import Notes
from rsm.feeds import Feed


class FailingParticipant(SqlParticipant):
    """Also notes what it finds prepared when it is back."""

    def __init__(self, site: str, url: str, operations: Operations, points: Failpoints, notes: Notes) -> None:
        super().__init__(url, operations)
        self._site = site
        self._points = points
        self._notes = notes

    async def recover(self) -> Recovered:
        found = await super().recover()
        self._notes.write(Found(self._site, [each.unit.name for each in found.prepared]))
        return found

    async def prepare(self, unit: Unit, operations: Sequence[Operation]) -> None:
        self._points.reach(Point.BEFORE_PREPARE, *Cut)
        await super().prepare(unit, operations)
        self._points.reach(Point.AFTER_PREPARE, *Cut)

    async def commit(self, unit: Unit, operations: Sequence[Operation]) -> None:
        self._points.reach(Point.BEFORE_COMMIT, *Cut)
        await super().commit(unit, operations)
        self._points.reach(Point.AFTER_COMMIT, *Cut)


class FailingManager(ActionManager):
    """``points`` are set before it is entered."""

    points: Failpoints

    async def _answer(self, question: bytes) -> bytes:
        self.points.reach(Point.BEFORE_ATTEMPT, *Cut)
        answer = await super()._answer(question)
        self.points.reach(Point.AFTER_ATTEMPT, *Cut)
        return answer

    async def _take_offer(self, question: bytes) -> bytes:
        answer = await super()._take_offer(question)
        # In the next turn, so that it is sent as often as not.
        asyncio.get_running_loop().call_soon(self.points.reach, Point.AFTER_EARLY_VOTE, *Cut)
        return answer

    async def request(self, action: NewAction, early: Early | None = None) -> Action:
        self.points.reach(Point.BEFORE_REQUEST, *Cut)
        found = await super().request(action, early)
        self.points.reach(Point.AFTER_REQUEST, *Cut)
        return found

    def _hear(self, page: Feed[Duty]) -> None:
        if any(duty.task is Task.PREPARE for duty in page.events):
            self.points.reach(Point.REQUEST_ORDERED, *Cut)
        super()._hear(page)

    async def _vote(self, core: SiteCore, vote: CastVote) -> None:
        await super()._vote(core, vote)
        self.points.reach(Point.AFTER_VOTE, *Cut)
