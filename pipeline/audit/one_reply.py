"""One reply: whoever answers a request, however often, says the same."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.calls import request_shown
from pipeline.audit.verdicts import ONE_REPLY, hashed, judged, verdict
from pipeline.ranges import part_of


def violations(operations: DataFrame, width: int) -> DataFrame:
    told = fn.struct("reply", "ts", "file")
    requests = (
        replied(operations)
        .select("chain", "client", "request", "reply", "ts", hashed())
        .groupBy("chain", "client", "request")
        .agg(fn.min(told).alias("one"), fn.max(told).alias("other"))
        .withColumn("slot", fn.least("one.ts", "other.ts"))
        .withColumn("part", fn.coalesce(part_of(fn.col("slot"), width), fn.lit(0).cast("long")))
    )
    differs = verdict(
        ONE_REPLY,
        fn.col("one.reply") != fn.col("other.reply"),
        words=[
            "request ",
            request_shown(),
            ": one reply is ",
            fn.lower(fn.hex("one.reply")),
            ", another ",
            fn.lower(fn.hex("other.reply")),
        ],
        sites=[fn.col("client")],
        files=[fn.col("one.file"), fn.col("other.file")],
        first_ts=fn.col("slot"),
        last_ts=fn.greatest("one.ts", "other.ts"),
    )
    return judged(requests, differs)


def replied(operations: DataFrame) -> DataFrame:
    return operations.where("chain <> 0 and kind = 'command' and reply is not null")
