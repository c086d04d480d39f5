"""Packets go through datagrams and back; whatever else comes is counted for its reason and dropped."""

from struct import error as StructError  # noqa: N812
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering import packets as p
from ordering.codec import DATAGRAM_MAX, HEADER_BYTES, decode, decode_header
from ordering.errors import CounterExhausted, KeyringError, PacketTooLarge
from ordering.qos import MAJORITY
from ordering.sealing import COUNTER_MAX, WINDOW, Keyring
from ordering.views import SiteId
from ordering.wire import OVERHEAD_BYTES, Wire
from tests.ordering.test_codec import HEAD, HEADER_REASONS, PACKET_TYPES, PACKETS, heads, packets, raw

KEYRING = Keyring([b"k" * 32])
OTHER = Keyring([b"o" * 32])
REPLY = p.PollReply(HEAD, 3, True)
REASONS = (*HEADER_REASONS, "unsealed", "sealed", "not admitted", "replayed", "forged", "body")
KEYRINGS = {"plain": None, "sealed": KEYRING}
either_way = pytest.mark.parametrize("keyring", KEYRINGS.values(), ids=KEYRINGS.keys())


def outcome(wire: Wire, datagram: bytes) -> str:
    """Why it was dropped, counted exactly once; empty if it was not."""
    before = dict(wire.counters)
    packet = wire.unpack(datagram)
    changed = [reason for reason, count in wire.counters.items() if count != before.get(reason, 0)]
    if packet is not None:
        assert not changed
        return ""
    (reason,) = changed
    assert wire.counters[reason] == before.get(reason, 0) + 1
    return reason


def data(size: int) -> p.Data:
    return p.Data(HEAD, p.Batch(SiteId(1), 5, 1, MAJORITY, (bytes(size),)))


# -- round trip ----------------------------------------------------------------------------------


@either_way
@pytest.mark.parametrize("packet_type", PACKET_TYPES, ids=lambda packet_type: packet_type.__name__)
def test_when_a_packet_is_packed_then_unpacking_gives_it_back(
    packet_type: type, keyring: Keyring | None
) -> None:
    sender, receiver = Wire(keyring), Wire(keyring)

    @given(PACKETS[packet_type])
    def check(packet: p.Packet) -> None:
        unpacked = receiver.unpack(sender.pack(packet))
        assert unpacked == packet
        assert type(unpacked) is packet_type

    check()
    assert not receiver.counters


@either_way
def test_when_datagrams_are_written_and_read_in_place_then_nothing_of_one_is_in_the_next(
    keyring: Keyring | None,
) -> None:
    """Large and small in turn, in one room of the sender and one of the receiver."""
    sender, receiver = Wire(keyring), Wire(keyring)
    arrival = bytearray(DATAGRAM_MAX)
    sent: list[p.Packet] = [data(50_000), REPLY, data(3), data(20_000), p.Confirm(HEAD), data(0)]
    read: list[p.Packet | None] = []
    for packet in sent:
        datagram = sender.write(packet)
        arrival[: len(datagram)] = datagram
        read.append(receiver.unpack(memoryview(arrival)[: len(datagram)]))
    arrival[:] = bytes(DATAGRAM_MAX)
    assert read == sent


def test_when_there_is_no_keyring_then_the_datagram_is_the_codecs() -> None:
    wire = Wire(None)
    assert decode(wire.pack(REPLY)) == (REPLY, 1)
    assert decode(wire.pack(REPLY)) == (REPLY, 2)


def test_when_a_datagram_is_sealed_then_its_body_cannot_be_read() -> None:
    packet = p.Data(HEAD, p.Batch(SiteId(1), 5, 1, MAJORITY, (b"the secret of the group",)))
    datagram = Wire(KEYRING).pack(packet)
    assert b"secret" in Wire(None).pack(packet)
    assert b"secret" not in datagram
    assert len(datagram) == len(Wire(None).pack(packet)) + 16
    header = decode_header(datagram)
    assert header.sealed
    assert header.head == HEAD


