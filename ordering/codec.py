"""The only place where bytes become packets (R18).

A datagram is a fixed header and a body::

    offset  bytes  field
         0      4  magic "RSM\\x00"
         4      1  wire version
         5      1  flags, 0 so far
         6      8  group
        14      8  chain
        22      8  sender
        30     16  boot of the sender
        46      8  counter, for sealing and against replay
        54      1  packet type, the tag of the packet's struct
        55      4  body length
        59     40  the sender's frontiers: epoch, received, held, majority, stable
        99      …  body: MessagePack array of the packet's fields after its head

Numbers are big-endian and unsigned. Whatever the header tells about a bad datagram is told before
its body is looked at; between ``decode_header`` and ``decode_body`` a driver drops what is foreign
to its group or replayed. What leaves the decoder can be trusted by the engine: the types below
(``_Run``, ``_Order`` …) are the wire twins of those in ``packets``, with every bound the engine
relies on. A boot has 128 bits, more than a MessagePack integer, so it travels as 16 bytes; that is
the other reason for the twins.

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
``body``       anything wrong with the body
=============  ================================================================================
"""

from struct import Struct as Layout
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from ordering import packets as p
from ordering.errors import DecodeError
from ordering.qos import Level, Qos
from ordering.views import NO_SITE, Member, SiteId, View, ViewId

MAGIC: Final = b"RSM\0"
WIRE_VERSION: Final = 1
# The payload limit of UDP over IPv4.
DATAGRAM_MAX: Final = 65_507
COUNT_MAX: Final = (1 << 63) - 1
# Views are compared member by member; this keeps that cheap whatever a datagram claims.
MEMBERS_MAX: Final = 1024
ADDRESS_MAX: Final = 255
# A receiver makes room for a whole message when its first piece comes.
MESSAGE_MAX: Final = 1 << 30
SPANS_MAX: Final = 64

_LAYOUT: Final = Layout(">4sBBQQQ16sQBIQQQQQ")
HEADER_BYTES: Final = _LAYOUT.size
BOOT_BYTES: Final = 16

