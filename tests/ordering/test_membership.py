"""``apply_change``: a view and a change give the next view, or nothing."""

import pytest

from ordering.membership import apply_change
from ordering.packets import Change, ChangeKind
from ordering.views import NO_SITE, Member, SiteId, View, ViewId


def member(site: int, *, replaces: int = 0, address: str = "") -> Member:
    return Member(SiteId(site), 100 + site, address or f"a{site}", SiteId(replaces))


def ids(*sites: int) -> tuple[SiteId, ...]:
    return tuple(SiteId(site) for site in sites)


def view_of(
    *sites: int, electorate: tuple[int, ...] | None = None, ring: tuple[int, ...] | None = None
) -> View:
    return View(
        ViewId(3, 5),
        tuple(member(site) for site in sites),
        ids(*(sites if electorate is None else electorate)),
        ids(*(sites if ring is None else ring)),
    )


def change(kind: ChangeKind, site: int) -> Change:
    return Change(kind, member(site))


THREE = view_of(1, 2, 3)
LEARNER = view_of(1, 2, 3, 4, electorate=(1, 2, 3))


def apply(view: View, wanted: Change, after: int = 1, *, joint: bool = False) -> View | None:
    return apply_change(view, wanted, SiteId(after), 40, 0, joint=joint)


@pytest.mark.parametrize(
    ("view", "kind", "site", "members", "electorate", "ring"),
    [
        (THREE, ChangeKind.JOIN, 4, (1, 2, 3, 4), (1, 2, 3), (1, 4, 2, 3)),
        (LEARNER, ChangeKind.PROMOTE, 4, (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
        (view_of(1, 2, 3, ring=(1, 2)), ChangeKind.RETURN, 3, (1, 2, 3), (1, 2, 3), (1, 3, 2)),
        (THREE, ChangeKind.RETIRE, 3, (1, 2, 3), (1, 2, 3), (1, 2)),
        (THREE, ChangeKind.RETIRE, 1, (1, 2, 3), (1, 2, 3), (2, 3)),
        (LEARNER, ChangeKind.RETIRE, 4, (1, 2, 3, 4), (1, 2, 3), (1, 2, 3)),
        (THREE, ChangeKind.LEAVE, 3, (1, 2), (1, 2), (1, 2)),
        (THREE, ChangeKind.REMOVE, 2, (1, 3), (1, 3), (1, 3)),
        (LEARNER, ChangeKind.REMOVE, 4, (1, 2, 3), (1, 2, 3), (1, 2, 3)),
        (view_of(1, 2, 3, ring=(1, 2)), ChangeKind.REMOVE, 3, (1, 2), (1, 2), (1, 2)),
    ],
    ids=[
        "join",
        "promote",
        "return",
        "retire",
        "retire the token site",
        "retire learner",
        "leave",
        "remove",
        "remove learner",
        "remove external",
    ],
)
def test_when_a_change_applies_then_the_view_shows_it(
    view: View,
    kind: ChangeKind,
    site: int,
    members: tuple[int, ...],
    electorate: tuple[int, ...],
    ring: tuple[int, ...],
) -> None:
    after = apply(view, change(kind, site))
    assert after is not None
    assert tuple(m.site for m in after.members) == members
    assert after.electorate == electorate
    assert after.ring == ring
    assert after.id == ViewId(3, 6)


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (THREE, change(ChangeKind.JOIN, 2)),
        (THREE, change(ChangeKind.PROMOTE, 2)),
        (THREE, change(ChangeKind.PROMOTE, 9)),
        (view_of(1, 2, 3, 4, electorate=(1, 2, 3), ring=(1, 2, 3)), change(ChangeKind.PROMOTE, 4)),
        (THREE, change(ChangeKind.RETURN, 2)),
        (THREE, change(ChangeKind.RETURN, 9)),
        (THREE, Change(ChangeKind.RETURN, Member(SiteId(3), 999, "a3"))),
        (view_of(1, 2, 3, ring=(1, 2)), change(ChangeKind.RETIRE, 3)),
        (THREE, change(ChangeKind.RETIRE, 9)),
        (THREE, Change(ChangeKind.RETIRE, Member(SiteId(3), 999, "a3"))),
        (view_of(1, 2, 3, ring=(1, 2)), change(ChangeKind.RETIRE, 2)),
        (view_of(1, 2, 3, 4, ring=(1, 2, 3)), change(ChangeKind.RETIRE, 2)),
        (view_of(1, 2), change(ChangeKind.RETIRE, 2)),
        (view_of(1), change(ChangeKind.RETIRE, 1)),
        (THREE, change(ChangeKind.LEAVE, 9)),
        (THREE, change(ChangeKind.REMOVE, 9)),
        (view_of(1), change(ChangeKind.LEAVE, 1)),
        (view_of(1, 2, electorate=(1,)), change(ChangeKind.REMOVE, 1)),
    ],
    ids=[
        "join: a member",
        "promote: a voter",
        "promote: a stranger",
        "promote: out of the ring",
        "return: in the ring",
        "return: a stranger",
        "return: another boot, in the ring",
        "retire: out of the ring",
        "retire: a stranger",
        "retire: another boot",
        "retire: the ring would be one of three",
        "retire: the ring would be two of four",
        "retire: one of two",
        "retire: the only one",
        "leave: a stranger",
        "remove: a stranger",
        "leave: the last voter",
        "remove: the last voter",
    ],
)
def test_when_there_is_nothing_to_change_then_no_view_is_made(view: View, wanted: Change) -> None:
    assert apply(view, wanted) is None


