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

from ordering.qos import Level, Qos
from ordering.views import NO_SITE, LockName, Member, Owner, SiteId, View, ViewId

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


class CallFlag(IntEnum):
    """Bits of what a call asks for beside its delivery (RMP §4.5 has flags for the same purpose)."""

    UNACKNOWLEDGED = 1  # no acknowledgement is wanted
    TO_GROUP = 2  # a member's request: the reply goes to the group, as an ordered message
    IS_REPLY = 4  # not a request: the reply to the group of the request it names


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who asks: a process that is no member, or a member that wants a reply. The name of the request is
    (caller, boot, number); with handler 0 it is acknowledged, else the holder of that lock replies."""

    caller: SiteId
    boot: int
    number: int
    address: str
    handler: int
    flags: int


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Messages that travel together: RMP's data packet body, many messages to the packet.

    ``calls`` is empty, or has the request that each message is. ``last_seq`` and ``size``, the bytes of all
    messages, do not travel: they follow from the rest, once for a packet instead of at every use.
    """

    source: SiteId
    boot: int
    first_seq: int
    qos: Qos
    messages: tuple[bytes, ...]
    calls: tuple[Call, ...] = ()
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
    calls: tuple[Call, ...] = ()  # the request that the message is, if it is one


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
    time: int = 0  # slot time (R14): nanoseconds since the Unix epoch, as far as clocks go
    tick: bool = False  # nothing but the time, for applications that asked for it
    last_ts: int = -1

    def __post_init__(self) -> None:
        last_ts = self.ts
        for run in self.runs:
            last_ts += run.count
        _set(self, "last_ts", last_ts)

    @property
    def is_null(self) -> bool:
        return not self.runs and self.view is None and not self.tick

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
    RETIRE = 6


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A membership change; ``member`` is the one it is about."""

    kind: ChangeKind
    member: Member


class Wish(msgspec.Struct, frozen=True, array_like=True):
    """A lock that its owner wants to have, or to keep. ``number`` and ``renewed`` are the versions of the
    statements that asked for it first, and that last asked for a full lease."""

    name: LockName
    number: int
    lease_ms: int
    renewed: int


class LockStatement(msgspec.Struct, frozen=True, array_like=True):
    """Everything an owner wants locked, in its latest version: what is not in it is released. So one
    statement says all that earlier ones, late or lost, could say."""

    owner: Owner
    version: int
    wishes: tuple[Wish, ...]


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
    time: int = 0


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
    """The promise: what was accepted, and how far this site holds the order; the view has the locks there.
    ``time`` is the slot time this voter would give to a block behind its frontier."""

    head: Head
    ballot: Ballot
    accepted_ballot: Ballot
    accepted: Order | None
    frontier: int
    view: View
    joint: bool
    vector: tuple[tuple[SiteId, int], ...]
    time: int = 0


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
    """Positive acknowledgement of the unordered batch ``seq`` of the process ``boot``: it has no slot to
    prove it. To any other process it says nothing, whoever brings it there."""

    head: Head
    boot: int
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


class Forgotten(msgspec.Struct, frozen=True, tag=21, array_like=True):
    """Tells a boot of ``subject`` that an earlier one has claimed to hold more than its disk shows (R8)."""

    head: Head
    subject: SiteId
    boot: int
    epoch: int
    held: int


class LockRequest(msgspec.Struct, frozen=True, tag=22, array_like=True):
    """What an owner wants locked; members pass it on to the token site once."""

    head: Head
    statement: LockStatement
    forwarded: bool


class NonMemberData(msgspec.Struct, frozen=True, tag=23, array_like=True):
    """Requests to the group, numbered from ``first``, by a process that is not in it (RMP §4.5).

    ``floor`` is the caller's lowest number without an answer, ``after`` its highest ordered one without an
    answer below ``first`` (0: none): who forwards this must have forwarded that. ``view`` is the view the
    caller knows (0.0: none), and the only one it wants if ``bound``. Implicit addressing goes to all, and
    ``turn`` says who of the ring forwards; it is None when the receiver was chosen by the caller.
    ``passed_on``: a member repeats a request that has been delivered, to the one who owes the reply.
    """

    head: Head
    address: str
    first: int
    handler: int
    flags: int
    qos: Qos
    messages: tuple[bytes, ...]
    floor: int
    after: int
    view: ViewId
    bound: bool
    turn: int | None
    passed_on: bool = False

    def call(self, offset: int) -> Call:
        head = self.head
        return Call(head.sender, head.boot, self.first + offset, self.address, self.handler, self.flags)


class Receipt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The call was delivered at ``ts`` (0: it has no place in the order), and on which level (R10)."""

    number: int
    ts: int
    reached: Level


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The reply to one request; ``ts`` as the application gave it."""

    number: int
    ts: int
    payload: bytes


class Directory(msgspec.Struct, frozen=True, array_like=True):
    """The view the sender is in, and where its members are; no addresses for who knows that view."""

    view: ViewId
    addresses: tuple[str, ...]


class NonMemberAck(msgspec.Struct, frozen=True, tag=24, array_like=True):
    """Calls of the process ``boot`` were delivered on the level they asked for."""

    head: Head
    boot: int
    directory: Directory
    receipts: tuple[Receipt, ...]


class NonMemberReply(msgspec.Struct, frozen=True, tag=25, array_like=True):
    """Replies to requests of the process ``boot``, by the holder of the handler lock."""

    head: Head
    boot: int
    directory: Directory
    answers: tuple[Answer, ...]


class Refusal(IntEnum):
    """Why a member does not put calls on the ring; this copy of them is not and will not be there.

    OTHER_VIEW: they are bound to another view. NO_PRIMARY: the member has lost the majority. OVERLOADED:
    come back in ``retry_ms``. GAP: an earlier call is missing here, send again from the first. BAD_QOS: K
    is not below the number of voters.
    """

    OTHER_VIEW = 1
    NO_PRIMARY = 2
    OVERLOADED = 3
    GAP = 4
    BAD_QOS = 5


class NonMemberRefusal(msgspec.Struct, frozen=True, tag=26, array_like=True):
    """``count`` calls from ``first`` on were not taken."""

    head: Head
    boot: int
    directory: Directory
    reason: Refusal
    first: int
    count: int
    retry_ms: int


class Piece(msgspec.Struct, frozen=True, tag=27, array_like=True):
    """A part of a message above one packet. The site it ``asks`` confirms it to the source."""

    head: Head
    part: Part
    asks: SiteId


class PieceConfirm(msgspec.Struct, frozen=True, tag=28, array_like=True):
    """Answer to a Piece that asked: it has come. ``end`` is where that piece ended."""

    head: Head
    ordered: bool
    seq: int
    end: int


class ReadProbe(msgspec.Struct, frozen=True, tag=29, array_like=True):
    """R11: how far do you hold the order, now? Asked for all reads that wait at the sender."""

    head: Head
    round: int


class ReadReply(msgspec.Struct, frozen=True, tag=30, array_like=True):
    """The head says it. To any other process than ``boot`` it says nothing, whoever brings it there."""

    head: Head
    boot: int
    round: int


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
    | Forgotten
    | LockRequest
    | NonMemberData
    | NonMemberAck
    | NonMemberReply
    | NonMemberRefusal
    | Piece
    | PieceConfirm
    | ReadProbe
    | ReadReply
)
