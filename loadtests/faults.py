"""What is done to replicas while the load runs: one at a time, so that a majority is always there."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple, Protocol

import msgspec

FIRST: Final = 0.15  # of the run time, before the first one
LAST: Final = 0.85  # and none begins behind this: it ends as it began
BETWEEN_SECONDS: Final = (3.0, 8.0)
DOWN_SECONDS: Final = (1.0, 4.0)
BACK_SECONDS: Final = 1.5  # about what a replica takes to be back
PACE_LEAST: Final = 0.05


class Fault(StrEnum):
    KILL = "kill"  # SIGKILL, and started again
    PAUSE = "pause"  # SIGSTOP, and SIGCONT
    RESTART = "restart"  # SIGTERM, and started again


class Crew(Protocol):
    """Processes of our own, by name."""

    async def kill(self, *names: str) -> None: ...

    async def start(self, *names: str) -> None: ...

    async def end(self, name: str) -> None: ...

    def pause(self, name: str) -> None: ...

    def resume(self, name: str) -> None: ...


class Strike(NamedTuple):
    """``wait_s`` after the one before it is over."""

    wait_s: float
    fault: Fault
    who: str
    down_s: float


class Mark(msgspec.Struct, frozen=True):
    """One that took place. ``back_ns``: when its victim was there again, and had caught up if it had to."""

    fault: Fault
    who: str
    began_ns: int
    back_ns: int


def plan_faults(replicas: Sequence[str], rng: Random, run_time_s: float | None = None) -> Iterator[Strike]:
    """Without end. Kinds come in turn, and faster in a short run, so that it has them all."""
    faults = list(Fault)
    rng.shuffle(faults)
    pace = 1.0
    if run_time_s is not None:
        each_s = (LAST - FIRST) * run_time_s / len(faults) - BACK_SECONDS
        pace = min(pace, max(each_s / (BETWEEN_SECONDS[1] + DOWN_SECONDS[1]), PACE_LEAST))
    while True:
        for fault in faults:
            wait_s, down_s = pace * rng.uniform(*BETWEEN_SECONDS), pace * rng.uniform(*DOWN_SECONDS)
            yield Strike(wait_s, fault, rng.choice(replicas), down_s)


async def strike(
    crew: Crew, plan: Iterator[Strike], run_time_s: float | None, note: Callable[[Mark], None]
) -> None:
    """Carry out the plan, until the run is about to end. Who was struck is back when this returns."""
    began = time.monotonic()
    if run_time_s is not None:
        await asyncio.sleep(FIRST * run_time_s)
    for each in plan:
        if run_time_s is not None and time.monotonic() + each.wait_s - began > LAST * run_time_s:
            return
        await asyncio.sleep(each.wait_s)
        note(await _carry_out(crew, each))


async def _carry_out(crew: Crew, each: Strike) -> Mark:
    began_ns = time.monotonic_ns()
    match each.fault:
        case Fault.KILL:
            await crew.kill(each.who)
        case Fault.RESTART:
            await crew.end(each.who)
        case Fault.PAUSE:
            crew.pause(each.who)
    try:
        await asyncio.sleep(each.down_s)
    finally:
        if each.fault is Fault.PAUSE:
            crew.resume(each.who)
    if each.fault is not Fault.PAUSE:
        await crew.start(each.who)
    return Mark(each.fault, each.who, began_ns, time.monotonic_ns())
