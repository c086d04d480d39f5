"""Job ``history``: what were the keys as of any slot, what happened to them, and which were changed most?"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

from pipeline import history
from pipeline import tables as all_tables
from pipeline.errors import BadInput, BadSetting
from pipeline.runs import Outcome, Run, Step
from pipeline.showing import utc_text
from pipeline.tables import Tables

NEEDS: Final = ("ingest",)
JOB: Final = "history"
SHOWN_MAX: Final = 20

HELP: Final = """Replicas of the key-value store record what happens to keys
(`rsm demo --record folder`). Tables: gold/kv_changes, kv_state, kv_hot, and
with --key kv_trail; docs/pipeline.md has queries for Spark SQL.

  rsm pipeline history --input folder --output out --as-of 1200

  rsm pipeline history --input folder --output out --key greeting
"""
OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "as_of": (None, "The state as of this slot, or this time of day, as 2026-01-31T12:00:00Z; the newest."),
    "key": (None, "Also tell all that happened to this key; 0x… for one that is no text."),
    "window_s": ("60", "Seconds of a window in which the hottest keys are counted."),
    "top": ("10", "So many of them."),
}


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    asked = Asked(run.options)
    recorded = tables.read_or_empty(all_tables.CHANGES)
    if recorded.isEmpty():
        raise BadInput(
            "no changes of keys were recorded there; replicas of the key-value store record them:"
            " rsm demo --record folder, or rsm replica --recording folder"
        )
    step("who has told what, from when to when")
    # As many as recorders had beginnings: a few for each replica.
    stretches = history.stretches(recorded).persist()
    tables.write(all_tables.KV_SPANS, history.spans(stretches).coalesce(1))
    spans = tables.read(all_tables.KV_SPANS).collect()
    step("changes, once each, and how long each held")
    has_holes = any(each.hole_ts is not None for each in spans)
    _write_changes(tables, recorded, stretches, has_holes=has_holes)
    stretches.unpersist()
    changes = tables.read(all_tables.KV_CHANGES)
    step("the state, and the hottest keys")
    reach = history.reach(recorded, asked.moment).orderBy("chain").collect()  # a row for each chain
    wanted = {each.chain: slot for each in reach if (slot := _slot(each, asked)) is not None}
    slots = spark.createDataFrame(list(wanted.items()), "chain long, as_of long")
    tables.write(all_tables.KV_STATE, history.state_as_of(changes, slots))
    tables.write(all_tables.KV_HOT, history.hottest(changes, asked.window_s, asked.top).coalesce(1))
    words = []
    if asked.key is not None:
        step("what happened to the key")
        operations = tables.read_or_empty(all_tables.OPERATIONS)
        tables.write(all_tables.KV_TRAIL, history.trail(changes, operations, asked.key))
        words = _trail_words(tables, asked.key)
    step("what is wrong with it")
    told = tables.read(all_tables.KV_SPANS)
    problems = [
        *_about_spans(spans),
        *(each for chain in reach for each in _about_state(chain, spans, asked)),
        *_about_changes(history.disagreements(changes), history.left_out(changes, told)),
    ]
    rows = _counts(tables, asked)
    note = _problem("summary", "note", None, rows["gold/kv_changes"], f"changes told by {len(spans)} spans")
    tables.write(
        all_tables.QUALITY,
        spark.createDataFrame([note, *problems], all_tables.QUALITY.schema).coalesce(1),
        whole=False,
    )
    said = [f"{each[2]}: {each[4] or 'all'}: {each[6]}" for each in problems[:SHOWN_MAX]]
    return Outcome(rows=rows, words=[*_state_words(wanted), *words, *said])


def check(options: dict[str, str]) -> None:
    Asked(options)


class Asked:
    """The options, checked."""

    def __init__(self, options: dict[str, str]) -> None:
        self.key = None if not options.get("key") else _key(options["key"])
        self.slot: int | None = None
        self.moment: datetime | None = None
        self.window_s = _positive(options, "window_s")
        self.top = _positive(options, "top")
        told = options.get("as_of")
        if told and told.isdecimal():
            self.slot = int(told)
        elif told:
            try:
                moment = datetime.fromisoformat(told)
            except ValueError:
                raise BadSetting(
                    f"--as-of: {told!r} is no slot and no time; as 1200, or 2026-01-31T12:00:00Z"
                ) from None
            self.moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _positive(options: dict[str, str], name: str) -> int:
    told = options.get(name) or OPTIONS[name][0]
    if not told.isdecimal() or not int(told):
        raise BadSetting(f"--{name.replace('_', '-')}: {told!r} must be a whole number above 0")
    return int(told)


def _key(told: str) -> bytes:
    if not told.startswith("0x"):
        return told.encode()
    try:
        return bytes.fromhex(told[2:])
    except ValueError:
        raise BadSetting(f"--key: {told!r} begins with 0x, and is no hexadecimal number") from None


def _write_changes(tables: Tables, recorded: DataFrame, stretches: DataFrame, *, has_holes: bool) -> None:
    changes = history.agreed(history.facts(recorded), stretches)
    known = history.intervals(changes)
    if has_holes:
        gone = history.missed(known, recorded, tables.read(all_tables.KV_SPANS))
        known = history.intervals(changes.unionByName(gone.select(*changes.columns)))
    # By part as well: a hot key's bucket is written by many.
    tables.write(all_tables.KV_CHANGES, known.repartition("chain", "bucket", "part"))


def _slot(reach: Row, asked: Asked) -> int | None:
    """As of which slot the state of a chain is wanted; None: nothing was told by then."""
    if asked.moment is not None:
        slot: int | None = reach.at_ts
        return slot
    newest: int = reach.newest_ts
    return newest if asked.slot is None else min(asked.slot, newest)


# -- what is said --------------------------------------------------------------------------------


def _counts(tables: Tables, asked: Asked) -> dict[str, int]:
    written = [all_tables.KV_CHANGES, all_tables.KV_STATE, all_tables.KV_HOT]
    written += [all_tables.KV_TRAIL] if asked.key is not None else []
    return {table.path: tables.read(table).count() for table in written}


def _state_words(wanted: dict[int, int]) -> list[str]:
    """One line for each chain."""
    return [f"chain {_shown(chain)}: the state as of slot {slot}" for chain, slot in wanted.items()]


def _trail_words(tables: Tables, key: bytes) -> list[str]:
    """The last few."""
    found = tables.read(all_tables.KV_TRAIL).orderBy(fn.desc("ts")).limit(SHOWN_MAX).collect()
    if not found:
        return [f"{_text(key)}: nothing happened to it, as far as was recorded"]
    return [_event_words(each) for each in reversed(found)]


def _event_words(event: Row) -> str:
    value = "" if event.value is None else f" {_text(bytes(event.value[:40]))}"
    who = "" if event.client is None else f" by {_shown(event.client)} #{event.request} ({event.operation})"
    return f"slot {event.ts}, {utc_text(event.at)}: {event.kind}{value}{who}"


def _about_spans(spans: list[Row]) -> list[tuple[Any, ...]]:
    found = []
    for each in spans:
        if each.hole_ts is not None:
            words = (
                f"not all that happened behind slot {each.hole_ts} up to slot {each.first_ts} was recorded;"
                " how keys came to be what they were then is not known"
            )
            found.append(_problem("hole", "error", _shown(each.chain), 0, words))
        if each.found != each.entries:
            words = f"of {each.entries} keys at slot {each.first_ts} it tells {each.found}"
            found.append(_problem("torn-base", "error", _shown(each.site), each.entries - each.found, words))
    return found


def _about_state(reach: Row, spans: list[Row], asked: Asked) -> list[tuple[Any, ...]]:
    """Whether enough was told of a chain for the state that is wanted."""
    own = [each for each in spans if each.chain == reach.chain]
    begins = min((each.first_ts for each in own), default=None)
    ends = max((each.last_ts for each in own), default=None)
    slot = _slot(reach, asked)
    late, early = [], []
    if slot is None:
        assert asked.moment is not None
        late.append(
            f"nothing was told as early as {utc_text(asked.moment)}, the first at {_moment(reach.first_us)};"
            " there is no state of that time"
        )
    elif begins is None:
        late.append(
            f"no base was recorded; the state as of slot {slot} has only keys that were changed since"
        )
    elif slot < begins:
        late.append(
            f"nobody has recorded what was before slot {begins}; the state as of slot {slot} has only keys"
            " that were not changed since"
        )
    if slot is not None and ends is not None and ends < slot:
        early.append(f"behind slot {ends} changes may be missing, for files are, and no base follows")
    if asked.slot is not None and asked.slot > reach.newest_ts:
        early.append(
            f"slot {asked.slot} is not known; the newest is {reach.newest_ts}, and the state is of that"
        )
    if asked.moment is not None and asked.moment > _time(reach.last_us):
        early.append(f"nothing is known behind {_moment(reach.last_us)}, slot {reach.newest_ts}")
    chain = _shown(reach.chain)
    return [
        *(_problem("begins-late", "warning", chain, 0, words) for words in late),
        *(_problem("ends-early", "warning", chain, 0, words) for words in early),
    ]


def _time(microseconds: int) -> datetime:
    return history.EPOCH + timedelta(microseconds=microseconds)


def _moment(microseconds: int) -> str:
    return utc_text(_time(microseconds))


def _about_changes(disagreements: DataFrame, left_out: DataFrame) -> list[tuple[Any, ...]]:
    """A row for each set of replicas, and for each replica: a few."""
    found = []
    for each in disagreements.orderBy("chain", "sites").collect():
        words = (
            f"replicas {', '.join(each.sites)} tell different things; first at slot {each.first.ts}, of key"
            f" {_text(bytes(each.first.key))}"
        )
        found.append(_problem("disagreement", "error", _shown(each.chain), each.rows, words))
    for each in left_out.orderBy("chain", "site").collect():
        words = (
            f"does not tell of changes that others do; first at slot {each.first.ts}, of key"
            f" {_text(bytes(each.first.key))}"
        )
        found.append(_problem("left-out", "error", each.site, each.rows, words))
    return found


def _problem(check: str, severity: str, subject: str | None, rows: int, reason: str) -> tuple[Any, ...]:
    return (JOB, check, severity, None, subject, rows, reason, "")


def _shown(identity: int) -> str:
    return f"{identity % (1 << 64):x}"


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
