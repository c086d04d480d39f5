"""Checkers of what is sent and asked for, against senders known to be bad and good ones."""

from typing import Any

from ordering.effects import Multicast, Unicast
from ordering.packets import Batch, Data, DataConfirm, Head, Nack, Part, Piece, PieceConfirm, Span
from ordering.pieces import Assembly
from ordering.qos import MAJORITY, UNORDERED, UNRELIABLE, Qos
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.exact_nacks import ExactNacks
from ordering.simulator.checkers.send_window import SendWindow
from ordering.views import NO_SITE, SiteId
from tests.simulation.handmade import assert_finds, stubs

HEAD = Head(1, 1, SiteId(1), 1, 1, 0, 0, 0, 0)


def sends(checker: Checker, process: Any, seq: int, size: int, qos: Qos = MAJORITY) -> None:
    batch = Batch(process.member.site, process.member.boot, seq, qos, (b"x" * size,))
    checker.on_effect(process, Multicast(("s2",), Data(HEAD, batch)), 0)


def sends_piece(checker: Checker, process: Any, seq: int, first: int, end: int) -> None:
    part = Part(process.member.site, process.member.boot, seq, MAJORITY, first, 9_000, b"x" * (end - first))
    checker.on_effect(process, Multicast(("s2",), Piece(HEAD, part, NO_SITE)), 0)


def test_send_window_accepts_a_sender_that_fills_its_window() -> None:
    checker = SendWindow()
    one, _ = stubs(2)
    sends(checker, one, 1, 600)
    sends(checker, one, 2, 400)
    sends(checker, one, 1, 600)  # again
    sends(checker, one, 0, 5_000, UNRELIABLE)
    assert checker.violations == []


def test_send_window_finds_a_packet_that_does_not_fit() -> None:
    checker = SendWindow()
    one, _ = stubs(2)
    sends(checker, one, 1, 600)
    sends(checker, one, 2, 401)
    assert_finds(checker, "sends 401 bytes of message 2 beside 600 under way; its window is 1000")


def test_send_window_lets_a_packet_go_when_nothing_is_under_way() -> None:
    checker = SendWindow()
    one, _ = stubs(2)
    sends(checker, one, 1, 5_000)
    assert checker.violations == []


def test_send_window_counts_both_lanes() -> None:
    checker = SendWindow()
    one, two = stubs(2)
    one.engine.lanes.outbox.pending = {1: None}
    sends(checker, one, 1, 600, UNORDERED)
    sends(checker, one, 1, 600)
    assert_finds(checker, "beside 600 under way")
    checker = SendWindow()
    sends(checker, one, 1, 600, UNORDERED)
    checker.on_effect(two, Unicast("s1", DataConfirm(HEAD, 9, 1)), 0)
    sends(checker, one, 1, 600)
    assert checker.violations == []


def test_send_window_follows_the_pieces_of_a_message() -> None:
    checker = SendWindow()
    one, two = stubs(2)
    for first in range(0, 1_000, 250):
        sends_piece(checker, one, 1, first, first + 250)
    checker.on_effect(two, Unicast("s1", PieceConfirm(HEAD, True, 1, 500)), 0)
    for first in (1_000, 1_250):
        sends_piece(checker, one, 1, first, first + 250)
    sends_piece(checker, one, 1, 1_000, 1_250)  # again
    assert checker.violations == []
    sends_piece(checker, one, 1, 1_500, 1_501)
    assert_finds(checker, "sends 1 bytes of message 1 beside 1000 under way")


def test_exact_nacks_finds_bytes_that_are_here() -> None:
    checker = ExactNacks()
    (one,) = stubs(1)
    assembly = Assembly(Part(SiteId(2), 2, 7, MAJORITY, 100, 900, b"x" * 100))
    assembly.add(100, b"x" * 100)
    one.engine.site.assemblies.lanes = {(SiteId(2), 2, True): {7: assembly}}

    def asks(first: int, end: int) -> None:
        nack = Nack(HEAD, NO_SITE, 0, 0, (), None, (Span(SiteId(2), 7, True, first, end),))
        checker.on_effect(one, Multicast(("s2",), nack), 0)

    asks(0, 100)
    asks(200, 900)
    assert checker.violations == []
    asks(0, 101)
    assert_finds(checker, "asks for bytes 0..101 of message 2:7 and has 100..200")
