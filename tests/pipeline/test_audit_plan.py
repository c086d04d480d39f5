"""Nothing in the audit is sorted, joined or brought together over everything: its plans say so."""

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from pipeline.audit import by_slot, recorded, verdicts
from pipeline.jobs import audit, lifecycle
from pipeline.schemas import EVENTS, FILES, OPERATIONS

# How Spark names what would need one machine with room for everything.
FORBIDDEN = {
    "one partition": r"Exchange SinglePartition",
    "a global sort": r"Exchange rangepartitioning|TakeOrderedAndProject|Sort \[[^\]]*\], true",
    "every row with every other": r"CartesianProduct|BroadcastNestedLoopJoin",
    "rows through Python": r"ArrowEvalPython|BatchEvalPython|MapInPandas|FlatMapGroupsInPandas",
}


@pytest.fixture(scope="module", autouse=True)
def first_plans(spark: SparkSession) -> Iterator[None]:
    """As they are before Spark adapts them to what little there is."""
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation,"
        "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


def plan_of(rows: DataFrame) -> str:
    told = rows._jdf.queryExecution().executedPlan().toString()
    assert isinstance(told, str)
    return told


def wrong_in(rows: DataFrame) -> list[str]:
    plan = plan_of(rows)
    return [name for name, pattern in FORBIDDEN.items() if re.search(pattern, plan)]


def everything_written(spark: SparkSession) -> dict[str, DataFrame]:
    """Every table of the audit and of lifecycle, as it is written, and every layout by itself."""
    events = spark.createDataFrame([], EVENTS)
    operations = spark.createDataFrame([], OPERATIONS)
    summed = spark.createDataFrame([], by_slot.SUMS)
    holes = recorded.missing_files(events, spark.createDataFrame([], FILES))
    found = audit.violations(events, operations, summed, holes)
    kept = spark.createDataFrame([], verdicts.TOLD)
    written = {f"layout {number}": each for number, each in enumerate(found)}
    return written | {
        "sums": by_slot.sums(recorded.placed(events, 1 << 20)),
        "told": verdicts.told(found),
        "verdicts": verdicts.named(kept, events.select("file")),
        "rules": verdicts.rules(kept, audit.checked(events, operations)),
        "real time over clocks": audit.violations(events, operations, summed, holes, 1 << 20, 5.0)[-1],
        "lifecycle": lifecycle.lifecycle(events),
    }


def test_when_any_table_of_the_audit_is_written_then_no_step_needs_everything_in_one_place(
    spark: SparkSession,
) -> None:
    written = everything_written(spark)
    assert len(written) >= 13
    for name, rows in written.items():
        assert wrong_in(rows) == [], f"{name}:\n{plan_of(rows)}"
        assert "hashpartitioning" in plan_of(rows), name


def test_when_ranges_are_compared_then_they_are_shuffled_once(spark: SparkSession) -> None:
    """Both orders of a layout are had from one exchange; all others are of sums, and sent to all."""
    placed = recorded.placed(spark.createDataFrame([], EVENTS), 1 << 20)
    plan = plan_of(by_slot.compared(placed))
    assert len(re.findall(r"Exchange hashpartitioning\(chain#\d+L, part#\d+L,", plan)) == 1, plan


def test_when_a_plan_needs_everything_in_one_place_then_it_is_rejected(spark: SparkSession) -> None:
    events = spark.createDataFrame([], EVENTS)
    other = spark.createDataFrame([], FILES)
    number = fn.row_number().over(Window.orderBy("position"))
    for wrong, rows in {
        "one partition": events.agg(fn.max("position")),
        "a global sort": events.orderBy("position"),
        "every row with every other": events.join(other, events["position"] > other["number"]),
    }.items():
        assert wrong in wrong_in(rows), plan_of(rows)
    assert wrong_in(events.withColumn("n", number))
    upper = fn.udf(lambda word: word.upper())
    assert wrong_in(events.select(upper("event"))) == ["rows through Python"]
