"""How fast, how late, how full: per replica and window of time.

==========================  ========================================================================
throughput                  ``submitted``, ``delivered``, ``applied``, ``replied``: messages a second
``delivery_latency``        submitted to delivered, at the source's own replica
``majority_latency``        submitted to when the source knew that a majority holds it
``stable_latency``          submitted to when the source knew that everyone holds it
``reply_latency``           submitted to replied
``held_lag``                delivered to held; 0 if that was told before
``applied_lag``             delivered to applied
``packets_per_message``     datagrams sent, for each message delivered; ``bytes_per_message`` likewise
``token_rotation``          once around the ring: time between passes, times members of the ring
``retransmissions``         a second; ``nacks`` likewise
``buffered_slots``          kept for who may lack them
``window_messages``         own, accepted and not yet confirmed; ``window_bytes`` likewise
``waiting``                 messages delivered and not executed
``receive_bytes``           in the receive buffers of the sockets
``view_change``             last delivery in the old epoch to the first in the new, at each replica
``outage``                  the same for the group: nobody delivered anything
==========================  ========================================================================

A window is one of wall time of the site that tells; times are differences of one site's monotonic clock. A
message counts in the window in which what is measured has ended. Percentiles are over messages, not rows:
the nearest rank, rounded down to four significant digits. Digits are cut before anything is put in order,
which changes no rank, so a percentile of any number of messages is taken from some ten thousand sums.

Where nothing was recorded there is no row. A rate is messages for each second that the replica lived in the
window: from its first row to its last. Who lived for less than half of a window has no rate in it. Over the
whole recording the mean is all messages for all seconds, and the most is that of a window with a rate.
Windows that a gap of a recording touches, or a file that is missing, are left out of both. The group's rate
is the most of a replica where all have the same messages (delivered, applied), else the sum, and then only
where no replica that ever told of it has a gap; its seconds are those in which anybody lived.

What a process that comes back delivers again, at slots that the site had delivered before, is in no rate, no
lag and no change of the view.
"""

import math
from typing import Any, Final

from pyspark.sql import Column, DataFrame, GroupedData, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from pipeline import tables as at
from pipeline.errors import BadSetting
from pipeline.figures import CHAINS_MAX, Measured, draw_metrics
from pipeline.lives import gaps, lives, reached_before, without_again
from pipeline.ranges import earlier, within
from pipeline.runs import Outcome, Run, Step
from pipeline.tables import Tables
from pipeline.view_changes import at_replicas, of_group

NEEDS: Final = ("ingest", "lifecycle")
NAME: Final = "metrics"
OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "window_s": (None, "Seconds in a window; if it is not said, there are about sixty windows.")
}
HELP: Final = """
Throughput, latencies as percentiles of messages, what the ring costs, and how long
view changes hold it up: per replica and window of time in gold/metrics and
gold/view_changes, and as figures (figures/*.png). Where nothing was recorded
there is no row; what was left out stands in quality.
"""

WINDOWS: Final = 60  # about so many, if nobody says how long one is
WINDOWS_MAX: Final = 10_000
SECOND_NS: Final = 1_000_000_000
_LEAST_NS: Final = 1_000_000
_DIGITS: Final = 4
_PERMILLES: Final = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "max": 1000}

_COUNTED: Final = ("submitted", "delivered", "replied")
# Of these all replicas have the same messages: the group's is that of the replica that is furthest.
_SHARED: Final = ("delivered", "applied")
COUNTERS: Final = (
    "datagrams_in", "datagrams_out", "bytes_in", "bytes_out", "delivered", "passes", "retransmitted", "nacks",
)  # fmt: skip
GAUGES: Final = {
    "buffered_slots": "slots",
    "window_messages": "messages",
    "window_bytes": "bytes",
    "waiting": "messages",
    "receive_bytes": "bytes",
}
_SAMPLE: Final = StructType(
    [StructField(name, LongType()) for name in COUNTERS]
    + [StructField(name, DoubleType()) for name in GAUGES]
)
_PLACE: Final = ("chain", "site", "window")
_KEY: Final = ("metric", "chain", "site", "window")


