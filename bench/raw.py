"""Raw UDP under the engine's loop: what this machine can carry at all, and what a round trip costs.

One sender, n receivers, ``add_reader`` and drain. The sender knows from the receivers' counts how much is
under way and keeps within their buffers, so nothing is lost: a rate with losses is that of something else.
"""

import asyncio
import socket
import struct
import time

import msgspec

from bench.errors import DatagramsLost
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
from bench.workers import CrewMaker, Link, Placement, Worker

GROUP = "239.77.1.1"
SIZE_MIN = 16
_BURST = 32
_END_SECONDS = 0.02
_END_TRIES = 100
_TRIES = 3
_SLACK_SECONDS = 15.0
_COUNT = struct.Struct("<IQ")  # receiver, datagrams received
_NUMBER = struct.Struct("<Q")
_END = (1 << 64) - 1


class RawPlan(msgspec.Struct, frozen=True, kw_only=True):
    size: int = 1024
    receivers: int = 3
    seconds: float = 2.0
    multicast: bool = False
    window: int = 0  # datagrams under way; 0: what fits into a receiver's buffer
    hosts: tuple[str, ...] = ()  # of the sender and each receiver; empty: loopback

    def host(self, index: int) -> str:
        return self.hosts[index] if self.hosts else "127.0.0.1"


# -- throughput ----------------------------------------------------------------------------------


class _Sender:
    """Sends as fast as the slowest receiver takes it."""

    def __init__(self, plan: RawPlan, sending: socket.socket, targets: list[Address], window: int) -> None:
        self.plan = plan
        self.socket = sending
        self.targets = targets
        self.window = window
        self.loop = asyncio.get_running_loop()
        self.sent = 0
        self.received = [0] * plan.receivers
        self.until = time.monotonic() + plan.seconds
        self.stalled = False
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self._buffer = bytearray(plan.size)
        self._reached = 0  # targets that have the datagram under way
        self._ending = 0

    def pump(self) -> None:
        """One burst, then the loop's turn: the counts come in between."""
        self.stalled = False
        if time.monotonic() >= self.until:
            self.end()
            return
        send, buffer, targets = self.socket.sendto, self._buffer, self.targets
        room = min(self.window - (self.sent - min(self.received)), _BURST)
        if room <= 0:
            self.stalled = True
            self.loop.call_later(0.1, self._give_up_waiting, self.sent)
            return
        try:
            for _ in range(room):
                _NUMBER.pack_into(buffer, 0, self.sent)
                while self._reached < len(targets):
                    send(buffer, targets[self._reached])
                    self._reached += 1
                self._reached = 0
                self.sent += 1
        except BlockingIOError:
            pass  # go on with the same target in the next turn
        self.loop.call_soon(self.pump)

    def _give_up_waiting(self, sent: int) -> None:
        """A receiver that lost something sends no count that opens the window."""
        if self.stalled and sent == self.sent:
            self.until = 0.0
            self.pump()

    def end(self) -> None:
        """Tell the receivers the total until each has answered with its count."""
        if self.finished.done():
            return
        self._ending += 1
        if self._ending > _END_TRIES or min(self.received) >= self.sent:
            self.finished.set_result(None)
            return
        for target in self.targets:
            self.socket.sendto(_NUMBER.pack(_END), target)
        self.loop.call_later(_END_SECONDS, self.end)

    def on_readable(self) -> None:
        for datagram in drain(self.socket, _COUNT.size):
            receiver, count = _COUNT.unpack(datagram)
            self.received[receiver] = max(self.received[receiver], count)
        if self.stalled:
            self.pump()


def _send(link: Link, plan: RawPlan) -> None:
    sending = open_socket(plan.host(0))
    if plan.multicast:
        send_groups(sending, plan.host(0))
    link.say(sending.getsockname())
    targets, window = link.hear()
    loop = new_loop()

    async def run() -> _Sender:
        sender = _Sender(plan, sending, targets, plan.window or window)
        loop.add_reader(sending, sender.on_readable)
        cpu = time.process_time()
        sender.pump()
        await sender.finished
        loop.remove_reader(sending)
        link.say({"sent": sender.sent, "window": sender.window, "cpu_s": time.process_time() - cpu})
        return sender

    loop.run_until_complete(run())
    loop.close()


class _Receiver:
    def __init__(
        self, index: int, receiving: socket.socket, size: int, step: int, counts_to: Address
    ) -> None:
        self.index = index
        self.socket = receiving
        self.size = size
        self.step = step
        self.counts_to = counts_to
        self.content = Content()
        self.first_ns = self.last_ns = 0
        self.told = 0
        self.cpu = 0.0

    def on_readable(self) -> None:
        if not self.first_ns:
            self.first_ns = time.monotonic_ns()
            self.cpu = time.process_time()
        datagrams = drain(self.socket, self.size)
        asked = False
        while datagrams and len(datagrams[-1]) == _NUMBER.size:  # the end, told once or more
            datagrams.pop()
            asked = True
        if datagrams:
            self.content.add(datagrams)
            self.last_ns = time.monotonic_ns()
        if asked or self.content.count - self.told >= self.step:
            self.told = self.content.count
            self.socket.sendto(_COUNT.pack(self.index, self.told), self.counts_to)


