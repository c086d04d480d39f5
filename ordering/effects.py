"""What a site asks of its host, in the order in which it must be done. Imperative."""

from enum import IntEnum
from typing import TypeAlias

import msgspec

from ordering.packets import Batch, Call, Packet
from ordering.qos import Level, Qos
from ordering.records import Record
from ordering.views import NO_SITE, LockName, SiteId, View, ViewId


class Multicast(msgspec.Struct, frozen=True):
    """Send to every address; a host with IP multicast sends once."""

    to: tuple[str, ...]
    packet: Packet


class Unicast(msgspec.Struct, frozen=True):
    to: str
    packet: Packet


class SetTimer(msgspec.Struct, frozen=True):
    """Fire ``TimerFired`` at ``at`` (nanoseconds of the host's clock); replaces the last one."""

    at: int


class Delivery(msgspec.Struct, frozen=True):
    """Consecutive messages of one source. ``first_ts`` is 0 where the level has no timestamp.

    ``reached`` is the level the delivery stands on: a K that dead sites made unreachable is
    delivered at what the ring can give, and says so (R10).

    ``calls`` is empty, or has the request that each message is (RMP §4.5); ``owed`` are the offsets of those
    that this site is to reply to: it holds their handler lock at this slot. A request may come twice.
    """

    first_ts: int
    source: SiteId
    first_seq: int
    qos: Qos
    reached: Level
    messages: tuple[bytes, ...]
    time: int = 0  # slot time (R14); 0 where there is no timestamp
    calls: tuple[Call, ...] = ()
    owed: tuple[int, ...] = ()


class Deliver(msgspec.Struct, frozen=True):
    """Hand messages to the application. Everything from SOURCE_ORDERED up comes exactly once,
    except what a ``Retract`` takes back. ``chain``: the one that gave the timestamps, 0 if there are none.
    The first of a fork come before its view: what no majority of the old chain was known to hold."""

    view: ViewId
    deliveries: tuple[Delivery, ...]
    chain: int = 0


class Retract(msgspec.Struct, frozen=True):
    """Deliveries below MAJORITY with timestamps above ``after`` were erased by a view change.

    Their messages come again under new timestamps if their source, or a holder of the data, lives. An
    application that only acts on what ``LevelReached`` covers never sees a difference. After a state transfer
    it speaks of what was delivered before: the state that was taken over has replaced it, and stays.
    """

    after: int


class LevelReached(msgspec.Struct, frozen=True):
    """What was delivered up to ``majority`` is held by a majority, up to ``stable`` by the whole ring.

    Replicas apply up to ``majority`` (R10): nothing of that is ever retracted.
    """

    majority: int
    stable: int


class InstallView(msgspec.Struct, frozen=True):
    """The view at slot ``ts`` is in force, in order with the messages around it.

    ``locks_only``: epoch, members, electorate and ring are those of the view before.
    """

    ts: int
    chain: int
    view: View
    time: int = 0
    locks_only: bool = False


class LockGranted(msgspec.Struct, frozen=True):
    """This site has a lock from slot ``ts`` on. ``fence`` grows with every grant of the lock: whoever is
    written to under it must refuse a smaller one (R13). It is the slot of the grant, and lower than
    ``ts`` only after a leap. A handler lock may come unasked."""

    name: LockName
    fence: int
    ts: int


class LockLost(msgspec.Struct, frozen=True):
    """This site has the lock no more, and did not release it: its lease ended, or, a handler's, it left
    the ring or another asked for it."""

    name: LockName
    fence: int


class LockRefused(msgspec.Struct, frozen=True):
    """A request has ended without a grant: there was no room for it. Ask again later."""

    name: LockName


class Tick(msgspec.Struct, frozen=True):
    """Time has passed, and nothing else (R14); at the same slot everywhere, held by a majority."""

    ts: int
    time: int


class Accepted(msgspec.Struct, frozen=True):
    """A submission got sequence numbers ``first_seq …`` of its lane; it will not be dropped silently."""

    first_seq: int
    count: int
    qos: Qos
    first_number: int = 0  # of the requests, where the messages are requests


class CallsTaken(msgspec.Struct, frozen=True):
    """Calls of non-members now travel as messages of this site; nothing is asked of the host."""

    batch: Batch


