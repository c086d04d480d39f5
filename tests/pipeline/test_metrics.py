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
from pipeline.jobs import metrics as job
from pipeline.runs import Outcome, Run
from pipeline.tables import Tables
from tests.pipeline.recorded import Row, event, events_of, lifecycle_of, ranged

WIDTH_NS = 200_000_000
SECOND = 1_000_000_000
MS = 1_000_000
Key = tuple[str, str, int | None, int | None]
Figures = dict[Key, Any]  # value and samples

# Every message at every replica that delivered it under a timestamp, from the events alone.
MESSAGES = """
CREATE TABLE own AS
SELECT site, qos, mono_ns, first_seq + unnest(range(count)) AS seq FROM events WHERE event = 'submitted';
CREATE TABLE delivered AS
SELECT site, boot, source, qos, mono_ns, wall_ns, first_ts + offset_ AS ts, first_seq + offset_ AS seq
FROM (SELECT *, unnest(range(count)) AS offset_ FROM events
      WHERE event = 'delivered' AND first_ts IS NOT NULL);
CREATE TABLE levels AS
SELECT site, boot, mono_ns, first_ts AS majority, CAST(split_part(detail, ' ', 2) AS BIGINT) AS stable
FROM events WHERE event = 'level';
CREATE TABLE applied AS SELECT site, boot, mono_ns, first_ts FROM events WHERE event = 'applied';
CREATE TABLE known AS
SELECT d.*,
  (SELECT max(mono_ns) FROM own o
   WHERE o.site = d.source AND o.seq = d.seq AND o.qos = d.qos AND o.mono_ns <= d.mono_ns
   AND o.mono_ns >= (SELECT min(mono_ns) FROM events e
                     WHERE e.site = d.site AND e.boot = d.boot)) AS submitted_ns,
  (SELECT min(mono_ns) FROM levels l
   WHERE l.site = d.site AND l.boot = d.boot AND l.majority >= d.ts) AS majority_ns,
  (SELECT min(mono_ns) FROM levels l
   WHERE l.site = d.site AND l.boot = d.boot AND l.stable >= d.ts) AS stable_ns,
  (SELECT min(mono_ns) FROM applied a
   WHERE a.site = d.site AND a.boot = d.boot AND a.first_ts >= d.ts) AS applied_ns
FROM delivered d;
CREATE TABLE waits AS
SELECT 'delivery_latency' AS metric, site, mono_ns AS ended, mono_ns - submitted_ns AS value FROM known
WHERE site = source
UNION ALL SELECT 'majority_latency', site, majority_ns, majority_ns - submitted_ns FROM known
WHERE site = source
UNION ALL SELECT 'stable_latency', site, stable_ns, stable_ns - submitted_ns FROM known WHERE site = source
UNION ALL SELECT 'applied_lag', site, applied_ns, applied_ns - mono_ns FROM known;
"""
# A simulator's clocks are one. Nearest rank: the smallest of which so many are not above.
PERCENTILES = """
SELECT metric, site, bin, count(value), list_sort(list(value))
FROM (SELECT *, ended - ended % $width AS bin FROM waits WHERE value >= 0) GROUP BY metric, CUBE (site, bin)
"""
RATES = """
WITH told AS (
  SELECT event AS metric, site, wall_ns, count AS messages FROM events
  WHERE event IN ('submitted', 'delivered', 'replied')
  UNION ALL SELECT 'applied', site, applied_ns, 1 FROM known WHERE applied_ns IS NOT NULL),
lived AS (
  SELECT DISTINCT site, unnest(range(lo // $width, hi // $width + 1)) * $width AS bin
  FROM (SELECT site, min(wall_ns) AS lo, max(wall_ns) AS hi FROM events
    WHERE chain <> 0 GROUP BY chain, site, boot)),  -- before it is a member it only waits
bins AS (
  SELECT m.metric, l.site, l.bin,
    (SELECT coalesce(sum(messages), 0) FROM told t WHERE t.metric = m.metric AND t.site = l.site
     AND t.wall_ns >= l.bin AND t.wall_ns < l.bin + $width) AS messages
  FROM lived l JOIN (SELECT DISTINCT metric, site FROM told) m USING (site))
SELECT metric, site, bin, messages FROM bins
UNION ALL
SELECT metric, NULL, bin,
  CASE WHEN metric IN ('delivered', 'applied') THEN max(messages) ELSE sum(messages) END
FROM bins GROUP BY metric, bin
"""
CHANGES = """
WITH told AS (SELECT site, boot, epoch, mono_ns, wall_ns FROM events WHERE event = 'delivered')
SELECT site, epoch, first - (SELECT max(o.mono_ns) FROM told o
    WHERE o.site = n.site AND o.boot = n.boot AND o.epoch < n.epoch) AS duration
FROM (SELECT site, boot, epoch, min(mono_ns) AS first FROM told GROUP BY ALL) n WHERE duration IS NOT NULL
UNION ALL
SELECT NULL, epoch, first - (SELECT max(o.wall_ns) FROM told o WHERE o.wall_ns <= n.first
    AND o.epoch = (SELECT max(epoch) FROM told p WHERE p.epoch < n.epoch)) AS duration
FROM (SELECT epoch, min(wall_ns) AS first FROM told GROUP BY ALL) n WHERE duration IS NOT NULL
"""
# What only a replica with a machine tells: message by message, from ranges.
REPLIES = """
CREATE TABLE messages AS SELECT *, unnest(range(count)) FROM lifecycle;
CREATE TABLE waits AS
SELECT 'reply_latency' AS metric, site, replied_ns + delivered_wall_ns - delivered_ns AS ended,
  replied_ns - submitted_ns AS value
FROM messages WHERE site = source
UNION ALL
SELECT 'held_lag', site, greatest(held_ns, delivered_ns) + delivered_wall_ns - delivered_ns,
  CASE WHEN held_ns IS NOT NULL THEN greatest(held_ns - delivered_ns, 0) END
FROM messages;
"""
# A counter tells of all the time since the sample before, of the same process, and counts in the window in
# which it was taken. One that is less than before has begun again. A ring's members are those of the last
# view that the process has told.
SAMPLED = """
WITH told AS (
  SELECT s.site, s.boot, s.position, s.mono_ns, s.wall_ns - s.wall_ns % $width AS bin, s.detail,
    (SELECT p.position FROM events p WHERE p.event = 'sample' AND p.site = s.site AND p.boot = s.boot
     AND p.position < s.position ORDER BY p.position DESC LIMIT 1) AS before,
    (SELECT len(string_split(split_part(v.detail, '; ring ', 2), ' ')) FROM events v
     WHERE v.event = 'view' AND v.site = s.site AND v.boot = s.boot AND v.position < s.position
     ORDER BY v.position DESC LIMIT 1) AS ring
  FROM events s WHERE s.event = 'sample'),
each AS (
  SELECT t.site, t.boot, t.position, t.bin, t.ring, t.mono_ns - p.mono_ns AS elapsed, name,
    CAST(json_extract(t.detail, '$.' || name) AS BIGINT) AS now,
    CAST(json_extract(p.detail, '$.' || name) AS BIGINT) AS was
  FROM told t LEFT JOIN events p ON p.position = t.before,
    (SELECT unnest(['datagrams_out', 'bytes_out', 'delivered', 'passes', 'retransmitted', 'nacks',
       'buffered_slots', 'window_messages', 'window_bytes', 'waiting', 'receive_bytes']) AS name)),
grown AS (
  SELECT *, CASE WHEN now >= was THEN now - was WHEN now < was THEN now END AS growth FROM each),
sums AS (
  SELECT site, bin, name, sum(growth) AS growth, sum(elapsed) AS elapsed, sum(elapsed * ring) AS rounds,
    count(elapsed) AS samples, count(DISTINCT CASE WHEN elapsed IS NOT NULL THEN site END) AS sites,
    avg(now) AS mean, max(now) AS most, count(now) AS told
  FROM grown GROUP BY name, CUBE (site, bin))
SELECT 'packets_per_message', 'mean', s.site, s.bin, s.growth / (d.growth / d.sites), s.samples
FROM sums s JOIN sums d ON s.site IS NOT DISTINCT FROM d.site AND s.bin IS NOT DISTINCT FROM d.bin
WHERE s.name = 'datagrams_out' AND d.name = 'delivered' AND d.growth > 0 AND s.growth IS NOT NULL
UNION ALL
SELECT 'bytes_per_message', 'mean', s.site, s.bin, s.growth / (d.growth / d.sites), s.samples
FROM sums s JOIN sums d ON s.site IS NOT DISTINCT FROM d.site AND s.bin IS NOT DISTINCT FROM d.bin
WHERE s.name = 'bytes_out' AND d.name = 'delivered' AND d.growth > 0 AND s.growth IS NOT NULL
UNION ALL
SELECT 'token_rotation', 'mean', site, bin, rounds / growth, samples FROM sums
WHERE name = 'passes' AND growth > 0 AND rounds IS NOT NULL
UNION ALL
SELECT CASE name WHEN 'retransmitted' THEN 'retransmissions' ELSE name END, 'rate', site, bin,
  growth / (elapsed / 1e9 / sites), samples
FROM sums WHERE name IN ('retransmitted', 'nacks') AND growth IS NOT NULL AND elapsed > 0
UNION ALL
SELECT name, unnest(['mean', 'max']), site, bin, unnest([mean, CAST(most AS DOUBLE)]), told FROM sums
WHERE name IN ('buffered_slots', 'window_messages', 'window_bytes', 'waiting', 'receive_bytes') AND told > 0
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Sites that crash, come back and change views."""
    folder = tmp_path_factory.mktemp("recorded")
    outcome = play(Plan(seed=1, sites=4, seconds=5, rate=60, durable=True, faults=FaultMix.SWARM), folder)
    assert outcome.error == ""
    return events_of(folder / "seed-1")


