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
from ordering.locks import LEASE_MS_MAX, NAME_BYTES_MAX, NAMED_MAX, WAITERS_MAX, WISHES_MAX
from ordering.qos import Level, Qos
from ordering.slot_time import TIME_MAX
from ordering.views import (
    HANDLERS,
    NO_SITE,
    Claim,
    Lock,
    LockName,
    LockTable,
    Member,
    Owner,
    SiteId,
    View,
    ViewId,
)

MAGIC: Final = b"RSM\0"
WIRE_VERSION: Final = 1
# The payload limit of UDP over IPv4.
DATAGRAM_MAX: Final = 65_507
COUNT_MAX: Final = (1 << 63) - 1
# Views are compared member by member; this keeps that cheap whatever a datagram claims.
MEMBERS_MAX: Final = 1024
ADDRESS_MAX: Final = 255
SEALED: Final = 1
# A receiver makes room for a whole message when its first piece comes.
MESSAGE_MAX: Final = 1 << 30
SPANS_MAX: Final = 64

_LAYOUT: Final = Layout(">4sBBQQQ16sQBIQQQQQ")
HEADER_BYTES: Final = _LAYOUT.size
BOOT_BYTES: Final = 16
BOOT_AT: Final = 30  # a driver looks here for its own packets

_Site: TypeAlias = Annotated[SiteId, Meta(ge=0)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_Positive: TypeAlias = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
_Boot: TypeAlias = Annotated[bytes, Meta(min_length=BOOT_BYTES, max_length=BOOT_BYTES)]
_Address: TypeAlias = Annotated[str, Meta(max_length=ADDRESS_MAX)]
_Caller: TypeAlias = Annotated[SiteId, Meta(ge=1)]
_Handler: TypeAlias = Annotated[int, Meta(ge=0, le=HANDLERS[-1])]
_Flags: TypeAlias = Annotated[int, Meta(ge=0, le=sum(p.CallFlag))]
_Messages: TypeAlias = Annotated[tuple[bytes, ...], Meta(min_length=1)]
_Sites: TypeAlias = Annotated[tuple[_Site, ...], Meta(max_length=MEMBERS_MAX)]
_Time: TypeAlias = Annotated[int, Meta(ge=0, le=TIME_MAX)]
_Lease: TypeAlias = Annotated[int, Meta(ge=0, le=LEASE_MS_MAX)]
_LockName: TypeAlias = (
    Annotated[int, Meta(ge=HANDLERS[0], le=HANDLERS[-1])]
    | Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
)
_Vector: TypeAlias = Annotated[tuple[tuple[_Site, _Count], ...], Meta(max_length=MEMBERS_MAX)]


class Header(msgspec.Struct, frozen=True, gc=False):
    """What a datagram says of itself before its body is decoded."""

    head: p.Head
    counter: int
    kind: int
    sealed: bool


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


class _Call(_Twin, frozen=True):
    caller: _Caller
    boot: _Boot
    number: _Positive
    address: _Address
    handler: _Handler
    flags: _Flags

    def original(self) -> p.Call:
        boot = int.from_bytes(self.boot, "big")
        return p.Call(self.caller, boot, self.number, self.address, self.handler, self.flags)


class _Batch(_Twin, frozen=True):
    source: _Site
    boot: _Boot
    first_seq: _Count
    qos: _Qos
    messages: _Messages
    calls: tuple[_Call, ...]

    def original(self) -> p.Batch:
        first_seq = self.first_seq
        qos = self.qos.original()
        unnumbered = first_seq == 0 and qos.level is not Level.UNRELIABLE
        calls = tuple([call.original() for call in self.calls]) if self.calls else ()
        count = len(self.messages)
        if unnumbered or first_seq + count > COUNT_MAX or len(calls) not in (0, count):
            raise DecodeError("body")
        return p.Batch(self.source, int.from_bytes(self.boot, "big"), first_seq, qos, self.messages, calls)


class _Part(_Twin, frozen=True):
    source: _Site
    boot: _Boot
    seq: _Positive
    qos: _Qos
    offset: _Count
    total: Annotated[int, Meta(ge=1, le=MESSAGE_MAX)]
    data: Annotated[bytes, Meta(min_length=1)]
    calls: Annotated[tuple[_Call, ...], Meta(max_length=1)]

    def original(self) -> p.Part:
        qos = self.qos.original()
        if qos.level is Level.UNRELIABLE or self.offset + len(self.data) > self.total:
            raise DecodeError("body")
        boot = int.from_bytes(self.boot, "big")
        calls = tuple([call.original() for call in self.calls])
        return p.Part(self.source, boot, self.seq, qos, self.offset, self.total, self.data, calls)


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


class _Owner(_Twin, frozen=True):
    site: _Site
    boot: _Boot
    session: _Count

    def original(self) -> Owner:
        return Owner(self.site, int.from_bytes(self.boot, "big"), self.session)


class _Claim(_Twin, frozen=True):
    owner: _Owner
    number: _Count
    lease_ms: _Lease

    def original(self) -> Claim:
        return Claim(self.owner.original(), self.number, self.lease_ms)


class _Lock(_Twin, frozen=True):
    name: _LockName
    holder: _Claim
    fence: _Count
    expires: _Count
    queue: Annotated[tuple[_Claim, ...], Meta(max_length=WAITERS_MAX)]

    def original(self) -> Lock:
        _check_name(self.name)
        queue = tuple([claim.original() for claim in self.queue])
        return Lock(self.name, self.holder.original(), self.fence, self.expires, queue)


def _check_name(name: LockName) -> None:
    """The bound is in bytes; the decoder of strings counts characters."""
    if isinstance(name, str) and len(name.encode()) > NAME_BYTES_MAX:
        raise DecodeError("body")


class _LockTable(_Twin, frozen=True):
    locks: Annotated[tuple[_Lock, ...], Meta(max_length=NAMED_MAX + len(HANDLERS))]
    versions: Annotated[tuple[tuple[_Owner, _Count], ...], Meta(max_length=MEMBERS_MAX)]

    def original(self) -> LockTable:
        if len({lock.name for lock in self.locks}) != len(self.locks):
            raise DecodeError("body")
        locks = tuple([lock.original() for lock in self.locks])
        return LockTable(locks, tuple([(owner.original(), version) for owner, version in self.versions]))


class _Wish(_Twin, frozen=True):
    name: _LockName
    number: _Positive
    lease_ms: _Lease
    renewed: _Positive

    def original(self) -> p.Wish:
        _check_name(self.name)
        return p.Wish(self.name, self.number, self.lease_ms, self.renewed)


class _LockStatement(_Twin, frozen=True):
    owner: _Owner
    version: _Positive
    wishes: Annotated[tuple[_Wish, ...], Meta(max_length=WISHES_MAX)]

    def original(self) -> p.LockStatement:
        names = {wish.name for wish in self.wishes}
        if len(names) != len(self.wishes) or any(wish.number > self.version for wish in self.wishes):
            raise DecodeError("body")
        wishes = tuple([wish.original() for wish in self.wishes])
        return p.LockStatement(self.owner.original(), self.version, wishes)


class _View(_Twin, frozen=True):
    id: _ViewId
    members: Annotated[tuple[_Member, ...], Meta(max_length=MEMBERS_MAX)]
    electorate: _Sites
    ring: _Sites
    joint_ts: _Count
    joint_electorate: _Sites
    locks: _LockTable

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
            self.locks.original(),
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
    time: _Time
    tick: bool

    def original(self) -> p.Order:
        runs = tuple([run.original() for run in self.runs])
        order = p.Order(
            self.epoch, self.ts, self.orderer, self.next_site, runs, time=self.time, tick=self.tick
        )
        if order.last_ts > COUNT_MAX or (self.tick and runs):
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
    time: _Time
    tick: bool

    def original(self) -> p.Order:
        view = self.view.original()
        sites = {member.site for member in view.members}
        strangers = any(site not in sites for site, _ in self.vector)
        if not view.ring or not view.electorate or strangers or self.tick:
            raise DecodeError("body")
        return p.Order(
            self.epoch,
            self.ts,
            self.orderer,
            self.next_site,
            view=view,
            vector=self.vector,
            time=self.time,
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
    time: _Time

    def original(self) -> p.Position:
        view = self.view.original()
        sites = {member.site for member in view.members}
        if self.view_ts > self.ts or not view.ring or {site for site, _ in self.vector} != sites:
            raise DecodeError("body")
        return p.Position(self.epoch, self.ts, self.view_ts, view, self.vector, self.time)


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


class _Receipt(_Twin, frozen=True):
    number: _Positive
    ts: _Count
    reached: Level

    def original(self) -> p.Receipt:
        return p.Receipt(self.number, self.ts, self.reached)


class _Answer(_Twin, frozen=True):
    number: _Positive
    ts: _Count
    payload: bytes

    def original(self) -> p.Answer:
        return p.Answer(self.number, self.ts, self.payload)


class _Directory(_Twin, frozen=True):
    view: _ViewId
    addresses: Annotated[tuple[_Address, ...], Meta(max_length=MEMBERS_MAX)]

    def original(self) -> p.Directory:
        return p.Directory(self.view.original(), self.addresses)


class _Parcel(_Twin, frozen=True):
    """What a NonMemberData carries, as one field: its numbers must fit together."""

    address: _Address
    first: _Positive
    handler: _Handler
    flags: Annotated[int, Meta(ge=0, lt=p.CallFlag.IS_REPLY.value)]
    qos: _Qos
    messages: _Messages
    floor: _Count
    after: _Count
    view: _ViewId
    bound: bool
    turn: _Count | None
    passed_on: bool

    def fields(self) -> tuple[object, ...]:
        last = self.first + len(self.messages) - 1
        if last > COUNT_MAX or self.floor > last or self.after >= self.first:
            raise DecodeError("body")
        rest = (self.messages, self.floor, self.after, self.view.original(), self.bound, self.turn)
        return self.address, self.first, self.handler, self.flags, self.qos.original(), *rest, self.passed_on


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
    p.RecoveryVote: tuple[_Ballot, _Ballot, _ViewOrder | None, _Count, _View, bool, _Vector, _Time],
    p.RecoveryNewList: tuple[_Ballot, _ViewOrder],
    p.RecoveryAckNewList: tuple[_Ballot],
    p.RecoveryAbort: tuple[_Ballot, _Ballot],
    p.DataConfirm: tuple[_Count],
    p.Orphan: tuple[_Address, bool, _Count],
    p.ChainAlive: tuple[_Address, _Descent, _Count, _Count],
    p.Forgotten: tuple[_Site, _Boot, _Count, _Count],
    p.LockRequest: tuple[_LockStatement, bool],
    p.NonMemberData: tuple[_Parcel],
    p.NonMemberAck: tuple[_Boot, _Directory, Annotated[tuple[_Receipt, ...], Meta(min_length=1)]],
    p.NonMemberReply: tuple[_Boot, _Directory, Annotated[tuple[_Answer, ...], Meta(min_length=1)]],
    p.NonMemberRefusal: tuple[_Boot, _Directory, p.Refusal, _Positive, _Positive, _Count],
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
    calls = [_wire_call(call) for call in batch.calls] if batch.calls else ()
    return batch.source, boot, batch.first_seq, batch.qos, batch.messages, calls


def _wire_call(call: p.Call) -> tuple[object, ...]:
    boot = call.boot.to_bytes(BOOT_BYTES, "big")
    return call.caller, boot, call.number, call.address, call.handler, call.flags


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
            calls = [_wire_call(call) for call in part.calls]
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
        case p.NonMemberAck() | p.NonMemberReply() | p.NonMemberRefusal():
            return packet.boot.to_bytes(BOOT_BYTES, "big"), *msgspec.structs.astuple(packet)[2:]
        case _:
            return tuple(msgspec.structs.astuple(packet)[1:])


# -- the two doors -------------------------------------------------------------------------------


def encode_body(packet: p.Packet) -> bytes:
    """The fields after the head, in plain. A value that does not fit is a defect of the caller."""
    if type(packet) is p.Confirm:
        return _EMPTY_BODY
    return _ENCODER.encode(_body(packet))


def encode_header(packet: p.Packet, counter: int, flags: int, body_bytes: int) -> bytes:
    """What goes before a body of ``body_bytes`` as it travels, the tag of a sealed one included."""
    head = packet.head
    return _LAYOUT.pack(
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


def encode(packet: p.Packet, counter: int) -> bytes:
    """The datagram of a packet, in plain."""
    body = encode_body(packet)
    return encode_header(packet, counter, 0, len(body)) + body


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


def decode_body(header: Header, datagram: bytes, offset: int = HEADER_BYTES) -> p.Packet:
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


def decode(datagram: bytes, *, datagram_max: int = DATAGRAM_MAX) -> tuple[p.Packet, int]:
    """The packet and the counter of a datagram in plain; raises ``DecodeError`` and nothing else."""
    header = decode_header(datagram, datagram_max=datagram_max)
    if header.sealed:
        raise DecodeError("sealed")
    return decode_body(header, datagram), header.counter
