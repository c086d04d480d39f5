"""Checkers of calls against histories known to be bad, and the good ones next to them."""

from types import SimpleNamespace
from typing import Any

import pytest

from ordering.caller import CallRequested
from ordering.effects import (
    CallAcknowledged,
    CallAnswered,
    CallFailed,
    CallFailure,
    CallsTaken,
    Delivery,
    LevelReached,
    Unicast,
)
from ordering.packets import Answer, Batch, Call, Directory, NonMemberReply
from ordering.qos import MAJORITY, TOTALLY_ORDERED, Level, Qos
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.call_integrity import CallIntegrity
from ordering.simulator.checkers.call_liveness import CallLiveness
from ordering.simulator.checkers.call_resilience import CallResilience
from ordering.simulator.checkers.caller_order import CallerOrder
from ordering.simulator.checkers.one_reply import OneReply
from ordering.views import Member, SiteId, ViewId
from tests.simulation.handmade import (
    SETTLED,
    assert_finds,
    cluster_of,
    deliver,
    install,
    packet_from,
    stubs,
    tell,
    view,
)

CALLER = Member(SiteId(900), 9, "c1")
VIEW = ViewId(1, 0)


def call(number: int, handler: int = 0) -> Call:
    return Call(CALLER.site, CALLER.boot, number, "c1", handler, 0)


def delivery(
    ts: int, number: int, *, text: bytes = b"m", handler: int = 0, qos: Qos = MAJORITY, owed: bool = False
) -> Delivery:
    calls = (call(number, handler),)
    return Delivery(ts, SiteId(1), 1, qos, qos.level, (text,), 0, calls, (0,) if owed else ())


def made(checker: Checker, first: int, *texts: bytes, **options: Any) -> None:
    checker.on_called(CALLER, first, CallRequested(texts or (b"m",), **options), 0)


# -- call_integrity ----------------------------------------------------------------------------------


def test_when_calls_are_delivered_as_they_were_made_then_integrity_is_silent() -> None:
    checker = CallIntegrity()
    made(checker, 1, b"m", handler=2)
    one, two, _ = stubs()
    tell(checker, one, install(), deliver(delivery(5, 1, handler=2, owed=True)), LevelReached(5, 0))
    tell(checker, two, install(), deliver(delivery(5, 1, handler=2)), deliver(delivery(9, 1, handler=2)))
    assert checker.violations == []


@pytest.mark.parametrize(
    "wrong",
    [
        delivery(5, 2),
        delivery(5, 1, text=b"other"),
        delivery(5, 1, handler=1),
        delivery(5, 1, qos=TOTALLY_ORDERED),
    ],
    ids=["number", "message", "handler", "quality"],
)
def test_when_a_call_is_delivered_that_nobody_made_so_then_integrity_says_so(wrong: Delivery) -> None:
    checker = CallIntegrity()
    made(checker, 1)
    tell(checker, stubs()[0], install(), deliver(wrong))
    assert_finds(checker, "nobody made so")


def test_when_two_sites_owe_a_reply_then_integrity_says_so() -> None:
    checker = CallIntegrity()
    made(checker, 1, handler=1)
    for process in stubs()[:2]:
        process.majority = 5
        tell(checker, process, install(), deliver(delivery(5, 1, handler=1, owed=True)))
    assert_finds(checker, "both to reply")


def test_when_a_bound_call_is_taken_in_another_view_then_integrity_says_so() -> None:
    checker = CallIntegrity()
    made(checker, 1, view=ViewId(1, 0))
    one, two, _ = stubs()
    taken = CallsTaken(Batch(SiteId(1), 1, 1, MAJORITY, (b"m",), (call(1),)))
    tell(checker, one, install(), taken)
    assert checker.violations == []
    tell(checker, two, install(shown=view(2)), taken)
    assert_finds(checker, "bound to view 1.0")


# -- call_resilience ---------------------------------------------------------------------------------


def test_when_an_answer_stands_on_what_is_final_then_resilience_is_silent() -> None:
    checker = CallResilience()
    processes = stubs()
    for process in processes:
        tell(checker, process, install(), deliver(delivery(5, 1), delivery(6, 2)), LevelReached(6, 0))
    checker.on_caller_effect(CALLER, CallAcknowledged(1, 5, Level.MAJORITY, VIEW), 1)
    checker.on_caller_effect(CALLER, CallAnswered(2, 6, b"x", VIEW), 1)
    checker.on_caller_effect(CALLER, CallAcknowledged(3, 9, Level.TOTALLY_ORDERED, VIEW), 1)
    checker.finish(cluster_of(processes), SETTLED)
    assert checker.violations == []


