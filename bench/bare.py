"""The bare ordered loop: the ceiling of a token ring in this language on this machine.

Rotating token, one ACK for all data waiting, messages packed into packets of 60 kB, delivery in order once a
majority is known to hold them. What makes a product of it is left out on purpose: no recovery, membership,
sessions, or call for each message. A lost packet stops it, so the senders keep within the receivers' buffers:
ACK k+n-1 proves that all n sites have what ACK k ordered, for nobody gives an ACK before it has everything
before it.
"""

import asyncio
import socket
import time
from collections import deque

import msgspec

from bench.errors import DatagramsLost, WorkerFailed
from bench.results import Value, latencies
from bench.wire import (
    DATAGRAM_MAX,
    Address,
    Content,
    drain,
    join_groups,
    new_loop,
    open_socket,
    same,
    send_groups,
    window_for,
)
from bench.workers import CrewMaker, Link, Placement

PORT = 7450  # of multicast, inside a namespace of our own
PACKET_BYTES = 60_000
_MESSAGE_OVERHEAD = 5
_BATCHES = 32
_BURST = 8
_TRIES = 3
_SLACK_SECONDS = 15.0
_STALL_SECONDS = 5.0


class BarePlan(msgspec.Struct, frozen=True, kw_only=True):
    size: int = 1024
    sites: int = 3
    senders: int = 1
    seconds: float = 2.0
    multicast: bool = False
    one_outstanding: bool = False
    window: int = 0  # packets each sender has under way; 0: what fits into a receiver's buffer
    hosts: tuple[str, ...] = ()

    def host(self, index: int) -> str:
        return self.hosts[index] if self.hosts else "127.0.0.1"


class _Data(msgspec.Struct, tag=0, array_like=True, frozen=True):
    source: int
    seq: int
    messages: list[bytes]


