"""The tables of ``ordering.state``: complete, closed, and drawn in the documentation."""

import pytest

from ordering import packets as p
from ordering.simulator import diagram
from ordering.state import (
    FENCED,
    LEGAL_PACKETS,
    MOVES,
    PACKET_TYPES,
    RING,
    TO_CALLERS,
    Meaning,
    State,
    packet_class,
)

INSIDE = (*RING, *FENCED)
ANSWERS_TO_AN_INITIATOR = (p.RecoveryVote, p.RecoveryAckNewList, p.RecoveryAbort)


def is_reachable(start: State, goal: State) -> bool:
    seen: list[State] = [start]
    for state in seen:
        seen += [target for target in MOVES[state] if target not in seen]
    return goal in seen


# -- moves ---------------------------------------------------------------------------------------


def test_every_state_has_its_moves() -> None:
    assert list(MOVES) == list(State)


def test_moves_are_closed_and_name_each_target_once() -> None:
    for state, targets in MOVES.items():
        assert all(target in State for target in targets)
        assert len(set(targets)) == len(targets), f"{state} lists a move twice"


def test_no_state_but_the_first_is_unreachable() -> None:
    unreachable = [state for state in State if not is_reachable(State.IDLE, state)]
    assert not unreachable


def test_when_a_membership_is_over_then_nothing_follows() -> None:
    assert MOVES[State.GONE] == ()
    assert all(is_reachable(state, State.GONE) for state in State)


@pytest.mark.parametrize("state", INSIDE)
def test_when_a_site_has_a_chain_then_it_never_founds_or_joins_again(state: State) -> None:
    assert not {State.IDLE, State.FOUNDING, State.JOINING} & set(MOVES[state])


def test_ring_and_fence_have_no_state_in_common() -> None:
    assert not set(RING) & set(FENCED)


# -- packets -------------------------------------------------------------------------------------


def test_every_packet_has_a_type_in_the_table() -> None:
    tags = [kind.__struct_config__.tag for kind in PACKET_TYPES]  # type: ignore[attr-defined]
    assert tags == sorted(set(tags)), "packet types are listed by their tags, each once"


@pytest.mark.parametrize("state", State)
def test_every_pair_is_classified(state: State) -> None:
    legal = {kind for kind in PACKET_TYPES if packet_class(state, kind) is Meaning.LEGAL}
    assert legal == LEGAL_PACKETS[state]


@pytest.mark.parametrize("kind", PACKET_TYPES)
def test_every_packet_is_legal_somewhere(kind: type) -> None:
    legal = [state for state in State if packet_class(state, kind) is Meaning.LEGAL]
    assert bool(legal) is (kind not in TO_CALLERS), "what only callers get is a leftover to members"


def test_when_not_started_then_every_packet_is_illegal_and_elsewhere_none_is() -> None:
    for state in State:
        illegal = [kind for kind in PACKET_TYPES if packet_class(state, kind) is Meaning.ILLEGAL]
        assert illegal == (list(PACKET_TYPES) if state is State.IDLE else [])


def test_when_gone_then_every_packet_is_stale() -> None:
    assert LEGAL_PACKETS[State.GONE] == frozenset()


@pytest.mark.parametrize("kind", ANSWERS_TO_AN_INITIATOR)
def test_answers_to_an_initiator_mean_something_only_to_one(kind: type) -> None:
    assert [state for state in State if kind in LEGAL_PACKETS[state]] == [State.INITIATING]


@pytest.mark.parametrize("kind", [p.Nack, p.RecoveryStart, p.NewList, p.Data, p.Ack])
def test_when_fenced_then_a_site_still_retransmits_votes_and_fetches(kind: type) -> None:
    assert all(kind in LEGAL_PACKETS[state] for state in FENCED)


# -- the drawing ---------------------------------------------------------------------------------


def test_the_documentation_shows_these_tables() -> None:
    written = diagram.PATH.read_text(encoding="utf-8") if diagram.PATH.exists() else ""
    assert written == diagram.document(), f"docs/states.md is out of date; run: {diagram.COMMAND}"


def test_the_drawing_names_every_state_and_every_packet() -> None:
    text = diagram.document()
    assert all(f'"{state.value}" as {state.name}' in text for state in State)
    assert all(f"| {kind.__name__} |" in text for kind in PACKET_TYPES)