class CallRepeated(msgspec.Struct, frozen=True):
    """A request that was delivered wants its reply (again), this site holds the handler lock and the engine
    has no reply of it: the application answers from its replicated state, if it has got that far."""

    call: Call
    message: bytes


class CallAcknowledged(msgspec.Struct, frozen=True):
    """A caller's request was delivered, on the level ``reached``."""

    number: int
    ts: int
    reached: Level
    view: ViewId


class CallAnswered(msgspec.Struct, frozen=True):
    """The reply to a request of this caller, or of this member."""

    number: int
    ts: int
    payload: bytes
    view: ViewId
    once: bool = False  # it was sent once: no other copy of it can have been ordered
    site: SiteId = NO_SITE  # whose reply it is


class CallFailure(IntEnum):
    """Why a request is given up. *Its outcome is unknown in every case*: even after a refusal an earlier or
    late copy of it may be taken by another member, and be delivered at any time."""

    UNANSWERED = 1
    OTHER_VIEW = 2
    BAD_QOS = 3
    ENDED = 4


class CallFailed(msgspec.Struct, frozen=True):
    """No answer came in time, or none will come. ``view`` is the latest the caller knows."""

    number: int
    failure: CallFailure
    view: ViewId


class Abandoned(msgspec.Struct, frozen=True):
    """Accepted messages this site can no longer vouch for; their outcome is unknown (R15)."""

    first_seq: int
    count: int
    ordered: bool  # which lane's sequence numbers these are


class WindowOpened(msgspec.Struct, frozen=True):
    """A submission was refused as ``Overloaded``; one of its size fits now. Comes once after a refusal."""


class RequestState(msgspec.Struct, frozen=True):
    """This site needs the application state at or after ``ts`` from one of ``donors`` (R7): it is a
    learner, or it was away for longer than the logs of the others reach. Answer: ``StateTransferred``.
    A later request replaces an earlier one. A host never replaces its state by an older one: by the time
    a state comes the order may have been faster."""

    ts: int
    chain: int  # donors that have forked off it have another history
    donors: tuple[SiteId, ...]


class ReadReady(msgspec.Struct, frozen=True):
    """Reads that may be answered now, from what was delivered so far (R11)."""

    numbers: tuple[int, ...]


class HoldersKnown(msgspec.Struct, frozen=True):
    """So many of ``voters`` are known to hold the slot that was asked about: enough, or all of the ring."""

    number: int
    holders: int
    voters: int


class Persist(msgspec.Struct, frozen=True):
    """Write ``records`` in one transaction and sync, then say ``Persisted(seq)`` (R8). One at a time."""

    seq: int
    records: tuple[Record, ...]


class Ending(IntEnum):
    """Why a site's membership is over. Each but LEFT and RETIRED is a program-controlled crash (R17).

    UNBORN: the birth it took part in cannot come about, or came about without this boot. SUPERSEDED: the
    group lives in another chain (R9). STOPPED: the disk failed; the site may come back from it.
    FORGOTTEN: the disk is not what it was, others remember more (R8). RETIRED: it is out of the ring on its
    own wish and still a voter; in durable mode it comes back from its disk.
    """

    LEFT = 1
    REMOVED = 2
    UNBORN = 3
    SUPERSEDED = 4
    STOPPED = 5
    FORGOTTEN = 6
    RETIRED = 7


class EndMembership(msgspec.Struct, frozen=True):
    """Stop serving at once. To come back, join with a new engine, a new boot and, unless the ending is
    STOPPED or RETIRED, an empty disk."""

    ending: Ending


class RetirementRefused(msgspec.Struct, frozen=True):
    """The others could not go on without this site, so it stays in the ring. Whoever stops it now has it
    crash, and the group waits for it."""


Effect: TypeAlias = (
    Multicast
    | Unicast
    | SetTimer
    | Deliver
    | Retract
    | LevelReached
    | InstallView
    | LockGranted
    | LockLost
    | LockRefused
    | Tick
    | Accepted
    | CallsTaken
    | CallRepeated
    | CallAnswered
    | CallFailed
    | Abandoned
    | WindowOpened
    | RequestState
    | ReadReady
    | HoldersKnown
    | Persist
    | EndMembership
    | RetirementRefused
)
