"""Several groups in one process, behind one socket and one timer.

An ``Engine`` is one site's part in one group and knows no other. ``Groups`` holds the engines of a
process by the names of their groups and is one door for all of them::

    groups = Groups()
    groups.open(config, Member(site, boot, address), Random(seed))
    perform(groups.handle(InGroup("orders", Started(founder=True)), now()))
    while True:
        match wait_for_the_first_of(socket, timer, application):
            case datagrams:
                perform(groups.handle(PacketsReceived(tuple(decoded(datagrams))), now()))
            case timer:
                perform(groups.handle(TimerFired(), now()))
            case group, messages:
                try:
                    perform(groups.handle(InGroup(group, SubmitRequested(messages)), now()))
                except SubmitError as refusal:
                    tell_the_application(refusal)

    def perform(outcomes):
        for group, effects, error in outcomes:
            perform_in(group, effects)              # as for one engine, without SetTimer
            if error is not None or ended(effects):
                stop_serving(group)
                groups.close(group)
        timer = groups.wake_at                      # None: no timer

Each group gets what it would get with a host of its own: its packets of a drain in their order, its
local events, and ``TimerFired`` when its own ``SetTimer`` is due. Nothing is shared between groups but
the time.

A group whose engine raises is stopped and takes nothing with it: its half-made effects are dropped, as
if its site had crashed before the event, and its ``Outcome`` says why. The other groups of the same
drain have been, or will be, handled as ever. Only a refusal (``SubmitError``, ``MembershipError``,
``LockError``) of a local event goes to its caller; it changed nothing. After the error a group answers as
one whose membership has ended, until it is closed.

``GroupError`` refuses a name that is not open, is open already or cannot be told apart from another.
``InvariantViolation`` is raised only when ``now`` goes back: that concerns all groups, and the host stops.
"""

from bisect import bisect_left, insort
from itertools import takewhile
from random import Random
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ordering.config import Config
from ordering.effects import Effect, SetTimer
from ordering.engine import Engine
from ordering.errors import GroupError, InvariantViolation, LockError, MembershipError, NotMember, SubmitError
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
    ReplyRequested,
    Restarted,
    SnapshotSaved,
    Started,
    StateTransferred,
    SubmitRequested,
    TimerFired,
    WallClockSet,
)
from ordering.packets import Head, Packet
from ordering.state import State
from ordering.views import Member

