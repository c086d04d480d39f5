"""The same figures by other means: DuckDB, from the definitions, message by message, on what was recorded."""

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from ordering.simulator.campaign import play
from ordering.simulator.plan import FaultMix, Plan
from pipeline import schemas
from pipeline import tables as at
from pipeline.errors import BadSetting
from pipeline.figures import Measured
from pipeline.jobs import metrics as job
from pipeline.jobs.lifecycle import lifecycle as followed
from pipeline.lives import gaps, lives
from pipeline.runs import Outcome, Run
from pipeline.tables import Tables
from tests.pipeline.duck_metrics import CHANGES, MESSAGES, PERCENTILES, RATES, SAMPLED
from tests.pipeline.recorded import Row, event, events_of, in_files, ranged

WIDTH_NS = 200_000_000
SECOND = 1_000_000_000
MS = 1_000_000
Key = tuple[str, str, int | None, int | None]
Figures = dict[Key, Any]  # value and samples


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Sites that crash, come back and change views. Each records for itself: one has lost a file, and another
    tells of a gap."""
    folder = tmp_path_factory.mktemp("recorded")
    outcome = play(Plan(seed=5, sites=4, seconds=5, rate=60, durable=True, faults=FaultMix.SWARM), folder)
    assert outcome.error == ""
    rows = as_replicas_tell(events_of(folder / "seed-5"))
    begun = min(row["wall_ns"] for row in rows)
    like = next(row for row in rows if row["site"] == 2 and row["wall_ns"] > begun + 3 * SECOND)
    gap = dict.fromkeys(like) | {name: like[name] for name in ("chain", "site", "boot", "batch", "position")}
    clocks = {"wall_ns": like["wall_ns"] - 1, "mono_ns": like["wall_ns"] - 1}
    return in_files([*rows, gap | clocks | {"event": "gap", "count": 7}], 60, (3, 3))


def as_replicas_tell(rows: list[Row]) -> list[Row]:
    """Messages come one by one, and are delivered together; and a machine holds and answers them."""
    rng, found = Random(2), []
    for row in rows:
        found.append(row)
        if row["event"] == "submitted":
            found[-1:] = [
                row | {"first_seq": row["first_seq"] + n, "count": 1} | earlier(row, (row["count"] - n) * MS)
                for n in range(row["count"])
            ]
        elif row["event"] == "delivered" and row["first_ts"] is not None:
            last = row["first_ts"] + row["count"] - 1
            nothing = {"count": None, "source": None, "first_seq": None, "qos": None, "detail": None}
            held = row | nothing | {"event": "held", "first_ts": last}
            found.append(held | earlier(row, rng.randrange(-20 * MS, 20 * MS)))
            if row["source"] == row["site"] and rng.random() < 0.8:
                skipped = rng.randrange(row["count"])
                part = {name: row[name] + skipped for name in ("first_ts", "first_seq")}
                part |= {"event": "replied", "count": row["count"] - skipped, "qos": None, "detail": "own"}
                found.append(row | part | earlier(row, -rng.randrange(30 * MS)))
    return found


def earlier(row: Row, by_ns: int) -> Row:
    return {name: max(row[name] - by_ns, 0) for name in ("mono_ns", "wall_ns")}


@pytest.fixture(scope="module")
def ran(
    spark: SparkSession, recorded: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Row], Outcome]:
    root = tmp_path_factory.mktemp("out")
    return root, recorded, run_on(spark, root, recorded, window_s="0.2")


def frame(spark: SparkSession, rows: Iterable[Row], schema: Any) -> DataFrame:
    names = schema.fieldNames()
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)


def waited(spark: SparkSession, *lifecycle: Row) -> Figures:
    return figures_of(
        job.percentiles(job.waits_of(frame(spark, lifecycle, schemas.LIFECYCLE)), SECOND), "window"
    )


def figures_of(found: DataFrame, begin: str = "unix_micros(window) * 1000") -> Figures:
    rows = found.selectExpr("*", f"{begin} AS bin").collect()
    figures = {(row.metric, row.statistic, row.site, row.bin): (row.value, row.samples) for row in rows}
    assert len(figures) == len(rows)
    return figures


def asked(events: list[Row]) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect()
    words = {name: pa.string() for name in ("event", "qos", "detail", "recorder")}
    numbers = (
        "chain",
        "site",
        "boot",
        "epoch",
        "first_ts",
        "count",
        "source",
        "first_seq",
        "mono_ns",
        "wall_ns",
        "position",
    )
    schema = pa.schema(words | dict.fromkeys(numbers, pa.int64()))
    database.register("told", pa.Table.from_pylist(events, schema))
    database.execute("CREATE TABLE events AS SELECT * FROM told")
    database.execute(MESSAGES)
    return database


def four_digits(value: int) -> int:
    return int(str(value)[:4].ljust(len(str(value)), "0"))


# -- a recording ---------------------------------------------------------------------------------


def test_when_a_simulated_run_is_measured_then_duckdb_says_the_same(
    spark: SparkSession, ran: tuple[Path, list[Row], Outcome]
) -> None:
    root, recorded, _ = ran
    ours = figures_of(Tables(spark, str(root)).read(at.METRICS))
    database = asked(recorded)
    theirs = percentiles_of(database, WIDTH_NS)
    found = database.execute(RATES, {"width": WIDTH_NS}).fetchall()
    theirs |= {(name, what, site, begin): (value, told) for name, what, site, begin, value, told in found}
    compared = {key[0] for key in theirs}
    assert compared == {
        *("submitted", "delivered", "applied", "replied", "reply_latency", "held_lag"),
        *("delivery_latency", "majority_latency", "stable_latency", "applied_lag"),
    }
    own = {key: value for key, value in ours.items() if key[0] in compared}
    assert own == {key: (pytest.approx(value), samples) for key, (value, samples) in theirs.items()}
    # Somebody came back and delivered again, and submissions were delivered together.
    ((handed, new),) = database.execute(
        "SELECT (SELECT count(*) FROM handed), (SELECT count(*) FROM delivered)"
    ).fetchall()
    assert handed > new > 0


def percentiles_of(database: duckdb.DuckDBPyConnection, width_ns: int) -> Figures:
    found: Figures = {}
    for metric, site, begin, samples, values in database.execute(PERCENTILES, {"width": width_ns}).fetchall():
        for name, permille in (("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)):
            nearest = values[-(-samples * permille // 1000) - 1]
            found[metric, name, site, begin] = (four_digits(nearest), samples)
        found[metric, "max", site, begin] = (values[-1], samples)
    return found


def test_when_views_change_then_durations_are_those_that_duckdb_finds(
    spark: SparkSession, recorded: list[Row]
) -> None:
    found = job.view_changes(frame(spark, recorded, schemas.EVENTS)).collect()
    ours = sorted((row.site or 0, row.epoch, row.duration_ns) for row in found)
    theirs = sorted(
        (site or 0, epoch, lasted) for site, epoch, lasted in asked(recorded).execute(CHANGES).fetchall()
    )
    assert ours == theirs
    assert any(lasted > 0 for site, _, lasted in ours if not site)
    assert all((row.ended - row.began).total_seconds() * SECOND >= row.duration_ns - 2000 for row in found)


def test_when_counters_are_drawn_at_random_then_duckdb_says_the_same(spark: SparkSession) -> None:
    """Processes that come and go, rings that change, counters that begin again or are not told."""
    rng = Random(7)
    rows: list[Row] = []
    for site, boot in product((1, 2, 3), (1, 2)):
        counters = dict.fromkeys(job.COUNTERS, 0)
        at_ns = (boot - 1) * 30 * SECOND + rng.randrange(SECOND)
        for _ in range(25):
            at_ns += rng.randrange(1, 2 * SECOND)
            if rng.random() < 0.2:
                ring = " ".join(map(str, range(1, rng.randint(2, 6))))
                rows.append(event("view", at_ns, site, boot=boot, detail=f"members …; voters 1; ring {ring}"))
            counters = {
                name: rng.randrange(5) if rng.random() < 0.05 else count + rng.randrange(200)
                for name, count in counters.items()
            }
            gauges = {name: rng.randrange(1000) for name in job.GAUGES}
            told = {name: value for name, value in (counters | gauges).items() if rng.random() < 0.9}
            rows.append(sample(at_ns, site, boot, **told))
    ours = figures_of(job.sampled(frame(spark, rows, schemas.EVENTS), 5 * SECOND), "window")
    found = asked(rows).execute(SAMPLED, {"width": 5 * SECOND}).fetchall()
    theirs = {(name, what, site, begin): (value, told) for name, what, site, begin, value, told in found}
    assert len(theirs) == len(found)
    assert {metric for metric, *_ in theirs} == {
        *("packets_per_message", "bytes_per_message", "token_rotation", "retransmissions", "nacks"),
        *job.GAUGES,
    }
    assert ours == {key: (pytest.approx(value), told) for key, (value, told) in theirs.items()}


# -- by hand -------------------------------------------------------------------------------------


def test_when_ranges_have_different_sizes_then_messages_are_counted_and_not_ranges(
    spark: SparkSession,
) -> None:
    """999 messages took 1 ms, and one took a second."""
    lifecycle = (
        ranged(1, 999, submitted_ns=0, delivered_ns=MS, replied_ns=3 * MS, held_ns=2 * MS),
        ranged(1000, 1, submitted_ns=0, delivered_ns=SECOND - 1, held_ns=MS),
        ranged(1, 999, site=2, submitted_ns=0, delivered_ns=5 * MS, replied_ns=3 * MS),
    )
    found = waited(spark, *lifecycle)
    for statistic, wait in (("p50", MS), ("p99", MS), ("p99.9", MS), ("max", SECOND - 1)):
        assert found["delivery_latency", statistic, 1, 0] == (wait, 1000)
        assert found["delivery_latency", statistic, None, None] == (wait, 1000)
    assert found["reply_latency", "p50", 1, 0] == (3 * MS, 999)
    assert found["held_lag", "p50", 1, None] == (MS, 1000)
    assert found["held_lag", "p99.9", 1, None] == (MS, 1000)
    assert not any(site == 2 and metric == "delivery_latency" for metric, _, site, _ in found)


def test_when_a_wait_has_many_digits_then_four_are_told_and_the_longest_is_exact(spark: SparkSession) -> None:
    found = waited(spark, ranged(1, 1, submitted_ns=0, delivered_ns=123_456_789))
    assert found["delivery_latency", "p50", 1, 0] == (123_400_000, 1)
    assert found["delivery_latency", "max", 1, 0] == (123_456_789, 1)


def test_when_a_process_delivers_what_one_before_it_submitted_then_nobody_waited_for_the_ring(
    spark: SparkSession,
) -> None:
    events = frame(
        spark, [event("started", 0, chain=0), event("started", 500, boot=2, chain=0)], schemas.EVENTS
    )
    lifecycle = [
        ranged(1, 3, submitted_ns=100, delivered_ns=200),
        ranged(1, 3, boot=2, submitted_ns=100, delivered_ns=700),
        ranged(4, 2, boot=2, submitted_ns=600, delivered_ns=700),
    ]
    kept = job.without_replays(frame(spark, lifecycle, schemas.LIFECYCLE), events).collect()
    assert sorted((row.boot, row.first_ts, row.submitted_ns) for row in kept) == [
        (1, 1, 100),
        (2, 1, None),
        (2, 4, 600),
    ]


def sample(at_ns: int, site: int = 1, boot: int = 1, **values: Any) -> Row:
    return event("sample", at_ns, site, boot=boot, detail=json.dumps(values))


def test_when_counters_are_sampled_then_rates_are_of_what_they_grew_by(spark: SparkSession) -> None:
    """Two windows of 10 s. The process of site 1 is another one in the second, and counts from zero."""
    first = {"datagrams_out": 50, "bytes_out": 900, "delivered": 100, "passes": 10, "retransmitted": 1}
    second = {"datagrams_out": 250, "bytes_out": 40_900, "delivered": 500, "passes": 410, "retransmitted": 5}
    events = [
        event("view", 0, detail="members 1=a:1 2=b:1; voters 1 2; ring 2 1"),
        sample(1 * SECOND, **first, window_messages=10, window_bytes=100),
        sample(5 * SECOND, **second, window_messages=30, window_bytes=300),
        sample(11 * SECOND, boot=2, datagrams_out=7, delivered=1000, passes=1, retransmitted=7),
        sample(13 * SECOND, boot=2, datagrams_out=107, delivered=1100, passes=1, retransmitted=7),
        sample(1 * SECOND, 2, datagrams_out=0, delivered=0, nacks=4),
        sample(5 * SECOND, 2, datagrams_out=600, delivered=400, nacks=0),
    ]
    found = figures_of(job.sampled(frame(spark, events, schemas.EVENTS), 10 * SECOND), "window")
    assert found["packets_per_message", "mean", 1, 0] == (200 / 400, 1)
    assert found["packets_per_message", "mean", 2, 0] == (600 / 400, 1)
    assert found["packets_per_message", "mean", None, 0] == (800 / 400, 2)
    assert found["packets_per_message", "mean", 1, 10 * SECOND] == (1.0, 1)
    assert found["packets_per_message", "mean", 1, None] == (300 / 500, 2)
    assert found["bytes_per_message", "mean", 1, 0] == (100.0, 1)
    assert ("bytes_per_message", "mean", 1, 10 * SECOND) not in found  # nobody told
    assert found["token_rotation", "mean", 1, 0] == (20 * MS, 1)  # a pass each 10 ms, twice
    assert ("token_rotation", "mean", 1, 10 * SECOND) not in found  # it never came around
    assert found["retransmissions", "rate", 1, 0] == (1.0, 1)
    assert found["retransmissions", "rate", 1, 10 * SECOND] == (0.0, 1)
    assert found["nacks", "rate", 2, 0] == (0.0, 1)  # less than before: it began again
    assert found["window_messages", "mean", 1, 0] == (20.0, 2)
    assert found["window_bytes", "max", None, None] == (300.0, 2)
    assert not any(metric.startswith("window") and site == 2 for metric, _, site, _ in found)


def test_when_many_replicas_send_then_the_group_sent_it_all(spark: SparkSession) -> None:
    events = [
        sample(at_s * SECOND, site, datagrams_out=at_s * 6, delivered=at_s * 2, retransmitted=at_s)
        for site in range(1, 8)
        for at_s in (1, 2)
    ]
    found = figures_of(job.sampled(frame(spark, events, schemas.EVENTS), 10 * SECOND), "window")
    assert found["packets_per_message", "mean", None, None] == (21.0, 7)
    assert found["retransmissions", "rate", None, None] == (7.0, 7)


def measured(spark: SparkSession, *events: Row) -> Figures:
    """All of the job's figures, of these events."""
    told = frame(spark, events, schemas.EVENTS)
    rows = followed(told).localCheckpoint()
    return figures_of(job.metrics(told, rows, job.view_changes(told), SECOND))


