"""How are the rows of a stream kept, so that only what has grown is judged again?

Every micro-batch writes its rows below its number: done again after a crash, it
writes the same in the same place. Rows lie where they will be looked for (``layout``):

============  =================================================================================
``slots``     what stands at a slot, by part of the slots
``numbers``   what was submitted, and promised deliveries, by part of the source's numbers
``rare``      views, states taken over, gaps and the like, whole
============  =================================================================================

A part that grows slowly would become many small files. When there are ``MERGE`` of them, they become one
whose name says which of them it stands for; what it stands for is passed over and removed.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline import tables as at
from pipeline.audit import by_slot
from pipeline.audit.recorded import is_final, is_submission
from pipeline.jobs import lifecycle, metrics
from pipeline.ranges import part_of
from pipeline.schemas import EVENTS, LIFECYCLE
from pipeline.tables import Table, Tables

SLOTS, NUMBERS, RARE = "slots", "numbers", "rare"
AT_SLOTS: Final = ("delivered", "held", "applied", "replied", "level")
NOT_KEPT: Final = ("abandoned", "sample")
NOT_RARE: Final = (*AT_SLOTS, *NOT_KEPT, "submitted")
MERGE: Final = 24
WINDOWS_IN_SPAN: Final = 100
LATE: Final = "late"
PARTS_IN_GROUP: Final = 256
# Sums of so many parts together, whole behind each micro-batch that added to them.
SUMS: Final = at.LIVE_SUMS._replace(
    schema=StructType(
        [
            *by_slot.SUMS.fields,
            StructField("group", LongType(), False),
            StructField("batch", StringType(), False),
        ]
    ),
    partitions=("group", "batch"),
)
COUNTED: Final = ("submitted", "delivered", "replied", "gap")


def batch_name(number: int) -> str:
    return f"{number:09}"


# -- where rows lie ------------------------------------------------------------------------------


def laid_out(events: DataFrame, width: int, batch: str) -> DataFrame:
    """As ``schemas.LIVE_EVENTS``: a row for each place where it is looked for."""
    in_chain, event = fn.col("chain") != 0, fn.col("event")
    at_slot = in_chain & event.isin(*AT_SLOTS) & fn.col("first_ts").isNotNull()
    is_promise = in_chain & (event == "delivered") & fn.col("first_ts").isNotNull() & is_final()
    numbered = (is_promise | is_submission()) & (fn.col("count") > 0)
    places = (
        (SLOTS, at_slot, part_of(fn.col("first_ts"), width)),
        (NUMBERS, numbered, part_of(fn.col("first_seq"), width)),
        (RARE, ~event.isin(*NOT_RARE), fn.lit(0).cast("long")),
    )
    each = (
        fn.when(condition, fn.struct(fn.lit(layout).alias("layout"), part.alias("part")))
        for layout, condition, part in places
    )
    laid = events.select("*", fn.inline(fn.array_compact(fn.array(*each))))
    return laid.withColumn("batch", fn.lit(batch))


def stored(tables: Tables, table: Table, parts: Iterable[int], *above: str) -> DataFrame:
    """The rows of these parts; those that are not there have none."""
    wanted = sorted({str(part) for part in parts})
    return tables.read_partitions(
        table,
        ((*above, part, batch) for part in wanted for batch in _current(tables, table, *above, part)),
    )


def events_of(tables: Tables, layout: str, parts: Iterable[int] = (0,)) -> DataFrame:
    return stored(tables, at.LIVE_EVENTS, parts, layout).select(*EVENTS.fieldNames())


def newest_of(tables: Tables, layout: str, parts: Iterable[int], batch: str) -> DataFrame:
    """What this micro-batch brought."""
    there = [
        (layout, str(part), batch)
        for part in parts
        if batch in tables.partitions(at.LIVE_EVENTS, layout, str(part))
    ]
    return tables.read_partitions(at.LIVE_EVENTS, there).select(*EVENTS.fieldNames())


def merge(tables: Tables, table: Table, parts: Iterable[int], batch: str, *above: str) -> None:
    """Of parts that are in many pieces; ``batch`` is the one being worked on, and stays as it is."""
    for part in sorted({str(part) for part in parts}):
        place = (*above, part)
        current = sorted(each for each in _current(tables, table, *place) if each < batch)
        if len(current) < MERGE:
            continue
        together = f"{current[0].partition('-')[0]}-{current[-1].rpartition('-')[2]}"
        rows = tables.read_partitions(table, ((*place, each) for each in current))
        tables.write_partition(table, (*place, together), rows.coalesce(1))
        for each in tables.partitions(table, *place) - {together}:
            if each < batch:
                tables.drop(table, *place, each)


def _current(tables: Tables, table: Table, *place: str) -> list[str]:
    """Without what a later one stands for, and that one only if it was written to its end."""
    names = tables.partitions(table, *place)
    several = {name for name in names if "-" in name and tables.is_whole(table, *place, name)}
    singles = {name for name in names if "-" not in name}
    return sorted(standing(several | singles))


def standing(names: set[str]) -> set[str]:
    """Those that are not contained in another."""

    def extent(name: str) -> tuple[str, str]:
        first, _, last = name.partition("-")
        return first, last or first

    def is_within(name: str, other: str) -> bool:
        (first, last), (low, high) = extent(name), extent(other)
        return name != other and low <= first and last <= high

    return {name for name in names if not any(is_within(name, other) for other in names)}


# -- sums of parts -------------------------------------------------------------------------------


def add_sums(tables: Tables, summed: DataFrame, parts: Iterable[int], batch: str) -> None:
    """Of these parts, in place of what was known of them. What was known before stays as it is, for a
    micro-batch that is done again; what is older goes."""
    groups: dict[int, list[int]] = {}
    for part in parts:
        groups.setdefault(part // PARTS_IN_GROUP, []).append(part)
    for group, mine in sorted(groups.items()):
        before = _whole_sums(tables, str(group), batch, is_before=True)
        known = tables.read_partitions(SUMS, [(str(group), each) for each in before[-1:]])
        fields = by_slot.SUMS.fieldNames()
        rows = known.where(~fn.col("part").isin(mine)).select(*fields)
        rows = rows.unionByName(summed.where(fn.col("part").isin(mine)).select(*fields))
        tables.write_partition(SUMS, (str(group), batch), rows.coalesce(1))
        for old in before[:-1]:
            tables.drop(SUMS, str(group), old)


def sums(tables: Tables, batch: str) -> DataFrame:
    """Of all parts, as of this micro-batch: a row for each part and process, a file for each group."""
    newest = {group: _whole_sums(tables, group, batch, is_before=False) for group in tables.partitions(SUMS)}
    read = tables.read_partitions(SUMS, [(group, there[-1]) for group, there in newest.items() if there])
    return read.select(*by_slot.SUMS.fieldNames())


def _whole_sums(tables: Tables, group: str, batch: str, *, is_before: bool) -> list[str]:
    there = sorted(tables.partitions(SUMS, group))
    there = [each for each in there if each < batch or (each == batch and not is_before)]
    return [each for each in there if tables.is_whole(SUMS, group, each)]


# -- windows of time -----------------------------------------------------------------------------


def counted(events: DataFrame, width_ns: int, late_before_ns: int, batch: str) -> DataFrame:
    """As ``schemas.LIVE_WINDOWS``: messages by event, rows that came behind the watermark, and who lived."""
    messages = fn.coalesce(fn.col("count"), fn.lit(0).cast("long"))
    one = fn.lit(1).cast("long")
    window = metrics.begin_of(fn.col("wall_ns"), width_ns)
    is_late = window + width_ns <= fn.lit(late_before_ns)
    kinds = fn.array_compact(
        fn.array(
            fn.struct(fn.lit("alive").alias("kind"), one.alias("told")),
            fn.when(
                fn.col("event").isin(*COUNTED),
                fn.struct(fn.col("event").alias("kind"), messages.alias("told")),
            ),
            fn.when(is_late, fn.struct(fn.lit(LATE).alias("kind"), one.alias("told"))),
        )
    )
    rows = events.where("chain <> 0").select(
        "chain", "site", "boot", window.alias("window_ns"), fn.inline(kinds)
    )
    sums = rows.groupBy("kind", "chain", "site", "boot", "window_ns").agg(fn.sum("told").alias("count"))
    return _placed(sums.withColumn("value", fn.lit(None).cast("long")), width_ns, batch)


def waited(
    delivered: DataFrame, submitted: DataFrame, rare: DataFrame, width: int, width_ns: int, batch: str
) -> DataFrame:
    """As ``schemas.LIVE_WINDOWS``: how long sources waited for their own messages."""
    own = lifecycle.deliveries(delivered.where("site = source"))
    known = lifecycle.with_submissions(own, submitted.unionByName(rare), width)
    none = {
        name: fn.lit(None).cast("long")
        for name in ("held_ns", "majority_ns", "stable_ns", "applied_ns", "replied_ns")
    }
    begun = rare.select("site", "boot", "mono_ns").unionByName(submitted.select("site", "boot", "mono_ns"))
    waits = metrics.waits_of(metrics.without_replays(known.withColumns(none), begun)).where("value >= 0")
    sums = (
        waits.groupBy(
            fn.col("metric").alias("kind"),
            "chain",
            "site",
            metrics.begin_of(fn.col("wall_ns"), width_ns).alias("window_ns"),
            metrics.four_digits(fn.col("value")),
        )
        .agg(fn.sum("count").alias("count"), fn.max("value").alias("value"))
        .withColumn("boot", fn.lit(0).cast("long"))
    )
    return _placed(sums, width_ns, batch)


def _placed(sums: DataFrame, width_ns: int, batch: str) -> DataFrame:
    span = part_of(fn.col("window_ns"), width_ns * WINDOWS_IN_SPAN)
    return sums.withColumns({"span": span, "batch": fn.lit(batch)})


def measured(windows: DataFrame, width_ns: int) -> DataFrame:
    """As ``schemas.LIVE_METRICS``, by the functions of ``metrics``: sums stand for the rows they were made
    of."""
    spark = windows.sparkSession
    counts = windows.where("value is null")
    none = fn.lit(None).cast("long")
    events = counts.where(fn.col("kind") != LATE).select(
        "chain",
        "site",
        "boot",
        fn.col("kind").alias("event"),
        "count",
        fn.col("window_ns").alias("wall_ns"),
        fn.lit("").alias("recorder"),
        none.alias("position"),
    )
    rates = metrics.rates(events, spark.createDataFrame([], LIFECYCLE), width_ns)
    waits = windows.where("value is not null").select(
        fn.col("kind").alias("metric"),
        "chain",
        "site",
        fn.col("window_ns").alias("wall_ns"),
        "value",
        "count",
    )
    late = (
        counts.where(fn.col("kind") == LATE)
        .groupBy("chain", "site", fn.col("window_ns").alias("window"))
        .agg(fn.sum("count").alias("samples"))
        .withColumns(
            {
                "metric": fn.lit("late_rows"),
                "statistic": fn.lit("sum"),
                "value": fn.col("samples").cast("double"),
                "unit": fn.lit("rows"),
            }
        )
    )
    together = rates.unionByName(metrics.percentiles(waits, width_ns)).unionByName(late)
    span = part_of(fn.col("window"), width_ns * WINDOWS_IN_SPAN)
    told = together.where("window is not null").withColumn("span", span)
    return told.withColumn("window", metrics.time_of(fn.col("window")))
