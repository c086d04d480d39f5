"""The history of keys where replicas tell of it in another way, or not all of it."""

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline import history
from pipeline import tables as all_tables
from pipeline.files import ROW_BITS
from pipeline.showing import utc_text
from tests.pipeline.histories import Recorded, change, command, placed, problems, run_job, values_as_of


def by_all(*rows: dict[str, Any]) -> Recorded:
    """The same, told by three replicas."""
    return [{**row, "site": site, "recorder": f"of {site}"} for site in (1, 2, 3) for row in placed(*rows)]


# -- several changes of a key in one slot --------------------------------------------------------


def test_when_a_key_is_changed_again_in_its_slot_then_the_last_change_counts_and_nobody_disagrees(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A lease ends in the slot of a put, and a transaction has several operations on one key."""
    keys = [b"key%d" % number for number in range(8)]
    rows = [change("base", 0, version=0)]
    rows += [change("put", 5, key, b"leased", version=1, lease=3) for key in keys]
    for slot, key in enumerate(keys, 500):
        rows += [change("expire", slot, key), change("put", slot, key, b"again", version=1)]
    rows += [
        change(kind, 600, key, value)
        for key in keys
        for kind, value in (("put", b"1"), ("delete", None), ("put", b"2"), ("delete", None))
    ]
    rows.append(change("reached", 700))
    stopped = [{**row, "site": 4, "recorder": "of 4"} for row in [*rows[:9], change("expire", 500, keys[0])]]
    ran = run_job(spark, tmp_path, [*by_all(*rows), *placed(*stopped)])
    assert values_as_of(ran.tables, 1, 499) == dict.fromkeys(keys, b"leased")
    assert values_as_of(ran.tables, 1, 550) == dict.fromkeys(keys, b"again")
    assert values_as_of(ran.tables, 1, 600) == {}
    assert ran.tables.read(all_tables.KV_CHANGES).count() == 3 * len(keys)
    assert not problems(ran.tables)


# -- files that are missing ----------------------------------------------------------------------


def in_files(*files: tuple[int, Sequence[dict[str, Any]]]) -> Recorded:
    """Rows of one recorder, by the numbers of its files."""
    return [
        {**row, "position": (number << ROW_BITS) + place}
        for number, rows in files
        for place, row in enumerate(rows)
    ]


SURVIVES = change("put", 1, b"stays", b"1")
BEFORE = (change("base", 0, version=0), SURVIVES, change("put", 5, b"goes", b"2"))
BEHIND = (change("put", 30, b"comes", b"3"), change("put", 31, b"goes later", b"4"))
AGAIN = (
    change("base", 50, version=2),
    change("base", 50, b"stays", b"1", revision=1),
    change("base", 50, b"comes", b"3", revision=30),
    change("put", 60, b"last", b"5"),
)


def test_when_a_file_is_missing_then_what_follows_is_whole_only_from_the_next_base_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = in_files((1, BEFORE), (2, [change("reached", 10)]), (4, BEHIND), (6, AGAIN))
    ran = run_job(spark, tmp_path, rows)
    spans = ran.tables.read(all_tables.KV_SPANS).orderBy("first_ts").collect()
    assert [(each.first_ts, each.last_ts, each.hole_ts) for each in spans] == [(0, 10, None), (50, 60, 10)]
    (hole,) = problems(ran.tables)
    assert (hole.check, hole.severity) == ("hole", "error")
    assert "behind slot 10 up to slot 50" in hole.reason
    assert {slot: values_as_of(ran.tables, 1, slot).keys() for slot in (10, 31, 50, 60)} == {
        10: {b"stays", b"goes"},
        31: {b"stays", b"goes", b"comes", b"goes later"},
        50: {b"stays", b"comes"},
        60: {b"stays", b"comes", b"last"},
    }


def test_when_one_replica_lacks_a_file_then_it_left_nothing_out_and_there_is_no_hole(
    spark: SparkSession, tmp_path: Path
) -> None:
    between = change("delete", 20, b"goes")
    of_two = [{**row, "site": 2, "recorder": "of 2"} for row in placed(*BEFORE, between, *BEHIND)]
    ran = run_job(spark, tmp_path, [*in_files((1, BEFORE), (3, BEHIND)), *of_two])
    assert not problems(ran.tables)
    assert values_as_of(ran.tables, 1, 29) == {b"stays": b"1"}


def test_when_replicas_are_compared_over_many_parts_then_what_one_leaves_out_is_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica begins anew at every tenth slot: nothing is counted twice, or missed between."""
    monkeypatch.setattr(history, "PART_BITS", 3)
    puts = [change("put", slot, b"key%d" % (slot % 7), b"%d" % slot) for slot in range(1, 200)]
    rows: Recorded = []
    for row in puts:
        if row["ts"] % 10 == 1:
            newest = {each["key"]: each for each in puts[: row["ts"] - 1]}
            rows.append(change("base", row["ts"] - 1, version=len(newest)))
            rows += [{**each, "kind": "base", "ts": row["ts"] - 1} for each in newest.values()]
        rows.append(row)
    left_out = {rows.index(puts[place]) for place in (7, 15, 16, 63, 64, 104)}
    some = [row for place, row in enumerate(placed(*rows)) if place not in left_out]
    of_two = [{**row, "site": 2, "recorder": "of 2"} for row in some]
    ran = run_job(spark, tmp_path, [*placed(*rows), *of_two])
    (found,) = problems(ran.tables)
    assert (found.check, found.subject, found.rows) == ("left-out", "2", 6)
    assert "slot 8" in found.reason
    assert ran.tables.read(all_tables.KV_SPANS).count() == 40


def test_when_there_are_several_holes_then_a_key_goes_once_at_the_first_whole_base(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = placed(
        *BEFORE,
        change("gap", 10),
        change("base", 20, version=2),  # torn: it tells one of two
        change("base", 20, b"stays", b"1", revision=1),
        change("gap", 25),
        change("base", 30, version=1),
        change("base", 30, b"stays", b"1", revision=1),
        change("gap", 35),
        change("base", 40, version=1),
        change("base", 40, b"stays", b"1", revision=1),
    )
    ran = run_job(spark, tmp_path, rows)
    gone = ran.tables.read(all_tables.KV_CHANGES).where("kind = 'gone'").collect()
    assert [(bytes(each.key), each.ts, each.previous_ts) for each in gone] == [(b"goes", 30, 5)]
    assert values_as_of(ran.tables, 1, 29).keys() == {b"stays", b"goes"}
    assert values_as_of(ran.tables, 1, 30).keys() == {b"stays"}
    assert [each.check for each in problems(ran.tables)] == ["hole", "hole", "hole", "torn-base"]


# -- states that nobody knows --------------------------------------------------------------------


def said(spark: SparkSession, folder: Path, rows: Recorded, as_of: str) -> tuple[list[tuple[str, str]], int]:
    """The checks, with what they say, and how many keys the state has."""
    ran = run_job(spark, folder, rows, as_of=as_of)
    found = [(each.check, each.reason) for each in problems(ran.tables)]
    assert all(any(reason in words for words in ran.outcome.words) for _, reason in found)
    return found, ran.tables.read(all_tables.KV_STATE).where("as_of <= 60").count()


def test_when_a_state_is_wanted_from_before_or_behind_all_that_was_told_then_it_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    noon = 1_769_860_800 * 10**9  # 2026-01-31T12:00:00Z
    rows = [{**row, "wall_ns": noon + row["ts"] * 10**9} for row in placed(*BEFORE, *BEHIND)]
    (((check, reason),), keys) = said(spark, tmp_path / "early", rows, "2026-01-31T11:59:59Z")
    assert (check, keys) == ("begins-late", 0)
    assert "2026-01-31T11:59:59Z" in reason
    assert "2026-01-31T12:00:00Z" in reason
    (((check, reason),), keys) = said(spark, tmp_path / "never", rows, "999999999")
    assert (check, keys) == ("ends-early", 4)
    assert "the newest is 31" in reason
    (((check, reason),), keys) = said(spark, tmp_path / "late", rows, "2026-01-31T13:00:00+00:00")
    assert (check, keys) == ("ends-early", 4)
    assert "2026-01-31T12:00:31Z, slot 31" in reason
    assert said(spark, tmp_path / "known", rows, "2026-01-31T12:00:05Z") == ([], 2)


def test_when_no_base_follows_a_missing_file_then_the_newest_state_is_told_with_a_warning(
    spark: SparkSession, tmp_path: Path
) -> None:
    found, keys = said(spark, tmp_path / "some", in_files((1, BEFORE), (3, BEHIND)), "")
    assert [(check, keys) for check, _ in found] == [("ends-early", 4)]
    assert "behind slot 5 changes may be missing" in found[0][1]
    found, keys = said(spark, tmp_path / "all", in_files((3, BEHIND)), "")
    assert [(check, keys) for check, _ in found] == [("begins-late", 2)]


# -- when, and by whom ---------------------------------------------------------------------------


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the clock on the wall shows another time."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_away")
def test_when_a_time_is_shown_then_it_is_utc_and_as_of_takes_it(spark: SparkSession, tmp_path: Path) -> None:
    noon = 1_769_860_800 * 10**9
    rows = placed(
        change("base", 0, version=0, wall_ns=noon),
        change("put", 5, b"key", b"1", time_ns=noon + 1_500_000_001, wall_ns=noon + 2 * 10**9),
        change("put", 6, b"key", b"2", time_ns=noon + 1_500_001_789, wall_ns=noon + 2 * 10**9),
    )
    ran = run_job(spark, tmp_path, rows, key="key")
    shown = [words for words in ran.outcome.words if words.startswith("slot")]
    assert shown == [
        "slot 5, 2026-01-31T12:00:01.500000Z: put 1",
        "slot 6, 2026-01-31T12:00:01.500001Z: put 2",
    ]
    ran = run_job(spark, tmp_path, rows, as_of=shown[0].split()[2].rstrip(":"))
    assert not problems(ran.tables)
    assert [each.as_of for each in ran.tables.read(all_tables.KV_STATE).collect()] == [5]


def test_when_a_time_has_a_zone_then_it_is_shown_in_utc() -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    assert utc_text(datetime(2026, 1, 31, 2, 0, tzinfo=east)) == "2026-01-30T20:30:00Z"


def test_when_a_change_has_several_callers_then_that_of_its_chain_is_named_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    changes = placed(
        change("base", 0, version=0),
        change("put", 5, b"key", b"1"),
        change("put", 6, b"key", b"2"),
        change("expire", 7, b"key"),  # in the slot of another key's put
        change("put", 8, b"key", b"3"),
        change("expire", 9, b"key"),  # its lease was revoked
    )
    operations = [
        command(5, client=50, chain=0, return_ns=1),
        command(5, client=51),
        command(6, client=60, chain=0),
        command(6, client=61, chain=2),
        command(7, client=70),
        command(9, client=90, operation="lease_revoke"),
    ]
    ran = run_job(spark, tmp_path, changes, operations, key="key")
    trail = ran.tables.read(all_tables.KV_TRAIL).orderBy("ts").collect()
    assert [(each.ts, each.client) for each in trail] == [(5, 51), (6, 60), (7, None), (8, None), (9, 90)]
