"""What a member does with calls, requests and replies; what it remembers of callers."""

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from ordering.call_table import HELD_BACK_MAX, CallTable
from ordering.caller import CallRequested
from ordering.codec import DATAGRAM_MAX, encode
from ordering.config import MS, Config
from ordering.effects import CallAnswered, CallRepeated, CallsTaken, Deliver, Delivery, Effect, Unicast
from ordering.engine import Engine
from ordering.errors import MessageTooLarge, Overloaded, SubmitError
from ordering.events import PacketsReceived, Reply, ReplyRequested, SubmitRequested
from ordering.groups import Groups, InGroup
from ordering.multirpc import REPLY_BYTES_MAX, cut
from ordering.naming import group_id
from ordering.packets import (
    Answer,
    Call,
    CallFlag,
    Head,
    NonMemberAck,
    NonMemberData,
    NonMemberRefusal,
    NonMemberReply,
    Packet,
    Refusal,
)
from ordering.qos import (
    MAJORITY,
    TOTALLY_ORDERED,
    UNORDERED,
    Level,
    Qos,
    k_resilient,
)
from ordering.sealing import TAG_BYTES
from ordering.simulator.stage import Stage
from ordering.simulator.workload import LADDER
from ordering.views import Claim, Lock, LockTable, Member, Owner, SiteId, View, ViewId, handler_holder

CALLER = SiteId(500)
BOOT = 555
NONE = ViewId(0, 0)


def data(
    first: int,
    *messages: bytes,
    qos: Qos = MAJORITY,
    handler: int = 0,
    floor: int = 1,
    after: int = 0,
    view: ViewId | None = None,
    group: str = "scenario",
    sender: int = CALLER,
) -> NonMemberData:
    head = Head(group_id(group), 0, SiteId(sender), BOOT, 0, 0, 0, 0, 0)
    return NonMemberData(
        head, "c9", first, handler, 0, qos, messages or (b"m",), floor, after, view or NONE,
        bound=view is not None, turn=None,
    )  # fmt: skip


def hand(stage: Stage, address: str, *packets: Packet) -> list[Effect]:
    """Bring packets to a member in one drain, and let its host do what it asks for."""
    process = stage.process(address)
    since = len(stage.journal.effects)
    stage.cluster.handle(process, PacketsReceived(packets))
    return [effect for site, effect in stage.journal.effects[since:] if site == process.member.site]


def told(effects: list[Effect], kind: type[Packet]) -> list[Packet]:
    return [e.packet for e in effects if isinstance(e, Unicast) and isinstance(e.packet, kind)]


def refusals(effects: list[Effect]) -> list[Refusal]:
    return [p.reason for p in told(effects, NonMemberRefusal) if isinstance(p, NonMemberRefusal)]


def taken(effects: list[Effect]) -> list[list[int]]:
    return [[call.number for call in e.batch.calls] for e in effects if isinstance(e, CallsTaken)]


def deliveries(stage: Stage, address: str) -> Iterator[Delivery]:
    site = stage.process(address).member.site
    for at, effect in stage.journal.effects:
        if at == site and isinstance(effect, Deliver):
            yield from effect.deliveries


@pytest.fixture
def quiet() -> Stage:
    """Three members and nobody who answers calls: what is handed in by hand is watched by hand."""
    stage = Stage.born(3)
    stage._judges = []  # calls made up here were made by no process the checkers know
    return stage


# -- taking calls --------------------------------------------------------------------------------


def test_when_calls_come_in_one_drain_then_they_share_a_packet_by_quality(quiet: Stage) -> None:
    effects = hand(
        quiet,
        "s2",
        data(1, b"a"),
        data(1, b"b", sender=501),
        data(2, b"c", qos=TOTALLY_ORDERED, after=1),
        data(3, b"d", after=2),
    )
    assert taken(effects) == [[1, 1], [2], [3]]


