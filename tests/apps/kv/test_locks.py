"""Locks, their queues, and their tokens."""

from apps.kv import Compare, Limits, LockState, Put
from apps.kv.store import STEP_MAX
from rsm.feeds import Feed
from tests.apps.kv.kit import Group


def with_leases(count: int, limits: Limits | None = None) -> tuple[Group, list[int]]:
    group = Group(limits)
    return group, [group.call(group.store.lease_grant, 100 * (1 + place)).id for place in range(count)]


def test_when_a_lock_is_free_then_who_asks_has_it_and_its_token_is_the_slot() -> None:
    group, (a, b) = with_leases(2)
    store = group.store
    assert group.call(store.lock, b"l", a) == LockState(b"l", a, 3, 0)
    with group.refused("locked", lease=a, token=3):
        group.call(store.lock, b"l", b)
    assert group.call(store.lock, b"l", a) == LockState(b"l", a, 3, 0)
    assert group.call(store.unlock, b"l", a) == LockState(b"l", 0, 0, 0)
    assert group.call(store.lock, b"l", b) == LockState(b"l", b, group.now, 0)
    assert store.lock_of(b"other") == LockState(b"other", 0, 0, 0)


def test_when_a_lock_is_given_back_then_the_first_that_waits_has_it_with_a_larger_token() -> None:
    group, (a, b, c) = with_leases(3)
    store = group.store
    group.call(store.lock, b"l", a)
    assert group.call(store.lock, b"l", b, True) == LockState(b"l", a, 4, 1, 1)
    assert group.call(store.lock, b"l", c, True) == LockState(b"l", a, 4, 2, 2)
    assert group.call(store.lock, b"l", b, True) == LockState(b"l", a, 4, 2, 1)
    assert store.lock_of(b"l", c).place == 2
    assert group.call(store.unlock, b"l", a) == LockState(b"l", b, 8, 1)
    assert group.call(store.unlock, b"l", b) == LockState(b"l", c, 9, 0)
    assert group.call(store.unlock, b"l", c) == LockState(b"l", 0, 0, 0)


def test_when_somebody_waits_then_its_turn_is_told_once_it_waits_no_more_and_not_before_it_did() -> None:
    group, (a, b, c) = with_leases(3)
    store = group.store
    group.call(store.lock, b"l", a)
    assert store.lock_turn(group.now + 1, b"l", b) == Feed([], group.now + 1), "a replica that lags"
    group.call(store.lock, b"l", b, True)
    group.call(store.lock, b"l", c, True)
    queued = group.now
    assert store.lock_turn(queued, b"l", b) == Feed([], queued)
    group.call(store.unlock, b"l", a)
    assert store.lock_turn(queued, b"l", b) == Feed([LockState(b"l", b, group.now, 1)], group.now)
    assert store.lock_turn(queued, b"l", c) == Feed([], queued)
    group.call(store.lease_revoke, c)
    assert store.lock_turn(queued, b"l", c) == Feed([store.lock_of(b"l", c)], group.now)


def test_when_somebody_leaves_the_queue_then_the_others_move_up() -> None:
    group, (a, b, c) = with_leases(3)
    store = group.store
    group.call(store.lock, b"l", a)
    group.call(store.lock, b"l", b, True)
    group.call(store.lock, b"l", c, True)
    assert group.call(store.unlock, b"l", b) == LockState(b"l", a, 4, 1)
    assert store.lock_of(b"l", c).place == 1
    with group.refused("not_held", lease=a):
        group.call(store.unlock, b"l", b)
    with group.refused("not_held", lease=0):
        group.call(store.unlock, b"m", b)


