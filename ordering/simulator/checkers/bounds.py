"""Bounded buffers."""

from typing import TYPE_CHECKING

from ordering.config import MS
from ordering.membership import REQUESTS_MAX
from ordering.qos import Qos
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.survivors import survivors

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process

SAMPLE = 64  # one event in so many is looked at
KEPT_PER_MEMBER = 4  # blocks per member that a quiet group may still keep


class Bounds(Checker):
    """Every buffer stays within its configured limit (R16), and garbage is collected.

    1. At any time: the order within what is retained and the horizon, own unordered messages within
       the window (twice that when a view change has given slots back), unfinished messages within
       theirs and of members only, the rest within its constant; and the sender's count of what is
       under way is right. A site that comes back from its disk may have, beyond that, what its log had.
    2. At the end of a run that healed and went quiet, if all members live and have everything, they
       keep no more than a few blocks.
    """

    name = "bounds"

    def __init__(self) -> None:
        super().__init__()
        self._events = 0
        self._last_submit = 0
        self._healed = False
        self._brought: dict[int, int] = {}  # by boot: bytes with a slot that came from the disk

    def on_submit(
        self, process: "Process", first_seq: int, messages: tuple[bytes, ...], qos: Qos, now: int
    ) -> None:
        self._last_submit = now

    def on_settled(self, process: "Process", now: int) -> None:
        self._events += 1
        queue = process.engine.site.queue
        boot = process.member.boot
        if queue.frontier and process.engine.site.config.durable:
            self._brought[boot] = min(self._brought.get(boot, queue.ordered_bytes), queue.ordered_bytes)
        if self._events % SAMPLE == 0:
            for what, size, limit in sizes(process, self._brought.get(boot, 0)):
                if size > limit:
                    self.fail(now, f"site {process.member.site}: {what} {size}, at most {limit}")

    def on_healed(self, cluster: "Cluster", now: int) -> None:
        self._healed = True

    def finish(self, cluster: "Cluster", now: int) -> None:
        present = survivors(cluster)
        if not self._healed or not present or now - self._last_submit < cluster.config.detection_ms * MS:
            return
        view = max((p.engine.site.view for p in present), key=lambda view: view.id)
        frontiers = {p.engine.site.queue.frontier for p in present}
        if {m.site for m in view.members} != {p.member.site for p in present} or len(frontiers) > 1:
            return
        limit = KEPT_PER_MEMBER * len(view.members)
        for process in present:
            kept = len(process.engine.site.queue.blocks)
            if kept > limit:
                self.fail(
                    now, f"site {process.member.site} keeps {kept} blocks in a quiet group, at most {limit}"
                )


def sizes(process: "Process", brought: int = 0) -> list[tuple[str, int, int]]:
    """What is bounded: a name, the size now, and the limit; ``brought`` bytes come from the disk."""
    engine = process.engine
    config = engine.site.config
    queue = engine.site.queue
    kept = config.retain_slots + config.horizon
    members = max(len(engine.site.view.members), 1) if not engine.site.outside else 1
    offered = 2 * config.window_bytes + config.message_bytes_max
    pending = engine.submission.outbox.messages
    unordered = engine.lanes.outbox.messages
    found = [
        ("blocks", len(queue.blocks), kept),
        ("slots from base to frontier", queue.frontier - queue.base, kept + config.block_messages),
        ("own messages waiting for a slot", pending, 2 * config.window_messages),
        ("own unordered messages not confirmed", unordered, config.window_messages),
        ("retransmissions remembered", len(engine.retransmission._sent), 4 * config.retransmit_burst + 1),
        ("membership requests", len(engine.membership.requests), REQUESTS_MAX),
        (
            "bytes of unfinished messages",
            engine.site.assemblies.bytes,
            config.assembly_bytes_max + 2 * members * config.message_bytes_max,
        ),
        ("unfinished messages of strangers", _strangers(process), 0),
        (
            "bytes with a slot",
            queue.ordered_bytes,
            config.buffer_bytes_max
            + 2 * members * (config.window_bytes + config.message_bytes_max)
            + brought,
        ),
        ("bytes in transit", engine.sending.in_transit, 2 * config.window_bytes + config.packet_bytes),
        ("bytes in transit that nobody has sent", _lost_track(process), 0),
    ]
    table = engine.rpc.table
    replies = sum(record.reply_bytes for record in table.records.values())
    calls = max((len(record.delivered) for record in table.records.values()), default=0)
    found += [
        ("callers remembered", len(table.records), config.callers_max),
        ("calls remembered of one caller", calls, config.call_messages),
        ("bytes of replies", replies, config.reply_bytes),
        ("bytes of replies, as counted", table.reply_bytes, replies),
        ("bytes of calls held back", table.held_back_bytes, config.call_bytes),
        ("calls waiting for a slot", engine.submission.outbox.calls, config.window_messages),
        ("requests without a reply", len(engine.submission.requests.waiting), config.call_messages),
    ]
    for source, messages in queue.sources.items():
        found.append((f"batches of source {source}", len(messages.batches), kept))
        found.append((f"unordered bytes of source {source}", messages.unordered_bytes, 2 * offered))
    return found


def _strangers(process: "Process") -> int:
    """R15: unfinished messages of boots that are not members."""
    site = process.engine.site
    if site.outside:
        return 0
    # Until a fork is decided it removes nobody (R9).
    views = (site.view, site.queue.views[-1][1])
    members = {(member.site, member.boot) for view in views for member in view.members}
    return sum(1 for source, boot, _ in site.assemblies.lanes if (source, boot) not in members)


def _lost_track(process: "Process") -> int:
    """How far the sender's count is from the sum of its flights."""
    engine = process.engine
    flights = [*engine.submission.outbox.pending.values(), *engine.lanes.outbox.pending.values()]
    return abs(engine.sending.in_transit - sum(flight.in_transit for flight in flights))
