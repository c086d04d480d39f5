"""Integrity: a replica delivers a slot once and a message once, and nothing that its source did not submit.

A source is held to its numbers only where its own recording must have them: within what one boot of it
submitted, and behind that if the same boot has delivered that slot or a later one itself. Rows are lost
with a process, and then the next boot begins with a higher number; and a boot whose recording has a gap
proves nothing.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.by_slot import is_repeated
from pipeline.audit.recorded import PROCESS
from pipeline.audit.verdicts import INTEGRITY, message_shown, slots_shown, verdict
from pipeline.schemas import shown


def slot_twice() -> Column:
    first, last = fn.col("first"), fn.least("last", "own_promise.last")
    return verdict(
        INTEGRITY,
        fn.col("is_message") & fn.col("is_promise") & is_repeated(),
        words=[slots_shown(first, last), ": delivered twice at ", shown(fn.col("site"))],
        sites=[fn.col("site")],
        files=[fn.col("file"), fn.col("own_promise.file")],
        first_ts=first,
        last_ts=last,
    )


def message_twice() -> Column:
    """By number."""
    number = fn.col("first")
    slot, other = number + fn.col("shift"), number + fn.col("prev.shift")
    return verdict(
        INTEGRITY,
        fn.col("is_delivered") & (fn.col("prev.last") >= number) & (fn.col("prev.shift") != fn.col("shift")),
        words=[
            "message ",
            message_shown(fn.col("source"), number),
            ": delivered twice at ",
            shown(fn.col("site")),
            ", at slot ",
            other,
            " and at slot ",
            slot,
        ],
        sites=[fn.col("site")],
        files=[fn.col("file"), fn.col("prev.file")],
        first_ts=fn.least(slot, other),
        last_ts=fn.greatest(slot, other),
    )


def not_submitted() -> Column:
    """By number; the row has the ``numbering`` of its source in its chain."""
    at_end = fn.when(fn.col("reach").isNull() | (fn.col("reach") < fn.col("last")), fn.col("last"))
    inside = fn.when(fn.col("hole") >= fn.col("first"), fn.col("hole"))
    number = fn.coalesce(fn.when(_is_known(inside), inside), at_end)
    slot = number + fn.col("shift")
    return verdict(
        INTEGRITY,
        fn.col("is_delivered") & _is_known(number),
        words=[
            slots_shown(slot, slot),
            ": ",
            shown(fn.col("site")),
            " delivered message ",
            message_shown(fn.col("source"), number),
            ", which its source did not submit",
        ],
        sites=[fn.col("site"), fn.col("source")],
        files=[fn.col("file")],
        first_ts=slot,
        last_ts=slot,
    )


def _is_known(number: Column) -> Column:
    slot = number + fn.col("shift")
    numbering = fn.coalesce(
        fn.col("numbering"),
        fn.array().cast("array<struct<least:bigint,most:bigint,last_delivered:bigint>>"),
    )
    return number.isNotNull() & fn.exists(
        numbering,
        lambda boot: (
            (boot["least"] <= number) & ((number <= boot["most"]) | (slot <= boot["last_delivered"]))
        ),
    )


def numbering(submitted: DataFrame, summed: DataFrame, breaks: DataFrame) -> DataFrame:
    """Which numbers a source gave, in each chain: an item for each of its boots that has no gap."""
    boots = submitted.groupBy(*PROCESS).agg(fn.min("first").alias("least"), fn.max("last").alias("most"))
    delivered = summed.groupBy(*PROCESS).agg(fn.max("promised.last").alias("last_delivered"))
    gaps = breaks.where(fn.exists("breaks", lambda each: each["is_gap"])).select("site", "boot")
    whole = boots.join(gaps, ["site", "boot"], "left_anti").join(delivered, list(PROCESS), "left")
    item = fn.struct(
        "least", "most", fn.coalesce("last_delivered", fn.lit(-1).cast("long")).alias("last_delivered")
    )
    return whole.groupBy("chain", fn.col("site").alias("source")).agg(
        fn.collect_list(item).alias("numbering")
    )