def test_when_a_lease_ends_then_its_locks_are_passed_on_and_its_places_are_gone() -> None:
    group, (a, b, c) = with_leases(3)
    store = group.store
    group.call(store.lock, b"l", a)
    group.call(store.lock, b"l", b, True)
    group.call(store.lock, b"m", c)
    group.call(store.lock, b"m", a, True)
    assert (store.statistics().locks, store.statistics().waiting) == (2, 2)
    group.wait(100)
    assert store.lock_of(b"l") == LockState(b"l", b, group.now, 0)
    assert store.lock_of(b"m") == LockState(b"m", c, 6, 0)
    with group.refused("lease_expired"):
        group.call(store.lock, b"l", a, True)
    group.wait(200)
    assert store.locks() == []
    assert (store.statistics().locks, store.statistics().waiting) == (0, 0)


def test_when_holder_and_heir_end_at_once_then_the_next_that_lives_has_it() -> None:
    group, (a, b, c) = with_leases(3)
    store = group.store
    for lease in (a, b, c):
        group.call(store.lock, b"l", lease, True)
    group.wait(250)
    assert store.lock_of(b"l") == LockState(b"l", c, group.now, 0)


def test_when_heirs_have_ended_but_not_left_yet_then_they_are_passed_over() -> None:
    group, (a, b, c) = with_leases(3)
    store = group.store
    for number in range(STEP_MAX):
        group.call(store.lock, b"%04d" % number, b)
    for lease in (a, b, c):
        group.call(store.lock, b"l", lease, True)
    group.call(store.lease_revoke, b)
    assert store.lock_of(b"l", b).place == 1
    store.unlock(b"l", a)
    assert store.lock_of(b"l") == LockState(b"l", c, group.now, 0)
    group.slot()
    assert (store.statistics().locks, store.statistics().waiting) == (1, 0)
    assert store.alarm() == store.leases()[0].ends_ns


def test_when_a_holder_was_paused_then_its_token_no_longer_holds() -> None:
    group, (a, b) = with_leases(2)
    store = group.store
    old = group.call(store.lock, b"l", a).token
    group.call(store.lock, b"l", b, True)
    guarded = [Compare(b"l", "lock", "=", old)]
    assert group.call(store.txn, guarded, [Put(b"k", b"a")], []).succeeded
    group.wait(100)
    assert store.lock_of(b"l").token > old
    assert not group.call(store.txn, guarded, [Put(b"k", b"a")], []).succeeded


def test_when_too_many_hold_or_wait_then_no_more_can() -> None:
    group, (a, b, c) = with_leases(3, Limits(waiting_max=1, locks_max=4))
    store = group.store
    group.call(store.lock, b"l", a)
    group.call(store.lock, b"l", b, True)
    with group.refused("full", waiting_max=1):
        group.call(store.lock, b"l", c, True)
    group.call(store.lock, b"m", a)
    group.call(store.lock, b"n", a)
    with group.refused("full", locks_max=4):
        group.call(store.lock, b"o", a)
    group.call(store.lock, b"n", a)
    group.call(store.unlock, b"m", a)
    group.call(store.lock, b"o", a)


def test_when_a_name_is_no_key_then_it_is_no_lock_either() -> None:
    group, (a,) = with_leases(1, Limits(key_bytes_max=3))
    with group.refused("bad_request"):
        group.call(group.store.lock, b"", a)
    with group.refused("too_large"):
        group.call(group.store.lock, b"long", a)
    with group.refused("lease_expired"):
        group.call(group.store.lock, b"l", 99)


def test_when_locks_are_listed_then_it_goes_by_their_names() -> None:
    group, (a,) = with_leases(1)
    for name in (b"c", b"a", b"b", b"d"):
        group.call(group.store.lock, name, a)
    assert [state.name for state in group.store.locks(b"b", b"d")] == [b"b", b"c"]
    assert [state.name for state in group.store.locks(limit=1)] == [b"a"]
    assert group.store.locks(b"d", b"b") == []


def test_when_a_key_of_its_own_lease_goes_then_so_do_the_locks_of_that_lease() -> None:
    group = Group()
    store = group.store
    lease = group.call(store.put, b"a", b"", ttl_ms=100).lease
    group.call(store.lock, b"l", lease)
    group.call(store.put, b"a", b"")
    assert store.lease(lease) is None
    group.slot()
    assert store.lock_of(b"l").lease == 0
    assert store.alarm() is None
