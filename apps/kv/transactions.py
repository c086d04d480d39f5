"""Compare, then or else.

A transaction is carried out on a sketch: entries that are to be, laid over those that are. Only when all of
it is known to go does the store take the sketch over, so a transaction that is refused has changed nothing. A
key that several operations change has changed once, to what the last of them left.
"""

from collections.abc import Sequence
from typing import assert_never

from apps.kv.keyspace import (
    Keyspace,
    check_key,
    check_value,
    overlaid,
    page,
    successor,
    sum_of,
)
from apps.kv.leases import Leases
from apps.kv.locks import Locks
from apps.kv.types import (
    Add,
    Compare,
    Counted,
    Delete,
    Deleted,
    Entry,
    Found,
    Get,
    Limits,
    Listing,
    Operation,
    Outcome,
    Put,
    Range,
    Written,
)
from rsm.errors import Rejected


def check_size(
    compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation], limits: Limits
) -> None:
    operations = len(compare) + len(then) + len(otherwise)
    if operations > limits.txn_operations_max:
        raise Rejected(
            "too_large", {"txn_operations": operations, "txn_operations_max": limits.txn_operations_max}
        )
    size = sum(len(each.key) + _operand_bytes(each) for each in compare)
    size += sum(map(_bytes_of, then)) + sum(map(_bytes_of, otherwise))
    if size > limits.txn_bytes_max:
        raise Rejected("too_large", {"txn_bytes": size, "txn_bytes_max": limits.txn_bytes_max})


def _operand_bytes(compare: Compare) -> int:
    return len(compare.operand) if isinstance(compare.operand, bytes) else 8


def _bytes_of(operation: Operation) -> int:
    match operation:
        case Put(key, value):
            return len(key) + len(value)
        case Range(start, end):
            return len(start) + len(end or b"")
        case _:
            return len(operation.key)


def holds(compare: Compare, entry: Entry | None, locks: Locks) -> bool:
    operand = compare.operand
    match compare.target:
        case "value":
            if not isinstance(operand, bytes):
                raise _unfit(compare)
            if entry is None:
                return compare.op == "!="
            return _compared(entry.value, compare.op, operand)
        case "exists":
            if not isinstance(operand, bool) or compare.op in {"<", ">"}:
                raise _unfit(compare)
            return _compared(entry is not None, compare.op, operand)
        case target:
            if isinstance(operand, bool | bytes):
                raise _unfit(compare)
            if target == "lock":
                return _compared(locks.token(compare.key), compare.op, operand)
            return _compared(0 if entry is None else getattr(entry, target), compare.op, operand)


def _compared(one: int | bytes, op: str, other: int | bytes) -> bool:
    match op:
        case "=":
            return one == other
        case "!=":
            return one != other
        case "<":
            return one < other  # type: ignore[operator]
        case _:
            return one > other  # type: ignore[operator]


def _unfit(compare: Compare) -> Rejected:
    return Rejected("bad_request", {"target": compare.target, "op": compare.op})


class Sketch:
    """``entries`` that are to be; None: the key is to go. ``granted``: ids of leases that their times to live
    ask for."""

    def __init__(self, keyspace: Keyspace, leases: Leases, limits: Limits, revision: int) -> None:
        self.keyspace = keyspace
        self.leases = leases
        self.limits = limits
        self.revision = revision
        self.entries: dict[bytes, Entry | None] = {}
        self.granted: dict[int, int] = {}
        self.freed = 0  # leases that end with their keys
        self.read_bytes = 0

    def carry_out(self, operations: Sequence[Operation]) -> list[Outcome]:
        results = []
        for place, operation in enumerate(operations):
            try:
                results.append(self._do(operation))
            except Rejected as refusal:
                detail = refusal.detail if isinstance(refusal.detail, dict) else {}
                raise Rejected(refusal.message, {**detail, "operation": place}) from None
        return results

    def growth(self) -> int:
        """Bytes that the store has more afterwards."""
        total = 0
        for key, entry in self.entries.items():
            before = self.keyspace.entries.get(key)
            total += 0 if entry is None else len(key) + len(entry.value)
            total -= 0 if before is None else len(key) + len(before.value)
        return total

    def _entry(self, key: bytes) -> Entry | None:
        if key in self.entries:
            return self.entries[key]
        return self.keyspace.entries.get(key)

    def _do(self, operation: Operation) -> Outcome:
        match operation:
            case Put(key, value, ttl_ms, lease):
                check_key(key, self.limits)
                check_value(value, self.limits)
                return self._put(key, value, self._lease(key, ttl_ms, lease))
            case Get(key):
                entry = self._entry(key)
                self._count_read([] if entry is None else [entry])
                return Found(entry)
            case Delete(key):
                found = self._entry(key) is not None
                self.entries[key] = None
                return Deleted(self.revision, found)
            case Add(key, delta):
                check_key(key, self.limits)
                before = self._entry(key)
                number = sum_of(before, delta)
                written = self._put(key, b"%d" % number, 0 if before is None else before.lease)
                return Counted(self.revision, number, written.created, written.version, written.lease)
            case Range():
                return self._range(operation)
            case _:
                assert_never(operation)

    def _put(self, key: bytes, value: bytes, lease: int) -> Written:
        entry = self.entries[key] = successor(self._entry(key), key, value, self.revision, lease)
        return Written(entry.revision, entry.created, entry.version, entry.lease)

    def _lease(self, key: bytes, ttl_ms: int | None, lease: int | None) -> int:
        if ttl_ms is None:
            return 0 if lease is None else self.leases.find(lease).id
        if lease is not None:
            raise Rejected("bad_request", {"ttl_ms": ttl_ms, "lease": lease})
        self.freed += key not in self.entries and self.leases.goes_with(self._entry(key))
        self.leases.check_ttl(ttl_ms, self.limits, more=len(self.granted) - self.freed)
        made = self.leases.next_id(self.revision) + len(self.granted)
        self.granted[made] = ttl_ms
        return made

    def _range(self, operation: Range) -> Listing:
        start, end = operation.start, operation.end
        base = self.keyspace.between(start, end)
        found = overlaid(base, self.entries, start, end) if self.entries else base
        listing = page(found, operation.limit, self.revision, keys_only=operation.keys_only)
        self._count_read(listing.items)
        return listing

    def _count_read(self, entries: Sequence[Entry]) -> None:
        """What a transaction answers is bounded as well; who wants more has the queries."""
        self.read_bytes += sum(len(entry.key) + len(entry.value) for entry in entries)
        most = self.limits.txn_bytes_max
        if self.read_bytes > most:
            raise Rejected("too_large", {"txn_read_bytes": self.read_bytes, "txn_bytes_max": most})