@pytest.mark.parametrize("after", [1, 2, 3])
def test_when_a_site_joins_then_it_sits_directly_behind_the_token_site(after: int) -> None:
    view = apply(THREE, change(ChangeKind.JOIN, 4), after)
    assert view is not None
    assert view.successor(SiteId(after)) == 4


def test_when_the_electorate_changes_then_both_quorums_are_needed_from_that_slot() -> None:
    for wanted, view in ((change(ChangeKind.LEAVE, 3), THREE), (change(ChangeKind.PROMOTE, 4), LEARNER)):
        after = apply(view, wanted)
        assert after is not None
        assert after.joint_ts == 40
        assert after.joint_electorate == view.electorate


def test_when_a_change_is_joint_then_who_retires_leaves_a_majority_of_both_electorates() -> None:
    pending = apply(LEARNER, change(ChangeKind.PROMOTE, 4))
    assert pending is not None
    assert pending.joint_electorate == (1, 2, 3)
    few = View(pending.id, pending.members, pending.electorate, ids(1, 2, 4), 40, pending.joint_electorate)
    assert apply(few, change(ChangeKind.RETIRE, 4), joint=True) is None  # two of four
    many = View(pending.id, pending.members, ids(1, 4, 5, 6, 7), ids(1, 4, 5, 6), 40, ids(1, 2, 4))
    assert apply(many, change(ChangeKind.RETIRE, 1), joint=True) is None  # three of five, and one of three
    after = apply(many, change(ChangeKind.RETIRE, 1), joint=False)
    assert after is not None
    assert after.ring == (4, 5, 6)


def test_when_only_the_ring_changes_then_no_second_quorum_is_needed() -> None:
    after = apply(THREE, change(ChangeKind.JOIN, 4))
    assert after is not None
    assert after.joint_ts == 0


def test_when_an_electorate_change_is_pending_then_another_one_waits() -> None:
    pending = apply(LEARNER, change(ChangeKind.PROMOTE, 4))
    assert pending is not None
    assert apply(pending, change(ChangeKind.LEAVE, 3), joint=True) is None
    assert apply(pending, change(ChangeKind.LEAVE, 3), joint=False) is not None


def test_when_an_electorate_change_is_pending_then_a_join_keeps_it_pending() -> None:
    pending = apply(LEARNER, change(ChangeKind.PROMOTE, 4))
    assert pending is not None
    after = apply(pending, change(ChangeKind.JOIN, 5), joint=True)
    assert after is not None
    assert (after.joint_ts, after.joint_electorate) == (pending.joint_ts, pending.joint_electorate)


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (view_of(1, 2, 3, 4, 5, ring=(1, 2)), change(ChangeKind.REMOVE, 5)),
        (view_of(1, 2, 3, ring=(1, 2)), change(ChangeKind.LEAVE, 1)),
    ],
    ids=["ring is a minority before", "ring would be a minority after"],
)
def test_when_the_ring_is_no_majority_then_the_electorate_stays(view: View, wanted: Change) -> None:
    assert apply(view, wanted) is None


def test_when_a_restarted_site_joins_then_its_former_self_leaves_the_ring_and_keeps_its_vote() -> None:
    newcomer = member(9, address="a2")
    after = apply(THREE, Change(ChangeKind.JOIN, newcomer))
    assert after is not None
    assert after.ring == ids(1, 9, 3)
    assert after.electorate == ids(1, 2, 3)
    seat = after.member(SiteId(9))
    assert seat is not None
    assert seat.replaces == 2


def test_when_a_replacement_is_promoted_then_one_voter_takes_the_others_place() -> None:
    joined = apply(THREE, Change(ChangeKind.JOIN, member(9, address="a2")))
    assert joined is not None
    after = apply(joined, Change(ChangeKind.PROMOTE, member(9, address="a2")))
    assert after is not None
    assert after.electorate == ids(1, 3, 9)
    assert not after.has(SiteId(2))
    seat = after.member(SiteId(9))
    assert seat is not None
    assert seat.replaces == NO_SITE


def test_when_the_replaced_one_asks_to_return_then_it_is_too_late() -> None:
    joined = apply(THREE, Change(ChangeKind.JOIN, member(9, address="a2")))
    assert joined is not None
    assert apply(joined, change(ChangeKind.RETURN, 2)) is None


def test_when_a_voter_returns_under_another_boot_then_the_view_names_it() -> None:
    """R6: back from its disk, and maybe elsewhere."""
    back = Member(SiteId(3), 999, "elsewhere")
    after = apply(view_of(1, 2, 3, ring=(1, 2)), Change(ChangeKind.RETURN, back))
    assert after is not None
    assert after.member(SiteId(3)) == back
    assert after.electorate == ids(1, 2, 3)


def test_when_a_learner_restarts_then_its_former_self_is_dropped_at_once() -> None:
    after = apply(LEARNER, Change(ChangeKind.JOIN, member(9, address="a4")))
    assert after is not None
    assert not after.has(SiteId(4))
    assert after.learners == ids(9)


def test_when_a_replacement_restarts_before_its_promotion_then_the_newest_inherits_the_seat() -> None:
    first = apply(THREE, Change(ChangeKind.JOIN, member(8, address="a2")))
    assert first is not None
    second = apply(first, Change(ChangeKind.JOIN, member(9, address="a2")))
    assert second is not None
    assert second.learners == ids(9)
    seat = second.member(SiteId(9))
    assert seat is not None
    assert seat.replaces == 2
