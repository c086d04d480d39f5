"""What happened, as far as it is retained?

Changes are numbered and kept in the order in which they happened. Each has the entry that it replaced: that
is what history keeps alive beyond the state itself, and what its bytes are counted by. Forgetting
goes by whole revisions, the oldest first; the newest always stays.

A key's own changes are found by their numbers. The oldest of these may be of changes that are forgotten; they
are dropped now and then, so that a key that is written all the time costs no more than others.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from apps.kv.types import MIB, Entry, Event, History, Limits
from rsm.errors import Rejected
from rsm.feeds import Feed

CHANGE_BYTES: Final = 100  # of a change beside its key and the value that it replaced
PAGE_EVENTS_MAX: Final = 10_000
PAGE_BYTES: Final = MIB
FORGOTTEN_MAX: Final = 10_000  # changes in one slot, by whole revisions: some milliseconds
_SPARE: Final = 1024  # places of forgotten changes, before they are cut off
_SPARE_NUMBERS: Final = 8
_TRIMMED: Final = 64  # one part of so many is forgotten at a time


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From ``previous`` to ``entry``; None: the key was not there, is not there any more."""

    revision: int
    key: bytes
    entry: Entry | None
    previous: Entry | None
    expired: bool = False


_FORGOTTEN: Final = Change(0, b"", None, None)


