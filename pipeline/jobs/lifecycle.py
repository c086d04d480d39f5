"""What became of each range of messages: submitted, delivered at each replica, held, applied, replied.

Two things are put beside deliveries. By number, in (chain, source, part): what its source submitted and
answered. Rows of the source itself are cut where another submission or reply begins, so that what is told of
a row is true of each of its messages. By slot, in (chain, part): how far each process was and when, for
*held*, *majority*, *stable* and *applied* only grow, so the time at which a slot was reached is the least
time told at that slot or behind it. A row has the time at which its last slot was reached. Ranges that cross
the boundary of a part are two rows.
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
    told = with_submissions(in_parts(deliveries(events), width), events, width)
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


def in_parts(rows: DataFrame, width: int) -> DataFrame:
    """Cut at the boundaries of parts of the slots."""
    last = fn.col("first_ts") + fn.col("count") - 1
    ranges = rows.withColumns({"first": fn.col("first_ts"), "last": last})
    return _taken_out(cut(ranges, width), fn.col("first") - fn.col("first_ts")).select(*rows.columns)


def _taken_out(rows: DataFrame, offset: Column) -> DataFrame:
    """Of each range what lies from ``first`` to ``last``, which is ``offset`` messages behind its begin."""
    return rows.withColumns(
        {
            "first_ts": fn.col("first_ts") + offset,
            "first_seq": fn.col("first_seq") + offset,
            "count": fn.col("last") - fn.col("first") + 1,
        }
    )


# -- by number -----------------------------------------------------------------------------------


def with_submissions(rows: DataFrame, events: DataFrame, width: int) -> DataFrame:
    """When the source submitted a range, for whom, and when it replied. Rows of the source itself are cut, so
    that this is true of each message, and have times of the process that delivers alone. Rows of others have
    the times of their first message."""
    told = _told_of_numbers(events, width)
    is_own = fn.col("site") == fn.col("source")
    own = _cut_as_told(rows.where(is_own), told, width)
    return own.unionByName(_with_first(rows.where(~is_own), told, width))


def _told_of_numbers(events: DataFrame, width: int) -> DataFrame:
    """What each process submitted (``submission``) and answered itself (``reply``), by number, cut."""
    numbers = {
        "first": fn.col("first_seq"),
        "given": fn.col("first_seq"),
        "last": fn.col("first_seq") + fn.col("count") - 1,
    }
    submitted = (
        events.where(is_submission() & (fn.col("count") > 0))
        .drop("chain")
        .join(fn.broadcast(processes(events)), ["site", "boot"])  # as many as there were boots
        .withColumn("is_reply", fn.lit(False))
    )
    replied = (
        in_chain(events)
        .where("event = 'replied' and source = site and first_ts is not null and count > 0")
        .withColumn("is_reply", fn.lit(True))
    )
    told = cut(submitted.unionByName(replied).withColumns(numbers), width)
    about = fn.struct("first", "wall_ns", "last", "mono_ns", "given", "session", "first_request")
    return told.select(
        "chain",
        fn.col("site").alias("source"),
        "boot",
        "part",
        "first",
        "last",
        fn.when(~fn.col("is_reply"), about).alias("submission"),
        fn.when(fn.col("is_reply"), about).alias("reply"),
    )


def _cut_as_told(rows: DataFrame, told: DataFrame, width: int) -> DataFrame:
    """Every message is in one *stretch* of numbers, of which one thing is told. A range is cut into as many
    as it touches: it knows their places in the order of its part, and meets each by its place."""
    keys = ["chain", "source", "boot", "part"]
    stretches = _stretches(told, keys, width)
    begins = stretches.select(*keys, fn.col("begin").alias("first"), fn.col("begin").alias("last"))
    ranges = rows.withColumns(
        {"first": fn.col("first_seq"), "last": fn.col("first_seq") + fn.col("count") - 1}
    )
    ranges = cut(ranges, width).withColumn("is_range", fn.lit(True))
    side = ranges.unionByName(begins, allowMissingColumns=True)
    begun = fn.count(fn.when(fn.col("is_range").isNull(), 1))
    at_first, at_last = (begun.over(within(keys, [place])) for place in ("first", "last"))
    touched = side.select("*", at_first.alias("low"), at_last.alias("high")).where("is_range")
    met = touched.withColumn("place", fn.explode(fn.sequence("low", "high"))).join(
        stretches, [*keys, "place"], "left"
    )
    pieces = met.withColumns({"first": fn.greatest("first", "begin"), "last": fn.least("last", "end")})
    return _with_times(_taken_out(pieces, fn.col("first") - fn.col("first_seq")), rows.columns)


def _stretches(told: DataFrame, keys: list[str], width: int) -> DataFrame:
    """From ``begin`` to ``end`` the same submission and reply, or none; together they are whole parts, and
    in each they are numbered."""
    none = told.schema["submission"].dataType
    nothing = (fn.lit(None).cast(none).alias("submission"), fn.lit(None).cast(none).alias("reply"))
    part_begin = fn.col("part") * fn.lit(width).cast("long")
    points = fn.array(
        fn.struct(fn.col("first").alias("begin"), "submission", "reply"),
        fn.struct((fn.col("last") + 1).alias("begin"), *nothing),
        fn.struct(part_begin.alias("begin"), *nothing),
    )
    marked = told.select(*keys, fn.inline(points)).where(part_of(fn.col("begin"), width) == fn.col("part"))
    order = within(keys, ["begin"])
    known = marked.select(
        *keys,
        "begin",
        (fn.lead("begin").over(order) - 1).alias("end"),
        fn.max("submission").over(order).alias("submission"),
        fn.max("reply").over(order).alias("reply"),
    ).where("end is null or end >= begin")
    return known.withColumn("place", fn.row_number().over(order).cast("long"))


def _with_first(rows: DataFrame, told: DataFrame, width: int) -> DataFrame:
    """What is told of the first message of each range."""
    ranges = rows.withColumns({"first": fn.col("first_seq"), "is_range": fn.lit(True)})
    ranges = ranges.withColumn("part", part_of(fn.col("first"), width))
    given = told.drop("boot", "last").withColumn("is_range", fn.lit(False))
    side = ranges.unionByName(given, allowMissingColumns=True).repartition("chain", "source", "part")
    spec = so_far(within(["chain", "source", "part"], ["first", "is_range"]))
    newest = {name: fn.max(name).over(spec) for name in ("submission", "reply")}
    return _with_times(side.withColumns(newest).where("is_range"), rows.columns)


def _with_times(rows: DataFrame, columns: list[str]) -> DataFrame:
    """As far as what is told reaches."""
    is_submitted = fn.col("submission.last") >= fn.col("first")
    is_first = is_submitted & (fn.col("submission.given") == fn.col("first"))
    is_replied = fn.col("reply.last") >= fn.col("first")
    return rows.select(
        *columns,
        fn.when(is_submitted, fn.col("submission.mono_ns")).alias("submitted_ns"),
        fn.when(is_first, fn.col("submission.session")).alias("session"),
        fn.when(is_first, fn.col("submission.first_request")).alias("first_request"),
        fn.when(is_replied, fn.col("reply.mono_ns")).alias("replied_ns"),
    )


# -- by slot -------------------------------------------------------------------------------------


def with_progress(rows: DataFrame, events: DataFrame, width: int) -> DataFrame:
    """When the process had all of a range held, a majority holding it, stable, applied. Ranges lie within
    parts."""
    ranges = rows.withColumns(
        {
            "last": fn.col("first_ts") + fn.col("count") - 1,
            "part": part_of(fn.col("first_ts"), width),
            "kind": fn.lit("range"),
        }
    )
    points = _points(events).withColumn("part", part_of(fn.col("last"), width))
    side = ranges.unionByName(points, allowMissingColumns=True).repartition("chain", "part")
    reached = {f"{kind}_ns": _when(kind, fn.col("mono_ns")) for kind in _PROGRESS}
    known = least_behind(side, PROCESS, "last", reached, with_here=True).where("kind = 'range'")
    final = fn.when(fn.col("is_final"), fn.col("delivered_ns"))
    return known.withColumn("majority_ns", fn.least(fn.col("majority_ns"), final))


def _when(kind: str, value: Column) -> Column:
    return fn.when(fn.col("kind") == kind, value)


def _points(events: DataFrame) -> DataFrame:
    """How far a process was, and when."""
    stable = fn.regexp_extract(fn.coalesce("detail", fn.lit("")), r"^stable (\d{1,18})$", 1)
    kinds = (
        ("held", "event = 'held'", fn.col("first_ts")),
        ("majority", "event = 'level'", fn.col("first_ts")),
        ("stable", "event = 'level'", fn.when(stable != "", stable.cast("long"))),
        ("applied", "event = 'applied'", fn.col("first_ts")),
    )
    each = fn.array_compact(
        fn.array(
            *(
                fn.when(
                    fn.expr(condition) & slot.isNotNull(),
                    fn.struct(fn.lit(kind).alias("kind"), slot.alias("last")),
                )
                for kind, condition, slot in kinds
            )
        )
    )
    told = in_chain(events).where("event in ('held', 'level', 'applied')")
    return told.select(*PROCESS, "mono_ns", fn.inline(each))
