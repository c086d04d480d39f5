"""The data source over a recorder that lives: each row once, although tails become files meanwhile."""

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ordering.recording import SCHEMA, Recorder, Row
from pipeline import source
from pipeline.errors import BadInput, BadSetting
from pipeline.files import TABLES, File, listed
from pipeline.source import LOST, Extents, Offset, RecordingSource, Settings, parts, read, register
from tests.pipeline.recordings import changed, record, recording, row, rows, table


def settings(folder: Path, *, fails: bool = True) -> Settings:
    return Settings(str(folder), "events", 1_000_000, 8, fails)


def latest(folder: Path, start: Offset, rows_max: int | None = None, *, fails: bool = True) -> Offset:
    return Extents(settings(folder, fails=fails)).latest(start, rows_max)


def places(offset: Offset) -> Offset:
    """Without what identifies files."""
    return {recorder: at[:2] for recorder, at in offset.items() if recorder != LOST}


class Reading:
    """A stream's rows, by micro-batch. One that is done again after a restart must bring the same."""

    def __init__(self, spark: SparkSession, folder: Path, checkpoint: Path, rows_max: int) -> None:
        self.batches: dict[int, list[tuple[str, int, int]]] = {}
        self.spark, self.folder, self.checkpoint, self.rows_max = spark, folder, checkpoint, rows_max

    def start(self) -> StreamingQuery:
        stream = self.spark.readStream.format("rsm_recording").option("maxRowsPerBatch", self.rows_max)
        writer = stream.load(str(self.folder)).writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def _take(self, told: DataFrame, number: int) -> None:
        found = [tuple(each) for each in told.select("recorder", "position", "first_ts").collect()]
        came = sorted((Path(recorder).name, position, ts) for recorder, position, ts in found)
        assert self.batches.setdefault(number, came) == came

    def slots(self) -> list[tuple[str, int]]:
        return sorted((name, ts) for batch in self.batches.values() for name, _, ts in batch)


def test_when_a_folder_is_read_then_open_tails_are_in_it(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    record(tmp_path, "a", rows(0, 20), tail=rows(20, 33))
    record(tmp_path / "below", "b", tail=rows(0, 9, site=2))
    record(tmp_path / "operations", "c", rows(0, 9))
    read = spark.read.format("rsm_recording").option("rowsPerTask", 10).load(str(tmp_path))
    assert read.schema == TABLES["events"]
    found = sorted((Path(each.file).name, each.first_ts) for each in read.collect())
    assert found == sorted(
        [("a-000001.parquet", ts) for ts in range(20)]
        + [("a.tail.arrows", ts) for ts in range(20, 33)]
        + [("b.tail.arrows", ts) for ts in range(9)]
    )
    assert read.rdd.getNumPartitions() == 2 + 2 + 1


def test_when_files_are_closed_while_a_stream_reads_then_each_row_comes_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    folder, count = tmp_path / "recordings", 600
    reading = Reading(spark, folder, tmp_path / "checkpoint", 70)
    living = Recorder(folder, "a", rows_per_flush=3, rows_per_file=50)
    living.add(row(0))
    living.flush()
    began, done = threading.Event(), threading.Event()

    def write() -> None:
        began.wait()
        for ts in range(1, count):
            living.add(row(ts))
            if ts == count // 2:
                done.set()
        living.flush()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    query = reading.start()
    began.set()
    done.wait()
    query.processAllAvailable()
    query.stop()  # somewhere in the middle, or later
    writer.join()
    record(folder, "b", rows(0, 40, site=2))  # one that was not there before
    query = reading.start()
    query.processAllAvailable()
    living.close()
    query.processAllAvailable()
    query.stop()
    assert reading.slots() == [("a", ts) for ts in range(count)] + [("b", ts) for ts in range(40)]
    assert max(len(batch) for batch in reading.batches.values()) <= 70
    assert len(list(folder.glob("a-*.parquet"))) == 12


def test_when_rows_are_bounded_then_all_recorders_have_their_share(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 100), tail=rows(100, 120))
    record(tmp_path, "b", rows(0, 10))
    extents = Extents(settings(tmp_path))
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    first = extents.latest({}, 40)
    assert places(first) == {a: [1, 30], b: [2, 0]}
    assert places(extents.latest(first, None)) == {a: [2, 20], b: [2, 0]}
    told = [each.value for each in parts(extents, first, {a: [2, 5], b: [2, 0]}, settings(tmp_path))]
    assert told[0] == (a, 1, 30, 38)
    assert told[-2:] == [(a, 1, 94, 100), (a, 2, 0, 5)]
    assert sum(end - start for _, _, start, end in told) == 75


