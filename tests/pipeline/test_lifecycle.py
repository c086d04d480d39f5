"""Every delivered range has the times that were recorded of it, also across the boundary of a part."""

from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline import tables as at
from pipeline.jobs import lifecycle
from pipeline.runs import Run
from pipeline.tables import Tables
from tests.pipeline.bronze import Row, from_rows, write_bronze

WIDTH = 16


def row(site: int, event: str, mono_ns: int, **columns: object) -> Row:
    who = {"chain": 7, "site": site, "boot": site * 10, "event": event, "epoch": 1, "revision": 0}
    return who | {"mono_ns": mono_ns, "wall_ns": mono_ns + 1_000} | columns


def recorded() -> list[Row]:
    """Source 1 sends 1 to 4 and 5 to 6; both are delivered as one range at slots 14 to 19, over a boundary.
    Then source 2 sends one."""
    first: dict[str, Any] = {"source": 1, "qos": "majority"}
    other: dict[str, Any] = {"source": 2, "qos": "k=1", "count": 1, "first_seq": 9}
    range_of = first | {"first_seq": 1, "first_ts": 14, "count": 6, "detail": "majority"}
    rows = [
        row(1, "submitted", 10, first_seq=1, count=4, session=5, first_request=3, **first),
        row(1, "submitted", 11, first_seq=5, count=2, **first),
        row(1, "submitted", 12, source=1, first_seq=5, count=2, qos="unordered"),
        row(2, "submitted", 12, **other),
    ]
    for site, later in ((1, 0), (2, 100)):
        rows += [
            row(site, "delivered", 20 + later, **range_of),
            row(site, "held", 21 + later, first_ts=15),
            row(site, "level", 22 + later, first_ts=20, detail="stable 15"),
            row(site, "held", 23 + later, first_ts=60),
            row(site, "applied", 24 + later, first_ts=19, digest=b"1"),
            row(site, "delivered", 30 + later, first_ts=40, detail="k_resilient", **other),
            row(site, "level", 32 + later, first_ts=70, detail="stable 40"),
        ]
    rows += [
        row(1, "replied", 25, first_ts=18, count=2, source=1, first_seq=5, detail="own"),
        row(2, "replied", 26, first_ts=14, count=1, source=1, first_seq=1, detail="handler"),
        row(
            1, "delivered", 27, source=1, first_seq=7, count=1, qos="source_ordered", detail="source_ordered"
        ),
    ]
    return rows


def test_when_ranges_cross_parts_then_each_row_has_its_times(spark: SparkSession, tmp_path: Path) -> None:
    write_bronze(tmp_path, from_rows(recorded()))
    tables = Tables(spark, str(tmp_path))
    rows = lifecycle.lifecycle(tables.read(at.EVENTS), WIDTH).collect()
    asked = "first_ts count first_seq submitted_ns session first_request"
    names = f"{asked} held_ns majority_ns stable_ns applied_ns replied_ns".split()
    told = {site: sorted(tuple(r[n] for n in names) for r in rows if r.site == site) for site in (1, 2)}
    assert told[1] == [
        (14, 2, 1, 10, 5, 3, 21, 20, 22, 24, None),
        (16, 2, 3, 10, None, None, 23, 20, 32, 24, None),
        (18, 2, 5, 11, None, None, 23, 20, 32, 24, 25),
        (40, 1, 9, 12, None, None, 23, 32, 32, None, None),
    ]
    assert told[2] == [
        (14, 2, 1, 10, 5, 3, 121, 120, 122, 124, None),
        (16, 4, 3, 10, None, None, 123, 120, 132, 124, None),
        (40, 1, 9, 12, None, None, 123, 132, 132, None, None),
    ]
    assert {(r.level, r.qos) for r in rows if r.source == 2} == {("k_resilient", "k=1")}


def test_when_the_job_is_run_again_then_it_says_the_same(spark: SparkSession, tmp_path: Path) -> None:
    write_bronze(tmp_path, from_rows(recorded()))
    tables = Tables(spark, str(tmp_path))
    outcomes = [lifecycle.run(spark, tables, Run(output=str(tmp_path)), lambda _: None) for _ in range(2)]
    assert [each.rows for each in outcomes] == [{at.LIFECYCLE.path: 5}] * 2
    assert tables.read(at.LIFECYCLE).where("submitted_ns is null").count() == 0


@pytest.mark.parametrize("width", [1, 7, 1 << 20])
def test_when_parts_are_narrow_or_wide_then_no_message_is_lost(
    spark: SparkSession, tmp_path: Path, width: int
) -> None:
    write_bronze(tmp_path, from_rows(recorded()))
    events = Tables(spark, str(tmp_path)).read(at.EVENTS)
    rows = lifecycle.deliveries(events).collect()
    assert sum(row["count"] for row in rows) == 14
    cut = lifecycle.lifecycle(events, width)
    assert sum(row["count"] for row in cut.select("count").collect()) == 14


# -- each message has its own times --------------------------------------------------------------


def made_of(spark: SparkSession, root: Path, rows: list[Row], width: int = WIDTH) -> list[Any]:
    write_bronze(root, from_rows(rows))
    return lifecycle.lifecycle(Tables(spark, str(root)).read(at.EVENTS), width).collect()


