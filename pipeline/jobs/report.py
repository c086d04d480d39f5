"""One HTML file of whatever the other jobs have left: what was read, whether all rules held, figures."""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as fn

from pipeline import beside, marks
from pipeline import tables as at
from pipeline.errors import BadInput
from pipeline.report import PAGE, Part, Word, figure, folded, note, page, short, table, told
from pipeline.runs import Outcome, Run, Step
from pipeline.schemas import shown
from pipeline.showing import utc_text
from pipeline.tables import Tables

NEEDS: Final[tuple[str, ...]] = ()
HELP: Final = """
Gathers what the other jobs have left below --output in one file, report.html, that
needs nothing else: what was read, the audit's verdicts, metrics, figures.

With --input it first runs ingest, lifecycle, audit, metrics, and history if changes of
keys were recorded, where their tables are missing or older than the files there. Without
it, it says whose tables are older than what was ingested. The exit code is 1 if the audit
found violations.
"""
SHOWN_MAX: Final = 50
CHAINS_MAX: Final = 12
AUDITED: Final = ("ingest", "lifecycle", "audit", "metrics")
HISTORY: Final = "history"
_KINDS: Final = {"held": "good", "violated": "bad", "unchecked": "odd"}
_SEVERITIES: Final = {"error": "bad", "warning": "odd", "note": ""}
_STATISTICS: Final = ("mean", "sum", "p50", "p90", "p99", "p99.9", "max")
_WORDS: Final = {
    "submitted": "Submitted",
    "delivered": "Delivered",
    "applied": "Applied",
    "replied": "Replied",
    "delivery_latency": "Submitted to delivered",
    "majority_latency": "Submitted to known at a majority",
    "stable_latency": "Submitted to known at all",
    "reply_latency": "Submitted to replied",
    "held_lag": "Delivered to held",
    "applied_lag": "Delivered to applied",
    "view_change": "View change, a replica",
    "outage": "View change, the group",
    "packets_per_message": "Datagrams for each message",
    "bytes_per_message": "Bytes for each message",
    "token_rotation": "Rotation of the token",
    "retransmissions": "Sent again",
    "nacks": "NACKs",
    "buffered_slots": "Slots kept for others",
    "window_messages": "Own messages not yet confirmed",
    "window_bytes": "The same in bytes",
    "waiting": "Delivered and not yet executed",
    "receive_bytes": "In receive buffers",
}
# By how the names of figures begin.
_FIGURES: Final = {"load-": "Load tests and benchmarks over time", "sweep": "Simulated experiments"}
_MEASURED: Final = "Measured over time"


def before(tables: Tables, run: Run) -> Iterator[str]:
    """What changes of keys there are is known when the files were read."""
    if run.input:
        yield from AUDITED
        if not tables.read_or_empty(at.CHANGES).isEmpty():
            yield HISTORY


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    step("gathering")
    old = marks.old(tables, (*AUDITED, HISTORY))
    figures = beside.figures(tables.root)
    parts = [*_old(old), *_read(tables), *_audit(tables), *_metrics(tables), *_load(tables)]
    parts += [*_hottest(tables), *_figures(figures)]
    if not any(part.body for part in parts):
        raise BadInput(f"there is nothing to report in {tables.root}; name recordings with --input")
    verdict, violations = _verdict(tables, is_old="audit" in old)
    place = beside.put(tables.root, PAGE, page("What the replicas did", verdict, parts).encode())
    words = [verdict.text, *map(_old_words, old), f"report: {place}"]
    return Outcome(violations=violations, words=words)


def _old(names: list[str]) -> Iterator[Part]:
    yield Part("What is not of today", "".join(note(_old_words(name)) for name in names))


def _old_words(name: str) -> str:
    paths = ", ".join(table.path for table in marks.tables_of(name) if table != at.QUALITY)
    return (
        f"{paths}: made before the newest files were ingested, or not to the end; run:"
        f" rsm pipeline {name}, or name the recordings with --input"
    )


# -- what was read -------------------------------------------------------------------------------


