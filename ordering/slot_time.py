"""Slot time: one clock for the whole group, made of many that may be wrong (rule R14).

Each block has a time. It never goes back, and it is part of the order, so it is the same at every site
and whatever hangs on it (the end of a lease) happens at the same slot everywhere. The orderer stamps it
from its own wall clock, but may not go further than its monotonic clock says that time has passed since
the block before, plus a step that lets a group catch up which has fallen behind. A clock that jumps ahead
so moves the group by little, and one that jumps back not at all. A site without a clock leaves the time
where it is.

Only leases and the application's idea of time hang on this. No order, no majority and no promise does.
"""

from ordering.config import MS

STEP = 10 * MS
TIME_MAX = 1 << 62  # adding a lease never leaves 63 bits


class SlotClock:
    """What this site knows of the time."""

    def __init__(self) -> None:
        self.offset: int | None = None  # wall-clock time is the host's monotonic time and this
        self.placed_at = 0  # when the last block was placed here

    def wall(self, now: int) -> int:
        """Wall-clock time; 0 without a clock."""
        return 0 if self.offset is None else min(max(now + self.offset, 0), TIME_MAX)

    def stamp(self, previous: int, now: int) -> int:
        """The time of a block ordered now behind one of time ``previous``."""
        wall = self.wall(now)
        if not previous:
            return wall  # nobody had a clock so far
        bound = previous + (now - self.placed_at) + STEP
        return max(previous, min(wall, bound))

    def wait(self, due: int, previous: int, now: int) -> int | None:
        """How long until a stamp reaches ``due``; None if it never will by itself."""
        if self.offset is None:
            return None
        bound = previous + (now - self.placed_at) + STEP
        return max(due - self.wall(now), due - bound, 1)


def agreed_time(stamps: list[int]) -> int:
    """The time of an install: the median of what voters with the same last block would stamp, so that no
    single clock decides. None of them goes back behind that block. 0 stands for no clock."""
    known = sorted(stamp for stamp in stamps if stamp)
    return known[(len(known) - 1) // 2] if known else 0
