"""Ten times the connections that a gateway can use: who is served is served well, and all others are told.

First the load that it sustains is looked for: connections are doubled as long as that brings more puts a
second. Then ten times as many ask for a while, and whoever is refused asks again at once.
"""

import time
from collections.abc import Callable
from itertools import pairwise
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
FIRST: Final = 8
SUSTAINED_MAX: Final = CONNECTIONS_MAX // TIMES
P99_WANTED: Final = 2.0
_GAIN: Final = 1.05  # less than this by twice the connections is no gain
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
    search_seconds: float = 3.0
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
    search: dict[str, Value] = {}
    for connections in _tried(plan):
        step(f"looking for what it sustains: {connections} connections")
        search[str(connections)] = loads.run(Kind.PUT, connections, plan.search_seconds)
        if saturated([part(row, "per_s") for row in search.values()]):
            break
    names = list(search)
    at = names[-2] if len(names) > 1 else names[-1]
    before, view_before = loads.resident_mb(), view(loads.service)
    many = TIMES * int(at)
    step(f"{many} connections")
    memory.watch(loads)
    overload = loads.run(Kind.PUT, many, plan.seconds)
    memory.watch(None)
    after, view_after = memory.samples[-1], view(loads.service)
    step("and again what it sustains")
    again = loads.run(Kind.PUT, int(at), plan.search_seconds)
    return {
        "search": search,
        "sustained_connections": int(at),
        "sustained": search[at],
        "overload": overload | {"connections": many},
        "afterwards": again,
        "resident_mb": {"before": before, "settled": memory.settled(), "after": after},
        "view": {"before": view_before, "after": view_after},
    }


def _tried(plan: OverloadPlan) -> list[int]:
    if plan.connections:
        return [plan.connections]
    tried = [FIRST]
    while 2 * tried[-1] <= SUSTAINED_MAX:
        tried.append(2 * tried[-1])
    return tried


def saturated(rates: list[Value]) -> bool:
    """Whether the last doubling has brought nothing worth it."""
    for fewer, more in list(pairwise(rates))[-1:]:
        assert isinstance(fewer, int | float)
        assert isinstance(more, int | float)
        return more < _GAIN * fewer
    return False


def view(service: Service) -> str:
    status, said = ask(service.addresses[0], "GET", "/v1/cluster")
    if status != 200 or not isinstance(said, dict) or "view" not in said:
        raise BenchError(f"/v1/cluster: answered {status}, without a view")
    return msgspec.json.encode(said["view"]).decode()


# -- judged --------------------------------------------------------------------------------------


def ratios(values: dict[str, Value]) -> dict[str, float | None]:
    overload, sustained = part(values, "overload"), part(values, "sustained")
    found = {
        f"{percent}, accepted, to sustained": ratio(
            part(overload, "latency", f"{percent}_us"), part(sustained, "latency", f"{percent}_us")
        )
        for percent in ("p50", "p99")
    }
    for name, row in (("rate, accepted", overload), ("rate, afterwards", part(values, "afterwards"))):
        found[f"{name}, to sustained"] = ratio(part(row, "per_s"), part(sustained, "per_s"))
    return found


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
        "no program has grown": all(_flat(mb, after[name]) for name, mb in settled.items()),
    }


def _flat(settled: Value, after: Value) -> bool:
    assert isinstance(settled, float)
    assert isinstance(after, float)
    return after <= settled * _FLAT + _FLAT_SLACK_MB
