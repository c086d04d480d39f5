"""Leases, times to live, and how both end."""

import pytest

from apps.kv import Add, Counted, Delete, Event, Lease, Limits, Operation, Put, Revoked
from apps.kv.store import STEP_MAX
from apps.kv.types import YEAR_MS
from tests.apps.kv.kit import BEGIN_NS, MS, Group


def keys_of(group: Group) -> list[bytes]:
    return [entry.key for entry in group.store.range().items]


def test_when_a_lease_is_granted_then_it_ends_unless_it_is_renewed() -> None:
    group = Group()
    store = group.store
    group.slot()
    lease = group.call(store.lease_grant, 100)
    assert lease == Lease(2, 100, BEGIN_NS + 100 * MS, 100, 0, 0)
    group.wait(99)
    assert store.lease(2) == Lease(2, 100, BEGIN_NS + 100 * MS, 1, 0, 0)
    assert group.call(store.lease_renew, 2) == Lease(2, 100, BEGIN_NS + 199 * MS, 100, 0, 0)
    group.wait(99)
    assert store.lease(2) is not None
    group.wait(1)
    assert store.lease(2) is None
    for refused in (store.lease_renew, store.lease_revoke):
        with group.refused("lease_expired", lease=2):
            group.call(refused, 2)


def test_when_a_lease_ends_then_its_keys_go_in_order_with_the_slot_and_say_why() -> None:
    group = Group()
    store = group.store
    lease = group.call(store.lease_grant, 100).id
    for key in (b"c", b"a", b"b"):
        group.call(store.put, key, b"", lease=lease)
    group.call(store.put, b"d", b"")
    group.wait(99)
    assert keys_of(group) == [b"a", b"b", b"c", b"d"]
    assert group.wait(1) == 1
    assert keys_of(group) == [b"d"]
    assert store.changes(5).events == [Event(6, key, None, expired=True) for key in (b"a", b"b", b"c")]
    with group.refused("lease_expired"):
        group.call(store.put, b"a", b"", lease=lease)


def test_when_time_comes_with_a_command_then_the_key_goes_first_and_the_command_finds_it_gone() -> None:
    group = Group()
    store = group.store
    group.call(store.put, b"a", b"old", ttl_ms=10)
    group.context.time_ns += 10 * MS
    assert group.call(store.put, b"a", b"new").version == 1
    assert [(event.revision, event.value) for event in store.history(b"a").events] == [
        (1, b"old"),
        (2, None),
        (2, b"new"),
    ]
    entry = store.get(b"a", 2)
    assert entry is not None
    assert entry.value == b"new"


def test_when_a_key_is_written_without_a_lease_then_it_stays() -> None:
    group = Group()
    store = group.store
    lease = group.call(store.lease_grant, 100).id
    group.call(store.put, b"a", b"", lease=lease)
    group.call(store.put, b"b", b"", ttl_ms=100)
    group.call(store.put, b"a", b"")
    group.call(store.put, b"b", b"")
    assert [(each.id, each.keys) for each in store.leases()] == [(lease, 0)]
    group.wait(1000)
    assert keys_of(group) == [b"a", b"b"]


def test_when_a_key_is_counted_then_it_keeps_its_lease() -> None:
    group = Group()
    group.call(group.store.put, b"n", b"1", ttl_ms=100)
    assert group.call(group.store.add, b"n", 1).lease == 1
    assert group.call(group.store.txn, [], [Add(b"n", 1)], []).results == [Counted(3, 3, 1, 3, lease=1)]
    group.wait(100)
    assert keys_of(group) == []


def test_when_a_key_has_a_time_to_live_then_it_is_a_lease_of_its_own_that_goes_with_it() -> None:
    group = Group()
    store = group.store
    assert group.call(store.put, b"a", b"", ttl_ms=100).lease == 1
    group.wait(60)
    assert group.call(store.put, b"a", b"", ttl_ms=100).lease == 2
    assert [each.id for each in store.leases()] == [2]
    group.wait(60)
    assert keys_of(group) == [b"a"]
    group.call(store.lease_renew, 2)
    group.wait(60)
    assert keys_of(group) == [b"a"]
    group.call(store.delete, b"a")
    assert store.leases() == []
    assert store.alarm() is None


def test_when_a_key_moves_from_one_lease_to_another_then_only_that_one_takes_it() -> None:
    group = Group()
    store = group.store
    first, second = (group.call(store.lease_grant, ttl).id for ttl in (100, 200))
    group.call(store.put, b"a", b"", lease=first)
    group.call(store.put, b"a", b"", lease=second)
    group.wait(100)
    assert keys_of(group) == [b"a"]
    group.wait(100)
    assert keys_of(group) == []


def test_when_a_lease_is_revoked_then_its_keys_go_at_once() -> None:
    group = Group()
    store = group.store
    lease = group.call(store.lease_grant, 100).id
    group.call(store.put, b"a", b"", lease=lease)
    group.call(store.lock, b"l", lease)
    assert group.call(store.lease_revoke, lease) == Revoked(4, 1, 1)
    assert keys_of(group) == []
    assert store.lock_of(b"l").lease == 0
    assert store.changes(3).events == [Event(4, b"a", None, expired=True)]
    assert store.alarm() is None