def _receive(link: Link, index: int, plan: RawPlan, port: int) -> None:
    """Reports when told to stop: by then the sender has heard all counts."""
    host = plan.host(index + 1)
    if plan.multicast:
        receiving = open_socket(GROUP, port)
        join_groups(receiving, [GROUP], host)
    else:
        receiving = open_socket(host)
    window = window_for(receiving, plan.size)
    link.say((receiving.getsockname(), window))
    counts_to = link.hear()
    loop = new_loop()
    receiver = _Receiver(index, receiving, plan.size + 1, max((plan.window or window) // 8, 1), counts_to)
    loop.add_reader(receiving, receiver.on_readable)
    loop.add_reader(link.fileno(), loop.stop)
    link.say("ready")
    loop.run_forever()
    loop.close()
    link.say(
        {
            "digest": receiver.content.digest,
            "count": receiver.content.count,
            "seconds": (receiver.last_ns - receiver.first_ns) / 1e9,
            "cpu_s": time.process_time() - receiver.cpu,
        }
    )


def throughput(plan: RawPlan, placement: Placement, crew_of: CrewMaker) -> dict[str, Value]:
    """Lossless messages per second at the slowest receiver. Losses halve the window and try again."""
    for _ in range(_TRIES):
        values = _throughput(plan, placement, crew_of)
        if values["lost"] == 0:
            return values
        assert isinstance(values["window"], int)
        plan = msgspec.structs.replace(plan, window=max(values["window"] // 2, 1))
    raise DatagramsLost(
        f"raw sockets lost datagrams of {plan.size} bytes {_TRIES} times, with {plan.window * 2} under way;"
        " raise net.core.rmem_max, or run on a calmer machine"
    )


def _throughput(plan: RawPlan, placement: Placement, crew_of: CrewMaker) -> dict[str, Value]:
    with crew_of() as crew:
        sender = crew.start("raw sender", _send, plan, post=crew_of.post(0, placement))
        address = crew.hear(sender)
        receivers: list[Worker] = []
        for index in range(plan.receivers):
            name = f"raw receiver {index + 1}"
            post = crew_of.post(index + 1, placement)
            receivers.append(crew.start(name, _receive, index, plan, address[1], post=post))
        opened = crew.hear_all(receivers)
        for receiver in receivers:
            receiver.tell(address)
        crew.hear_all(receivers)
        targets = [(GROUP, address[1])] if plan.multicast else [target for target, _ in opened]
        sender.tell((targets, min(window for _, window in opened)))
        sent = crew.hear(sender, plan.seconds + _SLACK_SECONDS)
        for receiver in receivers:
            receiver.tell("stop")
        reports = crew.hear_all(receivers)
    lost = max(sent["sent"] - report["count"] for report in reports)
    if not lost:
        same([report["digest"] for report in reports], "raw sockets")
    rate = min(report["count"] / max(report["seconds"], 1e-9) for report in reports)
    return {
        "messages_per_s": round(rate),
        "mb_per_s": round(rate * plan.size / 1e6, 1),
        "sent": sent["sent"],
        "lost": lost,
        "window": sent["window"],
        "cpu_us_per_message": round(
            1e6 * (sent["cpu_s"] + sum(r["cpu_s"] for r in reports)) / max(sent["sent"], 1), 2
        ),
    }


# -- round trip ----------------------------------------------------------------------------------


def _echo(link: Link, host: str) -> None:
    """Sends back whatever comes to whoever sent it, until stopped."""
    sock = open_socket(host)
    loop = new_loop()

    def on_readable() -> None:
        for _ in range(64):
            try:
                datagram, source = sock.recvfrom(DATAGRAM_MAX)
            except BlockingIOError:
                return
            sock.sendto(datagram, source)

    loop.add_reader(sock, on_readable)
    loop.add_reader(link.fileno(), loop.stop)
    link.say(sock.getsockname())
    loop.run_forever()
    loop.close()


def _ping(link: Link, host: str, size: int, seconds: float) -> None:
    sock = open_socket(host)
    target = link.hear()
    loop = new_loop()
    buffer = bytes(size)
    took: list[int] = []
    until = time.monotonic_ns() + int(seconds * 1e9)
    sent_at = time.perf_counter_ns()

    def on_readable() -> None:
        nonlocal sent_at
        try:
            sock.recv(DATAGRAM_MAX)
        except BlockingIOError:
            return
        took.append(time.perf_counter_ns() - sent_at)
        if time.monotonic_ns() >= until:
            loop.stop()
            return
        sent_at = time.perf_counter_ns()
        sock.sendto(buffer, target)

    loop.add_reader(sock, on_readable)
    loop.call_later(seconds + 1.0, loop.stop)
    sent_at = time.perf_counter_ns()
    sock.sendto(buffer, target)
    loop.run_forever()
    loop.close()
    link.say(took[len(took) // 20 :])  # the first twentieth warms up


def round_trip(plan: RawPlan, placement: Placement, crew_of: CrewMaker) -> dict[str, Value]:
    """One datagram there and back between two processes, again and again."""
    with crew_of() as crew:
        echo = crew.start("raw echo", _echo, plan.host(1), post=crew_of.post(1, placement))
        ping_post = crew_of.post(0, placement)
        ping = crew.start("raw ping", _ping, plan.host(0), plan.size, plan.seconds, post=ping_post)
        ping.tell(crew.hear(echo))
        took = crew.hear(ping, plan.seconds + _SLACK_SECONDS)
    if not took:
        raise DatagramsLost("the raw round trip lost its datagram; run again")
    return {**latencies(took), "placement": placement.describe(2)}