def counted(spark: SparkSession, *events: Row) -> Figures:
    """Rates alone."""
    told = frame(spark, events, schemas.EVENTS)
    nothing = frame(spark, [], schemas.LIFECYCLE)
    return figures_of(job.rates(told, nothing, SECOND, lives(told), gaps(told)), "window")


def rates_of(found: Figures, metric: str, site: int | None) -> dict[int, float]:
    """By second."""
    return {
        begin // SECOND: round(value[0], 6)
        for (name, statistic, who, begin), value in found.items()
        if (name, statistic, who) == (metric, "rate", site) and begin is not None
    }


def delivery(at_ns: int, first_ts: int, messages: int, site: int = 1, **columns: Any) -> Row:
    about = {"source": 1, "first_seq": first_ts, "qos": "majority", "detail": "majority", "epoch": 1}
    return event("delivered", at_ns, site, first_ts=first_ts, count=messages, **(about | columns))


def test_when_messages_come_one_by_one_and_are_delivered_together_then_each_has_waited_for_itself(
    spark: SparkSession,
) -> None:
    sent = [
        event("submitted", ms * MS, count=1, source=1, first_seq=ms, qos="majority") for ms in range(1, 21)
    ]
    told = frame(spark, [*sent, delivery(20 * MS, 1, 20)], schemas.EVENTS)
    found = figures_of(job.percentiles(job.waits_of(followed(told)), SECOND), "window")
    assert found["delivery_latency", "p50", 1, None] == (9 * MS, 20)
    assert found["delivery_latency", "max", 1, None] == (19 * MS, 20)


