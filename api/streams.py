"""Server-sent events to one client, for as long as both want."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from starlette.responses import Response

from api.problems import Headers
from api.server import Receive, Scope, Send

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies that collect before they pass on
]


class EventStream(Response):
    """``close`` is called when it is over, however that came."""

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: Callable[[], AsyncGenerator[bytes, None]],
        close: Callable[[], Awaitable[None]],
        headers: Headers | None = None,
    ) -> None:
        super().__init__()
        self._chunks = chunks
        self._close = close
        self._more = headers or []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait([pump, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            pump.cancel()
            await asyncio.wait([pump, gone])
            await self._close()
        if not pump.cancelled():
            await pump

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self._more]})
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Returns when the client has hung up. Everything that it had to say is read."""
    while (await receive())["type"] != "http.disconnect":
        pass
