"""R18: what is not ours is dropped for a reason, and nothing but a DecodeError ever comes out."""

import time
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ordering import codec, twins
from ordering import packets as p
from ordering.codec import HEADER_BYTES, decode, encode
from ordering.errors import DecodeError
from ordering.locks import LEASE_MS_MAX, WAITERS_MAX
from ordering.qos import MAJORITY, UNRELIABLE, Level, Qos, k_resilient
from ordering.slot_time import TIME_MAX
from ordering.twins import COUNT_MAX
from ordering.views import HANDLERS, Claim, Lock, LockTable, Member, Owner, SiteId, View, ViewId

BOOT = (1 << 128) - 1
HEAD = p.Head(1 << 63, (1 << 64) - 1, SiteId(7), BOOT, 1, 2, 3, 4, 5)
HEADER_REASONS = ("truncated", "oversized", "foreign", "version", "flags", "type", "sender", "frontier")
REASONS = (*HEADER_REASONS, "sealed", "body")
PACKET_TYPES = get_args(p.Packet)

# -- arbitrary packets ---------------------------------------------------------------------------

ids = st.integers(0, (1 << 64) - 1)
sites = st.integers(1, (1 << 64) - 1).map(SiteId)
any_site = ids.map(SiteId)
boots = st.integers(0, BOOT)
counts = st.integers(0, COUNT_MAX)
small = st.integers(1, 1 << 40)
heads = st.builds(p.Head, ids, ids, sites, boots, counts, counts, counts, counts, counts)
runs = st.builds(p.Run, any_site, small, small)
qualities = st.one_of(
    st.sampled_from([Qos(level) for level in Level]), st.integers(0, COUNT_MAX).map(k_resilient)
)
messages = st.lists(st.binary(max_size=40), min_size=1, max_size=20).map(tuple)
handlers = st.integers(0, HANDLERS[-1])
call_flags = st.integers(0, sum(p.CallFlag))
reply_addresses = st.text(st.characters(codec="utf-8"), max_size=30)
calls = st.builds(p.Call, sites, boots, small, reply_addresses, handlers, call_flags)


@st.composite
def batches_of_calls(draw: st.DrawFn) -> p.Batch:
    pairs = draw(st.lists(st.tuples(st.binary(max_size=8), calls), min_size=1, max_size=3))
    bodies, made = tuple(body for body, _ in pairs), tuple(call for _, call in pairs)
    return p.Batch(draw(any_site), draw(boots), draw(small), draw(qualities), bodies, made)


batches = st.one_of(st.builds(p.Batch, any_site, boots, small, qualities, messages), batches_of_calls())
members = st.builds(Member, sites, boots, st.text(st.characters(codec="utf-8"), max_size=30), any_site)
ballots = st.builds(p.Ballot, counts, any_site)


owners = st.builds(Owner, any_site, boots, counts)
leases = st.integers(0, LEASE_MS_MAX)
times = st.integers(0, TIME_MAX)
lock_names = st.integers(1, 6) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
claims = st.builds(Claim, owners, counts, leases)
locks = st.builds(Lock, lock_names, claims, counts, counts, st.lists(claims, max_size=3).map(tuple))
tables = st.builds(
    LockTable,
    st.lists(locks, max_size=4, unique_by=lambda lock: lock.name).map(tuple),
    st.lists(st.tuples(owners, counts), max_size=3).map(tuple),
)
wishes = st.builds(p.Wish, lock_names, st.integers(1, 5), leases, small)
statements = st.builds(
    p.LockStatement,
    owners,
    st.integers(5, COUNT_MAX),
    st.lists(wishes, max_size=4, unique_by=lambda wish: wish.name).map(tuple),
)


@st.composite
def views(draw: st.DrawFn, *, least: int = 0) -> View:
    chosen = draw(st.lists(members, min_size=least, max_size=6, unique_by=lambda member: member.site))
    names = [member.site for member in chosen]

    def some(floor: int) -> st.SearchStrategy[tuple[SiteId, ...]]:
        if not names:
            return st.just(())
        return st.lists(st.sampled_from(names), min_size=floor, unique=True).map(tuple)

    return View(
        ViewId(draw(counts), draw(counts)),
        tuple(chosen),
        draw(some(min(least, 1))),
        draw(some(min(least, 1))),
        draw(counts),
        draw(st.lists(any_site, max_size=4).map(tuple)),
        draw(tables),
    )