LocalEvent: TypeAlias = (
    Started
    | Restarted
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


class InGroup(msgspec.Struct, frozen=True):
    """A local event, and the name of the group it is about."""

    group: str
    event: LocalEvent


GroupsEvent: TypeAlias = PacketsReceived | TimerFired | InGroup


class Outcome(NamedTuple):
    """What one group asks of the host, in this order, never a ``SetTimer``.

    With an ``error`` the group has just stopped: nothing of it can be trusted, there are no effects,
    and the outcome of its accepted messages is unknown.
    """

    group: str
    effects: list[Effect]
    error: Exception | None = None


class _Hosted(msgspec.Struct):
    """One open group."""

    engine: Engine
    drops: str  # why packets are dropped unread; empty while they are welcome
    wake_at: int = 0  # its latest SetTimer, 0 once that has fired
    error: Exception | None = None

    @property
    def name(self) -> str:
        return self.engine.site.config.group

    @property
    def id(self) -> int:
        return self.engine.site.group


_REFUSALS: Final = (SubmitError, MembershipError, LockError)
_DROPS: Final = {State.IDLE: "dropped: group not started", State.GONE: "dropped: group ended"}
_STOPPED: Final = "dropped: group stopped"
_NOT_OPEN: Final = "dropped: group not open"
_OWN: Final = "dropped: own packet"  # from a mirror, or of a boot before this one


class Groups:
    """The groups of one process. Same events, same times: same outcomes in the same order."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}  # packets that reached no engine, by reason
        self._by_name: dict[str, _Hosted] = {}
        self._by_id: dict[int, _Hosted] = {}
        self._wishes: list[tuple[int, int]] = []  # (when to wake, group id) of each that wants it, sorted
        self._members: dict[str, Member] = {}  # who this process was last in each group
        self._now = 0

    # -- opening and closing ---------------------------------------------------------------------

    def open(self, config: Config, member: Member, rng: Random) -> Engine:
        """Make room for a group; ``Started`` begins it. The engine is for reading only."""
        name = config.group
        if name in self._by_name:
            raise GroupError(f"group: {name!r} is open already; use it, or close it first")
        before = self._members.get(name)
        same_site = before is not None and before.site == member.site and not config.durable
        if before is not None and (same_site or before.boot == member.boot):
            reused = "site" if same_site else "boot"
            raise GroupError(
                f"member.{reused}: was in group {name!r} before; draw a new site and a new boot to come back"
            )
        engine = Engine(config, member, rng)
        other = self._by_id.get(engine.site.group)
        if other is not None:
            raise GroupError(
                f"group: {name!r} and {other.name!r} have the same 64-bit id; name one of them differently"
            )
        hosted = _Hosted(engine, _DROPS[engine.state])
        self._by_name[name] = self._by_id[hosted.id] = hosted
        self._members[name] = member
        return engine

    def close(self, name: str) -> None:
        """Forget a group. Whatever the host has under way for it, a state transfer say, is void.

        To the others a member that is closed has crashed: it leaves first, if it can.
        """
        hosted = self._find(name)
        self._wake(hosted, 0)
        del self._by_name[name]
        del self._by_id[hosted.id]

    @property
    def names(self) -> tuple[str, ...]:
        """The open groups, those that ended or stopped included, in the order of their opening."""
        return tuple(self._by_name)

    def engine(self, name: str) -> Engine:
        """The engine of an open group, for reading only."""
        return self._find(name).engine

    def _find(self, name: str) -> _Hosted:
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(map(repr, self._by_name)) or "none"
            raise GroupError(f"group: {name!r} is not open here; open it first (open: {known})") from None

    # -- the door --------------------------------------------------------------------------------

    def handle(self, event: GroupsEvent | LocalEvent, now: int) -> list[Outcome]:
        """React to one event at ``now``; groups of which it asks nothing are left out."""
        if now < self._now:
            raise InvariantViolation(f"time went back from {self._now} to {now}")
        self._now = now
        match event:
            case PacketsReceived():
                outcomes = self._receive(event.packets)
            case TimerFired():
                outcomes = [self._run(hosted, event) for hosted in self._take_due()]
            case InGroup():
                outcomes = [self._tell(self._find(event.group), event.event)]
            case _:
                name = type(event).__name__
                raise GroupError(f"event: {name} is about one group; wrap it: InGroup(name, event)")
        return [outcome for outcome in outcomes if outcome.effects or outcome.error is not None]

    def admits(self, head: Head) -> bool:
        """Whether a packet of this head has an engine to go to; if not, it is counted as dropped (R18).

        A driver asks before it decodes the body. ``handle`` asks for every packet in any case.
        """
        hosted = self._by_id.get(head.group)
        if hosted is None:
            reason = _NOT_OPEN
        elif head.sender == hosted.engine.site.me:
            reason = _OWN
        else:
            reason = hosted.drops
        if reason:
            self.counters[reason] = self.counters.get(reason, 0) + 1
        return not reason

    @property
    def wake_at(self) -> int | None:
        """When the host must bring ``TimerFired``, from now on and until this changes; None: not at all."""
        return self._wishes[0][0] if self._wishes else None

    # -- one group's share -----------------------------------------------------------------------

    def _receive(self, packets: tuple[Packet, ...]) -> list[Outcome]:
        """One event for each group concerned, in the order in which the drain first names them."""
        shares: dict[int, list[Packet]] = {}
        for packet in packets:
            if self.admits(packet.head):
                shares.setdefault(packet.head.group, []).append(packet)
        return [self._run(self._by_id[group], PacketsReceived(tuple(s))) for group, s in shares.items()]

    def _take_due(self) -> list[_Hosted]:
        """Who wants to be woken by now, longest overdue first; each wish is granted once."""
        due = [self._by_id[group] for _, group in takewhile(lambda wish: wish[0] <= self._now, self._wishes)]
        for hosted in due:
            self._wake(hosted, 0)
        return due

    def _tell(self, hosted: _Hosted, event: LocalEvent) -> Outcome:
        """A stopped group answers as one whose membership has ended."""
        if hosted.error is None:
            return self._run(hosted, event, _REFUSALS)
        stopped = f"group {hosted.name!r}: stopped by {hosted.error!r}; close it, and open it with a new boot"
        if isinstance(event, SubmitRequested):
            raise NotMember(stopped)
        if isinstance(event, LockRequested):
            raise LockError(stopped)
        return Outcome(hosted.name, [])

    def _run(self, hosted: _Hosted, event: Event, refusals: tuple[type[Exception], ...] = ()) -> Outcome:
        engine = hosted.engine
        try:
            effects = engine.handle(event, self._now)
        except refusals:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the others their effects
            self._wake(hosted, 0)
            hosted.drops = _STOPPED
            hosted.error = error
            return Outcome(hosted.name, [], error)
        kept: list[Effect] = []
        for effect in effects:
            if isinstance(effect, SetTimer):
                self._wake(hosted, effect.at)
            else:
                kept.append(effect)
        hosted.drops = _DROPS.get(engine.state, "")
        if engine.state is State.GONE:
            self._wake(hosted, 0)
        return Outcome(hosted.name, kept)

    def _wake(self, hosted: _Hosted, at: int) -> None:
        """Replace the group's wish; 0: it has none."""
        if hosted.wake_at:
            del self._wishes[bisect_left(self._wishes, (hosted.wake_at, hosted.id))]
        hosted.wake_at = at
        if at:
            insort(self._wishes, (at, hosted.id))
