"""How does a store become bytes, and bytes a store?

Frames of a length and a MessagePack array: a head, then entries, changes, leases, locks and remembered
requests, then an end. Entries are in the order of keys, and a frame of them ends behind a key whose checksum
says so: a key that comes or goes changes its own frame alone, and replicas that have the others need not be
sent them. Frames of changes end at round numbers for the same reason. A change is written without the entry
that it led to, which is what the key's next change replaced, or what is there now.

The store is copied first, references only and in slices, between which others have a turn; encoding comes
after that, while commands run.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from struct import Struct as Layout
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from apps.kv.history import Change, Changes
from apps.kv.keyspace import Keyspace
from apps.kv.leases import Leases, Record
from apps.kv.locks import Lock, Locks
from apps.kv.repeats import Repeat, Repeats
from apps.kv.types import KIB, Entry, Limits

FORMAT: Final = 1
SLICE: Final = 2048  # references that are copied at a time
FRAME_ITEMS: Final = 1024  # on average; a power of two
FRAME_ITEMS_MAX: Final = 4 * FRAME_ITEMS
FRAME_BYTES: Final = 60 * KIB  # a frame ends with the item that reaches it
FRAME_BYTES_MAX: Final = 1 << 30
_LENGTH: Final = Layout(">I")


class Head(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    format: int
    limits: Limits
    compacted: int
    change_number: int
    last_lease: int
    ending: list[int]
    resume_ns: int


class Entries(msgspec.Struct, frozen=True, array_like=True, tag="entries"):
    items: list[Entry]


class Undone(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A change, without what it led to."""

    revision: int
    key: bytes
    previous: Entry | None
    expired: bool


class History(msgspec.Struct, frozen=True, array_like=True, tag="changes"):
    items: list[Undone]


class Records(msgspec.Struct, frozen=True, array_like=True, tag="leases"):
    items: list[Record]


class Held(msgspec.Struct, frozen=True, array_like=True, tag="locks"):
    items: list[Lock]


class Remembered(msgspec.Struct, frozen=True, array_like=True, tag="repeats"):
    items: list[Repeat]


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """``items`` were in all frames together."""

    items: int


Frame: TypeAlias = Head | Entries | History | Records | Held | Remembered | End
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Frame)


class Parts(NamedTuple):
    """A whole store."""

    limits: Limits
    keyspace: Keyspace
    changes: Changes
    leases: Leases
    locks: Locks
    repeats: Repeats


# -- to bytes ------------------------------------------------------------------------------------


def written(parts: Parts) -> Iterator[bytes]:
    """The frames. What comes after the first that is not empty depends on nothing that may change."""
    keyspace, changes, leases, locks, repeats = parts[1:]
    head = Head(
        FORMAT,
        parts.limits,
        changes.compacted,
        changes.number,
        leases.last_id,
        list(leases.ending),
        leases.resume_ns if leases.ending else 0,
    )
    entries: list[list[Entry]] = []
    keys = iter(keyspace.order)
    while some := [keyspace.entries[key] for key in islice(keys, SLICE)]:
        entries.append(some)
        yield b""
    history = changes.retained()
    yield b""
    records: list[Record] = list(leases.records.values())
    yield b""
    held: list[Lock] = list(locks.held.values())
    yield b""
    remembered = list(repeats.kept.values())
    yield _framed(head)
    count = sum(map(len, entries)) + len(history) + len(records) + len(held) + len(remembered)
    yield from _entry_frames(entries)
    yield from _change_frames(history, head.change_number)
    for at in range(0, len(records), FRAME_ITEMS):
        yield _framed(Records(records[at : at + FRAME_ITEMS]))
    for at in range(0, len(held), FRAME_ITEMS):
        yield _framed(Held(held[at : at + FRAME_ITEMS]))
    yield from _repeat_frames(remembered)
    yield _framed(End(count))


def _framed(frame: Frame) -> bytes:
    data = _ENCODER.encode(frame)
    return _LENGTH.pack(len(data)) + data


