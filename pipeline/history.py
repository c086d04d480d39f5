"""What happened to keys, and what were they as of any slot? (``docs/pipeline.md``, History)

::

    what replicas tell ──facts──▶ ──agreed──▶ one row for a change ──intervals──▶ valid from … to
                       ──spans──▶ from when to when each of them tells everything; holes between

A key was what it was from the slot of a change up to that of its next one. So the state as of a slot is
those rows whose interval has it: a filter. Nothing is replayed, and nothing comes to the driver but spans,
which are as many as recorders had beginnings.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from pipeline import ranges
from pipeline import tables as all_tables
from pipeline.files import ROW_BITS
from pipeline.schemas import shown
from pipeline.tables import Tables

PART_BITS: Final = 20  # slots that a key's changes are put in order in, at a time
BUCKETS: Final = 16
_BYTES: Final = ("value", "value_digest")
_CONTENT: Final = ("kind", "value", "value_bytes", "value_digest", "created", "version", "lease")
_CHANGED: Final = ("put", "delete", "expire")
_ENDS_LEASES: Final = ("lease_revoke",)  # commands; else a lease ends by itself
_NS: Final = 1_000_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def open_tables(spark: SparkSession, output: str) -> list[str]:
    """Register what is there below ``output`` for Spark SQL: ``kv_changes``, ``kv_state``, ``kv_hot``,
    ``kv_trail``, ``kv_spans``; with ``name``, the key as text."""
    tables = Tables(spark, output)
    found = []
    for table in (
        all_tables.KV_CHANGES,
        all_tables.KV_STATE,
        all_tables.KV_HOT,
        all_tables.KV_TRAIL,
        all_tables.KV_SPANS,
    ):
        if tables.has(table):
            name = table.path.rpartition("/")[2]
            rows = tables.read(table)
            if "key" in rows.columns:
                rows = rows.withColumn("name", fn.col("key").cast("string"))
            rows.createOrReplaceTempView(name)
            found.append(name)
    return found


# -- one row for a change ------------------------------------------------------------------------


def facts(changes: DataFrame) -> DataFrame:
    """What a key became, and when, by each who tells it. An entry of a base is the change that made it so."""
    is_change = fn.col("kind").isin(*_CHANGED)
    is_entry = (fn.col("kind") == "base") & fn.col("key").isNotNull()
    return changes.where(is_change | is_entry).select(
        "chain",
        "key",
        fn.coalesce("revision", "ts").alias("ts"),
        fn.when(is_change, fn.col("kind")).otherwise("put").alias("kind"),
        *_CONTENT[1:],
        "time_ns",
        "wall_ns",
        is_change.alias("is_change"),
        shown(fn.col("site")).alias("site"),
        "recorder",
        "boot",
        "position",
    )


def agreed(told: DataFrame, stretches: DataFrame) -> DataFrame:
    """One row for a change, whoever told it; those who tell of it as it happened are believed first. The
    slot is part of the key, so a hot key is many groups."""
    content = fn.xxhash64(*(_or_none(name) for name in _CONTENT))
    change_site = fn.when(fn.col("is_change"), fn.col("site"))
    # Whoever is believed must be the same in every run: the content decides between equals.
    is_timed = fn.col("best.time_ns").isNotNull()
    order = fn.struct("is_change", ~fn.col("is_end"), "words", is_timed, "content")
    contents = fn.count_distinct(fn.when(~fn.col("is_end"), fn.col("content")))
    return (
        _last_words(told, stretches)
        .withColumn("content", content)
        .groupBy("chain", "key", "ts")
        .agg(
            fn.max_by("best", order).alias("best"),
            fn.min("wall_ns").alias("wall_ns"),
            fn.max("is_change").alias("is_change"),
            fn.greatest(contents, fn.lit(1).cast("long")).alias("contents"),
            fn.array_sort(fn.collect_set(change_site)).alias("sites"),
        )
        .select(
            "chain",
            "key",
            "ts",
            "best.*",
            "wall_ns",
            fn.when(fn.col("is_change"), "change").otherwise("base").alias("basis"),
            "contents",
            "sites",
        )
    )


def _last_words(told: DataFrame, stretches: DataFrame) -> DataFrame:
    """A key may be changed several times in one slot: a lease ends, and a command writes it again. What the
    last of them left is what each has to say. ``words``: how many it tells. ``is_end``: nothing more came of
    who told it, perhaps in the middle of the slot."""
    who = ["chain", "recorder", "boot"]
    ends = stretches.select(*who, fn.col("last_ts").alias("ts"), fn.lit(True).alias("is_end")).distinct()
    together = told.repartition("chain", "key", "ts")  # so that no row is moved again
    last = together.groupBy("chain", "key", "ts", "recorder", "boot", "is_change").agg(
        fn.max_by(fn.struct(*_CONTENT, "time_ns"), "position").alias("best"),
        fn.max_by("site", "position").alias("site"),
        fn.min("wall_ns").alias("wall_ns"),
        fn.count(fn.lit(1)).alias("words"),
    )
    found = last.join(fn.broadcast(ends), [*who, "ts"], "left")
    return found.withColumn("is_end", fn.col("is_change") & fn.col("is_end").isNotNull())


def _or_none(name: str) -> Column:
    """A hash passes over nulls; here they count."""
    of_it = fn.col(f"best.{name}")
    value = fn.hex(of_it) if name in _BYTES else of_it.cast("string")
    return fn.coalesce(value, fn.lit("-"))


def intervals(changes: DataFrame) -> DataFrame:
    """With the slots of the change before and behind. Changes of a key meet by parts of slots, so that a hot
    one is many groups; what is before and behind a part comes from one row for each part."""
    parts = changes.withColumn("part", fn.shiftright("ts", PART_BITS))
    in_part = Window.partitionBy("chain", "key", "part").orderBy("ts")
    of_key = Window.partitionBy("chain", "key").orderBy("part")
    edges = (
        parts.groupBy("chain", "key", "part")
        .agg(fn.min("ts").alias("first"), fn.max("ts").alias("last"))
        .select(
            "chain",
            "key",
            "part",
            fn.lag("last").over(of_key).alias("part_before"),
            fn.lead("first").over(of_key).alias("part_behind"),
        )
    )
    return (
        parts.withColumn("before", fn.lag("ts").over(in_part))
        .withColumn("behind", fn.lead("ts").over(in_part))
        .join(edges, ["chain", "key", "part"])
        .withColumn("previous_ts", fn.coalesce("before", "part_before"))
        .withColumn("valid_to", fn.coalesce("behind", "part_behind"))
        .withColumn("bucket", bucket_of(fn.col("key")))
        .drop("before", "behind", "part_before", "part_behind")
    )


def bucket_of(key: Column) -> Column:
    return fn.pmod(fn.xxhash64(key), fn.lit(BUCKETS)).cast("int")


# -- who has told everything, from when to when --------------------------------------------------


def stretches(changes: DataFrame) -> DataFrame:
    """What each recorder tells without a break: as few as it has beginnings. One begins with a base, or, and
    then it is of no use before the next base, behind a file that is missing."""
    rows = changes.select(
        "recorder", _file(), "position", "chain", "site", "boot", "ts", _is_entry().alias("is_entry")
    )
    is_in = (fn.col("position") >= fn.col("begin")) & (
        fn.col("next").isNull() | (fn.col("position") < fn.col("next"))
    )
    told = (
        rows.join(fn.broadcast(_marks(changes)), ["recorder", "number"])
        .where(is_in)
        .groupBy("recorder", "chain", "stretch.position", "stretch.is_base")
        .agg(
            fn.max("site").alias("site"),
            fn.max("boot").alias("boot"),
            fn.min("ts").alias("least_ts"),
            fn.max("ts").alias("last_ts"),
            fn.count_if("is_entry").alias("found"),
        )
    )
    known = told.join(_begun(changes), ["recorder", "chain", "position", "is_base"], "left")
    return known.withColumn("first_ts", fn.coalesce("first_ts", "least_ts"))


def _file() -> Column:
    return fn.shiftright("position", ROW_BITS).alias("number")


def _is_entry() -> Column:
    return (fn.col("kind") == "base") & fn.col("key").isNotNull()


def _begun(changes: DataFrame) -> DataFrame:
    """The beginnings of bases."""
    return changes.where((fn.col("kind") == "base") & fn.col("key").isNull()).select(
        "recorder",
        "position",
        "chain",
        fn.col("ts").alias("first_ts"),
        fn.coalesce("version", fn.lit(0)).alias("entries"),
        fn.lit(True).alias("is_base"),
    )


def _marks(changes: DataFrame) -> DataFrame:
    """Where a file or a base begins, so that every row is found by its file: of which ``stretch`` it is, and
    where the ``next`` mark of the file is. A stretch begins with a base, or behind a missing file."""
    of_recorder = Window.partitionBy("recorder").orderBy("number")
    follows = fn.lag("number").over(of_recorder) == fn.col("number") - 1
    files = (
        changes.groupBy("recorder", _file())
        .agg(fn.min("position").alias("begin"))
        .withColumn("begins", ~fn.coalesce(follows, fn.lit(False)))
        .withColumn("is_base", fn.lit(False))
    )
    bases = _begun(changes).select(
        "recorder", _file(), fn.col("position").alias("begin"), fn.lit(True).alias("begins"), "is_base"
    )
    # A file that begins with a base has two marks at one place: the base is the last of them.
    order = ("begin", "is_base")
    in_file = Window.partitionBy("recorder", "number").orderBy(*order)
    beginning = fn.when(fn.col("begins"), fn.struct(fn.col("begin").alias("position"), "is_base"))
    stretch = fn.last(beginning, ignorenulls=True).over(Window.partitionBy("recorder").orderBy(*order))
    return (
        files.unionByName(bases)
        .withColumn("next", fn.lead("begin").over(in_file))
        .withColumn("stretch", stretch)
        .select("recorder", "number", "begin", "next", "stretch")
    )


def spans(told: DataFrame) -> DataFrame:
    """Stretches with a base; and from which slot on, before it, something was told by nobody."""
    order = Window.partitionBy("chain").orderBy("first_ts", "last_ts", "recorder", "position")
    reached = fn.max("last_ts").over(ranges.earlier(order))
    since_base = Window.partitionBy("chain", "bases")
    return (
        told.withColumn("reached", reached)
        .withColumn("bases", fn.count_if("is_base").over(ranges.earlier(order)))
        .withColumn("hole_ts", fn.when(fn.col("reached") < fn.col("first_ts"), fn.col("reached")))
        .withColumn("hole_ts", fn.min("hole_ts").over(since_base))
        .where("is_base")
    )


def missed(known: DataFrame, changes: DataFrame, told: DataFrame) -> DataFrame:
    """Keys that were there before a hole, and are not in the first whole base behind it: they are gone by
    then. ``known``: intervals; ``changes``: as recorded; ``told``: spans."""
    behind = Window.partitionBy("chain").orderBy("first_ts").rangeBetween(0, Window.unboundedFollowing)
    whole = fn.when(fn.col("entries") == fn.col("found"), fn.col("first_ts"))
    ends = (
        told.withColumn("end_ts", fn.min(whole).over(behind))
        .where(fn.col("hole_ts").isNotNull() & fn.col("end_ts").isNotNull())
        .select("chain", "end_ts")
        .distinct()
    )
    alive = (
        known.where(fn.col("kind") == "put")
        .join(fn.broadcast(ends), "chain")
        .where(fn.col("ts") < fn.col("end_ts"))
        .where(fn.col("valid_to").isNull() | (fn.col("valid_to") > fn.col("end_ts")))
        .select("chain", "key", fn.col("ts").alias("put_ts"), "end_ts")
    )
    at_end = (changes.chain == ends.chain) & (changes.ts == ends.end_ts)
    bases = changes.where(fn.col("kind") == "base").join(fn.broadcast(ends), at_end, "left_semi")
    there = bases.where(_is_entry()).select("chain", "key", fn.col("ts").alias("end_ts")).distinct()
    begun = bases.where(fn.col("key").isNull()).groupBy("chain", fn.col("ts").alias("end_ts"))
    return (
        alive.join(there, ["chain", "key", "end_ts"], "left_anti")
        .groupBy("chain", "key", "put_ts")
        .agg(fn.min("end_ts").alias("end_ts"))  # it goes once
        .join(fn.broadcast(begun.agg(fn.min("wall_ns").alias("wall_ns"))), ["chain", "end_ts"])
        .select(
            "chain",
            "key",
            fn.col("end_ts").alias("ts"),
            fn.lit("gone").alias("kind"),
            *(fn.lit(None).cast(known.schema[name].dataType).alias(name) for name in _CONTENT[1:]),
            fn.lit(None).cast("long").alias("time_ns"),
            "wall_ns",
            fn.lit("base").alias("basis"),
            fn.lit(1).cast("long").alias("contents"),
            fn.array().cast("array<string>").alias("sites"),
        )
    )


# -- what is asked of it -------------------------------------------------------------------------


def state_as_of(changes: DataFrame, slots: DataFrame) -> DataFrame:
    """``changes``: intervals; ``slots``: chain and ``as_of``, a row for each chain."""
    is_valid = (fn.col("ts") <= fn.col("as_of")) & (
        fn.col("valid_to").isNull() | (fn.col("valid_to") > fn.col("as_of"))
    )
    found = changes.where(fn.col("kind") == "put").join(fn.broadcast(slots), "chain").where(is_valid)
    return found.withColumn("revision", fn.col("ts"))


def reach(changes: DataFrame, moment: datetime | None) -> DataFrame:
    """One row for each chain, of all that was told, bases too: the newest slot, the times of the first and
    the last (microseconds), and ``at_ts``, the last slot that was not behind a time of day."""
    at = _micros(fn.coalesce("time_ns", "wall_ns"))
    until = None if moment is None else (moment - EPOCH) // timedelta(microseconds=1)
    return changes.groupBy("chain").agg(
        fn.max("ts").alias("newest_ts"),
        fn.min(at).alias("first_us"),
        fn.max(at).alias("last_us"),
        fn.max(fn.when(at <= fn.lit(until), fn.col("ts"))).alias("at_ts"),
    )


def _micros(nanoseconds: Column) -> Column:
    """As far as times are shown; in whole numbers, for a double has not enough digits."""
    return ranges.part_of(nanoseconds, 1000)


def hottest(changes: DataFrame, window_s: int, most: int) -> DataFrame:
    """Keys by how often they were changed in a window of time, then by bytes written. First the hottest of
    each bucket are found, then of all: no group has every key."""
    moment = fn.timestamp_seconds(fn.coalesce("time_ns", "wall_ns") / _NS)
    counted = (
        changes.where(fn.col("basis") == "change")
        .withColumn("window", fn.window(moment, f"{window_s} seconds").start)
        .groupBy("chain", "window", "bucket", "key")
        .agg(
            fn.count(fn.lit(1)).alias("changes"),
            fn.sum(fn.length("key") + fn.coalesce("value_bytes", fn.lit(0))).alias("bytes"),
        )
    )
    order = (fn.desc("changes"), fn.desc("bytes"), fn.asc("key"))
    in_bucket = Window.partitionBy("chain", "window", "bucket").orderBy(*order)
    in_all = Window.partitionBy("chain", "window").orderBy(*order)
    some = counted.withColumn("rank", fn.row_number().over(in_bucket)).where(fn.col("rank") <= most)
    return some.withColumn("rank", fn.row_number().over(in_all)).where(fn.col("rank") <= most)


def trail(changes: DataFrame, operations: DataFrame, key: bytes) -> DataFrame:
    """What happened to one key, and whose command it was, where callers have recorded that."""
    of_key = changes.where((fn.col("bucket") == bucket_of(fn.lit(key))) & (fn.col("key") == fn.lit(key)))
    commands = (
        operations.where((fn.col("kind") == "command") & fn.col("ts").isNotNull())
        .groupBy("chain", "ts")
        .agg(
            fn.min_by(
                fn.struct("client", "request", "operation", "recorder", fn.col("wall_ns").alias("called_ns")),
                fn.struct("return_ns", "client", "request", "recorder"),
            ).alias("who")
        )
    )
    # A caller that was too short to learn its chain has 0.
    exact = commands.where(fn.col("chain") != 0).withColumnRenamed("who", "exact")
    other = commands.where(fn.col("chain") == 0).select("ts", fn.col("who").alias("other"))
    who = fn.coalesce("exact", "other")
    is_done = fn.col("kind").isin("put", "delete") | (
        (fn.col("kind") == "expire") & who["operation"].isin(*_ENDS_LEASES)
    )
    found = of_key.join(exact, ["chain", "ts"], "left").join(other, "ts", "left")
    return found.withColumn("who", fn.when(is_done, who)).select(
        "chain",
        "key",
        "ts",
        fn.timestamp_micros(_micros(fn.coalesce("time_ns", "wall_ns"))).alias("at"),
        "kind",
        "value",
        "value_bytes",
        "version",
        "previous_ts",
        "valid_to",
        "who.client",
        "who.request",
        "who.operation",
        "who.recorder",
        fn.timestamp_micros(_micros(fn.col("who.called_ns"))).alias("called_at"),
    )


# -- what is wrong with it -----------------------------------------------------------------------


def disagreements(changes: DataFrame) -> DataFrame:
    """A row for each chain and set of replicas that tell different things of one change."""
    return (
        changes.where(fn.col("contents") > 1)
        .groupBy("chain", "sites")
        .agg(fn.count(fn.lit(1)).alias("rows"), fn.min(fn.struct("ts", "key")).alias("first"))
    )


def left_out(changes: DataFrame, told: DataFrame) -> DataFrame:
    """A row for each replica that does not tell what others do, though it tells everything then; of its last
    slot perhaps only a part was written. They meet by chain and part of the slots."""
    width = 1 << PART_BITS
    seen = changes.where(fn.col("basis") == "change").select(
        "chain", "ts", "key", "sites", ranges.part_of(fn.col("ts"), width).alias("part")
    )
    inner = told.select(
        "chain",
        shown(fn.col("site")).alias("site"),
        (fn.col("first_ts") + 1).alias("first"),
        (fn.col("last_ts") - 1).alias("last"),
    )
    covering = ranges.cut(inner.where(fn.col("first") <= fn.col("last")), width)
    return (
        seen.join(fn.broadcast(covering), ["chain", "part"])
        .where(fn.col("ts").between(fn.col("first"), fn.col("last")))
        .where(~fn.array_contains("sites", fn.col("site")))
        .groupBy("chain", "site")
        .agg(fn.count_distinct("ts", "key").alias("rows"), fn.min(fn.struct("ts", "key")).alias("first"))
    )
