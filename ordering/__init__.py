"""Totally ordered multicast: an embedded, sans-IO RMP engine. This is how a host drives it.

An ``Engine`` is one site's part in one group. It reaches no clock, socket, task or random source; the
host brings what happened and does what is asked::

    engine = Engine(config, Member(site, boot, address), Random(seed))
    perform(engine.handle(Started(founder=True), now()))
    while not ended:
        match wait_for_the_first_of(socket, timer, application):
            case datagrams:
                packets = tuple(decoded(datagrams))        # bad ones are counted and dropped
                perform(engine.handle(PacketsReceived(packets), now()))
            case timer:
                perform(engine.handle(TimerFired(), now()))
            case messages:
                try:
                    perform(engine.handle(SubmitRequested(messages), now()))
                except SubmitError as refusal:
                    tell_the_application(refusal)

    def perform(effects):
        for effect in effects:                             # in this order
            match effect:
                case Multicast(to, packet):
                    for address in to:
                        send(address, packet)
                case Unicast(to, packet):
                    send(to, packet)
                case SetTimer(at):
                    timer = at                             # replaces the one before
                case Deliver(view, deliveries):
                    log.extend(deliveries)                 # not applied yet
                case LevelReached(majority, stable):
                    apply_log_up_to(majority)
                case Retract(after):
                    log.forget_above(after)                # never reaches what was applied
                case InstallView(ts, chain, view, time, locks_only):
                    enter(view)                            # no news of the membership if locks_only
                case LockGranted() | LockLost() | LockRefused() | Tick():
                    tell_the_application(effect)
                case RequestState(ts, chain, donors):
                    fetch_state_in_background(ts, chain, donors)  # then StateTransferred(ts)
                case CallRepeated(call, message):
                    reply_again_if_executed(call)          # by ReplyRequested
                case Accepted() | Abandoned() | WindowOpened() | CallAnswered() | CallFailed():
                    tell_the_application(effect)
                case CallsTaken():
                    pass                                   # for recordings
                case Persist(seq, records):
                    write_and_sync_in_background(records)  # then Persisted(seq)
                case RetirementRefused():
                    stop_or_go_on()                        # answers ChangeRequested(RETIRE)
                case EndMembership(ending):
                    stop()

``README.md`` has a host of forty lines that runs; ``ordering/simulator/cluster.py`` is a complete one, and
``ordering/driver.py`` is the one for real networks.

**Identity.** ``boot`` is 128 random bits, drawn anew at every start of the process. In memory mode ``site``
is new with every boot as well, and never 0: the process that was at this address before is another voter,
and a dead one. In durable mode a site that comes back keeps its ``site``, which its disk tells.

**Disks** (``Config.durable``, ``docs/durability.md``). ``Persist`` asks for a transaction and a sync, one
at a time; ``Persisted`` answers it, ``PersistFailed`` ends the membership (``STOPPED``). ``Ledger`` says
what records mean. A host keeps the claimed frontier outside the log, starts with ``Restarted(ledger)``
where the log reaches it, and otherwise as a new site from an empty disk; after any other ending than
``STOPPED`` and ``RETIRED`` it empties the disk. It says ``SnapshotSaved`` when the application could come
back without the slots up to there, and in durable mode ``StateTransferred`` only when the state it took over
is synced. Two processes must not share a disk.

**Events.** One at a time, each handled to its end: an engine is neither re-entrant nor thread-safe. The first
is ``Started``, or ``WallClockSet`` before it; packets come after it. ``now`` is monotonic time in nanoseconds
and never goes back; clocks of different sites need not agree, and may run at different speeds.
``TimerFired`` comes at the time of the latest ``SetTimer`` or later. Coming late costs time, never safety;
coming early does no harm. A site that finds a timer late by more than ``suspect_ms`` takes itself for one
that slept, and orders nothing until others have answered it. ``WallClockSet`` tells the wall-clock time:
before ``Started``, and again when the clock was set. Without it slot times stand still; only leases and
Ticks depend on it.
``PacketsReceived`` brings packets as the decoder made them: the engine trusts their form and their senders.
``BacklogReported`` is optional: a host whose application does not keep up says how many bytes wait for it;
then the site holds the group back while it has the token (``buffer_bytes_max``).

**Effects** are done in the order of the list, before the next event is handled.

- Sending may fail silently: every packet may be lost, repeated, delayed and reordered. A sent packet must not
  be altered. ``to`` holds addresses as they stand in ``Member`` and ``Config``.
- ``Deliver`` hands over messages on the level they asked for. ``LevelReached`` says how far a majority holds
  what was delivered; it is never ahead of ``Deliver``. *A replica applies up to*
  ``LevelReached.majority`` *and not further.* Below that level a ``Retract`` may take deliveries back;
  messages without a timestamp (``first_ts`` 0) are never taken back and have no place in the order.
- ``InstallView`` stands between the messages where the view stands in the order; it is always majority-held.
- ``LockGranted`` and ``LockLost`` tell of this site's own locks, behind the ``InstallView`` that has all of
  them. *A lock protects only what checks its fence* (``docs/guarantees.md``). ``EndMembership`` ends all.
- ``Accepted`` answers a ``SubmitRequested`` and numbers its messages; unordered ones have numbers of their
  own. If the membership ends before a majority is known to hold them (UNORDERED: before all have confirmed
  them), ``Abandoned`` comes before ``EndMembership`` and names them: their outcome is unknown.
- ``WindowOpened`` comes once after a submission was refused as ``Overloaded``, when one of that size fits
  again: a host can wait for it instead of trying.
- ``RequestState`` asks for the application state of a donor, in the same chain, that has applied slot ``ts``
  at majority level: for a learner, or for a member that was away for longer than the others' logs reach.
  The host fetches it by its own means while the engine goes on delivering, skips what the state contains, and
  says ``StateTransferred`` when the state is in place and verified. A state older than ``ts`` is refused
  (``MembershipError``); one older than what the application has applied meanwhile is not put in place. From
  then on the site may become a voter: to say so without the state breaks every guarantee of the group.
- ``EndMembership`` is final. The host stops serving at once; a submission is refused (``NotMember``), and so
  is a lock (``LockError``); other events do nothing. To come back it makes a new engine, with a new boot and
  site, and starts that. After ``UNBORN``, a birth that failed, it starts as a founder again.
- ``ChangeRequested(RETIRE)`` is for a process that is to be stopped and will be back. An ``EndMembership``
  with ``RETIRED`` says that the ring goes on without it, ``RetirementRefused`` that it cannot: to stop it
  then is a crash.

**Calls.** A delivery with ``calls`` brings requests: of processes outside the group (``Caller`` is their
side), or of members (``SubmitRequested(handler=…)``). The application executes them like any message, when
a majority holds them, and says ``ReplyRequested`` for those whose offsets are ``owed``: their handler lock is
here. *A request may be delivered more than once, at different places.* That it is executed once and has one
reply value, whoever gives it, is the application's duty: it keeps the first reply to (caller, boot, number)
in its replicated state, hands it over with the state, and answers every repetition with it, whether the
repetition is a delivery or a ``CallRepeated``. A ``CallRepeated`` of what it has not executed it ignores.

**Birth.** ``Started(founder=True)`` at every configured founder, at any time: the group is born when all are
there, and who comes later, or comes back, finds it and joins. Messages are refused (``NotMember``) before
the first view. When no founder's address has a member any more, start with ``founder=False`` and contacts:
founders ask only each other.

**Errors.** ``SubmitError``, ``MembershipError`` and ``LockError`` refuse a local request and change nothing.
``InvariantViolation`` means that the site is wrong about its own state: the host stops the process. Nothing
else is raised; a packet that makes no sense is counted in ``engine.site.counters``.

**Several groups.** In a process that is in several groups ``Groups`` holds the engines and stands where the
engine stands above: it splits a drain by group, keeps one timer for all, says whose effects are whose, and
stops a group that breaks without the others. ``ordering/groups.py`` shows the host's loop.

A host must not: apply above ``LevelReached.majority``; answer as a replica after ``EndMembership``; reorder
or drop effects other than packets; reuse a boot; keep an engine over a fork or a restored snapshot of its
memory; reach into an engine to change it.
"""

