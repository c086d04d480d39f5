"""etcd (Raft, in Go) beside our durable key-value store: the same requests over HTTP, by the same generator.

Three etcd servers as they come, on loopback, their data on the disk that ours is on. They are asked through
the HTTP gateway that is part of each (`/v3/kv/…`, JSON with base64), at the leader, which spares them a hop.
"""

import base64
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from bench.disk import file_system, require_disk, sync_cost
from bench.errors import BenchError, NotAvailable
from bench.http_generators import Generator, Generators, check
from bench.http_load import CONNECTIONS_MAX, Address
from bench.http_measure import GATEWAYS_MAX, SIZE_MAX, Loads, workplace
from bench.http_services import HOST, KEYS, REPLICAS, Kind, Service, ask, request, store
from bench.machine import Mode, part
from bench.ordering import Step
from bench.ports import free_ports
from bench.programs import Program, programs, wait_until
from bench.results import Result, Value, calibrate, median_ratios, medians, ratio, versions

INSTALL: Final = "apt-get install -y etcd-server"
OURS: Final = "rsm"
THEIRS: Final = "etcd"
CLOSED: Final = (Kind.PUT, Kind.GET, Kind.STALE)
SAME: Final = "put, half of the slower"
OWN: Final = "put, half of its own"
_FORM_SECONDS: Final = 30.0
_NAMES: Final = tuple(f"etcd {number}" for number in range(1, REPLICAS + 1))


class EtcdPlan(msgspec.Struct, frozen=True, kw_only=True):
    connections: int = 64
    size: int = 100
    seconds: float = 3.0
    gateways: int = 1
    generator: Generator = Generator.AUTO
    directory: Path = Path()

    def check(self) -> None:
        if not 1 <= self.connections <= CONNECTIONS_MAX:
            raise BenchError(f"connections: must be from 1 to {CONNECTIONS_MAX}, is {self.connections}")
        if not 1 <= self.size <= SIZE_MAX:
            raise BenchError(f"size: must be from 1 to {SIZE_MAX}, is {self.size}")
        if not 1 <= self.gateways <= GATEWAYS_MAX:
            raise BenchError(f"gateways: must be from 1 to {GATEWAYS_MAX}, is {self.gateways}")
        require_disk(self.directory)
        check(self.generator)
        require()


def require() -> str:
    """Its version; refuses where it is not installed, and says how to install it."""
    if shutil.which("etcd") is None:
        raise NotAvailable(f"etcd is not installed; to install it on Debian: {INSTALL}")
    said = subprocess.run(["etcd", "--version"], capture_output=True, text=True, timeout=10, check=False)
    first = said.stdout.partition("\n")[0]
    return first.rpartition(" ")[2] or "unknown"


# -- three of them -------------------------------------------------------------------------------


class Gateway:
    """How its HTTP gateway is spoken to. Its serializable gets are our stale ones."""

    def put(self, key: bytes, value: bytes) -> bytes:
        return _post("put", {"key": _base64(key), "value": _base64(value)})

    def get(self, key: bytes, *, stale: bool) -> bytes:
        return _post("range", {"key": _base64(key)} | ({"serializable": True} if stale else {}))


def _post(call: str, body: dict[str, object]) -> bytes:
    return request(
        "POST", f"/v3/kv/{call}", msgspec.json.encode(body), headers="Content-Type: application/json\r\n"
    )


def _base64(text: bytes) -> str:
    return base64.b64encode(text).decode()


@contextmanager
def cluster(directory: Path) -> Iterator[Service]:
    ports = free_ports(2 * REPLICAS)
    clients, peers = ports[:REPLICAS], ports[REPLICAS:]
    founders = ",".join(
        f"{name.replace(' ', '-')}=http://{HOST}:{port}" for name, port in zip(_NAMES, peers, strict=True)
    )
    with programs() as running:
        for name, client, peer in zip(_NAMES, clients, peers, strict=True):
            ours, others = f"http://{HOST}:{client}", f"http://{HOST}:{peer}"
            title = name.replace(" ", "-")
            words = ["etcd", "--name", title, "--data-dir", str(directory / title)]
            words += ["--listen-client-urls", ours, "--advertise-client-urls", ours]
            words += ["--listen-peer-urls", others, "--initial-advertise-peer-urls", others]
            words += ["--initial-cluster", founders, "--initial-cluster-state", "new"]
            running.append(Program(name, words, directory))
        addresses = [(HOST, port) for port in clients]
        for program, address in zip(running, addresses, strict=True):
            has_leader = partial(_has_leader, address)
            wait_until(running, has_leader, _FORM_SECONDS, f"{program.name}: formed no group")
        leader = next((address for address in addresses if _leads(address)), None)
        if leader is None:
            raise BenchError("etcd: none of the three says that it leads")
        yield Service(name=THEIRS, dialect=Gateway(), addresses=(leader,), programs=running)


