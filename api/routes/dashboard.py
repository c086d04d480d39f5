"""The dashboard: a page, its style, its scripts. They are the same for everybody and say nothing of the
group; what they show they ask for, with a token where one is needed."""

from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api.parameters import etags, known
from api.parts import asked_of
from api.problems import Headers, Problem

router = APIRouter(include_in_schema=False)

FOLDER: Final = Path(__file__).parents[1] / "dashboard"
PREFIX: Final = "/dashboard/"
PAGE: Final = "index.html"
_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
# Nothing from elsewhere, nothing inline, nothing in anybody's frame.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS: Final[Headers] = [
    (b"cache-control", b"no-cache"),  # asked for again each time, and sent again when it has changed
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
_NOTHING: Final = known()


class Asset(NamedTuple):
    body: bytes
    etag: bytes
    headers: Headers


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    etag = sha256(body).hexdigest()[:16].encode()
    return Asset(body, etag, [*_HEADERS, (b"etag", b'"%s"' % etag), (b"content-type", _TYPES[path.suffix])])


ASSETS: Final = {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in _TYPES}
PATHS: Final = frozenset({b"/", *(f"{PREFIX}{name}".encode() for name in ["", *ASSETS])})


@router.get("/")
@router.head("/")
async def home(request: Request) -> Response:
    asked_of(request, _NOTHING)
    return RedirectResponse(PREFIX, 307, headers={"cache-control": "no-cache"})


@router.get(PREFIX + "{name}")
@router.head(PREFIX + "{name}")
@router.get(PREFIX)
@router.head(PREFIX)
async def asset(request: Request, name: str = PAGE) -> Response:
    asked_of(request, _NOTHING)
    found = ASSETS.get(name)
    if found is None:
        raise Problem("not_found", "there is nothing at this path")
    asked = request.headers.get("if-none-match")
    theirs = frozenset() if asked is None else etags(asked.encode("latin-1"), "If-None-Match")
    if theirs is None or found.etag in theirs:
        response = Response(status_code=304)
    else:
        response = Response(found.body if request.method == "GET" else b"")
        response.headers["content-length"] = str(len(found.body))
    response.raw_headers += found.headers
    return response
