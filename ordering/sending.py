"""What this site has under way, and the packets it goes in.

Both lanes of a site share one window. A batch that fits a packet goes out whole or waits. A larger
message goes out piece by piece, as the window opens. It has no slot before all of it is somewhere, so
now and then a piece *asks* one ring member to confirm it; that is what opens the window for the next.
Each time another member is asked, as acknowledgements of blocks come from another member each time.
"""

from collections import deque
from collections.abc import Callable

from ordering.accept_queue import AcceptQueue
from ordering.flow_control import FlowControl, make_flow_control
from ordering.packets import Batch, Data, Piece, PieceConfirm
from ordering.pieces import PACKET_OVERHEAD, is_cut, piece_of
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.views import NO_SITE, SiteId


class Flight:
    """One batch on its way. ``sent`` and ``cleared`` count bytes; the difference is in transit."""

    __slots__ = (
        "again",
        "asked_at",
        "asked_end",
        "batch",
        "cleared",
        "landed",
        "large",
        "resent",
        "sent",
        "sent_at",
        "size",
    )

    def __init__(self, batch: Batch, packet_bytes: int, *, again: bool = False) -> None:
        self.batch = batch
        self.large = is_cut(batch, packet_bytes)
        self.size = batch.size if self.large else batch.size + PACKET_OVERHEAD
        self.again = again  # sent before, in another epoch
        self.sent = 0
        self.cleared = 0
        self.sent_at = 0  # or, of a large message, when it was last confirmed
        self.resent = False
        self.asked_end = 0  # where the piece ends that asked last, and when
        self.asked_at = 0
        self.landed = False

    @property
    def in_transit(self) -> int:
        return self.sent - self.cleared


class Sending:
    """The window of one site and its way out."""

    def __init__(self, site: Site, rtt: RoundTrip) -> None:
        self.site = site
        self.rtt = rtt
        self.flow: FlowControl = make_flow_control(site.config)
        self.in_transit = 0
        self._asks = 0

    def room(self, offered: int) -> int:
        """How many bytes the next packet may have, by RMP's figure 4.2."""
        return self.flow.next_packet(self.in_transit, offered)

    def launch(self, flight: Flight) -> bool:
        """Send as much of a batch as may go now; true when all of it is out."""
        if not flight.large:
            if self.in_transit and self.in_transit + flight.size > self.flow.window:
                return False
            self._count(flight, flight.size)
            self.site.multicast(Data(self.site.head(), flight.batch))
            return True
        if flight.again:
            # Whoever was there before has most of it: show the end, and let the others ask.
            flight.again = False
            self.flow.expect_questions(flight.batch.first_seq)
            flight.sent = flight.cleared = flight.size
            self.remind(flight)
            return True
        while flight.sent < flight.size:
            size = self.room(flight.size - flight.sent + PACKET_OVERHEAD) - PACKET_OVERHEAD
            if size <= 0:
                return False
            self._send_piece(flight, min(flight.sent + size, flight.size))
        return True

    def _send_piece(self, flight: Flight, end: int) -> None:
        offset = flight.sent
        self._count(flight, end - offset)
        left = flight.size - end
        asks = (
            not left
            or 2 * (end - flight.asked_end) >= self.flow.window
            or self.room(left + PACKET_OVERHEAD) <= PACKET_OVERHEAD
        )
        if asks:
            flight.asked_end = end
            flight.asked_at = self.site.now
        self._send(flight, offset, end, self._whom_to_ask() if asks else NO_SITE)

    def _send(self, flight: Flight, offset: int, end: int, asks: SiteId) -> None:
        site = self.site
        site.multicast(Piece(site.head(), piece_of(flight.batch, offset, end), asks))
        if asks == site.me:
            self._clear(flight, end)

    def _whom_to_ask(self) -> SiteId:
        """Each time another ring member; ourselves if there is none."""
        ring = [site for site in self.site.view.ring if site != self.site.me]
        self._asks += 1
        return ring[self._asks % len(ring)] if ring else self.site.me

    def remind(self, flight: Flight) -> None:
        """Nothing was heard of a batch: send it again; of a large message the last piece, which asks
        another member. Who misses more of it asks in turn."""
        flight.resent = True
        flight.sent_at = self.site.now
        if not flight.large:
            self.site.multicast(Data(self.site.head(), flight.batch))
            return
        step = self.site.config.packet_bytes - PACKET_OVERHEAD
        self._send(flight, max(flight.sent - step, 0), flight.sent, self._whom_to_ask())

    def on_confirm(self, flight: Flight, confirm: PieceConfirm) -> None:
        """A ring member has the bytes before ``confirm.end``, or will ask for them."""
        if not flight.large or confirm.end > flight.sent:
            return
        if not flight.resent and confirm.end == flight.asked_end:
            self.rtt.sample(self.site.now - flight.asked_at)
        flight.resent = False
        flight.sent_at = self.site.now
        self._clear(flight, confirm.end)

    def land(self, flight: Flight) -> None:
        """All of it has arrived, or is no longer ours to worry about."""
        flight.landed = True
        self._clear(flight, flight.sent)

    def ground(self, flight: Flight) -> None:
        """An epoch is over: what was under way in it is not waited for any more."""
        self.in_transit -= flight.in_transit
        flight.cleared = flight.sent

    def _clear(self, flight: Flight, end: int) -> None:
        size = end - flight.cleared
        if size > 0:
            flight.cleared = end
            self.flow.acknowledged(size, self.in_transit)
            self.in_transit -= size

    def _count(self, flight: Flight, size: int) -> None:
        flight.sent += size
        flight.sent_at = self.site.now
        self.in_transit += size

    def lost(self) -> None:
        self.site.count("windows cut by a timer")
        self.flow.lost(self.site.now, self.rtt.srtt)

    def asked_again(self, seq: int) -> None:
        self.flow.asked_again(seq, self.site.now, self.rtt.srtt)


