"""How does who has an operation's name, and JSON, come by a call of it? By asking the site that has it.

A gateway has none of the operations. A site gives it what an operation binds to: the encoded arguments, and
the keys. On demand it lists what it has, with schemas. Nothing is carried out, so a question may come twice.
"""

from typing import Any, TypeAlias

import msgspec

from apps.actions.operations import BoundOperation, Operations, OperationType
from rsm.errors import InvalidCall


class JsonCall(msgspec.Struct, frozen=True, array_like=True):
    """``arguments``: JSON, a list or an object."""

    name: str
    arguments: bytes


class BoundCall(msgspec.Struct, frozen=True, array_like=True):
    arguments: bytes
    keys: tuple[str, ...] | None


class Bound(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """In the order in which they were asked for."""

    calls: tuple[BoundCall, ...]


class NotBound(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first that cannot be. ``is_known``: there is such an operation, and its arguments are wrong."""

    place: int
    words: str
    is_known: bool


BindAnswer: TypeAlias = Bound | NotBound


class Described(msgspec.Struct, frozen=True):
    """An operation, for people and programs. ``arguments`` and ``result`` are JSON Schema; ``keys`` names the
    arguments that say what it touches, None: everything."""

    name: str
    words: str
    keys: tuple[str, ...] | None
    arguments: dict[str, Any]
    result: dict[str, Any]


def bind_question(site: str) -> str:
    return f"actions.bind/{site}"


def describe_question(site: str) -> str:
    return f"actions.describe/{site}"


class _ByName:
    """An operation whose arguments come by name."""

    def __init__(self, operation: OperationType[..., Any]) -> None:
        self._operation = operation
        self._names = [field[0] for field in operation.fields]
        self._positional = len(self._names) - len(operation.keyword_only)
        self.struct = msgspec.defstruct(operation.name, operation.fields, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(self.struct)

    def bind(self, arguments: bytes) -> BoundOperation[Any]:
        title = self._operation.title
        try:
            given = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
            if isinstance(given, list):
                if len(given) > self._positional:
                    raise InvalidCall(f"{title}: takes {self._positional} arguments, was given {len(given)}")
                arguments = msgspec.json.encode(dict(zip(self._names, given, strict=False)))
            values = msgspec.structs.astuple(self._decoder.decode(arguments))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidCall(f"{title}: {error}") from None
        split = self._positional
        return self._operation(*values[:split], **dict(zip(self._names[split:], values[split:], strict=True)))

    def described(self) -> Described:
        operation = self._operation
        return Described(
            operation.name,
            (operation.function.__doc__ or "").strip(),
            operation.keys,
            msgspec.json.schema(self.struct),
            msgspec.json.schema(operation.result),
        )


class Binder:
    """What a site answers."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._by_name: dict[str, _ByName] = {}

    async def bind(self, question: bytes) -> bytes:
        bound: list[BoundCall] = []
        for place, call in enumerate(msgspec.msgpack.decode(question, type=tuple[JsonCall, ...])):
            is_known = call.name in self._operations.names
            try:
                found = self._find(call.name).bind(call.arguments)
            except InvalidCall as error:
                return msgspec.msgpack.encode(NotBound(place, str(error), is_known))
            bound.append(BoundCall(found.arguments, found.keys))
        return msgspec.msgpack.encode(Bound(tuple(bound)))

    async def describe(self, _: bytes) -> bytes:
        return msgspec.msgpack.encode([self._find(name).described() for name in self._operations.names])

    def _find(self, name: str) -> _ByName:
        if name not in self._by_name:
            self._by_name[name] = _ByName(self._operations.find(name))
        return self._by_name[name]
