"""A member that retires: what it refuses, what late and lost packets do, and when it may not go."""

import pytest

from ordering.caller import CallRequested
from ordering.config import MS
from ordering.effects import Ending, EndMembership
from ordering.engine import Engine
from ordering.errors import MembershipError, NotMember
from ordering.events import ChangeRequested, PacketsReceived
from ordering.packets import (
    Change,
    ChangeKind,
    ListChangeRequest,
    NewList,
    NonMemberRefusal,
    NonMemberReply,
)
from ordering.simulator.stage import Stage
from ordering.views import SiteId, ViewId

SECOND = 1000 * MS
RETIRED = EndMembership(Ending.RETIRED)


def site_of(stage: Stage, address: str) -> SiteId:
    return stage.process(address).member.site


def retired(stage: Stage, address: str) -> bool:
    return stage.process(address).ended == RETIRED


def request_of(stage: Stage, address: str, kind: ChangeKind) -> ListChangeRequest:
    """As this site would make it now."""
    process = stage.process(address)
    return ListChangeRequest(process.engine.site.head(), Change(kind, process.member), forwarded=True)


def bring(stage: Stage, request: ListChangeRequest, *addresses: str) -> None:
    for address in addresses:
        stage.cluster.handle(stage.process(address), PacketsReceived((request,)))


def test_when_a_site_retires_then_it_takes_no_messages_and_what_it_had_accepted_is_final() -> None:
    stage = Stage.born(3)
    for number in range(20):
        assert stage.submit("s2", f"message {number}") is None
    stage.retire("s2")
    assert isinstance(stage.submit("s2", "too late"), NotMember)
    stage.until(lambda: retired(stage, "s2"), "s2 is gone")
    for address in ("s1", "s3"):
        assert len(stage.journal.delivered[site_of(stage, address)]) == 20
    stage.cluster.restart("s2")
    stage.finish()


def test_when_a_site_retires_then_it_sends_callers_elsewhere() -> None:
    stage = Stage.born(3)
    stage.caller("c1", "s2", "s1")
    stage.retire("s2")
    stage.call("c1", CallRequested((b"hello",), handler=1))
    stage.until(lambda: ("s1", NonMemberReply.__name__) in stage.network.counts, "another one answers")
    assert stage.network.counts["s2", NonMemberRefusal.__name__] == 1
    stage.until(lambda: retired(stage, "s2"), "s2 is gone")
    stage.cluster.restart("s2")
    stage.finish()


@pytest.mark.parametrize("durable", [0, 1], ids=["memory", "durable"])
def test_when_the_request_is_lost_for_a_while_then_it_is_made_again(
    durable: int,
) -> None:
    stage = Stage.born(4, durable=durable)
    holder = stage.token_site().address
    (other, *_) = [address for address in stage.addresses if address != holder]
    stage.drop(other, "*", ListChangeRequest, 5)
    stage.retire(other)
    stage.until(lambda: retired(stage, other), "it is gone")
    assert stage.process(holder).engine.site.epoch == 1
    stage.cluster.restart(other)
    stage.finish()


