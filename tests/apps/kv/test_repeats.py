"""Requests that come again."""

from collections.abc import Callable

import msgspec
import pytest

from apps.kv import Compare, Limits, Once, Put, Range, repeats
from apps.kv.types import DAY_MS
from tests.apps.kv.kit import Group

CALLS: list[tuple[str, Callable[[Group, Once], object]]] = [
    ("put", lambda group, once: group.call(group.store.put, b"k", b"v", once=once)),
    ("put with ttl", lambda group, once: group.call(group.store.put, b"k", b"v", None, 1000, once=once)),
    ("delete", lambda group, once: group.call(group.store.delete, b"there", once=once)),
    ("delete_range", lambda group, once: group.call(group.store.delete_range, b"t", None, once=once)),
    ("add", lambda group, once: group.call(group.store.add, b"n", 2, once=once)),
    (
        "txn",
        lambda group, once: group.call(
            group.store.txn, [Compare(b"k", "exists", "=", False)], [Put(b"k", b""), Range(b"")], [], once
        ),
    ),
    ("lease_grant", lambda group, once: group.call(group.store.lease_grant, 100, once)),
]


@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_when_a_request_comes_again_then_it_has_the_first_answer_and_does_nothing(
    call: Callable[[Group, Once], object],
) -> None:
    group = Group()
    group.call(group.store.put, b"there", b"")
    once = Once(b"id", b"digest")
    first = call(group, once)
    before = b"".join(group.store.snapshot())
    other = group.restored()
    for again in (group, other):
        second = call(again, once)
        assert second == first
        assert msgspec.msgpack.encode(second) == msgspec.msgpack.encode(first)
        assert b"".join(again.store.snapshot()) == before
    with group.refused("key_reused", key=b"id"):
        call(group, Once(b"id", b"other"))


def test_when_another_command_has_the_name_of_a_request_then_it_is_refused() -> None:
    group = Group()
    once = Once(b"id", b"digest")
    group.call(group.store.put, b"k", b"1", once=once)
    with group.refused("key_reused"):
        group.call(group.store.add, b"k", 1, once=once)


def test_when_a_request_was_refused_then_it_may_be_made_again() -> None:
    group = Group()
    once = Once(b"id", b"digest")
    with group.refused("conflict"):
        group.call(group.store.put, b"k", b"", 5, once=once)
    group.call(group.store.put, b"k", b"", once=once)
    assert group.call(group.store.put, b"k", b"", once=once).version == 1


def test_when_a_day_is_over_then_a_request_is_a_new_one() -> None:
    group = Group()
    once, later = Once(b"id", b"digest"), Once(b"later", b"")
    group.call(group.store.add, b"n", 1, once)
    group.wait(DAY_MS - 1)
    group.call(group.store.add, b"m", 1, later)
    assert group.call(group.store.add, b"n", 1, once).value == 1
    group.wait(1)
    assert group.call(group.store.add, b"n", 1, once).value == 2
    assert list(group.store._repeats.kept) == [b"later", b"id"]
    group.wait(DAY_MS - 1)
    group.call(group.store.add, b"n", 1, Once(b"new", b""))
    assert list(group.store._repeats.kept) == [b"id", b"new"]


def test_when_too_many_requests_are_remembered_then_the_oldest_go() -> None:
    group = Group(Limits(once_max=3))
    for number in range(5):
        group.call(group.store.add, b"n", 1, Once(b"%d" % number, b""))
    assert list(group.store._repeats.kept) == [b"2", b"3", b"4"]
    assert group.call(group.store.add, b"n", 1, Once(b"2", b"")).value == 3
    assert group.call(group.store.add, b"n", 1, Once(b"1", b"")).value == 6


def test_when_answers_are_large_then_fewer_are_remembered() -> None:
    group = Group(Limits(once_bytes_max=10_000))
    group.call(group.store.put, b"k", bytes(4000))
    for number in range(5):
        group.call(group.store.txn, [], [Range(b"")], [], Once(b"%d" % number, b""))
    assert list(group.store._repeats.kept) == [b"3", b"4"]
    assert 8000 < group.store.statistics().once_bytes <= 10_000


@pytest.mark.parametrize("once", [Once(b"", b""), Once(bytes(257), b""), Once(b"k", bytes(257))])
def test_when_a_name_is_empty_or_too_long_then_it_is_refused(once: Once) -> None:
    group = Group()
    with group.refused("bad_request"):
        group.call(group.store.put, b"k", b"", once=once)


def test_when_very_many_are_too_old_then_each_command_forgets_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeats, "FORGOTTEN_MAX", 3)
    group = Group(Limits(once_ms=10))
    for number in range(6):
        group.call(group.store.put, b"a", b"", once=Once(b"%d" % number, b""))
    group.wait(10)
    for left in (4, 2, 3):
        group.call(group.store.put, b"a", b"", once=Once(b"new %d" % left, b""))
        assert group.store.statistics().once == left
