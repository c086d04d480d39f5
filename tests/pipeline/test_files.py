"""Files of recordings: each is what it is, whatever became of it. Without Spark."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ordering.recording import SCHEMA, read_recording
from pipeline import files
from pipeline.errors import BadInput
from pipeline.files import Look, Verdict, batches, followed, listed, look
from pipeline.schemas import signed
from tests.pipeline.recordings import (
    CHAIN,
    change,
    changed,
    record,
    recorded_schema,
    recording,
    rows,
    table,
    write_rows,
)


def only(folder: Path) -> Look:
    (file,) = listed(str(folder))
    return look(file)


def written(folder: Path, told: pa.Table) -> Path:
    path = folder / "a-000001.parquet"
    pq.write_table(told, path)
    return path


def test_when_a_closed_file_is_read_then_bronze_has_what_was_recorded(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 25, site=(1 << 64) - 2))
    found = only(tmp_path)
    assert (found.verdict, found.reason, found.rows) == (Verdict.TAKEN, None, 25)
    read = pa.Table.from_batches(batches(found.file, "b"))
    recorded = read_recording(tmp_path)
    for name in (
        "event",
        "first_ts",
        "count",
        "first_seq",
        "mono_ns",
        "wall_ns",
        "detail",
        "digest",
        "epoch",
    ):
        assert read[name].to_pylist() == recorded[name].to_pylist()
    assert set(read["chain"].to_pylist()) == {signed(CHAIN)}
    assert set(read["site"].to_pylist()) == {-2} == set(read["source"].to_pylist())
    boot = recorded["boot"][0].as_py()
    assert set(read["boot"].to_pylist()) == {int.from_bytes(boot[:8], "big", signed=True)}
    assert read["position"].to_pylist() == [(1 << 32) + at for at in range(25)]
    assert set(read["recorder"].to_pylist()) == {str(tmp_path / "a")}
    assert set(read["file"].to_pylist()) == {str(tmp_path / "a-000001.parquet")}


def test_when_a_part_is_wanted_then_positions_are_those_in_the_file(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 5), tail=rows(5, 40))
    _, tail = listed(str(tmp_path))
    numbered = look(tail).file
    part = pa.Table.from_batches(batches(numbered, "open", 7, 23))
    assert part["first_ts"].to_pylist() == list(range(12, 28))
    assert part["position"].to_pylist() == [(2 << 32) + at for at in range(7, 23)]


def test_when_a_tail_is_closed_after_it_was_looked_at_then_the_same_rows_are_read(tmp_path: Path) -> None:
    recorder = recording(tmp_path, "a", tail=rows(0, 20))
    seen = only(tmp_path)
    assert (seen.verdict, seen.rows, seen.file.number) == (Verdict.OPEN, 20, 1)
    before = pa.Table.from_batches(batches(seen.file, "open", 0, seen.rows))
    for each in rows(20, 30):
        recorder.add(each)
    recorder.rotate()
    recorder.add(rows(30, 31)[0])
    recorder.flush()  # another tail of the same name
    recorder.abandon()
    assert pa.Table.from_batches(batches(seen.file, "open", 0, seen.rows)).equals(before)


def test_when_a_tail_ends_in_the_middle_of_a_batch_then_what_is_whole_is_read(tmp_path: Path) -> None:
    record(tmp_path, "a", tail=rows(0, 30))
    path = tmp_path / "a.tail.arrows"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    found = only(tmp_path)
    assert (found.verdict, found.rows) == (Verdict.OPEN, 20)
    assert "in the middle of a batch" in (found.reason or "")
    path.write_bytes(whole[:100])
    assert only(tmp_path).verdict is Verdict.TORN
    path.write_bytes(whole)
    assert only(tmp_path).reason is None


BAD: list[tuple[str, Callable[[pa.Table], pa.Table], Verdict, str]] = [
    (
        "newer",
        lambda told: changed(told, "schema_version", [1, 2, 2], pa.uint16()),
        Verdict.NEWER,
        "version is 2",
    ),
    (
        "newer with other columns",
        lambda told: changed(told, "schema_version", [9] * 3, pa.uint16()).drop_columns(["source"]),
        Verdict.NEWER,
        "version is 9",
    ),
    (
        "without columns",
        lambda told: told.drop_columns(["source", "count"]),
        Verdict.UNREADABLE,
        "missing: count, source",
    ),
    (
        "of another type",
        lambda told: changed(told, "first_ts", ["1", "2", "3"], pa.string()),
        Verdict.UNREADABLE,
        "column first_ts is string",
    ),
    (
        "with nulls",
        lambda told: changed(told, "site", [1, None, 2], pa.uint64()),
        Verdict.UNREADABLE,
        "column site has 1 nulls",
    ),
    (
        "with a version that is no number",
        lambda told: changed(told, "schema_version", ["1"] * 3, pa.string()),
        Verdict.UNREADABLE,
        "column schema_version is string",
    ),
    (
        "with a column that is there twice",
        lambda told: told.append_column("site", told["site"]),
        Verdict.UNREADABLE,
        "more than one column is called site",
    ),
    ("of something else", lambda told: pa.table({"x": [1]}), Verdict.FOREIGN, "no column schema_version"),
]


@pytest.mark.parametrize(
    ("spoil", "verdict", "words"), [each[1:] for each in BAD], ids=[each[0] for each in BAD]
)
def test_when_a_file_is_not_what_it_should_be_then_the_verdict_says_why(
    tmp_path: Path, spoil: Callable[[pa.Table], pa.Table], verdict: Verdict, words: str
) -> None:
    written(tmp_path, spoil(table()))
    found = only(tmp_path)
    assert found.verdict is verdict
    assert words in (found.reason or "")
    assert not found.spans


def test_when_bytes_are_missing_then_the_file_is_torn(tmp_path: Path) -> None:
    path = written(tmp_path, table(1000))
    whole = path.read_bytes()
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert only(tmp_path).verdict is Verdict.TORN, cut
    middle = len(whole) // 3  # the end is there, and what it points to is not
    path.write_bytes(whole[: middle - 200] + bytes(400) + whole[middle + 200 :])
    assert only(tmp_path).verdict in {Verdict.TORN, Verdict.UNREADABLE}
    path.write_bytes(b"something that is no Parquet file")
    assert only(tmp_path).verdict is Verdict.FOREIGN
    path.write_bytes(whole)
    assert only(tmp_path).verdict is Verdict.TAKEN


def test_when_text_is_plain_or_columns_are_added_then_the_file_is_taken(tmp_path: Path) -> None:
    told = changed(table(), "event", ["view"] * 3, pa.string()).append_column("more", pa.array([1, 2, 3]))
    written(tmp_path, told)
    assert only(tmp_path).verdict is Verdict.TAKEN
    written(tmp_path, SCHEMA.empty_table())
    assert (only(tmp_path).verdict, only(tmp_path).rows) == (Verdict.TAKEN, 0)


def test_when_folders_are_listed_then_tables_and_recorders_are_told_by_their_places(tmp_path: Path) -> None:
    for folder in ("", "seed-1", "operations", "seed-1/changes", "out/bronze", ".hidden"):
        record(tmp_path / folder, "a", rows(0, 1))
    (tmp_path / "a-000002.tmp").write_bytes(b"on its way")
    (tmp_path / "notes.txt").write_bytes(b"hello")
    found = {
        file.path.removeprefix(f"{tmp_path}/"): file for file in listed(str(tmp_path), f"{tmp_path}/out")
    }
    assert {path: file.table for path, file in found.items()} == {
        "a-000001.parquet": "events",
        "seed-1/a-000001.parquet": "events",
        "operations/a-000001.parquet": "operations",
        "seed-1/changes/a-000001.parquet": "changes",
        "notes.txt": "events",
    }
    assert look(found["notes.txt"]).verdict is Verdict.FOREIGN
    assert found["seed-1/a-000001.parquet"].recorder == f"{tmp_path}/seed-1/a"
    assert listed(f"file://{tmp_path}", f"{tmp_path}/out") == sorted(found.values())


def tail_of(path: Path, told: pa.Table, becomes: bytes = b"a-000001.parquet") -> None:
    schema = told.schema.with_metadata({b"becomes": becomes})
    with path.open("wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_table(told.replace_schema_metadata(schema.metadata))


@pytest.mark.parametrize(
    ("told", "becomes", "verdict", "words"),
    [
        (table(), b"a\xff-000001.parquet", Verdict.FOREIGN, "which file it will become"),
        (table().drop_columns(["source"]), b"a-000001.parquet", Verdict.UNREADABLE, "missing: source"),
        (
            changed(table(), "schema_version", [9] * 3, pa.uint16()).drop_columns(["source"]),
            b"a-000001.parquet",
            Verdict.NEWER,
            "version is 9",
        ),
        (
            changed(table(), "schema_version", ["1"] * 3, pa.string()),
            b"a-000001.parquet",
            Verdict.UNREADABLE,
            "column schema_version is string",
        ),
    ],
)
def test_when_a_tail_is_not_what_it_should_be_then_the_verdict_says_why(
    tmp_path: Path, told: pa.Table, becomes: bytes, verdict: Verdict, words: str
) -> None:
    tail_of(tmp_path / "a.tail.arrows", told, becomes)
    found = only(tmp_path)
    assert found.verdict is verdict
    assert words in (found.reason or "")


def test_when_a_file_makes_us_fail_then_only_that_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> None:
        raise LookupError("nobody thought of this")

    written(tmp_path, table())
    monkeypatch.setattr(files, "_check_columns", defect)
    found = only(tmp_path)
    assert (found.verdict, found.reason) == (Verdict.UNREADABLE, "LookupError: nobody thought of this")


def test_when_a_folder_cannot_be_read_then_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("", "closed", "closed/below", "open"):
        record(tmp_path / folder, "a", rows(0, 1))
    entries = files._entries

    def guarded(system: Any, folder: str) -> list[Any]:
        if folder == str(tmp_path / "closed"):
            raise PermissionError(13, "Permission denied")
        return entries(system, folder)

    monkeypatch.setattr(files, "_entries", guarded)
    refused: dict[str, str] = {}
    found = [file.path.removeprefix(f"{tmp_path}/") for file in listed(str(tmp_path), None, refused)]
    assert found == ["a-000001.parquet", "open/a-000001.parquet"]
    assert refused == {str(tmp_path / "closed"): "the folder cannot be read: [Errno 13] Permission denied"}
    with pytest.raises(PermissionError):
        listed(str(tmp_path))


def test_when_rows_are_large_then_fewer_are_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(files, "_CHUNK", 1_000)
    chance = random.Random(1)
    told = [change(ts) | {"value": chance.randbytes(64 << 10)} for ts in range(60)]
    path = tmp_path / "changes" / "a-000001.parquet"
    write_rows(path, recorded_schema("changes"), told)
    found = only(tmp_path)
    read = list(batches(found.file, "b"))
    assert all(batch.nbytes < 2 << 20 for batch in read)
    assert [value for batch in read for value in batch.column("value").to_pylist()] == [
        each["value"] for each in told
    ]
    assert found.content == hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    written(tmp_path, table(1000))
    assert len(list(batches(look(listed(str(tmp_path))[0]).file, "b"))) == 1


def test_when_a_tail_is_large_then_its_digest_is_of_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHUNK", 100)
    record(tmp_path, "a", tail=rows(0, 30))
    path = tmp_path / "a.tail.arrows"
    whole = only(tmp_path).content
    assert whole == hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    path.write_bytes(path.read_bytes() + b"more")
    assert only(tmp_path).content == whole


def test_when_a_tail_is_followed_then_its_closed_files_are_found(tmp_path: Path) -> None:
    record(tmp_path, "a", *(rows(at, at + 1) for at in range(5)), tail=rows(5, 9))
    (tmp_path / "a-000004.parquet").unlink()
    tail = str(tmp_path / "a.tail.arrows")
    names = [Path(file.path).name for file in followed(tail, 2)]
    assert names == ["a.tail.arrows", "a-000002.parquet", "a-000003.parquet"]
    assert followed(tail, 0) == [file for file in listed(str(tmp_path)) if file.is_tail]
    assert followed(str(tmp_path / "none.tail.arrows"), 1) == []


def test_when_there_is_no_such_place_then_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no folder with recordings"):
        listed(str(tmp_path / "none"))
    with pytest.raises(BadInput, match="Give a path that all executors reach"):
        listed("gopher://recordings")
