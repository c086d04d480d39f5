"""Checkers of order and membership against histories known to be bad, and the good ones next to them."""

import pytest

from ordering.effects import (
    Delivery,
    Effect,
    InstallView,
    LevelReached,
    Retract,
)
from ordering.packets import Descent
from ordering.qos import (
    SOURCE_ORDERED,
    TOTAL,
    TOTALLY_ORDERED,
    UNORDERED,
    UNRELIABLE,
    Level,
    Qos,
)
from ordering.simulator.checkers import ALL_CHECKERS, make_checkers
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.causal_order import CausalOrder
from ordering.simulator.checkers.digest import Digest
from ordering.simulator.checkers.history import OrderChecker
from ordering.simulator.checkers.integrity import Integrity
from ordering.simulator.checkers.source_order import SourceOrder
from ordering.simulator.checkers.total_order import TotalOrder
from ordering.simulator.checkers.view_agreement import ViewAgreement
from ordering.simulator.checkers.virtual_synchrony import VirtualSynchrony
from ordering.views import View
from tests.simulation.handmade import (
    CHAIN,
    assert_finds,
    deliver,
    install,
    message,
    stubs,
    submit,
    tell,
    view,
)

# -- the set -----------------------------------------------------------------------------------------


def test_every_checker_has_its_own_name_and_states_its_claim() -> None:
    assert len({checker.name for checker in ALL_CHECKERS}) == len(ALL_CHECKERS) == 27
    for checker in ALL_CHECKERS:
        assert (checker.__doc__ or "") != (Checker.__doc__ or ""), checker.name


def test_make_checkers_shares_one_history_and_runs_do_not_share_it() -> None:
    first, second = make_checkers(), make_checkers()
    assert [type(checker) for checker in first] == list(ALL_CHECKERS)
    histories = [{id(c.history) for c in run if isinstance(c, OrderChecker)} for run in (first, second)]
    assert len(histories[0]) == len(histories[1]) == 1
    assert histories[0] != histories[1]


# -- total order -------------------------------------------------------------------------------------


def test_total_order_accepts_equal_histories_and_a_learner_that_starts_later() -> None:
    checker = TotalOrder()
    one, two, learner = stubs()
    joined = install(4, view(1, 1))
    tell(checker, one, install(), deliver(message(3, 1, 1)), LevelReached(3, 1))
    tell(
        checker, two, install(), deliver(message(3, 1, 1, reached=Level.TOTALLY_ORDERED)), LevelReached(1, 1)
    )
    for process in (one, two, learner):
        tell(checker, process, joined, deliver(message(6, 2, 1), revision=1), LevelReached(6, 4))
    assert checker.violations == []


def test_total_order_finds_two_messages_in_one_slot() -> None:
    checker = TotalOrder()
    one, two, _ = stubs()
    tell(checker, one, install(), deliver(message(3, 1, 1)), LevelReached(3, 1))
    tell(checker, two, install(), deliver(message(3, 2, 1)), LevelReached(3, 1))
    assert_finds(checker, "slot 3 at site 2")


def test_total_order_finds_a_message_one_process_skipped() -> None:
    checker = TotalOrder()
    one, two, _ = stubs()
    tell(checker, one, install(), deliver(message(3, 1, 1), message(4, 1, 2)), LevelReached(4, 1))
    tell(checker, two, install(), deliver(message(4, 1, 2)), LevelReached(4, 1))
    assert_finds(checker, "site 2 goes on from slot 1 with 4, others with 3")


def test_total_order_lets_source_ordered_messages_run_ahead_of_their_slot() -> None:
    checker = TotalOrder()
    one, two, _ = stubs()
    tell(
        checker,
        one,
        install(),
        deliver(message(3, 1, 1, SOURCE_ORDERED), message(4, 1, 2)),
        LevelReached(4, 1),
    )
    tell(checker, two, install(), deliver(message(0, 1, 1, SOURCE_ORDERED)), LevelReached(1, 1))
    tell(checker, two, deliver(message(4, 1, 2)), LevelReached(4, 1))
    assert checker.violations == []


def test_total_order_finds_timestamps_that_go_back() -> None:
    checker = TotalOrder()
    (one,) = stubs(1)
    tell(
        checker, one, install(), deliver(message(4, 1, 2, TOTALLY_ORDERED), message(3, 1, 1, TOTALLY_ORDERED))
    )
    assert_finds(checker, "slot 3 was delivered after slot 4")


