"""A request's body as it comes in: counted, and with a clock."""

import asyncio
from collections.abc import Mapping

from api.problems import Problem
from api.server import Receive
from api.settings import GatewaySettings


class Gone(Exception):
    """The client has gone away; nobody waits for an answer."""


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


def said_length(headers: Mapping[bytes, bytes]) -> int:
    """0 if nothing is said. The parser has seen to it that these are digits of a number, with blanks
    around them, and zeros before them, as many as a head has room for."""
    return int(headers.get(b"content-length", b"").strip().lstrip(b"0") or b"0")


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], bytes_max: int, bounds: GatewaySettings
) -> bytes:
    """All of it, if it is not too large, and keeps coming."""
    if not has_body(headers):
        return b""
    if said_length(headers) > bytes_max:
        raise too_large(bytes_max)
    began = asyncio.get_running_loop().time() + bounds.body_s
    try:
        async with asyncio.timeout_at(began) as clock:
            message = await receive()
            body: bytes = message.get("body", b"")
            if message["type"] == "http.request" and not message["more_body"] and len(body) <= bytes_max:
                return body
            parts, size = [body], len(body)
            while message["type"] == "http.request":
                if size > bytes_max:
                    raise too_large(bytes_max)
                if not message["more_body"]:
                    return b"".join(parts)
                clock.reschedule(began + size / bounds.body_bytes_per_s_min)
                message = await receive()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
    except TimeoutError:
        raise too_slow(bounds.body_bytes_per_s_min) from None
    raise Gone


def too_large(bytes_max: int) -> Problem:
    return Problem("too_large", f"the body has more than {bytes_max} bytes", bytes_max=bytes_max)


def too_slow(least: int) -> Problem:
    return Problem("too_slow", f"the body must make {least} bytes a second; send it faster")
