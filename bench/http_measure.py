"""The key-value store over HTTP: three replicas and a gateway as programs, loaded from outside.

The same run has a bare server, the one that the gateway runs on with an application that does nothing. What
the gateway reaches of that is worth quoting; its own rate belongs to the machine and the hour.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.disk import file_system, require_disk, sync_cost
from bench.errors import BenchError
from bench.http_generators import Generator, Generators, check
from bench.http_load import CONNECTIONS_MAX, Load
from bench.http_services import KEYS, REPLICAS, Kind, Service, bare, requests_of, store
from bench.machine import Mode, part
from bench.ordering import Step
from bench.programs import cpu_seconds, resident_bytes
from bench.results import Result, Value, calibrate, ratio, versions

SIZE_MAX: Final = 65_536
GATEWAYS_MAX: Final = 8
FILL_CONNECTIONS: Final = 32
BARE: Final = "bare"
KINDS: Final = tuple(Kind)


class HttpPlan(msgspec.Struct, frozen=True, kw_only=True):
    modes: tuple[Mode, ...] = (Mode.MEMORY, Mode.DURABLE)
    connections: tuple[int, ...] = (1, 16, 64, 256)
    kinds: tuple[Kind, ...] = KINDS
    size: int = 100
    seconds: float = 2.0
    gateways: int = 1
    generator: Generator = Generator.AUTO
    directory: Path = Path()

    def check(self) -> None:
        if not self.modes or not self.kinds:
            raise BenchError("mode: choose memory, durable or both")
        if not self.connections or not all(1 <= each <= CONNECTIONS_MAX for each in self.connections):
            raise BenchError(f"connections: must be from 1 to {CONNECTIONS_MAX}")
        if not 1 <= self.size <= SIZE_MAX:
            raise BenchError(f"size: must be from 1 to {SIZE_MAX}, is {self.size}")
        if not 1 <= self.gateways <= GATEWAYS_MAX:
            raise BenchError(f"gateways: must be from 1 to {GATEWAYS_MAX}, is {self.gateways}")
        check(self.generator)
        if Mode.DURABLE in self.modes:
            require_disk(self.directory)


class Loads:
    """A service under one load after the other."""

    def __init__(self, service: Service, generators: Generators, size: int) -> None:
        self.service = service
        self.generators = generators
        self.size = size

    def fill(self, rounds: int = 1) -> None:
        """Every key is written, so that every get finds one."""
        requests = requests_of(self.service.dialect, Kind.PUT, self.size) * rounds
        load = Load(addresses=self.service.addresses, requests=requests, connections=FILL_CONNECTIONS)
        self.generators.fill(load)

    def run(self, kind: Kind, connections: int, seconds: float, rate: float = 0.0) -> dict[str, Value]:
        """``cpu``: how many cores each program kept busy, the generator among them."""
        load = Load(
            addresses=self.service.addresses,
            requests=requests_of(self.service.dialect, kind, self.size),
            connections=connections,
            seconds=seconds,
            rate=rate,
        )
        before = self._cpu()
        started = time.monotonic()
        row = self.generators.run(load)
        spent = time.monotonic() - started
        used = {name: cpu - before[name] for name, cpu in self._cpu().items()}
        own = row["generator_cpu_s"]
        assert isinstance(own, float)
        used["generator"] = own
        for program in self.service.programs:
            program.check()
        if not row["answered"]:
            raise BenchError(f"{self.service.name}: {kind.value}: no request got what it asked for: {row}")
        cpu: dict[str, Value] = {name: round(each / spent, 3) for name, each in used.items()}
        return row | {"cpu": cpu, "cpu_us": _each(sum(used.values()), row["answered"])}

    def _cpu(self) -> dict[str, float]:
        return {program.name: cpu_seconds(program.pid) for program in self.service.programs}

    def resident_mb(self) -> dict[str, Value]:
        return {
            program.name: round(resident_bytes(program.pid) / 1e6, 1) for program in self.service.programs
        }


def _each(cpu_s: float, answered: Value) -> float:
    assert isinstance(answered, int)
    return round(1e6 * cpu_s / answered, 1)


@contextmanager
def workplace(directory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rsm-bench-", dir=directory) as made:
        yield Path(made).resolve()


# -- the command ---------------------------------------------------------------------------------


def run(plan: HttpPlan, step: Step, tick: Callable[[], None]) -> Result:
    plan.check()
    calibration = calibrate()
    values: dict[str, Value] = {}
    with Generators(plan.generator, tick) as generators:
        with workplace(plan.directory) as directory, bare(directory) as service:
            values[BARE] = _table(plan, Loads(service, generators, plan.size), (Kind.PUT, Kind.GET), step)
        for mode in plan.modes:
            with workplace(plan.directory) as directory:
                values[mode.value] = _mode(plan, mode, directory, generators, step)
                if mode is Mode.DURABLE:
                    step("the disk")
                    values["sync"] = sync_cost(directory, plan.size)
                    calibration["file_system"] = file_system(directory)
        by = generators.closed_by
    calibration["load_average_after"] = calibrate()["load_average"]
    return Result(
        name="http",
        parameters=_parameters(plan) | {"generator": by},
        values=values,
        ratios=ratios(plan, values),
        calibration=calibration,
        versions=versions(),
    )


def _parameters(plan: HttpPlan) -> dict[str, Value]:
    shown: dict[str, Value] = msgspec.to_builtins(msgspec.structs.replace(plan, directory=None))
    return shown | {
        "directory": str(plan.directory.resolve()),
        "replicas": REPLICAS,
        "keys": KEYS,
        "placement": f"{REPLICAS} replicas, {plan.gateways} gateway(s) and the generator"
        " where the scheduler puts them",
    }


def _mode(
    plan: HttpPlan, mode: Mode, directory: Path, generators: Generators, step: Step
) -> dict[str, Value]:
    step(f"{mode.value}: starting")
    with store(mode, directory, plan.gateways) as service:
        loads = Loads(service, generators, plan.size)
        step(f"{mode.value}: writing {KEYS} keys")
        loads.fill()
        return _table(plan, loads, plan.kinds, step)


def _table(plan: HttpPlan, loads: Loads, kinds: tuple[Kind, ...], step: Step) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for kind in kinds:
        row: dict[str, Value] = {}
        for connections in plan.connections:
            step(f"{loads.service.name}: {kind.value}, {connections} connections")
            row[str(connections)] = loads.run(kind, connections, plan.seconds)
        found[kind.value] = row
    return found | {"resident_mb": loads.resident_mb()}


def ratios(plan: HttpPlan, values: dict[str, Value]) -> dict[str, float | None]:
    """Rates as shares of the bare server's, with as many connections and as long requests."""
    found: dict[str, float | None] = {}
    for mode in plan.modes:
        for kind in plan.kinds:
            for connections in map(str, plan.connections):
                ours = part(values, mode.value, kind.value, connections)
                like = Kind.GET if kind in {Kind.GET, Kind.STALE} else Kind.PUT
                bare_row = part(values, BARE, like.value, connections)
                name = f"{mode.value} {kind.value}, {connections} connections, to bare"
                found[f"rate, {name}"] = ratio(part(ours, "per_s"), part(bare_row, "per_s"))
    return found
