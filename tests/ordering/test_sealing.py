"""Datagrams are sealed: what a key protects, and what is remembered against replays."""

import hmac
from collections.abc import Iterator
from hashlib import sha256
from itertools import permutations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ordering import packets as p
from ordering import sealing
from ordering.codec import HEADER_BYTES, SEALED, encode_body, encode_header
from ordering.errors import ConfigurationError, DecodeError, KeyringError
from ordering.sealing import WINDOW, Keyring, Opener, ReplayWindow, Sealer
from ordering.views import SiteId

KEYS = [bytes([letter]) * 32 for letter in b"abcd"]
GROUP, SITE, BOOT = 0x0102030405060708, SiteId(0x1112131415161718), 0x202122232425262728292A2B2C2D2E2F
HEAD = p.Head(GROUP, 3, SITE, BOOT, 1, 2, 3, 4, 5)


def head_of(group: int = GROUP, site: int = SITE, boot: int = BOOT) -> p.Head:
    return p.Head(group, 3, SiteId(site), boot, 1, 2, 3, 4, 5)


def sealed(keyring: Keyring, counter: int, head: p.Head = HEAD) -> bytes:
    packet = p.PollReply(head, 9, True)
    body = encode_body(packet)
    header = encode_header(packet, counter, SEALED, len(body) + sealing.TAG_BYTES)
    return header + Sealer(keyring).seal(head, counter, header, body)


def opened(opener: Opener, counter: int, datagram: bytes, head: p.Head = HEAD) -> str:
    """What became of it: "opened", or why not."""
    try:
        body = opener.open(head, counter, datagram)
    except DecodeError as error:
        return error.reason
    assert body == encode_body(p.PollReply(head, 9, True))
    return "opened"


# -- keys ----------------------------------------------------------------------------------------


def expected_key(group_key: bytes) -> bytes:
    """HKDF written out (RFC 5869), to hold the library and our use of it against."""
    extracted = hmac.digest(BOOT.to_bytes(16, "big"), group_key, sha256)
    info = b"rsm datagram 1" + GROUP.to_bytes(8, "big") + SITE.to_bytes(8, "big")
    return hmac.digest(extracted, info + b"\1", sha256)


def test_when_a_key_is_derived_then_it_is_the_documented_one() -> None:
    key = expected_key(KEYS[0])
    assert key.hex() == "e65ddb136eae7638a99b7a31485e9fe9bc3cff09fc4f8753df49da3262d9a4cf"
    datagram = sealed(Keyring(KEYS[:1]), 0xF1F2F3F4F5F6F7F8)
    nonce = bytes(4) + bytes.fromhex("f1f2f3f4f5f6f7f8")
    body = AESGCM(key).decrypt(nonce, datagram[HEADER_BYTES:], datagram[:HEADER_BYTES])
    assert body == encode_body(p.PollReply(HEAD, 9, True))


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ([], "has 0 keys; give one"),
        (KEYS, "has 4 keys; give one"),
        ([b"short"], "key 1 is not 32 bytes"),
        ([KEYS[0], KEYS[1] + b"!"], "key 2 is not 32 bytes"),
        ([KEYS[0], "b" * 32], "key 2 is not 32 bytes"),
        ([KEYS[0], KEYS[1], KEYS[0]], "key 3 is there already"),
    ],
    ids=["none", "too many", "short", "long", "text", "twice"],
)
def test_when_keys_cannot_be_used_then_the_refusal_says_why_and_shows_none(
    keys: list[bytes], complaint: str
) -> None:
    with pytest.raises(KeyringError, match=complaint) as caught:
        Keyring(keys)
    assert isinstance(caught.value, ConfigurationError)
    assert not any(letter * 5 in str(caught.value) for letter in "abcd")


def test_when_a_key_file_is_read_then_comments_and_order_are_kept_apart() -> None:
    text = f"# keys of the group\n\n{KEYS[1].hex()}  # new\n{KEYS[0].hex().upper()}\n"
    assert Keyring.from_text(text).fingerprints == Keyring([KEYS[1], KEYS[0]]).fingerprints
    with pytest.raises(KeyringError, match="line 2 is not hexadecimal") as caught:
        Keyring.from_text("# key\nhunter2\n")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(KeyringError, match="has 0 keys"):
        Keyring.from_text("# nothing yet\n")


def test_when_a_keyring_is_shown_then_it_tells_fingerprints_and_no_keys() -> None:
    keyring = Keyring(KEYS[:3])
    assert len(set(keyring.fingerprints)) == len(keyring) == 3
    for shown in (repr(keyring), str(keyring), f"{keyring}", repr([keyring]), repr(Sealer(keyring))):
        assert not any(key.decode()[:5] in shown or key.hex()[:10] in shown for key in KEYS)
    assert all(fingerprint in repr(keyring) for fingerprint in keyring.fingerprints)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_when_keys_are_in_another_order_then_each_side_opens_the_other(order: tuple[int, ...]) -> None:
    """Rotation reaches sites one after another, so every order meets every other."""
    ours, theirs = Keyring(KEYS[:3]), Keyring([KEYS[index] for index in order])
    assert opened(Opener(theirs), 1, sealed(ours, 1)) == "opened"
    assert opened(Opener(ours), 1, sealed(theirs, 1)) == "opened"


