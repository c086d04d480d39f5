"""What all demonstrations have in common: a place for their files, and an end that takes everybody along."""

import asyncio
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from bench.errors import BenchError
from cli.crew import Crew, NotStarted
from cli.showing import refuse
from ordering.driver import run
from ordering.errors import OrderingError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def staged(directory: Path | None, work: Callable[[Path], Coroutine[Any, Any, bool]]) -> None:
    """Do it in this directory, or in one that is removed at the end. The exit code says whether it held."""
    with _place(directory) as place:
        try:
            held = run(work(place))
        except (OrderingError, BenchError) as error:
            refuse(str(error))
        except NotStarted as error:
            refuse(str(error), 1)
        except asyncio.CancelledError:
            raise typer.Exit(130) from None
    raise typer.Exit(0 if held else 1)


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="rsm-demo-", ignore_cleanup_errors=True) as made:
        yield Path(made)


async def played(crew: Crew, story: Coroutine[Any, Any, bool]) -> bool:
    """Who is told to stop still takes the processes along."""
    main = asyncio.current_task()
    assert main is not None
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    try:
        return await story
    finally:
        await crew.stop()


async def served(crew: Crew, console: Console, work: Coroutine[Any, Any, bool]) -> bool:
    """Until somebody says that it is enough, a second time means at once; or until the work ends by itself,
    with whether it held."""
    enough = asyncio.Event()
    main = asyncio.current_task()
    assert main is not None

    def stop() -> None:
        if enough.is_set():
            main.cancel()
        enough.set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    working = asyncio.ensure_future(work)
    told = asyncio.ensure_future(enough.wait())
    held = True
    try:
        await asyncio.wait([working, told], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            held = working.result()
        else:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        console.print("\nstopping; Ctrl-C again: at once")
    finally:
        working.cancel()
        told.cancel()
        await crew.stop()
    console.print("everything is stopped")
    return held