def test_total_order_ignores_what_was_retracted() -> None:
    checker = TotalOrder()
    one, two, _ = stubs()
    tell(checker, one, install(), deliver(message(3, 1, 1, TOTALLY_ORDERED)), LevelReached(1, 1))
    tell(checker, one, Retract(1))
    tell(checker, two, install(), LevelReached(1, 1))
    for process in (one, two):
        again = deliver(message(4, 1, 1, TOTALLY_ORDERED), epoch=2)
        tell(checker, process, install(3, view(2)), again, LevelReached(4, 3))
    assert checker.violations == []


def test_total_order_finds_a_retract_of_something_final() -> None:
    checker = TotalOrder()
    (one,) = stubs(1)
    tell(checker, one, install(), deliver(message(3, 1, 1, TOTALLY_ORDERED)), LevelReached(3, 1), Retract(1))
    assert_finds(checker, "slots above 1 were retracted, final up to 3")


def test_total_order_finds_a_majority_delivery_that_no_majority_holds() -> None:
    checker = TotalOrder()
    (one,) = stubs(1)
    tell(checker, one, install(), LevelReached(1, 1), deliver(message(3, 1, 1)))
    assert_finds(checker, "delivered slot 3 at MAJORITY")


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ((install(), LevelReached(5, 1), LevelReached(4, 1)), "went back from 5 to 4"),
        ((install(), deliver(message(5, 1, 1)), install(4, view(1, 1))), "slot 4 was installed after slot 5"),
        ((deliver(message(3, 1, 1)),), "slot 3 was delivered before any view"),
    ],
    ids=["level goes back", "view behind messages", "no view"],
)
def test_total_order_finds_what_makes_no_sense_at_one_process(
    effects: tuple[Effect, ...], words: str
) -> None:
    checker = TotalOrder()
    (one,) = stubs(1)
    tell(checker, one, *effects)
    assert_finds(checker, words)


def test_total_order_finds_another_view_in_a_slot() -> None:
    checker = TotalOrder()
    one, two, _ = stubs()
    tell(checker, one, install(), LevelReached(1, 1))
    tell(checker, two, install(1, view(ring=(2, 1, 3))), LevelReached(1, 1))
    assert_finds(checker, "slot 1 at site 2")


# -- causal order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer_ts", "broken"), [(4, False), (2, True)])
def test_causal_order_wants_an_answer_behind_what_its_sender_knew(answer_ts: int, broken: bool) -> None:
    checker = CausalOrder()
    one, _, three = stubs()
    tell(checker, one, install(), deliver(message(3, 2, 1)), LevelReached(3, 1))
    submit(checker, one, 1, "1-1")
    tell(checker, three, install(), deliver(message(answer_ts, 1, 1)), LevelReached(answer_ts, 1))
    assert bool(checker.violations) is broken
    if broken:
        assert_finds(checker, "message 1:1 has slot 2, but its submitter already knew slot 3")


def test_causal_order_counts_a_transferred_state_as_known() -> None:
    checker = CausalOrder()
    one, two, _ = stubs()
    two.replica.ts = 9
    checker.on_restored(two, one, 0)
    submit(checker, two, 1, "2-1")
    tell(checker, one, install(), deliver(message(8, 2, 1)), LevelReached(8, 1))
    assert_finds(checker, "already knew slot 9")


def test_causal_order_finds_own_messages_swapped() -> None:
    checker = CausalOrder()
    (one,) = stubs(1)
    submit(checker, one, 1, "1-1")
    submit(checker, one, 2, "1-2")
    tell(checker, one, install(), deliver(message(3, 1, 2), message(4, 1, 1)), LevelReached(4, 1))
    assert_finds(checker, "got message 1:1 after 1:2")


# -- source order ------------------------------------------------------------------------------------


def test_source_order_accepts_mixed_levels_and_a_retract() -> None:
    checker = SourceOrder()
    (one,) = stubs(1)
    tell(
        checker, one, install(), deliver(message(3, 2, 1, TOTALLY_ORDERED), message(0, 2, 2, SOURCE_ORDERED))
    )
    tell(checker, one, Retract(1), install(2, view(2)))
    tell(
        checker, one, deliver(message(4, 2, 1, TOTALLY_ORDERED), epoch=2), deliver(message(6, 2, 3), epoch=2)
    )
    assert checker.violations == []


@pytest.mark.parametrize(
    ("seqs", "words"),
    [((1, 3), "2:3, expected 2"), ((1, 1), "2:1, expected 2"), ((2, 1), "2:2, expected 1")],
    ids=["gap", "twice", "late start"],
)
def test_source_order_finds_gaps_and_repeats(seqs: tuple[int, ...], words: str) -> None:
    checker = SourceOrder()
    (one,) = stubs(1)
    deliveries = [message(3 + index, 2, seq, TOTALLY_ORDERED) for index, seq in enumerate(seqs)]
    tell(checker, one, install(), deliver(*deliveries))
    assert_finds(checker, words)