def check(options: dict[str, str]) -> None:
    """Whether a window fits the length of a recording is known later."""
    chosen_width_ns(0, options.get("window_s"))


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    events, lifecycle = tables.read(at.EVENTS), tables.read(at.LIFECYCLE)
    step("how long is the recording?")
    width_ns = chosen_width_ns(longest_ns(events), run.options.get("window_s"))
    step(f"metrics, in windows of {width_ns / SECOND_NS:g} s")
    tables.write(at.VIEW_CHANGES, view_changes(events))
    changes = tables.read(at.VIEW_CHANGES)
    tables.write(at.METRICS, metrics(events, lifecycle, changes, width_ns))
    tables.write(at.QUALITY, quality(events, lifecycle, width_ns), whole=False)
    step("figures")
    made = tables.read(at.METRICS)
    drawn = busiest(made)
    # Bounded: by windows, replicas, epochs and statistics of a few chains.
    own = fn.col("chain").isin(drawn)
    figured = made.where(own).collect()
    sites = sorted({row["site"] for row in figured if row["site"] is not None})
    happened = marks(events, width_ns).where(own | (fn.col("chain") == 0) & fn.col("site").isin(sites))
    figures = draw_metrics(
        Measured(
            figured,
            changes.where(own).collect(),
            happened.collect(),
            names(events.where(own)).collect(),
        ),
        tables.root,
        width_ns,
    )
    words = [f"windows of {width_ns / SECOND_NS:g} s"]
    rows = {at.METRICS.path: made.count(), at.VIEW_CHANGES.path: changes.count()}
    if not rows[at.METRICS.path]:
        words.append("nothing to measure: no replica of a chain submitted or delivered anything")
    return Outcome(rows=rows, words=words, figures=figures)


def busiest(made: DataFrame) -> list[int]:
    """The few chains that are drawn: those that delivered most. Who has no window has nothing to draw."""
    delivered = made.where("metric = 'delivered' AND site IS NULL").groupBy("chain")
    sums = delivered.agg(fn.max("samples").alias("messages"), fn.count("window").alias("windows"))
    order = (fn.col("messages").desc(), "chain")
    return [row["chain"] for row in sums.where("windows > 0").orderBy(*order).limit(CHAINS_MAX).collect()]


# -- windows -------------------------------------------------------------------------------------


def longest_ns(events: DataFrame) -> int:
    """From the first to the last row of the replica that recorded for longest. Not of all: their clocks
    differ."""
    spans = events.groupBy("site").agg((fn.max("wall_ns") - fn.min("wall_ns")).alias("span"))
    found = spans.agg(fn.max("span")).first()  # one row
    return 0 if found is None or found[0] is None else int(found[0])


def chosen_width_ns(length_ns: int, asked: str | None) -> int:
    if asked is None:
        wanted = max(length_ns / WINDOWS, _LEAST_NS)
        power = 10 ** math.floor(math.log10(wanted))
        return int(min((power * step for step in (1, 2, 5, 10)), key=lambda ns: abs(math.log(ns / wanted))))
    try:
        width_ns = round(float(asked) * SECOND_NS / _LEAST_NS) * _LEAST_NS
    except (ValueError, OverflowError):
        raise BadSetting(f"window_s: {asked!r} must be a number of seconds, as 0.5") from None
    if width_ns < _LEAST_NS:
        raise BadSetting(f"window_s: {asked} must be 0.001 or more")
    if length_ns / width_ns > WINDOWS_MAX:
        least = math.ceil(length_ns / WINDOWS_MAX / _LEAST_NS) * _LEAST_NS / SECOND_NS
        raise BadSetting(
            f"window_s: {asked} makes {length_ns // width_ns:,} windows of this recording, and more than"
            f" {WINDOWS_MAX:,} tell nobody anything; take {least:g} or more"
        )
    return width_ns


