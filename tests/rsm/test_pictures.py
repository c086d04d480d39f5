"""A state is frozen in short steps, and written while it changes; chunks of it have names."""

import asyncio
import gc
import os
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsm.chunks import CHUNK_MAX, name_of, packed
from rsm.errors import StateLost
from rsm.executor import Executor
from rsm.intake import Intake
from rsm.pace import UNWATCHED_MIN, restore
from rsm.pictures import Picture, Pictures
from rsm.spool import FileSpool, Spool
from rsm.state_machine import StateMachine, command, detached, is_detached
from rsm.values_format import RUN_ITEMS, STEP_ITEMS
from rsm.values_shapes import Classes
from rsm.values_writer import Writer
from tests.rsm.machines import Ledger
from tests.rsm.test_executor import Bench
from tests.rsm.test_values import TYPES, VALUES, Frozen, Pair, Plain, Slotted, trees


def until_frozen(pieces: Iterator[bytes]) -> tuple[int, bytes]:
    """The steps it took, and the first bytes."""
    for steps, piece in enumerate(pieces):
        if piece:
            return steps, piece
    raise AssertionError("nothing came")


# -- freezing --------------------------------------------------------------------------------------


@given(trees)
def test_whatever_is_frozen_has_the_bytes_of_what_is_dumped(value: object) -> None:
    assert b"".join(VALUES.freeze({"": value})) == b"".join(VALUES.dump({"": value}))


def changing_state() -> dict[str, Any]:
    shared = Plain(1, ["shared"])
    return {
        "dict": {f"key {number}": bytes(100) for number in range(5_000)},
        "texts": ["ä" * 100, "b" * 100] * 2_000,
        "objects": [Plain(number, "x" * 50) for number in range(3_000)],
        "slotted": {number: Slotted(number) for number in range(3_000)},
        "tuples": [(number, "t" * 50, (number,)) for number in range(3_000)],
        "values": [Frozen(number, "v" * 50) for number in range(3_000)],
        "pairs": [Pair([number], "p") for number in range(100)] * 2,
        "set": {f"element {number}" for number in range(5_000)},
        "lists": [[number, "l" * 40] for number in range(3_000)],
        "blob": bytearray(200_000),
        "text": "z" * 200_000,
        "shared": [shared, shared, {"again": shared}],
    }


def change(state: dict[str, Any]) -> None:
    """Everything in it that can change."""
    for item in state["objects"]:
        item.__dict__.clear()
    for item in state["lists"]:
        item.clear()
    for item in state["pairs"]:
        item.first.clear()
    state["slotted"][0].name = "other"
    state["blob"][:] = b"x" * 200_000
    state["shared"][0].__dict__.clear()
    for value in list(state.values()):
        if hasattr(value, "clear"):
            value.clear()
    state.clear()


def test_when_a_frozen_state_is_changed_then_its_bytes_are_those_of_before() -> None:
    state = changing_state()
    before = b"".join(VALUES.dump(state))
    pieces = VALUES.freeze(state)
    steps, first = until_frozen(pieces)
    change(state)
    assert first + b"".join(pieces) == before
    assert steps > 10
    assert VALUES.load([before]) == changing_state()


def test_when_a_state_has_large_values_then_freezing_it_copies_none_of_them() -> None:
    state = {
        "values": {f"key {number}": bytes([number % 251]) * 1_000 for number in range(20_000)},
        "versions": {f"key {number}": (number, bytes([number % 251]) * 1_000) for number in range(20_000)},
        "blob": bytes(10_000_000),
    }
    gc.collect()
    tracemalloc.start()
    pieces = VALUES.freeze(state)
    until_frozen(pieces)
    frozen, _ = tracemalloc.get_traced_memory()
    size = sum(map(len, pieces))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 50_000_000
    assert frozen < size / 20
    assert peak < size / 15


def test_when_objects_are_referred_to_once_then_they_take_no_place_in_the_table() -> None:
    writer = Writer(Classes(TYPES))
    shared = Plain(0, "shared")
    state = {"objects": [Plain(number, "x") for number in range(5_000)], "shared": [shared] * 3}
    for _ in writer.walk(state):
        pass
    assert writer.numbered == 2 + 5_000 + 1
    assert len(writer.numbers) < 10


