"""How a request becomes HTTP, and what the answer says.

2xx, and errors that tell of the state (a key that is not there, a conflict, no number), are answers; they say
where in the order they were, and are checked. 429 and 503 say that nothing was done, 504 that nobody knows.
Anything else should never come.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from apps.kv.types import ABSENT, PRESENT, Add, Compare, Delete, Get, Operation, Put
from bench.chaos.history import Ended
from bench.chaos.http.draws import Request
from bench.chaos.http.load import Told
from bench.chaos.http.store import Line, refusal
from rsm import envelope

TIMESTAMP: Final = "x-rsm-timestamp"
_REFUSED: Final = frozenset({429, 503})
_UNKNOWN: Final = 504
_ANSWERS: Final = frozenset({"conflict", "not_a_number"})


class Answer(Protocol):
    """What of an answer counts, whoever got it. Names of headers are in small letters."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def content(self) -> bytes: ...

    @property
    def is_success(self) -> bool: ...


class Sent(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None = None


# -- on the way out ------------------------------------------------------------------------------


def http_of(request: Request) -> Sent:
    match request.method, request.arguments:
        case "put", (key, value, expect, once):
            return Sent("PUT", _path("kv", key), _headers(expect, once), value)
        case "delete", (key, expect, once):
            return Sent("DELETE", _path("kv", key), _headers(expect, once))
        case "add", (key, delta, once):
            return Sent("POST", f"{_path('counters', key)}?delta={delta}", _headers(None, once))
        case "txn", (compare, then, otherwise, once):
            body = {
                "compare": [_comparison(each) for each in compare],
                "then": [_operation(each) for each in then],
                "else": [_operation(each) for each in otherwise],
            }
            headers = {"Content-Type": "application/json", **_headers(None, once)}
            return Sent("POST", "/v1/txn", headers, msgspec.json.encode(body))
        case "get", (key,):
            return Sent("GET", _path("kv", key), {})
        case "listing", (prefix,):
            return Sent("GET", f"/v1/kv?prefix={quote(prefix)}", {})
        case method, _:
            raise AssertionError(f"{method}: the load draws no such request")


def _path(place: str, key: bytes) -> str:
    return f"/v1/{place}/{quote(key)}"


def _headers(expect: int | None, once: bytes | None) -> dict[str, str]:
    headers = {}
    if expect == ABSENT:
        headers["If-None-Match"] = "*"
    elif expect is not None:
        headers["If-Match"] = "*" if expect == PRESENT else f'"{expect}"'
    if once is not None:
        headers["Idempotency-Key"] = once.decode()
    return headers


def _comparison(compare: Compare) -> dict[str, Any]:
    operand = compare.operand.decode() if isinstance(compare.operand, bytes) else compare.operand
    return {"key": compare.key.decode(), "target": compare.target, "op": compare.op, "with": operand}


def _operation(operation: Operation) -> dict[str, Any]:
    match operation:
        case Put(key, value):
            return {"op": "put", "key": key.decode(), "value": value.decode()}
        case Add(key, delta):
            return {"op": "add", "key": key.decode(), "delta": delta}
        case Get(key):
            return {"op": "get", "key": key.decode()}
        case Delete(key):
            return {"op": "delete", "key": key.decode()}
        case _:
            raise AssertionError(f"{type(operation).__name__}: the load draws no such operation")


# -- and back ------------------------------------------------------------------------------------


def told(request: Request, answer: Answer) -> Told:
    status, code = answer.status_code, _code(answer)
    if status in _REFUSED:
        return Told(Ended.REFUSED, why=f"{status} {code}")
    if status == _UNKNOWN:
        return Told(Ended.UNKNOWN, why=f"{status} {code}")
    try:
        ts = int(answer.headers[TIMESTAMP])
        if code in _ANSWERS:
            rejected = refusal(code, msgspec.json.decode(answer.content))
            reply = envelope.RejectedReply(rejected.message, rejected.detail)
            return Told(Ended.REJECTED, ts, envelope.encode_reply(reply))
        if answer.is_success or code == "key_not_found":
            value = _value(request, answer)
            return Told(Ended.OK, ts, envelope.encode_reply(envelope.OkEncoded(value)))
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        code = f"{type(error).__name__}: {error}"
    return _wrong(f"HTTP {status}", code)


def _wrong(kind: str, words: str) -> Told:
    """What no machine answers is a violation wherever it stands."""
    return Told(Ended.FAILED, 0, envelope.encode_reply(envelope.FailedReply(kind, words)), f"{kind} {words}")


def _code(answer: Answer) -> str:
    if "problem+json" not in answer.headers.get("content-type", ""):
        return ""
    try:
        return str(msgspec.json.decode(answer.content, type=dict[str, Any]).get("code", ""))
    except msgspec.MsgspecError:
        return "an unreadable problem"


def _value(request: Request, answer: Answer) -> Any:
    """The answer as ``Shown`` gives it; what contradicts itself raises."""
    missing = answer.status_code == 404
    match request.method:
        case "get":
            return None if missing else _entry(request.arguments[0], answer)
        case "delete":
            return not missing
        case _ if missing:
            raise ValueError("there is nothing that could be missing")
    found = msgspec.json.decode(answer.content, type=dict[str, Any])
    match request.method:
        case "put":
            written = _written(found)
            if _tag(answer) != written[0] or (answer.status_code == 201) != (written[0] == written[1]):
                raise ValueError(f"status {answer.status_code}, ETag {_tag(answer)}, and {found}")
            return written
        case "add":
            return found["value"], found["revision"]
        case "listing":
            if found["cursor"] is not None:
                raise ValueError("a listing of few keys has more pages")
            return [_line(item) for item in found["items"]]
        case _:
            return _transacted(request, found)


def _tag(answer: Answer) -> int:
    return int(answer.headers["etag"].strip('"'))


def _entry(key: bytes, answer: Answer) -> Line:
    headers = answer.headers
    return key, answer.content, _tag(answer), int(headers["x-rsm-created"]), int(headers["x-rsm-version"])


def _written(found: dict[str, Any]) -> tuple[int, int, int]:
    return found["revision"], found["created"], found["version"]


def bytes_of(found: dict[str, Any], name: str) -> bytes:
    """A field of JSON that is a string, or bytes that are none."""
    if name in found:
        return str(found[name]).encode()
    return base64.b64decode(found[f"{name}_base64"])


def _line(item: dict[str, Any]) -> Line:
    return (bytes_of(item, "key"), bytes_of(item, "value"), *_written(item))


def _transacted(request: Request, found: dict[str, Any]) -> Any:
    _, then, otherwise, _ = request.arguments
    asked = then if found["succeeded"] else otherwise
    results = [_result(one, other) for one, other in zip(asked, found["results"], strict=True)]
    return found["succeeded"], found["revision"], results


def _result(asked: Operation, found: dict[str, Any]) -> Any:
    match asked:
        case Put():
            return _written(found)
        case Add():
            return found["value"], found["revision"]
        case Delete():
            return found["revision"], found["deleted"]
        case _:
            return None if found["item"] is None else _line(found["item"])
