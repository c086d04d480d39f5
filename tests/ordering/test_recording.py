"""Recording v1: rows survive rotation, a torn tail and a dead writer, each exactly once."""

import gc
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ordering import recording
from ordering.config import MS, Config
from ordering.effects import Deliver, Effect
from ordering.qos import MAJORITY, UNORDERED, Level, Qos, k_resilient, parse_qos
from ordering.recording import (
    SCHEMA,
    EventKind,
    NameInUse,
    Recorder,
    Row,
    TableRecorder,
    qos_word,
    read_recording,
)
from ordering.simulator.checkers.base import Checker
from ordering.simulator.cluster import Cluster
from ordering.simulator.process import Process
from ordering.simulator.recorder import RunRecorder
from ordering.views import ViewId

BOOT = (1 << 128) - 1
BIG = (1 << 64) - 1


def delivered(first_ts: int) -> Row:
    return Row(
        chain=BIG,
        site=BIG,
        boot=BOOT,
        event=EventKind.DELIVERED,
        mono_ns=first_ts,
        wall_ns=2,
        view=ViewId(1, 2),
        first_ts=first_ts,
        count=10,
        source=7,
        first_seq=3,
        qos=MAJORITY,
        session=5,
        first_request=6,
        digest=b"\0\xff",
        detail="majority",
    )


def slots(directory: Path) -> list[int]:
    found: list[int] = read_recording(directory)["first_ts"].to_pylist()
    return found


def record(recorder: Recorder, *first_ts: int) -> None:
    for ts in first_ts:
        recorder.add(delivered(ts))
    recorder.flush()


def test_schema_has_the_columns_of_version_1() -> None:
    names = (
        "schema_version chain site boot event epoch revision first_ts count source first_seq qos session"
        " first_request mono_ns wall_ns digest detail"
    )
    assert " ".join(SCHEMA.names) == names
    for name in ("chain", "site", "source"):
        assert SCHEMA.field(name).type == pa.uint64()
    assert SCHEMA.field("boot").type == pa.binary(16)


def test_every_column_and_event_is_documented() -> None:
    text = recording.__doc__ or ""
    for word in [*SCHEMA.names, *EventKind]:
        assert f"``{word}``" in text


@pytest.mark.parametrize(
    "qos", [*(Qos(level) for level in Level if level is not Level.K_RESILIENT), k_resilient(2)]
)
def test_when_a_quality_is_recorded_then_the_command_line_can_read_it(qos: Qos) -> None:
    assert parse_qos(qos_word(qos)) == qos


def test_when_a_row_is_written_then_every_field_comes_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    recorder.add(delivered(9))
    bare = Row(chain=0, site=1, boot=0, event=EventKind.CRASHED, mono_ns=1, wall_ns=2)
    recorder.add(bare)
    recorder.close()
    full, empty = read_recording(tmp_path).to_pylist()
    assert full == {
        "schema_version": 1,
        "chain": BIG,
        "site": BIG,
        "boot": b"\xff" * 16,
        "event": "delivered",
        "epoch": 1,
        "revision": 2,
        "first_ts": 9,
        "count": 10,
        "source": 7,
        "first_seq": 3,
        "qos": "majority",
        "session": 5,
        "first_request": 6,
        "mono_ns": 9,
        "wall_ns": 2,
        "digest": b"\0\xff",
        "detail": "majority",
    }
    assert {name for name, value in empty.items() if value is None} == {
        name for name in SCHEMA.names if SCHEMA.field(name).nullable
    }


def test_when_nothing_is_recorded_then_an_empty_table_is_read_and_no_file_is_left(tmp_path: Path) -> None:
    Recorder(tmp_path, "a").close()
    assert list(tmp_path.iterdir()) == []
    assert read_recording(tmp_path).schema == SCHEMA
    assert read_recording(tmp_path).num_rows == 0


