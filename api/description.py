"""The description of the API (OpenAPI), made of what the code goes by: parameters, shapes, problems."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from api import parameters, schemas
from api.parameters import Parameter
from api.problems import KINDS, MEDIA_TYPE
from api.store import App

TITLES: Final = {App.KV: "rsm: a replicated key-value store", App.ACTIONS: "rsm: actions at several sites"}
_ERRORS: Final = "Every error is a problem (RFC 9457) with a stable `code`."
WORDS: Final = {
    App.KV: f"""Keys and values that a majority of replicas holds, in one order that all of them share.

{_ERRORS} `revision` is the slot of a change in that order.""",
    App.ACTIONS: f"""Changes to the databases of several sites, all of them or none, whatever crashes.

{_ERRORS} Slots are places in the order that all sites share.""",
}

# What may be said to any request.
ANY: Final = (
    "bad_request",
    "unauthenticated",
    "forbidden",
    "foreign_page",
    "too_slow",
    "too_large",
    "overloaded",
    "headers_too_large",
    "defect",
    "no_primary",
    "stopping",
    "outcome_unknown",
)
_REF: Final = "#/components/schemas/{model}"
_REVISION: Final = {"type": "integer", "format": "int64"}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Answers that are errors, by status."""
    by_status: dict[int | str, list[str]] = {}
    for code in (*ANY, *codes):
        by_status.setdefault(KINDS[code].status, []).append(code)
    return {status: _problem(found) for status, found in sorted(by_status.items(), key=lambda each: each[0])}


def _problem(codes: list[str]) -> dict[str, Any]:
    words = "; ".join(f"`{code}`: {KINDS[code].title}" for code in codes)
    schema = {"$ref": _REF.format(model="Problem")}
    found: dict[str, Any] = {"description": words, "content": {MEDIA_TYPE: {"schema": schema}}}
    if KINDS[codes[0]].status in {429, 503}:
        words = "Seconds until it is worth trying again."
        found["headers"] = {"Retry-After": {"description": words, "schema": {"type": "integer"}}}
    return found


def documented(*known: Parameter[Any], headers: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """For ``openapi_extra`` of a route."""
    return {"parameters": [*(each.described() for each in known), *headers]}


def header(name: str, words: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": words,
        "schema": schema,
        "example": example,
    }


IDEMPOTENCY_KEY: Final = header(
    "Idempotency-Key",
    "The name of a request that may come again: within a day it is carried out once, whatever gateway it"
    " comes over.",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "6ec1a7e2-0a3e-4f0e-9a3a",
)
AFTER: Final = header(
    "X-Rsm-Timestamp",
    "A sequential read misses nothing up to this slot.",
    {"type": "integer", "format": "int64", "minimum": 0, "maximum": parameters.INT_MAX},
    0,
)
_IF_MATCH: Final = header(
    "If-Match", "An ETag that the key must have, or * for any.", {"type": "string"}, '"17"'
)
_IF_ABSENT: Final = header(
    "If-None-Match", "*: the key must not be there.", {"type": "string", "enum": ["*"]}, "*"
)
_IF_CHANGED: Final = header("If-None-Match", "ETags that need not be sent again.", {"type": "string"}, '"17"')
_KEY: Final = {
    "name": "key",
    "in": "path",
    "required": True,
    "description": "Any bytes, percent-encoded; slashes belong to it.",
    "schema": {"type": "string", "minLength": 1},
    "example": "config/port",
}


def _told(name: str, words: str) -> dict[str, Any]:
    return {name: {"description": words, "schema": {"type": "string"}}}


_ORIGIN: Final = {
    **_told("X-Rsm-Timestamp", "The slot of the command, or of the state that was read."),
    **_told("X-Rsm-Replica", "Who has answered."),
    **_told("X-Rsm-View", "In which view."),
}
_ENTRY: Final = {
    **_ORIGIN,
    **_told("ETag", "The revision."),
    **_told("X-Rsm-Created", "The revision in which the key was created."),
    **_told("X-Rsm-Version", "How often it was written since."),
}
_COMMAND: Final = {**_ORIGIN, **_told("X-Rsm-Qos", "The level that was reached.")}


def _operation(
    name: str, words: str, known: list[dict[str, Any]], answers: dict[int | str, Any], *codes: str
) -> dict[str, Any]:
    found = {**answers, **problems(*codes)}
    responses = {str(status): found[status] for status in sorted(found, key=str)}
    return {
        "operationId": name,
        "summary": words,
        "tags": ["keys"],
        "parameters": known,
        "responses": responses,
    }


def key_operations() -> dict[str, Any]:
    """``/v1/kv/{key}``, which is answered before any router (``api.hot``)."""
    raw = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}, "example": "8080"}}
    written = {"application/json": {"schema": {"$ref": _REF.format(model="WrittenShape")}}}
    read = [
        _KEY,
        parameters.REVISION.described(),
        parameters.CONSISTENCY.described(),
        _IF_CHANGED,
        _IF_MATCH,
        AFTER,
    ]
    gone = ("future", "key_not_found", "compacted", "conflict")
    same = {"description": "It has not changed.", "headers": _ENTRY}
    wrote = {"headers": {**_COMMAND, **_told("ETag", "The revision.")}, "content": written}
    put = [
        _KEY,
        parameters.TTL.described(),
        parameters.LEASE.described(),
        parameters.QOS.described(),
        _IF_MATCH,
        _IF_ABSENT,
        IDEMPOTENCY_KEY,
    ]
    return {
        "get": _operation(
            "read_key",
            "Read a key",
            read,
            {200: {"description": "The value.", "headers": _ENTRY, "content": raw}, 304: same},
            *gone,
        ),
        "head": _operation(
            "look_at_key",
            "Read a key without its value",
            read,
            {200: {"description": "It is there.", "headers": _ENTRY}, 304: same},
            *gone,
        ),
        "put": {
            **_operation(
                "write_key",
                "Write a key",
                put,
                {
                    200: {"description": "It is written.", **wrote},
                    201: {"description": "It is created.", **wrote},
                },
                *("conflict", "lease_expired", "unsupported_media_type", "key_reused", "full"),
            ),
            "requestBody": {"required": False, "content": raw},
        },
        "delete": _operation(
            "delete_key",
            "Delete a key",
            [_KEY, parameters.QOS.described(), _IF_MATCH, IDEMPOTENCY_KEY],
            {204: {"description": "It was there, and is gone.", "headers": _COMMAND}},
            *("key_not_found", "conflict", "key_reused"),
        ),
    }


def describe(app: FastAPI, served: App, *, tokens: bool) -> dict[str, Any]:
    made = get_openapi(
        title=TITLES[served],
        version=app.version,
        description=WORDS[served],
        routes=app.routes,
        tags=app.openapi_tags,
    )
    parts: dict[str, Any] = made.setdefault("components", {}).setdefault("schemas", {})
    added: dict[str, Any] = {"Problem": schemas.ProblemShape}
    if served is App.KV:
        made["paths"]["/v1/kv/{key}"] = key_operations()
        added["WrittenShape"] = schemas.WrittenShape
    for name, shape in added.items():
        parts[name] = TypeAdapter(shape).json_schema(ref_template=_REF)
        parts.update(parts[name].pop("$defs", {}))
    if tokens:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made
