"""What changes, as it changes."""

from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.description import documented, header, problems
from api.parameters import END, INT_MAX, KEY, PREFIX, SINCE, START, Span, bad, known, number_of, span_of
from api.parts import asked_of, parts_of
from api.protocol import CONNECTION
from api.streams import EventStream

router = APIRouter(tags=["watches"])

_WATCHED: Final = (PREFIX, KEY, START, END, SINCE)
_KNOWN: Final = known(*_WATCHED)
LAST_ID: Final = header(
    "Last-Event-ID",
    "Where a stream was lost: as since, and before it.",
    {"type": "integer", "minimum": 0, "maximum": INT_MAX},
    0,
)
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get(
    "/v1/watch",
    summary="Events of keys, as they happen",
    status_code=200,
    response_class=EventStream,
    responses={**STREAM, **problems("future", "compacted")},
    openapi_extra=documented(*_WATCHED, headers=(LAST_ID,)),
)
async def watch(request: Request) -> Response:
    asked = asked_of(request, _KNOWN)
    last = last_id_of(request)
    since = asked.get(SINCE) if last is None else last
    abort = request.scope[CONNECTION].abort
    found = await parts_of(request).watches.watch(span_of(asked) or Span(b"", None), since, abort)
    return EventStream(found.chunks, found.close)


def last_id_of(request: Request) -> int | None:
    """Where a stream was lost."""
    last = request.headers.get("last-event-id")
    if last is None:
        return None
    try:
        return number_of(last.encode("latin-1"), 0)
    except ValueError as error:
        raise bad(f"Last-Event-ID: {error}") from None
