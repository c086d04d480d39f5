"""A replica joins a group with a large state, while the others serve: do they notice?

Three replicas, a process each, hold so many bytes in a dict and are called all the time. First nothing else
happens, then a fourth replica joins and takes over the state. What counts is the longest time that a replica
gives no answer, what its memory grows to, and that nobody is suspected.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from bench.disk import require_disk
from bench.errors import BenchError
from bench.member import forget_settings, heard
from bench.ordering import Step
from bench.results import Result, Value, calibrate, ratio, versions
from bench.tally import GROUP
from bench.wire import loop_name, new_loop
from bench.workers import Crew, CrewMaker, Link, Worker
from rsm import Replica, ReplicaConfig, StateMachine, command, query

SITES: Final = 3
MIB: Final = 1 << 20
_FILL_AT_ONCE: Final = 500
_FORMING_SECONDS: Final = 60.0
_SECONDS_PER_MIB: Final = 0.5  # until a run is given up


class TransferPlan(msgspec.Struct, frozen=True, kw_only=True):
    mib: int = 256
    size: int = 1_000
    in_flight: int = 8
    calm_seconds: float = 3.0
    directory: Path | None = None  # of durable replicas

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is started."""
        if not 1 <= self.mib <= 16_384:
            raise BenchError(f"mib: must be from 1 to 16384, is {self.mib}")
        if not 1 <= self.size <= 65_536:
            raise BenchError(f"size: must be from 1 to 65536, is {self.size}")
        if self.directory is not None:
            require_disk(self.directory)

    @property
    def entries(self) -> int:
        return max(self.mib * MIB // self.size, 1)

    @property
    def patience(self) -> float:
        return _FORMING_SECONDS + _SECONDS_PER_MIB * self.mib


class Store(StateMachine):
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    @command
    def fill(self, first: int, count: int, size: int) -> int:
        chance = Random(first)
        for number in range(first, first + count):
            self.values[f"key {number}"] = chance.randbytes(size)
        return len(self.values)

    @command
    def put(self, number: int, value: bytes) -> None:
        self.values[f"key {number}"] = value

    @query
    def count(self) -> int:
        return len(self.values)


# -- one process -----------------------------------------------------------------------------------


class Load:
    """Calls without end, and when they were answered."""

    def __init__(self, replica: Replica[Store], plan: TransferPlan) -> None:
        self.answered = 0
        self.longest_ns = 0
        self._began = self._last = time.monotonic_ns()
        self._tasks = [
            asyncio.ensure_future(self._call(replica, plan, Random(number)))
            for number in range(plan.in_flight)
        ]

    async def _call(self, replica: Replica[Store], plan: TransferPlan, chance: Random) -> None:
        value = chance.randbytes(plan.size)
        while True:
            await replica.proxy.put(chance.randrange(plan.entries), value)
            now = time.monotonic_ns()
            self.longest_ns = max(self.longest_ns, now - self._last)
            self._last = now
            self.answered += 1

    async def end(self) -> dict[str, Value]:
        seconds = (time.monotonic_ns() - self._began) / 1e9
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise BenchError(f"a call failed: {outcome}")
        return {
            "per_s": round(self.answered / seconds),
            "longest_gap_ms": round(self.longest_ns / 1e6, 1),
            "seconds": round(seconds, 1),
        }


def site(link: Link, me: int, plan: TransferPlan, directory: Path | None) -> None:
    forget_settings()
    logging.getLogger("ordering").setLevel(logging.ERROR)  # that it is insecure is known here
    loop = new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_serve(link, me, plan, directory))


async def _serve(link: Link, me: int, plan: TransferPlan, directory: Path | None) -> None:
    changes: dict[str, Any] = {}
    if directory is not None:
        changes = {"mode": "durable", "data": directory / f"site-{me + 1}"}
    replica = Replica(Store, ReplicaConfig(group=GROUP, bind="127.0.0.1:0", insecure=True, **changes))
    await replica.open()
    link.say(replica.address)
    founders, contacts = await heard(link)
    began = time.monotonic()
    replica.join(founders, contacts)
    try:
        async with asyncio.timeout(plan.patience):
            await replica.ready()
    except TimeoutError:
        raise BenchError(f"site {me + 1}: not ready within {plan.patience:.0f} s") from None
    link.say({"seconds": round(time.monotonic() - began, 1), "peak_mb": _memory("VmHWM")})
    load: Load | None = None
    memory = 0
    while (word := await heard(link)) is not None:
        if word == "fill":
            for first in range(0, plan.entries, _FILL_AT_ONCE):
                await replica.proxy.fill(first, min(_FILL_AT_ONCE, plan.entries - first), plan.size)
            link.say("full")
        elif word == "begin":
            _forget_peak()
            memory, load = _memory("VmRSS"), Load(replica, plan)
        elif word == "end":
            assert load is not None
            report = await load.end()
            link.say(report | _standing(replica) | {"memory_mb": memory, "peak_mb": _memory("VmHWM")})
        else:
            group = replica.executor.group
            count = await replica.proxy.count()
            link.say({"count": count, "applied": group.applied, "digest": group.digest})
    await replica.stop()