def _entry_frames(slices: list[list[Entry]]) -> Iterator[bytes]:
    held: list[Entry] = []
    size = 0
    slices.reverse()
    while slices:
        for entry in slices.pop():
            held.append(entry)
            size += len(entry.key) + len(entry.value)
            if size >= FRAME_BYTES or not crc32(entry.key) % FRAME_ITEMS or len(held) == FRAME_ITEMS_MAX:
                yield _framed(Entries(held))
                held, size = [], 0
    if held:
        yield _framed(Entries(held))


def _change_frames(changes: list[Change], number: int) -> Iterator[bytes]:
    held: list[Undone] = []
    size = 0
    for change in changes:
        held.append(Undone(change.revision, change.key, change.previous, change.expired))
        size += len(change.previous.value) if change.previous is not None else 0
        number += 1
        if size >= FRAME_BYTES or not number % FRAME_ITEMS:
            yield _framed(History(held))
            held, size = [], 0
    if held:
        yield _framed(History(held))


def _repeat_frames(repeats: list[Repeat]) -> Iterator[bytes]:
    held: list[Repeat] = []
    size = 0
    for repeat in repeats:
        held.append(repeat)
        size += len(repeat.answer)
        if size >= FRAME_BYTES or len(held) == FRAME_ITEMS:
            yield _framed(Remembered(held))
            held, size = [], 0
    if held:
        yield _framed(Remembered(held))


# -- and back ------------------------------------------------------------------------------------


def read(chunks: Iterable[bytes]) -> Parts:
    """Chunks may be cut anywhere, and are taken as they come."""
    frames = _frames(chunks)
    head = next(frames, None)
    if not isinstance(head, Head):
        raise ValueError("it does not begin like the snapshot of a key-value store")
    if head.format != FORMAT:
        raise ValueError(f"it has format {head.format}, this release reads {FORMAT}")
    entries: dict[bytes, Entry] = {}
    undone: list[Undone] = []
    records: list[Record] = []
    held: list[Lock] = []
    remembered: list[Repeat] = []
    end: End | None = None
    for frame in frames:
        match frame:
            case Entries(items):
                entries.update({entry.key: entry for entry in items})
            case History(changes):
                undone += changes
            case Records(leases):
                records += leases
            case Held(locks):
                held += locks
            case Remembered(repeats):
                remembered += repeats
            case End():
                end = frame
            case Head():
                raise ValueError("it has two heads")
    count = len(entries) + len(undone) + len(records) + len(held) + len(remembered)
    if end is None or end.items != count:
        raise ValueError(f"it is not complete: {count} items are there")
    return _assembled(head, entries, undone, records, held, remembered)


def _assembled(
    head: Head,
    entries: dict[bytes, Entry],
    undone: list[Undone],
    records: list[Record],
    held: list[Lock],
    remembered: list[Repeat],
) -> Parts:
    parts = Parts(head.limits, Keyspace(), Changes(), Leases(), Locks(), Repeats())
    parts.keyspace.load(entries)
    parts.changes.load(head.change_number, head.compacted, _redone(undone, entries))
    attached = ((entry.lease, entry.key) for entry in entries.values() if entry.lease)
    parts.leases.load(records, attached)
    parts.leases.last_id = head.last_lease
    parts.leases.ending, parts.leases.resume_ns = deque(head.ending), head.resume_ns
    parts.locks.load(held)
    parts.repeats.load(remembered)
    return parts


def _redone(undone: list[Undone], entries: dict[bytes, Entry]) -> list[Change]:
    """From the newest to the oldest: what a change replaced is what the one before it led to."""
    after: dict[bytes, Entry | None] = {}
    changes = []
    for each in reversed(undone):
        led_to = after[each.key] if each.key in after else entries.get(each.key)
        changes.append(Change(each.revision, each.key, led_to, each.previous, each.expired))
        after[each.key] = each.previous
    changes.reverse()
    return changes


def _frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes is none of ours")
            begin = at + _LENGTH.size
            if len(buffer) < begin + length:
                break
            yield _DECODER.decode(memoryview(buffer)[begin : begin + length])
            at = begin + length
        del buffer[:at]
    if buffer:
        raise ValueError("it is cut off within a frame")
