"""Locks as values: what becomes of them when owners speak, go, or run out of time (R13)."""

import pytest

from ordering.codec import DATAGRAM_MAX, encode
from ordering.config import MS
from ordering.locks import (
    NAMED_MAX,
    TABLE_BYTES_MAX,
    WAITERS_MAX,
    WISHES_MAX,
    has_room,
    restate,
    settle,
    with_locks,
)
from ordering.membership import apply_change
from ordering.packets import (
    NO_BALLOT,
    Change,
    ChangeKind,
    Head,
    LockStatement,
    Order,
    RecoveryVote,
    Wish,
)
from ordering.views import (
    HANDLERS,
    NO_LOCKS,
    NOBODY,
    Claim,
    Lock,
    LockName,
    LockTable,
    Member,
    Owner,
    SiteId,
    View,
    ViewId,
)

MEMBERS = tuple(Member(SiteId(n), 100 + n, f"a{n}") for n in range(1, 5))
A, B, C, LEARNER = (m.site for m in MEMBERS)
OWNERS = {m.site: Owner(m.site, m.boot) for m in MEMBERS}


def a_view(
    ring: tuple[SiteId, ...] = (A, B, C), members: tuple[Member, ...] = MEMBERS, locks: LockTable = NO_LOCKS
) -> View:
    electorate = tuple(m.site for m in members if m.site != LEARNER)
    return View(ViewId(1, 0), members, electorate, ring, locks=locks)


def stated(
    table: LockTable, site: SiteId, version: int, *wishes: Wish, view: View | None = None, time: int = 0
) -> LockTable:
    """What an owner's statement makes of a table, at slot 10 times its version."""
    view = view or a_view()
    said = restate(table, LockStatement(OWNERS[site], version, wishes), time)
    return settle(said, view, 10 * version, time)


def wish(name: LockName, number: int, lease_ms: int = 0, renewed: int | None = None) -> Wish:
    return Wish(name, number, lease_ms, number if renewed is None else renewed)


def holder(table: LockTable, name: LockName) -> SiteId | None:
    lock = table.lock(name)
    return None if lock is None else lock.holder.owner.site


def waiting(table: LockTable, name: LockName) -> list[SiteId]:
    lock = table.lock(name)
    assert lock is not None
    return [claim.owner.site for claim in lock.queue]


# -- handler locks ---------------------------------------------------------------------------------


def test_when_a_group_is_born_then_the_first_ring_voter_has_all_handler_locks() -> None:
    table = settle(NO_LOCKS, a_view((LEARNER, B, A)), 1, 0)
    assert [lock.name for lock in table.locks] == list(HANDLERS)
    assert {holder(table, number) for number in HANDLERS} == {B}


def test_when_the_owner_leaves_the_ring_then_its_handler_locks_pass_on_and_the_others_stay() -> None:
    table = stated(settle(NO_LOCKS, a_view(), 1, 0), B, 1, wish(2, 1))
    table = settle(table, a_view((C, B)), 50, 0)
    assert [holder(table, number) for number in HANDLERS] == [C, B, C, C, C, C]
    assert table.lock(1) == Lock(1, Claim(OWNERS[C], 0, 0), 50)


def test_when_a_handler_lock_is_asked_for_then_who_has_it_unasked_gives_it_up() -> None:
    table = stated(settle(NO_LOCKS, a_view(), 1, 0), C, 1, wish(3, 1))
    assert holder(table, 3) == C
    table = stated(table, B, 2, wish(3, 2))
    assert (holder(table, 3), waiting(table, 3)) == (C, [B])


def test_when_a_handler_lock_is_released_and_nobody_waits_then_a_ring_voter_has_it() -> None:
    table = stated(settle(NO_LOCKS, a_view(), 1, 0), C, 1, wish(3, 1))
    table = stated(table, C, 2)
    assert table.lock(3) == Lock(3, Claim(OWNERS[A], 0, 0), 20)


