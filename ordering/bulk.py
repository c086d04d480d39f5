"""The bulk channel's bytes: what is too large for datagrams goes over TCP, sealed as they are.

One connection carries a stream of bytes each way. Each end says hello in plain, then sends frames::

    greeting   magic "RSMB", version, flags (1 = sealed), role, group, boot, 32 random bytes
    frame      type (1 byte), length of the rest (4 bytes), the rest: payload and tag

    key        = HKDF-SHA256(group key, salt = SHA-256(both greetings), info = label, sender's role)
    nonce      = the number of the frame in its direction, 0 first; it does not travel
    sealed     = AES-256-GCM(key, nonce, payload, associated data = type and length)

The initiator greets, the acceptor answers. The first frame of each end is an empty READY: that it
opens proves a group key, and that it was made for this connection, for the key stands on the random
bytes of both. Nothing else is sent or accepted before. Keys differ by role, so no end can be answered
with its own words. As the frames are counted and not numbered, one that is left out, repeated, put
elsewhere or altered opens nowhere, and the connection is over. A stream ends with an END: bytes that
stop without one were cut off.

As with datagrams the first key of the ring seals and all open (``sealing``), in each direction by
itself. Here is no forward secrecy: who gets a group key can read what was recorded before.

No input or output here. A receiver says how many bytes it ``wants`` next, never more than a frame,
and takes exactly these; so whatever a peer claims, this is what a shell buffers.
"""

from enum import IntEnum
from hashlib import sha256
from struct import Struct as Layout
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ordering.errors import BulkCorrupt, BulkMisuse, BulkRefused
from ordering.sealing import TAG_BYTES, Keyring, nonce
from ordering.twins import BOOT_BYTES

MAGIC: Final = b"RSMB"
BULK_VERSION: Final = 1
SALT_BYTES: Final = 32
# The largest payload of a frame.
CHUNK_MAX: Final = 128 * 1024

_GREETING: Final = Layout(">4sBBBQ16s32s")
GREETING_BYTES: Final = _GREETING.size
_FRAME: Final = Layout(">BI")
FRAME_HEADER_BYTES: Final = _FRAME.size
_LABEL: Final = b"rsm bulk 1"


class Role(IntEnum):
    INITIATOR = 1
    ACCEPTOR = 2


class FrameType(IntEnum):
    READY = 1
    DATA = 2
    END = 3


class Greeting(msgspec.Struct, frozen=True):
    """What an end says of itself. True only once its READY has opened."""

    role: Role
    sealed: bool
    group: int
    boot: int
    salt: bytes

    def encode(self) -> bytes:
        boot = self.boot.to_bytes(BOOT_BYTES, "big")
        return _GREETING.pack(MAGIC, BULK_VERSION, self.sealed, self.role, self.group, boot, self.salt)

    @classmethod
    def decode(cls, data: bytes, role: Role) -> "Greeting":
        """The greeting of an end that has to be ``role``, from ``GREETING_BYTES``; or ``BulkRefused``."""
        magic, version, flags, claimed, group, boot, salt = _GREETING.unpack(data)
        if magic != MAGIC:
            raise BulkRefused("the other end does not speak this protocol; is the port a site's?")
        if version != BULK_VERSION:
            raise BulkRefused(f"the other end speaks version {version}, this one {BULK_VERSION}; upgrade one")
        if flags > 1:
            raise BulkRefused("the other end asks for what this version does not know; upgrade this one")
        if claimed != role:
            raise BulkRefused(f"the other end is not the {role.name.lower()}; are both the same process?")
        return cls(role, bool(flags), group, int.from_bytes(boot, "big"), salt)


