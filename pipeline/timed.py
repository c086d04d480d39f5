"""How long does each job take? Some of them in one session of this process, for who measures.

``python -m pipeline.timed`` reads a request from its input and says what happens on its output, as JSON, a
line each: ``Progress``, then ``Timed`` for each job, and ``Found`` behind the audit. What Spark itself
prints goes to the standard error.
"""

import sys
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Final, cast

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from pipeline.errors import BadSetting, PipelineError
from pipeline.runs import Job, Run
from pipeline.session import session
from pipeline.tables import RULES, VERDICTS, Tables

VERDICTS_SHOWN: Final = 1_000


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """``settings``: of the session."""

    input: str
    output: str
    jobs: tuple[str, ...]
    master: str
    settings: dict[str, str] = {}


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    words: str


class Timed(msgspec.Struct, frozen=True, tag="timed"):
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
    """``rules``: the verdict on each."""

    rules: dict[str, str]
    violations: list[Violation]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    words: str


Line = Progress | Timed | Found | Failed


def _say(line: Line) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def _progress(job: str, words: str) -> None:
    _say(Progress(f"{job}: {words}"))


def _job(name: str) -> Job:
    try:
        return cast(Job, import_module(f"pipeline.jobs.{name}"))
    except ModuleNotFoundError:
        raise BadSetting(f"jobs: there is no job {name!r}") from None


def run_jobs(spark: SparkSession, request: Request) -> None:
    tables = Tables(spark, request.output)
    run = Run(input=(request.input,), output=request.output)
    for name in request.jobs:
        job = _job(name)
        _say(Progress(f"{name} begins"))
        began = perf_counter()
        outcome = job.run(spark, tables, run, partial(_progress, name))
        _say(Timed(name, perf_counter() - began, outcome.rows, outcome.violations))
        if name == "audit":
            _say(_found(tables))


def _found(tables: Tables) -> Found:
    """One row for each rule, and so many violations that a person could read them."""
    rules = {row.rule: row.verdict for row in tables.read(RULES).collect()}
    told = tables.read(VERDICTS).orderBy("rule", fn.col("first_ts").asc_nulls_first())
    shown = told.limit(VERDICTS_SHOWN).collect()
    return Found(rules, [Violation(row.rule, row.first_ts, row.last_ts, row.words) for row in shown])


def main() -> int:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        for name in request.jobs:
            _job(name)  # before anything is started
        with session("timed", request.master, request.settings) as spark:
            run_jobs(spark, request)
    except PipelineError as error:
        _say(Failed(str(error)))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
