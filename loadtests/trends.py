"""Does it grow? A line through what was measured, and what it means."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

WARM_UP: Final = 1 / 3  # of the run: caches and windows fill up
SECONDS_MIN: Final = 180.0  # behind that; a shorter time tells nothing
POINTS_MIN: Final = 10
POINTS_MAX: Final = 400


class Trend(msgspec.Struct, frozen=True):
    """``growth`` is what the line gains over the part looked at, ``allowed`` what may be noise."""

    what: str
    unit: str
    middle: float
    per_hour: float
    growth: float
    allowed: float
    flat: bool | None  # None: the run was too short to tell
    filling: bool = False  # what is retained was not full before the end: it has to grow

    @property
    def words(self) -> str:
        if self.flat is None:
            return "still filling up" if self.filling else "too short to tell"
        return "flat" if self.flat else "grows"


def trend(
    what: str,
    unit: str,
    points: Sequence[tuple[float, float]],
    run_s: float,
    *,
    share: float,
    least: float,
    full_s: float | None = 0.0,
) -> Trend | None:
    """Of points (seconds, value) behind the warm-up, and behind ``full_s``, since when it has all it will
    retain (None: not before the end). Grows: by more than ``share`` of the middle value, and more than
    ``least``. Falling is no harm. The slope is the median of those between all pairs (Theil and Sen), so that
    a fault here and there does not turn it."""
    begin = max(WARM_UP * run_s, full_s or 0.0)
    kept = [each for each in points if each[0] >= begin]
    if len(kept) < POINTS_MIN:
        return None
    kept = kept[:: max(len(kept) // POINTS_MAX, 1)]
    at, value = (np.array(column, dtype=np.float64) for column in zip(*kept, strict=True))
    first, second = np.triu_indices(len(at), k=1)
    apart = at[second] - at[first]
    slopes = (value[second] - value[first])[apart > 0] / apart[apart > 0]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    middle = float(np.median(value))
    growth = slope * float(at[-1] - at[0])
    allowed = max(share * middle, least)
    tells = run_s - begin >= SECONDS_MIN
    filling = tells and full_s is None
    flat = growth <= allowed if tells and not filling else None
    return Trend(what, unit, middle, slope * 3600, growth, allowed, flat, filling)