from ordering.caller import Caller, CallRequested
from ordering.config import Config
from ordering.effects import (
    Abandoned,
    Accepted,
    CallAcknowledged,
    CallAnswered,
    CallFailed,
    CallFailure,
    CallRepeated,
    CallsTaken,
    Deliver,
    Delivery,
    Effect,
    Ending,
    EndMembership,
    HoldersKnown,
    InstallView,
    LevelReached,
    LockGranted,
    LockLost,
    LockRefused,
    Multicast,
    Persist,
    ReadReady,
    RequestState,
    RetirementRefused,
    Retract,
    SetTimer,
    Tick,
    Unicast,
    WindowOpened,
)
from ordering.engine import Engine
from ordering.errors import (
    ConfigurationError,
    DecodeError,
    GroupError,
    InvariantViolation,
    KTooLarge,
    LockError,
    MembershipError,
    MessageTooLarge,
    NoPrimary,
    NotMember,
    OrderingError,
    Overloaded,
    SubmitError,
    UnknownQos,
)
from ordering.events import (
    BacklogReported,
    ChangeRequested,
    Event,
    ForkRequested,
    HoldersRequested,
    LockReleased,
    LockRequested,
    PacketsReceived,
    Persisted,
    PersistFailed,
    ReadRequested,
    Reply,
    ReplyRequested,
    Restarted,
    SnapshotSaved,
    Started,
    StateTransferred,
    SubmitRequested,
    TimerFired,
    WallClockSet,
)
from ordering.groups import Groups, InGroup, Outcome
from ordering.packets import Call, ChangeKind, Packet
from ordering.qos import (
    MAJORITY,
    SOURCE_ORDERED,
    TOTAL,
    TOTALLY_ORDERED,
    UNORDERED,
    UNRELIABLE,
    Level,
    Qos,
    k_resilient,
)
from ordering.records import Ledger
from ordering.views import Lock, LockTable, Member, Owner, SiteId, View, ViewId

