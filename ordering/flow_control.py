"""How much a sender may have under way (RMP §4.6), behind a seam of its own.

RMP keeps flow and congestion control apart from the rest of the protocol, so that another network can
have another policy. A policy knows bytes and losses, nothing of messages or members. The default is
RMP's: Van Jacobson's window, opened by slow start, then slowly, and halved by a loss. A loss is an
expired retransmission timer, or a NACK for what this site has sent: a receiver that is overrun drops
packets and asks for them, so the same window serves for flow control.

Bytes are under way from the first sending of a packet until its first acknowledgement: the block that
orders it or, of a piece, the confirmation of the ring member it asked. Both come from other members in
turn, so everybody's pace counts (RMP: the feedback rotates).

Departures. The window opens only while it is in use: a sender that offers little learns nothing about
the network from it. A window is cut at most once in a round trip, and for one message once: RMP's cache
of NACKed sequence numbers, which here also knows what was resent after a view change.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from ordering.config import Config
from ordering.errors import ConfigurationError

FIRST_PACKETS = 4
MINIMUM_PACKET = 1_400
NACKED_MAX = 64


class FlowControl(Protocol):
    """A policy. All sizes are bytes; ``in_transit`` is what is under way now."""

    window: int

    def next_packet(self, in_transit: int, offered: int) -> int:
        """How large the next packet may be when ``offered`` bytes wait; 0: send nothing now."""

    def acknowledged(self, size: int, in_transit: int) -> None:
        """``size`` of the bytes in transit have arrived."""

    def lost(self, now: int, round_trip: int) -> None:
        """A retransmission timer expired."""

    def asked_again(self, seq: int, now: int, round_trip: int) -> None:
        """A NACK asks for message ``seq`` of ours."""

    def expect_questions(self, seq: int) -> None:
        """A NACK for ``seq`` will be no sign of congestion."""


class SlidingWindow:
    """RMP §4.6: slow start, linear growth above a threshold, halved on loss."""

    def __init__(self, config: Config) -> None:
        self._packet = config.packet_bytes
        self._least = min(MINIMUM_PACKET, config.packet_bytes)
        self._most = max(config.window_bytes, self._least)
        self.window = min(FIRST_PACKETS * self._packet, self._most)
        self.threshold = self._most
        self._cut_at: int | None = None
        self._nacked: dict[int, None] = {}

    def next_packet(self, in_transit: int, offered: int) -> int:
        """RMP figure 4.2: at most half the window at a time, at least a minimum packet, or wait."""
        available = self.window - in_transit
        if in_transit and available < self._least:
            return 0  # the "silly window"
        size = max(min(offered, self.window // 2), self._least)
        return min(size, available, self._packet)

    def acknowledged(self, size: int, in_transit: int) -> None:
        if 2 * in_transit < self.window:
            return
        if self.window < self.threshold:
            self.window += size
        else:
            self.window += self._packet * size // self.window
        self.window = min(self.window, self._most)

    def lost(self, now: int, round_trip: int) -> None:
        if self._cut_at is not None and now - self._cut_at < round_trip:
            return
        self._cut_at = now
        self.window = self.threshold = max(self.window // 2, self._least)

    def asked_again(self, seq: int, now: int, round_trip: int) -> None:
        if seq not in self._nacked:
            self.expect_questions(seq)
            self.lost(now, round_trip)

    def expect_questions(self, seq: int) -> None:
        self._nacked[seq] = None
        if len(self._nacked) > NACKED_MAX:
            del self._nacked[next(iter(self._nacked))]


class FixedWindow:
    """Always ``window_bytes``: for networks that lose nothing by congestion, and to compare with."""

    def __init__(self, config: Config) -> None:
        self._packet = config.packet_bytes
        self.window = max(config.window_bytes, config.packet_bytes)

    def next_packet(self, in_transit: int, offered: int) -> int:
        return min(max(self.window - in_transit, 0), self._packet)

    def acknowledged(self, size: int, in_transit: int) -> None:
        """Nothing to learn."""

    def lost(self, now: int, round_trip: int) -> None:
        """Nothing to learn."""

    def asked_again(self, seq: int, now: int, round_trip: int) -> None:
        """Nothing to learn."""

    def expect_questions(self, seq: int) -> None:
        """Nothing to learn."""


FLOW_CONTROLS: Final[Mapping[str, Callable[[Config], FlowControl]]] = {
    "sliding-window": SlidingWindow,
    "fixed-window": FixedWindow,
}


def make_flow_control(config: Config) -> FlowControl:
    """The policy ``config`` names."""
    name = config.flow_control
    if name not in FLOW_CONTROLS:
        known = ", ".join(sorted(FLOW_CONTROLS))
        raise ConfigurationError(f"flow_control: {name!r} is unknown; use one of {known}")
    return FLOW_CONTROLS[name](config)