def _read(tables: Tables) -> Iterator[Part]:
    """Bounded by what files can be, and by how many rows are shown."""
    body = ""
    if tables.has(at.FILES):
        files = tables.read(at.FILES)
        sums = files.groupBy("table", "verdict").agg(fn.count("*"), fn.sum("rows"), fn.sum("bytes"))
        rows = [
            (row[0], Word(row[1], "" if row[1] in {"taken", "open"} else "bad"), row[2], row[3], row[4])
            for row in sums.orderBy("table", "verdict").collect()
        ]
        body += table(("table", "files that were", "files", "rows", "bytes"), rows)
        left = files.where("NOT verdict IN ('taken', 'open')").orderBy("file").limit(SHOWN_MAX)
        listed = [(row["file"], row["verdict"], row["reason"]) for row in left.collect()]
        body += folded(
            "Files that were left out", table(("file", "verdict", "reason"), listed, is_words=True)
        )
    if tables.has(at.QUALITY):
        body += _quality(tables)
    yield Part("What was read", body)


def _quality(tables: Tables) -> str:
    quality = tables.read(at.QUALITY)
    total = quality.count()  # a sum; only the number comes here
    order = fn.when(fn.col("severity") == "error", 0).when(fn.col("severity") == "warning", 1).otherwise(2)
    found = quality.orderBy(order, "job", "check", "file", "subject").limit(SHOWN_MAX).collect()
    rows = [
        (
            Word(row["severity"], _SEVERITIES.get(row["severity"], "")),
            f"{row['job']}: {row['check']}",
            row["file"] or row["subject"],
            row["rows"],
            row["reason"],
        )
        for row in found
    ]
    shown_of = (
        note(f"The first {len(rows)} of {total:,} rows of the table quality.") if total > len(rows) else ""
    )
    return table(("severity", "check", "of", "rows", "reason"), rows, is_words=True) + shown_of


# -- the audit -----------------------------------------------------------------------------------


def _verdict(tables: Tables, *, is_old: bool) -> tuple[Word, int]:
    """And how many violations there are."""
    rules = tables.read(at.RULES).collect() if tables.has(at.RULES) else []
    since = "; files were ingested since" if is_old else ""
    if not rules:
        return Word("Not audited: run rsm pipeline audit", "odd"), 0
    violations = sum(row["violations"] for row in rules)
    if violations:
        broken = ", ".join(row["rule"] for row in rules if row["violations"])
        return Word(f"VIOLATED: {violations:,} times: {broken}{since}", "bad"), violations
    unchecked = [row["rule"] for row in rules if row["verdict"] == "unchecked"]
    held = len(rules) - len(unchecked)
    if not held:
        return Word(f"Nothing in the recording that a rule could be checked on{since}", "odd"), 0
    rest = f"; {len(unchecked)} had nothing to be checked on" if unchecked else ""
    kind = "odd" if is_old else "good"
    return Word(f"All {held} rules that could be checked held{rest}{since}", kind), 0


def _audit(tables: Tables) -> Iterator[Part]:
    if not tables.has(at.RULES):
        return
    # One row for each rule, and a bounded number of violations.
    rules = [
        (row["rule"], Word(row["verdict"], _KINDS.get(row["verdict"], "")), row["rows"], row["violations"])
        for row in tables.read(at.RULES).orderBy("rule").collect()
    ]
    body = table(("rule", "verdict", "checked on rows", "violations"), rules)
    found: list[Row] = []
    if tables.has(at.VERDICTS):
        verdicts = tables.read(at.VERDICTS).orderBy("rule", "chain", "first_ts", "words").limit(SHOWN_MAX)
        found = verdicts.collect()
    listed = [
        (row["rule"], row["words"], ", ".join(row["sites"]), _slots(row), ", ".join(row["files"]))
        for row in found
    ]
    body += table(("rule", "what was seen", "replicas", "timestamps", "files"), listed, is_words=True)
    if len(found) == SHOWN_MAX:
        body += note(f"The first {SHOWN_MAX}; all are in the table gold/verdicts.")
    yield Part("Did all rules hold?", body)


def _slots(row: Row) -> str:
    first, last = row["first_ts"], row["last_ts"]
    if first is None:
        return ""
    return f"{first:,}" if last in {None, first} else f"{first:,} to {last:,}"


# -- metrics -------------------------------------------------------------------------------------


