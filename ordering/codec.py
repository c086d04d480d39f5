"""The only place where bytes become packets (R18).

A datagram is a fixed header and a body::

    offset  bytes  field
         0      4  magic "RSM\\x00"
         4      1  wire version
         5      1  flags: 1 = sealed, the others 0
         6      8  group
        14      8  chain
        22      8  sender
        30     16  boot of the sender
        46      8  counter, for sealing and against replay
        54      1  packet type, the tag of the packet's struct
        55      4  body length
        59     40  the sender's frontiers: epoch, received, held, majority, stable
        99      …  body: MessagePack array of the packet's fields after its head

In a sealed datagram the body is ciphertext with its tag, and its length counts both (``sealing``).

Numbers are big-endian and unsigned. Whatever the header tells about a bad datagram is told before
its body is looked at; between ``decode_header`` and ``decode_body`` a driver drops what is foreign
to its group or replayed. What leaves the decoder can be trusted by the engine: bodies are decoded into
``twins`` of our types, which have every bound the engine relies on.

Identities (group, chain, site) use all 64 bits. Whatever counts (epochs, slots, sequence numbers,
rounds) stays below 2⁶³, so that adding to a number that came from the network never leaves 64 bits.

Reasons of a ``DecodeError``:

=============  ================================================================================
``truncated``  shorter than the header, or than its length field says
``oversized``  longer than ``datagram_max``, or than its length field says
``foreign``    another protocol's magic
``version``    another wire version
``flags``      a flag this version does not know
``type``       no such packet
``sender``     the sender is no site
``frontier``   a frontier out of range
``sealed``     sealed, and nobody here has opened it
``body``       anything wrong with the body
=============  ================================================================================
"""

from struct import Struct as Layout
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from ordering import packets as p
from ordering.errors import DecodeError
from ordering.twins import (
    BOOT_BYTES,
    COUNT_MAX,
    MESSAGE_MAX,
    SPANS_MAX,
    Twin,
    WireAddress,
    WireAnswer,
    WireBallot,
    WireBatch,
    WireBoot,
    WireChange,
    WireCount,
    WireDescent,
    WireDirectory,
    WireLockStatement,
    WireMember,
    WireOrder,
    WireParcel,
    WirePart,
    WirePosition,
    WirePositive,
    WireReceipt,
    WireRun,
    WireSite,
    WireSites,
    WireSpan,
    WireTime,
    WireVector,
    WireView,
    WireViewOrder,
)
from ordering.views import (
    NO_SITE,
    Claim,
    LockTable,
    Member,
    Owner,
    View,
)

MAGIC: Final = b"RSM\0"
WIRE_VERSION: Final = 1
# The payload limit of UDP over IPv4.
DATAGRAM_MAX: Final = 65_507
SEALED: Final = 1

# What is decoded may lie in a buffer that is used again: nothing of it is kept.
Datagram: TypeAlias = bytes | bytearray | memoryview

_LAYOUT: Final = Layout(">4sBBQQQ16sQBIQQQQQ")
HEADER_BYTES: Final = _LAYOUT.size
BOOT_AT: Final = 30  # a driver looks here for its own packets


class Header(msgspec.Struct, frozen=True, gc=False):
    """What a datagram says of itself before its body is decoded."""

    head: p.Head
    counter: int
    kind: int
    sealed: bool


# -- bodies --------------------------------------------------------------------------------------

# The fields of each packet after its head.
_BODIES: Final[dict[type[p.Packet], Any]] = {
    p.Data: tuple[WireBatch],
    p.Ack: tuple[WireOrder],
    p.Confirm: tuple[()],
    p.Nack: tuple[
        WireSite,
        WireCount,
        WireCount,
        tuple[WireRun, ...],
        WireCount | None,
        Annotated[tuple[WireSpan, ...], Meta(max_length=SPANS_MAX)],
    ],
    p.NewList: tuple[WireViewOrder, WireDescent, WireVector],
    p.ListChangeRequest: tuple[WireChange, bool],
    p.Probe: tuple[WireSites],
    p.Collected: tuple[WirePosition, WireDescent, WireVector],
    p.NotMember: tuple[WireSite, WireView],
    p.Hello: tuple[WireMember, p.Standing, WireSite, WireBoot],
    p.Poll: tuple[WireCount, WireSites],
    p.PollReply: tuple[WireCount, bool],
    p.RecoveryStart: tuple[WireBallot, WireView],
    p.RecoveryVote: tuple[
        WireBallot, WireBallot, WireViewOrder | None, WireCount, WireView, bool, WireVector, WireTime
    ],
    p.RecoveryNewList: tuple[WireBallot, WireViewOrder],
    p.RecoveryAckNewList: tuple[WireBallot],
    p.RecoveryAbort: tuple[WireBallot, WireBallot],
    p.DataConfirm: tuple[WireBoot, WireCount],
    p.Orphan: tuple[WireAddress, bool, WireCount],
    p.ChainAlive: tuple[WireAddress, WireDescent, WireCount, WireCount],
    p.Forgotten: tuple[WireSite, WireBoot, WireCount, WireCount],
    p.LockRequest: tuple[WireLockStatement, bool],
    p.NonMemberData: tuple[WireParcel],
    p.NonMemberAck: tuple[WireBoot, WireDirectory, Annotated[tuple[WireReceipt, ...], Meta(min_length=1)]],
    p.NonMemberReply: tuple[WireBoot, WireDirectory, Annotated[tuple[WireAnswer, ...], Meta(min_length=1)]],
    p.NonMemberRefusal: tuple[WireBoot, WireDirectory, p.Refusal, WirePositive, WirePositive, WireCount],
    p.Piece: tuple[WirePart, WireSite],
    p.PieceConfirm: tuple[bool, WirePositive, Annotated[int, Meta(ge=1, le=MESSAGE_MAX)]],
    p.ReadProbe: tuple[WireCount],
    p.ReadReply: tuple[WireBoot, WireCount],
}


