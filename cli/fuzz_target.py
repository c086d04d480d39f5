"""What a fuzzer of the decoder does with one input, how inputs are made, and what it begins with.

An input is a datagram. It is read as it is, and again with a length field that is right, so that a change
of its size does not hide the body from the decoder; what can be read is also sealed and opened. Nothing here
needs the fuzzer: a saved input is examined by the same function.
"""

from random import Random
from typing import Final, get_args

import msgspec

from ordering import packets as p
from ordering.codec import (
    DATAGRAM_MAX,
    HEADER_BYTES,
    SEALED,
    Header,
    decode,
    decode_header,
    encode,
)
from ordering.errors import DecodeError
from ordering.qos import MAJORITY, UNRELIABLE, k_resilient
from ordering.sealing import TAG_BYTES, Keyring, Sealer
from ordering.twins import COUNT_MAX
from ordering.views import Claim, Lock, LockTable, Member, Owner, SiteId, View, ViewId
from ordering.wire import Wire

_KEYRING: Final = Keyring((b"only the target seals with this.",))
_SEALER: Final = Sealer(_KEYRING)
_PACKET_TYPES: Final = get_args(p.Packet)
_FLAGS_AT: Final = 5
_LENGTH: Final = slice(55, 59)


class Finding(AssertionError):
    """The decoder broke a promise. The text says which."""


def _promise(kept: bool, what: str) -> None:
    if not kept:
        raise Finding(what)


# -- one input -----------------------------------------------------------------------------------


def examine(datagram: bytes) -> p.Packet | None:
    """The packet of the repaired input, if it has one. Whatever is raised is a finding."""
    _read(datagram)
    _promise(_unpack(Wire(_KEYRING), datagram) is None, "a wire with keys took what nobody has sealed")
    repaired = repair(datagram)
    packet = _read(repaired)
    _open(repaired, packet)
    return packet


def repair(datagram: bytes) -> bytes:
    """With the length its header should state."""
    if len(datagram) < HEADER_BYTES:
        return datagram
    size = (len(datagram) - HEADER_BYTES).to_bytes(4, "big")
    return datagram[: _LENGTH.start] + size + datagram[_LENGTH.stop :]


def _unpack(wire: Wire, datagram: bytes) -> p.Packet | None:
    packet = wire.unpack(datagram)
    if packet is None:
        _promise(sum(wire.counters.values()) == 1, f"a drop is counted once, not as {wire.counters}")
    else:
        _promise(type(packet) in _PACKET_TYPES, f"{type(packet).__name__} is no packet")
        _promise(not wire.counters, f"what was taken is counted as dropped: {wire.counters}")
    return packet


def _read(datagram: bytes) -> p.Packet | None:
    """In plain: both doors agree, and what was read can be written and read again."""
    packet = _unpack(Wire(None), datagram)
    try:
        read, counter = decode(datagram)
    except DecodeError:
        _promise(packet is None, "the wire took what the codec refuses")
        return None
    _promise(read == packet, "wire and codec read different packets")
    again = decode(encode(read, counter))
    _promise(again == (read, counter), f"{read} became {again[0]}")
    _promise(type(again[0]) is type(read), f"{type(read).__name__} became {type(again[0]).__name__}")
    sent = Wire(None).pack(read)
    _promise(len(sent) <= len(datagram), "it grew by being read and written")
    return packet


def _open(datagram: bytes, packet: p.Packet | None) -> None:
    """Sealed by someone who has the key: the same comes out, once."""
    try:
        header = decode_header(datagram)
    except DecodeError:
        return
    sealed = _seal(header, datagram)
    wire = Wire(_KEYRING, datagram_max=DATAGRAM_MAX + TAG_BYTES)
    opened = wire.unpack(sealed)
    if not header.sealed:
        _promise(opened == packet, "sealed it is another packet than in plain")
    _promise(set(wire.counters) <= {"body"}, f"what was sealed with the key is dropped as {wire.counters}")
    _promise(wire.unpack(sealed) is None and wire.counters.get("replayed") == 1, "it opened twice")


def _seal(header: Header, datagram: bytes) -> bytes:
    body = datagram[HEADER_BYTES:]
    size = (len(body) + TAG_BYTES).to_bytes(4, "big")
    head = datagram[:HEADER_BYTES]
    head = (
        head[:_FLAGS_AT] + bytes([SEALED]) + head[_FLAGS_AT + 1 : _LENGTH.start] + size + head[_LENGTH.stop :]
    )
    return head + _SEALER.seal(header.head, header.counter, head, body)


# -- making inputs -------------------------------------------------------------------------------

_NUMBERS: Final = (0, 1, 2, 6, 7, 8, -1, COUNT_MAX - 1, COUNT_MAX, COUNT_MAX + 1, (1 << 64) - 1)
_ODDITIES: Final[list[object]] = [None, True, False, 1.0, b"", "", (), {}, bytes(16), "\u00e9" * 200, [[]]]


def mutate(datagram: bytes, rng: Random) -> bytes | None:
    """Change one node of the body's tree; None where there is no tree. Bytes changed blindly hardly ever
    leave a body that the decoder looks into."""
    try:
        tree = msgspec.msgpack.decode(datagram[HEADER_BYTES:])
    except (ValueError, RecursionError):
        return None
    try:
        body = msgspec.msgpack.encode(_changed(tree, rng))
    except (OverflowError, RecursionError):
        return None
    return repair(datagram[:HEADER_BYTES] + body)


