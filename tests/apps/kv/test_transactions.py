"""Compare, then or else."""

import pytest

from apps.kv import (
    Add,
    Compare,
    Counted,
    Delete,
    Deleted,
    Entry,
    Event,
    Found,
    Get,
    Limits,
    Listing,
    Put,
    Range,
    TxnResult,
    Written,
)
from apps.kv.types import KIB, MIB, Operation
from tests.apps.kv.kit import Group


def test_when_all_comparisons_hold_then_the_first_branch_is_carried_out_at_one_revision() -> None:
    group = Group()
    store = group.store
    group.call(store.put, b"a", b"1")
    result = group.call(
        store.txn,
        [Compare(b"a", "value", "=", b"1"), Compare(b"b", "exists", "=", False)],
        [Put(b"b", b"2"), Get(b"a"), Get(b"x"), Add(b"n", 3), Delete(b"a"), Delete(b"x"), Range(b"a", b"c")],
        [Put(b"never", b"")],
    )
    assert result == TxnResult(
        True,
        2,
        [
            Written(2, 2, 1),
            Found(Entry(b"a", b"1", 1, 1, 1)),
            Found(None),
            Counted(2, 3, 2, 1),
            Deleted(2, True),
            Deleted(2, False),
            Listing([Entry(b"b", b"2", 2, 2, 1)], False, 2),
        ],
    )
    assert store.changes(1).events == [
        Event(2, b"b", b"2", 2, 1),
        Event(2, b"n", b"3", 2, 1),
        Event(2, b"a", None),
    ]


def test_when_one_comparison_does_not_hold_then_the_other_branch_is_carried_out() -> None:
    group = Group()
    compare = [Compare(b"a", "exists", "=", False), Compare(b"a", "version", ">", 0)]
    result = group.call(group.store.txn, compare, [Put(b"a", b"")], [Put(b"b", b"")])
    assert (result.succeeded, len(result.results)) == (False, 1)
    assert [entry.key for entry in group.store.range().items] == [b"b"]


@pytest.mark.parametrize(
    ("target", "op", "operand", "there", "absent"),
    [
        ("revision", "=", 3, True, False),
        ("revision", "!=", 3, False, True),
        ("revision", "<", 4, True, True),
        ("revision", ">", 2, True, False),
        ("revision", "=", 0, False, True),
        ("version", "=", 2, True, False),
        ("created", "=", 2, True, False),
        ("lease", "=", 1, True, False),
        ("lease", "=", 0, False, True),
        ("value", "=", b"b", True, False),
        ("value", "!=", b"b", False, True),
        ("value", "<", b"c", True, False),
        ("value", ">", b"a", True, False),
        ("exists", "=", True, True, False),
        ("exists", "!=", True, False, True),
        ("lock", "=", 0, True, True),
    ],
)
def test_when_a_key_is_compared_then_it_is_as_documented(
    target: object, op: object, operand: bool | int | bytes, there: bool, absent: bool
) -> None:
    group = Group()
    store = group.store
    lease = group.call(store.lease_grant, 100).id
    group.call(store.put, b"k", b"a")
    group.call(store.put, b"k", b"b", lease=lease)
    for key, expected in ((b"k", there), (b"x", absent)):
        compare = Compare(key, target, op, operand)  # type: ignore[arg-type]
        assert group.call(store.txn, [compare], [], []).succeeded is expected


@pytest.mark.parametrize(
    ("target", "op", "operand"),
    [
        ("value", "=", 1),
        ("value", "=", True),
        ("exists", "=", 1),
        ("exists", "<", True),
        ("revision", "=", True),
        ("version", "=", b"1"),
        ("lock", "=", b""),
    ],
)
def test_when_a_comparison_makes_no_sense_then_the_transaction_is_refused(
    target: object, op: object, operand: bool | int | bytes
) -> None:
    group = Group()
    good = Compare(b"k", "exists", "=", True)
    with group.refused("bad_request", comparison=1, target=target):
        group.call(group.store.txn, [good, Compare(b"k", target, op, operand)], [], [])  # type: ignore[arg-type]


BAD: list[tuple[Operation, str]] = [
    (Put(b"", b""), "bad_request"),
    (Put(b"long key", b""), "too_large"),
    (Put(b"k", bytes(101)), "too_large"),
    (Put(b"k", b"", lease=99), "lease_expired"),
    (Put(b"k", b"", ttl_ms=0), "bad_request"),
    (Add(b"text", 1), "not_a_number"),
    (Add(b"n", (1 << 63) - 1), "out_of_range"),
    (Range(b"", None, 0), "bad_request"),
]