def test_when_a_call_is_under_way_or_finished_then_a_copy_of_it_takes_no_place(quiet: Stage) -> None:
    assert taken(hand(quiet, "s2", data(1), data(1))) == [[1]]
    quiet.run(10 * MS)
    effects = hand(quiet, "s2", data(1))
    assert taken(effects) == []
    assert len(told(effects, NonMemberAck)) == 1
    hand(quiet, "s2", data(3, floor=3))
    assert taken(hand(quiet, "s2", data(2))) == []


def test_when_a_call_overtakes_another_then_it_waits_for_it(quiet: Stage) -> None:
    assert taken(hand(quiet, "s2", data(2, after=1))) == []
    assert taken(hand(quiet, "s2", data(3, after=2))) == []
    assert taken(hand(quiet, "s2", data(1))) == [[1, 2, 3]]


def test_when_a_call_is_lost_then_three_that_follow_it_make_the_member_say_so(quiet: Stage) -> None:
    effects = hand(quiet, "s2", data(2, after=1), data(3, after=2), data(4, after=3), data(5, after=4))
    assert taken(effects) == []
    assert refusals(effects) == [Refusal.GAP]


def test_when_the_call_before_has_its_answer_or_no_order_is_asked_then_nothing_is_waited_for(
    quiet: Stage,
) -> None:
    assert taken(hand(quiet, "s2", data(7, after=6, floor=7))) == [[7]]
    assert taken(hand(quiet, "s3", data(9, after=8, qos=UNORDERED))) == [[9]]


def test_when_another_member_has_had_the_call_before_delivered_then_the_next_may_follow(quiet: Stage) -> None:
    hand(quiet, "s2", data(1))
    quiet.run(10 * MS)
    assert taken(hand(quiet, "s3", data(2, after=1))) == [[2]]


@pytest.mark.parametrize("qos", LADDER, ids=lambda qos: qos.level.name)
def test_when_a_call_is_delivered_at_any_level_then_it_is_acknowledged_with_that_level(qos: Qos) -> None:
    stage = Stage.born(3)
    caller = stage.caller("c1", "s2")
    stage.call("c1", CallRequested((b"~x",), qos))
    stage.run(100 * MS)
    assert caller.caller.outstanding == ()
    for address in stage.addresses:
        (delivery,) = deliveries(stage, address)
        assert delivery.calls[0].number == 1
        assert delivery.owed == ()
    stage.finish()


def test_when_addressing_is_implicit_then_one_member_takes_the_call() -> None:
    stage = Stage.born(5)
    stage.caller("c1", *stage.addresses)
    stage.call("c1", CallRequested((b"x",), implicit=True))
    stage.run(50 * MS)
    assert [len(list(deliveries(stage, address))) for address in stage.addresses] == [1] * 5
    stage.finish()


def test_when_a_call_pretends_to_be_a_members_request_then_it_is_dropped(quiet: Stage) -> None:
    assert taken(hand(quiet, "s2", data(1, sender=1))) == []
    to_group = msgspec.structs.replace(data(1), flags=CallFlag.TO_GROUP.value)
    assert taken(hand(quiet, "s2", to_group)) == []
    assert quiet.process("s2").engine.site.counters["dropped: a call in a member's name"] == 2


# -- refusals and bounds -------------------------------------------------------------------------


def test_when_a_call_asks_for_more_holders_than_there_are_then_it_is_refused(quiet: Stage) -> None:
    assert refusals(hand(quiet, "s2", data(1, qos=k_resilient(3)))) == [Refusal.BAD_QOS]


def test_when_a_call_is_bound_to_another_view_then_the_refusal_names_the_current_one(quiet: Stage) -> None:
    (packet,) = told(hand(quiet, "s2", data(1, view=ViewId(7, 7))), NonMemberRefusal)
    assert isinstance(packet, NonMemberRefusal)
    assert packet.reason is Refusal.OTHER_VIEW
    assert packet.directory.view == ViewId(1, 0)
    assert set(packet.directory.addresses) == {"s1", "s2", "s3"}


