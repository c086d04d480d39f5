"""What does each command and query do? (``docs/kv.md``)"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

from apps.kv import snapshots
from apps.kv.history import Change, Changes
from apps.kv.keyspace import (
    PAGE_BYTES,
    Keyspace,
    check_expected,
    check_key,
    check_value,
    page,
    successor,
    sum_of,
)
from apps.kv.leases import MS, Leases, Record
from apps.kv.locks import Locks
from apps.kv.recorded import StoreHistory
from apps.kv.repeats import Repeats
from apps.kv.transactions import Sketch, check_size, holds
from apps.kv.types import (
    LIMITS_RANGES,
    Compacted,
    Compare,
    Counted,
    Deleted,
    DeletedRange,
    Entry,
    Event,
    History,
    Lease,
    Limits,
    Listing,
    LockState,
    Once,
    Operation,
    Revoked,
    Statistics,
    TxnResult,
    Written,
)
from rsm.errors import Rejected
from rsm.feeds import Feed
from rsm.state_machine import StateMachine, command, detached, query

T = TypeVar("T")

STEP_MAX: Final = 1000  # keys, locks and leases that go in one slot
LISTED_MAX: Final = 1000  # leases, or locks


class KeyValueStore(StateMachine):
    """Keys and values in order, with revisions, transactions, leases, locks, and what happened before.

    Run it:   rsm replica apps.kv:KeyValueStore ...
    Over HTTP: rsm gateway ...
    """

    def __init__(self) -> None:
        self._take(snapshots.Parts(Limits(), Keyspace(), Changes(), Leases(), Locks(), Repeats()))

    def _take(self, parts: snapshots.Parts) -> None:
        self._limits = parts.limits
        self._keyspace = parts.keyspace
        self._changes = parts.changes
        self._leases = parts.leases
        self._locks = parts.locks
        self._repeats = parts.repeats
        self._recorded = StoreHistory(parts.keyspace, parts.changes)

    # -- keys ------------------------------------------------------------------------------------

    @command
    def put(
        self,
        key: bytes,
        value: bytes,
        expect: int | None = None,
        ttl_ms: int | None = None,
        lease: int | None = None,
        once: Once | None = None,
    ) -> Written:
        """Write a key. Without ``lease`` or ``ttl_ms`` it loses what it had of them."""
        if once is not None:
            return self._once(once, "put", Written, lambda: self.put(key, value, expect, ttl_ms, lease))
        limits = self._limits
        check_key(key, limits)
        check_value(value, limits)
        previous = self._keyspace.entries.get(key)
        if expect is not None:
            check_expected(previous, expect)
        growth = len(value) - len(previous.value) if previous is not None else len(key) + len(value)
        if growth > 0:
            self._check_room(growth)
        revision = self.context.timestamp
        attached = 0
        if ttl_ms is not None or lease is not None:
            attached = self._lease_for(previous, ttl_ms, lease)
        entry = successor(previous, key, value, revision, attached)
        self._write(previous, entry)
        return Written(revision, entry.created, entry.version, attached)

    @command
    def delete(self, key: bytes, expect: int | None = None, once: Once | None = None) -> Deleted:
        """Remove a key, if it is there."""
        if once is not None:
            return self._once(once, "delete", Deleted, lambda: self.delete(key, expect))
        entry = self._keyspace.entries.get(key)
        if expect is not None:
            check_expected(entry, expect)
        if entry is not None:
            self._remove(entry)
        return Deleted(self.context.timestamp, entry is not None)

    @command
    def delete_range(
        self, start: bytes, end: bytes | None, limit: int = STEP_MAX, once: Once | None = None
    ) -> DeletedRange:
        """Remove the first keys in [start, end), 1,000 at most; without ``end``, from ``start`` on."""
        if once is not None:
            return self._once(
                once, "delete_range", DeletedRange, lambda: self.delete_range(start, end, limit)
            )
        found = page(self._keyspace.between(start, end), min(limit, STEP_MAX), 0, keys_only=True)
        for item in found.items:
            self._remove(self._keyspace.entries[item.key])
        return DeletedRange(self.context.timestamp, len(found.items), found.more)

    @command
    def add(self, key: bytes, delta: int, once: Once | None = None) -> Counted:
        """Count. The value is a decimal number of 64 bits; a key that is not there has 0."""
        if once is not None:
            return self._once(once, "add", Counted, lambda: self.add(key, delta))
        check_key(key, self._limits)
        previous = self._keyspace.entries.get(key)
        number = sum_of(previous, delta)
        value = b"%d" % number
        self._check_room(len(value) - len(previous.value) if previous is not None else len(key) + len(value))
        revision, lease = self.context.timestamp, previous.lease if previous is not None else 0
        entry = successor(previous, key, value, revision, lease)
        self._write(previous, entry)
        return Counted(revision, number, entry.created, entry.version, lease)

    @command
    def txn(
        self,
        compare: list[Compare],
        then: list[Operation],
        otherwise: list[Operation],
        once: Once | None = None,
    ) -> TxnResult:
        """If all comparisons hold ``then``, else ``otherwise``; at once, and all or nothing."""
        if once is not None:
            return self._once(once, "txn", TxnResult, lambda: self.txn(compare, then, otherwise))
        check_size(compare, then, otherwise, self._limits)
        succeeded = True
        for place, each in enumerate(compare):
            try:
                succeeded &= holds(each, self._keyspace.entries.get(each.key), self._locks)
            except Rejected as refusal:
                raise Rejected(refusal.message, {"comparison": place, **_detail(refusal)}) from None
        revision = self.context.timestamp
        sketch = Sketch(self._keyspace, self._leases, self._limits, revision)
        results = sketch.carry_out(then if succeeded else otherwise)
        self._check_room(sketch.growth())
        self._take_over(sketch)
        return TxnResult(succeeded, revision, results)

    def _take_over(self, sketch: Sketch) -> None:
        """From here on nothing is refused."""
        needed = {entry.lease for entry in sketch.entries.values() if entry is not None}
        for lease, ttl_ms in sketch.granted.items():
            if lease in needed:
                self._leases.grant(lease, ttl_ms, self.context.time_ns, own=True)
        for key, entry in sketch.entries.items():
            previous = self._keyspace.entries.get(key)
            if entry is not None:
                self._write(previous, entry)
            elif previous is not None:
                self._remove(previous)

    @query
    def get(self, key: bytes, revision: int | None = None) -> Entry | None:
        """A key as it is, or as it was at a revision that is retained."""
        entry = self._keyspace.entries.get(key)
        if revision is None:
            return entry
        if revision > self.context.timestamp:
            raise Rejected("future", {"revision": revision, "newest": self.context.timestamp})
        return self._changes.entry_at(key, revision, entry)

    @query
    def range(
        self, start: bytes = b"", end: bytes | None = None, limit: int = 1000, keys_only: bool = False
    ) -> Listing:
        """A page of keys in [start, end), in order: 10,000 and a mebibyte at most, but at least one."""
        return page(self._keyspace.between(start, end), limit, self._changes.last, keys_only=keys_only)

    @query
    def history(self, key: bytes, since: int = 0, limit: int = 1000) -> History:
        """What happened to a key behind a revision, as far as it is retained."""
        return self._changes.of(key, since, limit)

    @query
    def changes(
        self, since: int, start: bytes = b"", end: bytes | None = None, limit: int = 1000
    ) -> Feed[Event]:
        """What happened behind a revision to keys in [start, end), whole revisions only."""
        return self._changes.since(since, start, end, limit)

    # -- leases ----------------------------------------------------------------------------------

    @command
    def lease_grant(self, ttl_ms: int, once: Once | None = None) -> Lease:
        """A lease that ends unless it is renewed in time."""
        if once is not None:
            return self._once(once, "lease_grant", Lease, lambda: self.lease_grant(ttl_ms))
        self._leases.check_ttl(ttl_ms, self._limits)
        made = self._leases.next_id(self.context.timestamp)
        return self._lease_state(self._leases.grant(made, ttl_ms, self.context.time_ns))

    @command
    def lease_renew(self, lease: int) -> Lease:
        """From now on its whole time again."""
        return self._lease_state(self._leases.renew(self._leases.find(lease), self.context.time_ns))

    @command
    def lease_revoke(self, lease: int) -> Revoked:
        """End it now. Its keys and locks go; if they are more than 1,000, in as many slots as that takes."""
        record = self._leases.find(lease)
        keys, locks = self._leases.key_counts.get(lease, 0), self._locks.counts.get(lease, 0)
        self._end(record)
        self._end_some()
        return Revoked(self.context.timestamp, keys, locks)

    @query
    def leases(self, after: int = 0, limit: int = LISTED_MAX) -> list[Lease]:
        """Those with a larger id than ``after``, in order, 1,000 at most."""
        found = self._leases.records.irange(after, None, (False, True))
        return [
            self._lease_state(self._leases.records[lease])
            for lease in islice(found, max(min(limit, LISTED_MAX), 0))
        ]

    @query
    def lease(self, lease: int) -> Lease | None:
        record: Record | None = self._leases.records.get(lease)
        return None if record is None else self._lease_state(record)

    def _lease_state(self, record: Record) -> Lease:
        return Lease(
            record.id,
            record.ttl_ms,
            record.ends_ns,
            max(record.ends_ns - self.context.time_ns, 0) // MS,
            self._leases.key_counts.get(record.id, 0),
            self._locks.counts.get(record.id, 0),
        )

    def _lease_for(self, previous: Entry | None, ttl_ms: int | None, lease: int | None) -> int:
        """The lease that a key is to have: one that is there, or one of its own, granted now."""
        if ttl_ms is None:
            assert lease is not None
            return self._leases.find(lease).id
        if lease is not None:
            raise Rejected("bad_request", {"ttl_ms": ttl_ms, "lease": lease})
        self._leases.check_ttl(ttl_ms, self._limits, more=-1 if self._leases.goes_with(previous) else 0)
        made = self._leases.next_id(self.context.timestamp)
        return self._leases.grant(made, ttl_ms, self.context.time_ns, own=True).id

    # -- locks -----------------------------------------------------------------------------------

    @command
    def lock(self, name: bytes, lease: int, wait: bool = False) -> LockState:
        """Take a lock for a lease, or with ``wait`` a place in its queue. Who has it keeps its token."""
        check_key(name, self._limits)
        self._leases.find(lease)
        self._locks.take(name, lease, self.context.timestamp, self._limits, wait=wait)
        return self._locks.state(name, lease)

    @command
    def unlock(self, name: bytes, lease: int) -> LockState:
        """Give a lock back, or leave its queue. The first that waits has it then."""
        self._locks.leave(name, lease, self.context.timestamp, self._leases.records.__contains__)
        return self._locks.state(name, lease)

    @query
    def locks(self, start: bytes = b"", end: bytes | None = None, limit: int = LISTED_MAX) -> list[LockState]:
        """Locks that are held, by name in [start, end), 1,000 at most."""
        return self._locks.between(start, end, max(min(limit, LISTED_MAX), 0))

    @query
    def lock_of(self, name: bytes, lease: int = 0) -> LockState:
        """A lock as ``lease`` sees it."""
        return self._locks.state(name, lease)

    @query
    def lock_turn(self, since: int, name: bytes, lease: int) -> Feed[LockState]:
        """Nothing as long as ``lease`` waits in the queue it was in at slot ``since``; then the lock."""
        newest, found = self.context.timestamp, self._locks.state(name, lease)
        return Feed([], since) if newest < since or found.place else Feed([found], newest)

    # -- the store itself ------------------------------------------------------------------------

    @command
    def compact(self, revision: int) -> Compacted:
        """Forget what happened up to this revision, 10,000 changes at most, and the rest of a revision."""
        if not 0 <= revision <= self.context.timestamp:
            raise Rejected("bad_request", {"revision": revision, "least": 0, "most": self.context.timestamp})
        events, more = self._changes.compact(revision)
        return Compacted(self._changes.compacted, events, more)

    @command
    def configure(self, limits: Limits) -> Limits:
        """Other limits, from here on. What is above them stays, but for history and remembered requests."""
        for name, (least, most) in LIMITS_RANGES.items():
            value = getattr(limits, name)
            if not least <= value <= most:
                raise Rejected("bad_request", {"limit": name, "value": value, "least": least, "most": most})
        self._limits = limits
        self._changes.trim(limits, self.context.timestamp)
        self._repeats.trim(self.context.time_ns, limits)
        return limits

    @query
    def statistics(self) -> Statistics:
        return Statistics(
            revision=self._changes.last,
            keys=len(self._keyspace.entries),
            data_bytes=self._keyspace.bytes,
            compacted=self._changes.compacted,
            history_events=len(self._changes),
            history_bytes=self._changes.bytes,
            leases=len(self._leases.records),
            locks=len(self._locks.held),
            waiting=self._locks.waiting,
            once=len(self._repeats.kept),
            once_bytes=self._repeats.bytes,
            limits=self._limits,
        )

    # -- time ------------------------------------------------------------------------------------

    def alarm(self) -> int | None:
        return self._leases.alarm

    def on_alarm(self) -> None:
        for record in self._leases.due(self.context.time_ns, STEP_MAX):
            self._end(record)
        self._end_some()

    def _end(self, record: Record) -> None:
        """The lease is none any more; what is attached to it goes in steps."""
        leases = self._leases
        leases.end(record)
        if record.id in leases.key_counts or record.id in self._locks.counts:
            leases.ending.append(record.id)
            leases.resume_ns = self.context.time_ns

    def _end_some(self) -> None:
        """Take what is attached to leases that have ended: so many keys and locks, and no more than a page of
        keys, for all of this is one revision."""
        leases, locks = self._leases, self._locks
        size, left = 0, STEP_MAX
        while leases.ending and left > 0 and size < PAGE_BYTES:
            lease = leases.ending[0]
            for name in list(islice(locks.names_of(lease), left)):
                locks.leave(name, lease, self.context.timestamp, leases.records.__contains__)
                left -= 1
            for key in list(islice(leases.keys_of(lease), left)):
                self._remove(self._keyspace.entries[key], expired=True)
                size += len(key)
                left -= 1
                if size >= PAGE_BYTES:
                    break
            if lease not in leases.key_counts and lease not in locks.counts:
                leases.ending.popleft()
                left -= 1
        leases.resume_ns = self.context.time_ns

    # -- snapshots -------------------------------------------------------------------------------

    @detached
    def snapshot(self) -> Iterable[bytes]:
        return snapshots.written(
            snapshots.Parts(
                self._limits, self._keyspace, self._changes, self._leases, self._locks, self._repeats
            )
        )

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._take(snapshots.read(chunks))

    def recorded_history(self) -> StoreHistory:
        return self._recorded

    # -- how things change -----------------------------------------------------------------------

    def _once(self, once: Once, name: str, kind: type[T], call: Callable[[], T]) -> T:
        return self._repeats.carry_out(once, name, kind, call, self.context.time_ns, self._limits)

    def _check_room(self, growth: int) -> None:
        total = self._keyspace.bytes + growth
        if growth > 0 and total > self._limits.data_bytes_max:
            raise Rejected("full", {"data_bytes": total, "data_bytes_max": self._limits.data_bytes_max})

    def _write(self, previous: Entry | None, entry: Entry) -> None:
        key, lease = entry.key, entry.lease
        self._keyspace.set(previous, entry)
        before = 0 if previous is None else previous.lease
        if before != lease:
            if lease:
                self._leases.attach(lease, key)
            if before:
                self._detach(before, key)
        self._changes.add(Change(entry.revision, key, entry, previous), self._limits)

    def _remove(self, entry: Entry, *, expired: bool = False) -> None:
        self._keyspace.remove(entry)
        if entry.lease:
            self._detach(entry.lease, entry.key)
        self._changes.add(Change(self.context.timestamp, entry.key, None, entry, expired), self._limits)

    def _detach(self, lease: int, key: bytes) -> None:
        over = self._leases.detach(lease, key)
        if over is not None:
            self._end(over)


def _detail(refusal: Rejected) -> dict[str, object]:
    return refusal.detail if isinstance(refusal.detail, dict) else {}