def begin_of(wall_ns: Column, width_ns: int) -> Column:
    return wall_ns - fn.pmod(wall_ns, fn.lit(width_ns))


def time_of(wall_ns: Column) -> Column:
    return fn.timestamp_micros(
        fn.call_function("div", wall_ns - fn.pmod(wall_ns, fn.lit(1000)), fn.lit(1000))
    )


def _with_sums(rows: DataFrame, *keys: str) -> GroupedData:
    """Beside each replica and window: each replica, each window, and all."""
    sets = [("site", "window"), ("site",), ("window",), ()]
    return rows.groupingSets([(*keys, *each) for each in sets], *keys, "site", "window")


# -- all of it -----------------------------------------------------------------------------------


def metrics(events: DataFrame, lifecycle: DataFrame, changes: DataFrame, width_ns: int) -> DataFrame:
    """As ``schemas.METRICS``. Rows before a site has a chain belong to nothing that is measured."""
    reached = reached_before(events)
    lifecycle = without_again(lifecycle.where("chain <> 0"), reached)
    lived, missing = lives(events), gaps(events)
    events = events.where("chain <> 0")
    is_delivery = fn.col("event") == "delivered"
    told = events.where(~is_delivery).unionByName(without_again(events.where(is_delivery), reached))
    waits = waits_of(lifecycle).where("value >= 0").union(_change_waits(changes))
    parts = (
        rates(told, lifecycle, width_ns, lived, missing),
        percentiles(waits, width_ns),
        sampled(events, width_ns),
        outages(changes, width_ns),
    )
    result = parts[0]
    for part in parts[1:]:
        result = result.unionByName(part)
    # Written by metric: few files, each of some.
    return result.withColumn("window", time_of(fn.col("window"))).repartition("metric")


# -- throughput ----------------------------------------------------------------------------------


def rates(
    events: DataFrame,
    lifecycle: DataFrame,
    width_ns: int,
    lived: DataFrame | None = None,
    missing: DataFrame | None = None,
) -> DataFrame:
    """Messages a second. Over all windows (null): their mean and the most in one. ``lived``, ``missing``:
    when processes lived and where rows are missing (``pipeline.lives``). Without, events are sums of windows,
    and who is in one lived in all of it."""
    told = _in_windows(events.where(fn.col("event").isin(*_COUNTED)), fn.col("wall_ns"), width_ns)
    applied = _in_windows(lifecycle.where("applied_ns IS NOT NULL"), _wall_of(fn.col("applied_ns")), width_ns)
    pieces = in_each_window(lives(events) if lived is None else lived, width_ns)
    if lived is None:
        pieces = pieces.withColumns({"from_ns": fn.col("window"), "to_ns": fn.col("window") + width_ns})
    lacking = (
        in_each_window(gaps(events) if missing is None else missing, width_ns).select(*_PLACE).distinct()
    )
    is_missing = fn.lit(False).alias("is_missing")
    nothing = [fn.lit(0).cast("long").alias(name) for name in (*_COUNTED, "applied")]
    rows = (
        told.select(*_PLACE, is_missing, *(_count_if(name) for name in _COUNTED), nothing[-1])
        .union(applied.select(*_PLACE, is_missing, *nothing[:-1], fn.col("count").alias("applied")))
        .union(pieces.select(*_PLACE, is_missing, *nothing))
        .union(lacking.select(*_PLACE, fn.lit(True), *nothing))
    )
    sums = rows.groupBy(*_PLACE).agg(
        fn.bool_or("is_missing").alias("is_missing"),
        *(fn.sum(name).alias(name) for name in (*_COUNTED, "applied")),
    )
    # What a replica never told, it may not record: that is not zero. Bounded by windows.
    life = Window.partitionBy("chain", "site")
    ever = {f"ever_{name}": fn.sum(name).over(life) for name in (*_COUNTED, "applied")}
    each = fn.array(
        *(
            fn.struct(
                fn.lit(name).alias("metric"),
                fn.col(name).alias("messages"),
                fn.col(f"ever_{name}").alias("ever"),
            )
            for name in (*_COUNTED, "applied")
        )
    )
    told_ever = sums.withColumns(ever).select(*_PLACE, "is_missing", fn.inline(each)).where("ever > 0")
    counted = told_ever.where("NOT is_missing").select(*_KEY, "messages").unionByName(_of_group(told_ever))
    whole = pieces.join(lacking, list(_PLACE), "left_anti")
    seconds = lived_in(whole, "chain", "site").unionByName(
        lived_in(whole, "chain").withColumn("site", fn.lit(None).cast("long"))
    )
    return _rates_of(counted, seconds, width_ns).withColumn("unit", fn.lit("1/s"))