def test_when_a_member_is_leaving_then_it_takes_no_calls(quiet: Stage) -> None:
    quiet.process("s2").engine.membership.leaving = True
    assert refusals(hand(quiet, "s2", data(1))) == [Refusal.NO_PRIMARY]


def test_when_calls_flood_a_member_then_half_of_its_window_is_left_for_its_own_messages() -> None:
    stage = Stage.born(3, window_messages=20)
    stage._judges = []
    stage.isolate("s2")  # nothing gets a place
    flood = [data(1, *[b"x"] * 4, sender=600 + number) for number in range(10)]
    effects = hand(stage, "s2", *flood)
    assert sum(map(len, taken(effects))) == 8
    assert set(refusals(effects)) == {Refusal.OVERLOADED}
    assert stage.submit("s2", *["own"] * 10) is None
    assert isinstance(stage.submit("s2", *["own"] * 3), Overloaded)


def test_when_one_caller_has_too_many_calls_under_way_then_it_is_refused() -> None:
    stage = Stage.born(3, call_messages=3)
    stage._judges = []
    stage.isolate("s2")
    effects = hand(stage, "s2", data(1, b"x", b"x", b"x"), data(4, after=3), data(1, sender=501))
    assert taken(effects) == [[1, 2, 3, 1]]
    assert refusals(effects) == [Refusal.OVERLOADED]


def test_when_callers_are_too_many_then_the_longest_silent_is_forgotten_with_its_replies() -> None:
    table = CallTable(Config(group="g", founders=("a",), callers_max=2))
    for number in (1, 2):
        record = table.record(SiteId(number), 1, "c")
        table.keep_reply(record, Answer(1, 1, b"12345"))
        table.hold_back(record, data(2, b"123", after=1))
    table.record(SiteId(1), 1, "c")
    table.record(SiteId(3), 1, "c")
    assert [site for site, _ in table.records] == [1, 3]
    assert (table.reply_bytes, table.held_back_bytes) == (5, 3)


def test_when_replies_take_too_many_bytes_then_the_oldest_go() -> None:
    config = Config(group="g", founders=("a",), call_bytes=10, reply_bytes=25, call_messages=2)
    table = CallTable(config)
    record = table.record(SiteId(1), 1, "c")
    for number, size in ((1, 6), (2, 6), (3, 1), (4, 1), (5, 11)):
        table.keep_reply(record, Answer(number, 1, b"x" * size))
    assert list(record.replies) == [3, 4]
    for number in range(2, 5):
        table.keep_reply(table.record(SiteId(number), 1, "c"), Answer(1, 1, b"x" * 10))
    assert table.reply_bytes == 20
    assert [site for (site, _), known in table.records.items() if known.replies] == [3, 4]


def test_when_a_reply_is_given_twice_then_the_first_stands() -> None:
    table = CallTable(Config(group="g", founders=("a",)))
    record = table.record(SiteId(1), 1, "c")
    first = table.keep_reply(record, Answer(1, 1, b"yes"))
    assert table.keep_reply(record, Answer(1, 2, b"no")) is first


def test_when_a_view_change_erases_a_place_then_the_call_counts_as_not_delivered() -> None:
    table = CallTable(Config(group="g", founders=("a",)))
    record = table.record(CALLER, BOOT, "c")
    table.note_delivered(record, 1, 9, Level.TOTALLY_ORDERED)
    table.erase_above(9)
    assert list(record.delivered) == [1]
    table.erase_above(8)
    assert list(record.delivered) == []
    assert record.last == 0, "what may be erased is no predecessor to build on"


def test_when_more_is_held_back_than_there_is_room_for_then_the_rest_is_not() -> None:
    table = CallTable(Config(group="g", founders=("a",)))
    record = table.record(CALLER, BOOT, "c")
    kept = [table.hold_back(record, data(n + 2, after=n + 1)) for n in range(HELD_BACK_MAX + 1)]
    assert kept == [True] * HELD_BACK_MAX + [False]