def test_when_a_replica_has_a_gap_or_is_away_then_its_windows_have_no_rate(spark: SparkSession) -> None:
    events = [
        delivery(0, 1, 10),
        delivery(2 * SECOND, 11, 10),
        event("gap", 4 * SECOND + 1, count=500),
        delivery(6 * SECOND, 800, 10),
        delivery(7 * SECOND, 810, 10),
        event("held", 8 * SECOND),
        delivery(10 * SECOND, 820, 10, boot=2),
        event("held", 11 * SECOND, boot=2),
        delivery(4 * SECOND, 1, 3, 2),
        event("held", 5 * SECOND, 2),
    ]
    found = counted(spark, *events)
    assert rates_of(found, "delivered", 1) == {0: 10, 1: 0, 2: 10, 3: 0, 7: 10, 10: 10}
    assert found["delivered", "rate", None, 4 * SECOND] == (3.0, 3)
    told, nothing = frame(spark, events, schemas.EVENTS), frame(spark, [], schemas.LIFECYCLE)
    warned = job.quality(told, nothing, SECOND).where("severity = 'warning'").collect()
    assert [(row.check, row.subject, row.rows) for row in warned] == [("gap", "site 1", 500)]


def test_when_a_gap_is_the_last_row_of_a_file_then_it_ends_in_the_next(spark: SparkSession) -> None:
    events = [
        delivery(0, 1, 10, position=1 << 32),
        event("gap", SECOND + 1, count=5, position=(1 << 32) + 1),
        delivery(3 * SECOND + 1, 90, 10, position=2 << 32),
        event("held", 6 * SECOND, position=(2 << 32) + 1),
    ]
    assert rates_of(counted(spark, *events), "delivered", 1) == {0: 10, 4: 0, 5: 0}


