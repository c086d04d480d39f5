"""Who holds a lock, and who waits for it?

A lock belongs to a lease and goes with it. Its token is the slot in which it was granted: each holder's
is larger than that of the one before. A lock that nobody holds is not kept.

Where a lease ends just before a command of the same slot, a lock may change hands twice in that slot. Nobody
can have learned of the first holder's grant then, so tokens still tell apart all that were ever seen.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
from sortedcontainers import SortedDict, SortedList

from apps.kv.types import Limits, LockState
from rsm.errors import Rejected


class Lock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: bytes
    lease: int
    token: int
    waiting: tuple[int, ...] = ()


class Locks:
    def __init__(self) -> None:
        self.held: Any = SortedDict()  # name → Lock
        self.counts: dict[int, int] = {}  # of each lease, what it holds and waits for
        self._places: Any = SortedList()  # (lease, name): the same
        self.waiting = 0

    def load(self, locks: Iterable[Lock]) -> None:
        self.held = SortedDict((lock.name, lock) for lock in locks)
        places = [(lease, lock.name) for lock in self.held.values() for lease in (lock.lease, *lock.waiting)]
        self._places = SortedList(places)
        self.waiting = len(places) - len(self.held)
        for lease, _ in places:
            self.counts[lease] = self.counts.get(lease, 0) + 1

    def state(self, name: bytes, lease: int = 0) -> LockState:
        """As ``lease`` sees it."""
        lock: Lock | None = self.held.get(name)
        if lock is None:
            return LockState(name, 0, 0, 0)
        place = lock.waiting.index(lease) + 1 if lease in lock.waiting else 0
        return LockState(name, lock.lease, lock.token, len(lock.waiting), place)

    def token(self, name: bytes) -> int:
        lock: Lock | None = self.held.get(name)
        return 0 if lock is None else lock.token

    def between(self, start: bytes, end: bytes | None, limit: int) -> list[LockState]:
        if end is not None and start >= end:
            return []
        names = self.held.irange(start, end, (True, False))
        return [self.state(name) for name in islice(names, limit)]

    def take(self, name: bytes, lease: int, revision: int, limits: Limits, *, wait: bool) -> None:
        """The lock if it is free, else a place in its queue. Who has either keeps it."""
        lock: Lock | None = self.held.get(name)
        if lock is not None and (lock.lease == lease or (wait and lease in lock.waiting)):
            return
        if lock is not None and not wait:
            raise Rejected("locked", {"lease": lock.lease, "token": lock.token})
        if len(self._places) >= limits.locks_max:
            raise Rejected("full", {"locks_max": limits.locks_max})
        if lock is None:
            self.held[name] = Lock(name, lease, revision)
        elif len(lock.waiting) >= limits.waiting_max:
            raise Rejected("full", {"waiting_max": limits.waiting_max})
        else:
            self.held[name] = Lock(name, lock.lease, lock.token, (*lock.waiting, lease))
            self.waiting += 1
        self._places.add((lease, lock.name if lock is not None else name))
        self.counts[lease] = self.counts.get(lease, 0) + 1

    def leave(self, name: bytes, lease: int, revision: int, is_live: Callable[[int], bool]) -> None:
        """Give back the lock, or the place in the queue. The first that waits and lives has it then."""
        lock: Lock | None = self.held.get(name)
        if lock is None or (lock.lease != lease and lease not in lock.waiting):
            raise Rejected("not_held", {"lease": lock.lease if lock is not None else 0})
        self._drop(lease, name)
        if lock.lease != lease:
            rest = tuple(other for other in lock.waiting if other != lease)
            self.held[name] = Lock(name, lock.lease, lock.token, rest)
            self.waiting -= 1
            return
        for place, heir in enumerate(lock.waiting, 1):
            self.waiting -= 1
            if is_live(heir):
                self.held[name] = Lock(name, heir, revision, lock.waiting[place:])
                return
            self._drop(heir, name)
        del self.held[name]

    def names_of(self, lease: int) -> Iterator[bytes]:
        """What it holds or waits for, in order."""
        return (name for _, name in self._places.irange((lease,), (lease + 1,)))

    def _drop(self, lease: int, name: bytes) -> None:
        self._places.remove((lease, name))
        count = self.counts[lease] = self.counts[lease] - 1
        if not count:
            del self.counts[lease]