_Site: TypeAlias = Annotated[SiteId, Meta(ge=0)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_Positive: TypeAlias = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
_Boot: TypeAlias = Annotated[bytes, Meta(min_length=BOOT_BYTES, max_length=BOOT_BYTES)]
_Address: TypeAlias = Annotated[str, Meta(max_length=ADDRESS_MAX)]
_Messages: TypeAlias = Annotated[tuple[bytes, ...], Meta(min_length=1)]
_Sites: TypeAlias = Annotated[tuple[_Site, ...], Meta(max_length=MEMBERS_MAX)]
_Vector: TypeAlias = Annotated[tuple[tuple[_Site, _Count], ...], Meta(max_length=MEMBERS_MAX)]


class Header(msgspec.Struct, frozen=True, gc=False):
    """What a datagram says of itself before its body is decoded."""

    head: p.Head
    counter: int
    kind: int


# -- wire twins ----------------------------------------------------------------------------------


class _Twin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The wire's form of a type of ours: every field must be there, each within its bounds."""

    def original(self) -> object:
        """The value itself, after the checks that take more than one field to make."""
        raise NotImplementedError


class _Run(_Twin, frozen=True):
    source: _Site
    first_seq: _Positive
    count: _Positive

    def original(self) -> p.Run:
        if self.first_seq + self.count > COUNT_MAX:
            raise DecodeError("body")
        return p.Run(self.source, self.first_seq, self.count)


class _Qos(_Twin, frozen=True):
    level: Level
    k: _Count

    def original(self) -> Qos:
        if self.k and self.level is not Level.K_RESILIENT:
            raise DecodeError("body")
        return Qos(self.level, self.k)


class _Batch(_Twin, frozen=True):
    source: _Site
    boot: _Boot
    first_seq: _Count
    qos: _Qos
    messages: _Messages

    def original(self) -> p.Batch:
        first_seq = self.first_seq
        qos = self.qos.original()
        unnumbered = first_seq == 0 and qos.level is not Level.UNRELIABLE
        if unnumbered or first_seq + len(self.messages) > COUNT_MAX:
            raise DecodeError("body")
        return p.Batch(self.source, int.from_bytes(self.boot, "big"), first_seq, qos, self.messages)


class _Part(_Twin, frozen=True):
    source: _Site
    boot: _Boot
    seq: _Positive
    qos: _Qos
    offset: _Count
    total: Annotated[int, Meta(ge=1, le=MESSAGE_MAX)]
    data: Annotated[bytes, Meta(min_length=1)]

    def original(self) -> p.Part:
        qos = self.qos.original()
        if qos.level is Level.UNRELIABLE or self.offset + len(self.data) > self.total:
            raise DecodeError("body")
        boot = int.from_bytes(self.boot, "big")
        return p.Part(self.source, boot, self.seq, qos, self.offset, self.total, self.data)


class _Span(_Twin, frozen=True):
    source: _Site
    seq: _Positive
    ordered: bool
    first: _Count
    end: Annotated[int, Meta(ge=1, le=MESSAGE_MAX)]

    def original(self) -> p.Span:
        if self.first >= self.end:
            raise DecodeError("body")
        return p.Span(self.source, self.seq, self.ordered, self.first, self.end)


class _ViewId(_Twin, frozen=True):
    epoch: _Count
    revision: _Count

    def original(self) -> ViewId:
        return ViewId(self.epoch, self.revision)


class _Member(_Twin, frozen=True):
    site: _Site
    boot: _Boot
    address: _Address
    replaces: _Site

    def original(self) -> Member:
        boot = int.from_bytes(self.boot, "big")
        return Member(self.site, boot, self.address, self.replaces)


class _View(_Twin, frozen=True):
    id: _ViewId
    members: Annotated[tuple[_Member, ...], Meta(max_length=MEMBERS_MAX)]
    electorate: _Sites
    ring: _Sites
    joint_ts: _Count
    joint_electorate: _Sites

    def original(self) -> View:
        sites = {member.site for member in self.members}
        if (
            NO_SITE in sites
            or len(sites) != len(self.members)
            or not _is_choice(self.electorate, sites)
            or not _is_choice(self.ring, sites)
        ):
            raise DecodeError("body")
        return View(
            self.id.original(),
            tuple([member.original() for member in self.members]),
            self.electorate,
            self.ring,
            self.joint_ts,
            self.joint_electorate,
        )


def _is_choice(chosen: tuple[SiteId, ...], sites: set[SiteId]) -> bool:
    return sites.issuperset(chosen) and len(set(chosen)) == len(chosen)


class _Order(_Twin, frozen=True):
    """What an Ack carries: runs, no view."""

    epoch: _Count
    ts: _Positive
    orderer: _Site
    next_site: _Site
    runs: tuple[_Run, ...]
    view: None
    vector: tuple[()]

    def original(self) -> p.Order:
        runs = tuple([run.original() for run in self.runs])
        order = p.Order(self.epoch, self.ts, self.orderer, self.next_site, runs)
        if order.last_ts > COUNT_MAX:
            raise DecodeError("body")
        return order


class _ViewOrder(_Twin, frozen=True):
    """What a NewList carries: a view that someone can order in, and where its members start."""

    epoch: _Count
    ts: _Positive
    orderer: _Site
    next_site: _Site
    runs: tuple[()]
    view: _View
    vector: _Vector

    def original(self) -> p.Order:
        view = self.view.original()
        sites = {member.site for member in view.members}
        if not view.ring or not view.electorate or any(site not in sites for site, _ in self.vector):
            raise DecodeError("body")
        return p.Order(
            self.epoch,
            self.ts,
            self.orderer,
            self.next_site,
            view=view,
            vector=self.vector,
        )


class _Ballot(_Twin, frozen=True):
    round: _Count
    site: _Site

    def original(self) -> p.Ballot:
        return p.Ballot(self.round, self.site)


class _Position(_Twin, frozen=True):
    epoch: _Count
    ts: _Positive
    view_ts: _Count
    view: _View
    vector: _Vector

    def original(self) -> p.Position:
        view = self.view.original()
        sites = {member.site for member in view.members}
        if self.view_ts > self.ts or not view.ring or {site for site, _ in self.vector} != sites:
            raise DecodeError("body")
        return p.Position(self.epoch, self.ts, self.view_ts, view, self.vector)


class _Descent(_Twin, frozen=True):
    root: _Site
    depth: _Count

    def original(self) -> p.Descent:
        return p.Descent(self.root, self.depth)


class _Change(_Twin, frozen=True):
    kind: p.ChangeKind
    member: _Member

    def original(self) -> p.Change:
        return p.Change(self.kind, self.member.original())


# -- bodies --------------------------------------------------------------------------------------

# The fields of each packet after its head.
_BODIES: Final[dict[type[p.Packet], Any]] = {
    p.Data: tuple[_Batch],
    p.Ack: tuple[_Order],
    p.Confirm: tuple[()],
    p.Nack: tuple[
        _Site,
        _Count,
        _Count,
        tuple[_Run, ...],
        _Count | None,
        Annotated[tuple[_Span, ...], Meta(max_length=SPANS_MAX)],
    ],
    p.NewList: tuple[_ViewOrder, _Descent, _Vector],
    p.ListChangeRequest: tuple[_Change, bool],
    p.Probe: tuple[_Sites],
    p.Collected: tuple[_Position, _Descent, _Vector],
    p.NotMember: tuple[_Site, _View],
    p.Hello: tuple[_Member, p.Standing, _Site, _Boot],
    p.Poll: tuple[_Count, _Sites],
    p.PollReply: tuple[_Count, bool],
    p.RecoveryStart: tuple[_Ballot, _View],
    p.RecoveryVote: tuple[_Ballot, _Ballot, _ViewOrder | None, _Count, _View, bool, _Vector],
    p.RecoveryNewList: tuple[_Ballot, _ViewOrder],
    p.RecoveryAckNewList: tuple[_Ballot],
    p.RecoveryAbort: tuple[_Ballot, _Ballot],
    p.DataConfirm: tuple[_Count],
    p.Orphan: tuple[_Address, bool, _Count],
    p.ChainAlive: tuple[_Address, _Descent, _Count, _Count],
    p.Piece: tuple[_Part, _Site],
    p.PieceConfirm: tuple[bool, _Positive, Annotated[int, Meta(ge=1, le=MESSAGE_MAX)]],
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
_EMPTY_BODY: Final = _ENCODER.encode(())
_BARE: Final = frozenset({_TAGS[p.Confirm]})


def _original(value: object) -> object:
    """From a field as it travels to the field of the packet. Bytes are always a boot here."""
    if isinstance(value, _Twin):
        return value.original()
    if isinstance(value, tuple):
        return tuple([_original(item) for item in value])
    if isinstance(value, bytes):
        return int.from_bytes(value, "big")
    return value


def _wire_batch(batch: p.Batch) -> tuple[object, ...]:
    boot = batch.boot.to_bytes(BOOT_BYTES, "big")
    return batch.source, boot, batch.first_seq, batch.qos, batch.messages


def _wire_member(member: Member) -> tuple[object, ...]:
    return member.site, member.boot.to_bytes(BOOT_BYTES, "big"), member.address, member.replaces


def _wire_view(view: View) -> tuple[object, ...]:
    members = [_wire_member(member) for member in view.members]
    return view.id, members, view.electorate, view.ring, view.joint_ts, view.joint_electorate


def _wire_order(order: p.Order) -> tuple[object, ...]:
    view = None if order.view is None else _wire_view(order.view)
    return order.epoch, order.ts, order.orderer, order.next_site, order.runs, view, order.vector


def _body(packet: p.Packet) -> tuple[object, ...]:
    """The fields after the head, those with a boot inside as the wire has them."""
    match packet:
        case p.Data():
            return (_wire_batch(packet.batch),)
        case p.Piece(_, part, asks):
            boot = part.boot.to_bytes(BOOT_BYTES, "big")
            fields = (part.source, boot, part.seq, part.qos, part.offset, part.total, part.data)
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
            return (position.epoch, position.ts, position.view_ts, view, position.vector), descent, departed
        case p.NotMember():
            return packet.subject, _wire_view(packet.view)
        case p.Hello():
            answers = packet.answers.to_bytes(BOOT_BYTES, "big")
            return _wire_member(packet.member), packet.standing, packet.chain, answers
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
            )
        case _:
            return tuple(msgspec.structs.astuple(packet)[1:])


# -- the two doors -------------------------------------------------------------------------------


def encode(packet: p.Packet, counter: int) -> bytes:
    """The datagram of a packet. A value that does not fit its field is a defect of the caller."""
    head = packet.head
    kind = _TAGS[type(packet)]
    body = _EMPTY_BODY if kind in _BARE else _ENCODER.encode(_body(packet))
    header = _LAYOUT.pack(
        MAGIC,
        WIRE_VERSION,
        0,
        head.group,
        head.chain,
        head.sender,
        head.boot.to_bytes(BOOT_BYTES, "big"),
        counter,
        kind,
        len(body),
        head.epoch,
        head.received,
        head.held,
        head.majority,
        head.stable,
    )
    return header + body


def decode_header(datagram: bytes, *, datagram_max: int = DATAGRAM_MAX) -> Header:
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
    if flags:
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
    return Header(head, counter, kind)


def decode_body(header: Header, datagram: bytes) -> p.Packet:
    """The packet of a datagram whose header was read; raises ``DecodeError`` and nothing else."""
    packet_type, decoder = _DECODERS[header.kind]
    try:
        fields = decoder.decode(memoryview(datagram)[HEADER_BYTES:])
    except ValueError:  # msgspec's own errors, and text that is not UTF-8
        raise DecodeError("body") from None
    packet: p.Packet = packet_type(header.head, *[_original(field) for field in fields])
    return packet


def decode(datagram: bytes, *, datagram_max: int = DATAGRAM_MAX) -> tuple[p.Packet, int]:
    """The packet and the counter of a datagram; raises ``DecodeError`` and nothing else."""
    header = decode_header(datagram, datagram_max=datagram_max)
    return decode_body(header, datagram), header.counter
