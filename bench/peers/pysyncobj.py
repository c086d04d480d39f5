"""PySyncObj (Raft, in Python) beside our replicas in memory: the same counter, the same calls in flight.

Three processes on loopback, as ours are. The calls are made at the leader, which spares it a hop, and each
answer's callback makes the next call, which is the cheapest way it has.
"""

import importlib
import logging
import select
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from typing import Any, Final

import msgspec

from bench.errors import BenchError, NotAvailable
from bench.machine import IN_FLIGHT_MAX, SITES, part, replicas
from bench.ordering import Step
from bench.results import Result, Value, calibrate, latencies, median_ratios, medians, ratio, versions
from bench.tally import Kind, Place, Stopwatch, Work
from bench.wire import loop_name
from bench.workers import Crew, CrewMaker, Link, Placement

INSTALL: Final = "pip install 'rsm[peers]' (or pip install pysyncobj)"
OURS: Final = "rsm memory"
_FORM_SECONDS: Final = 20.0
_SLACK_SECONDS: Final = 20.0
_SETTLE_TRIES: Final = 200
_SETTLE_SECONDS: Final = 0.02


class Setting(msgspec.Struct, frozen=True):
    """``tick_ms`` 0: its own thread drives it, as it does unless told otherwise; else we do, so often."""

    tick_ms: float = 0
    conf: tuple[tuple[str, float], ...] = ()


_ROOMY: Final = (
    ("appendEntriesBatchSizeBytes", 1 << 20),
    ("sendBufferSize", 1 << 20),
    ("recvBufferSize", 1 << 20),
    ("logCompactionMinEntries", 1_000_000),
)
SETTINGS: Final[Mapping[str, Setting]] = {
    "default": Setting(),
    # No second thread, short periods, batches and buffers that hold all that is in flight.
    "tuned": Setting(1, (("appendEntriesPeriod", 0.005), *_ROOMY)),
    # Faster with few calls in flight, but it begins to complain that members may have diverged.
    "tuned to the limit": Setting(0.2, (("appendEntriesPeriod", 0.001), *_ROOMY)),
}


class PySyncObjPlan(msgspec.Struct, frozen=True, kw_only=True):
    in_flight: tuple[int, ...] = (64, 1000, 5000)
    settings: tuple[str, ...] = tuple(SETTINGS)
    seconds: float = 1.0
    placement: Placement = Placement.FREE

    def check(self) -> None:
        unknown = [name for name in self.settings if name not in SETTINGS]
        if unknown or not self.settings:
            known = ", ".join(SETTINGS)
            raise BenchError(f"settings: {', '.join(unknown) or 'none'} is unknown; use some of: {known}")
        if not self.in_flight or not all(1 <= each <= IN_FLIGHT_MAX for each in self.in_flight):
            raise BenchError(f"in-flight: must be from 1 to {IN_FLIGHT_MAX}")


def require() -> str:
    """Its version; refuses where it is not installed, and says how to install it."""
    try:
        found = importlib.import_module("pysyncobj.version")
    except ImportError:
        raise NotAvailable(f"PySyncObj is not installed; to install it: {INSTALL}") from None
    return str(found.VERSION)


# -- one process ---------------------------------------------------------------------------------


def _counter(address: str, others: list[str], setting: Setting) -> Any:
    """Imported here: only these processes need it."""
    peer: Any = importlib.import_module("pysyncobj")

    class Counter(peer.SyncObj):  # type: ignore[misc]
        def __init__(self) -> None:
            conf = peer.SyncObjConf(autoTick=not setting.tick_ms, **dict(setting.conf))
            super().__init__(address, others, conf)
            self.count = 0

        @peer.replicated  # type: ignore[untyped-decorator]
        def add(self, amount: int) -> int:
            self.count += amount
            return self.count

    return Counter()