@either_way
def test_when_a_packet_fills_the_datagram_then_it_fits_and_a_byte_more_is_refused(
    keyring: Keyring | None,
) -> None:
    wire = Wire(keyring)
    largest = DATAGRAM_MAX - len(Wire(keyring).pack(data(60_000))) + 60_000
    assert len(wire.pack(data(largest))) == DATAGRAM_MAX
    with pytest.raises(PacketTooLarge, match=f"Data: {DATAGRAM_MAX + 1} bytes.*at least {OVERHEAD_BYTES}"):
        wire.pack(data(largest + 1))
    small = Wire(keyring, datagram_max=1_000)
    with pytest.raises(PacketTooLarge):
        small.pack(data(1_000))
    assert outcome(small, wire.pack(data(1_000))) == "oversized"


# -- counters ------------------------------------------------------------------------------------


@given(st.lists(heads, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=80))
def test_when_several_groups_send_then_no_nonce_comes_twice(senders: list[p.Head], turns: list[int]) -> None:
    """Even if groups share site and boot, no two datagrams of a process have one number."""
    wire = Wire(KEYRING)
    used = []
    for number, turn in enumerate(turns):
        if number == len(turns) // 2:
            wire.rotate(Keyring([b"n" * 32, b"k" * 32]))
        used.append(decode_header(wire.pack(p.Confirm(senders[turn % len(senders)]))).counter)
    assert used == sorted(set(used))


def test_when_the_same_packet_is_packed_again_then_it_is_sealed_anew() -> None:
    wire, receiver = Wire(KEYRING), Wire(KEYRING)
    first, second = wire.pack(REPLY), wire.pack(REPLY)
    assert first[HEADER_BYTES:] != second[HEADER_BYTES:]
    assert receiver.unpack(first) == receiver.unpack(second) == REPLY


def test_when_a_packet_cannot_be_packed_then_its_number_is_not_used_again() -> None:
    wire = Wire(KEYRING)
    first = decode_header(wire.pack(REPLY)).counter
    with pytest.raises(PacketTooLarge):
        wire.pack(data(70_000))
    with pytest.raises(StructError):
        wire.pack(p.Confirm(p.Head(1, 1, SiteId(1), 1, -1, 0, 0, 0, 0)))
    assert decode_header(wire.pack(REPLY)).counter > first


@either_way
def test_when_all_numbers_are_used_then_nothing_is_packed_any_more(keyring: Keyring | None) -> None:
    wire = Wire(keyring)
    wire._counter = COUNTER_MAX - 1
    assert decode_header(wire.pack(REPLY)).counter == COUNTER_MAX
    for _ in range(2):
        with pytest.raises(CounterExhausted, match="restart the process"):
            wire.pack(REPLY)


# -- reasons -------------------------------------------------------------------------------------


def test_when_modes_differ_then_the_datagram_is_dropped_for_it() -> None:
    assert outcome(Wire(KEYRING), Wire(None).pack(REPLY)) == "unsealed"
    assert outcome(Wire(None), Wire(KEYRING).pack(REPLY)) == "sealed"


def test_when_the_flag_is_taken_off_or_put_on_then_the_datagram_is_dropped() -> None:
    plain, closed = Wire(None).pack(REPLY), Wire(KEYRING).pack(REPLY)
    assert outcome(Wire(KEYRING), plain[:5] + b"\1" + plain[6:]) == "forged"
    assert outcome(Wire(KEYRING), closed[:5] + b"\0" + closed[6:]) == "unsealed"
    assert outcome(Wire(None), closed[:5] + b"\0" + closed[6:]) == "body"


@either_way
def test_when_a_group_is_not_admitted_then_nothing_is_opened_for_it(keyring: Keyring | None) -> None:
    asked: list[p.Head] = []

    def admits(head: p.Head) -> bool:
        asked.append(head)
        return len(asked) > 1

    wire = Wire(keyring, admits)
    datagram = Wire(keyring).pack(REPLY)
    assert outcome(wire, datagram) == "not admitted"
    assert wire.unpack(datagram) == REPLY
    assert asked == [HEAD, HEAD]