def _of_group(told: DataFrame) -> DataFrame:
    """Where all have the same messages, the most of a replica; else the sum, if nobody's is missing."""
    there = fn.when(~fn.col("is_missing"), fn.col("messages"))
    summed = fn.when(~fn.bool_or("is_missing"), fn.sum(there))
    counted = fn.when(fn.col("metric").isin(*_SHARED), fn.max(there)).otherwise(summed)
    sums = told.groupBy("metric", "chain", "window").agg(counted.alias("messages"))
    none = fn.lit(None).cast("long").alias("site")
    return sums.where("messages IS NOT NULL").select("metric", "chain", none, "window", "messages")


def _in_windows(rows: DataFrame, wall_ns: Column, width_ns: int) -> DataFrame:
    return rows.withColumn("window", begin_of(wall_ns, width_ns))


def _count_if(event: str) -> Column:
    return fn.when(fn.col("event") == event, fn.col("count")).otherwise(0).alias(event)


def _rates_of(counted: DataFrame, seconds: DataFrame, width_ns: int) -> DataFrame:
    place = [fn.col(f"here.{name}").eqNullSafe(fn.col(f"there.{name}")) for name in _PLACE]
    joined = counted.alias("here").join(seconds.alias("there"), place, "left")
    lived_ns = fn.coalesce(fn.col("there.lived_ns"), fn.lit(0).cast("long"))
    known = joined.select(*(f"here.{name}" for name in _KEY), "messages", lived_ns.alias("lived_ns"))
    rate = fn.try_divide(fn.sum("messages") * SECOND_NS, fn.sum("lived_ns"))
    in_window = fn.when(
        fn.col("lived_ns") * 2 >= width_ns, fn.col("messages") * SECOND_NS / fn.col("lived_ns")
    )
    both = known.groupingSets([_KEY, ("metric", "chain", "site")], *_KEY).agg(
        rate.alias("mean"), fn.max(in_window).alias("max"), fn.sum("messages").alias("samples")
    )
    told = fn.when(fn.col("window").isNotNull(), fn.create_map(fn.lit("rate"), "max")).otherwise(
        fn.create_map(fn.lit("mean"), "mean", fn.lit("max"), "max")
    )
    found = both.select(*_KEY, "samples", fn.explode(told).alias("statistic", "value"))
    return found.where("value IS NOT NULL")


def _wall_of(mono_ns: Column) -> Column:
    """By the clocks of a delivery at the same site."""
    return fn.col("delivered_wall_ns") + (mono_ns - fn.col("delivered_ns"))


def in_each_window(spans: DataFrame, width_ns: int) -> DataFrame:
    """chain, site, window, ``from_ns``, ``to_ns``: of times from ``began_ns`` to ``ended_ns`` what lies in
    each window."""
    first, last = (begin_of(fn.col(name), width_ns) for name in ("began_ns", "ended_ns"))
    windows = spans.withColumn("window", fn.explode(fn.sequence(first, last, fn.lit(width_ns).cast("long"))))
    return windows.select(
        *_PLACE,
        fn.greatest("began_ns", "window").alias("from_ns"),
        fn.least(fn.col("ended_ns"), fn.col("window") + width_ns).alias("to_ns"),
    )


