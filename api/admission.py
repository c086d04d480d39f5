"""Who is let in, and who has to come back later?

So many requests are under way at a time. Who is one too many is told so, but not at once: a client that
repeats without a pause would cost more than the answers of those who are served. What is held back is
bounded as well; beyond that it is told at once.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from api.problems import Problem
from api.settings import GatewaySettings


def _busy() -> Problem:
    """Made anew each time: an error that is raised again holds on to everybody it was raised for."""
    return Problem("overloaded", "too many requests are under way; try again")


def _stopping() -> Problem:
    return Problem("stopping", "this gateway stops; ask another one")


class Admission:
    """Counts; ``enter`` is followed by ``leave``."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._most = settings.requests_max
        self._held_most = settings.refusals_max
        self._held_s = settings.refusal_ms / 1000
        self._waiting_most = settings.watches_max
        self.under_way = 0
        self.waiting = 0
        self.held = 0
        self.stopping = False

    def enter(self) -> bool:
        """Whether there is room for one more; if so, it is taken."""
        if self.under_way >= self._most or self.stopping:
            return False
        self.under_way += 1
        return True

    def leave(self) -> None:
        self.under_way -= 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A request that waits for long, and needs nothing meanwhile, makes room for another; so many may."""
        if self.waiting >= self._waiting_most:
            raise _busy()
        self.waiting += 1
        self.under_way -= 1
        try:
            yield
        finally:
            self.under_way += 1
            self.waiting -= 1

    def check_stopping(self) -> None:
        if self.stopping:
            raise _stopping()

    async def refusal(self) -> Problem:
        """What to say to who did not get in, when it is time to say it."""
        if self.stopping:
            return _stopping()
        if self.held < self._held_most:
            self.held += 1
            try:
                await asyncio.sleep(self._held_s)
            finally:
                self.held -= 1
        return _busy()