def _tag(packet_type: type[p.Packet]) -> int:
    tag = packet_type.__struct_config__.tag
    assert isinstance(tag, int)
    return tag


_TAGS: Final = {packet_type: _tag(packet_type) for packet_type in _BODIES}
_DECODERS: Final[dict[int, tuple[Any, msgspec.msgpack.Decoder[Any]]]] = {
    _tag(packet_type): (packet_type, msgspec.msgpack.Decoder(body)) for packet_type, body in _BODIES.items()
}
_ENCODER: Final = msgspec.msgpack.Encoder()


def _original(value: object) -> object:
    """From a field as it travels to the field of the packet. Bytes are always a boot here."""
    if isinstance(value, Twin):
        return value.original()
    if isinstance(value, tuple):
        return tuple([_original(item) for item in value])
    if isinstance(value, bytes):
        return int.from_bytes(value, "big")
    return value


def _wire_batch(batch: p.Batch) -> tuple[object, ...]:
    boot = batch.boot.to_bytes(BOOT_BYTES, "big")
    calls = _wire_calls(batch.calls) if batch.calls else ()
    return batch.source, boot, batch.first_seq, batch.qos, batch.messages, calls


def _wire_calls(calls: tuple[p.Call, ...]) -> list[tuple[object, ...]]:
    """Most calls in a packet are of one caller."""
    wired: list[tuple[object, ...]] = []
    known, boot = -1, b""
    for call in calls:
        if call.boot != known:
            known, boot = call.boot, call.boot.to_bytes(BOOT_BYTES, "big")
        wired.append((call.caller, boot, call.number, call.address, call.handler, call.flags))
    return wired


def _wire_member(member: Member) -> tuple[object, ...]:
    return member.site, member.boot.to_bytes(BOOT_BYTES, "big"), member.address, member.replaces


def _wire_view(view: View) -> tuple[object, ...]:
    members = [_wire_member(member) for member in view.members]
    locks = _wire_locks(view.locks)
    return view.id, members, view.electorate, view.ring, view.joint_ts, view.joint_electorate, locks


def _wire_locks(table: LockTable) -> tuple[object, ...]:
    locks = [
        (lock.name, _wire_claim(lock.holder), lock.fence, lock.expires, [_wire_claim(c) for c in lock.queue])
        for lock in table.locks
    ]
    return locks, [(_wire_owner(owner), version) for owner, version in table.versions]


def _wire_claim(claim: Claim) -> tuple[object, ...]:
    return _wire_owner(claim.owner), claim.number, claim.lease_ms


def _wire_owner(owner: Owner) -> tuple[object, ...]:
    return owner.site, owner.boot.to_bytes(BOOT_BYTES, "big"), owner.session


def _wire_order(order: p.Order) -> tuple[object, ...]:
    view = None if order.view is None else _wire_view(order.view)
    head = (order.epoch, order.ts, order.orderer, order.next_site)
    return *head, order.runs, view, order.vector, order.time, order.tick


def _body(packet: p.Packet) -> tuple[object, ...]:
    """The fields after the head, those with a boot inside as the wire has them."""
    match packet:
        case p.Data():
            return (_wire_batch(packet.batch),)
        case p.Piece(_, part, asks):
            boot = part.boot.to_bytes(BOOT_BYTES, "big")
            calls = _wire_calls(part.calls)
            fields = (part.source, boot, part.seq, part.qos, part.offset, part.total, part.data, calls)
            return fields, asks
        case p.Ack():
            return (_wire_order(packet.order),)
        case p.NewList():
            return _wire_order(packet.order), packet.descent, packet.departed
        case p.ListChangeRequest():
            change = (packet.change.kind, _wire_member(packet.change.member))
            return change, packet.forwarded
        case p.Collected(_, position, descent, departed):
            view = _wire_view(position.view)
            where = (position.epoch, position.ts, position.view_ts, view, position.vector, position.time)
            return where, descent, departed
        case p.NotMember():
            return packet.subject, _wire_view(packet.view)
        case p.LockRequest(_, statement, forwarded):
            return (_wire_owner(statement.owner), statement.version, statement.wishes), forwarded
        case p.Hello():
            answers = packet.answers.to_bytes(BOOT_BYTES, "big")
            return _wire_member(packet.member), packet.standing, packet.chain, answers
        case p.Forgotten():
            boot = packet.boot.to_bytes(BOOT_BYTES, "big")
            return packet.subject, boot, packet.epoch, packet.held
        case p.RecoveryStart():
            return packet.ballot, _wire_view(packet.view)
        case p.RecoveryNewList():
            return packet.ballot, _wire_order(packet.order)
        case p.RecoveryVote():
            accepted = None if packet.accepted is None else _wire_order(packet.accepted)
            return (
                packet.ballot,
                packet.accepted_ballot,
                accepted,
                packet.frontier,
                _wire_view(packet.view),
                packet.joint,
                packet.vector,
                packet.time,
            )
        case p.NonMemberData():
            return (msgspec.structs.astuple(packet)[1:],)
        case p.DataConfirm() | p.ReadReply() | p.NonMemberAck() | p.NonMemberReply() | p.NonMemberRefusal():
            return packet.boot.to_bytes(BOOT_BYTES, "big"), *msgspec.structs.astuple(packet)[2:]
        case _:
            return tuple(msgspec.structs.astuple(packet)[1:])


