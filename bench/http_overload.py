"""Ten times the connections that a gateway can use: who is served is served well, and all others are told.

First the load that it sustains is looked for: more and more connections until that brings no more puts a
second, and once more on the way back, for neighbours spoil single rates. The fewest that are all served and
reach nearly the best rate are what it sustains. Then ten times as many ask for a while, and whoever is
refused asks again at once. What the waits of those who are served are compared with is measured half before
and half after that, and altogether for as long.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.disk import require_disk
from bench.errors import BenchError
from bench.http_generators import Generator, Generators
from bench.http_load import CONNECTIONS_MAX, is_accepted, is_refused
from bench.http_measure import Loads, workplace
from bench.http_services import KEYS, Kind, Service, ask, store
from bench.machine import Mode, part
from bench.ordering import Step
from bench.results import Result, Value, calibrate, ratio, versions

TIMES: Final = 10
FIRST: Final = 16
SUSTAINED_MAX: Final = CONNECTIONS_MAX // TIMES
P99_WANTED: Final = 2.0
ENOUGH: Final = 0.95  # of the best rate
BUSY: Final = 0.8  # of a core: a generator that has less to spare measures itself
_VAIN: Final = 3  # steps that bring nothing end the search: a neighbour may have spoilt one
_SETTLED: Final = 0.2  # of the time: every queue is as long as it gets by then
_SAMPLE_SECONDS: Final = 0.5
_FLAT: Final = 1.1
_FLAT_SLACK_MB: Final = 8.0  # what an allocator may take at any time
# The history of the store is full then (`history_events_max`), and grows no more.
_FILL_ROUNDS: Final = 10


class OverloadPlan(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode = Mode.MEMORY
    connections: int = 0  # that it sustains; 0: they are looked for
    seconds: float = 60.0
    search_seconds: float = 1.5
    directory: Path = Path()

    def check(self) -> None:
        if not 0 <= self.connections <= SUSTAINED_MAX:
            raise BenchError(f"connections: must be up to {SUSTAINED_MAX}, is {self.connections}")
        if self.mode is Mode.DURABLE:
            require_disk(self.directory)


def run(plan: OverloadPlan, step: Step, tick: Callable[[], None]) -> Result:
    plan.check()
    calibration = calibrate()
    memory = Memory(tick)
    with (
        Generators(Generator.BUNDLED, memory.tick) as generators,
        workplace(plan.directory) as directory,
    ):
        step("starting")
        with store(plan.mode, directory) as service:
            values = _measure(plan, Loads(service, generators, 100), memory, step)
    calibration["load_average_after"] = calibrate()["load_average"]
    shown: dict[str, Value] = msgspec.to_builtins(msgspec.structs.replace(plan, directory=None))
    return Result(
        name="overload",
        parameters=shown
        | {
            "directory": str(plan.directory.resolve()),
            "keys": KEYS,
            "generator": "bundled",
            "placement": "three replicas, a gateway and the generator where the scheduler puts them",
        },
        values=values | {"checks": checks(values)},
        ratios=ratios(values),
        calibration=calibration,
        versions=versions(),
    )


class Memory:
    """What the programs take, looked at while the command waits for the generator."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._loads: Loads | None = None
        self._last = 0.0
        self.samples: list[dict[str, Value]] = []

    def watch(self, loads: Loads | None) -> None:
        self._loads = loads

    def tick(self) -> None:
        self._tick()
        now = time.monotonic()
        if self._loads is not None and now - self._last >= _SAMPLE_SECONDS:
            self._last = now
            self.samples.append(self._loads.resident_mb())

    def settled(self) -> dict[str, Value]:
        return self.samples[int(len(self.samples) * _SETTLED)]


def _measure(plan: OverloadPlan, loads: Loads, memory: Memory, step: Step) -> dict[str, Value]:
    step("writing until the history is full")
    loads.fill(_FILL_ROUNDS)
    search = _search(plan, loads, step)
    at = sustained(search)
    step(f"what it sustains: {at} connections")
    before = loads.run(Kind.PUT, at, plan.seconds / 2)
    resident, view_before = loads.resident_mb(), view(loads.service)
    many = TIMES * at
    step(f"{many} connections")
    memory.watch(loads)
    overload = loads.run(Kind.PUT, many, plan.seconds)
    memory.watch(None)
    after, view_after = memory.samples[-1], view(loads.service)
    step(f"and again {at} connections")
    again = loads.run(Kind.PUT, at, plan.seconds / 2)
    return {
        "search": search,
        "sustained_connections": at,
        "sustained": before,
        "overload": overload | {"connections": many},
        "afterwards": again,
        "resident_mb": {"before": resident, "settled": memory.settled(), "after": after},
        "view": {"before": view_before, "after": view_after},
    }


