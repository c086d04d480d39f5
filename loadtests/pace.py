"""When requests should begin, whatever has become of those before them.

A user that waits for an answer sends nothing meanwhile, so its own waits hide how long others would have
waited (coordinated omission). Here each user has a schedule that an answer cannot move: who is late sends at
once until it has caught up, and the time from the intended start counts the delay.
"""

from typing import Final

SECOND_NS: Final = 1_000_000_000


class Pace:
    """``per_second`` starts, the first one ``phase`` of a step after ``now``."""

    def __init__(self, per_second: float, now_ns: int, phase: float) -> None:
        if per_second <= 0:
            raise ValueError(f"rate: must be more than 0 a second, is {per_second:g}")
        self._began_ns = now_ns
        self._per_second = per_second
        self._steps = phase
        self._due = False

    @property
    def next_ns(self) -> int:
        return self._began_ns + round(self._steps * SECOND_NS / self._per_second)

    def wait_s(self, now_ns: int) -> float:
        """How long there is nothing to do; none: it is late."""
        self._due = True
        return max(self.next_ns - now_ns, 0) / SECOND_NS

    def take(self, now_ns: int) -> int:
        """The intended start of a request that begins now. Each takes its place in the schedule; but one that
        follows from the answer to another, without a wait between, could not have begun earlier."""
        intended = self.next_ns if self._due else now_ns
        self._due = False
        self._steps += 1
        return intended
