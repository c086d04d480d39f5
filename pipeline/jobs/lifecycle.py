"""What became of each range of messages: submitted, delivered at each replica, held, applied, replied.

Three things are put side by side. By number, in (chain, source, part): what its source submitted. By slot, in
(chain, part): how far each process was and when, for *held*, *majority*, *stable* and *applied* only grow, so
the time at which a slot was reached is the least time told at that slot or behind it; and when the source
had its reply. Ranges that cross the boundary of a part are two rows.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from pipeline import tables as at
from pipeline.audit.recorded import PROCESS, in_chain, is_final, is_submission, processes
from pipeline.ranges import PART, cut, least_behind, part_of, so_far, within
from pipeline.runs import Outcome, Run, Step
from pipeline.schemas import LIFECYCLE
from pipeline.tables import Tables

NEEDS: Final = ("ingest",)
_PROGRESS: Final = ("held", "majority", "stable", "applied")


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    step("lifecycle of every range")
    tables.write(at.LIFECYCLE, lifecycle(tables.read(at.EVENTS)))
    counted = tables.read(at.LIFECYCLE).groupBy("chain", "site").count()
    rows = sum(row["count"] for row in counted.collect())  # one row for each replica
    return Outcome(rows={at.LIFECYCLE.path: rows}, words=[f"{rows:,} ranges of messages"])


def lifecycle(events: DataFrame, width: int = PART) -> DataFrame:
    """As ``schemas.LIFECYCLE``."""
    told = with_submissions(deliveries(events), events, width)
    taken = with_progress(told, events, width)
    return taken.select(*LIFECYCLE.fieldNames())


def deliveries(events: DataFrame) -> DataFrame:
    rows = in_chain(events).where("event = 'delivered' and first_ts is not null and count > 0")
    return rows.select(
        *PROCESS,
        "first_ts",
        "count",
        "source",
        "first_seq",
        "qos",
        "epoch",
        "revision",
        fn.col("detail").alias("level"),
        fn.col("mono_ns").alias("delivered_ns"),
        fn.col("wall_ns").alias("delivered_wall_ns"),
        is_final().alias("is_final"),
    )


# -- by number -----------------------------------------------------------------------------------


def with_submissions(rows: DataFrame, events: DataFrame, width: int) -> DataFrame:
    """When the source submitted the first message of a range, and for whom."""
    submitted = (
        events.where(is_submission() & (fn.col("count") > 0))
        .select(
            "site",
            "boot",
            fn.col("first_seq").alias("given"),
            fn.col("first_seq").alias("first"),
            (fn.col("first_seq") + fn.col("count") - 1).alias("last"),
            "wall_ns",
            "mono_ns",
            "session",
            "first_request",
        )
        .join(fn.broadcast(processes(events)), ["site", "boot"])  # as many as there were boots
        .withColumnRenamed("site", "source")
        .drop("boot")
    )
    told = rows.withColumns({"is_delivered": fn.lit(True), "first": fn.col("first_seq")})
    told = told.withColumn("part", part_of(fn.col("first"), width))
    gave = cut(submitted, width).withColumn("is_delivered", fn.lit(False))
    side = told.unionByName(gave, allowMissingColumns=True).repartition("chain", "source", "part")
    spec = so_far(within(["chain", "source", "part"], ["first", "is_delivered"]))
    submission = fn.when(
        ~fn.col("is_delivered"),
        fn.struct("first", "wall_ns", "last", "mono_ns", "given", "session", "first_request"),
    )
    joined = side.withColumn("was", fn.max(submission).over(spec)).where("is_delivered")
    covers = fn.col("was.last") >= fn.col("first")
    is_first = covers & (fn.col("was.given") == fn.col("first"))
    return joined.select(
        *rows.columns,
        fn.when(covers, fn.col("was.mono_ns")).alias("submitted_ns"),
        fn.when(is_first, fn.col("was.session")).alias("session"),
        fn.when(is_first, fn.col("was.first_request")).alias("first_request"),
    )


# -- by slot -------------------------------------------------------------------------------------


def with_progress(rows: DataFrame, events: DataFrame, width: int) -> DataFrame:
    """When the process had all of a range held, a majority holding it, stable, applied; and when its source
    had the first reply in it."""
    ranges = rows.withColumns(
        {
            "first": fn.col("first_ts"),
            "last": fn.col("first_ts") + fn.col("count") - 1,
            "kind": fn.lit("range"),
        }
    )
    ranges = cut(ranges, width)
    offset = fn.col("first") - fn.col("first_ts")
    is_whole = offset == 0
    ranges = ranges.withColumns(
        {
            "first_ts": fn.col("first"),
            "first_seq": fn.col("first_seq") + offset,
            "count": fn.col("last") - fn.col("first") + 1,
            "session": fn.when(is_whole, fn.col("session")),
            "first_request": fn.when(is_whole, fn.col("first_request")),
        }
    )
    points = _points(events).withColumn("part", part_of(fn.col("first"), width))
    side = ranges.unionByName(points, allowMissingColumns=True).repartition("chain", "part")
    reached = {f"{kind}_ns": _when(kind, fn.col("mono_ns")) for kind in _PROGRESS}
    known = least_behind(side, PROCESS, "last", reached, with_here=True)
    replied = {"reply": _when("replied", fn.struct("first", "mono_ns"))}
    known = least_behind(known, ["chain", "source"], "first", replied, with_here=True).where("kind = 'range'")
    in_range = fn.col("reply.first") <= fn.col("last")
    final = fn.when(fn.col("is_final"), fn.col("delivered_ns"))
    return known.withColumns(
        {
            "replied_ns": fn.when(in_range, fn.col("reply.mono_ns")),
            "majority_ns": fn.least(fn.col("majority_ns"), final),
        }
    )


def _when(kind: str, value: Column) -> Column:
    return fn.when(fn.col("kind") == kind, value)


def _points(events: DataFrame) -> DataFrame:
    """How far a process was, and when; and replies of sources, which have the clock of what they
    submitted."""
    stable = fn.regexp_extract(fn.coalesce("detail", fn.lit("")), r"^stable (\d{1,18})$", 1)
    kinds = (
        ("held", "event = 'held'", fn.col("first_ts")),
        ("majority", "event = 'level'", fn.col("first_ts")),
        ("stable", "event = 'level'", fn.when(stable != "", stable.cast("long"))),
        ("applied", "event = 'applied'", fn.col("first_ts")),
        ("replied", "event = 'replied' and source = site", fn.col("first_ts")),
    )
    each = fn.array_compact(
        fn.array(
            *(
                fn.when(
                    fn.expr(condition) & slot.isNotNull(),
                    fn.struct(fn.lit(kind).alias("kind"), slot.alias("first")),
                )
                for kind, condition, slot in kinds
            )
        )
    )
    told = in_chain(events).where("event in ('held', 'level', 'applied', 'replied')")
    points = told.select(
        *PROCESS,
        fn.when(fn.col("event") == "replied", fn.col("source")).alias("source"),
        "mono_ns",
        fn.inline(each),
    )
    return points.withColumn("last", fn.col("first"))
