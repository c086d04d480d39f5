"""What can happen to a site. Past tense: it has happened, the engine reacts.

Events and effects are frozen msgspec structs: they are built millions of times a second, and a
frozen dataclass costs several times as much to build (``docs/decisions/001``).
"""

from typing import TypeAlias

import msgspec

from ordering.packets import Call, ChangeKind, Packet
from ordering.qos import MAJORITY, Qos
from ordering.records import Ledger
from ordering.views import NO_SITE, LockName, SiteId


class Started(msgspec.Struct, frozen=True):
    """The host is ready. A founder takes part in the birth of the group; anyone else joins it."""

    founder: bool


class Restarted(msgspec.Struct, frozen=True):
    """Instead of ``Started``, in durable mode: the site is back, with what its disk has (R6)."""

    ledger: Ledger


class PacketsReceived(msgspec.Struct, frozen=True):
    """Everything one drain of the socket brought, in order of arrival."""

    packets: tuple[Packet, ...]


class TimerFired(msgspec.Struct, frozen=True):
    """The time of the last ``SetTimer`` has come."""


class SubmitRequested(msgspec.Struct, frozen=True):
    """The application multicasts messages of one quality; they keep their order.

    With a ``handler`` (1 to 6) each is a request: the holder of that lock replies, to this site alone
    (``CallAnswered``) or, with ``reply_to_group``, to all.
    """

    messages: tuple[bytes, ...]
    qos: Qos = MAJORITY
    handler: int = 0
    reply_to_group: bool = False


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What the application says to one request. ``ts`` is where it was executed."""

    call: Call
    ts: int
    payload: bytes


class ReplyRequested(msgspec.Struct, frozen=True):
    """The application replies to requests it was owed. *One value for each request, whoever replies and
    however often it was delivered, is the application's duty* (sessions, R12)."""

    replies: tuple[Reply, ...]


class BacklogReported(msgspec.Struct, frozen=True):
    """The application is behind: so many bytes were delivered that it has not taken yet (R16).

    Optional. A host whose application is fast never says so; one that said so says it again when the
    number has changed much, and when it is 0.
    """

    bytes: int


class ChangeRequested(msgspec.Struct, frozen=True):
    """An operator's membership change: LEAVE or RETIRE (this site) or REMOVE (``site``).

    RETIRE is for a process that is to be stopped and will be back: it leaves the ring and stays a voter.
    ``EndMembership(RETIRED)`` says that nobody will miss it, ``RetirementRefused`` that they would.
    """

    kind: ChangeKind
    site: SiteId = NO_SITE


class ForkRequested(msgspec.Struct, frozen=True):
    """An operator's word that the majority is gone for good: go on without it, in a new chain (R9).

    Whoever else has lost the majority takes part. What only the lost sites held is lost.
    """


class StateTransferred(msgspec.Struct, frozen=True):
    """The application now has the state at ``ts`` that ``RequestState`` asked for, and verified it (R7)."""

    ts: int


class Persisted(msgspec.Struct, frozen=True):
    """The records of ``Persist(seq)`` are synced."""

    seq: int


class PersistFailed(msgspec.Struct, frozen=True):
    """They may not be, and nobody knows what is: the disk is full, or broken."""

    seq: int


class SnapshotSaved(msgspec.Struct, frozen=True):
    """The application can come back from a synced snapshot of its state at ``ts``: the log may be trimmed."""

    ts: int


class LockRequested(msgspec.Struct, frozen=True):
    """The application wants a lock: a handler's (1 … 6) or a named one. ``lease_ms``: it ends by itself
    after so much slot time; 0: never. Asking for a lock that was asked for already renews its lease."""

    name: LockName
    lease_ms: int = 0


class LockReleased(msgspec.Struct, frozen=True):
    """The application no longer wants a lock, or no longer waits for it."""

    name: LockName


class ReadRequested(msgspec.Struct, frozen=True):
    """The application wants to read what is true now (R11). ``ReadReady`` answers with the same number, when
    everything that was answered to anybody before this event is delivered here; several view changes may lie
    between. Any number of reads may be under way; they share packets."""

    number: int


class HoldersRequested(msgspec.Struct, frozen=True):
    """The application wants to know when so many voters hold slot ``ts``, 0: all of them (R10).
    ``HoldersKnown`` answers with the same number, if this membership lasts."""

    number: int
    ts: int
    voters: int


class WallClockSet(msgspec.Struct, frozen=True):
    """Wall-clock time is ``now + offset`` (nanoseconds). Sent at the start, and when the clock was set."""

    offset: int


Event: TypeAlias = (
    Started
    | Restarted
    | PacketsReceived
    | TimerFired
    | SubmitRequested
    | ReplyRequested
    | BacklogReported
    | ChangeRequested
    | ForkRequested
    | StateTransferred
    | Persisted
    | PersistFailed
    | SnapshotSaved
    | LockRequested
    | LockReleased
    | ReadRequested
    | HoldersRequested
    | WallClockSet
)