def test_when_a_sender_changes_its_key_then_its_window_goes_on() -> None:
    before, after = Keyring([KEYS[0], KEYS[1]]), Keyring([KEYS[1], KEYS[0]])
    opener = Opener(before)
    assert opened(opener, 1, sealed(before, 1)) == "opened"
    assert opened(opener, 2, sealed(after, 2)) == "opened"
    assert opened(opener, 1, sealed(after, 1)) == "replayed"
    opener.rotate(Keyring([KEYS[1]]))
    assert opened(opener, 2, sealed(after, 2)) == "replayed"
    assert opened(opener, 3, sealed(before, 3)) == "forged"
    assert opened(opener, 3, sealed(after, 3)) == "opened"


def test_when_no_key_is_shared_then_it_is_forged() -> None:
    assert opened(Opener(Keyring(KEYS[1:])), 1, sealed(Keyring(KEYS[:1]), 1)) == "forged"


@pytest.mark.parametrize("claimed", [head_of(group=1), head_of(site=1), head_of(boot=1)])
def test_when_another_incarnation_is_claimed_then_it_is_forged(claimed: p.Head) -> None:
    """The key depends on group, site and boot, beside the header that is under the tag."""
    keyring = Keyring(KEYS[:1])
    datagram = sealed(keyring, 1)
    assert opened(Opener(keyring), 1, datagram, claimed) == "forged"
    header, body = datagram[:HEADER_BYTES], datagram[HEADER_BYTES:]
    theirs = Sealer(keyring).seal(claimed, 1, header, encode_body(p.PollReply(HEAD, 9, True)))
    assert theirs != body
    assert opened(Opener(keyring), 1, header + theirs) == "forged"


def test_when_many_groups_are_sealed_then_what_was_forgotten_is_derived_again() -> None:
    keyring = Keyring(KEYS[:1])
    sealer = Sealer(keyring)
    for number in range(3 * 256):
        head = head_of(group=number % 300)
        header = encode_header(p.Confirm(head), number, SEALED, 17)
        datagram = header + sealer.seal(head, number, header, b"\x90")
        assert Opener(keyring).open(head, number, datagram) == b"\x90"


def test_when_a_body_is_shorter_than_a_tag_then_it_is_forged() -> None:
    keyring = Keyring(KEYS[:1])
    datagram = sealed(keyring, 1)
    for size in range(HEADER_BYTES, len(datagram)):
        assert opened(Opener(keyring), 1, datagram[:size]) == "forged"


# -- replay --------------------------------------------------------------------------------------


