"""The least that an application on the gateway's HTTP server can do: read the request, answer 100 bytes."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_HEADERS = [(b"content-length", b"100"), (b"etag", b'"1"')]
_BODY = b"x" * 100


async def application(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY})
