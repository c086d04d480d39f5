"""RMP §3.2 and §4.5: multi-RPC and handlers."""

import pytest

from ordering.caller import CallRequested
from ordering.effects import CallAnswered
from ordering.packets import Ack, NonMemberAck, NonMemberReply
from ordering.qos import MAJORITY, TOTAL, TOTALLY_ORDERED, Qos
from ordering.simulator.stage import Stage
from ordering.views import ViewId
from tests.paper.watching import deliveries, ms, orders, sent, texts


def test_a_process_that_is_no_member_sends_to_the_group_and_all_members_get_it(discipline: str) -> None:
    """ "allows multiple servers to exist in a group, and all of them can get messages from clients"."""
    stage = Stage.born(3, discipline=discipline)
    caller = stage.caller("c1", "s2")
    stage.call("c1", CallRequested((b"hello",)))
    stage.run(ms(50))
    assert all(texts(stage, address) == ["hello"] for address in stage.addresses)
    assert caller.caller.outstanding == ()
    stage.finish()


@pytest.mark.parametrize("qos", [TOTALLY_ORDERED, MAJORITY, TOTAL], ids=lambda qos: qos.level.name)
def test_the_token_site_of_the_message_acknowledges_it_when_it_delivers_it(discipline: str, qos: Qos) -> None:
    """ "when the current token site delivers the Non Member Data packet to its application, it unicasts a Non
    Member ACK to the sender"."""
    stage = Stage.born(3, discipline=discipline)
    stage.caller("c1", "s2")
    stage.call("c1", CallRequested((b"hello",), qos))
    stage.run(ms(50))
    ((site, ack),) = sent(stage, NonMemberAck)
    (order,) = [order for order in orders(stage) if order.runs]
    assert site == order.orderer
    (delivery,) = deliveries(stage, next(a for a in stage.addresses if stage.process(a).member.site == site))
    assert (ack.receipts[0].ts, ack.receipts[0].reached) == (delivery.first_ts, qos.level)
    stage.finish()


def test_the_acknowledgement_can_be_disabled(discipline: str) -> None:
    """ "The first flag specifies whether or not an acknowledgment should be sent"."""
    stage = Stage.born(3, discipline=discipline)
    stage.caller("c1", "s2")
    stage.call("c1", CallRequested((b"hello",), acknowledged=False))
    stage.run(ms(50))
    assert texts(stage, "s1") == ["hello"]
    assert sent(stage, NonMemberAck) == []
    stage.finish()


def test_a_duplicate_of_a_delivered_packet_is_acknowledged_again(discipline: str) -> None:
    """ "sending another copy of the Non Member ACK each time a duplicate … is received"."""
    stage = Stage.born(3, discipline=discipline)
    caller = stage.caller("c1", "s2")
    for address in stage.addresses:
        stage.drop(address, "c1", NonMemberAck, count=1)
    stage.call("c1", CallRequested((b"hello",)))
    stage.run(ms(500))
    assert len(sent(stage, NonMemberAck)) > 1
    assert caller.caller.outstanding == ()
    assert texts(stage, "s1") == ["hello"], "delivered once all the same"
    stage.finish()


def test_the_member_that_holds_the_handler_lock_replies_and_nobody_else(discipline: str) -> None:
    """ "the member of the group that holds that handler lock will be responsible for replying"."""
    stage = Stage.born(3, discipline=discipline)
    caller = stage.caller("c1", "s3")
    stage.call("c1", CallRequested((b"hello",), handler=1))
    stage.run(ms(50))
    assert len(sent(stage, NonMemberReply)) == 1
    assert sent(stage, NonMemberAck) == [], "the reply is the acknowledgement"
    assert caller.caller.outstanding == ()
    stage.finish()


def test_a_reply_to_a_member_may_go_to_the_group(discipline: str) -> None:
    """ "If a request is from a group member, the reply is also sent to the group. If it is from a non-member,
    it is sent to only that member." Here the first is a choice of the member."""
    stage = Stage.born(3, discipline=discipline)
    for to_group in (False, True):
        stage.cluster.request(stage.process("s2"), (b"hello",), MAJORITY, to_group=to_group)
        stage.run(ms(50))
    assert len([effect for _, effect in stage.journal.effects if isinstance(effect, CallAnswered)]) == 1
    assert all(len(texts(stage, address)) == 3 for address in stage.addresses)
    stage.finish()


def test_a_caller_learns_the_view_from_an_answer_and_uses_it(discipline: str) -> None:
    """ "it can cache the membership view ID included in this reply and use this in subsequent Non Member Data
    packets"."""
    stage = Stage.born(3, discipline=discipline)
    caller = stage.caller("c1", "s2")
    stage.call("c1", CallRequested((b"one",)))
    stage.run(ms(50))
    assert caller.caller.view == ViewId(1, 0)
    assert set(caller.caller.addresses) == {"s1", "s2", "s3"}
    stage.call("c1", CallRequested((b"two",), view=caller.caller.view))
    stage.run(ms(50))
    assert texts(stage, "s3") == ["one", "two"]
    stage.finish()


def test_calls_of_one_caller_keep_their_order_over_a_change_of_the_member_it_uses(discipline: str) -> None:
    """ "In order to provide source ordered (and higher) delivery guarantees on non member packets"."""
    stage = Stage.born(3, discipline=discipline)
    stage.caller("c1", "s2", "s3")
    stage.drop("c1", "s2", "NonMemberData", count=1)
    for text in (b"1", b"2", b"3", b"4"):
        stage.call("c1", CallRequested((text,)))
    stage.cut("s2", "c1")
    stage.run(ms(1000))
    seen = list(dict.fromkeys(texts(stage, "s1")))
    assert seen == ["1", "2", "3", "4"]
    stage.finish()


def test_many_calls_ride_in_one_ack(discipline: str) -> None:
    """Figure 4.1: an ACK orders "one or more data packets and/or non-member data packets"."""
    stage = Stage.born(3, discipline=discipline)
    for name in ("c1", "c2", "c3"):
        stage.caller(name, "s2")
        stage.call(name, CallRequested((b"x", b"y")))
    stage.cluster.pause("s2")  # what piles up is drained in one go
    stage.run(ms(5))
    stage.cluster.resume("s2")
    stage.run(ms(50))
    (order,) = {packet.order.ts: packet.order for _, packet in sent(stage, Ack) if packet.order.runs}.values()
    assert [run.count for run in order.runs] == [6]
    assert len(texts(stage, "s1")) == 6
    stage.finish()
