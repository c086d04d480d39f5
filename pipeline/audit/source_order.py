"""Source order: at every replica a source's messages stand in the order of their numbers.

In order of numbers it is enough to look at neighbours. A message that stands at two slots is integrity's, and
not judged here.
"""

from pyspark.sql import Column
from pyspark.sql import functions as fn

from pipeline.audit.verdicts import SOURCE_ORDER, message_shown, slots_shown, verdict
from pipeline.schemas import shown


def judge() -> Column:
    number, before = fn.col("first"), fn.col("prev.last")
    slot, other = number + fn.col("shift"), before + fn.col("prev.shift")
    first, last = fn.least(slot, other), fn.greatest(slot, other)
    return verdict(
        SOURCE_ORDER,
        fn.col("is_delivered") & (before < number) & (slot < other),
        words=[
            slots_shown(first, last),
            ": ",
            shown(fn.col("site")),
            " has message ",
            message_shown(fn.col("source"), before),
            " behind ",
            message_shown(fn.col("source"), number),
        ],
        sites=[fn.col("site"), fn.col("source")],
        files=[fn.col("file"), fn.col("prev.file")],
        first_ts=first,
        last_ts=last,
    )
