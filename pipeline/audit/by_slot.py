"""Ranges side by side, in (chain, part of the slots): one shuffle, two orders.

In order of their beginnings every range gets the one before it that reaches *farthest*. That is enough to
find whether any two disagree: let A and B overlap and differ, B begin last, and M be the farthest before B.
M begins before B and reaches at least as far as A, so it overlaps both. If M differs from B, that is found
at B. If not, it differs from A, and both begin before B: the same again, with fewer rows left.

In the order of one process every range gets what that process had before, and so the *hole* in front of it.
A hole is worth a look only if another's promise reaches into it, and that is what the farthest one says
that begins below.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.audit.recorded import PROCESS
from pipeline.ranges import before, behind, below, earlier, part_of, within


def _longs(*names: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in names])


SUMS: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("site", LongType(), False),
        StructField("boot", LongType(), False),
        StructField("part", LongType(), False),
        StructField("first_message", LongType()),
        StructField("last_message", LongType()),
        StructField("last_view", LongType()),
        StructField("head", _longs("first", "position")),
        StructField("tail", _longs("last", "position")),
        StructField("message_tail", _longs("last", "position")),
        StructField("promised", _longs("last", "first", "site", "file")),
    ]
)
_SEEN: Final = ("last", "is_message", "first", "source", "shift", "epoch", "revision", "site", "file")


def _if(condition: str, *columns: str) -> Column:
    return fn.when(fn.expr(condition), fn.struct(*columns))


def compared(placed: DataFrame) -> DataFrame:
    """Every range with ``far`` (of all promises, the farthest before it), ``below`` (the farthest message
    that begins at a smaller slot), ``own`` (the farthest of its process before it), ``own_message`` and
    ``own_promise`` likewise. Only those that anybody could object to."""
    side = placed.repartition("chain", "part")
    by_first = within(["chain", "part"], ["first"])
    by_process = within(["chain", "part", "site", "boot"], ["first"])
    message = "is_message and is_promise"
    ranges = side.withColumns(
        {
            "far": fn.max(_if("is_promise", *_SEEN)).over(earlier(by_first)),
            "below": fn.max(_if(message, "last", "first", "site", "file")).over(below(by_first)),
        }
    ).withColumns(
        {
            "own": fn.max(fn.struct("last", "position")).over(earlier(by_process)),
            "own_message": fn.max(_if("is_message", "last", "position")).over(earlier(by_process)),
            "own_promise": fn.max(_if(message, "last", "first", "file", "position")).over(
                earlier(by_process)
            ),
        }
    )
    overlaps = fn.col("is_promise") & (fn.col("far.last") >= fn.col("first"))
    differs = ~(
        fn.col("far.is_message").eqNullSafe(fn.col("is_message"))
        & fn.col("far.source").eqNullSafe(fn.col("source"))
        & fn.col("far.shift").eqNullSafe(fn.col("shift"))
        & fn.col("far.epoch").eqNullSafe(fn.col("epoch"))
        & fn.col("far.revision").eqNullSafe(fn.col("revision"))
    )
    repeats = fn.expr(message) & is_repeated()
    had = fn.col("own.last")
    lacks = had.isNull() | ((had + 1 < fn.col("first")) & (fn.col("below.last") > had))
    return ranges.where((overlaps & differs) | repeats | lacks)


def is_repeated() -> Column:
    """Whether its process had told of the same slot. What is in the same place of another file is the same
    row: somebody has copied a recording that was not at its end."""
    is_copy = (fn.col("own_promise.position") == fn.col("position")) & (
        fn.col("own_promise.file") != fn.col("file")
    )
    return (fn.col("own_promise.last") >= fn.col("first")) & ~is_copy


def sums(placed: DataFrame) -> DataFrame:
    """One row for each process and part."""
    message, view = "is_message", "not is_message"
    return placed.groupBy(*PROCESS, "part").agg(
        fn.min(fn.when(fn.expr(message), fn.col("first"))).alias("first_message"),
        fn.max(fn.when(fn.expr(message), fn.col("last"))).alias("last_message"),
        fn.max(fn.when(fn.expr(view), fn.col("last"))).alias("last_view"),
        fn.min(fn.struct("first", "position")).alias("head"),
        fn.max(fn.struct("last", "position")).alias("tail"),
        fn.max(_if(message, "last", "position")).alias("message_tail"),
        fn.max(_if("is_message and is_promise", "last", "first", "site", "file")).alias("promised"),
    )


def spans(summed: DataFrame, breaks: DataFrame, width: int) -> DataFrame:
    """One row for each process and each part from its first message to its last message or view, also if it
    has nothing in that part: what it must have there (``low`` to ``high``), where it was before and behind,
    and the last promise of anybody in that part."""
    whole = (
        summed.groupBy(*PROCESS)
        .agg(
            fn.min("first_message").alias("begin"),
            fn.max("last_message").alias("last_delivered"),
            fn.max("last_view").alias("last_installed"),
        )
        .where("begin is not null")
        .withColumn("end", fn.greatest("last_delivered", "last_installed"))
    )
    touched = fn.sequence(part_of(fn.col("begin"), width), part_of(fn.col("end"), width))
    grid = whole.withColumn("part", fn.explode(touched)).join(
        summed.select(*PROCESS, "part", "head", "tail", "message_tail"), [*PROCESS, "part"], "left"
    )
    grid = before(grid, PROCESS, {"came_from": fn.max("tail"), "heard_from": fn.max("message_tail")})
    grid = behind(grid, PROCESS, {"went_to": fn.min("head")})
    by_part = summed.groupBy("chain", "part").agg(fn.max("promised").alias("promised"))
    start = fn.col("part") * fn.lit(width).cast("long")
    return (
        grid.join(by_part, ["chain", "part"], "left")
        .join(breaks, ["site", "boot"], "left")
        .withColumn("low", fn.greatest(fn.col("begin"), start))
        .withColumn("high", fn.least(fn.col("end"), start + fn.lit(width - 1).cast("long")))
    )