def _status(address: Address) -> tuple[str, str]:
    """Who it is, and who leads, as it sees it."""
    _, said = ask(address, "POST", "/v3/maintenance/status", b"{}")
    if not isinstance(said, dict):
        return "", ""
    return said.get("header", {}).get("member_id", ""), said.get("leader", "")


def _has_leader(address: Address) -> bool:
    return _status(address)[1] not in {"", "0"}


def _leads(address: Address) -> bool:
    me, leader = _status(address)
    return me == leader != ""


# -- side by side --------------------------------------------------------------------------------


def run(plan: EtcdPlan, rounds: int, step: Step, tick: Callable[[], None]) -> Result:
    """Both in turn, round after round; a ratio has both its sides from one round."""
    plan.check()
    version = require()
    calibration = calibrate()
    with Generators(plan.generator, tick) as generators:
        measured = [
            _round(plan, generators, partial(_step_in_round, step, f"{number} of {rounds}"))
            for number in range(1, rounds + 1)
        ]
        by = generators.closed_by
    calibration |= {
        "load_average_after": calibrate()["load_average"], "file_system": file_system(plan.directory),
    }  # fmt: skip
    shown: dict[str, Value] = msgspec.to_builtins(msgspec.structs.replace(plan, directory=None))
    return Result(
        name="peers etcd",
        parameters=shown
        | {
            "rounds": rounds,
            "directory": str(plan.directory.resolve()),
            "keys": KEYS,
            "generator": by,
            "placement": f"three of each, {plan.gateways} gateway(s) of ours and the generator"
            " where the scheduler puts them",
        },
        values=medians(measured),
        ratios=median_ratios([ratios(values) for values in measured]),
        calibration=calibration,
        versions=versions({"etcd": version}),
    )


def _step_in_round(step: Step, number: str, what: str) -> None:
    step(f"round {number}: {what}")


def _round(plan: EtcdPlan, generators: Generators, step: Step) -> dict[str, Value]:
    """One system at a time has the machine. Ours runs twice: half of the slower is known only after both."""
    with workplace(plan.directory) as directory:
        step("the disk")
        sync: dict[str, Value] = {"sync": sync_cost(directory, plan.size)}
    ours: dict[str, Value] = {}
    theirs: dict[str, Value] = {}
    with _filled(plan, OURS, generators, step) as loads:
        _closed(plan, loads, ours, step)
    with _filled(plan, THEIRS, generators, step) as loads:
        _closed(plan, loads, theirs, step)
        slower = min(_rate(ours), _rate(theirs))
        _open(plan, loads, theirs, slower, step)
    with _filled(plan, OURS, generators, step) as loads:
        _open(plan, loads, ours, slower, step)
    return sync | {OURS: ours, THEIRS: theirs}


@contextmanager
def _filled(plan: EtcdPlan, name: str, generators: Generators, step: Step) -> Iterator[Loads]:
    step(f"{name}: starting")
    with workplace(plan.directory) as directory:
        made = cluster(directory) if name == THEIRS else store(Mode.DURABLE, directory, plan.gateways)
        with made as service:
            loads = Loads(service, generators, plan.size)
            step(f"{name}: writing {KEYS} keys")
            loads.fill()
            yield loads


def _closed(plan: EtcdPlan, loads: Loads, found: dict[str, Value], step: Step) -> None:
    for kind in CLOSED:
        step(f"{loads.service.name}: {kind.value}")
        found[kind.value] = loads.run(kind, plan.connections, plan.seconds)
    found["resident_mb"] = loads.resident_mb()


def _open(plan: EtcdPlan, loads: Loads, found: dict[str, Value], slower: float, step: Step) -> None:
    for name, rate in ((SAME, slower / 2), (OWN, _rate(found) / 2)):
        step(f"{loads.service.name}: {name}")
        row = loads.run(Kind.PUT, plan.connections, plan.seconds, rate)
        found[name] = row | {"asked_per_s": round(rate)}


def _rate(found: dict[str, Value]) -> float:
    rate = part(found, Kind.PUT.value, "per_s")
    assert isinstance(rate, int | float)
    return float(rate)


def ratios(values: dict[str, Value]) -> dict[str, float | None]:
    """Ours to etcd's. Rates: more is better for us. Waits and CPU: less is."""
    found: dict[str, float | None] = {}
    for name in (*(kind.value for kind in CLOSED), SAME, OWN):
        ours, theirs = part(values, OURS, name), part(values, THEIRS, name)
        if name not in {SAME, OWN}:
            found[f"rate, {name}"] = ratio(part(ours, "per_s"), part(theirs, "per_s"))
        for percent in ("p50", "p99"):
            found[f"{percent}, {name}"] = ratio(
                part(ours, "latency", f"{percent}_us"), part(theirs, "latency", f"{percent}_us")
            )
        found[f"CPU, {name}"] = ratio(part(ours, "cpu_us"), part(theirs, "cpu_us"))
    return found