def test_when_who_waits_for_a_handler_is_out_of_the_ring_then_it_is_passed_over_and_keeps_its_place() -> None:
    table = stated(settle(NO_LOCKS, a_view(), 1, 0), C, 1, wish(3, 1), view=a_view((A, B)))
    assert (holder(table, 3), waiting(table, 3)) == (A, [C])
    assert holder(settle(table, a_view(), 60, 0), 3) == C


def test_when_no_voter_is_in_the_ring_then_nobody_has_the_handler_locks() -> None:
    table = settle(settle(NO_LOCKS, a_view(), 1, 0), a_view((LEARNER,)), 9, 0)
    assert {lock.holder.owner for lock in table.locks} == {NOBODY}
    assert holder(settle(table, a_view((LEARNER, B)), 12, 0), 1) == B


# -- named locks -----------------------------------------------------------------------------------


def test_when_a_lock_is_released_then_the_first_in_line_has_it_under_a_higher_fence() -> None:
    table = stated(NO_LOCKS, A, 1, wish("door", 1))
    table = stated(table, B, 2, wish("door", 2))
    table = stated(table, C, 3, wish("door", 3))
    table = stated(table, A, 4)
    lock = table.lock("door")
    assert lock is not None
    assert (holder(table, "door"), lock.fence, waiting(table, "door")) == (B, 40, [C])


def test_when_nobody_wants_a_lock_then_it_is_gone() -> None:
    table = stated(stated(NO_LOCKS, A, 1, wish("door", 1)), A, 2)
    assert table.lock("door") is None


def test_when_a_statement_comes_twice_or_late_then_it_changes_nothing() -> None:
    first = stated(NO_LOCKS, A, 1, wish("door", 1))
    second = stated(first, A, 2)
    assert stated(second, A, 1, wish("door", 1)) == second
    assert stated(second, A, 2) == second


def test_when_a_lease_has_ended_then_a_later_statement_with_the_same_wish_does_not_lock_again() -> None:
    table = stated(NO_LOCKS, A, 1, wish("door", 1, lease_ms=5))
    table = settle(table, a_view(), 30, 5 * MS)
    assert table.lock("door") is None
    table = stated(table, A, 4, wish("door", 1, lease_ms=5), wish("gate", 4), time=6 * MS)
    assert (table.lock("door"), holder(table, "gate")) == (None, A)


def test_when_a_lease_is_renewed_then_it_lasts_longer_and_the_fence_stays() -> None:
    table = stated(NO_LOCKS, A, 1, wish("door", 1, lease_ms=5))
    table = stated(table, A, 2, wish("door", 1, lease_ms=5, renewed=2), time=4 * MS)
    lock = table.lock("door")
    assert lock is not None
    assert (lock.fence, lock.expires) == (10, 9 * MS)


def test_when_a_lease_is_renewed_too_late_then_it_is_over() -> None:
    table = stated(NO_LOCKS, A, 1, wish("door", 1, lease_ms=5))
    table = stated(table, A, 2, wish("door", 1, lease_ms=5, renewed=2), time=5 * MS)
    assert table.lock("door") is None


def test_when_a_lock_is_released_and_asked_for_again_at_once_then_others_come_first() -> None:
    table = stated(stated(NO_LOCKS, A, 1, wish("door", 1)), B, 2, wish("door", 2))
    table = stated(table, A, 4, wish("door", 4))
    assert (holder(table, "door"), waiting(table, "door")) == (B, [A])


def test_when_the_owner_falls_out_of_the_ring_then_it_keeps_its_named_lock() -> None:
    table = stated(NO_LOCKS, A, 1, wish("door", 1))
    assert holder(settle(table, a_view((B, C)), 30, 0), "door") == A


@pytest.mark.parametrize("members", [MEMBERS[1:], (Member(A, 999, "a1"), *MEMBERS[1:])])
def test_when_the_owner_is_removed_or_has_another_boot_then_it_owns_nothing_and_waits_for_nothing(
    members: tuple[Member, ...],
) -> None:
    table = stated(stated(NO_LOCKS, A, 1, wish("door", 1)), B, 2, wish("door", 2), wish("gate", 2))
    table = stated(table, A, 3, wish("door", 1), wish("gate", 3))
    table = settle(table, a_view((B, C), members), 50, 0)
    assert (holder(table, "door"), waiting(table, "gate")) == (B, [])
    assert all(owner.site != A for owner, _ in table.versions)