@st.composite
def view_orders(draw: st.DrawFn) -> p.Order:
    view = draw(views(least=1))
    vector = tuple((member.site, draw(counts)) for member in view.members)
    placed = (draw(counts), draw(small), draw(any_site), draw(any_site))
    return p.Order(*placed, view=view, vector=vector, time=draw(times))


@st.composite
def positions(draw: st.DrawFn) -> p.Position:
    view = draw(views(least=1))
    vector = tuple((member.site, draw(counts)) for member in view.members)
    ts = draw(small)
    return p.Position(draw(counts), ts, draw(st.integers(0, ts)), view, vector, draw(times))


view_ids = st.builds(ViewId, counts, counts)
directories = st.builds(p.Directory, view_ids, st.lists(reply_addresses, max_size=6).map(tuple))
receipts = st.builds(p.Receipt, small, counts, st.sampled_from(Level))
answers = st.builds(p.Answer, small, counts, st.binary(max_size=40))


@st.composite
def non_member_data(draw: st.DrawFn) -> p.NonMemberData:
    first = draw(small)
    return p.NonMemberData(
        draw(heads),
        draw(reply_addresses),
        first,
        draw(handlers),
        draw(st.integers(0, p.CallFlag.IS_REPLY - 1)),
        draw(qualities),
        draw(messages),
        draw(st.integers(0, first)),
        draw(st.integers(0, first - 1)),
        draw(view_ids),
        draw(st.booleans()),
        draw(st.none() | counts),
        draw(st.booleans()),
    )


@st.composite
def parts(draw: st.DrawFn) -> p.Part:
    data = draw(st.binary(min_size=1, max_size=40))
    total = draw(st.integers(len(data), twins.MESSAGE_MAX))
    offset = draw(st.integers(0, total - len(data)))
    quality = draw(qualities.filter(lambda qos: qos.level is not Level.UNRELIABLE))
    request = draw(st.lists(calls, max_size=1).map(tuple))
    return p.Part(draw(any_site), draw(boots), draw(small), quality, offset, total, data, request)


@st.composite
def spans(draw: st.DrawFn) -> p.Span:
    end = draw(st.integers(1, twins.MESSAGE_MAX))
    return p.Span(draw(any_site), draw(small), draw(st.booleans()), draw(st.integers(0, end - 1)), end)


acks = st.builds(
    p.Order, counts, small, any_site, any_site, st.lists(runs, max_size=6).map(tuple), time=times
) | st.builds(p.Order, counts, small, any_site, any_site, time=times, tick=st.booleans())
vectors = st.lists(st.tuples(any_site, counts), max_size=6).map(tuple)
site_tuples = st.lists(any_site, max_size=6).map(tuple)
descents = st.builds(p.Descent, any_site, counts)
addresses = st.text(st.characters(codec="utf-8"), max_size=30)
changes = st.builds(p.Change, st.sampled_from(p.ChangeKind), members)

