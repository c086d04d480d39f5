"""A story told in steps: each is one line, with figures, or it did not hold."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape

Step: TypeAlias = tuple[str, Callable[[], Awaitable[str]]]


class DidNotHold(Exception):
    """What was to be, and what was."""


def hold(fact: bool, words: str) -> None:
    if not fact:
        raise DidNotHold(words)


async def told(
    steps: Sequence[Step], console: Console, seconds: float, failures: tuple[type[Exception], ...] = ()
) -> bool:
    """Whether every step held, none raised one of ``failures``, and all together took no longer."""
    wrong: tuple[type[Exception], ...] = (DidNotHold, *failures)
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            for title, step in steps:
                try:
                    figures = await step()
                except wrong as error:
                    console.print(f"[red]✗[/red] {title}: {escape(str(error))}", soft_wrap=True)
                    return False
                console.print(f"[green]✓[/green] {title}: {figures}", soft_wrap=True)
    except TimeoutError:
        console.print(f"[red]✗[/red] it took more than {seconds:g} s")
        return False
    console.print(f"Every step held, in {time.monotonic() - began:.0f} s.", style="bold green")
    return True