class _Complaints(logging.Handler):
    """What it logs as a warning or worse belongs into the result."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


class _Member:
    def __init__(self, link: Link, setting: Setting, others: list[str], address: str) -> None:
        self.link = link
        self.tick_s = setting.tick_ms / 1000
        self.complaints = _Complaints()
        logging.getLogger().addHandler(self.complaints)
        self.counter = _counter(address, others, setting)

    def wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Until done; where nobody else drives it we do."""
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                raise BenchError(f"{what} within {seconds:.0f} s")
            if self.tick_s:
                self.counter.doTick(self.tick_s)
            else:
                time.sleep(0.001)

    def hear(self) -> Any:
        if self.tick_s:
            while not select.select([self.link], [], [], 0)[0]:
                self.counter.doTick(self.tick_s)
        return self.link.hear()

    def state(self) -> dict[str, object]:
        return {
            "count": self.counter.count,
            "leads": bool(self.counter._isLeader()),
            "cpu_s": time.process_time(),
            "complaint": self.complaints.last,
        }

    def work(self, work: Work) -> dict[str, object]:
        """Every answer makes the next call, until the time is over and all are answered."""
        watch, over, failed = Stopwatch(), Event(), []
        add, clock = self.counter.add, time.monotonic_ns
        started = clock()
        until = started + int(work.seconds * 1e9)
        left = work.in_flight

        def call() -> None:
            asked = clock()

            def answered(_: object, reason: int) -> None:
                nonlocal left
                now = clock()
                if reason:
                    failed.append(reason)
                watch.note(now - asked)
                if now < until and not failed:
                    call()
                else:
                    left -= 1
                    if not left:
                        over.set()

            add(1, callback=answered)

        for _ in range(work.in_flight):
            call()
        self.wait(over.is_set, work.seconds + _SLACK_SECONDS, "not every command was answered")
        if failed:
            raise BenchError(f"PySyncObj refused a command, reason {failed[0]}")
        return {"count": watch.count, "took": watch.samples, "seconds": (clock() - started) / 1e9}


def _process(link: Link, setting: Setting) -> None:
    with socket.socket() as reserved:  # it takes no port 0; nobody else gets this one in a hurry
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    link.say(address)
    others = [each for each in link.hear() if each != address]
    member = _Member(link, setting, others, address)
    member.wait(member.counter.isReady, _FORM_SECONDS, "PySyncObj formed no group")
    link.say("member")
    while (told := member.hear()) is not None:
        link.say(member.state() if told == "state" else member.work(told))


# -- the group -----------------------------------------------------------------------------------


class Group:
    """Three of them, ready for work."""

    def __init__(self, crew: Crew, crew_of: CrewMaker, setting: Setting, placement: Placement) -> None:
        self.crew = crew
        self.workers = [
            crew.start(f"PySyncObj {me + 1}", _process, setting, post=crew_of.post(me, placement))
            for me in range(SITES)
        ]
        addresses = crew.hear_all(self.workers)
        for worker in self.workers:
            worker.tell(addresses)
        crew.hear_all(self.workers, _FORM_SECONDS + _SLACK_SECONDS)
        self.acknowledged = 0

    def states(self) -> list[dict[str, Any]]:
        for worker in self.workers:
            worker.tell("state")
        return self.crew.hear_all(self.workers)

    def run(self, work: Work) -> dict[str, Value]:
        before = self.settled()
        leaders = [worker for worker, state in zip(self.workers, before, strict=True) if state["leads"]]
        if len(leaders) != 1:
            raise BenchError(f"PySyncObj has {len(leaders)} leaders")
        leaders[0].tell(work)
        report = self.crew.hear(leaders[0], work.seconds + 2 * _SLACK_SECONDS)
        self.acknowledged += report["count"]
        after = self.settled()
        cpu = sum(state["cpu_s"] for state in after) - sum(state["cpu_s"] for state in before)
        return {
            "per_s": round(report["count"] / max(report["seconds"], 1e-9)),
            "answered": report["count"],
            "latency": latencies(report["took"]),
            "cpu_us": round(1e6 * cpu / max(report["count"], 1), 3),
        }

    def settled(self) -> list[dict[str, Any]]:
        """Once every member has executed what was acknowledged, no more and no less."""
        counts: list[int] = []
        for _ in range(_SETTLE_TRIES):
            states = self.states()
            counts = [state["count"] for state in states]
            if counts == [self.acknowledged] * SITES:
                return states
            self.crew.pause(_SETTLE_SECONDS)
        raise BenchError(
            f"PySyncObj acknowledged {self.acknowledged} commands, but its members have executed"
            f" {', '.join(map(str, counts))}"
        )


