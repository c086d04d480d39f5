"""The states of a site, its legal moves, and which packet means something in which state.

Theory. A site's life has three parts. *Outside*: it is not started (IDLE), or waits to be born with
the group (FOUNDING) or to be let in (JOINING). *In the ring's epoch*: it follows the token. RMP §4.2
names the four places there: NOT_TOKEN_SITE, GETTING_PACKETS (named by an ACK but slots are missing,
so the token may not be taken yet), TOKEN_SITE, and PASSING_TOKEN (its ACK named another, who has not
shown up yet).
*Fenced*: it has promised to help end the epoch (PROMISED), leads that attempt (INITIATING), or
knows the decision and lacks packets before the sync point (CATCHING_UP). A fenced site gives no
ACK, takes no token, states no hold and delivers nothing (R4); only an install ends the fence.
GONE is final: the membership is over and a new engine must join.

The tables are data. ``MOVES`` is checked after every event; ``packet_class`` says for each (state,
packet) pair whether it is worked on (LEGAL), a leftover that is dropped and counted (STALE), or
impossible unless someone misbehaves (ILLEGAL). The simulator counts which pairs it has seen.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from ordering import packets as p


class State(Enum):
    IDLE = "idle"
    FOUNDING = "founding"
    JOINING = "joining"
    NOT_TOKEN_SITE = "not token site"
    GETTING_PACKETS = "getting packets"
    TOKEN_SITE = "token site"
    PASSING_TOKEN = "passing token"
    PROMISED = "promised"
    INITIATING = "initiating"
    CATCHING_UP = "catching up"
    GONE = "gone"


RING: Final = (State.NOT_TOKEN_SITE, State.GETTING_PACKETS, State.TOKEN_SITE, State.PASSING_TOKEN)
FENCED: Final = (State.PROMISED, State.INITIATING, State.CATCHING_UP)

# One event can carry a site through several places (take the token, order, pass it), so within the
# ring every move is possible. What matters is where the fences are.
MOVES: Final[Mapping[State, tuple[State, ...]]] = {
    State.IDLE: (State.FOUNDING, State.JOINING, *FENCED, *RING),
    State.FOUNDING: (State.JOINING, *FENCED, *RING, State.GONE),
    State.JOINING: (*RING, *FENCED, State.GONE),
    **{state: (*RING, *FENCED, State.GONE) for state in RING},
    **{state: (*RING, *FENCED, State.GONE) for state in FENCED},
    State.GONE: (),
}


class Meaning(Enum):
    LEGAL = "legal"
    STALE = "stale"
    ILLEGAL = "illegal"


_OUTSIDE_LEGAL: Final[Mapping[State, tuple[type, ...]]] = {
    State.FOUNDING: (p.Hello, p.RecoveryStart),
    State.JOINING: (p.NewList, p.Collected, p.NotMember),
}

_RING_LEGAL: Final = (
    p.Data, p.Ack, p.Confirm, p.Nack, p.NewList, p.ListChangeRequest, p.Probe, p.Collected,
    p.NotMember, p.Hello, p.Poll, p.PollReply, p.RecoveryStart, p.RecoveryNewList, p.DataConfirm,
    p.Orphan, p.ChainAlive, p.LockRequest, p.Forgotten, p.NonMemberData, p.NonMemberReply, p.Piece,
    p.PieceConfirm, p.ReadProbe, p.ReadReply,
)  # fmt: skip

# Votes, acceptances and refusals are answers to an initiator; elsewhere they are left over from an
# attempt that has ended. Who has promised answers no read (R4), and what it is answered is of an epoch
# that is about to end.
_FENCED_LEGAL: Final = (
    p.Data, p.Ack, p.Confirm, p.Nack, p.NewList, p.ListChangeRequest, p.Probe, p.Collected,
    p.NotMember, p.Hello, p.Poll, p.RecoveryStart, p.RecoveryNewList, p.DataConfirm,
    p.Orphan, p.ChainAlive, p.LockRequest, p.Forgotten, p.NonMemberData, p.NonMemberReply, p.Piece,
    p.PieceConfirm,
)  # fmt: skip

# What members send to callers, who have no state of this table (``ordering.caller``).
TO_CALLERS: Final[tuple[type, ...]] = (p.NonMemberAck, p.NonMemberRefusal)

_INITIATING_LEGAL: Final = (*_FENCED_LEGAL, p.RecoveryVote, p.RecoveryAckNewList, p.RecoveryAbort)

PACKET_TYPES: Final[tuple[type, ...]] = p.Packet.__args__


def packet_class(state: State, packet: type) -> Meaning:
    """Classify one pair. Every pair has a class: an unclassified one would be a hole in the theory."""
    if state is State.IDLE:
        return Meaning.ILLEGAL  # a host starts its engine before it opens the socket
    legal: tuple[type, ...]
    if state in RING:
        legal = _RING_LEGAL
    elif state is State.INITIATING:
        legal = _INITIATING_LEGAL
    elif state in FENCED:
        legal = _FENCED_LEGAL
    else:
        legal = _OUTSIDE_LEGAL.get(state, ())
    return Meaning.LEGAL if packet in legal else Meaning.STALE


LEGAL_PACKETS: Final[Mapping[State, frozenset[type]]] = {
    state: frozenset(t for t in PACKET_TYPES if packet_class(state, t) is Meaning.LEGAL) for state in State
}
