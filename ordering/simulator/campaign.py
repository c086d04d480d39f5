"""Many seeds on all cores, and what they came to.

A seed is never lost. One whose run raises is a failed seed, with the line that replays it. If a worker
process dies, every seed it may have had is played again in a process of its own, so that the deadly one
is known by its number.
"""

import os
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from ordering.simulator.checkers.base import Checker
from ordering.simulator.plan import FaultKind, Plan
from ordering.simulator.run import Report, simulate

CHUNK: Final = 4
# Chunks in the pool's queue for each worker: enough to keep it busy, few enough to stop soon.
CHUNKS_AHEAD: Final = 3
HOUR_NS: Final = 3600 * 10**9

Runner: TypeAlias = Callable[[Plan, tuple[Checker, ...]], Report]  # a function of some module

# A forked child of a process with threads (a progress bar has one) may hang; a spawned one cannot.
_CONTEXT = get_context("spawn")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One seed: its report, or the error that kept it from having one."""

    plan: Plan
    report: Report | None
    error: str = ""
    traceback: str = ""
    cpu_seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        return self.report.violations if self.report is not None else [self.error]


class Failure(msgspec.Struct, frozen=True):
    seed: int
    replay: str
    violations: list[str]


class Summary(msgspec.Struct, kw_only=True):
    """The sum over all seeds so far."""

    first_seed: int
    seeds: int = 0
    simulated_ns: int = 0
    submitted: int = 0
    refused: int = 0
    applied: int = 0
    views: int = 0
    packets: int = 0
    violations: int = 0
    cpu_seconds: float = 0.0
    faults: dict[FaultKind, int] = msgspec.field(default_factory=lambda: dict.fromkeys(FaultKind, 0))
    pairs: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    failures: list[Failure] = msgspec.field(default_factory=list)
    # The lowest seed without an outcome: where a campaign that was stopped goes on.
    next_seed: int = -1
    ahead: set[int] = msgspec.field(default_factory=set)

    def __post_init__(self) -> None:
        if self.next_seed < 0:
            self.next_seed = self.first_seed

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.cpu_seconds += outcome.cpu_seconds
        self._count_seed(outcome.plan.seed)
        if outcome.violations:
            self.violations += len(outcome.violations)
            self.failures.append(Failure(outcome.plan.seed, outcome.plan.replay, outcome.violations))
        report = outcome.report
        if report is None:
            return
        self.simulated_ns += report.simulated_ns
        self.submitted += report.submitted
        self.refused += report.refused
        self.applied += report.applied
        self.views += report.views
        self.packets += report.packets
        for kind, count in report.faults.items():
            self.faults[kind] += count
        for pair, count in report.pairs.items():
            self.pairs[pair] = self.pairs.get(pair, 0) + count

    def _count_seed(self, seed: int) -> None:
        self.ahead.add(seed)
        while self.next_seed in self.ahead:
            self.ahead.discard(self.next_seed)
            self.next_seed += 1

    @property
    def hours(self) -> float:
        return self.simulated_ns / HOUR_NS

    @property
    def messages_per_hour(self) -> float:
        return self.applied / self.hours if self.simulated_ns else 0.0

    @property
    def faults_per_hour(self) -> float:
        return sum(self.faults.values()) / self.hours if self.simulated_ns else 0.0

    @property
    def cpu_per_seed(self) -> float:
        return self.cpu_seconds / self.seeds if self.seeds else 0.0

    def as_dict(self) -> dict[str, object]:
        """For machines: plain names and numbers."""
        return {
            "first_seed": self.first_seed,
            "next_seed": self.next_seed,
            "seeds": self.seeds,
            "simulated_hours": self.hours,
            "messages_applied": self.applied,
            "messages_per_hour": self.messages_per_hour,
            "faults_per_hour": self.faults_per_hour,
            "faults": {kind.value: count for kind, count in self.faults.items()},
            "views": self.views,
            "packets": self.packets,
            "violations": self.violations,
            "cpu_seconds_per_seed": self.cpu_per_seed,
            "failures": [msgspec.to_builtins(failure) for failure in self.failures],
        }


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def play(
    plan: Plan, record: Path | None = None, extra: tuple[Checker, ...] = (), run: Runner = simulate
) -> Outcome:
    """One seed. Whatever a run raises is its outcome: it must neither end a campaign nor be forgotten."""
    started = time.process_time()
    report, error, trace = None, "", ""
    try:
        report = run(plan, (*extra, *_recorders(plan, record)))
    except Exception as broken:  # noqa: BLE001 - any error is a finding about this seed
        error, trace = f"{type(broken).__name__}: {broken}", traceback.format_exc()
    cpu_seconds = time.process_time() - started
    return Outcome(plan=plan, report=report, error=error, traceback=trace, cpu_seconds=cpu_seconds)


def run_campaign(
    plans: Iterable[Plan], jobs: int = 0, record: Path | None = None, run: Runner = simulate
) -> Generator[Outcome, None, None]:
    """Play all plans on ``jobs`` processes (0: all cores); outcomes come as they finish."""
    jobs = jobs or cores()
    if jobs == 1:
        for plan in plans:
            yield play(plan, record, run=run)
        return
    remaining = iter(plans)
    while True:
        unfinished: dict[int, tuple[Plan, ...]] = {}
        try:
            yield from _play_in_pool(remaining, jobs, record, run, unfinished)
            return
        except BrokenProcessPool:
            suspects = [plan for chunk in unfinished.values() for plan in chunk]
        for plan in suspects:
            yield _play_alone(plan, record, run)


def _play_in_pool(
    plans: Iterator[Plan],
    jobs: int,
    record: Path | None,
    run: Runner,
    unfinished: dict[int, tuple[Plan, ...]],
) -> Iterator[Outcome]:
    """``unfinished`` always holds the chunks that were taken from ``plans`` and have no outcome yet."""
    running: dict[Future[list[Outcome]], int] = {}
    number = 0
    pool = ProcessPoolExecutor(jobs, mp_context=_CONTEXT, initializer=_die_on_interrupt)
    try:
        while True:
            while len(running) < jobs * CHUNKS_AHEAD and (chunk := tuple(islice(plans, CHUNK))):
                number += 1
                unfinished[number] = chunk
                running[pool.submit(_play_chunk, chunk, record, run)] = number
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                outcomes = future.result()
                del unfinished[running.pop(future)]
                yield from outcomes
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _play_alone(plan: Plan, record: Path | None, run: Runner) -> Outcome:
    """In a process of its own: if that dies too, it is this seed that kills."""
    with ProcessPoolExecutor(1, mp_context=_CONTEXT, initializer=_die_on_interrupt) as pool:
        try:
            return pool.submit(play, plan, record, (), run).result()
        except BrokenProcessPool:
            return Outcome(
                plan=plan, report=None, error="the process that played this seed died", cpu_seconds=0.0
            )


def _play_chunk(plans: tuple[Plan, ...], record: Path | None, run: Runner) -> list[Outcome]:
    return [play(plan, record, run=run) for plan in plans]


def _die_on_interrupt() -> None:
    """Ctrl-C reaches the workers as well; they have nothing to say about it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _recorders(plan: Plan, record: Path | None) -> tuple[Checker, ...]:
    if record is None:
        return ()
    from ordering.simulator.recorder import RunRecorder

    return (RunRecorder(record / f"seed-{plan.seed}"),)
