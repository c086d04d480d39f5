"""The bulk channel's bytes, without a socket: who may speak, and that nothing can be done to a stream."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.bulk import (
    CHUNK_MAX,
    FRAME_HEADER_BYTES,
    GREETING_BYTES,
    BulkReceiver,
    BulkSender,
    Greeting,
    Role,
    agree,
)
from ordering.errors import BulkCorrupt, BulkError, BulkMisuse, BulkRefused
from ordering.sealing import Keyring

KEYS = [bytes([letter]) * 32 for letter in b"abc"]
KEYRING = Keyring(KEYS[:1])
GROUP = 77
KEYRINGS = {"plain": None, "sealed": KEYRING}
either_way = pytest.mark.parametrize("keyring", KEYRINGS.values(), ids=KEYRINGS.keys())


def greeting(
    role: Role, keyring: Keyring | None = KEYRING, *, salt: bytes = b"", group: int = GROUP
) -> Greeting:
    return Greeting(role, keyring is not None, group, 100 + role, salt or bytes([role]) * 32)


INITIATOR, ACCEPTOR = greeting(Role.INITIATOR), greeting(Role.ACCEPTOR)


def direction(
    keyring: Keyring | None = KEYRING, theirs: Keyring | None = KEYRING, *, salt: bytes = b""
) -> tuple[BulkSender, BulkReceiver]:
    """The initiator's stream: its sending end, and the acceptor's receiving end."""
    initiator, acceptor = greeting(Role.INITIATOR, keyring), greeting(Role.ACCEPTOR, theirs, salt=salt)
    return agree(keyring, initiator, acceptor)[0], agree(theirs, acceptor, initiator)[1]


def received(receiver: BulkReceiver, wire: bytes) -> list[bytes]:
    """The chunks in ``wire``, up to where it stops."""
    chunks = []
    while not receiver.ended and len(wire) >= receiver.wants:
        size = receiver.wants
        chunk = receiver.take(wire[:size])
        wire = wire[size:]
        if chunk is not None:
            chunks.append(chunk)
    return chunks


def whole(sender: BulkSender, *payloads: bytes) -> list[bytes]:
    """All frames of a stream."""
    return [
        bytes(sender.ready()),
        *(bytes(sender.data(payload)) for payload in payloads),
        bytes(sender.end()),
    ]


# -- streams -------------------------------------------------------------------------------------


@either_way
def test_when_chunks_are_sent_then_they_come_in_order_and_the_stream_ends(keyring: Keyring | None) -> None:
    @given(st.lists(st.binary(min_size=1, max_size=100), max_size=20))
    def check(chunks: list[bytes]) -> None:
        sender, receiver = direction(keyring, keyring)
        assert received(receiver, b"".join(whole(sender, *chunks))) == chunks
        assert receiver.ended

    check()


@either_way
def test_when_the_largest_chunk_is_sent_then_it_comes(keyring: Keyring | None) -> None:
    sender, receiver = direction(keyring, keyring)
    chunk = bytes(range(256)) * (CHUNK_MAX // 256)
    assert received(receiver, b"".join(whole(sender, chunk))) == [chunk]


def test_when_a_stream_is_sealed_then_its_bytes_cannot_be_read() -> None:
    assert b"secret" in b"".join(whole(direction(None, None)[0], b"secret"))
    assert b"secret" not in b"".join(whole(direction()[0], b"secret"))


def test_when_a_stream_is_finished_then_nothing_more_can_be_sent() -> None:
    sender, _ = direction()
    whole(sender, b"x")
    with pytest.raises(BulkMisuse, match="is finished"):
        sender.data(b"y")
    with pytest.raises(BulkMisuse, match="is finished"):
        sender.end()


# -- who may speak -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_when_keys_are_in_another_order_then_both_ends_open_each_other(order: tuple[int, ...]) -> None:
    ours, theirs = Keyring(KEYS), Keyring([KEYS[index] for index in order])
    sender, receiver = direction(ours, theirs)
    assert received(receiver, b"".join(whole(sender, b"x", b"y"))) == [b"x", b"y"]


def test_when_no_key_is_shared_then_the_first_frame_is_refused() -> None:
    sender, receiver = direction(KEYRING, Keyring(KEYS[1:]))
    with pytest.raises(BulkRefused, match="has no key of this keyring"):
        received(receiver, bytes(sender.ready()))


def test_when_modes_differ_then_both_ends_refuse() -> None:
    plain = greeting(Role.ACCEPTOR, None)
    with pytest.raises(BulkRefused, match="has no keyring"):
        agree(KEYRING, INITIATOR, plain)
    with pytest.raises(BulkRefused, match="is sealed"):
        agree(None, plain, INITIATOR)


def test_when_the_answer_is_for_another_group_then_it_is_refused() -> None:
    with pytest.raises(BulkRefused, match="another group"):
        agree(KEYRING, INITIATOR, greeting(Role.ACCEPTOR, group=GROUP + 1))


@pytest.mark.parametrize("role", Role)
@given(
    boot=st.integers(0, (1 << 128) - 1),
    group=st.integers(0, (1 << 64) - 1),
    salt=st.binary(min_size=32, max_size=32),
)
def test_when_a_greeting_is_encoded_then_decoding_gives_it_back(
    role: Role, boot: int, group: int, salt: bytes
) -> None:
    sent = Greeting(role, True, group, boot, salt)
    assert Greeting.decode(sent.encode(), role) == sent


@pytest.mark.parametrize(
    ("offset", "value", "complaint"),
    [
        (0, 0x47, "does not speak this protocol"),
        (4, 2, "speaks version 2, this one 1"),
        (5, 2, "asks for what this version does not know"),
        (6, Role.INITIATOR, "is not the acceptor"),
        (6, 9, "is not the acceptor"),
    ],
)
def test_when_a_greeting_is_not_ours_then_the_refusal_says_why(
    offset: int, value: int, complaint: str
) -> None:
    data = bytearray(ACCEPTOR.encode())
    data[offset] = value
    with pytest.raises(BulkRefused, match=complaint):
        Greeting.decode(bytes(data), Role.ACCEPTOR)


def test_when_an_end_hears_itself_then_it_refuses() -> None:
    """Greeted with its own greeting, or answered with its own frames under another name."""
    with pytest.raises(BulkRefused, match="is not the acceptor"):
        Greeting.decode(INITIATOR.encode(), Role.ACCEPTOR)
    sender, receiver = agree(KEYRING, INITIATOR, ACCEPTOR)
    with pytest.raises(BulkRefused):
        received(receiver, bytes(sender.ready()))


def test_when_any_byte_of_a_greeting_is_altered_then_no_frame_opens() -> None:
    for place in range(2 * GREETING_BYTES):
        told = bytearray(INITIATOR.encode() + ACCEPTOR.encode())
        told[place] ^= 1
        sender, _ = agree(KEYRING, INITIATOR, ACCEPTOR)
        with pytest.raises(BulkRefused):  # noqa: PT012 - either the greeting or the first frame
            initiator = Greeting.decode(bytes(told[:GREETING_BYTES]), Role.INITIATOR)
            acceptor = Greeting.decode(bytes(told[GREETING_BYTES:]), Role.ACCEPTOR)
            _, receiver = agree(KEYRING, acceptor, initiator)
            received(receiver, bytes(sender.ready()))


def test_when_a_recorded_connection_is_played_again_then_it_is_refused() -> None:
    recorded, receiver = direction()
    stream = whole(recorded, b"pay once")
    assert received(receiver, b"".join(stream)) == [b"pay once"]
    _, fresh = direction(salt=b"s" * 32)
    with pytest.raises(BulkRefused):
        received(fresh, b"".join(stream))


# -- what can be done to a stream ----------------------------------------------------------------

STREAM = (b"one", b"two", b"three", b"four")


@pytest.mark.parametrize("place", range(6))
def test_when_any_byte_of_a_frame_is_altered_then_the_stream_stops_before_it(place: int) -> None:
    clean = whole(direction()[0], *STREAM)
    for offset in range(len(clean[place])):
        _, receiver = direction()
        assert received(receiver, b"".join(clean[:place])) == list(STREAM[: max(place - 1, 0)])
        altered = bytearray(clean[place])
        altered[offset] ^= 1
        # Enough behind it for a frame whose length was altered to be complete.
        with pytest.raises(BulkRefused if place == 0 and offset >= FRAME_HEADER_BYTES else BulkCorrupt):
            received(receiver, bytes(altered) + bytes(CHUNK_MAX))
        assert not receiver.ended


REARRANGED = {
    "repeated": [0, 1, 1, 2],
    "left out": [0, 2, 3],
    "swapped": [0, 2, 1],
    "first left out": [1, 2],
    "READY repeated": [0, 0],
    "ended early": [0, 1, 5],
}


@pytest.mark.parametrize("order", REARRANGED.values(), ids=REARRANGED.keys())
def test_when_frames_are_rearranged_then_the_stream_is_corrupt(order: list[int]) -> None:
    sender, receiver = direction()
    stream = whole(sender, *STREAM)
    with pytest.raises(BulkCorrupt):
        received(receiver, b"".join(stream[index] for index in order))
    assert not receiver.ended


def test_when_a_stream_goes_on_under_another_key_then_it_is_corrupt() -> None:
    both = Keyring(KEYS[:2])
    begins, receiver = direction(both, both)
    goes_on, _ = direction(Keyring([KEYS[1], KEYS[0]]), both)
    stream = [whole(begins, *STREAM)[0], whole(goes_on, *STREAM)[1]]
    with pytest.raises(BulkCorrupt):
        received(receiver, b"".join(stream))


def test_when_the_tail_is_cut_off_then_the_stream_has_not_ended() -> None:
    sender, _ = direction()
    stream = b"".join(whole(sender, *STREAM))
    for size in range(len(stream)):
        _, receiver = direction()
        chunks = received(receiver, stream[:size])
        assert not receiver.ended
        assert chunks == list(STREAM[: len(chunks)])


@either_way
def test_when_arbitrary_bytes_come_then_little_is_waited_for_and_only_a_bulk_error_leaves(
    keyring: Keyring | None,
) -> None:
    @given(st.binary(max_size=300), st.booleans())
    def check(stream: bytes, ready: bool) -> None:
        sender, receiver = direction(keyring, keyring)
        if ready:
            received(receiver, bytes(sender.ready()))
        try:
            received(receiver, stream)
        except BulkError:
            return
        assert receiver.wants <= CHUNK_MAX + 16

    check()


@pytest.mark.parametrize("size", [0, 16, CHUNK_MAX + 17, (1 << 32) - 1])
def test_when_a_frame_claims_a_size_that_cannot_be_then_its_payload_is_not_waited_for(size: int) -> None:
    sender, receiver = direction()
    received(receiver, bytes(sender.ready()))
    with pytest.raises(BulkCorrupt, match=f"{size} bytes, which cannot be"):
        receiver.take(b"\2" + size.to_bytes(4, "big"))
    assert receiver.wants == FRAME_HEADER_BYTES