def test_when_a_file_is_missing_then_there_is_no_rate_between_the_files_beside_it(
    spark: SparkSession,
) -> None:
    events = [
        delivery(0, 1, 10, position=1 << 32),
        delivery(2 * SECOND + 1, 11, 10, position=(1 << 32) + 1),
        delivery(5 * SECOND + 1, 800, 10, position=3 << 32),
        delivery(7 * SECOND, 810, 10, position=4 << 32),
        event("held", 8 * SECOND, position=(4 << 32) + 1),
    ]
    assert rates_of(counted(spark, *events), "delivered", 1) == {0: 10, 1: 0, 6: 0, 7: 10}


def test_when_one_replica_has_a_gap_then_what_is_summed_has_no_rate_of_the_group(
    spark: SparkSession,
) -> None:
    """Site 3 never submits, and its gap takes nothing away."""
    sent = [
        event("submitted", second * SECOND, site, count=site, source=site, first_seq=second, qos="majority")
        for site in (1, 2)
        for second in range(5)
    ]
    ends = [event("held", 5 * SECOND, site) for site in (1, 2)]
    missing = [event("gap", 2 * SECOND, 2, count=1), event("held", 2 * SECOND + 1, 2)]
    missing += [event("held", 0, 3), event("gap", 3 * SECOND, 3, count=1), event("held", 3 * SECOND + 1, 3)]
    found = counted(spark, *sent, *ends, *missing)
    assert rates_of(found, "submitted", 1) == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}
    assert rates_of(found, "submitted", None) == {0: 3, 1: 3, 3: 3, 4: 3}
    assert found["submitted", "mean", None, None] == (3.0, 12)


