"""Many keys at once, counters, history, transactions."""

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api import schemas
from api.description import AFTER, IDEMPOTENCY_KEY, documented, problems
from api.hot import after_in, age_of, key_in, once_of
from api.parameters import (
    CONSISTENCY,
    CURSOR,
    DELTA,
    END,
    KEYS_ONLY,
    LIMIT,
    PREFIX,
    QOS,
    SINCE,
    START,
    Asked,
    Span,
    bad,
    cursor_at,
    known,
    span_of,
)
from api.parts import asked_of, json_answer, known_headers, parts_of
from apps.kv.store import STEP_MAX
from rsm.proxy import Consistency

router = APIRouter()

PAGE: Final = 100
_LISTED: Final = (PREFIX, START, END, LIMIT, CURSOR, KEYS_ONLY, CONSISTENCY)
_DELETED: Final = (PREFIX, START, END, LIMIT, QOS)
_COUNTED: Final = (DELTA, QOS)
_HISTORY: Final = (SINCE, LIMIT, CONSISTENCY)
_TXN: Final = (QOS,)
_KNOWN = {each: known(*each) for each in (_LISTED, _DELETED, _COUNTED, _HISTORY, _TXN)}


@router.get(
    "/v1/kv",
    tags=["keys"],
    summary="List keys in order",
    response_model=schemas.ListingShape,
    responses=problems(),
    openapi_extra=documented(*_LISTED, headers=(AFTER,)),
)
async def list_keys(request: Request) -> Response:
    asked = asked_of(request, _KNOWN[_LISTED])
    span = span_of(asked) or Span(b"", None)
    cursor, keys_only = asked.get(CURSOR), asked.get(KEYS_ONLY) or False
    if cursor is not None:
        if not span.has(cursor):
            raise bad("cursor: it is of another listing; begin again without it")
        span = Span(cursor, span.end)
    consistency = asked.get(CONSISTENCY) or Consistency.LINEARIZABLE
    after = after_in(known_headers(request), consistency)
    await parts_of(request).store.check_reached(after)
    reading = parts_of(request).store.reading(consistency, after)
    fresh = await reading.range(*span, asked.get(LIMIT) or PAGE, keys_only)
    page = fresh.value
    following = cursor_at(page.items[-1].key + b"\0") if page.more and page.items else None
    shape = schemas.listing(page, following, keys_only=keys_only)
    return json_answer(shape, fresh, headers=age_of(fresh, consistency))


@router.delete(
    "/v1/kv",
    tags=["keys"],
    summary="Delete a range of keys",
    response_model=schemas.DeletedRangeShape,
    responses=problems("key_reused"),
    openapi_extra=documented(*_DELETED, headers=(IDEMPOTENCY_KEY,)),
)
async def delete_keys(request: Request) -> Response:
    asked = asked_of(request, _KNOWN[_DELETED])
    span = span_of(asked)
    if span is None:
        raise bad("say what to delete: prefix, or start and end; prefix= is everything")
    limit = asked.get(LIMIT) or STEP_MAX
    once = once_of(known_headers(request), ("delete_range", *span, limit))
    done = await parts_of(request).store.writing(_qos(asked)).delete_range(*span, limit, once)
    found = done.value
    shape: schemas.DeletedRangeShape = {
        "deleted": found.deleted,
        "more": found.more,
        "revision": found.revision,
    }
    return json_answer(shape, done)


@router.post(
    "/v1/counters/{key:path}",
    tags=["keys"],
    summary="Add to a number",
    response_model=schemas.CountedShape,
    responses=problems("not_a_number", "out_of_range", "key_reused", "full"),
    openapi_extra=documented(*_COUNTED, headers=(IDEMPOTENCY_KEY,)),
)
async def count(request: Request, key: str) -> Response:
    asked = asked_of(request, _KNOWN[_COUNTED])
    name = key_in(request.scope["raw_path"], b"/v1/counters/")
    delta = asked.get(DELTA)
    delta = 1 if delta is None else delta
    once = once_of(known_headers(request), ("add", name, delta))
    done = await parts_of(request).store.writing(_qos(asked)).add(name, delta, once)
    return json_answer(schemas.counted(name, done.value), done)


@router.get(
    "/v1/history/{key:path}",
    tags=["keys"],
    summary="What happened to a key",
    response_model=schemas.HistoryShape,
    responses=problems(),
    openapi_extra=documented(*_HISTORY, headers=(AFTER,)),
)
async def history(request: Request, key: str) -> Response:
    asked = asked_of(request, _KNOWN[_HISTORY])
    name = key_in(request.scope["raw_path"], b"/v1/history/")
    consistency = asked.get(CONSISTENCY) or Consistency.LINEARIZABLE
    after = after_in(known_headers(request), consistency)
    await parts_of(request).store.check_reached(after)
    reading = parts_of(request).store.reading(consistency, after)
    fresh = await reading.history(name, asked.get(SINCE) or 0, asked.get(LIMIT) or PAGE)
    found = fresh.value
    shape: schemas.HistoryShape = {
        "items": [schemas.event(each) for each in found.events],
        "more": found.more,
        "retained_from": found.compacted + 1,
    }
    return json_answer(shape, fresh, headers=age_of(fresh, consistency))


@router.post(
    "/v1/txn",
    tags=["keys"],
    summary="Compare, then or else",
    response_model=schemas.TxnShape,
    responses=problems(
        "lease_expired",
        "not_a_number",
        "out_of_range",
        "unsupported_media_type",
        "invalid",
        "key_reused",
        "full",
    ),
    openapi_extra=documented(*_TXN, headers=(IDEMPOTENCY_KEY,)),
)
async def transact(request: Request, txn: schemas.TxnBody) -> Response:
    asked = asked_of(request, _KNOWN[_TXN])
    once = once_of(known_headers(request), ("txn",), await request.body())
    compare = [each.compare() for each in txn.compare]
    then, otherwise = ([each.operation() for each in part] for part in (txn.then, txn.otherwise))
    done = await parts_of(request).store.writing(_qos(asked)).txn(compare, then, otherwise, once)
    found = done.value
    carried_out = txn.then if found.succeeded else txn.otherwise
    shape: schemas.TxnShape = {
        "succeeded": found.succeeded,
        "revision": found.revision,
        "results": [
            schemas.result(asked_for, outcome)
            for asked_for, outcome in zip(carried_out, found.results, strict=True)
        ],
    }
    return json_answer(shape, done)


def _qos(asked: Asked) -> str:
    return asked.get(QOS) or "majority"
