"""What a gateway is made of, for those who answer requests."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.actions import Ledger
from api.admission import Admission
from api.board import Board
from api.cluster import Surveys
from api.hot import headers_of, origin_of
from api.metrics import Metrics
from api.parameters import Asked, Known, read_query
from api.problems import Headers
from api.settings import GatewaySettings
from api.store import Access, Store
from api.watches import Watches
from rsm.proxy import Fresh, Result


class Parts(NamedTuple):
    settings: GatewaySettings
    access: Access[Any]
    watches: Watches[Any]
    surveys: Surveys
    admission: Admission
    metrics: Metrics
    board: Board

    @property
    def store(self) -> Store:
        """For routes that are there if the group runs the key-value store."""
        assert isinstance(self.access, Store)
        return self.access

    @property
    def ledger(self) -> Ledger:
        """For routes that are there if it runs actions."""
        assert isinstance(self.access, Ledger)
        return self.access


def parts_of(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


def asked_of(request: Request, allowed: Known) -> Asked:
    return read_query(request.scope["query_string"], allowed)


def known_headers(request: Request) -> dict[bytes, bytes]:
    return headers_of(request.scope)


def json_answer(
    shape: Mapping[str, Any] | None,
    told: Fresh[Any] | Result[Any] | None = None,
    status: int = 200,
    headers: Headers | None = None,
) -> Response:
    """``told`` says where in the order it is from; without a shape there is no body."""
    body = b"" if shape is None else msgspec.json.encode(shape)
    response = Response(body, status, media_type=None if shape is None else "application/json")
    response.raw_headers += [
        (b"cache-control", b"no-store"),
        *([] if told is None else origin_of(told)),
        *(headers or []),
    ]
    return response