@pytest.fixture(scope="module")
def ran(
    spark: SparkSession, recorded: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Row], Outcome]:
    """The job, on that and on samples."""
    samples = [
        sample(second * SECOND, site, datagrams_out=second * 90, delivered=second * 60, passes=second * 9)
        | {"chain": recorded[0]["chain"]}
        for site in (1, 2)
        for second in range(5)
    ]
    root, events = tmp_path_factory.mktemp("out"), recorded + samples
    return root, events, run_on(spark, root, events, lifecycle_of(events), window_s="0.2")


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
    words = {name: pa.string() for name in ("event", "qos", "detail")}
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
    for metric, site, begin, messages in database.execute(RATES, {"width": WIDTH_NS}).fetchall():
        theirs[metric, "rate", site, begin] = (messages * SECOND / WIDTH_NS, messages)
    compared = {key[0] for key in theirs}
    assert compared == {
        *("submitted", "delivered", "applied"),
        *("delivery_latency", "majority_latency", "stable_latency", "applied_lag"),
    }
    own = {key: value for key, value in ours.items() if key[0] in compared and not _is_summary_of_rates(key)}
    assert own == {key: (pytest.approx(value), samples) for key, (value, samples) in theirs.items()}
    rates = [value for key, (value, _) in theirs.items() if key[:3] == ("delivered", "rate", None)]
    assert ours["delivered", "mean", None, None][0] == pytest.approx(sum(rates) / len(rates))
    assert ours["delivered", "max", None, None][0] == max(rates)


