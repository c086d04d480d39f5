"""Who orders a slot when a machine's time has come and nobody calls? (R14)

A machine's alarm goes off at the first message whose slot is not before it (``executor``), so a group that is
busy needs nobody for that. In an idle one the replica that holds the handler lock orders a message that does
nothing, and if it does not, the others do, a little later. Two such messages do no harm, and neither does
one that comes too early, because clocks differ: it is repeated.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from rsm.executor import NEVER

SECOND: Final = 1_000_000_000
TURN_SECONDS: Final = 0.5  # that the others leave to the first
REPEAT_SECONDS: Final = 0.25
SLEEP_SECONDS_MAX: Final = 3600.0  # timers do not reach a year ahead everywhere, and clocks are set


class AlarmClock:
    """One replica's. ``propose`` orders a slot, if it can."""

    def __init__(self, propose: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._propose = propose
        self._loop = loop
        self._at = NEVER
        self._first = False
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: int, *, first: bool) -> None:
        """``at``: in the group's time. ``first``: it is for this replica to order the slot."""
        if (at, first) != (self._at, self._first):
            self._at, self._first = at, first
            self._wait()

    def stop(self) -> None:
        self.set(NEVER, first=False)

    def _wait(self, seconds: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._at != NEVER:
            early = (self._at - time.time_ns()) / SECOND + (0.0 if self._first else TURN_SECONDS)
            self._timer = self._loop.call_later(min(max(early, seconds), SLEEP_SECONDS_MAX), self._due)

    def _due(self) -> None:
        if self._at <= time.time_ns():
            self._propose()
        self._wait(REPEAT_SECONDS)
