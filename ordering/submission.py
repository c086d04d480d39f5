"""The application's door in: checks, packing, the send window, and resending until ordered (R15)."""

from bisect import bisect_right
from itertools import accumulate
from operator import countOf

from ordering.config import MS
from ordering.detection import Detection
from ordering.effects import Abandoned, Accepted
from ordering.errors import (
    KTooLarge,
    MessageTooLarge,
    NoPrimary,
    NotMember,
    Overloaded,
    SubmitError,
    UnknownQos,
)
from ordering.events import SubmitRequested
from ordering.lanes import Lanes
from ordering.packets import Batch, Data, Order
from ordering.qos import Level, Qos
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.views import View

MESSAGE_OVERHEAD = 5  # what the codec adds to a message at most
LEVELS = tuple(Level)
PACKET_OVERHEAD = 256  # header and batch fields, generously


class Submission:
    """Own messages from acceptance until they have a slot."""

    def __init__(self, site: Site, detection: Detection, lanes: Lanes, rtt: RoundTrip) -> None:
        self.site = site
        self.detection = detection
        self.lanes = lanes
        self.rtt = rtt
        self.next_seq = 1
        self.pending: dict[int, Batch] = {}  # unordered batches by first_seq, oldest first
        self.pending_messages = 0
        self.pending_bytes = 0
        self._sent_at: dict[int, int] = {}
        self._tries = 0

    def submit(self, request: SubmitRequested, delivered: View | None) -> None:
        """Accept all messages or none."""
        site = self.site
        self._check(request)
        if not request.messages:
            return
        unordered = not request.qos.rides_the_ring
        first = self.next_seq
        if unordered:
            first = self.lanes.next_seq if request.qos.level == Level.UNORDERED else 0
        for messages in self._packed(request.messages):
            if unordered:
                seq = self.lanes.next_seq if request.qos.level == Level.UNORDERED else 0
                batch = Batch(site.me, site.member.boot, seq, request.qos, messages)
                if seq:
                    self.lanes.next_seq += len(messages)
                self.lanes.send(batch, delivered)
            else:
                self._enqueue(Batch(site.me, site.member.boot, self.next_seq, request.qos, messages))
        site.out.append(Accepted(first, len(request.messages), request.qos))

    def _check(self, request: SubmitRequested) -> None:
        site = self.site
        if site.outside or not site.epoch or not site.view.has(site.me):
            raise NotMember(
                f"group {site.config.group!r}: this site is {site.state.value}; submit after the first"
                " InstallView, or start a new engine and join"
            )
        self._check_qos(request.qos)
        size = self._check_messages(request.messages)
        if not self.detection.reaches_majority():
            raise NoPrimary(
                f"group {site.config.group!r}: no contact with a majority of {len(site.view.electorate)}"
                f" voters for {site.config.minority_ms} ms; retry when the partition heals, or elsewhere"
            )
        waiting = self.pending_messages + self.lanes.pending_messages
        waiting_bytes = self.pending_bytes + self.lanes.pending_bytes
        if (
            waiting + len(request.messages) > site.config.window_messages
            or waiting_bytes + size > site.config.window_bytes
        ):
            raise Overloaded(
                f"{waiting} messages ({waiting_bytes} bytes) wait to be ordered or confirmed, and"
                f" {len(request.messages)} more ({size} bytes) do not fit beside them;"
                " retry after the next delivery, submit fewer, or raise window_messages / window_bytes"
            )

    def _check_messages(self, messages: tuple[bytes, ...]) -> int:
        """How many bytes they are. Looks at single messages only if one may be wrong."""
        limit = self.site.config.message_bytes_max
        are_bytes = countOf(map(type, messages), bytes) == len(messages)
        size = len(b"".join(messages)) if are_bytes else limit + 1
        if size <= limit:
            return size
        for index, message in enumerate(messages):
            if not isinstance(message, bytes):
                raise SubmitError(f"messages[{index}]: must be bytes, is {type(message).__name__}; encode it")
            if len(message) > limit:
                raise MessageTooLarge(
                    f"messages[{index}]: {len(message)} bytes exceed message_bytes_max ({limit});"
                    " split it, or store it elsewhere and order a reference"
                )
        return sum(map(len, messages))

    def _check_qos(self, qos: Qos) -> None:
        if qos.level not in LEVELS:
            raise UnknownQos(f"qos.level: {qos.level} is unknown; use MAJORITY, TOTAL, … or k_resilient(K)")
        if qos.k and qos.level != Level.K_RESILIENT:
            raise UnknownQos(
                f"qos.k: {qos.k} means nothing at {Level(qos.level).name}; leave it 0 or use k_resilient(K)"
            )
        voters = len(self.site.view.electorate)
        if qos.level == Level.K_RESILIENT and not 0 <= qos.k < voters:
            raise KTooLarge(f"qos.k: {qos.k} must be at least 0 and below the number of voters ({voters})")

    def _packed(self, messages: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
        """Cut into packets of at most ``packet_bytes`` on the wire; a larger message travels alone."""
        limit = self.site.config.packet_bytes - PACKET_OVERHEAD
        most = self.site.config.block_messages
        ends = list(accumulate(map(len, messages), initial=0))
        packed: list[tuple[bytes, ...]] = []
        start = 0
        while start < len(messages):
            # The first message that no longer fits, by its end and the overhead up to there.
            end = bisect_right(
                range(len(messages) + 1),
                limit + ends[start] + MESSAGE_OVERHEAD * start,
                lo=start + 1,
                hi=min(start + most, len(messages)) + 1,
                key=lambda index: ends[index] + MESSAGE_OVERHEAD * index,
            )
            end = max(end - 1, start + 1)
            packed.append(messages[start:end])
            start = end
        return packed

    def _enqueue(self, batch: Batch) -> None:
        site = self.site
        self.next_seq += len(batch.messages)
        self.pending[batch.first_seq] = batch
        self.pending_messages += len(batch.messages)
        self.pending_bytes += batch.size
        site.queue.add_batch(batch, site.config.horizon)
        if not site.fenced:
            self._send(batch)
            site.arm_if_idle(Timer.DATA, self.rtt.rto)

    def _send(self, batch: Batch) -> None:
        self._sent_at.setdefault(batch.first_seq, self.site.now)
        self.site.multicast(Data(self.site.head(), batch))

    def note_order(self, order: Order) -> None:
        """A complete block gave slots to some of our messages."""
        for run in order.runs:
            if run.source != self.site.me:
                continue
            while self.pending and (first := next(iter(self.pending))) <= run.last_seq:
                batch = self.pending.pop(first)
                self.pending_messages -= len(batch.messages)
                self.pending_bytes -= batch.size
                sent_at = self._sent_at.pop(first, None)
                if sent_at is not None and not self._tries and order.orderer != self.site.me:
                    self.rtt.sample(self.site.now - sent_at)
            self._tries = 0
            if not self.pending:
                self.site.disarm(Timer.DATA)

    def reclaim(self) -> None:
        """A view change erased slots: what lost its place waits for one again, under its own id."""
        site = self.site
        source = site.queue.sources.get(site.me)
        if source is None:
            return
        self.pending = {}
        seq = source.ordered + 1
        while (batch := source.batches.get(seq)) is not None:
            self.pending[seq] = batch
            seq = batch.last_seq + 1
        self.pending_messages = sum(len(b.messages) for b in self.pending.values())
        self.pending_bytes = sum(b.size for b in self.pending.values())
        self._sent_at.clear()

    def resend(self, *, older_than_ns: int = 0) -> None:
        """Multicast again what has had no slot for so long, oldest first."""
        site = self.site
        if site.fenced or not self.pending:
            return
        for count, batch in enumerate(self.pending.values()):
            sent_at = self._sent_at.get(batch.first_seq, 0)
            if count >= site.config.retransmit_burst or site.now - sent_at < older_than_ns:
                break
            self._send(batch)
        backoff = min(self.rtt.rto << min(self._tries, 6), site.config.rto_max_ms * MS)
        site.arm(Timer.DATA, backoff)

    def fire(self) -> None:
        self._tries += 1
        self.resend(older_than_ns=self.rtt.rto)

    def abandon(self) -> None:
        """The membership ends: say which messages we cannot vouch for (nothing is dropped silently).

        That is what has no slot, and what has one that no majority is known to hold.
        """
        site = self.site
        first = next(iter(self.pending), self.next_seq)
        for order in site.queue.blocks.values():
            if site.stability.majority < order.ts <= site.queue.frontier:
                first = min([first, *(run.first_seq for run in order.runs if run.source == site.me)])
        if first < self.next_seq:
            site.out.append(Abandoned(first, self.next_seq - first, ordered=True))
        lane_first = next(iter(self.lanes.pending), self.lanes.next_seq)
        if lane_first < self.lanes.next_seq:
            site.out.append(Abandoned(lane_first, self.lanes.next_seq - lane_first, ordered=False))
        self.pending = {}
