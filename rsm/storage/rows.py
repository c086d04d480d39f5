"""The only place where records become bytes, and bytes records again.

A blob is one byte, the format, and a MessagePack array. A boot has 128 bits, more than a MessagePack integer,
so it is kept as 16 bytes. What is decoded is validated by twins (``ordering.twins``); a row that does not
decode is a bad row. Bounds that only matter to who listens to a network are left out: a row that was written
must be readable.
"""

from enum import IntEnum
from hashlib import blake2b
from struct import Struct as Layout
from typing import Any, Final, TypeAlias

import google_crc32c
import msgspec

from ordering.errors import DecodeError
from ordering.packets import Batch, Descent, Order, Position
from ordering.records import (
    Began,
    Chains,
    Claim,
    Commitment,
    Departed,
    Entry,
    Heard,
    Instance,
    Parent,
)
from ordering.twins import (
    BOOT_BYTES,
    COUNT_MAX,
    Twin,
    WireBallot,
    WireBatch,
    WireBoot,
    WireCount,
    WireDescent,
    WirePositive,
    WireRun,
    WireSite,
    WireView,
)
from rsm.storage.errors import StorageCorrupt

FORMAT: Final = 1
HASH_BYTES: Final = 16
NO_HASH: Final = bytes(HASH_BYTES)
Pairs: TypeAlias = tuple[tuple[WireSite, WireCount], ...]

_ENCODER: Final = msgspec.msgpack.Encoder()
_DERIVED: Final = {"last_ts", "last_seq", "size"}  # follow from the other fields
_ROW: Final = Layout(">QQQ")


class Part(IntEnum):
    """The small state, a row each. They are apart because they change at different times."""

    TIP = 1
    BEGAN = 2
    PLACE = 3
    BASE = 4
    COMMITMENT = 5
    CLAIMS = 6
    SNAPSHOT = 7


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Which chain the site is in, and the slot of the last state that it took over; 0: of none."""

    chain: int
    descent: Descent
    chains: Chains
    transferred: int


class Base(msgspec.Struct, frozen=True, array_like=True):
    """Where the log begins."""

    position: Position | None
    departed: Departed


class SnapshotInfo(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot that is complete. ``seal`` is the hash of all chunks; ``digest`` means something to the
    application alone."""

    number: int
    ts: int
    digest: bytes
    chunks: int
    length: int
    seal: bytes


class Tip(msgspec.Struct, frozen=True, array_like=True):
    """What the last transaction has left: whatever is lost is missed here.

    ``anchor`` is the hash before the first block, ``head`` that of the last one, ``digest`` that of all other
    parts, ``before`` the mark of the tip before. ``plain`` says that the transaction only appended blocks.
    """

    seq: int
    epoch: int  # of the last block; 0 if there is none
    end: int
    anchor: bytes
    head: bytes
    digest: bytes
    before: bytes
    plain: bool


class StoredOrder(Twin, frozen=True):
    epoch: WireCount
    ts: WirePositive
    orderer: WireSite
    next_site: WireSite
    runs: tuple[WireRun, ...]
    view: WireView | None
    vector: Pairs
    time: WireCount
    tick: bool

    def original(self) -> Order:
        runs = tuple([run.original() for run in self.runs])
        view = None if self.view is None else self.view.original()
        placed = (self.epoch, self.ts, self.orderer, self.next_site)
        order = Order(*placed, runs, view, self.vector, self.time, self.tick)
        if order.last_ts > COUNT_MAX:
            raise DecodeError("body")
        return order


class StoredEntry(Twin, frozen=True):
    order: StoredOrder
    batches: tuple[WireBatch, ...]

    def original(self) -> Entry:
        return Entry(self.order.original(), tuple([batch.original() for batch in self.batches]))


class StoredInstance(Twin, frozen=True):
    promised: WireBallot
    accepted_ballot: WireBallot
    accepted: StoredOrder | None
    decision: StoredOrder | None
    fenced: bool

    def original(self) -> Instance:
        accepted = None if self.accepted is None else self.accepted.original()
        decision = None if self.decision is None else self.decision.original()
        ballots = (self.promised.original(), self.accepted_ballot.original())
        return Instance(*ballots, accepted, decision, self.fenced)


class StoredParent(Twin, frozen=True):
    chain: WireSite
    descent: WireDescent
    fork: WireView | None
    instance: StoredInstance

    def original(self) -> Parent:
        fork = None if self.fork is None else self.fork.original()
        return Parent(self.chain, self.descent.original(), fork, self.instance.original())


class StoredBegan(Twin, frozen=True):
    site: WireSite
    chain: WireSite
    descent: WireDescent
    founders: WireView | None
    started_at: WireCount
    seat_ts: WireCount
    departed: Pairs

    def original(self) -> Began:
        founders = None if self.founders is None else self.founders.original()
        where = (self.started_at, self.seat_ts, self.departed)
        return Began(self.site, self.chain, self.descent.original(), founders, *where)


class StoredCommitment(Twin, frozen=True):
    chain: WireSite
    descent: WireDescent
    epoch: WireCount
    instance: StoredInstance
    fork: WireView | None
    parents: tuple[StoredParent, ...]

    def original(self) -> Commitment:
        fork = None if self.fork is None else self.fork.original()
        parents = tuple([parent.original() for parent in self.parents])
        instance = self.instance.original()
        return Commitment(self.chain, self.descent.original(), self.epoch, instance, fork, parents)


