"""A store becomes bytes, and a store again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from random import Random

import pytest

from apps.kv import KeyValueStore, Limits, Once, Put, snapshots
from apps.kv.types import KIB
from rsm.state_machine import is_detached
from tests.apps.kv.kit import Group


def busy(count: int = 300, seed: int = 1) -> Group:
    """A state with something of everything."""
    rng, group = Random(seed), Group(Limits(history_events_max=200))
    store = group.store
    leases = [group.call(store.lease_grant, 1000 + number).id for number in range(4)]
    for number in range(count):
        key = b"k%03d" % rng.randrange(100)
        match rng.randrange(6):
            case 0:
                group.call(store.put, key, rng.randbytes(20), ttl_ms=rng.randrange(1, 2000))
            case 1:
                group.call(store.put, key, rng.randbytes(20), lease=rng.choice(leases))
            case 2:
                group.call(store.delete, key)
            case 3:
                group.call(store.lock, b"l%d" % rng.randrange(5), rng.choice(leases), True)
            case _:
                group.call(store.put, key, rng.randbytes(20), once=Once(b"%d" % number, b""))
    return group


def bytes_of(store: KeyValueStore) -> bytes:
    return b"".join(store.snapshot())


def in_parts(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def read_until_first(pieces: Iterator[bytes]) -> bytes:
    return next(piece for piece in pieces if piece)


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 30])
def test_when_a_snapshot_is_cut_elsewhere_then_it_gives_the_same_store(size: int) -> None:
    group = busy()
    data = bytes_of(group.store)
    other = KeyValueStore()
    other.restore(in_parts(data, size))
    assert bytes_of(other) == data


def test_when_commands_run_while_a_snapshot_is_read_then_it_is_of_the_state_before() -> None:
    group = busy()
    expected = bytes_of(group.store)
    assert is_detached(group.store)
    pieces = iter(group.store.snapshot())
    first = read_until_first(pieces)
    for number in range(100):
        group.call(group.store.put, b"k%03d" % number, b"new", once=Once(b"new %d" % number, b""))
    group.wait(5000)
    group.call(group.store.compact, group.now)
    group.call(group.store.configure, Limits(history_events_max=1, once_max=1))
    assert first + b"".join(pieces) == expected


def test_when_a_state_came_about_in_another_order_then_its_bytes_are_the_same() -> None:
    """Everything at one slot: revisions tell orders apart."""
    groups = [Group(), Group()]
    for group, step in zip(groups, (1, -1), strict=True):
        store = group.store
        lease = group.call(store.lease_grant, 1000).id
        group.slot()
        keys = [b"%03d" % number for number in range(50)][::step]
        for key in keys:
            store.put(key, b"v", lease=lease)
            store.lock(key, lease)
        store.compact(group.now)
    assert bytes_of(groups[0].store) == bytes_of(groups[1].store)


def test_when_the_hash_seed_is_another_then_the_bytes_are_the_same() -> None:
    code = (
        "from hashlib import sha256; from tests.apps.kv.test_snapshots import busy, bytes_of;"
        "print(sha256(bytes_of(busy().store)).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop()) == 65


def filled(count: int) -> Group:
    group = Group(Limits(history_events_max=0))
    for number in range(count):
        group.call(group.store.put, b"key %06d" % number, b"value %d" % number)
    return group


def test_when_a_few_keys_come_change_and_go_then_only_their_frames_differ() -> None:
    group = filled(30_000)
    before = {piece for piece in group.store.snapshot() if piece}
    group.call(group.store.put, b"key 012345x", b"")
    group.call(group.store.put, b"key 020000", b"another value")
    group.call(group.store.delete, b"key 007777")
    after = {piece for piece in group.store.snapshot() if piece}
    assert len(before) > 20
    assert len(after - before) == 3 + 2  # the head, and the newest change


def test_when_history_goes_on_then_the_frames_of_what_was_before_stay_equal() -> None:
    group = Group()
    for number in range(5000):
        group.call(group.store.put, b"key", b"value %d" % number)
    before = [piece for piece in group.store.snapshot() if piece]
    for number in range(50):
        group.call(group.store.put, b"key", b"value %d" % number)
    group.call(group.store.compact, 20)
    after = [piece for piece in group.store.snapshot() if piece]
    assert len(before) == len(after)
    assert sum(one == other for one, other in zip(before, after, strict=True)) == len(before) - 5
    # The head, the entry, the oldest and the newest changes, and the count at the end.


def test_when_values_are_large_then_frames_stay_small() -> None:
    group = Group()
    for number in range(40):
        group.call(group.store.put, b"%d" % (number % 20), bytes(20 * KIB), once=Once(b"%d" % number, b""))
    group.call(group.store.txn, [], [Put(b"x", bytes(500 * KIB))], [])
    assert max(len(piece) for piece in group.store.snapshot()) < 600 * KIB
    sizes = sorted(len(piece) for piece in group.store.snapshot() if piece)
    assert sizes[-2] < 2 * snapshots.FRAME_BYTES


def test_when_a_snapshot_is_damaged_then_it_is_not_restored() -> None:
    data = bytes_of(busy().store)
    for bad, words in (
        (b"", "does not begin like"),
        (data[:-1], "cut off"),
        (data[: len(data) // 2], "cut off|not complete"),
        (data[:-7], "cut off|not complete"),
        (data + data, "two heads"),
        (b"\xff" * 8, "none of ours"),
    ):
        with pytest.raises(ValueError, match=words):
            KeyValueStore().restore([bad])
    frames = [piece for piece in busy().store.snapshot() if piece]
    for left_out in (1, len(frames) - 1):
        with pytest.raises(ValueError, match="not complete"):
            KeyValueStore().restore(frames[:left_out] + frames[left_out + 1 :])


def test_when_the_format_is_of_another_release_then_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes_of(busy().store)
    monkeypatch.setattr(snapshots, "FORMAT", 2)
    with pytest.raises(ValueError, match="it has format 1, this release reads 2"):
        KeyValueStore().restore([data])
