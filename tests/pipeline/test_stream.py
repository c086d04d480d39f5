"""A stream over recorders that live says what the audit says of the whole, each alert once, and goes on where
it stopped."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ordering.recording import EventKind, Recorder
from ordering.recording import Row as Recorded
from ordering.views import ViewId
from pipeline import live
from pipeline import tables as at
from pipeline.audit import by_slot, recorded, verdicts
from pipeline.errors import BadInput, BadSetting
from pipeline.jobs import audit, stream
from pipeline.runs import Outcome, Run
from pipeline.source import register
from pipeline.tables import Tables
from tests.pipeline.audit_cases import BROKEN, BY_FILE, FILE, SOUND, WIDTH, Made
from tests.pipeline.bronze import Row
from tests.pipeline.recordings import SECOND, WALL, operation, recorded_schema, row, write_rows

FIRST_CHAIN = 1_000
MISSING_FILE = "a file is missing"
OTHERS_CLOCK = "another"


def settings(**options: str) -> stream.Settings:
    return stream.settings_of({"part_slots": str(WIDTH), "trigger": "0.1"} | options)


@contextmanager
def running(spark: SparkSession, folder: Path, root: Path, **options: str) -> Iterator[stream.Live]:
    made = stream.Live(spark, Tables(spark, str(root)), [str(folder)], settings(**options), lambda _: None)
    with made.running():
        yield made


def read_once(spark: SparkSession, folder: Path, root: Path, **options: str) -> stream.Live:
    with running(spark, folder, root, once="true", **options) as made:
        made.follow(threading.Event())
    return made


def alerts(spark: SparkSession, root: Path) -> list[Any]:
    return Tables(spark, str(root)).read(at.ALERTS).orderBy("batch", "words").collect()


@pytest.fixture(autouse=True)
def small(spark: SparkSession) -> Iterator[None]:
    """A few rows are sooner looked at than compiled for."""
    key = "spark.sql.codegen.wholeStage"
    before = str(spark.conf.get(key))
    spark.conf.set(key, "false")
    yield
    spark.conf.set(key, before)


# -- the same verdicts -----------------------------------------------------------------------------


def recordable(told: Row) -> Recorded:
    return Recorded(
        chain=told["chain"],
        site=told["site"],
        boot=told["boot"] << 64,
        event=EventKind(told["event"]),
        mono_ns=told["mono_ns"],
        wall_ns=told["wall_ns"],
        view=ViewId(told["epoch"], told["revision"]),
        **{name: told.get(name) for name in ("first_ts", "count", "source", "first_seq", "digest", "detail")},
    )


def write_half(folder: Path, chains: list[Made], *, second: bool) -> None:
    """One recorder for each site."""
    recorders = {site: Recorder(folder, f"r{site}") for site in (1, 2, 3)}
    for made in chains:
        half = len(made.events) // 2
        for told in made.events[half:] if second else made.events[:half]:
            recorders[told["site"]].add(recordable(told))
    for site, recorder in recorders.items():
        recorder.flush()
        if site == 2 and not second:
            recorder.rotate()
        recorder.abandon()


def write_with_a_file_missing(folder: Path, made: Made) -> None:
    recorder = Recorder(folder, "hole")
    files = [
        [told for told in made.events if (told["file"] == FILE) == is_first] for is_first in (True, False)
    ]
    for told in files[0]:
        recorder.add(recordable(told))
    recorder.rotate()
    recorder.add(row(0, chain=0, event=EventKind.LOCK))
    lost = recorder.rotate()
    assert lost is not None
    add(recorder, *map(recordable, files[1]))
    lost.unlink()
    recorder.abandon()


def write_calls(folder: Path, chains: list[Made], number: int, kept: slice) -> None:
    by_recorder: dict[str, list[Row]] = {"c": [], OTHERS_CLOCK: []}
    for made in chains:
        for call in made.operations[kept]:
            of = {name: call[name] for name in call if name not in ("recorder", "position", "file", "batch")}
            by_recorder[OTHERS_CLOCK if call["recorder"] == OTHERS_CLOCK else "c"].append(of)
    for name, calls in by_recorder.items():
        path = folder / "operations" / f"{name}-{number:06}.parquet"
        write_rows(path, recorded_schema("operations"), calls)


def judged_whole(spark: SparkSession, folder: Path, holes: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """By the audit, of all rows at once."""
    register(spark)
    events = spark.read.format("rsm_recording").load(str(folder)).persist()
    operations = spark.read.format("rsm_recording").option("table", "operations").load(str(folder))
    summed = by_slot.sums(recorded.placed(events, WIDTH))
    missing = spark.createDataFrame(holes, stream._HOLES)
    found = audit.violations(events, operations, summed, missing, WIDTH)
    told = verdicts.named(verdicts.told(found), events).drop("files").collect()
    events.unpersist()
    return {told_of(each) for each in told}


def told_of(verdict: Any) -> tuple[Any, ...]:
    """Without who is named: where several begin at one slot it is chance which of them."""
    return (verdict.rule, verdict.chain, verdict.first_ts, verdict.last_ts)


def test_when_rows_come_in_pieces_then_the_verdicts_are_those_of_the_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, root = tmp_path / "in", tmp_path / "out"
    cases = [*SOUND.items(), *((name, case[0]) for name, case in BROKEN.items())]
    made = {name: Made(FIRST_CHAIN + number) for number, (name, _) in enumerate(cases)}
    for name, strike in cases:
        strike(made[name])
    chains = [each for name, each in made.items() if name not in BY_FILE]
    write_half(folder, chains, second=False)
    write_calls(folder, chains, 1, slice(None, 6))
    read_once(spark, folder, root)
    write_half(folder, chains, second=True)
    write_calls(folder, chains, 2, slice(6, None))
    write_with_a_file_missing(folder, made[MISSING_FILE])
    done = read_once(spark, folder, root)
    tables = Tables(spark, str(root))
    standing = tables.read(at.LIVE_VERDICTS).drop("files").collect()
    holes = [(site, boot, True, position, None) for site, boot, position in done.state.holes]
    assert {told_of(each) for each in standing} == judged_whole(spark, folder, holes)
    broken = {f"{made[name].chain:x}": BROKEN[name][1] for name in BROKEN}
    found = {(each.chain, each.rule) for each in standing}
    assert set(broken.items()) <= found
    assert {chain for chain, _ in found} == set(broken)
    said = [each for each in alerts(spark, root) if each.severity == "violation"]
    assert {(each.chain, each.kind) for each in said} >= found
    assert len({each.key for each in said}) == len(said)
    outcome = done.outcome()
    assert outcome.violations == len(said)


# -- a recorder that lives -------------------------------------------------------------------------


def delivered(ts: int, site: int, **other: Any) -> Recorded:
    """A second each."""
    given = {"source": 1, "wall_ns": WALL + ts * SECOND, "view": ViewId(1, 0), **other}
    return row(ts, site=site, **given)


def add(recorder: Recorder, *told: Recorded) -> None:
    for each in told:
        recorder.add(each)
    recorder.flush()


def die(number: int) -> None:
    raise RuntimeError(f"died in {number}, at the last step")


def wrong(ts: int) -> Recorded:
    return delivered(ts, 2, source=2)


def test_when_replicas_live_then_alerts_come_once_also_after_a_restart(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, root = tmp_path / "in", tmp_path / "out"
    one, two = Recorder(folder, "one"), Recorder(folder, "two")
    with running(spark, folder, root) as first:
        first._remember = die  # type: ignore[method-assign]
        add(one, *(delivered(ts, 1) for ts in range(40)))
        add(two, *(delivered(ts, 2) for ts in range(9)), wrong(9))
        with pytest.raises(StreamingQueryException, match="at the last step"):
            first.settle()
    assert capsys.readouterr().err.count("violation total-order") == 1
    with running(spark, folder, root) as first:
        first.settle()
    assert first.state.rows == 50
    said = [(each.severity, each.kind, each.site) for each in alerts(spark, root)]
    assert sorted(said) == [("error", "silent", "2"), ("violation", "total-order", "2")]
    assert capsys.readouterr().err.count("violation total-order") == 1
    tables = Tables(spark, str(root))
    assert tables.read(at.LIVE_LIFECYCLE).where("site = 1").count() == 40
    one.rotate()  # what was read from a tail is in a closed file now
    add(two, delivered(10, 2, wall_ns=WALL - 200 * SECOND))
    two.abandon()
    outcome = stopped_by_a_signal(spark, folder, root)
    assert outcome.violations == 1
    assert [(each.severity, each.kind, each.site) for each in alerts(spark, root)] == said
    assert capsys.readouterr().err == ""
    rates = tables.read(at.LIVE_METRICS).where("site is not null").collect()
    counted = {1: 0.0, 2: 0.0}
    for each in rates:
        if each.metric == "delivered":
            counted[each.site] += each.value * 10
    assert counted == {1: 40.0, 2: 11.0}
    (told,) = [each for each in rates if each.metric == "late_rows"]
    assert (told.site, told.value) == (2, 1.0)


def stopped_by_a_signal(spark: SparkSession, folder: Path, root: Path) -> Outcome:
    """As from the command line; the signal comes behind the first micro-batch."""

    def step(words: str) -> None:
        if words.startswith("events "):
            os.kill(os.getpid(), signal.SIGTERM)

    options = {"part_slots": str(WIDTH), "trigger": "0.1"}
    run = Run(input=(str(folder),), output=str(root), options=options)
    before = signal.getsignal(signal.SIGTERM)
    outcome = stream.run(spark, Tables(spark, str(root)), run, step)
    assert signal.getsignal(signal.SIGTERM) is before
    return outcome


def test_when_a_file_cannot_be_read_then_the_stream_stops_and_names_it_or_passes_over_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, root = tmp_path / "in", tmp_path / "out"
    one, two = Recorder(folder, "one"), Recorder(folder, "two")
    for first in (0, 10, 20):
        add(one, *(delivered(ts, 1) for ts in range(first, first + 10)))
        bad = one.rotate()
        if first == 10:
            assert bad is not None
            bad.write_bytes(bad.read_bytes()[:-8])
    add(two, *(delivered(ts, 2) for ts in range(30)))
    write_rows(folder / "operations" / "c-000001.parquet", recorded_schema("operations"), [operation(1)])
    (folder / "operations" / "c-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(StreamingQueryException, match=r"one-000002\.parquet.*--skip-lost|c-000001\.parquet"):
        read_once(spark, folder, root)
    done = read_once(spark, folder, root, skip_lost="true")
    assert done.state.rows == 50
    said = [(each.severity, each.kind, each.words) for each in alerts(spark, root)]
    assert [(severity, kind) for severity, kind, _ in said] == [("error", "gap")] * 2
    assert ["c-000001.parquet" in said[1][2], "one-000002.parquet" in said[0][2]] == [True, True]
    two.abandon()


def test_when_a_group_is_idle_then_only_what_it_tells_is_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MERGE", 3)
    folder, root = tmp_path / "in", tmp_path / "out"
    one = Recorder(folder, "one")
    tables = Tables(spark, str(root))
    called: list[str] = []

    def spy(name: str) -> None:
        does = getattr(stream.Live, name)

        def noted(*given: Any) -> Any:
            called.append(name)
            return does(*given)

        monkeypatch.setattr(stream.Live, name, noted)

    with running(spark, folder, root) as made:
        add(one, *(delivered(ts, 1) for ts in range(5)))
        made.settle()
        for name in ("_measure", "_decide", "_follow_up"):
            spy(name)
        for at_ms in range(5):
            add(one, sample(4 * SECOND + at_ms))
            made.settle()
        assert (called, made.state.rows) == ([], 10)
        pieces = [tables.partitions(at.LIVE_WINDOWS, span) for span in tables.partitions(at.LIVE_WINDOWS)]
        assert max(map(len, pieces)) <= live.MERGE + 1
        assert len(tables.partitions(at.LIVE_EVENTS, live.SLOTS, "0")) == 1
        add(one, sample(14 * SECOND))  # another window
        made.settle()
    assert called == ["_measure"]
    rates = (
        tables.read(at.LIVE_METRICS).where("metric = 'delivered' and site = 1").orderBy("window").collect()
    )
    assert [each.value for each in rates] == [0.5, 0.0]
    one.abandon()


def sample(after_ns: int) -> Recorded:
    nothing: dict[str, Any] = dict.fromkeys(("first_ts", "count", "source", "first_seq"))
    return row(0, event=EventKind.SAMPLE, wall_ns=WALL + after_ns, detail="{}", **nothing)


def test_when_a_stream_fails_at_the_last_moment_then_it_has_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Failing:
        """Fails when it is asked whether it is at work."""

        failed: Exception | None = None

        @property
        def isActive(self) -> bool:  # noqa: N802 (Spark's name)
            self.failed = RuntimeError("just now")
            return False

        def exception(self) -> Exception | None:
            return self.failed

    made = stream.Live(spark, Tables(spark, str(tmp_path)), [str(tmp_path)], settings(), lambda _: None)
    made._queries = [Failing()]  # type: ignore[list-item]
    with pytest.raises(RuntimeError, match="just now"):
        made.follow(threading.Event())
    over = threading.Event()
    over.set()
    with pytest.raises(RuntimeError, match="just now"):
        made.follow(over)


def test_when_inputs_overlap_then_rows_are_not_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rec" / "sub").mkdir(parents=True)
    (tmp_path / "latest").symlink_to("rec/sub")
    (tmp_path / "recent").mkdir()
    monkeypatch.chdir(tmp_path)
    whole = str(tmp_path / "rec")
    assert stream.inputs_of(["rec", "./rec", whole, f"file://{whole}"]) == [whole]
    assert stream.inputs_of(["rec", "recent"]) == [whole, f"{whole}ent"]
    for inner in ("rec/sub", "latest"):
        with pytest.raises(BadSetting, match=f"{whole}/sub is inside of {whole}"):
            stream.inputs_of(["rec", inner])


# -- pieces ----------------------------------------------------------------------------------------


def test_when_a_part_is_in_many_pieces_then_they_become_one_and_no_row_is_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MERGE", 3)
    tables = Tables(spark, str(tmp_path))
    table = at.Table("live/pieces", at.LIVE_OPERATIONS.schema, "stream", ("part", "batch"))
    none = dict.fromkeys(table.schema.fieldNames())
    texts = {"kind": "command", "operation": "add", "outcome": "ok", "recorder": "c", "file": "c"}
    numbers = {"chain": 1, "client": 2, "call_ns": 0, "wall_ns": 0, "position": 0, "part": 7}
    for request in range(5):
        batch = live.batch_name(request)
        told = none | texts | numbers | {"request": request, "batch": batch}
        made = spark.createDataFrame([tuple(told[name] for name in table.schema.fieldNames())], table.schema)
        tables.write_partition(table, ("7", batch), made.coalesce(1))
        live.merge(tables, table, [7], batch)
    assert tables.partitions(table, "7") == {"000000000-000000002", "000000003", "000000004"}
    found = live.stored(tables, table, [6, 7]).collect()
    assert sorted(each.request for each in found) == list(range(5))


def test_when_sums_grow_then_a_group_is_one_folder_and_what_was_before_can_be_done_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PARTS_IN_GROUP", 4)
    tables = Tables(spark, str(tmp_path))
    none = dict.fromkeys(by_slot.SUMS.fieldNames())

    def grow(number: int, last: int, *parts: int) -> set[tuple[int, int]]:
        told = [none | {"chain": 1, "site": 1, "boot": 1, "part": part, "last_view": last} for part in parts]
        made = spark.createDataFrame([tuple(each.values()) for each in told], by_slot.SUMS)
        live.add_sums(tables, made, parts, live.batch_name(number))
        return {(each.part, each.last_view) for each in live.sums(tables, live.batch_name(number)).collect()}

    assert grow(0, 10, 0, 1) == {(0, 10), (1, 10)}
    assert grow(1, 11, 1, 2) == {(0, 10), (1, 11), (2, 11)}
    grow(2, 12, 2, 5)
    assert grow(2, 13, 2, 5) == {(0, 10), (1, 11), (2, 13), (5, 13)}  # done again
    assert tables.partitions(live.SUMS) == {"0", "1"}
    assert tables.partitions(live.SUMS, "0") == {live.batch_name(1), live.batch_name(2)}


def test_when_what_was_put_together_is_still_there_then_it_is_passed_over() -> None:
    assert live.standing({"1-3", "2", "3", "4", "1-1"}) == {"1-3", "4"}
    assert live.standing({"1-3", "1-5", "6"}) == {"1-5", "6"}
    assert live.standing({"1-4w", "4", "4w", "5", "5w"}) == {"1-4w", "5", "5w"}


def test_when_an_option_makes_no_sense_then_it_is_said(spark: SparkSession, tmp_path: Path) -> None:
    for options, words in (({"trigger": "soon"}, "trigger"), ({"part_slots": "0"}, "part_slots")):
        with pytest.raises(BadSetting, match=words):
            stream.settings_of(options)
    run = Run(input=(str(tmp_path),), output=str(tmp_path / "out"), options={"once": "true"})
    with pytest.raises(BadInput, match="no recording"):
        stream.run(spark, Tables(spark, run.output), run, lambda _: None)
