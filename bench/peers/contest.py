"""Corosync and our ring side by side: the same sizes and senders, on bridges of the same make, in one run."""

import tempfile
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bench.errors import BenchError
from bench.member import Load, Network, Settings
from bench.namespaces import bridged
from bench.ordering import OrderingPlan, Ring, Step
from bench.peers import corosync
from bench.peers.cpg import Work, build
from bench.results import Result, Value, calibrate, ratio, versions
from bench.wire import loop_name
from bench.workers import CrewMaker, Placement

OURS = ("rsm unicast", "rsm multicast")
DEFAULT_SETTINGS = ("knet", "udpu, 64 kB frames", "udp multicast, 64 kB frames")
_LATENCY_SIZE = 64
_LATENCY_SECONDS = 0.7


class ContestPlan(msgspec.Struct, frozen=True, kw_only=True):
    sites: int = 3
    sizes: tuple[int, ...] = (16, 1024, 4096, 59_000)
    seconds: float = 0.7
    settings: tuple[str, ...] = DEFAULT_SETTINGS
    batch: int = 0  # messages in one of our submit calls; 0: a packet's worth
    kill: bool = False
    sealed: bool = False
    placement: Placement = Placement.FREE
    ring: Settings = Settings()

    def check(self) -> None:
        unknown = [name for name in self.settings if name not in corosync.SETTINGS]
        if unknown:
            known = "; ".join(corosync.SETTINGS)
            raise BenchError(f"settings: {', '.join(unknown)} is unknown; use some of: {known}")
        for size in self.sizes:
            OrderingPlan(size=size, sites=self.sites, sealed=self.sealed).check()

    @property
    def loads(self) -> list[tuple[int, int]]:
        return [(size, senders) for size in self.sizes for senders in (1, self.sites)]


class Case(NamedTuple):
    """One cell of the comparison."""

    size: int
    senders: int

    def __str__(self) -> str:
        return f"{self.size} B, {self.senders} sending"


def run(plan: ContestPlan, step: Step, tick: Callable[[], None]) -> Result:
    plan.check()
    version = corosync.require()
    calibration = calibrate()
    values: dict[str, Value] = {}
    with tempfile.TemporaryDirectory(prefix="rsm-bench-") as folder:
        native = build(folder)
        for name in plan.settings:
            values[f"corosync {name}"] = _corosync(plan, name, native, step, tick)
    for name in OURS:
        values[name] = _ours(plan, name, step, tick)
    calibration["load_average_after"] = calibrate()["load_average"]
    shown: dict[str, Value] = msgspec.to_builtins(plan)
    return Result(
        name="peers corosync",
        parameters=shown
        | {
            "placement": plan.placement.describe(plan.sites),
            "corosync_applications": "C"
            if native
            else "Python, which slows corosync down: no C compiler here",
            "latency_size": _LATENCY_SIZE,
            "event_loop": loop_name(),
        },
        values=values,
        ratios=ratios(plan, values),
        calibration=calibration,
        versions=versions({"corosync": version}),
    )


def _corosync(
    plan: ContestPlan, name: str, native: str, step: Step, tick: Callable[[], None]
) -> dict[str, Value]:
    step(f"corosync {name}: forming")
    found: dict[str, Value] = {}
    with corosync.ready(
        corosync.SETTINGS[name], plan.sites, plan.placement, CrewMaker(tick), native
    ) as cluster:
        for size, senders in plan.loads:
            step(f"corosync {name}: {Case(size, senders)}")
            found[str(Case(size, senders))] = cluster.run(
                Work(size=size, senders=senders, seconds=plan.seconds)
            )
        step(f"corosync {name}: one outstanding")
        alone = Work(size=_LATENCY_SIZE, senders=1, seconds=_LATENCY_SECONDS, one_outstanding=True)
        found["one outstanding"] = cluster.run(alone)
        if plan.kill:
            step(f"corosync {name}: one killed")
            found["killed_to_new_view_s"] = round(cluster.kill_one(), 3)
    return found


def _ours(plan: ContestPlan, name: str, step: Step, tick: Callable[[], None]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    with bridged("our ring beside corosync", plan.sites) as bridge:
        network = Network(
            hosts=tuple(bridge.addresses),
            multicast=name == "rsm multicast",
            interface="eth0",
            sealed=plan.sealed,
        )
        step(f"{name}: forming")
        ring = Ring(CrewMaker(tick, bridge.sites), network, plan.ring, plan.placement)
        try:
            for size, senders in plan.loads:
                step(f"{name}: {Case(size, senders)}")
                batch = OrderingPlan(size=size, batch=plan.batch, settings=plan.ring).messages_per_submit
                load = Load(size=size, senders=senders, seconds=plan.seconds, batch=batch)
                found[str(Case(size, senders))] = ring.run(load)
            step(f"{name}: one outstanding")
            alone = Load(size=_LATENCY_SIZE, seconds=_LATENCY_SECONDS, one_outstanding=True)
            found["one outstanding"] = ring.run(alone)
        finally:
            ring.close()
    return found


def _best(values: dict[str, Value], prefix: str, case: str, *path: str, low: bool = False) -> float | None:
    """The best of corosync's settings, or of our transports."""
    seen: list[float] = []
    for name, rows in values.items():
        if name.startswith(prefix) and isinstance(rows, dict):
            cell: Value = rows.get(case)
            for word in path:
                cell = cell.get(word) if isinstance(cell, dict) else None
            if isinstance(cell, int | float):
                seen.append(cell)
    if not seen:
        return None
    return min(seen) if low else max(seen)


def ratios(plan: ContestPlan, values: dict[str, Value]) -> dict[str, float | None]:
    """Our best to corosync's best. Rates: more is better for us. Latency: less is."""
    cases = [str(Case(size, senders)) for size, senders in plan.loads]
    found = {
        f"rate, {case}": ratio(
            _best(values, "rsm", case, "messages_per_s"), _best(values, "corosync", case, "messages_per_s")
        )
        for case in cases
    }
    for percent in ("p50_us", "p99_us"):
        path = ("latency", percent)
        found[f"one outstanding, {percent}"] = ratio(
            _best(values, "rsm", "one outstanding", *path, low=True),
            _best(values, "corosync", "one outstanding", *path, low=True),
        )
    return found
