"""Which keys are there, in order?

A dict finds a key, and a sorted list of the keys finds what comes next. Only keys that come or go cost
something in the list; writing a key that is there does not touch it.
"""

from collections.abc import Iterator
from heapq import merge
from typing import Any, Final

from sortedcontainers import SortedList

from apps.kv.types import MIB, Entry, Limits, Listing
from rsm.errors import Rejected

PAGE_ITEMS_MAX: Final = 10_000
PAGE_BYTES: Final = MIB  # of keys and values; one item may have more
_NUMBER_MAX: Final = 20  # characters of a number of 64 bits
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


class Keyspace:
    """``bytes``: of all keys and values."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.order: Any = SortedList()  # of keys
        self.bytes = 0

    def load(self, entries: dict[bytes, Entry]) -> None:
        """All at once, in the order of keys."""
        self.entries = entries
        self.order = SortedList(entries)
        self.bytes = sum(len(entry.key) + len(entry.value) for entry in entries.values())

    def set(self, previous: Entry | None, entry: Entry) -> None:
        key = entry.key
        self.entries[key] = entry
        if previous is None:
            self.order.add(key)
            self.bytes += len(key) + len(entry.value)
        else:
            self.bytes += len(entry.value) - len(previous.value)

    def remove(self, entry: Entry) -> None:
        del self.entries[entry.key]
        self.order.remove(entry.key)
        self.bytes -= len(entry.key) + len(entry.value)

    def between(self, start: bytes, end: bytes | None) -> Iterator[Entry]:
        """In [start, end), in order."""
        if end is not None and start >= end:
            return iter(())
        keys: Iterator[bytes] = self.order.irange(start, end, (True, False))
        return map(self.entries.__getitem__, keys)


def overlaid(
    base: Iterator[Entry], sketch: dict[bytes, Entry | None], start: bytes, end: bytes | None
) -> Iterator[Entry]:
    """The same with some keys replaced, or gone."""
    kept = (entry for entry in base if entry.key not in sketch)
    drawn = [
        entry
        for key, entry in sorted(sketch.items())
        if entry is not None and start <= key and (end is None or key < end)
    ]
    return merge(kept, drawn, key=lambda entry: entry.key)


def page(entries: Iterator[Entry], limit: int, revision: int, *, keys_only: bool) -> Listing:
    """As many as fit."""
    if limit < 1:
        raise Rejected("bad_request", {"limit": limit, "least": 1})
    limit = min(limit, PAGE_ITEMS_MAX)
    items: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.key) if keys_only else len(entry.key) + len(entry.value)
        if len(items) == limit or (size > PAGE_BYTES and items):
            return Listing(items, True, revision)
        items.append(without_value(entry) if keys_only else entry)
    return Listing(items, False, revision)


def without_value(entry: Entry) -> Entry:
    return Entry(entry.key, b"", entry.revision, entry.created, entry.version, entry.lease)


# -- what may be written -------------------------------------------------------------------------


def check_key(key: bytes, limits: Limits) -> None:
    if not key:
        raise Rejected("bad_request", {"key": key, "least": 1})
    if len(key) > limits.key_bytes_max:
        raise Rejected("too_large", {"key_bytes": len(key), "key_bytes_max": limits.key_bytes_max})


def check_value(value: bytes, limits: Limits) -> None:
    if len(value) > limits.value_bytes_max:
        raise Rejected("too_large", {"value_bytes": len(value), "value_bytes_max": limits.value_bytes_max})


def check_expected(entry: Entry | None, expect: int) -> None:
    """The condition of a write: 0, -1, or a revision."""
    found = 0 if entry is None else entry.revision
    if expect == found or (expect == -1 and found):
        return
    if expect < -1:
        raise Rejected("bad_request", {"expect": expect, "least": -1})
    raise Rejected("conflict", {"expect": expect, "revision": found})


def successor(previous: Entry | None, key: bytes, value: bytes, revision: int, lease: int) -> Entry:
    if previous is None:
        return Entry(key, value, revision, revision, 1, lease)
    return Entry(previous.key, value, revision, previous.created, previous.version + 1, lease)


def sum_of(entry: Entry | None, delta: int) -> int:
    """What a counter has after ``delta`` was added; it is a decimal number, as ``str`` writes it."""
    before = 0 if entry is None else _number(entry.value)
    after = before + delta
    if not _LEAST <= after <= _MOST:
        raise Rejected("out_of_range", {"value": before, "delta": delta})
    return after


def _number(value: bytes) -> int:
    if len(value) <= _NUMBER_MAX:
        try:
            number = int(value)
        except ValueError:
            pass
        else:
            if b"%d" % number == value and _LEAST <= number <= _MOST:
                return number
    raise Rejected("not_a_number", {"value_bytes": len(value)})
