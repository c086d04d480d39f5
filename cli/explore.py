"""`rsm explore`: every interleaving of small cases."""

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ordering.simulator.explore import CASES, Limits, Report, Scenario, Violation, explore_scenario

console = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True, highlight=False)


class Case(StrEnum):
    ORDER = "order"
    LOSS = "loss"
    CRASH = "crash"
    DUEL = "duel"
    JOIN = "join"
    ALL = "all"


def explore(
    case: Annotated[Case, typer.Option(help="Which small case to search.")] = Case.ALL,
    depth: Annotated[int, typer.Option(min=1, help="Search no deeper than this many steps.")] = 1000,
    states: Annotated[int, typer.Option(min=1, help="Find no more states than this, for each scenario.")] = (
        1_000_000
    ),
    seconds: Annotated[int, typer.Option(min=1, help="Search each scenario no longer than this.")] = 60,
) -> None:
    """Search small cases exhaustively: three sites, few messages, few faults, all interleavings.

    Packets may be lost, late, doubled and reordered in every way; timers and crashes are bounded. A search
    that reaches a limit says so, and goes on with random walks for the rest of its time. The exit code is 1
    if a rule was broken; the shortest way there that was found is printed.

    The table: distinct states; steps taken between them; the depth to which every state was searched, and
    the deepest one seen; random walks; states that were played to their end to see that all is delivered.

    [bold]Examples[/bold]

      rsm explore --case order          submissions, no faults

      rsm explore --case duel --seconds 600 --states 5000000
    """
    limits = Limits(states=states, depth=depth, seconds=seconds)
    chosen = list(CASES) if case is Case.ALL else [case.value]
    table = Table()
    table.add_column("case")
    table.add_column("scenario", overflow="fold", min_width=12)
    for title in ("states", "steps", "depth", "walks", "ends", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("result")
    violations: list[tuple[str, Scenario, Violation]] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=messages, transient=True) as progress:
        for name in chosen:
            for scenario in CASES[name]:
                report = _search(progress, name, scenario, limits)
                _add_row(table, name, report)
                violations += [(name, scenario, violation) for violation in report.violations]
    Console(highlight=False, width=max(console.width, 150)).print(table)
    for name, scenario, violation in violations:
        _show(name, scenario, violation)
    raise typer.Exit(1 if violations else 0)


def _search(progress: Progress, name: str, scenario: Scenario, limits: Limits) -> Report:
    task = progress.add_task(f"{name}: {scenario.name}")

    def tell(report: Report) -> None:
        doing = f"{report.walks} walks" if report.walks else f"depth {report.complete_depth}"
        counts = f"{report.distinct:,} states, {report.transitions:,} transitions, {doing}"
        progress.update(task, description=f"{name}: {scenario.name}: {counts}")

    report = explore_scenario(scenario, limits, tell)
    progress.remove_task(task)
    return report


def _add_row(table: Table, name: str, report: Report) -> None:
    if report.violations:
        result = "[red]violated[/red]"
    elif report.is_complete:
        result = "[green]complete[/green]"
    else:
        result = f"[yellow]cut by {report.cut_by}[/yellow]"
    table.add_row(
        name,
        report.scenario.name,
        f"{report.distinct:,}",
        f"{report.transitions:,}",
        f"{report.complete_depth}/{report.depth}",
        f"{report.walks:,}",
        str(report.leaves),
        f"{report.seconds:.0f} s",
        result,
    )


def _show(name: str, scenario: Scenario, violation: Violation) -> None:
    known = "" if violation.confirmed else " (not reproduced when played again: look at the merging)"
    console.print(f"\n{name}: {scenario.name}: violated{known}", style="bold red")
    for problem in violation.problems:
        console.print(f"  {problem}", style="red", markup=False)
    console.print(f"after {len(violation.steps)} steps:")
    for number, step in enumerate(violation.steps, 1):
        console.print(f"  {number:3} {step}", markup=False)
