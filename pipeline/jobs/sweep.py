"""What does an order cost? Thousands of simulated runs, spread over Spark's executors.

A run is a pure function of its trial (``ordering.simulator.measurement``) and gives one row of the table.
Runs go out in waves; a wave is one Spark job of small tasks, and one batch of the table, there whole or not
at all. What the table has is not run again, so a sweep that was cut short goes on where it was.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema

from ordering.simulator.measurement import Figures, Times, Trial, measure
from pipeline.beside import remove_figures
from pipeline.errors import BadSetting
from pipeline.experiments import ALL, EXPERIMENTS, chosen, points
from pipeline.runs import Outcome, Run, Step
from pipeline.tables import SWEEP, Tables

NEEDS: Final[tuple[str, ...]] = ()
SEEDS: Final = 13
SECONDS: Final = 2
OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "experiment": (ALL, f"{ALL}, or some of {', '.join(EXPERIMENTS)}; commas between."),
    "seeds": (SEEDS, "Each point of a grid so often."),
    "seconds": (SECONDS, "Of load in each run; longer, where that would be less than 100 messages."),
}
HELP: Final = """Plays simulated groups on all executors and repeats the papers' experiments: packets, times,
buffers and token passes against rate, sites, loss, size and quality of service, for each discipline. What was
played is kept, and not played again. The exit code is 1 if a checker complained in a run.
"""
RUNS_PER_TASK: Final = 2
TASKS_PER_CORE: Final = 20  # in a wave: its end, where cores idle, is a small part of it
VIOLATIONS_SHOWN: Final = 20
PROGRESS_SECONDS: Final = 0.5

Planned = tuple[str, Trial]  # a trial, and the experiment it belongs to


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    planned = plan(*_asked(run.options))
    todo = missing(planned, known_runs(tables))
    began = monotonic()
    size = max(spark.sparkContext.defaultParallelism, 1) * TASKS_PER_CORE * RUNS_PER_TASK
    waves = [todo[first : first + size] for first in range(0, len(todo), size)]
    done = 0
    for wave in waves:
        with _told(spark, step, done, len(todo), len(wave)):
            tables.write(SWEEP, play(spark, wave), whole=False)
        done += len(wave)
    took = monotonic() - began
    step("drawing")
    return _outcome(of_plan(tables.read(SWEEP), planned), tables, len(planned), len(todo), took)


def check(options: dict[str, str]) -> None:
    _asked(options)


def _asked(options: dict[str, str]) -> tuple[Sequence[str], int, int]:
    """Experiments, seeds and seconds."""
    names = chosen(options.get("experiment", ALL))
    return names, _number(options, "seeds", SEEDS), _number(options, "seconds", SECONDS)


def _number(options: dict[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise BadSetting(f"{name}: {text!r} is not a number from 1 up")
    return int(text)


# -- planning ------------------------------------------------------------------------------------


def plan(names: Sequence[str], seeds: int, seconds: int) -> list[Planned]:
    """By seed, so that what was done so far, if it is cut short, is some seeds of everything."""
    found = [(name, Trial(**point)) for name in names for point in points(name, seeds, seconds)]
    return sorted(found, key=lambda each: each[1].seed)


def known_runs(tables: Tables) -> set[tuple[str, str]]:
    """Experiment and name of the runs that are in the table: thousands, as they were planned here before."""
    rows = tables.read_or_empty(SWEEP).select("experiment", "replay").distinct().collect()
    return {(row.experiment, row.replay) for row in rows}


def of_plan(rows: DataFrame, planned: Sequence[Planned]) -> DataFrame:
    """Those of this sweep: the table may have others, as with more seconds, that must not be mixed in."""
    names = [(name, trial.replay) for name, trial in planned]
    wanted = rows.sparkSession.createDataFrame(names, ["experiment", "replay"])
    return rows.join(fn.broadcast(wanted), ["experiment", "replay"], "left_semi")


def missing(planned: Sequence[Planned], known: set[tuple[str, str]]) -> list[Planned]:
    return [(name, trial) for name, trial in planned if (name, trial.replay) not in known]


# -- playing -------------------------------------------------------------------------------------


def play(spark: SparkSession, wave: Sequence[Planned]) -> DataFrame:
    """A row for each run. The rows of a wave are few: they end up in one file for each experiment."""
    batch = blake2b("\n".join(trial.replay for _, trial in wave).encode(), digest_size=8).hexdigest()
    tasks = -(-len(wave) // RUNS_PER_TASK)
    encoded = [(name, msgspec.json.encode(trial)) for name, trial in wave]
    numbers = spark.range(0, len(wave), 1, tasks)
    played = numbers.mapInArrow(partial(_play, encoded, batch), SWEEP.schema)
    return played.repartition("experiment")


def _play(
    wave: list[tuple[str, bytes]], batch: str, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In an executor's Python: some runs, one after another."""
    schema = to_arrow_schema(SWEEP.schema)
    for some in numbers:
        for number in some.column(0).to_pylist():
            name, encoded = wave[number]
            trial = msgspec.json.decode(encoded, type=Trial)
            yield pa.RecordBatch.from_pylist([row_of(name, batch, trial, measure(trial))], schema)


