"""Calls without a coroutine: begun here, ended in a callback.

::

    calls = Beginning(client, Options(timeout=10.0))
    begun = calls.command(Counter.add, 1)
    begun.future.add_done_callback(lambda _: ...)   # begun.result()

For who has thousands of calls a second and a place to be called back anyway: there is no task and no timer
for each. So one without a clock of its own (``has_clock``) is given up by who has begun it, with ``late()``.
"""

import asyncio
from typing import Any, Generic, ParamSpec, TypeVar

from rsm.methods import Method
from rsm.proxy import Backend, Calling, Fresh, Options, Result
from rsm.quality import ENOUGH, voters_of
from rsm.sessions import Answer
from rsm.state_machine import Marked, StateMachine

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=StateMachine)


class _Begun:
    """``future`` is done when there is an outcome."""

    __slots__ = ("_calling", "_method", "future", "has_clock")

    def __init__(
        self, calling: "Beginning[Any]", method: Method, future: "asyncio.Future[Any]", *, has_clock: bool
    ) -> None:
        self._calling = calling
        self._method = method
        self.future = future
        self.has_clock = has_clock

    def late(self) -> Exception:
        """Nobody waits any more; what is to be said of it."""
        self.future.cancel()
        return self._calling.lateness(self._method)


class BegunCommand(_Begun, Generic[R]):
    __slots__ = ()

    def result(self) -> Result[R]:
        """What it returned, or raises the error that it is."""
        told = self.future.result()
        return self._calling.told(told, self._method) if isinstance(told, Answer) else told[0]


class BegunQuery(_Begun, Generic[R]):
    __slots__ = ()

    def result(self) -> Fresh[R]:
        return self._calling.read(self.future.result(), self._method)


class Beginning(Calling, Generic[M]):
    """Calls of one client or replica, with options as proxies have them."""

    def __init__(self, backend: Backend, options: Options | None = None) -> None:
        super().__init__(backend, options)
        self._is_plain = voters_of(self._options.qos) == ENOUGH

    def command(self, method: Marked[M, P, R], *args: P.args, **kwargs: P.kwargs) -> BegunCommand[R]:
        found = self._backend.catalogue.command(method.__name__)
        if self._is_plain:
            pending = asyncio.ensure_future(self._backend.execute(found.bind(args, kwargs)))
            return BegunCommand(self, found, pending, has_clock=False)
        telling = asyncio.ensure_future(self._tell(found, args, kwargs))
        return BegunCommand(self, found, telling, has_clock=True)

    def query(self, method: Marked[M, P, R], *args: P.args, **kwargs: P.kwargs) -> BegunQuery[R]:
        found, options = self._backend.catalogue.query(method.__name__), self._options
        asked = self._backend.query(found.bind(args, kwargs), options.consistency, options.after)
        return BegunQuery(self, found, asyncio.ensure_future(asked), has_clock=False)
