"""What is wrong with recordings is found, and told apart from what is not. Without Spark."""

import itertools
import random
from pathlib import Path

from ordering.recording import EventKind, Row
from pipeline.files import listed, look
from pipeline.jobs.ingest import _file_row, _span_rows, judge
from pipeline.quality import Problem, problems
from tests.pipeline.recordings import (
    CHAIN,
    SECOND,
    WALL,
    change,
    operation,
    record,
    recorded_schema,
    recording,
    row,
    rows,
    write_rows,
)


def found(folder: Path) -> list[Problem]:
    judged = judge([look(file) for file in listed(str(folder))], [])
    spans = [span for each in judged for span in _span_rows(each, "b")]
    return problems([_file_row(each, "b") for each in judged], spans)


def checks(folder: Path) -> list[tuple[str, str, str | None]]:
    return [(each.check, each.severity, each.subject) for each in found(folder)]


def test_when_all_is_well_then_nothing_is_said(tmp_path: Path) -> None:
    for site in (1, 2, 3):
        record(tmp_path, f"site-{site}", rows(0, 50, site=site), rows(50, 90, site=site), tail=rows(90, 120))
    assert found(tmp_path) == []


def test_when_rows_or_files_are_missing_then_it_is_said_whose(tmp_path: Path) -> None:
    gap = row(30, event=EventKind.GAP, count=17)
    record(tmp_path, "a", rows(0, 5), [gap], rows(31, 40), rows(40, 50), rows(50, 60))
    record(tmp_path, "b", rows(100, 110), rows(110, 120))
    for name in ("a-000003", "a-000004", "b-000001"):
        (tmp_path / f"{name}.parquet").unlink()
    assert checks(tmp_path) == [
        ("begins-late", "note", str(tmp_path / "b")),
        ("gap", "error", "1"),
        ("missing-files", "error", str(tmp_path / "a")),
    ]
    gap_found = next(each for each in found(tmp_path) if each.check == "gap")
    assert (gap_found.rows, gap_found.file) == (17, str(tmp_path / "a-000002.parquet"))
    assert "2 files are missing" in next(
        each.reason for each in found(tmp_path) if each.check == "missing-files"
    )


def test_when_operations_or_changes_are_missing_then_it_is_said_as_far_as_it_is_known(tmp_path: Path) -> None:
    calls = tmp_path / "operations" / "gateway-000001.parquet"
    told = [operation(1), operation(12) | {"kind": "gap"}, operation(5) | {"kind": "gap"}, operation(9)]
    write_rows(calls, recorded_schema("operations"), told)
    changes = tmp_path / "changes" / "a-000001.parquet"
    write_rows(changes, recorded_schema("changes"), [change(1), change(2) | {"kind": "gap"}])
    of_changes, of_calls = found(tmp_path)
    assert of_calls[:6] == ("ingest", "gap", "error", str(calls), str(calls.parent / "gateway"), 17)
    assert of_calls.reason == "the recorder was behind 2 times and left 17 rows out"
    assert of_changes[:6] == ("ingest", "gap", "error", str(changes), "1", 0)
    assert "there are 1 gaps: what changed then is not known" in of_changes.reason


def test_when_a_refused_file_is_written_again_and_again_then_its_last_state_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a-000001.parquet"
    path.write_bytes(b"PAR1")
    (first,) = judge([look(file) for file in listed(str(tmp_path))], [])
    later = first._replace(
        file=first.file._replace(modified_ns=first.file.modified_ns + 1), reason="it is worse now"
    )
    known = [_file_row(later, "b1"), _file_row(first, "b2")]
    for order in (known, known[::-1]):
        (problem,) = problems(order, [])
        assert (problem.check, problem.reason) == ("torn", "it is worse now")


