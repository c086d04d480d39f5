"""Limits are part of the state."""

import msgspec
import pytest

from apps.kv import LIMITS_RANGES, Limits, Once
from tests.apps.kv.kit import Group


def test_every_limit_has_a_range_and_its_default_is_in_it() -> None:
    defaults = msgspec.structs.asdict(Limits())
    assert LIMITS_RANGES.keys() == defaults.keys()
    assert all(least <= defaults[name] <= most for name, (least, most) in LIMITS_RANGES.items())


@pytest.mark.parametrize("name", LIMITS_RANGES)
def test_when_a_limit_is_out_of_range_then_none_is_changed(name: str) -> None:
    group = Group()
    least, most = LIMITS_RANGES[name]
    for value in (least - 1, most + 1):
        limits = msgspec.structs.replace(Limits(), **{name: value})
        with group.refused("bad_request", limit=name, value=value, least=least, most=most):
            group.call(group.store.configure, limits)
    for value in (least, most):
        limits = msgspec.structs.replace(Limits(), **{name: value})
        assert group.call(group.store.configure, limits) == limits
        assert group.restored().store.statistics().limits == limits


def test_when_limits_shrink_then_history_and_remembered_requests_follow_and_keys_stay() -> None:
    group = Group()
    store = group.store
    for number in range(20):
        group.call(store.put, b"k%d" % number, bytes(10), once=Once(b"%d" % number, b""))
    group.call(
        store.configure,
        Limits(history_events_max=5, once_max=2, value_bytes_max=1, key_bytes_max=1, data_bytes_max=0),
    )
    statistics = store.statistics()
    assert (statistics.keys, statistics.history_events, statistics.once) == (20, 5, 2)
    entry = store.get(b"k7")
    assert entry is not None
    assert entry.value == bytes(10)
    group.call(store.delete, b"k7")
    assert store.statistics().keys == 19


def test_when_history_is_not_to_be_kept_then_the_newest_revision_is_all_there_is() -> None:
    group = Group(Limits(history_events_max=0, history_bytes_max=0))
    for _ in range(3):
        group.call(group.store.put, b"a", b"")
    assert [event.revision for event in group.store.changes(3).events] == [4]
    with group.refused("compacted", compacted=3):
        group.store.changes(2)
