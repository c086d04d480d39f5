"""A large store: what is done must not grow with what is there. Work is counted, not timed."""

from collections.abc import Iterator
from typing import Any

import pytest

from apps.kv import Entry, KeyValueStore
from apps.kv.snapshots import FRAME_BYTES, SLICE
from rsm.state_machine import Context

COUNT = 200_000


@pytest.fixture(scope="module")
def store() -> KeyValueStore:
    store = KeyValueStore()
    store.context = Context()
    keys = [b"key/%07d" % number for number in range(COUNT)]
    store._keyspace.load({key: Entry(key, b"value", 1, 1, 1) for key in keys})
    return store


class Counting:
    """Stands for the entries, and counts how many are looked at."""

    def __init__(self, entries: dict[bytes, Entry]) -> None:
        self.entries = entries
        self.looked_at = 0

    def __getitem__(self, key: bytes) -> Entry:
        self.looked_at += 1
        return self.entries[key]


def test_when_a_page_is_listed_anywhere_then_only_that_page_is_looked_at(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting: Any = Counting(store._keyspace.entries)
    monkeypatch.setattr(store._keyspace, "entries", counting)
    for start in (b"", b"key/0100000", b"key/0199990"):
        counting.looked_at = 0
        listing = store.range(start, None, 10)
        assert len(listing.items) == 10
        assert counting.looked_at <= 11


def test_when_pages_are_read_to_the_end_then_they_are_all_keys_once(store: KeyValueStore) -> None:
    def pages() -> Iterator[Entry]:
        start, more = b"", True
        while more:
            listing = store.range(start, None, 10_000, keys_only=True)
            yield from listing.items
            start, more = listing.items[-1].key + b"\0", listing.more

    assert [entry.key for entry in pages()] == [b"key/%07d" % number for number in range(COUNT)]


def test_when_a_snapshot_is_taken_then_others_have_a_turn_every_few_thousand_entries(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting: Any = Counting(store._keyspace.entries)
    monkeypatch.setattr(store._keyspace, "entries", counting)
    pieces = iter(store.snapshot())
    turns = 0
    while not (piece := next(pieces)):
        turns += 1
        assert counting.looked_at <= turns * SLICE
    assert counting.looked_at == COUNT
    frames = [piece, *pieces]
    assert counting.looked_at == COUNT
    assert max(map(len, frames)) < 2 * FRAME_BYTES


def test_when_a_large_state_is_restored_then_it_can_be_listed_and_written(store: KeyValueStore) -> None:
    other = KeyValueStore()
    other.context = Context()
    other.restore(store.snapshot())
    other.context.timestamp = 5
    other.put(b"key/0100000x", b"")
    assert [entry.key for entry in other.range(b"key/0100000", limit=2).items] == [
        b"key/0100000",
        b"key/0100000x",
    ]
    assert other.statistics().keys == COUNT + 1


def test_when_nothing_new_happened_then_following_looks_at_nothing() -> None:
    store = KeyValueStore()
    context = store.context = Context()
    for _ in range(20_000):
        context.timestamp += 1
        store.put(b"key", b"")
    changes = store._changes

    class Watched(list[Any]):
        looked_at = 0

        def __getitem__(self, place: Any) -> Any:
            self.looked_at += 1
            return super().__getitem__(place)

    watched = changes._changes = Watched(changes._changes)
    assert store.changes(20_000).events == []
    assert watched.looked_at == 0
    assert len(store.changes(19_990, limit=5).events) == 5
    assert watched.looked_at <= 6
    watched.looked_at = 0
    assert store.get(b"key", 77) is not None
    assert len(store.history(b"key", 500, 5).events) == 5
    assert watched.looked_at <= 7
