"""Exactly once: all answers to a request name one slot, and no other request's answer names that slot."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.calls import request_shown
from pipeline.audit.verdicts import EXACTLY_ONCE, judged, verdict
from pipeline.ranges import part_of


def violations(answered: DataFrame, width: int) -> DataFrame:
    return _one_slot(answered, width).unionByName(_one_request(answered))


def _one_slot(answered: DataFrame, width: int) -> DataFrame:
    told = fn.struct("ts", "file")
    requests = (
        answered.groupBy("chain", "client", "request")
        .agg(fn.min(told).alias("one"), fn.max(told).alias("other"))
        .withColumn("part", part_of(fn.col("one.ts"), width))
    )
    twice = verdict(
        EXACTLY_ONCE,
        fn.col("one.ts") != fn.col("other.ts"),
        words=[
            "request ",
            request_shown(),
            ": executed at slot ",
            fn.col("one.ts"),
            " and at ",
            fn.col("other.ts"),
        ],
        sites=[fn.col("client")],
        files=[fn.col("one.file"), fn.col("other.file")],
        first_ts=fn.col("one.ts"),
        last_ts=fn.col("other.ts"),
    )
    return judged(requests, twice)


def _one_request(answered: DataFrame) -> DataFrame:
    told = fn.struct("client", "request", "file")
    slots = answered.groupBy("chain", "part", "ts").agg(
        fn.min(told).alias("one"), fn.max(told).alias("other")
    )
    is_same = (fn.col("one.client") == fn.col("other.client")) & (
        fn.col("one.request") == fn.col("other.request")
    )
    shared = verdict(
        EXACTLY_ONCE,
        ~is_same,
        words=[
            "slot ",
            fn.col("ts"),
            ": answers request ",
            request_shown("one."),
            " and ",
            request_shown("other."),
        ],
        sites=[fn.col("one.client"), fn.col("other.client")],
        files=[fn.col("one.file"), fn.col("other.file")],
        first_ts=fn.col("ts"),
        last_ts=fn.col("ts"),
    )
    return judged(slots, shared)
