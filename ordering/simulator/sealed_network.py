"""A network that carries sealed datagrams, and in it somebody without a key who repeats, alters and invents.

Every process has a ``Wire`` of its own, as under the driver, so what the engines get has been encoded,
sealed, opened and decoded.
"""

from collections import deque
from collections.abc import Callable
from random import Random

from ordering.codec import decode_header
from ordering.errors import DecodeError
from ordering.packets import Packet
from ordering.sealing import Keyring
from ordering.simulator.checkers.base import Checker
from ordering.simulator.clock import Clock
from ordering.simulator.network import Network, Sink
from ordering.wire import Wire

OVERHEARD_MAX = 512
KEYRING = Keyring((bytes(range(32)),))


class Sealing(Checker):
    """What sealing promises, judged by someone who sees every datagram made and accepted.

    1. No nonce is used twice: the datagrams of one boot have different counters.
    2. A process accepts only what a process has made, and each datagram once.
    """

    name = "sealing"

    def __init__(self) -> None:
        super().__init__()
        self._made: set[bytes] = set()
        self._nonces: dict[tuple[int, int, int, int], bytes] = {}
        self._accepted: set[tuple[int, bytes]] = set()

    def made(self, datagram: bytes, now: int) -> None:
        header = decode_header(datagram)
        head = header.head
        known = self._nonces.setdefault((head.group, head.sender, head.boot, header.counter), datagram)
        if known is not datagram:
            self.fail(now, f"site {head.sender} has sealed two datagrams with number {header.counter}")
        self._made.add(datagram)

    def accepted(self, receiver: int, datagram: bytes, now: int) -> None:
        if datagram not in self._made:
            self.fail(now, "a datagram was accepted that nobody has made")
        if (receiver, datagram) in self._accepted:
            self.fail(now, "a datagram was accepted twice by the same process")
        self._accepted.add((receiver, datagram))


class SealedNetwork(Network):
    """Links that carry bytes. ``boot_of`` says which process is at an address now."""

    def __init__(self, clock: Clock, rng: Random, deliver: Sink, boot_of: Callable[[str], int]) -> None:
        super().__init__(clock, rng, self._open)
        self.judge = Sealing()
        self.dropped: dict[str, int] = {}
        self._hand_over = deliver
        self._boot_of = boot_of
        self._wires: dict[int, Wire] = {}
        self._last: tuple[Packet | None, bytes] = (None, b"")
        self._overheard: deque[tuple[str, bytes]] = deque(maxlen=OVERHEARD_MAX)

    def _wire(self, boot: int) -> Wire:
        return self._wires.setdefault(boot, Wire(KEYRING))

    def send(self, source: str, to: str, packet: Packet | bytes) -> None:
        """A packet for several is sealed once, and sent to each."""
        assert not isinstance(packet, bytes)
        if self._last[0] is not packet:
            datagram = self._wire(packet.head.boot).pack(packet)
            self._last = (packet, datagram)
            self.judge.made(datagram, self.clock.now)
        self._overheard.append((to, self._last[1]))
        super().send(source, to, self._last[1])

    def _open(self, to: str, datagram: Packet | bytes) -> None:
        assert isinstance(datagram, bytes)
        boot = self._boot_of(to)
        if not boot:
            return
        packet = self._wire(boot).unpack(datagram)
        if packet is not None:
            self.judge.accepted(boot, datagram, self.clock.now)
            self._hand_over(to, packet)

    # -- the attacker ----------------------------------------------------------------------------

    def replay(self, rng: Random, count: int) -> bool:
        """What was overheard comes again, to whom it was meant for or to another."""
        if not self._overheard:
            return False
        everyone = sorted({to for to, _ in self._overheard})
        for _ in range(count):
            to, datagram = rng.choice(self._overheard)
            self._transmit("attacker", rng.choice((to, rng.choice(everyone))), datagram)
        return True

    def forge(self, rng: Random, count: int) -> bool:
        """What was overheard comes with a bit flipped, cut short, or with the counter of another."""
        if not self._overheard:
            return False
        for _ in range(count):
            to, datagram = rng.choice(self._overheard)
            self._transmit("attacker", to, _altered(datagram, rng.choice(self._overheard)[1], rng))
        return True


def _altered(datagram: bytes, other: bytes, rng: Random) -> bytes:
    match rng.randrange(3):
        case 0:
            changed = bytearray(datagram)
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:
            return datagram[: rng.randrange(len(datagram))]
        case _:
            spliced = datagram[:46] + other[46:54] + datagram[54:]
            try:
                same = decode_header(spliced) == decode_header(datagram)
            except DecodeError:
                same = False
            return spliced[:-1] + bytes([spliced[-1] ^ 1]) if same else spliced