def test_when_a_transaction_gives_several_keys_a_time_to_live_then_each_has_its_own() -> None:
    group = Group()
    store = group.store
    group.call(
        store.txn, [], [Put(b"a", b"", ttl_ms=10), Put(b"b", b"", ttl_ms=20), Put(b"c", b"", ttl_ms=30)], []
    )
    assert [each.id for each in store.leases()] == [1, 2, 3]
    assert group.call(store.lease_grant, 100).id == 4
    assert group.call(store.lease_grant, 100).id == 5
    group.wait(20)
    assert keys_of(group) == [b"c"]


def test_when_a_transaction_takes_a_time_to_live_back_then_there_is_no_lease() -> None:
    group = Group()
    operations: list[Operation] = [
        Put(b"a", b"", ttl_ms=10),
        Put(b"a", b""),
        Put(b"b", b"", ttl_ms=10),
        Delete(b"b"),
    ]
    group.call(group.store.txn, [], operations, [])
    assert group.store.leases() == []
    assert keys_of(group) == [b"a"]


@pytest.mark.parametrize("ttl_ms", [0, -1, YEAR_MS + 1])
def test_when_a_time_is_out_of_bounds_then_it_is_refused(ttl_ms: int) -> None:
    group = Group()
    with group.refused("bad_request", ttl_ms=ttl_ms):
        group.call(group.store.lease_grant, ttl_ms)
    with group.refused("bad_request"):
        group.call(group.store.put, b"a", b"", ttl_ms=ttl_ms)


def test_when_a_key_is_to_have_a_lease_and_a_time_to_live_then_it_is_refused() -> None:
    group = Group()
    lease = group.call(group.store.lease_grant, 100).id
    with group.refused("bad_request"):
        group.call(group.store.put, b"a", b"", ttl_ms=5, lease=lease)
    with group.refused("bad_request", operation=0):
        group.call(group.store.txn, [], [Put(b"a", b"", 5, lease)], [])


def test_when_there_are_too_many_leases_then_no_more_are_granted_but_those_there_are_can_be_replaced() -> (
    None
):
    group = Group(Limits(leases_max=2))
    store = group.store
    group.call(store.lease_grant, 100)
    group.call(store.put, b"a", b"", ttl_ms=100)
    with group.refused("full", leases_max=2):
        group.call(store.lease_grant, 100)
    with group.refused("full"):
        group.call(store.put, b"b", b"", ttl_ms=100)
    with group.refused("full", operation=1):
        group.call(store.txn, [], [Put(b"a", b"", 100), Put(b"b", b"", 100)], [])
    group.call(store.put, b"a", b"", ttl_ms=200)
    group.call(store.txn, [], [Put(b"a", b"", 300)], [])
    assert [each.ttl_ms for each in store.leases()] == [100, 300]


def test_when_leases_are_listed_then_it_goes_by_their_ids() -> None:
    group = Group()
    for _ in range(5):
        group.call(group.store.lease_grant, 100)
    assert [each.id for each in group.store.leases(2, 2)] == [3, 4]
    assert group.store.leases(5) == []
    assert group.store.leases(limit=-1) == []


def test_when_many_keys_end_at_once_then_each_slot_takes_a_bounded_part() -> None:
    group = Group()
    store = group.store
    count = 2 * STEP_MAX + 500
    lease = group.call(store.lease_grant, 10).id
    for number in range(count):
        group.call(store.put, b"%05d" % number, b"", lease=lease)
    begin = group.now
    assert group.wait(10) == 3
    assert keys_of(group) == []
    events = store.changes(begin, limit=count).events
    assert [event.key for event in events] == [b"%05d" % number for number in range(count)]
    assert [[event.revision for event in events].count(begin + slot) for slot in (1, 2, 3)] == [
        STEP_MAX,
        STEP_MAX,
        500,
    ]


def test_when_a_lease_ends_in_steps_then_it_is_over_from_the_first_and_rewritten_keys_stay() -> None:
    group = Group()
    store = group.store
    lease = group.call(store.lease_grant, 10).id
    for number in range(STEP_MAX + 2):
        group.call(store.put, b"%05d" % number, b"", lease=lease)
    last, other = b"%05d" % (STEP_MAX + 1), b"%05d" % STEP_MAX
    group.call(store.lease_revoke, lease)
    assert keys_of(group) == [other, last]
    with group.refused("lease_expired"):
        store.lease_renew(lease)
    alarm = store.alarm()
    assert alarm is not None
    assert alarm <= group.context.time_ns
    store.put(last, b"mine")
    group.slot()
    assert keys_of(group) == [last]
    assert store.alarm() is None


def test_when_keys_are_long_then_a_slot_takes_no_more_than_a_page_of_them() -> None:
    group = Group()
    lease = group.call(group.store.lease_grant, 10).id
    for number in range(600):
        group.call(group.store.put, b"%04d" % number + bytes(4000), b"", lease=lease)
    assert group.wait(10) == 3


def test_when_many_times_to_live_end_at_once_then_leases_are_bounded_too() -> None:
    group = Group()
    for number in range(STEP_MAX + 1):
        group.call(group.store.lease_grant, 10)
        group.call(group.store.put, b"%05d" % number, b"", ttl_ms=10)
    assert group.wait(10) == 3
    assert group.store.statistics().leases == group.store.statistics().keys == 0
