"""What a machine is told of the group."""

import msgspec

from ordering.views import Member, SiteId, View, ViewId
from rsm.state_machine import GroupView

ONE, TWO = SiteId(1), SiteId(2)


def test_boots_of_all_members_are_in_the_view_and_survive_a_snapshot() -> None:
    boot = (1 << 128) - 1
    view = View(ViewId(1, 0), (Member(ONE, boot, "a"), Member(TWO, 5, "b")), (ONE,), (ONE,))
    seen = GroupView.of(7, 9, view)
    assert seen.boots == {ONE: "f" * 32, TWO: "0" * 31 + "5"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=GroupView) == seen


def test_a_view_of_a_release_without_boots_is_read() -> None:
    older = {"timestamp": 1, "chain": 2, "epoch": 1, "revision": 0, "ring": [1], "electorate": [1]}
    data = msgspec.msgpack.encode({**older, "learners": [], "addresses": {1: "a"}})
    assert msgspec.msgpack.decode(data, type=GroupView).boots == {}
