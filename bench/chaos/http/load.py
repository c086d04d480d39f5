"""Requests without end, by whatever door, and the door from within a replica.

A request that has an Idempotency-Key is now and then sent twice: one after the other over different gateways,
or over both at once. Each time is written down by itself; what they are told must be one answer.
"""

import asyncio
import time
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from bench.chaos.history import Called, Ended, Notes, Returned
from bench.chaos.http.draws import Draws, Request
from bench.chaos.http.store import Shown, end_of, mark, once_of, refusal, shown
from bench.chaos.load import CALL_SECONDS, Calling
from ordering.errors import OrderingError
from rsm import envelope
from rsm.errors import OutcomeUnknown, RsmError
from rsm.methods import Catalogue
from rsm.proxy import Backend, Consistency

AGAIN_SECONDS: Final = 0.5
END_SECONDS: Final = 20.0
REPEATED_SHARE: Final = 0.2
REPEATED_UNKNOWN_SHARE: Final = 0.8
AT_ONCE_SHARE: Final = 0.1
READ_SHARE: Final = 0.4  # of what was just changed, over the other gateway
END_KEY: Final = b"end/%d"
_METHODS: Final = Catalogue(Shown)


class Told(NamedTuple):
    """How a request ended, as the line that is written of it has it."""

    ended: Ended
    ts: int = 0
    reply: bytes = b""
    why: str = ""


class Door(Protocol):
    """Where requests go in."""

    ways: int

    async def ask(self, request: Request, way: int) -> Told: ...

    def good(self, way: int) -> bool:
        """Whether there is no reason to take another one."""


class StoreLoad(Calling):
    def __init__(self, door: Door, client: int, notes: Notes, rng: Random) -> None:
        super().__init__(client, notes, rng)
        self._door = door
        self._draws = Draws(client, rng)

    async def call(self) -> bool:
        """One request, and perhaps the same again."""
        self._requests += 1
        request = self._draws.draw(self._requests)
        way = self._way()
        other = (way + 1) % self._door.ways
        repeatable = request.once is not None and other != way
        if repeatable and self._rng.random() < AT_ONCE_SHARE:
            both = await asyncio.gather(self._attempt(request, way), self._repeat(request, other))
            return any(each is not Ended.REFUSED for each in both)
        ended = await self._attempt(request, way)
        share = REPEATED_UNKNOWN_SHARE if ended is Ended.UNKNOWN else REPEATED_SHARE
        if repeatable and self._rng.random() < share:
            await self._repeat(request, other)
        elif ended is Ended.OK and request.changes and self._rng.random() < READ_SHARE:
            await self._repeat(self._draws.read_of(request), other)
        return ended is not Ended.REFUSED

    def _way(self) -> int:
        drawn = self._rng.randrange(self._door.ways)
        return drawn if self._door.good(drawn) else (drawn + 1) % self._door.ways

    async def put_end(self) -> int:
        """A last key, written until somebody says so; its revision."""
        self._requests += 1
        number = self._requests
        name = (self._client, number)
        request = Request(name, "put", (END_KEY % self._client, mark(name), None, mark(name)))
        async with asyncio.timeout(END_SECONDS):
            while True:
                answer = await self._noted(request, number, self._way())
                if answer.ended is Ended.OK:
                    return int(msgspec.msgpack.decode(answer.reply)[1][0])
                self._requests += 1
                number = self._requests
                await asyncio.sleep(AGAIN_SECONDS)

    async def _attempt(self, request: Request, way: int) -> Ended:
        """The first of a request, under the number in its name."""
        return await self._try(request, request.name[1], way)

    async def _repeat(self, request: Request, way: int) -> Ended:
        """Under another number, whatever its name."""
        self._requests += 1
        return await self._try(request, self._requests, way)

    async def _try(self, request: Request, number: int, way: int) -> Ended:
        answer = await self._noted(request, number, way)
        if answer.ended is Ended.OK:
            self._draws.see(request, msgspec.msgpack.decode(answer.reply)[1])
        return answer.ended

    async def _noted(self, request: Request, number: int, way: int) -> Told:
        method = request.method
        found = _METHODS.query(method) if method in _METHODS.queries else _METHODS.command(method)
        encoded = msgspec.msgpack.encode(found.bind(request.arguments, {}))
        self._notes.write(Called(self._client, number, method, encoded, time.monotonic_ns()))
        answer = await self._door.ask(request, way)
        self._notes.write(
            Returned(
                self._client,
                number,
                answer.ended,
                time.monotonic_ns(),
                answer.ts,
                answer.reply,
                answer.why,
            )
        )
        return answer


# -- from within a replica -----------------------------------------------------------------------


class Inside:
    """The replica of this process."""

    ways = 1

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def good(self, _: int) -> bool:
        return True

    async def ask(self, request: Request, _: int) -> Told:
        catalogue = self._backend.catalogue
        name, arguments = _call_of(request)
        is_query = name in catalogue.queries
        method = catalogue.query(name) if is_query else catalogue.command(name)
        bound = method.bind(arguments, {})
        try:
            async with asyncio.timeout(CALL_SECONDS):
                if is_query:
                    reading = await self._backend.query(bound, Consistency.LINEARIZABLE, 0)
                    ts, reply = reading.timestamp, reading.reply
                else:
                    answer = await self._backend.execute(bound)
                    ts, reply = answer.ts, answer.reply
        except (OutcomeUnknown, TimeoutError) as error:
            return Told(Ended.UNKNOWN, why=str(error))
        except (RsmError, OrderingError) as error:
            return Told(Ended.REFUSED, why=f"{type(error).__name__}: {error}")
        match msgspec.msgpack.decode(reply, type=envelope.Reply):
            case envelope.Ok(value):
                seen = shown(method.decode_result(value))
                return Told(Ended.OK, ts, envelope.encode_reply(envelope.OkEncoded(seen)))
            case envelope.RejectedReply(message, detail):
                rejected = refusal(message, detail)
                seen = envelope.RejectedReply(rejected.message, rejected.detail)
                return Told(Ended.REJECTED, ts, envelope.encode_reply(seen))
            case envelope.FailedReply(kind, words):
                return Told(Ended.FAILED, ts, reply, f"{kind}: {words}")
            case _:
                return Told(Ended.REFUSED, why="it was refused")


def _call_of(request: Request) -> tuple[str, tuple[Any, ...]]:
    """Of the store itself."""
    match request.method, request.arguments:
        case "listing", (prefix,):
            return "range", (prefix, end_of(prefix))
        case "put", (key, value, expect, once):
            return "put", (key, value, expect, None, None, once_of(once))
        case "get", arguments:
            return "get", arguments
        case method, (*arguments, once):
            return method, (*arguments, once_of(once))
        case method, _:
            raise AssertionError(f"{method}: the load draws no such request")
