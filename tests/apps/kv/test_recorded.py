"""What replicas of a store record of its keys: a base, every change behind it in order, gaps if there are."""

import asyncio
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.kv import KeyValueStore
from apps.kv.types import Entry, Limits
from ordering.recording import read_recording
from ordering.views import Member, SiteId
from rsm import change_records
from rsm.change_records import FOLDER, SCHEMA, VALUE_BYTES_MAX, ChangeRecords
from rsm.replica import Replica
from rsm.state_machine import Context
from tests.rsm.test_replica import config, group_of, play, until

Row = dict[str, Any]
State = dict[bytes, tuple[bytes, int, int, int]]


def changes_in(directory: Path) -> list[Row]:
    rows: list[Row] = read_recording(directory / FOLDER, SCHEMA).to_pylist()
    return rows


def of_site(rows: list[Row], site: int) -> list[Row]:
    return [row for row in rows if row["site"] == site]


def replayed(rows: list[Row]) -> State:
    """The state that the rows of one replica lead to."""
    state: State = {}
    for row in rows:
        match row["kind"]:
            case "base" if row["key"] is None:
                state = {}
            case "base" | "put":
                state[row["key"]] = (row["value"], row["revision"], row["created"], row["version"])
            case "delete" | "expire":
                del state[row["key"]]
    return state


def entries_of(replica: Replica[Any]) -> dict[bytes, Entry]:
    machine = replica.executor.machine
    assert isinstance(machine, KeyValueStore)
    return machine._keyspace.entries


def state_of(replica: Replica[Any]) -> State:
    entries = entries_of(replica).values()
    return {each.key: (each.value, each.revision, each.created, each.version) for each in entries}


async def write_some(store: Any, count: int, tag: bytes = b"") -> None:
    await asyncio.gather(*(store.put(b"k%d" % (n % 20), tag + b"%d" % n) for n in range(count)))


def test_when_a_store_is_recorded_then_the_rows_of_each_replica_lead_to_its_state(tmp_path: Path) -> None:
    async def main() -> dict[int, State]:
        async with group_of(KeyValueStore, recording=tmp_path) as replicas:
            store = replicas[0].proxy
            await write_some(store, 200)
            await store.delete(b"k3")
            await store.put(b"short", b"lived", ttl_ms=50)
            await store.put(b"large", b"x" * (VALUE_BYTES_MAX + 1))
            await until(lambda: b"short" not in entries_of(replicas[0]))
            await store.compact(0)  # changes nothing
            last = max(replica.executor.applied for replica in replicas)
            await asyncio.gather(*(replica.when_applied(last) for replica in replicas))
            return {replica.member.site: state_of(replica) for replica in replicas}

    states = play(main())
    rows = changes_in(tmp_path)
    for site, state in states.items():
        own = of_site(rows, site)
        assert (own[0]["kind"], own[0]["key"], own[0]["version"]) == ("base", None, 0)
        large = state.pop(b"large")
        found = replayed(own)
        cut, *rest = found.pop(b"large")
        assert found == state
        assert (len(cut), rest) == (VALUE_BYTES_MAX, list(large[1:]))
        kinds = [row["kind"] for row in own]
        assert [kinds.count(kind) for kind in ("put", "delete", "expire", "gap")] == [202, 1, 1, 0]
        changes = [row for row in own if row["kind"] in {"put", "delete", "expire"}]
        assert [row["ts"] for row in changes] == sorted(row["ts"] for row in changes)
        assert all(row["time_ns"] > 0 for row in changes)
        (told,) = (row for row in own if row["key"] == b"large")
        assert told["value_bytes"] == VALUE_BYTES_MAX + 1
        assert told["value_digest"] == blake2b(large[0], digest_size=16).digest()
        assert own[-1]["kind"] == "reached"
    times: dict[int, set[int]] = {}
    for row in rows:
        if row["time_ns"] is not None:
            times.setdefault(row["ts"], set()).add(row["time_ns"])
    assert all(len(each) == 1 for each in times.values()), "slot time is the same everywhere"


def test_when_a_replica_stops_before_anybody_looked_then_what_happened_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_records, "POLL_SECONDS", 3600.0)

    async def main() -> State:
        async with group_of(KeyValueStore, 1, recording=tmp_path) as (one,):
            await write_some(one.proxy, 3 * change_records.PAGE)
            return state_of(one)

    state = play(main())
    rows = changes_in(tmp_path)
    kinds = [row["kind"] for row in rows]
    assert [kinds.count(kind) for kind in ("base", "put", "gap")] == [1, 3 * change_records.PAGE, 0]
    assert replayed(rows) == state


