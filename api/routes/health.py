"""Whether it lives, whether it is of use, and its figures."""

from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.description import problems
from api.parameters import known
from api.parts import asked_of, json_answer, parts_of

router = APIRouter(tags=["health"])

_NOTHING: Final = known()
_TEXT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Figures.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.head("/livez", summary="The same without a body", operation_id="live_head", responses=problems())
@router.get("/livez", summary="Whether it lives", operation_id="live", responses=problems())
async def live(request: Request) -> Response:
    asked_of(request, _NOTHING)
    return json_answer({"status": "ok"})


@router.head("/readyz", summary="The same without a body", operation_id="ready_head", responses=problems())
@router.get(
    "/readyz",
    summary="Whether a majority of the group can be reached",
    operation_id="ready",
    responses=problems(),
)
async def ready(request: Request) -> Response:
    asked_of(request, _NOTHING)
    parts = parts_of(request)
    parts.admission.check_stopping()
    parts.access.check_primary()  # who has just looked need not look again: a prober waits a second at most
    fresh = await parts.access.probe()
    return json_answer({"status": "ok"}, fresh)


@router.get(
    "/metrics", summary="Figures for Prometheus", response_class=Response, responses={**_TEXT, **problems()}
)
async def metrics(request: Request) -> Response:
    asked_of(request, _NOTHING)
    body, content_type = parts_of(request).metrics.page(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})
