"""Delivery by quality of service (RMP §3.2 and figure 3.2, rules R2, R5, R10).

One cursor walks the complete prefix in slot order: every message of at least TOTALLY_ORDERED waits
for all smaller timestamps, so the total order also holds between levels, and a message waits for
the strongest one before it. SOURCE_ORDERED messages run ahead of the cursor as soon as all earlier
messages of their source are delivered: between them and the ordered ones only source order holds,
which is RMP's rule for mixed levels (the lower level decides).
"""

from ordering.effects import Deliver, Delivery, InstallView, LevelReached, Retract, Tick
from ordering.errors import InvariantViolation
from ordering.lock_requests import LockRequests
from ordering.multirpc import MultiRpc
from ordering.ordering_queue import Source
from ordering.packets import Batch, Order, Position
from ordering.qos import Level, Qos
from ordering.records import Ledger
from ordering.site import Site
from ordering.views import View, ViewId, majority_of


class DeliveryCursor:
    """How far the application has been told."""

    def __init__(self, site: Site, locks: LockRequests, rpc: MultiRpc) -> None:
        self.site = site
        self.locks = locks
        self.rpc = rpc
        self.cursor = 0  # last slot of the last block delivered whole
        self.part = 0  # slots already delivered of the block after it
        self._told = LevelReached(0, 0)
        self._ready: list[Delivery] = []
        self._chain = 0  # that gave them their timestamps

    @property
    def view(self) -> View | None:
        return self.site.told_view

    def start_at(self, ts: int) -> None:
        """A joiner's application hears from its first view on."""
        self.cursor = ts - 1

    def restore(self, ledger: Ledger) -> None:
        """Back from the disk: deliver again from where the log begins."""
        assert ledger.began is not None
        self.cursor = ledger.began.started_at
        if ledger.base is not None:
            self.leap(ledger.base)

    def leap(self, position: Position) -> None:
        """The application has the state of everything up to the position, and the view there."""
        majority = self.site.stability.majority
        self.rpc.table.leap()
        if self.cursor + self.part > majority:
            self.site.out.append(Retract(majority))
        self.cursor = position.ts
        self.part = 0
        if self.view is None or self.view.id < position.view.id:
            chain = self.site.chain_of(position.ts)
            self._enter(position.view_ts, chain, position.view, position.time)
        self._told = LevelReached(max(position.ts, self._told.majority), self._told.stable)
        self.site.out.append(self._told)

    def run(self) -> None:
        """Deliver all that is due. Called after every event; never while fenced (R4)."""
        site = self.site
        queue = site.queue
        while self.cursor < queue.frontier:
            order = queue.blocks[self.cursor + 1]
            if not self._deliver_block(order):
                break
            self.cursor = order.last_ts
            self.part = 0
        site.delivered = self.cursor
        for source in queue.sources.values():
            if source.source_ordered > source.delivered:
                self._deliver_early(source)
        self._flush()
        # Never ahead of what was delivered: a host may act on it at once.
        told = self.cursor + 1 + self.part if self.part else self.cursor
        majority, stable = min(site.stability.majority, told), min(site.stability.stable, told)
        if (majority != self._told.majority or stable != self._told.stable) and self.view is not None:
            self._told = LevelReached(majority, stable)
            site.out.append(self._told)

    def _deliver_block(self, order: Order) -> bool:
        """Deliver a block, or as much of it as its levels allow; true if nothing of it is left."""
        if order.view is not None:
            if self.site.stability.majority < order.ts:
                return False
            self._flush()
            self._enter(order.ts, self.site.chain_of(order.ts), order.view, order.time)
            return True
        if order.tick:
            return self._deliver_tick(order)
        for ts, batch in self.site.queue.segments(order):
            if ts - order.ts <= self.part:
                continue
            source = self.site.queue.sources[batch.source]
            if batch.first_seq not in source.early:
                reached = self._reached(batch.qos, order.last_ts)
                if reached is None:
                    return False
                self._take(ts, batch, reached, source, order.time)
            else:
                reached = Level.SOURCE_ORDERED
            if batch.calls:
                self.rpc.placed(order, ts, batch, reached)
            self.part = ts - order.ts + len(batch.messages) - 1
        return True

    def _enter(self, ts: int, chain: int, view: View, time: int) -> None:
        """Tell the application of a view, and of its own locks there (R5: always majority-held)."""
        locks_only = self.view is not None and view.differs_in_locks_only(self.view)
        self.site.told_view = self.rpc.view = view
        self.site.out.append(InstallView(ts, chain, view, time, locks_only))
        self.locks.tell(view, ts)

    def _deliver_tick(self, order: Order) -> bool:
        if self.site.stability.majority < order.ts:
            return False
        self._flush()
        self.site.out.append(Tick(order.ts, order.time))
        return True

    def _take(self, ts: int, batch: Batch, reached: Level, source: Source, time: int = 0) -> None:
        if source.delivered + 1 != batch.first_seq:
            raise InvariantViolation(
                f"message {batch.source}:{batch.first_seq} is due after {source.delivered} was delivered"
            )
        if batch.qos.level == Level.SOURCE_ORDERED:
            # Delivered for good, whatever becomes of the slot: remembered until that is collected.
            source.early[batch.first_seq] = batch.last_seq
            ts = time = 0
        elif (chain := self.site.chain_of(ts)) != self._chain:
            self._flush()
            self._chain = chain
        calls = batch.calls
        owed = self.rpc.owed(calls) if calls else ()
        self._ready.append(
            Delivery(ts, batch.source, batch.first_seq, batch.qos, reached, batch.messages, time, calls, owed)
        )
        source.delivered = batch.last_seq
        source.skip_early()

    def _deliver_early(self, source: Source) -> None:
        while (batch := source.batches.get(source.delivered + 1)) is not None:
            if batch.qos.level != Level.SOURCE_ORDERED:
                return
            self._take(0, batch, Level.SOURCE_ORDERED, source)

    def _reached(self, qos: Qos, ts: int) -> Level | None:
        """The level a message of a block ending at ``ts`` may be delivered on now, if any."""
        level = qos.level
        stability = self.site.stability
        if level == Level.MAJORITY:
            return level if stability.majority >= ts else None
        if level == Level.TOTAL:
            return level if min(stability.majority, stability.stable) >= ts else None
        if level == Level.K_RESILIENT:
            view = self.site.view
            # R10: a K that dead sites make unreachable must not block what comes behind it.
            reachable = max(view.ring_voters, 1)
            if not self._held_by(min(qos.k + 1, reachable), ts):
                return None
            if qos.k < reachable:
                return level
            return Level.MAJORITY if stability.majority >= ts else Level.TOTALLY_ORDERED
        return level

    def _held_by(self, voters: int, ts: int) -> bool:
        """Whether so many voters hold the slot, known one by one or as a majority or the whole ring.

        Of which ring or electorate is not known: of any view from that of the slot on.
        """
        stability = self.site.stability
        if stability.holders(self.site.view, ts) >= voters:
            return True
        views = self.site.queue.views_since(ts)
        if stability.majority >= ts and voters <= min(majority_of(view.electorate) for view in views):
            return True
        return stability.stable >= ts and voters <= min(view.ring_voters for view in views)

    def erase_above(self, ts: int) -> None:
        """A view change erased slots: take back what was delivered of them below MAJORITY."""
        if self.cursor + self.part <= ts:
            return
        if self.site.stability.majority > ts:
            raise InvariantViolation(f"slots above {ts} are majority-held and about to be erased")
        self.cursor = ts
        self.part = 0
        self.rpc.table.erase_above(ts)
        self.site.out.append(Retract(ts))

    def _flush(self) -> None:
        if self._ready:
            view = self.view.id if self.view is not None else ViewId(0, 0)
            self.site.out.append(Deliver(view, tuple(self._ready), self._chain))
            self._ready = []
