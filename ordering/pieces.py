"""Messages above one packet travel as pieces and are put together again (RMP §4.6 leaves this to IP).

A message keeps its one sequence number and its one slot; nothing above this file knows of pieces. A
piece says which bytes of how many it is, so it does not matter who cut the message, how, in which
order the pieces come, how often, and whether they overlap: a holder that retransmits cuts the message
anew by its own packet size. When all bytes are here the batch goes its way as if it had just come.

IP would lose the whole datagram with any of its fragments, and cannot carry more than 64 kB.

**Bounds.** A source may always assemble one message; more of them only within ``assembly_bytes_max``
for all sources together. Of the ordered lane the lowest sequence number has precedence, because the
order waits for it: a higher one gives way, and comes again when it is asked for. In the unordered lane,
where a source may have given up an old message, the one that was longest without a piece gives way.

**Views.** An assembly belongs to a boot. It vanishes in the slot that removes its source (R15).
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import TypeAlias

from ordering.packets import Batch, Part, Span
from ordering.views import SiteId, View

# The header, the fields of a batch or a part, and room for a seal.
PACKET_OVERHEAD = 256
ASKS_MAX = 8

Lane: TypeAlias = tuple[SiteId, int, bool]  # source, boot, and whether it is the ordered lane


def is_cut(batch: Batch, packet_bytes: int) -> bool:
    """Whether the batch is one message that does not fit a packet."""
    return len(batch.messages) == 1 and batch.size > packet_bytes - PACKET_OVERHEAD


def piece_of(batch: Batch, offset: int, end: int) -> Part:
    """Bytes ``offset`` … ``end`` of a batch of one message."""
    data = batch.messages[0][offset:end]
    return Part(batch.source, batch.boot, batch.first_seq, batch.qos, offset, batch.size, data, batch.calls)


def cut(batch: Batch, first: int, end: int, packet_bytes: int) -> Iterator[Part]:
    """Bytes ``first`` … ``end`` of a message, in pieces that fit a packet."""
    step = packet_bytes - PACKET_OVERHEAD
    end = min(end, batch.size)
    for offset in range(first, end, step):
        yield piece_of(batch, offset, min(offset + step, end))


class Assembly:
    """One message, as far as it is here: its bytes, and which ranges of them have come."""

    __slots__ = ("asked", "buffer", "held", "qos", "ranges")

    def __init__(self, part: Part) -> None:
        self.qos = part.qos
        self.buffer = bytearray(part.total)
        self.ranges: list[tuple[int, int]] = []  # disjoint, ascending, with gaps between them
        self.held = 0
        self.asked = 0  # how often in vain

    @property
    def total(self) -> int:
        return len(self.buffer)

    @property
    def end(self) -> int:
        """Behind the last byte that has come."""
        return self.ranges[-1][1] if self.ranges else 0

    def add(self, offset: int, data: bytes) -> int:
        """Take in bytes; returns how many of them are new."""
        end = offset + len(data)
        ranges = self.ranges
        low = bisect_left(ranges, offset, key=lambda known: known[1])
        high = low
        start, stop, known = offset, end, 0
        while high < len(ranges) and ranges[high][0] <= end:
            known += ranges[high][1] - ranges[high][0]
            start = min(start, ranges[high][0])
            stop = max(stop, ranges[high][1])
            high += 1
        fresh = stop - start - known
        if fresh:
            self.buffer[offset:end] = data
            ranges[low:high] = [(start, stop)]
            self.held += fresh
        return fresh

    def missing(self, end: int) -> Iterator[tuple[int, int]]:
        """The ranges that have not come, up to ``end``."""
        last = 0
        for start, stop in self.ranges:
            if start >= end:
                break
            if start > last:
                yield last, start
            last = stop
        if last < end:
            yield last, end


class Assemblies:
    """The messages a site is putting together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.lanes: dict[Lane, dict[int, Assembly]] = {}
        self.bytes = 0  # of all buffers
        self.filled = 0  # how often what was asked for has come: somebody answers

    def add(self, part: Part, *, ordered: bool) -> Batch | str:
        """Take in a piece. Returns the batch it completes, or what became of it instead."""
        lane = (part.source, part.boot, ordered)
        open_ = self.lanes.setdefault(lane, {})
        assembly = open_.get(part.seq)
        if assembly is None:
            if not self._has_room(open_, part, ordered=ordered):
                return "assembly buffers full"
            assembly = open_[part.seq] = Assembly(part)
            self.bytes += part.total
        elif assembly.total != part.total or assembly.qos != part.qos:
            return "piece of another message"
        if not assembly.add(part.offset, part.data):
            return "duplicate piece"
        if assembly.asked:
            assembly.asked = 0
            self.filled += 1
        if assembly.held < part.total:
            if not ordered:  # the one longest without a piece stands first
                open_[part.seq] = open_.pop(part.seq)
            return ""
        message = bytes(assembly.buffer)
        self.drop(lane, part.seq)
        return Batch(part.source, part.boot, part.seq, part.qos, (message,), part.calls)

    def _has_room(self, open_: dict[int, Assembly], part: Part, *, ordered: bool) -> bool:
        """Whether a new message may be begun; others of its lane may have to give way."""
        while open_ and self.bytes + part.total > self._bytes_max:
            victim = max(open_) if ordered else next(iter(open_))
            if ordered and victim < part.seq:
                return False
            self.bytes -= open_.pop(victim).total
        return True

    def drop(self, lane: Lane, seq: int) -> None:
        """The message is here, or given up."""
        open_ = self.lanes.get(lane)
        if open_ is None:
            return
        assembly = open_.pop(seq, None)
        if assembly is not None:
            self.bytes -= assembly.total
        if not open_:
            del self.lanes[lane]

    def of(self, source: SiteId, boot: int, *, ordered: bool) -> dict[int, Assembly]:
        return self.lanes.get((source, boot, ordered), {})

    def keep(self, view: View) -> None:
        """R15: what a site that is no longer a member has begun will never be finished."""
        for lane in [lane for lane in self.lanes if not _is_member(view, lane)]:
            for seq in list(self.lanes[lane]):
                self.drop(lane, seq)

    def passed(self, source: SiteId, boot: int, seq: int) -> None:
        """The ordered messages of a source up to ``seq`` are here, or no longer needed."""
        lane = (source, boot, True)
        for known in [known for known in self.lanes.get(lane, {}) if known <= seq]:
            self.drop(lane, known)

    # -- gaps ------------------------------------------------------------------------------------

    def has_gap(self) -> bool:
        """Whether a piece was overtaken: by a later one of its message, or by a later message."""
        for open_ in self.lanes.values():
            if len(open_) > 1 or any(assembly.held < assembly.end for assembly in open_.values()):
                return True
        return False

    def gaps(self, due: dict[SiteId, int], most: int) -> list[Span]:
        """What to ask for. Of a source's last message only what was overtaken, for the rest may not
        have been sent yet; unless ``due`` says that all of it must be somewhere."""
        spans: list[Span] = []
        for (source, _, ordered), open_ in self.lanes.items():
            for seq, assembly in open_.items():
                whole = seq < max(open_) or (ordered and seq <= due.get(source, 0))
                assembly.asked += 1
                for first, end in assembly.missing(assembly.total if whole else assembly.end):
                    if len(spans) >= most:
                        return spans
                    spans.append(Span(source, seq, ordered, first, end))
        return spans

    def give_up(self) -> None:
        """Unordered messages are finished by their source alone: it may have stopped to offer them."""
        for lane in [lane for lane in self.lanes if not lane[2]]:
            for seq, assembly in list(self.lanes[lane].items()):
                if assembly.asked > ASKS_MAX:
                    self.drop(lane, seq)

    def can_take(self, source: SiteId, boot: int, seq: int) -> bool:
        """Whether there would be room for message ``seq``, if it were large: else it is not asked for."""
        open_ = self.of(source, boot, ordered=True)
        return not open_ or seq < min(open_) or 2 * self.bytes < self._bytes_max


def _is_member(view: View, lane: Lane) -> bool:
    member = view.member(lane[0])
    return member is not None and member.boot == lane[1]
