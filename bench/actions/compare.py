"""Transfers between two sites, by actions and by two-phase commit, and how long a death holds them up.

Each side is three processes: two sites with a SQLite database, and a third that has transfers carried out. In
two-phase commit that one is the coordinator, so its callers are a method call away from it, as ours are from
their replica. A transfer is two attempts, one after the other, and a commit.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.actions.sites import (
    ACCOUNTS,
    BALANCE,
    CALLER,
    NAMES,
    Ground,
    Rising,
    Steps,
    Transfer,
    Work,
    coordinator_again,
    ours,
    two_phase,
)
from bench.disk import file_system, require_disk, sync_cost
from bench.errors import BenchError
from bench.machine import Mode, part
from bench.member import Network, Settings
from bench.ordering import Ring, Step
from bench.programs import cpu_seconds
from bench.results import (
    Result,
    Value,
    calibrate,
    latencies,
    median,
    median_ratios,
    medians,
    ratio,
    versions,
)
from bench.wire import loop_name
from bench.workers import CrewMaker, Placement

IN_FLIGHT_MAX: Final = ACCOUNTS
DOWN_SECONDS_MAX: Final = 20
IN_MEMORY: Final = Path("/dev/shm")  # where a sync reaches nothing, and costs nothing
WANTED: Final = {Mode.MEMORY: 1.2, Mode.DURABLE: 1.75}
PARTS: Final = (
    "request to prepare",
    "prepare",
    "prepared to decision",
    "decision to commit",
    "commit",
)
_WARM_SECONDS: Final = 0.3
_SLACK_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 30.0
_APPLIED_TRIES: Final = 500
_LOOK_SECONDS: Final = 0.01
_SYNC_BYTES: Final = 100
_MS: Final = 1_000_000


class Side(StrEnum):
    ACTIONS = "actions"
    TWO_PHASE = "two-phase commit"


class Death(StrEnum):
    """Who dies, when everything is prepared and nothing is decided."""

    CALLER = "caller"
    """The coordinator, with all votes and without a decision; ours, before the votes are ordered."""
    PARTICIPANT = "participant"
    """It has prepared, and not voted."""


class ActionsPlan(msgspec.Struct, frozen=True, kw_only=True):
    modes: tuple[Mode, ...] = (Mode.MEMORY, Mode.DURABLE)
    in_flight: tuple[int, ...] = (1, 8)
    seconds: float = 2.0
    kills: int = 3
    down_seconds: tuple[int, ...] = (1, 3)
    directory: Path = Path()
    placement: Placement = Placement.FREE

    def check(self) -> None:
        if not self.in_flight or not all(1 <= each <= IN_FLIGHT_MAX for each in self.in_flight):
            raise BenchError(f"in-flight: must be from 1 to {IN_FLIGHT_MAX}")
        if not all(1 <= each <= DOWN_SECONDS_MAX for each in self.down_seconds):
            raise BenchError(f"down: must be from 1 to {DOWN_SECONDS_MAX}")
        if Mode.DURABLE in self.modes or self.kills:
            require_disk(self.directory)


class Group:
    """One side's processes, ready for work."""

    def __init__(self, side: Side, ground: Ground, crew_of: CrewMaker, placement: Placement) -> None:
        ground.make_accounts()
        target = ours if side is Side.ACTIONS else two_phase
        network = Network.loopback(len(NAMES) + 1, multicast=False, sealed=False)
        self.ground = ground
        self.ring = Ring(crew_of, network, Settings(), placement, target, (ground,))
        self.transfers = 0
        self._runs = 0

    @property
    def crew(self) -> Any:
        return self.ring.crew

    @property
    def sites(self) -> list[Any]:
        return self.ring.workers[:CALLER]

    @property
    def caller(self) -> Any:
        return self.ring.workers[CALLER]

    def run(self, in_flight: int, seconds: float) -> dict[str, Value]:
        self._runs += 1
        work = Work(in_flight=in_flight, seconds=seconds, name=f"t{self._runs}")
        before, began = self._cpu(), time.monotonic()
        self.caller.tell(work)
        transfers: list[Transfer] = self.crew.hear(self.caller, seconds + _SLACK_SECONDS)
        spent, cpu = time.monotonic() - began, self._cpu() - before
        if not transfers:
            raise BenchError("no transfer was committed in time; measure for longer")
        self.transfers += len(transfers)
        steps = self._steps({each.id for each in transfers})
        return summary(transfers, steps, spent, cpu)

    def _cpu(self) -> float:
        return sum(cpu_seconds(worker.pid) for worker in self.ring.workers)

    def _steps(self, transfers: set[str]) -> list[dict[str, Steps]]:
        """Of each site, once it has applied them all."""
        for _ in range(_APPLIED_TRIES):
            found = self.report(self.sites)
            if all(name in steps and steps[name].ended for steps in found for name in transfers):
                for worker in self.sites:
                    worker.tell("forget")
                return found
            self.crew.pause(_LOOK_SECONDS)
        raise BenchError("a committed transfer was not applied everywhere")

    def report(self, sites: Sequence[Any]) -> list[dict[str, Steps]]:
        for worker in sites:
            worker.tell("report")
        return list(self.crew.hear_all(sites))

    def check(self) -> None:
        """What was committed was applied at both sites, once, and nothing else was."""
        whole = ACCOUNTS * BALANCE
        if self.ground.balances() != [whole - self.transfers, whole + self.transfers]:
            raise BenchError(
                f"{self.transfers} transfers of 1 were committed; the sites' balances differ by"
                f" {[each - whole for each in self.ground.balances()]}"
            )


