"""Senders keep to their windows."""

from typing import TYPE_CHECKING

from ordering.effects import Effect, Multicast, Unicast
from ordering.packets import Data, DataConfirm, Packet, Piece, PieceConfirm
from ordering.qos import Level
from ordering.simulator.checkers.base import Checker

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class Lane:
    """What one process has sent for the first time in one lane: by message, how many bytes of it."""

    __slots__ = ("bytes", "ends", "top")

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}
        self.ends: dict[int, int] = {}  # of large messages, how far they were sent
        self.top = 0  # highest sequence number sent


class SendWindow(Checker):
    """A site sends nothing new that does not fit its window beside what is under way (RMP §4.6).

    Counted from what it sends and what others answer, and never too much: an answer counts when it is
    sent, a resent packet does not count, nor one that answers with what an earlier boot had sent, and a new
    epoch starts from nothing. A packet may always go when nothing is under way.
    """

    name = "send_window"

    def __init__(self) -> None:
        super().__init__()
        self._lanes: dict[tuple[str, bool], Lane] = {}  # (address, ordered)
        self._epochs: dict[str, tuple[int, int, int]] = {}  # boot, epoch, and leaps

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is Multicast:
            self._on_multicast(process, effect.packet, now)
        elif type(effect) is Unicast:
            match effect.packet:
                case PieceConfirm(_, ordered, seq, end):
                    self._arrived(effect.to, seq, end, ordered=ordered)
                case DataConfirm(_, _, seq):
                    lane = self._lanes.get((effect.to, False))
                    if lane is not None:
                        lane.bytes.pop(seq, None)
                        lane.ends.pop(seq, None)

    def _on_multicast(self, process: "Process", packet: Packet, now: int) -> None:
        own = (process.member.site, process.member.boot)
        match packet:
            case Data(_, batch) if (batch.source, batch.boot) == own:
                if batch.qos.level == Level.UNRELIABLE:
                    return
                ordered = batch.qos.rides_the_ring
                lane = self._lane(process, packet, ordered=ordered)
                if batch.first_seq > lane.top:
                    lane.top = batch.last_seq
                    self._count(process, lane, batch.first_seq, batch.size, now)
            case Piece(_, part, asks) if (part.source, part.boot) == own:
                lane = self._lane(process, packet, ordered=part.qos.rides_the_ring)
                end = part.offset + len(part.data)
                if part.seq > lane.top:
                    lane.top = part.seq
                    lane.ends[part.seq] = part.offset
                if part.seq in lane.ends and end > lane.ends[part.seq]:
                    fresh = end - lane.ends[part.seq]
                    lane.ends[part.seq] = end
                    self._count(process, lane, part.seq, fresh, now)
                if asks == process.member.site:  # alone in the ring: there is nobody to ask
                    self._arrived(process.address, part.seq, end, ordered=part.qos.rides_the_ring)

    def _lane(self, process: "Process", packet: Packet, *, ordered: bool) -> Lane:
        """In the epoch of the packet: one event may bring a site through several."""
        address = process.address
        site = process.engine.site
        here = (process.member.boot, packet.head.epoch, site.counters.get("leaps", 0))
        if self._epochs.get(address) != here:
            before = self._epochs.get(address, (0, 0, 0))
            self._epochs[address] = here
            for each in (True, False):
                old = self._lanes.get((address, each))
                lane = self._lanes[address, each] = Lane()
                if old is not None and before[0] == here[0]:
                    lane.top = old.top
        return self._lanes[address, ordered]

    def _count(self, process: "Process", lane: Lane, seq: int, size: int, now: int) -> None:
        window = process.engine.sending.flow.window
        before = self._under_way(process)
        lane.bytes[seq] = lane.bytes.get(seq, 0) + size
        if before and before + size > window:
            self.fail(
                now,
                f"site {process.member.site} sends {size} bytes of message {seq} beside {before} under way;"
                f" its window is {window}",
            )

    def _under_way(self, process: "Process") -> int:
        source = process.engine.site.queue.sources.get(process.member.site)
        ordered = self._lanes[process.address, True]
        if source is not None:
            for seq in [seq for seq in ordered.bytes if seq <= source.ordered]:
                del ordered.bytes[seq]
                ordered.ends.pop(seq, None)
        unordered = self._lanes[process.address, False]
        waited_for = process.engine.lanes.outbox.pending  # not for who has left the ring
        for seq in [seq for seq in unordered.bytes if seq not in waited_for]:
            del unordered.bytes[seq]
        return sum(sum(self._lanes[process.address, each].bytes.values()) for each in (True, False))

    def _arrived(self, address: str, seq: int, end: int, *, ordered: bool) -> None:
        lane = self._lanes.get((address, ordered))
        if lane is not None and seq in lane.bytes and seq in lane.ends:
            lane.bytes[seq] = min(lane.bytes[seq], max(lane.ends[seq] - end, 0))