def test_source_order_finds_a_repeat_of_what_ran_ahead_after_a_retract() -> None:
    checker = SourceOrder()
    (one,) = stubs(1)
    tell(
        checker, one, install(), deliver(message(3, 2, 1, TOTALLY_ORDERED), message(0, 2, 2, SOURCE_ORDERED))
    )
    tell(checker, one, Retract(1), install(2, view(2)))
    again = (message(4, 2, 1, TOTALLY_ORDERED), message(0, 2, 2, SOURCE_ORDERED))
    tell(checker, one, deliver(*again, epoch=2))
    assert_finds(checker, "2:2, expected 3")


def test_source_order_lets_a_learner_start_anywhere_but_not_with_a_source_that_came_later() -> None:
    checker = SourceOrder()
    (learner,) = stubs(1)
    tell(checker, learner, install(9, view(2, 1)), deliver(message(11, 2, 7), epoch=2, revision=1))
    assert checker.violations == []
    tell(checker, learner, deliver(message(12, 9, 5), epoch=2, revision=1))
    assert_finds(checker, "9:5, expected 1")


# -- integrity ---------------------------------------------------------------------------------------


def test_integrity_accepts_what_was_submitted_once_final() -> None:
    checker = Integrity()
    one, two, _ = stubs()
    submit(checker, one, 1, "1-1", qos=TOTALLY_ORDERED)
    submit(checker, one, 1, "u", qos=UNORDERED)
    submit(checker, one, 2, "loose", qos=UNRELIABLE)
    loose = message(0, 1, 0, UNRELIABLE, text="loose")
    tell(checker, two, install(), deliver(message(3, 1, 1, TOTALLY_ORDERED)), Retract(1))
    tell(checker, two, deliver(message(4, 1, 1, TOTALLY_ORDERED)), LevelReached(4, 1))
    tell(checker, two, deliver(message(0, 1, 1, UNORDERED, text="u"), loose, loose))
    assert checker.violations == []


@pytest.mark.parametrize(
    "wrong",
    [
        message(3, 1, 1, text="forged"),
        message(3, 1, 2),
        message(3, 2, 1, text="1-1"),
        message(3, 1, 1, TOTAL),
        message(0, 1, 0, UNRELIABLE, text="forged"),
    ],
    ids=["content", "sequence number", "source", "quality", "unreliable content"],
)
def test_integrity_finds_what_nobody_submitted(wrong: Delivery) -> None:
    checker = Integrity()
    one, two, _ = stubs()
    submit(checker, one, 1, "1-1")
    tell(checker, two, install(), deliver(wrong), LevelReached(3, 1))
    assert_finds(checker, "which nobody submitted so")


@pytest.mark.parametrize("qos", [TOTALLY_ORDERED, UNORDERED], ids=["ordered", "unordered"])
def test_integrity_finds_a_message_delivered_twice(qos: Qos) -> None:
    checker = Integrity()
    one, two, _ = stubs()
    submit(checker, one, 1, "1-1", qos=qos)
    slots = (0, 0) if qos == UNORDERED else (3, 4)
    tell(checker, two, install(), *(deliver(message(ts, 1, 1, qos)) for ts in slots), LevelReached(4, 1))
    assert_finds(checker, "got message 1:1 twice")


def test_integrity_finds_sequence_numbers_given_twice() -> None:
    checker = Integrity()
    (one,) = stubs(1)
    submit(checker, one, 1, "a", "b")
    submit(checker, one, 2, "c")
    assert_finds(checker, "numbered a submission 2, its next number is 3")


# -- virtual synchrony -------------------------------------------------------------------------------


def test_virtual_synchrony_accepts_the_same_messages_between_the_same_views() -> None:
    checker = VirtualSynchrony()
    for process in stubs():
        tell(checker, process, install(), deliver(message(3, 1, 1)), install(4, view(1, 1)))
        tell(checker, process, deliver(message(6, 1, 2), revision=1), LevelReached(6, 4))
    assert checker.violations == []


def test_virtual_synchrony_finds_different_messages_between_the_same_views() -> None:
    checker = VirtualSynchrony()
    one, two, _ = stubs()
    tell(checker, one, install(), deliver(message(3, 1, 1)), install(5, view(1, 1)))
    tell(checker, two, install(), install(5, view(1, 1)))
    assert_finds(checker, "from view 1.0 to 1.1 sites 2 and 1 differ")