def test_when_a_tail_is_closed_then_an_offset_means_the_same(tmp_path: Path) -> None:
    recorder = recording(tmp_path, "a", tail=rows(0, 20))
    name = str(tmp_path / "a")
    at = Extents(settings(tmp_path)).latest({}, None)
    assert places(at) == {name: [1, 20]}
    recorder.rotate()
    assert Extents(settings(tmp_path)).latest(at, None) == at  # nothing new
    recorder.add(row(20))
    recorder.flush()
    recorder.abandon()
    assert places(latest(tmp_path, at)) == {name: [2, 1]}


def test_when_files_went_before_they_were_read_then_it_says_so_or_goes_on(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 10), rows(10, 20), rows(20, 30))
    name = str(tmp_path / "a")
    (tmp_path / "a-000001.parquet").unlink()
    (tmp_path / "a-000002.parquet").unlink()
    with pytest.raises(BadInput, match=r"what is between is lost.*--skip-lost"):
        latest(tmp_path, {name: [1, 5]})
    with pytest.raises(BadInput, match="another recording"):
        latest(tmp_path, {name: [9, 5]})
    gone_on = latest(tmp_path, {name: [1, 5]}, fails=False)
    assert places(gone_on) == {name: [4, 0]}
    assert [lost[:3] for lost in gone_on[LOST]] == [[name, 1, 5]]
    assert latest(tmp_path, gone_on, fails=False) == {name: gone_on[name]}  # said once


@pytest.mark.parametrize("rows_max", [None, 5, 10, 20])
def test_when_a_middle_file_is_missing_then_it_is_passed_over_wherever_a_micro_batch_ends(
    tmp_path: Path, rows_max: int | None
) -> None:
    record(tmp_path, "a", rows(0, 10), rows(10, 20), rows(20, 30), rows(30, 40))
    (tmp_path / "a-000003.parquet").unlink()
    name = str(tmp_path / "a")
    at: Offset = {}
    read_slots = 0
    for _ in range(9):
        end = latest(tmp_path, at, rows_max)
        told = [each.value for each in parts(Extents(settings(tmp_path), end), at, end, settings(tmp_path))]
        read_slots += sum(stop - first for _, _, first, stop in told)
        at = end
    assert (places(at), read_slots) == ({name: [5, 0]}, 30)


def test_when_a_file_that_was_awaited_is_passed_by_its_successor_then_it_is_lost(tmp_path: Path) -> None:
    recorder = recording(tmp_path, "a", rows(0, 10))
    at = latest(tmp_path, {})
    for first in (10, 20):
        for each in rows(first, first + 10):
            recorder.add(each)
        recorder.rotate()
    (tmp_path / "a-000002.parquet").unlink()
    with pytest.raises(BadInput, match="row 0 of file 2, and the next that is there is number 3"):
        latest(tmp_path, at)


def test_when_a_name_is_used_again_then_nothing_of_it_is_taken_for_what_was_read(tmp_path: Path) -> None:
    name, folder = str(tmp_path / "in" / "a"), tmp_path / "in"
    cases: list[tuple[list[list[Row]], list[Row], list[list[Row]], list[Row]]] = [
        ([], rows(0, 20), [], rows(5, 35)),
        ([rows(0, 9)], rows(9, 14), [], rows(5, 35)),
        ([rows(0, 9)], rows(9, 14), [rows(5, 25)], rows(25, 35)),
        ([rows(0, 9)], [], [rows(5, 25)], rows(25, 35)),
    ]
    for files, tail, files_now, tail_now in cases:
        record(folder, "a", *files, tail=tail)
        at = latest(folder, {})
        for path in folder.iterdir():
            path.unlink()
        record(folder, "a", *files_now, tail=tail_now)
        with pytest.raises(BadInput, match="another recording of the same name"):
            latest(folder, at)
        end = latest(folder, at, fails=False)
        skipping = settings(folder, fails=False)
        told = parts(Extents(skipping, end), at, end, skipping)
        assert sum(stop - first for _, _, first, stop in (each.value for each in told)) == 30
        assert end[LOST][0][0] == name
        for path in folder.iterdir():
            path.unlink()


def test_when_a_file_goes_between_list_and_footer_then_it_is_as_if_it_had_not_been_there(
    tmp_path: Path,
) -> None:
    record(tmp_path, "a", rows(0, 10), rows(10, 20), rows(20, 30))
    name = str(tmp_path / "a")
    late, here, skipping = (
        Extents(settings(tmp_path)),
        Extents(settings(tmp_path)),
        Extents(settings(tmp_path, fails=False)),
    )
    (tmp_path / "a-000001.parquet").unlink()
    assert places(late.latest({}, None)) == {name: [4, 0]}
    with pytest.raises(BadInput, match="row 5 of file 1, and the next that is there is number 2"):
        here.latest({name: [1, 5]}, None)
    assert places(skipping.latest({name: [1, 5]}, None)) == {name: [4, 0]}


