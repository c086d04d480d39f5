"""The description of the API as a page, and what a browser needs for it."""

from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.parameters import known
from api.parts import asked_of
from api.reference import POLICY, page_of

router = APIRouter(include_in_schema=False)

_NOTHING: Final = known()
_FILES: Final = Path(__file__).parent.parent / "static"
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
PATHS: Final = frozenset({b"/docs", b"/docs/reference.css", b"/docs/reference.js"})


@router.get("/docs")
async def docs(request: Request) -> Response:
    asked_of(request, _NOTHING)
    return Response(page_of(request.app.openapi()), headers=_HEADERS, media_type="text/html")


@router.get("/docs/reference.css")
async def style(request: Request) -> Response:
    asked_of(request, _NOTHING)
    return Response(_file("reference.css"), headers=_HEADERS, media_type="text/css")


@router.get("/docs/reference.js")
async def script(request: Request) -> Response:
    asked_of(request, _NOTHING)
    return Response(_file("reference.js"), headers=_HEADERS, media_type="text/javascript")


@cache
def _file(name: str) -> bytes:
    return (_FILES / name).read_bytes()
