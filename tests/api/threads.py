"""A gateway in a thread of its own, for programs that block."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Generic, TypeVar

from ordering.driver import run

T = TypeVar("T")
R = TypeVar("R")
SECONDS = 30


class Running(Generic[T]):
    def __init__(self, place: T, loop: asyncio.AbstractEventLoop) -> None:
        self.place = place
        self._loop = loop

    def do(self, work: Coroutine[Any, Any, R]) -> R:
        """There, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def call_soon(self, what: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(what)


@contextmanager
def in_thread(
    made: Callable[[], AbstractAsyncContextManager[T]],
    at_end: Callable[[T], Coroutine[Any, Any, None]] | None = None,
) -> Iterator[Running[T]]:
    ready, over = threading.Event(), list[asyncio.Event]()
    found: list[Running[T]] = []
    errors: list[BaseException] = []

    async def main() -> None:
        over.append(asyncio.Event())
        async with made() as place:
            found.append(Running(place, asyncio.get_running_loop()))
            ready.set()
            await over[0].wait()
            if at_end is not None:
                await at_end(place)

    def thread() -> None:
        try:
            run(main())
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody sees it
            errors.append(error)
            ready.set()

    running = threading.Thread(target=thread)
    running.start()
    assert ready.wait(SECONDS)
    try:
        if found:
            yield found[0]
    finally:
        if found:
            found[0].call_soon(over[0].set)
        running.join(SECONDS)
    if errors:
        raise errors[0]
