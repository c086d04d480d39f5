"""Long work beside a ring that must not wait: in slices, and with pauses.

A slice is a millisecond or so. A thread that does nothing but compute would keep the event loop from running
for five at a time, whenever it likes; so where a thread is needed, it pauses too.
"""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Final, TypeVar

from rsm.errors import StateLost
from rsm.executor import Executor

T = TypeVar("T")

SLICE_SECONDS: Final = 0.001
SLICE_MAX_SECONDS: Final = 0.005
SHARE: Final = 0.25  # of the event loop's time
RESTORING_SHARE: Final = 0.5  # of a processor, where nobody waits for this replica
UNWATCHED_MIN: Final = 100_000  # objects, which a collection takes some 50 ms for
_PAUSE_MAX_SECONDS: Final = 0.1  # a step that took long was most likely kept waiting itself
_END: Final = object()


async def in_turns(steps: Iterable[T]) -> AsyncIterator[T]:
    """As fast as that goes, but for a turn of the event loop after each slice. Where others have much to do
    in their turns, the slices grow with that, up to a limit."""
    began, length = perf_counter(), SLICE_SECONDS
    for step in steps:
        yield step
        now = perf_counter()
        if now - began >= length:
            await asyncio.sleep(0)
            began = perf_counter()
            length = min(max(began - now, SLICE_SECONDS), SLICE_MAX_SECONDS)


async def aside(steps: Iterator[T], share: float = SHARE) -> AsyncIterator[T]:
    """With pauses, so that the steps take no more than this share of the event loop's time. What is done
    between the steps does not count."""
    worked = 0.0
    while True:
        began = perf_counter()
        step = next(steps, _END)
        worked += perf_counter() - began
        if step is _END:
            return
        yield step  # type: ignore[misc]
        if worked >= SLICE_SECONDS:
            await asyncio.sleep(_pause(worked, share))
            worked = 0.0


async def restore(executor: Executor, chunks: Iterable[bytes], is_wanted: Callable[[], bool]) -> None:
    """Into a new executor, in a thread: only who reads a snapshot decides how far it reads at a time. Chunk
    by chunk it pauses, and gives up when nobody wants the state any more."""
    over = threading.Event()

    def paced() -> Iterator[bytes]:
        began = perf_counter()
        for chunk in chunks:
            if over.is_set() or not is_wanted():
                raise StateLost("the state is not wanted any more")
            yield chunk
            worked = perf_counter() - began
            if worked >= SLICE_SECONDS:
                sleep(_pause(worked, RESTORING_SHARE))
                began = perf_counter()

    try:
        with unwatched():
            await asyncio.to_thread(executor.restore, paced())
    finally:
        over.set()


@contextmanager
def unwatched() -> Iterator[None]:
    """Make a state without the garbage collector, and keep it from it if it is large.

    A full collection looks at all objects there are, in one go: at a million of them for a second, in which
    the process is suspected; and making them calls for one full collection after the other. Objects without
    references are freed as ever. What is lost are cycles among these objects that nothing refers to any more,
    so at most what there was.
    """
    watched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > UNWATCHED_MIN:
            gc.freeze()
        if watched:
            gc.enable()


def _pause(worked: float, share: float) -> float:
    return min(worked * (1 / share - 1), _PAUSE_MAX_SECONDS)
