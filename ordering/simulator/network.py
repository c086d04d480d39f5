"""A network that loses, duplicates, delays, reorders, clogs and cuts, one direction at a time."""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from ordering.packets import Data, Packet, Piece
from ordering.simulator.clock import Clock

US = 1_000
MS = 1_000_000
HEADER = 200  # of a packet, about

Sink = Callable[[str, Any], None]  # an address, and the packet, or the datagram, that has come there


def wire_size(packet: Packet | bytes) -> int:
    """About as many bytes as the packet has on the wire."""
    match packet:
        case bytes():
            return len(packet)
        case Data(_, batch):
            return HEADER + batch.size
        case Piece(_, part, _):
            return HEADER + len(part.data)
        case _:
            return HEADER


class Weather(msgspec.Struct):
    """What the network does to a packet right now; faults change it while a run goes on."""

    latency_us: int = 300
    spread_us: int = 200
    loss: float = 0.0
    duplicates: float = 0.0
    reordering: float = 0.0
    reorder_us: int = 5_000
    # What a link carries in a millisecond, and what waits in front of it; 0: any amount.
    bytes_per_ms: int = 0
    queue_bytes: int = 0


class Network:
    """Point-to-point links between addresses."""

    def __init__(self, clock: Clock, rng: Random, deliver: Sink) -> None:
        self.clock = clock
        self.rng = rng
        self.weather = Weather()
        self._deliver = deliver
        self._cuts: dict[tuple[str, str], dict[int, None]] = {}  # link → the cuts that hold it
        self._cut_count = 0
        self._clogs: dict[tuple[str, str], int] = {}
        self._held: dict[
            str, list[tuple[str, Packet | bytes]]
        ] = {}  # source → what it sent since it was held
        self.sent = 0
        self.lost = 0
        self.duplicated = 0
        self.reordered = 0
        self.overrun = 0
        self._busy_until: dict[tuple[str, str], int] = {}

    def send(self, source: str, to: str, packet: Packet | bytes) -> None:
        self.sent += 1
        weather = self.weather
        rng = self.rng
        if (source, to) in self._cuts or rng.random() < weather.loss:
            self.lost += 1
            return
        self._transmit(source, to, packet)
        if weather.duplicates and rng.random() < weather.duplicates:
            self.duplicated += 1
            self._transmit(source, to, packet)

    def _transmit(self, source: str, to: str, packet: Packet | bytes) -> None:
        if source in self._held:
            self._held[source].append((to, packet))
            return
        weather = self.weather
        rng = self.rng
        delay = (weather.latency_us + rng.randrange(weather.spread_us + 1)) * US
        if weather.reordering and rng.random() < weather.reordering:
            self.reordered += 1
            delay += rng.randrange(weather.reorder_us) * US
        if weather.bytes_per_ms:
            queued = self._queue(source, to, packet)
            if queued is None:
                self.overrun += 1
                self.lost += 1
                return
            delay += queued
        when = max(self.clock.now + delay, self._clogs.get((source, to), 0))
        self.clock.at(when, lambda: self._arrive(source, to, packet))

    def _queue(self, source: str, to: str, packet: Packet | bytes) -> int | None:
        """How long a packet waits for the link; None if there is no room to wait."""
        weather = self.weather
        now = self.clock.now
        busy_until = max(self._busy_until.get((source, to), 0), now)
        if (busy_until - now) * weather.bytes_per_ms // MS > weather.queue_bytes:
            return None
        busy_until += wire_size(packet) * MS // weather.bytes_per_ms
        self._busy_until[source, to] = busy_until
        return busy_until - now

    def _arrive(self, source: str, to: str, packet: Packet | bytes) -> None:
        if (source, to) not in self._cuts:
            self._deliver(to, packet)

    # -- faults ----------------------------------------------------------------------------------

    def cut(self, *links: tuple[str, str]) -> int:
        """Nothing passes over ``links`` (source, to) until this cut, and every other, is mended."""
        self._cut_count += 1
        for link in links:
            self._cuts.setdefault(link, {})[self._cut_count] = None
        return self._cut_count

    def mend(self, cut: int) -> None:
        for link in [link for link, cuts in self._cuts.items() if cut in cuts]:
            del self._cuts[link][cut]
            if not self._cuts[link]:
                del self._cuts[link]

    def clog(self, source: str, to: str, until: int) -> None:
        """Packets pile up and arrive together when the link clears."""
        self._clogs[source, to] = max(until, self._clogs.get((source, to), 0))

    def hold(self, source: str) -> None:
        """Everything ``source`` sends waits for its release."""
        self._held.setdefault(source, [])

    def release(self, source: str) -> None:
        for to, packet in self._held.pop(source, []):
            self._transmit(source, to, packet)

    def clear(self) -> None:
        self._cuts.clear()
        self._clogs.clear()
        for source in list(self._held):
            self.release(source)

    def connected(self, one: str, other: str) -> bool:
        return (one, other) not in self._cuts and (other, one) not in self._cuts
