"""What a driver and its groups have done so far, as values.

Everything counts up from the start, so a reader derives rates from two snapshots. Nothing here is kept per
message: the figures cost a few additions per packet, and the rest is looked up when someone asks.
"""

from collections import deque
from typing import Final

import msgspec

from ordering.config import MS
from ordering.effects import Accepted, CallsTaken, Deliver, Delivery, Effect, LevelReached, Retract
from ordering.engine import Engine
from ordering.qos import Level, Qos
from ordering.views import NO_SITE, SiteId, ViewId

LATENCY_BUCKETS: Final = 64
# Submissions whose latency is being measured; beyond that they go unmeasured.
MEASURED_MAX: Final = 4096
STALL_THRESHOLDS_MS: Final = (10, 50, 250)


class SocketStats(msgspec.Struct, frozen=True):
    """What the kernel says of a socket; None where the system does not tell."""

    receive_buffer_bytes: int
    send_buffer_bytes: int
    received_waiting_bytes: int | None
    dropped_by_kernel: int | None  # datagrams that found the receive buffer full


class StallStats(msgspec.Struct, frozen=True):
    """How long the event loop kept the driver waiting, and how long the driver kept the loop.

    Lateness is that of the timer. ``late`` maps a threshold in milliseconds to how often it was exceeded.
    """

    late_max_ns: int
    late: dict[int, int]
    busy_max_ns: int
    busy: dict[int, int]


class WindowStats(msgspec.Struct, frozen=True):
    """Own messages accepted, and neither ordered nor confirmed yet."""

    messages: int
    bytes: int
    messages_max: int
    bytes_max: int
    waiting: int  # calls of ``submit_when_free`` that wait for room


class MemberStats(msgspec.Struct, frozen=True):
    """A member of the view as this site knows it, itself among them. ``received`` and ``held`` are what it
    has stated in this epoch, ``silent_ns`` how long ago it was last heard."""

    site: SiteId
    boot: int
    address: str
    received: int
    held: int
    silent_ns: int


class PassStats(msgspec.Struct, frozen=True):
    """The token went on: ``orderer`` gave slots ``first_ts`` … ``last_ts`` an order, or led a view change,
    and named ``next_site``. ``time`` is the block's slot time, the same at every site."""

    epoch: int
    first_ts: int
    last_ts: int
    orderer: SiteId
    next_site: SiteId
    time: int


class GroupStats(msgspec.Struct, frozen=True):
    """One membership. ``latency`` counts submissions by the time until a majority held all of their
    messages: bucket *i* has those of fewer than 2 to the *i* nanoseconds, and at least half of that."""

    group: str
    state: str
    view: ViewId | None
    received: int
    held: int
    majority: int
    stable: int
    window: WindowStats
    submitted: int
    delivered: int
    latency: tuple[int, ...]
    counters: dict[str, int]
    backlog_bytes: int  # delivered, and reported as not taken by the application
    polls: int  # how often the others were asked whether they miss somebody too
    token: SiteId  # who the last block that is here names; 0: nobody yet
    members: tuple[MemberStats, ...]
    placed: int = 0  # blocks; with each the token went on
    passes: tuple[PassStats, ...] = ()  # the last ones


class DriverStats(msgspec.Struct, frozen=True):
    """One process. Kernel figures stand in the order unicast, multicast."""

    address: str
    datagrams_in: int
    bytes_in: int
    datagrams_out: int
    bytes_out: int
    own_multicasts_heard: int
    fragmented: int  # datagrams sent that exceed what the interface carries in one piece
    wire_drops: dict[str, int]
    group_drops: dict[str, int]
    send_drops: dict[str, int]  # and what the network said of earlier sends
    sockets: tuple[SocketStats, ...]
    stalls: StallStats
    groups_stopped: int
    groups: tuple[GroupStats, ...]


