"""`rsm story`: three sites and what becomes of them, told by the simulated engine itself."""

from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ordering.simulator.narrator import Line, Topic
from ordering.simulator.story import Chapter, Finale, Story

STYLES = {
    Topic.PROCESS: "bold red",
    Topic.SUBMIT: "cyan",
    Topic.ORDER: "yellow",
    Topic.TOKEN: "dim",
    Topic.DELIVERY: "green",
    Topic.VIEW: "bold magenta",
    Topic.MEMBERSHIP: "magenta",
    Topic.RECOVERY: "blue",
    Topic.STATE: "bold cyan",
}

INTRODUCTION = """\
Three sites (s1, s2, s3) agree on one order of all messages; a token that moves round the ring gives it.
You will see one of them killed and come back. Time is virtual; the lines are events of the real engine.
Each line has the time in virtual seconds, the site (s1#4: address s1, fourth process started), its state
in the protocol, and what it did."""


def story(
    seed: Annotated[int, typer.Option(help="Another seed tells the same story with other timings.")] = 1,
) -> None:
    """Watch three simulated sites order messages, lose one, go on, and take it back.

    Takes about a second. The exit code is 1 if a checker found anything wrong.
    """
    console = Console(highlight=False)
    console.print(Panel(INTRODUCTION, title="totally ordered multicast", title_align="left"))
    happy = False
    for scene in Story(seed).scenes():
        match scene:
            case Chapter(title, text):
                console.print(f"\n[bold]{title}[/bold]\n{text}\n")
            case Line():
                console.print(_row(scene))
            case Finale():
                _show_end(console, scene)
                happy = scene.is_happy
    raise typer.Exit(0 if happy else 1)


def _row(line: Line) -> Table:
    """A grid keeps long lines in their column."""
    row = Table.grid(padding=(0, 1))
    row.add_column(width=9, justify="right", style="dim")
    row.add_column(width=5, style="bold")
    row.add_column(width=15, style="dim")
    row.add_column(ratio=1)
    row.add_row(
        f"{line.now / 1e9:.6f}", line.site, line.state, Text(line.text, style=STYLES.get(line.topic, ""))
    )
    return row


def _show_end(console: Console, finale: Finale) -> None:
    console.print(
        "\n[bold]The end[/bold]\nEach replica's state is a hash over all it has applied, in order.\n"
    )
    table = Table()
    for title in ("site", "view", "applied up to", "digest"):
        table.add_column(title, justify="right" if title == "applied up to" else "left")
    for standing in finale.standings:
        table.add_row(standing.site, standing.view, str(standing.applied), standing.digest)
    console.print(table)
    for violation in finale.violations:
        console.print(f"violation: {violation}", markup=False, style="red")
    if finale.is_happy:
        console.print(
            f"{finale.messages} messages, one killed site, three identical digests.", style="bold green"
        )
        console.print("More: rsm sim --seed 7 -v, or rsm sim --seeds 100", style="dim")
    else:
        console.print("The digests differ, or a rule was broken: this is a bug.", style="bold red")