def test_when_a_closed_file_is_bad_then_it_is_named_and_passed_over_if_that_is_wanted(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 10), rows(10, 20), rows(20, 30))
    bad = tmp_path / "a-000002.parquet"
    whole = bad.read_bytes()
    newer = changed(table(), "schema_version", [9] * 3, SCHEMA.field("schema_version").type)
    for spoil, words in (
        (lambda: bad.write_bytes(whole[:-8]), "torn"),
        (lambda: pq.write_table(newer, bad), "newer"),
        (lambda: pq.write_table(table().drop(["detail"]), bad), "columns of events are missing: detail"),
        (lambda: bad.write_bytes(b"x" * 100), "a-000002"),
    ):
        spoil()
        with pytest.raises(BadInput, match=words) as refused:
            read_all(settings(tmp_path))
        assert str(bad) in str(refused.value)
        assert "--skip-lost" in str(refused.value)
        end = latest(tmp_path, {}, fails=False)
        assert places(end) == {str(tmp_path / "a"): [4, 0]}
        ((_, number, first, said),) = end[LOST]
        assert (number, first) == (2, 0)
        assert str(bad) in said
        assert read_all(settings(tmp_path, fails=False)) == 20


def read_all(wanted: Settings) -> int:
    """Rows, as tasks read them."""
    extents = Extents(wanted)
    told = parts(extents, {}, extents.latest({}, None), wanted)
    return sum(batch.num_rows for part in told for batch in read(part, wanted))


def test_when_a_tail_lacks_a_column_then_it_is_named(tmp_path: Path) -> None:
    spoiled = table().drop(["detail"]).replace_schema_metadata({b"becomes": b"a-000001.parquet"})
    path = tmp_path / "a.tail.arrows"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, spoiled.schema) as stream:
        stream.write_table(spoiled)
    with pytest.raises(BadInput, match=r"a\.tail\.arrows.*columns of events are missing: detail"):
        read_all(settings(tmp_path))
    record(tmp_path, "b", tail=rows(0, 9))
    assert read_all(settings(tmp_path, fails=False)) == 9


def test_when_a_file_has_two_names_then_it_is_read_once(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    record(folder / "run-3", "a", rows(0, 10), tail=rows(10, 15))
    (folder / "latest").symlink_to("run-3")
    (tmp_path / "link").symlink_to("in")
    given = RecordingSource({"path": str(tmp_path / "link")}).reader(TABLES["events"]).settings
    assert given.path == str(folder)
    assert places(Extents(given).latest({}, None)) == {str(folder / "run-3" / "a"): [2, 5]}


def test_when_the_list_never_agrees_then_a_tail_beyond_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recording(tmp_path, "a", rows(0, 10), tail=rows(10, 20))
    ts = 20

    def busy(folder: str) -> list[File]:
        """As if every tail was closed, and begun anew, just behind the list."""
        nonlocal ts
        files = listed(folder)
        recorder.rotate()
        recorder.add(row(ts))
        recorder.flush()
        ts += 1
        return files

    monkeypatch.setattr(source, "listed", busy)
    closed = source.ROUNDS_MAX
    at = latest(tmp_path, {})
    monkeypatch.undo()
    assert places(at) == {str(tmp_path / "a"): [closed + 1, 0]}
    end = latest(tmp_path, at)
    told = [each.value[1] for each in parts(Extents(settings(tmp_path), end), at, end, settings(tmp_path))]
    assert told == [closed + 1, closed + 2]
    recorder.abandon()


def test_when_an_option_makes_no_sense_then_it_is_said() -> None:
    for options, words in (
        ({}, "which folder"),
        ({"path": "x", "table": "y"}, "must be one of events, operations, changes"),
        ({"path": "x", "rowsPerTask": "0"}, "rowsPerTask is '0'"),
    ):
        with pytest.raises(BadSetting, match=words):
            RecordingSource(dict(options)).reader(TABLES["events"])


def test_when_a_closed_file_is_torn_then_the_stream_ends_and_names_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    record(tmp_path / "in", "a", rows(0, 10))
    path = tmp_path / "in" / "a-000001.parquet"
    path.write_bytes(path.read_bytes()[:-8])
    query = Reading(spark, tmp_path / "in", tmp_path / "checkpoint", 10).start()
    with pytest.raises(StreamingQueryException, match=r"a-000001\.parquet is torn"):
        query.processAllAvailable()
