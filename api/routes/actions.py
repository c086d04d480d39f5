"""Actions: changes at several sites, all of them or none."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from api import action_schemas as shapes
from api.action_schemas import ActionBody, ActionShape, AddBody
from api.actions import DIGEST_BYTES, Ids, asked_for, is_same, refusal_of
from api.description import IDEMPOTENCY_KEY, documented, problems
from api.hot import once_of, origin_of
from api.parameters import INT_MAX, LIMIT, SINCE, Parameter, bad, duration_ms, known, number_of, shown
from api.parameters import percent_decoded as decoded
from api.parts import asked_of, json_answer, known_headers, parts_of
from api.problems import Problem
from api.protocol import CONNECTION
from api.routes.waiting import waited
from api.routes.watch import LAST_ID, STREAM, last_id_of
from api.streams import EventStream
from apps.actions.outcomes import is_decided
from apps.actions.types import Action, NewAction, State
from rsm.errors import Rejected
from rsm.proxy import Fresh, Result

router = APIRouter(prefix="/v1/actions", tags=["actions"])

PAGE: Final = 100
WAIT_SECONDS: Final = 30.0
_PREFIX: Final = b"/v1/actions/"

Told = Fresh[Any] | Result[Any]


def _state(text: bytes) -> State:
    try:
        return State(text.decode())
    except ValueError:
        raise ValueError(f"{shown(text)} is none of {', '.join(State)}") from None


def _text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{shown(text)} is no UTF-8") from None


def _id(text: bytes) -> str:
    if not text:
        raise ValueError("it is empty; it has at least one character")
    return _text(text)


_WORD: Final = {"type": "string"}
STATE: Final = Parameter(
    "state", _state, "Actions that stand so.", {"type": "string", "enum": list(State)}, "voting"
)
AFTER_ID: Final = Parameter("after", _text, "Actions behind this id.", _WORD, "transfer-41")
ID: Final = Parameter("id", _id, "This action alone.", {**_WORD, "minLength": 1}, "transfer-42")
BACK: Final = Parameter(
    "back",
    lambda text: number_of(text, 0),
    "Begin so many slots before now.",
    {"type": "integer", "format": "int64", "minimum": 0, "maximum": INT_MAX},
    100,
)
WAIT: Final = Parameter(
    "wait",
    duration_ms,
    "So long at most for a decision; 30s if it is left out.",
    {"type": "string", "pattern": "^[0-9]{1,12}(ms|s|m|h|d)$"},
    "30s",
)
ActionId = Annotated[str, Path(min_length=1, examples=["transfer-42"])]
_NOTHING: Final = known()
_WAITED: Final = known(WAIT)
_LISTED: Final = (STATE, AFTER_ID, LIMIT)
_KNOWN: Final = known(*_LISTED)
_WATCHED: Final = (ID, SINCE, BACK)
_KNOWN_WATCHED: Final = known(*_WATCHED)
_REFUSED: Final = ("action_aborted", "site_away", "site_behind", "full")
_DECIDED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "It is committed.", "model": ActionShape},
    202: {"description": "It is not decided yet.", "model": ActionShape},
}
_OPENED: Final[dict[int | str, dict[str, Any]]] = {
    201: {"description": "It is open.", "model": ActionShape},
}


# -- new ones ------------------------------------------------------------------------------------


@router.post(
    "",
    summary="Carry an action out, or open one",
    response_model=ActionShape,
    responses={
        **_DECIDED,
        **_OPENED,
        **problems(*_REFUSED, "action_exists", "unsupported_media_type", "invalid", "key_reused"),
    },
    openapi_extra=documented(WAIT, headers=(IDEMPOTENCY_KEY,)),
)
async def create(request: Request, wanted: ActionBody) -> Response:
    asked = asked_of(request, _WAITED)
    ledger = parts_of(request).ledger
    once = once_of(known_headers(request), ())
    code = "action_exists" if wanted.id is not None or once is None else "key_reused"
    made_up = secrets.token_hex(DIGEST_BYTES) if once is None else _digest(once.key)
    name = wanted.id or f"http-{made_up}"
    action = NewAction(name, (), tuple(wanted.depends), wanted.timeout_ms, "http", asked_for(wanted))
    begin: Callable[[], Awaitable[tuple[Action, Told]]]
    try:
        operations = await ledger.bind(wanted.operations)
    except (Problem, TimeoutError) as error:
        if wanted.id is None and once is None:
            raise
        begin = partial(_known_before, request, action, error, commit=wanted.commit)
    else:
        action = msgspec.structs.replace(action, operations=operations)
        begin = partial(_begun, request, action, code, commit=wanted.commit)
    if wanted.commit:
        return await _decided(request, action.id, begin, asked.get(WAIT))
    found, told = await begin()
    return json_answer(shapes.action(found), told, 201, [_location(found.id)])


async def _begun(request: Request, action: NewAction, code: str, *, commit: bool) -> tuple[Action, Told]:
    """``code``: of the problem if there is another one of that id."""
    writing = parts_of(request).ledger.writing()
    try:
        done = await (writing.request(action) if commit else writing.open(action))
    except Rejected as refusal:
        if refusal.message == "exists":
            return await _repeated(request, action, code, refusal, commit=commit)
        raise refusal_of(refusal, action.id) from None
    return done.value, done


async def _repeated(
    request: Request, wanted: NewAction, code: str, refusal: Rejected, *, commit: bool
) -> tuple[Action, Told]:
    """The same again: how it stands. Anything else of that id is refused."""
    fresh = await parts_of(request).ledger.reading().action(wanted.id)
    found = fresh.value
    if found is not None and is_same(found, wanted) and not (commit and found.state is State.OPEN):
        return found, fresh
    told = refusal_of(refusal, wanted.id)
    raise Problem(code, told.detail, **told.members)


async def _known_before(
    request: Request, wanted: NewAction, unbound: Problem | TimeoutError, *, commit: bool
) -> tuple[Action, Told]:
    """What cannot be bound now, since a site is away, may have been requested when it could."""
    fresh = await parts_of(request).ledger.reading().action(wanted.id)
    found = fresh.value
    if found is None:
        raise unbound
    is_it = bool(wanted.asked) and found.asked == wanted.asked
    if is_it and not (commit and found.state is State.OPEN):
        return found, fresh
    if isinstance(unbound, Problem) and unbound.code == "site_away":
        words = f"{unbound.detail} now; there is an action {wanted.id!r}, and it is {found.state.value}"
        raise Problem("site_away", words, **unbound.members)
    raise unbound


def _digest(name: bytes) -> str:
    return blake2b(name, digest_size=DIGEST_BYTES).hexdigest()


async def _decided(
    request: Request, action: str, begin: Callable[[], Awaitable[tuple[Action, Told]]], wait_ms: int | None
) -> Response:
    """The decision, if it comes in time. A request that waits for it does not count among those that are
    under way; the action goes on, whoever has gone."""
    parts = parts_of(request)
    seconds = WAIT_SECONDS if wait_ms is None else wait_ms / 1000
    with parts.admission.aside(), parts.ledger.initiator.outcomes.watch(action) as watch:
        found, told = await begin()
        watch.tell(found)
        if not found.state.is_decided and await waited(request, watch.until(is_decided), seconds):
            found = await watch.until(is_decided)
    told = msgspec.structs.replace(told, timestamp=max(told.timestamp, found.decided))
    shape = shapes.action(found)
    if found.state is State.ABORTED:
        raise Problem("action_aborted", found.reason, headers=origin_of(told), action=shape)
    return json_answer(shape, told, 200 if found.state.is_decided else 202, [_location(found.id)])


def _location(action: str) -> tuple[bytes, bytes]:
    return b"location", _PREFIX + quote(action, safe="").encode()


# -- those there are -----------------------------------------------------------------------------


@router.get(
    "",
    summary="List actions by their ids",
    response_model=shapes.ActionsShape,
    responses=problems(),
    openapi_extra=documented(*_LISTED),
)
async def list_actions(request: Request) -> Response:
    asked = asked_of(request, _KNOWN)
    reading = parts_of(request).ledger.reading()
    fresh = await reading.actions(asked.get(STATE), asked.get(AFTER_ID) or "", asked.get(LIMIT) or PAGE)
    items = [shapes.action(each) for each in fresh.value]
    return json_answer({"items": items, "next": items[-1]["id"] if items else None}, fresh)


@router.get(
    "/sites",
    summary="Who takes part, and which operations there are",
    response_model=shapes.SitesShape,
    responses=problems(),
)
async def sites(request: Request) -> Response:
    asked_of(request, _NOTHING)
    ledger = parts_of(request).ledger
    fresh = await ledger.reading().sites()
    told = await asyncio.gather(*map(ledger.operations_at, fresh.value))
    items: list[shapes.SiteShape] = []
    for site, operations in zip(fresh.value, told, strict=True):
        listed = None if operations is None else [shapes.described(each) for each in operations]
        items.append({**shapes.site(site), "operations": listed})
    return json_answer({"items": items}, fresh)


@router.get(
    "/events",
    summary="Actions as they change",
    status_code=200,
    response_class=EventStream,
    responses={**STREAM, **problems("future", "compacted", "action_not_found")},
    openapi_extra=documented(*_WATCHED, headers=(LAST_ID,)),
)
async def events(request: Request) -> Response:
    asked = asked_of(request, _KNOWN_WATCHED)
    watches = parts_of(request).watches
    only, since, back = asked.get(ID) or "", asked.get(SINCE), asked.get(BACK)
    if since is not None and back is not None:
        raise bad("since, back: say one of them")
    last = last_id_of(request)
    if last is not None:
        since = last
    elif back is not None:
        since = max(await watches.source.now() - back, 0)
    elif since is None and only:
        since = 0  # how it stands
    connection = request.scope.get(CONNECTION)
    found = await watches.watch(Ids(only), since, (lambda: None) if connection is None else connection.abort)
    return EventStream(found.chunks, found.close)


@router.get(
    "/{action:path}",
    summary="How an action stands, and how everybody voted",
    response_model=ActionShape,
    responses=problems("action_not_found"),
)
async def look(request: Request, action: ActionId) -> Response:
    asked_of(request, _NOTHING)
    name = _named(request)
    fresh = await parts_of(request).ledger.reading().action(name)
    if fresh.value is None:
        raise refusal_of(Rejected("unknown"), name)
    return json_answer(shapes.action(fresh.value), fresh)


@router.post(
    "/{action:path}:add",
    summary="Add operations to an open action",
    response_model=ActionShape,
    responses=problems(
        *("action_not_found", "action_exists", "action_decided", "action_changed", "site_away", "full"),
        *("unsupported_media_type", "invalid"),
    ),
)
async def add(request: Request, action: ActionId, wanted: AddBody) -> Response:
    asked_of(request, _NOTHING)
    ledger, name = parts_of(request).ledger, _named(request, b":add")
    operations = await ledger.bind(wanted.operations)
    try:
        done = await ledger.writing().add(name, operations, wanted.behind)
    except Rejected as refusal:
        raise refusal_of(refusal, name) from None
    return json_answer(shapes.action(done.value), done)


@router.post(
    "/{action:path}:commit",
    summary="Commit an open action",
    response_model=ActionShape,
    responses={**_DECIDED, **problems(*_REFUSED, "action_not_found")},
    openapi_extra=documented(WAIT),
)
async def commit(request: Request, action: ActionId) -> Response:
    asked = asked_of(request, _WAITED)
    ledger, name = parts_of(request).ledger, _named(request, b":commit")

    async def begin() -> tuple[Action, Told]:
        try:
            done = await ledger.writing().commit(name)
        except Rejected as refusal:
            if refusal.message in {"exists", "decided"}:  # somebody has asked for it before
                fresh = await ledger.reading().action(name)
                if fresh.value is not None:
                    return fresh.value, fresh
            raise refusal_of(refusal, name) from None
        return done.value, done

    return await _decided(request, name, begin, asked.get(WAIT))


@router.post(
    "/{action:path}:abort",
    summary="Abort an action that is not committed",
    response_model=ActionShape,
    responses=problems("action_not_found", "action_decided"),
)
async def abort(request: Request, action: ActionId) -> Response:
    asked_of(request, _NOTHING)
    name = _named(request, b":abort")
    try:
        done = await parts_of(request).ledger.writing().abort(name, "somebody asked for it over HTTP")
    except Rejected as refusal:
        raise refusal_of(refusal, name) from None
    return json_answer(shapes.action(done.value), done)


def _named(request: Request, suffix: bytes = b"") -> str:
    """The id in the path, without what is asked of it."""
    path: bytes = request.scope["raw_path"]
    text = decoded(path[len(_PREFIX) : len(path) - len(suffix)])
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise Problem("action_not_found", f"{shown(text)} is no id: it is no UTF-8") from None