def _standing(replica: Replica[Store]) -> dict[str, Value]:
    return {"epoch": replica.status().view.split(".")[0], "sent_mb": round(replica.gifts.bytes_sent / 1e6)}


def _memory(what: str) -> int:
    """Of this process, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return round(int(line.split()[1]) * 1024 / 1e6)
    raise BenchError(f"/proc/self/status has no {what}")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


# -- the whole ---------------------------------------------------------------------------------------


def run(plan: TransferPlan, step: Step, tick: Callable[[], None]) -> Result:
    plan.check()
    calibration = calibrate()
    with tempfile.TemporaryDirectory(prefix="rsm-bench-", dir=plan.directory) as made:
        directory = None if plan.directory is None else Path(made).resolve()
        with CrewMaker(tick)() as crew:
            values = _measure(crew, plan, directory, step)
    calibration["load_average_after"] = calibrate()["load_average"]
    parameters: dict[str, Value] = msgspec.to_builtins(msgspec.structs.replace(plan, directory=None))
    return Result(
        name="transfer",
        parameters=parameters
        | {"mode": "memory" if plan.directory is None else "durable", "event_loop": loop_name()},
        values=values,
        ratios=_ratios(values),
        calibration=calibration,
        versions=versions(),
    )


def _measure(crew: Crew, plan: TransferPlan, directory: Path | None, step: Step) -> dict[str, Value]:
    step("forming")
    sites = [crew.start(f"site {me + 1}", site, me, plan, directory) for me in range(SITES)]
    addresses = crew.hear_all(sites)
    for each in sites:
        each.tell((addresses, ()))
    crew.hear_all(sites, _FORMING_SECONDS)
    step(f"filling {plan.mib} MiB")
    sites[0].tell("fill")
    crew.hear(sites[0], plan.patience)
    _compare(crew, sites, plan)
    step("calm")
    _tell(sites, "begin")
    crew.pause(plan.calm_seconds)
    _tell(sites, "end")
    calm = crew.hear_all(sites)
    step("a replica joins")
    _tell(sites, "begin")
    joiner = crew.start("joiner", site, SITES, plan, directory)
    crew.hear(joiner)
    joiner.tell(((), addresses))
    joined = crew.hear(joiner, plan.patience)
    _tell(sites, "end")
    busy = crew.hear_all(sites)
    _compare(crew, [*sites, joiner], plan)
    if {each["epoch"] for each in busy} != {each["epoch"] for each in calm}:
        raise BenchError("a site was suspected while the state was transferred")
    return {
        "calm": _by_role(calm),
        "joining": _by_role(busy),
        "joiner": joined,
    }


def _tell(sites: list[Worker], word: str) -> None:
    for each in sites:
        each.tell(word)


def _compare(crew: Crew, sites: list[Worker], plan: TransferPlan) -> None:
    """There is a result only if all have the same at the same slot."""
    for _ in range(100):
        _tell(sites, "state")
        states = crew.hear_all(sites, plan.patience)
        if len({state["applied"] for state in states}) == 1:
            if len({(state["count"], state["digest"]) for state in states}) > 1:
                raise BenchError(f"the replicas differ: {states}")
            return
        crew.pause(0.05)
    raise BenchError("the replicas did not come to one slot")


def _by_role(reports: list[dict[str, Any]]) -> dict[str, Value]:
    """The donor, if there is one, and the worst of the others."""
    donors = [report for report in reports if report["sent_mb"]]
    others = [report for report in reports if not report["sent_mb"]]
    return {
        "per_s": sum(report["per_s"] for report in reports),
        "longest_gap_ms": max(report["longest_gap_ms"] for report in others),
        "donor": donors[0] if donors else None,
    }


def _ratios(values: dict[str, Any]) -> dict[str, float | None]:
    donor = values["joining"]["donor"]
    return {
        "donor_peak_to_memory": ratio(donor["peak_mb"], donor["memory_mb"]) if donor else None,
        "commands_joining_to_calm": ratio(values["joining"]["per_s"], values["calm"]["per_s"]),
    }
