"""The garbage collector in a process that serves for long.

A full collection looks at every object there is in one go. A gateway has hundreds of thousands of them from
its imports alone; under load a collection came every second, took tens of milliseconds and found nothing:
that was the slowest hundredth of all answers. What a request needs goes with its last reference, and so does
what a command drops. So what is there when the service begins is kept from the collector (``gc.freeze``); it
has the rest to look at, less often. Where that has grown so large that a collection takes long again, as in a
replica that has executed its way to a large state, what has survived is kept from it as well.

What is lost are cycles among these objects that nothing refers to any more: at most what there was.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

THRESHOLDS: Final = (10_000, 10, 10)  # by default 700: what is under way at 64 connections outlived that
SLOW_SECONDS: Final = 0.02


class _Watch:
    """Called around each collection."""

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = perf_counter()
        elif perf_counter() - self._began > SLOW_SECONDS:
            gc.freeze()


@contextmanager
def serving() -> Iterator[None]:
    """From when everything is there that a service needs, to its end."""
    before, watch = gc.get_threshold(), _Watch()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
        gc.set_threshold(*before)
        gc.unfreeze()