def test_when_a_call_is_answered_before_it_is_final_anywhere_then_resilience_says_so() -> None:
    checker = CallResilience()
    weak = delivery(5, 1, qos=TOTALLY_ORDERED)
    tell(checker, stubs()[0], install(), deliver(weak))
    checker.on_caller_effect(CALLER, CallAcknowledged(1, 5, Level.MAJORITY, VIEW), 1)
    assert_finds(checker, "final nowhere")


def test_when_a_survivor_lacks_an_answered_call_then_resilience_says_so() -> None:
    checker = CallResilience()
    processes = stubs()
    tell(checker, processes[0], install(), deliver(delivery(5, 1)), LevelReached(5, 0))
    tell(checker, processes[1], install())
    checker.on_caller_effect(CALLER, CallAnswered(1, 5, b"x", VIEW), 1)
    checker.finish(cluster_of(processes), SETTLED)
    assert_finds(checker, "not final at site 2")


# -- caller_order ------------------------------------------------------------------------------------


def order_of(*places: tuple[int, int], failed: int = 0, **options: Any) -> CallerOrder:
    """Calls at (slot, number)."""
    checker = CallerOrder()
    for number in sorted({number for _, number in places}):
        made(checker, number, **options)
    process = stubs()[0]
    tell(checker, process, install(), *(deliver(delivery(ts, number)) for ts, number in places))
    if failed:
        checker.on_caller_effect(CALLER, CallFailed(failed, CallFailure.UNANSWERED, VIEW), 1)
    checker.finish(cluster_of([process]), SETTLED)
    return checker


def test_when_only_a_repetition_comes_late_then_the_order_of_calls_is_kept() -> None:
    assert order_of((5, 1), (6, 2), (7, 1), (8, 3)).violations == []


def test_when_a_later_call_comes_first_then_the_order_of_calls_is_broken() -> None:
    assert_finds(order_of((5, 2), (6, 1)), "before call 1")


def test_when_the_caller_gave_up_or_did_not_wait_then_nothing_is_claimed() -> None:
    assert order_of((5, 2), (6, 1), failed=1).violations == []
    assert order_of((5, 2), (6, 1), acknowledged=False).violations == []


# -- one_reply ---------------------------------------------------------------------------------------


def reply(process: Any, payload: bytes) -> Unicast:
    answers = (Answer(1, 5, payload),)
    return Unicast("c1", NonMemberReply(packet_from(process), CALLER.boot, Directory(VIEW, ()), answers))


def test_when_two_holders_reply_alike_then_it_is_one_reply_and_else_not() -> None:
    checker = OneReply()
    one, two, three = stubs()
    tell(checker, one, reply(one, b"x"))
    tell(checker, two, reply(two, b"x"))
    checker.finish(cluster_of([one]), SETTLED)
    assert checker.violations == []
    tell(checker, three, reply(three, b"y"))
    checker.finish(cluster_of([one]), SETTLED)
    assert_finds(checker, "after b'x'")


# -- call_liveness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alive", [True, False])
def test_when_a_caller_that_lives_has_no_answer_then_liveness_says_so(alive: bool) -> None:
    checker = CallLiveness()
    cluster = cluster_of(stubs())
    made_calls = SimpleNamespace(next_number=4, outstanding=(3,))
    cluster.callers["c1"] = SimpleNamespace(member=CALLER, alive=alive, caller=made_calls)
    checker.on_healed(cluster, 0)
    checker.finish(cluster, SETTLED)
    assert bool(checker.violations) is alive
    made_calls.outstanding = (4,)  # made after the run healed
    checker.violations.clear()
    checker.finish(cluster, SETTLED)
    assert checker.violations == []


def test_when_a_member_has_no_reply_to_its_request_then_liveness_says_so() -> None:
    checker = CallLiveness()
    processes = stubs()
    cluster = cluster_of(processes)
    for process in processes:
        process.view = view()
    processes[1].engine.submission.requests = SimpleNamespace(waiting={1: None}, next_number=2)
    checker.on_healed(cluster, 0)
    checker.finish(cluster, SETTLED)
    assert_finds(checker, "site 2")
