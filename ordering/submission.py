"""The application's door in: checks, the accept queue, the send window, and resending until ordered (R15).

What is accepted has its sequence numbers at once. It is packed and sent when the window has room, and only
then it enters this site's own ordering queue: nobody, this site included, orders what has not been sent.
"""

from collections import deque
from operator import countOf

from ordering.config import MS
from ordering.detection import Detection
from ordering.effects import Abandoned, Accepted, WindowOpened
from ordering.errors import (
    InvariantViolation,
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
from ordering.packets import Batch, Call, Order, PieceConfirm, Span
from ordering.pieces import PACKET_OVERHEAD
from ordering.qos import Level, Qos
from ordering.requests import Requests
from ordering.rtt import RoundTrip
from ordering.sending import Flight, Outbox, Sending
from ordering.site import Site, Timer
from ordering.views import View

LEVELS = tuple(Level)


class Submission:
    """Own messages from acceptance until they have a slot."""

    def __init__(
        self, site: Site, detection: Detection, lanes: Lanes, rtt: RoundTrip, sending: Sending
    ) -> None:
        self.site = site
        self.requests = Requests(site, rtt)
        self.detection = detection
        self.lanes = lanes
        self.rtt = rtt
        self.sending = sending
        self.next_seq = 1
        self.outbox = Outbox(sending, Timer.DATA, self._on_sent)
        self._refused: tuple[int, int] | None = None  # messages and bytes that did not fit
        self._tries = 0
        self._lane_first = False
        self._numbered = False  # whether this boot has given any message a number in the order
        self._placed: dict[int, Batch] = {}  # ours, by first_seq, in slots that a view change may still erase
        self._placed_ends: deque[tuple[int, int]] = deque()  # (last slot, last_seq) of each block with some

    def submit(self, request: SubmitRequested, delivered: View | None) -> None:
        """Accept all messages or none."""
        size = self._check(request)
        messages, qos = request.messages, request.qos
        if not messages:
            return
        calls = self.requests.name(request)
        batch = self.accept(qos, messages, calls, delivered, size)
        first_number = calls[0].number if calls else 0
        self.site.out.append(Accepted(batch.first_seq, len(messages), qos, first_number))

    def accept(
        self,
        qos: Qos,
        messages: tuple[bytes, ...],
        calls: tuple[Call, ...],
        delivered: View | None,
        size: int = -1,
    ) -> Batch:
        """Number messages and send them, now or when the window has room; they are packed anew then."""
        site = self.site
        lane_seq = self.lanes.next_seq if qos.level == Level.UNORDERED else 0
        first = self.next_seq if qos.rides_the_ring else lane_seq
        batch = Batch(site.me, site.member.boot, first, qos, messages, calls, size=size)
        if qos.rides_the_ring:
            self._numbered = True
            self.next_seq += len(messages)
            self.outbox.put(batch)
        else:
            self.lanes.submit(batch, delivered)
        self.pump()
        return batch

    def has_room_for_calls(self, count: int, size: int) -> bool:
        """Calls of others, all together, get half of the window: a flood of them leaves room for our own."""
        config = self.site.config
        calls = self.outbox.calls + self.lanes.outbox.calls
        call_bytes = self.outbox.call_bytes + self.lanes.outbox.call_bytes
        return (
            calls + count <= config.window_messages // 2
            and call_bytes + size <= config.window_bytes // 2
            and self._fits(count, size)
        )

    def _check(self, request: SubmitRequested) -> int:
        """Refuse, or say how many bytes it is."""
        site = self.site
        if site.outside or not site.epoch or not site.view.has(site.me) or not site.may_number:
            raise NotMember(
                f"group {site.config.group!r}: this site is {site.state.value}; submit after the first"
                " InstallView, or start a new engine and join"
            )
        if site.retiring:
            raise NotMember(
                f"group {site.config.group!r}: this site retires; submit elsewhere, or when it is back"
            )
        self._check_qos(request.qos)
        self.requests.check(request)
        size = self._check_messages(request.messages)
        self._check_unreliable(request)
        if not self.detection.reaches_majority():
            raise NoPrimary(
                f"group {site.config.group!r}: no contact with a majority of {len(site.view.electorate)}"
                f" voters for {site.config.minority_ms} ms; retry when the partition heals, or elsewhere"
            )
        if not self._fits(len(request.messages), size):
            waiting, waiting_bytes = self.occupied()
            messages, bytes_ = self._refused or (len(request.messages), size)
            self._refused = (min(messages, len(request.messages)), min(bytes_, size))
            raise Overloaded(
                f"{waiting} messages ({waiting_bytes} bytes) wait to be ordered or confirmed, and"
                f" {len(request.messages)} more ({size} bytes) do not fit beside them;"
                " retry after the next WindowOpened, submit fewer, or raise window_messages / window_bytes"
            )
        return size

    def occupied(self) -> tuple[int, int]:
        """Messages and bytes in the window: not sent, not ordered, or not confirmed."""
        one, other = self.outbox, self.lanes.outbox
        return one.messages + other.messages, one.bytes + other.bytes

    def is_final(self) -> bool:
        """Whether nothing that was accepted can be lost with this site any more."""
        return self.occupied() == (0, 0) and not self._placed

    def _fits(self, messages: int, size: int) -> bool:
        config = self.site.config
        waiting, waiting_bytes = self.occupied()
        return waiting + messages <= config.window_messages and waiting_bytes + size <= config.window_bytes

    def _tell_if_open(self, messages: int, size: int) -> None:
        """Who was refused may try again: what it wanted fits now, or all there will ever be is free."""
        if self._fits(messages, size) or self.occupied() == (0, 0):
            self._refused = None
            self.site.out.append(WindowOpened())

    def _check_unreliable(self, request: SubmitRequested) -> None:
        """Nobody asks for a lost piece of what may be lost."""
        limit = self.site.config.packet_bytes - PACKET_OVERHEAD - 8
        if request.qos.level == Level.UNRELIABLE and any(len(m) > limit for m in request.messages):
            raise MessageTooLarge(
                f"messages: an UNRELIABLE message must fit one packet, {limit} bytes; split it, use"
                " UNORDERED, or raise packet_bytes"
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

    # -- sending ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what the window has room for; called whenever it may have opened."""
        if self._placed_ends:
            self._forget_final()
        lane = self.lanes.outbox
        self._lane_first = not self._lane_first  # neither takes all the room
        if self._lane_first and lane.has_unsent:
            lane.pump()
        if self.outbox.has_unsent and not (self.site.fenced or self.site.unnamed):
            self.outbox.pump()
        if lane.has_unsent:
            lane.pump()
        if self._refused is not None:
            self._tell_if_open(*self._refused)

    def _on_sent(self, flight: Flight) -> None:
        self.site.queue.add_batch(flight.batch, self.site.config.horizon)

    def note_order(self, order: Order) -> None:
        """A complete block gave slots to some of our messages."""
        me = self.site.me
        pending = self.outbox.pending
        for run in order.runs:
            if run.source != me:
                continue
            others = self.site.queue.sources[me].boot != self.site.member.boot
            if others and pending and next(iter(pending)) <= run.last_seq:
                raise InvariantViolation(f"numbers up to {run.last_seq} went to an earlier boot of this site")
            while pending and (first := next(iter(pending))) <= run.last_seq:
                flight = self.outbox.settle(first)
                self._placed[first] = flight.batch
                if flight.sent and not (self._tries or flight.large) and order.orderer != me:
                    self.rtt.sample(self.site.now - flight.sent_at)
            self._placed_ends.append((order.last_ts, run.last_seq))
            self._tries = 0

    def _forget_final(self) -> None:
        """What a majority holds keeps its slot."""
        ends, placed = self._placed_ends, self._placed
        majority = self.site.stability.majority
        while ends and ends[0][0] <= majority:
            _, last_seq = ends.popleft()
            while placed and (first := next(iter(placed))) <= last_seq:
                del placed[first]

    def own_flight(self, span: Span) -> Flight | None:
        """What is under way of a message of ours."""
        lane = self.outbox if span.ordered else self.lanes.outbox
        return lane.pending.get(span.seq)

    def on_piece_confirm(self, confirm: PieceConfirm) -> None:
        flight = self.outbox.pending.get(confirm.seq)
        if flight is not None:
            self._tries = 0
            self.sending.on_confirm(flight, confirm)

    def reclaim(self, *, leapt: bool = False) -> None:
        """A view change erased slots, or our removal: what has no place waits for one again, under its own
        id. Nothing of an earlier boot is sent again: its numbers are given out anew once we are named."""
        source = self.site.queue.sources.get(self.site.me)
        if source is None:
            return
        ordered = source.ordered
        erased = [batch for first, batch in self._placed.items() if first > ordered]
        for batch in erased:
            del self._placed[batch.first_seq]
        self._placed_ends = deque(end for end in self._placed_ends if end[1] <= ordered)
        if leapt:  # what is behind us is final, whatever its slots were called in our epoch
            self._placed.clear()
            self._placed_ends.clear()
        self.outbox.send_again(erased, ordered)
        if self.site.config.durable and source.boot == self.site.member.boot:
            self._go_on_after(ordered)

    def _go_on_after(self, ordered: int) -> None:
        """A boot begins where the order says that its predecessor ended, and uses no number twice."""
        if not self._numbered:
            self.next_seq = ordered + 1
        elif self.outbox.first_seq(self.next_seq) != ordered + 1:
            raise InvariantViolation(f"the order goes on with {ordered + 1}, a number this boot is past")

    def fire(self) -> None:
        """Something has had no slot for too long."""
        site = self.site
        if not self.outbox.pending:
            return
        oldest = next(iter(self.outbox.pending.values()))
        wait = oldest.sent_at + self._patience() - site.now
        if wait <= 0 and not (site.fenced or site.unnamed):
            self._tries += 1
            self.sending.lost()
            self.outbox.remind()
        site.arm(Timer.DATA, wait if wait > 0 else self._patience())

    def _patience(self) -> int:
        return min(self.rtt.rto << min(self._tries, 6), self.site.config.rto_max_ms * MS)

    def abandon(self) -> None:
        """The membership ends: say which messages we cannot vouch for (nothing is dropped silently).

        That is what has no slot, and what has one that no majority is known to hold.
        """
        site = self.site
        self._forget_final()
        first = next(iter(self._placed), self.outbox.first_seq(self.next_seq))
        if first < self.next_seq:
            site.out.append(Abandoned(first, self.next_seq - first, ordered=True))
        lane_first = self.lanes.outbox.first_seq(self.lanes.next_seq)
        if lane_first < self.lanes.next_seq:
            site.out.append(Abandoned(lane_first, self.lanes.next_seq - lane_first, ordered=False))
        self.outbox.clear()
        self._placed.clear()
        self._placed_ends.clear()
