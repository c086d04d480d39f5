"""What a program holds in its hand: the machine's methods, as coroutines.

::

    async with Replica(Counter, config) as counter:
        await counter.add(1)
        await counter.with_options(timeout=0.5).get()
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Protocol, Self

import msgspec

from rsm import envelope
from rsm.errors import OutcomeUnknown
from rsm.methods import Catalogue, Method
from rsm.sessions import Answer


class Consistency(StrEnum):
    """What a query may miss (R11)."""

    LINEARIZABLE = "linearizable"
    """Nothing that was answered to anybody before it was asked."""
    SEQUENTIAL = "sequential"
    """Nothing that was answered to this process; perhaps what others have just done."""
    STALE = "stale"
    """Whatever is not here yet: also a replica that is cut off answers, and says how old it may be."""


class Options(msgspec.Struct, frozen=True):
    timeout: float | None = None
    consistency: Consistency = Consistency.LINEARIZABLE


class Reading(msgspec.Struct, frozen=True):
    """The encoded answer to a query, and of which state. ``age_s``: when a majority was last heard."""

    reply: bytes
    timestamp: int
    age_s: float = 0.0


class Fresh(msgspec.Struct, frozen=True):
    """A value, and of which state it is."""

    value: Any
    timestamp: int
    age_s: float


class Backend(Protocol):
    """Who executes calls: a replica, or a client."""

    catalogue: Catalogue

    def execute(self, command: Any) -> Awaitable[Answer]: ...

    def query(
        self, method: Method, arguments: tuple[Any, ...], named: dict[str, Any], consistency: Consistency
    ) -> Awaitable[Reading]: ...


class Proxy:
    """Commands and queries by their names; ``apply`` takes raw bytes."""

    def __init__(self, backend: Backend, options: Options | None = None) -> None:
        self._backend = backend
        self._options = options or Options()

    def with_options(self, **changes: Any) -> Self:
        """The same with another ``timeout`` (seconds) or ``consistency``."""
        return type(self)(self._backend, msgspec.structs.replace(self._options, **changes))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        catalogue = self._backend.catalogue
        if name in catalogue.queries:
            method = catalogue.query(name)

            async def ask(*args: Any, **kwargs: Any) -> Any:
                return (await self._ask(method, args, kwargs)).value

            bound = ask
        else:
            method = catalogue.command(name)

            async def tell(*args: Any, **kwargs: Any) -> Any:
                pending = self._backend.execute(method.bind(args, kwargs))
                hurried = self._options.timeout is not None
                answer = await (self._in_time(pending, method) if hurried else pending)
                return method.decode_result(envelope.value_of(answer.reply))

            bound = tell
        self.__dict__[name] = bound  # the next access finds it without asking
        return bound

    async def reading(self, name: str, *args: Any, **kwargs: Any) -> Fresh:
        """A query by its name, with the timestamp of the state that answered it, and how old that may be."""
        return await self._ask(self._backend.catalogue.query(name), args, kwargs)

    async def _ask(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fresh:
        asked = self._backend.query(method, args, kwargs, self._options.consistency)
        reading: Reading = await self._in_time(asked, method)
        value = method.decode_result(envelope.value_of(reading.reply))
        return Fresh(value, reading.timestamp, reading.age_s)

    async def apply(self, data: bytes) -> bytes:
        """The raw route."""
        answer = await self._in_time(self._backend.execute(bytes(data)), None)
        return msgspec.msgpack.decode(envelope.value_of(answer.reply), type=bytes)

    async def _in_time(self, pending: Awaitable[Any], method: Method | None) -> Any:
        timeout = self._options.timeout
        if timeout is None:
            return await pending
        try:
            async with asyncio.timeout(timeout):
                return await pending
        except TimeoutError:
            if method is not None and not method.mark.is_command:
                raise
            name = "apply" if method is None else method.title
            raise OutcomeUnknown(f"{name}: no answer within {timeout} s; it may still be executed") from None
