"""What stands in a query or in a header, and what it means; the description of the API is made of the same.

Queries are read as bytes: a key need not be UTF-8. ``+`` is a space, as forms write it. What is not known,
and what is said twice, is refused: a parameter with a typing error would be a wrong answer otherwise.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from api.problems import Problem
from apps.kv.types import ABSENT, PRESENT
from rsm.proxy import Consistency

T = TypeVar("T")

INT_MAX: Final = (1 << 63) - 1
QOS_MAX: Final = 64
_BROKEN: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_DURATION: Final = re.compile(rb"([0-9]{1,12})(ms|s|m|h|d)")
_DURATION_TEXT: Final = "^[0-9]{1,12}(ms|s|m|h|d)$"
_UNITS: Final = {b"ms": 1, b"s": 1000, b"m": 60_000, b"h": 3_600_000, b"d": 86_400_000}
_ETAG: Final = re.compile(rb'"([1-9][0-9]{0,18})"')
_WEAK: Final = re.compile(rb'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_CURSOR: Final = b"1"  # of which kind a cursor is


def bad(words: str, **members: Any) -> Problem:
    return Problem("bad_request", words, **members)


class Parameter(Generic[T]):
    """One of a query. ``parse`` gets its bytes, and raises ``ValueError`` with what is wrong."""

    def __init__(
        self, name: str, parse: Callable[[bytes], T], words: str, schema: dict[str, Any], example: Any
    ) -> None:
        self.name = name
        self.key = name.encode()
        self.parse = parse
        self.words = words
        self.schema = schema
        self.example = example

    def described(self, place: str = "query", *, required: bool = False) -> dict[str, Any]:
        """As OpenAPI has it."""
        return {
            "name": self.name,
            "in": place,
            "required": required,
            "description": self.words,
            "schema": self.schema,
            "example": self.example,
        }


Known = Mapping[bytes, Parameter[Any]]


def known(*parameters: Parameter[Any]) -> Known:
    return {each.key: each for each in parameters}


class Asked:
    """The parameters of one request."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def get(self, parameter: Parameter[T]) -> T | None:
        return self._values.get(parameter.name)

    def named(self, *parameters: Parameter[Any]) -> list[str]:
        return [each.name for each in parameters if each.name in self._values]


_NOTHING: Final = Asked({})


def read_query(query: bytes, allowed: Known) -> Asked:
    if not query:
        return _NOTHING
    values: dict[str, Any] = {}
    for pair in query.split(b"&"):
        if not pair:
            continue
        name, _, value = pair.partition(b"=")
        parameter = allowed.get(name)
        if parameter is None:
            there = ", ".join(each.name for each in allowed.values()) or "none"
            raise bad(f"there is no parameter {shown(unquoted(name))} here; there are: {there}")
        if parameter.name in values:
            raise bad(f"{parameter.name}: stands there twice", parameter=parameter.name)
        try:
            values[parameter.name] = parameter.parse(unquoted(value))
        except ValueError as error:
            raise bad(f"{parameter.name}: {error}", parameter=parameter.name) from None
    return Asked(values)


def unquoted(text: bytes) -> bytes:
    if b"+" in text:
        text = text.replace(b"+", b" ")
    return percent_decoded(text)


def percent_decoded(text: bytes) -> bytes:
    if b"%" not in text:
        return text
    if _BROKEN.search(text):
        raise bad(f"{shown(text)} is not percent-encoded as it should be; % itself is %25")
    return unquote_to_bytes(text)


def shown(text: bytes) -> str:
    """For people, and not more than they can read."""
    return repr(text[:64].decode(errors="backslashreplace")) + ("…" if len(text) > 64 else "")


# -- values --------------------------------------------------------------------------------------


def _bytes(text: bytes) -> bytes:
    return text


def _key(text: bytes) -> bytes:
    if not text:
        raise ValueError("it is empty; it has at least one byte")
    return text


def _number(text: bytes) -> int:
    return number_of(text, 0)


def number_of(text: bytes, least: int) -> int:
    digits = text[1:] if least < 0 and text.startswith(b"-") else text
    if not digits.isdigit() or len(digits) > 19:
        raise ValueError(f"{shown(text)} is no whole number that fits")
    number = int(text)
    if not max(least, -INT_MAX - 1) <= number <= INT_MAX:
        raise ValueError(f"{shown(text)} is not between {least} and {INT_MAX}")
    return number


def _positive(text: bytes) -> int:
    return number_of(text, 1)


def _signed(text: bytes) -> int:
    return number_of(text, -INT_MAX - 1)


def _truth(text: bytes) -> bool:
    if text not in {b"true", b"false"}:
        raise ValueError(f"{shown(text)} is neither true nor false")
    return text == b"true"


def duration_ms(text: bytes) -> int:
    """``30s``, ``500ms``; at least a millisecond."""
    found = _DURATION.fullmatch(text)
    ms = 0 if found is None else int(found[1]) * _UNITS[found[2]]
    if not 0 < ms <= INT_MAX:
        raise ValueError(f"{shown(text)} is no time; write 500ms, 30s, 5m, 2h or 1d")
    return ms


def _consistency(text: bytes) -> Consistency:
    try:
        return Consistency(text.decode())
    except ValueError:
        raise ValueError(f"{shown(text)} is none of {', '.join(Consistency)}") from None


def _qos(text: bytes) -> str:
    """The level as ``rsm.quality`` writes it."""
    if text in {b"ordered", b"majority", b"all"}:
        return text.decode()
    word, _, digits = text.partition(b":")
    if word == b"k" and digits.isdigit() and len(digits) <= 3 and int(digits) <= QOS_MAX:
        return f"k={int(digits)}"
    raise ValueError(f"{shown(text)} is none of ordered, k:N, majority, all")


