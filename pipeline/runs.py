"""What a job is given and what it comes to."""

from collections.abc import Callable
from typing import Protocol

import msgspec
from pyspark.sql import SparkSession

from pipeline.tables import Tables


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``input``: folders with recordings, or what the job says; ``output``: below it are the tables."""

    input: tuple[str, ...] = ()
    output: str
    options: dict[str, str] = {}


class Outcome(msgspec.Struct, kw_only=True):
    """``rows``: of each table that was written. ``violations``: the exit code is 1 if there are any.
    ``words``: for people, one line each. ``figures``: files beside the tables."""

    rows: dict[str, int] = {}
    violations: int = 0
    words: list[str] = []
    figures: list[str] = []


Step = Callable[[str], None]


class Job(Protocol):
    """A module of ``pipeline.jobs``. ``NEEDS``: jobs whose tables it reads, which are run before it if
    those are missing."""

    NEEDS: tuple[str, ...]

    def run(self, spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
        """``step``: say what is being done."""