def test_when_a_sealed_body_is_malformed_then_it_is_dropped_for_its_body_and_not_opened_again() -> None:
    """A member with a defect, for nobody else can seal."""
    plain = raw(p.PollReply, -1, True)
    header = bytearray(Wire(KEYRING).pack(REPLY)[:HEADER_BYTES])
    body = plain[HEADER_BYTES:]
    header[55:59] = (len(body) + 16).to_bytes(4, "big")
    wire = Wire(KEYRING)
    assert wire._sealer is not None
    datagram = bytes(header) + wire._sealer.seal(HEAD, 1, bytes(header), body)
    assert outcome(wire, datagram) == "body"
    assert outcome(wire, datagram) == "replayed"


def test_when_datagrams_are_dropped_then_each_counts_for_its_reason() -> None:
    wire = Wire(KEYRING, lambda head: head.group != 5)
    good = Wire(KEYRING).pack(REPLY)
    foreign_group = Wire(KEYRING).pack(p.Confirm(p.Head(5, 1, SiteId(1), 1, 1, 1, 1, 1, 1)))
    drops = [b"", b"HTTP" + good[4:], Wire(OTHER).pack(REPLY), Wire(None).pack(REPLY), foreign_group]
    assert wire.unpack(good) == REPLY
    for times, datagram in enumerate([*drops, good], start=1):
        for _ in range(times):
            assert wire.unpack(datagram) is None
    assert wire.counters == {
        "truncated": 1,
        "foreign": 2,
        "replayed": 3 + 6,  # the forgery names a counter that was used, which is told without a key
        "unsealed": 4,
        "not admitted": 5,
    }


def test_when_a_keyless_wire_is_given_keys_then_it_refuses() -> None:
    with pytest.raises(KeyringError, match="restart it with a keyring"):
        Wire(None).rotate(KEYRING)


def test_when_keys_are_rotated_step_by_step_then_no_datagram_is_lost() -> None:
    old, new = b"k" * 32, b"n" * 32
    wires = [Wire(Keyring([old])) for _ in range(3)]
    speakers = [p.Head(1, 1, SiteId(site), site, 0, 0, 0, 0, 0) for site in (1, 2, 3)]

    def all_hear_all() -> None:
        for sender, head in zip(wires, speakers, strict=True):
            datagram = sender.pack(p.Confirm(head))
            assert [wire.unpack(datagram) for wire in wires] == [p.Confirm(head)] * 3

    all_hear_all()
    for step in ([old, new], [new, old], [new]):
        for wire in wires:
            wire.rotate(Keyring(step))
            all_hear_all()
    assert Wire(Keyring([old])).unpack(wires[0].pack(REPLY)) is None


# -- replay --------------------------------------------------------------------------------------


def test_when_a_datagram_comes_again_then_it_is_replayed_at_each_receiver_once() -> None:
    sender = Wire(KEYRING)
    datagram = sender.pack(REPLY)
    for receiver in (Wire(KEYRING), Wire(KEYRING)):
        assert receiver.unpack(datagram) == REPLY
        assert outcome(receiver, datagram) == "replayed"


def test_when_datagrams_are_reordered_then_each_is_accepted_once() -> None:
    sender, receiver = Wire(KEYRING), Wire(KEYRING)
    datagrams = [sender.pack(REPLY) for _ in range(200)]
    shuffled = [datagrams[i * 77 % 200] for i in range(200)]
    assert all(receiver.unpack(datagram) == REPLY for datagram in shuffled)
    assert [outcome(receiver, datagram) for datagram in shuffled] == ["replayed"] * 200


def test_when_a_datagram_is_older_than_the_window_then_it_is_dropped() -> None:
    sender, receiver = Wire(KEYRING), Wire(KEYRING)
    oldest, old = sender.pack(REPLY), sender.pack(REPLY)
    sender._counter += WINDOW - 16
    assert receiver.unpack(sender.pack(REPLY)) == REPLY
    assert receiver.unpack(old) == REPLY
    sender._counter += 32
    assert receiver.unpack(sender.pack(REPLY)) == REPLY
    assert outcome(receiver, oldest) == "replayed"


