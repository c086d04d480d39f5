"""Equal digests: replicas that have applied up to the same slot have the same state."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.recorded import in_chain
from pipeline.audit.verdicts import EQUAL_DIGESTS, hashed, judged, slots_shown, verdict
from pipeline.ranges import part_of
from pipeline.schemas import shown


def violations(events: DataFrame, width: int) -> DataFrame:
    told = fn.struct("digest", "site", "file")
    states = (
        in_chain(events)
        .where("event in ('applied', 'restored') and first_ts is not null and digest is not null")
        .select("chain", "first_ts", "digest", "site", hashed())
        .groupBy("chain", "first_ts")
        .agg(fn.min(told).alias("one"), fn.max(told).alias("other"))
        .withColumn("part", part_of(fn.col("first_ts"), width))
    )
    slot = fn.col("first_ts")
    words: list[Column | str] = [
        slots_shown(slot, slot),
        ": the state of ",
        shown(fn.col("one.site")),
        " is ",
        fn.lower(fn.hex("one.digest")),
        ", that of ",
        shown(fn.col("other.site")),
        " ",
        fn.lower(fn.hex("other.digest")),
    ]
    differs = verdict(
        EQUAL_DIGESTS,
        fn.col("one.digest") != fn.col("other.digest"),
        words=words,
        sites=[fn.col("one.site"), fn.col("other.site")],
        files=[fn.col("one.file"), fn.col("other.file")],
        first_ts=slot,
        last_ts=slot,
    )
    return judged(states, differs)
