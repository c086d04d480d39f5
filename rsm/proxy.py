"""What a program holds in its hand: the machine's methods, as coroutines.

::

    async with Replica(Counter, config) as counter:
        await counter.add(1)
        await counter.with_options(timeout=0.5).get()
        done = await counter.with_options(qos="all").with_details().add(1)
        done.value, done.timestamp, done.qos

``rsm.mypy_plugin`` gives the methods their types. Type checkers without plugins see them at
``counter.call(Counter.add, 1)``, which is the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, cast

import msgspec

from rsm import envelope
from rsm.errors import OutcomeUnknown
from rsm.methods import Catalogue, Method
from rsm.sessions import Answer
from rsm.state_machine import Marked, StateMachine

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=StateMachine)


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


class Changes(TypedDict, total=False):
    """Of the options; those that are not named stay as they are."""

    timeout: float | None
    consistency: Consistency


class Reading(msgspec.Struct, frozen=True):
    """The encoded answer to a query, and of which state. ``age_s``: when a majority was last heard."""

    reply: bytes
    timestamp: int
    age_s: float = 0.0


class Fresh(msgspec.Struct, Generic[R], frozen=True):
    """What a query found, and of which state it is."""

    value: R
    timestamp: int
    age_s: float


class Result(msgspec.Struct, Generic[R], frozen=True):
    """What a command returned, and the slot in which it was executed."""

    value: R
    timestamp: int


class Backend(Protocol):
    """Who executes calls: a replica, or a client."""

    catalogue: Catalogue

    def execute(self, command: Any) -> Awaitable[Answer]: ...

    def query(
        self, method: Method, arguments: tuple[Any, ...], named: dict[str, Any], consistency: Consistency
    ) -> Awaitable[Reading]: ...


class _Calling:
    """How a call is made, with the options of one proxy."""

    def __init__(self, backend: Backend, options: Options | None = None) -> None:
        self._backend = backend
        self._options = options or Options()

    def with_options(self, **changes: Unpack[Changes]) -> Self:
        """The same with another ``timeout`` (seconds) or ``consistency``."""
        return type(self)(self._backend, msgspec.structs.replace(self._options, **changes))

    def _find(self, name: str) -> Method:
        if name.startswith("_"):
            raise AttributeError(name)
        catalogue = self._backend.catalogue
        return catalogue.query(name) if name in catalogue.queries else catalogue.command(name)

    async def _tell(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result[Any]:
        answer: Answer = await self._in_time(self._backend.execute(method.bind(args, kwargs)), method)
        return Result(method.decode_result(envelope.value_of(answer.reply)), answer.ts)

    async def _ask(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fresh[Any]:
        asked = self._backend.query(method, args, kwargs, self._options.consistency)
        reading: Reading = await self._in_time(asked, method)
        value = method.decode_result(envelope.value_of(reading.reply))
        return Fresh(value, reading.timestamp, reading.age_s)

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


class Proxy(_Calling, Generic[M]):
    """Commands and queries by their names; ``apply`` takes raw bytes."""

    def with_details(self) -> "DetailedProxy[M]":
        """The same, whose methods also tell where in the order they were."""
        return DetailedProxy(self._backend, self._options)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = self._find(name)
        if not method.mark.is_command:

            async def ask(*args: Any, **kwargs: Any) -> Any:
                return (await self._ask(method, args, kwargs)).value

            bound = ask
        elif self._options == Options(consistency=self._options.consistency):

            async def tell(*args: Any, **kwargs: Any) -> Any:
                answer = await self._backend.execute(method.bind(args, kwargs))
                return method.decode_result(envelope.value_of(answer.reply))

            bound = tell
        else:

            async def tell_so(*args: Any, **kwargs: Any) -> Any:
                return (await self._tell(method, args, kwargs)).value

            bound = tell_so
        self.__dict__[name] = bound  # the next access finds it without asking
        return bound

    async def call(self, method: Marked[M, P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """``call(Counter.add, 1)`` is ``add(1)``, for type checkers that see no methods here."""
        return cast(R, await getattr(self, method.__name__)(*args, **kwargs))

    async def reading(self, name: str, *args: Any, **kwargs: Any) -> Fresh[Any]:
        """A query by its name, with the timestamp of the state that answered it, and how old that may be."""
        return await self._ask(self._backend.catalogue.query(name), args, kwargs)

    async def apply(self, data: bytes) -> bytes:
        """The raw route."""
        answer = await self._in_time(self._backend.execute(bytes(data)), None)
        return msgspec.msgpack.decode(envelope.value_of(answer.reply), type=bytes)


class DetailedProxy(_Calling, Generic[M]):
    """The same methods: a command returns a ``Result``, a query a ``Fresh``."""

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = self._find(name)
        perform: Callable[..., Awaitable[Any]] = self._tell if method.mark.is_command else self._ask

        async def bound(*args: Any, **kwargs: Any) -> Any:
            return await perform(method, args, kwargs)

        return bound
