"""A caller by itself: what it sends, when it repeats it, and what it makes of answers."""

from itertools import pairwise
from random import Random

import pytest

from ordering.caller import BEHIND_ROUNDS, Caller, CallerEffect, CallRequested
from ordering.config import MS, Config
from ordering.effects import (
    Accepted,
    CallAcknowledged,
    CallAnswered,
    CallFailed,
    CallFailure,
    Multicast,
    SetTimer,
    Unicast,
)
from ordering.errors import InvariantViolation, MessageTooLarge, Overloaded, SubmitError, UnknownQos
from ordering.events import PacketsReceived, TimerFired
from ordering.naming import group_id
from ordering.packets import (
    Answer,
    CallFlag,
    Confirm,
    Directory,
    Head,
    NonMemberAck,
    NonMemberData,
    NonMemberRefusal,
    NonMemberReply,
    Packet,
    Receipt,
    Refusal,
)
from ordering.qos import MAJORITY, UNORDERED, Level, Qos
from ordering.views import Member, SiteId, ViewId

BOOT = 77
HEAD = Head(group_id("g"), 5, SiteId(1), 11, 1, 9, 9, 9, 9)
VIEW = ViewId(1, 0)
SAME = Directory(VIEW, ())


class Desk:
    """A caller with its clock; keeps what it asked for."""

    def __init__(self, contacts: tuple[str, ...] = ("s1", "s2", "s3"), **settings: int) -> None:
        config = Config(group="g", contacts=contacts, **settings)  # type: ignore[arg-type]
        self.caller = Caller(config, Member(SiteId(9), BOOT, "c"), Random(3))
        self.now = 0
        self.effects: list[CallerEffect] = []

    def call(self, *messages: bytes, **options: object) -> list[CallerEffect]:
        return self._do(CallRequested(messages, **options))  # type: ignore[arg-type]

    def hear(self, *packets: Packet) -> list[CallerEffect]:
        return self._do(PacketsReceived(packets))

    def wait(self) -> list[CallerEffect]:
        """Until the timer the caller set last."""
        self.now = max(self.now, [e.at for e in self.effects if isinstance(e, SetTimer)][-1])
        return self._do(TimerFired())

    def _do(self, event: CallRequested | PacketsReceived | TimerFired) -> list[CallerEffect]:
        effects = self.caller.handle(event, self.now)
        self.effects += effects
        return effects


def ack(*numbers: int, directory: Directory = SAME) -> NonMemberAck:
    receipts = tuple(Receipt(number, 100 + number, Level.MAJORITY) for number in numbers)
    return NonMemberAck(HEAD, BOOT, directory, receipts)


def refusal(reason: Refusal, first: int, count: int = 1, directory: Directory = SAME) -> NonMemberRefusal:
    return NonMemberRefusal(HEAD, BOOT, directory, reason, first, count, 10)


def sent(effects: list[CallerEffect]) -> list[NonMemberData]:
    packets = [effect.packet for effect in effects if isinstance(effect, Unicast | Multicast)]
    return [packet for packet in packets if isinstance(packet, NonMemberData)]


def target(effects: list[CallerEffect]) -> str:
    return next(effect.to for effect in effects if isinstance(effect, Unicast))


# -- sending -------------------------------------------------------------------------------------


def test_when_it_calls_then_the_calls_are_numbered_and_share_a_packet() -> None:
    desk = Desk()
    effects = desk.call(b"a", b"b", handler=2)
    (packet,) = sent(effects)
    assert (packet.first, packet.messages, packet.handler) == (1, (b"a", b"b"), 2)
    assert (packet.head.chain, packet.head.epoch, packet.head.sender, packet.head.boot) == (0, 0, 9, BOOT)
    assert Accepted(1, 2, MAJORITY, 1) in effects
    assert sent(desk.call(b"c"))[0].first == 3


