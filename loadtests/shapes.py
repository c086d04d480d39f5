"""How many users there are over time. Users, spawn rate and run time are locust's own options."""

from collections.abc import Callable
from typing import Final

LENGTH_SECONDS: Final = 300.0  # of a shape, if no run time is given; then it stays as it is at its end
STEPS: Final = 5
BASE: Final = 0.2  # of the users, before and after a spike
SPIKE: Final = (0.4, 0.6)
RAMP: Final = 0.05  # of a soak


def constant(_: float) -> float:
    return 1.0


def steps(done: float) -> float:
    """Five of equal length: where it bends is what it can do."""
    return min(int(done * STEPS) + 1, STEPS) / STEPS


def spike(done: float) -> float:
    """A fifth, suddenly everybody, and a fifth again: does it come back?"""
    return 1.0 if SPIKE[0] <= done < SPIKE[1] else BASE


def soak(done: float) -> float:
    """A slow beginning, then the same for long: what grows?"""
    return min(done / RAMP, 1.0)


SHAPES: Final[dict[str, Callable[[float], float]]] = {
    "constant": constant,
    "steps": steps,
    "spike": spike,
    "soak": soak,
}


def users_at(shape: str, elapsed_s: float, run_time_s: float | None, users: int) -> int | None:
    """None: it is over."""
    if run_time_s is not None and elapsed_s >= run_time_s:
        return None
    done = min(elapsed_s / (run_time_s or LENGTH_SECONDS), 1.0)
    return max(round(SHAPES[shape](done) * users), 1)
