"""Did the promises hold? Every violation is a row that names the rule, replicas, slots and files
(``pipeline.audit``)."""

from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from pipeline import tables as at
from pipeline.audit import (
    agreement,
    by_slot,
    by_source,
    calls,
    equal_digests,
    exactly_once,
    integrity,
    one_reply,
    real_time,
    recorded,
    single_primary,
    source_order,
    total_order,
    verdicts,
    virtual_synchrony,
)
from pipeline.errors import BadSetting
from pipeline.ranges import PART
from pipeline.runs import Outcome, Run, Step
from pipeline.tables import Table, Tables

NEEDS: Final = ("ingest",)
HELP: Final = """
Checks ten rules over the whole recording: total order, agreement, integrity, source
order, virtual synchrony, single primary, equal digests; and, where callers recorded,
exactly once, one reply, real time. Violations are rows of OUTPUT/gold/verdicts, and what was
checked is in OUTPUT/gold/rules. The exit code is 1 if a rule was violated.
"""
OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "part_slots": (str(PART), "Slots that are judged together."),
    "clock_error_ms": (None, "How far the clocks of callers are apart at most; else each for itself."),
}

# Between two steps, in place of computing twice: small, a row for each part and replica or a violation.
SUMS: Final = Table("work/sums", by_slot.SUMS, "audit")
TOLD: Final = Table("work/verdicts", verdicts.TOLD, "audit")
_SHOWN: Final = 10


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    width, error_ms = _width(run), _clock_error_ms(run)
    events, operations = tables.read(at.EVENTS), tables.read_or_empty(at.OPERATIONS)
    holes = recorded.missing_files(events, tables.read_or_empty(at.FILES))
    step("what each replica has in each part of the order")
    tables.write(SUMS, by_slot.sums(recorded.placed(events, width)))
    step("side by side: all rules")
    found = violations(events, operations, tables.read(SUMS), holes, width, error_ms)
    tables.write(TOLD, verdicts.told(found))
    step("verdicts")
    kept = tables.read(TOLD)
    tables.write(at.VERDICTS, verdicts.named(kept, _files(events, operations)))
    tables.write(at.RULES, verdicts.rules(kept, checked(events, operations)))
    return _outcome(tables)


def check(options: dict[str, str]) -> None:
    run = Run(output="", options=options)
    _width(run)
    _clock_error_ms(run)


def violations(
    events: DataFrame,
    operations: DataFrame,
    summed: DataFrame,
    holes: DataFrame,
    width: int = PART,
    clock_error_ms: float | None = None,
) -> list[DataFrame]:
    """As ``verdicts.FOUND``, one DataFrame for each layout."""
    breaks = recorded.breaks(events, holes)
    spans = by_slot.spans(summed, breaks, width)
    answered = calls.answered(operations, width)
    return [
        by_slots(events, spans, breaks, width),
        between_parts(spans),
        by_numbers(events, summed, breaks, width),
        single_primary.violations(events, width),
        equal_digests.violations(events, width),
        exactly_once.violations(answered, width),
        one_reply.violations(operations, width),
        real_time.violations(calls.timed(operations, width), clock_error_ms),
    ]


def by_slots(events: DataFrame, spans: DataFrame, breaks: DataFrame, width: int) -> DataFrame:
    """Rules that are judged side by side in (chain, part of the slots). Breaks are those of a process, and
    are not sent once more for each of its parts."""
    beside = (
        by_slot.compared(recorded.placed(events, width))
        .join(
            fn.broadcast(spans.drop("head", "tail", "message_tail", "promised", "breaks")),
            [*recorded.PROCESS, "part"],
            "left",
        )
        .join(fn.broadcast(breaks), ["site", "boot"], "left")
    )
    return verdicts.judged(
        beside,
        total_order.judge(),
        virtual_synchrony.judge(),
        integrity.slot_twice(),
        agreement.in_front(),
    )


def between_parts(spans: DataFrame) -> DataFrame:
    """What the sums alone show."""
    return verdicts.judged(agreement.at_end(spans), agreement.behind())


