"""The seam between packets and datagrams: all that a driver, or a simulator of bytes, needs of both.

    wire = Wire(keyring, admits=groups.admits)
    socket.send(wire.write(packet))
    packets = [packet for datagram in drain if (packet := wire.unpack(datagram)) is not None]

A process has *one* ``Wire`` for all its groups, as long as it lives: its counter numbers every
datagram of the boot, and a second one would number them again, under the same keys. Datagrams to
several receivers are packed once and sent to each: one counter, which each of them sees once.

``unpack`` never raises, whatever came. It looks at a datagram in this order and counts why it stopped:

=====================  ========================================================================
``truncated`` …        the header, as ``codec`` tells
``unsealed``           in plain, and there is a keyring here
``sealed``             sealed, and there is no keyring here
``not admitted``       no group here wants it; the head is not verified yet, so this only saves work
``replayed``           the counter was used, or is too old to know
``forged``             no key opens it: altered, or sealed by somebody else
``body``               the body, as ``codec`` tells
=====================  ========================================================================

Without a keyring datagrams are numbered all the same, and nothing protects them: whoever can send to
the socket can speak for any site and repeat what it heard.
"""

from collections.abc import Callable
from typing import Final

from ordering.codec import (
    DATAGRAM_MAX,
    HEADER_BYTES,
    SEALED,
    Datagram,
    decode_body,
    decode_header,
    write_body,
    write_header,
)
from ordering.errors import CounterExhausted, DecodeError, KeyringError, PacketTooLarge
from ordering.packets import Data, Head, Packet, Piece
from ordering.sealing import COUNTER_MAX, TAG_BYTES, Keyring, Opener, Sealer

# What a datagram needs beside the body of its packet.
OVERHEAD_BYTES: Final = HEADER_BYTES + TAG_BYTES
_LARGE: Final = (Data, Piece)


class Wire:
    """Packets to datagrams and back, sealed if there is a keyring; ``None`` is the choice to do without."""

    def __init__(
        self,
        keyring: Keyring | None,
        admits: Callable[[Head], bool] | None = None,
        datagram_max: int = DATAGRAM_MAX,
    ) -> None:
        self.counters: dict[str, int] = {}  # dropped datagrams, by reason
        self._admits = admits
        self._datagram_max = datagram_max
        self._sealer = None if keyring is None else Sealer(keyring)
        self._opener = None if keyring is None else Opener(keyring)
        self._flags = 0 if keyring is None else SEALED
        self._tag_bytes = 0 if keyring is None else TAG_BYTES
        self._counter = 0
        # Used again and again, so that they stay where they are; small packets would shrink the other's.
        self._large, self._small = bytearray(HEADER_BYTES), bytearray(HEADER_BYTES)
        self._sealed = memoryview(bytearray(0 if keyring is None else datagram_max))

    def rotate(self, keyring: Keyring) -> None:
        """Seal and open with these keys from the next datagram on. The counter goes on."""
        if self._opener is None:
            raise KeyringError("keyring: this process runs without one; restart it with a keyring to seal")
        self._sealer = Sealer(keyring)
        self._opener.rotate(keyring)

    def pack(self, packet: Packet) -> bytes:
        """The datagram of a packet, to keep."""
        return bytes(self.write(packet))

    def write(self, packet: Packet) -> Datagram:
        """The datagram of a packet, with a number of its own even if the packet was written before. The next
        one is written over it."""
        room = self._large if type(packet) in _LARGE else self._small
        write_body(packet, room)
        body_bytes = len(room) - HEADER_BYTES + self._tag_bytes
        size = HEADER_BYTES + body_bytes
        if size > self._datagram_max:
            raise PacketTooLarge(
                f"{type(packet).__name__}: {size} bytes, the largest datagram has"
                f" {self._datagram_max}; set message_bytes_max and packet_bytes at least"
                f" {OVERHEAD_BYTES} bytes below it"
            )
        counter = self._counter + 1
        if counter > COUNTER_MAX:
            raise CounterExhausted("all numbers of this boot are used; restart the process with a new boot")
        self._counter = counter
        write_header(packet, counter, self._flags, body_bytes, room)
        if self._sealer is None:
            return room
        sealed = self._sealed[:size]
        self._sealer.seal_into(packet.head, counter, room, sealed)
        return sealed

    def unpack(self, datagram: Datagram) -> Packet | None:
        """The packet of a datagram; None if it was dropped."""
        try:
            return self._unpack(datagram)
        except DecodeError as error:
            self.counters[error.reason] = self.counters.get(error.reason, 0) + 1
            return None

    def _unpack(self, datagram: Datagram) -> Packet:
        header = decode_header(datagram, datagram_max=self._datagram_max)
        opener = self._opener
        if header.sealed is (opener is None):
            raise DecodeError("sealed" if header.sealed else "unsealed")
        if self._admits is not None and not self._admits(header.head):
            raise DecodeError("not admitted")
        if opener is None:
            return decode_body(header, datagram)
        return decode_body(header, opener.open(header.head, header.counter, datagram), 0)
