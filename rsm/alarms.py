"""Who orders a slot when a machine's time has come and nobody calls? (R14)

A machine's alarm goes off at the first message whose slot is not before it (``executor``), so a group that is
busy needs nobody for that. In an idle one the replica that holds the handler lock orders a message that does
nothing, and if it does not, the others do, a little later. Two such messages do no harm, and neither does
one that comes too early, because clocks differ: it is repeated.

The time of a slot is at most that of the one before and what has passed since, and at most what the clock of
who orders it says (``ordering.slot_time``). So both are looked at: a group whose time has stood still while
all were down, or that has a wrong clock in it, orders nothing in vain.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from rsm.executor import NEVER, Executor

SECOND: Final = 1_000_000_000
TURN_SECONDS: Final = 0.5  # that the others leave to the first
REPEAT_SECONDS: Final = 0.25
AGAIN_SECONDS: Final = 0.01  # if it went off, and more is due
SLEEP_SECONDS_MAX: Final = 3600.0  # timers do not reach a year ahead everywhere, and clocks are set


class AlarmClock:
    """One replica's. ``propose`` orders a slot, if it can; ``wall`` is what its clock says."""

    def __init__(
        self,
        propose: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._propose = propose
        self._loop = loop
        self._wall = wall
        self._at = NEVER
        self._first = False
        self._rung = 0
        self._time = 0  # the group's, and when it was that here
        self._time_at = 0.0
        self._timer: asyncio.Handle | None = None

    def set(self, executor: Executor, *, first: bool) -> None:
        """As of what is executed. ``first``: it is for this replica to order the slot."""
        if executor.alarm_at == NEVER and self._at == NEVER:
            return
        at, rung, now = executor.alarm_at, executor.alarms, executor.group.time
        if now != self._time:
            self._time, self._time_at = now, self._loop.time()
        changed, rang = (at, first) != (self._at, self._first), rung != self._rung
        self._at, self._first, self._rung = at, first, rung
        if changed or rang:
            self._wait(AGAIN_SECONDS if rang else 0.0)

    def stop(self) -> None:
        self._at = NEVER
        self._wait(0.0)

    def _early(self) -> float:
        """How long until a slot would have the alarm's time; negative if it has come."""
        passed = int((self._loop.time() - self._time_at) * SECOND)
        return (self._at - min(self._wall(), self._time + passed)) / SECOND

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._at != NEVER:
            early = self._early() + (0.0 if self._first else TURN_SECONDS)
            self._timer = self._loop.call_later(min(max(early, seconds), SLEEP_SECONDS_MAX), self._due)

    def _due(self) -> None:
        if self._early() <= 0:
            self._propose()
        self._wait(REPEAT_SECONDS)