def test_cut_makes_parts_within_both_limits() -> None:
    assert list(cut([5, 5, 5, 20, 1, 1, 1], 10, 2)) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert list(cut([], 10, 2)) == []


# -- replies -------------------------------------------------------------------------------------


def test_when_a_request_is_delivered_then_only_the_holder_owes_the_reply() -> None:
    stage = Stage.born(3)
    stage.caller("c1", "s2")
    stage.call("c1", CallRequested((b"x", b"y"), handler=3))
    stage.run(20 * MS)
    view = stage.process("s1").view
    assert view is not None
    for address in stage.addresses:
        (delivery,) = deliveries(stage, address)
        is_holder = handler_holder(view, 3) == stage.process(address).member.site
        assert delivery.owed == ((0, 1) if is_holder else ())
    stage.finish()


def test_when_a_reply_does_not_fit_a_packet_then_it_is_refused_and_a_smaller_one_is_taken() -> None:
    stage = Stage.born(3)
    stage.caller("c1", "s2")
    process = stage.process("s1")
    call = Call(CALLER, BOOT, 1, "c9", 3, 0)
    most = REPLY_BYTES_MAX
    small, large = Reply(call, 5, b"x"), Reply(call, 5, bytes(most + 1))
    with pytest.raises(MessageTooLarge, match=f"a reply may have {most}"):
        process.engine.handle(ReplyRequested((small, large)), stage.cluster.clock.now)
    effects = process.engine.handle(ReplyRequested((Reply(call, 5, bytes(most)),)), stage.cluster.clock.now)
    (reply,) = told(effects, NonMemberReply)
    assert isinstance(reply, NonMemberReply)
    assert [len(answer.payload) for answer in reply.answers] == [most], (
        "nothing of the refused event was done"
    )
    assert len(encode(reply, 1)) <= DATAGRAM_MAX


def test_when_packets_are_as_large_as_datagrams_then_the_longest_reply_still_is_one() -> None:
    names = tuple(f"site-{number}.{'x' * 200}.example:7400" for number in range(60))
    config = Config(group="g", founders=names, packet_bytes=DATAGRAM_MAX)
    view = View(
        ViewId(1, 0),
        tuple(Member(SiteId(n), n, name) for n, name in enumerate(names, 1)),
        tuple(SiteId(n) for n in range(1, 61)),
        tuple(SiteId(n) for n in range(1, 61)),
    )
    engine = Engine(config, Member(SiteId(1), 1, names[0]), Random(1))
    engine.rpc.view = view
    head = Head(group_id("g"), 1, SiteId(1), BOOT, 0, 0, 0, 0, 0)
    answers = (Answer(1, 1 << 60, bytes(REPLY_BYTES_MAX)),)
    reply = NonMemberReply(head, BOOT, engine.rpc._directory(NONE), answers)
    assert len(reply.directory.addresses) > 2
    assert len(encode(reply, 1)) + TAG_BYTES <= DATAGRAM_MAX


def test_when_the_holder_has_no_reply_then_its_application_is_asked_and_others_pass_the_question_on(
    quiet: Stage,
) -> None:
    for process in quiet.cluster.processes.values():
        process.replica._execute = lambda item, call: None  # type: ignore[method-assign]
    hand(quiet, "s2", data(1, b"x", handler=1))
    quiet.run(20 * MS)
    (passed,) = told(hand(quiet, "s3", data(1, b"x", handler=1)), NonMemberData)
    assert isinstance(passed, NonMemberData)
    assert passed.passed_on
    (repeated,) = [e for e in hand(quiet, "s1", passed) if isinstance(e, CallRepeated)]
    assert (repeated.call.number, repeated.message) == (1, b"x")
    assert told(hand(quiet, "s2", passed), NonMemberData) == [], "it is passed on once"
    effects = hand(quiet, "s1", passed)
    quiet.cluster.handle(quiet.process("s1"), ReplyRequested((Reply(repeated.call, 5, b"yes"),)))
    effects = hand(quiet, "s1", passed)
    assert [e for e in effects if isinstance(e, CallRepeated)] == []
    (reply,) = told(effects, NonMemberReply)
    assert isinstance(reply, NonMemberReply)
    assert reply.answers == (Answer(1, 5, b"yes"),)


