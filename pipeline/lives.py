"""When did each process live, which of its rows are missing, and what did it deliver again?

All of it is a few rows for each process, file and gap, and is sent to wherever rows are counted.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.recorded import PROCESS, in_chain
from pipeline.files import ROW_BITS
from pipeline.ranges import earlier, within


def lives(events: DataFrame) -> DataFrame:
    """chain, site, boot, ``began_ns``, ``ended_ns``: from the first to the last row of a process, by its wall
    clock."""
    return (
        in_chain(events)
        .groupBy(*PROCESS)
        .agg(fn.min("wall_ns").alias("began_ns"), fn.max("wall_ns").alias("ended_ns"))
    )


# -- what is missing -----------------------------------------------------------------------------


def gaps(events: DataFrame) -> DataFrame:
    """chain, site, ``began_ns``, ``ended_ns``: from where rows began to be missing up to the next that is
    there."""
    together = _told_gaps(events).unionByName(_missing_files(events))
    return in_chain(together).select(
        "chain",
        "site",
        fn.least("began_ns", "ended_ns").alias("began_ns"),
        fn.greatest("began_ns", "ended_ns").alias("ended_ns"),
    )


def _told_gaps(events: DataFrame) -> DataFrame:
    """The next row stands behind the gap's own, in its file or at the beginning of the next one."""
    told = events.where("event = 'gap'").select(
        "chain", "site", "recorder", fn.col("position").alias("gap"), fn.col("wall_ns").alias("began_ns")
    )
    next_file = fn.shiftleft(fn.shiftright("gap", ROW_BITS) + 1, ROW_BITS)
    wanted = told.select(
        "recorder", "gap", fn.explode(fn.array(fn.col("gap") + 1, next_file)).alias("position")
    )
    behind = (
        events.select("recorder", "position", "wall_ns")
        .join(fn.broadcast(wanted), ["recorder", "position"])
        .groupBy("recorder", "gap")
        .agg(fn.min_by("wall_ns", "position").alias("ended_ns"))
    )
    found = told.join(fn.broadcast(behind), ["recorder", "gap"], "left")
    return found.select("chain", "site", "began_ns", "ended_ns")


def _missing_files(events: DataFrame) -> DataFrame:
    """Between the last row of a recorder's file and the first of the next that was taken, if there is a
    number between theirs."""
    place = fn.struct("position", "wall_ns")
    spans = events.groupBy(
        "recorder", "chain", "site", fn.shiftright("position", ROW_BITS).alias("number")
    ).agg(fn.min(place).alias("first"), fn.max(place).alias("last"))
    files = spans.groupBy("recorder", "number").agg(
        fn.min("first").alias("first"), fn.max("last").alias("last")
    )
    order = within(["recorder"], ["number"])
    breaks = files.select(
        "recorder",
        (fn.col("number") - fn.lag("number").over(order)).alias("step"),
        fn.lag("last.wall_ns").over(order).alias("began_ns"),
        fn.col("first.wall_ns").alias("ended_ns"),
    ).where("step > 1")
    sites = spans.select("recorder", "chain", "site").distinct()
    return sites.join(fn.broadcast(breaks), "recorder").select("chain", "site", "began_ns", "ended_ns")


# -- what was delivered again --------------------------------------------------------------------


def reached_before(events: DataFrame) -> DataFrame:
    """chain, site, boot, ``reached_before``: the highest slot that earlier processes of the site had
    delivered. Only of those that came back."""
    last = fn.when(fn.col("event") == "delivered", fn.col("first_ts") + fn.col("count") - 1)
    known = (
        in_chain(events)
        .groupBy(*PROCESS)
        .agg(fn.min("wall_ns").alias("began_ns"), fn.max(last).alias("reached"))
    )
    before = fn.max("reached").over(earlier(within(["chain", "site"], ["began_ns", "boot"])))
    return known.select(*PROCESS, before.alias("reached_before")).where("reached_before IS NOT NULL")


def without_again(rows: DataFrame, reached: DataFrame) -> DataFrame:
    """Of delivered ranges what the site had not delivered before. What has no slot is never delivered
    again."""
    known = rows.join(fn.broadcast(reached), list(PROCESS), "left")
    again = fn.coalesce(fn.col("reached_before") + 1 - fn.col("first_ts"), fn.lit(0).cast("long"))
    again = fn.greatest(again, fn.lit(0).cast("long"))
    moved = {name: fn.col(name) + again for name in ("first_ts", "first_seq")}
    left = known.withColumns(moved | {"count": fn.col("count") - again})
    return left.where("count > 0").select(*rows.columns)
