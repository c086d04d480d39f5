"""Agreement: between its first message and its last a replica has delivered whatever anybody has delivered at
majority.

It is not asked for slots that a state which it took over later contains, nor where its recording has a gap.
What it lacks behind its last message and before a view that it installed is virtual synchrony's.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.verdicts import AGREEMENT, VIRTUAL_SYNCHRONY, slots_shown, verdict
from pipeline.schemas import shown

_BREAKS: Final = "array<struct<is_gap:boolean,position:bigint,ts:bigint>>"


def in_front() -> Column:
    """The hole in front of a range, judged; the row has its process' span."""
    had_until = fn.coalesce(fn.col("own.last") + 1, fn.col("low"))
    return _judge(
        fn.greatest(had_until, fn.col("low")),
        fn.col("first") - 1,
        fn.col("below"),
        fn.coalesce("own_message.position", "heard_from.position"),
        fn.col("position"),
        fn.col("file"),
    )


def at_end(spans: DataFrame) -> DataFrame:
    """Holes that reach to the end of a part, or over all of it."""
    return spans.where("tail.last is null or tail.last < high")


def behind() -> Column:
    """The hole behind the last range of a process in a part, judged. It reaches to the end of the part: if
    not, a range or view of the same part would stand behind it."""
    return _judge(
        fn.greatest(fn.coalesce(fn.col("tail.last") + 1, fn.col("low")), fn.col("low")),
        fn.col("high"),
        fn.col("promised"),
        fn.coalesce("message_tail.position", "heard_from.position"),
        fn.col("went_to.position"),
        fn.lit(None).cast("long"),
    )


def _judge(first: Column, last: Column, other: Column, heard: Column, until: Column, file: Column) -> Column:
    """``other``: the farthest message that begins at or before ``last``. ``heard``, ``until``: where in the
    recording are the message before the hole, and the row behind it? What is told between the two explains
    the hole: rows that are missing, or a state that has the slots in it. Who takes one over is told the view
    again before it goes on, so views do not count."""
    never = fn.lit(-1).cast("long")
    breaks = fn.coalesce(fn.col("breaks"), fn.array().cast(_BREAKS))
    since, to = fn.coalesce(heard, never), fn.coalesce(until, fn.lit((1 << 63) - 1))

    def between(each: Column) -> Column:
        return (each["position"] > since) & (each["position"] <= to)

    unknown = fn.exists(breaks, lambda each: each["is_gap"] & between(each))
    taken_over = fn.aggregate(
        breaks,
        never,
        lambda most, each: fn.when(between(each), fn.greatest(most, each["ts"])).otherwise(most),
    )
    begin = fn.greatest(first, taken_over + 1)
    found = (begin <= last) & (other["last"] >= begin) & ~unknown
    from_ts, to_ts = fn.greatest(begin, other["first"]), fn.least(last, other["last"])
    late = begin > fn.col("last_delivered")

    def lacking(rule: str, condition: Column, *more: str) -> Column:
        return verdict(
            rule,
            found & condition,
            words=[
                slots_shown(from_ts, to_ts),
                ": delivered at ",
                shown(other["site"]),
                ", not at ",
                shown(fn.col("site")),
                *more,
            ],
            sites=[fn.col("site"), other["site"]],
            files=[file, other["file"]],
            first_ts=from_ts,
            last_ts=to_ts,
        )

    return fn.coalesce(
        lacking(AGREEMENT, ~late), lacking(VIRTUAL_SYNCHRONY, late, ", which installed a view behind")
    )