def test_when_a_replica_lives_for_part_of_a_window_then_its_rate_is_of_the_time_that_it_lived(
    spark: SparkSession,
) -> None:
    """100 messages a second, from 0.4 s to 3.3 s."""
    events = [delivery((4 + tenth) * 100 * MS, 1 + 10 * tenth, 10) for tenth in range(29)]
    found = counted(spark, *events, event("held", 3300 * MS))
    assert rates_of(found, "delivered", 1) == {0: 100, 1: 100, 2: 100}
    assert found["delivered", "mean", 1, None] == (pytest.approx(100), 290)
    assert found["delivered", "mean", None, None] == (pytest.approx(100), 290)
    assert found["delivered", "max", 1, None] == (pytest.approx(100), 290)


def test_when_a_process_delivers_again_from_its_disk_then_nothing_of_that_is_measured(
    spark: SparkSession,
) -> None:
    """Site 1 comes back after 5 s, and has delivered slots 1 to 40 of two epochs before."""

    def applied(at_ns: int, first_ts: int, **columns: Any) -> Row:
        return event("applied", at_ns, first_ts=first_ts, **columns)

    events = [
        delivery(0, 1, 20),
        applied(1 * MS, 20),
        delivery(2 * SECOND, 21, 20, epoch=2),
        applied(2 * SECOND + MS, 40),
        event("held", 3 * SECOND),
        delivery(5 * SECOND, 1, 20, boot=2),
        delivery(5 * SECOND + 1, 21, 25, boot=2, epoch=2),
        applied(5 * SECOND + 7 * MS, 45, boot=2),
        delivery(6 * SECOND, 46, 5, boot=2, epoch=3),
        event("held", 7 * SECOND, boot=2),
    ]
    found = measured(spark, *events)
    for site in (1, None):
        assert rates_of(found, "delivered", site) == {0: 20, 1: 0, 2: 20, 5: 5, 6: 5}
        assert rates_of(found, "applied", site) == {0: 20, 1: 0, 2: 20, 5: 5, 6: 0}
    assert found["applied_lag", "max", 1, None] == (7 * MS - 1, 45)
    told = job.view_changes(frame(spark, events, schemas.EVENTS)).where("site = 1").collect()
    assert sorted((row.epoch_before, row.epoch, row.duration_ns) for row in told) == [
        (1, 2, 2 * SECOND),
        (2, 3, SECOND - 1),
    ]