@contextmanager
def group(side: Side, ground: Ground, crew_of: CrewMaker, placement: Placement) -> Iterator[Group]:
    made = Group(side, ground, crew_of, placement)
    try:
        yield made
    finally:
        made.ring.close()


def summary(
    transfers: Sequence[Transfer], steps: Sequence[Mapping[str, Steps]], spent: float, cpu: float
) -> dict[str, Value]:
    """*Transfer* is what a caller waits for: attempts, and the commit up to its decision. The parts say where
    the time between request and end goes, the later of both sites counting."""

    def last(transfer: Transfer, field: str) -> int:
        return max(int(getattr(each[transfer.id], field)) for each in steps)

    def first(transfer: Transfer, field: str) -> int:
        return min(int(getattr(each[transfer.id], field)) for each in steps)

    parts = (
        [first(each, "prepare") - each.attempted for each in transfers],
        [last(each, "prepared") - first(each, "prepare") for each in transfers],
        [each.committed - last(each, "prepared") for each in transfers],
        [first(each, "end") - each.committed for each in transfers],
        [last(each, "ended") - first(each, "end") for each in transfers],
    )
    return {
        "per_s": round(len(transfers) / spent),
        "transfers": len(transfers),
        "cpu_us": round(1e6 * cpu / len(transfers), 1),
        "transfer": latencies([each.committed - each.began for each in transfers]),
        "attempt": latencies([each.attempted - each.began for each in transfers]),
        "decision": latencies([each.committed - each.attempted for each in transfers]),
        "applied": latencies([last(each, "ended") - each.began for each in transfers]),
        "parts_p50_us": {
            name: round(median(took) / 1000, 1) for name, took in zip(PARTS, parts, strict=True)
        },
    }


# -- without faults ------------------------------------------------------------------------------


@contextmanager
def _ground(mode: Mode, directory: Path) -> Iterator[Ground]:
    """In memory mode nothing of either side is on a disk, the databases included."""
    parent = IN_MEMORY if mode is Mode.MEMORY else directory
    with tempfile.TemporaryDirectory(prefix="rsm-bench-", dir=parent) as made:
        databases = Path(made).resolve()
        yield Ground(databases=databases, log=None if mode is Mode.MEMORY else databases)


def _measure(plan: ActionsPlan, mode: Mode, side: Side, crew_of: CrewMaker, step: Step) -> dict[str, Value]:
    step(f"{mode.value}: {side.value}, starting")
    found: dict[str, Value] = {}
    with _ground(mode, plan.directory) as ground, group(side, ground, crew_of, plan.placement) as made:
        made.run(1, _WARM_SECONDS)
        for in_flight in plan.in_flight:
            step(f"{mode.value}: {side.value}, {in_flight} in flight")
            found[str(in_flight)] = made.run(in_flight, plan.seconds)
        made.check()
    return found


def _round(plan: ActionsPlan, number: int, crew_of: CrewMaker, step: Step) -> dict[str, Value]:
    """Who goes first takes turns."""
    values: dict[str, Value] = {}
    sides = list(Side) if number % 2 else list(reversed(Side))
    for mode in plan.modes:
        if mode is Mode.DURABLE:
            step("the disk")
            with _ground(mode, plan.directory) as ground:
                values["sync"] = sync_cost(ground.databases, _SYNC_BYTES)
        measured = {side.value: _measure(plan, mode, side, crew_of, step) for side in sides}
        values[mode.value] = {side.value: measured[side.value] for side in Side}
    return values


_COMPARED: Final = (
    ("transfer", "p50"),
    ("transfer", "p99"),
    ("attempt", "p50"),
    ("decision", "p50"),
    ("applied", "p50"),
)


def ratios(plan: ActionsPlan, values: Mapping[str, Value]) -> dict[str, float | None]:
    """Ours to theirs: less is better."""
    found: dict[str, float | None] = {}
    for mode in plan.modes:
        for in_flight in map(str, plan.in_flight):
            rows = [part(values.get(mode.value), side.value, in_flight) for side in Side]
            for what, rank in _COMPARED:
                mine, other = (part(row, what, f"{rank}_us") for row in rows)
                found[f"{mode.value}_{in_flight}_{what}_{rank}"] = ratio(mine, other)
            found[f"{mode.value}_{in_flight}_cpu"] = ratio(*(part(row, "cpu_us") for row in rows))
    return found


