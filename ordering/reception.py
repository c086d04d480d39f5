"""Data that come in: whole batches, and pieces of what does not fit a packet."""

from ordering.delivery import DeliveryCursor
from ordering.lanes import Lanes
from ordering.packets import Batch, Data, Piece, PieceConfirm
from ordering.site import Site
from ordering.submission import Submission


class Reception:
    """Takes in what others multicast, or drops it and counts why."""

    def __init__(self, site: Site, submission: Submission, lanes: Lanes, delivery: DeliveryCursor) -> None:
        self.site = site
        self.submission = submission
        self.lanes = lanes
        self.delivery = delivery
        # Senders keep to their windows; twice that is what a view change may give back.
        self._offered_max = 2 * site.config.window_bytes + site.config.message_bytes_max

    def on_data(self, packet: Data) -> None:
        batch = packet.batch
        if batch.qos.rides_the_ring:
            self._store(batch)
        elif self.site.view.has(batch.source):
            self.lanes.on_data(batch, self.delivery.view)

    def _store(self, batch: Batch) -> None:
        site = self.site
        reason = site.queue.add_batch(batch, site.config.horizon, self._offered_max)
        if reason:
            site.count(reason)
        elif site.assemblies.lanes:
            site.assemblies.drop((batch.source, batch.boot, True), batch.first_seq)

    def on_piece(self, packet: Piece) -> None:
        """The whole goes the way of Data as if it had just come."""
        site = self.site
        part = packet.part
        ordered = part.qos.rides_the_ring
        if packet.asks == site.me:
            end = part.offset + len(part.data)
            site.unicast(part.source, PieceConfirm(site.head(), ordered, part.seq, end))
        member = site.view.member(part.source)
        if member is None or member.boot != part.boot:
            site.count("piece of a non-member")
        elif part.source == site.me and part.boot == site.member.boot:
            site.count("duplicate piece")
        elif part.total > site.config.message_bytes_max:
            site.count("piece of a message above message_bytes_max")
        elif not ordered:
            self.lanes.on_piece(part, self.delivery.view)
        elif reason := site.queue.refuses(part.source, part.seq, site.config.horizon):
            site.count(reason)
        else:
            whole = site.assemblies.add(part, ordered=True)
            if isinstance(whole, Batch):
                self._store(whole)
            elif whole:
                site.count(whole)

    def on_piece_confirm(self, packet: PieceConfirm) -> None:
        (self.submission if packet.ordered else self.lanes).on_piece_confirm(packet)
