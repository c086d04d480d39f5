"""Who is let in, and who has to come back later?

::

    request ─▶ is there room? ─▶ served                              (``Concurrency`` says how much)
                    └─▶ 429, at once, with a time to come back at    (``Comebacks`` says when)
                             └─▶ it is back before: 429 again, but not before that time

A refusal costs a good part of what an answer costs, so who is refused and repeats at once would eat the time
of those who are served. Who comes before the time it was told waits for that time, on its connection, and is
told then; meanwhile it costs nothing. Who comes in time is not held back, unless there are too many even to
be refused. No more can wait than there are connections.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import ceil
from time import monotonic
from typing import Final

from api.concurrency import Concurrency
from api.problems import Headers, Problem
from api.settings import GatewaySettings

RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 8.0  # below the ten seconds after which many a client gives up
_WORDS: Final = "too many requests are under way; come back when it is time"
_SERVED_EACH: Final = 8  # for so many that are served one may be refused
_PER_S_FIRST: Final = 4000.0  # until it is known how many are served


class Standing:
    """How a connection stands with us."""

    __slots__ = ("is_due", "until")

    def __init__(self) -> None:
        self.until = 0.0  # it was told to stay away until then,
        self.is_due = False  # but has waited for what it was told before


class Comebacks:
    """When those who are refused are to come back: one after the other, so that they come in no wave, and no
    more of them a second than can be refused again without much harm to those who are served."""

    def __init__(self) -> None:
        self._next = 0.0

    def take(self, per_s: float, now: float) -> float:
        """The next time that is free. Beyond ``RETRY_MAX_S`` they are all told the same."""
        found = max(self._next, now + RETRY_S)
        latest = now + RETRY_MAX_S
        self._next = min(found + _SERVED_EACH / (per_s or _PER_S_FIRST), latest)
        return min(found, latest)


class _Busy(Problem):
    """Made anew each time: an error that is raised again holds on to everybody it was raised for. What it
    says is made once."""

    def __init__(self, seconds: int) -> None:
        super().__init__("overloaded", _WORDS, retry_after=seconds)

    def body(self) -> bytes:
        return _said(self.retry_after)[1]

    def headers(self) -> Headers:
        return _said(self.retry_after)[0]


@cache
def _said(seconds: int) -> tuple[Headers, bytes]:
    made = Problem("overloaded", _WORDS, retry_after=seconds)
    return made.headers(), made.body()


def _stopping() -> Problem:
    return Problem("stopping", "this gateway stops; ask another one")


class Admission:
    """The door. ``enter`` is followed by ``leave``, or, where there is no room, by ``refusal``."""

    def __init__(self, settings: GatewaySettings, clock: Callable[[], float] = monotonic) -> None:
        self._concurrency = Concurrency(settings.requests_min, settings.requests_max, settings.slowdown_max)
        self._comebacks = Comebacks()
        self._clock = clock
        self._waiting_most = settings.watches_max
        self.waiting = 0
        self.held = 0
        self.stopping = False
        self._stopped = asyncio.Event()

    @property
    def under_way(self) -> int:
        return self._concurrency.under_way

    @property
    def limit(self) -> int:
        return self._concurrency.limit

    def enter(self, standing: Standing) -> int:
        """The place that a request has; 0: it has none, or comes too early, and half of them are taken."""
        if self.stopping or (standing.until and self._is_early(standing)):
            return 0
        return self._concurrency.enter()

    def _is_early(self, standing: Standing) -> bool:
        if standing.is_due or self._clock() >= standing.until:
            return False
        return 2 * self._concurrency.under_way >= self._concurrency.limit

    def leave(self, place: int, kind: str | None, seconds: float) -> None:
        """``seconds`` is how long it took, ``kind`` of what; None if that says nothing."""
        self._concurrency.leave(place, kind, seconds, self._clock())

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A request that waits for long, and needs nothing meanwhile, makes room for another; so many may."""
        if self.waiting >= self._waiting_most:
            raise Problem("overloaded", "too many requests wait, for locks or decisions; try again")
        self.waiting += 1
        self._concurrency.under_way -= 1
        try:
            yield
        finally:
            self._concurrency.under_way += 1
            self.waiting -= 1

    def stop(self) -> None:
        """Nobody is let in any more, and who is held back is told."""
        self.stopping = True
        self._stopped.set()

    def check_stopping(self) -> None:
        if self.stopping:
            raise _stopping()

    # -- refusals --------------------------------------------------------------------------------

    async def refusal(self, standing: Standing) -> Problem:
        """What to say to who did not get in, when it is time to say it."""
        if self.stopping:
            return _stopping()
        seconds = self.refuse(standing)
        if seconds:
            self.held += 1
            try:
                async with asyncio.timeout(seconds):
                    await self._stopped.wait()
                return _stopping()
            except TimeoutError:
                return _Busy(ceil(RETRY_S))
            finally:
                self.held -= 1
        return _Busy(ceil(standing.until - self._clock()))

    def refuse(self, standing: Standing) -> float:
        """For how long the answer is held back; 0: it is told at once."""
        now = self._clock()
        self._concurrency.refused(now)
        was_early = now < standing.until
        if was_early and not standing.is_due:
            seconds = standing.until - now
        else:
            until = self._comebacks.take(self._concurrency.per_s, now)
            if not was_early and until < now + RETRY_MAX_S:
                standing.until = until
                standing.is_due = False
                return 0.0
            seconds = until - now  # it does not heed what it is told, or there are too many to tell
        standing.until = now + seconds + RETRY_S
        standing.is_due = True
        return seconds