class Watched(Writer):
    most = 0  # values looked at in one step

    def __setattr__(self, name: str, value: object) -> None:
        if name == "work":
            assert isinstance(value, int)
            object.__setattr__(self, "most", max(self.most, value))
        object.__setattr__(self, name, value)


STEPPED = {
    "numbers": {number: number for number in range(50_000)},
    "bytes": [bytes(1_000)] * 20_000,
    "objects": [Plain(number, "x") for number in range(20_000)],
    "wide tuples": [tuple(range(60)) for _ in range(3_000)],
    "lists in lists": [[[number], [number]] for number in range(10_000)],
    "a set": {f"element {number}" for number in range(20_000)},
    "a set of tuples": {(number, str(number)) for number in range(20_000)},
    "a frozen set": frozenset(range(20_000)),
    "a tuple": tuple(range(50_000)),
    "a long text": "ü" * 3_000_000,
    "a bytearray": bytearray(3_000_000),
}


@pytest.mark.parametrize("name", STEPPED)
def test_however_large_a_state_is_then_no_step_of_freezing_it_looks_at_many_values(name: str) -> None:
    writer = Watched(Classes(TYPES))
    steps = sum(1 for part in writer.walk({"value": STEPPED[name]}) if not part)
    assert steps >= (name != "a long text")
    assert writer.most <= STEP_ITEMS + 4 * RUN_ITEMS


def test_numbers_and_texts_of_the_same_bytes_have_places_of_their_own_in_a_set() -> None:
    one: set[Any] = {*map(chr, range(128)), *range(128)}
    other: set[Any] = set(range(50_000))  # a larger table, hence another order
    other |= one
    other -= set(range(128, 50_000))
    assert list(one) != list(other)
    assert b"".join(VALUES.dump({"": one})) == b"".join(VALUES.dump({"": other}))


@pytest.mark.parametrize("kind", [set, frozenset])
def test_however_the_elements_of_a_large_set_came_there_then_its_bytes_are_the_same(kind: type) -> None:
    elements: list[Any] = [*range(6_000), *((number, str(number)) for number in range(100)), *"abc", b"d"]
    shuffled = elements[:]
    Random(5).shuffle(shuffled)
    for part in (slice(6_000), slice(None)):
        one = kind(elements[part])
        other = kind(value for value in shuffled if value in one)
        assert b"".join(VALUES.dump({"": one})) == b"".join(VALUES.dump({"": other}))
        assert VALUES.load(VALUES.dump({"": one})) == {"": one}


# -- chunks ----------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=3_000).map(lambda piece: piece * 60), max_size=20))
def test_however_pieces_are_packed_then_the_bytes_are_the_same(pieces: list[bytes]) -> None:
    chunks = list(packed(pieces))
    assert b"".join(chunks) == b"".join(pieces)
    assert all(0 < len(chunk) <= CHUNK_MAX for chunk in chunks)


def names_of(state: dict[str, object]) -> set[bytes]:
    return {name_of(chunk) for chunk in packed(VALUES.freeze(state))}


def test_when_a_state_changes_a_little_then_most_chunks_keep_their_names() -> None:
    chance = Random(1)
    entries = {f"key {number}": chance.randbytes(300) for number in range(40_000)}
    before = names_of({"entries": entries})
    for number in range(5):
        entries[f"key {number * 8_000 + 77}"] = chance.randbytes(3_000 * number + 10)  # also other lengths
    entries["key 7"] = chance.randbytes(40_000)
    entries.update({f"new {number}": chance.randbytes(300) for number in range(50)})
    after = names_of({"entries": entries})
    assert len(before) > 60
    assert len(after - before) <= 5 * 2 + 5 + 1


# -- what came -------------------------------------------------------------------------------------


CHUNKS = [bytes([number]) * (1_000 + number) for number in range(10)]
NAMES = [name_of(chunk) for chunk in CHUNKS]


async def filled(spool: Spool) -> Spool:
    await spool.open()
    for name, chunk in zip(NAMES, CHUNKS, strict=True):
        await spool.put(name, chunk)
    return spool


