"""The table of states and packets."""

from ordering.simulator.coverage import LEGAL_PERCENT_MIN, cover
from ordering.state import PACKET_TYPES, Meaning, State, packet_class

LEGAL = [
    (state.value, kind.__name__)
    for state in State
    for kind in PACKET_TYPES
    if packet_class(state, kind) is Meaning.LEGAL
]


def test_when_nothing_was_seen_then_nothing_is_covered() -> None:
    coverage = cover({})
    assert coverage.percent == 0
    assert len(coverage.cells) == len(State) * len(PACKET_TYPES)
    assert len(coverage.unseen) == len(LEGAL)
    assert not coverage.is_enough


def test_when_all_legal_pairs_were_seen_then_it_is_enough() -> None:
    coverage = cover(dict.fromkeys(LEGAL, 3))
    assert coverage.percent == 100
    assert coverage.is_enough
    assert all(cell.seen == 3 for cell in coverage.legal)


def test_when_too_many_legal_pairs_are_missing_then_it_is_not_enough() -> None:
    kept = int(len(LEGAL) * LEGAL_PERCENT_MIN / 100) - 1
    coverage = cover(dict.fromkeys(LEGAL[:kept], 1))
    assert coverage.percent < LEGAL_PERCENT_MIN
    assert not coverage.is_enough


def test_when_a_pair_is_not_in_the_table_then_it_is_a_violation() -> None:
    coverage = cover(dict.fromkeys(LEGAL, 1) | {("asleep", "Data"): 2})
    assert coverage.violations == ("unclassified: Data while asleep, seen 2 times",)
    assert not coverage.is_enough


def test_when_rows_are_asked_for_then_each_packet_has_every_state() -> None:
    rows = list(cover({}).rows())
    assert [packet for packet, _ in rows] == [kind.__name__ for kind in PACKET_TYPES]
    assert all([cell.state for cell in cells] == [state.value for state in State] for _, cells in rows)
