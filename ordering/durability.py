"""What waits for the disk (R6, R8, ``docs/durability.md``).

One ``Persist`` is under way at a time; what comes up meanwhile goes into the next: group commit. Whoever
asserts something hands over a record and what is to be done once it is synced. In memory mode that is
done at once, and nothing is written.
"""

from collections.abc import Callable

import msgspec

from ordering.claims import Claims
from ordering.effects import Persist
from ordering.errors import InvariantViolation
from ordering.packets import Order, Position
from ordering.records import (
    Began,
    Commitment,
    Entries,
    Entry,
    Heard,
    Installed,
    Instance,
    Leapt,
    Ledger,
    Record,
    Transferred,
    Trimmed,
)
from ordering.site import Site
from ordering.views import View

SAMPLES_MAX = 16
SMOOTHING = 4


class Flight(msgspec.Struct, frozen=True):
    """A ``Persist`` under way: what is synced when it comes back, and what waits for it."""

    seq: int
    at: int
    where: tuple[int, int]  # chain and epoch of the log's end
    end: int
    then: tuple[Callable[[], None], ...]


class Durability:
    """The log of one site, as far as its disk has it."""

    def __init__(self, site: Site, claims: Claims) -> None:
        self.site = site
        self.claims = claims
        self.handed = 0  # last slot given to the disk
        self._records: list[Record] = []
        self._then: list[Callable[[], None]] = []
        self._flight: Flight | None = None
        self._seq = 0
        self._samples: list[Position] = []  # where the log might be trimmed to

    def restore(self, ledger: Ledger) -> None:
        """Back from the disk: what it has is handed over and synced."""
        self.handed = self.site.queue.frontier
        self.claims.restore(ledger)

    # -- writing ---------------------------------------------------------------------------------

    def note(self, record: Record, then: Callable[[], None] | None = None) -> None:
        """Write ``record`` behind everything before it; ``then`` is called once it is synced."""
        if self.site.config.durable:
            self._append_entries()
            self._records.append(record)
            if then is not None:
                self._then.append(then)
        elif then is not None:
            then()

    def _append_entries(self) -> None:
        """Blocks that have become complete since."""
        queue = self.site.queue
        entries: list[Entry] = []
        while self.handed < queue.frontier:
            order = queue.blocks[self.handed + 1]
            entries.append(Entry(order, tuple(batch for _, batch in queue.segments(order))))
            self.handed = order.last_ts
        if entries:
            self._records.append(Entries(tuple(entries)))

    def flush(self) -> None:
        """Called after every event: send off what has come up, if nothing is under way."""
        site = self.site
        if not site.config.durable or self._flight is not None or site.outside:
            return
        self._append_entries()
        if not self._records:
            return
        heard = self.claims.take_news()
        if heard:
            self._records.append(Heard(heard))
        self._seq += 1
        self._flight = Flight(self._seq, site.now, (site.chain, site.epoch), self.handed, tuple(self._then))
        site.out.append(Persist(self._seq, tuple(self._records)))
        self._records.clear()
        self._then.clear()

    def on_persisted(self, seq: int) -> None:
        flight = self._flight
        if flight is None or flight.seq != seq:
            raise InvariantViolation(f"Persisted({seq}) answers no Persist that is under way")
        site = self.site
        self._flight = None
        site.sync_ns += (site.now - flight.at - site.sync_ns) // SMOOTHING
        if flight.where == (site.chain, site.epoch):
            site.synced = max(site.synced, flight.end)
        for then in flight.then:
            then()

    # -- what is written -------------------------------------------------------------------------

    def begin(self, founders: View | None, started_at: int) -> None:
        """Our log begins behind ``started_at``."""
        site = self.site
        departed = tuple(site.queue.departed.items())
        seat_ts = site.queue.seat_ts
        self.handed = site.queue.frontier  # no entry comes before it
        self.note(Began(site.me, site.chain, site.descent, founders, started_at, seat_ts, departed))
        self.handed = started_at

    def commit(self, instance: Instance, then: Callable[[], None]) -> None:
        """Promise or accept."""
        site = self.site
        fork = site.queue.fork
        self.note(Commitment(site.chain, site.descent, site.epoch, instance, fork, tuple(site.parents)), then)

    def cut(self, sync: int) -> None:
        """Slots above ``sync`` are erased; up to there the log is as it was."""
        self.handed = min(self.handed, sync)
        if self.site.config.durable:
            self._append_entries()

    def installed(self, order: Order) -> None:
        """An epoch begins; nothing of it is held until that is synced."""
        site = self.site
        site.synced = 0
        self.handed = order.last_ts
        self.claims.enter_view()
        self.note(Installed(order, site.chain, site.descent, tuple(site.chains)))

    def leapt(self, position: Position, *, new_epoch: bool) -> None:
        """The log goes on behind ``position``."""
        site = self.site
        if new_epoch:
            site.synced = 0
        self.handed = position.ts
        self._samples.clear()
        self.note(Leapt(position, tuple(site.chains), tuple(site.queue.departed.items())))

    def transferred(self, ts: int, then: Callable[[], None]) -> None:
        self.note(Transferred(ts), then)

    # -- trimming --------------------------------------------------------------------------------

    def sample(self, position: Position | None) -> None:
        """The order is collected up to here: a place to trim the log to, once a snapshot covers it."""
        if not self.site.config.durable or position is None:
            return
        gap = self.site.config.retain_slots // SAMPLES_MAX
        if self._samples and position.ts - self._samples[-1].ts <= gap:
            return
        self._samples.append(position)
        if len(self._samples) > SAMPLES_MAX:
            del self._samples[1]

    def on_snapshot(self, ts: int) -> None:
        """The application can come back from its own snapshot at ``ts``."""
        covered = [position for position in self._samples if position.ts <= ts]
        if covered:
            self._samples = [position for position in self._samples if position.ts > ts]
            self.note(Trimmed(covered[-1], tuple(self.site.queue.departed.items())))
