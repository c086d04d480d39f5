"""Millions of commands, one after the other: does a replica's memory stay what it was?

A group is given work in stages. After each, every replica tells how much memory it has; what counts is the
growth from the end of the first tenth, when all windows and caches are full, to the end.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.disk import require_disk
from bench.errors import BenchError
from bench.machine import IN_FLIGHT_MAX, SIZE_MAX, Mode, part, replicas
from bench.ordering import Step
from bench.results import Result, Value, calibrate, ratio, versions
from bench.tally import SIZE_MIN, Place, Work
from bench.workers import CrewMaker, Placement

STAGES: Final = 20
STAGE_SECONDS_MAX: Final = 60.0
STAGES_MAX: Final = 10_000
_PROBE_SECONDS: Final = 1.0


class SoakPlan(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode = Mode.MEMORY
    commands: int = 10_000_000
    in_flight: int = 1000
    size: int = 100
    directory: Path = Path()
    placement: Placement = Placement.FREE

    def check(self) -> None:
        if self.commands < STAGES:
            raise BenchError(f"commands: must be {STAGES} or more")
        if not 1 <= self.in_flight <= IN_FLIGHT_MAX:
            raise BenchError(f"in-flight: must be from 1 to {IN_FLIGHT_MAX}")
        if not SIZE_MIN <= self.size <= SIZE_MAX:
            raise BenchError(f"size: must be from {SIZE_MIN} to {SIZE_MAX}, is {self.size}")
        if self.mode is Mode.DURABLE:
            require_disk(self.directory)


@contextmanager
def _place(plan: SoakPlan) -> Iterator[Place]:
    if plan.mode is Mode.MEMORY:
        yield Place(size=plan.size)
        return
    with tempfile.TemporaryDirectory(prefix="rsm-bench-", dir=plan.directory) as made:
        yield Place(directory=Path(made).resolve(), size=plan.size)


def run(plan: SoakPlan, step: Step, tick: Callable[[], None]) -> Result:
    """Stages until there are enough commands. How long a stage is follows from the one before it."""
    plan.check()
    calibration = calibrate()
    stages: dict[str, Value] = {}
    done, seconds = 0, _PROBE_SECONDS
    with _place(plan) as place, replicas(CrewMaker(tick), plan.placement, place) as group:
        for _ in range(STAGES_MAX):
            step(f"{done:,} of {plan.commands:,} commands")
            found = group.run(Work(in_flight=plan.in_flight, seconds=seconds))
            answered, rate, resident = (found[name] for name in ("answered", "per_s", "resident_bytes"))
            assert isinstance(answered, int)
            assert isinstance(rate, int)
            assert isinstance(resident, int)
            done += answered
            stages[str(done)] = found | {"resident_mb": round(resident / 1e6, 1)}
            if done >= plan.commands:
                break
            left = plan.commands - done
            seconds = min(max(min(left, plan.commands / STAGES) / max(rate, 1), 0.1), STAGE_SECONDS_MAX)
    return Result(
        name="soak",
        parameters=msgspec.to_builtins(plan, enc_hook=str),
        values={"commands": done, "stages": stages},
        ratios=growth(stages, done),
        calibration=calibration,
        versions=versions(),
    )


def growth(stages: dict[str, Value], done: int) -> dict[str, float | None]:
    """Memory at the end to memory after the first tenth."""
    settled = next(stage for commands, stage in stages.items() if int(commands) >= done / 10)
    last = next(reversed(stages.values()))
    return {"memory_end_to_first_tenth": ratio(part(last, "resident_mb"), part(settled, "resident_mb"))}
