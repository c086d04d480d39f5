"""Over HTTP: the door of gateways, and a process outside the group that knows no other."""

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Final

import httpx2

from bench.chaos.history import Ended, Notes
from bench.chaos.http.draws import Request
from bench.chaos.http.load import END_SECONDS, StoreLoad, Told
from bench.chaos.http.requests import http_of, told
from bench.chaos.http.store import RecordedStore
from bench.chaos.http.watching import Watcher
from bench.chaos.load import CALL_SECONDS, CallerSetup, fetch_order
from bench.member import forget_settings, heard
from bench.wire import new_loop
from bench.workers import Link

CONNECT_SECONDS: Final = 1.0
BAD_SECONDS: Final = 0.5


class Transport(httpx2.AsyncHTTPTransport):
    """A connection that the other end resets before a request goes out has no socket any more on uvloop, and
    anyio asks it for its name. Nothing was sent."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            raise httpx2.ConnectError(f"reset as soon as it was made: {error}", request=request) from error


class Gateways:
    """Each is a way in. One that is gone is left alone for a moment."""

    def __init__(self, client: httpx2.AsyncClient, urls: tuple[str, ...]) -> None:
        self.ways = len(urls)
        self._client = client
        self._urls = urls
        self._bad_until = [0.0] * len(urls)

    def good(self, way: int) -> bool:
        return time.monotonic() >= self._bad_until[way]

    async def ask(self, request: Request, way: int) -> Told:
        sent = http_of(request)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answer = await self._client.request(
                    sent.method, self._urls[way] + sent.path, headers=sent.headers, content=sent.body
                )
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            self._bad_until[way] = time.monotonic() + BAD_SECONDS
            return Told(Ended.REFUSED, why=f"{type(error).__name__}: {error}")
        except (httpx2.HTTPError, TimeoutError) as error:
            self._bad_until[way] = time.monotonic() + BAD_SECONDS
            return Told(Ended.UNKNOWN, why=f"{type(error).__name__}: {error}")
        return told(request, answer)


class HttpSetup(CallerSetup, frozen=True, kw_only=True):
    gateways: tuple[str, ...]
    watch: Path


def http_caller(link: Link) -> None:
    """A process outside the group that knows its gateways alone."""
    setup: HttpSetup = link.hear()
    forget_settings()
    loop = new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_call(link, setup))


async def _call(link: Link, setup: HttpSetup) -> None:
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
    client = httpx2.AsyncClient(timeout=timeout, transport=Transport(trust_env=False))
    watcher = Watcher(client, setup.gateways, setup.client - 1, setup.watch)
    load = StoreLoad(Gateways(client, setup.gateways), setup.client, Notes(setup.notes), Random(setup.seed))
    await watcher.begun()
    load.start(setup.tasks, setup.pause_s)
    link.say("calling")
    while True:
        match await heard(link):
            case "quiet":
                await load.stop()
                link.say(await _come_to_an_end(load, watcher))
            case "order":
                link.say(await fetch_order(RecordedStore, setup.config()))


async def _come_to_an_end(load: StoreLoad, watcher: Watcher) -> str:
    """Nothing, or what did not come to one."""
    try:
        last = await load.put_end()
    except TimeoutError:
        return f"no gateway has written a key for {END_SECONDS:.0f} s after the last fault"
    try:
        async with asyncio.timeout(END_SECONDS):
            await watcher.reached(last)
    except TimeoutError:
        return f"a watcher has not seen revision {last} within {END_SECONDS:.0f} s of its answer"
    finally:
        await watcher.stop()
    return ""
