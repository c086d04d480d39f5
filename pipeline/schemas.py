"""All tables, column by column. Nothing is inferred from files.

Identities (``chain``, ``site``, ``source``) are 64 bits and unsigned in recordings; Spark has no such type,
so they are the signed number of the same bits here, and ``shown`` gives the hexadecimal text that the command
line uses. ``boot`` is the first half of the 128 random bits.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

RECORDING_VERSION: Final = 1

# -- as replicas, simulator, clients and gateways record -----------------------------------------

# Where the rows of all recorded tables come from. ``position``: number of the file and row in it; it orders
# the rows of one recorder. ``batch``: the run of ``ingest`` that brought them.
ORIGIN: Final = (
    StructField("recorder", StringType(), False),
    StructField("position", LongType(), False),
    StructField("file", StringType(), False),
    StructField("batch", StringType(), False),
)

EVENTS: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("site", LongType(), False),
        StructField("boot", LongType(), False),
        StructField("event", StringType(), False),
        StructField("epoch", LongType()),
        StructField("revision", LongType()),
        StructField("first_ts", LongType()),
        StructField("count", LongType()),
        StructField("source", LongType()),
        StructField("first_seq", LongType()),
        StructField("qos", StringType()),
        StructField("session", LongType()),
        StructField("first_request", LongType()),
        StructField("mono_ns", LongType(), False),
        StructField("wall_ns", LongType(), False),
        StructField("digest", BinaryType()),
        StructField("detail", StringType()),
        *ORIGIN,
    ]
)

# What a caller saw of a call. ``kind``: command; query, which is linearizable; sequential or stale, queries
# of which real-time order promises nothing; gap, ``request`` rows are missing before it. ``argument`` and
# ``reply``: digests. ``outcome``: ok, rejected, failed, unknown. Times are the caller's, of the monotonic
# clock that ``clock`` names: only operations of one clock compare. ``ts``: the slot that the reply names;
# null if none came. ``chain`` is 0 if the caller never learnt it.
OPERATIONS: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("client", LongType(), False),
        StructField("request", LongType(), False),
        StructField("kind", StringType(), False),
        StructField("operation", StringType(), False),
        StructField("argument", BinaryType()),
        StructField("call_ns", LongType(), False),
        StructField("return_ns", LongType()),
        StructField("wall_ns", LongType(), False),
        StructField("outcome", StringType(), False),
        StructField("ts", LongType()),
        StructField("reply", BinaryType()),
        StructField("clock", StringType()),
        *ORIGIN,
    ]
)

# What happened to keys, as a replica saw it. ``kind``: put, delete, expire; ``base``: the key was so when
# the recorder began at slot ``ts``, or again behind a ``gap``, from which on nothing before is known to be
# whole. Before the first of them is one without a key, with how many follow in ``version``. ``reached``:
# nothing else has happened up to ``ts``. ``revision``: the slot of the change that made it so, ``ts`` but for
# ``base``. ``value`` may be cut: ``value_bytes`` is its whole length, and ``value_digest`` is there if it
# was. ``time_ns``: the group's slot time.
CHANGES: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("site", LongType(), False),
        StructField("boot", LongType(), False),
        StructField("kind", StringType(), False),
        StructField("ts", LongType(), False),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("created", LongType()),
        StructField("version", LongType()),
        StructField("lease", LongType()),
        StructField("time_ns", LongType()),
        StructField("wall_ns", LongType(), False),
        StructField("revision", LongType()),
        StructField("value_bytes", LongType()),
        StructField("value_digest", BinaryType()),
        *ORIGIN,
    ]
)

# -- quality ------------------------------------------------------------------------------------

# One row for whatever is wrong with what was read. ``severity``: error (rows are missing or were left out),
# warning (they are there, and to be used with care), note.
QUALITY: Final = StructType(
    [
        StructField("job", StringType(), False),
        StructField("check", StringType(), False),
        StructField("severity", StringType(), False),
        StructField("file", StringType()),
        StructField("subject", StringType()),
        StructField("rows", LongType(), False),
        StructField("reason", StringType(), False),
        StructField("batch", StringType(), False),
    ]
)

# Every file that was ever seen, and what became of it. ``verdict``: taken, open; or, and then none of its
# rows are here: torn, duplicate, unreadable, foreign, newer, changed (``pipeline.files``). ``number``: a
# tail's is that of the file it will become. ``content``: a digest.
FILES: Final = StructType(
    [
        StructField("file", StringType(), False),
        StructField("table", StringType(), False),
        StructField("recorder", StringType(), False),
        StructField("number", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("modified_ns", LongType(), False),
        StructField("rows", LongType(), False),
        StructField("content", StringType(), False),
        StructField("verdict", StringType(), False),
        StructField("reason", StringType()),
        StructField("batch", StringType(), False),
    ]
)

# What a file has of each boot: a few figures in place of its rows, for the quality table. ``offset``: wall
# clock less monotonic clock. ``sample_ts``, ``sample_wall_ns``: some deliveries, from the first to the last.
# ``gap_rows``: rows that the recorder says are missing.
SPANS: Final = StructType(
    [
        StructField("file", StringType(), False),
        StructField("recorder", StringType(), False),
        StructField("chain", LongType(), False),
        StructField("site", LongType()),
        StructField("boot", LongType()),
        StructField("rows", LongType(), False),
        StructField("gaps", LongType(), False),
        StructField("gap_rows", LongType(), False),
        StructField("first_wall_ns", LongType(), False),
        StructField("last_wall_ns", LongType(), False),
        StructField("least_offset_ns", LongType()),
        StructField("most_offset_ns", LongType()),
        StructField("sample_ts", ArrayType(LongType(), False), False),
        StructField("sample_wall_ns", ArrayType(LongType(), False), False),
        StructField("batch", StringType(), False),
    ]
)

# Which jobs have run, and on what: ``state`` is a digest of what had been ingested.
RUNS: Final = StructType(
    [
        StructField("job", StringType(), False),
        StructField("state", StringType(), False),
    ]
)

# -- silver --------------------------------------------------------------------------------------

# One row for each range of consecutive messages of one source, under consecutive timestamps, and each
# replica that delivered it. Times are null where nothing was recorded. ``submitted_ns``, ``replied_ns``: of
# the source's own monotonic clock. In rows of the source itself (``site`` = ``source``) they are those of
# every message, told by the process that delivered, so that they compare with ``delivered_ns``; in rows of
# others they are those of the first message.
LIFECYCLE: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("first_ts", LongType(), False),
        StructField("count", LongType(), False),
        StructField("source", LongType(), False),
        StructField("first_seq", LongType(), False),
        StructField("qos", StringType()),
        StructField("epoch", LongType()),
        StructField("revision", LongType()),
        StructField("site", LongType(), False),
        StructField("boot", LongType(), False),
        StructField("level", StringType()),
        StructField("session", LongType()),
        StructField("first_request", LongType()),
        StructField("submitted_ns", LongType()),
        StructField("delivered_ns", LongType(), False),
        StructField("delivered_wall_ns", LongType(), False),
        StructField("held_ns", LongType()),
        StructField("majority_ns", LongType()),
        StructField("stable_ns", LongType()),
        StructField("applied_ns", LongType()),
        StructField("replied_ns", LongType()),
    ]
)

# -- of the simulator ----------------------------------------------------------------------------

# One row for each simulated run. ``replay``: the command that plays it again; with ``experiment`` its name.
# Times are of messages: until the source's application has it (``source``), all have it (``delivery``), the
# source knows that (``stability``). A packet to several counts once; ``datagrams`` count each.
SWEEP: Final = StructType(
    [
        StructField("experiment", StringType(), False),
        StructField("batch", StringType(), False),
        StructField("replay", StringType(), False),
        StructField("seed", LongType(), False),
        StructField("discipline", StringType(), False),
        StructField("sites", LongType(), False),
        StructField("senders", LongType(), False),
        StructField("rate", LongType(), False),
        StructField("message_bytes", LongType(), False),
        StructField("loss", DoubleType(), False),
        StructField("qos", StringType(), False),
        StructField("seconds", LongType(), False),
        StructField("messages", LongType(), False),
        StructField("refused", LongType(), False),
        StructField("undelivered", LongType(), False),
        *(
            StructField(f"{what}_{statistic}_ms", DoubleType())
            for what in ("source", "delivery", "stability")
            for statistic in ("mean", "p50", "p99")
        ),
        StructField("packets", LongType(), False),
        StructField("packets_per_message", DoubleType(), False),
        StructField("overhead_per_message", DoubleType(), False),
        StructField("datagrams_per_message", DoubleType(), False),
        StructField("retransmissions", LongType(), False),
        StructField("retransmissions_per_message", DoubleType(), False),
        *(
            StructField(f"{kind}_packets", LongType(), False)
            for kind in ("data", "order", "confirm", "probe", "other")
        ),
        StructField("lost", LongType(), False),
        StructField("token_passes", LongType(), False),
        StructField("passes_per_message", DoubleType(), False),
        StructField("buffer_bytes_mean", DoubleType(), False),
        StructField("buffer_bytes_max", LongType(), False),
        StructField("buffer_messages_mean", DoubleType(), False),
        StructField("views", LongType(), False),
        StructField("violations", LongType(), False),
        StructField("violation", StringType()),
    ]
)

# -- gold ----------------------------------------------------------------------------------------

# A violation of a rule. ``sites``: as ``shown``. ``files``: where the rows are that show it.
VERDICTS: Final = StructType(
    [
        StructField("rule", StringType(), False),
        StructField("chain", StringType(), False),
        StructField("sites", ArrayType(StringType(), False), False),
        StructField("first_ts", LongType()),
        StructField("last_ts", LongType()),
        StructField("epoch", LongType()),
        StructField("revision", LongType()),
        StructField("words", StringType(), False),
        StructField("files", ArrayType(StringType(), False), False),
    ]
)

# One row for each rule: on how much it was checked, and what came of it. ``verdict``: held, violated,
# unchecked (there is nothing in the recording that it could be checked on).
RULES: Final = StructType(
    [
        StructField("rule", StringType(), False),
        StructField("verdict", StringType(), False),
        StructField("rows", LongType(), False),
        StructField("violations", LongType(), False),
    ]
)

# What happened to a key, once, whoever told it. ``kind``: put, delete, expire; gone: it was there before
# changes were missed, and not behind them. It was so from slot ``ts`` on up to, and without, ``valid_to``;
# null: it still is. ``basis``: change, or base if it is only known that it had come about. ``contents``: 1,
# or replicas disagree. ``sites``: who told the change, as ``shown``. ``bucket``: by a hash of the key.
KV_CHANGES: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("bucket", IntegerType(), False),
        StructField("key", BinaryType(), False),
        StructField("kind", StringType(), False),
        StructField("ts", LongType(), False),
        StructField("previous_ts", LongType()),
        StructField("valid_to", LongType()),
        StructField("value", BinaryType()),
        StructField("value_bytes", LongType()),
        StructField("value_digest", BinaryType()),
        StructField("created", LongType()),
        StructField("version", LongType()),
        StructField("lease", LongType()),
        StructField("time_ns", LongType()),
        StructField("wall_ns", LongType(), False),
        StructField("basis", StringType(), False),
        StructField("contents", LongType(), False),
        StructField("sites", ArrayType(StringType(), False), False),
    ]
)

# From when to when a replica has recorded changes without a gap: everything behind ``first_ts``, whose state
# is its base, up to ``last_ts``. ``entries``: of the base; fewer ``found``: it is not whole. ``hole_ts``:
# what happened behind that slot, up to ``first_ts``, was recorded by nobody.
KV_SPANS: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("site", LongType(), False),
        StructField("boot", LongType(), False),
        StructField("recorder", StringType(), False),
        StructField("position", LongType(), False),
        StructField("first_ts", LongType(), False),
        StructField("last_ts", LongType(), False),
        StructField("entries", LongType(), False),
        StructField("found", LongType(), False),
        StructField("hole_ts", LongType()),
    ]
)

# Keys as they were as of slot ``as_of``.
KV_STATE: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("as_of", LongType(), False),
        StructField("key", BinaryType(), False),
        StructField("value", BinaryType()),
        StructField("value_bytes", LongType()),
        StructField("value_digest", BinaryType()),
        StructField("revision", LongType(), False),
        StructField("created", LongType()),
        StructField("version", LongType()),
        StructField("lease", LongType()),
    ]
)

# The keys that were changed most in a window of time, the hottest first.
KV_HOT: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("window", TimestampType(), False),
        StructField("rank", IntegerType(), False),
        StructField("key", BinaryType(), False),
        StructField("changes", LongType(), False),
        StructField("bytes", LongType(), False),
    ]
)

# What happened to one key, and who did it, where that was recorded.
KV_TRAIL: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("key", BinaryType(), False),
        StructField("ts", LongType(), False),
        StructField("at", TimestampType(), False),
        StructField("kind", StringType(), False),
        StructField("value", BinaryType()),
        StructField("value_bytes", LongType()),
        StructField("version", LongType()),
        StructField("previous_ts", LongType()),
        StructField("valid_to", LongType()),
        StructField("client", LongType()),
        StructField("request", LongType()),
        StructField("operation", StringType()),
        StructField("recorder", StringType()),
        StructField("called_at", TimestampType()),
    ]
)

# A figure per replica (null: all) and window of time. ``unit``: 1/s, ns, bytes, packets per message …
METRICS: Final = StructType(
    [
        StructField("metric", StringType(), False),
        StructField("statistic", StringType(), False),
        StructField("chain", LongType(), False),
        StructField("site", LongType()),
        StructField("window", TimestampType()),
        StructField("value", DoubleType(), False),
        StructField("unit", StringType(), False),
        StructField("samples", LongType(), False),
    ]
)

# How long a replica (null: the whole group) delivered nothing when epoch ``epoch`` began: from its last
# delivery before, in ``epoch_before``, to its first in it. ``began``: that last delivery.
VIEW_CHANGES: Final = StructType(
    [
        StructField("chain", LongType(), False),
        StructField("site", LongType()),
        StructField("epoch_before", LongType(), False),
        StructField("epoch", LongType(), False),
        StructField("began", TimestampType(), False),
        StructField("ended", TimestampType(), False),
        StructField("duration_ns", LongType(), False),
    ]
)

# One row for each number of each result of ``rsm load`` or ``rsm bench``. ``run``: the file. ``parameters``:
# as JSON; runs with the same can be compared. ``is_ratio``: measured against something else in the same run,
# so that the machine counts less. ``better``: more, less, or null where it is neither.
# ``loops_per_s``: how fast the machine was.
LOAD: Final = StructType(
    [
        StructField("run", StringType(), False),
        StructField("time", TimestampType(), False),
        StructField("name", StringType(), False),
        StructField("parameters", StringType(), False),
        StructField("value_name", StringType(), False),
        StructField("is_ratio", BooleanType(), False),
        StructField("value", DoubleType(), False),
        StructField("better", StringType()),
        StructField("versions", StringType()),
        StructField("calibration", StringType()),
        StructField("loops_per_s", DoubleType()),
    ]
)

# A value that is worse than those before it. ``deviation``: median of how far those are from ``median``.
# ``worse``: by how much of the median.
REGRESSIONS: Final = StructType(
    [
        StructField("run", StringType(), False),
        StructField("time", TimestampType(), False),
        StructField("name", StringType(), False),
        StructField("parameters", StringType(), False),
        StructField("value_name", StringType(), False),
        StructField("is_ratio", BooleanType(), False),
        StructField("value", DoubleType(), False),
        StructField("better", StringType(), False),
        StructField("median", DoubleType(), False),
        StructField("deviation", DoubleType(), False),
        StructField("worse", DoubleType(), False),
        StructField("runs_before", LongType(), False),
    ]
)


# -- live ----------------------------------------------------------------------------------------

# What a stream says aloud. ``severity``: violation, error, warning, note. ``kind``: a rule's name, or what
# happened (``pipeline.watching``). ``key``: the same is said once. ``batch``: the micro-batch, and ``time``
# when it was found.
ALERTS: Final = StructType(
    [
        StructField("time", TimestampType(), False),
        StructField("severity", StringType(), False),
        StructField("kind", StringType(), False),
        StructField("chain", StringType()),
        StructField("site", StringType()),
        StructField("first_ts", LongType()),
        StructField("words", StringType(), False),
        StructField("key", StringType(), False),
        StructField("batch", StringType(), False),
    ]
)

# Rows of a stream, kept where they will be looked for. ``layout``: slots, numbers, or rare (whole).
# ``batch``: the micro-batch, or several that were put together.
_PART: Final = StructField("part", LongType(), False)
LIVE_EVENTS: Final = StructType([*EVENTS.fields, StructField("layout", StringType(), False), _PART])
LIVE_OPERATIONS: Final = StructType([*OPERATIONS.fields, _PART])
# ``part``: what was judged together, as slots-12, and is judged anew when it grows.
LIVE_VERDICTS: Final = StructType([*VERDICTS.fields, StructField("part", StringType(), False)])
LIVE_LIFECYCLE: Final = StructType([*LIFECYCLE.fields, _PART])
# Sums of one micro-batch, in windows of time: messages by event, or by wait and its length. ``span``: so many
# windows.
LIVE_WINDOWS: Final = StructType(
    [
        StructField("kind", StringType(), False),
        StructField("chain", LongType(), False),
        StructField("site", LongType(), False),
        StructField("boot", LongType(), False),
        StructField("value", LongType()),
        StructField("count", LongType(), False),
        StructField("window_ns", LongType(), False),
        StructField("span", LongType(), False),
        StructField("batch", StringType(), False),
    ]
)
LIVE_METRICS: Final = StructType([*METRICS.fields, StructField("span", LongType(), False)])
# What a stream remembers of replicas, as JSON, behind each micro-batch.
LIVE_STATE: Final = StructType(
    [StructField("state", StringType(), False), StructField("batch", StringType(), False)]
)


def shown(identity: Column) -> Column:
    """As ``rsm status`` prints it."""
    return fn.lower(fn.hex(identity))


def signed(identity: int) -> int:
    """The number that tables have for an unsigned identity."""
    return identity - (1 << 64) if identity >= 1 << 63 else identity