def test_when_a_replica_joins_late_then_its_base_is_the_state_of_one_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.kv.recorded.SLICE", 4)  # commands come between the slices

    async def main() -> tuple[int, State]:
        async with group_of(KeyValueStore) as replicas:
            store = replicas[0].proxy
            await write_some(store, 100)
            await store.compact(replicas[0].executor.applied)
            late: Replica[KeyValueStore] = Replica(KeyValueStore, config(recording=tmp_path))
            await late.open()
            late.join((), (replicas[0].address,))
            writing = asyncio.ensure_future(busy(store))
            await late.ready()
            await until(lambda: late._watch.changes is not None and late._watch.changes.writer.rows > 20)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await late.proxy.put(b"the last", b"one")
            found = late.member.site, state_of(late)
            await late.stop()
            return found

    async def busy(store: Any) -> None:
        turn = 0
        while True:
            turn += 1
            await write_some(store, 40, b"%d " % turn)
            await store.delete(b"k%d" % (turn % 20))

    site, state = play(main())
    rows = of_site(changes_in(tmp_path), site)
    begin = rows[0]
    base = [row for row in rows[1:] if row["kind"] == "base"]
    assert begin["version"] == len(base) >= 15
    assert all(row["revision"] <= begin["ts"] == row["ts"] for row in base)
    assert all(row["ts"] > begin["ts"] for row in rows if row["kind"] == "put")
    assert replayed(rows) == state


def test_when_history_is_forgotten_before_it_was_read_then_a_gap_and_a_new_base_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_records, "POLL_SECONDS", 0.5)

    async def main() -> State:
        async with group_of(KeyValueStore, 1, recording=tmp_path) as (one,):
            await one.proxy.put(b"a", b"1")
            changes = one._watch.changes
            assert changes is not None
            await until(lambda: changes.writer.rows >= 1)
            await one.proxy.configure(Limits(history_events_max=5))
            for _ in range(4):
                await write_some(one.proxy, 50)
            await until(lambda: [row["kind"] for row in changes_in(tmp_path)].count("base") >= 2)
            await one.proxy.put(b"z", b"1")
            return state_of(one)

    state = play(main())
    rows = changes_in(tmp_path)
    kinds = [row["kind"] for row in rows]
    gap = kinds.index("gap")
    assert rows[gap + 1]["kind"] == "base"
    assert rows[gap + 1]["key"] is None
    assert rows[gap + 1]["ts"] > rows[gap]["ts"]
    assert replayed(rows) == state


def test_when_a_machine_keeps_no_history_then_no_changes_are_recorded(tmp_path: Path) -> None:
    from tests.rsm.machines import Counter

    async def main() -> None:
        async with group_of(Counter, 1, recording=tmp_path) as (one,):
            await one.proxy.add(1)

    play(main())
    assert not changes_in(tmp_path)


def test_when_much_was_recorded_then_there_is_another_base_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_records, "BASE_ROWS", 100)

    def bases() -> int:
        return sum(row["kind"] == "base" and row["key"] is None for row in changes_in(tmp_path))

    async def main() -> State:
        async with group_of(KeyValueStore, 1, recording=tmp_path) as (one,):
            while bases() < 3:
                await write_some(one.proxy, 40)
                await one.proxy.compact(0)  # a slot in which nothing changes
            await write_some(one.proxy, 40)
            return state_of(one)

    state = play(main())
    rows = changes_in(tmp_path)
    assert not [row for row in rows if row["kind"] == "gap"]
    assert replayed(rows) == state
    changes = [row["ts"] for row in rows if row["kind"] == "put"]
    assert changes == sorted(changes)
    assert len(set(changes)) == len(changes)
    begin = max(place for place, row in enumerate(rows) if row["kind"] == "base" and row["key"] is None)
    assert replayed(rows[begin:]) == state, "old files may go"
    begins = [place for place, row in enumerate(rows) if row["kind"] == "base" and row["key"] is None]
    for place in begins[1:]:
        assert max(row["ts"] for row in rows[:place]) == rows[place]["ts"], "nothing is between"


# -- states that come and go ---------------------------------------------------------------------


class Life:
    """A state of a replica, without the replica."""

    def __init__(self, chain: int) -> None:
        self.machine = KeyValueStore()
        self.machine.context = Context()
        self.group = SimpleNamespace(chain=chain, time=0)
        self.applied = 0
        self.state: Any = (self, Member(SiteId(7), 7, "here"))

    def put(self, records: ChangeRecords, count: int) -> None:
        for _ in range(count):
            self.applied += 1
            self.machine.context.timestamp = self.applied
            self.group.time = self.group.chain * 1000 + self.applied
            self.machine.put(b"k%d" % self.applied, b"1")
            delivery: Any = SimpleNamespace(first_ts=self.applied, messages=(b"",))
            records.executed(delivery, self.state)


