"""The key-value store under attack, and the same as HTTP shows it.

A request has a name, the numbers of its client and its own. It stands in what the request carries anyway: in
the value that it writes, the number that it adds, the key under which it may be repeated. ``RecordedStore``
notes the names of what it executes, so that the order can be fetched when all is over and shows which
requests of unknown outcome took effect. ``Shown`` has those commands with the arguments and answers that HTTP
has: it is what checkers replay.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec

from apps.kv import KeyValueStore
from apps.kv.types import (
    Add,
    Compare,
    Counted,
    Delete,
    Deleted,
    Entry,
    Found,
    Get,
    Listing,
    Once,
    Operation,
    Outcome,
    Put,
    TxnResult,
    Written,
)
from bench.chaos.registers import PAGE
from rsm.errors import Rejected
from rsm.state_machine import StateMachine, command, detached, query

Name: TypeAlias = tuple[int, int]
NOBODY: Final[Name] = (0, 0)
CLIENTS_MAX: Final = 10_000
_TRAILER: Final = 8
_TOLD: Final = ("revision", "operation")  # of a refusal's details, what is compared


# -- names ---------------------------------------------------------------------------------------


def mark(name: Name) -> bytes:
    return b"%d:%d" % name


def delta_of(name: Name) -> int:
    return name[1] * CLIENTS_MAX + name[0]


def marked(text: bytes) -> Name:
    client, _, request = text.partition(b" ")[0].partition(b":")
    return (int(client), int(request)) if client.isdigit() and request.isdigit() else NOBODY


def added(delta: int) -> Name:
    request, client = divmod(delta, CLIENTS_MAX)
    return client, request


def name_of(method: str, arguments: Sequence[Any]) -> Name:
    """Of a command of ``Shown``."""
    match method, arguments:
        case "put", (_, bytes(value), *_):
            return marked(value)
        case "delete", (_, _, bytes(once)):
            return marked(once)
        case "add", (_, int(delta), _):
            return added(delta)
        case "txn", (_, then, otherwise, _):
            return name_in(then, otherwise)
        case _:
            return NOBODY


def name_in(*lists: Iterable[Operation]) -> Name:
    """Of a transaction, in the first of its operations that has one."""
    for operation in chain(*lists):
        match operation:
            case Put(_, value):
                return marked(value)
            case Add(_, delta):
                return added(delta)
            case _:
                pass
    return NOBODY


# -- the machine of the replicas -----------------------------------------------------------------


class RecordedStore(KeyValueStore):
    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[int, int, int]] = []  # slot, client, request

    def _note(self, name: Name) -> None:
        """Once a slot: a command that may be repeated calls itself."""
        slot = self.context.timestamp
        if not self.order or self.order[-1][0] != slot:
            self.order.append((slot, *name))

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
        self._note(marked(value))
        return super().put(key, value, expect, ttl_ms, lease, once)

    @command
    def delete(self, key: bytes, expect: int | None = None, once: Once | None = None) -> Deleted:
        self._note(NOBODY if once is None else marked(once.key))
        return super().delete(key, expect, once)

    @command
    def add(self, key: bytes, delta: int, once: Once | None = None) -> Counted:
        self._note(added(delta))
        return super().add(key, delta, once)

    @command
    def txn(
        self,
        compare: list[Compare],
        then: list[Operation],
        otherwise: list[Operation],
        once: Once | None = None,
    ) -> TxnResult:
        self._note(name_in(then, otherwise))
        return super().txn(compare, then, otherwise, once)

    @query
    def executed(self, start: int) -> list[tuple[int, int, int]]:
        """A page of the order."""
        return self.order[start : start + PAGE]

    @detached
    def snapshot(self) -> Iterable[bytes]:
        order = msgspec.msgpack.encode(self.order)
        return chain(super().snapshot(), [order, len(order).to_bytes(_TRAILER, "big")])

    def restore(self, chunks: Iterable[bytes]) -> None:
        data = b"".join(chunks)
        end = len(data) - _TRAILER
        begin = end - int.from_bytes(data[end:], "big")
        super().restore([data[:begin]])
        self.order = msgspec.msgpack.decode(data[begin:end], type=list[tuple[int, int, int]])


# -- as HTTP shows it ----------------------------------------------------------------------------

Line: TypeAlias = tuple[bytes, bytes, int, int, int]
"""Key, value, revision, created, version."""


def line_of(entry: Entry) -> Line:
    return entry.key, entry.value, entry.revision, entry.created, entry.version


def shown(result: Written | Deleted | Counted | Entry | Listing | TxnResult | None) -> Any:
    """What of a machine's answer can be seen over HTTP."""
    match result:
        case None:
            return None
        case Written(revision, created, version):
            return (revision, created, version)
        case Deleted():
            return result.found
        case Counted(revision, value):
            return (value, revision)
        case Entry():
            return line_of(result)
        case Listing(items):
            return [line_of(entry) for entry in items]
        case TxnResult(succeeded, revision, results):
            return (succeeded, revision, [_shown_in_txn(each) for each in results])


def _shown_in_txn(result: Outcome) -> Any:
    match result:
        case Deleted(revision, found):
            return (revision, found)
        case Found(entry):
            return shown(entry)
        case _:
            return shown(result)


def refusal(code: str, detail: object) -> Rejected:
    """What of a refusal can be seen, whatever else stands beside it."""
    found = detail if isinstance(detail, dict) else {}
    return Rejected(code, {name: found[name] for name in _TOLD if name in found})


def end_of(prefix: bytes) -> bytes:
    """Behind all keys that begin so; the prefix must not end with 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def once_of(once: bytes | None) -> Once | None:
    return None if once is None else Once(once, b"")


class Shown(StateMachine):
    """``once`` is an Idempotency-Key."""

    def __init__(self) -> None:
        self.store = KeyValueStore()

    def _do(self, method: str, *arguments: Any) -> Any:
        self.store.context = self.context
        try:
            return shown(getattr(self.store, method)(*arguments))
        except Rejected as rejected:
            raise refusal(rejected.message, rejected.detail) from None

    @command
    def put(self, key: bytes, value: bytes, expect: int | None, once: bytes | None) -> Any:
        return self._do("put", key, value, expect, None, None, once_of(once))

    @command
    def delete(self, key: bytes, expect: int | None, once: bytes | None) -> Any:
        return self._do("delete", key, expect, once_of(once))

    @command
    def add(self, key: bytes, delta: int, once: bytes | None) -> Any:
        return self._do("add", key, delta, once_of(once))

    @command
    def txn(
        self, compare: list[Compare], then: list[Operation], otherwise: list[Operation], once: bytes | None
    ) -> Any:
        return self._do("txn", compare, then, otherwise, once_of(once))

    @query
    def get(self, key: bytes) -> Any:
        return self._do("get", key)

    @query
    def listing(self, prefix: bytes) -> Any:
        return self._do("range", prefix, end_of(prefix))


def keys_of(method: str, arguments: Sequence[Any]) -> list[bytes]:
    """All that a request is about; of a listing the prefix."""
    if method != "txn":
        return [arguments[0]]
    compare, then, otherwise, _ = arguments
    touched = [each for each in chain(then, otherwise) if isinstance(each, Put | Get | Delete | Add)]
    return [each.key for each in chain(compare, touched)]


def group_of(method: str, arguments: Sequence[Any]) -> bytes:
    """Keys of different groups do not affect each other: a request is about one of them."""
    return keys_of(method, arguments)[0].partition(b"/")[0]
