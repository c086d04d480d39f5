"""Sealed datagrams: nobody without a group key can read, alter, make up or repeat one (R18).

Each incarnation of a sender (group, site, boot) seals under a key of its own::

    key    = HKDF-SHA256(group key, salt = boot, info = label, group, site)
    nonce  = the header's 64-bit counter, as 12 bytes
    sealed = AES-256-GCM(key, nonce, body, associated data = the whole header)

**A nonce is never used twice.** A boot is 128 random bits and dies with its process, and all that a
process sends, in whatever group, is numbered by one counter that only grows (``Wire``). So under one
key every number comes once, however a host arranges sites and groups; and two sites cannot clash,
whatever they count, for they do not share a key. Whoever retransmits seals anew under its own.

**Rotation.** A keyring has up to three keys: the first seals, all open. So a new key is added
everywhere, then put first everywhere, then the old one is dropped everywhere, and each of these
steps may reach the sites in any order.

**Replay.** Who verified once is remembered with a window of the counters it has used. State is made
by a verified tag only: an outsider cannot make any. A member that restarts over and over can, so the
least recently heard incarnation gives way; what stays of it is its highest counter, up to which it
is refused from then on. Only when ``FLOORS_MAX`` more have gone the same way is it forgotten, and
what it once sent would open again. So it does at a site that has just started and remembers nothing.
The engine is safe then: to it a repeated packet is one that the network has delayed, and it drops the
boots of former members. What a replay may cost is time, and UNRELIABLE messages delivered again.

**A flood of forgeries** is bounded in what each datagram costs: from an incarnation we know, one
decryption for each key of the ring, and none for a counter that was used; from one we do not, a
derivation and a decryption for each key. Nothing is kept of either. To remember failures would not
help: the next forgery names another boot.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ordering.codec import HEADER_BYTES, Datagram
from ordering.errors import DecodeError, KeyringError
from ordering.packets import Head
from ordering.twins import BOOT_BYTES

KEY_BYTES: Final = 32
KEYS_MAX: Final = 3
TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12
COUNTER_MAX: Final = (1 << 64) - 1
# How far a datagram may come behind later ones of its sender: 100 ms at full speed, in 2 kB.
WINDOW: Final = 16_384
INCARNATIONS_MAX: Final = 256
FLOORS_MAX: Final = 16_384
_OWN_MAX: Final = 256

_LABEL: Final = b"rsm datagram 1"
_FINGERPRINT: Final = b"rsm fingerprint 1"

# The group, the site and the boot of a sender.
_Name: TypeAlias = tuple[int, int, int]


class Keyring:
    """One to three group keys of 32 bytes: the first seals, all open. It shows fingerprints, never keys."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not 1 <= len(keys) <= KEYS_MAX:
            raise KeyringError(f"keyring: has {len(keys)} keys; give one, or up to {KEYS_MAX} while rotating")
        for number, key in enumerate(keys, start=1):
            if type(key) is not bytes or len(key) != KEY_BYTES:
                raise KeyringError(
                    f"keyring: key {number} is not {KEY_BYTES} bytes; make one with `openssl rand -hex 32`"
                )
            if key in keys[: number - 1]:
                raise KeyringError(f"keyring: key {number} is there already; list each key once")
        self._keys = tuple(keys)

    @classmethod
    def from_text(cls, text: str) -> "Keyring":
        """Keys as a file has them: one to the line, in hexadecimal; # begins a comment."""
        keys: list[bytes] = []
        for number, line in enumerate(text.splitlines(), start=1):
            digits = line.partition("#")[0].strip()
            if not digits:
                continue
            try:
                keys.append(bytes.fromhex(digits))
            except ValueError:
                raise KeyringError(
                    f"keyring: line {number} is not hexadecimal; make a key with `openssl rand -hex 32`"
                ) from None
        return cls(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.fingerprints)})"

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """What operators compare to see that sites have the same keys, in the same order."""
        return tuple(_hkdf(key, b"", _FINGERPRINT)[:4].hex() for key in self._keys)

    def sealing_key(self, salt: bytes, info: bytes) -> AESGCM:
        """The first key's cipher for this purpose."""
        return AESGCM(_hkdf(self._keys[0], salt, info))

    def opening_key(self, index: int, salt: bytes, info: bytes) -> AESGCM:
        return AESGCM(_hkdf(self._keys[index], salt, info))


def _hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(key)


def _purpose(name: _Name) -> tuple[bytes, bytes]:
    """Salt and info of an incarnation's key."""
    group, site, boot = name
    return boot.to_bytes(BOOT_BYTES, "big"), _LABEL + group.to_bytes(8, "big") + site.to_bytes(8, "big")


def nonce(counter: int) -> bytes:
    return counter.to_bytes(NONCE_BYTES, "big")