def test_when_there_is_no_keyring_then_a_repeated_datagram_is_accepted() -> None:
    receiver = Wire(None)
    datagram = Wire(None).pack(REPLY)
    assert receiver.unpack(datagram) == receiver.unpack(datagram) == REPLY


# -- tampering -----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["stranger", "known sender"])
def test_when_any_byte_is_altered_then_the_datagram_is_refused(known: bool) -> None:
    sender, receiver = Wire(KEYRING), Wire(KEYRING)
    if known:
        receiver.unpack(sender.pack(REPLY))
    datagram = sender.pack(REPLY)
    for offset in range(len(datagram)):
        for flip in (0x01, 0x80, 0xFF):
            altered = bytearray(datagram)
            altered[offset] ^= flip
            assert outcome(receiver, bytes(altered)) in (*HEADER_REASONS, "unsealed", "replayed", "forged")
    assert receiver.unpack(datagram) == REPLY


@given(packets, st.data())
def test_when_bytes_of_a_sealed_datagram_change_then_it_is_refused(packet: p.Packet, draw: Any) -> None:
    datagram = Wire(KEYRING).pack(packet)
    altered = bytearray(datagram)
    for _ in range(draw.draw(st.integers(1, 4))):
        altered[draw.draw(st.integers(0, len(datagram) - 1))] ^= draw.draw(st.integers(1, 255))
    if altered != datagram:
        assert outcome(Wire(KEYRING), bytes(altered)) in (*HEADER_REASONS, "unsealed", "forged")


@given(packets, st.data())
def test_when_a_sealed_datagram_is_cut_or_extended_then_it_is_refused(packet: p.Packet, draw: Any) -> None:
    datagram = Wire(KEYRING).pack(packet)
    cut = draw.draw(st.integers(0, len(datagram) - 1))
    wire = Wire(KEYRING)
    assert outcome(wire, datagram[:cut]) == "truncated"
    assert outcome(wire, datagram + b"\0") == "oversized"
    if cut >= HEADER_BYTES:
        mended = datagram[:55] + (cut - HEADER_BYTES).to_bytes(4, "big") + datagram[59:cut]
        assert outcome(wire, mended) == "forged"
    assert wire.unpack(datagram) == packet


def test_when_body_and_header_of_two_datagrams_are_joined_then_they_are_refused() -> None:
    sender = Wire(KEYRING)
    one, two = sender.pack(REPLY), sender.pack(REPLY)
    assert outcome(Wire(KEYRING), one[:HEADER_BYTES] + two[HEADER_BYTES:]) == "forged"


# -- anything at all -----------------------------------------------------------------------------


@either_way
def test_when_arbitrary_bytes_come_then_they_are_dropped_for_a_reason(keyring: Keyring | None) -> None:
    wire = Wire(keyring)

    @given(st.binary(max_size=400))
    def check(datagram: bytes) -> None:
        assert outcome(wire, datagram) in REASONS

    check()


@either_way
@pytest.mark.parametrize("packet_type", PACKET_TYPES, ids=lambda packet_type: packet_type.__name__)
def test_when_valid_datagrams_are_mutated_then_nothing_is_raised(
    packet_type: type, keyring: Keyring | None
) -> None:
    sender, receiver = Wire(keyring), Wire(keyring)

    @given(
        PACKETS[packet_type], st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4), st.data()
    )
    def check(packet: p.Packet, changes: list[tuple[int, int]], draw: Any) -> None:
        mutated = bytearray(sender.pack(packet))
        for place, value in changes:
            mutated[place % len(mutated)] = value
        kept = draw.draw(st.integers(len(mutated) - 3, len(mutated)))
        assert outcome(receiver, bytes(mutated[:kept])) in ("", *REASONS)

    check()