PACKETS: dict[type, st.SearchStrategy[Any]] = {
    p.Data: st.builds(p.Data, heads, batches),
    p.Ack: st.builds(p.Ack, heads, acks),
    p.Confirm: st.builds(p.Confirm, heads),
    p.Nack: st.builds(
        p.Nack,
        heads,
        any_site,
        counts,
        counts,
        st.lists(runs).map(tuple),
        st.none() | counts,
        st.lists(spans(), max_size=8).map(tuple),
    ),
    p.NewList: st.builds(p.NewList, heads, view_orders(), descents, vectors),
    p.ListChangeRequest: st.builds(p.ListChangeRequest, heads, changes, st.booleans()),
    p.Probe: st.builds(p.Probe, heads, site_tuples),
    p.Collected: st.builds(p.Collected, heads, positions(), descents, vectors),
    p.NotMember: st.builds(p.NotMember, heads, any_site, views()),
    p.Hello: st.builds(p.Hello, heads, members, st.sampled_from(p.Standing), any_site, boots),
    p.Poll: st.builds(p.Poll, heads, counts, site_tuples),
    p.PollReply: st.builds(p.PollReply, heads, counts, st.booleans()),
    p.RecoveryStart: st.builds(p.RecoveryStart, heads, ballots, views()),
    p.RecoveryVote: st.builds(
        p.RecoveryVote,
        heads,
        ballots,
        ballots,
        st.none() | view_orders(),
        counts,
        views(),
        st.booleans(),
        vectors,
        times,
    ),
    p.RecoveryNewList: st.builds(p.RecoveryNewList, heads, ballots, view_orders()),
    p.RecoveryAckNewList: st.builds(p.RecoveryAckNewList, heads, ballots),
    p.RecoveryAbort: st.builds(p.RecoveryAbort, heads, ballots, ballots),
    p.DataConfirm: st.builds(p.DataConfirm, heads, boots, counts),
    p.Orphan: st.builds(p.Orphan, heads, addresses, st.booleans(), counts),
    p.Forgotten: st.builds(p.Forgotten, heads, sites, boots, counts, counts),
    p.ChainAlive: st.builds(p.ChainAlive, heads, addresses, descents, counts, counts),
    p.LockRequest: st.builds(p.LockRequest, heads, statements, st.booleans()),
    p.NonMemberData: non_member_data(),
    p.NonMemberAck: st.builds(
        p.NonMemberAck, heads, boots, directories, st.lists(receipts, min_size=1, max_size=6).map(tuple)
    ),
    p.NonMemberReply: st.builds(
        p.NonMemberReply, heads, boots, directories, st.lists(answers, min_size=1, max_size=6).map(tuple)
    ),
    p.NonMemberRefusal: st.builds(
        p.NonMemberRefusal, heads, boots, directories, st.sampled_from(p.Refusal), small, small, counts
    ),
    p.Piece: st.builds(p.Piece, heads, parts(), any_site),
    p.ReadProbe: st.builds(p.ReadProbe, heads, counts),
    p.ReadReply: st.builds(p.ReadReply, heads, boots, counts),
    p.PieceConfirm: st.builds(p.PieceConfirm, heads, st.booleans(), small, st.integers(1, twins.MESSAGE_MAX)),
}
packets: st.SearchStrategy[p.Packet] = st.one_of(*PACKETS.values())


def accepted_or_dropped(datagram: bytes) -> None:
    """Either a packet that encodes again, or a known reason; any other exception fails the test."""
    reason = ""
    try:
        packet, counter = decode(datagram)
    except DecodeError as error:
        reason = error.reason
    else:
        assert decode(encode(packet, counter)) == (packet, counter)
    assert reason in ("", *REASONS)


# -- round trip ----------------------------------------------------------------------------------


def test_every_packet_type_has_a_strategy() -> None:
    assert set(PACKETS) == set(PACKET_TYPES)


@pytest.mark.parametrize("packet_type", PACKET_TYPES, ids=lambda packet_type: packet_type.__name__)
def test_when_a_packet_is_encoded_then_decoding_gives_it_back(packet_type: type) -> None:
    @given(PACKETS[packet_type], ids)
    def check(packet: p.Packet, counter: int) -> None:
        decoded = decode(encode(packet, counter))
        assert decoded == (packet, counter)
        assert type(decoded[0]) is packet_type

    check()


@pytest.mark.parametrize("quality", [Qos(level) for level in Level], ids=lambda qos: qos.level.name)
def test_when_a_quality_travels_then_its_level_is_a_level_again(quality: Qos) -> None:
    packet, _ = decode(encode(p.Data(HEAD, p.Batch(SiteId(1), BOOT, 1, quality, (b"x",))), 0))
    assert isinstance(packet, p.Data)
    assert type(packet.batch.qos.level) is Level


def test_when_the_driver_asks_for_the_header_then_the_body_is_not_decoded() -> None:
    datagram = encode(p.PollReply(HEAD, 3, True), 99)
    broken = datagram[:-1] + b"\xc1"
    header = codec.decode_header(broken)
    assert (header.head, header.counter, header.kind) == (HEAD, 99, 12)
    with pytest.raises(DecodeError, match="body"):
        codec.decode_body(header, broken)
    assert codec.decode_body(header, datagram) == p.PollReply(HEAD, 3, True)


# -- reasons -------------------------------------------------------------------------------------


def patched(offset: int, replacement: bytes, packet: p.Packet | None = None) -> bytes:
    datagram = encode(packet or p.PollReply(HEAD, 3, True), 1)
    return datagram[:offset] + replacement + datagram[offset + len(replacement) :]


