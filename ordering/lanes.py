"""The levels below the ring: UNRELIABLE and UNORDERED messages (RMP §3.2, rule R10).

They take no ordered sequence number and no slot. UNRELIABLE is a datagram. UNORDERED is delivered
on receipt and repeated by its source until every ring member has confirmed it; it has a lane of
sequence numbers of its own, which also keeps out duplicates (RMP would let them through). RMP finds
missing unordered packets by NACK; they have no slot whose absence anyone could notice when the
last one is lost, so here the receivers confirm and the source repeats.
"""

from ordering.accept_queue import AcceptQueue
from ordering.call_table import owed_by
from ordering.config import MS
from ordering.effects import Deliver, Delivery
from ordering.packets import Batch, Data, DataConfirm, Part, PieceConfirm
from ordering.qos import Level
from ordering.rtt import RoundTrip
from ordering.sending import Flight, Outbox, Sending
from ordering.site import Site, Timer
from ordering.views import SiteId, View, ViewId

SEEN_MAX = 4096
GONE_MAX = 16


class Lanes:
    """Sends and receives what is not ordered."""

    def __init__(self, site: Site, rtt: RoundTrip, sending: Sending) -> None:
        self.site = site
        self.rtt = rtt
        self.sending = sending
        self.next_seq = 1
        self.outbox = Outbox(sending, Timer.LANE, self._on_sent)
        # Calls: our own that all have confirmed, and those of others. Who sees to callers takes them.
        self.finished: list[Batch] = []
        self._owing: dict[int, dict[SiteId, None]] = {}  # first_seq → who has not confirmed it yet
        self._tries = 0
        # Batches seen of each boot: kept long enough to know a duplicate, not for ever.
        self._seen: dict[tuple[SiteId, int], dict[int, None]] = {}

    def submit(self, batch: Batch, view: View | None) -> None:
        """Send now, or when the window has room."""
        if batch.qos.level == Level.UNRELIABLE:
            self._send_unreliable(batch, view)
            return
        self.next_seq += len(batch.messages)
        self._deliver(batch, view)
        self.outbox.put(batch)

    def _send_unreliable(self, batch: Batch, view: View | None) -> None:
        """Datagrams: no window holds them up, and nobody repeats them."""
        site = self.site
        parcels = AcceptQueue()
        parcels.put(batch)
        while parcels:
            messages, calls = parcels.take(site.config.packet_bytes, site.config.block_messages)
            packed = Batch(site.me, site.member.boot, 0, batch.qos, messages, calls)
            site.multicast(Data(site.head(), packed))
            self._deliver(packed, view)

    def _on_sent(self, flight: Flight) -> None:
        """Whoever is in the ring now owes a confirmation."""
        seq = flight.batch.first_seq
        self._owing[seq] = dict.fromkeys(s for s in self.site.view.ring if s != self.site.me)
        self._trim(seq)

    def on_data(self, batch: Batch, view: View | None) -> None:
        if batch.qos.level == Level.UNRELIABLE:
            self._receive(batch, view)
            return
        seen = self._seen.setdefault((batch.source, batch.boot), {})
        if batch.first_seq in seen:
            self.site.count("duplicate unordered data")
        else:
            seen[batch.first_seq] = None
            if len(seen) > SEEN_MAX:
                del seen[next(iter(seen))]
            self._receive(batch, view)
        self.site.unicast(batch.source, DataConfirm(self.site.head(), batch.boot, batch.first_seq))

    def on_piece(self, part: Part, view: View | None) -> None:
        """A part of a large message; it is confirmed, and delivered, as a whole."""
        site = self.site
        if part.seq in self._seen.get((part.source, part.boot), {}):
            site.count("duplicate unordered data")
            site.unicast(part.source, DataConfirm(site.head(), part.boot, part.seq))
            return
        whole = site.assemblies.add(part, ordered=False)
        if isinstance(whole, Batch):
            self.on_data(whole, view)
        elif whole:
            site.count(whole)

    def on_confirm(self, confirm: DataConfirm) -> None:
        """Sequence numbers of different sources are alike: one meant for another must settle nothing here."""
        if confirm.boot != self.site.member.boot:
            self.site.count("confirmation for another process")
            return
        self._tries = 0
        owing = self._owing.get(confirm.seq)
        if owing is not None:
            owing.pop(confirm.head.sender, None)
            self._trim(confirm.seq)

    def on_piece_confirm(self, confirm: PieceConfirm) -> None:
        flight = self.outbox.pending.get(confirm.seq)
        if flight is not None:
            self._tries = 0
            self.sending.on_confirm(flight, confirm)

    def _trim(self, *seqs: int) -> None:
        """Forget what all have confirmed; who left the ring is not waited for."""
        ring = self.site.view.ring
        for first_seq in seqs:
            if not any(debtor in ring for debtor in self._owing[first_seq]):
                del self._owing[first_seq]
                batch = self.outbox.settle(first_seq).batch
                if batch.calls:
                    self.finished.append(batch)

    def enter_view(self) -> None:
        view = self.site.view
        gone = [key for key in self._seen if not view.has(key[0])]
        for key in gone[:-GONE_MAX]:  # a view change may yet bring back the latest
            del self._seen[key]
        self._trim(*self._owing)

    def fire(self) -> None:
        site = self.site
        if self.outbox.pending:
            self._tries += 1
            self.sending.lost()
            self.outbox.remind()
            backoff = min(self.rtt.rto << min(self._tries, 6), site.config.rto_max_ms * MS)
            site.arm(Timer.LANE, backoff)

    def _receive(self, batch: Batch, view: View | None) -> None:
        self._deliver(batch, view)
        if batch.calls:
            self.finished.append(batch)

    def _deliver(self, batch: Batch, view: View | None) -> None:
        calls = batch.calls
        owed = owed_by(self.site.me, calls, view) if calls else ()
        source, qos = batch.source, batch.qos
        delivery = Delivery(0, source, batch.first_seq, qos, qos.level, batch.messages, 0, calls, owed)
        self.site.out.append(Deliver(view.id if view is not None else ViewId(0, 0), (delivery,)))
