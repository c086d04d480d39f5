"""Lifecycle, audit and metrics while the cluster runs: live tables and alerts.

Two streams, of events and of operations, read the recordings as they grow. A micro-batch is first written
where it will be looked for (``pipeline.live``). Then the parts of the order that have grown are judged anew,
by the functions of the audit, and what is said of them takes the place of what was said before. All that is
remembered is in tables, so nothing is lost with the process, and every write of a micro-batch may be done
again.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from pipeline import brought, live, watching
from pipeline import tables as at
from pipeline.audit import (
    by_slot,
    calls,
    equal_digests,
    exactly_once,
    one_reply,
    real_time,
    recorded,
    single_primary,
    verdicts,
)
from pipeline.brought import Judged, Touched
from pipeline.errors import BadInput, BadSetting
from pipeline.files import listed
from pipeline.jobs import audit, lifecycle
from pipeline.live import NUMBERS, RARE, SLOTS
from pipeline.ranges import part_of
from pipeline.runs import Outcome, Run, Step
from pipeline.source import LOST, NAME, absolute, register, resolved
from pipeline.tables import Tables
from pipeline.watching import Alert, Limits, Lost, State, Sums

NEEDS: Final[tuple[str, ...]] = ()
HELP: Final = """
Reads recordings while they grow, until Ctrl-C, and keeps tables below
OUTPUT/live: alerts, verdicts, lifecycle, metrics. Every alert is one line on the
standard error, once. Started again it goes on where it stopped. The exit code is 1
if any alert was a violation of a rule.

  rsm demo --record recordings            in one terminal
  rsm pipeline stream --input recordings --output out      in another