def test_when_the_file_is_closed_then_it_is_parquet_and_the_tail_is_gone(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    record(recorder, 1, 2)
    path = recorder.rotate()
    assert path == tmp_path / "a-000001.parquet"
    assert list(tmp_path.glob("a*")) == [path]
    assert pq.read_table(path).num_rows == 2
    assert recorder.rotate() is None
    recorder.close()
    assert list(tmp_path.iterdir()) == [path]


def test_when_the_tail_is_open_then_closed_and_open_rows_are_read_in_order(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    record(recorder, 1)
    recorder.rotate()
    record(recorder, 2)
    record(recorder, 3)
    assert slots(tmp_path) == [1, 2, 3]
    recorder.close()
    assert slots(tmp_path) == [1, 2, 3]


def test_when_rows_reach_the_limits_then_flushing_and_rotation_come_by_themselves(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a", rows_per_flush=2, rows_per_file=4)
    for ts in range(1, 12):
        recorder.add(delivered(ts))
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert slots(tmp_path) == list(range(1, 11))
    recorder.close()
    assert slots(tmp_path) == list(range(1, 12))


def test_when_words_differ_between_batches_then_the_tail_keeps_them_apart(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    for event in EventKind:
        recorder.add(Row(chain=1, site=1, boot=1, event=event, mono_ns=1, wall_ns=1))
        recorder.flush()
    assert read_recording(tmp_path)["event"].to_pylist() == list(EventKind)
    recorder.close()
    assert read_recording(tmp_path)["event"].to_pylist() == list(EventKind)


def test_when_the_tail_is_torn_anywhere_then_its_whole_batches_are_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    ends = {0: 0}
    tail = tmp_path / "a.tail.arrows"
    for ts in (1, 2, 3):
        record(recorder, ts)
        ends[ts] = tail.stat().st_size
    whole = tail.read_bytes()
    for size in range(0, len(whole) + 1, 7):
        (tmp_path / "torn").mkdir(exist_ok=True)
        (tmp_path / "torn" / tail.name).write_bytes(whole[:size])
        assert slots(tmp_path / "torn") == [ts for ts in (1, 2, 3) if ends[ts] <= size]
    recorder.close()


def test_when_a_writer_died_then_its_successor_closes_the_tail(tmp_path: Path) -> None:
    dead = Recorder(tmp_path / "dead", "a")
    record(dead, 1)
    record(dead, 2)
    left = (tmp_path / "dead" / "a.tail.arrows").read_bytes()[:-3]
    dead.close()
    tmp_path /= "alive"
    tmp_path.mkdir()
    (tmp_path / "a.tail.arrows").write_bytes(left)
    successor = Recorder(tmp_path, "a")
    assert slots(tmp_path) == [1]
    record(successor, 3)
    successor.close()
    assert slots(tmp_path) == [1, 3]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a-000001.parquet", "a-000002.parquet"]


def test_when_a_writer_died_between_rename_and_removal_then_rows_are_not_read_twice(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    record(recorder, 1, 2)
    tail = tmp_path / "a.tail.arrows"
    kept = tail.read_bytes()
    recorder.close()
    tail.write_bytes(kept)
    assert slots(tmp_path) == [1, 2]
    Recorder(tmp_path, "a").close()
    assert slots(tmp_path) == [1, 2]
    assert not tail.exists()


def test_when_a_closed_file_was_never_finished_then_it_is_not_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    record(recorder, 1)
    (tmp_path / "a-000001.tmp").write_bytes(b"PAR1 half")
    assert slots(tmp_path) == [1]
    recorder.close()
    assert slots(tmp_path) == [1]


def test_when_a_closed_file_is_carried_away_meanwhile_then_the_recording_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = recording._closed_files

    def late(directory: Path) -> list[tuple[Path, str, int]]:
        """Somebody takes the first file along, right after it was seen beside the second."""
        found = listed(directory)
        if len(found) == 2:
            found[0][0].unlink()
        return found

    recorder = Recorder(tmp_path, "one", bytes_max=0)
    record(recorder, 1)
    recorder.rotate()
    record(recorder, 2)
    monkeypatch.setattr(recording, "_closed_files", late)
    recorder.rotate()
    monkeypatch.undo()
    record(recorder, 3)
    recorder.close()
    assert slots(tmp_path) == [3]


def test_when_two_recorders_share_a_directory_then_each_keeps_its_files(tmp_path: Path) -> None:
    one, other = Recorder(tmp_path, "a"), Recorder(tmp_path, "a-b")
    record(one, 1)
    record(other, 2)
    one.close()
    assert sorted(slots(tmp_path)) == [1, 2]
    other.close()
    assert sorted(slots(tmp_path)) == [1, 2]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_when_closed_files_are_carried_away_then_numbers_go_on(tmp_path: Path) -> None:
    archive, live = tmp_path / "archive", tmp_path / "live"
    archive.mkdir()

    def carry_away() -> None:
        for path in live.glob("*.parquet"):
            path.rename(archive / path.name)

    recorder = Recorder(live, "a")
    record(recorder, 1)
    recorder.rotate()
    record(recorder, 2)  # the tail says that it becomes number 2
    carry_away()
    assert recorder.rotate() == live / "a-000002.parquet"
    carry_away()
    record(recorder, 3)
    recorder.abandon()
    successor = Recorder(live, "a")  # and so does who takes up the tail
    assert names(live) == [".a.lock", "a-000003.parquet"]
    carry_away()
    record(successor, 4)
    successor.close()
    carry_away()
    assert names(archive) == [f"a-00000{number}.parquet" for number in (1, 2, 3, 4)]
    assert slots(archive) == [1, 2, 3, 4]


def test_when_a_tail_has_no_whole_row_then_its_number_is_not_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    record(recorder, 1)
    recorder.rotate()
    record(recorder, 2)
    recorder.abandon()
    (tmp_path / "a-000001.parquet").unlink()
    tail = tmp_path / "a.tail.arrows"
    tail.write_bytes(tail.read_bytes()[:-9])
    successor = Recorder(tmp_path, "a")
    record(successor, 3)
    successor.close()
    assert names(tmp_path) == ["a-000002.parquet"]


def test_when_rows_are_large_then_the_file_is_closed_by_their_bytes(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("value", pa.binary())])
    recorder = TableRecorder(tmp_path, "a", schema, bytes_per_file=1 << 20)
    value = bytes(64 << 10)
    for _ in range(40):
        recorder.write(pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], schema=schema))
        assert sum(batch.nbytes for batch in recorder._batches) < 1 << 20
    recorder.close()
    assert len(list(tmp_path.glob("*.parquet"))) == 3
    assert read_recording(tmp_path, schema).num_rows == 40


def test_when_a_name_is_in_use_then_the_second_recorder_says_so_and_the_first_goes_on(tmp_path: Path) -> None:
    first = Recorder(tmp_path, "a")
    record(first, 1)
    with pytest.raises(NameInUse, match=f"somebody else records as a in {tmp_path}"):
        Recorder(tmp_path, "a")
    record(first, 2)
    first.close()
    following = Recorder(tmp_path, "a")
    record(following, 3)
    following.abandon()
    Recorder(tmp_path, "a").close()
    assert slots(tmp_path) == [1, 2, 3]
    assert names(tmp_path) == ["a-000001.parquet", "a-000002.parquet"]


def test_when_a_recorder_is_forgotten_then_its_name_is_free(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    record(recorder, 1)
    recorder.rotate()
    del recorder
    gc.collect()
    Recorder(tmp_path, "a").close()
    assert names(tmp_path) == ["a-000001.parquet"]


def test_when_somebody_removes_the_tail_then_its_rows_are_closed_all_the_same(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a")
    record(recorder, 1)
    (tmp_path / "a.tail.arrows").unlink()
    recorder.close()
    assert slots(tmp_path) == [1]


# -- a simulated run -----------------------------------------------------------------------------


class Counter(Checker):
    """What was delivered, counted apart from the recorder."""

    def __init__(self) -> None:
        super().__init__()
        self.delivered: dict[int, int] = {}

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        if isinstance(effect, Deliver):
            site = process.member.site
            count = sum(len(delivery.messages) for delivery in effect.deliveries)
            self.delivered[site] = self.delivered.get(site, 0) + count


def test_when_a_simulated_run_is_recorded_then_its_counts_are_those_of_the_run(tmp_path: Path) -> None:
    counter, recorder = Counter(), RunRecorder(tmp_path)
    founders = ("s1", "s2", "s3")
    cluster = Cluster(Config(group="g", founders=founders, contacts=founders), 1, [counter, recorder])
    for address in founders:
        cluster.start(address, founder=True)
    cluster.clock.run_until(100 * MS)
    submitted = 0
    for step in range(12):
        for process in cluster.live():
            for qos, messages in ((MAJORITY, (b"a", b"b", b"c")), (UNORDERED, (b"d",))):
                submitted += len(messages) if cluster.submit(process, messages, qos) is None else 0
        cluster.clock.run_until(cluster.clock.now + 200 * MS)
        if step == 3:
            cluster.crash("s2")
        if step == 6:
            cluster.restart("s2")
    cluster.clock.run_until(cluster.clock.now + 2_000 * MS)
    recorder.finish(cluster, cluster.clock.now)

    table = read_recording(tmp_path)
    assert table.schema == SCHEMA
    rows = table.to_pylist()
    per_site: dict[int, int] = {}
    for row in rows:
        if row["event"] == EventKind.DELIVERED:
            per_site[row["site"]] = per_site.get(row["site"], 0) + row["count"]
    assert per_site == counter.delivered
    assert sum(row["count"] for row in rows if row["event"] == EventKind.SUBMITTED) == submitted
    assert len({row["chain"] for row in rows if row["event"] == EventKind.VIEW}) == 1
    assert [row["event"] for row in rows].count(EventKind.CRASHED) == 1
    assert EventKind.RESTORED in {row["event"] for row in rows}
    times = table["mono_ns"].to_pylist()
    assert times == sorted(times)
    assert pc.all(pc.equal(table["mono_ns"], table["wall_ns"])).as_py()

    digests: dict[int, set[bytes]] = {}
    for row in rows:
        if row["digest"] is not None:
            digests.setdefault(row["first_ts"], set()).add(row["digest"])
    assert digests
    assert all(len(values) == 1 for values in digests.values())
    for process in cluster.live():
        assert process.replica.digest in digests[process.replica.ts]
