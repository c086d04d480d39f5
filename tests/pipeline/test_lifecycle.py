"""Every delivered range has the times that were recorded of it, also across the boundary of a part."""

from pathlib import Path
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
        (16, 4, 3, 10, None, None, 23, 20, 32, 24, 25),
        (40, 1, 9, 12, None, None, 23, 32, 32, None, None),
    ]
    assert told[2] == [
        (14, 2, 1, 10, 5, 3, 121, 120, 122, 124, None),
        (16, 4, 3, 10, None, None, 123, 120, 132, 124, 25),
        (40, 1, 9, 12, None, None, 123, 132, 132, None, None),
    ]
    assert {(r.level, r.qos) for r in rows if r.source == 2} == {("k_resilient", "k=1")}


def test_when_the_job_is_run_again_then_it_says_the_same(spark: SparkSession, tmp_path: Path) -> None:
    write_bronze(tmp_path, from_rows(recorded()))
    tables = Tables(spark, str(tmp_path))
    outcomes = [lifecycle.run(spark, tables, Run(output=str(tmp_path)), lambda _: None) for _ in range(2)]
    assert [each.rows for each in outcomes] == [{at.LIFECYCLE.path: 4}] * 2
    assert tables.read(at.LIFECYCLE).where("submitted_ns is null").count() == 0


@pytest.mark.parametrize("width", [1, 7, 1 << 20])
def test_when_parts_are_narrow_or_wide_then_no_message_is_lost(
    spark: SparkSession, tmp_path: Path, width: int
) -> None:
    write_bronze(tmp_path, from_rows(recorded()))
    events = Tables(spark, str(tmp_path)).read(at.EVENTS)
    rows = lifecycle.deliveries(events).collect()
    assert sum(row["count"] for row in rows) == 14
    cut = lifecycle.with_progress(
        lifecycle.with_submissions(lifecycle.deliveries(events), events, width), events, width
    )
    assert sum(row["count"] for row in cut.select("count").collect()) == 14