def lived_in(pieces: DataFrame, *keys: str) -> DataFrame:
    """How long anybody of these lived in each window: times of several that overlap count once."""
    order = within([*keys, "window"], ["from_ns", "to_ns"])
    so_far = fn.max("to_ns").over(earlier(order))
    new_ns = fn.greatest(fn.col("to_ns") - fn.greatest(fn.col("from_ns"), so_far), fn.lit(0).cast("long"))
    each = pieces.select(*keys, "window", new_ns.alias("new_ns"))
    return each.groupBy(*keys, "window").agg(fn.sum("new_ns").alias("lived_ns"))


# -- waits ---------------------------------------------------------------------------------------


def without_replays(lifecycle: DataFrame, events: DataFrame) -> DataFrame:
    """A process that comes back delivers again from its disk what one before it submitted. That waited for
    the process, not for the ring: it has no time of submission here."""
    begun = events.groupBy("site", "boot").agg(fn.min("mono_ns").alias("begun_ns"))
    own = fn.when(fn.col("submitted_ns") >= fn.coalesce("begun_ns", "submitted_ns"), fn.col("submitted_ns"))
    # One row for each process that ever ran.
    known = lifecycle.join(fn.broadcast(begun), ["site", "boot"], "left")
    return known.withColumn("submitted_ns", own).drop("begun_ns")


def waits_of(lifecycle: DataFrame) -> DataFrame:
    """metric, chain, site, ``wall_ns`` of its end, value, count: one row for each range and wait."""
    is_own = fn.col("site") == fn.col("source")
    submitted, delivered = fn.col("submitted_ns"), fn.col("delivered_ns")

    def wait(metric: str, begin: Column, end: Column, *, own: bool) -> Column:
        ended = fn.when(is_own, end) if own else end
        return fn.struct(
            fn.lit(metric).alias("metric"), (ended - begin).alias("value"), _wall_of(ended).alias("wall_ns")
        )

    held = fn.when(fn.col("held_ns").isNotNull(), fn.greatest("held_ns", "delivered_ns"))
    waits = fn.array(
        wait("delivery_latency", submitted, delivered, own=True),
        wait("majority_latency", submitted, fn.col("majority_ns"), own=True),
        wait("stable_latency", submitted, fn.col("stable_ns"), own=True),
        wait("reply_latency", submitted, fn.col("replied_ns"), own=True),
        wait("held_lag", delivered, held, own=False),
        wait("applied_lag", delivered, fn.col("applied_ns"), own=False),
    )
    return (
        lifecycle.select("chain", "site", "count", fn.explode(waits).alias("wait"))
        .select("wait.metric", "chain", "site", "wait.wall_ns", "wait.value", "count")
        .where("value IS NOT NULL")
    )


def _change_waits(changes: DataFrame) -> DataFrame:
    return changes.where("site IS NOT NULL").select(
        fn.lit("view_change").alias("metric"), "chain", "site",
        (fn.unix_micros("ended") * 1000).alias("wall_ns"), fn.col("duration_ns").alias("value"),
        fn.lit(1).cast("long").alias("count"),
    )  # fmt: skip


