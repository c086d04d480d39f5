"""Locks, with tokens that fence."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api import schemas
from api.description import IDEMPOTENCY_KEY, documented, problems
from api.hot import key_in, once_of
from api.parameters import AFTER_NAME, LEASE, LIMIT, PREFIX, duration_ms, known, span_of_prefix
from api.parts import Parts, asked_of, json_answer, known_headers, parts_of
from api.problems import Problem
from api.routes.waiting import waited
from apps.kv.store import KeyValueStore
from apps.kv.types import LockState
from ordering.errors import OrderingError
from rsm.errors import ChainChanged, RsmError
from rsm.proxy import Result

router = APIRouter(prefix="/v1/locks", tags=["locks"])

PAGE: Final = 100
LOOK_SECONDS: Final = 5.0  # who finds no link has no feed: it looks, as seldom as this
_PATH: Final = b"/v1/locks/"
_NOTHING: Final = known()
_LISTED: Final = (PREFIX, AFTER_NAME, LIMIT)
_KNOWN: Final = known(*_LISTED)
_LEASE: Final = known(LEASE)


@router.get(
    "",
    summary="List locks that are held",
    response_model=schemas.LocksShape,
    responses=problems(),
    openapi_extra=documented(*_LISTED),
)
async def list_locks(request: Request) -> Response:
    asked = asked_of(request, _KNOWN)
    start, end = span_of_prefix(asked.get(PREFIX) or b"")
    after = asked.get(AFTER_NAME)
    start = start if after is None else max(start, after + b"\0")
    fresh = await parts_of(request).store.reading().locks(start, end, asked.get(LIMIT) or PAGE)
    return json_answer({"items": [schemas.lock(each) for each in fresh.value]}, fresh)


@router.get(
    "/{name:path}",
    summary="Who holds a lock",
    response_model=schemas.LockShape,
    responses=problems("lock_not_found"),
)
async def look(request: Request, name: str) -> Response:
    asked_of(request, _NOTHING)
    fresh = await parts_of(request).store.reading().lock_of(key_in(request.scope["raw_path"], _PATH))
    if not fresh.value.lease:
        raise Problem("lock_not_found", "nobody holds this lock")
    return json_answer(schemas.lock(fresh.value), fresh)


@router.post(
    "/{name:path}",
    summary="Take a lock",
    response_model=schemas.LockShape,
    responses=problems("locked", "lease_expired", "unsupported_media_type", "invalid", "key_reused", "full"),
    openapi_extra=documented(headers=(IDEMPOTENCY_KEY,)),
)
async def take(request: Request, name: str, wanted: schemas.LockBody) -> Response:
    asked_of(request, _NOTHING)
    parts = parts_of(request)
    key = key_in(request.scope["raw_path"], _PATH)
    lease = wanted.lease
    if wanted.ttl is not None:
        ttl_ms = duration_ms(wanted.ttl.encode())
        once = once_of(known_headers(request), ("lock", key, ttl_ms))
        lease = (await parts.store.writing().lease_grant(ttl_ms, once)).value.id
    assert lease is not None
    has_it = False
    try:
        done = await parts.store.writing().lock(key, lease, wanted.wait is not None)
        if done.value.lease != lease:
            assert wanted.wait is not None
            done = await _wait(request, done, lease, duration_ms(wanted.wait.encode()) / 1000)
        has_it = True
    finally:
        if not has_it and wanted.ttl is not None:  # nobody will ever know of it
            await _let_go(lambda: parts.store.writing().lease_revoke(lease))
    return json_answer(schemas.lock(done.value), done)


async def _wait(request: Request, queued: Result[LockState], lease: int, seconds: float) -> Result[LockState]:
    """In the queue. The group tells when it is over (``lock_turn``), so nobody asks meanwhile. A request
    that waits does not count among those that are under way."""
    parts, name = parts_of(request), queued.value.name
    try:
        with parts.admission.aside():
            return await _wait_aside(request, queued, lease, seconds)
    except BaseException:
        await _let_go(lambda: parts.store.writing().unlock(name, lease))
        raise


async def _wait_aside(
    request: Request, queued: Result[LockState], lease: int, seconds: float
) -> Result[LockState]:
    parts = parts_of(request)
    await waited(request, _turn(parts, queued, lease), seconds)
    parts.admission.check_stopping()
    return await parts.store.writing().lock(queued.value.name, lease, False)  # it keeps its token


async def _turn(parts: Parts, queued: Result[LockState], lease: int) -> None:
    """Returns when it waits no more."""
    store, name, since = parts.store, queued.value.name, queued.timestamp
    while True:
        with suppress(TimeoutError, ChainChanged):
            turns = store.group.follow(KeyValueStore.lock_turn, since, name, lease)
            async with asyncio.timeout(LOOK_SECONDS), aclosing(turns):
                await anext(turns)
                return
        with suppress(TimeoutError, OrderingError):  # where no majority is there is no turn either
            if not (await store.reading().lock_of(name, lease)).value.place:
                return


async def _let_go(call: Callable[[], Awaitable[Any]]) -> None:
    """Also when the request is over. If it fails, the lease ends by itself."""
    with suppress(OrderingError, RsmError, TimeoutError):
        await asyncio.shield(asyncio.ensure_future(call()))


@router.delete(
    "/{name:path}",
    status_code=204,
    summary="Give a lock back, or leave its queue",
    responses=problems("not_held"),
    openapi_extra=documented(LEASE),
)
async def release(request: Request, name: str) -> Response:
    lease = asked_of(request, _LEASE).get(LEASE)
    if lease is None:
        raise Problem("bad_request", "lease: say which lease gives the lock back")
    done = await parts_of(request).store.writing().unlock(key_in(request.scope["raw_path"], _PATH), lease)
    return json_answer(None, done, 204)