def test_when_a_member_requests_then_the_reply_comes_to_it_alone() -> None:
    stage = Stage.born(3)
    stage.cluster.request(stage.process("s3"), (b"x",), MAJORITY)
    stage.run(20 * MS)
    answered = [(site, e.number) for site, e in stage.journal.effects if isinstance(e, CallAnswered)]
    assert answered == [(stage.process("s3").member.site, 1)]
    stage.finish()


def test_when_a_member_wants_the_reply_in_the_group_then_all_are_told_what_it_answers() -> None:
    stage = Stage.born(3)
    stage.cluster.request(stage.process("s3"), (b"x",), MAJORITY, to_group=True)
    stage.run(50 * MS)
    for address in stage.addresses:
        request, reply = deliveries(stage, address)
        assert (reply.calls[0].caller, reply.calls[0].number) == (request.source, 1)
        assert reply.owed == ()
    assert not stage.process("s3").engine.submission.requests.waiting
    stage.finish()


def test_when_the_holder_asks_itself_then_it_answers_itself() -> None:
    stage = Stage.born(3)
    stage.cluster.request(stage.process("s1"), (b"x",), MAJORITY)
    stage.run(20 * MS)
    assert [e.number for _, e in stage.journal.effects if isinstance(e, CallAnswered)] == [1]
    assert stage.network.counts.get(("s1", "NonMemberReply"), 0) == 0
    stage.finish()


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (SubmitRequested((b"x",), handler=7), SubmitError),
        (SubmitRequested((b"x",), reply_to_group=True), SubmitError),
        (SubmitRequested((b"x",) * 6, handler=1), Overloaded),
    ],
)
def test_when_a_request_cannot_be_made_then_nothing_is_sent(
    request_: SubmitRequested, error: type[Exception]
) -> None:
    stage = Stage.born(3, call_messages=5)
    engine = stage.process("s1").engine
    with pytest.raises(error):
        engine.handle(request_, stage.cluster.clock.now)
    assert not engine.submission.outbox
    assert not engine.submission.requests.waiting


# -- several groups, and the holder --------------------------------------------------------------


def test_when_a_process_is_in_several_groups_then_calls_go_to_the_one_they_name() -> None:
    stages = {name: Stage.born(1, group=name) for name in ("one", "two")}
    groups = Groups()
    for name, stage in stages.items():
        process = stage.process("s1")
        groups.open(process.engine.site.config, process.member, Random(1))
        groups._by_name[name].engine = process.engine  # born already
        groups._by_name[name].drops = ""
    now = max(stage.cluster.clock.now for stage in stages.values())
    outcomes = groups.handle(PacketsReceived((data(1, group="two"), data(1, group="none"))), now)
    assert [(outcome.group, taken(outcome.effects)) for outcome in outcomes] == [("two", [[1]])]
    call = Call(CALLER, BOOT, 1, "c9", 1, 0)
    (outcome,) = groups.handle(InGroup("one", ReplyRequested((Reply(call, 1, b"y"),))), now)
    assert [packet.head.group for packet in told(outcome.effects, NonMemberReply)] == [group_id("one")]


def test_the_holder_is_who_the_view_gives_the_lock_to() -> None:
    lock = Lock(1, Claim(Owner(SiteId(2), 7), 0, 0))
    view = View(ViewId(1, 0), (), (SiteId(1), SiteId(2)), (SiteId(1),), locks=LockTable((lock,)))
    assert handler_holder(view, 1) == 2
    assert handler_holder(view, 2) == 0


def test_when_a_member_is_not_born_yet_then_calls_are_dropped() -> None:
    stage = Stage.born(3)
    engine = Engine(stage.cluster.config, stage.process("s1").member, Random(1))
    engine.handle(PacketsReceived((data(1),)), 1)
    assert engine.site.out == []
