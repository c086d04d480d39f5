"""Linearizable reads of a replica: who may answer from the state that is here (R11)?

Who reads in one turn of the event loop shares a number, and the engine lets many numbers share a round. A
number outlives the membership in which it was asked for: it is asked for again in the next one.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ordering.errors import NotMember

_PRUNE_MIN: Final = 64


class Reads:
    """``ask`` brings a number to the engine; it does nothing where this is no member."""

    def __init__(self, ask: Callable[[int], None], loop: asyncio.AbstractEventLoop) -> None:
        self._ask = ask
        self._loop = loop
        self._over: Exception | None = None
        self._number = 0
        self._asked: dict[int, list[asyncio.Future[None]]] = {}
        self._ready: list[int] = []
        self._next: list[asyncio.Future[None]] = []  # those who read in this turn

    @property
    def rounds(self) -> int:
        """How many numbers were used so far."""
        return self._number

    def read(self) -> "asyncio.Future[None]":
        """Done when everything is executed here that was answered to anybody before."""
        if self._over is not None:
            raise NotMember(f"this replica takes no calls any more: {self._over}")
        if not self._next:
            self._loop.call_soon(self._begin)
        future: asyncio.Future[None] = self._loop.create_future()
        self._next.append(future)
        return future

    def _begin(self) -> None:
        readers, self._next = self._next, []
        if self._over is not None:
            self._give_up(readers)
            return
        self._number += 1
        self._asked[self._number] = readers
        self._ask(self._number)

    def begin_membership(self) -> None:
        """What was asked before has no answer any more."""
        self._ready.clear()
        for number in self._asked:
            self._ask(number)

    def ready(self, numbers: Sequence[int]) -> None:
        """The engine has delivered all they wait for; ``end`` comes when that is executed."""
        self._ready += numbers

    def end(self) -> None:
        for number in self._ready:
            for future in self._asked.pop(number, ()):
                if not future.done():
                    future.set_result(None)
        self._ready.clear()

    def fail(self, error: Exception) -> None:
        self._over = error
        for readers in self._asked.values():
            self._give_up(readers)
        self._asked.clear()

    def _give_up(self, readers: list["asyncio.Future[None]"]) -> None:
        for future in readers:
            if not future.done():
                future.set_exception(NotMember(f"this replica has stopped: {self._over}"))


class Reached:
    """Who waits until so much is executed."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._prune_at = _PRUNE_MIN
        self._over: NotMember | None = None

    def when(self, ts: int, applied: int) -> "asyncio.Future[None]":
        """Done when everything up to slot ``ts`` is executed, or with an error if that will not be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if applied >= ts:
            future.set_result(None)
        elif self._over is not None:
            future.set_exception(self._over)
            future.exception()  # nobody has to ask
        else:
            self._waiting.append((ts, future))
            if len(self._waiting) > self._prune_at:  # who waits and goes, while nothing is executed
                self._waiting = [item for item in self._waiting if not item[1].done()]
                self._prune_at = 2 * len(self._waiting) + _PRUNE_MIN
        return future

    def reached(self, applied: int) -> None:
        if not self._waiting:
            return
        for ts, future in self._waiting:
            if ts <= applied and not future.done():
                future.set_result(None)
        self._waiting = [item for item in self._waiting if not item[1].done()]

    def fail(self, error: Exception) -> None:
        self._over = NotMember(f"this replica has stopped: {error}")
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(self._over)
                future.exception()
        self._waiting.clear()
