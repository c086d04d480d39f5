"""Somebody without the key: what can be made of overheard datagrams, and a process that sends it."""

import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random

import msgspec

from bench.wire import Address
from bench.workers import Link
from ordering.codec import (
    DATAGRAM_MAX,
    HEADER_BYTES,
    SEALED,
    decode_header,
    encode,
    encode_body,
    encode_header,
)
from ordering.packets import Batch, Confirm, Data, Head, Packet
from ordering.qos import MAJORITY
from ordering.sealing import COUNTER_MAX, KEY_BYTES, TAG_BYTES, Keyring, Sealer
from ordering.transports.addresses import parse_endpoint

# Fields of the header, which anybody can read.
_GROUP = slice(6, 14)
_COUNTER = slice(46, 54)
_LENGTH = slice(55, 59)

_OVERHEARD_MAX = 2048
_EAR_SECONDS = 10.0  # until something was overheard
_EAR_BYTES = 1 << 17
_EAR_TURN = 16
_NAP_SECONDS = 0.002
_LONG_ONE_IN = 16


class Kind(StrEnum):
    REPLAYED = "replayed"
    MISDIRECTED = "replayed elsewhere"
    FLIPPED = "bit flipped"
    TRUNCATED = "truncated"
    SPLICED = "spliced"
    NOISE = "random bytes"
    PLAIN = "in plain"
    WRONG_KEY = "wrong key"
    OVERSIZED = "oversized"
    OTHER_GROUP = "another group"


class Overheard(msgspec.Struct, frozen=True):
    """A genuine datagram, and the places in the list of sites it was sent to."""

    datagram: bytes
    to: tuple[int, ...]


class Forger:
    """Makes one hostile datagram after the other, each kind in turn; what it makes depends on ``rng`` and on
    what was overheard, and on no secret."""

    def __init__(self, sites: int, rng: Random) -> None:
        self._rng = rng
        self._everyone = range(sites)
        self.overheard: deque[Overheard] = deque(maxlen=_OVERHEARD_MAX)
        self._sealer = Sealer(Keyring((rng.randbytes(KEY_BYTES),)))
        self._turn = 0
        self._makers: dict[Kind, Callable[[bytes], bytes]] = {
            Kind.FLIPPED: self._flip,
            Kind.TRUNCATED: self._truncate,
            Kind.SPLICED: self._splice,
            Kind.NOISE: self._noise,
            Kind.PLAIN: self._plain,
            Kind.WRONG_KEY: self._wrong_key,
            Kind.OVERSIZED: self._lengthen,
            Kind.OTHER_GROUP: self._other_group,
        }
        self._kinds = tuple(Kind)

    def next(self) -> tuple[Kind, int, bytes]:
        """A kind, the site it goes to, and the datagram."""
        kind = self._kinds[self._turn % len(self._kinds)]
        self._turn += 1
        rng = self._rng
        known = rng.choice(self.overheard)
        if kind is Kind.REPLAYED:
            return kind, rng.choice(known.to), known.datagram
        if kind is Kind.MISDIRECTED:
            others = [site for site in self._everyone if site not in known.to]
            return kind, rng.choice(others), known.datagram
        return kind, rng.choice(self._everyone), self._makers[kind](known.datagram)

    # -- what can be made of a datagram ----------------------------------------------------------

    def _flip(self, datagram: bytes) -> bytes:
        """Half of them in the header, where it does most; half with a number that is not used yet, so that
        only the tag can tell."""
        rng = self._rng
        within = HEADER_BYTES if rng.getrandbits(1) else len(datagram)
        changed = bytearray(self._renumbered(datagram) if rng.getrandbits(1) else datagram)
        changed[rng.randrange(within)] ^= 1 << rng.randrange(8)
        return bytes(changed)

    def _truncate(self, datagram: bytes) -> bytes:
        """Half of them with a length that is right again."""
        cut = datagram[: self._rng.randrange(len(datagram))]
        return _measured(self._renumbered(cut)) if self._rng.getrandbits(1) else cut

    def _splice(self, datagram: bytes) -> bytes:
        """The header of one, renumbered, before the body of another."""
        other = self._rng.choice(self.overheard).datagram
        return _measured(self._renumbered(datagram[:HEADER_BYTES]) + other[HEADER_BYTES:])

    def _noise(self, datagram: bytes) -> bytes:
        rng = self._rng
        noise = rng.randbytes(rng.randrange(1500))
        return noise if rng.getrandbits(1) else _measured(datagram[:HEADER_BYTES] + noise)

    def _plain(self, datagram: bytes) -> bytes:
        return encode(self._packet(decode_header(datagram).head), self._unused(datagram))

    def _wrong_key(self, datagram: bytes) -> bytes:
        """In a member's name, or in that of a boot nobody knows: the dearest to refuse."""
        head = decode_header(datagram).head
        if self._rng.getrandbits(1):
            head = msgspec.structs.replace(head, boot=self._rng.getrandbits(128))
        return self._sealed(head, self._unused(datagram))

    def _lengthen(self, datagram: bytes) -> bytes:
        rng = self._rng
        if rng.randrange(_LONG_ONE_IN):
            return (datagram + rng.randbytes(rng.randrange(1, 64)))[:DATAGRAM_MAX]
        return datagram.ljust(DATAGRAM_MAX, b"\xff")

    def _other_group(self, datagram: bytes) -> bytes:
        group = self._rng.getrandbits(64)
        if self._rng.getrandbits(1):
            return datagram[: _GROUP.start] + group.to_bytes(8, "big") + datagram[_GROUP.stop :]
        head = msgspec.structs.replace(decode_header(datagram).head, group=group)
        return self._sealed(head, self._unused(datagram))

    # -- helpers ---------------------------------------------------------------------------------

    def _unused(self, datagram: bytes) -> int:
        """A number its sender will not reach while we look."""
        counter = int.from_bytes(datagram[_COUNTER], "big")
        return min(counter + self._rng.randrange(1 << 32, 1 << 60), COUNTER_MAX)

    def _renumbered(self, datagram: bytes) -> bytes:
        """Under another number; what is too short to have one stays."""
        if len(datagram) < HEADER_BYTES:
            return datagram
        number = self._unused(datagram).to_bytes(8, "big")
        return datagram[: _COUNTER.start] + number + datagram[_COUNTER.stop :]

    def _packet(self, head: Head) -> Packet:
        if self._rng.getrandbits(1):
            return Confirm(head)
        return Data(head, Batch(head.sender, head.boot, 1, MAJORITY, (b"made up",)))

    def _sealed(self, head: Head, counter: int) -> bytes:
        packet = self._packet(head)
        body = encode_body(packet)
        header = encode_header(packet, counter, SEALED, len(body) + TAG_BYTES)
        return header + self._sealer.seal(head, counter, header, body)