def test_when_calls_do_not_fit_in_one_packet_then_they_are_cut() -> None:
    packets = sent(Desk(packet_bytes=1000).call(b"x" * 400, b"y" * 400, b"z" * 400))
    assert [(packet.first, len(packet.messages)) for packet in packets] == [(1, 2), (3, 1)]


def test_when_an_earlier_ordered_call_has_no_answer_then_a_later_one_names_it() -> None:
    desk = Desk()
    desk.call(b"a", b"b")
    desk.call(b"free", qos=UNORDERED)
    assert [(p.first, p.floor, p.after) for p in sent(desk.call(b"c"))] == [(4, 1, 2)]
    desk.hear(ack(1, 2))
    assert [(p.first, p.floor, p.after) for p in sent(desk.call(b"d"))] == [(5, 3, 4)]


def test_when_addressing_is_implicit_then_all_get_it_and_turns_change_with_every_round() -> None:
    desk = Desk()
    effects = desk.call(b"a", implicit=True)
    assert [effect.to for effect in effects if isinstance(effect, Multicast)] == [("s1", "s2", "s3")]
    assert sent(effects)[0].turn == 0
    assert sent(desk.wait())[0].turn == 1


def test_when_an_ordered_call_follows_another_then_it_goes_the_same_way() -> None:
    desk = Desk()
    desk.call(b"a", implicit=True)
    assert sent(desk.call(b"b"))[0].turn == 0
    desk.hear(ack(1, 2))
    assert sent(desk.call(b"c"))[0].turn is None


# -- repeating -----------------------------------------------------------------------------------


def test_when_no_answer_comes_then_all_is_repeated_in_order_at_another_member_ever_more_slowly() -> None:
    desk = Desk()
    first = target(desk.call(b"a"))
    desk.call(b"b")
    pauses = []
    targets = [first]
    for _ in range(5):
        before = desk.now
        effects = desk.wait()
        pauses.append(desk.now - before)
        targets.append(target(effects))
        numbers = [packet.first for packet in sent(effects)]
        assert numbers == sorted(numbers)
        assert numbers[0] == 1
    assert pauses[0] < pauses[2] < pauses[4]
    assert all(one != other for one, other in pairwise(targets))
    assert set(targets) == {"s1", "s2", "s3"}


def test_when_part_of_a_packet_is_answered_then_only_the_rest_is_repeated() -> None:
    desk = Desk()
    desk.call(b"a", b"b", b"c")
    desk.hear(ack(1))
    (packet,) = sent(desk.wait())
    assert (packet.first, packet.messages, packet.floor) == (2, (b"b", b"c"), 2)


def test_when_it_has_waited_too_long_then_the_call_fails_with_an_unknown_outcome() -> None:
    desk = Desk(call_ms=100)
    desk.call(b"a")
    for _ in range(50):
        if not desk.caller.outstanding:
            break
        desk.wait()
    assert CallFailed(1, CallFailure.UNANSWERED, ViewId(0, 0)) in desk.effects
    assert 100 * MS <= desk.now <= 400 * MS
    assert desk.caller.pending_bytes == 0


def test_when_it_has_tried_too_often_then_the_call_fails() -> None:
    desk = Desk(call_tries=3)
    desk.call(b"a")
    for _ in range(3):
        desk.wait()
    assert len(sent(desk.effects)) == 3
    assert CallFailed(1, CallFailure.UNANSWERED, ViewId(0, 0)) in desk.effects


def test_when_everything_is_answered_then_no_timer_is_left_to_do_anything() -> None:
    desk = Desk()
    desk.call(b"a")
    desk.hear(ack(1))
    assert desk.wait() == []


def test_when_the_window_is_full_then_calls_wait_and_follow_with_the_answers() -> None:
    desk = Desk()
    for _ in range(20):
        desk.call(b"x")
    first = [packet.first for packet in sent(desk.effects)]
    assert first == list(range(1, 9))
    assert [packet.first for packet in sent(desk.hear(ack(1, 2)))] == [9, 10, 11, 12]


