"""Recordings become tables: the good part of whatever is there, once, however often and badly it went."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from ordering.recording import read_recording
from pipeline import files
from pipeline import tables as all_tables
from pipeline.errors import BadInput, BadSetting
from pipeline.jobs import ingest
from pipeline.runs import Outcome, Run, Step
from pipeline.schemas import signed
from pipeline.tables import Table, Tables
from tests.pipeline.recordings import (
    CHAIN,
    change,
    changed,
    operation,
    record,
    recorded_schema,
    recording,
    rows,
    table,
    write_rows,
)


class Died(Exception):
    pass


class Mortal(Tables):
    """Dies when it is to write a table."""

    def __init__(self, spark: SparkSession, root: str, at: Table) -> None:
        super().__init__(spark, root)
        self.at = at

    def write_partition(self, table: Table, value: str | tuple[str, ...], rows: DataFrame) -> None:
        if table is self.at:
            self.last_act(table, str(value))
            raise Died
        super().write_partition(table, value, rows)

    def last_act(self, table: Table, value: str) -> None:
        pass


class Killed(Mortal):
    """Dies a little later: the folder is there, and what Spark had begun."""

    def last_act(self, table: Table, value: str) -> None:
        (Path(self._folder(table, value)) / "_temporary" / "0").mkdir(parents=True)


class Place:
    """Recordings, and the tables that are made of them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.input = folder / "recordings"
        self.input.mkdir()
        self.tables = Tables(spark, str(folder / "out"))

    def ingest(
        self, tables: Tables | None = None, step: Step = lambda words: None, within: str = ""
    ) -> Outcome:
        run = Run(input=(str(self.input / within),), output=self.tables.root)
        return ingest.run(self.spark, tables or self.tables, run, step)

    def has_unseen(self, within: str = "") -> bool:
        return ingest.has_unseen(self.tables, [str(self.input / within)])

    def read(self, table: Table, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(each) for each in self.tables.read(table).select(*columns).collect())

    def slots(self) -> Counter[tuple[str, int]]:
        """Timestamps by the recorder's name."""
        told = self.read(all_tables.EVENTS, "recorder", "first_ts")
        return Counter((Path(recorder).name, ts) for recorder, ts in told)

    def verdicts(self) -> dict[str, tuple[str, str]]:
        told = self.read(all_tables.FILES, "file", "verdict", "batch")
        return {Path(file).name: (verdict, batch) for file, verdict, batch in told}

    def checks(self) -> list[tuple[str, str, str]]:
        told = self.tables.read(all_tables.QUALITY).collect()
        return sorted((each.check, each.severity, Path(each.file or each.subject).name) for each in told)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def slots_of(name: str, *spans: range) -> Counter[tuple[str, int]]:
    return Counter((name, ts) for span in spans for ts in span)


def test_when_recordings_are_ingested_then_every_row_is_there_once_as_it_was(place: Place) -> None:
    record(place.input / "one", "a", rows(0, 30), tail=rows(30, 45))
    record(place.input / "two", "a", rows(0, 25, site=(1 << 64) - 1))
    write_rows(
        place.input / "operations" / "gateway-000001.parquet",
        recorded_schema("operations"),
        [operation(number) for number in range(7)],
    )
    write_rows(
        place.input / "one" / "changes" / "a-000001.parquet",
        recorded_schema("changes"),
        [change(ts) for ts in range(4)],
    )
    outcome = place.ingest()
    assert outcome.rows == {
        "bronze/events": 70,
        "bronze/operations": 7,
        "bronze/changes": 4,
        "bronze/files": 5,
        "quality": 0,
    }
    told = pa.concat_tables([read_recording(place.input / "one"), read_recording(place.input / "two")])
    names = ("site", "first_ts", "count", "source", "mono_ns", "wall_ns", "event", "detail")
    expected = [
        tuple(signed(each[name]) if name in {"site", "source"} else each[name] for name in names)
        for each in told.to_pylist()
    ]
    assert place.read(all_tables.EVENTS, *names) == sorted(expected)
    assert place.read(all_tables.OPERATIONS, "chain", "request", "ts")[6] == (signed(CHAIN), 6, 6)
    assert place.read(all_tables.CHANGES, "boot", "ts", "key")[3] == (9, 3, b"k")
    assert {batch for _, batch in place.verdicts().values()} == {"open", *ingest_batches(place)}
    assert not ingest.has_unseen(place.tables, [str(place.input)])