def test_virtual_synchrony_finds_another_next_view() -> None:
    checker = VirtualSynchrony()
    one, two, _ = stubs()
    tell(checker, one, install(), install(5, view(1, 1)))
    tell(checker, two, install(), install(6, view(2)))
    assert_finds(checker, "after view 1.0 site 2 installed 2.0 at slot 6")


@pytest.mark.parametrize(
    "effects",
    [
        (install(), deliver(message(3, 1, 1), revision=1)),
        (install(5), deliver(message(3, 1, 1))),
        (deliver(message(3, 1, 1)),),
    ],
    ids=["wrong view", "slot before the view", "no view"],
)
def test_virtual_synchrony_finds_a_message_in_the_wrong_view(effects: tuple[Effect, ...]) -> None:
    checker = VirtualSynchrony()
    (one,) = stubs(1)
    tell(checker, one, *effects)
    assert_finds(checker, "got slot 3 as of view")


# -- view agreement ----------------------------------------------------------------------------------


def test_view_agreement_accepts_one_chain_with_single_changes() -> None:
    checker = ViewAgreement()
    learner_in = view(1, 1, (1, 2, 3, 4), voters=(1, 2, 3))
    replaced = view(1, 2, (2, 3, 4))
    for process in stubs():
        tell(checker, process, install(), install(4, learner_in), install(6, replaced))
        tell(
            checker,
            process,
            install(8, view(2, 0, (2, 3, 4), ring=(3, 4))),
            deliver(message(9, 2, 1), epoch=2),
        )
    assert checker.violations == []


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (install(4), install(4, view(ring=(2, 1, 3))), "slot 4: site 2 installed"),
        (install(4, view(2)), install(6, view(1, 1)), "view 2.0 at slot 4 is not below 1.1 at slot 6"),
        (install(6, view(1, 1)), install(4, view(2)), "view 2.0 at slot 4 is not below 1.1 at slot 6"),
        (install(1), install(1, chain=78), "although chain 4d was born"),
    ],
    ids=["other view at a slot", "id goes back", "id goes back, seen late", "second chain"],
)
def test_view_agreement_finds_processes_that_differ(
    first: InstallView, second: InstallView, words: str
) -> None:
    checker = ViewAgreement()
    one, two, _ = stubs()
    tell(checker, one, first)
    tell(checker, two, second)
    assert_finds(checker, words)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (view(1, 1, (1, 4, 5)), "at most 1 may"),
        (view(1, 1, (3,)), "at most 1 may"),
        (view(2, 0, (1, 2)), "at most 0 may"),
        (view(1, 1, ring=(1, 9)), "not in"),
        (view(1, 1, voters=(1, 2, 3, 9)), "not in"),
        (view(1, 1, ring=()), "empty ring"),
    ],
    ids=["two in", "two out", "voter out by failure", "ring", "electorate", "empty ring"],
)
def test_view_agreement_finds_views_of_a_wrong_shape(after: View, words: str) -> None:
    checker = ViewAgreement()
    (one,) = stubs(1)
    tell(checker, one, install(), install(4, after))
    assert_finds(checker, words)


@pytest.mark.parametrize(
    ("kept", "words"), [((1, 2), ""), ((1, 4), "at most 0 may")], ids=["some voters", "a stranger"]
)
def test_view_agreement_lets_some_voters_go_on_in_a_fork(kept: tuple[int, ...], words: str) -> None:
    checker = ViewAgreement()
    one, two, _ = stubs()
    tell(checker, one, install())
    tell(checker, two, install(), install(4, view(2)))
    one.engine.site.descent = Descent(CHAIN, 1)
    tell(checker, one, install(4, view(2, 0, kept), chain=78))
    if words:
        assert_finds(checker, words)
    else:
        assert checker.violations == []


def test_view_agreement_finds_a_majority_delivery_outside_of_any_view() -> None:
    checker = ViewAgreement()
    (one,) = stubs(1)
    tell(checker, one, deliver(message(3, 1, 1)))
    assert_finds(checker, "outside of any view")


# -- digest ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("other", "broken"), [(b"a", False), (b"b", True)])
def test_digest_wants_equal_states_at_equal_timestamps(other: bytes, broken: bool) -> None:
    checker = Digest()
    one, two, _ = stubs()
    checker.on_applied(one, 3, b"a", 0)
    checker.on_applied(one, 4, b"c", 0)
    checker.on_applied(two, 3, other, 0)
    assert bool(checker.violations) is broken
    if broken:
        assert_finds(checker, "at slot 3 site 2 has digest 62, site 1 has 61")