# -- answers -------------------------------------------------------------------------------------


def test_when_a_call_is_acknowledged_then_the_application_hears_it_once() -> None:
    desk = Desk()
    desk.call(b"a")
    told = CallAcknowledged(1, 101, Level.MAJORITY, VIEW)
    assert told in desk.hear(ack(1))
    assert told not in desk.hear(ack(1))


def test_when_a_request_is_merely_acknowledged_then_it_still_waits_for_its_reply() -> None:
    desk = Desk()
    desk.call(b"a", handler=1)
    desk.hear(ack(1))
    assert list(desk.caller.outstanding) == [1]
    assert CallAnswered(1, 7, b"yes", VIEW, once=True, site=HEAD.sender) in desk.hear(
        NonMemberReply(HEAD, BOOT, SAME, (Answer(1, 7, b"yes"),))
    )
    assert desk.caller.outstanding == ()


def test_when_nobody_is_to_acknowledge_then_the_call_is_sent_once_and_done() -> None:
    desk = Desk()
    (packet,) = sent(desk.call(b"a", acknowledged=False))
    assert packet.flags == CallFlag.UNACKNOWLEDGED
    assert desk.caller.outstanding == ()


@pytest.mark.parametrize(
    "packet",
    [
        NonMemberAck(HEAD, BOOT + 1, SAME, (Receipt(1, 5, Level.MAJORITY),)),
        NonMemberAck(Head(1, 5, SiteId(1), 11, 1, 9, 9, 9, 9), BOOT, SAME, (Receipt(1, 5, Level.MAJORITY),)),
        Confirm(HEAD),
    ],
    ids=["of an earlier boot", "of another group", "of another kind"],
)
def test_when_a_packet_is_not_for_this_caller_then_it_is_counted_and_dropped(packet: Packet) -> None:
    desk = Desk()
    desk.call(b"a")
    desk.hear(packet)
    assert desk.caller.outstanding == (1,)
    assert sum(desk.caller.counters.values()) == 1


def test_when_a_view_is_learned_then_its_members_are_asked_and_an_older_one_is_ignored() -> None:
    desk = Desk(contacts=("s1",))
    desk.call(b"a", b"b")
    desk.hear(ack(1, directory=Directory(ViewId(2, 0), ("s4", "s5"))))
    assert desk.caller.addresses == ("s4", "s5", "s1")
    desk.hear(ack(directory=Directory(ViewId(1, 0), ("s9",))))
    assert desk.caller.view == ViewId(2, 0)
    assert desk.caller.addresses == ("s4", "s5", "s1")
    assert sent(desk.wait())[0].view == ViewId(2, 0)


# -- refusals ------------------------------------------------------------------------------------


def test_when_a_bound_call_meets_another_view_then_it_fails_and_the_new_view_is_known() -> None:
    desk = Desk()
    desk.call(b"a", view=ViewId(1, 0))
    effects = desk.hear(refusal(Refusal.OTHER_VIEW, 1, directory=Directory(ViewId(2, 1), ("s2", "s3"))))
    assert CallFailed(1, CallFailure.OTHER_VIEW, ViewId(2, 1)) in effects
    packet = sent(desk.call(b"b", view=desk.caller.view))[0]
    assert (packet.bound, packet.view) == (True, ViewId(2, 1))


def test_when_the_member_is_behind_the_view_of_a_bound_call_then_another_is_asked() -> None:
    desk = Desk()
    first = target(desk.call(b"a", view=ViewId(3, 0)))
    desk.hear(refusal(Refusal.OTHER_VIEW, 1, directory=Directory(ViewId(2, 1), ("s2", "s3"))))
    assert list(desk.caller.outstanding) == [1]
    assert target(desk.wait()) != first


