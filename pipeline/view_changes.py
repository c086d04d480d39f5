"""How long did a change of epoch hold up a replica, and the group?

From the last delivery in the old epoch to the first in the new one. Deliveries are those that no process of
the site had made before (``pipeline.lives``).
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from pipeline.audit.recorded import PROCESS
from pipeline.ranges import within

_COLUMNS: Final = ("chain", "site", "epoch_before", "epoch", "began_ns", "ended_ns", "duration_ns")


def at_replicas(delivered: DataFrame) -> DataFrame:
    """By the monotonic clock of each process; ``began_ns`` and ``ended_ns`` are of its wall clock."""
    clocks = fn.struct("mono_ns", "wall_ns")
    epochs = delivered.groupBy(*PROCESS, "epoch").agg(
        fn.min(clocks).alias("first"), fn.max(clocks).alias("last")
    )
    order = within(PROCESS, ["epoch"])
    each = epochs.select(
        "chain", "site", fn.lag("epoch").over(order).alias("epoch_before"), "epoch",
        fn.lag("last").over(order).alias("last"), "first",
    ).select(
        "chain", "site", "epoch_before", "epoch",
        fn.col("last.wall_ns").alias("began_ns"), fn.col("first.wall_ns").alias("ended_ns"),
        (fn.col("first.mono_ns") - fn.col("last.mono_ns")).alias("duration_ns"),
    )  # fmt: skip
    return each.where("epoch_before IS NOT NULL AND duration_ns >= 0").select(*_COLUMNS)


def of_group(delivered: DataFrame) -> DataFrame:
    """By wall clocks, which are as near to each other as the machines keep them."""
    # One row for each epoch, put in order within its chain, and sent to where deliveries are.
    begun = delivered.groupBy("chain", "epoch").agg(fn.min("wall_ns").alias("ended_ns"))
    before = fn.lag("epoch").over(Window.partitionBy("chain").orderBy("epoch"))
    pairs = begun.select("chain", "epoch", "ended_ns", before.alias("epoch_before")).where(
        "epoch_before IS NOT NULL"
    )
    old = delivered.select("chain", fn.col("epoch").alias("epoch_before"), "wall_ns")
    return (
        old.join(fn.broadcast(pairs), ["chain", "epoch_before"])
        .where("wall_ns <= ended_ns")
        .groupBy("chain", "epoch_before", "epoch", "ended_ns")
        .agg(fn.max("wall_ns").alias("began_ns"))
        .withColumn("site", fn.lit(None).cast("long"))
        .withColumn("duration_ns", fn.col("ended_ns") - fn.col("began_ns"))
        .select(*_COLUMNS)
    )
