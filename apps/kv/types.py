"""What goes into the key-value store and comes out of it.

Keys and values are bytes. A revision is the slot of the change. Everything is frozen, so that a snapshot
may keep references, and array-like, so that field names cost nothing; fields are only ever added at the end.
"""

from typing import Final, Literal, TypeAlias

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1000
DAY_MS: Final = 24 * 3600 * SECOND_MS
YEAR_MS: Final = 365 * DAY_MS

ABSENT: Final = 0
"""``expect``: the key must not be there."""
PRESENT: Final = -1
"""``expect``: the key must be there, in whatever revision."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key as it is. ``version`` counts its changes since ``created``; ``lease`` is 0 if it has none."""

    key: bytes
    value: bytes
    revision: int
    created: int
    version: int
    lease: int = 0


class Once(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that may come again: its name, and a digest of all that it asks for."""

    key: bytes
    digest: bytes


# -- what commands answer; those with a tag are results of a transaction's operations too --------


class Written(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The key was created if ``created`` is ``revision``."""

    revision: int
    created: int
    version: int
    lease: int = 0


class Found(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    entry: Entry | None


class Deleted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """``found``: it was there."""

    revision: int
    found: bool


class Counted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    revision: int
    value: int
    created: int
    version: int
    lease: int = 0


class Listing(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """A page. With ``more``, go on at the last key and a zero byte. ``revision``: of the newest change."""

    items: list[Entry]
    more: bool
    revision: int


class DeletedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    revision: int
    deleted: int
    more: bool


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to a key. Without a value it was deleted, and ``expired`` says that its lease had ended;
    ``created``, ``version`` and ``lease`` are 0 then."""

    revision: int
    key: bytes
    value: bytes | None
    created: int = 0
    version: int = 0
    lease: int = 0
    expired: bool = False


class History(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to a key. What happened up to revision ``compacted`` is forgotten. With ``more``, go on
    behind the last event's revision."""

    events: list[Event]
    more: bool
    compacted: int


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``ends_ns`` is in the group's time; ``remaining_ms`` is what is left of it at the last slot."""

    id: int
    ttl_ms: int
    ends_ns: int
    remaining_ms: int
    keys: int
    locks: int


class Revoked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """So many keys and locks, and places in queues, go with the lease."""

    revision: int
    keys: int
    locks: int


class LockState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``lease`` holds the lock since slot ``token``, which fences it; both are 0 if it is free. ``waiting``
    leases are in the queue, and who asked is at ``place``: 1 is next, 0 is not in it."""

    name: bytes
    lease: int
    token: int
    waiting: int
    place: int = 0


class Compacted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """History up to revision ``compacted`` is forgotten; ``events`` were by this command. ``more``: not yet
    all that was asked for; say it again."""

    compacted: int
    events: int
    more: bool = False


# -- transactions --------------------------------------------------------------------------------


class Compare(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Numbers of a key that is not there are 0, and its value is equal to none. ``lock``: ``key`` is the name
    of one, and ``operand`` the token of who is to hold it."""

    key: bytes
    target: Literal["revision", "version", "created", "lease", "value", "exists", "lock"]
    op: Literal["=", "!=", "<", ">"]
    operand: bool | int | bytes


class Put(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="put"):
    key: bytes
    value: bytes
    ttl_ms: int | None = None
    lease: int | None = None


class Get(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="get"):
    key: bytes


class Delete(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="delete"):
    key: bytes


class Add(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="add"):
    key: bytes
    delta: int = 1


class Range(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="range"):
    start: bytes
    end: bytes | None = None
    limit: int = 100
    keys_only: bool = False


Operation: TypeAlias = Put | Get | Delete | Add | Range
Outcome: TypeAlias = Written | Found | Deleted | Counted | Listing


class TxnResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``results`` of the operations that were carried out: ``then`` if it ``succeeded``."""

    succeeded: bool
    revision: int
    results: list[Outcome]


# -- limits --------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Part of the replicated state: all replicas refuse alike."""

    key_bytes_max: int = 4 * KIB
    value_bytes_max: int = MIB
    data_bytes_max: int = 8 * GIB
    """Of all keys and values together."""
    txn_operations_max: int = 128
    """Comparisons and operations of both branches together."""
    txn_bytes_max: int = MIB
    """What a transaction carries, and also what it reads."""
    leases_max: int = 100_000
    lease_ms_max: int = YEAR_MS
    locks_max: int = 100_000
    """Locks that are held, and places in queues, together."""
    waiting_max: int = 1000
    """Places in the queue of one lock."""
    history_events_max: int = 100_000
    history_bytes_max: int = 64 * MIB
    once_max: int = 100_000
    once_bytes_max: int = 64 * MIB
    once_ms: int = DAY_MS


LIMITS_RANGES: Final[dict[str, tuple[int, int]]] = {
    "key_bytes_max": (1, 64 * KIB),
    "value_bytes_max": (0, 8 * MIB),
    "data_bytes_max": (0, 1 << 50),
    "txn_operations_max": (1, 1024),
    "txn_bytes_max": (1, 8 * MIB),
    "leases_max": (0, 10_000_000),
    "lease_ms_max": (1, 100 * YEAR_MS),
    "locks_max": (0, 10_000_000),
    "waiting_max": (0, 10_000),
    "history_events_max": (0, 1_000_000),
    "history_bytes_max": (0, 1 << 40),
    "once_max": (0, 10_000_000),
    "once_bytes_max": (0, 1 << 40),
    "once_ms": (1, YEAR_MS),
}
"""What each limit may be set to. Replies must stay below what sessions keep (``reply_bytes_max``), and times
within 63 bits of nanoseconds."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much there is. ``revision`` is that of the newest change."""

    revision: int
    keys: int
    data_bytes: int
    compacted: int
    history_events: int
    history_bytes: int
    leases: int
    locks: int
    waiting: int
    once: int
    once_bytes: int
    limits: Limits