def row_of(experiment: str, batch: str, trial: Trial, figures: Figures) -> dict[str, Any]:
    """As ``schemas.SWEEP`` has it."""
    sent = max(figures.messages, 1)
    return {
        "experiment": experiment,
        "batch": batch,
        "replay": trial.replay,
        **msgspec.structs.asdict(trial),
        "senders": trial.senders or trial.sites,
        "messages": figures.messages,
        "refused": figures.refused,
        "undelivered": figures.undelivered,
        **_times("source", figures.at_source),
        **_times("delivery", figures.at_all),
        **_times("stability", figures.stable),
        "packets": figures.packets,
        "packets_per_message": figures.packets / sent,
        "overhead_per_message": figures.overhead / sent,
        "datagrams_per_message": figures.datagrams / sent,
        "retransmissions": figures.retransmissions,
        "retransmissions_per_message": figures.retransmissions / sent,
        **{f"{kind}_packets": count for kind, count in figures.kinds.items()},
        "lost": figures.lost,
        "token_passes": figures.token_passes,
        "passes_per_message": figures.token_passes / sent,
        "buffer_bytes_mean": figures.buffer_bytes_mean,
        "buffer_bytes_max": figures.buffer_bytes_max,
        "buffer_messages_mean": figures.buffer_bytes_mean / trial.message_bytes,
        "views": figures.views,
        "violations": len(figures.violations),
        "violation": figures.violations[0] if figures.violations else None,
    }


def _times(name: str, times: Times) -> dict[str, float | None]:
    return {f"{name}_mean_ms": times.mean_ms, f"{name}_p50_ms": times.p50_ms, f"{name}_p99_ms": times.p99_ms}


@contextmanager
def _told(spark: SparkSession, step: Step, done: int, of: int, wave: int) -> Iterator[None]:
    """Says how many runs are done while a wave is out, by the tasks that have ended."""
    ended = threading.Event()
    began = monotonic()

    def watch() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            runs = min(_tasks_done(spark) * RUNS_PER_TASK, wave)
            speed = f", {runs / (monotonic() - began):.1f} runs/s" if runs else ""
            step(f"{done + runs:,} of {of:,} runs{speed}")

    watcher = threading.Thread(target=watch, name="sweep-progress", daemon=True)
    step(f"{done:,} of {of:,} runs")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _tasks_done(spark: SparkSession) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return max((stage.numCompletedTasks for stage in stages if stage is not None), default=0)


# -- what came of it -----------------------------------------------------------------------------

# What a point of a grid is: everything but the seed.
POINT: Final = ("experiment", "discipline", "sites", "senders", "rate", "message_bytes", "loss", "qos")
SUMMED: Final = (
    "source_p50_ms",
    "delivery_mean_ms",
    "delivery_p50_ms",
    "delivery_p99_ms",
    "stability_mean_ms",
    "packets_per_message",
    "overhead_per_message",
    "retransmissions_per_message",
    "passes_per_message",
    "buffer_messages_mean",
)


def summary(rows: DataFrame) -> DataFrame:
    """Median, tenth and ninetieth percentile over the seeds, for each point of the grids."""
    cells = [
        fn.percentile(name, fn.lit(share)).alias(f"{name}_{word}")
        for name in SUMMED
        for word, share in (("p10", 0.1), ("median", 0.5), ("p90", 0.9))
    ]
    return rows.groupBy(*POINT).agg(fn.count("*").alias("runs"), *cells)


def _outcome(rows: DataFrame, tables: Tables, planned: int, played: int, took: float) -> Outcome:
    broken = rows.where("violations > 0")
    # One row for each run: thousands.
    counted = rows.agg(
        fn.count("*").alias("runs"), fn.sum(fn.signum("violations")).alias("violated")
    ).collect()[0]
    violated = int(counted.violated or 0)
    words = [f"{planned:,} runs planned, {played:,} played in {took:.0f} s"]
    if played:
        words[0] += f" ({played / took:.1f} a second)"
    words += [
        f"{row.replay}: {row.violation}" for row in broken.orderBy("replay").limit(VIOLATIONS_SHOWN).collect()
    ]
    figures = _figures(rows, tables)
    return Outcome(rows={SWEEP.path: int(counted.runs)}, violations=violated, words=words, figures=figures)


def _figures(rows: DataFrame, tables: Tables) -> list[str]:
    """Those of other experiments stay, as long as their runs are in the table."""
    from pipeline.sweep_figures import draw  # not for executors, which load this module

    kept = "|".join(sorted(tables.partitions(SWEEP)))
    remove_figures(tables.root, rf"sweep-(?!(?:{kept})\.png).*")
    # One row for each point of a grid: hundreds.
    return draw([row.asDict() for row in summary(rows).collect()], tables.root)