# -- with a death --------------------------------------------------------------------------------


def _blocked(
    plan: ActionsPlan, side: Side, death: Death, down_s: int, crew_of: CrewMaker
) -> dict[str, Value]:
    """From the death until every survivor has committed, or undone, what it had prepared."""
    with (
        _ground(Mode.DURABLE, plan.directory) as ground,
        group(side, ground, crew_of, plan.placement) as made,
    ):
        made.run(1, _WARM_SECONDS)
        is_theirs = side is Side.TWO_PHASE and death is Death.CALLER
        again = made.crew.start("coordinator again", coordinator_again, ground) if is_theirs else None
        died = _die(made, side, death)
        if again is not None:
            port = int(made.ring.addresses[CALLER].rpartition(":")[2])
            made.crew.pause(max(down_s - (time.monotonic_ns() - died) / 1e9, 0), made.sites)
            again.tell(Rising(port))
        survivors = made.sites if death is Death.CALLER else made.sites[:1]
        ended = _ended(made, survivors)
    return {"blocked_ms": round((max(ended) - died) / _MS, 1), "down_s": down_s if is_theirs else None}


def _die(made: Group, side: Side, death: Death) -> int:
    crew, caller, sites = made.crew, made.caller, made.sites
    if side is Side.TWO_PHASE and death is Death.CALLER:
        caller.tell("hold")
        crew.hear(caller)
        caller.tell(("once", "doomed"))
        crew.hear(caller)  # it has all votes
        crew.kill(caller)
        return time.monotonic_ns()
    held = sites if death is Death.CALLER else sites[1:]
    for worker in held:
        worker.tell("hold")
    crew.hear_all(held)
    caller.tell(("once", "doomed"))
    crew.hear_all(held)  # they are prepared
    crew.kill(caller if death is Death.CALLER else sites[1])
    died = time.monotonic_ns()
    if death is Death.CALLER:
        for worker in held:
            worker.tell("go")
    return died


def _ended(made: Group, survivors: Sequence[Any]) -> list[int]:
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        ended = [steps["doomed"].ended for steps in made.report(survivors) if "doomed" in steps]
        if len(ended) == len(survivors) and all(ended):
            return ended
        made.crew.pause(_LOOK_SECONDS, survivors)
    raise BenchError(f"a survivor was still blocked after {_PATIENCE_SECONDS:.0f} s")


def _deaths(plan: ActionsPlan, crew_of: CrewMaker, step: Step) -> dict[str, Value]:
    """Two-phase commit waits for its coordinator, so that is away for longer and longer."""
    found: dict[str, Value] = {}
    for side in Side:
        for death in Death:
            waits = plan.down_seconds if (side, death) == (Side.TWO_PHASE, Death.CALLER) else (0,)
            for down_s in waits:
                name = f"{side.value}, {death.value}" + (f", back after {down_s} s" if down_s else "")
                runs = []
                for number in range(plan.kills):
                    step(f"{name} dies, {number + 1} of {plan.kills}")
                    runs.append(_blocked(plan, side, death, down_s, crew_of))
                took = [float(str(each["blocked_ms"])) for each in runs]
                found[name] = {"median_ms": median(took), "max_ms": max(took), "runs": [*took]}
    return found


# -- the whole comparison ------------------------------------------------------------------------


def run(plan: ActionsPlan, rounds: int, step: Step, tick: Callable[[], None]) -> Result:
    plan.check()
    calibration = calibrate()
    crew_of = CrewMaker(tick)
    measured = [
        _round(plan, number, crew_of, partial(_step_in_round, step, f"{number} of {rounds}"))
        for number in range(1, rounds + 1)
    ]
    values = medians(measured)
    if plan.kills:
        values["blocked"] = _deaths(plan, crew_of, step)
    calibration["load_average_after"] = calibrate()["load_average"]
    calibration["file_system"] = file_system(plan.directory)
    shown: dict[str, Value] = msgspec.to_builtins(msgspec.structs.replace(plan, directory=None))
    return Result(
        name="actions",
        parameters=shown
        | {
            "rounds": rounds,
            "directory": str(plan.directory.resolve()),
            "databases": "SQLite, WAL, synchronous=EXTRA; in memory mode in /dev/shm, of both sides",
            "placement": plan.placement.describe(len(NAMES) + 1),
            "event_loop": loop_name(),
        },
        values=values,
        ratios=median_ratios([ratios(plan, each) for each in measured]),
        calibration=calibration,
        versions=versions(),
    )


def _step_in_round(step: Step, number: str, what: str) -> None:
    step(f"round {number}: {what}")
