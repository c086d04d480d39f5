"""Who watches everything that the others change, over one gateway and, when that is gone, over the other.

What comes is written down line by line: where a stream began, each event as it came, where it broke off. What
it should have been, ``checks`` knows.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx2
import msgspec

from bench.chaos.http.requests import bytes_of
from bench.errors import BenchError

SILENCE_SECONDS: Final = 3.0
_AGAIN_SECONDS: Final = 0.1
EVENTS: Final = frozenset({"put", "delete"})


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A stream behind a revision; -1: from now on."""

    gateway: int
    since: int


class Got(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """``id`` is 0 if it has none. Other events than of keys have no revision."""

    kind: str
    id: int
    revision: int = 0
    key: bytes = b""
    value: bytes | None = None
    created: int = 0
    version: int = 0


class Broke(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    why: str


Line: TypeAlias = Opened | Got | Broke
_DECODER = msgspec.json.Decoder(Line)


def read_watch(path: Path) -> list[Line]:
    """Watchers are not struck: every line is whole."""
    try:
        return [_DECODER.decode(line) for line in path.read_bytes().splitlines()]
    except msgspec.MsgspecError as error:
        raise BenchError(f"{path}: is no record of a watch: {error}") from None


class Parser:
    """Server-sent events out of lines. An id counts also where nothing else stands."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> Got | None:
        if line:
            name, _, value = line.partition(":")
            if name:
                self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        return _event(fields) if fields else None


def _event(fields: dict[str, str]) -> Got:
    kind, number = fields.get("event", ""), int(fields.get("id", 0))
    if kind not in EVENTS:
        return Got(kind, number)
    found: dict[str, Any] = msgspec.json.decode(fields["data"])
    key, revision = bytes_of(found, "key"), found["revision"]
    if kind == "delete":
        return Got(kind, number, revision, key)
    return Got(kind, number, revision, key, bytes_of(found, "value"), found["created"], found["version"])


class Watcher:
    """Begins at the gateway that is its own. It goes on behind the last id that it got."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        gateways: Sequence[str],
        own: int,
        notes: Path,
        *,
        prefix: str = "",
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._client = client
        self._gateways = gateways
        self._prefix = prefix
        self._silence_seconds = silence_seconds
        self._at = own
        self._file = os.open(notes, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._last = -1
        self._position = 0
        self._moved = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def _write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    async def reached(self, revision: int) -> None:
        """Returns when it has seen everything up to there."""
        while self._position < revision:
            self._moved.clear()
            await self._moved.wait()

    async def begun(self) -> None:
        while self._last < 0:
            self._moved.clear()
            await self._moved.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        while True:
            gateway = self._at % len(self._gateways)
            try:
                await self._watch(gateway)
            except (httpx2.HTTPError, TimeoutError) as error:
                self._write(Broke(f"{type(error).__name__}: {error}"))
            self._at += 1
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _watch(self, gateway: int) -> None:
        since, headers = self._last, {"Accept": "text/event-stream"}
        if since >= 0:
            headers["Last-Event-ID"] = str(since)
        url = f"{self._gateways[gateway]}/v1/watch?prefix={self._prefix}"
        async with self._client.stream("GET", url, headers=headers) as answer:
            if not answer.is_success:
                self._write(Broke(f"HTTP {answer.status_code} {(await answer.aread()).decode()}"))
                return
            self._write(Opened(gateway, since))
            parser = Parser()
            async for line in _in_time(answer.aiter_lines(), self._silence_seconds):
                event = parser.feed(line)
                if event is not None:
                    self._take(event)
        self._write(Broke("the end"))

    def _take(self, event: Got) -> None:
        self._write(event)
        if event.id:
            self._last = self._position = event.id
            self._moved.set()


async def _in_time(lines: AsyncIterator[str], seconds: float) -> AsyncIterator[str]:
    """A gateway gives a sign of life in time, or is gone."""
    while True:
        async with asyncio.timeout(seconds):
            try:
                line = await anext(lines)
            except StopAsyncIteration:
                return
        yield line


def streams(lines: Sequence[Line]) -> Iterator[tuple[Opened, list[Got]]]:
    """What came in each of them."""
    current: tuple[Opened, list[Got]] | None = None
    for line in lines:
        match line:
            case Opened():
                if current is not None:
                    yield current
                current = (line, [])
            case Got() if current is not None:
                current[1].append(line)
            case _:
                pass
    if current is not None:
        yield current
