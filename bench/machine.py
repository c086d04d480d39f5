"""Replicated commands and linearizable reads, in real processes, beside the bare engine and the bare disk.

One run measures the ring with messages of a command's size, replicas in memory, and replicas with a log on
disk together with what a sync costs there. The ratios are what to quote.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.disk import file_system, require_disk, sync_cost
from bench.errors import BenchError
from bench.member import Network, Settings
from bench.ordering import OrderingPlan, Ring, Step, measure
from bench.results import Result, Value, calibrate, latencies, median_ratios, medians, ratio, versions
from bench.tally import KEYS, SIZE_MIN, Kind, Place, Work, site
from bench.wire import loop_name, same
from bench.workers import CrewMaker, Placement

SITES: Final = 3
SIZE_MAX: Final = 32_768
IN_FLIGHT_MAX: Final = 10_000
HALF: Final = "half"  # of the rate that the most calls in flight have reached
_SLACK_SECONDS: Final = 45.0
_SETTLE_TRIES: Final = 100
_SETTLE_SECONDS: Final = 0.02


class Mode(StrEnum):
    MEMORY = "memory"
    DURABLE = "durable"


class MachinePlan(msgspec.Struct, frozen=True, kw_only=True):
    modes: tuple[Mode, ...] = (Mode.MEMORY, Mode.DURABLE)
    in_flight: tuple[int, ...] = (1, 64, 1000)
    senders: int = 1
    size: int = 100
    seconds: float = 1.0
    directory: Path = Path()
    placement: Placement = Placement.FREE
    recording: bool = False

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is started."""
        if not self.modes:
            raise BenchError("mode: choose memory, durable or both")
        if not self.in_flight or not all(1 <= each <= IN_FLIGHT_MAX for each in self.in_flight):
            raise BenchError(f"in-flight: must be from 1 to {IN_FLIGHT_MAX}")
        if self.senders not in {1, SITES}:
            raise BenchError("senders: must be 1 or all")
        if not SIZE_MIN <= self.size <= SIZE_MAX:
            raise BenchError(f"size: must be from {SIZE_MIN} to {SIZE_MAX}, is {self.size}")
        if Mode.DURABLE in self.modes:
            require_disk(self.directory)


# -- one group ---------------------------------------------------------------------------------------


class Replicas:
    """A group of replicas, each in a process of its own, ready for work."""

    def __init__(self, crew_of: CrewMaker, placement: Placement, place: Place) -> None:
        network = Network.loopback(SITES, multicast=False, sealed=False)
        self.ring = Ring(crew_of, network, Settings(), placement, site, (place,))

    def run(self, work: Work) -> dict[str, Value]:
        crew, workers = self.ring.crew, self.ring.workers
        for worker in workers:
            worker.tell(work)
        crew.hear_all(workers)
        for worker in workers:
            worker.tell("go")
        return summary(crew.hear_all(workers, work.seconds + _SLACK_SECONDS))

    def check(self) -> dict[str, Value]:
        """Compare the replicas, at one slot."""
        crew, workers = self.ring.crew, self.ring.workers
        states: list[dict[str, Any]] = []
        for _ in range(_SETTLE_TRIES):
            for worker in workers:
                worker.tell("state")
            states = crew.hear_all(workers)
            if len({state["applied"] for state in states}) == 1:
                return verdict(states)
            crew.pause(_SETTLE_SECONDS)
        slots = ", ".join(str(state["applied"]) for state in states)
        raise BenchError(f"the replicas did not come to one slot: they have applied up to {slots}")

    def close(self) -> None:
        self.ring.close()


@contextmanager
def replicas(crew_of: CrewMaker, placement: Placement, place: Place) -> Iterator[Replicas]:
    """What the block measured counts only if the replicas agree at its end."""
    group = Replicas(crew_of, placement, place)
    try:
        yield group
        group.check()
    finally:
        group.close()


def summary(reports: Sequence[dict[str, Any]]) -> dict[str, Value]:
    """The rate is that of the slowest replica: it ends when the last one has executed everything. Costs are
    those of all replicas and callers together."""
    count = sum(report["count"] for report in reports)
    if not count:
        raise BenchError("no call was answered in time; measure for longer")
    spent = max(report["ended_ns"] for report in reports) - min(report["started_ns"] for report in reports)
    return {
        "per_s": round(count / max(spent / 1e9, 1e-9)),
        "answered": count,
        "latency": latencies([took for report in reports for took in report["took"]]),
        "cpu_us": round(1e6 * sum(report["cpu_s"] for report in reports) / count, 3),
        "view_changes": max(report["view_changes"] for report in reports),
        "resident_bytes": max(report["resident_bytes"] for report in reports),
    }


def verdict(states: Sequence[dict[str, Any]]) -> dict[str, Value]:
    """Equal replies everywhere, and every acknowledged command executed once: else there is no result."""
    digest = same([state["digest"] for state in states], "the replicas at one slot")
    acknowledged = sum(state["acknowledged"] for state in states)
    counts = [state["count"] for state in states]
    if counts != [acknowledged] * len(states):
        raise BenchError(
            f"{acknowledged} commands were acknowledged, but the replicas have executed"
            f" {', '.join(map(str, counts))}"
        )
    return {"executed": acknowledged, "digest": digest, "applied": states[0]["applied"]}


# -- the whole comparison ------------------------------------------------------------------------