def test_when_a_return_was_under_way_before_a_site_retired_then_it_is_not_called_back() -> None:
    """The others hear an old RETURN, which asked for what was so at that time, when it is out of the ring."""
    stage = Stage.born(3, durable=1)
    late = request_of(stage, "s2", ChangeKind.RETURN)
    stage.retire("s2")
    stage.until(lambda: retired(stage, "s2"), "s2 is gone")
    bring(stage, late, "s1", "s3")
    stage.run(SECOND // 10)
    for address in ("s1", "s3"):
        site = stage.process(address).engine.site
        assert site.view.ring == (1, 3)
        assert site.counters["dropped: return of who was in the ring"] == 1
    stage.run(SECOND)
    assert stage.process("s1").engine.site.epoch == 1
    stage.cluster.restart("s2")
    stage.finish()


def test_when_a_return_was_kept_before_a_site_retired_then_it_is_not_called_back() -> None:
    """The same, and the old RETURN comes before the view that has the site out."""
    stage = Stage.born(3, durable=1)
    late = request_of(stage, "s2", ChangeKind.RETURN)
    stage.retire("s2")
    bring(stage, late, "s1", "s3")
    stage.until(lambda: retired(stage, "s2"), "s2 is gone")
    stage.run(SECOND)
    view = stage.process("s1").engine.site.view
    assert view.ring == (1, 3)
    assert view.id == ViewId(1, 1)
    stage.cluster.restart("s2")
    stage.finish()


def test_when_a_request_of_an_earlier_boot_comes_late_then_the_later_one_stays() -> None:
    stage = Stage.born(3, durable=1)
    late = request_of(stage, "s2", ChangeKind.RETIRE)
    stage.retire("s2")
    stage.until(lambda: retired(stage, "s2"), "s2 is gone")
    stage.cluster.restart("s2")
    one = stage.process("s1").engine.site
    stage.until(lambda: 2 in one.view.ring, "s2 is back")
    view = one.view
    bring(stage, late, "s1", "s3")
    stage.run(SECOND)
    assert one.view is view
    stage.finish()


def test_when_a_ring_member_is_dead_and_not_missed_yet_then_who_retires_stays() -> None:
    """The view without it counts on the dead; so it does not go, helps to find out, and is needed then."""
    stage = Stage.born(3)
    stage.run(SECOND)
    holder = stage.token_site().address
    dead, other = [address for address in stage.addresses if address != holder]
    stage.cluster.crash(dead)
    stage.retire(other)
    site = stage.process(other).engine.site
    stage.until(lambda: not site.in_ring, "the token site lets it go")
    stage.until(lambda: site.epoch == 2, "the dead one is missed")
    assert site.in_ring
    stage.until(lambda: "retirements refused" in site.counters, "it is needed")
    assert stage.submit(other, "still here") is None
    stage.cluster.restart(dead)
    stage.finish()


def test_when_the_next_token_site_misses_the_view_then_who_retires_stays_until_it_has_it() -> None:
    """A majority holds it, but only who ordered it gives it again to the site that is to have the token."""
    stage = Stage.born(3)
    holder = stage.token_site()
    site = holder.engine.site
    following = site.view.member(site.view.successor(site.me))
    assert following is not None
    stage.drop(holder.address, following.address, "NewList", 3)
    for address in stage.addresses:
        stage.drop(address, following.address, "Confirm", 20)
    stage.retire(holder.address)
    stage.until(lambda: retired(stage, holder.address), "it is gone")
    one = stage.process(following.address).engine.site
    assert one.epoch == 1
    assert site.me not in one.view.ring
    stage.cluster.restart(holder.address)
    stage.finish()


@pytest.mark.parametrize("after_ms", [0, 1, 3, 10])
def test_when_a_site_that_retires_is_to_leave_then_it_leaves(after_ms: int) -> None:
    stage = Stage.born(4)
    stage.retire("s2")
    stage.run(after_ms * MS)
    stage.leave("s2")
    stage.until(lambda: stage.process("s2").ended is not None, "s2 is gone")
    assert stage.process("s2").ended == EndMembership(Ending.LEFT)
    assert not stage.process("s1").engine.site.view.has(site_of(stage, "s2"))
    stage.finish()


def test_when_a_site_is_no_member_yet_or_leaves_then_it_cannot_retire() -> None:
    stage = Stage.born(4)
    stage.leave("s4")
    with pytest.raises(MembershipError, match="RETIRE is for a member"):
        stage.retire("s4")
    stage.cluster.crash("s3")
    stage.cluster.restart("s3")
    with pytest.raises(MembershipError, match="RETIRE"):
        stage.cluster.handle(stage.process("s3"), ChangeRequested(ChangeKind.RETIRE))
    stage.finish()


def test_when_a_retired_site_is_back_then_nobody_suspects_it_for_its_silence_before() -> None:
    """The others heard long ago that it has restarted, and not yet from the boot that a view names now."""
    stage = Stage.born(3, durable=1)
    stage.retire("s1")
    stage.until(lambda: retired(stage, "s1"), "s1 is gone")
    stage.drop("s2", "*", NewList, 3)
    stage.cluster.restart("s1")
    back = stage.process("s1").member
    for address in ("s2", "s3"):
        engine = stage.process(address).engine

        def is_named(engine: Engine = engine) -> bool:
            return engine.site.view.member(back.site) == back

        stage.until(is_named, f"{address} names the boot that is back")
        assert not engine.detection.suspects()
        assert not engine.detection.misses(back.site)
    stage.finish()
    assert all(stage.process(address).engine.site.epoch == 1 for address in stage.addresses)