class Changes:
    """``compacted``: the newest revision that is forgotten."""

    def __init__(self) -> None:
        self.compacted = 0
        self.bytes = 0
        self._changes: list[Change] = []
        self._revisions: list[int] = []
        self._head = 0  # place of the oldest that is retained
        self._first = 0  # number of what has place 0
        self._trimmed_at = 0  # the slot that has forgotten its share
        self._of_key: dict[bytes, int | list[int]] = {}  # numbers; a list only if there are several

    def load(self, number: int, compacted: int, changes: Iterable[Change]) -> None:
        """``number``: of the first of them."""
        self._first, self.compacted = number, compacted
        for change in changes:
            self.add(change, None)

    @property
    def last(self) -> int:
        """The newest revision."""
        return self._revisions[-1] if self._revisions else self.compacted

    @property
    def number(self) -> int:
        """Of the oldest that is retained."""
        return self._first + self._head

    def __len__(self) -> int:
        return len(self._changes) - self._head

    def retained(self) -> list[Change]:
        return self._changes[self._head :]

    # -- writing ---------------------------------------------------------------------------------

    def add(self, change: Change, limits: Limits | None) -> None:
        """Without limits it is one of those that are loaded."""
        key, previous, changes, of_key = change.key, change.previous, self._changes, self._of_key
        number = self._first + len(changes)
        changes.append(change)
        self._revisions.append(change.revision)
        numbers = of_key.get(key)
        if numbers is None:
            of_key[key] = number
        elif isinstance(numbers, int):
            of_key[key] = [numbers, number]
        else:
            numbers.append(number)
            if len(numbers) > _SPARE_NUMBERS and numbers[len(numbers) >> 1] < self._first + self._head:
                del numbers[: bisect_left(numbers, self.number)]
        # As ``_cost_of`` has it; this is done for every write.
        self.bytes = size = (
            self.bytes + CHANGE_BYTES + len(key) + (0 if previous is None else len(previous.value))
        )
        if limits is not None and (
            size > limits.history_bytes_max or len(changes) - self._head > limits.history_events_max
        ):
            self.trim(limits, change.revision)

    def trim(self, limits: Limits, slot: int) -> None:
        """If it is more than the limits allow, forget the oldest revisions: a few more than need be, for many
        at a time are sooner forgotten than each by itself; and once in a slot. If it is much more, for they
        were larger, the slots that follow forget the rest."""
        most, most_bytes = limits.history_events_max, limits.history_bytes_max
        if slot == self._trimmed_at or (self.bytes <= most_bytes and len(self) <= most):
            return
        self._trimmed_at = slot
        most -= most // _TRIMMED
        most_bytes -= most_bytes // _TRIMMED
        revisions, end = self._revisions, self._head
        newest = bisect_left(revisions, revisions[-1], end) if revisions else end
        newest = min(newest, self._share())
        size = self.bytes
        while end < newest and (size > most_bytes or len(revisions) - end > most):
            size -= _cost_of(self._changes[end])
            end += 1
        if end > self._head:
            self._forget(revisions[end - 1])

    def compact(self, revision: int) -> tuple[int, bool]:
        """Forget what happened up to there, or as much of it as a slot may; gives how many changes that were,
        and whether there are more."""
        before = len(self)
        wanted = bisect_right(self._revisions, revision, self._head)
        end = min(wanted, self._share())
        if end > self._head:
            self._forget(self._revisions[end - 1])
        return before - len(self), end < wanted

    def _share(self) -> int:
        """The place behind what one slot may forget: whole revisions, and at least one."""
        revisions, head = self._revisions, self._head
        end = head + FORGOTTEN_MAX
        if end >= len(revisions):
            return len(revisions)
        begin = bisect_left(revisions, revisions[end], head)
        return begin if begin > head else bisect_right(revisions, revisions[end], head)

    def _forget(self, revision: int) -> None:
        """Up to and with this one, which is retained."""
        changes, of_key = self._changes, self._of_key
        end = bisect_right(self._revisions, revision, self._head)
        for place in range(self._head, end):
            change = changes[place]
            changes[place] = _FORGOTTEN  # its values are let go now, its place later
            self.bytes -= _cost_of(change)
            numbers = of_key[change.key]
            if self._first + place == (numbers if isinstance(numbers, int) else numbers[-1]):
                del of_key[change.key]
        self._head = end
        self.compacted = revision
        if end >= _SPARE or end == len(changes):
            del changes[:end], self._revisions[:end]
            self._first += end
            self._head = 0

    # -- reading ---------------------------------------------------------------------------------

    def entry_at(self, key: bytes, revision: int, now: Entry | None) -> Entry | None:
        """What the key was; ``now`` is what it is."""
        if revision < self.compacted:
            raise Rejected("compacted", {"revision": revision, "compacted": self.compacted})
        numbers = self._numbers(key)
        if not numbers:
            return now
        end = bisect_left(numbers, self._first + bisect_right(self._revisions, revision, self._head))
        if end and numbers[end - 1] >= self.number:
            return self._changes[numbers[end - 1] - self._first].entry
        return self._changes[numbers[end] - self._first].previous

    def of(self, key: bytes, since: int, limit: int) -> History:
        """What happened to a key behind a revision, whole revisions only."""
        limit = _page_limit(limit)
        numbers = self._numbers(key)
        begin = bisect_left(numbers, self._first + bisect_right(self._revisions, since, self._head))
        events: list[Event] = []
        size = 0
        for at in range(begin, len(numbers)):
            change = self._changes[numbers[at] - self._first]
            if (len(events) >= limit or size >= PAGE_BYTES) and change.revision != events[-1].revision:
                return History(events, True, self.compacted)
            events.append(_event_of(change))
            size += _size_of(change)
        return History(events, False, self.compacted)

    def since(self, since: int, start: bytes, end: bytes | None, limit: int) -> Feed[Event]:
        """What happened behind a revision to keys in [start, end), whole revisions only. All that is
        retained behind it may be looked at, and nothing before it."""
        limit = _page_limit(limit)
        if since < self.compacted:
            raise Rejected("compacted", {"since": since, "compacted": self.compacted})
        events: list[Event] = []
        size, position = 0, since
        for change in self._behind(since):
            if change.revision != position:
                if len(events) >= limit or size >= PAGE_BYTES:
                    return Feed(events, position)
                position = change.revision
            if start <= change.key and (end is None or change.key < end):
                events.append(_event_of(change))
                size += _size_of(change)
        return Feed(events, position)

    def numbered(self, number: int, most: int) -> list[Change] | None:
        """The changes from this number on, so many at most; None: some of them are forgotten."""
        place = number - self._first
        return None if place < self._head else self._changes[place : place + most]

    def _numbers(self, key: bytes) -> list[int]:
        numbers = self._of_key.get(key)
        if numbers is None:
            return []
        return [numbers] if isinstance(numbers, int) else numbers

    def _behind(self, revision: int) -> Iterator[Change]:
        changes = self._changes
        for place in range(bisect_right(self._revisions, revision, self._head), len(changes)):
            yield changes[place]


def _page_limit(limit: int) -> int:
    if limit < 1:
        raise Rejected("bad_request", {"limit": limit, "least": 1})
    return min(limit, PAGE_EVENTS_MAX)


def _event_of(change: Change) -> Event:
    entry = change.entry
    if entry is None:
        return Event(change.revision, change.key, None, expired=change.expired)
    return Event(change.revision, change.key, entry.value, entry.created, entry.version, entry.lease)


def _cost_of(change: Change) -> int:
    previous = change.previous
    return CHANGE_BYTES + len(change.key) + (0 if previous is None else len(previous.value))


def _size_of(change: Change) -> int:
    return len(change.key) + (len(change.entry.value) if change.entry is not None else 0)