# -- the two doors -------------------------------------------------------------------------------


def write_body(packet: p.Packet, room: bytearray, offset: int = HEADER_BYTES) -> None:
    """The fields after the head, in plain; ``room`` ends where they end. A value that does not fit is a
    defect of the caller."""
    _ENCODER.encode_into(() if type(packet) is p.Confirm else _body(packet), room, offset)


def write_header(
    packet: p.Packet, counter: int, flags: int, body_bytes: int, room: bytearray | memoryview
) -> None:
    """What goes before a body of ``body_bytes`` as it travels, the tag of a sealed one included."""
    head = packet.head
    _LAYOUT.pack_into(
        room,
        0,
        MAGIC,
        WIRE_VERSION,
        flags,
        head.group,
        head.chain,
        head.sender,
        head.boot.to_bytes(BOOT_BYTES, "big"),
        counter,
        _TAGS[type(packet)],
        body_bytes,
        head.epoch,
        head.received,
        head.held,
        head.majority,
        head.stable,
    )


def encode_body(packet: p.Packet) -> bytes:
    room = bytearray()
    write_body(packet, room, 0)
    return bytes(room)


def encode_header(packet: p.Packet, counter: int, flags: int, body_bytes: int) -> bytes:
    room = bytearray(HEADER_BYTES)
    write_header(packet, counter, flags, body_bytes, room)
    return bytes(room)


def encode(packet: p.Packet, counter: int) -> bytes:
    """The datagram of a packet, in plain."""
    body = encode_body(packet)
    return encode_header(packet, counter, 0, len(body)) + body


def decode_header(datagram: Datagram, *, datagram_max: int = DATAGRAM_MAX) -> Header:
    """Read and check the header; raises ``DecodeError`` and nothing else."""
    size = len(datagram)
    if size > datagram_max:
        raise DecodeError("oversized")
    if size < HEADER_BYTES:
        raise DecodeError("truncated")
    magic, version, flags, group, chain, sender, boot, counter, kind, body_bytes, *frontiers = (
        _LAYOUT.unpack_from(datagram)
    )
    epoch, received, held, majority, stable = frontiers
    if magic != MAGIC:
        raise DecodeError("foreign")
    if version != WIRE_VERSION:
        raise DecodeError("version")
    if flags & ~SEALED:
        raise DecodeError("flags")
    if kind not in _DECODERS:
        raise DecodeError("type")
    if size != HEADER_BYTES + body_bytes:
        raise DecodeError("oversized" if size > HEADER_BYTES + body_bytes else "truncated")
    if sender == NO_SITE:
        raise DecodeError("sender")
    if (epoch | received | held | majority | stable) > COUNT_MAX:
        raise DecodeError("frontier")
    boot_number = int.from_bytes(boot, "big")
    head = p.Head(group, chain, sender, boot_number, epoch, received, held, majority, stable)
    return Header(head, counter, kind, flags == SEALED)


def decode_body(header: Header, datagram: Datagram, offset: int = HEADER_BYTES) -> p.Packet:
    """The packet of a datagram whose header was read; raises ``DecodeError`` and nothing else.

    The body begins at ``offset`` and is in plain: of an opened datagram it comes alone, at 0.
    """
    packet_type, decoder = _DECODERS[header.kind]
    try:
        fields = decoder.decode(memoryview(datagram)[offset:])
    except ValueError:  # msgspec's own errors, and text that is not UTF-8
        raise DecodeError("body") from None
    if packet_type is p.NonMemberData:
        return p.NonMemberData(header.head, *fields[0].fields())
    packet: p.Packet = packet_type(header.head, *[_original(field) for field in fields])
    return packet


def decode(datagram: Datagram, *, datagram_max: int = DATAGRAM_MAX) -> tuple[p.Packet, int]:
    """The packet and the counter of a datagram in plain; raises ``DecodeError`` and nothing else."""
    header = decode_header(datagram, datagram_max=datagram_max)
    if header.sealed:
        raise DecodeError("sealed")
    return decode_body(header, datagram), header.counter