def ingest_batches(place: Place) -> set[str]:
    return place.tables.partitions(all_tables.FILES) - {"open"}


def test_when_files_are_bad_then_each_is_named_and_the_good_ones_are_taken(
    place: Place, tmp_path: Path
) -> None:
    folder = place.input
    record(folder, "a", rows(0, 10), tail=rows(10, 40))
    (folder / "a.tail.arrows").write_bytes((folder / "a.tail.arrows").read_bytes()[:-9])
    record(folder, "b", rows(0, 9), rows(9, 12), rows(12, 15))
    (folder / "b-000002.parquet").unlink()
    record(folder, "empty", [])
    pq.write_table(table(0), folder / "empty-000001.parquet")
    whole = (folder / "a-000001.parquet").read_bytes()
    (folder / "copy-000001.parquet").write_bytes(whole)
    (folder / "torn-000001.parquet").write_bytes(whole[:-30])
    (folder / "notes.txt").write_text("hello")
    pq.write_table(pa.table({"x": [1]}), folder / "strange-000001.parquet")
    pq.write_table(table().drop_columns(["mono_ns"]), folder / "short-000001.parquet")
    pq.write_table(changed(table(), "schema_version", [2] * 3, pa.uint16()), folder / "new-000001.parquet")
    write_rows(folder / "operations" / "g-000001.parquet", recorded_schema("changes"), [change(1)])
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    run = Run(input=(str(folder), str(nothing)), output=place.tables.root)
    outcome = ingest.run(place.spark, place.tables, run, lambda words: None)
    assert {name: verdict for name, (verdict, _) in place.verdicts().items()} == {
        "a-000001.parquet": "taken",
        "a.tail.arrows": "open",
        "b-000001.parquet": "taken",
        "b-000003.parquet": "taken",
        "copy-000001.parquet": "duplicate",
        "empty-000001.parquet": "taken",
        "g-000001.parquet": "unreadable",
        "new-000001.parquet": "newer",
        "notes.txt": "foreign",
        "short-000001.parquet": "unreadable",
        "strange-000001.parquet": "foreign",
        "torn-000001.parquet": "torn",
    }
    assert place.checks() == [
        ("duplicate", "note", "copy-000001.parquet"),
        ("empty", "warning", "empty-000001.parquet"),
        ("empty-folder", "warning", "nothing"),
        ("foreign", "warning", "notes.txt"),
        ("foreign", "warning", "strange-000001.parquet"),
        ("missing-files", "error", "b"),
        ("newer", "error", "new-000001.parquet"),
        ("torn", "error", "torn-000001.parquet"),
        ("torn-end", "note", "a.tail.arrows"),
        ("unreadable", "error", "g-000001.parquet"),
        ("unreadable", "error", "short-000001.parquet"),
    ]
    assert place.slots() == slots_of("a", range(30)) + slots_of("b", range(9), range(12, 15))
    assert any(
        "short-000001.parquet: columns of events are missing: mono_ns" in words for words in outcome.words
    )


