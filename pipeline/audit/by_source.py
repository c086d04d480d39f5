"""Ranges side by side, in (chain, source, part of its sequence numbers): one shuffle, two orders.

In order of numbers what was delivered is held against what was submitted: ``reach`` is the last number
submitted at or before the end of a range, ``hole`` the last number before it that was not. In the order of
one process every range gets the one before it, also of the parts before.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from pipeline.ranges import before, cut, earlier, so_far, within


def numbered(delivered: DataFrame, submitted: DataFrame, numbering: DataFrame, width: int) -> DataFrame:
    """Every delivered range with ``reach``, ``hole``, ``prev`` and the ``numbering`` of its source. Only
    those that anybody could object to."""
    told = cut(delivered.withColumn("is_delivered", fn.lit(True)), width)
    gave = cut(submitted, width).withColumns({"source": fn.col("site"), "is_delivered": fn.lit(False)})
    side = told.unionByName(gave, allowMissingColumns=True).withColumn(
        "place", fn.when(fn.col("is_delivered"), fn.col("last")).otherwise(fn.col("first"))
    )
    key = ("chain", "source", "part")
    by_number = within(key, ["place", "is_delivered"])
    by_process = within([*key, "site", "boot"], ["first", fn.col("first") + fn.col("shift")])
    given = fn.when(~fn.col("is_delivered"), fn.col("last"))
    start = fn.col("part") * fn.lit(width).cast("long")
    skipped = ~fn.col("is_delivered") & (fn.col("first") > fn.coalesce(fn.col("reach") + 1, start))
    ranges = (
        side.repartition(*key)
        .withColumn("reach", fn.max(given).over(earlier(by_number)))
        .withColumn("hole", fn.max(fn.when(skipped, fn.col("first") - 1)).over(so_far(by_number)))
        .withColumn("prev", fn.max(_end()).over(earlier(by_process)))
        .where("is_delivered")
    )
    carried = fn.broadcast(_carried(told, key))
    ranges = ranges.join(carried, [*key, "site", "boot"], "left").withColumn(
        "prev", fn.coalesce("prev", "came_from")
    )
    uncovered = (
        fn.col("reach").isNull() | (fn.col("reach") < fn.col("last")) | (fn.col("hole") >= fn.col("first"))
    )
    turned = fn.col("first") + fn.col("shift") < fn.col("prev.last") + fn.col("prev.shift")
    repeated = fn.col("prev.last") >= fn.col("first")
    return ranges.where(uncovered | turned | repeated).join(
        fn.broadcast(numbering), ["chain", "source"], "left"
    )


def _end() -> Column:
    """The end of a range, to find the last: of those with one number the one at the smallest slot."""
    return fn.when(
        fn.col("is_delivered"),
        fn.struct("last", (-fn.col("shift")).alias("minus_shift"), "shift", "first", "file"),
    )


def _carried(told: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """One row for each part of a source's numbers and process: the last range of the parts before."""
    sums = told.groupBy(*key, "site", "boot").agg(fn.max(_end()).alias("end"))
    held = ("chain", "source", "site", "boot")
    return before(sums, held, {"came_from": fn.max("end")}).drop("end")
