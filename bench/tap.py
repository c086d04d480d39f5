"""A driver that keeps books: every datagram it has sealed, for whom, and every one it has accepted.

The books are compared when all is over, so that "none was accepted" rests on more than the counters of the
code under attack. The tap is also the attacker's ear: nobody can listen on loopback without privileges, so
each site hands over some of what it sends, right after it was sent.
"""

import socket
from array import array
from contextlib import suppress
from time import monotonic_ns
from typing import Any

import google_crc32c
import msgspec

from ordering.codec import Datagram, decode_header
from ordering.driver import Driver
from ordering.packets import Packet
from ordering.wire import Wire

# To hand over everything would cost the sites more than the attack does.
_CAPTURE_EVERY_NS = 2_000_000


class Made(msgspec.Struct, frozen=True):
    """What a site has sealed since the last time, in the order of its numbers, none left out: checksums, and
    which of ``addresses`` each went to."""

    site: int
    checks: "array[int]"
    routes: "array[int]"
    addresses: list[tuple[str, ...]]


class Heard(msgspec.Struct, frozen=True):
    """What a site has accepted since the last time, in columns; and what it has dropped ever, by reason."""

    site: int
    senders: "array[int]"
    counters: "array[int]"
    checks: "array[int]"
    datagrams_in: int
    drops: dict[str, int]
    kernel_drops: int
    waiting_bytes: int
    views: list[tuple[int, int]]
    stopped: int


class _Books(Wire):
    """Checks are CRCs: whoever could make a datagram pass the tag would not have to fool a checksum."""

    last: Datagram = b""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.senders, self.counted, self.checks = array("Q"), array("Q"), array("I")

    def write(self, packet: Packet) -> Datagram:
        self.last = super().write(packet)
        return self.last

    def unpack(self, datagram: Datagram) -> Packet | None:
        packet = super().unpack(datagram)
        if packet is not None:
            self.senders.append(packet.head.sender)
            self.counted.append(decode_header(datagram).counter)
            self.checks.append(google_crc32c.value(bytes(datagram)))
        return packet


class TappedDriver(Driver):
    """``captures`` is the socket on which the attacker listens; a full one loses what it is given."""

    captures: socket.socket | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keyring = args[3]
        self._books = _Books(keyring, self._groups.admits)
        self._wire = self._books
        self._checks, self._sent_to = array("I"), array("I")
        self._numbers: dict[tuple[str, ...], int] = {}
        self._capture_at = 0

    def _send(self, to: tuple[str, ...], packet: Packet) -> None:
        super()._send(to, packet)
        datagram = self._books.last
        number = self._numbers.setdefault(to, len(self._numbers))
        self._checks.append(google_crc32c.value(bytes(datagram)))
        self._sent_to.append(number)
        self._hand_over(to, datagram)

    def _hand_over(self, to: tuple[str, ...], datagram: Datagram) -> None:
        """What goes to one site only is rarer, and worth more to who would bring it to another."""
        now = monotonic_ns()
        if self.captures is None or (len(to) > 1 and now < self._capture_at):
            return
        self._capture_at = now + _CAPTURE_EVERY_NS
        with suppress(OSError):  # the attacker is busy, and hears a little less
            self.captures.send(msgspec.msgpack.encode((self.address, to, bytes(datagram))))

    # -- the books -------------------------------------------------------------------------------

    def made(self) -> Made:
        made = Made(self._site(), self._checks, self._sent_to, list(self._numbers))
        self._checks, self._sent_to = array("I"), array("I")
        return made

    def heard(self, views: list[tuple[int, int]]) -> Heard:
        stats = self.stats()
        books = self._books
        heard = Heard(
            self._site(),
            books.senders,
            books.counted,
            books.checks,
            stats.datagrams_in,
            {reason: count for reason, count in stats.wire_drops.items() if count},
            sum(each.dropped_by_kernel or 0 for each in stats.sockets),
            sum(each.received_waiting_bytes or 0 for each in stats.sockets),
            views,
            stats.groups_stopped,
        )
        books.senders, books.counted, books.checks = array("Q"), array("Q"), array("I")
        return heard

    def _site(self) -> int:
        (group,) = self._open.values()
        return group.member.site
