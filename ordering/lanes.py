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


class Lanes:
    """Sends and receives what is not ordered."""

    def __init__(self, site: Site, rtt: RoundTrip) -> None:
        self.site = site
        self.rtt = rtt
        self.next_seq = 1
        self.pending: dict[int, Batch] = {}
        self._confirmed: dict[SiteId, int] = {}
        self._tries = 0
        self._seen: dict[SiteId, tuple[int, int, dict[int, int]]] = {}  # boot, contiguous, islands

    def send(self, batch: Batch, view: View | None) -> None:
        site = self.site
        site.multicast(Data(site.head(), batch))
        self._deliver(batch, view)
        if batch.qos.level == Level.UNORDERED:
            self.pending[batch.first_seq] = batch
            site.arm_if_idle(Timer.LANE, self.rtt.rto)

    def on_data(self, batch: Batch, view: View | None) -> None:
        if batch.qos.level == Level.UNRELIABLE:
            self._deliver(batch, view)
            return
        if self._is_new(batch):
            self._deliver(batch, view)
        else:
            self.site.count("duplicate unordered data")
        self.site.unicast(batch.source, DataConfirm(self.site.head(), self._seen[batch.source][1]))

    def _is_new(self, batch: Batch) -> bool:
        boot, contiguous, islands = self._seen.get(batch.source, (batch.boot, 0, {}))
        if boot != batch.boot:
            contiguous, islands = 0, {}
        new = batch.last_seq > contiguous and batch.first_seq not in islands
        if new:
            islands[batch.first_seq] = batch.last_seq
            while (last := islands.pop(contiguous + 1, None)) is not None:
                contiguous = last
        self._seen[batch.source] = (batch.boot, contiguous, islands)
        return new

    def on_confirm(self, confirm: DataConfirm) -> None:
        sender = confirm.head.sender
        self._confirmed[sender] = max(confirm.seq, self._confirmed.get(sender, 0))
        self._tries = 0
        self.trim()

    def trim(self) -> None:
        """Forget what every other ring member has confirmed; who left the ring is not waited for."""
        site = self.site
        others = [s for s in site.view.ring if s != site.me]
        least = min((self._confirmed.get(s, 0) for s in others), default=self.next_seq)
        for first_seq in [seq for seq, batch in self.pending.items() if batch.last_seq <= least]:
            del self.pending[first_seq]
        if not self.pending:
            site.disarm(Timer.LANE)

    def enter_view(self) -> None:
        self._seen = {s: seen for s, seen in self._seen.items() if self.site.view.has(s)}
        self._confirmed = {s: seq for s, seq in self._confirmed.items() if self.site.view.has(s)}
        self.trim()

    def fire(self) -> None:
        site = self.site
        self.trim()
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
