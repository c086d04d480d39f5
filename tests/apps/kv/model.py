"""The store as simply as it can be said: nothing is bounded, indexed or forgotten, and every question is
answered by looking at everything."""

from collections.abc import Callable
from typing import Any

from apps.kv import (
    Add,
    Compare,
    Counted,
    Delete,
    Deleted,
    DeletedRange,
    Entry,
    Event,
    Found,
    Get,
    Listing,
    LockState,
    Operation,
    Outcome,
    Put,
    Range,
    TxnResult,
    Written,
)
from tests.apps.kv.kit import MS


class Refused(Exception):
    """The code of a refusal."""


class Model:
    def __init__(self) -> None:
        self.revision = 0
        self.time_ns = 0
        self.entries: dict[bytes, Entry] = {}
        self.events: list[Event] = []
        self.ends_ns: dict[int, int] = {}
        self.ttl_ms: dict[int, int] = {}
        self.own: set[int] = set()
        self.last_lease = 0
        self.queues: dict[bytes, list[int]] = {}  # the first is the holder
        self.tokens: dict[bytes, int] = {}
        self.answers: dict[bytes, tuple[bytes, str, Any]] = {}

    def slot(self, revision: int, time_ns: int) -> None:
        self.revision, self.time_ns = revision, time_ns
        over = [lease for lease, ends in self.ends_ns.items() if ends <= time_ns]
        for lease in sorted(over, key=lambda lease: (self.ends_ns[lease], lease)):
            del self.ends_ns[lease]
        for lease in over:
            self.leave_all(lease)
        for lease in over:
            self.delete_keys_of(lease)

    # -- keys ------------------------------------------------------------------------------------

    def once(self, key: bytes, digest: bytes, name: str, call: Callable[[], Any]) -> Any:
        if key in self.answers:
            if self.answers[key][:2] != (digest, name):
                raise Refused("key_reused")
            return self.answers[key][2]
        answer = call()
        self.answers[key] = (digest, name, answer)
        return answer

    def put(
        self, key: bytes, value: bytes, expect: int | None, ttl_ms: int | None, lease: int | None
    ) -> Written:
        self.expect(key, expect)
        if lease is not None and (ttl_ms is not None or lease not in self.ends_ns):
            raise Refused("bad_request" if ttl_ms is not None else "lease_expired")
        if ttl_ms is not None:
            lease = self.lease_grant(ttl_ms)
            self.own.add(lease)
        entry = self.following(self.entries.get(key), key, value, lease or 0)
        self.become({key: entry})
        return Written(entry.revision, entry.created, entry.version, entry.lease)

    def delete(self, key: bytes, expect: int | None) -> Deleted:
        self.expect(key, expect)
        found = key in self.entries
        self.become({key: None})
        return Deleted(self.revision, found)

    def delete_range(self, start: bytes, end: bytes | None, limit: int) -> DeletedRange:
        keys = self.between(self.entries, start, end)
        self.become({key: None for key in keys[:limit]})
        return DeletedRange(self.revision, len(keys[:limit]), len(keys) > limit)

    def add(self, key: bytes, delta: int) -> Counted:
        entry = self.counted(self.entries.get(key), key, delta)
        self.become({key: entry})
        return Counted(self.revision, int(entry.value), entry.created, entry.version, entry.lease)

    def expect(self, key: bytes, expect: int | None) -> None:
        entry = self.entries.get(key)
        if not (
            expect is None
            or (expect == -1 and entry is not None)
            or (expect == 0 and entry is None)
            or (entry is not None and expect == entry.revision)
        ):
            raise Refused("conflict")

    def following(self, before: Entry | None, key: bytes, value: bytes, lease: int) -> Entry:
        created = before.created if before is not None else self.revision
        version = before.version + 1 if before is not None else 1
        return Entry(key, value, self.revision, created, version, lease)

    def counted(self, before: Entry | None, key: bytes, delta: int) -> Entry:
        if before is not None and not before.value.removeprefix(b"-").isdigit():
            raise Refused("not_a_number")
        number = delta + (int(before.value) if before is not None else 0)
        return self.following(before, key, str(number).encode(), before.lease if before is not None else 0)

    def between(self, entries: dict[bytes, Entry], start: bytes, end: bytes | None) -> list[bytes]:
        return sorted(key for key in entries if start <= key and (end is None or key < end))

    def become(self, drawn: dict[bytes, Entry | None], *, expired: bool = False) -> None:
        for key, entry in drawn.items():
            before = self.entries.pop(key, None)
            if entry is not None:
                self.entries[key] = entry
                self.events.append(
                    Event(self.revision, key, entry.value, entry.created, entry.version, entry.lease)
                )
            elif before is not None:
                self.events.append(Event(self.revision, key, None, expired=expired))
        used = {entry.lease for entry in self.entries.values()}
        for lease in self.own - used:
            self.ends_ns.pop(lease, None)
        self.own &= used

    # -- transactions ----------------------------------------------------------------------------

    def txn(self, compare: list[Compare], then: list[Operation], otherwise: list[Operation]) -> TxnResult:
        succeeded = all(map(self.holds, compare))
        entries, drawn = dict(self.entries), dict[bytes, Entry | None]()
        granted: dict[int, int] = {}
        results = [self.do(each, entries, drawn, granted) for each in (then if succeeded else otherwise)]
        for lease, ttl_ms in granted.items():
            if any(entry is not None and entry.lease == lease for entry in drawn.values()):
                self.ttl_ms[lease] = ttl_ms
                self.ends_ns[lease] = self.time_ns + ttl_ms * MS
                self.own.add(lease)
                self.last_lease = lease
        self.become(drawn)
        return TxnResult(succeeded, self.revision, results)

    def holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        found: Any
        match compare.target:
            case "lock":
                found = self.tokens.get(compare.key, 0)
            case "exists":
                found = entry is not None
            case "value" if entry is None:
                return compare.op == "!="
            case target:
                found = getattr(entry, target) if entry is not None else 0
        wanted: Any = compare.operand
        answers = {"=": found == wanted, "!=": found != wanted, "<": found < wanted, ">": found > wanted}
        return bool(answers[compare.op])

    def do(
        self,
        operation: Operation,
        entries: dict[bytes, Entry],
        drawn: dict[bytes, Entry | None],
        granted: dict[int, int],
    ) -> Outcome:
        match operation:
            case Put(key, value, ttl_ms, lease):
                if lease is not None and lease not in self.ends_ns:
                    raise Refused("lease_expired")
                if ttl_ms is not None:
                    lease = max(self.revision, self.last_lease + 1) + len(granted)
                    granted[lease] = ttl_ms
                entry = entries[key] = drawn[key] = self.following(entries.get(key), key, value, lease or 0)
                return Written(entry.revision, entry.created, entry.version, entry.lease)
            case Add(key, delta):
                entry = entries[key] = drawn[key] = self.counted(entries.get(key), key, delta)
                return Counted(self.revision, int(entry.value), entry.created, entry.version, entry.lease)
            case Delete(key):
                drawn[key] = None
                return Deleted(self.revision, entries.pop(key, None) is not None)
            case Get(key):
                return Found(entries.get(key))
            case Range(start, end, limit):
                keys = self.between(entries, start, end)
                return Listing([entries[key] for key in keys[:limit]], len(keys) > limit, self.revision)

    # -- leases and locks ------------------------------------------------------------------------

    def lease_grant(self, ttl_ms: int) -> int:
        lease = self.last_lease = max(self.revision, self.last_lease + 1)
        self.ttl_ms[lease] = ttl_ms
        self.ends_ns[lease] = self.time_ns + ttl_ms * MS
        return lease

    def lease_renew(self, lease: int) -> int:
        if lease not in self.ends_ns:
            raise Refused("lease_expired")
        self.ends_ns[lease] = self.time_ns + self.ttl_ms[lease] * MS
        return lease

    def lease_revoke(self, lease: int) -> int:
        if lease not in self.ends_ns:
            raise Refused("lease_expired")
        del self.ends_ns[lease]
        self.leave_all(lease)
        self.delete_keys_of(lease)
        return self.revision

    def delete_keys_of(self, lease: int) -> None:
        keys = sorted(key for key, entry in self.entries.items() if entry.lease == lease)
        self.become({key: None for key in keys}, expired=True)

    def lock(self, name: bytes, lease: int, wait: bool) -> LockState:
        if lease not in self.ends_ns:
            raise Refused("lease_expired")
        queue = self.queues.get(name, [])
        if lease not in queue or (lease != queue[0] and not wait):
            if queue and not wait:
                raise Refused("locked")
            self.set_queue(name, [*queue, lease])
        return self.lock_of(name, lease)

    def unlock(self, name: bytes, lease: int) -> LockState:
        queue = self.queues.get(name, [])
        if lease not in queue:
            raise Refused("not_held")
        self.set_queue(name, [other for other in queue if other != lease])
        return self.lock_of(name, lease)

    def leave_all(self, lease: int) -> None:
        for name in list(self.queues):
            self.set_queue(name, [other for other in self.queues[name] if other != lease])

    def set_queue(self, name: bytes, queue: list[int]) -> None:
        before = self.queues.pop(name, [])
        token = self.tokens.pop(name, 0)
        if queue:
            self.queues[name] = queue
            self.tokens[name] = token if before[:1] == queue[:1] else self.revision

    def lock_of(self, name: bytes, lease: int = 0) -> LockState:
        queue = self.queues.get(name, [])
        if not queue:
            return LockState(name, 0, 0, 0)
        place = queue.index(lease) if lease in queue else 0
        return LockState(name, queue[0], self.tokens[name], len(queue) - 1, place)