def test_when_spans_come_in_another_order_then_the_same_file_is_named(tmp_path: Path) -> None:
    step = [row(ts, wall_ns=WALL + ts * SECOND // 1000 + 3 * SECOND) for ts in range(20, 40)]
    record(tmp_path, "a", rows(0, 20), step, rows(40, 50, chain=3))
    judged = judge([look(file) for file in listed(str(tmp_path))], [])
    spans = [span for each in judged for span in _span_rows(each, "b")]
    told = {tuple(problems([], list(order))) for order in itertools.permutations(spans)}
    assert len(told) == 1
    assert {each.check for each in told.pop()} == {"clock-step", "chains"}


def test_when_a_folder_cannot_be_read_then_it_is_an_error() -> None:
    (problem,) = problems([], [], (), {"below": "the folder cannot be read: Permission denied"})
    assert problem[1:4] == ("unreadable", "error", "below")


def test_when_a_clock_is_set_while_a_replica_runs_then_it_is_said(tmp_path: Path) -> None:
    step = [
        row(ts, wall_ns=WALL + ts * SECOND // 1000 + (3 * SECOND if ts >= 15 else 0)) for ts in range(20, 40)
    ]
    record(tmp_path, "a", rows(0, 20), step)
    (problem,) = found(tmp_path)
    assert (problem.check, problem.subject) == ("clock-step", "1")
    assert "moved by 3.0 s" in problem.reason


def test_when_clocks_are_apart_then_it_is_said_by_how_much(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 500))
    behind = [row(ts, site=2, wall_ns=WALL + ts * SECOND // 1000 - 5 * SECOND) for ts in range(100, 400)]
    record(tmp_path, "b", behind)
    (problem,) = found(tmp_path)
    assert (problem.check, problem.subject) == ("clocks-apart", "2")
    assert "4.9 s or more behind that of 1" in problem.reason


def test_when_a_replica_was_late_for_a_while_then_its_clock_is_not_blamed(tmp_path: Path) -> None:
    def late(ts: int) -> Row:
        at = WALL + ts * SECOND // 1000
        return row(ts, site=2, wall_ns=at + (7 * SECOND if ts < 300 else 0))

    record(tmp_path, "a", rows(0, 500))
    record(tmp_path, "b", [late(ts) for ts in range(100, 290)], [late(ts) for ts in range(300, 400)])
    assert "clocks-apart" not in [check for check, _, _ in checks(tmp_path)]


def test_when_chains_are_mixed_then_each_is_named(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 5), rows(5, 8, chain=3))
    record(tmp_path, "b", rows(0, 5, chain=0))  # one that has none yet
    assert checks(tmp_path) == [("chains", "note", f"{CHAIN:x}"), ("chains", "note", "3")]


def test_when_files_are_there_twice_then_one_is_taken_in_any_order(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 5))
    tail = recording(tmp_path, "c", rows(0, 5, site=3), tail=rows(5, 20, site=3))
    copied = (tmp_path / "c.tail.arrows").read_bytes()
    tail.close()
    (tmp_path / "c.tail.arrows").write_bytes(copied)  # it died between the rename and the removal
    (tmp_path / "b-000001.parquet").write_bytes((tmp_path / "a-000001.parquet").read_bytes())
    looks = [look(file) for file in listed(str(tmp_path))]
    for order in itertools.islice(itertools.permutations(looks), 0, None, 5):
        judged = {Path(each.file.path).name: (each.verdict, each.reason) for each in judge(order, [])}
        assert {name: verdict for name, (verdict, _) in judged.items()} == {
            "a-000001.parquet": "taken",
            "b-000001.parquet": "duplicate",
            "c-000001.parquet": "taken",
            "c-000002.parquet": "taken",
            "c.tail.arrows": "duplicate",
        }
        assert f"content as {tmp_path}/a-000001.parquet" in (judged["b-000001.parquet"][1] or "")
        assert f"in {tmp_path}/c-000002.parquet" in (judged["c.tail.arrows"][1] or "")


def test_when_a_file_comes_late_or_has_changed_then_it_is_told_from_new_ones(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 5), rows(5, 9), rows(9, 12))
    looks = [look(file) for file in listed(str(tmp_path))]
    random.Random(1).shuffle(looks)
    first, second, third = sorted(looks)
    known = [_file_row(each, "b") for each in judge([first, third], [])]
    (late,) = judge([second], known)
    assert late.verdict == "taken"
    assert "came after" in (late.reason or "")
    assert [each.check for each in problems([*known, _file_row(late, "c")], [])] == ["late"]
    (again,) = judge([third], known)
    assert (again.verdict, again.reason) == ("duplicate", "it was taken before, with the same content")
    (changed,) = judge([third._replace(content="other")], known)
    assert changed.verdict == "changed"
    told = problems([*known, _file_row(changed, "c")], [])
    assert [(each.check, each.severity) for each in told if each.file] == [("changed", "error")]
    later = again._replace(file=again.file._replace(modified_ns=again.file.modified_ns + 1))
    mended = [*known, _file_row(changed, "c"), _file_row(later, "d")]  # what was taken is there again
    assert [each.check for each in problems(mended, [])] == ["missing-files"]


def test_when_a_closed_file_is_a_duplicate_then_its_tail_is_one_too(tmp_path: Path) -> None:
    recorder = recording(tmp_path, "b", tail=rows(0, 5))
    kept = (tmp_path / "b.tail.arrows").read_bytes()
    recorder.close()
    (tmp_path / "b.tail.arrows").write_bytes(kept)
    (tmp_path / "a-000001.parquet").write_bytes((tmp_path / "b-000001.parquet").read_bytes())
    first, second, tail = (look(file) for file in listed(str(tmp_path)))
    judged = judge([first, second, tail], [])
    assert [each.verdict for each in judged] == ["taken", "duplicate", "duplicate"]
    known = [_file_row(each, "b") for each in judged[:2]]
    (later,) = judge([tail], known, [first.file.path, second.file.path])
    assert (later.verdict, later.reason) == ("duplicate", f"its rows are in {second.file.path}")


def test_when_a_name_is_used_again_then_its_tail_is_no_duplicate_of_what_is_gone(tmp_path: Path) -> None:
    record(tmp_path, "a", rows(0, 5), rows(5, 9))
    known = [_file_row(look(file), "b") for file in listed(str(tmp_path))]
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    record(tmp_path, "a", tail=rows(0, 3, site=7))
    (changed,) = judge([look(file) for file in listed(str(tmp_path))], known)
    assert changed.verdict == "changed"
    assert "a-000001.parquet was taken before and is gone" in (changed.reason or "")
    assert [each.severity for each in problems([*known, _file_row(changed, "open")], [])] == ["error"]
