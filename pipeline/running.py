"""A job, and those that it needs before it: which have to run, what is shown meanwhile, what came of it."""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table as Shown

from pipeline import marks
from pipeline.errors import BadSetting, PipelineError
from pipeline.jobs import ingest
from pipeline.locking import locked
from pipeline.registry import checked_options, load_job, options_of
from pipeline.runs import Outcome, Run, Step
from pipeline.session import session
from pipeline.tables import Tables

WELL, VIOLATED, WRONG_CALL, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
FORMATS: Final = ("table", "json")
_LOOK_SECONDS: Final = 0.3
_LINES_MAX: Final = 12


class Done(msgspec.Struct, kw_only=True):
    """What a job came to, for who reads JSON."""

    job: str
    seconds: float
    rows: dict[str, int]
    violations: int
    words: list[str]
    figures: list[str]
    before: list["Done"] = []


def execute(
    name: str, run: Run, *, master: str | None = None, settings: Mapping[str, str] | None = None, shape: str
) -> int:
    """Runs it and prints what came of it. The exit code."""
    messages = Console(stderr=True, highlight=False)
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        if shape not in FORMATS:
            raise BadSetting(f"the format {shape!r} must be table or json")
        checked_options(load_job(name), run.options)  # before anything is started
        with session(name, master, settings) as spark, _progress(spark, messages) as step:
            done = run_job(spark, name, run, step)
    except BadSetting as error:
        return _refused(messages, str(error), WRONG_CALL)
    except PipelineError as error:
        return _refused(messages, str(error), FAILED)
    except KeyboardInterrupt:
        return _refused(messages, "interrupted; a run may be started again at any time", INTERRUPTED)
    except (PySparkException, Py4JError) as error:
        return _refused(messages, _spark_words(error), FAILED)
    except Exception:  # noqa: BLE001 (Python would end with 1, and that says that a rule was violated)
        traceback.print_exc()
        return FAILED
    _show(done, shape)
    return VIOLATED if done.violations else WELL


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """It tells of an interruption with pages of tracebacks, and raises it too; ours is a line."""
    return not record.getMessage().endswith("while sending command.")


def _refused(messages: Console, words: str, code: int) -> int:
    messages.print(f"error: {words}", markup=False, style="red", soft_wrap=True)
    return code


def _spark_words(error: Exception) -> str:
    """The reason, of all that Spark says, without Java's stack: what a task of ours said, if that was it."""
    told = (line.strip() for line in str(error).splitlines())
    lines = [line for line in told if line and not line.startswith(("at ", "... "))]
    ours = [line for line in lines if line.startswith("pipeline.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    return "Spark: " + "\n".join(lines[:_LINES_MAX])


# -- running -------------------------------------------------------------------------------------


def run_job(spark: SparkSession, name: str, run: Run, step: Step) -> Done:
    """This one in any case; those it needs if their tables are missing or not of today."""
    tables = Tables(spark, run.output)
    job = load_job(name)
    options = checked_options(job, run.options)
    before: list[Done] = []
    with locked(tables.local_root(), name):
        for need in job.NEEDS:
            _provide(tables, need, run, step, before, options_of(load_job(need)))
        for need in job.before(tables, run) if hasattr(job, "before") else ():
            _provide(tables, need, run, step, before, None)
        done = _run(tables, name, msgspec.structs.replace(run, options=options), step)
    done.before = before
    return done


def _provide(
    tables: Tables, name: str, run: Run, step: Step, ran: list[Done], options: dict[str, str] | None
) -> None:
    """``options``: it must have been run with these; None: as somebody wanted it."""
    if any(each.job == name for each in ran):
        return
    job = load_job(name)
    for need in job.NEEDS:
        _provide(tables, need, run, step, ran, options_of(load_job(need)))
    if name == "ingest":
        is_there = marks.has(tables, name) and not (run.input and ingest.has_unseen(tables, run.input))
    else:
        is_there = marks.is_of_today(tables, name, options)
    if not is_there:
        ran.append(_run(tables, name, Run(input=run.input, output=run.output, options=options_of(job)), step))


def _run(tables: Tables, name: str, run: Run, step: Step) -> Done:
    """A job that dies leaves no mark, so that it is done again."""
    began = time.monotonic()
    step(f"{name} begins")
    marks.remove(tables, name)
    outcome: Outcome = load_job(name).run(tables.spark, tables, run, lambda words: step(f"{name}: {words}"))
    marks.leave(tables, name, run.options)
    seconds = round(time.monotonic() - began, 3)
    step(f"{name} done in {seconds:.1f} s")
    return Done(job=name, seconds=seconds, **msgspec.structs.asdict(outcome))


# -- showing -------------------------------------------------------------------------------------


@contextmanager
def _progress(spark: SparkSession, messages: Console) -> Iterator[Step]:
    """On a terminal what is done, and how many tasks of it; else a line for each step."""
    if not messages.is_terminal:
        yield lambda words: messages.print(words, markup=False)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    over = threading.Event()
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        watcher = threading.Thread(target=_watch, args=(spark, progress, task, over), daemon=True)
        watcher.start()
        try:
            yield lambda words: progress.update(task, description=words)
        finally:
            over.set()
            watcher.join()


def _watch(spark: SparkSession, progress: Progress, task: Any, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(_LOOK_SECONDS):
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except (Py4JError, OSError):
            return  # Spark has ended
        there = [stage for stage in stages if stage is not None]
        total = sum(stage.numTasks for stage in there) or None
        progress.update(task, completed=sum(stage.numCompletedTasks for stage in there), total=total)


def _show(done: Done, shape: str) -> None:
    if shape == "json":
        sys.stdout.write(msgspec.json.encode(done).decode() + "\n")
        return
    console = Console(highlight=False)
    shown = Shown("job", "table", "rows written", title=None)
    shown.columns[-1].justify = "right"
    for each in (*done.before, done):
        for number, (table, rows) in enumerate(sorted(each.rows.items()) or [("", 0)]):
            shown.add_row(each.job if number == 0 else "", table, f"{rows:,}")
    console.print(shown)
    for each in (*done.before, done):
        for words in each.words:
            console.print(f"{each.job}: {words}", markup=False, soft_wrap=True)
    for figure in done.figures:
        console.print(f"figure: {figure}", markup=False, soft_wrap=True)
    if done.violations:
        console.print(f"{done.violations:,} violations", style="bold red")