class Followed:
    """What is recorded of lives, one after the other."""

    def __init__(self, directory: Path) -> None:
        self.records = ChangeRecords(directory, "it", lambda: self.now, bytes_max=1 << 30)
        self.now: Any = None


def kinds_and_chains(rows: list[Row]) -> list[tuple[int, str, int]]:
    told = [row for row in rows if row["kind"] != "reached"]
    return [(row["chain"], row["kind"], row["ts"]) for row in told]


def test_when_another_state_has_come_then_nobody_goes_back_to_the_last_one(tmp_path: Path) -> None:
    async def main() -> None:
        one, other = Life(1), Life(2)
        followed = Followed(tmp_path)
        followed.now = one.state
        followed.records.start()
        await until(lambda: followed.records.writer.rows)
        one.put(followed.records, 2)
        await until(lambda: followed.records.writer.rows >= 3)
        followed.now = other.state  # in which nothing is executed
        await until(lambda: any(row["chain"] == 2 for row in changes_in(tmp_path)))
        await followed.records.finish()

    play(main())
    assert kinds_and_chains(changes_in(tmp_path)) == [
        (1, "base", 0), (1, "put", 1), (1, "put", 2), (1, "gap", 2), (2, "base", 0),
    ]  # fmt: skip


def test_when_a_state_comes_and_goes_between_two_looks_then_both_are_recorded_to_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_records, "POLL_SECONDS", 3600.0)

    async def main() -> None:
        one, other = Life(1), Life(2)
        followed = Followed(tmp_path)
        followed.now = one.state
        followed.records.start()
        await until(lambda: followed.records.writer.rows)
        one.put(followed.records, 5)
        other.put(followed.records, 3)
        await followed.records.finish()

    play(main())
    rows = changes_in(tmp_path)
    assert kinds_and_chains(rows) == [
        (1, "base", 0), *((1, "put", slot) for slot in range(1, 6)), (1, "gap", 5),
        (2, "base", 0), *((2, "put", slot) for slot in range(1, 4)),
    ]  # fmt: skip
    times = [row["time_ns"] for row in rows if row["kind"] == "put" and row["chain"] == 2]
    assert times == [2001, 2002, 2003]


def test_when_very_much_happens_while_a_base_is_made_then_it_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine forgets more meanwhile than it keeps, but not at one turn."""
    monkeypatch.setattr("apps.kv.recorded.SLICE", 4)

    async def main() -> None:
        life, quiet = Life(1), Followed(tmp_path / "elsewhere")
        life.machine.configure(Limits(history_events_max=20))
        life.put(quiet.records, 200)
        followed = Followed(tmp_path)
        followed.now = life.state
        followed.records.start()
        while followed.records._history is None:
            life.put(quiet.records, 5)
            await asyncio.sleep(0)
            assert life.applied < 10_000
        life.put(followed.records, 1)
        await followed.records.finish()

    play(main())
    rows = changes_in(tmp_path)
    begin, *entries = [row for row in rows if row["kind"] == "base"]
    assert begin["version"] == len(entries) == begin["ts"] >= 180
    assert [row["ts"] for row in rows if row["kind"] == "put"][-1] == len(replayed(rows))
    assert not [row for row in rows if row["kind"] == "gap"]


def test_when_history_is_forgotten_as_a_base_is_due_then_a_gap_and_a_base_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_records, "BASE_ROWS", 10)
    monkeypatch.setattr(change_records, "AHEAD_MAX", 20)

    async def main() -> None:
        life = Life(1)
        life.machine.configure(Limits(history_events_max=20))
        followed = Followed(tmp_path)
        followed.now = life.state
        followed.records.start()
        await until(lambda: followed.records.writer.rows)
        life.put(followed.records, 200)
        await until(lambda: [row["kind"] for row in changes_in(tmp_path)].count("gap"))
        life.put(followed.records, 1)
        await followed.records.finish()
        assert followed.records.writer.error is None

    play(main())
    rows = changes_in(tmp_path)
    kinds = [row["kind"] for row in rows]
    assert kinds.count("gap") == 1
    begin = rows[kinds.index("gap") + 1]
    assert (begin["kind"], begin["key"]) == ("base", None)
    assert begin["version"] > 100
    assert len(replayed(rows)) == 201
