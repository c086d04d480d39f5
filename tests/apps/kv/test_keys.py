"""Writing, reading, deleting, counting and listing keys."""

import pytest

from apps.kv import ABSENT, PRESENT, Deleted, DeletedRange, Entry, Limits, Written
from apps.kv.keyspace import PAGE_ITEMS_MAX
from apps.kv.types import MIB
from tests.apps.kv.kit import Group


def test_when_a_key_is_written_then_its_revision_is_the_slot_and_its_version_counts() -> None:
    group = Group()
    store = group.store
    assert group.call(store.put, b"a", b"1") == Written(1, 1, 1)
    group.call(store.put, b"b", b"")
    assert group.call(store.put, b"a", b"2") == Written(3, 1, 2)
    assert store.get(b"a") == Entry(b"a", b"2", 3, 1, 2)
    assert store.get(b"b") == Entry(b"b", b"", 2, 2, 1)
    assert store.get(b"c") is None


def test_when_a_key_is_deleted_and_written_again_then_it_is_a_new_one() -> None:
    group = Group()
    store = group.store
    group.call(store.put, b"a", b"1")
    assert group.call(store.delete, b"a") == Deleted(2, True)
    assert store.get(b"a") is None
    assert group.call(store.delete, b"a") == Deleted(3, False)
    assert group.call(store.put, b"a", b"2") == Written(4, 4, 1)


@pytest.mark.parametrize("remove", [False, True])
def test_when_a_condition_does_not_hold_then_nothing_is_written(remove: bool) -> None:
    group = Group()
    store = group.store

    def write(key: bytes, expect: int) -> object:
        return group.call(store.delete, key, expect) if remove else group.call(store.put, key, b"new", expect)

    group.call(store.put, b"a", b"1")
    with group.refused("conflict", expect=ABSENT, revision=1):
        write(b"a", ABSENT)
    with group.refused("conflict", expect=7, revision=1):
        write(b"a", 7)
    with group.refused("conflict", expect=PRESENT, revision=0):
        write(b"b", PRESENT)
    with group.refused("conflict", expect=1, revision=0):
        write(b"b", 1)
    with group.refused("bad_request"):
        write(b"a", -2)


def test_when_a_condition_holds_then_the_write_is_done() -> None:
    group = Group()
    store = group.store
    assert group.call(store.put, b"a", b"1", ABSENT).version == 1
    assert group.call(store.put, b"a", b"2", PRESENT).version == 2
    assert group.call(store.put, b"a", b"3", 2).version == 3
    assert group.call(store.delete, b"b", ABSENT) == Deleted(4, False)
    assert group.call(store.delete, b"a", 3) == Deleted(5, True)


def test_when_a_key_or_value_is_too_large_or_empty_then_it_is_refused() -> None:
    group = Group(Limits(key_bytes_max=3, value_bytes_max=4))
    store = group.store
    group.call(store.put, b"abc", b"1234")
    with group.refused("too_large", key_bytes=4, key_bytes_max=3):
        group.call(store.put, b"abcd", b"")
    with group.refused("too_large", value_bytes=5, value_bytes_max=4):
        group.call(store.put, b"a", b"12345")
    with group.refused("bad_request"):
        group.call(store.put, b"", b"1")
    with group.refused("too_large"):
        group.call(store.add, b"abcd", 1)


def test_when_the_store_is_full_then_it_takes_only_what_makes_it_no_larger() -> None:
    group = Group(Limits(data_bytes_max=10))
    store = group.store
    group.call(store.put, b"a", b"123456789")
    with group.refused("full", data_bytes=11, data_bytes_max=10):
        group.call(store.put, b"b", b"")
    with group.refused("full"):
        group.call(store.add, b"n", 1)
    group.call(store.put, b"a", b"987654321")
    group.call(store.put, b"a", b"1234567")
    group.call(store.add, b"n", 1)
    assert store.statistics().data_bytes == 10


# -- counters ------------------------------------------------------------------------------------


def test_when_a_key_is_counted_then_its_value_is_a_decimal_number() -> None:
    group = Group()
    store = group.store
    assert group.call(store.add, b"n", 5).value == 5
    counted = group.call(store.add, b"n", -17)
    assert (counted.value, counted.revision, counted.created, counted.version) == (-12, 2, 1, 2)
    entry = store.get(b"n")
    assert entry is not None
    assert entry.value == b"-12"