def test_when_replicas_come_and_go_then_the_group_has_the_messages_of_those_that_tell(
    spark: SparkSession,
) -> None:
    """One replica after the other delivers 100 messages a second, with 3 datagrams each."""
    events = [
        sample((10 * site + second) * SECOND, site, datagrams_out=second * 300, delivered=second * 100,
               retransmitted=second)
        for site in (1, 2, 3) for second in range(3)
    ]  # fmt: skip
    found = figures_of(job.sampled(frame(spark, events, schemas.EVENTS), 10 * SECOND), "window")
    assert found["packets_per_message", "mean", None, None] == (3.0, 6)
    assert found["retransmissions", "rate", None, None] == (1.0, 6)


def test_when_clocks_or_samples_make_no_sense_then_they_are_left_out_and_told(spark: SparkSession) -> None:
    events = [event("sample", 5, detail="no json"), event("sample", 9, detail='{"delivered": 3}')]
    lifecycle = [ranged(1, 5, submitted_ns=9, delivered_ns=3)]
    assert figures_of(job.sampled(frame(spark, events, schemas.EVENTS), SECOND), "window") == {}
    told = job.quality(
        frame(spark, events, schemas.EVENTS), frame(spark, lifecycle, schemas.LIFECYCLE), SECOND
    )
    found = {row.check: row.rows for row in told.collect()}
    assert found == {"windows": 0, "clock": 1, "sample": 1}


def test_when_an_identity_uses_all_bits_then_views_name_it(spark: SparkSession) -> None:
    site = (1 << 64) - 2
    detail = f"members {site}=a:1 5=b:1; voters {site} 5; ring 5 {site}"
    found = job.names(frame(spark, [event("view", 1, detail=detail)], schemas.EVENTS)).collect()
    assert {row.site: row.name for row in found} == {schemas.signed(site): "a:1", 5: "b:1"}


