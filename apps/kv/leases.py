"""What lives as long as somebody renews it? Leases, and the keys that are attached to them.

A lease ends when the group's time has reached its end. Then it is none any more, at once; what is attached to
it goes in steps of a bounded size, and until it has gone the lease is among those that are ``ending``.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from sortedcontainers import SortedDict, SortedList

from apps.kv.types import Entry, Limits
from rsm.errors import Rejected

MS: Final = 1_000_000  # nanoseconds


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``own``: it was made by a time to live, and goes with its last key."""

    id: int
    ttl_ms: int
    ends_ns: int
    own: bool = False


class Leases:
    """``last_id``: ids grow, and none is given twice."""

    def __init__(self) -> None:
        self.last_id = 0
        self.records: Any = SortedDict()  # id → Record
        self.ending: deque[int] = deque()
        self.resume_ns = 0  # when the last step was made, while there are more to make
        self.key_counts: dict[int, int] = {}
        self._ends: Any = SortedList()  # (ends_ns, id)
        self._keys: Any = SortedList()  # (id, key)

    def load(self, records: Iterable[Record], keys: Iterable[tuple[int, bytes]]) -> None:
        self.records = SortedDict((record.id, record) for record in records)
        self._ends = SortedList((record.ends_ns, record.id) for record in self.records.values())
        self._keys = SortedList(keys)
        for lease, _ in self._keys:
            self.key_counts[lease] = self.key_counts.get(lease, 0) + 1

    # -- leases ----------------------------------------------------------------------------------

    def check_ttl(self, ttl_ms: int, limits: Limits, *, more: int = 0) -> None:
        """Whether such a lease can be granted, beside ``more`` others."""
        if not 1 <= ttl_ms <= limits.lease_ms_max:
            raise Rejected("bad_request", {"ttl_ms": ttl_ms, "least": 1, "most": limits.lease_ms_max})
        if len(self.records) + more >= limits.leases_max:
            raise Rejected("full", {"leases_max": limits.leases_max})

    def next_id(self, revision: int) -> int:
        """The revision; or, where a transaction needs several, the next number that no lease has had."""
        return max(revision, self.last_id + 1)

    def grant(self, lease: int, ttl_ms: int, now_ns: int, *, own: bool = False) -> Record:
        record = Record(lease, ttl_ms, now_ns + ttl_ms * MS, own)
        self.last_id = lease
        self.records[lease] = record
        self._ends.add((record.ends_ns, lease))
        return record

    def find(self, lease: int) -> Record:
        record: Record | None = self.records.get(lease)
        if record is None:
            raise Rejected("lease_expired", {"lease": lease})
        return record

    def renew(self, record: Record, now_ns: int) -> Record:
        renewed = Record(record.id, record.ttl_ms, now_ns + record.ttl_ms * MS, record.own)
        self._ends.remove((record.ends_ns, record.id))
        self._ends.add((renewed.ends_ns, record.id))
        self.records[record.id] = renewed
        return renewed

    def end(self, record: Record) -> None:
        """It is none any more."""
        del self.records[record.id]
        self._ends.remove((record.ends_ns, record.id))

    # -- keys ------------------------------------------------------------------------------------

    def attach(self, lease: int, key: bytes) -> None:
        self._keys.add((lease, key))
        self.key_counts[lease] = self.key_counts.get(lease, 0) + 1

    def detach(self, lease: int, key: bytes) -> Record | None:
        """Gives the lease if it is to end now: it was the key's own."""
        record: Record | None = self.records.get(lease)
        self._keys.remove((lease, key))
        count = self.key_counts[lease] = self.key_counts[lease] - 1
        if count:
            return None
        del self.key_counts[lease]
        return record if record is not None and record.own else None

    def goes_with(self, entry: Entry | None) -> bool:
        """Whether a lease ends when the entry loses it."""
        if entry is None or self.key_counts.get(entry.lease) != 1:
            return False
        record: Record | None = self.records.get(entry.lease)
        return record is not None and record.own

    def keys_of(self, lease: int) -> Iterator[bytes]:
        """In order."""
        return (key for _, key in self._keys.irange((lease,), (lease + 1,)))

    # -- time ------------------------------------------------------------------------------------

    @property
    def alarm(self) -> int | None:
        if self.ending:
            return self.resume_ns
        return self._ends[0][0] if self.records else None

    def due(self, now_ns: int, most: int) -> list[Record]:
        """Those whose time is over, the earliest first."""
        found: list[Record] = []
        for ends_ns, lease in self._ends:
            if ends_ns > now_ns or len(found) == most:
                break
            found.append(self.records[lease])
        return found
