"""How is it put together?

::

    HTTP ─▶ connection ─▶ /v1/kv/{key}: ``hot``, without ASGI
                       └▶ Gateway: who is it? is there room? ─▶ FastAPI, ``routes``

The machine of the group says what is served: keys, or actions. Whatever goes wrong, here or in a route, is
answered with a problem.
"""

from importlib.metadata import version
from time import perf_counter
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from api import description, hot, schemas
from api.actions import ActionEvents, Ledger
from api.admission import Admission
from api.board import Board, Look
from api.bodies import Gone, has_body, read_body
from api.cluster import Surveys
from api.control import Supervisor
from api.key_events import KeyEvents
from api.metrics import GONE, Metrics
from api.origins import Origins
from api.parameters import EVERYTHING
from api.parts import Parts, parts_of
from api.problems import Problem, defect, problem_of
from api.protocol import CONNECTION
from api.routes import actions, cluster, dashboard, demo, docs, health, keys, leases, locks, watch
from api.server import Receive, Scope, Send
from api.settings import GatewaySettings
from api.store import Access, App, Store
from api.tokens import Scope as Right
from api.tokens import Tokens
from api.watches import Source, Watches
from apps.actions.ledger import ActionLedger
from ordering.errors import OrderingError
from rsm.client import Client
from rsm.errors import RsmError
from rsm.logs import logger
from rsm.proxy import Consistency
from rsm.replica import Replica

log = logger(__name__)

_OPEN: Final = frozenset({b"/livez", b"/readyz", b"/openapi.json"}) | docs.PATHS | dashboard.PATHS
_UNCOUNTED: Final = _OPEN | {b"/metrics", b"/v1/watch", b"/v1/actions/events", b"/v1/cluster/events"}
_DATA: Final = {
    App.KV: ("kv", "history", "watch", "txn", "counters", "leases", "locks"),
    App.ACTIONS: ("actions",),
}
_DATA_PATHS: Final = tuple(f"/v1/{name}".encode() for names in _DATA.values() for name in names)
_DATA_PREFIXES: Final = tuple(path + b"/" for path in _DATA_PATHS)
_NAMES: Final = {App.KV: "the key-value store", App.ACTIONS: "actions"}
_READ_ONLY: Final = frozenset({b"/v1/cluster", b"/v1/cluster/events", b"/v1/demo", b"/metrics"})
_NO_ROUTE: Final = "none"
_WAITING: Final = ("/v1/locks", "/v1/actions")
_ROUTES: Final = {App.KV: (keys, watch, leases, locks), App.ACTIONS: (actions,)}
_EVERYWHERE: Final = (cluster, health, docs, dashboard)
LOCKS_MAX: Final = 50


def create_app(group: Client[Any] | Replica[Any], settings: GatewaySettings) -> "Gateway":
    """An ASGI application that serves ``group``, which is a client or a replica of the key-value store or of
    actions."""
    return Gateway(group, settings)


class Gateway:
    """The outermost layer of ASGI, with what holds for every request; ``keys`` is beside it, if there are."""

    def __init__(self, group: Client[Any] | Replica[Any], settings: GatewaySettings) -> None:
        metrics, admission = Metrics(), Admission(settings)
        self.settings = settings
        self._tokens = None if settings.tokens is None else Tokens(settings.tokens)
        self._origins = Origins(settings)
        self.keys: hot.Keys | None = None
        access: Access[Any]
        if issubclass(group.catalogue.machine, ActionLedger):
            access = ledger = Ledger(group, settings.timeout)
            source: Source[Any] = ActionEvents(ledger)
            look: Look = ledger.look
        else:
            access = store = Store(group, settings.timeout)
            source, look = KeyEvents(store), _look_at_locks(store)
            self.keys = hot.Keys(store, settings, self._tokens, self._origins, admission, metrics)
        self.parts = Parts(
            settings,
            access,
            Watches(source, settings),
            Surveys(group, access.app, settings),
            admission,
            metrics,
            Board(access, look, metrics, None if settings.demo is None else Supervisor(settings.demo)),
        )
        self._web = _web(self.parts, tokens=self._tokens is not None)
        self._show()
        if self._tokens is None and settings.insecure:
            log.warning("everybody who reaches the port may do everything", bind=settings.bind)

    def _show(self) -> None:
        metrics, admission, watches = self.parts.metrics, self.parts.admission, self.parts.watches
        access = self.parts.access
        metrics.gauge("requests_under_way", "Requests that are let in.", lambda: admission.under_way)
        metrics.gauge("requests_limit", "So many may be under way now.", lambda: admission.limit)
        metrics.gauge("refusals_held_back", "429s that wait to be told.", lambda: admission.held)
        metrics.gauge("waiting", "Requests that wait for a lock or a decision.", lambda: admission.waiting)
        metrics.gauge("watchers", "Event streams that are open.", lambda: watches.count)
        metrics.gauge("primary", "Whether a majority was reached.", lambda: not access.is_lost)
        metrics.gauge(
            "linked", "Whether reads have a replica to go to.", lambda: bool(access.group.linked_to)
        )

    async def start(self) -> None:
        self.parts.access.start()

    async def stop(self) -> None:
        """Nothing more is let in, and streams end; what is under way goes on."""
        self.parts.admission.stop()
        self.parts.watches.stop()
        self.parts.board.stop()
        await self.parts.access.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']}: this application speaks HTTP alone")
        began = perf_counter()
        route, status = await self._answer(scope["raw_path"], scope, receive, send)
        self.parts.metrics.note(route, scope["method"], status, perf_counter() - began)

    async def _answer(self, path: bytes, scope: Scope, receive: Receive, send: Send) -> tuple[str, int]:
        admission = self.parts.admission
        scope["path"] = path.decode("latin-1")  # routes go by what was sent, as rights do; keys are any bytes
        noted = _Noted(send)
        headers = hot.headers_of(scope)
        try:
            self._origins.check(headers)
            if self._tokens is not None and path not in _OPEN:
                self._tokens.check(headers.get(b"authorization", b""), _right(scope["method"], path))
            if path in _UNCOUNTED:
                await self._web(scope, receive, noted)
            elif not (place := admission.enter(standing := scope[CONNECTION].standing)):
                raise await admission.refusal(standing)
            else:
                began = perf_counter()
                try:
                    body = await read_body(receive, headers, self.settings.json_bytes_max, self.settings)
                    await self._web(scope, _Replayed(body, receive), noted)
                finally:
                    admission.leave(place, _kind(scope, noted.status), perf_counter() - began)
        except Gone:
            noted.status = GONE
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered, and logged if it is ours
            if not noted.is_complete:  # else FastAPI has asked ``_failed`` what to say
                problem = problem_of(error)
                if not noted.status:
                    await _send_problem(noted, problem)
        route = scope.get("route")
        return getattr(route, "path", _NO_ROUTE), noted.status