@pytest.fixture
def small_window() -> Iterator[int]:
    """So small that chance finds its edges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "WINDOW", 32)
        yield 32


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=500)
@given(start=st.integers(0, 1 << 63), jumps=st.lists(st.integers(-9, 9) | st.integers(-70, 70), max_size=60))
def test_when_counters_come_in_any_order_then_none_is_accepted_twice_and_few_are_refused(
    small_window: int, start: int, jumps: list[int]
) -> None:
    """Held against a set that remembers everything."""
    window = ReplayWindow()
    seen: set[int] = set()
    position = start
    for jump in jumps:
        position = max(position + jump, 0)
        recent = position > max(seen, default=-1) - (small_window - 7)
        if window.has(position):
            assert position in seen or not recent
            continue
        assert position not in seen
        window.add(position)
        seen.add(position)
        assert window.has(position)
        assert window.top == max(seen)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(floor=st.integers(0, 1 << 63), ahead=st.lists(st.integers(1, 70), max_size=20, unique=True))
def test_when_a_window_starts_at_a_floor_then_all_up_to_there_counts_as_come(
    small_window: int, floor: int, ahead: list[int]
) -> None:
    window = ReplayWindow(floor)
    assert all(window.has(counter) for counter in range(max(floor - 70, 0), floor + 1))
    assert not any(window.has(counter) for counter in range(floor + 1, floor + 70))
    for offset in sorted(ahead):
        window.add(floor + offset)
        assert all(window.has(counter) for counter in range(max(floor - 70, 0), floor + 1))
    assert all(window.has(floor + offset) for offset in ahead)


def test_when_the_window_has_its_real_size_then_it_reaches_as_far_back_as_documented() -> None:
    window = ReplayWindow()
    window.add(WINDOW + 100)
    assert not window.has(WINDOW + 100 - (WINDOW - 8))
    assert window.has(100 - 8)


def test_when_the_last_counter_comes_then_the_window_holds() -> None:
    window = ReplayWindow()
    window.add(sealing.COUNTER_MAX)
    assert window.has(sealing.COUNTER_MAX)
    assert not window.has(sealing.COUNTER_MAX - 1)
    assert window.has(0)


def test_when_a_forgery_names_a_high_counter_then_the_window_does_not_move() -> None:
    keyring = Keyring(KEYS[:1])
    opener = Opener(keyring)
    assert opened(opener, 1, sealed(keyring, 1)) == "opened"
    assert opened(opener, 1 << 60, sealed(Keyring(KEYS[1:2]), 1 << 60)) == "forged"
    assert opened(opener, 2, sealed(keyring, 2)) == "opened"


# -- bounds --------------------------------------------------------------------------------------


def test_when_an_incarnation_gave_way_then_it_goes_on_and_its_past_stays_closed() -> None:
    keyring = Keyring(KEYS[:1])
    opener = Opener(keyring)
    captured = {counter: sealed(keyring, counter) for counter in (5, 6, 9)}
    assert opened(opener, 9, captured[9]) == "opened"
    for boot in range(sealing.INCARNATIONS_MAX):
        assert opened(opener, 1, sealed(keyring, 1, head_of(boot=boot)), head_of(boot=boot)) == "opened"
    for counter in (5, 6, 9):
        assert opened(opener, counter, captured[counter]) == "replayed"
    assert opened(opener, 10, sealed(keyring, 10)) == "opened"
    assert opened(opener, 8, sealed(keyring, 8)) == "replayed"


def test_when_an_incarnation_is_heard_then_others_give_way_first() -> None:
    keyring = Keyring(KEYS[:1])
    opener = Opener(keyring)
    for counter in range(2, sealing.INCARNATIONS_MAX + 100):
        boot = head_of(boot=counter)
        assert opened(opener, counter * 2, sealed(keyring, counter * 2)) == "opened"
        assert opened(opener, 1, sealed(keyring, 1, boot), boot) == "opened"
    # Its whole window is still there: only the odd counters are missing.
    assert opened(opener, 101, sealed(keyring, 101)) == "opened"
    assert opened(opener, 102, sealed(keyring, 102)) == "replayed"


def test_when_a_peer_restarts_without_end_then_what_is_remembered_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealing, "INCARNATIONS_MAX", 4)
    monkeypatch.setattr(sealing, "FLOORS_MAX", 8)
    keyring = Keyring(KEYS[:1])
    opener = Opener(keyring)
    datagrams = [sealed(keyring, 1, head_of(boot=boot)) for boot in range(40)]
    for boot, datagram in enumerate(datagrams):
        assert opened(opener, 1, datagram, head_of(boot=boot)) == "opened"
    outcomes = [opened(opener, 1, datagrams[boot], head_of(boot=boot)) for boot in range(28, 40)]
    assert outcomes == ["replayed"] * 12
    assert opened(opener, 1, datagrams[27], head_of(boot=27)) == "opened"


def test_when_an_incarnation_gives_way_again_then_its_floor_counts_as_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealing, "INCARNATIONS_MAX", 1)
    monkeypatch.setattr(sealing, "FLOORS_MAX", 3)
    keyring = Keyring(KEYS[:1])
    opener = Opener(keyring)
    for boot, counter in [(1, 1), (2, 1), (1, 2), (3, 1), (4, 1), (5, 1)]:
        head = head_of(boot=boot)
        assert opened(opener, counter, sealed(keyring, counter, head), head) == "opened"
    assert opened(opener, 2, sealed(keyring, 2, head_of(boot=1)), head_of(boot=1)) == "replayed"
    assert opened(opener, 1, sealed(keyring, 1, head_of(boot=2)), head_of(boot=2)) == "opened"


def test_when_strangers_send_then_nothing_is_kept_of_them() -> None:
    opener = Opener(Keyring(KEYS[:1]))
    foreign = Keyring(KEYS[1:2])
    for boot in range(100):
        assert opened(opener, 1, sealed(foreign, 1, head_of(boot=boot)), head_of(boot=boot)) == "forged"
    assert not opener._known
    assert not opener._floors


class CountingKey:
    """A cipher that tells how often it was asked."""

    decryptions = 0
    derivations = 0

    def __init__(self, key: bytes) -> None:
        CountingKey.derivations += 1
        self._aead = AESGCM(key)

    def decrypt(self, nonce: bytes, data: bytes, header: bytes) -> bytes:
        CountingKey.decryptions += 1
        return self._aead.decrypt(nonce, data, header)


def test_when_forgeries_flood_then_each_costs_what_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, foreign = Keyring(KEYS[:3]), Keyring(KEYS[3:])
    genuine, forged = sealed(ours, 1), sealed(foreign, 2)
    rotated = [sealed(Keyring([KEYS[2], KEYS[0]]), counter) for counter in (2, 3)]
    monkeypatch.setattr(sealing, "AESGCM", CountingKey)
    opener = Opener(ours)

    def cost(counter: int, datagram: bytes, expected: str) -> tuple[int, int]:
        before = CountingKey.derivations, CountingKey.decryptions
        assert opened(opener, counter, datagram) == expected
        return CountingKey.derivations - before[0], CountingKey.decryptions - before[1]

    assert cost(2, forged, "forged") == (3, 3)
    assert cost(1, genuine, "opened") == (3, 1)
    assert cost(2, forged, "forged") == (0, 3)
    assert cost(1, forged, "replayed") == (0, 0)
    assert cost(2, rotated[0], "opened") == (0, 3)
    assert cost(3, rotated[1], "opened") == (0, 1)
