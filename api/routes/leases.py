"""Leases: what lives as long as somebody renews it."""

from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from api import schemas
from api.description import IDEMPOTENCY_KEY, documented, problems
from api.hot import once_of
from api.parameters import INT_MAX, LIMIT, Parameter, duration_ms, known, number_of
from api.parts import asked_of, json_answer, known_headers, parts_of
from api.problems import Problem
from rsm.errors import Rejected

router = APIRouter(prefix="/v1/leases", tags=["leases"])

AFTER_ID: Final = Parameter(
    "after",
    lambda text: number_of(text, 0),
    "Leases with a larger id.",
    {"type": "integer", "format": "int64", "minimum": 0, "maximum": INT_MAX},
    0,
)
LeaseId = Annotated[int, Path(ge=1, le=INT_MAX, examples=[1])]
_NOTHING: Final = known()
_LISTED: Final = (AFTER_ID, LIMIT)
_KNOWN: Final = known(*_LISTED)
PAGE: Final = 100


@router.post(
    "",
    status_code=201,
    summary="Grant a lease",
    response_model=schemas.LeaseShape,
    responses=problems("unsupported_media_type", "invalid", "key_reused", "full"),
    openapi_extra=documented(headers=(IDEMPOTENCY_KEY,)),
)
async def grant(request: Request, wanted: schemas.LeaseBody) -> Response:
    asked_of(request, _NOTHING)
    ttl_ms = duration_ms(wanted.ttl.encode())
    once = once_of(known_headers(request), ("lease_grant", ttl_ms))
    done = await parts_of(request).store.writing().lease_grant(ttl_ms, once)
    location = [(b"location", b"/v1/leases/%d" % done.value.id)]
    return json_answer(schemas.lease(done.value), done, 201, location)


@router.get(
    "",
    summary="List leases by their ids",
    response_model=schemas.LeasesShape,
    responses=problems(),
    openapi_extra=documented(*_LISTED),
)
async def list_leases(request: Request) -> Response:
    asked = asked_of(request, _KNOWN)
    reading = parts_of(request).store.reading()
    fresh = await reading.leases(asked.get(AFTER_ID) or 0, asked.get(LIMIT) or PAGE)
    return json_answer({"items": [schemas.lease(each) for each in fresh.value]}, fresh)


@router.get(
    "/{lease}",
    summary="Look at a lease",
    response_model=schemas.LeaseShape,
    responses=problems("lease_not_found"),
)
async def look(request: Request, lease: LeaseId) -> Response:
    asked_of(request, _NOTHING)
    fresh = await parts_of(request).store.reading().lease(lease)
    if fresh.value is None:
        raise Problem("lease_not_found", f"there is no lease {lease}; perhaps it has ended")
    return json_answer(schemas.lease(fresh.value), fresh)


@router.post(
    "/{lease}:renew",
    summary="Begin a lease's time anew",
    response_model=schemas.LeaseShape,
    responses=problems("lease_not_found"),
)
async def renew(request: Request, lease: LeaseId) -> Response:
    asked_of(request, _NOTHING)
    try:
        done = await parts_of(request).store.writing().lease_renew(lease)
    except Rejected as refusal:
        raise _missing(lease, refusal) from None
    return json_answer(schemas.lease(done.value), done)


@router.delete(
    "/{lease}",
    status_code=204,
    summary="End a lease, and what hangs on it",
    responses=problems("lease_not_found"),
)
async def revoke(request: Request, lease: LeaseId) -> Response:
    asked_of(request, _NOTHING)
    try:
        done = await parts_of(request).store.writing().lease_revoke(lease)
    except Rejected as refusal:
        raise _missing(lease, refusal) from None
    return json_answer(None, done, 204)


def _missing(lease: int, refusal: Rejected) -> Exception:
    """A lease is its own resource here: one that has ended is not there."""
    if refusal.message == "lease_expired":
        return Problem("lease_not_found", f"there is no lease {lease}; perhaps it has ended")
    return refusal
