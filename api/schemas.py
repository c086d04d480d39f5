"""What does JSON look like?

Answers are dictionaries whose shape is declared here: type checkers hold the code to it, and the description
of the API is made of it. Requests are models, which say field by field what is wrong with them. A key or
value that is UTF-8 is a string, any other is base64 under another name (``key``, ``key_base64``).
"""

import base64
import binascii
from time import time_ns
from typing import Annotated, Any, Final, Literal, NotRequired, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from api.parameters import INT_MAX, Span, cursor_at, duration_ms, span_of_prefix
from apps.kv import types as kv
from apps.kv.leases import MS

Int64: TypeAlias = Annotated[int, Field(ge=-INT_MAX - 1, le=INT_MAX)]
Revision: TypeAlias = Annotated[int, Field(ge=0, le=INT_MAX, description="A slot in the group's order.")]


# -- answers -------------------------------------------------------------------------------------


class Named(TypedDict):
    """A key, in one of two ways."""

    key: NotRequired[str]
    key_base64: NotRequired[str]


class WrittenShape(Named):
    revision: int
    created: int
    version: int
    lease: NotRequired[int]


class ItemShape(WrittenShape):
    value: NotRequired[str]
    value_base64: NotRequired[str]


class ListingShape(TypedDict):
    items: list[ItemShape]
    cursor: str | None
    revision: int


class DeletedRangeShape(TypedDict):
    deleted: int
    more: bool
    revision: int


class CountedShape(Named):
    value: int
    revision: int


class EventShape(Named):
    """Without a value it was deleted; ``expired`` if its lease had ended."""

    event: Literal["put", "delete"]
    revision: int
    value: NotRequired[str]
    value_base64: NotRequired[str]
    created: NotRequired[int]
    version: NotRequired[int]
    lease: NotRequired[int]
    expired: NotRequired[bool]


class HistoryShape(TypedDict):
    items: list[EventShape]
    more: bool
    retained_from: int


class DeletedShape(TypedDict):
    revision: int
    deleted: bool


class FoundShape(TypedDict):
    item: ItemShape | None


ResultShape: TypeAlias = WrittenShape | FoundShape | DeletedShape | CountedShape | ListingShape


class TxnShape(TypedDict):
    succeeded: bool
    revision: int
    results: list[ResultShape]


class LeaseShape(TypedDict):
    """``remaining_ms`` was left at the group's last slot, which is ``age_ms`` ago by this gateway's clock."""

    id: int
    ttl_ms: int
    remaining_ms: int
    age_ms: int
    keys: int
    locks: int


class LeasesShape(TypedDict):
    items: list[LeaseShape]


class LockShape(TypedDict):
    """``token`` is the slot of the grant: whatever the lock protects should refuse older ones."""

    name: NotRequired[str]
    name_base64: NotRequired[str]
    lease: int
    token: int
    held: bool
    waiting: int


class LocksShape(TypedDict):
    items: list[LockShape]


class FieldErrorShape(TypedDict):
    place: str
    words: str


