"""Asking for what is missing, and answering (RMP §4.2; rule R16).

A gap is first given the time of a reordering, plus a drawn part: whoever asks first is overheard by
the others, who then wait for the answer instead of asking too (RMP multicasts its NACKs for this).
The first NACK names the site that should have the packets; each further one names another, and
from the third on anyone may answer. Every NACK that brings nothing doubles the patience.

Answers go to everybody while the block is not stable, since others may miss it too, and only to
the asker once the ring is known to have it. A packet is not sent twice within half a round trip.
"""

from collections.abc import Callable, Iterator

from ordering.config import MS
from ordering.packets import Ack, Batch, Data, Nack, NewList, Order, Packet, Piece, Run, Span
from ordering.pieces import cut, is_cut
from ordering.rtt import RoundTrip
from ordering.sending import Flight, Sending
from ordering.site import Site, Timer
from ordering.throttle import Throttle
from ordering.transfer import Transfer
from ordering.views import NO_SITE, SiteId

ANYONE_AFTER = 2
RUNS_MAX = 32
SPANS_MAX = 32
HELPED_MAX = 64
BLOCKS = 16  # looked through for one answer, for each packet it may have


class Retransmission:
    """One site's NACKs and its answers to those of others."""

    def __init__(
        self,
        site: Site,
        rtt: RoundTrip,
        transfer: Transfer,
        sending: Sending,
        own_flight: Callable[[Span], Flight | None],
    ) -> None:
        self.site = site
        self.rtt = rtt
        self.transfer = transfer
        self.sending = sending
        self.own_flight = own_flight  # what we have under way of a message of ours
        self.tries = 0
        self.behind_epoch = 0  # highest epoch heard of above our own
        self._asked: tuple[int, int] = (0, 0)  # (frontier, epoch) of the last NACK
        self._gaps: dict[tuple[SiteId, int], None] = {}  # where those it named began
        self._sent = Throttle(4 * site.config.retransmit_burst)  # what was retransmitted lately
        self._helped = Throttle(HELPED_MAX)
        self._filled = 0

    # -- asking ----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Arm or disarm the NACK timer; called after every event."""
        site = self.site
        if not self._has_gap():
            site.disarm(Timer.NACK)
            self.tries = 0
            return
        progress = (site.queue.frontier, site.epoch)
        if progress != self._asked:
            self._asked = progress
            self.tries = 0
            site.disarm(Timer.NACK)
        elif self._filled != site.assemblies.filled:
            self.tries = 0  # somebody answers, piece by piece: no need to be more patient
        self._filled = site.assemblies.filled
        delay = site.config.nack_delay_ms
        site.arm_if_idle(Timer.NACK, delay * MS + site.jitter(delay))

    def _has_gap(self) -> bool:
        queue = self.site.queue
        if queue.known_end > queue.frontier or self._needs_install():
            return True
        assemblies = self.site.assemblies
        if assemblies.lanes and assemblies.has_gap():
            return True
        return any(source.contiguous < source.highest for source in queue.sources.values())

    def _needs_install(self) -> bool:
        return self.behind_epoch > self.site.epoch and not self.site.decided

    def fire(self) -> None:
        """Ask, naming a site that should know; the answer, or the timer, brings us back."""
        site = self.site
        slots = site.queue.missing_slots()
        due = site.queue.due_data()
        assemblies = site.assemblies
        data = tuple(
            run
            for run in site.queue.missing_data(RUNS_MAX, assemblies, due)
            if assemblies.can_take(run.source, site.queue.sources[run.source].boot, run.first_seq)
        )
        assemblies.give_up()
        spans = tuple(assemblies.gaps(due, SPANS_MAX))
        after_epoch = site.epoch if self._needs_install() else None
        first, last = slots if slots is not None else (0, 0)
        if slots is None and not data and not spans and after_epoch is None:
            return
        self._note_answers(first, data)
        site.count("nacks sent")
        nack = Nack(site.head(), self._responder(), first, last, data, after_epoch, spans)
        site.multicast(nack)
        self.tries += 1
        backoff = self.rtt.rto << min(self.tries - 1, 6)
        # The token may wait for us: several NACKs may be lost before that makes us suspect. And where
        # much is lost the estimate of a round trip contains recoveries, and is far too long.
        patience = min(site.config.rto_max_ms, site.config.suspect_ms // 4) * MS
        site.arm(Timer.NACK, min(backoff, patience) + site.jitter(site.config.rto_min_ms))

    def _note_answers(self, first: int, data: tuple[Run, ...]) -> None:
        """Of a long gap each answer brings a part, orders first, and the frontier may stand until the last:
        only a NACK after which every gap still begins where it began was in vain."""
        gaps = dict.fromkeys([(NO_SITE, first), *((run.source, run.first_seq) for run in data)])
        if any(gap not in gaps for gap in self._gaps):
            self.tries = 0
        self._gaps = gaps

    def _responder(self) -> SiteId:
        """Escalation: the best informed site first, then the others in turn, then anyone."""
        site = self.site
        if self.tries >= ANYONE_AFTER:
            return NO_SITE
        received = site.stability.received
        known = [m.site for m in site.view.members if m.site != site.me]
        if not known:
            return NO_SITE
        best = sorted(known, key=lambda s: (-received.get(s, 0), s))
        return best[self.tries % len(best)]

    def overhear(self, nack: Nack) -> None:
        """Suppression: somebody asked for what we miss; wait for that answer."""
        site = self.site
        if Timer.NACK not in site.deadlines or self.tries:
            return
        slots = site.queue.missing_slots()
        if slots is not None and nack.first_ts <= slots[0] <= nack.last_ts:
            site.count("nacks suppressed")
            site.arm(Timer.NACK, self.rtt.rto)

    # -- answering -------------------------------------------------------------------------------

    def answer(self, nack: Nack) -> None:
        """Retransmit what we hold of what is asked; also while fenced (R4)."""
        site = self.site
        asker = nack.head.sender
        self._note_losses(nack)
        if nack.named not in (NO_SITE, site.me):
            self._answer_own(nack)
            self.overhear(nack)
            return
        budget = site.config.retransmit_burst
        if nack.after_epoch is not None and nack.after_epoch < site.epoch:
            self.send_install(asker, nack.after_epoch)
            # The asker's order may differ from ours above its sync point: the install comes first.
            return
        if nack.head.epoch > site.epoch:
            return
        if nack.last_ts:
            if nack.first_ts <= site.queue.base:
                self.transfer.refuse(asker)
                return
            budget -= self._send_blocks(nack, budget)
        ordered = [Run(span.source, span.seq, 1) for span in nack.spans if span.ordered]
        if any(site.queue.has_collected(run) for run in (*nack.data, *ordered)):
            self.transfer.refuse(asker)
            return
        for span in nack.spans:  # what is begun is finished first
            budget -= self._send_span(asker, span, budget)
            if budget <= 0:
                return
        for run in nack.data:
            for batch in site.queue.data_between(run, budget):
                budget -= self._send_batch(asker, batch, 0, batch.size, budget)
                if budget <= 0:
                    return

    def _send_blocks(self, nack: Nack, budget: int) -> int:
        """Missing blocks in the order of the slots, each with what the asker lacks of its data; first the
        data of those it has. So its frontier moves with every answer: were all orders sent before their
        data, a site that was away for long would soon be busy with nothing but orders that wait."""
        queue, asker = self.site.queue, nack.head.sender
        count = 0
        has = nack.head.received or nack.first_ts - 1  # who is fenced does not say how far it is
        first = max(min(has + 1, nack.first_ts), queue.base + 1)
        for order in queue.blocks_between(first, nack.last_ts, BLOCKS * self.site.config.retransmit_burst):
            if order.epoch > nack.head.epoch or count >= budget:
                break
            if order.last_ts >= nack.first_ts:
                self.send_block(asker, order)
                count += 1
            for run in order.runs:
                for lacked in common(run, nack.data):
                    for batch in queue.data_between(lacked, budget - count):
                        count += self._send_batch(asker, batch, 0, batch.size, budget - count)
        return count

    def _note_losses(self, nack: Nack) -> None:
        """RMP §4.6: who asks for what we sent was overrun, or the network was. Not so who comes from
        outside the ring, or from another epoch: it was away, and catches up."""
        site = self.site
        me = site.me
        if nack.head.epoch != site.epoch or nack.head.sender not in site.view.ring:
            return
        for run in nack.data:
            if run.source == me:
                self.sending.asked_again(run.first_seq)
        for span in nack.spans:
            if span.source == me:
                self.sending.asked_again(span.seq)

    def _answer_own(self, nack: Nack) -> None:
        """Another is named; but what is not all out yet, or has no slot at all, only its source has."""
        site = self.site
        if nack.head.epoch > site.epoch:
            return
        budget = site.config.retransmit_burst
        for span in nack.spans:
            if span.source == site.me and budget > 0:
                own = self.own_flight(span)
                if own is not None and (not span.ordered or own.sent < own.size):
                    budget -= self._send_span(nack.head.sender, span, budget)

    def _send_span(self, asker: SiteId, span: Span, budget: int) -> int:
        """Answer for a part of a message, from what we hold or have begun to send."""
        site = self.site
        batch: Batch | None = None
        end = span.end
        if span.source == site.me and (flight := self.own_flight(span)) is not None:
            batch = flight.batch
            end = min(end, flight.sent) if flight.large else end
        elif span.ordered and (source := site.queue.sources.get(span.source)) is not None:
            batch = source.batches.get(span.seq)
        if batch is None or len(batch.messages) > 1:
            return 0
        return self._send_batch(asker, batch, span.first, end, budget)

    def _send_batch(self, asker: SiteId, batch: Batch, first: int, end: int, budget: int) -> int:
        """Retransmit a batch, or bytes of a large message; returns for how many packets it counts."""
        site = self.site
        source = site.queue.sources.get(batch.source)
        stable = source is not None and batch.last_seq <= source.ordered
        alone = stable and asker in site.view.external
        packet_bytes = site.config.packet_bytes
        if not is_cut(batch, packet_bytes):
            if self._fresh(batch.source, batch.first_seq):
                self._send(asker, Data(site.head(), batch), alone=alone)
            return 1
        count = 0
        for part in cut(batch, first, end, packet_bytes):
            if count >= budget:
                break
            count += 1
            if self._fresh(batch.source, batch.first_seq, part.offset + 1):
                self._send(asker, Piece(site.head(), part, NO_SITE), alone=alone)
        return count

    def send_block(self, asker: SiteId, order: Order) -> None:
        if self._fresh(0, order.ts):
            self._send(
                asker, block_packet(self.site, order), alone=order.last_ts <= self.site.stability.stable
            )

    def send_install(self, asker: SiteId, epoch: int) -> None:
        """Bring a site one epoch further, or tell it that this is no longer possible."""
        site = self.site
        order = site.queue.install_after(epoch)
        if order is None:
            self.transfer.refuse(asker)
        else:
            site.unicast(asker, block_packet(site, order))

    def help_laggard(self, asker: SiteId, epoch: int) -> None:
        """A member speaks in an epoch that is over: send the install unasked, now and then."""
        site = self.site
        if self._helped.allows(asker, site.now, self.rtt.rto):
            self.send_install(asker, epoch)

    def _fresh(self, source: int, number: int, piece: int = 0) -> bool:
        """Rate limit: not again what was just retransmitted."""
        return self._sent.allows((source, number, piece), self.site.now, self.rtt.srtt // 2)

    def _send(self, asker: SiteId, packet: Packet, *, alone: bool) -> None:
        self.site.count("retransmissions")
        if alone:
            self.site.unicast(asker, packet)
            return
        self.site.multicast(packet)
        if not self.site.view.has(asker):  # on its way out, and needed to hold its own removal (R5)
            self.site.unicast(asker, packet)


def common(run: Run, missing: tuple[Run, ...]) -> Iterator[Run]:
    """The parts of a run that are missing."""
    for other in missing:
        first = max(run.first_seq, other.first_seq)
        last = min(run.last_seq, other.last_seq)
        if other.source == run.source and first <= last:
            yield Run(run.source, first, last - first + 1)


def block_packet(site: Site, order: Order) -> Packet:
    """An Order travels as an Ack, or as a NewList where it carries a view."""
    return (
        Ack(site.head(), order)
        if order.view is None
        else NewList(site.head(), order, site.descent, site.queue.latest_departed())
    )