def agree(keyring: Keyring | None, mine: Greeting, theirs: Greeting) -> tuple["BulkSender", "BulkReceiver"]:
    """The two directions of a connection once both greetings are known."""
    if mine.sealed is not theirs.sealed:
        raise BulkRefused(
            "the other end has no keyring; give it one, or run both without"
            if mine.sealed
            else "the other end is sealed; give this one its keyring"
        )
    if mine.group != theirs.group:
        raise BulkRefused("the other end answered for another group")
    if keyring is None:
        return BulkSender(None), BulkReceiver([])
    initiator, acceptor = (mine, theirs) if mine.role is Role.INITIATOR else (theirs, mine)
    salt = sha256(initiator.encode() + acceptor.encode()).digest()
    out, into = (_LABEL + bytes([role]) for role in (mine.role, theirs.role))
    ciphers = [keyring.opening_key(index, salt, into) for index in range(len(keyring))]
    return BulkSender(keyring.sealing_key(salt, out)), BulkReceiver(ciphers)


class BulkSender:
    """One direction, at the end that sends: READY, any number of DATA, END."""

    def __init__(self, cipher: AESGCM | None) -> None:
        self.ended = False
        self._cipher = cipher
        self._sent = 0

    def ready(self) -> bytearray:
        assert not self._sent
        return self._frame(FrameType.READY, b"")

    def data(self, payload: bytes | memoryview) -> bytearray:
        """A frame of 1 to ``CHUNK_MAX`` bytes."""
        assert 0 < len(payload) <= CHUNK_MAX
        return self._frame(FrameType.DATA, payload)

    def end(self) -> bytearray:
        frame = self._frame(FrameType.END, b"")
        self.ended = True
        return frame

    def _frame(self, kind: FrameType, payload: bytes | memoryview) -> bytearray:
        if self.ended:
            raise BulkMisuse("the stream is finished; open another channel to send more")
        tag_bytes = 0 if self._cipher is None else TAG_BYTES
        size = len(payload) + tag_bytes
        header = _FRAME.pack(kind, size)
        frame = bytearray(FRAME_HEADER_BYTES + size)
        frame[:FRAME_HEADER_BYTES] = header
        rest = memoryview(frame)[FRAME_HEADER_BYTES:]
        if self._cipher is None:
            rest[:] = payload
        else:
            self._cipher.encrypt_into(nonce(self._sent), payload, header, rest)
        self._sent += 1
        return frame


class BulkReceiver:
    """One direction, at the end that receives. After an error it is of no use any more."""

    def __init__(self, ciphers: list[AESGCM]) -> None:
        """No ciphers: in plain. The one that opens the first frame has to open all."""
        self.wants = FRAME_HEADER_BYTES
        self.ready = False
        self.ended = False
        self._ciphers = ciphers
        self._tag_bytes = TAG_BYTES if ciphers else 0
        self._header = b""
        self._taken = 0

    def take(self, data: bytes) -> bytes | None:
        """Exactly ``wants`` bytes go in; a chunk of the stream comes out when one is complete."""
        assert len(data) == self.wants
        assert not self.ended
        if not self._header:
            self._take_header(data)
            return None
        payload = self._open(data)
        kind = self._header[0]
        self._header = b""
        self._taken += 1
        self.wants = FRAME_HEADER_BYTES
        if kind == FrameType.DATA:
            return payload
        if kind == FrameType.READY:
            self.ready = True
        else:
            self.ended = True
            self.wants = 0
        return None

    def _take_header(self, data: bytes) -> None:
        """What a frame may be is known before its payload is waited for."""
        kind, size = _FRAME.unpack(data)
        payload_bytes = size - self._tag_bytes
        if kind == FrameType.DATA:
            fits = self.ready and 0 < payload_bytes <= CHUNK_MAX
        elif kind in (FrameType.READY, FrameType.END):
            fits = self.ready is (kind == FrameType.END) and payload_bytes == 0
        else:
            fits = False
        if not fits:
            raise BulkCorrupt(f"frame {self._taken} has type {kind} and {size} bytes, which cannot be")
        self._header = data
        self.wants = size

    def _open(self, sealed: bytes) -> bytes:
        if not self._tag_bytes:
            return sealed
        number = nonce(self._taken)
        for cipher in self._ciphers:
            try:
                payload = cipher.decrypt(number, sealed, self._header)
            except InvalidTag:
                continue
            self._ciphers = [cipher]
            return payload
        if not self.ready:
            raise BulkRefused("the other end has no key of this keyring; compare their fingerprints")
        raise BulkCorrupt(f"frame {self._taken} is not what the other end sent in this place")
