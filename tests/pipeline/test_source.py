"""The data source over a recorder that lives: each row once, although tails become files meanwhile."""

import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ordering.recording import Recorder
from pipeline.errors import BadInput, BadSetting
from pipeline.files import TABLES
from pipeline.source import Extents, RecordingSource, Settings, parts, register
from tests.pipeline.recordings import record, recording, row, rows


def settings(folder: Path, *, fails: bool = True) -> Settings:
    return Settings(str(folder), "events", 1_000_000, 8, fails)


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
    assert first == {a: [1, 30], b: [2, 0]}
    assert extents.latest(first, None) == {a: [2, 20], b: [2, 0]}
    told = [each.value for each in parts(extents, first, {a: [2, 5], b: [2, 0]}, settings(tmp_path))]
    assert told[0] == (a, 1, 30, 38)
    assert told[-2:] == [(a, 1, 94, 100), (a, 2, 0, 5)]
    assert sum(end - start for _, _, start, end in told) == 75


def test_when_a_tail_is_closed_then_an_offset_means_the_same(tmp_path: Path) -> None:
    recorder = recording(tmp_path, "a", tail=rows(0, 20))
    name = str(tmp_path / "a")
    at = Extents(settings(tmp_path)).latest({}, None)
    assert at == {name: [1, 20]}
    recorder.rotate()
    assert Extents(settings(tmp_path)).latest(at, None) == at  # nothing new
    recorder.add(row(20))
    recorder.flush()
    recorder.abandon()
    assert Extents(settings(tmp_path)).latest(at, None) == {name: [2, 1]}


def test_when_files_went_before_they_were_read_then_it_says_so_or_goes_on(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 10), rows(10, 20), rows(20, 30))
    name = str(tmp_path / "a")
    (tmp_path / "a-000001.parquet").unlink()
    (tmp_path / "a-000002.parquet").unlink()
    with pytest.raises(BadInput, match="what is between is lost"):
        Extents(settings(tmp_path)).latest({name: [1, 5]}, None)
    with pytest.raises(BadInput, match="another recording"):
        Extents(settings(tmp_path)).latest({name: [9, 5]}, None)
    assert Extents(settings(tmp_path, fails=False)).latest({name: [1, 5]}, None) == {name: [4, 0]}


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