class ProblemShape(TypedDict):
    """RFC 9457. ``code`` is stable; others may stand beside these."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: NotRequired[list[FieldErrorShape]]


def text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def in_words(name: str, data: bytes) -> dict[str, Any]:
    """The field that has the bytes."""
    text = text_of(data)
    return {name: text} if text is not None else {f"{name}_base64": base64.b64encode(data).decode()}


def written(key: bytes, done: kv.Written | kv.Counted | kv.Entry) -> WrittenShape:
    shape: WrittenShape = {
        **in_words("key", key),  # type: ignore[typeddict-item]
        "revision": done.revision,
        "created": done.created,
        "version": done.version,
    }
    if done.lease:
        shape["lease"] = done.lease
    return shape


def item(entry: kv.Entry, *, keys_only: bool = False) -> ItemShape:
    value = {} if keys_only else in_words("value", entry.value)
    return {**written(entry.key, entry), **value}  # type: ignore[typeddict-item]


def listing(page: kv.Listing, cursor: str | None, *, keys_only: bool = False) -> ListingShape:
    items = [item(entry, keys_only=keys_only) for entry in page.items]
    return {"items": items, "cursor": cursor, "revision": page.revision}


def counted(key: bytes, done: kv.Counted) -> CountedShape:
    return {**in_words("key", key), "value": done.value, "revision": done.revision}  # type: ignore[typeddict-item]


def event(happened: kv.Event) -> EventShape:
    shape: EventShape = {
        "event": "delete" if happened.value is None else "put",
        **in_words("key", happened.key),  # type: ignore[typeddict-item]
        "revision": happened.revision,
    }
    if happened.value is None:
        return {**shape, "expired": True} if happened.expired else shape
    shape |= in_words("value", happened.value)  # type: ignore[typeddict-item]
    shape |= {"created": happened.created, "version": happened.version}
    return {**shape, "lease": happened.lease} if happened.lease else shape


def lease(found: kv.Lease) -> LeaseShape:
    counted_ms = found.ends_ns // MS - found.remaining_ms  # when, in the group's time
    return {
        "id": found.id,
        "ttl_ms": found.ttl_ms,
        "remaining_ms": found.remaining_ms,
        "age_ms": max(time_ns() // MS - counted_ms, 0),
        "keys": found.keys,
        "locks": found.locks,
    }


def lock(found: kv.LockState) -> LockShape:
    return {
        **in_words("name", found.name),  # type: ignore[typeddict-item]
        "lease": found.lease,
        "token": found.token,
        "held": bool(found.lease),
        "waiting": found.waiting,
    }


# -- requests ------------------------------------------------------------------------------------


def _checked_duration(text: str) -> str:
    duration_ms(text.encode())
    return text


def _checked_base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is no base64") from None
    return text


def _checked_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has half of a character that stands for none") from None
    return text


Text: TypeAlias = Annotated[str, AfterValidator(_checked_text)]
Base64: TypeAlias = Annotated[
    str, AfterValidator(_checked_base64), Field(json_schema_extra={"contentEncoding": "base64"})
]
Duration: TypeAlias = Annotated[
    str,
    AfterValidator(_checked_duration),
    Field(pattern="^[0-9]{1,12}(ms|s|m|h|d)$", examples=["30s"], description="500ms, 30s, 5m, 2h, 1d"),
]
LeaseId: TypeAlias = Annotated[int, Field(ge=1, le=INT_MAX, strict=True)]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _one(model: BaseModel, name: str, *, needed: bool = True) -> None:
    """Exactly one of the two names of a key or value."""
    given = [each for each in (name, f"{name}_base64") if getattr(model, each) is not None]
    if len(given) != 1 and (needed or given):
        raise ValueError(f"say one of {name} and {name}_base64")


def bytes_of(text: str | None, encoded: str | None) -> bytes:
    return text.encode() if text is not None else base64.b64decode(encoded or "")


class Keyed(Model):
    key: Text | None = None
    key_base64: Base64 | None = None

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        _one(self, "key")
        return self

    @property
    def key_bytes(self) -> bytes:
        return bytes_of(self.key, self.key_base64)


class CompareBody(Keyed):
    """``exists`` is compared with a truth, ``value`` with a text (or ``with_base64``), the rest with numbers;
    ``lock`` has the token of the lock that is named by ``key``."""

    target: Literal["revision", "version", "created", "lease", "value", "exists", "lock"]
    op: Literal["=", "!=", "<", ">"] = "="
    operand: Annotated[bool | Int64 | Text | None, Field(alias="with")] = None
    with_base64: Base64 | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        kind = bool if self.target == "exists" else str if self.target == "value" else int
        if self.with_base64 is not None and (self.target != "value" or self.operand is not None):
            raise ValueError("with_base64 is for a value, and instead of with")
        if self.with_base64 is None and type(self.operand) is not kind:
            names = {bool: "a truth", str: "a text", int: "a number"}
            raise ValueError(f"with: {self.target} is compared with {names[kind]}")
        return self

    def compare(self) -> kv.Compare:
        operand = self.operand
        if self.target == "value":
            operand_bytes = bytes_of(operand if isinstance(operand, str) else None, self.with_base64)
            return kv.Compare(self.key_bytes, self.target, self.op, operand_bytes)
        assert isinstance(operand, bool | int)
        return kv.Compare(self.key_bytes, self.target, self.op, operand)


class PutBody(Keyed):
    op: Literal["put"]
    value: Text | None = None
    value_base64: Base64 | None = None
    ttl: Duration | None = None
    lease: LeaseId | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _one(self, "value")
        if self.ttl is not None and self.lease is not None:
            raise ValueError("a key has a ttl or a lease, not both")
        return self

    def operation(self) -> kv.Operation:
        ttl = None if self.ttl is None else duration_ms(self.ttl.encode())
        return kv.Put(self.key_bytes, bytes_of(self.value, self.value_base64), ttl, self.lease)


class GetBody(Keyed):
    op: Literal["get"]

    def operation(self) -> kv.Operation:
        return kv.Get(self.key_bytes)


class DeleteBody(Keyed):
    op: Literal["delete"]

    def operation(self) -> kv.Operation:
        return kv.Delete(self.key_bytes)


class AddBody(Keyed):
    op: Literal["add"]
    delta: Int64 = 1

    def operation(self) -> kv.Operation:
        return kv.Add(self.key_bytes, self.delta)


class RangeBody(Model):
    op: Literal["range"]
    prefix: Text | None = None
    prefix_base64: Base64 | None = None
    limit: Annotated[int, Field(ge=1, le=INT_MAX)] = 100
    keys_only: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        _one(self, "prefix")
        return self

    @property
    def span(self) -> Span:
        return span_of_prefix(bytes_of(self.prefix, self.prefix_base64))

    def operation(self) -> kv.Operation:
        return kv.Range(*self.span, self.limit, self.keys_only)


OperationBody: TypeAlias = Annotated[
    PutBody | GetBody | DeleteBody | AddBody | RangeBody, Field(discriminator="op")
]
LIST_MAX: Final = 1024
Operations: TypeAlias = Annotated[list[OperationBody], Field(max_length=LIST_MAX)]


class TxnBody(Model):
    """All comparisons hold: ``then``, else ``else``; at once, all or nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "compare": [{"key": "a", "target": "exists", "with": False}],
                    "then": [{"op": "put", "key": "a", "value": "1"}],
                    "else": [{"op": "get", "key": "a"}],
                }
            ]
        }
    )

    compare: Annotated[list[CompareBody], Field(max_length=LIST_MAX)] = []
    then: Operations = []
    otherwise: Annotated[Operations, Field(alias="else")] = []


def result(asked: OperationBody, done: kv.Outcome) -> ResultShape:
    """Of one operation of a transaction."""
    match done:
        case kv.Written() | kv.Counted() if isinstance(asked, PutBody | AddBody):
            key = asked.key_bytes
            return counted(key, done) if isinstance(done, kv.Counted) else written(key, done)
        case kv.Found(entry):
            return {"item": None if entry is None else item(entry)}
        case kv.Deleted(revision, found):
            return {"revision": revision, "deleted": found}
        case kv.Listing():
            keys_only = isinstance(asked, RangeBody) and asked.keys_only
            more = cursor_at(done.items[-1].key + b"\0") if done.more and done.items else None
            return listing(done, more, keys_only=keys_only)
        case _:
            raise AssertionError(f"{type(done).__name__} is no answer to {asked.op}")


class LeaseBody(Model):
    ttl: Duration


class LockBody(Model):
    """``lease`` holds the lock, or a new one of ``ttl``. ``wait``: so long at most until it is free."""

    lease: LeaseId | None = None
    ttl: Duration | None = None
    wait: Duration | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.lease is None) == (self.ttl is None):
            raise ValueError("say one of lease and ttl")
        return self
