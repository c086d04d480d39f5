"""R1 and R5: what counts as a majority, and who is who in a view."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.views import NO_SITE, Member, SiteId, View, ViewId, count_in, majority_of


def sites(*numbers: int) -> tuple[SiteId, ...]:
    return tuple(SiteId(number) for number in numbers)


def view(
    electorate: tuple[SiteId, ...],
    *,
    ring: tuple[SiteId, ...] | None = None,
    learners: tuple[SiteId, ...] = (),
    joint_ts: int = 0,
    joint: tuple[SiteId, ...] = (),
) -> View:
    members = tuple(Member(site, int(site) * 100, f"s{site}") for site in electorate + learners)
    return View(ViewId(1, 0), members, electorate, electorate if ring is None else ring, joint_ts, joint)


@pytest.mark.parametrize(("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_majority_is_more_than_half_of_the_electorate(voters: int, majority: int) -> None:
    electorate = sites(*range(1, voters + 1))
    assert majority_of(electorate) == majority
    group = view(electorate)
    for size in range(voters + 1):
        for chosen in combinations(electorate, size):
            assert group.is_quorum(chosen, joint=False) == (size >= majority)


def test_when_the_ring_shrinks_then_a_majority_is_still_of_the_electorate() -> None:
    group = view(sites(1, 2, 3, 4, 5), ring=sites(1, 2))
    assert not group.is_quorum(sites(1, 2), joint=False)
    assert group.is_quorum(sites(1, 2, 5), joint=False)


def test_when_learners_and_strangers_agree_then_they_do_not_count() -> None:
    group = view(sites(1, 2, 3), learners=sites(4, 5))
    assert not group.is_quorum(sites(1, 4, 5, 99), joint=False)
    assert count_in(group.electorate, sites(1, 4, 5, 99)) == 1


def test_when_a_site_is_named_twice_then_it_counts_once() -> None:
    assert not view(sites(1, 2, 3)).is_quorum(sites(1, 1, 1), joint=False)


def test_when_an_electorate_change_is_pending_then_both_majorities_are_needed() -> None:
    group = view(sites(1, 2, 3, 4), joint_ts=9, joint=sites(1, 2, 3))
    assert not group.is_quorum(sites(3, 4), joint=True)
    assert group.is_quorum(sites(1, 3, 4), joint=True)
    smaller = view(sites(1, 2), joint_ts=9, joint=sites(1, 2, 3, 4, 5))
    assert not smaller.is_quorum(sites(1, 2), joint=True)
    assert smaller.is_quorum(sites(1, 2, 5), joint=True)


def test_when_the_change_is_known_to_be_held_then_the_new_electorate_decides_alone() -> None:
    group = view(sites(1, 2), joint_ts=9, joint=sites(1, 2, 3, 4, 5))
    assert group.is_quorum(sites(1, 2), joint=False)
    settled = view(sites(1, 2))
    assert settled.is_quorum(sites(1, 2), joint=True)


@given(st.integers(1, 7), st.data())
def test_any_two_quorums_of_a_view_share_a_voter(voters: int, data: st.DataObject) -> None:
    electorate = sites(*range(1, voters + 1))
    group = view(electorate)
    subsets = st.lists(st.sampled_from(electorate), unique=True)
    one, other = data.draw(subsets), data.draw(subsets)
    if group.is_quorum(one, joint=False) and group.is_quorum(other, joint=False):
        assert set(one) & set(other)


@given(st.integers(1, 6), st.booleans(), st.data())
def test_a_joint_quorum_shares_a_voter_with_any_quorum_of_either_electorate(
    voters: int, grows: bool, data: st.DataObject
) -> None:
    old = sites(*range(1, voters + 1))
    new = (*old, SiteId(99)) if grows or voters == 1 else old[1:]
    joint_view = view(new, joint_ts=5, joint=old)
    everyone = st.lists(st.sampled_from(tuple(dict.fromkeys(old + new))), unique=True)
    joint, before, after = data.draw(everyone), data.draw(everyone), data.draw(everyone)
    if joint_view.is_quorum(joint, joint=True):
        if view(old).is_quorum(before, joint=False):
            assert set(joint) & set(before)
        if view(new).is_quorum(after, joint=False):
            assert set(joint) & set(after)


def test_successor_goes_round_the_ring() -> None:
    group = view(sites(1, 2, 3), ring=sites(2, 3, 1))
    assert [group.successor(site) for site in sites(2, 3, 1)] == [3, 1, 2]


def test_when_a_site_is_not_in_the_ring_then_its_successor_is_the_first() -> None:
    assert view(sites(1, 2, 3), ring=sites(2, 3)).successor(SiteId(1)) == 2


def test_when_the_ring_is_one_site_then_it_succeeds_itself() -> None:
    assert view(sites(1, 2, 3), ring=sites(2)).successor(SiteId(2)) == 2


def test_members_voters_learners_and_external_are_told_apart() -> None:
    group = view(sites(1, 2, 3), ring=sites(1, 2, 4), learners=sites(4, 5))
    assert group.learners == sites(4, 5)
    assert group.external == sites(3)
    assert group.ring_voters == 2
    assert group.has(SiteId(5))
    assert not group.has(SiteId(6))
    assert group.member(SiteId(6)) is None
    found = group.member(SiteId(3))
    assert found is not None
    assert (found.boot, found.address, found.replaces) == (300, "s3", NO_SITE)


def test_when_a_learner_replaces_a_dead_voter_then_its_address_finds_the_learner() -> None:
    old = Member(SiteId(1), 100, "s1")
    new = Member(SiteId(4), 400, "s1", replaces=SiteId(1))
    group = View(ViewId(1, 1), (old, new), sites(1), sites(1))
    assert group.at_address("s1") == new
    assert group.at_address("s2") is None


def test_view_ids_are_ordered_by_epoch_then_revision() -> None:
    assert ViewId(1, 9) < ViewId(2, 0) < ViewId(2, 1)
    assert str(ViewId(2, 1)) == "2.1"