class StoredPosition(Twin, frozen=True):
    epoch: WireCount
    ts: WireCount
    view_ts: WireCount
    view: WireView
    vector: Pairs
    time: WireCount

    def original(self) -> Position:
        view = self.view.original()
        return Position(self.epoch, self.ts, self.view_ts, view, self.vector, self.time)


class StoredPlace(Twin, frozen=True):
    chain: WireSite
    descent: WireDescent
    chains: tuple[tuple[WireCount, WireSite], ...]
    transferred: bool | WireCount  # once it was only said whether there was one

    def original(self) -> Place:
        return Place(self.chain, self.descent.original(), self.chains, int(self.transferred))


class StoredBase(Twin, frozen=True):
    position: StoredPosition | None
    departed: Pairs

    def original(self) -> Base:
        return Base(None if self.position is None else self.position.original(), self.departed)


class StoredClaim(Twin, frozen=True):
    boot: WireBoot
    epoch: WireCount
    held: WireCount

    def original(self) -> Claim:
        return Claim(int.from_bytes(self.boot, "big"), self.epoch, self.held)


class StoredHeard(Twin, frozen=True):
    claims: tuple[tuple[WireSite, StoredClaim], ...]

    def original(self) -> Heard:
        return Heard(tuple([(site, claim.original()) for site, claim in self.claims]))


Value: TypeAlias = Tip | Began | Place | Base | Commitment | Heard | SnapshotInfo | None

_DECODERS: Final[dict[Part, msgspec.msgpack.Decoder[Any]]] = {
    Part.TIP: msgspec.msgpack.Decoder(Tip),
    Part.BEGAN: msgspec.msgpack.Decoder(StoredBegan | None),
    Part.PLACE: msgspec.msgpack.Decoder(StoredPlace),
    Part.BASE: msgspec.msgpack.Decoder(StoredBase),
    Part.COMMITMENT: msgspec.msgpack.Decoder(StoredCommitment | None),
    Part.CLAIMS: msgspec.msgpack.Decoder(StoredHeard),
    Part.SNAPSHOT: msgspec.msgpack.Decoder(SnapshotInfo | None),
}
_ENTRY_DECODER: Final = msgspec.msgpack.Decoder(StoredEntry)


# -- to bytes ------------------------------------------------------------------------------------


def encode_entry(entry: Entry) -> bytes:
    """One block with its data. Messages are handed to the encoder as they are: one call in C for all."""
    order = entry.order
    view = None if order.view is None else _plain(order.view)
    head = (order.epoch, order.ts, order.orderer, order.next_site)
    plain = (*head, order.runs, view, order.vector, order.time, order.tick)
    return _blob((plain, [_plain_batch(batch) for batch in entry.batches]))


def _plain_batch(batch: Batch) -> tuple[object, ...]:
    boot = batch.boot.to_bytes(BOOT_BYTES, "big")
    calls = [_plain(call) for call in batch.calls] if batch.calls else ()
    return batch.source, boot, batch.first_seq, batch.qos, batch.messages, calls


def encode_part(value: Value) -> bytes:
    return _blob(_plain(value))


def _plain(value: object) -> object:
    """A value as MessagePack can have it: structs as arrays of their fields, boots as bytes."""
    if isinstance(value, msgspec.Struct):
        return [
            getattr(value, name).to_bytes(BOOT_BYTES, "big")
            if name == "boot"
            else _plain(getattr(value, name))
            for name in value.__struct_fields__
            if name not in _DERIVED
        ]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _blob(plain: object) -> bytes:
    room = bytearray((FORMAT,))
    _ENCODER.encode_into(plain, room, 1)
    return bytes(room)


# -- from bytes ----------------------------------------------------------------------------------


def decode_entry(body: bytes) -> Entry:
    entry: Entry = _decode(_ENTRY_DECODER, body)
    return entry


def decode_part(part: Part, body: bytes) -> Value:
    value: Value = _decode(_DECODERS[part], body)
    return value


def _decode(decoder: msgspec.msgpack.Decoder[Any], body: bytes) -> Any:
    if body[:1] != bytes((FORMAT,)):
        raise StorageCorrupt(f"it has format {body[:1].hex() or 'none'}, this version reads {FORMAT}")
    try:
        value = decoder.decode(memoryview(body)[1:])
        return value.original() if isinstance(value, Twin) else value
    except (ValueError, DecodeError) as error:  # msgspec's own errors, and text that is not UTF-8
        raise StorageCorrupt(f"it does not decode: {error}") from None


# -- checksums -----------------------------------------------------------------------------------


def checksum(*pieces: bytes) -> int:
    crc = 0
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
    return crc


def row_head(first_ts: int, last_ts: int, epoch: int) -> bytes:
    """What a row says beside its body; its checksums cover both."""
    return _ROW.pack(first_ts, last_ts, epoch)


def chained(previous: bytes, head: bytes, body: bytes) -> bytes:
    """The hash of a row and of all rows before it."""
    return hashed(previous, head, body)


def hashed(*pieces: bytes) -> bytes:
    state = blake2b(digest_size=HASH_BYTES)
    for piece in pieces:
        state.update(piece)
    return state.digest()


def digest_of(hashes: dict[Part, bytes]) -> bytes:
    """Of all parts but the tip, by the hash of each."""
    return hashed(*(bytes((part,)) + hashes[part] for part in sorted(hashes)))
