"""RMP §3.1: who shares only a group's name finds the group."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ordering.naming import chain_id, group_address, group_id

names = st.text(st.characters(codec="utf-8"), max_size=40)
founders = st.lists(
    st.tuples(st.integers(1, (1 << 64) - 1), st.integers(0, (1 << 128) - 1)), unique=True, max_size=5
).map(tuple)


@given(names)
def test_when_a_name_is_mapped_then_the_address_is_administratively_scoped(name: str) -> None:
    address, port = group_address(name)
    octets = [int(octet) for octet in address.split(".")]
    assert octets[0] == 239
    assert len(octets) == 4
    assert all(0 <= octet <= 255 for octet in octets)
    assert 0x8000 <= port <= 0xFFFF


def test_when_versions_of_the_software_differ_then_a_name_still_means_the_same() -> None:
    """Frozen values: a change here splits running groups."""
    assert group_id("orders") == 0xFF28ED75DC452048
    assert group_address("orders") == ("239.63.75.191", 41_014)
    assert chain_id(1, ((1, 2), (3, 4)), 0) == 0x669CF6FFBE8D8CA3


@given(names, names)
def test_when_names_differ_then_their_ids_differ(one: str, other: str) -> None:
    assert (group_id(one) == group_id(other)) == (one == other)
    assert 0 <= group_id(one) < 1 << 64


@given(st.integers(0, (1 << 64) - 1), founders, st.randoms(use_true_random=False))
def test_when_founders_are_listed_in_another_order_then_the_chain_is_the_same(
    group: int, chosen: tuple[tuple[int, int], ...], random: Random
) -> None:
    shuffled = list(chosen)
    random.shuffle(shuffled)
    assert chain_id(group, tuple(shuffled), 0) == chain_id(group, chosen, 0)


def test_when_group_boot_or_parent_differ_then_the_chain_differs() -> None:
    base = chain_id(1, ((1, 2), (3, 4)), 0)
    others = [
        chain_id(2, ((1, 2), (3, 4)), 0),
        chain_id(1, ((1, 5), (3, 4)), 0),
        chain_id(1, ((1, 2),), 0),
        chain_id(1, ((1, 2), (3, 4)), base),
    ]
    assert len({base, *others}) == 5


def test_when_digits_move_between_site_and_boot_then_the_chain_differs() -> None:
    assert chain_id(1, ((1, 23),), 0) != chain_id(1, ((12, 3),), 0)