def _look_at_locks(store: Store) -> Look:
    async def look() -> tuple[str, Any]:
        found = await store.reading(Consistency.STALE).locks(*EVERYTHING, LOCKS_MAX)
        return "locks", {"items": [schemas.lock(each) for each in found.value]}

    return look


class _Noted:
    """Sends, and remembers the status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.is_complete = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if hot.NOSNIFF not in message["headers"]:
                message = {**message, "headers": [*message["headers"], hot.NOSNIFF]}
        else:
            self.is_complete = not message.get("more_body", False)
        await self._send(message)


class _Replayed:
    """A body that was read already, and then whatever comes."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Any:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}


async def _send_problem(send: Send, problem: Problem) -> None:
    body = problem.body()
    headers = [*problem.headers(), hot.NOSNIFF, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _kind(scope: Scope, status: int) -> str | None:
    """Those of one route are alike. What failed, or may have waited, took no time of its own."""
    path: str = getattr(scope.get("route"), "path", _NO_ROUTE)
    return None if not 0 < status < 400 or path.startswith(_WAITING) else f"{scope['method']} {path}"


def _right(method: str, path: bytes) -> Right:
    """What a request needs. Paths that are not known here need most."""
    is_data = path in _DATA_PATHS or path.startswith(_DATA_PREFIXES)
    if method in {"GET", "HEAD"}:
        return Right.READ if is_data or path in _READ_ONLY else Right.ADMIN
    return Right.WRITE if is_data else Right.ADMIN


# -- FastAPI -------------------------------------------------------------------------------------


def _web(parts: Parts, *, tokens: bool) -> FastAPI:
    app = FastAPI(
        title=description.TITLES[parts.access.app],
        version=version("rsm"),
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.parts = parts
    for each in _routes(parts):
        app.include_router(each.router)
    for kind in (Problem, OrderingError, RsmError, TimeoutError):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(Exception, _failed)
    app.add_exception_handler(Gone, _left)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    described: list[dict[str, Any]] = []

    def openapi() -> dict[str, Any]:
        if not described:
            described.append(description.describe(app, parts.access.app, tokens=tokens))
        return described[0]

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _routes(parts: Parts) -> list[Any]:
    there = [*_ROUTES[parts.access.app], *_EVERYWHERE]
    return there if parts.settings.demo is None else [*there, demo]


async def _failed(_: Request, error: Exception) -> Response:
    return _response(problem_of(error))


async def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=GONE)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        headers = [(b"allow", allowed.encode())]
        return _response(Problem("method_not_allowed", f"{path} takes {allowed}", headers=headers))
    if error.status_code == 404:
        return _response(Problem("not_found", _why_nothing(request)))
    if error.status_code == 400:
        return _response(Problem("bad_request", f"the body is no JSON that can be read: {error.detail}"))
    return _response(defect(error))


def _why_nothing(request: Request) -> str:
    served = parts_of(request).access.app
    _, _, rest = request.scope["path"].partition("/v1/")
    for app, names in _DATA.items():
        if app is not served and rest.partition("/")[0] in names:
            return f"this gateway serves {_NAMES[served]}, for the group runs that, and not {_NAMES[app]}"
    return "there is nothing at this path; see /docs or /openapi.json"


def _methods(request: Request) -> list[str]:
    found: set[str] = set()
    for route in (route for each in _routes(parts_of(request)) for route in each.router.routes):
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["loc"][0] == "path" for each in found):
        return _response(Problem("not_found", "there is nothing at this path; see /docs or /openapi.json"))
    if any(each["type"] == "json_invalid" for each in found):
        return _response(Problem("bad_request", "the body is no JSON that can be read"))
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if has_body(hot.headers_of(request.scope)) and kind != "application/json" and not kind.endswith("+json"):
        return _response(Problem("unsupported_media_type", "Content-Type: send application/json"))
    errors = [
        {"place": ".".join(map(str, each["loc"][1:])), "words": each["msg"].removeprefix("Value error, ")}
        for each in found
    ]
    return _response(Problem("invalid", "; ".join(_words(each) for each in errors[:3]), errors=errors[:100]))


def _words(error: dict[str, str]) -> str:
    return ": ".join(filter(None, (error["place"], error["words"])))


def _response(problem: Problem) -> Response:
    response = Response(problem.body(), problem.status)
    response.raw_headers += problem.headers()
    return response