def _metrics(tables: Tables) -> Iterator[Part]:
    """In detail of the busiest chains: recordings of the simulator have one for each seed."""
    if not tables.has(at.METRICS):
        return
    whole = tables.read(at.METRICS).where("window IS NULL")
    delivered = fn.max(fn.expr("CASE WHEN metric = 'delivered' AND site IS NULL THEN samples END"))
    by_chain = whole.groupBy("chain").agg(fn.coalesce(delivered, fn.lit(0)).alias("delivered"))
    total = by_chain.count()  # only the number comes here
    busiest = by_chain.orderBy(fn.desc("delivered"), "chain").limit(CHAINS_MAX)
    named = whole.join(fn.broadcast(busiest.select("chain")), "chain", "left_semi").withColumns(
        {"chain_shown": shown(fn.col("chain")), "who": shown(fn.col("site"))}
    )
    rows = named.collect()  # bounded by chains, metrics, statistics and replicas
    chains = sorted({row["chain_shown"] for row in rows})
    for chain in chains:
        own = [row for row in rows if row["chain_shown"] == chain]
        body = _metric_table([row for row in own if row["who"] is None])
        for who in sorted({row["who"] for row in own if row["who"] is not None}):
            body += folded(f"Replica {who}", _metric_table([row for row in own if row["who"] == who]))
        body += note(
            "Rates are messages for the seconds that replicas lived, and the most in a window. Percentiles"
            " are of messages. Of what was not recorded there is no row."
        )
        yield Part(
            "The whole recording" if len(chains) == 1 else f"The whole recording of chain {chain}", body
        )
    if total > len(chains):
        words = f"{total - len(chains):,} more, with fewer messages, are in the table gold/metrics."
        yield Part("Other chains", note(words))


def _metric_table(rows: list[Row]) -> str:
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        own = cells.setdefault(row["metric"], {})
        # A rate over the whole recording is a mean.
        own["mean" if row["statistic"] == "rate" else row["statistic"]] = told(row["value"], row["unit"])
        own["samples"] = row["samples"]
    used = [name for name in _STATISTICS if any(name in own for own in cells.values())]
    order = [name for name in _WORDS if name in cells] + sorted(set(cells) - set(_WORDS))
    lines = [
        (_WORDS.get(name, name), cells[name]["samples"], *(cells[name].get(each) for each in used))
        for name in order
    ]
    return table(("", "samples", *used), lines)


# -- the rest ------------------------------------------------------------------------------------


def _load(tables: Tables) -> Iterator[Part]:
    if not tables.has(at.REGRESSIONS):
        return
    worst = tables.read(at.REGRESSIONS).orderBy(fn.desc("time"), fn.desc("worse")).limit(SHOWN_MAX)
    rows = [
        (
            utc_text(row["time"]), row["name"], row["value_name"], short(row["value"]),
            short(row["median"]), Word(f"{row['worse']:.0%}", "bad"),
        )
        for row in worst.collect()
    ]  # fmt: skip
    titles = ("run of", "benchmark", "value", "was", "median of the runs before", "worse by")
    yield Part("What got worse", table(titles, rows, is_words=True) or note("No value is worse than before."))


def _hottest(tables: Tables) -> Iterator[Part]:
    if not tables.has(at.KV_HOT):
        return
    hottest = tables.read(at.KV_HOT).orderBy(fn.desc("changes"), "window", "rank").limit(SHOWN_MAX)
    rows = [
        (utc_text(row["window"]), _text(row["key"]), short(row["changes"]), short(row["bytes"]))
        for row in hottest.collect()
    ]
    titles = ("window from", "key", "changes", "bytes written")
    yield Part("Hottest keys", table(titles, rows, is_words=True) or note("No key was changed."))


def _text(value: Any) -> Any:
    return bytes(value).decode("utf-8", "backslashreplace") if isinstance(value, bytes | bytearray) else value


def _figures(found: dict[str, bytes]) -> Iterator[Part]:
    titled: dict[str, list[str]] = {}
    for name in found:
        begins = next((begin for begin in _FIGURES if name.startswith(begin)), None)
        titled.setdefault(_MEASURED if begins is None else _FIGURES[begins], []).append(name)
    order = {"throughput": 0, "latency": 1, "latency-by-replica": 2, "view-changes": 3, "ring": 4}
    for title in (_MEASURED, *_FIGURES.values()):
        names = sorted(
            titled.get(title, []), key=lambda name: (order.get(name.removesuffix(".png"), 9), name)
        )
        images = "".join(figure(found[name], name.removesuffix(".png").replace("-", " ")) for name in names)
        yield Part(title, images)
