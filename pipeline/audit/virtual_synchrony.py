"""Virtual synchrony: a message is delivered in the same view everywhere, and who installs a view has
delivered what anybody has delivered before it.

The second half is agreement's where a replica has delivered something later; here is what a replica lacks
between its last message and the last view that it installed (``agreement.judge``).
"""

from pyspark.sql import Column
from pyspark.sql import functions as fn

from pipeline.audit.verdicts import VIRTUAL_SYNCHRONY, slots_shown, verdict
from pipeline.schemas import shown


def judge() -> Column:
    first, last = fn.col("first"), fn.least("last", "far.last")
    same_view = fn.col("far.epoch").eqNullSafe(fn.col("epoch")) & fn.col("far.revision").eqNullSafe(
        fn.col("revision")
    )
    both = fn.col("is_promise") & fn.col("is_message") & fn.col("far.is_message")
    return verdict(
        VIRTUAL_SYNCHRONY,
        both & (fn.col("far.last") >= first) & ~same_view,
        words=[
            slots_shown(first, last),
            ": delivered in view ",
            fn.concat_ws(".", "epoch", "revision"),
            " at ",
            shown(fn.col("site")),
            ", in view ",
            fn.concat_ws(".", "far.epoch", "far.revision"),
            " at ",
            shown(fn.col("far.site")),
        ],
        sites=[fn.col("site"), fn.col("far.site")],
        files=[fn.col("file"), fn.col("far.file")],
        first_ts=first,
        last_ts=last,
        view=(fn.col("epoch"), fn.col("revision")),
    )