def percentiles_of(database: duckdb.DuckDBPyConnection, width_ns: int) -> Figures:
    found: Figures = {}
    for metric, site, begin, samples, values in database.execute(PERCENTILES, {"width": width_ns}).fetchall():
        for name, permille in (("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)):
            nearest = values[-(-samples * permille // 1000) - 1]
            found[metric, name, site, begin] = (four_digits(nearest), samples)
        found[metric, "max", site, begin] = (values[-1], samples)
    return found


def _is_summary_of_rates(key: Key) -> bool:
    return key[0] in {"submitted", "delivered", "applied"} and key[3] is None


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


def test_when_replies_are_drawn_at_random_then_duckdb_says_the_same(spark: SparkSession) -> None:
    rng = Random(11)
    rows: list[Row] = []
    for number in range(400):
        at_ns = rng.randrange(20 * SECOND)
        times = {
            "submitted_ns": at_ns - rng.randrange(50 * MS),
            "replied_ns": at_ns + rng.randrange(90 * MS) if rng.random() < 0.7 else None,
            "held_ns": at_ns + rng.randrange(-20 * MS, 40 * MS) if rng.random() < 0.8 else None,
        }
        site = rng.randint(1, 3)
        rows.append(ranged(1 + 50 * number, rng.randint(1, 50), site, delivered_ns=at_ns, **times))
        rows[-1] |= {"source": rng.randint(1, 3), "delivered_wall_ns": at_ns + site * 1_000_000_007}
    waits = job.waits_of(frame(spark, rows, schemas.LIFECYCLE)).where(
        "metric IN ('reply_latency', 'held_lag')"
    )
    database = duckdb.connect()
    numbers = ("site", "source", "count", "submitted_ns", "delivered_ns", "delivered_wall_ns")
    columns = dict.fromkeys((*numbers, "replied_ns", "held_ns"), pa.int64())
    database.register("lifecycle", pa.Table.from_pylist(rows, pa.schema(columns)))
    database.execute(REPLIES)
    theirs = percentiles_of(database, SECOND)
    assert {metric for metric, *_ in theirs} == {"reply_latency", "held_lag"}
    assert figures_of(job.percentiles(waits, SECOND), "window") == theirs


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


def test_when_a_replica_has_a_gap_or_is_away_then_its_windows_have_no_rate(spark: SparkSession) -> None:
    events = [
        event("delivered", 100, count=10, first_ts=1),
        event("delivered", 2 * SECOND, count=10, first_ts=11),
        event("gap", 4 * SECOND + 1, count=500),
        event("delivered", 6 * SECOND, count=10, first_ts=800),
        event("delivered", 7 * SECOND, count=10, first_ts=810),
        event("delivered", 10 * SECOND, boot=2, count=10, first_ts=820),
        event("delivered", 4 * SECOND, 2, count=3, first_ts=1),
    ]
    told = frame(spark, events, schemas.EVENTS)
    nothing = frame(spark, [], schemas.LIFECYCLE)
    found = figures_of(job.rates(told, nothing, SECOND), "window")
    rates = {begin // SECOND: value[0] for (_, statistic, site, begin), value in found.items()
             if statistic == "rate" and site == 1 and begin is not None}  # fmt: skip
    assert rates == {0: 10, 1: 0, 2: 10, 3: 0, 7: 10, 10: 10}
    assert found["delivered", "rate", None, 4 * SECOND] == (3.0, 3)
    warned = job.quality(told, nothing, SECOND).where("severity = 'warning'").collect()
    assert [(row.check, row.subject, row.rows) for row in warned] == [("gap", "site 1", 500)]


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


def run_on(
    spark: SparkSession, root: Path, events: list[Row], lifecycle: list[Row], **options: str
) -> Outcome:
    tables = Tables(spark, str(root))
    tables.write(at.EVENTS, frame(spark, events, schemas.EVENTS))
    tables.write(at.LIFECYCLE, frame(spark, lifecycle, schemas.LIFECYCLE))
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
    again = run_on(spark, root, events, lifecycle_of(events), window_s="0.2")
    assert (again.rows, again.words, again.figures) == (first.rows, first.words, first.figures)
    assert [Path(figure).read_bytes() for figure in again.figures] == images
    assert figures_of(Tables(spark, str(root)).read(at.METRICS)) == table


def test_when_nothing_was_recorded_then_there_are_no_metrics_and_no_figures(
    spark: SparkSession, tmp_path: Path
) -> None:
    outcome = run_on(spark, tmp_path, [], [])
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
