"""RMP's two lists (§4.2): the DataList of what has come and the OrderingQ of what has an order.

The DataList is kept per source: R10 orders a source contiguously, so "the data of these slots is
here" is one comparison with the source's contiguous sequence number, not a search per packet.

The OrderingQ holds blocks (``Order``), keyed by their first slot. ``frontier`` is the last slot of
the gap-free, complete prefix: all orders and all their data. It moves by whole blocks; therefore a
frontier, a sync point and a hold statement always name the end of a block, and erasing above one
never splits an order. RMP keeps a slot per packet; a block per ACK says the same with less work.
"""

from collections import deque
from collections.abc import Iterator

from ordering.packets import Batch, Order, Position, Run
from ordering.pieces import Assemblies
from ordering.qos import Level
from ordering.views import SiteId, View, ViewId

DEPARTED_MAX = 1024
DEPARTED_TOLD = 64
PASSES_KEPT = 32  # the last blocks placed, for who wants to see the token move
NO_VIEW = View(ViewId(0, 0), (), (), ())


class Source:
    """What is known of one member's messages."""

    __slots__ = (
        "batches",
        "boot",
        "collected",
        "contiguous",
        "delivered",
        "early",
        "highest",
        "ordered",
        "source_ordered",
        "unordered_bytes",
        "wanted",
    )

    def __init__(self, boot: int, seq: int) -> None:
        self.boot = boot
        self.collected = seq  # last message with a slot that is collected
        self.ordered = seq  # last message with a slot in the complete prefix
        self.contiguous = seq  # last message of the gap-free run received
        self.highest = seq  # last message received, gaps or not
        self.wanted = seq  # last message that a block known here gives a slot
        self.unordered_bytes = 0  # of messages without a slot in the complete prefix
        self.delivered = seq  # last message of the gap-free run delivered
        self.batches: dict[int, Batch] = {}
        # SOURCE_ORDERED batches delivered ahead of their slot: first_seq → last_seq.
        self.early: dict[int, int] = {}
        self.source_ordered = seq  # last SOURCE_ORDERED message received

    def skip_early(self) -> None:
        while (last := self.early.get(self.delivered + 1)) is not None:
            self.delivered = last


