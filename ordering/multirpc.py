"""Multi-RPC (RMP §3.2, §4.5): who is not in the group sends to it, and gets an acknowledgement or a reply.

A caller gives its calls to one member, which puts them on the ring among its own messages. With handler 0
the orderer of the block acknowledges them when it delivers them on the level they asked for; else the
holder of the handler lock replies, in the words of its application. A caller repeats what has no answer,
to whomever it likes: who has delivered the call acknowledges it again; who has it under way keeps quiet;
who owes the reply repeats it, and the others pass the question on to that one; who knows nothing of it
forwards it. So a call may be ordered more than once, and is delivered as often. *Numbers here save
packets; what is executed is for the application to decide* (sessions, R12).

**Order.** A member forwards an ordered call only after ``after``, the last one before it that has no answer
yet. So whenever a member forwards call *m*, each earlier ordered call of that caller either was finished
at the caller, or was forwarded by the same member before, and a member's messages keep their order. Hence
the *first* places of a caller's calls are in the order of their numbers, whichever members forwarded
them, with two exceptions: a call that the caller gave up (an old copy may come late), and one below
MAJORITY whose place a view change erased after it was acknowledged. SOURCE_ORDERED calls may run ahead of
their places and keep their order only as long as the caller stays with one member.

**Bounds.** All calls together get half of the member's window, one caller ``call_messages``; members' own
messages have the rest to themselves. The memory of callers is that of ``call_table``.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from ordering.call_table import CallerRecord, CallTable, owed_by
from ordering.config import MS
from ordering.detection import Detection
from ordering.effects import CallRepeated, CallsTaken, Unicast
from ordering.errors import MessageTooLarge
from ordering.events import Reply
from ordering.lanes import Lanes
from ordering.membership import Membership
from ordering.packets import (
    Answer,
    Batch,
    Call,
    CallFlag,
    Directory,
    NonMemberAck,
    NonMemberData,
    NonMemberRefusal,
    NonMemberReply,
    Order,
    Receipt,
    Refusal,
)
from ordering.pieces import PACKET_OVERHEAD
from ordering.qos import MAJORITY, Level, Qos
from ordering.requests import Request, Requests
from ordering.rtt import RoundTrip
from ordering.site import Site
from ordering.submission import Submission
from ordering.throttle import Throttle
from ordering.views import NO_SITE, View, ViewId, handler_holder

ANSWER_OVERHEAD = 48  # what the codec adds to an answer, at most
ADDRESSES_TOLD = 64
DIRECTORY_BYTES = 2048
REPLY_PACKET_MAX = 62_000  # beside a directory and a head that is still one datagram
REPLY_BYTES_MAX = REPLY_PACKET_MAX - PACKET_OVERHEAD - ANSWER_OVERHEAD
RECEIPTS_MAX = 1024
REFUSED_MAX = 1024
OVERTAKEN = 3  # packets that overtook one: by then it is lost rather than late (TCP's three duplicates)

# An enumeration's members are looked up anew each time; these are needed for every call.
_TO_GROUP = int(CallFlag.TO_GROUP)
_IS_REPLY = int(CallFlag.IS_REPLY)

T = TypeVar("T")


class MultiRpc:
    """A member's dealings with callers, and with requests of members."""

    def __init__(
        self,
        site: Site,
        detection: Detection,
        membership: Membership,
        submission: Submission,
        lanes: Lanes,
        rtt: RoundTrip,
    ) -> None:
        self.site = site
        self.detection = detection
        self.membership = membership
        self.submission = submission
        self.lanes = lanes
        self.rtt = rtt
        self.requests: Requests = submission.requests
        self.table = CallTable(site.config)
        self.view: View | None = None  # the last view the application was told of
        self._arrived: list[tuple[Qos, Call, bytes]] = []  # in this event, to be packed together
        self._arrived_bytes = 0
        self._receipts: list[tuple[CallerRecord, Receipt]] = []
        self._answers: list[tuple[CallerRecord, Answer]] = []
        self._refused = Throttle(REFUSED_MAX)

    # -- calls come in ---------------------------------------------------------------------------

    def on_data(self, packet: NonMemberData) -> None:
        site = self.site
        head = packet.head
        if packet.passed_on:
            self._on_passed_on(packet)
            return
        if site.view.has(head.sender) or packet.flags & ~CallFlag.UNACKNOWLEDGED:
            site.count("dropped: a call in a member's name")
            return
        if self.view is None or not self._is_my_turn(packet, self.view):
            site.count("calls for another member")
            return
        record = self.table.record(head.sender, head.boot, packet.address)
        record.view = packet.view
        record.address = packet.address
        self.table.raise_floor(record, packet.floor)
        self._repeat(packet, record)
        first, floor, delivered, under_way = packet.first, record.floor, record.delivered, record.under_way
        fresh = [
            number - first
            for number in range(first, first + len(packet.messages))
            if number >= floor and number not in delivered and number not in under_way
        ]
        if not fresh:
            return
        reason = self._refusal(packet, record, fresh, self.view)
        if reason is Refusal.GAP and self._may_fill(packet, record):
            return
        if reason is not None:
            self._refuse(packet, record, reason)
            return
        qos, messages = packet.qos, packet.messages
        for offset in fresh:
            under_way[first + offset] = None
            self._arrived.append((qos, packet.call(offset), messages[offset]))
            self._arrived_bytes += len(messages[offset])
        if qos.rides_the_ring:
            record.last = max(record.last, first + fresh[-1])
            self._release(record)

    def _may_fill(self, packet: NonMemberData, record: CallerRecord) -> bool:
        """Whether the packet can wait for the one it has overtaken, and that is not likely to be lost."""
        return self.table.hold_back(record, packet) and len(record.held_back) < OVERTAKEN

    def _release(self, record: CallerRecord) -> None:
        """What was held back for want of a predecessor may have it now."""
        for after in sorted(record.held_back):
            # Each one that is taken releases what follows it.
            if after in record.held_back and (after <= record.last or after < record.floor):
                self.on_data(self.table.release(record, after))

    def _is_my_turn(self, packet: NonMemberData, view: View) -> bool:
        """Implicit addressing reaches all; one of the ring forwards, another for each caller and turn."""
        if packet.turn is None:
            return True
        return view.ring[(packet.head.sender + packet.turn) % len(view.ring)] == self.site.me

    def _refusal(
        self, packet: NonMemberData, record: CallerRecord, fresh: list[int], view: View
    ) -> Refusal | None:
        site = self.site
        if packet.bound and packet.view != view.id:
            return Refusal.OTHER_VIEW
        qos = packet.qos
        if qos.level == Level.K_RESILIENT and qos.k >= len(site.view.electorate):
            return Refusal.BAD_QOS
        going = self.membership.leaving or site.retiring
        absent = not site.view.has(site.me) or not site.may_number or going
        if absent or not self.detection.reaches_majority():
            return Refusal.NO_PRIMARY
        if len(record.under_way) + len(fresh) > site.config.call_messages:
            return Refusal.OVERLOADED
        size = self._arrived_bytes + sum(len(packet.messages[offset]) for offset in fresh)
        if not self.submission.has_room_for_calls(len(self._arrived) + len(fresh), size):
            return Refusal.OVERLOADED
        if qos.rides_the_ring and packet.after >= record.floor and packet.after > record.last:
            return Refusal.GAP
        return None

    def _refuse(self, packet: NonMemberData, record: CallerRecord, reason: Refusal) -> None:
        site = self.site
        site.count(f"calls refused: {reason.name}")
        # Packets behind a lost one all show the same gap; the caller needs to hear of it once.
        if not self._refused.allows((record.site, reason), site.now, self.rtt.srtt // 2):
            return
        retry_ms = 2 * self.rtt.rto // MS
        directory = self._directory(NO_VIEW if reason is Refusal.OTHER_VIEW else record.view)
        refusal = NonMemberRefusal(
            site.head(), record.boot, directory, reason, packet.first, len(packet.messages), retry_ms
        )
        site.out.append(Unicast(record.address, refusal))

    def take_in(self) -> None:
        """Put on the ring what this event brought: calls of one quality share a packet."""
        if not self._arrived:
            return
        arrived, self._arrived, self._arrived_bytes = self._arrived, [], 0
        start = 0
        for index in range(1, len(arrived) + 1):
            if index == len(arrived) or arrived[index][0] != arrived[start][0]:
                part = arrived[start:index]
                self._forward(part[0][0], [call for _, call, _ in part], [message for _, _, message in part])
                start = index

    def _forward(self, qos: Qos, calls: Sequence[Call], messages: Sequence[bytes]) -> None:
        site = self.site
        # The host is told before they are delivered, which at the lowest levels is at once.
        at = len(site.out)
        batch = self.submission.accept(qos, tuple(messages), tuple(calls), self.view)
        site.out.insert(at, CallsTaken(batch))
        if qos.level == Level.UNRELIABLE:
            self._finish(batch)

    # -- calls are delivered ---------------------------------------------------------------------

    def placed(self, order: Order, ts: int, batch: Batch, reached: Level) -> None:
        """A batch of calls with a slot was delivered here, or had been ahead of it (RMP §4.5: the token
        site acknowledges; a slot's token site is its orderer, whoever has the token by now)."""
        site, table = self.site, self.table
        acknowledges = order.orderer == site.me
        record: CallerRecord | None = None
        for place, call in enumerate(batch.calls, ts):
            if call.flags & _IS_REPLY:
                if call.caller == site.me and call.boot == site.member.boot:
                    self.requests.answered_to_group(call.number)
                continue
            record = table.record_of(call, record)
            receipt = table.note_delivered(record, call.number, place, reached)
            if acknowledges and not call.handler:
                self._acknowledge(call, record, receipt)

    def _finish(self, batch: Batch) -> None:
        """Calls without a slot: acknowledged by who forwarded them."""
        record: CallerRecord | None = None
        for call in batch.calls:
            record = self.table.record_of(call, record)
            receipt = self.table.note_delivered(record, call.number, 0, batch.qos.level)
            if batch.source == self.site.me and not call.handler:
                self._acknowledge(call, record, receipt)

    def _acknowledge(self, call: Call, record: CallerRecord, receipt: Receipt) -> None:
        if not call.flags & CallFlag.UNACKNOWLEDGED and call.caller != self.site.me:
            self._receipts.append((record, receipt))

    # -- replies ---------------------------------------------------------------------------------

    def reply(self, replies: tuple[Reply, ...]) -> None:
        """The application answers requests, first or again; all replies are taken or none."""
        for reply in replies:
            self._check_size(reply)
        table = self.table
        record: CallerRecord | None = None
        for reply in replies:
            call = reply.call
            record = table.record_of(call, record)
            answer = Answer(call.number, reply.ts, reply.payload)
            if call.flags & _TO_GROUP:
                self._reply_to_group(call, answer, record)
                continue
            self._answer(record, table.keep_reply(record, answer))

    def _check_size(self, reply: Reply) -> None:
        """A reply is not cut into pieces, as messages are; it may exceed ``packet_bytes``, not a datagram."""
        to_group = reply.call.flags & _TO_GROUP
        most = self.site.config.message_bytes_max if to_group else REPLY_BYTES_MAX
        if len(reply.payload) > most:
            raise MessageTooLarge(
                f"reply to call {reply.call.number}: {len(reply.payload)} bytes, a reply may have {most};"
                " answer with a reference, and send the rest over the bulk channel"
            )

    def _answer(self, record: CallerRecord, answer: Answer) -> None:
        if record.site == self.site.me:
            if record.boot == self.site.member.boot:  # who asked before a restart waits no more
                self.requests.answered(answer, self._view_id)
        else:
            self._answers.append((record, answer))

    def _reply_to_group(self, call: Call, answer: Answer, record: CallerRecord) -> None:
        """As a message of this site, once. Where it does not fit in the window, or this site is not back in
        the view yet, the request is repeated."""
        if call.number in record.replies:
            return
        if not (self.site.may_number and self.submission.has_room_for_calls(1, len(answer.payload))):
            self.site.count("replies to the group without room")
            return
        self.table.keep_reply(record, answer)
        flags = call.flags | CallFlag.IS_REPLY
        named = Call(call.caller, call.boot, call.number, call.address, 0, flags)
        self._forward(MAJORITY, [named], [answer.payload])

    def on_reply(self, packet: NonMemberReply) -> None:
        """A request of this member was answered by another."""
        if packet.boot == self.site.member.boot:
            for answer in packet.answers:
                self.requests.answered(answer, packet.directory.view)

    # -- repetitions -----------------------------------------------------------------------------

    def _repeat(self, packet: NonMemberData, record: CallerRecord) -> None:
        """Answer again what has been delivered, or ask the one who owes the reply to."""
        ask_holder = False
        for offset in range(len(packet.messages)) if record.delivered else ():
            receipt = record.delivered.get(packet.first + offset)
            if receipt is None:
                continue
            self.site.count("calls repeated")
            reply = record.replies.get(packet.first + offset)
            if not packet.handler:
                self._acknowledge(packet.call(offset), record, receipt)
            elif reply is not None:
                # Also what went to the group: who asks again has a state that reaches beyond it.
                self._answer(record, reply)
            else:
                ask_holder = True
        if ask_holder:
            self._ask_holder(packet)

    def _ask_holder(self, packet: NonMemberData) -> None:
        holder = handler_holder(self.view, packet.handler) if self.view is not None else NO_SITE
        if holder == self.site.me:
            self._on_passed_on(packet)
        elif holder != NO_SITE:
            self.site.unicast(holder, msgspec.structs.replace(packet, passed_on=True))

    def _on_passed_on(self, packet: NonMemberData) -> None:
        """Somebody was told of the request, and this site owes the reply: whether it was told as well, or
        has the request only as part of a state, its application knows."""
        if self.view is None or handler_holder(self.view, packet.handler) != self.site.me:
            self.site.count("requests passed on in vain")
            return
        record = self.table.record(packet.head.sender, packet.head.boot, packet.address)
        self.table.raise_floor(record, packet.floor)
        for offset, message in enumerate(packet.messages):
            reply = record.replies.get(packet.first + offset)
            if reply is not None:
                self._answer(record, reply)
            elif packet.first + offset >= record.floor:
                self.site.out.append(CallRepeated(packet.call(offset), message))

    def fire(self) -> None:
        """Ask again for replies to this member's own requests."""
        me = self.site.member
        record = self.table.record(me.site, me.boot, me.address)
        for request in self.requests.overdue():
            packet = self._as_packet(request)
            if request.call.number in record.delivered:
                self._repeat(packet, record)
            else:
                self._ask_holder(packet)

    def _as_packet(self, request: Request) -> NonMemberData:
        call = request.call
        return NonMemberData(
            self.site.head(), call.address, call.number, call.handler, call.flags, request.qos,
            (request.message,), self.requests.floor, 0, self._view_id, bound=False, turn=None,
        )  # fmt: skip

    # -- answers go out --------------------------------------------------------------------------

    def answer(self) -> None:
        """Send what this event has made answerable; answers to one caller share packets."""
        site = self.site
        if self.lanes.finished:
            for batch in self.lanes.finished:
                self._finish(batch)
            self.lanes.finished = []
        if self._receipts:
            for record, receipts in _by_caller(self._receipts):
                for start in range(0, len(receipts), RECEIPTS_MAX):
                    part = tuple(receipts[start : start + RECEIPTS_MAX])
                    ack = NonMemberAck(site.head(), record.boot, self._directory(record.view), part)
                    site.out.append(Unicast(record.address, ack))
            self._receipts = []
        if self._answers:
            limit = min(site.config.packet_bytes, REPLY_PACKET_MAX) - PACKET_OVERHEAD
            for record, answers in _by_caller(self._answers):
                sizes = [len(answer.payload) + ANSWER_OVERHEAD for answer in answers]
                for start, end in cut(sizes, limit, RECEIPTS_MAX):
                    directory = self._directory(record.view)
                    reply = NonMemberReply(site.head(), record.boot, directory, tuple(answers[start:end]))
                    site.out.append(Unicast(record.address, reply))
            self._answers = []

    def _directory(self, known: ViewId) -> Directory:
        """The view in force; with addresses, unless the caller knows it. The ring comes first."""
        view = self.view
        if view is None or known == view.id:
            return Directory(self._view_id, ())
        ring = [member.address for site in view.ring if (member := view.member(site)) is not None]
        others = [member.address for member in view.members]
        told: list[str] = []
        room = DIRECTORY_BYTES
        for address in dict.fromkeys([*ring, *others]):
            room -= len(address.encode()) + 3
            if room < 0 or len(told) == ADDRESSES_TOLD:
                break
            told.append(address)
        return Directory(view.id, tuple(told))

    @property
    def _view_id(self) -> ViewId:
        return self.view.id if self.view is not None else NO_VIEW

    def owed(self, calls: tuple[Call, ...]) -> tuple[int, ...]:
        return owed_by(self.site.me, calls, self.view)


NO_VIEW = ViewId(0, 0)


def cut(sizes: Sequence[int], limit: int, most: int) -> Iterable[tuple[int, int]]:
    """Parts, as (start, end), of at most ``limit`` bytes and ``most`` items; a larger item goes alone."""
    start = taken = 0
    for index, size in enumerate(sizes):
        if index > start and (taken + size > limit or index - start >= most):
            yield start, index
            start, taken = index, 0
        taken += size
    if len(sizes) > start:
        yield start, len(sizes)


def _by_caller(items: list[tuple[CallerRecord, T]]) -> list[tuple[CallerRecord, list[T]]]:
    found: dict[tuple[int, int], tuple[CallerRecord, list[T]]] = {}
    for record, item in items:
        found.setdefault((record.site, record.boot), (record, []))[1].append(item)
    return list(found.values())
