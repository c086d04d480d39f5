"""What all commands have in common: how they refuse, and how they show. Loading it must cost nothing."""

import os
import sys
from collections.abc import Iterable
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

WRONG, UNKNOWN = 2, 4

messages = Console(stderr=True, highlight=False)

Output = Annotated[str, typer.Option("--output", "-o", help="table or json.")]


def refuse(words: str, code: int = WRONG) -> NoReturn:
    messages.print(f"error: {words}", markup=False, style="red", soft_wrap=True)
    raise typer.Exit(code)


def say(words: str) -> None:
    """Whoever started this process may be gone, and nobody reads it any more; that must not keep it here."""
    try:
        typer.echo(words)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer


def check_output(output: str) -> None:
    if output not in {"table", "json"}:
        refuse(f"--output: {output!r} must be table or json")


def fitting_table(console: Console, titles: list[str], rows: Iterable[list[str]]) -> Table:
    """As many columns, from the left, as the terminal has room for: a cut address tells nothing."""
    rows = [row + [""] * (len(titles) - len(row)) for row in rows]
    unbounded = console.options.update(max_width=10_000)  # else what is too wide measures as wide as there is
    count = len(titles)
    while True:
        table = Table()
        for title in titles[:count]:
            table.add_column(title, no_wrap=True)
        for row in rows:
            table.add_row(*row[:count])
        if count == 1 or console.measure(table, options=unbounded).maximum <= console.width:
            return table
        count -= 1