class Stalls:
    """Counts what took too long."""

    def __init__(self) -> None:
        self.late_max_ns = self.busy_max_ns = 0
        self.late = dict.fromkeys(STALL_THRESHOLDS_MS, 0)
        self.busy = dict.fromkeys(STALL_THRESHOLDS_MS, 0)

    def note_late(self, ns: int) -> None:
        self.late_max_ns = max(self.late_max_ns, ns)
        _note(self.late, ns)

    def note_busy(self, ns: int) -> None:
        self.busy_max_ns = max(self.busy_max_ns, ns)
        if ns > STALL_THRESHOLDS_MS[0] * MS:
            _note(self.busy, ns)

    def snapshot(self) -> StallStats:
        return StallStats(self.late_max_ns, dict(self.late), self.busy_max_ns, dict(self.busy))


def _note(counts: dict[int, int], ns: int) -> None:
    for threshold in STALL_THRESHOLDS_MS:
        if ns > threshold * MS:
            counts[threshold] += 1


class Tally:
    """One membership's running figures, learnt from its effects."""

    def __init__(self, me: SiteId) -> None:
        self._me = me
        self.submitted = self.delivered = 0
        self.latency = [0] * LATENCY_BUCKETS
        self._asked: deque[tuple[int, int]] = deque()  # last number of a submission, when it was made
        self._placed: deque[tuple[int, int]] = deque()  # last slot of own deliveries, last number there

    def note(self, effects: list[Effect], now: int) -> None:
        for effect in effects:
            match effect:
                case Deliver(_, deliveries):
                    self._on_deliver(deliveries)
                case LevelReached(majority, _):
                    self._on_level(majority, now)
                case Accepted(first_seq, count, qos):
                    self._on_submit(first_seq, count, qos, now)
                case CallsTaken(batch):
                    self._on_submit(batch.first_seq, len(batch.messages), batch.qos, now)
                case Retract(after):
                    while self._placed and self._placed[-1][0] > after:
                        self._placed.pop()

    def _on_submit(self, first_seq: int, count: int, qos: Qos, now: int) -> None:
        """By this process, or by callers outside through it."""
        self.submitted += count
        if qos.level >= Level.TOTALLY_ORDERED and len(self._asked) < MEASURED_MAX:
            self._asked.append((first_seq + count - 1, now))

    def _on_deliver(self, deliveries: tuple[Delivery, ...]) -> None:
        for delivery in deliveries:
            count = len(delivery.messages)
            self.delivered += count
            if delivery.source == self._me and delivery.first_ts and self._asked:
                self._placed.append((delivery.first_ts + count - 1, delivery.first_seq + count - 1))

    def _on_level(self, majority: int, now: int) -> None:
        placed, asked = self._placed, self._asked
        while placed and placed[0][0] <= majority:
            last_seq = placed.popleft()[1]
            while asked and asked[0][0] <= last_seq:
                took = now - asked.popleft()[1]
                self.latency[min(took.bit_length(), LATENCY_BUCKETS - 1)] += 1


def group_stats(engine: Engine, tally: Tally, waiting: int) -> GroupStats:
    site = engine.site
    config = site.config
    head = site.head()
    messages, size = engine.submission.occupied()
    window = WindowStats(
        messages,
        size,
        config.window_messages,
        config.window_bytes,
        waiting,
    )
    return GroupStats(
        config.group,
        engine.state.value,
        None if engine.delivery.view is None else engine.delivery.view.id,
        head.received,
        head.held,
        head.majority,
        head.stable,
        window,
        tally.submitted,
        tally.delivered,
        tuple(tally.latency),
        dict(site.counters),
        site.backlog,
        engine.recovery.polls,
        NO_SITE if site.queue.tail is None else site.queue.tail.next_site,
        () if site.outside else _members(engine),
        site.queue.placed,
        tuple(
            PassStats(each.epoch, each.ts, each.last_ts, each.orderer, each.next_site, each.time)
            for each in site.queue.passes
        ),
    )


def _members(engine: Engine) -> tuple[MemberStats, ...]:
    site = engine.site
    stability, heard = site.stability, engine.detection.last_heard
    return tuple(
        MemberStats(
            member.site,
            member.boot,
            member.address,
            site.queue.frontier if member.site == site.me else stability.received.get(member.site, 0),
            site.held if member.site == site.me else stability.held.get(member.site, 0),
            0 if member.site == site.me else max(site.now - heard.get(member.site, site.now), 0),
        )
        for member in site.view.members
    )