def test_when_nobody_is_in_the_view_of_a_bound_call_then_all_that_are_bound_to_it_fail() -> None:
    """Its chain has ended. Each by itself would ask everybody in turn."""
    desk = Desk()
    for message in (b"a", b"b", b"c"):
        desk.call(message, view=ViewId(3, 0))
    desk.call(b"d")
    failed: list[CallFailed] = []
    for _ in range(1 + BEHIND_ROUNDS * len(desk.caller.addresses)):
        assert not failed
        effects = desk.hear(refusal(Refusal.OTHER_VIEW, 1, directory=Directory(ViewId(2, 1), ("s2", "s3"))))
        failed = [effect for effect in effects if isinstance(effect, CallFailed)]
        desk.wait()
    assert [(each.number, each.failure) for each in failed] == [
        (n, CallFailure.OTHER_VIEW) for n in (1, 2, 3)
    ]
    assert desk.caller.outstanding == (4,)


def test_when_a_member_has_no_majority_then_another_is_asked_soon() -> None:
    desk = Desk()
    first = target(desk.call(b"a"))
    assert sent(desk.hear(refusal(Refusal.NO_PRIMARY, 1))) == []
    assert target(desk.wait()) != first


def test_when_a_member_is_overloaded_then_new_calls_wait_as_well() -> None:
    desk = Desk()
    desk.call(b"a")
    desk.hear(refusal(Refusal.OVERLOADED, 1))
    assert sent(desk.call(b"b")) == []
    desk.now += 10 * MS
    assert [packet.first for packet in sent(desk.wait())][:1] == [1]


def test_when_all_is_answered_while_it_is_to_be_patient_then_the_next_call_goes_out_behind_that() -> None:
    desk = Desk()
    desk.call(b"a")
    desk.hear(refusal(Refusal.OVERLOADED, 1), ack(1))
    effects = desk.call(b"b")
    assert sent(effects) == []
    (timer,) = [effect for effect in effects if isinstance(effect, SetTimer)]
    assert timer.at == 10 * MS
    assert [packet.first for packet in sent(desk.wait())] == [2]


def test_when_a_member_misses_a_call_then_all_come_again_from_the_first_and_not_twice() -> None:
    desk = Desk()
    to = target(desk.call(b"a"))
    desk.call(b"b")
    desk.now += 6 * MS
    effects = desk.hear(refusal(Refusal.GAP, 2), refusal(Refusal.GAP, 2))
    assert [packet.first for packet in sent(effects)] == [1, 2]
    assert target(effects) == to


def test_when_a_refusal_names_far_more_calls_than_there_are_then_it_costs_little() -> None:
    desk = Desk()
    desk.call(b"a")
    desk.hear(refusal(Refusal.BAD_QOS, 1, count=(1 << 62)))
    assert desk.caller.outstanding == ()


# -- refusing the application --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (CallRequested((b"x",), handler=7), SubmitError, "handler"),
        (CallRequested((b"x",), Qos(Level.MAJORITY, 1)), UnknownQos, "qos"),
        (CallRequested(("x",)), SubmitError, "bytes"),  # type: ignore[arg-type]
        (CallRequested((b"x" * 2000,)), MessageTooLarge, "message_bytes_max"),
        (CallRequested((b"x",) * 11), Overloaded, "call_messages"),
        (CallRequested((b"x" * 900,) * 2), Overloaded, "call_bytes"),
    ],
)
def test_when_a_call_cannot_be_made_then_the_error_says_why_and_nothing_changes(
    request_: CallRequested, error: type[Exception], words: str
) -> None:
    desk = Desk(message_bytes_max=1000, call_messages=10, call_bytes=1500)
    with pytest.raises(error, match=words):
        desk.caller.handle(request_, 0)
    assert desk.caller.outstanding == ()
    assert desk.caller.next_number == 1


def test_when_time_goes_back_then_the_caller_stops() -> None:
    desk = Desk()
    desk.caller.handle(TimerFired(), 5)
    with pytest.raises(InvariantViolation):
        desk.caller.handle(TimerFired(), 4)