def test_when_chunks_were_restored_from_memory_then_they_are_let_go() -> None:
    async def main() -> None:
        spool = await filled(Spool())
        order = [*NAMES, NAMES[3], NAMES[3]]
        assert list(spool.read(order)) == [*CHUNKS, CHUNKS[3], CHUNKS[3]]
        assert spool.size == 0
        assert spool.names() == b""
        large = [bytes([number]) * CHUNK_MAX for number in range(200)]
        for chunk in large:
            await spool.put(name_of(chunk), chunk)
        segments = {segment for segment, *_ in spool._kept.values()}
        assert len(segments) > 5
        for number, chunk in enumerate(spool.read(list(map(name_of, large)))):
            assert chunk == large[number]
        assert sum(not segment.memory.closed for segment in segments) == 1
        await spool.put(NAMES[0], CHUNKS[0])
        await spool.clear()
        assert spool.names() == b""

    asyncio.run(main())


@pytest.mark.parametrize("torn", [0, 1, 10, 500, 1_020])
def test_when_a_replica_died_on_the_way_then_its_disk_has_the_chunks_that_were_whole(
    tmp_path: Path, torn: int
) -> None:
    async def main() -> None:
        path = tmp_path / "incoming"
        (await filled(FileSpool(path))).close()
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - torn])
        spool = FileSpool(path)
        await spool.open()
        kept = len(CHUNKS) - bool(torn)
        assert spool.names() == b"".join(NAMES[:kept])
        await spool.put(NAMES[-1], CHUNKS[-1])
        stored = spool.read([*NAMES, NAMES[0]])
        assert list(stored) == [*CHUNKS, CHUNKS[0]] == list(stored)
        await spool.clear()
        assert not path.exists()

    asyncio.run(main())


def test_when_who_reads_what_came_before_is_cancelled_then_the_next_one_reads_it_and_no_file_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        path = tmp_path / "incoming"
        (await filled(FileSpool(path))).close()
        loop, begun, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def slowly(chunk: bytes) -> bytes:
            if not begun.is_set():
                loop.call_soon_threadsafe(begun.set)
                assert go.wait(30)
            return name_of(chunk)

        monkeypatch.setattr("rsm.spool.name_of", slowly)
        spool = FileSpool(path)
        first = asyncio.ensure_future(spool.open())
        await begun.wait()
        first.cancel()
        second = asyncio.ensure_future(spool.open())
        await asyncio.wait([second], timeout=0.2)
        assert not second.done(), "what is there is not known yet"
        go.set()
        await second
        await loop.shutdown_default_executor()
        assert spool.names() == b"".join(NAMES)
        spool.close()
        files = (Path("/proc/self/fd") / each for each in os.listdir("/proc/self/fd"))
        assert path not in [each.readlink() for each in files if each.is_symlink()]

    asyncio.run(main())