def _search(plan: OverloadPlan, loads: Loads, step: Step) -> dict[str, Value]:
    """The better of two rows for each number of connections. Errors are those of the way back: on the way
    there the gateway has still to find out how many it carries."""
    found: dict[str, dict[str, Value]] = {}
    for connections in tried(plan):
        step(f"looking for what it sustains: {connections} connections")
        found[str(connections)] = loads.run(Kind.PUT, connections, plan.search_seconds)
        if is_enough(found):
            break
    for name in reversed(list(found)):
        step(f"and back: {name} connections")
        row = loads.run(Kind.PUT, int(name), plan.search_seconds)
        found[name] = max(found[name], row, key=_per_s) | {"errors": row["errors"]}
    return dict(found)


def tried(plan: OverloadPlan) -> list[int]:
    if plan.connections:
        return [plan.connections]
    doubled = [FIRST]
    while 2 * doubled[-1] <= SUSTAINED_MAX:
        doubled.append(2 * doubled[-1])
    found = sorted(doubled + [each * 3 // 2 for each in doubled])
    return [each for each in found if each <= SUSTAINED_MAX]


def is_enough(search: Mapping[str, Value]) -> bool:
    """Whether the last steps have brought nothing."""
    rates = [_per_s(row) for row in search.values()]
    earlier = rates[:-_VAIN]
    return bool(earlier) and max(rates[-_VAIN:]) * ENOUGH < max(earlier)


def sustained(search: dict[str, Value]) -> int:
    """The fewest connections that reach nearly the best rate, all of them served."""
    rates = {int(name): _per_s(row) for name, row in search.items() if not part(row, "errors")}
    if not rates:
        raise BenchError(f"connections: some are refused already at {next(iter(search))}")
    return min(number for number, rate in rates.items() if rate >= ENOUGH * max(rates.values()))


def _per_s(row: Value) -> float:
    return _number(row, "per_s")


def _number(row: Value, *names: str) -> float:
    found = part(row, *names)
    assert isinstance(found, int | float)
    return found


def view(service: Service) -> str:
    status, said = ask(service.addresses[0], "GET", "/v1/cluster")
    if status != 200 or not isinstance(said, dict) or "view" not in said:
        raise BenchError(f"/v1/cluster: answered {status}, without a view")
    return msgspec.json.encode(said["view"]).decode()


# -- judged --------------------------------------------------------------------------------------


def ratios(values: dict[str, Value]) -> dict[str, float | None]:
    """To the mean of what was measured before and after: a machine changes its speed meanwhile."""
    found = {
        f"{percent}, accepted, to sustained": _to_sustained(values, "latency", f"{percent}_us")
        for percent in ("p50", "p99")
    }
    found["rate, accepted, to sustained"] = _to_sustained(values, "per_s")
    found["rate, afterwards, to before"] = ratio(
        part(values, "afterwards", "per_s"), part(values, "sustained", "per_s")
    )
    return found


def _to_sustained(values: dict[str, Value], *names: str) -> float | None:
    before, after = (_number(values, when, *names) for when in ("sustained", "afterwards"))
    return ratio(part(values, "overload", *names), (before + after) / 2)


def checks(values: dict[str, Value]) -> dict[str, Value]:
    """What must hold on any machine, however slow."""
    overload: Any = values["overload"]
    settled, after = (part(values, "resident_mb", when) for when in ("settled", "after"))
    assert isinstance(settled, dict)
    assert isinstance(after, dict)
    return {
        "everybody got an answer": not overload["mishaps"],
        "served or told to come back, nothing else": all(
            is_accepted(int(status)) or is_refused(int(status)) for status in overload["statuses"]
        ),
        "whoever was refused was told when to come back": not overload.get("refusals_without_retry_after"),
        "the view is the same": part(values, "view", "before") == part(values, "view", "after"),
        "the generator had time to spare": overload["cpu"]["generator"] < BUSY,
        "no program has grown": all(_flat(mb, after[name]) for name, mb in settled.items()),
    }


def _flat(settled: Value, after: Value) -> bool:
    assert isinstance(settled, float)
    assert isinstance(after, float)
    return after <= settled * _FLAT + _FLAT_SLACK_MB
