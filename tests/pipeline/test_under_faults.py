"""What real processes record while they are killed goes through every job, and accuses nobody."""

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from bench.chaos.failpoints import Role
from bench.chaos.plan import make_plan
from bench.chaos.rounds import Played, play
from pipeline import tables as at
from pipeline.running import Done, run_job
from pipeline.runs import Run
from pipeline.tables import Tables
from tests.bench.test_chaos import seed_with

ROLES = (Role.TOKEN_SITE, Role.DONOR)  # a donor has somebody to give a state to


@pytest.fixture(scope="module")
def round_(tmp_path_factory: pytest.TempPathFactory) -> tuple[Played, Path]:
    """A store behind two gateways."""
    folder = tmp_path_factory.mktemp("chaos")
    plan = make_plan(seed_with(*ROLES), 3, 60.0, http=True)
    shorter = msgspec.structs.replace(plan, callers=1, faults_max=len(ROLES))
    return play(shorter, folder / "rounds", folder / "recordings"), folder


def done(spark: SparkSession, folder: Path, job: str, **options: str) -> Done:
    given = Run(input=(str(folder / "recordings"),), output=str(folder / "out"), options=options)
    return run_job(spark, job, given, lambda words: None)


def test_when_sites_are_killed_then_their_recording_goes_through_all_jobs(
    spark: SparkSession, round_: tuple[Played, Path]
) -> None:
    played, folder = round_
    assert played.problems == []
    assert set(played.tally.kills) >= set(ROLES)
    assert list((folder / "rounds").iterdir()) == []
    audited = done(spark, folder, "audit")
    tables = Tables(spark, str(folder / "out"))
    verdicts = [row.asDict() for row in tables.read(at.VERDICTS).collect()]
    assert verdicts == []
    assert audited.violations == 0
    ingested = audited.before[0].rows
    assert min(ingested[name] for name in ("bronze/events", "bronze/operations", "bronze/changes")) > 50
    quality = tables.read(at.QUALITY).where("severity = 'error'").collect()
    assert [row.asDict() for row in quality] == []
    assert done(spark, folder, "lifecycle").rows["silver/lifecycle"] > 50
    assert done(spark, folder, "metrics", window_s="0.5").rows["gold/view_changes"] > 0
    assert done(spark, folder, "history").rows["gold/kv_changes"] > 50
    done(spark, folder, "report")
    assert (folder / "out" / "report.html").stat().st_size > 10_000


def test_when_it_is_read_as_a_stream_then_it_accuses_nobody_either(
    spark: SparkSession, round_: tuple[Played, Path]
) -> None:
    _, folder = round_
    streamed = done(spark, folder, "stream", once="true")
    assert streamed.violations == 0