HEADER_TABLE = [
    ("truncated", "empty", b""),
    ("truncated", "one byte short of a header", encode(p.Confirm(HEAD), 1)[: HEADER_BYTES - 1]),
    ("truncated", "body cut", encode(p.PollReply(HEAD, 300, True), 1)[:-1]),
    ("truncated", "length field of 4 GiB", patched(55, b"\xff\xff\xff\xff")),
    ("oversized", "bytes after the body", encode(p.PollReply(HEAD, 3, True), 1) + b"\0"),
    ("oversized", "length field too small", patched(55, b"\0\0\0\0")),
    ("oversized", "beyond the largest datagram", bytes(65_508)),
    ("foreign", "another magic", patched(0, b"HTTP")),
    ("version", "another version", patched(4, b"\2")),
    ("flags", "an unknown flag", patched(5, b"\2")),
    ("flags", "an unknown flag beside a known one", patched(5, b"\3")),
    ("type", "type 0", patched(54, b"\0")),
    ("type", "type 200", patched(54, b"\xc8")),
    ("sender", "no site", patched(22, bytes(8))),
    *(("frontier", f"frontier {i}", patched(59 + 8 * i, b"\x80")) for i in range(5)),
]


@pytest.mark.parametrize(
    ("reason", "datagram"),
    [(reason, datagram) for reason, _, datagram in HEADER_TABLE],
    ids=[f"{reason}: {what}" for reason, what, _ in HEADER_TABLE],
)
def test_when_the_header_is_bad_then_the_reason_is_told_without_the_body(
    reason: str, datagram: bytes
) -> None:
    with pytest.raises(DecodeError) as caught:
        codec.decode_header(datagram)
    assert caught.value.reason == reason
    with pytest.raises(DecodeError) as caught:
        decode(datagram)
    assert caught.value.reason == reason


def test_when_a_datagram_is_sealed_then_its_header_is_told_and_its_body_is_left_alone() -> None:
    datagram = patched(5, b"\1")
    assert codec.decode_header(datagram).sealed
    assert not codec.decode_header(patched(5, b"\0")).sealed
    with pytest.raises(DecodeError, match="sealed"):
        decode(datagram)


def test_when_a_limit_is_given_then_a_longer_datagram_is_oversized() -> None:
    datagram = encode(p.PollReply(HEAD, 3, True), 1)
    assert decode(datagram, datagram_max=len(datagram))
    with pytest.raises(DecodeError, match="oversized"):
        decode(datagram, datagram_max=len(datagram) - 1)


def raw(packet_type: type[p.Packet], *fields: object) -> bytes:
    """A datagram with a good header and any body."""
    body = msgspec.msgpack.encode(fields)
    header = encode(p.Confirm(HEAD), 1)[:HEADER_BYTES]
    tag = packet_type.__struct_config__.tag
    assert isinstance(tag, int)
    return header[:54] + bytes([tag]) + len(body).to_bytes(4, "big") + header[59:] + body