@pytest.mark.parametrize(
    "value", [b"", b"x", b"1.5", b" 1", b"1 ", b"+1", b"01", b"-0", b"1_0", b"9" * 19, b"9" * 99]
)
def test_when_a_value_is_no_number_as_we_write_them_then_it_cannot_be_counted(value: bytes) -> None:
    group = Group()
    group.call(group.store.put, b"n", value)
    with group.refused("not_a_number"):
        group.call(group.store.add, b"n", 1)


def test_when_a_counter_is_at_its_end_then_it_stays() -> None:
    group = Group()
    store = group.store
    most, least = (1 << 63) - 1, -(1 << 63)
    assert group.call(store.add, b"n", most).value == most
    with group.refused("out_of_range", value=most, delta=1):
        group.call(store.add, b"n", 1)
    assert group.call(store.add, b"m", least).value == least
    with group.refused("out_of_range", value=least, delta=-1):
        group.call(store.add, b"m", -1)
    assert group.call(store.add, b"m", 1).value == least + 1


# -- listing -------------------------------------------------------------------------------------


def filled(count: int, value: bytes = b"v") -> Group:
    group = Group()
    for number in reversed(range(count)):
        group.call(group.store.put, b"k%04d" % number, value)
    return group


def test_when_keys_are_listed_then_they_come_in_order_page_by_page() -> None:
    store = filled(25).store
    start, pages = b"", []
    while True:
        listing = store.range(start, None, 10)
        pages.append([entry.key for entry in listing.items])
        if not listing.more:
            break
        start = listing.items[-1].key + b"\0"
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [key for page in pages for key in page] == [b"k%04d" % number for number in range(25)]
    assert listing.revision == 25


def test_when_a_range_is_given_then_its_end_is_not_part_of_it() -> None:
    store = filled(9).store
    listing = store.range(b"k0003", b"k0005")
    assert [entry.key for entry in listing.items] == [b"k0003", b"k0004"]
    assert not listing.more
    assert store.range(b"k0005", b"k0003").items == []
    assert store.range(b"k0005", b"k0005").items == []
    assert store.range(b"z").items == []


def test_when_only_keys_are_wanted_then_values_are_left_out_and_all_else_is_there() -> None:
    store = filled(2).store
    assert store.range(keys_only=True).items == [Entry(b"k0000", b"", 2, 2, 1), Entry(b"k0001", b"", 1, 1, 1)]


def test_when_values_are_large_then_a_page_ends_at_a_mebibyte_but_has_at_least_one() -> None:
    assert [len(filled(5, bytes(size)).store.range().items) for size in (MIB // 4, MIB // 2, MIB)] == [
        3,
        1,
        1,
    ]
    assert len(filled(5, bytes(MIB // 2)).store.range(keys_only=True).items) == 5


def test_when_a_limit_is_out_of_bounds_then_it_is_refused_or_cut() -> None:
    group = filled(1)
    with group.refused("bad_request", limit=0):
        group.store.range(limit=0)
    many = Group()
    many.store._keyspace.load(
        {b"%08d" % n: Entry(b"%08d" % n, b"", 1, 1, 1) for n in range(PAGE_ITEMS_MAX + 1)}
    )
    listing = many.store.range(limit=1 << 40)
    assert (len(listing.items), listing.more) == (PAGE_ITEMS_MAX, True)


def test_when_a_range_is_deleted_then_its_first_keys_go_in_one_revision() -> None:
    group = filled(9)
    store = group.store
    assert group.call(store.delete_range, b"k0002", b"k0006", 3) == DeletedRange(10, 3, True)
    assert group.call(store.delete_range, b"k0002", b"k0006", 3) == DeletedRange(11, 1, False)
    assert [entry.key for entry in store.range().items] == [b"k0000", b"k0001", b"k0006", b"k0007", b"k0008"]
    assert [event.revision for event in store.changes(9).events] == [10, 10, 10, 11]
    assert group.call(store.delete_range, b"", None) == DeletedRange(12, 5, False)
    with group.refused("bad_request"):
        group.call(store.delete_range, b"", None, 0)


def test_when_many_keys_are_deleted_then_a_thousand_go_at_a_time() -> None:
    group = filled(1001)
    assert group.call(group.store.delete_range, b"", None, 5000) == DeletedRange(1002, 1000, True)
