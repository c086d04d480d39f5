"""A real group, a client of it, and a gateway on a port; and who asks over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, cast

import httpx2

from api.app import Gateway, create_app
from api.protocol import BoundedProtocol
from api.server import Serving
from api.settings import GatewaySettings
from apps.kv.store import KeyValueStore
from rsm.client import Client, ClientConfig
from rsm.replica import Replica
from tests.rsm.test_replica import group_of, play


class Place(NamedTuple):
    """A gateway, and what is behind it."""

    http: httpx2.AsyncClient
    serving: Serving
    gateway: Gateway
    client: Client[KeyValueStore]
    replicas: list[Replica[Any]]


def settings_of(**changes: Any) -> GatewaySettings:
    return GatewaySettings(**{"bind": "127.0.0.1:0", **changes})


def client_config(replicas: list[Replica[Any]], **changes: Any) -> ClientConfig:
    addresses = tuple(replica.address for replica in replicas)
    return ClientConfig(group="tested", replicas=addresses, insecure=True, **changes)


@asynccontextmanager
async def gateway_of(
    sites: int = 3, group: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[Place]:
    """``group`` are settings of the replicas, the rest is of the gateway."""
    async with group_of(KeyValueStore, sites, **(group or {})) as replicas:
        client = Client(KeyValueStore, client_config(replicas))
        async with client, served(client, **changes) as (gateway, serving, http):
            yield Place(http, serving, gateway, client, replicas)


@asynccontextmanager
async def served(
    group: Client[Any] | Replica[Any], **changes: Any
) -> AsyncIterator[tuple[Gateway, Serving, httpx2.AsyncClient]]:
    settings = settings_of(**changes)
    gateway = create_app(group, settings)
    async with (
        Serving(gateway, settings) as serving,
        httpx2.AsyncClient(base_url=serving.url, timeout=30) as http,
    ):
        yield gateway, serving, http


def ask(test: Callable[[Place], Awaitable[None]], **changes: Any) -> None:
    """Play a test against a gateway of its own."""

    async def main() -> None:
        async with gateway_of(**changes) as place:
            await test(place)

    play(main())


def problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The problem that an answer is, and must be."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["code"] == code, found
    assert found["status"] == status
    assert found["type"] == f"urn:rsm:problem:{code}"
    assert found["title"]
    assert found["detail"]
    return found


class Served(Protocol):
    @property
    def http(self) -> httpx2.AsyncClient: ...

    @property
    def replicas(self) -> list[Replica[Any]]: ...


async def healthy(place: Served) -> None:
    """The ring is the same, and the gateway serves."""
    assert {replica.status().view for replica in place.replicas} == {place.replicas[0].status().view}
    assert all(replica.is_serving for replica in place.replicas)
    assert (await place.http.get("/readyz")).status_code == 200


@asynccontextmanager
async def connected(place: Place) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(place.serving.host, place.serving.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def connections_of(place: Place) -> list[BoundedProtocol]:
    server = place.serving._server
    assert server is not None
    return [cast(BoundedProtocol, each) for each in server.server_state.connections]


async def raw(place: Place, *parts: bytes, pause: float = 0.0) -> bytes:
    """What comes back for bytes as they are, until the gateway hangs up. ``pause``: between them, for who is
    slow."""
    async with connected(place) as (reader, writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        return await reader.read()