class OrderingQueue:
    """Slots, gaps and the complete prefix of one site."""

    def __init__(self) -> None:
        self.sources: dict[SiteId, Source] = {}
        self.blocks: dict[int, Order] = {}
        self.ahead: dict[int, Order] = {}  # those of ``blocks`` beyond the frontier
        self.started_at = 0  # slots up to here were never ours
        self.seat_ts = 0  # the NewList that seated us
        self.base = 0  # everything up to here is collected
        self.frontier = 0
        self.known_end = 0  # highest slot anyone of this epoch was heard to have
        self.tail: Order | None = None
        self.placed = 0  # blocks, and with each the token went on
        self.passes: deque[Order] = deque(maxlen=PASSES_KEPT)
        self.last_real_ts = 0  # end of the last block that orders something
        self.time = 0  # slot time (R14) at the frontier, of that last block, and at the base
        self.real_time = 0
        self.base_time = 0
        self.views: list[tuple[int, View]] = []
        self.departed: dict[SiteId, int] = {}  # members that were, and the slot that removed them
        self.view = NO_VIEW  # the one this site follows: at the frontier, or the fork to be decided
        self._fork: View | None = None
        self.bytes = 0
        self.ordered_bytes = 0  # of those, with a slot in the complete prefix

    # -- data ------------------------------------------------------------------------------------

    def add_batch(self, batch: Batch, horizon: int, bytes_max: int = 0) -> str:
        """Store data. Returns an empty string, or the reason why it was dropped.

        Of a source that offers more than ``bytes_max`` (0: any) only what a block names is taken.
        """
        source = self.sources.get(batch.source)
        if source is None or source.boot != batch.boot:
            return "data of a non-member"
        if batch.last_seq <= source.contiguous or batch.first_seq in source.batches:
            return "duplicate data"
        if batch.last_seq > source.contiguous + horizon:
            return "data beyond the horizon"
        if bytes_max and source.unordered_bytes > bytes_max and batch.first_seq > source.wanted:
            return "data beyond the window"
        source.batches[batch.first_seq] = batch
        source.highest = max(source.highest, batch.last_seq)
        self.bytes += batch.size
        source.unordered_bytes += batch.size
        if batch.qos.level == Level.SOURCE_ORDERED:
            source.source_ordered = max(source.source_ordered, batch.last_seq)
        while (following := source.batches.get(source.contiguous + 1)) is not None:
            source.contiguous = following.last_seq
        return ""

    def refuses(self, source_site: SiteId, seq: int, horizon: int) -> str:
        """Why a part of message ``seq`` is not worth keeping; empty if it is."""
        source = self.sources[source_site]
        if seq <= source.contiguous or seq in source.batches:
            return "duplicate piece"
        return "piece beyond the horizon" if seq > source.contiguous + horizon else ""

    def has_orderable(self, view: View) -> bool:
        sources = self.sources
        return any(
            (source := sources.get(member.site)) is not None and source.contiguous > source.ordered
            for member in view.members
        )

    def orderable(self, view: View, limit: int) -> tuple[Run, ...]:
        """Runs for the next ACK: everything contiguous and unordered, up to a limit of messages; a
        single batch above the limit (its source may be configured otherwise) goes alone."""
        runs: list[Run] = []
        for member in view.members:
            source = self.sources.get(member.site)
            if source is None or source.contiguous == source.ordered:
                continue
            count = source.contiguous - source.ordered
            if count > limit:
                count = self._whole_batches(source, limit)
                if count == 0 and not runs:
                    count = len(source.batches[source.ordered + 1].messages)
                if count == 0:
                    continue
            runs.append(Run(member.site, source.ordered + 1, count))
            limit -= count
            if limit <= 0:
                break
        return tuple(runs)

    def _whole_batches(self, source: Source, limit: int) -> int:
        count = 0
        while (batch := source.batches.get(source.ordered + count + 1)) is not None:
            size = len(batch.messages)
            if count + size > limit:
                break
            count += size
        return count

    # -- blocks ----------------------------------------------------------------------------------

    def add_block(self, order: Order, horizon: int) -> str:
        """Store a block of the current epoch. Returns an empty string, or why it was dropped."""
        if order.ts <= self.frontier or order.ts in self.blocks:
            return "duplicate order"
        if order.last_ts > self.frontier + horizon:
            return "order beyond the horizon"
        self.blocks[order.ts] = self.ahead[order.ts] = order
        self.known_end = max(self.known_end, order.last_ts)
        for run in order.runs:
            source = self.sources.get(run.source)
            if source is not None:
                source.wanted = max(source.wanted, run.last_seq)
        return ""

    def next_complete(self) -> Order | None:
        """Move the frontier over one more complete block and return it."""
        order = self.blocks.get(self.frontier + 1)
        if order is None:
            return None
        for run in order.runs:
            source = self.sources.get(run.source)
            if source is None or source.contiguous < run.last_seq:
                return None
        self._place(order)
        return order

    def _place(self, order: Order) -> None:
        self.ahead.pop(order.ts, None)
        self.frontier = order.last_ts
        self.known_end = max(self.known_end, self.frontier)
        self.tail = order
        self.placed += 1
        self.passes.append(order)
        self.time = order.time
        for run in order.runs:
            source = self.sources[run.source]
            source.ordered = run.last_seq
            self._count_ordered(source, run, 1)
        if not order.is_null:
            self.last_real_ts = order.last_ts
            self.real_time = order.time
        if order.view is not None:
            self._enter_view(order.ts, order.view, order.vector)

    def _count_ordered(self, source: Source, run: Run, sign: int) -> None:
        batches = source.batches
        seq, last = run.first_seq, run.last_seq
        size = 0
        while seq <= last:
            batch = batches[seq]
            size += batch.size
            seq = batch.last_seq + 1
        self.ordered_bytes += sign * size
        source.unordered_bytes -= sign * size

    def _recount(self) -> None:
        """After what changes more than the end of the log."""
        self.bytes = self.ordered_bytes = 0
        for source in self.sources.values():
            size = sum(batch.size for batch in source.batches.values())
            ordered = sum(b.size for b in source.batches.values() if b.last_seq <= source.ordered)
            source.unordered_bytes = size - ordered
            self.bytes += size
            self.ordered_bytes += ordered

    def _enter_view(self, ts: int, view: View, vector: tuple[tuple[SiteId, int], ...]) -> None:
        """The view's members may send from this slot on; what a removed one left unordered ends."""
        before = self.views[-1][1] if self.views else view
        self.views.append((ts, view))
        if view.id.revision == 0:
            self._fork = None
        self._follow()
        ordered = dict(vector)
        for member in view.members:
            source = self.sources.get(member.site)
            seq = ordered.get(member.site, 0)
            # Who is seated anew, because its seat was erased, goes on where the vector says.
            if source is None or (source.ordered != seq and not before.has(member.site)):
                self.sources[member.site] = Source(member.boot, seq)
        self._name_boots(view)
        for member in before.members:
            if not view.has(member.site):
                self._note_departure(member.site, ts)
        for site, source in self.sources.items():
            if not view.has(site):
                early = dict(source.early)  # a view change may yet erase the removal
                for first_seq in [seq for seq in source.batches if seq > source.ordered]:
                    self._forget(source, first_seq)
                source.early = early
                source.contiguous = source.highest = source.ordered
        self._recount()

    def _name_boots(self, view: View) -> None:
        """R6: a voter that came back goes on with its next sequence number; what its earlier boot sent and
        nobody ordered ends here."""
        for member in view.members:
            source = self.sources.get(member.site)
            if source is None or source.boot == member.boot:
                continue
            source.boot = member.boot
            for first_seq in [seq for seq in source.batches if seq > source.ordered]:
                self._forget(source, first_seq)
            source.early = {first: last for first, last in source.early.items() if last <= source.ordered}
            source.contiguous = source.highest = source.ordered
            source.delivered = min(source.delivered, source.ordered)

    def _note_departure(self, site: SiteId, ts: int) -> None:
        """A site is a member once: it is remembered, as long as late requests of it may come."""
        self.departed[site] = ts
        if len(self.departed) > DEPARTED_MAX:
            del self.departed[next(iter(self.departed))]

    def latest_departed(self) -> tuple[tuple[SiteId, int], ...]:
        return tuple(self.departed.items())[-DEPARTED_TOLD:]

    def found(self, view: View) -> None:
        """Epoch 0 of a chain: its founders, and an empty order."""
        self.views = [(0, view)]
        self._follow()
        self.sources = {member.site: Source(member.boot, 0) for member in view.members}

    def start_at(self, order: Order) -> None:
        """A joiner's log begins with the block that names it, and with that block's vector (R7)."""
        assert order.view is not None
        assert self.frontier == 0
        boots = {member.site: member.boot for member in order.view.members}
        for site, seq in order.vector:
            self.sources[site] = Source(boots[site], seq)
        self.base = self.started_at = order.ts - 1
        self.seat_ts = order.ts
        self.blocks[order.ts] = order
        self._place(order)

    def leap(self, position: Position) -> None:
        """Go on behind a gap that the application's state has filled; what is known beyond it stays."""
        boots = {member.site: member.boot for member in position.view.members}
        for site, seq in position.vector:
            source = self.sources.get(site)
            if source is None or source.boot != boots[site]:
                self.sources[site] = Source(boots[site], seq)
            else:
                self._advance_source(source, seq)
        for ts in [ts for ts, order in self.blocks.items() if not _is_behind(order, position)]:
            del self.blocks[ts]
        self.ahead = dict(self.blocks)
        self.base = self.frontier = self.last_real_ts = position.ts
        self.base_time = self.time = self.real_time = position.time
        self.tail = None
        ends = [order.last_ts for order in self.blocks.values()]
        same_epoch = bool(self.views) and position.epoch == self.view.id.epoch
        known = self.known_end if same_epoch else 0
        self.known_end = max([self.frontier, known, *ends])
        self.views = []
        fork = self.fork
        self._enter_view(position.view_ts, position.view, position.vector)
        self.fork = fork if same_epoch else None
        self._drop_empty_sources()

    def _advance_source(self, source: Source, seq: int) -> None:
        """Everything up to ``seq`` has a slot that is collected."""
        for first_seq in [first for first, batch in source.batches.items() if batch.last_seq <= seq]:
            self._forget(source, first_seq)
        source.early = {first: last for first, last in source.early.items() if last > seq}
        source.collected = source.ordered = seq
        source.highest = max(source.highest, seq)
        source.contiguous = max(source.contiguous, seq)
        source.delivered = seq
        source.skip_early()
        while (following := source.batches.get(source.contiguous + 1)) is not None:
            source.contiguous = following.last_seq

    def expect_end(self, ts: int) -> None:
        """The epoch is decided to end with slot ``ts``: what is not placed beyond it never was."""
        for start in [start for start in self.ahead if start > ts]:
            del self.ahead[start]
            del self.blocks[start]
        self.known_end = max(self.frontier, ts)

    def erase_above(self, ts: int) -> bool:
        """R3: slots above the sync point never were. Their data becomes unordered again. True if a view that
        was in force is among them."""
        for start in sorted((start for start in self.blocks if start > ts), reverse=True):
            order = self.blocks.pop(start)
            if start > self.frontier:
                continue
            for run in order.runs:
                source = self.sources[run.source]
                source.ordered = run.first_seq - 1
                self._count_ordered(source, run, -1)
                source.delivered = min(source.delivered, run.first_seq - 1)
                source.skip_early()
        self.ahead.clear()
        self.frontier = min(self.frontier, ts)
        self.known_end = self.frontier
        views = len(self.views)
        while self.views and self.views[-1][0] > ts:
            self.views.pop()
        self._follow()
        self.departed = {site: at for site, at in self.departed.items() if at <= ts}
        if self.views:
            self._name_boots(self.views[-1][1])
        self.tail = self._block_ending_at(self.frontier)
        self.time = self.base_time if self.tail is None else self.tail.time
        self.real_time = min(self.real_time, self.time)
        self.last_real_ts = min(self.last_real_ts, self.frontier)
        return len(self.views) < views

    def _block_ending_at(self, ts: int) -> Order | None:
        start = ts
        while start > self.base:
            if start in self.blocks:
                return self.blocks[start]
            start -= 1
        return None

    # -- reading ---------------------------------------------------------------------------------

    @property
    def fork(self) -> View | None:
        """The electorate of a new chain that is not decided yet (R9)."""
        return self._fork

    @fork.setter
    def fork(self, fork: View | None) -> None:
        self._fork = fork
        self._follow()

    def _follow(self) -> None:
        if self._fork is not None:
            self.view = self._fork
        else:
            self.view = self.views[-1][1] if self.views else NO_VIEW

    def views_since(self, ts: int) -> list[View]:
        """The view in force at slot ``ts`` and all later ones known."""
        later = [view for at, view in self.views if at > ts]
        before = [view for at, view in self.views if at <= ts]
        return [*before[-1:], *later]

    def out_of_ring_at(self, site: SiteId) -> int:
        """The slot from which on a site is out of the ring, as far back as views are kept; 0: it is in it."""
        out_at = 0
        for ts, view in reversed(self.views):
            if site in view.ring:
                break
            out_at = ts
        return out_at

    def vector(self) -> tuple[tuple[SiteId, int], ...]:
        """Last ordered sequence number of each member at the frontier."""
        sources = self.sources
        return tuple((m.site, sources[m.site].ordered) for m in self.view.members if m.site in sources)

    def segments(self, order: Order) -> Iterator[tuple[int, Batch]]:
        """The batches of a complete block with the timestamp of their first message."""
        ts = order.ts + 1
        for run in order.runs:
            source = self.sources[run.source]
            seq = run.first_seq
            while seq <= run.last_seq:
                batch = source.batches[seq]
                yield ts, batch
                ts += len(batch.messages)
                seq += len(batch.messages)

    def install_after(self, epoch: int) -> Order | None:
        """The block that opened epoch ``epoch`` + 1, if it is still kept."""
        for ts, view in self.views:
            if view.id.epoch == epoch + 1 and view.id.revision == 0:
                return self.blocks.get(ts)
        return None

    def blocks_between(self, first_ts: int, last_ts: int, most: int) -> Iterator[Order]:
        """Blocks that touch the slots asked for, in order, as far as they are kept."""
        found = 0
        if first_ts in self.blocks:  # the rule: who asks has everything up to the end of a block
            while found < most and (order := self.blocks.get(first_ts)) is not None and first_ts <= last_ts:
                found += 1
                first_ts = order.last_ts + 1
                yield order
            if first_ts > last_ts or found >= most:
                return
        for start in sorted(start for start in self.blocks if start <= last_ts):
            if found >= most:
                return
            order = self.blocks[start]
            if order.last_ts >= first_ts:
                found += 1
                yield order

    def data_between(self, run: Run, most: int) -> Iterator[Batch]:
        source = self.sources.get(run.source)
        if source is None:
            return
        found = 0
        seq = run.first_seq
        while found < most and (batch := source.batches.get(seq)) is not None and seq <= run.last_seq:
            found += 1
            seq = batch.last_seq + 1
            yield batch
        if seq > run.last_seq or found >= most:
            return
        for first_seq in sorted(first for first in source.batches if first <= run.last_seq):
            if found >= most:
                return
            batch = source.batches[first_seq]
            if batch.last_seq >= seq:
                found += 1
                yield batch

    def has_collected(self, run: Run) -> bool:
        """Whether some of the messages asked for are gone here, with their slots or with their source."""
        source = self.sources.get(run.source)
        return self.base > 0 if source is None else run.first_seq <= source.collected

    # -- gaps ------------------------------------------------------------------------------------

    def missing_slots(self) -> tuple[int, int] | None:
        """First and last missing slot, as far as one request can say it."""
        ts = self.frontier + 1
        while (order := self.blocks.get(ts)) is not None:
            ts = order.last_ts + 1
        if ts > self.known_end:
            return None
        above = [start for start in self.ahead if start > ts]
        return ts, min(above) - 1 if above else self.known_end

    def due_data(self) -> dict[SiteId, int]:
        """For each source the last message that must be somewhere: ordered, or overtaken by later ones. Whose
        messages the first blocks wait for comes first. Behind a view that names another boot (R6) its data
        cannot be taken yet."""
        due: dict[SiteId, int] = {}
        ts = self.frontier + 1
        while (order := self.blocks.get(ts)) is not None:
            if order.view is not None and self._renames(order.view):
                break
            for run in order.runs:
                due[run.source] = max(run.last_seq, due.get(run.source, 0))
            ts = order.last_ts + 1
        for site, source in self.sources.items():
            due[site] = max(source.highest, due.get(site, 0))
        return due

    def _renames(self, view: View) -> bool:
        known = self.sources
        return any(m.site in known and known[m.site].boot != m.boot for m in view.members)

    def missing_data(
        self, most: int, assemblies: Assemblies | None = None, due: dict[SiteId, int] | None = None
    ) -> tuple[Run, ...]:
        """Messages that are due and not here, not even in part."""
        due = self.due_data() if due is None else due
        missing: list[Run] = []
        for site, last in due.items():
            source = self.sources.get(site)
            if source is None or last <= source.contiguous:
                continue
            parts = assemblies.of(site, source.boot, ordered=True) if assemblies is not None else ()
            seq = source.contiguous + 1
            # Behind the contiguous messages; a gap ends where the next of these begins.
            beyond = sorted(first for first in (*source.batches, *parts) if seq <= first <= last)
            for first_seq in (*beyond, last + 1):
                if first_seq > seq and len(missing) < most:
                    missing.append(Run(site, seq, first_seq - seq))
                batch = source.batches.get(first_seq)
                seq = first_seq + 1 if batch is None else batch.last_seq + 1
        return tuple(missing)

    # -- garbage collection ----------------------------------------------------------------------

    def collect(self, ts: int) -> None:
        """Forget whole blocks up to ``ts``; the tail and the view in force always stay."""
        while (order := self.blocks.get(self.base + 1)) is not None:
            if order.last_ts > ts or order is self.tail:
                return
            for run in order.runs:
                source = self.sources[run.source]
                source.collected = run.last_seq
                seq = run.first_seq
                while seq <= run.last_seq:
                    batch = source.batches[seq]
                    self._forget(source, seq)
                    self.ordered_bytes -= batch.size
                    seq = batch.last_seq + 1
            del self.blocks[order.ts]
            self.base = order.last_ts
            self.base_time = order.time
            while len(self.views) > 1 and self.views[1][0] <= self.base:
                self.views.pop(0)
            if len(self.sources) > len(self.views[-1][1].members):
                self._drop_empty_sources()

    def _forget(self, source: Source, seq: int) -> None:
        batch = source.batches.pop(seq)
        source.early.pop(seq, None)
        self.bytes -= batch.size

    def _drop_empty_sources(self) -> None:
        members = {member.site for _, view in self.views for member in view.members}
        for site in [s for s, source in self.sources.items() if s not in members and not source.batches]:
            del self.sources[site]


def _is_behind(order: Order, position: Position) -> bool:
    return order.ts > position.ts and order.epoch == position.epoch