def percentiles(waits: DataFrame, width_ns: int) -> DataFrame:
    """Per replica and window, per replica, per window, and of all."""
    cut = waits.groupBy(
        "metric", "chain", "site", begin_of(fn.col("wall_ns"), width_ns).alias("window"),
        four_digits(fn.col("value")).alias("digits"),
    ).agg(fn.sum("count").alias("count"), fn.max("value").alias("most"))  # fmt: skip
    sums = _with_sums(cut, "metric", "chain", "digits").agg(
        fn.sum("count").alias("count"), fn.max("most").alias("most")
    )
    whole = Window.partitionBy(*_KEY)
    ranked = sums.select(
        *_KEY, "digits", "count",
        fn.sum("count").over(whole.orderBy("digits")).alias("up_to"),
        fn.sum("count").over(whole).alias("samples"), fn.max("most").over(whole).alias("most"),
    )  # fmt: skip
    ranks = fn.explode(fn.create_map(*(fn.lit(each) for pair in _PERMILLES.items() for each in pair)))
    rank = fn.expr("(samples * permille + 999) div 1000")
    found = ranked.select("*", ranks.alias("statistic", "permille")).where(
        (fn.col("up_to") >= rank) & (fn.col("up_to") - fn.col("count") < rank)
    )
    value = fn.when(fn.col("statistic") == "max", fn.col("most")).otherwise(fn.col("digits")).cast("double")
    return found.select(*_KEY, "samples", "statistic", value.alias("value"), fn.lit("ns").alias("unit"))


def four_digits(value: Column) -> Column:
    step = fn.pow(fn.lit(10.0), fn.greatest(fn.length(value.cast("string")) - _DIGITS, fn.lit(0))).cast(
        "long"
    )
    return value - value % step


# -- counters and gauges -------------------------------------------------------------------------


def samples_of(events: DataFrame) -> DataFrame:
    """With how many members the ring had by then, as the same process told."""
    ring = fn.nullif(fn.regexp_extract("detail", "; ring (.*)$", 1), fn.lit(""))
    size = fn.when(fn.col("event") == "view", fn.size(fn.split(ring, " ")))
    so_far = Window.partitionBy("site", "boot").orderBy("position")
    told = events.where("event IN ('sample', 'view')").select(
        "chain", "site", "boot", "position", "mono_ns", "wall_ns", "event", "detail",
        fn.last(size, ignorenulls=True).over(so_far).alias("ring"),
    )  # fmt: skip
    return told.where("event = 'sample'").withColumn("sample", fn.from_json("detail", _SAMPLE))


def sampled(events: DataFrame, width_ns: int) -> DataFrame:
    """The group's: what all replicas sent, for each message that one of them delivered, on average."""
    added = ("elapsed_ns", "rounds_ns", *COUNTERS, "samples")
    gauged = [
        *(fn.sum(f"sum_{name}").alias(f"sum_{name}") for name in GAUGES),
        *(fn.max(f"max_{name}").alias(f"max_{name}") for name in GAUGES),
        *(fn.sum(f"told_{name}").alias(f"told_{name}") for name in GAUGES),
    ]
    # A message is delivered at every replica, and a second passes at each: in each window as many as tell.
    windows = _grown(events, width_ns).groupingSets([_PLACE, ("chain", "window")], *_PLACE)
    each_window = windows.agg(
        *(fn.sum(name).alias(name) for name in added),
        fn.avg("delivered").alias("messages"),
        fn.avg("elapsed_ns").alias("mean_ns"),
        *gauged,
    )
    sums = each_window.groupingSets([_PLACE, ("chain", "site")], *_PLACE).agg(
        *(fn.sum(name).alias(name) for name in (*added, "messages", "mean_ns")), *gauged
    )
    messages, seconds = fn.col("messages"), fn.col("mean_ns") / SECOND_NS

    def one(metric: str, statistic: str, unit: str, value: Column, samples: str = "samples") -> Column:
        words = zip(("metric", "statistic", "unit"), (metric, statistic, unit), strict=True)
        told = (fn.lit(word).alias(name) for name, word in words)
        return fn.struct(*told, value.cast("double").alias("value"), fn.col(samples).alias("samples"))

    found = [
        one("packets_per_message", "mean", "packets", fn.try_divide(fn.col("datagrams_out"), messages)),
        one("bytes_per_message", "mean", "bytes", fn.try_divide(fn.col("bytes_out"), messages)),
        one("token_rotation", "mean", "ns", fn.try_divide(fn.col("rounds_ns"), fn.col("passes"))),
        one("retransmissions", "rate", "1/s", fn.try_divide(fn.col("retransmitted"), seconds)),
        one("nacks", "rate", "1/s", fn.try_divide(fn.col("nacks"), seconds)),
    ]
    for name, unit in GAUGES.items():
        count = f"told_{name}"
        mean = fn.try_divide(fn.col(f"sum_{name}"), fn.col(count))
        found += [one(name, "mean", unit, mean, count), one(name, "max", unit, fn.col(f"max_{name}"), count)]
    each = sums.select(*_PLACE, fn.inline(fn.array(*found))).where("value IS NOT NULL")
    return each.select(*_KEY, "samples", "statistic", "value", "unit")