def test_when_it_runs_again_then_only_what_is_new_is_read_and_nothing_is_twice(place: Place) -> None:
    recorder = recording(place.input, "a", rows(0, 10), rows(10, 20), tail=rows(20, 40))
    held_back = (place.input / "a-000001.parquet").read_bytes()
    (place.input / "a-000001.parquet").unlink()
    (place.input / "torn-000001.parquet").write_bytes(held_back[:-1])
    place.ingest()
    state = ingest.state_of(place.tables)
    assert place.slots() == slots_of("a", range(10, 40))
    assert place.ingest().rows["bronze/events"] == 20  # the tail, anew
    assert place.slots() == slots_of("a", range(10, 40))
    assert ingest.state_of(place.tables) == state
    assert not ingest.has_unseen(place.tables, [str(place.input)])

    recorder.close()  # the tail becomes a file; another comes late; what was torn is mended
    (place.input / "a-000001.parquet").write_bytes(held_back)
    record(place.input, "torn", rows(0, 5, site=2))
    (place.input / "torn-000002.parquet").replace(place.input / "torn-000001.parquet")
    assert ingest.has_unseen(place.tables, [str(place.input)])
    assert place.ingest().rows["bronze/events"] == 35
    assert place.slots() == slots_of("a", range(40)) + slots_of("torn", range(5))
    assert place.checks() == [("late", "warning", "a-000001.parquet")]
    assert not place.tables.partitions(all_tables.EVENTS) & {"open"}
    assert ingest.state_of(place.tables) != state


def test_when_a_run_dies_between_writes_then_the_next_leaves_nothing_of_it(place: Place) -> None:
    recorder = recording(place.input, "a", rows(0, 10), tail=rows(10, 20))
    for at in (all_tables.SPANS, all_tables.FILES):
        with pytest.raises(Died):
            place.ingest(Mortal(place.spark, place.tables.root, at))
        assert place.tables.partitions(all_tables.EVENTS)
        assert ingest.has_unseen(place.tables, [str(place.input)])
        for each in rows(20, 30) if at is all_tables.SPANS else rows(30, 35):
            recorder.add(each)
        recorder.rotate()  # the next run has another set of files
    recorder.close()
    place.ingest()
    assert place.slots() == slots_of("a", range(35))
    assert place.tables.partitions(all_tables.EVENTS) == ingest_batches(place)


def test_when_a_run_is_killed_while_it_writes_the_list_then_no_row_is_there_twice(place: Place) -> None:
    recorder = recording(place.input, "a", rows(0, 10), tail=rows(10, 20))
    with pytest.raises(Died):
        place.ingest(Killed(place.spark, place.tables.root, all_tables.FILES))
    assert ingest_batches(place)
    recorder.close()  # one more file: the next batch has another name
    assert place.has_unseen()
    place.ingest()
    assert place.slots() == slots_of("a", range(20))
    for written in (all_tables.EVENTS, all_tables.SPANS):
        assert place.tables.partitions(written) == ingest_batches(place)
    assert not place.has_unseen()


def test_when_closed_files_are_carried_away_then_the_tail_behind_them_is_read(place: Place) -> None:
    record(place.input, "a", rows(0, 10), rows(10, 20), tail=rows(20, 25))
    for path in place.input.glob("*.parquet"):
        path.unlink()
    place.ingest()
    assert place.slots() == slots_of("a", range(20, 25))
    assert place.verdicts() == {"a.tail.arrows": ("open", "open")}
    assert place.checks() == [("begins-late", "note", "a")]
    assert not place.has_unseen()


def test_when_files_go_before_they_are_read_then_the_others_are_taken_and_it_is_said(place: Place) -> None:
    record(place.input, "a", rows(0, 10), rows(10, 20), rows(20, 30))
    living = recording(place.input, "b", tail=rows(0, 15, site=2))
    lost = recording(place.input, "c", tail=rows(0, 15, site=3))

    def step(words: str) -> None:
        if words == "reading events: 3 files":
            (place.input / "a-000001.parquet").unlink()
        if words == "reading events: 2 open tails":
            living.close()  # its rows are in the closed file
            lost.close()
            (place.input / "c-000001.parquet").unlink()

    outcome = place.ingest(step=step)
    assert outcome.rows["bronze/events"] == 35
    assert place.slots() == slots_of("a", range(10, 30)) + slots_of("b", range(15))
    assert {name: verdict for name, (verdict, _) in place.verdicts().items()} == {
        "a-000001.parquet": "unreadable",
        "a-000002.parquet": "taken",
        "a-000003.parquet": "taken",
        "b.tail.arrows": "open",
        "c.tail.arrows": "unreadable",
    }
    told = {(each.file, each.reason) for each in place.tables.read(all_tables.QUALITY).collect()}
    assert (str(place.input / "a-000001.parquet"), "it went before it was read") in told
    assert len(place.read(all_tables.SPANS, "file")) == 3
    place.ingest()
    assert place.slots() == slots_of("a", range(10, 30)) + slots_of("b", range(15))
    assert place.checks() == [
        ("unreadable", "error", "a-000001.parquet"),
        ("unreadable", "error", "c-000001.parquet"),
    ]
    assert not place.has_unseen()