def by_numbers(events: DataFrame, summed: DataFrame, breaks: DataFrame, width: int) -> DataFrame:
    """Rules that are judged side by side in (chain, source, part of its numbers)."""
    submitted = recorded.submitted(events)
    numbers = by_source.numbered(
        recorded.promised_messages(events),
        submitted,
        integrity.numbering(submitted, summed, breaks),
        width,
    )
    return verdicts.judged(
        numbers, source_order.judge(), integrity.message_twice(), integrity.not_submitted()
    )


def checked(events: DataFrame, operations: DataFrame) -> DataFrame:
    """On how many rows each rule was checked: rule and rows, one row for every rule at least."""
    promise = (fn.col("event") == "delivered") & fn.col("first_ts").isNotNull() & recorded.is_final()
    view = fn.col("event") == "view"
    state = fn.col("event").isin("applied", "restored") & fn.col("digest").isNotNull()
    answered = fn.expr("kind = 'command' and ts is not null")
    rules: dict[str, tuple[DataFrame, Column]] = {
        verdicts.TOTAL_ORDER: (events, promise | view),
        verdicts.AGREEMENT: (events, promise),
        verdicts.INTEGRITY: (events, promise),
        verdicts.SOURCE_ORDER: (events, promise),
        verdicts.VIRTUAL_SYNCHRONY: (events, promise),
        verdicts.SINGLE_PRIMARY: (events, view),
        verdicts.EQUAL_DIGESTS: (events, state),
        verdicts.EXACTLY_ONCE: (operations, answered),
        verdicts.ONE_REPLY: (operations, fn.expr("kind = 'command' and reply is not null")),
        verdicts.REAL_TIME: (
            operations,
            fn.expr("kind in ('command', 'query') and ts is not null and return_ns is not null"),
        ),
    }
    counted = []
    for source in (events, operations):
        mine = {rule: condition for rule, (table, condition) in rules.items() if table is source}
        sums = [fn.count_if(condition).alias(rule) for rule, condition in mine.items()]
        by_chain = source.where("chain <> 0").groupBy("chain").agg(*sums)
        each = [fn.struct(fn.lit(rule).alias("rule"), fn.col(f"`{rule}`").alias("rows")) for rule in mine]
        counted.append(by_chain.select(fn.inline(fn.array(*each))))
    none = fn.explode(fn.array(*map(fn.lit, verdicts.RULES))).alias("rule")
    every = events.sparkSession.range(1).select(none, fn.lit(0).cast("long").alias("rows"))
    return reduce(DataFrame.unionByName, counted, every)


def _files(events: DataFrame, operations: DataFrame) -> DataFrame:
    return events.select("file").unionByName(operations.select("file"))


def _outcome(tables: Tables) -> Outcome:
    rules = sorted(
        tables.read(at.RULES).collect(), key=lambda row: verdicts.RULES.index(row.rule)
    )  # ten rows
    shown = tables.read(at.VERDICTS).limit(_SHOWN).collect()
    words = [f"{row.rule}: {row.verdict}, {row.rows:,} rows" + _violated(row.violations) for row in rules]
    words += [f"{row.rule}: {row.words}" for row in shown]
    return Outcome(
        rows={at.RULES.path: len(rules)}, violations=sum(row.violations for row in rules), words=words
    )


def _violated(count: int) -> str:
    return f", {count:,} violations" if count else ""


def _width(run: Run) -> int:
    try:
        width = int(run.options.get("part_slots", PART))
    except ValueError:
        width = 0
    if width < 1:
        raise BadSetting(f"part_slots: {run.options['part_slots']!r} must be a whole number, at least 1")
    return width


def _clock_error_ms(run: Run) -> float | None:
    asked = run.options.get("clock_error_ms")
    try:
        error_ms = None if asked is None else float(asked)
    except ValueError:
        error_ms = -1.0
    if error_ms is not None and not 0 <= error_ms < 1e12:
        raise BadSetting(f"clock_error_ms: {asked!r} must be a number of milliseconds, 0 or more")
    return error_ms
