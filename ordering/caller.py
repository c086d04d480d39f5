"""A process that is in no view and sends requests to a group (RMP §4.5); sans-IO, like the engine::

    caller = Caller(config, Member(site, boot, address), Random(seed))
    perform(caller.handle(CallRequested((b"add 1",), handler=1), now()))
    ...                                             # PacketsReceived and TimerFired, as for an Engine

``config`` names the group and the addresses to ask first (contacts, or founders); more are learned from
answers. ``site`` and ``boot`` are drawn anew at every start. Effects: packets and SetTimer as from an
engine, ``Accepted`` with the numbers of the calls, and for each call in the end one of
``CallAcknowledged`` (handler 0), ``CallAnswered`` and ``CallFailed``. *A failed call has an unknown
outcome*: it may have been executed, or be executed at any later time. To ask again without doing it
twice is what sessions are for; a call's (site, boot, number) names it for ever.

A caller repeats what has no answer, oldest first, by Jacobson's estimate with exponential back-off, and
goes to another member each time. Numbers grow by one. From SOURCE_ORDERED up the group keeps their order
as ``multirpc`` says, for what the caller has not given up.

Flow control is TCP's (RMP §4.6): the packets under way grow by slow start and halve on a timeout; what is
accepted beyond them waits here, within ``call_messages`` and ``call_bytes``, and more is refused
(``Overloaded``).
"""

from itertools import islice
from random import Random
from typing import TypeAlias

import msgspec

from ordering.config import MS, Config
from ordering.effects import (
    Accepted,
    CallAcknowledged,
    CallAnswered,
    CallFailed,
    CallFailure,
    Multicast,
    SetTimer,
    Unicast,
)
from ordering.errors import InvariantViolation, MessageTooLarge, Overloaded, SubmitError, UnknownQos
from ordering.events import PacketsReceived, TimerFired
from ordering.naming import group_id
from ordering.packets import (
    CallFlag,
    Directory,
    Head,
    NonMemberAck,
    NonMemberData,
    NonMemberRefusal,
    NonMemberReply,
    Packet,
    Refusal,
)
from ordering.qos import MAJORITY, Level, Qos
from ordering.rtt import RoundTrip
from ordering.views import HANDLERS, Member, ViewId

NO_VIEW = ViewId(0, 0)
ADDRESSES_MAX = 64
FIRST_WINDOW = 8  # packets
WINDOW_MAX = 1024
OVERHEAD = 64  # of a message, generously
_LEVELS = tuple(Level)
BEHIND_ROUNDS = 4  # all may be behind a view we know, for a while


class CallRequested(msgspec.Struct, frozen=True):
    """The application calls the group. ``view`` binds the call to one view: a member in another refuses.

    Explicit addressing goes to one member; ``implicit`` to all known, one of which takes it. An ordered
    call goes the way of the one before it, as long as that has no answer: their order depends on it.
    """

    messages: tuple[bytes, ...]
    qos: Qos = MAJORITY
    handler: int = 0
    implicit: bool = False
    view: ViewId | None = None
    acknowledged: bool = True


CallerEvent: TypeAlias = CallRequested | PacketsReceived | TimerFired
CallerEffect: TypeAlias = (
    Multicast | Unicast | SetTimer | Accepted | CallAcknowledged | CallAnswered | CallFailed
)


class _Parcel:
    """Calls that travel in one packet, as long as one of them has no answer."""

    __slots__ = (
        "behind",
        "first",
        "implicit",
        "late",
        "open",
        "request",
        "round",
        "sent_at",
        "since",
        "tries",
    )

    def __init__(self, first: int, request: CallRequested, now: int) -> None:
        self.first = first
        self.request = request
        self.open: dict[int, None] = dict.fromkeys(range(first, first + len(request.messages)))
        self.implicit = request.implicit
        self.since = now
        self.late = False  # it was repeated because no answer came in time
        self.round = -1  # in which it was sent last
        self.sent_at = 0
        self.tries = 0
        self.behind = 0  # how often it was refused by a member that does not know its view

    @property
    def size(self) -> int:
        return sum(map(len, self.request.messages))