__all__ = [
    "MAJORITY",
    "SOURCE_ORDERED",
    "TOTAL",
    "TOTALLY_ORDERED",
    "UNORDERED",
    "UNRELIABLE",
    "Abandoned",
    "Accepted",
    "BacklogReported",
    "Call",
    "CallAcknowledged",
    "CallAnswered",
    "CallFailed",
    "CallFailure",
    "CallRepeated",
    "CallRequested",
    "Caller",
    "CallsTaken",
    "ChangeKind",
    "ChangeRequested",
    "Config",
    "ConfigurationError",
    "DecodeError",
    "Deliver",
    "Delivery",
    "Effect",
    "EndMembership",
    "Ending",
    "Engine",
    "Event",
    "ForkRequested",
    "GroupError",
    "Groups",
    "HoldersKnown",
    "HoldersRequested",
    "InGroup",
    "InstallView",
    "InvariantViolation",
    "KTooLarge",
    "Ledger",
    "Level",
    "LevelReached",
    "Lock",
    "LockError",
    "LockGranted",
    "LockLost",
    "LockRefused",
    "LockReleased",
    "LockRequested",
    "LockTable",
    "Member",
    "MembershipError",
    "MessageTooLarge",
    "Multicast",
    "NoPrimary",
    "NotMember",
    "OrderingError",
    "Outcome",
    "Overloaded",
    "Owner",
    "Packet",
    "PacketsReceived",
    "Persist",
    "PersistFailed",
    "Persisted",
    "Qos",
    "ReadReady",
    "ReadRequested",
    "Reply",
    "ReplyRequested",
    "RequestState",
    "Restarted",
    "RetirementRefused",
    "Retract",
    "SetTimer",
    "SiteId",
    "SnapshotSaved",
    "Started",
    "StateTransferred",
    "SubmitError",
    "SubmitRequested",
    "Tick",
    "TimerFired",
    "Unicast",
    "UnknownQos",
    "View",
    "ViewId",
    "WallClockSet",
    "WindowOpened",
    "k_resilient",
]
