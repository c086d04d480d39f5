"""`rsm bench actions`: transfers between two databases, by actions and by two-phase commit."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench.actions import compare
from bench.actions.compare import WANTED, ActionsPlan, Side
from bench.machine import Mode, part
from bench.results import Result
from bench.workers import Placement
from cli.bench_common import AsJson, Chosen, Pin, Rounds, Seconds, check_plan, nothing, numbers_of, shown
from cli.bench_tables import console, print_result, text_of

_WAITS = ("transfer", "attempt", "decision", "applied")


def actions_command(
    mode: Annotated[
        Chosen, typer.Option(help="Everything in memory, or everything synced before it is promised.")
    ] = Chosen.BOTH,
    in_flight: Annotated[
        str, typer.Option(help="Transfers at a time, each of accounts of its own; commas between.")
    ] = "1,8",
    seconds: Seconds = 2.0,
    rounds: Rounds = 3,
    kills: Annotated[int, typer.Option(min=0, max=100, help="Of each who can die; 0: none.")] = 3,
    down: Annotated[str, typer.Option(help="Seconds until a dead coordinator is back; commas between.")] = (
        "1,3"
    ),
    directory: Annotated[
        Path, typer.Option(help="On whose file system the data is; a directory in it is made and removed.")
    ] = Path(),
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """Transfers between the databases of two sites: by actions, and by two-phase commit.

    Each side is three processes, two sites with a SQLite database and one that has transfers carried out,
    which in two-phase commit is the coordinator. Operations, databases and what a site does to prepare and to
    commit are the same code. A *transfer* is what its caller waits for: an *attempt* at each site, then the
    commit up to the *decision*; *applied* is when both databases have it. In memory mode the ledger, the
    coordinator's log and the databases (/dev/shm) are in memory; in durable mode all of them sync.

    Then somebody is killed when everything is prepared and nothing is decided. Shown is how long those who
    live stay blocked: under two-phase commit until the coordinator is back, under actions until the ring has
    noticed. There is a result only if every committed transfer was applied at both sites, once.

    [bold]Examples[/bold]

      rsm bench actions --mode memory --kills 0

      rsm bench actions --mode durable --directory /var/tmp --down 1,5
    """
    plan = ActionsPlan(
        modes=tuple(Mode) if mode is Chosen.BOTH else (Mode(mode.value),),
        in_flight=numbers_of("--in-flight", in_flight, 1, compare.IN_FLIGHT_MAX),
        seconds=seconds,
        kills=kills,
        down_seconds=numbers_of("--down", down, 1, compare.DOWN_SECONDS_MAX),
        directory=directory,
        placement=pin,
    )
    check_plan(plan)
    with shown() as step:
        result = compare.run(plan, rounds, step, nothing)
    tables = [_waits_table(plan, result), _parts_table(plan, result)]
    if kills:
        tables.append(_blocked_table(result))
    print_result(result, tables, as_json=as_json)
    if not as_json:
        _tell_wanted(plan, result)


def _waits_table(plan: ActionsPlan, result: Result) -> Table:
    table = Table(title="a transfer between two sites, p50 / p99 in µs", title_justify="left")
    table.add_column("")
    for column in ("per s", *_WAITS, "CPU µs each"):
        table.add_column(column, justify="right")
    for mode in plan.modes:
        for in_flight in map(str, plan.in_flight):
            table.add_section()
            for side in Side:
                row = part(result.values, mode.value, side.value, in_flight)
                waits = (
                    f"{text_of(row, each, 'p50_us')} / {text_of(row, each, 'p99_us')}" for each in _WAITS
                )
                name = f"{mode.value}, {in_flight} in flight: {side.value}"
                table.add_row(name, text_of(row, "per_s"), *waits, text_of(row, "cpu_us"))
    return table


def _parts_table(plan: ActionsPlan, result: Result) -> Table:
    table = Table(title="where the time goes, p50 in µs, at the later site", title_justify="left")
    table.add_column("")
    for column in compare.PARTS:
        table.add_column(column, justify="right")
    for mode in plan.modes:
        for in_flight in map(str, plan.in_flight):
            table.add_section()
            for side in Side:
                row = part(result.values, mode.value, side.value, in_flight, "parts_p50_us")
                name = f"{mode.value}, {in_flight} in flight: {side.value}"
                table.add_row(name, *(text_of(row, each) for each in compare.PARTS))
    return table


def _blocked_table(result: Result) -> Table:
    table = Table(title="killed when prepared and not decided: survivors blocked, ms", title_justify="left")
    for column in ("", "median", "worst"):
        table.add_column(column, justify="right" if column else "left")
    found = result.values["blocked"]
    assert isinstance(found, dict)
    for name, row in found.items():
        table.add_row(name, text_of(row, "median_ms"), text_of(row, "max_ms"))
    return table


def _tell_wanted(plan: ActionsPlan, result: Result) -> None:
    for mode in plan.modes:
        name = f"{mode.value}_{min(plan.in_flight)}_transfer_p50"
        found = result.ratios[name]
        if found is not None and found > WANTED[mode]:
            console.print(f"{name}: {found}, wanted {WANTED[mode]} at most", style="yellow")
