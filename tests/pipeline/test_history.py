"""The history of keys, from what replicas of a real store recorded: as of any slot it is what the store says
it was, also where the store has forgotten."""

import asyncio
import random
import re
from collections.abc import Awaitable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from apps.kv import KeyValueStore
from apps.kv.types import Delete, Put
from ordering.recording import read_recording
from pipeline import history, schemas
from pipeline import tables as all_tables
from pipeline.errors import BadInput, BadSetting
from pipeline.jobs import history as job
from pipeline.schemas import signed
from rsm import change_records, operation_records
from rsm.replica import Replica
from tests.pipeline.histories import (
    Ran,
    Recorded,
    State,
    as_of,
    change,
    placed,
    problems,
    problems_of,
    run_job,
    state_in,
    values_as_of,
)
from tests.rsm.test_replica import config, group_of, play, until

_FOLDERS = {"changes": change_records, "operations": operation_records}


class Told(NamedTuple):
    """What a store has said of itself at some slots, what its replicas have recorded, and its sites: two from
    the start, and one that came late."""

    states: dict[int, State]
    changes: Recorded
    operations: Recorded
    sites: Sequence[int]
    moment: tuple[datetime, int]


# -- a real store under load ---------------------------------------------------------------------


async def busy(store: Any, seed: int, count: int) -> None:
    chance = random.Random(seed)
    for _ in range(count // 10):
        await asyncio.gather(*(write_one(store, chance) for _ in range(10)))


def write_one(store: Any, chance: random.Random) -> Awaitable[Any]:
    key, value = b"key%d" % chance.randrange(25), b"%d" % chance.randrange(1 << 30)
    match chance.randrange(10):
        case 0:
            written: Awaitable[Any] = store.txn(
                [], [Put(b"one", value), Put(b"other", value), Delete(key)], []
            )
        case 1 | 2:
            written = store.delete(key)
        case 3 | 4 | 5:
            written = store.put(b"hot", value)
        case _:
            written = store.put(key, value)
    return written


async def state_now(store: Any) -> tuple[int, State]:
    """A page has all there is."""
    found = await store.reading("range")
    assert not found.value.more
    items = found.value.items
    return found.timestamp, {
        each.key: (each.value, each.revision, each.created, each.version, each.lease) for each in items
    }


async def state_at(store: Any, slot: int, keys: set[bytes]) -> State:
    found = {key: await store.get(key, slot) for key in keys}
    return {
        key: (each.value, each.revision, each.created, each.version, each.lease)
        for key, each in found.items()
        if each is not None
    }


async def lead_a_life(folder: Path) -> Told:
    states: dict[int, State] = {}
    quiet = {"recording_operations": False}
    async with group_of(KeyValueStore, 2, recording=folder) as replicas:
        store = replicas[0].proxy
        await busy(store, 1, 150)
        await store.put(b"short", b"lived", ttl_ms=100)
        slot, states_now = await state_now(store)
        states[slot] = states_now
        await busy(store, 2, 100)
        await until(lambda: b"short" not in replicas[0].executor.machine._keyspace.entries)  # type: ignore[attr-defined]
        slot, states_now = await state_now(store)
        states[slot] = states_now
        between = (min(states) + slot) // 2
        states[between] = await state_at(store, between, {b"hot", b"one", b"other", b"short", *_keys()})
        moment = (datetime.now(UTC), replicas[0].executor.applied)
        await store.compact(slot)
        late: Replica[KeyValueStore] = Replica(KeyValueStore, config(recording=folder, **quiet))
        await late.open()
        late.join((), (replicas[0].address,))
        await late.ready()
        await until(lambda: late._watch.changes is not None and late._watch.changes.writer.rows)
        await busy(store, 3, 100)
        slot, states_now = await state_now(store)
        states[slot] = states_now
        last = late.executor.applied
        await asyncio.gather(*(each.when_applied(last) for each in (*replicas, late)))
        sites: list[int] = [each.member.site for each in (*replicas, late)]
        await late.stop()
    return Told(states, rows_of(folder, "changes"), rows_of(folder, "operations"), sites, moment)


def _keys() -> list[bytes]:
    return [b"key%d" % number for number in range(25)]


def rows_of(folder: Path, table: str) -> Recorded:
    """As ``ingest`` brings them, with each site for a recorder."""
    module = _FOLDERS[table]
    found: Recorded = read_recording(folder / table, module.SCHEMA).to_pylist()
    for position, row in enumerate(found):
        del row["schema_version"]
        row["chain"] = signed(row["chain"])
        row["recorder"] = f"{row.get('site', 'caller')}"
        if "site" in row:
            row["site"] = signed(row["site"])
            row["boot"] = int.from_bytes(row["boot"][:8], "big", signed=True)
        row |= {"position": position, "file": "recorded", "batch": "b"}
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return play(lead_a_life(tmp_path_factory.mktemp("recorded")))


@pytest.fixture(scope="module")
def ran(spark: SparkSession, told: Told, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_job(spark, tmp_path_factory.mktemp("out"), told.changes, told.operations, key="hot")


# -- the whole job -------------------------------------------------------------------------------


def test_when_a_store_was_recorded_then_the_state_as_of_any_slot_is_what_the_store_said(
    told: Told, ran: Ran
) -> None:
    assert len(told.states) == 4
    for slot, state in told.states.items():
        assert state
        assert as_of(ran.tables, slot) == state
    newest = max(told.states)
    assert state_in(ran.tables.read(all_tables.KV_STATE)) == told.states[newest]
    assert not problems(ran.tables)


def test_when_replicas_tell_the_same_then_each_change_is_one_row_with_its_interval(
    told: Told, ran: Ran
) -> None:
    rows = ran.tables.read(all_tables.KV_CHANGES).orderBy("chain", "key", "ts").collect()
    expected = {(row["ts"], row["key"]) for row in told.changes if row["kind"] in {"put", "delete", "expire"}}
    assert {(row.ts, bytes(row.key)) for row in rows} == expected
    assert len(rows) == len(expected)
    assert {row.contents for row in rows} == {1}
    assert {len(row.sites) for row in rows} == {2, 3}
    assert {row.kind for row in rows} == {"put", "delete", "expire"}
    for one, other in pairwise(rows):
        if one.key == other.key:
            assert (one.valid_to, other.previous_ts) == (other.ts, one.ts)
        else:
            assert (one.valid_to, other.previous_ts) == (None, None)
    assert {"chain", "bucket"} == {
        each.name.partition("=")[0] for each in (Path(ran.tables.path(all_tables.KV_CHANGES))).glob("**/*=*")
    }


def test_when_a_key_is_asked_for_then_its_trail_names_who_did_what(told: Told, ran: Ran) -> None:
    trail = ran.tables.read(all_tables.KV_TRAIL).orderBy("ts").collect()
    commands = {row["ts"]: row for row in told.operations if row["kind"] == "command"}
    assert len(trail) > 20
    for event in trail:
        assert bytes(event.key) == b"hot"
        assert event.kind == "put"
        command = commands[event.ts]
        assert (event.client, event.request, event.operation) == (
            command["client"],
            command["request"],
            "put",
        )
    assert any(f"slot {trail[-1].ts}" in each for each in ran.outcome.words)


def test_when_keys_are_counted_then_the_hottest_is_first(told: Told, ran: Ran) -> None:
    hot = ran.tables.read(all_tables.KV_HOT).orderBy("window", "rank").collect()
    assert {row.rank for row in hot} == set(range(1, 11))
    counts: dict[bytes, int] = {}
    for row in hot:
        counts[bytes(row.key)] = counts.get(bytes(row.key), 0) + row.changes
    seen = {(row["ts"], row["key"]) for row in told.changes if row["kind"] in {"put", "delete", "expire"}}
    assert counts[b"hot"] == sum(key == b"hot" for _, key in seen)
    assert max(counts, key=lambda key: counts[key]) == b"hot"


def test_when_tables_are_opened_then_they_answer_in_sql(spark: SparkSession, told: Told, ran: Ran) -> None:
    assert set(history.open_tables(spark, ran.tables.root)) == {
        "kv_changes", "kv_state", "kv_hot", "kv_trail", "kv_spans",
    }  # fmt: skip
    slot = min(told.states)
    (row,) = spark.sql(
        f"""SELECT cast(value AS string) AS said FROM kv_changes
        WHERE name = 'hot' AND kind = 'put' AND ts <= {slot} AND (valid_to IS NULL OR valid_to > {slot})"""
    ).collect()
    assert row.said.encode() == told.states[slot][b"hot"][0]


def test_when_a_time_of_day_is_named_then_the_state_is_as_of_its_slot(told: Told, ran: Ran) -> None:
    moment, slot = told.moment
    (found,) = history.reach(ran.tables.read(all_tables.CHANGES), moment).collect()
    assert found.at_ts <= slot <= found.newest_ts
    assert as_of(ran.tables, found.at_ts) == told.states[sorted(told.states)[2]]


def test_when_replicas_disagree_or_leave_out_then_that_is_told_and_the_rest_stands(
    spark: SparkSession, told: Told, tmp_path: Path
) -> None:
    other = signed(told.sites[1])
    own = [row for row in told.changes if row["kind"] == "put" and row["site"] == other]
    twisted, left_out = own[20], own[30]
    changes = [
        {**row, "value": b"another"} if row is twisted else row for row in told.changes if row is not left_out
    ]
    found = run_job(spark, tmp_path, changes)
    disagreement, missing = problems(found.tables)
    assert (disagreement.check, disagreement.severity, disagreement.rows) == ("disagreement", "error", 1)
    assert f"slot {twisted['ts']}" in disagreement.reason
    assert all(f"{site:x}" in disagreement.reason for site in told.sites[:2])
    assert (missing.check, missing.rows, missing.subject) == ("left-out", 1, f"{told.sites[1]:x}")
    assert f"slot {left_out['ts']}" in missing.reason


# -- what is not whole ---------------------------------------------------------------------------


MISSED = (
    change("base", 0, version=0),
    change("put", 5, b"stays", b"1"),
    change("put", 6, b"goes", b"2"),
    change("put", 7, b"changes", b"3"),
    change("gap", 8),
    change("base", 20, version=3),
    change("base", 20, b"stays", b"1", revision=5),
    change("base", 20, b"changes", b"4", revision=15),
    change("base", 20, b"comes", b"5", revision=16),
    change("delete", 30, b"stays"),
)
SEEN_BY_ANOTHER = (
    change("base", 0, version=0, chain=2),
    change("put", 5, b"a", b"1", chain=2),
    change("gap", 5, chain=2),
    change("base", 20, version=0, chain=2),
    change("base", 0, version=0, chain=2, site=2, recorder="s"),
    change("put", 5, b"a", b"1", chain=2, site=2, recorder="s"),
    change("delete", 12, b"a", chain=2, site=2, recorder="s"),
    change("reached", 25, chain=2, site=2, recorder="s"),
)
TORN = (
    change("base", 20, version=2, chain=3, site=3, recorder="t"),
    change("base", 20, b"a", b"1", revision=3, chain=3, site=3, recorder="t"),
)


@pytest.fixture(scope="module")
def broken(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Three chains of which not everything was recorded, as of slot 10."""
    rows = placed(*MISSED, *SEEN_BY_ANOTHER, *TORN)
    return run_job(spark, tmp_path_factory.mktemp("broken"), rows, as_of="10")


def test_when_changes_were_missed_by_everybody_then_keys_that_went_meanwhile_are_gone(broken: Ran) -> None:
    assert {slot: values_as_of(broken.tables, 1, slot) for slot in (8, 20, 30)} == {
        8: {b"stays": b"1", b"goes": b"2", b"changes": b"3"},
        20: {b"stays": b"1", b"changes": b"4", b"comes": b"5"},
        30: {b"changes": b"4", b"comes": b"5"},
    }
    (hole,) = problems_of(broken, "1")
    assert (hole.check, hole.severity) == ("hole", "error")
    assert "behind slot 8 up to slot 20" in hole.reason


def test_when_another_replica_has_recorded_meanwhile_then_a_gap_is_no_hole(broken: Ran) -> None:
    assert values_as_of(broken.tables, 2, 11) == {b"a": b"1"}
    assert values_as_of(broken.tables, 2, 12) == {}
    assert not problems_of(broken, "2")


def test_when_a_base_is_torn_or_the_slot_is_before_everything_then_it_is_told(broken: Ran) -> None:
    late, torn = problems_of(broken, "3")
    assert (late.check, late.severity, torn.check, torn.rows) == ("begins-late", "warning", "torn-base", 1)
    state = broken.tables.read(all_tables.KV_STATE)
    assert state_in(state.where("chain = 3")).keys() == {b"a"}
    assert state_in(state.where("chain = 1")).keys() == {b"stays", b"goes", b"changes"}


def test_when_nothing_was_recorded_or_an_option_makes_no_sense_then_it_says_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="--record"):
        run_job(spark, tmp_path, [])
    for options in ({"as_of": "yesterday"}, {"top": "0"}, {"key": "0xnothing"}):
        with pytest.raises(BadSetting, match=next(iter(options)).replace("_", "-")):
            job.Asked(options)


def test_when_a_hot_key_has_changes_in_many_parts_then_its_intervals_are_those_of_one_list(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PART_BITS", 4)
    chance = random.Random(5)
    slots = {key: sorted(chance.sample(range(400), chance.randrange(1, 120))) for key in (b"hot", b"a", b"b")}
    rows = [(1, key, ts) for key, some in slots.items() for ts in some]
    found = history.intervals(spark.createDataFrame(rows, "chain long, key binary, ts long")).collect()
    told = {(bytes(row.key), row.ts): (row.previous_ts, row.valid_to) for row in found}
    assert len(found) == len(rows)
    for key, some in slots.items():
        for ts, before, behind in zip(some, [None, *some], [*some[1:], None], strict=False):
            assert told[key, ts] == (before, behind)


@pytest.fixture
def first_plans(spark: SparkSession) -> Iterator[None]:
    """As they are before Spark adapts them to what little there is."""
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation,"
        "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


def plans_of(spark: SparkSession) -> dict[str, str]:
    recorded = spark.createDataFrame([], schemas.CHANGES)
    spans = spark.createDataFrame([], schemas.KV_SPANS)
    facts, stretches = history.facts(recorded), history.stretches(recorded)
    made = {
        "agreed": history.agreed(facts, stretches),
        "intervals": history.intervals(history.agreed(facts, stretches)),
        "spans": history.spans(stretches),
        "left_out": history.left_out(spark.createDataFrame([], schemas.KV_CHANGES), spans),
    }
    return {name: rows._jdf.queryExecution().executedPlan().toString() for name, rows in made.items()}


@pytest.mark.usefixtures("first_plans")
def test_when_history_is_made_then_no_step_needs_everything_in_one_place(spark: SparkSession) -> None:
    plans = plans_of(spark)
    for name, plan in plans.items():
        assert "hashpartitioning" in plan, name
        assert not re.search(r"SinglePartition|rangepartitioning|CartesianProduct|NestedLoop", plan), plan
    for name, keys in (("spans", "recorder#\\d+, number#\\d+L"), ("left_out", "chain#\\d+L, part#\\d+L")):
        assert re.search(rf"BroadcastHashJoin \[{keys}\]", plans[name]), plans[name]
    moved = r"Exchange hashpartitioning\([^)]*\bkey#"
    assert len(re.findall(moved, plans["agreed"])) == 1, plans["agreed"]
