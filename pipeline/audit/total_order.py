"""Total order: at a slot of a chain stands one message, or one view, whoever tells of it."""

from pyspark.sql import Column
from pyspark.sql import functions as fn

from pipeline.audit.verdicts import TOTAL_ORDER, message_shown, slots_shown, verdict
from pipeline.schemas import shown


def judge() -> Column:
    first, last = fn.col("first"), fn.least("last", "far.last")
    is_same = (
        (fn.col("far.is_message") == fn.col("is_message"))
        & fn.col("far.source").eqNullSafe(fn.col("source"))
        & fn.col("far.shift").eqNullSafe(fn.col("shift"))
    )
    return verdict(
        TOTAL_ORDER,
        fn.col("is_promise") & (fn.col("far.last") >= first) & ~is_same,
        words=[
            slots_shown(first, last),
            ": ",
            shown(fn.col("site")),
            " has ",
            _content("", first),
            ", ",
            shown(fn.col("far.site")),
            " has ",
            _content("far.", first),
        ],
        sites=[fn.col("site"), fn.col("far.site")],
        files=[fn.col("file"), fn.col("far.file")],
        first_ts=first,
        last_ts=last,
        view=(fn.col("epoch"), fn.col("revision")),
    )


def _content(prefix: str, slot: Column) -> Column:
    message = message_shown(fn.col(f"{prefix}source"), slot + fn.col(f"{prefix}shift"))
    view = fn.concat(
        fn.lit("view "),
        fn.col(f"{prefix}epoch").cast("string"),
        fn.lit("."),
        fn.col(f"{prefix}revision").cast("string"),
    )
    return fn.when(fn.col(f"{prefix}is_message"), fn.concat(fn.lit("message "), message)).otherwise(view)