def _grown(events: DataFrame, width_ns: int) -> DataFrame:
    """For each replica and window: what each counter grew by between a sample and the one before of the same
    boot, in ``elapsed_ns``; a counter that is less than before began again at zero. And what gauges said."""
    before = Window.partitionBy("site", "boot").orderBy("position")
    grown = []
    for name in COUNTERS:
        now = fn.col(f"sample.{name}")
        then = fn.lag(now).over(before)
        grown.append(fn.when(now >= then, now - then).when(now < then, now).alias(name))
    elapsed = fn.col("mono_ns") - fn.lag("mono_ns").over(before)
    spans = (elapsed.alias("elapsed_ns"), (elapsed * fn.col("ring")).alias("rounds_ns"))
    rows = samples_of(events).select("chain", "site", "wall_ns", *spans, *grown, "sample")
    return (
        _in_windows(rows, fn.col("wall_ns"), width_ns)
        .groupBy(*_PLACE)
        .agg(
            *(fn.sum(name).alias(name) for name in ("elapsed_ns", "rounds_ns", *COUNTERS)),
            fn.count("elapsed_ns").alias("samples"),
            *(fn.sum(f"sample.{name}").alias(f"sum_{name}") for name in GAUGES),
            *(fn.max(f"sample.{name}").alias(f"max_{name}") for name in GAUGES),
            *(fn.count(f"sample.{name}").alias(f"told_{name}") for name in GAUGES),
        )
    )


# -- changes of the view -------------------------------------------------------------------------


def view_changes(events: DataFrame) -> DataFrame:
    """As ``schemas.VIEW_CHANGES``. A change of epoch is one that the group stops for; a new revision is a
    message like any other. Where nobody had anything to say, that counts too."""
    told = events.where("event = 'delivered' AND chain <> 0 AND epoch IS NOT NULL")
    delivered = without_again(told, reached_before(events))
    found = at_replicas(delivered).unionByName(of_group(delivered))
    times = {name: time_of(fn.col(f"{name}_ns")) for name in ("began", "ended")}
    return found.withColumns(times).drop("began_ns", "ended_ns")


def outages(changes: DataFrame, width_ns: int) -> DataFrame:
    """The longest and the sum of those that ended in a window, and in all."""
    own = changes.where("site IS NULL").withColumn("ended_ns", fn.unix_micros("ended") * 1000)
    begin = begin_of(fn.col("ended_ns"), width_ns)
    sums = own.withColumn("window", begin).groupingSets([("chain", "window"), ("chain",)], "chain", "window")
    both = fn.create_map(
        fn.lit("max"),
        fn.max("duration_ns").cast("double"),
        fn.lit("sum"),
        fn.sum("duration_ns").cast("double"),
    )
    return (
        sums.agg(both.alias("both"), fn.count("*").alias("samples"))
        .select("chain", "window", "samples", fn.explode("both").alias("statistic", "value"))
        .select(
            fn.lit("outage").alias("metric"), "chain", fn.lit(None).cast("long").alias("site"), "window",
            "samples", "statistic", "value", fn.lit("ns").alias("unit"),
        )
    )  # fmt: skip


