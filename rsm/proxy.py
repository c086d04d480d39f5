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
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast

import msgspec

from rsm import envelope
from rsm.errors import CallError, NotHeld, OutcomeUnknown
from rsm.methods import Catalogue, Method
from rsm.quality import ENOUGH, Held, voters_of
from rsm.sessions import Answer, Origin
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
    qos: str = "majority"
    after: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether a command goes out and comes back, and that is all."""
        return self.timeout is None and voters_of(self.qos) == ENOUGH


class Changes(TypedDict, total=False):
    """Of the options; those that are not named stay as they are."""

    timeout: float | None
    consistency: Consistency
    qos: str
    after: int


class Reading(msgspec.Struct, frozen=True):
    """The encoded answer to a query, and of which state. ``age_s``: when a majority was last heard.
    ``replica`` has answered, in ``view`` of ``chain``, as far as that is known."""

    reply: bytes
    timestamp: int
    age_s: float = 0.0
    replica: str = ""
    view: str = ""
    chain: int = 0


class Fresh(msgspec.Struct, Generic[R], frozen=True):
    """What a query found, and of which state it is."""

    value: R
    timestamp: int
    age_s: float
    replica: str = ""
    view: str = ""


class Result(msgspec.Struct, Generic[R], frozen=True):
    """What a command returned, the slot in which it was executed, and the level that was reached."""

    value: R
    timestamp: int
    qos: str
    replica: str = ""
    view: str = ""


_Told: TypeAlias = tuple[Result[Any], Held | None]


def _qos(held: Held | None) -> str:
    return "majority" if held is None else held.qos


def _value_of(reply: bytes, method: Method, timestamp: int, origin: Origin) -> Any:
    """The value, or the error that the reply is: where in the order it was, either tells."""
    try:
        return envelope.result_of(reply, method)
    except CallError as error:
        error.timestamp = timestamp
        error.replica, error.view = origin
        raise


class Backend(Protocol):
    """Who executes calls: a replica, or a client."""

    catalogue: Catalogue

    def execute(self, command: Any) -> Awaitable[Answer]: ...

    def query(self, query: msgspec.Struct, consistency: Consistency, after: int) -> Awaitable[Reading]: ...

    def origin(self, answer: Answer) -> Origin:
        """Who has answered a command."""

    def held(self, ts: int, voters: int) -> Awaitable[Held | None]: ...


class Calling:
    """How a call is made, with the options of one proxy, and what its answer says."""

    def __init__(self, backend: Backend, options: Options | None = None) -> None:
        self._backend = backend
        self._options = options or Options()

    def with_options(self, **changes: Unpack[Changes]) -> Self:
        """The same with another ``timeout`` (seconds), ``consistency`` of queries, ``after``: the slot that
        sequential ones may not miss, or ``qos`` of commands: "ordered", "k=N", "majority" or "all"
        (``quality``)."""
        voters_of(changes.get("qos", self._options.qos))
        return type(self)(self._backend, msgspec.structs.replace(self._options, **changes))

    def _find(self, name: str) -> Method:
        if name.startswith("_"):
            raise AttributeError(name)
        catalogue = self._backend.catalogue
        return catalogue.query(name) if name in catalogue.queries else catalogue.command(name)

    async def _tell(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Told:
        begun = time.monotonic()
        answer: Answer = await self._in_time(self._backend.execute(method.bind(args, kwargs)), method)
        result = self.told(answer, method)
        held = await self._held(answer.ts, begun)
        return (result if held is None else msgspec.structs.replace(result, qos=held.qos)), held

    def told(self, answer: Answer, method: Method) -> Result[Any]:
        """What an answer says, at the level that every answer has."""
        origin = self._backend.origin(answer)
        value = _value_of(answer.reply, method, answer.ts, origin)
        return Result(value, answer.ts, _qos(None), origin[0], origin[1])

    async def _held(self, ts: int, begun: float) -> Held | None:
        """What is reached of a level above majority, in time."""
        wanted, timeout = voters_of(self._options.qos), self._options.timeout
        if wanted != ENOUGH:
            left = None if timeout is None else max(begun + timeout - time.monotonic(), 0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    return await self._backend.held(ts, wanted)
        return None

    def _demand(self, name: str, value: Any, ts: int, held: Held | None) -> None:
        """A plain value does not tell the level: it must be the one that was asked for."""
        qos, wanted = self._options.qos, voters_of(self._options.qos)
        if wanted != ENOUGH and (held is None or not held.is_enough(wanted)):
            words = (
                f"{qos!r} was asked for, {_qos(held)!r} is reached; it was executed at slot {ts}, and stays"
            )
            raise NotHeld(f"{name}: {words}", value, ts, _qos(held))

    async def _ask(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fresh[Any]:
        options = self._options
        asked = self._backend.query(method.bind(args, kwargs), options.consistency, options.after)
        return self.read(await self._in_time(asked, method), method)

    def read(self, reading: Reading, method: Method) -> Fresh[Any]:
        """What the answer to a query says."""
        origin = Origin(reading.replica, reading.view)
        value = _value_of(reading.reply, method, reading.timestamp, origin)
        return Fresh(value, reading.timestamp, reading.age_s, reading.replica, reading.view)

    async def _in_time(self, pending: Awaitable[Any], method: Method | None) -> Any:
        timeout = self._options.timeout
        if timeout is None:
            return await pending
        try:
            async with asyncio.timeout(timeout):
                return await pending
        except TimeoutError:
            raise self.lateness(method) from None

    def lateness(self, method: Method | None) -> Exception:
        """What is to be said of a call that was given up; a query changes nothing."""
        if method is not None and not method.mark.is_command:
            return TimeoutError()
        name = "apply" if method is None else method.title
        return OutcomeUnknown(f"{name}: no answer within {self._options.timeout} s; it may still be executed")


class Proxy(Calling, Generic[M]):
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
        elif self._options.is_plain:

            async def tell(*args: Any, **kwargs: Any) -> Any:
                answer = await self._backend.execute(method.bind(args, kwargs))
                return envelope.result_of(answer.reply, method)

            bound = tell
        else:

            async def tell_so(*args: Any, **kwargs: Any) -> Any:
                result, held = await self._tell(method, args, kwargs)
                self._demand(method.title, result.value, result.timestamp, held)
                return result.value

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
        begun = time.monotonic()
        answer: Answer = await self._in_time(self._backend.execute(bytes(data)), None)
        value = msgspec.msgpack.decode(envelope.value_of(answer.reply), type=bytes)
        self._demand("apply", value, answer.ts, await self._held(answer.ts, begun))
        return value


class DetailedProxy(Calling, Generic[M]):
    """The same methods: a command returns a ``Result``, a query a ``Fresh``."""

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = self._find(name)

        async def bound(*args: Any, **kwargs: Any) -> Any:
            if not method.mark.is_command:
                return await self._ask(method, args, kwargs)
            result, _ = await self._tell(method, args, kwargs)
            return result

        self.__dict__[name] = bound
        return bound
