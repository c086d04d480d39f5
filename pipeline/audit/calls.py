"""Which calls took part in the order? Commands whose reply names a slot. Which can be put
beside others in time?"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.verdicts import hashed
from pipeline.ranges import part_of
from pipeline.schemas import shown


def answered(operations: DataFrame, width: int) -> DataFrame:
    return (
        operations.where("chain <> 0 and kind = 'command' and ts is not null")
        .select("chain", "client", "request", "call_ns", "return_ns", "wall_ns", "ts", "recorder", hashed())
        .withColumn("part", part_of(fn.col("ts"), width))
    )


def timed(operations: DataFrame, width: int) -> DataFrame:
    """Commands, and queries that had to see all that was answered before, with the slot of the state that
    they saw. ``place`` orders them; a query stands behind the command of its slot."""
    kind = fn.col("kind")
    return (
        operations.where("chain <> 0 and kind in ('command', 'query')")
        .where("ts is not null and return_ns is not null")
        .select(
            *("chain", "client", "request", "kind", "call_ns", "return_ns", "wall_ns", "ts"),
            fn.coalesce("clock", "recorder").alias("clock"),
            (2 * fn.col("ts") + fn.when(kind == "query", 1).otherwise(0)).alias("place"),
            hashed(),
        )
        .withColumn("part", part_of(fn.col("ts"), width))
    )


def request_shown(prefix: str = "") -> Column:
    return fn.concat(shown(fn.col(f"{prefix}client")), fn.lit(":"), fn.col(f"{prefix}request").cast("string"))