class _Ack(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Orders each source's packets up to a number; the token goes to the next site by its index."""

    index: int
    upto: list[int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Data | _Ack).decode


def batches(size: int, count: int) -> list[list[bytes]]:
    """Packets' worth of messages that differ, so that a hash notices one in the wrong place."""
    made = []
    for number in range(_BATCHES):
        head = number.to_bytes(2, "little")
        made.append([(head + index.to_bytes(4, "little")).ljust(size, b"m")[:size] for index in range(count)])
    return made


class _Site:
    def __init__(self, plan: BarePlan, me: int, sending: socket.socket, receiving: socket.socket) -> None:
        self.plan = plan
        self.me = me
        self.n = plan.sites
        self.majority = plan.sites // 2 + 1
        self.sending = sending
        self.receiving = receiving
        self.targets: list[Address] = []
        self.window = 0
        self.loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self.content = Content()
        self.took: list[int] = []
        self.packets_sent = 0
        self.first_ns = self.last_ns = 0
        self._waiting: list[deque[list[bytes]]] = [deque() for _ in range(self.n)]  # not yet delivered
        self._received = [0] * self.n
        self._ordered = [0] * self.n
        self._delivered = [0] * self.n
        self._acks: dict[int, list[int]] = {}  # too early, by index
        self._blocks: deque[tuple[int, list[int]]] = deque()
        self._last = -1  # index of the last ACK applied
        self._busy_upto = -1  # the last ACK that ordered something
        self._confirmed: deque[tuple[int, int]] = deque()  # (ACK, own packets it ordered)
        self._everywhere = 0  # own packets that all sites have
        self._ended = False
        self._open_sources = plan.senders  # whose last packet is not delivered yet
        self._stop_at = -1
        self._until = 0.0
        self._sent_at = 0
        per_packet = max((PACKET_BYTES - 64) // (plan.size + _MESSAGE_OVERHEAD), 1)
        self._batches = batches(plan.size, 1 if plan.one_outstanding else per_packet)

    # -- sending

    def start(self) -> None:
        self._until = time.monotonic() + self.plan.seconds
        self.first_ns = time.monotonic_ns()
        if self.me < self.plan.senders:
            self.pump()

    def _multicast(self, packet: _Data | _Ack) -> None:
        datagram = _encode(packet)
        for target in self.targets:
            self.sending.sendto(datagram, target)
            self.packets_sent += 1

    def _send(self, messages: list[bytes]) -> None:
        self._received[self.me] += 1
        self._waiting[self.me].append(messages)
        self._multicast(_Data(self.me, self._received[self.me], messages))

    def pump(self) -> None:
        """Fill the window; an empty packet is the last."""
        mine = self._received[self.me]
        if self._ended or self.me >= self.plan.senders:
            return
        if time.monotonic() >= self._until:
            self._ended = True
            self._send([])
        elif self.plan.one_outstanding:
            if self._delivered[self.me] == mine:
                self._sent_at = time.perf_counter_ns()
                self._send(self._batches[mine % _BATCHES])
        else:
            room = min(self.window - (mine - self._everywhere), _BURST)
            for number in range(mine, mine + room):
                self._send(self._batches[number % _BATCHES])
            if room > 0:
                self.loop.call_soon(self.pump)
        self._order()

    # -- receiving

    def on_readable(self) -> None:
        for datagram in drain(self.receiving, DATAGRAM_MAX):
            packet = _decode(datagram)
            if isinstance(packet, _Data):
                if packet.seq != self._received[packet.source] + 1:
                    raise DatagramsLost("the bare loop lost a datagram")
                self._received[packet.source] = packet.seq
                self._waiting[packet.source].append(packet.messages)
            else:
                self._acks[packet.index] = packet.upto
        while (upto := self._acks.get(self._last + 1)) is not None and self._has(upto):
            del self._acks[self._last + 1]
            self._apply(self._last + 1, upto)
        self._order()
        self._deliver()
        self.pump()

    def _has(self, upto: list[int]) -> bool:
        return all(here >= needed for here, needed in zip(self._received, upto, strict=True))

    # -- the token

    def _order(self) -> None:
        """Ours is every n-th ACK. Without data, and once all have everything, the token rests."""
        if (self._last + 1) % self.n != self.me:
            return
        idle = self._received == self._ordered and self._last >= self._busy_upto + self.n - 1
        if idle or (self._stop_at >= 0 and self._last >= self._stop_at):
            return
        upto = self._received.copy()
        self._multicast(_Ack(self._last + 1, upto))
        self._apply(self._last + 1, upto)
        self._deliver()

    def _apply(self, index: int, upto: list[int]) -> None:
        self._last = index
        if upto != self._ordered:
            self._ordered = upto
            self._busy_upto = index
            self._blocks.append((index, upto))
            self._confirmed.append((index, upto[self.me]))
        while self._confirmed and self._confirmed[0][0] + self.n - 1 <= index:
            self._everywhere = self._confirmed.popleft()[1]

    def _deliver(self) -> None:
        """A block stands on its orderer, those who gave ACKs since, and us."""
        while self._blocks:
            index, upto = self._blocks[0]
            acks = self._last - index + 1
            holders = min(acks, self.n)
            mine_counted = any((index + i) % self.n == self.me for i in range(holders))
            if holders + (not mine_counted) < self.majority:
                break
            self._blocks.popleft()
            self._hand_over(upto)
            if self._stop_at < 0 and not self._open_sources:
                self._stop_at = index + self.n - 1
        if 0 <= self._stop_at <= self._last and not self.finished.done():
            self.finished.set_result(None)

    def _hand_over(self, upto: list[int]) -> None:
        for source, last in enumerate(upto):
            waiting = self._waiting[source]
            while self._delivered[source] < last:
                self._delivered[source] += 1
                messages = waiting.popleft()
                if not messages:
                    self._open_sources -= 1
                    continue
                self.content.add(messages)
                self.last_ns = time.monotonic_ns()
                if source == self.me and self.plan.one_outstanding:
                    self.took.append(time.perf_counter_ns() - self._sent_at)


def _site(link: Link, me: int, plan: BarePlan) -> None:
    host = plan.host(me)
    sending = open_socket(host)
    if plan.multicast:
        send_groups(sending, host)
        receiving = open_socket("", PORT)
        join_groups(receiving, [_group(other) for other in range(plan.sites) if other != me], host)
    else:
        receiving = sending
    link.say((receiving.getsockname(), window_for(receiving, PACKET_BYTES)))
    targets, window = link.hear()
    loop = new_loop()

    async def run() -> None:
        site = _Site(plan, me, sending, receiving)
        site.targets, site.window = targets, plan.window or max(window // (2 * plan.senders), 1)
        failure: asyncio.Future[None] = loop.create_future()

        def on_readable() -> None:
            try:
                site.on_readable()
            except Exception as error:  # noqa: BLE001 - carried to the one who waits
                if not failure.done():
                    failure.set_exception(error)

        loop.add_reader(receiving, on_readable)
        link.say("ready")
        link.hear()
        cpu = time.process_time()
        site.start()
        limit = plan.seconds + _STALL_SECONDS
        done, _ = await asyncio.wait(
            (site.finished, failure), timeout=limit, return_when=asyncio.FIRST_COMPLETED
        )
        loop.remove_reader(receiving)
        if not done:
            raise DatagramsLost("the bare loop lost a datagram and stood still")
        for future in done:
            future.result()
        link.say(_report(site, time.process_time() - cpu))

    loop.run_until_complete(run())
    link.hear()  # until all have ended: a closed port would refuse the last ACKs to the others
    loop.close()


def _report(site: _Site, cpu: float) -> dict[str, object]:
    return {
        "digest": site.content.digest,
        "count": site.content.count,
        "seconds": (site.last_ns - site.first_ns) / 1e9,
        "packets": site.packets_sent,
        "window": site.window,
        "took": site.took[len(site.took) // 20 :],
        "cpu_s": cpu,
    }


def _group(site: int) -> str:
    """A group for each sender, so that nobody hears itself."""
    return f"239.77.2.{site + 1}"


def run(plan: BarePlan, placement: Placement, crew_of: CrewMaker) -> dict[str, Value]:
    """Ordered messages per second at the slowest member. Losses halve the window and try again."""
    for _ in range(_TRIES):
        try:
            return _run(plan, placement, crew_of)
        except WorkerFailed as error:
            if "the bare loop lost" not in str(error):
                raise
            plan = msgspec.structs.replace(plan, window=max((plan.window or 32) // 2, 1))
    raise DatagramsLost(
        f"the bare loop, which has no recovery, lost datagrams {_TRIES} times; raise net.core.rmem_max,"
        " or run on a calmer machine"
    )


def _run(plan: BarePlan, placement: Placement, crew_of: CrewMaker) -> dict[str, Value]:
    with crew_of() as crew:
        sites = [
            crew.start(f"bare site {me + 1}", _site, me, plan, post=crew_of.post(me, placement))
            for me in range(plan.sites)
        ]
        opened = crew.hear_all(sites)
        window = min(window for _, window in opened)
        for me, site in enumerate(sites):
            others = [address for other, (address, _) in enumerate(opened) if other != me]
            site.tell(([(_group(me), PORT)] if plan.multicast else others, window))
        crew.hear_all(sites)
        for site in sites:
            site.tell("go")
        reports = crew.hear_all(sites, plan.seconds + _SLACK_SECONDS)
        for site in sites:
            site.tell("end")
    same([report["digest"] for report in reports], "the bare loop")
    rate = min(report["count"] / max(report["seconds"], 1e-9) for report in reports)
    delivered = max(reports[0]["count"], 1)
    values: dict[str, Value] = {
        "messages_per_s": round(rate),
        "mb_per_s": round(rate * plan.size / 1e6, 1),
        "delivered": reports[0]["count"],
        "digest": reports[0]["digest"],
        "window": reports[0]["window"],
        "packets_per_message": round(sum(report["packets"] for report in reports) / delivered, 5),
        "cpu_us_per_message": round(1e6 * sum(report["cpu_s"] for report in reports) / delivered, 3),
    }
    if plan.one_outstanding:
        values["latency"] = latencies([took for report in reports for took in report["took"]])
    return values