@pytest.mark.parametrize(("bad", "code"), BAD)
def test_when_the_last_operation_cannot_be_carried_out_then_none_is(bad: Operation, code: str) -> None:
    group = Group(Limits(key_bytes_max=5, value_bytes_max=100))
    store = group.store
    group.call(store.put, b"text", b"x")
    group.call(store.put, b"n", b"1")
    with group.refused(code, operation=3):
        group.call(store.txn, [], [Put(b"a", b"", ttl_ms=5), Delete(b"text2"), Add(b"n", 1), bad], [])


def test_when_operations_follow_each_other_then_each_sees_what_those_before_it_did() -> None:
    group = Group()
    store = group.store
    group.call(store.put, b"b", b"old")
    group.call(store.put, b"c", b"old")
    operations: list[Operation] = [
        Put(b"a", b"1"),
        Add(b"a", 1),
        Delete(b"b"),
        Get(b"b"),
        Range(b"", None, 2),
        Put(b"b", b"new"),
        Range(b"", None, 2),
        Range(b"b", b"c"),
    ]
    results = group.call(store.txn, [], operations, []).results
    assert results[1] == Counted(3, 2, 3, 2)
    assert results[3] == Found(None)
    listings = [result for result in results if isinstance(result, Listing)]
    assert [[entry.key for entry in listing.items] for listing in listings] == [
        [b"a", b"c"],
        [b"a", b"b"],
        [b"b"],
    ]
    assert [listing.more for listing in listings] == [False, True, False]
    assert store.get(b"b") == Entry(b"b", b"new", 3, 3, 1)
    assert [event.key for event in store.changes(2).events] == [b"a", b"b"]


def test_when_a_key_is_written_and_deleted_again_then_nothing_happened_to_it() -> None:
    group = Group()
    group.call(group.store.txn, [], [Put(b"a", b""), Delete(b"a")], [])
    assert group.store.changes(0).events == []


def test_when_a_transaction_is_too_large_then_it_is_refused_before_anything_is_compared() -> None:
    group = Group(Limits(txn_operations_max=3, txn_bytes_max=100))
    store = group.store
    exists = Compare(b"k", "exists", "=", True)
    group.call(store.txn, [exists], [Get(b"k")], [Get(b"k")])
    with group.refused("too_large", txn_operations=4, txn_operations_max=3):
        group.call(store.txn, [exists, exists], [Get(b"k")], [Get(b"k")])
    group.call(store.txn, [], [Put(b"k" * 10, b"v" * 40)], [Put(b"k" * 10, b"v" * 40)])
    with group.refused("too_large", txn_bytes=101, txn_bytes_max=100):
        group.call(store.txn, [], [Put(b"k" * 10, b"v" * 40)], [Put(b"k" * 10, b"v" * 41)])
    with group.refused("too_large"):
        group.call(store.txn, [Compare(b"k", "value", "=", bytes(100))], [], [])
    with group.refused("too_large"):
        group.call(store.txn, [], [Range(bytes(60), bytes(60))], [])


def test_when_a_transaction_reads_too_much_then_it_is_refused_and_writes_nothing() -> None:
    group = Group()
    store = group.store
    for number in range(5):
        group.call(store.put, b"%d" % number, bytes(300 * KIB))
    gets: list[Operation] = [Get(b"%d" % number) for number in range(5)]
    assert len(group.call(store.txn, [], gets[:3], []).results) == 3
    with group.refused("too_large", operation=4, txn_bytes_max=MIB):
        group.call(store.txn, [], [Put(b"a", b""), *gets[:4]], [])
    with group.refused("too_large", operation=1):
        group.call(store.txn, [], [Get(b"0"), Range(b"")], [])
    assert len(group.call(store.txn, [], [*gets[:3], Range(b"", keys_only=True)], []).results) == 4


def test_when_a_transaction_would_make_the_store_too_large_then_it_is_refused_as_a_whole() -> None:
    group = Group(Limits(data_bytes_max=10))
    store = group.store
    group.call(store.put, b"a", b"1234")
    with group.refused("full"):
        group.call(store.txn, [], [Put(b"b", b"12345")], [])
    group.call(store.txn, [], [Put(b"b", b"12345"), Delete(b"a")], [])
    assert store.statistics().data_bytes == 6