class Caller:
    """One caller of one group. Same state, event and time: same effects."""

    def __init__(self, config: Config, member: Member, rng: Random) -> None:
        self.config = config
        self.member = member
        self.view = NO_VIEW  # the latest heard of
        self.addresses: tuple[str, ...] = config.contacts or config.founders
        self.rtt = RoundTrip(config)
        self.counters: dict[str, int] = {}
        self.next_number = 1
        self.pending_bytes = 0
        self._group = group_id(config.group)
        self._rng = rng
        self._now = 0
        self._out: list[CallerEffect] = []
        self._parcels: dict[int, _Parcel] = {}  # by first number, oldest first
        self._unsent = 0  # of them, in this round: the youngest
        self._directory: Directory | None = None  # the last that was learned from
        self._of: dict[int, _Parcel] = {}  # number without an answer → its parcel
        self._target = rng.randrange(len(self.addresses))
        self._turn = 0
        self._tries = 0  # timeouts in a row
        self._window = FIRST_WINDOW
        self._threshold = WINDOW_MAX
        self._credit = 0
        self._round = 0
        self._round_at = 0
        self._gap = False  # a member misses a call
        self._due = 0  # when to repeat, 0: nothing to repeat
        self._wait_until = 0  # a member asked for patience
        self._wake_at = 0

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The numbers without an answer."""
        return tuple(self._of)

    @property
    def addresses_in_turn(self) -> tuple[str, ...]:
        """The member that is asked at present, and then whom else to ask."""
        target = self._target % len(self.addresses)
        return self.addresses[target:] + self.addresses[:target]

    def handle(self, event: CallerEvent, now: int) -> list[CallerEffect]:
        """React to one event at ``now`` (nanoseconds, never going back)."""
        if now < self._now:
            raise InvariantViolation(f"time went back from {self._now} to {now}")
        self._now = now
        self._out = []
        match event:
            case CallRequested():
                self._request(event)
            case PacketsReceived(packets):
                for packet in packets:
                    self._receive(packet)
            case TimerFired():
                self._wake_at = 0
                if self._due and self._due <= now:
                    self._fire()
        self._pump()
        self._set_timer()
        return self._out

    # -- requests --------------------------------------------------------------------------------

    def _request(self, request: CallRequested) -> None:
        self._check(request)
        first = self.next_number
        limit = self.config.packet_bytes
        start = size = 0
        for index, message in enumerate(request.messages):
            if index > start and size + len(message) + OVERHEAD > limit:
                self._add(request, start, index)
                start, size = index, 0
            size += len(message) + OVERHEAD
        if request.messages:
            self._add(request, start, len(request.messages))
            self._out.append(Accepted(first, len(request.messages), request.qos, first))

    def _check(self, request: CallRequested) -> None:
        config = self.config
        if not 0 <= request.handler <= HANDLERS[-1]:
            raise SubmitError(
                f"handler: {request.handler} is no handler; use 1 to {HANDLERS[-1]}, or 0 for none"
            )
        qos = request.qos
        if qos.level not in _LEVELS or qos.k < 0 or (qos.k and qos.level != Level.K_RESILIENT):
            raise UnknownQos(f"qos: {qos} is unknown; use MAJORITY, TOTAL, … or k_resilient(K)")
        size = 0
        for index, message in enumerate(request.messages):
            if not isinstance(message, bytes):
                raise SubmitError(f"messages[{index}]: must be bytes, is {type(message).__name__}; encode it")
            if len(message) > config.message_bytes_max:
                raise MessageTooLarge(
                    f"messages[{index}]: {len(message)} bytes exceed message_bytes_max"
                    f" ({config.message_bytes_max}); split it, or store it elsewhere and send a reference"
                )
            size += len(message)
        calls = len(self._of) + len(request.messages)
        if calls > config.call_messages or self.pending_bytes + size > config.call_bytes:
            raise Overloaded(
                f"{len(self._of)} calls ({self.pending_bytes} bytes) have no answer yet, and"
                f" {len(request.messages)} more ({size} bytes) do not fit beside them; retry after the next"
                " answer, or raise call_messages / call_bytes"
            )

    def _add(self, request: CallRequested, start: int, end: int) -> None:
        part = msgspec.structs.replace(request, messages=request.messages[start:end])
        parcel = _Parcel(self.next_number, part, self._now)
        self.next_number += end - start
        self._parcels[parcel.first] = parcel
        self._unsent += 1
        self._of.update(dict.fromkeys(parcel.open, parcel))
        self.pending_bytes += parcel.size

    # -- sending ---------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send, in order, what was not sent in this round, as far as the window allows."""
        if self._now < self._wait_until:
            return
        room = self._window - (len(self._parcels) - self._unsent)
        if self._unsent and room > 0:
            youngest_first = reversed(self._parcels.values())
            unsent = list(islice(youngest_first, self._unsent))
            before = next((parcel for parcel in youngest_first if parcel.request.qos.rides_the_ring), None)
            for parcel in unsent[: -room - 1 : -1]:
                self._send(parcel, before)
                if parcel.open and parcel.request.qos.rides_the_ring:
                    before = parcel
        if self._parcels and not self._due:
            self._due = self._now + self.rtt.rto

    def _send(self, parcel: _Parcel, before: _Parcel | None) -> None:
        """The part of the parcel that has no answer. ``before`` is the last ordered one ahead of it: it goes
        the same way, for only who has forwarded that one forwards this."""
        request = parcel.request
        parcel.implicit = request.implicit
        if before is not None and request.qos.rides_the_ring:
            parcel.implicit = before.implicit
        first, last = next(iter(parcel.open)), next(reversed(parcel.open))
        messages = request.messages[first - parcel.first : last - parcel.first + 1]
        member = self.member
        packet = NonMemberData(
            Head(self._group, 0, member.site, member.boot, 0, 0, 0, 0, 0),
            member.address,
            first,
            request.handler,
            0 if request.acknowledged else CallFlag.UNACKNOWLEDGED.value,
            request.qos,
            messages,
            next(iter(self._of)),
            next(reversed(before.open)) if before is not None else 0,
            request.view if request.view is not None else self.view,
            bound=request.view is not None,
            turn=self._turn if parcel.implicit else None,
        )
        parcel.tries += 1
        parcel.round = self._round
        self._unsent -= 1
        parcel.sent_at = self._now
        if parcel.implicit:
            self._out.append(Multicast(self.addresses, packet))
        else:
            self._out.append(Unicast(self.addresses[self._target % len(self.addresses)], packet))
        if not request.handler and not request.acknowledged:
            # Nobody will say anything: it is sent once, and that is all there is to it.
            for number in list(parcel.open):
                self._close(number)

    def _fire(self) -> None:
        if self._gap:
            self._begin_round()
            self._due = self._now + self.rtt.rto
        else:
            self._repeat()

    def _repeat(self) -> None:
        """Nothing was heard in time: all that has no answer, in order, to another member."""
        self._give_up()
        for parcel in self._parcels.values():
            parcel.late = parcel.tries > 0
        self._tries += 1
        self._threshold = max(self._window // 2, 2)
        self._window = max(self._window // 2, 1)
        self._go_on_elsewhere()
        backoff = min(self.rtt.rto << min(self._tries, 6), self.config.rto_max_ms * MS)
        self._due = self._now + backoff + self._rng.randrange(backoff // 4 + 1) if self._parcels else 0

    def _go_on_elsewhere(self) -> None:
        self._target = (self._target + 1) % len(self.addresses)
        self._turn += 1
        self._begin_round()

    def _begin_round(self) -> None:
        """Whoever is asked now forwards nothing before it has all that is before it: from the first on."""
        self._round += 1
        self._unsent = len(self._parcels)
        self._round_at = self._now
        self._gap = False

    def _give_up(self) -> None:
        config = self.config
        for parcel in list(self._parcels.values()):
            if parcel.tries >= config.call_tries or self._now - parcel.since >= config.call_ms * MS:
                self._fail(parcel, CallFailure.UNANSWERED)

    def _fail(self, parcel: _Parcel, failure: CallFailure) -> None:
        for number in list(parcel.open):
            self._close(number)
            self._out.append(CallFailed(number, failure, self.view))

    def _fail_bound(self, view: ViewId) -> None:
        """Nobody is in that view: what waits behind would have to ask everybody for the same answer."""
        for parcel in list(self._parcels.values()):
            if parcel.request.view == view:
                self._fail(parcel, CallFailure.OTHER_VIEW)

    def _close(self, number: int) -> _Parcel | None:
        """The call needs nothing more."""
        parcel = self._of.pop(number, None)
        if parcel is not None:
            del parcel.open[number]
            if not parcel.open:
                del self._parcels[parcel.first]
                self._unsent -= parcel.round != self._round
                self.pending_bytes -= parcel.size
        if not self._of:
            self._due = 0
        return parcel

    # -- answers ---------------------------------------------------------------------------------

    def _receive(self, packet: Packet) -> None:
        if packet.head.group != self._group:
            self._count("dropped: foreign group")
        elif not isinstance(packet, NonMemberAck | NonMemberReply | NonMemberRefusal):
            self._count(f"dropped: {type(packet).__name__} to a caller")
        elif packet.boot != self.member.boot:
            self._count("dropped: for an earlier boot")
        else:
            self._learn(packet.directory)
            match packet:
                case NonMemberAck():
                    for receipt in packet.receipts:
                        parcel = self._of.get(receipt.number)
                        if parcel is not None and not parcel.request.handler:
                            self._finish(receipt.number)
                            self._out.append(
                                CallAcknowledged(
                                    receipt.number, receipt.ts, receipt.reached, packet.directory.view
                                )
                            )
                case NonMemberReply():
                    for answer in packet.answers:
                        parcel = self._of.get(answer.number)
                        if parcel is not None:
                            self._finish(answer.number)
                            view, once = packet.directory.view, parcel.tries == 1
                            site = packet.head.sender
                            self._out.append(
                                CallAnswered(answer.number, answer.ts, answer.payload, view, once, site)
                            )
                case NonMemberRefusal():
                    self._on_refusal(packet)

    def _learn(self, directory: Directory) -> None:
        """Where the members are; of a view that is not older than what we know."""
        if directory.view < self.view or not directory.addresses or directory == self._directory:
            return
        self._directory = directory
        self.view = directory.view
        current = self.addresses[self._target % len(self.addresses)]
        # Those to ask first stay: they are the way back when all of a view are gone.
        first = self.config.contacts or self.config.founders
        known = dict.fromkeys([*directory.addresses[:ADDRESSES_MAX], *first])
        self.addresses = tuple(known)
        self._target = self.addresses.index(current) if current in known else 0

    def _finish(self, number: int) -> None:
        parcel = self._close(number)
        assert parcel is not None
        if parcel.tries == 1:
            self.rtt.sample(self._now - parcel.sent_at)
        elif parcel.late:
            self.rtt.late()
        self._tries = 0
        if not parcel.open:
            self._open_window()
        if self._of and not self._gap:
            self._due = self._now + self.rtt.rto

    def _open_window(self) -> None:
        """Slow start below the threshold, one packet for each window above it (Jacobson 1988)."""
        self._credit += 1
        if self._window < self._threshold or self._credit >= self._window:
            self._credit = 0
            self._window = min(self._window + 1, WINDOW_MAX)

    def _on_refusal(self, packet: NonMemberRefusal) -> None:
        parcels = {
            parcel.first: parcel
            for number in range(packet.first, packet.first + min(packet.count, len(self._of)))
            if (parcel := self._of.get(number)) is not None
        }
        if not parcels:
            return
        self._count(f"refused: {packet.reason.name}")
        match packet.reason:
            case Refusal.BAD_QOS:
                for parcel in parcels.values():
                    self._fail(parcel, CallFailure.BAD_QOS)
            case Refusal.OTHER_VIEW:
                for parcel in parcels.values():
                    bound = parcel.request.view
                    if bound is None or not parcel.open:
                        continue
                    parcel.behind += 1
                    everyone = BEHIND_ROUNDS * len(self.addresses)
                    if bound < packet.directory.view or parcel.behind > everyone:
                        self._fail_bound(bound)
                    else:  # the member is behind, or the view's chain has ended
                        self._go_on_elsewhere()
                        self._wait(self.rtt.rto)
            case Refusal.NO_PRIMARY:
                self._go_on_elsewhere()
                self._wait(self.rtt.rto)
            case Refusal.OVERLOADED:
                self._window = max(self._window // 2, 1)
                self._wait(max(packet.retry_ms * MS, 1))
            case Refusal.GAP:
                # Everything that was under way shows the same gap; one round fills it, and no round
                # follows another at once.
                self._gap = True
                self._due = max(self._round_at + self.config.rto_min_ms * MS, self._now + 1)
                if self._due == self._now + 1:
                    self._fire()

    def _wait(self, ns: int) -> None:
        """Repeat later; calls that were not sent yet wait as well."""
        ns = min(ns, self.config.rto_max_ms * MS)
        self._wait_until = self._now + ns
        self._due = self._now + ns + self._rng.randrange(ns // 4 + 1)

    # -- time and counting -----------------------------------------------------------------------

    def _set_timer(self) -> None:
        wake_at = self._due if self._parcels else 0
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            if wake_at:
                self._out.append(SetTimer(wake_at))

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1
