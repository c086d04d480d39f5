"""The levels below the ring: UNRELIABLE and UNORDERED messages (RMP §3.2, rule R10).

They take no ordered sequence number and no slot. UNRELIABLE is a datagram. UNORDERED is delivered
on receipt and repeated by its source until every ring member has confirmed it; it has a lane of
sequence numbers of its own, which also keeps out duplicates (RMP would let them through). RMP finds
missing unordered packets by NACK; they have no slot whose absence anyone could notice when the
last one is lost, so here the receivers confirm and the source repeats.
"""

from ordering.config import MS
from ordering.effects import Deliver, Delivery
from ordering.packets import Batch, Data, DataConfirm
from ordering.qos import Level
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.views import SiteId, View, ViewId

SEEN_MAX = 4096
GONE_MAX = 16


class Lanes:
    """Sends and receives what is not ordered."""

    def __init__(self, site: Site, rtt: RoundTrip) -> None:
        self.site = site
        self.rtt = rtt
        self.next_seq = 1
        self.pending: dict[int, Batch] = {}
        self.pending_messages = 0
        self.pending_bytes = 0
        self._owing: dict[int, dict[SiteId, None]] = {}  # first_seq → who has not confirmed it yet
        self._tries = 0
        # Batches seen of each boot: kept long enough to know a duplicate, not for ever.
        self._seen: dict[tuple[SiteId, int], dict[int, None]] = {}

    def send(self, batch: Batch, view: View | None) -> None:
        site = self.site
        site.multicast(Data(site.head(), batch))
        self._deliver(batch, view)
        if batch.qos.level == Level.UNORDERED:
            self.pending[batch.first_seq] = batch
            self.pending_messages += len(batch.messages)
            self.pending_bytes += batch.size
            self._owing[batch.first_seq] = dict.fromkeys(s for s in site.view.ring if s != site.me)
            self._trim(batch.first_seq)
            if self.pending:
                site.arm_if_idle(Timer.LANE, self.rtt.rto)

    def on_data(self, batch: Batch, view: View | None) -> None:
        if batch.qos.level == Level.UNRELIABLE:
            self._deliver(batch, view)
            return
        seen = self._seen.setdefault((batch.source, batch.boot), {})
        if batch.first_seq in seen:
            self.site.count("duplicate unordered data")
        else:
            seen[batch.first_seq] = None
            if len(seen) > SEEN_MAX:
                del seen[next(iter(seen))]
            self._deliver(batch, view)
        self.site.unicast(batch.source, DataConfirm(self.site.head(), batch.first_seq))

    def on_confirm(self, confirm: DataConfirm) -> None:
        self._tries = 0
        owing = self._owing.get(confirm.seq)
        if owing is not None:
            owing.pop(confirm.head.sender, None)
            self._trim(confirm.seq)

    def _trim(self, *seqs: int) -> None:
        """Forget what all have confirmed; who left the ring is not waited for."""
        ring = self.site.view.ring
        for first_seq in seqs:
            if any(debtor in ring for debtor in self._owing[first_seq]):
                continue
            del self._owing[first_seq]
            batch = self.pending.pop(first_seq)
            self.pending_messages -= len(batch.messages)
            self.pending_bytes -= batch.size
        if not self.pending:
            self.site.disarm(Timer.LANE)

    def enter_view(self) -> None:
        view = self.site.view
        gone = [key for key in self._seen if not view.has(key[0])]
        for key in gone[:-GONE_MAX]:  # a view change may yet bring back the latest
            del self._seen[key]
        self._trim(*self._owing)

    def fire(self) -> None:
        site = self.site
        for count, batch in enumerate(self.pending.values()):
            if count >= site.config.retransmit_burst:
                break
            site.multicast(Data(site.head(), batch))
        if self.pending:
            self._tries += 1
            backoff = min(self.rtt.rto << min(self._tries, 6), site.config.rto_max_ms * MS)
            site.arm(Timer.LANE, backoff)

    def _deliver(self, batch: Batch, view: View | None) -> None:
        delivery = Delivery(0, batch.source, batch.first_seq, batch.qos, batch.qos.level, batch.messages)
        self.site.out.append(Deliver(view.id if view is not None else ViewId(0, 0), (delivery,)))
