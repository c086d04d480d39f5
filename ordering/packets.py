"""What travels between sites. The names are RMP's (figure 4.1) where RMP has one.

Every packet carries a ``Head``: who speaks, in which chain and epoch, and the speaker's frontiers.
That is the positive notification which makes stability free of extra packets (DTP §3): whoever
hears anything from a site learns how far that site holds the order.

A block of the total order is an ``Order``: it takes slot ``ts`` itself and gives one slot to each
message of its runs. An Ack carries an Order with runs; a NewList carries an Order with a view. An
Order is immutable, whoever retransmits it: the head speaks for the sender, the Order for its epoch.
"""

from enum import IntEnum
from typing import TypeAlias

import msgspec

from ordering.qos import Qos
from ordering.views import NO_SITE, Member, SiteId, View

_set = msgspec.structs.force_setattr


class Descent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a chain comes from: the chain that was born, and how often it forked since (R9)."""

    root: int
    depth: int


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sender's identity and frontiers. A promised site states zeros: R4 forbids it to hold."""

    group: int
    chain: int
    sender: SiteId
    boot: int
    epoch: int
    received: int
    held: int
    majority: int
    stable: int


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``count`` consecutive messages of one source; R10 orders a source contiguously."""

    source: SiteId
    first_seq: int
    count: int

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Messages that travel together: RMP's data packet body, many messages to the packet.

    ``last_seq`` and ``size``, the bytes of all messages, do not travel: they follow from the rest, once
    for a packet instead of at every use.
    """

    source: SiteId
    boot: int
    first_seq: int
    qos: Qos
    messages: tuple[bytes, ...]
    last_seq: int = -1
    size: int = -1

    def __post_init__(self) -> None:
        messages = self.messages
        if self.size < 0:
            _set(self, "size", len(messages[0]) if len(messages) == 1 else len(b"".join(messages)))
        _set(self, "last_seq", self.first_seq + len(messages) - 1)


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Bytes ``offset`` … of message ``seq``, which has ``total``: what does not fit a packet is cut."""

    source: SiteId
    boot: int
    seq: int
    qos: Qos
    offset: int
    total: int
    data: bytes


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes ``first`` … ``end`` (without it) of a message that is partly here."""

    source: SiteId
    seq: int
    ordered: bool  # which lane's sequence number it is
    first: int
    end: int


class Order(msgspec.Struct, frozen=True, array_like=True):
    """One block of the total order: slots ``ts`` … ``last_ts``; the token goes to ``next_site``.

    ``last_ts`` does not travel; it follows from the runs.
    """

    epoch: int
    ts: int
    orderer: SiteId
    next_site: SiteId
    runs: tuple[Run, ...] = ()
    view: View | None = None
    # Last ordered sequence number of each member at this slot: what a joiner starts from (R3, R7).
    vector: tuple[tuple[SiteId, int], ...] = ()
    last_ts: int = -1

    def __post_init__(self) -> None:
        last_ts = self.ts
        for run in self.runs:
            last_ts += run.count
        _set(self, "last_ts", last_ts)

    @property
    def is_null(self) -> bool:
        return not self.runs and self.view is None

    @property
    def is_install(self) -> bool:
        return self.view is not None and self.view.id.revision == 0


