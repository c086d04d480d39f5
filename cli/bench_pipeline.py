"""`rsm bench pipeline`: the jobs of `rsm pipeline` on recordings of several sizes, clean and broken."""

from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from bench.results import Result, Value
from cli.bench_common import FAILED, MISSING, AsJson, check_plan, numbers_of, shown
from cli.bench_tables import console, messages, print_result, text_of

if TYPE_CHECKING:
    from bench.pipeline.run import PipelinePlan

_ROWS_MIN = 10_000
_ROWS_MAX = 1_000_000_000
_TEMPORARY = Path(gettempdir())


def pipeline_command(
    rows: Annotated[
        str, typer.Option(help="Rows of the recordings, clean ones; several, separated by commas.")
    ] = "1000000,10000000,50000000",
    planted: Annotated[
        str, typer.Option(help="Rows of those with a violation of every rule, for the audit; or none.")
    ] = "1000000,10000000",
    jobs: Annotated[str, typer.Option(help="Jobs to time, in this order; commas between.")] = (
        "ingest,lifecycle,audit,metrics"
    ),
    replicas: Annotated[int, typer.Option(min=3, max=16, help="Replicas that recorded.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the generator.")] = 1,
    directory: Annotated[
        Path, typer.Option(help="Where recordings and tables are; a directory in it is made and removed.")
    ] = _TEMPORARY,
    keep: Annotated[bool, typer.Option("--keep", help="Leave recordings and tables there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Spark jobs on generated recordings: rows per second, how times grow, and what they find.

    Each recording has a process and a Java of its own, with two cores and 4 GiB. Growth is the ratio of
    times divided by the ratio of rows; it is wanted to be 1.2 at most, which fails nothing, for it
    depends on the machine. The exit code is 1 if a planted violation was not found under its own rule, or
    something was found that nobody planted. What is being done is told on the standard error.

    [bold]Examples[/bold]

      rsm bench pipeline --rows 1000000 --planted 1000000

      rsm bench pipeline --rows 1000000,10000000 --jobs ingest,audit --directory /var/tmp
    """
    try:
        from bench.pipeline import run as bench
    except ModuleNotFoundError as missing:
        messages.print(
            f"not available: {missing}; install rsm with its pipeline: rsm[pipeline]", style="yellow"
        )
        raise typer.Exit(MISSING) from None
    plan = bench.PipelinePlan(
        rows=numbers_of("--rows", rows, _ROWS_MIN, _ROWS_MAX),
        planted=() if planted == "none" else numbers_of("--planted", planted, _ROWS_MIN, _ROWS_MAX),
        jobs=tuple(word.strip() for word in jobs.split(",")),
        replicas=replicas,
        seed=seed,
        directory=directory,
        keep=keep,
    )
    check_plan(plan)
    with shown() as step:
        result = bench.run(plan, step if messages.is_terminal else _lines())
    tables = [_times_table(plan, result)]
    if plan.planted:
        tables.append(_plants_table(result))
    print_result(result, tables, as_json=as_json)
    checks = result.values["checks"]
    assert isinstance(checks, dict)
    if not as_json:
        _tell(result, checks, bench.GROWTH_WANTED)
    raise typer.Exit(FAILED if False in checks.values() else 0)


def _lines() -> Callable[[str], None]:
    """A line for each step, where nothing can be written over."""
    told = [""]

    def step(words: str) -> None:
        if words != told[-1]:
            messages.print(words, markup=False)
            told[:] = [words]

    return step


def _times_table(plan: "PipelinePlan", result: Result) -> Table:
    table = Table(title="seconds, and rows per second, on 2 cores with 4 GiB", title_justify="left")
    table.add_column("rows", justify="right")
    for column in ("generated", *plan.jobs, "memory, GiB"):
        table.add_column(column, justify="right")
    sizes = result.values["sizes"]
    assert isinstance(sizes, dict)
    for size in sizes.values():
        assert isinstance(size, dict)
        cells = [_timed(size["generate"])]
        timed = size["jobs"]
        assert isinstance(timed, dict)
        cells += [_timed(timed.get(job)) for job in plan.jobs]
        table.add_row(text_of(size, "rows"), *cells, text_of(size, "memory_gib"))
    return table


def _timed(value: Value) -> str:
    return f"{text_of(value, 'seconds')} s, {text_of(value, 'rows_per_s')}/s" if value else ""


def _plants_table(result: Result) -> Table:
    table = Table(title="planted, and found under its own rule", title_justify="left")
    for column in ("rows", "rule", "what was planted", "slots", "found"):
        table.add_column(column, justify="right" if column == "rows" else "left")
    planted = result.values["planted"]
    assert isinstance(planted, list)
    for row in planted:
        assert isinstance(row, dict)
        slots = row["slots"]
        assert isinstance(slots, list)
        words = text_of(row, "words") if row["found"] else "[red]no[/red]"
        where = "-".join(str(slot) for slot in dict.fromkeys(map(str, slots)))
        table.add_row(text_of(row, "rows"), text_of(row, "rule"), text_of(row, "how"), where, words)
    return table


def _tell(result: Result, checks: dict[str, Value], wanted: float) -> None:
    for name, holds in checks.items():
        if holds is None:
            console.print(f"{name}: not checked", style="yellow")
        else:
            console.print(f"{name}: {'yes' if holds else 'no'}", style="green" if holds else "red")
    for name in ("clean", "unexpected"):
        rows = result.values[name]
        assert isinstance(rows, list)
        for row in rows[:20]:
            console.print(f"{text_of(row, 'rule')}: {text_of(row, 'words')}", markup=False, style="red")
    for name, growth in result.ratios.items():
        if growth is not None and growth > wanted:
            console.print(f"{name}: {growth}, wanted {wanted} at most", style="yellow")
