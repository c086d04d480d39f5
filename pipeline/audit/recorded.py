"""Which ranges of slots do the rows tell of, and which of them are promises?

A delivery at majority or above is a *promise*: it stays. One below it may be taken back (``retracted``),
also by a crash, which tells nobody; it is evidence only that a replica has had these slots. Views take
slots, and are promises. Deliveries without a timestamp have no place in the order. A *process* is a site
under one boot in one chain: a site that comes back from its disk delivers its log again.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from pipeline.audit.verdicts import hashed
from pipeline.ranges import cut, earlier, part_of, within

PROCESS: Final = ("chain", "site", "boot")
# How far beyond a slot that is taken back there can be others: the engine's horizon (2,000,000), and some
# room; but not over more parts than that.
_REACH: Final = 2_100_000
_REACH_PARTS: Final = 64
_LOWER_LANES: Final = ("unreliable", "unordered")


def is_final() -> Column:
    return fn.col("detail").isin("majority", "total")


def is_submission() -> Column:
    """Of the ordered lane; the others have numbers of their own."""
    quality = fn.coalesce(fn.col("qos"), fn.lit("majority"))
    return (fn.col("event") == "submitted") & ~quality.isin(*_LOWER_LANES)


def in_chain(events: DataFrame) -> DataFrame:
    return events.where("chain <> 0")


def _messages(events: DataFrame) -> DataFrame:
    is_message = (fn.col("event") == "delivered") & fn.col("first_ts").isNotNull() & (fn.col("count") > 0)
    return in_chain(events).where(is_message)


def _as_slots(rows: DataFrame, *, is_message: bool, promise: Column) -> DataFrame:
    last = fn.col("first_ts") + (fn.col("count") - 1 if is_message else fn.lit(0))
    none = fn.lit(None).cast("long")
    return rows.select(
        *PROCESS,
        fn.col("first_ts").alias("first"),
        last.alias("last"),
        fn.lit(is_message).alias("is_message"),
        promise.alias("is_promise"),
        (fn.col("source") if is_message else none).alias("source"),
        (fn.col("first_seq") - fn.col("first_ts") if is_message else none).alias("shift"),
        "epoch",
        "revision",
        "position",
        hashed(),
    )


def placed(events: DataFrame, width: int) -> DataFrame:
    """Everything that stands in the order, cut: messages and views. ``shift``: from slot to number."""
    messages = _as_slots(_messages(events).where(is_final()), is_message=True, promise=fn.lit(True))
    provisional = _as_slots(_messages(events).where(~is_final()), is_message=True, promise=fn.lit(False))
    standing = _standing(cut(provisional, width), events, width)
    views = in_chain(events).where("event = 'view' and first_ts is not null")
    whole = messages.unionByName(_as_slots(views, is_message=False, promise=fn.lit(True)))
    return cut(whole, width).unionByName(standing)


def _standing(provisional: DataFrame, events: DataFrame, width: int) -> DataFrame:
    """Without what was taken back: of each range what lies below the least slot of a later ``retracted``."""
    taken_back = (
        in_chain(events)
        .where("event = 'retracted' and first_ts is not null")
        .select(*PROCESS, "position", fn.col("first_ts").alias("from_ts"))
        .withColumn("until_ts", fn.col("from_ts") + min(_REACH_PARTS * width, max(_REACH, width)))
    )
    touched = fn.sequence(part_of(fn.col("from_ts"), width), part_of(fn.col("until_ts"), width))
    retractions = taken_back.withColumn("part", fn.explode(touched)).drop("until_ts")
    together = provisional.unionByName(retractions, allowMissingColumns=True)
    spec = earlier(within([*PROCESS, "part"], [fn.col("position").desc()]))
    least = fn.min("from_ts").over(spec)
    return (
        together.withColumn("least", least)
        .where("first is not null")
        .withColumn("last", fn.least(fn.col("last"), fn.col("least") - 1))
        .where("last >= first")
        .drop("from_ts", "least")
    )


def breaks(events: DataFrame, holes: DataFrame) -> DataFrame:
    """Of each site and boot: where rows are missing, and where it took a state over instead of messages. As
    many as there were such events."""
    rare = events.where("event = 'gap' or event = 'restored' and first_ts is not null").select(
        "site",
        "boot",
        (fn.col("event") == "gap").alias("is_gap"),
        "position",
        fn.when(fn.col("event") == "restored", fn.col("first_ts")).alias("ts"),
    )
    together = rare.unionByName(holes)
    each = fn.struct("is_gap", "position", "ts")
    return together.groupBy("site", "boot").agg(fn.collect_list(each).alias("breaks"))


def missing_files(events: DataFrame, files: DataFrame) -> DataFrame:
    """A file that is not there, or was not taken, between others that tell of a process: a gap before its
    first row behind. Who carries files elsewhere makes another recorder of the same name, whose numbers go
    on. As many as there are files."""
    taken = (
        files.where("table = 'events' and verdict in ('taken', 'open')")
        .select("recorder", "number", "file", fn.substring_index("recorder", "/", -1).alias("name"))
        .withColumn("rank", fn.row_number().over(within(["recorder"], ["number"])))
    )
    # Most recordings are whole, and then their rows are not looked at.
    name, own = Window.partitionBy("name"), Window.partitionBy("recorder")
    is_split = fn.min("recorder").over(name) != fn.max("recorder").over(name)
    is_holey = fn.max("number").over(own) - fn.min("number").over(own) >= fn.count("*").over(own)
    suspected = taken.withColumn("is_suspect", is_split | is_holey).where("is_suspect")
    firsts = (
        events.join(fn.broadcast(suspected), ["recorder", "file"])
        .groupBy("site", "boot", "recorder", "number", "rank")
        .agg(fn.min("position").alias("position"))
    )
    by_number = within(["site", "boot"], ["number"])
    before = fn.lag(fn.struct("recorder", "number", "rank")).over(by_number)
    leap = fn.col("number") - fn.col("before.number")
    there = fn.when(
        fn.col("recorder") == fn.col("before.recorder"), fn.col("rank") - fn.col("before.rank")
    ).otherwise(1)
    return (
        firsts.withColumn("before", before)
        .where(leap > there)
        .select(
            "site", "boot", fn.lit(True).alias("is_gap"), "position", fn.lit(None).cast("long").alias("ts")
        )
    )


def processes(events: DataFrame) -> DataFrame:
    """Which chains a boot was in: one, and one more for each fork."""
    return in_chain(events).select(*PROCESS).distinct()


def submitted(events: DataFrame) -> DataFrame:
    """Numbers that a source gave, in every chain that this boot was in: what has no slot when a chain
    forks gets one in the fork."""
    own = events.where(is_submission() & (fn.col("count") > 0)).select(
        "site",
        "boot",
        fn.col("first_seq").alias("first"),
        (fn.col("first_seq") + fn.col("count") - 1).alias("last"),
    )
    return own.join(fn.broadcast(processes(events)), ["site", "boot"])


def promised_messages(events: DataFrame) -> DataFrame:
    """By number: ``shift`` leads from the number to the slot."""
    return (
        _messages(events)
        .where(is_final())
        .select(
            *PROCESS,
            "source",
            fn.col("first_seq").alias("first"),
            (fn.col("first_seq") + fn.col("count") - 1).alias("last"),
            (fn.col("first_ts") - fn.col("first_seq")).alias("shift"),
            hashed(),
        )
    )