def test_when_a_delivery_spans_many_submissions_then_each_message_has_its_own_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One message each ms, and all of them are delivered at once. The other replica's row stays whole."""
    about: dict[str, Any] = {"source": 1, "qos": "majority"}
    rows = [row(1, "submitted", ms, first_seq=ms, count=1, session=ms, **about) for ms in range(1, 21)]
    rows += [
        row(site, "delivered", 20, first_ts=101, first_seq=1, count=20, detail="majority", **about)
        for site in (1, 2)
    ]
    made = made_of(spark, tmp_path, rows, 1 << 20)
    own = sorted(
        (r.first_ts, r.first_seq, r["count"], r.submitted_ns, r.session) for r in made if r.site == 1
    )
    assert own == [(100 + ms, ms, 1, ms, ms) for ms in range(1, 21)]
    assert [(r.first_ts, r["count"], r.submitted_ns) for r in made if r.site == 2] == [(101, 20, 1)]


def test_when_a_reply_begins_before_a_range_then_the_range_was_answered_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    about: dict[str, Any] = {"source": 1, "qos": "majority", "detail": "majority"}
    rows = [
        row(1, "submitted", 5, source=1, first_seq=1, count=6, qos="majority"),
        row(1, "delivered", 20, first_ts=1, first_seq=1, count=3, **about),
        row(1, "delivered", 21, first_ts=4, first_seq=4, count=3, **about),
        row(1, "replied", 22, first_ts=2, first_seq=2, count=4, source=1, detail="own"),
    ]
    told = sorted(
        (r.first_ts, r["count"], r.submitted_ns, r.replied_ns) for r in made_of(spark, tmp_path, rows)
    )
    assert told == [(1, 1, 5, None), (2, 2, 5, 22), (4, 2, 5, 22), (6, 1, 5, None)]


def test_when_a_process_delivers_what_one_before_it_submitted_then_it_has_no_time_of_submission(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The machine began again, and with it its monotonic clock: times of the first boot mean nothing to the
    second."""
    about: dict[str, Any] = {"source": 1, "qos": "majority"}
    rows = [
        row(1, "submitted", 5_000, boot=10, first_seq=1, count=4, **about),
        row(1, "view", 5_001, boot=10, first_ts=1),
        row(1, "view", 10, boot=11, first_ts=1),
        row(1, "submitted", 40, boot=11, first_seq=4, count=3, **about),
        row(1, "delivered", 6_000, boot=11, first_ts=1, first_seq=1, count=6, detail="majority", **about),
        row(1, "replied", 6_100, boot=10, first_ts=1, first_seq=1, count=6, source=1, detail="own"),
    ]
    made = made_of(spark, tmp_path, rows)
    told = sorted((r.first_seq, r["count"], r.submitted_ns, r.replied_ns) for r in made)
    assert told == [(1, 3, None, None), (4, 3, 40, None)]


@pytest.mark.parametrize("width", [5, 1 << 20])
def test_when_ranges_are_drawn_at_random_then_every_message_has_the_times_of_its_own(
    spark: SparkSession, tmp_path: Path, width: int
) -> None:
    """By number, message by message: a dictionary has what was told of each. Some numbers are not told of,
    and some are delivered twice."""
    rng = Random(3)
    rows: list[Row] = []
    submitted: dict[tuple[int, int], int] = {}
    replied: dict[tuple[int, int], int] = {}
    clock = count()
    for site in (1, 2):
        for event, times in (("submitted", submitted), ("replied", replied)):
            for first, messages in ranges_below(120, 6, rng):
                mono_ns = next(clock)
                about = {"source": site, "first_seq": first, "first_ts": first + 1000, "count": messages}
                rows.append(row(site, event, mono_ns, qos="majority", **about))
                times.update({(site, seq): mono_ns for seq in range(first, first + messages)})
        for first, messages in (*ranges_below(120, 30, rng), (30, 40)):
            rows += [
                row(at_site, "delivered", next(clock), source=site, first_seq=first, first_ts=first + 1000,
                    count=messages, qos="majority", detail="majority") for at_site in (1, 2)
            ]  # fmt: skip
    made = made_of(spark, tmp_path, rows, width)
    delivered = [r for r in rows if r["event"] == "delivered"]
    for own in (True, False):
        found = [r for r in made if (r.site == r.source) is own]
        ours = sorted((r.site, r.source, r.first_seq + n) for r in found for n in range(r["count"]))
        wanted = [r for r in delivered if (r["site"] == r["source"]) is own]
        assert ours == sorted(
            (r["site"], r["source"], r["first_seq"] + n) for r in wanted for n in range(r["count"])
        )
    for each in made:
        assert each.first_ts == each.first_seq + 1000
        for offset in range(each["count"] if each.site == each.source else 1):
            message = each.source, each.first_seq + offset
            assert each.submitted_ns == submitted.get(message)
            assert each.replied_ns == replied.get(message)


def ranges_below(end: int, longest: int, rng: Random) -> list[tuple[int, int]]:
    """First and count, one behind the other; now and then something is left out."""
    found, first = [], 1
    while first < end:
        messages = rng.randint(1, longest)
        if rng.random() < 0.8:
            found.append((first, messages))
        first += messages
    return found