def test_when_a_file_is_written_again_then_its_content_is_compared(place: Place) -> None:
    record(place.input, "a", rows(0, 10), rows(10, 20))
    place.ingest()
    first, second = (place.input / f"a-00000{number}.parquet" for number in (1, 2))
    os.utime(first, ns=(1, 1))
    spoiled = bytearray(second.read_bytes())
    spoiled[len(spoiled) // 2] ^= 1
    second.write_bytes(spoiled)  # as many bytes as before
    assert place.has_unseen()
    place.ingest()
    assert not place.has_unseen()
    told = place.read(all_tables.FILES, "file", "verdict")
    verdicts = Counter((Path(file).name, verdict) for file, verdict in told)
    assert verdicts[first.name, "duplicate"] == verdicts[first.name, "taken"] == 1
    assert verdicts[second.name, "taken"] == 1
    assert sum(verdicts[second.name, each] for each in ("changed", "unreadable")) == 1
    assert place.slots() == slots_of("a", range(20))


def test_when_another_input_is_named_then_open_tails_of_the_first_are_followed(place: Place) -> None:
    living = recording(place.input / "one", "a", rows(0, 5), tail=rows(5, 10))
    record(place.input / "two", "b", tail=rows(0, 3, site=2))
    place.ingest(within="one")
    with pytest.raises(Died):
        place.ingest(Mortal(place.spark, place.tables.root, all_tables.FILES), within="two")
    assert place.has_unseen("two")
    place.ingest(within="two")
    assert place.slots() == slots_of("a", range(10)) + slots_of("b", range(3))
    assert not place.has_unseen("two")
    living.rotate()
    for each in rows(10, 12):
        living.add(each)
    living.flush()
    living.abandon()
    assert place.has_unseen("two")
    place.ingest(within="two")
    assert place.slots() == slots_of("a", range(12)) + slots_of("b", range(3))
    assert place.checks() == []
    (place.input / "one" / "a.tail.arrows").unlink()
    place.ingest(within="two")
    for _ in range(2):
        assert place.slots() == slots_of("a", range(10)) + slots_of("b", range(3))
        assert place.checks() == [("unreadable", "error", "a-000003.parquet")]
        place.ingest(within="one")
    assert not place.has_unseen("one")


def test_when_a_folder_cannot_be_read_then_the_rest_is_taken_and_it_is_said(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(place.input, "a", rows(0, 5))
    record(place.input / "closed", "b", rows(0, 5, site=2))
    entries = files._entries

    def guarded(system: Any, folder: str) -> list[Any]:
        if folder.endswith("/closed"):
            raise PermissionError(13, "Permission denied")
        return entries(system, folder)

    monkeypatch.setattr(files, "_entries", guarded)
    place.ingest()
    assert place.slots() == slots_of("a", range(5))
    assert place.checks() == [("unreadable", "error", "closed")]
    monkeypatch.undo()
    place.ingest()
    assert place.slots() == slots_of("a", range(5)) + slots_of("b", range(5))
    assert place.checks() == []


def test_when_there_is_nothing_to_read_then_it_says_so(place: Place) -> None:
    with pytest.raises(BadSetting, match="--input"):
        ingest.run(place.spark, place.tables, Run(output=place.tables.root), lambda words: None)
    with pytest.raises(BadInput, match="there is no recording in"):
        place.ingest()
    (place.input / "a-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match=r"of 1 files in .* none can be read: .*a-000001\.parquet: torn"):
        place.ingest()
    assert place.checks() == [("torn", "error", "a-000001.parquet")]
    assert place.slots() == Counter()