"""
OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "once": (False, "Read what is there, and end."),
    "seconds": (None, "End after so many seconds."),
    "skip_lost": (
        False,
        "Pass over files that are gone or cannot be read, with an alert; else stop.",
    ),
    "trigger": ("5", "Seconds between two micro-batches, at least."),
    "window_s": ("10", "Seconds in a window of the metrics."),
    "late_s": ("60", "Rows that are older than the newest by more than this, and a window, count as late."),
    "silence_s": ("10", "A replica that tells nothing for so many seconds, while others do, is silent."),
    "stall_s": ("5", "So many seconds without a delivery, though messages were submitted, are an outage."),
    "lag_slots": ("10000", "A replica that is more slots behind lags."),
    "surge_per_s": ("200", "Messages sent again or asked for, a second, that are a surge."),
    "part_slots": ("65536", "Slots that are judged together."),
    "rows_max": ("500000", "Rows in a micro-batch, at most."),
    "clock_error_ms": (None, "How far the clocks of callers are apart at most; else each for itself."),
}
CHECKPOINTS: Final = "live/_checkpoints"
ALERTS_MAX: Final = 50  # said of one micro-batch; the table of verdicts has all of them
_LOOK_S: Final = 0.5
_CODES: Final = (SLOTS, NUMBERS, "sums", "views", "calls")
_RETRACTED_REACH: Final = 4
_HOLES: Final = "site long, boot long, is_gap boolean, position long, ts long"
_Taking = Callable[[DataFrame, int], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    once: bool
    seconds: float | None
    skip_lost: bool
    trigger: float
    window_ns: int
    late_ns: int
    width: int
    rows_max: int
    clock_error_ms: float | None
    limits: Limits


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    if not run.input:
        raise BadSetting("stream needs --input: folders with recordings")
    settings = settings_of(run.options)
    if settings.once and not any(file.is_named for folder in run.input for file in listed(folder)):
        raise BadInput(f"there is no recording in {', '.join(run.input)}")
    stream = Live(spark, tables, run.input, settings, step)
    over = threading.Event()
    with _signals(over), stream.running():
        step("waiting for rows")
        stream.follow(over)
    return stream.outcome()


def check(options: dict[str, str]) -> None:
    settings_of(options)


def settings_of(options: dict[str, str]) -> Settings:
    def number(name: str, least: float) -> float:
        text = options.get(name, OPTIONS[name][0])
        try:
            value = float(text)
        except (ValueError, TypeError):
            value = -1.0
        if not least <= value < 1e12:
            raise BadSetting(f"{name}: {text!r} must be a number, {least:g} or more")
        return value

    return Settings(
        once=options.get("once") == "true",
        seconds=number("seconds", 0) if "seconds" in options else None,
        skip_lost=options.get("skip_lost") == "true",
        trigger=number("trigger", 0),
        window_ns=round(number("window_s", 0.001) * 1000) * 1_000_000,
        late_ns=round(number("late_s", 0) * watching.SECOND_NS),
        width=int(number("part_slots", 1)),
        rows_max=int(number("rows_max", 1)),
        clock_error_ms=number("clock_error_ms", 0) if "clock_error_ms" in options else None,
        limits=Limits(
            number("silence_s", 0),
            number("stall_s", 0),
            int(number("lag_slots", 1)),
            number("surge_per_s", 0),
        ),
    )


def inputs_of(folders: Sequence[str]) -> list[str]:
    """Each folder once, by its one name. None may be inside of another: its rows would be read twice."""
    found = sorted({resolved(folder) for folder in folders})
    for inner in found:
        for outer in found:
            if inner != outer and inner.startswith(outer.rstrip("/") + "/"):
                raise BadSetting(f"--input {inner} is inside of {outer}, which is read with all below it")
    return found


@contextmanager
def _signals(over: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the stream, between two micro-batches."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda *_: over.set()) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


class _Over(Exception):
    """A micro-batch that came when everything had ended; it is done when the stream begins again."""


class Live:
    """Both streams. One micro-batch at a time, of either."""

    def __init__(
        self, spark: SparkSession, tables: Tables, inputs: Sequence[str], settings: Settings, step: Step
    ) -> None:
        self.spark, self.tables, self.inputs = spark, tables, inputs_of(inputs)
        self.settings, self.step = settings, step
        self.said: dict[str, int] = {}  # alerts by severity, of this run
        self.rows = 0
        self._lock = threading.Lock()
        self._is_over = self._is_begun = False
        self._heard_at = time.monotonic()
        self._queries: list[StreamingQuery] = []
        # One for each alert that was ever said.
        self._known = {row.key: row.batch for row in tables.read_or_empty(at.ALERTS).collect()}
        self.state = self._state_before(None)
        if sorted(map(absolute, self.state.inputs)) != self.inputs:
            raise BadSetting(
                f"{tables.root}/live is of {', '.join(self.state.inputs)}; take another --output"
            )
        if (self.state.width, self.state.window_ns) != (settings.width, settings.window_ns):
            raise BadSetting(
                f"{tables.root}/live has part_slots={self.state.width} and window_s="
                f"{self.state.window_ns / watching.SECOND_NS:g}; take the same, or another --output"
            )

    # -- running ---------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        register(self.spark)
        self._queries = [
            self._start("events", self.take_events),
            self._start("operations", self.take_operations),
        ]
        try:
            yield
        finally:
            with self._lock:
                self._is_over = True
            # A micro-batch that was about to begin fails, and is done next time; nobody needs to read that.
            self.spark.sparkContext.setLogLevel("OFF")
            for query in self._queries:
                query.stop()
            self.spark.sparkContext.setLogLevel("ERROR")

    def _start(self, table: str, taking: _Taking) -> StreamingQuery:
        streams = [
            self.spark.readStream.format(NAME)
            .option("table", table)
            .option("maxRowsPerBatch", self.settings.rows_max)
            .option("failOnDataLoss", str(not self.settings.skip_lost).lower())
            .load(folder)
            for folder in self.inputs
        ]
        writer = reduce(DataFrame.unionAll, streams).writeStream.foreachBatch(taking).queryName(table)
        writer = writer.option("checkpointLocation", f"{self.tables.root}/{CHECKPOINTS}/{table}")
        if self.settings.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self.settings.trigger} seconds").start()

    def follow(self, over: threading.Event) -> None:
        """Until it is over, the time is up, or a stream ended."""
        end = None if self.settings.seconds is None else time.monotonic() + self.settings.seconds
        while not over.wait(_LOOK_S):
            if not any(query.isActive for query in self._queries):
                break
            if end is not None and time.monotonic() >= end:
                break
            self.check()
            if not self.settings.once:
                self._listen()
        self.check()  # behind all else: what fails at the last moment has failed

    def check(self) -> None:
        """Whether a stream has failed."""
        for query in self._queries:
            failed = query.exception()
            if failed is not None:
                raise failed

    def settle(self) -> None:
        """Until everything that is there now was processed."""
        for query in self._queries:
            query.processAllAvailable()

    def _listen(self) -> None:
        """If nobody tells anything, no micro-batch comes to say so. A stream that is at work has heard
        something, or is about to."""
        events = self._queries[0]
        if events.lastProgress is None or events.status["isDataAvailable"]:
            self._heard_at = time.monotonic()
        quiet_s = time.monotonic() - self._heard_at
        lives = [each for each in self.state.processes.values() if not each.is_over]
        if quiet_s < max(self.settings.limits.silence_s, 3 * self.settings.trigger) or not lives:
            return
        with self._lock:
            key = f"nobody {self.state.newest_ns}"
            if key in self._known:
                return
            words = f"nobody has told anything for {quiet_s:.0f} s; {len(lives)} replicas did before"
            alert = Alert("error", "silent", None, None, None, words, key)
            self._say(f"quiet-{self.state.newest_ns}", [alert])

    def outcome(self) -> Outcome:
        alerts = self.tables.read_or_empty(at.ALERTS)
        told = alerts.groupBy("severity").count().collect()  # four at most
        counts = {row["severity"]: row["count"] for row in told}
        words = [f"{self.rows:,} rows read now, {self.state.rows:,} of replicas in all"]
        words += [f"{counts[name]:,} alerts: {name}" for name in sorted(counts)]
        settled = self.state.settled()
        words += [
            f"chain {watching.identity(chain)}: told by all that live up to slot {settled[chain]}"
            for chain in sorted(settled)
        ]
        rows = {at.ALERTS.path: sum(self.said.values())}
        return Outcome(rows=rows, violations=counts.get("violation", 0), words=words)

    # -- events ----------------------------------------------------------------------------------

    def take_events(self, told: DataFrame, number: int) -> None:
        with self._batch("events", number) as batch:
            settings = self.settings
            told.persist()
            try:
                sums, touched = brought.summed(told, settings.width, settings.window_ns)
                lost = self._lost("events", number)
                if not sums and not lost:
                    return
                notable = brought.notable(told) if touched.is_notable else []
                late_before = self.state.newest_ns - settings.late_ns if self.state.newest_ns else 0
                there = Tables(told.sparkSession, self.tables.root)
                if touched.is_kept:
                    there.write(at.LIVE_EVENTS, live.laid_out(told, settings.width, batch), whole=False)
                if touched.spans:
                    windows = live.counted(told, settings.window_ns, late_before, batch)
                    there.write(at.LIVE_WINDOWS, windows, whole=False)
            finally:
                told.unpersist()
            self.rows += sum(each.rows for each in sums)
            judged = self._touch(touched)
            is_measured = touched.is_counted or self._begins_window(sums)
            alerts = watching.take(self.state, sums, notable, settings.limits, lost)
            alerts += self._judge(judged, batch)
            if is_measured:
                self._measure(judged, batch)
            if touched.is_kept:
                for layout, parts in ((SLOTS, judged.slots), (NUMBERS, judged.numbers), (RARE, [0])):
                    live.merge(self.tables, at.LIVE_EVENTS, parts, batch, layout)
            live.merge(self.tables, at.LIVE_WINDOWS, judged.spans, batch)
            self._say(f"events-{batch}", alerts)
            self._remember(number)

    def _begins_window(self, sums: Iterable[Sums]) -> bool:
        """Whether a process has come to a window in which it had told nothing. Where it only goes on telling
        how it is, no metric is another."""
        width_ns = self.settings.window_ns
        for each in sums:
            known = watching.process_of(self.state, each)
            before = None if known is None else known.wall_ns // width_ns
            if each.chain != 0 and {each.first_wall_ns // width_ns, each.wall_ns // width_ns} != {before}:
                return True
        return False

    def _lost(self, stream: str, number: int) -> list[Lost]:
        """What the source has passed over on the way to this micro-batch: it stands in its offsets."""
        if not self.settings.skip_lost:
            return []
        lines = self.spark.read.text(f"{self.tables.root}/{CHECKPOINTS}/{stream}/offsets/{number}").collect()
        offsets = [json.loads(line.value) for line in lines if line.value.startswith("{")]
        return [Lost(*each) for offset in offsets for each in offset.get(LOST, [])]

    @contextmanager
    def _batch(self, stream: str, number: int) -> Iterator[str]:
        with self._lock:
            if self._is_over:
                raise _Over
            began = time.monotonic()
            if stream == "events" and not self._is_begun:
                self.state = self._state_before(number)
                self._is_begun = True
            before = self.rows
            yield live.batch_name(number)
            seconds = time.monotonic() - began
            self.step(f"{stream} {number}: {self.rows - before:,} rows in {seconds:.1f} s; {self._words()}")

    def _words(self) -> str:
        settled = self.state.settled()
        slots = ", ".join(str(settled[chain]) for chain in sorted(settled)) or "none"
        alerts = ", ".join(f"{count} {name}" for name, count in sorted(self.said.items())) or "none"
        return f"told by all up to slot {slots}; alerts: {alerts}"

    def _touch(self, touched: Touched) -> Judged:
        """What is to be judged: what has grown, and the part before where somebody has come to a new one:
        what is missing at the end of a part shows only then."""
        slots = set(touched.slots)
        width = self.settings.width
        for process, first in touched.first_slots.items():
            known = self.state.processes.get(process)
            if known is not None and known.slot >= 0 and known.slot // width < first // width:
                slots.add(known.slot // width)
        for part in touched.retracted:
            slots |= set(range(part, part + _RETRACTED_REACH + 1))
        numbers = set(touched.numbers)
        if numbers and max(numbers) > self.state.number_part >= 0:
            numbers.add(self.state.number_part)
        self.state.number_part = max([self.state.number_part, *numbers])
        return Judged(
            slots=sorted(part for part in slots if part in touched.slots or self._is_there(part)),
            numbers=sorted(numbers),
            spans=sorted(touched.spans),
            has_views=touched.has_views,
        )

    def _is_there(self, part: int) -> bool:
        return bool(self.tables.partitions(at.LIVE_EVENTS, SLOTS, str(part)))

    def _judge(self, judged: Judged, batch: str) -> list[Alert]:
        if not (judged.slots or judged.numbers or judged.has_views):
            return []  # an idle group tells only how it is
        width, tables = self.settings.width, self.tables
        rare = live.events_of(tables, RARE)
        around = {near for part in judged.slots for near in (part - 1, part, part + 1)}
        rows = live.events_of(tables, SLOTS, around).unionByName(rare).persist()
        near = {near for part in judged.numbers for near in (part - 1, part, part + 1)}
        numbers = live.events_of(tables, NUMBERS, near).unionByName(rare)
        holes = [(site, boot, True, position, None) for site, boot, position in self.state.holes]
        breaks = recorded.breaks(rare, self.spark.createDataFrame(holes, _HOLES))
        try:
            mine = fn.col("part").isin(judged.slots)
            if judged.slots:
                placed = by_slot.sums(recorded.placed(rows, width)).where(mine)
                live.add_sums(tables, placed, judged.slots, batch)
            summed = live.sums(tables, batch)
            spans = by_slot.spans(summed, breaks, width)
            found = {"sums": audit.between_parts(spans)}
            if judged.slots:
                beside = audit.by_slots(rows, spans, breaks, width)
                found[SLOTS] = beside.unionByName(equal_digests.violations(rows, width)).where(mine)
                self._follow_up(rows, judged.slots)
            if judged.numbers:
                by_number = audit.by_numbers(numbers, summed, breaks, width)
                found[NUMBERS] = by_number.where(fn.col("part").isin(judged.numbers))
            if judged.has_views:
                found["views"] = single_primary.violations(rare, width)
            keys = [f"{SLOTS}-{part}" for part in judged.slots]
            keys += [f"{NUMBERS}-{part}" for part in judged.numbers]
            keys += ["sums", *(["views"] if judged.has_views else [])]
            return self._decide(found, keys, rows.select("file").unionByName(numbers.select("file")))
        finally:
            rows.unpersist()

    def _follow_up(self, rows: DataFrame, slots: list[int]) -> None:
        """Lifecycle of the parts that are judged. Submissions lie by number."""
        width = self.settings.width
        promised = rows.where("event = 'delivered' and first_seq is not null")
        parts = promised.select(part_of(fn.col("first_seq"), width).alias("part")).distinct().collect()
        numbers = {near for row in parts for near in (row.part - 1, row.part)}
        submitted = live.events_of(self.tables, NUMBERS, numbers).where("event = 'submitted'")
        told = lifecycle.lifecycle(rows.unionByName(submitted), width)
        told = told.withColumn("part", part_of(fn.col("first_ts"), width))
        self.tables.write(at.LIVE_LIFECYCLE, told.where(fn.col("part").isin(slots)), whole=False)

    def _decide(self, found: dict[str, DataFrame], keys: list[str], files: DataFrame) -> list[Alert]:
        """What is found takes the place of what was found in the same parts before."""
        coded = [
            rows.withColumn("part", fn.col("part") * len(_CODES) + _CODES.index(layout))
            for layout, rows in found.items()
        ]
        code = fn.expr(f"pmod(part, {len(_CODES)})").cast("int")
        layout = fn.element_at(fn.array(*map(fn.lit, _CODES)), code + 1)
        part = fn.call_function("div", fn.col("part"), fn.lit(len(_CODES)).cast("long"))
        is_by_part = layout.isin(SLOTS, NUMBERS, "calls")
        key = fn.when(is_by_part, fn.concat_ws("-", layout, part.cast("string"))).otherwise(layout)
        kept = verdicts.told(coded).withColumn("place", key).persist()
        try:
            is_clean = kept.isEmpty()
            for each in self.tables.partitions(at.LIVE_VERDICTS) & set(keys):
                self.tables.drop(at.LIVE_VERDICTS, each)
            if is_clean:
                return []
            named = verdicts.named(kept, files, "place").withColumnRenamed("place", "part")
            self.tables.write(at.LIVE_VERDICTS, named, whole=False)
        finally:
            kept.unpersist()
        there = sorted(self.tables.partitions(at.LIVE_VERDICTS) & set(keys))
        told = self.tables.read_partitions(at.LIVE_VERDICTS, ((each,) for each in there))
        # Bounded: so many of each rule and part.
        return [_violation(row) for row in told.drop("files").orderBy("rule", "first_ts", "words").collect()]

    def _measure(self, judged: Judged, batch: str) -> None:
        tables, settings = self.tables, self.settings
        if judged.slots:
            new = live.newest_of(tables, SLOTS, judged.slots, batch).where("event = 'delivered'")
            near = {near for part in judged.numbers for near in (part - 1, part)}
            submitted = live.events_of(tables, NUMBERS, near).where("event = 'submitted'")
            rare = live.events_of(tables, RARE)
            waits = live.waited(new, submitted, rare, settings.width, settings.window_ns, f"{batch}w")
            tables.write(at.LIVE_WINDOWS, waits, whole=False)
        windows = live.stored(tables, at.LIVE_WINDOWS, judged.spans)
        told = live.measured(windows, settings.window_ns).where(fn.col("span").isin(judged.spans))
        tables.write(at.LIVE_METRICS, told.coalesce(1), whole=False)

    # -- operations ------------------------------------------------------------------------------

    def take_operations(self, told: DataFrame, number: int) -> None:
        width = self.settings.width
        with self._batch("operations", number) as batch:
            part = fn.coalesce(part_of(fn.col("ts"), width), fn.lit(-1).cast("long"))
            rows = told.where("kind in ('command', 'query') and chain <> 0").withColumns(
                {"part": part, "batch": fn.lit(batch)}
            )
            rows.persist()
            try:
                touched = rows.groupBy("part").count().collect()
                Tables(told.sparkSession, self.tables.root).write(at.LIVE_OPERATIONS, rows, whole=False)
            finally:
                rows.unpersist()
            parts = sorted(row.part for row in touched)
            self.rows += sum(row["count"] for row in touched)
            alerts = watching.passed_over(self._lost("operations", number))
            alerts += self._judge_calls(parts) if parts else []
            self._say(f"operations-{batch}", alerts)
            live.merge(self.tables, at.LIVE_OPERATIONS, parts, batch)

    def _judge_calls(self, parts: list[int]) -> list[Alert]:
        width = self.settings.width
        around = {near for part in parts for near in (part - 1, part, part + 1)}
        rows = live.stored(self.tables, at.LIVE_OPERATIONS, around).drop("part")
        answered = calls.answered(rows, width)
        found = exactly_once.violations(answered, width)
        found = found.unionByName(one_reply.violations(rows, width))
        found = found.unionByName(
            real_time.violations(calls.timed(rows, width), self.settings.clock_error_ms)
        )
        mine = found.where(fn.col("part").isin(parts))
        return self._decide({"calls": mine}, [f"calls-{part}" for part in parts], rows.select("file"))

    # -- alerts and state ------------------------------------------------------------------------

    def _say(self, batch: str, alerts: Iterable[Alert]) -> None:
        """Once each. Done again, a micro-batch says the same in the same place."""
        new: dict[str, Alert] = {}
        for alert in alerts:
            if self._known.get(alert.key, batch) == batch:
                new.setdefault(alert.key, alert)
        if not new:
            return
        now = datetime.now(UTC)
        rows = [
            (
                now,
                alert.severity,
                alert.kind,
                None if alert.chain is None else watching.identity(alert.chain),
                None if alert.site is None else watching.identity(alert.site),
                alert.first_ts,
                alert.words,
                alert.key,
                batch,
            )
            for alert in new.values()
        ]
        made = self.spark.createDataFrame(rows, at.ALERTS.schema).coalesce(1)
        self.tables.write_partition(at.ALERTS, batch, made)
        for number, alert in enumerate(new.values()):
            self.said[alert.severity] = self.said.get(alert.severity, 0) + 1
            self._known[alert.key] = batch
            if number < ALERTS_MAX:
                _print(f"{now:%H:%M:%S} {alert.severity} {alert.kind}: {alert.words}")
        if len(new) > ALERTS_MAX:
            _print(f"{now:%H:%M:%S} and {len(new) - ALERTS_MAX} more alerts, in {at.ALERTS.path}")

    def _state_before(self, number: int | None) -> State:
        """As it was behind the micro-batch before this one."""
        there = sorted(self.tables.partitions(at.LIVE_STATE))
        if number is not None:
            there = [each for each in there if each < live.batch_name(number)]
        whole = [each for each in there if self.tables.is_whole(at.LIVE_STATE, each)]
        if not whole:
            return State(inputs=self.inputs, width=self.settings.width, window_ns=self.settings.window_ns)
        (row,) = self.tables.read_partitions(at.LIVE_STATE, [(whole[-1],)]).collect()
        return msgspec.json.decode(row.state, type=State)

    def _remember(self, number: int) -> None:
        """The one before stays: by it this micro-batch can be done again."""
        batch = live.batch_name(number)
        text = msgspec.json.encode(self.state).decode()
        made = self.spark.createDataFrame([(text, batch)], at.LIVE_STATE.schema).coalesce(1)
        self.tables.write_partition(at.LIVE_STATE, batch, made)
        for old in sorted(each for each in self.tables.partitions(at.LIVE_STATE) if each < batch)[:-1]:
            self.tables.drop(at.LIVE_STATE, old)


def _violation(row: Row) -> Alert:
    key = f"{row.rule} {row.chain} {' '.join(sorted(row.sites))} {row.first_ts}"
    site = int(row.sites[0], 16) if row.sites else None
    return Alert("violation", row.rule, int(row.chain, 16), site, row.first_ts, row.words, key)


def _print(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
