"""The application's door in: checks, packing, the send window, and resending until ordered (R15)."""

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
from ordering.packets import Batch, Call, Data, Order
from ordering.qos import Level, Qos
from ordering.requests import Requests
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.views import View

MESSAGE_OVERHEAD = 5  # what the codec adds to a message at most
REQUEST_OVERHEAD = 48  # and to a request, beside its address
LEVELS = tuple(Level)
PACKET_OVERHEAD = 256  # header and batch fields, generously


class Submission:
    """Own messages from acceptance until they have a slot."""

    def __init__(self, site: Site, detection: Detection, lanes: Lanes, rtt: RoundTrip) -> None:
        self.site = site
        self.requests = Requests(site, rtt)
        self.detection = detection
        self.lanes = lanes
        self.rtt = rtt
        self.next_seq = 1
        self.pending: dict[int, Batch] = {}  # unordered batches by first_seq, oldest first
        self.pending_messages = 0
        self.pending_bytes = 0
        self.pending_calls = 0  # how many of the messages are calls of non-members, and their bytes
        self.pending_call_bytes = 0
        self._sent_at: dict[int, int] = {}
        self._tries = 0

    def submit(self, request: SubmitRequested, delivered: View | None) -> None:
        """Accept all messages or none."""
        site = self.site
        self._check(request)
        if not request.messages:
            return
        calls = self.requests.name(request)
        first = self._next_seq_of(request.qos)
        taken = 0
        for messages in self._packed(request.messages, len(site.member.address) if calls else 0):
            end = taken + len(messages)
            self.send(self.batch(request.qos, messages, calls[taken:end]), delivered)
            taken = end
        first_number = calls[0].number if calls else 0
        site.out.append(Accepted(first, len(request.messages), request.qos, first_number))

    def _next_seq_of(self, qos: Qos) -> int:
        if qos.rides_the_ring:
            return self.next_seq
        return self.lanes.next_seq if qos.level == Level.UNORDERED else 0

    def batch(self, qos: Qos, messages: tuple[bytes, ...], calls: tuple[Call, ...]) -> Batch:
        """The next messages of this site, not sent yet."""
        return Batch(self.site.me, self.site.member.boot, self._next_seq_of(qos), qos, messages, calls)

    def send(self, batch: Batch, delivered: View | None) -> None:
        if batch.qos.rides_the_ring:
            self._enqueue(batch)
            return
        if batch.first_seq:
            self.lanes.next_seq += len(batch.messages)
        self.lanes.send(batch, delivered)

    def has_room_for_calls(self, count: int, size: int) -> bool:
        """Calls of others, all together, get half of the window: a flood of them leaves room for our own."""
        config = self.site.config
        calls = self.pending_calls + self.lanes.pending_calls
        call_bytes = self.pending_call_bytes + self.lanes.pending_call_bytes
        waiting = self.pending_messages + self.lanes.pending_messages
        waiting_bytes = self.pending_bytes + self.lanes.pending_bytes
        return (
            calls + count <= config.window_messages // 2
            and call_bytes + size <= config.window_bytes // 2
            and waiting + count <= config.window_messages
            and waiting_bytes + size <= config.window_bytes
        )

    def _check(self, request: SubmitRequested) -> None:
        site = self.site
        if site.outside or not site.epoch or not site.view.has(site.me) or site.unnamed:
            raise NotMember(
                f"group {site.config.group!r}: this site is {site.state.value}; submit after the first"
                " InstallView, or start a new engine and join"
            )
        self._check_qos(request.qos)
        self.requests.check(request)
        limit = site.config.message_bytes_max
        size = 0
        for index, message in enumerate(request.messages):
            if not isinstance(message, bytes):
                raise SubmitError(f"messages[{index}]: must be bytes, is {type(message).__name__}; encode it")
            if len(message) > limit:
                raise MessageTooLarge(
                    f"messages[{index}]: {len(message)} bytes exceed message_bytes_max ({limit});"
                    " split it, or store it elsewhere and order a reference"
                )
            size += len(message)
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

    def _packed(self, messages: tuple[bytes, ...], address_bytes: int) -> list[tuple[bytes, ...]]:
        """Cut into packets of at most ``packet_bytes`` on the wire; a larger message travels alone. Where
        the messages are requests each carries an address."""
        overhead = MESSAGE_OVERHEAD + (REQUEST_OVERHEAD + address_bytes if address_bytes else 0)
        limit = self.site.config.packet_bytes - PACKET_OVERHEAD
        most = self.site.config.block_messages
        packed: list[tuple[bytes, ...]] = []
        start = size = 0
        for index, message in enumerate(messages):
            taken = len(message) + overhead
            if index > start and (size + taken > limit or index - start >= most):
                packed.append(messages[start:index])
                start, size = index, 0
            size += taken
        packed.append(messages[start:])
        return packed

    def _enqueue(self, batch: Batch) -> None:
        site = self.site
        self.next_seq += len(batch.messages)
        self.pending[batch.first_seq] = batch
        self.pending_messages += len(batch.messages)
        self.pending_bytes += sum(map(len, batch.messages))
        if batch.calls:
            self._count_calls(batch, 1)
        site.queue.add_batch(batch, site.config.horizon)
        if not site.fenced:
            self._send(batch)
            site.arm_if_idle(Timer.DATA, self.rtt.rto)

    def _count_calls(self, batch: Batch, sign: int) -> None:
        """Requests of our own are our own messages, not calls of others."""
        if batch.calls and batch.calls[0].caller != self.site.me:
            self.pending_calls += sign * len(batch.messages)
            self.pending_call_bytes += sign * sum(map(len, batch.messages))

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
                self.pending_bytes -= sum(map(len, batch.messages))
                if batch.calls:
                    self._count_calls(batch, -1)
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
        self.pending_bytes = sum(len(m) for b in self.pending.values() for m in b.messages)
        self.pending_calls = self.pending_call_bytes = 0
        for batch in self.pending.values():
            self._count_calls(batch, 1)
        self._sent_at.clear()
        if site.config.durable and not site.unnamed:
            self._go_on_at(seq)

    def _go_on_at(self, seq: int) -> None:
        """A boot that was named begins where the order says. If it was named before, and that was erased, its
        earlier boot may have got the numbers of messages it accepted meanwhile: their outcome is unknown."""
        if self.next_seq > seq:
            self.site.out.append(Abandoned(seq, self.next_seq - seq, ordered=True))
        self.next_seq = seq

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