def run(plan: MachinePlan, rounds: int, step: Step, tick: Callable[[], None]) -> Result:
    """Ring, disk and replicas in turn, round after round; a ratio has both its sides from one round."""
    plan.check()
    calibration = calibrate()
    crew_of = CrewMaker(tick)
    measured = [
        _round(plan, crew_of, partial(_step_in_round, step, f"{number} of {rounds}"))
        for number in range(1, rounds + 1)
    ]
    calibration["load_average_after"] = calibrate()["load_average"]
    if Mode.DURABLE in plan.modes:
        calibration["file_system"] = file_system(plan.directory)
    return Result(
        name="machine",
        parameters=_parameters(plan) | {"rounds": rounds},
        values=medians(measured),
        ratios=median_ratios([ratios(plan, values) for values in measured]),
        calibration=calibration,
        versions=versions(),
    )


def _parameters(plan: MachinePlan) -> dict[str, Value]:
    shown: dict[str, Value] = msgspec.to_builtins(msgspec.structs.replace(plan, directory=None))
    return shown | {
        "directory": str(plan.directory.resolve()),
        "sites": SITES,
        "keys": KEYS,
        "placement": plan.placement.describe(SITES),
        "event_loop": loop_name(),
    }


def _step_in_round(step: Step, number: str, what: str) -> None:
    step(f"round {number}: {what}")


def _round(plan: MachinePlan, crew_of: CrewMaker, step: Step) -> dict[str, Value]:
    ring = OrderingPlan(
        sites=SITES, size=plan.size, senders=plan.senders, seconds=plan.seconds, placement=plan.placement
    )
    values = measure(ring, crew_of, step)
    for mode in plan.modes:
        if mode is Mode.MEMORY:
            values[mode.value] = _mode(plan, mode, None, crew_of, step)
            continue
        with tempfile.TemporaryDirectory(prefix="rsm-bench-", dir=plan.directory) as made:
            directory = Path(made).resolve()
            step("the disk")
            values["sync"] = sync_cost(directory, plan.size)
            values[mode.value] = _mode(plan, mode, directory, crew_of, step)
    return values


def _mode(
    plan: MachinePlan, mode: Mode, directory: Path | None, crew_of: CrewMaker, step: Step
) -> dict[str, Value]:
    step(f"{mode.value}: forming")
    found: dict[str, Value] = {}
    with (
        _recordings(plan) as recording,
        replicas(
            crew_of, plan.placement, Place(directory=directory, size=plan.size, recording=recording)
        ) as group,
    ):
        for in_flight in plan.in_flight:
            row: dict[str, Value] = {}
            for kind in (Kind.PUT, Kind.GET):
                step(f"{mode.value}: {kind.value}, {in_flight} in flight")
                work = Work(kind=kind, in_flight=in_flight, senders=plan.senders, seconds=plan.seconds)
                row[kind.value] = group.run(work)
            found[str(in_flight)] = row
        busiest = part(found, str(max(plan.in_flight)), Kind.PUT.value, "per_s")
        if max(plan.in_flight) > 1 and isinstance(busiest, int | float):
            step(f"{mode.value}: half of that")
            rate = busiest / 2 / plan.senders
            found[HALF] = {
                Kind.PUT.value: group.run(Work(rate=rate, senders=plan.senders, seconds=plan.seconds))
            }
    return found


@contextmanager
def _recordings(plan: MachinePlan) -> Iterator[Path | None]:
    """Where the replicas record what they do, while they do it."""
    if not plan.recording:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rsm-bench-recording-", dir=plan.directory) as made:
        yield Path(made).resolve()


def part(values: Value, *names: str) -> Value:
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def ratios(plan: MachinePlan, values: dict[str, Value]) -> dict[str, float | None]:
    """Rates as a share of the ring's; one call alone as a multiple of one message, and of one sync."""
    found: dict[str, float | None] = {}
    for mode in plan.modes:
        for in_flight in map(str, plan.in_flight):
            put, get = (part(values, mode.value, in_flight, kind.value) for kind in (Kind.PUT, Kind.GET))
            name = f"{mode.value}_{in_flight}"
            rate = part(put, "per_s")
            if in_flight != "1":
                found[f"{name}_to_ring"] = ratio(rate, part(values, "ring", "messages_per_s"))
                found[f"{name}_cpu_to_ring_cpu"] = ratio(
                    part(put, "cpu_us"), part(values, "ring", "cpu_us_per_message")
                )
            found[f"{name}_reads_to_writes"] = ratio(part(get, "per_s"), rate)
        half = part(values, mode.value, HALF, Kind.PUT.value, "latency")
        if half is not None:
            found[f"{mode.value}_half_load_p99_to_p50"] = ratio(part(half, "p99_us"), part(half, "p50_us"))
        alone = part(values, mode.value, "1", Kind.PUT.value, "latency", "p50_us")
        one = part(values, "ring_one_outstanding", "latency", "p50_us")
        if alone is not None:
            found[f"{mode.value}_p50_to_ring_p50"] = ratio(alone, one)
        if alone is not None and mode is Mode.DURABLE:
            found["durable_p50_to_sync"] = ratio(alone, part(values, "sync", "p50_us"))
    if set(plan.modes) == set(Mode):
        for in_flight in map(str, plan.in_flight):
            durable, memory = (
                part(values, mode.value, in_flight, Kind.PUT.value, "per_s")
                for mode in (Mode.DURABLE, Mode.MEMORY)
            )
            found[f"durable_{in_flight}_to_memory"] = ratio(durable, memory)
    return found