def _measured(datagram: bytes) -> bytes:
    """With the length its header should state, within what a datagram can have."""
    datagram = datagram[:DATAGRAM_MAX]
    if len(datagram) < HEADER_BYTES:
        return datagram
    size = (len(datagram) - HEADER_BYTES).to_bytes(4, "big")
    return datagram[: _LENGTH.start] + size + datagram[_LENGTH.stop :]


# -- the process ---------------------------------------------------------------------------------


class Order(msgspec.Struct, frozen=True):
    """So many datagrams, so many a second, to all sites together. A ``decoy`` goes to nobody instead, and
    shows what the attacker takes by being there."""

    datagrams: int
    rate: int
    seconds_max: float
    decoy: bool = False


class Spent(msgspec.Struct, frozen=True):
    """What an order came to. ``refused``: datagrams that the attacker's own kernel did not take."""

    sent: dict[str, int]
    sent_to: list[int]
    bytes: int
    refused: int
    seconds: float
    cpu_s: float


class _Attacker:
    def __init__(self, ear: socket.socket, addresses: Sequence[str], seed: int) -> None:
        self._ear = ear
        self._places = {address: place for place, address in enumerate(addresses)}
        self._targets: list[Address] = [(at.host, at.port) for at in map(parse_endpoint, addresses)]
        self.forger = Forger(len(addresses), Random(seed))
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._nobody = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._nobody.bind(("127.0.0.1", 0))  # never read: when it is full, the kernel drops what comes

    def listen(self, turns: int = _EAR_TURN) -> None:
        for _ in range(turns):
            try:
                _, to, datagram = msgspec.msgpack.decode(self._ear.recv(_EAR_BYTES, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return
            places = tuple(self._places[address] for address in to if address in self._places)
            if places:
                self.forger.overheard.append(Overheard(datagram, places))

    def spend(self, order: Order) -> Spent:
        started, cpu = time.monotonic(), time.process_time()
        while not self.forger.overheard and time.monotonic() - started < _EAR_SECONDS:
            self.listen()
            time.sleep(_NAP_SECONDS)
        began = time.monotonic()
        sent: Counter[str] = Counter()
        sent_to = [0] * len(self._targets)
        done = size = refused = 0
        targets = [self._nobody.getsockname()] * len(self._targets) if order.decoy else self._targets
        while done < order.datagrams and (spent := time.monotonic() - began) < order.seconds_max:
            self.listen()
            due = min(int(spent * order.rate) + 1, order.datagrams)
            for _ in range(due - done):
                kind, place, datagram = self.forger.next()
                try:
                    self._sock.sendto(datagram, targets[place])
                except OSError:
                    refused += 1
                    continue
                sent[kind] += 1
                sent_to[place] += 1
                size += len(datagram)
            done = max(done, due)
            time.sleep(_NAP_SECONDS)
        seconds = time.monotonic() - began
        return Spent(dict(sent), sent_to, size, refused, seconds, time.process_time() - cpu)


def attack(link: Link, ear: socket.socket, addresses: Sequence[str], seed: int) -> None:
    """One order after the other, until told to end."""
    attacker = _Attacker(ear, addresses, seed)
    while (order := link.hear()) is not None:
        link.say(attacker.spend(order))
