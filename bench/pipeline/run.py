"""The pipeline's jobs on recordings of several sizes: rows per second, growth, and what becomes of plants.

Each recording has a process and a Java machine of its own, with so many cores and so much memory, so that no
size profits from another. Growth is the ratio of times divided by the ratio of rows: 1.0 is linear.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Final

import msgspec

from bench.errors import BenchError, WorkerFailed
from bench.pipeline.generator import Generated, Plant, generate
from bench.pipeline.plants import RULES
from bench.results import Result, Value, calibrate, versions

JOBS: Final = ("ingest", "lifecycle", "audit", "metrics")
FINDING: Final = ("ingest", "audit")  # what it takes to find a plant
GROWTH_WANTED: Final = 1.2
ROWS_MIN: Final = 10_000
ROWS_MAX: Final = 1_000_000_000
BYTES_PER_ROW: Final = 120  # of the recording and all tables, about: what is asked of the disk
CORES: Final = 2
MEMORY_GIB: Final = 4
# The rest of the memory is for Java itself and for Python workers.
_HEAP_MIB: Final = 2_240
_LOOK_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 20.0

Step = Callable[[str], None]


class PipelinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """``planted``: the sizes at which a recording with violations is audited, too."""

    rows: tuple[int, ...] = (1_000_000, 10_000_000, 50_000_000)
    planted: tuple[int, ...] = (1_000_000, 10_000_000)
    jobs: tuple[str, ...] = JOBS
    replicas: int = 3
    seed: int = 1
    directory: Path = Path(tempfile.gettempdir())
    keep: bool = False

    def check(self) -> None:
        for each in (*self.rows, *self.planted):
            if not ROWS_MIN <= each <= ROWS_MAX:
                raise BenchError(f"rows: {each:,} is not from {ROWS_MIN:,} to {ROWS_MAX:,}")
        for name in self.jobs:
            if name not in JOBS:
                raise BenchError(f"jobs: {name!r} is none of {', '.join(JOBS)}")
        if not self.directory.is_dir():
            raise BenchError(f"directory: {self.directory} is no directory")
        free = shutil.disk_usage(self.directory).free
        sizes = (*self.rows, *self.planted)
        # What is not kept is removed before the next is made.
        needed = (sum(sizes) if self.keep else max(sizes, default=0)) * BYTES_PER_ROW
        if free < needed:
            raise BenchError(
                f"directory: {self.directory} has {free / 1e9:.0f} GB free, and this may take"
                f" {needed / 1e9:.0f}; name another, or fewer rows"
            )


class Job(msgspec.Struct, frozen=True, tag_field="type", tag="timed"):
    job: str
    seconds: float
    rows: dict[str, int]
    violations: int


class Violation(msgspec.Struct, frozen=True):
    rule: str
    first_ts: int | None
    last_ts: int | None
    words: str


class Found(msgspec.Struct, frozen=True, tag="found"):
    rules: dict[str, str]
    violations: list[Violation]


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    words: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    words: str


class Played(msgspec.Struct, kw_only=True):
    """What the jobs made of one recording."""

    jobs: list[Job] = []
    found: Found | None = None
    memory_bytes: int = 0


def run(plan: PipelinePlan, step: Step) -> Result:
    plan.check()
    calibration = calibrate()
    sizes: dict[str, Value] = {}
    clean: list[Violation] | None = None  # not audited
    planted: list[Value] = []
    unexpected: list[Value] = []
    for rows in sorted(plan.rows):
        with _recording(plan, rows, (), step) as (made, took):
            played = play(made, plan.jobs, f"{rows:,} rows", step)
        sizes[str(rows)] = _figures(made, took, played)
        if played.found is not None:
            clean = [*(clean or []), *played.found.violations]
    for rows in sorted(plan.planted):
        with _recording(plan, rows, RULES, step) as (made, _):
            played = play(made, FINDING, f"{rows:,} rows, planted", step)
        found = played.found.violations if played.found is not None else []
        planted += [_plant_row(rows, plant, found) for plant in made.plants]
        unexpected += [
            {"rows": rows, **msgspec.structs.asdict(each)}
            for each in found
            if not any(is_of(plant, each) for plant in made.plants)
        ]
    all_found = all(isinstance(row, dict) and row["found"] for row in planted)
    checks: dict[str, Value] = {  # None: not checked
        "nothing in clean recordings": None if clean is None else not clean,
        "every plant under its own rule": all_found if plan.planted else None,
        "nothing but the plants": not unexpected if plan.planted else None,
    }
    return Result(
        name="pipeline",
        parameters=msgspec.to_builtins(plan, enc_hook=str),
        values={
            "sizes": sizes,
            "planted": planted,
            "unexpected": unexpected,
            "clean": [msgspec.structs.asdict(each) for each in clean or []],
            "checks": checks,
        },
        ratios=growth(sizes, plan.jobs),
        calibration=calibration,
        versions=versions(),
    )


def _figures(made: Generated, took: float, played: Played) -> Value:
    jobs: dict[str, Value] = {
        job.job: {"seconds": round(job.seconds, 2), "rows_per_s": round(made.rows / max(job.seconds, 1e-9))}
        for job in played.jobs
    }
    generated: dict[str, Value] = {
        "seconds": round(took, 2),
        "rows_per_s": round(made.rows / max(took, 1e-9)),
    }
    return {
        "rows": made.rows,
        "events": made.events,
        "operations": made.operations,
        "slots": made.slots,
        "generate": generated,
        "jobs": jobs,
        "memory_gib": round(played.memory_bytes / 2**30, 2),
    }


def growth(sizes: dict[str, Value], jobs: Sequence[str]) -> dict[str, float | None]:
    """From each size to the next, for each job."""
    ratios: dict[str, float | None] = {}
    for (_, small), (name, large) in pairwise(sizes.items()):
        for job in jobs:
            times = [_seconds(each, job) for each in (small, large)]
            rows = [each["rows"] for each in (small, large) if isinstance(each, dict)]
            assert isinstance(rows[0], int)
            assert isinstance(rows[1], int)
            before, behind = times
            name_of = f"{job}: growth to {int(name):,} rows"
            ratios[name_of] = None
            if before and behind is not None:
                ratios[name_of] = round(behind / before / (rows[1] / rows[0]), 3)
    return ratios


def _seconds(size: Value, job: str) -> float | None:
    assert isinstance(size, dict)
    jobs = size["jobs"]
    assert isinstance(jobs, dict)
    timed = jobs.get(job)
    if not isinstance(timed, dict):
        return None
    seconds = timed["seconds"]
    return float(seconds) if isinstance(seconds, int | float) else None


# -- plants --------------------------------------------------------------------------------------


def is_of(plant: Plant, found: Violation) -> bool:
    """Whether a violation that was found is this plant: its rule, and slots that touch it. One that names no
    slot may be anywhere."""
    first = found.first_ts if found.first_ts is not None else found.last_ts
    last = found.last_ts if found.last_ts is not None else found.first_ts
    if plant.rule != found.rule or first is None or last is None:
        return False
    return first <= plant.last_ts and last >= plant.first_ts


def _plant_row(rows: int, plant: Plant, found: Sequence[Violation]) -> Value:
    words = [each.words for each in found if is_of(plant, each)]
    return {
        "rows": rows,
        "rule": plant.rule,
        "how": plant.how,
        "slots": [plant.first_ts, plant.last_ts],
        "found": bool(words),
        "words": words[0] if words else None,
    }


# -- a recording, and the jobs on it --------------------------------------------------------------


@contextmanager
def _recording(
    plan: PipelinePlan, rows: int, planted: Sequence[str], step: Step
) -> Iterator[tuple[Generated, float]]:
    folder = Path(tempfile.mkdtemp(prefix=f"rsm-bench-pipeline-{rows}-", dir=plan.directory)).resolve()
    try:
        began = time.perf_counter()
        made = generate(
            folder / "recording", rows, replicas=plan.replicas, seed=plan.seed, planted=planted, step=step
        )
        yield made, time.perf_counter() - began
    finally:
        if not plan.keep:
            shutil.rmtree(folder)


def play(made: Generated, jobs: Sequence[str], title: str, step: Step) -> Played:
    """The jobs in a process of its own (``pipeline.timed``), on as many cores and with as much memory as
    everybody has."""
    request = {
        "input": str(made.folder),
        "output": str(made.folder.parent / "tables"),
        "jobs": jobs,
        "master": f"local[{CORES}]",
        "settings": {"spark.driver.memory": f"{_HEAP_MIB}m"},
    }
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.timed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # a Ctrl-C is ours to handle
        )
        os.sched_setaffinity(process.pid, cores)
        try:
            return _heard(process, msgspec.json.encode(request), title, step, log)
        finally:
            _stop(process)


def _heard(
    process: "subprocess.Popen[bytes]", request: bytes, title: str, step: Step, log: IO[bytes]
) -> Played:
    played = Played()
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, played, ended), daemon=True)
    watcher.start()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.close()
        for line in process.stdout:
            match msgspec.json.decode(line, type=Progress | Job | Found | Failed):
                case Progress(words):
                    step(f"{title}: {words}")
                case Job() as job:
                    played.jobs.append(job)
                case Found() as found:
                    played.found = found
                case Failed(words):
                    raise WorkerFailed(f"{title}: {words}")
    finally:
        ended.set()
        watcher.join()
    if process.wait() != 0:
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()
        raise WorkerFailed(f"{title}: the jobs ended with {process.returncode}\n" + "\n".join(said[-12:]))
    return played


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _watch(pid: int, played: Played, ended: threading.Event) -> None:
    while not ended.wait(_LOOK_SECONDS):
        played.memory_bytes = max(played.memory_bytes, tree_bytes(pid))


def tree_bytes(pid: int) -> int:
    """Memory of a process and all below it; what they share counts once."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # gone
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        found += _proportional_bytes(one)
        waiting += parents.get(one, [])
    return found


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
