"""What does a micro-batch bring: sums of it, and which parts of the order it touches?"""

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as fn

from pipeline import live, watching
from pipeline.audit import recorded
from pipeline.files import ROW_BITS
from pipeline.jobs.metrics import COUNTERS
from pipeline.ranges import part_of
from pipeline.watching import Notable, Sums


class Judged(msgspec.Struct, kw_only=True):
    """Parts of slots and numbers, and spans of windows."""

    slots: list[int]
    numbers: list[int]
    spans: list[int]
    has_views: bool


class Touched:
    """``is_kept``: whether any row will be looked for again. ``is_notable``: whether any is one of
    ``watching.TOLD``. ``is_counted``: whether the metrics count any."""

    def __init__(self) -> None:
        self.slots: set[int] = set()
        self.numbers: set[int] = set()
        self.spans: set[int] = set()
        self.retracted: set[int] = set()
        self.first_slots: dict[str, int] = {}
        self.has_views = self.is_kept = self.is_notable = self.is_counted = False

    def add(self, row: Row) -> None:
        self.slots |= set(row.slot_parts)
        self.numbers |= set(row.number_parts)
        self.spans |= set(row.spans)
        self.retracted |= set(row.retracted_parts)
        self.has_views |= row.has_views
        self.is_kept |= row.is_kept
        self.is_notable |= row.is_notable
        self.is_counted |= row.is_counted
        if row.first_slot is not None:
            key = f"{row.recorder} {row.site} {row.boot}"
            self.first_slots[key] = min(row.first_slot, self.first_slots.get(key, row.first_slot))


def summed(told: DataFrame, width: int, window_ns: int) -> tuple[list[Sums], Touched]:
    """A row for each process and epoch in the micro-batch, and which parts it touches."""
    rows = told.groupBy("recorder", "chain", "site", "boot", "epoch").agg(
        *_sums(), *_touched(width, window_ns)
    )
    found = rows.collect()
    touched = Touched()
    for row in found:
        touched.add(row)
    sums = [Sums(*row[: len(Sums._fields)]) for row in found]
    return sorted(sums, key=lambda each: (each.recorder, each.position)), touched


def _sums() -> list[Column]:
    """As ``watching.Sums``, behind its first five."""
    delivered = fn.expr("event = 'delivered' and chain <> 0")
    at_slot = fn.expr("event in ('delivered', 'view') and first_ts is not null and chain <> 0")
    counters = fn.from_json("detail", ", ".join(f"{name} long" for name in COUNTERS))
    again = fn.when(fn.col("event") == "sample", counters["retransmitted"] + counters["nacks"])
    wall = fn.col("wall_ns")
    return [
        fn.count("*").alias("rows"),
        fn.max("position").alias("position"),
        fn.min(wall).alias("first_wall_ns"),
        fn.max(wall).alias("wall_ns"),
        fn.max(fn.when(at_slot, _last_slot())).alias("slot"),
        fn.min(fn.when(delivered, wall)).alias("delivered_first_ns"),
        fn.max(fn.when(delivered, wall)).alias("delivered_last_ns"),
        fn.max(fn.when(recorded.is_submission(), wall)).alias("submitted_ns"),
        fn.max_by(again, fn.when(again.isNotNull(), fn.col("position"))).alias("sample"),
        fn.max(fn.when(again.isNotNull(), fn.col("mono_ns"))).alias("sample_ns"),
        fn.collect_set(fn.shiftright("position", ROW_BITS)).alias("files"),
    ]


def _last_slot() -> Column:
    return fn.col("first_ts") + fn.greatest(fn.coalesce("count", fn.lit(1)), fn.lit(1)) - 1


def _touched(width: int, window_ns: int) -> list[Column]:
    """Which parts of slots and numbers, and spans of windows: few, as a micro-batch has few parts."""
    in_order = fn.col("event").isin(*live.AT_SLOTS, "view", "restored") & (fn.col("chain") != 0)
    slots = fn.sequence(part_of(fn.col("first_ts"), width), part_of(_last_slot(), width))
    last = fn.col("first_seq") + fn.greatest(fn.coalesce("count", fn.lit(1)), fn.lit(1)) - 1
    numbers = fn.sequence(part_of(fn.col("first_seq"), width), part_of(last, width))
    span = part_of(fn.col("wall_ns"), window_ns * live.WINDOWS_IN_SPAN)

    def several(condition: Column, parts: Column) -> Column:
        return fn.array_distinct(fn.flatten(fn.collect_set(fn.when(condition, parts))))

    return [
        several(in_order & fn.col("first_ts").isNotNull(), slots).alias("slot_parts"),
        several(fn.expr("event in ('delivered', 'submitted') and first_seq is not null"), numbers).alias(
            "number_parts"
        ),
        fn.collect_set(fn.when(fn.col("chain") != 0, span)).alias("spans"),
        fn.collect_set(fn.when(fn.col("event") == "retracted", part_of(fn.col("first_ts"), width))).alias(
            "retracted_parts"
        ),
        fn.bool_or(fn.expr("event = 'view'")).alias("has_views"),
        fn.min(fn.when(in_order, fn.col("first_ts"))).alias("first_slot"),
        fn.bool_or(~fn.col("event").isin(*live.NOT_KEPT)).alias("is_kept"),
        fn.bool_or(fn.col("event").isin(*watching.TOLD)).alias("is_notable"),
        fn.bool_or(fn.col("event").isin(*live.COUNTED)).alias("is_counted"),
    ]


def notable(told: DataFrame) -> list[Notable]:
    """What happened to processes and recorders: rare."""
    rows = told.where(fn.col("event").isin(*watching.TOLD)).withColumnRenamed("count", "rows")
    found = rows.select(*Notable._fields).collect()
    return sorted((Notable(*row) for row in found), key=lambda each: (each.wall_ns, each.position))