class Ballot(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Orders the attempts at one view change; the site breaks ties."""

    round: int
    site: SiteId


NO_BALLOT = Ballot(0, NO_SITE)


class ChangeKind(IntEnum):
    """What a ListChangeRequest may ask (R5, R7). Each is a single ordered NewList."""

    JOIN = 1
    PROMOTE = 2
    LEAVE = 3
    REMOVE = 4
    RETURN = 5


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A membership change; ``member`` is the one it is about."""

    kind: ChangeKind
    member: Member


class Data(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Messages to the group, or a retransmission of them by any holder."""

    head: Head
    batch: Batch


class Ack(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Orders data (or nothing: the NULL ACK) and passes the token."""

    head: Head
    order: Order


class Confirm(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """A bare statement of the head: token accepted, or the answer to a Probe."""

    head: Head


class Nack(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """Asks ``named`` (NO_SITE: any holder) for blocks and data.

    ``first_ts … last_ts`` are the missing slots, ``data`` the missing messages, ``spans`` what is missing
    of messages that are partly here, and ``after_epoch`` is set when the sender knows of a later epoch and
    needs the install after it.
    """

    head: Head
    named: SiteId
    first_ts: int
    last_ts: int
    data: tuple[Run, ...]
    after_epoch: int | None
    spans: tuple[Span, ...] = ()


class NewList(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """A view with its own slot: a membership change, or the install that opens an epoch.

    ``departed``: the latest that were members, with the slots that removed them; a joiner must know.
    """

    head: Head
    order: Order
    descent: Descent
    departed: tuple[tuple[SiteId, int], ...] = ()


class ListChangeRequest(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """Asks for a membership change; members pass it on to the token site once."""

    head: Head
    change: Change
    forwarded: bool


class Probe(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """The resting token site asks everyone for a Confirm: liveness, and the last lost packet.

    ``owing`` are those whose answer to an earlier probe it has not heard: who answered and is listed
    all the same knows that the token site is deaf to it.
    """

    head: Head
    owing: tuple[SiteId, ...]


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a log begins: everything up to ``ts`` is collected, and was delivered at MAJORITY.

    ``view`` is in force there since ``view_ts``; the vector has each member's last sequence number.
    """

    epoch: int
    ts: int
    view_ts: int
    view: View
    vector: tuple[tuple[SiteId, int], ...]


class Collected(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """Answer to a Nack for slots, or an install, that this site does not have: its log begins later.
    Also to a joiner whose NewList is collected: it begins there."""

    head: Head
    position: Position
    descent: Descent
    departed: tuple[tuple[SiteId, int], ...] = ()


class NotMember(msgspec.Struct, frozen=True, tag=9, array_like=True):
    """Tells ``subject`` that a majority-held view no longer contains it (R17)."""

    head: Head
    subject: SiteId
    view: View


class Standing(IntEnum):
    """What a founder says of itself: NEVER was a member, is in an UNDECIDED birth, or is a MEMBER."""

    NEVER = 1
    UNDECIDED = 2
    MEMBER = 3


class Hello(msgspec.Struct, frozen=True, tag=10, array_like=True):
    """Birth (R9): a founder's statement. ``answers`` is the boot of the founder that asked."""

    head: Head
    member: Member
    standing: Standing
    chain: int
    answers: int


class Poll(msgspec.Struct, frozen=True, tag=11, array_like=True):
    """R4: do you also see no progress, or miss one of these sites? Binds nobody."""

    head: Head
    round: int
    suspects: tuple[SiteId, ...]


class PollReply(msgspec.Struct, frozen=True, tag=12, array_like=True):
    head: Head
    round: int
    agrees: bool


class RecoveryStart(msgspec.Struct, frozen=True, tag=13, array_like=True):
    """Asks for a promise. The view lets a founder that missed the Hellos take part in the birth."""

    head: Head
    ballot: Ballot
    view: View


class RecoveryVote(msgspec.Struct, frozen=True, tag=14, array_like=True):
    """The promise: what was accepted, and how far this site holds the order."""

    head: Head
    ballot: Ballot
    accepted_ballot: Ballot
    accepted: Order | None
    frontier: int
    view: View
    joint: bool
    vector: tuple[tuple[SiteId, int], ...]


class RecoveryNewList(msgspec.Struct, frozen=True, tag=15, array_like=True):
    """The proposal: the install itself, to be accepted by who holds everything before it."""

    head: Head
    ballot: Ballot
    order: Order


class RecoveryAckNewList(msgspec.Struct, frozen=True, tag=16, array_like=True):
    head: Head
    ballot: Ballot


class RecoveryAbort(msgspec.Struct, frozen=True, tag=17, array_like=True):
    """Refusal of a ballot below the one promised."""

    head: Head
    ballot: Ballot
    promised: Ballot


class DataConfirm(msgspec.Struct, frozen=True, tag=18, array_like=True):
    """Positive acknowledgement of the unordered batch ``seq``: it has no slot to prove it."""

    head: Head
    seq: int


class Orphan(msgspec.Struct, frozen=True, tag=19, array_like=True):
    """R9: this site has lost its majority. To members of its chain: it would go on without, ``forced`` by
    an operator's order. To others of the group: does the group live with you?"""

    head: Head
    address: str
    forced: bool
    asks: int


class ChainAlive(msgspec.Struct, frozen=True, tag=20, array_like=True):
    """To a site of another chain of the group: this one lives, here and with a quorum.

    ``answers`` repeats the question of the site it is sent to, 0 if that asked none; ``asks`` is ours.
    """

    head: Head
    address: str
    descent: Descent
    asks: int
    answers: int


class Piece(msgspec.Struct, frozen=True, tag=21, array_like=True):
    """A part of a message above one packet. The site it ``asks`` confirms it to the source."""

    head: Head
    part: Part
    asks: SiteId


class PieceConfirm(msgspec.Struct, frozen=True, tag=22, array_like=True):
    """Answer to a Piece that asked: it has come. ``end`` is where that piece ended."""

    head: Head
    ordered: bool
    seq: int
    end: int


Packet: TypeAlias = (
    Data
    | Ack
    | Confirm
    | Nack
    | NewList
    | ListChangeRequest
    | Probe
    | Collected
    | NotMember
    | Hello
    | Poll
    | PollReply
    | RecoveryStart
    | RecoveryVote
    | RecoveryNewList
    | RecoveryAckNewList
    | RecoveryAbort
    | DataConfirm
    | Orphan
    | ChainAlive
    | Piece
    | PieceConfirm
)
