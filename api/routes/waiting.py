"""Requests that wait for long, and need nothing meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request

from api.bodies import Gone
from api.parts import parts_of
from api.streams import disconnected


async def waited(request: Request, work: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Whether it has ended in that time, and before the gateway stops. ``Gone``: nobody waits any more."""
    parts = parts_of(request)
    working = asyncio.ensure_future(work)
    ends = [
        asyncio.ensure_future(end) for end in (disconnected(request.receive), parts.watches.stopped.wait())
    ]
    try:
        await asyncio.wait([working, *ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if ends[0].done():
            raise Gone
        if working.done():
            await working
        return working.done()
    finally:
        for task in (working, *ends):
            task.cancel()
        await asyncio.wait([working, *ends])
