"""No metric needs everything in one place: the plans say so, as those of the audit do."""

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline import lives
from pipeline.jobs import lifecycle, metrics
from pipeline.schemas import EVENTS, LIFECYCLE, VIEW_CHANGES
from tests.pipeline.test_audit_plan import first_plans, plan_of, wrong_in

__all__ = ["first_plans"]  # for all tests here

SECOND = 1_000_000_000
THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"


@pytest.fixture
def unasked(spark: SparkSession) -> Iterator[None]:
    """Spark sends nothing to all by itself, as it would where a table is small."""
    before = spark.conf.get(THRESHOLD)
    assert before is not None
    spark.conf.set(THRESHOLD, "-1")
    yield
    spark.conf.set(THRESHOLD, before)


def everything_written(spark: SparkSession) -> dict[str, DataFrame]:
    events = spark.createDataFrame([], EVENTS)
    rows = spark.createDataFrame([], LIFECYCLE)
    changes = spark.createDataFrame([], VIEW_CHANGES)
    return {
        "lifecycle": lifecycle.lifecycle(events),
        "metrics": metrics.metrics(events, rows, changes, SECOND),
        "view changes": metrics.view_changes(events),
        "quality": metrics.quality(events, rows, SECOND),
        "marks": metrics.marks(events, SECOND),
        "names": metrics.names(events),
        "lives": lives.lives(events),
        "gaps": lives.gaps(events),
    }


def test_when_metrics_are_written_then_no_step_needs_everything_in_one_place(spark: SparkSession) -> None:
    for name, rows in everything_written(spark).items():
        assert wrong_in(rows) == [], f"{name}:\n{plan_of(rows)}"
        assert "hashpartitioning" in plan_of(rows), name


def test_when_deliveries_meet_what_is_told_of_processes_and_epochs_then_they_are_not_shuffled_for_it(
    spark: SparkSession, unasked: None
) -> None:
    """What there is a row of for each process or epoch is sent to where deliveries are."""
    joins = re.findall(r"(\w+Join) \[", plan_of(everything_written(spark)["view changes"]))
    assert len(joins) >= 3
    assert set(joins) == {"BroadcastHashJoin"}


def test_when_own_deliveries_are_cut_then_no_key_is_that_of_a_whole_source(spark: SparkSession) -> None:
    """Numbers meet in a part, and stretches by their places in it."""
    plan = plan_of(everything_written(spark)["lifecycle"])
    keys = [
        re.findall(r"(\w+)#", found) for found in re.findall(r"Exchange hashpartitioning\(([^)]*)\)", plan)
    ]
    about_numbers = [found for found in keys if "source" in found]
    assert ["chain", "source", "boot", "part", "place"] in about_numbers
    assert all("part" in found for found in about_numbers)