class ReplayWindow:
    """Which counters of one sender have come. Those that fell out of the window count as come.

    A ring of bytes, a bit for each counter: the window moves by whole bytes and is cleared as it moves
    (RFC 6479 does so with words). It is between ``WINDOW - 7`` and ``WINDOW`` counters long.
    """

    __slots__ = ("_seen", "top")

    def __init__(self, floor: int = -1) -> None:
        """All up to ``floor`` have come."""
        self.top = floor
        if floor < 0:
            self._seen = bytearray(WINDOW >> 3)
        else:
            self._seen = bytearray(b"\xff" * (WINDOW >> 3))
            self._seen[(floor >> 3) % (WINDOW >> 3)] = (2 << (floor & 7)) - 1

    def has(self, counter: int) -> bool:
        behind = (self.top >> 3) - (counter >> 3)
        if behind < 0:
            return False
        if behind >= WINDOW >> 3:
            return True
        return bool(self._seen[(counter >> 3) % (WINDOW >> 3)] >> (counter & 7) & 1)

    def add(self, counter: int) -> None:
        """Only what the window does not have."""
        seen = self._seen
        block = counter >> 3
        if counter > self.top:
            top_block = self.top >> 3
            if block - top_block >= WINDOW >> 3:
                seen[:] = bytes(WINDOW >> 3)
            else:
                for passed in range(top_block + 1, block + 1):
                    seen[passed % (WINDOW >> 3)] = 0
            self.top = counter
        seen[block % (WINDOW >> 3)] |= 1 << (counter & 7)


class Sealer:
    """Seals what this process sends."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._own: dict[_Name, AESGCM] = {}  # a new one for each group opened; can be derived again

    def seal(self, head: Head, counter: int, header: bytes, body: bytes) -> bytes:
        """The body as it travels. The caller never uses a counter twice for one head's boot."""
        return self._cipher(head).encrypt(nonce(counter), body, header)

    def seal_into(self, head: Head, counter: int, plain: bytearray, room: memoryview) -> None:
        """The whole datagram as it travels: ``plain``, whose header says how long it will be, and the tag."""
        room[:HEADER_BYTES] = header = bytes(plain[:HEADER_BYTES])
        with memoryview(plain) as view, view[HEADER_BYTES:] as body:
            self._cipher(head).encrypt_into(nonce(counter), body, header, room[HEADER_BYTES:])

    def _cipher(self, head: Head) -> AESGCM:
        name = (head.group, head.sender, head.boot)
        aead = self._own.get(name)
        if aead is None:
            if len(self._own) >= _OWN_MAX:
                self._own.clear()
            aead = self._own[name] = self._keyring.sealing_key(*_purpose(name))
        return aead


class _Incarnation:
    """A sender that verified: its ciphers, the one that opened last in front, and what has come of it."""

    __slots__ = ("aeads", "window")

    def __init__(self, aeads: list[AESGCM], window: ReplayWindow) -> None:
        self.aeads = aeads
        self.window = window


class Opener:
    """Opens what others sent, each datagram once."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        # Both least recently heard first.
        self._known: OrderedDict[_Name, _Incarnation] = OrderedDict()
        self._floors: OrderedDict[_Name, int] = OrderedDict()

    def open(self, head: Head, counter: int, datagram: Datagram) -> bytes:
        """The body in plain, or a ``DecodeError``: ``replayed``, ``forged``."""
        name = (head.group, head.sender, head.boot)
        known = self._known.get(name)
        if known is None:
            return self._open_first(name, counter, datagram)
        if known.window.has(counter):
            raise DecodeError("replayed")
        body = _decrypt(known.aeads, counter, datagram)
        known.window.add(counter)
        self._known.move_to_end(name)
        return body

    def rotate(self, keyring: Keyring) -> None:
        """Open with these keys from now on. Windows stay: a sender's counters go on over a rotation."""
        self._keyring = keyring
        for name, known in self._known.items():
            known.aeads = self._derive(name)

    def _open_first(self, name: _Name, counter: int, datagram: Datagram) -> bytes:
        floor = self._floors.get(name, -1)
        if counter <= floor:
            raise DecodeError("replayed")
        aeads = self._derive(name)
        body = _decrypt(aeads, counter, datagram)
        self._floors.pop(name, None)
        window = ReplayWindow(floor)
        window.add(counter)
        self._known[name] = _Incarnation(aeads, window)
        if len(self._known) > INCARNATIONS_MAX:
            gone, incarnation = self._known.popitem(last=False)
            self._floors[gone] = incarnation.window.top
            if len(self._floors) > FLOORS_MAX:
                self._floors.popitem(last=False)
        return body

    def _derive(self, name: _Name) -> list[AESGCM]:
        salt, info = _purpose(name)
        return [self._keyring.opening_key(index, salt, info) for index in range(len(self._keyring))]


def _decrypt(aeads: list[AESGCM], counter: int, datagram: Datagram) -> bytes:
    """With whichever cipher opens it, which comes to the front."""
    number = nonce(counter)
    sealed = memoryview(datagram)[HEADER_BYTES:]
    header = datagram[:HEADER_BYTES]
    for index, aead in enumerate(aeads):
        try:
            body = aead.decrypt(number, sealed, header)
        except InvalidTag:
            continue
        if index:
            aeads.insert(0, aeads.pop(index))
        return body
    raise DecodeError("forged")