B16 = bytes(16)
MEMBER = (1, B16, "a", 0)
NONE = ((), ())
VIEW = ((1, 0), (MEMBER,), (1,), (1,), 0, (), NONE)
OWNER = (1, B16, 0)
FREE = ((0, B16, 0), 0, 0)
LOCK = ("a", (OWNER, 1, 0), 5, 0, ())
CALL = (1, B16, 1, "a", 0, 0)
PARCEL = ("c", 5, 0, 0, (5, 0), (b"x",), 5, 4, (0, 0), False, None, False)
TOO_HIGH = ("c", COUNT_MAX, 0, 0, (5, 0), (b"x", b"y"), *PARCEL[6:])
DIRECTORY = ((1, 0), ("s1",))
BODY_TABLE = [
    ("not an array", p.PollReply, raw(p.PollReply)[:-1] + b"\x01"),
    ("no fields", p.PollReply, raw(p.PollReply)),
    ("a field too many", p.PollReply, raw(p.PollReply, 1, True, 2)),
    ("a negative slot", p.PollReply, raw(p.PollReply, -1, True)),
    ("a slot beyond 63 bits", p.PollReply, raw(p.PollReply, 1 << 63, True)),
    ("a float", p.PollReply, raw(p.PollReply, 1.0, True)),
    ("a negative sequence number", p.DataConfirm, raw(p.DataConfirm, B16, -1)),
    ("no messages", p.Data, raw(p.Data, (1, B16, 1, (5, 0), (), ()))),
    ("a text message", p.Data, raw(p.Data, (1, B16, 1, (5, 0), ("x",), ()))),
    ("a short boot", p.Data, raw(p.Data, (1, B16[1:], 1, (5, 0), (b"x",), ()))),
    ("a boot as a number", p.Data, raw(p.Data, (1, 5, 1, (5, 0), (b"x",), ()))),
    ("a negative K", p.Data, raw(p.Data, (1, B16, 1, (4, -1), (b"x",), ()))),
    ("a K without K-resilience", p.Data, raw(p.Data, (1, B16, 1, (5, 1), (b"x",), ()))),
    ("no such level", p.Data, raw(p.Data, (1, B16, 1, (7, 0), (b"x",), ()))),
    ("sequence number 0 at an ordered level", p.Data, raw(p.Data, (1, B16, 0, (5, 0), (b"x",), ()))),
    ("sequence numbers overflow", p.Data, raw(p.Data, (1, B16, COUNT_MAX, (5, 0), (b"x",), ()))),
    ("a batch field too many", p.Data, raw(p.Data, (1, B16, 1, (5, 0), (b"x",), (), 0))),
    ("an empty run", p.Ack, raw(p.Ack, (1, 1, 1, 1, ((1, 1, 0),), None, (), 0, False))),
    ("a negative run", p.Ack, raw(p.Ack, (1, 1, 1, 1, ((1, 1, -1),), None, (), 0, False))),
    ("a run from 0", p.Ack, raw(p.Ack, (1, 1, 1, 1, ((1, 0, 1),), None, (), 0, False))),
    ("slot 0", p.Ack, raw(p.Ack, (1, 0, 1, 1, (), None, (), 0, False))),
    ("a run overflows", p.Ack, raw(p.Ack, (1, 1, 1, 1, ((1, COUNT_MAX, 1),), None, (), 0, False))),
    ("slots overflow", p.Ack,
     raw(p.Ack, (1, COUNT_MAX - 1, 1, 1, ((1, 1, 1), (2, 1, 1)), None, (), 0, False))),
    ("an ACK with a view", p.Ack, raw(p.Ack, (1, 1, 1, 1, (), VIEW, (), 0, False))),
    ("a run to ask for overflows", p.Nack, raw(p.Nack, 0, 1, 1, ((1, COUNT_MAX, 2),), None, ())),
    ("an empty span", p.Nack, raw(p.Nack, 0, 1, 1, (), None, ((1, 1, True, 5, 5),))),
    ("a span beyond any message", p.Nack, raw(p.Nack, 0, 1, 1, (), None, ((1, 1, True, 5, (1 << 30) + 1),))),
    ("too many spans", p.Nack, raw(p.Nack, 0, 1, 1, (), None, ((1, 1, True, 5, 6),) * 65)),
    ("a piece of two calls", p.Piece, raw(p.Piece, (1, B16, 1, (5, 0), 0, 9, b"x", (CALL, CALL)), 0)),
    ("an empty piece", p.Piece, raw(p.Piece, (1, B16, 1, (5, 0), 0, 9, b"", ()), 0)),
    ("a piece beyond its message", p.Piece, raw(p.Piece, (1, B16, 1, (5, 0), 8, 9, b"xx", ()), 0)),
    ("a piece of too large a message", p.Piece,
     raw(p.Piece, (1, B16, 1, (5, 0), 0, (1 << 30) + 1, b"x", ()), 0)),
    ("an unreliable piece", p.Piece, raw(p.Piece, (1, B16, 1, (0, 0), 0, 9, b"x", ()), 0)),
    ("an unnumbered piece", p.Piece, raw(p.Piece, (1, B16, 0, (5, 0), 0, 9, b"x", ()), 0)),
    ("a confirmation of nothing", p.PieceConfirm, raw(p.PieceConfirm, True, 1, 0)),
    ("a NewList without a view", p.NewList, raw(p.NewList, (1, 1, 1, 1, (), None, (), 0, False), (7, 1), ())),
    ("a vector of strangers", p.NewList,
     raw(p.NewList, (1, 1, 1, 1, (), VIEW, ((2, 0),), 0, False), (7, 1), ())),
    ("an empty ring", p.NewList,
     raw(p.NewList, (1, 1, 1, 1, (), (*VIEW[:3], (), 0, (), NONE), (), 0, False), (7, 1), ())),
    ("no voters", p.NewList,
     raw(p.NewList, (1, 1, 1, 1, (), (*VIEW[:2], (), (1,), 0, (), NONE), (), 0, False), (7, 1), ())),
    ("a negative depth", p.NewList, raw(p.NewList, (1, 1, 1, 1, (), VIEW, ((1, 0),), 0, False), (7, -1), ())),
    ("a view after its slot", p.Collected, raw(p.Collected, (1, 5, 6, VIEW, ((1, 0),), 0), (7, 1), ())),
    ("a vector that lacks a member", p.Collected, raw(p.Collected, (1, 5, 5, VIEW, (), 0), (7, 1), ())),
    ("a member twice", p.NotMember, raw(p.NotMember, 1, ((1, 0), (MEMBER, MEMBER), (1,), (1,), 0, (), NONE))),
    ("a nameless member", p.NotMember,
     raw(p.NotMember, 1, ((1, 0), ((0, *MEMBER[1:]),), (), (), 0, (), NONE))),
    ("a foreign voter", p.NotMember, raw(p.NotMember, 1, ((1, 0), (MEMBER,), (2,), (1,), 0, (), NONE))),
    ("a voter twice", p.NotMember, raw(p.NotMember, 1, ((1, 0), (MEMBER,), (1, 1), (1,), 0, (), NONE))),
    ("a foreign ring", p.NotMember, raw(p.NotMember, 1, ((1, 0), (MEMBER,), (1,), (2,), 0, (), NONE))),
    ("a view without its last field", p.NotMember, raw(p.NotMember, 1, VIEW[:-1])),
    ("a long address", p.Hello, raw(p.Hello, (1, B16, "a" * 256, 0), 1, 0, B16)),
    ("an address not in UTF-8", p.Hello, raw(p.Hello, MEMBER, 1, 0, B16).replace(b"\xa1a", b"\xa1\xff")),
    ("no such change", p.ListChangeRequest, raw(p.ListChangeRequest, (9, MEMBER), False)),
    ("too many suspects", p.Poll, raw(p.Poll, 1, tuple(range(twins.MEMBERS_MAX + 1)))),
    ("a tick with data", p.Ack, raw(p.Ack, (1, 1, 1, 1, ((1, 1, 1),), None, (), 0, True))),
    ("a tick with a view", p.NewList, raw(p.NewList, (1, 1, 1, 1, (), VIEW, ((1, 0),), 0, True), (7, 1), ())),
    ("a slot time beyond 62 bits", p.Ack, raw(p.Ack, (1, 1, 1, 1, (), None, (), TIME_MAX + 1, False))),
    ("a lock twice", p.NotMember, raw(p.NotMember, 1, (*VIEW[:-1], ((LOCK, LOCK), ())))),
    ("a seventh handler", p.NotMember, raw(p.NotMember, 1, (*VIEW[:-1], (((7, FREE, 0, 0, ()),), ())))),
    ("a nameless lock", p.NotMember, raw(p.NotMember, 1, (*VIEW[:-1], ((("", *LOCK[1:]),), ())))),
    ("a long name", p.NotMember, raw(p.NotMember, 1, (*VIEW[:-1], ((("ä" * 128, *LOCK[1:]),), ())))),
    ("too long a queue", p.NotMember,
     raw(p.NotMember, 1, (*VIEW[:-1], (((*LOCK[:4], (FREE,) * (WAITERS_MAX + 1)),), ())))),
    ("a wish for two", p.LockRequest, raw(p.LockRequest, (OWNER, 1, (("a", 1, 0, 1),) * 2), False)),
    ("a wish of the future", p.LockRequest, raw(p.LockRequest, (OWNER, 1, (("a", 2, 0, 1),)), False)),
    ("too long a lease", p.LockRequest,
     raw(p.LockRequest, (OWNER, 1, (("a", 1, LEASE_MS_MAX + 1, 1),)), False)),
    ("a statement without a version", p.LockRequest, raw(p.LockRequest, (OWNER, 0, ()), False)),
    ("calls for some messages", p.Data, raw(p.Data, (1, B16, 1, (5, 0), (b"x", b"y"), (CALL,)))),
    ("a nameless caller", p.Data, raw(p.Data, (1, B16, 1, (5, 0), (b"x",), ((0, *CALL[1:]),)))),
    ("a call without a number", p.Data, raw(p.Data, (1, B16, 1, (5, 0), (b"x",), ((1, B16, 0, "a", 0, 0),)))),
    ("no such handler", p.Data, raw(p.Data, (1, B16, 1, (5, 0), (b"x",), ((1, B16, 1, "a", 7, 0),)))),
    ("no such flag", p.Data, raw(p.Data, (1, B16, 1, (5, 0), (b"x",), ((1, B16, 1, "a", 0, 8),)))),
    ("calls without messages", p.NonMemberData, raw(p.NonMemberData, (*PARCEL[:5], (), *PARCEL[6:]))),
    ("call 0", p.NonMemberData, raw(p.NonMemberData, ("c", 0, *PARCEL[2:]))),
    ("call numbers overflow", p.NonMemberData, raw(p.NonMemberData, TOO_HIGH)),
    ("a call that is a reply", p.NonMemberData, raw(p.NonMemberData, (*PARCEL[:3], 4, *PARCEL[4:]))),
    ("a floor above the calls", p.NonMemberData, raw(p.NonMemberData, (*PARCEL[:6], 6, *PARCEL[7:]))),
    ("a call after itself", p.NonMemberData, raw(p.NonMemberData, (*PARCEL[:7], 5, *PARCEL[8:]))),
    ("no receipts", p.NonMemberAck, raw(p.NonMemberAck, B16, DIRECTORY, ())),
    ("a receipt of no level", p.NonMemberAck, raw(p.NonMemberAck, B16, DIRECTORY, ((1, 1, 9),))),
    ("no answers", p.NonMemberReply, raw(p.NonMemberReply, B16, DIRECTORY, ())),
    ("a refusal for no reason", p.NonMemberRefusal, raw(p.NonMemberRefusal, B16, DIRECTORY, 9, 1, 1, 0)),
    ("a negative round", p.RecoveryAckNewList, raw(p.RecoveryAckNewList, (-1, 1))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("packet_type", "datagram"),
    [(packet_type, datagram) for _, packet_type, datagram in BODY_TABLE],
    ids=[what for what, _, _ in BODY_TABLE],
)
def test_when_the_body_is_bad_then_the_packet_is_dropped_for_its_body(
    packet_type: type[p.Packet], datagram: bytes
) -> None:
    assert codec.decode_header(datagram).kind == packet_type.__struct_config__.tag
    with pytest.raises(DecodeError) as caught:
        decode(datagram)
    assert caught.value.reason == "body"


def test_when_a_table_entry_is_mended_then_it_is_accepted() -> None:
    """The tables above fail for their one defect, not for another."""
    assert decode(raw(p.PollReply, 1, True))
    assert decode(raw(p.Data, (1, B16, 1, (5, 0), (b"x",), ())))
    assert decode(raw(p.Data, (1, B16, 0, (0, 0), (b"x",), ())))
    assert decode(raw(p.Data, (1, B16, 1, (4, 1), (b"x",), ())))
    assert decode(raw(p.Ack, (1, COUNT_MAX - 2, 1, 1, ((1, 1, 1), (2, 1, 1)), None, (), 0, False)))
    assert decode(raw(p.NewList, (1, 1, 1, 1, (), VIEW, ((1, 0),), 0, False), (7, 1), ()))
    assert decode(raw(p.NotMember, 1, VIEW))
    assert decode(raw(p.Collected, (1, 5, 5, VIEW, ((1, 0),), 0), (7, 1), ()))
    assert decode(raw(p.Hello, (1, B16, "a" * 255, 0), 1, 0, B16))
    assert decode(raw(p.ListChangeRequest, (5, MEMBER), False))
    assert decode(raw(p.Data, (1, B16, 1, (5, 0), (b"x",), (CALL,))))
    assert decode(raw(p.NonMemberData, PARCEL))
    assert decode(raw(p.NonMemberAck, B16, DIRECTORY, ((1, 1, 5),)))
    assert decode(raw(p.NonMemberReply, B16, DIRECTORY, ((1, 1, b"x"),)))
    assert decode(raw(p.NonMemberRefusal, B16, DIRECTORY, 1, 1, 1, 0))
    assert decode(raw(p.Poll, 1, tuple(range(twins.MEMBERS_MAX))))
    assert decode(raw(p.Ack, (1, 1, 1, 1, (), None, (), TIME_MAX, True)))
    assert decode(raw(p.NotMember, 1, (*VIEW[:-1], ((LOCK, (6, FREE, 0, 0, (FREE,) * WAITERS_MAX)), ()))))
    assert decode(raw(p.NotMember, 1, (*VIEW[:-1], ((("ä" * 127, *LOCK[1:]),), ()))))
    assert decode(raw(p.LockRequest, (OWNER, 1, (("a", 1, LEASE_MS_MAX, 1),)), False))
    assert decode(raw(p.Nack, 0, 1, 1, (), None, ((1, 1, True, 5, 6),) * 64))
    assert decode(raw(p.Piece, (1, B16, 1, (5, 0), 7, 9, b"xx", ()), 0))
    assert decode(raw(p.PieceConfirm, True, 1, 1))


def test_when_an_unreliable_message_has_no_number_then_it_is_accepted() -> None:
    packet = p.Data(HEAD, p.Batch(SiteId(1), BOOT, 0, UNRELIABLE, (b"x",)))
    assert decode(encode(packet, 0)) == (packet, 0)


# -- anything at all -----------------------------------------------------------------------------


@given(st.binary(max_size=300))
@example(b"\0" * HEADER_BYTES)
def test_when_arbitrary_bytes_come_then_only_a_decode_error_leaves(datagram: bytes) -> None:
    accepted_or_dropped(datagram)


@given(st.sampled_from(PACKET_TYPES), st.binary(max_size=200))
def test_when_an_arbitrary_body_follows_a_good_header_then_only_a_decode_error_leaves(
    packet_type: type[p.Packet], body: bytes
) -> None:
    header = raw(packet_type)[: HEADER_BYTES - 44]
    frontiers = raw(packet_type)[59:HEADER_BYTES]
    accepted_or_dropped(header + len(body).to_bytes(4, "big") + frontiers + body)


@given(packets, st.data())
def test_when_bytes_of_a_datagram_change_then_only_a_decode_error_leaves(
    packet: p.Packet, data: st.DataObject
) -> None:
    datagram = bytearray(encode(packet, 1))
    for _ in range(data.draw(st.integers(1, 4))):
        datagram[data.draw(st.integers(0, len(datagram) - 1))] = data.draw(st.integers(0, 255))
    accepted_or_dropped(bytes(datagram))


@given(packets, st.data())
def test_when_a_datagram_is_cut_then_it_is_truncated(packet: p.Packet, data: st.DataObject) -> None:
    datagram = encode(packet, 1)
    with pytest.raises(DecodeError, match="truncated"):
        decode(datagram[: data.draw(st.integers(0, len(datagram) - 1))])


BOMBS = {
    "an array of 4 G messages": b"\x91\x95\x01\xc4\x10" + B16 + b"\x01\x92\x05\x00\xdd\xff\xff\xff\xff",
    "a message of 4 GiB": b"\x91\x95\x01\xc4\x10" + B16 + b"\x01\x92\x05\x00\x91\xc6\xff\xff\xff\xff",
    "arrays in arrays": b"\x91" * 60_000,
    "maps in maps": b"\x81\x01" * 30_000,
    "an array of 4 G fields": b"\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS.keys())
@pytest.mark.parametrize("packet_type", PACKET_TYPES, ids=lambda packet_type: packet_type.__name__)
def test_when_a_small_body_claims_to_be_huge_then_it_is_dropped_at_once(
    packet_type: type[p.Packet], body: bytes
) -> None:
    datagram = bytearray(raw(packet_type)[:HEADER_BYTES])
    datagram[55:59] = len(body).to_bytes(4, "big")
    start = time.perf_counter()
    with pytest.raises(DecodeError, match="body"):
        decode(bytes(datagram) + body)
    assert time.perf_counter() - start < 0.5


def test_when_the_largest_views_come_then_time_stays_bounded() -> None:
    crowd = tuple((site, B16, "", 0) for site in range(1, twins.MEMBERS_MAX + 1))
    names = tuple(range(1, twins.MEMBERS_MAX + 1))
    vector = tuple((site, 1) for site in names)
    datagram = raw(
        p.NewList,
        (1, 1, 1, 1, (), ((1, 0), crowd, names, names, 1, names, NONE), vector, 0, False),
        (7, 1),
        (),
    )
    start = time.perf_counter()
    packet, _ = decode(datagram)
    assert time.perf_counter() - start < 0.5
    assert encode(packet, 1) == datagram


def test_when_a_packet_is_full_of_messages_then_there_is_no_work_per_message() -> None:
    """Measured against msgspec alone in the same run; a Python loop over messages would show."""
    batch = p.Batch(SiteId(1), BOOT, 1, MAJORITY, (b"x" * 16,) * 3_000)
    datagram = encode(p.Data(HEAD, batch), 1)
    bare = msgspec.msgpack.Decoder(tuple[bytes, ...])
    body = msgspec.msgpack.encode(batch.messages)

    def best(call: Any, argument: bytes) -> float:
        times = []
        for _ in range(50):
            start = time.perf_counter()
            call(argument)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(decode, datagram) < 3 * best(bare.decode, body)
