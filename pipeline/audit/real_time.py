"""Real time: who returned before another was called stands before it. A query stands behind the slot of the
state that it saw; so one that had to be linearizable and was not has missed a command that had returned.

Times are the caller's, so calls are compared within one clock, that of a machine since its start. Whoever
knows how far the clocks of several are apart at most may say so (``clock_error_ms``): then they are compared
by wall clock, with that allowance.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.calls import request_shown
from pipeline.audit.verdicts import REAL_TIME, judged, verdict
from pipeline.ranges import least_behind

_MS = 1_000_000


def violations(timed: DataFrame, clock_error_ms: float | None) -> DataFrame:
    """Of all calls behind a place the one that returned first: did it return before this was called?"""
    if clock_error_ms is None:
        timed = timed.withColumns({"called": fn.col("call_ns"), "returned": fn.col("return_ns")})
    else:
        allowed = round(clock_error_ms * _MS)
        returned = fn.col("wall_ns") + fn.col("return_ns") - fn.col("call_ns") + fn.lit(allowed).cast("long")
        timed = timed.withColumns({"clock": fn.lit(""), "called": fn.col("wall_ns"), "returned": returned})
    end = fn.struct("returned", "ts", "client", "request", "kind", "file")
    rows = least_behind(timed, ["chain", "clock"], "place", {"first_back": end}, with_here=False)
    late = verdict(
        REAL_TIME,
        fn.col("first_back.returned") < fn.col("called"),
        words=[
            fn.col("first_back.kind"),
            " ",
            request_shown("first_back."),
            " at slot ",
            fn.col("first_back.ts"),
            " returned ",
            fn.round((fn.col("called") - fn.col("first_back.returned")) / 1e6, 3),
            " ms before ",
            fn.col("kind"),
            " ",
            request_shown(),
            " at slot ",
            fn.col("ts"),
            " was called",
        ],
        sites=[fn.col("first_back.client"), fn.col("client")],
        files=[fn.col("file"), fn.col("first_back.file")],
        first_ts=fn.col("ts"),
        last_ts=fn.col("first_back.ts"),
    )
    return judged(rows, late)