def _changed(node: object, rng: Random) -> object:
    if isinstance(node, list) and node and rng.randrange(8):
        place = rng.randrange(len(node))
        return [*node[:place], _changed(node[place], rng), *node[place + 1 :]]
    if isinstance(node, list):
        place = rng.randrange(len(node) + 1)
        made = (node[:place], node[:place] + node[place + 1 :], [*node[:place], *node[place - 1 :]], node * 2)
        return rng.choice(made)
    if not rng.randrange(4):
        return rng.choice(_ODDITIES)
    if isinstance(node, bool):
        return not node
    if isinstance(node, int):
        return rng.choice((*_NUMBERS, node + 1, node - 1, rng.getrandbits(rng.randrange(1, 65))))
    if isinstance(node, bytes):
        return rng.choice((node + b"\0", node[:-1], rng.randbytes(len(node))))
    if isinstance(node, str):
        return rng.choice((node + "\u00e9", node[:-1], node * 2))
    return rng.choice(_NUMBERS)


# -- beginning -----------------------------------------------------------------------------------


def samples() -> list[p.Packet]:
    """At least one packet of every type, with something in every field."""
    one, two = SiteId(1), SiteId(2)
    head = p.Head(1 << 63, 5, one, 1 << 127, 1, 9, 8, 7, 6)
    members = (Member(one, 11, "127.0.0.1:7400"), Member(two, 12, "127.0.0.1:7401", SiteId(3)))
    claim = Claim(Owner(one, 11, 4), 2, 1000)
    locks = (Lock("lock", claim, 5, 6, (Claim(Owner(two, 12, 0), 3, 0),)), Lock(1, claim, 5, 0, ()))
    table = LockTable(locks, ((Owner(one, 11, 4), 2),))
    view = View(ViewId(1, 2), members, (one, two), (two, one), 3, (one,), table)
    vector = ((one, 4), (two, 0))
    runs = (p.Run(one, 1, 2), p.Run(two, 3, 1))
    install = p.Order(1, 10, one, two, view=view, vector=vector, time=99)
    call = p.Call(one, 11, 3, "127.0.0.1:9000", 2, 1)
    batch = p.Batch(one, 11, 1, MAJORITY, (b"a", b"bc"))
    called = p.Batch(one, 11, 1, k_resilient(2), (b"a",), (call,))
    part = p.Part(one, 11, 4, MAJORITY, 2, 9, b"piece", (call,))
    member, ballot, descent = members[1], p.Ballot(3, two), p.Descent(5, 1)
    directory = p.Directory(ViewId(1, 2), ("127.0.0.1:7400",))
    statement = p.LockStatement(Owner(one, 11, 4), 5, (p.Wish("lock", 2, 10, 3), p.Wish(1, 1, 0, 1)))
    return [
        p.Data(head, batch),
        p.Data(head, called),
        p.Data(head, p.Batch(one, 11, 0, UNRELIABLE, (b"",))),
        p.Ack(head, p.Order(1, 10, one, two, runs, time=99)),
        p.Ack(head, p.Order(1, 10, one, two, time=99, tick=True)),
        p.Confirm(head),
        p.Nack(head, two, 3, 9, runs, 1, (p.Span(one, 4, True, 2, 7),)),
        p.NewList(head, install, descent, ((SiteId(3), 8),)),
        p.ListChangeRequest(head, p.Change(next(iter(p.ChangeKind)), member), True),
        p.Probe(head, (one, two)),
        p.Collected(head, p.Position(1, 9, 8, view, vector, 99), descent, ((SiteId(3), 8),)),
        p.NotMember(head, two, view),
        p.Hello(head, member, next(iter(p.Standing)), 5, 12),
        p.Poll(head, 3, (two,)),
        p.PollReply(head, 3, True),
        p.RecoveryStart(head, ballot, view),
        p.RecoveryVote(head, ballot, p.Ballot(2, one), install, 9, view, True, vector, 99),
        p.RecoveryNewList(head, ballot, install),
        p.RecoveryAckNewList(head, ballot),
        p.RecoveryAbort(head, ballot, p.Ballot(4, one)),
        p.DataConfirm(head, 12, 4),
        p.Orphan(head, "127.0.0.1:7400", True, 3),
        p.ChainAlive(head, "127.0.0.1:7400", descent, 3, 2),
        p.Forgotten(head, two, 12, 1, 9),
        p.LockRequest(head, statement, True),
        p.NonMemberData(head, "127.0.0.1:9000", 5, 2, 1, MAJORITY, (b"a",), 4, 3, ViewId(1, 2), True, 1),
        p.NonMemberAck(head, 12, directory, (p.Receipt(5, 10, MAJORITY.level),)),
        p.NonMemberReply(head, 12, directory, (p.Answer(5, 10, b"yes"),)),
        p.NonMemberRefusal(head, 12, directory, p.Refusal.GAP, 5, 1, 20),
        p.Piece(head, part, two),
        p.PieceConfirm(head, True, 4, 7),
        p.ReadProbe(head, 3),
        p.ReadReply(head, 12, 3),
    ]


def seeds() -> dict[str, bytes]:
    """The samples as datagrams, by name."""
    return {
        f"{number:02}-{type(packet).__name__}": encode(packet, number)
        for number, packet in enumerate(samples(), start=1)
    }