# -- side by side --------------------------------------------------------------------------------


def run(plan: PySyncObjPlan, rounds: int, step: Step, tick: Callable[[], None]) -> Result:
    """All of its settings and our replicas in turn, round after round, as ``bench.ordering`` does."""
    plan.check()
    version = require()
    calibration = calibrate()
    crew_of = CrewMaker(tick)
    complaints: dict[str, Value] = {}
    measured = [
        _round(plan, crew_of, complaints, partial(_step_in_round, step, f"{number} of {rounds}"))
        for number in range(1, rounds + 1)
    ]
    calibration["load_average_after"] = calibrate()["load_average"]
    shown: dict[str, Value] = msgspec.to_builtins(plan)
    return Result(
        name="peers pysyncobj",
        parameters=shown
        | {
            "rounds": rounds,
            "sites": SITES,
            "placement": plan.placement.describe(SITES),
            "event_loop": loop_name(),
        },
        values=medians(measured) | {"complaints": complaints},
        ratios=median_ratios([ratios(plan, values) for values in measured]),
        calibration=calibration,
        versions=versions({"pysyncobj": version}),
    )


def _step_in_round(step: Step, number: str, what: str) -> None:
    step(f"round {number}: {what}")


def _round(
    plan: PySyncObjPlan, crew_of: CrewMaker, complaints: dict[str, Value], step: Step
) -> dict[str, Value]:
    """What it complained of is noted by setting, of all rounds: no median may hide it."""
    values: dict[str, Value] = {}
    for setting in plan.settings:
        name = theirs(setting)
        step(f"{name}: forming")
        with crew_of() as crew:
            group = Group(crew, crew_of, SETTINGS[setting], plan.placement)
            values[name] = _loads(plan, name, group.run, step)
            said = [state["complaint"] for state in group.states() if state["complaint"]]
        if said:
            complaints[name] = said[0]
    step(f"{OURS}: forming")
    with replicas(crew_of, plan.placement, Place()) as ours:
        values[OURS] = _loads(plan, OURS, ours.run, step)
    return values


def theirs(setting: str) -> str:
    return f"pysyncobj {setting}"


def _loads(
    plan: PySyncObjPlan, name: str, do: Callable[[Work], dict[str, Value]], step: Step
) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for in_flight in plan.in_flight:
        step(f"{name}: {in_flight} in flight")
        found[str(in_flight)] = do(Work(kind=Kind.ADD, in_flight=in_flight, seconds=plan.seconds))
    return found


def ratios(plan: PySyncObjPlan, values: dict[str, Value]) -> dict[str, float | None]:
    """Ours to each of its settings. Rates: more is better for us. Latency and CPU: less is."""
    found: dict[str, float | None] = {}
    for in_flight in map(str, plan.in_flight):
        for name in plan.settings:
            ours, other = part(values, OURS, in_flight), part(values, theirs(name), in_flight)
            title = f"{in_flight} in flight, to {name}"
            found[f"rate, {title}"] = ratio(part(ours, "per_s"), part(other, "per_s"))
            found[f"p50, {title}"] = ratio(part(ours, "latency", "p50_us"), part(other, "latency", "p50_us"))
            found[f"CPU, {title}"] = ratio(part(ours, "cpu_us"), part(other, "cpu_us"))
    return found