def test_when_a_chunk_rots_on_the_disk_then_it_is_not_restored(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "incoming"
        spool = await filled(FileSpool(path))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(StateLost, match="is not there any more"):
            list(spool.read(NAMES))
        spool.close()

    asyncio.run(main())


def test_when_donors_come_and_go_then_what_is_kept_stays_bounded() -> None:
    async def main() -> None:
        spool = Spool()
        for number in range(20):
            await spool.open()
            for chunk in CHUNKS:
                other = chunk + bytes([number])
                await spool.put(name_of(other), other)
            spool.named(sum(map(len, CHUNKS)))
            assert spool.size <= 4 * sum(map(len, CHUNKS))

    asyncio.run(main())


# -- pictures of an executor -----------------------------------------------------------------------


def taken(bench: Bench, between: list[int]) -> Picture:
    """A picture, and how often others had a turn meanwhile."""

    async def main() -> Picture:
        intake = Intake(bench.executor, ready=True)
        pictures = Pictures(lambda _: between.append(-1))
        taking = asyncio.ensure_future(pictures.take(intake))
        while not taking.done():
            await asyncio.sleep(0)
            if not taking.done():
                assert not intake.runs
                between.append(1)
        assert intake.runs
        return taking.result()

    return asyncio.run(main())


def test_when_commands_follow_a_picture_then_it_is_of_the_slot_it_was_taken_at() -> None:
    bench = Bench(Ledger)
    for number in range(100):
        bench.call("note")
        bench.call("move", "a", f"account {number}", 0)
    before = b"".join(bench.executor.snapshot())
    ts, between = bench.ts, list[int]()
    picture = taken(bench, between)
    chunks = [next(picture.chunks)]
    for number in range(50):
        bench.call("move", "a", f"account {number}", 0)
        bench.give([bench.message("move", "b", f"never {number}", 1_000)])  # undone
        bench.call("draw")
    chunks += picture.chunks
    assert picture.ts == ts < bench.ts
    assert b"".join(chunks) == before
    assert between[-1] == -1
    copy = Bench(Ledger, announced=False).executor
    copy.restore(chunks)
    assert copy.applied == ts
    assert copy.group.digest == picture.digest
    assert b"".join(copy.snapshot()) == before


ENTRIES = 20_000


class Own(StateMachine):
    """Its snapshot reads the state to the end: commands must wait for that."""

    def __init__(self) -> None:
        self.entries = {number: 0 for number in range(ENTRIES)}

    @command
    def raise_all(self) -> None:
        for number in self.entries:
            self.entries[number] += 1

    def snapshot(self) -> Iterator[bytes]:
        for entry in self.entries.items():
            yield msgspec.msgpack.encode(entry)

    def restore(self, chunks: Any) -> None:
        raise NotImplementedError


class Detached(Own):
    @detached
    def snapshot(self) -> Iterator[bytes]:
        entries: list[tuple[int, int]] = []
        for entry in self.entries.items():
            entries.append(entry)
            yield b""
        for entry in entries:
            yield msgspec.msgpack.encode(entry)


class Derived(Detached):
    def snapshot(self) -> Iterator[bytes]:
        return super().snapshot()


@pytest.mark.parametrize("machine", [Own, Detached])
def test_when_a_machine_has_a_snapshot_of_its_own_then_a_picture_is_of_one_slot(machine: type[Own]) -> None:
    bench = Bench(machine)
    between = list[int]()
    picture = taken(bench, between)
    assert 1 in between, "nobody had a turn meanwhile"
    bench.call("raise_all")
    _, *values = b"".join(picture.chunks).partition(msgspec.msgpack.encode((0, 0)))
    assert b"".join(values) == b"".join(msgspec.msgpack.encode((number, 0)) for number in range(ENTRIES))


def test_when_a_snapshot_is_overridden_then_it_is_as_detached_as_it_says() -> None:
    assert is_detached(Ledger())
    assert not is_detached(Own())
    assert is_detached(Detached())
    assert not is_detached(Derived())


# -- restoring -------------------------------------------------------------------------------------


class Many(StateMachine):
    def __init__(self) -> None:
        self.entries: list[list[int]] = []

    @command(atomic=True)
    def grow(self, count: int) -> None:
        self.entries += [[number] for number in range(count)]


def test_when_many_objects_are_restored_then_the_collector_does_not_go_through_them_and_they_can_go() -> None:
    bench = Bench(Many)
    bench.call("grow", UNWATCHED_MIN + 1)
    chunks = list(bench.executor.snapshot())
    full: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            full.append(phase)

    copy: Executor | None = Bench(Many, announced=False).executor
    assert copy is not None
    machine = weakref.ref(copy.machine)
    gc.collect()
    gc.callbacks.append(note)
    try:
        asyncio.run(restore(copy, chunks, lambda: True))
        assert not full
        assert gc.isenabled()
        assert gc.get_freeze_count() > UNWATCHED_MIN
        gc.disable()
        copy = None
        assert machine() is None, "what is kept from the collector must need none"
    finally:
        gc.callbacks.remove(note)
        gc.enable()
        gc.unfreeze()


def test_when_few_objects_are_restored_or_somebody_collects_by_hand_then_nothing_is_changed() -> None:
    bench = Bench(Many)
    gc.disable()
    try:
        asyncio.run(restore(Bench(Many, announced=False).executor, bench.executor.snapshot(), lambda: True))
        assert not gc.isenabled()
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()