# -- the job -------------------------------------------------------------------------------------


def run_on(spark: SparkSession, root: Path, events: list[Row], **options: str) -> Outcome:
    tables = Tables(spark, str(root))
    tables.write(at.EVENTS, frame(spark, events, schemas.EVENTS))
    tables.write(at.LIFECYCLE, followed(tables.read(at.EVENTS)))
    return job.run(spark, tables, Run(output=str(root), options=options), lambda words: None)


def test_when_the_job_runs_again_then_tables_and_figures_are_the_same(
    spark: SparkSession, ran: tuple[Path, list[Row], Outcome]
) -> None:
    root, events, first = ran
    names = [Path(figure).name for figure in first.figures]
    assert names == [
        "throughput.png",
        "latency.png",
        "latency-by-replica.png",
        "ring.png",
        "view-changes.png",
    ]
    images = [Path(figure).read_bytes() for figure in first.figures]
    assert all(image.startswith(b"\x89PNG") for image in images)
    table = figures_of(Tables(spark, str(root)).read(at.METRICS))
    again = run_on(spark, root, events, window_s="0.2")
    assert (again.rows, again.words, again.figures) == (first.rows, first.words, first.figures)
    assert [Path(figure).read_bytes() for figure in again.figures] == images
    assert figures_of(Tables(spark, str(root)).read(at.METRICS)) == table


def test_when_nothing_was_recorded_then_there_are_no_metrics_and_no_figures(
    spark: SparkSession, tmp_path: Path
) -> None:
    outcome = run_on(spark, tmp_path, [])
    assert outcome.rows == {"gold/metrics": 0, "gold/view_changes": 0}
    assert not outcome.figures
    assert "nothing to measure" in outcome.words[-1]


@pytest.mark.parametrize(
    ("length_s", "asked_for", "width_s"),
    [
        (12, None, 0.2),
        (60, None, 1),
        (3600, None, 50),
        (0, None, 0.001),
        (60, "0.25", 0.25),
        (60, "120", 120),
    ],
)
def test_when_a_recording_has_a_length_then_there_are_some_sixty_windows(
    length_s: int, asked_for: str | None, width_s: float
) -> None:
    assert job.chosen_width_ns(length_s * SECOND, asked_for) == width_s * SECOND


@pytest.mark.parametrize("asked_for", ["", "soon", "0", "-1", "nan", "inf", "0.001"])
def test_when_a_window_makes_no_sense_then_the_setting_is_named(asked_for: str) -> None:
    with pytest.raises(BadSetting, match="window_s"):
        job.chosen_width_ns(3600 * SECOND, asked_for)


def test_when_there_are_many_chains_then_only_the_busiest_are_brought_here_and_drawn(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Measured] = []

    def draw(measured: Measured, root: str, width_ns: int) -> list[str]:
        drawn.append(measured)
        return []

    monkeypatch.setattr(job, "draw_metrics", draw)
    events = []
    for chain in range(1, 9):
        of_chain: dict[str, Any] = {"site": chain, "chain": chain}
        events += [
            event("started", 0, chain, chain=0),
            event(
                "view", 0, epoch=1, detail=f"members {chain}=a:1; voters {chain}; ring {chain}", **of_chain
            ),
            delivery(0, 1, 10 * chain, **of_chain),
            delivery(SECOND, 1000, 1, epoch=2, **of_chain),
            event("held", 2 * SECOND, **of_chain),
        ]
    outcome = run_on(spark, tmp_path, events, window_s="1")
    (measured,) = drawn
    busiest = {5, 6, 7, 8}
    for rows in (measured.metrics, measured.changes, measured.names):
        assert {row["chain"] for row in rows} == busiest
    assert {row["site"] for row in measured.marks if row["site"] is not None} == busiest
    made = Tables(spark, str(tmp_path)).read(at.METRICS)
    assert {row.chain for row in made.select("chain").distinct().collect()} == set(range(1, 9))
    assert outcome.rows == {"gold/metrics": made.count(), "gold/view_changes": 16}
