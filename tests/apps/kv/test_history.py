"""What happened before, and how it is forgotten."""

from collections.abc import Iterator

import pytest

from apps.kv import Event, Limits, Put, history
from apps.kv.history import CHANGE_BYTES, FORGOTTEN_MAX
from apps.kv.types import MIB
from rsm.feeds import Feed
from tests.apps.kv.kit import Group


def written(count: int, limits: Limits | None = None, keys: int = 1000) -> Group:
    group = Group(limits)
    for number in range(count):
        group.call(group.store.put, b"k%d" % (number % keys), b"%d" % number)
    return group


def pages(group: Group, since: int, limit: int) -> Iterator[Feed[Event]]:
    while (feed := group.store.changes(since, limit=limit)).events:
        yield feed
        since = feed.position


def test_when_keys_change_then_the_feed_has_it_in_order_and_says_where_it_ended() -> None:
    group = Group()
    store = group.store
    assert store.changes(0) == Feed([], 0)
    group.call(store.put, b"a", b"1")
    group.call(store.delete, b"x")
    group.call(store.put, b"b", b"2")
    group.call(store.delete, b"a")
    events = [Event(1, b"a", b"1", 1, 1), Event(3, b"b", b"2", 3, 1), Event(4, b"a", None)]
    assert store.changes(0) == Feed(events, 4)
    assert store.changes(1) == Feed(events[1:], 4)
    assert store.changes(4) == Feed([], 4)
    assert store.changes(0, limit=2) == Feed(events[:2], 3)


def test_when_a_position_is_ahead_of_the_state_then_it_stays() -> None:
    group = written(3)
    assert group.store.changes(99) == Feed([], 99)


def test_when_nothing_matches_then_the_position_moves_on() -> None:
    group = written(5)
    assert group.store.changes(1, b"x", b"y") == Feed([], 5)
    feed = group.store.changes(0, b"k3", b"k4")
    assert [event.key for event in feed.events] == [b"k3"]
    assert feed.position == 5


def test_when_a_revision_has_several_events_then_no_page_cuts_it() -> None:
    group = Group()
    for number in range(4):
        group.call(group.store.txn, [], [Put(b"%d%d" % (number, each), b"") for each in range(3)], [])
    found = list(pages(group, 0, limit=4))
    assert [[event.revision for event in feed.events] for feed in found] == [
        [1] * 3 + [2] * 3,
        [3] * 3 + [4] * 3,
    ]
    assert [feed.position for feed in found] == [2, 4]