def _cursor(text: bytes) -> bytes:
    try:
        read = base64.b64decode(text, b"-_", validate=True)
    except (binascii.Error, ValueError):
        read = b""
    if read[:1] != _CURSOR:
        raise ValueError(f"{shown(text)} is none that was given; begin again without it")
    return read[1:]


def cursor_at(key: bytes) -> str:
    """Where the next page begins."""
    return base64.b64encode(_CURSOR + key, b"-_").decode()


_INTEGER: Final = {"type": "integer", "format": "int64", "minimum": 0, "maximum": INT_MAX}
_POSITIVE: Final = {**_INTEGER, "minimum": 1}
_TEXT: Final = {"type": "string"}
_TIME: Final = {"type": "string", "pattern": _DURATION_TEXT}

PREFIX: Final = Parameter("prefix", _bytes, "Keys that begin like this; empty: all.", _TEXT, "config/")
START: Final = Parameter("start", _bytes, "Keys from this one on.", _TEXT, "a")
AFTER_NAME: Final = Parameter("after", _bytes, "Names behind this one.", _TEXT, "a")
END: Final = Parameter("end", _bytes, "Keys before this one.", _TEXT, "m")
KEY: Final = Parameter("key", _key, "This key alone.", {**_TEXT, "minLength": 1}, "config/port")
LIMIT: Final = Parameter("limit", _positive, "So many at most; fewer may come.", _POSITIVE, 100)
CURSOR: Final = Parameter("cursor", _cursor, "Where the page before has ended.", _TEXT, cursor_at(b"b"))
KEYS_ONLY: Final = Parameter("keys_only", _truth, "Without values.", {"type": "boolean"}, True)
SINCE: Final = Parameter("since", _number, "Behind this revision.", _INTEGER, 0)
REVISION: Final = Parameter("revision", _positive, "As it was at this revision.", _POSITIVE, 1)
DELTA: Final = Parameter(
    "delta",
    _signed,
    "What is added; 1 if it is left out.",
    {"type": "integer", "format": "int64", "minimum": -INT_MAX - 1, "maximum": INT_MAX},
    1,
)
TTL: Final = Parameter("ttl", duration_ms, "The key ends by itself after that time.", _TIME, "30s")
LEASE: Final = Parameter("lease", _positive, "The key lives as long as this lease.", _POSITIVE, 1)
FORCE: Final = Parameter("force", _truth, "Also one that runs.", {"type": "boolean"}, False)
CONSISTENCY: Final = Parameter(
    "consistency",
    _consistency,
    "What may be missing from the answer.",
    {"type": "string", "enum": list(Consistency)},
    "linearizable",
)
QOS: Final = Parameter(
    "qos",
    _qos,
    "How many voters are to hold it before it is answered.",
    {"type": "string", "pattern": "^(ordered|majority|all|k:[0-9]|k:[1-5][0-9]|k:6[0-4])$"},
    "majority",
)


# -- headers -------------------------------------------------------------------------------------


def told_qos(qos: str) -> str:
    """The level as HTTP writes it."""
    return qos.replace("=", ":", 1)


def expectation(if_match: bytes | None, if_none_match: bytes | None) -> int | None:
    """The condition of a write, as the machine takes it."""
    if if_none_match is not None:
        if if_match is not None:
            raise bad("If-Match and If-None-Match stand there both; a write takes one of them")
        if if_none_match.strip() != b"*":
            raise bad("If-None-Match: a write takes * alone, for a key that is not there")
        return ABSENT
    if if_match is None:
        return None
    if if_match.strip() == b"*":
        return PRESENT
    found = _ETAG.fullmatch(if_match.strip())
    if found is None or int(found[1]) > INT_MAX:
        raise bad(f'If-Match: {shown(if_match)} is no ETag of ours; write one, like "17", or *')
    return int(found[1])


def etags(text: bytes, name: str) -> frozenset[bytes] | None:
    """Those that a read is compared with; None for any."""
    if text.strip() == b"*":
        return None
    found = [_WEAK.fullmatch(part.strip()) for part in text.split(b",")]
    if None in found:
        raise bad(f'{name}: {shown(text)} are no ETags; write them like "17", with commas between them')
    return frozenset(each[1] for each in found if each is not None)


def after_of(text: bytes) -> int:
    """``X-Rsm-Timestamp`` of a request."""
    try:
        return number_of(text, 0)
    except ValueError as error:
        raise bad(f"X-Rsm-Timestamp: {error}") from None


# -- ranges --------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Keys in [start, end); without an end all that follow."""

    start: bytes
    end: bytes | None

    def has(self, key: bytes) -> bool:
        return self.start <= key and (self.end is None or key < self.end)


EVERYTHING: Final = Span(b"", None)


def span_of_prefix(prefix: bytes) -> Span:
    stem = prefix.rstrip(b"\xff")
    return Span(prefix, stem[:-1] + bytes((stem[-1] + 1,)) if stem else None)


def span_of(asked: Asked) -> Span | None:
    """What ``key``, ``prefix``, or ``start`` and ``end`` name; None if there is none of them."""
    key, prefix, start, end = (asked.get(each) for each in (KEY, PREFIX, START, END))
    if sum((key is not None, prefix is not None, start is not None or end is not None)) > 1:
        given = ", ".join(asked.named(KEY, PREFIX, START, END))
        raise bad(f"{given}: say one of key, prefix, or start and end")
    if key is not None:
        return Span(key, key + b"\0")
    if prefix is not None:
        return span_of_prefix(prefix)
    if start is None and end is None:
        return None
    if end is not None and end <= (start or b""):
        raise bad("end: there is no key from start to there")
    return Span(start or b"", end)