def test_when_a_session_owns_a_lock_then_membership_does_not_end_it() -> None:
    session = Claim(Owner(SiteId(0), 0, session=77), 1, 0)
    table = settle(LockTable((Lock("door", session, 5),)), a_view((B,), MEMBERS[1:]), 50, 0)
    assert table.lock("door") == Lock("door", session, 5)


# -- in the view -----------------------------------------------------------------------------------


def test_when_a_member_is_removed_then_the_same_view_hands_its_locks_on() -> None:
    table = stated(stated(settle(NO_LOCKS, a_view(), 1, 0), A, 1, wish("door", 1)), B, 2, wish("door", 2))
    view = apply_change(a_view(locks=table), Change(ChangeKind.REMOVE, MEMBERS[0]), B, 70, 0, joint=False)
    assert view is not None
    assert (holder(view.locks, 1), holder(view.locks, "door")) == (B, B)


def test_when_a_joiner_is_seated_then_its_view_has_the_locks() -> None:
    table = stated(settle(NO_LOCKS, a_view(), 1, 0), A, 1, wish("door", 1))
    joiner = Member(SiteId(9), 109, "a9")
    view = apply_change(a_view(locks=table), Change(ChangeKind.JOIN, joiner), B, 70, 0, joint=False)
    assert view is not None
    assert view.locks == table


# -- bounds ----------------------------------------------------------------------------------------


def test_when_too_many_wait_then_the_next_one_is_refused() -> None:
    crowd = tuple(Member(SiteId(n), n, f"a{n}") for n in range(1, WAITERS_MAX + 4))
    view = View(ViewId(1, 0), crowd, tuple(m.site for m in crowd), tuple(m.site for m in crowd))
    table = NO_LOCKS
    for member in crowd:
        said = LockStatement(Owner(member.site, member.boot), 1, (wish("door", 1),))
        table = settle(restate(table, said, 0), view, 5, 0)
    assert len(waiting(table, "door")) == WAITERS_MAX
    assert not has_room(table, "door")
    assert has_room(table, "gate")


def test_when_names_are_too_many_then_the_next_one_is_refused() -> None:
    table = NO_LOCKS
    crowd = tuple(Member(SiteId(n), n, f"a{n}") for n in range(1, 8))
    view = View(ViewId(1, 0), crowd, tuple(m.site for m in crowd), tuple(m.site for m in crowd))
    for member in crowd:
        wishes = tuple(wish(f"{member.site}.{n}", 1) for n in range(WISHES_MAX))
        said = LockStatement(Owner(member.site, member.boot), 1, wishes)
        table = settle(restate(table, said, 0), view, 5, 0)
    named = [lock for lock in table.locks if isinstance(lock.name, str)]
    assert len(named) <= NAMED_MAX
    assert not has_room(table, "one more")


def test_when_the_table_is_full_of_the_longest_names_then_a_promise_still_fits_into_a_datagram() -> None:
    table = NO_LOCKS
    owners = [Owner(SiteId((1 << 64) - n), (1 << 128) - n) for n in range(1, 8)]
    members = tuple(Member(o.site, o.boot, "127.0.0.1:65535") for o in owners)
    view = View(ViewId(1, 0), members, tuple(o.site for o in owners), tuple(o.site for o in owners))
    late = (1 << 62) - 1
    for version, owner in enumerate(owners, 1 << 40):
        wishes = tuple(wish("ä" * 125 + f"{n:05}", version, 86_400_000) for n in range(WISHES_MAX))
        table = settle(restate(table, LockStatement(owner, version, wishes), late), view, late, late)
    view = with_locks(view, table, late, late)
    install = Order(9, late, owners[0].site, owners[0].site, view=view, time=late)
    head = Head(1, 1, owners[0].site, owners[0].boot, 1, 1, 1, 1, 1)
    vote = RecoveryVote(head, NO_BALLOT, NO_BALLOT, install, late, view, False, (), late)
    assert TABLE_BYTES_MAX < len(encode(vote, 1)) < DATAGRAM_MAX