def test_when_values_are_large_then_a_page_of_events_ends_at_a_mebibyte() -> None:
    group = Group()
    for _ in range(4):
        group.call(group.store.put, b"a", bytes(MIB // 2))
    assert [len(feed.events) for feed in pages(group, 0, limit=100)] == [2, 2]
    history = group.store.history(b"a")
    assert (len(history.events), history.more) == (2, True)


def test_when_a_key_has_a_history_then_it_can_be_read_as_it_was() -> None:
    group = Group()
    store = group.store
    group.call(store.put, b"a", b"1")
    group.call(store.put, b"b", b"x")
    group.call(store.put, b"a", b"2")
    group.call(store.delete, b"a")
    group.call(store.put, b"a", b"3")
    values = [entry.value if (entry := store.get(b"a", revision)) else None for revision in range(6)]
    assert values == [None, b"1", b"1", b"2", None, b"3"]
    history = store.history(b"a")
    assert [(event.revision, event.value) for event in history.events] == [
        (1, b"1"),
        (3, b"2"),
        (4, None),
        (5, b"3"),
    ]
    assert not history.more
    page = store.history(b"a", since=1, limit=2)
    assert ([event.revision for event in page.events], page.more) == ([3, 4], True)
    assert store.history(b"z").events == []
    group.slot()
    assert store.get(b"a", 6) == store.get(b"a")
    with group.refused("future", revision=7, newest=6):
        store.get(b"a", 7)


def test_when_history_is_compacted_then_what_is_left_can_still_be_read() -> None:
    group = written(9, keys=3)
    store = group.store
    done = group.call(store.compact, 4)
    assert (done.compacted, done.events) == (4, 4)
    for revision in range(4, 10):
        for key in range(3):
            newest = max(number for number in range(revision) if number % 3 == key)
            entry = store.get(b"k%d" % key, revision)
            assert entry is not None
            assert entry.value == b"%d" % newest
    with group.refused("compacted", revision=3, compacted=4):
        store.get(b"k0", 3)
    with group.refused("compacted", since=3, compacted=4):
        store.changes(3)
    assert [event.revision for event in store.changes(4).events] == [5, 6, 7, 8, 9]
    assert store.history(b"k0").compacted == 4
    assert [event.revision for event in store.history(b"k0").events] == [7]


def test_when_everything_is_compacted_then_who_has_seen_it_all_goes_on() -> None:
    group = written(5)
    store = group.store
    for _ in range(3):
        group.slot()
    assert group.call(store.compact, 8).compacted == 5
    assert store.changes(5) == Feed([], 5)
    assert store.statistics().history_events == 0
    assert store.statistics().history_bytes == 0
    assert group.call(store.compact, 8).events == 0
    with group.refused("bad_request", most=11):
        group.call(store.compact, 99)
    group.call(store.put, b"k0", b"new")
    assert [event.value for event in store.changes(5).events] == [b"new"]
    entry = store.get(b"k0", 5)
    assert entry is not None
    assert entry.value == b"0"


def test_when_there_are_too_many_events_then_the_oldest_revisions_go() -> None:
    group = written(500, Limits(history_events_max=100))
    statistics = group.store.statistics()
    assert 90 <= statistics.history_events <= 100
    assert statistics.compacted == group.now - statistics.history_events
    assert len(group.store.changes(statistics.compacted).events) == statistics.history_events


def test_when_there_are_too_many_bytes_then_they_are_counted_by_the_values_that_were_replaced() -> None:
    group = Group(Limits(history_bytes_max=10_000))
    store = group.store
    group.call(store.put, b"a", bytes(8000))
    assert store.statistics().history_bytes == CHANGE_BYTES + 1
    group.call(store.put, b"a", bytes(8000))
    assert store.statistics().history_bytes == 2 * CHANGE_BYTES + 2 + 8000
    group.call(store.delete, b"a")
    assert store.statistics().history_events == 1
    assert store.statistics().compacted == 3


def test_when_one_revision_alone_is_more_than_the_limits_then_it_stays_until_the_next() -> None:
    group = Group(Limits(history_events_max=2))
    group.call(group.store.txn, [], [Put(b"%d" % each, b"") for each in range(5)], [])
    assert len(group.store.changes(0).events) == 5
    group.call(group.store.put, b"a", b"")
    assert len(group.store.changes(2).events) == 1
    assert group.store.statistics().compacted == 2


@pytest.mark.parametrize("keys", [1, 2, 3000])
def test_when_much_was_forgotten_then_no_more_is_kept_than_what_is_retained(keys: int) -> None:
    group = written(6000, Limits(history_events_max=50), keys=keys)
    changes = group.store._changes
    kept = sum(1 if isinstance(each, int) else len(each) for each in changes._of_key.values())
    assert len(changes._of_key) <= min(50, keys)
    assert kept <= 3 * 50
    assert len(changes._changes) <= 50 + 1024
    assert sum(change.entry is not None for change in changes._changes) <= 50


def test_when_very_much_is_to_be_forgotten_then_each_command_does_its_share() -> None:
    group = Group(Limits(history_events_max=1_000_000))
    store = group.store
    for number in range(250):
        group.call(store.txn, [], [Put(b"%d/%d" % (number, each), b"") for each in range(100)], [])
    assert store.statistics().history_events == 25_000
    done = group.call(store.compact, 201)
    assert (done.events, done.more) == (FORGOTTEN_MAX, True)
    assert done.compacted == store.statistics().compacted == 101
    assert store.history(b"0/0").compacted == 101
    done = group.call(store.compact, 201)
    assert (done.events, done.more, done.compacted) == (10_000, False, 201)
    assert group.call(store.compact, 201).events == 0
    assert store.statistics().history_events == 5000


def test_when_limits_shrink_by_much_then_the_slots_that_follow_forget_the_rest() -> None:
    group = Group(Limits(history_events_max=1_000_000))
    store = group.store
    for number in range(250):
        group.call(store.txn, [], [Put(b"%d/%d" % (number, each), b"") for each in range(100)], [])
    group.call(store.configure, Limits(history_events_max=100))
    assert store.statistics().history_events == 15_000
    group.call(store.delete_range, b"", None, 1000)
    assert store.statistics().history_events == 15_000 + 1000 - FORGOTTEN_MAX, "once in a slot"
    group.call(store.put, b"a", b"")
    assert store.statistics().history_events == 1
    assert group.restored().store.statistics() == store.statistics()


def test_when_a_revision_is_larger_than_a_share_then_it_goes_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "FORGOTTEN_MAX", 3)
    group = Group()
    for size in (5, 2, 2, 1):
        group.call(group.store.txn, [], [Put(b"%d" % each, b"") for each in range(size)], [])
    found = [group.call(group.store.compact, 4) for _ in range(3)]
    assert [(each.events, each.compacted, each.more) for each in found] == [
        (5, 1, True),
        (2, 2, True),
        (3, 4, False),
    ]