# -- for the figures -----------------------------------------------------------------------------


def marks(events: DataFrame, width_ns: int) -> DataFrame:
    """chain, site, kind, ``wall_ns``: what happened to replicas and views, at most one of a kind in a window.
    A process that starts has no chain yet."""
    kinds = ("crashed", "halted", "ended", "started")
    happened = events.where(fn.col("event").isin(*kinds)).select(
        "chain", "site", fn.col("event").alias("kind"), "wall_ns"
    )
    views = (
        events.where("event = 'view' AND epoch IS NOT NULL AND chain <> 0")
        .groupBy("chain", "epoch")
        .agg(fn.min("wall_ns").alias("wall_ns"))
        .select("chain", fn.lit(None).cast("long").alias("site"), fn.lit("view").alias("kind"), "wall_ns")
    )
    begin = begin_of(fn.col("wall_ns"), width_ns)
    return (
        happened.union(views)
        .groupBy("chain", "site", "kind", begin.alias("window"))
        .agg(fn.min("wall_ns").alias("wall_ns"))
    )


def names(events: DataFrame) -> DataFrame:
    """chain, site, name: where a member is, as a view lists it (``members 1=a:1 2=b:1; …``)."""
    listed = fn.split(fn.regexp_extract("detail", "members ([^;]*);", 1), " ")
    member = fn.split("member", "=", 2)
    return (
        events.where("event = 'view' AND chain <> 0")
        .select("chain", "detail")
        .distinct()
        .select("chain", fn.explode(listed).alias("member"))
        .where("member LIKE '%=%'")
        .select("chain", fn.conv(member[0], 10, -10).cast("long").alias("site"), member[1].alias("name"))
        .groupBy("chain", "site")
        .agg(fn.max("name").alias("name"))
    )


# -- quality -------------------------------------------------------------------------------------


def quality(events: DataFrame, lifecycle: DataFrame, width_ns: int) -> DataFrame:
    """What the figures stand on, and what was left out."""
    who = fn.concat(fn.lit("site "), fn.lower(fn.hex("site")))

    def row(check: str, severity: str, reason: str) -> list[Column]:
        return [
            fn.lit(NAME).alias("job"), fn.lit(check).alias("check"), fn.lit(severity).alias("severity"),
            fn.lit(None).cast("string").alias("file"), fn.col("subject"), fn.col("rows"),
            fn.lit(reason).alias("reason"), fn.lit("").alias("batch"),
        ]  # fmt: skip

    # Also tells who comes back that nothing was left out this time: this row is always there.
    ground = events.sparkSession.range(1).select(
        fn.lit(None).cast("string").alias("subject"), fn.lit(0).cast("long").alias("rows")
    )
    gaps = events.where("event = 'gap'").groupBy(who.alias("subject")).agg(fn.sum("count").alias("rows"))
    backwards = (
        waits_of(lifecycle).where("value < 0").groupBy(who.alias("subject")).agg(fn.count("*").alias("rows"))
    )
    told = fn.coalesce(*(fn.col(f"sample.{name}").cast("double") for name in (*COUNTERS, *GAUGES)))
    unread = (
        samples_of(events).where(told.isNull()).groupBy(who.alias("subject")).agg(fn.count("*").alias("rows"))
    )
    parts = (
        (ground, row("windows", "note", f"figures are of windows of {width_ns / SECOND_NS:g} s")),
        (
            gaps,
            row("gap", "warning", "rows are missing: the windows they fell in have no rates of this site"),
        ),
        (backwards, row("clock", "warning", "ranges ended before they began, and are in no latency")),
        (
            unread,
            row("sample", "warning", "samples whose text is not the JSON of counters, and were left out"),
        ),
    )
    result = parts[0][0].select(*parts[0][1])
    for rows, columns in parts[1:]:
        result = result.union(rows.select(*columns))
    return result