class Outbox:
    """One lane's messages from acceptance on: accepted, then pending until ``settle``.

    ``sent`` is called when all of a batch is out. Nothing is sent by itself: ``pump`` does, whenever the
    window may have opened.
    """

    def __init__(self, sending: Sending, timer: Timer, sent: Callable[[Flight], None]) -> None:
        self.sending = sending
        self.site = sending.site
        self.accepted = AcceptQueue()
        self.pending: dict[int, Flight] = {}  # by first_seq, oldest first
        self.pending_messages = 0
        self.pending_bytes = 0
        self.calls = 0  # how many of the messages are calls of non-members, and their bytes
        self.call_bytes = 0
        self._waiting: deque[Flight] = deque()  # those of ``pending`` that are not all out
        self._timer = timer
        self._sent = sent

    def __bool__(self) -> bool:
        return bool(self.pending or self.accepted)

    @property
    def has_unsent(self) -> bool:
        return bool(self._waiting or self.accepted)

    @property
    def messages(self) -> int:
        return self.accepted.messages + self.pending_messages

    @property
    def bytes(self) -> int:
        return self.accepted.bytes + self.pending_bytes

    def first_seq(self, otherwise: int) -> int:
        """The oldest message that is not settled."""
        return next(iter(self.pending), self.accepted.first_seq if self.accepted else otherwise)

    def put(self, batch: Batch) -> None:
        """Messages that were accepted; they are packed when they are sent."""
        self.accepted.put(batch)
        self._count_calls(batch, 1)

    def _count_calls(self, batch: Batch, sign: int) -> None:
        """Requests of our own are our own messages, not calls of others; they may share a packet."""
        for call, message in zip(batch.calls, batch.messages, strict=False):
            if call.caller != self.site.me:
                self.calls += sign
                self.call_bytes += sign * len(message)

    def pump(self) -> None:
        """Send what the window has room for."""
        while self._waiting or self._form():
            flight = self._waiting[0]
            if not flight.landed:
                before = flight.sent
                done = self.sending.launch(flight)
                if flight.sent > before:
                    self.site.arm_if_idle(self._timer, self.sending.rtt.rto)
                if not done:
                    return
                self._sent(flight)
            self._waiting.popleft()

    def _form(self) -> bool:
        """Pack the next batch, if there is anything to pack and room for it."""
        accepted = self.accepted
        if not accepted:
            return False
        limit = self.sending.room(accepted.offered)
        if not limit:
            return False
        site = self.site
        first, qos = accepted.first_seq, accepted.qos
        messages, calls = accepted.take(limit, site.config.block_messages)
        batch = Batch(site.me, site.member.boot, first, qos, messages, calls)
        self._put(Flight(batch, site.config.packet_bytes))
        return True

    def _put(self, flight: Flight) -> None:
        batch = flight.batch
        self.pending[batch.first_seq] = flight
        self.pending_messages += len(batch.messages)
        self.pending_bytes += batch.size
        self._waiting.append(flight)

    def settle(self, first_seq: int) -> Flight:
        """A batch has a slot, or was confirmed by all."""
        flight = self.pending.pop(first_seq)
        self.pending_messages -= len(flight.batch.messages)
        self.pending_bytes -= flight.batch.size
        self._count_calls(flight.batch, -1)
        self.sending.land(flight)
        if not self.pending:
            self.site.disarm(self._timer)
        return flight

    def send_again(self, erased: list[Batch], ordered: int) -> None:
        """An epoch is over: ``erased`` have lost their slots, and what is pending after ``ordered`` has none.
        It goes out again, as the window allows; nobody knows who has it."""
        unsent = set(self._waiting)
        before = list(self.pending.values())
        for flight in before:
            self.sending.ground(flight)
            self._count_calls(flight.batch, -1)
        self._waiting.clear()
        self.pending = {}
        self.pending_messages = self.pending_bytes = 0
        size = self.site.config.packet_bytes
        for batch in erased:
            self._put(Flight(batch, size, again=True))
        for flight in before:
            if flight.batch.first_seq > ordered:
                self._put(flight if flight in unsent else Flight(flight.batch, size, again=True))
        for flight in self.pending.values():
            self._count_calls(flight.batch, 1)
        self.site.disarm(self._timer)

    def remind(self) -> None:
        """Send again what nothing was heard of, oldest first: a window of it, and a burst at most."""
        now, rto = self.site.now, self.sending.rtt.rto
        room = self.sending.flow.window
        for count, flight in enumerate(self.pending.values()):
            if count >= self.site.config.retransmit_burst or not flight.sent:
                break
            if count and (room < flight.size or now - flight.sent_at < rto):
                break
            room -= flight.size
            self.sending.remind(flight)

    def clear(self) -> None:
        for flight in self.pending.values():
            self.sending.ground(flight)
        self.pending = {}
        self.pending_messages = self.pending_bytes = 0
        self.calls = self.call_bytes = 0
        self._waiting.clear()
        self.accepted.clear()
