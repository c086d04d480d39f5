"""`rsm sim`: replay one simulated run, or run a campaign of many."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ordering.disciplines import DISCIPLINES
from ordering.errors import ConfigurationError
from ordering.simulator.campaign import Outcome, Runner, Summary, cores, play, run_campaign
from ordering.simulator.checkers.base import Checker
from ordering.simulator.coverage import LEGAL_PERCENT_MIN, Coverage, cover
from ordering.simulator.narrator import Narrator
from ordering.simulator.plan import FaultMix, Plan
from ordering.simulator.run import simulate
from ordering.state import Meaning, State

CAMPAIGN_SEEDS = 200
COVERAGE_SEEDS = 300
MUTANT_SEEDS = 200
FAILURES_SHOWN = 20
INTERRUPTED = 130

console = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True, highlight=False)


class App(StrEnum):
    """What can run on the simulated ring, beside the simulator's own replicas."""

    ACTIONS = "actions"


AppName = Annotated[
    App | None,
    typer.Option(
        "--app",
        help="What runs on the ring: actions has sites with databases, initiators, and checkers of its own.",
        show_default=False,
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Replay this one run.", show_default=False)]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Run a campaign of this many seeds (default {CAMPAIGN_SEEDS}; {COVERAGE_SEEDS} with --coverage;"
        f" for each mutant {MUTANT_SEEDS}).",
        show_default=False,
    ),
]
FirstSeed = Annotated[int, typer.Option(min=0, help="Where the campaign starts.")]
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="Tell a replay: -v protocol events, -vv every packet."),
]
Sites = Annotated[
    int | None,
    typer.Option(
        help="How many sites found the group, 1 to 16 (default 5; 3 with --app).", show_default=False
    ),
]
DisciplineName = Annotated[
    str | None,
    typer.Option(help=f"Who orders: {' or '.join(DISCIPLINES)} (default rotating).", show_default=False),
]
Faults = Annotated[
    FaultMix, typer.Option(help="none, light (network weather), or swarm (each run draws its own kinds).")
]
Durable = Annotated[
    bool | None,
    typer.Option("--durable/--no-durable", help="With disks that fail, or in memory; each run draws it."),
]
SealedDatagrams = Annotated[
    bool | None,
    typer.Option("--sealed/--no-sealed", help="With sealed datagrams and an attacker; each run draws it."),
]
Reads = Annotated[
    bool | None,
    typer.Option("--reads/--no-reads", help="With applications that read, or not; each run draws it."),
]
Retire = Annotated[
    bool | None,
    typer.Option("--retire/--no-retire", help="With orderly stops and restarts, or not; each run draws it."),
]
Seconds = Annotated[
    int | None,
    typer.Option(
        help="Virtual seconds under load and faults (default 12; 3 with --app).", show_default=False
    ),
]
Rate = Annotated[
    int | None,
    typer.Option(
        help="Messages per virtual second, all sites together (default 120; 40 with --app).",
        show_default=False,
    ),
]
CallerCount = Annotated[
    int | None,
    typer.Option(
        help="Processes outside the group that call it; -1: each run draws their number (default -1; 0 with"
        " --app).",
        show_default=False,
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write a recording of each run to DIR/seed-N.", file_okay=False),
]
Jobs = Annotated[int, typer.Option(min=0, help="Processes; 0 means one for each core.")]
WithCoverage = Annotated[
    bool, typer.Option("--coverage", help="Campaign that shows which packets met which states.")
]
Mutants = Annotated[
    bool, typer.Option("--mutants", help="Break the engine on purpose; do the checkers notice?")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def sim(
    seed: Seed = None,
    seeds: Seeds = None,
    first_seed: FirstSeed = 0,
    verbose: Verbose = 0,
    app: AppName = None,
    sites: Sites = None,
    discipline: DisciplineName = None,
    faults: Faults = FaultMix.SWARM,
    durable: Durable = None,
    sealed: SealedDatagrams = None,
    reads: Reads = None,
    retire: Retire = None,
    seconds: Seconds = None,
    rate: Rate = None,
    callers: CallerCount = None,
    record: Record = None,
    jobs: Jobs = 0,
    coverage: WithCoverage = False,
    mutants: Mutants = False,
    as_json: AsJson = False,
) -> None:
    """Run the ordering engine in a simulated, hostile network, with checkers on every event.

    A run is decided by its seed and options: same seed, same trace. A run that breaks a rule prints the line
    that replays it. The exit code is 1 if anything was violated, 2 if an option is wrong.

    [bold]Examples[/bold]

      rsm sim --seeds 1000                     a campaign on all cores

      rsm sim --seed 7 -v                      tell run 7 line by line

      rsm sim --coverage                       the table of states and packets

      rsm sim --mutants                        test the checkers themselves

      rsm sim --app actions                    dynamic actions on the ring, judged by their own checkers
    """
    _check_discipline(discipline)
    _check_seed(seed, several=seeds is not None or coverage or mutants, verbose=bool(verbose))
    plan_type, runner = _application(app, coverage=coverage)
    given = _given(sites=sites, seconds=seconds, rate=rate, callers=callers, sealed=sealed)

    def plan_of(number: int) -> Plan:
        default = _alternate(number) if coverage else "rotating"
        return plan_type(
            seed=number,
            discipline=discipline or default,
            faults=faults,
            durable=durable,
            reads=reads,
            retire=retire,
            **given,
        )

    _check_plan(plan_of)
    if record is not None:
        _check_recorder(record)
    if mutants:
        _hunt(app, seeds or MUTANT_SEEDS, jobs or cores(), as_json=as_json)
    elif seed is not None:
        _replay(plan_of(seed), verbose, record, runner, as_json=as_json)
    else:
        count = seeds or (COVERAGE_SEEDS if coverage else CAMPAIGN_SEEDS)
        plans = map(plan_of, range(first_seed, first_seed + count))
        summary, whole = _campaign(plans, count, Summary(first_seed=first_seed), jobs, record, runner)
        go_on = plan_of(summary.next_seed).replay.replace("--seed", "--first-seed").removesuffix(" -v")
        seen = cover(summary.pairs) if coverage else None
        _show_campaign(summary, seen, go_on, whole=whole, as_json=as_json)


def _alternate(number: int) -> str:
    """Disciplines send different packets, so a coverage campaign takes turns."""
    return list(DISCIPLINES)[number % len(DISCIPLINES)]


def _given(**options: Any) -> dict[str, Any]:
    """What is left out is as the plan has it."""
    return {name: value for name, value in options.items() if value is not None}


def _application(app: App | None, *, coverage: bool) -> tuple[type[Plan], Runner]:
    """Who plans runs, and who plays them."""
    if app is None:
        return Plan, simulate
    if coverage:
        _refuse("--coverage", "is of the ring itself; leave out --app")
    from apps.actions.simulation.run import ActionsPlan, run_actions

    return ActionsPlan, run_actions


# -- refusing ------------------------------------------------------------------------------------


def _refuse(option: str, why: str) -> NoReturn:
    raise typer.BadParameter(why, param_hint=option)


def _check_discipline(discipline: str | None) -> None:
    if discipline is not None and discipline not in DISCIPLINES:
        _refuse("--discipline", f"{discipline!r} is unknown; use one of {', '.join(DISCIPLINES)}")


def _check_seed(seed: int | None, *, several: bool, verbose: bool) -> None:
    if seed is not None and several:
        _refuse("--seed", "replays one run; leave it out, or leave out --seeds, --coverage and --mutants")
    if seed is None and verbose:
        _refuse("--verbose", "tells one run; add --seed N")


def _check_plan(plan_of: Callable[[int], Plan]) -> None:
    try:
        plan_of(0)
    except ConfigurationError as error:
        name, _, why = str(error).partition(": ")
        _refuse(f"--{name}", why or str(error))


def _check_recorder(record: Path) -> None:
    try:
        import ordering.simulator.recorder  # noqa: F401

        record.mkdir(parents=True, exist_ok=True)
    except (ImportError, OSError) as error:
        _refuse("--record", f"cannot record: {error}")
    if any(record.iterdir()):
        _refuse("--record", f"{record} is not empty; name another directory, or remove it")


# -- one run -------------------------------------------------------------------------------------


def _replay(plan: Plan, verbosity: int, record: Path | None, runner: Runner, *, as_json: bool) -> None:
    told = Console(stderr=True, highlight=False, soft_wrap=True) if as_json else console
    narrators = _narrators(lambda line: told.print(str(line), markup=False), verbosity, runner)
    outcome = play(plan, record, narrators, runner)
    if as_json:
        typer.echo(json.dumps(_as_dict(outcome), indent=2))
    else:
        _show_run(outcome)
    raise typer.Exit(1 if outcome.violations else 0)


def _narrators(tell: Callable[[object], None], verbosity: int, runner: Runner) -> tuple[Checker, ...]:
    """Of an application -v tells what becomes of it, and only -vv what the ring does."""
    if not verbosity:
        return ()
    if runner is simulate:
        return (Narrator(tell, verbosity),)
    from apps.actions.simulation.run import ActionTeller

    return (ActionTeller(tell), *((Narrator(tell, verbosity - 1),) if verbosity > 1 else ()))


def _as_dict(outcome: Outcome) -> dict[str, object]:
    report = outcome.report
    shared: dict[str, object] = {
        "seed": outcome.plan.seed,
        "replay": outcome.plan.replay,
        "violations": outcome.violations,
        "cpu_seconds": outcome.cpu_seconds,
    }
    if report is None:
        return shared
    return shared | {
        "simulated_seconds": report.simulated_ns / 1e9,
        "submitted": report.submitted,
        "refused": report.refused,
        "applied": report.applied,
        "views": report.views,
        "packets": report.packets,
        "faults": {kind.value: count for kind, count in report.faults.items()},
        "trace": report.trace,
    }


def _show_run(outcome: Outcome) -> None:
    report = outcome.report
    if report is not None:
        faults = ", ".join(f"{kind.value} {count}" for kind, count in sorted(report.faults.items())) or "none"
        table = Table(title=f"seed {outcome.plan.seed}", title_justify="left", show_header=False)
        table.add_row("simulated", f"{report.simulated_ns / 1e9:.1f} s in {outcome.cpu_seconds:.2f} s of CPU")
        table.add_row(
            "messages", f"{report.submitted} submitted, {report.refused} refused, {report.applied} applied"
        )
        table.add_row("views", str(report.views))
        table.add_row("packets", str(report.packets))
        table.add_row("faults", faults)
        table.add_row("trace hash", report.trace)
        table.add_row("violations", str(len(report.violations)))
        console.print(table)
    for violation in outcome.violations:
        console.print(f"violation: {violation}", markup=False, style="red")
    if outcome.traceback:
        console.print(outcome.traceback, markup=False)


# -- a campaign ----------------------------------------------------------------------------------


def _campaign(
    plans: Iterator[Plan], count: int, summary: Summary, jobs: int, record: Path | None, runner: Runner
) -> tuple[Summary, bool]:
    """Play all; the flag says whether it came to its end. Ctrl-C keeps what there is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(
        *columns, TimeRemainingColumn(), console=messages, transient=True, disable=not messages.is_terminal
    )
    try:
        with progress, closing(run_campaign(plans, jobs, record, runner)) as outcomes:
            bar = progress.add_task("simulating", total=count)
            for outcome in outcomes:
                summary.add(outcome)
                if outcome.violations:
                    messages.print(f"failed: {outcome.plan.replay}", markup=False, style="red")
                failed = f", [red]{len(summary.failures)} failed[/red]" if summary.failures else ""
                progress.update(bar, advance=1, description=f"simulating{failed}")
    except KeyboardInterrupt:
        return summary, False
    return summary, True


def _show_campaign(
    summary: Summary, coverage: Coverage | None, go_on: str, *, whole: bool, as_json: bool
) -> None:
    if as_json:
        shown = summary.as_dict() | (_coverage_dict(coverage) if coverage is not None else {})
        typer.echo(json.dumps(shown, indent=2))
    else:
        console.print(_summary_table(summary, whole=whole))
        if coverage is not None:
            _show_coverage(coverage)
        _show_failures(summary)
        console.print(f"to go on: {go_on}", markup=False)
    if not whole:
        messages.print("interrupted: this is the sum so far", style="yellow")
        raise typer.Exit(INTERRUPTED)
    covered = coverage is None or coverage.is_enough
    raise typer.Exit(0 if covered and not summary.violations else 1)


def _summary_table(summary: Summary, *, whole: bool) -> Table:
    first = summary.first_seed
    title = f"seeds {first} to {first + summary.seeds - 1}"
    if not whole:
        title = f"{summary.seeds} seeds from {first} on, interrupted"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("seeds", f"{summary.seeds:,}")
    table.add_row("hours simulated", f"{summary.hours:,.3f}")
    table.add_row("messages applied", f"{summary.applied:,}")
    table.add_row("messages per simulated hour", f"{summary.messages_per_hour:,.0f}")
    table.add_row("faults per simulated hour", f"{summary.faults_per_hour:,.0f}")
    table.add_row("views", f"{summary.views:,}")
    table.add_row("packets", f"{summary.packets:,}")
    table.add_row("CPU seconds per seed", f"{summary.cpu_per_seed:.2f}", end_section=True)
    for kind, count in summary.faults.items():
        table.add_row(f"fault: {kind.value}", f"{count:,}")
    table.add_section()
    table.add_row("violations", f"{summary.violations:,}", style="red" if summary.violations else "green")
    return table


def _show_failures(summary: Summary) -> None:
    """Every failing seed has its line; only the first ones say what happened."""
    for index, failure in enumerate(sorted(summary.failures, key=lambda failure: failure.seed)):
        console.print(failure.replay, markup=False, style="red")
        if index < FAILURES_SHOWN:
            console.print(f"    {failure.violations[0]}", markup=False)


# -- coverage ------------------------------------------------------------------------------------


def _coverage_dict(coverage: Coverage) -> dict[str, object]:
    return {
        "legal_pairs": len(coverage.legal),
        "legal_percent_seen": coverage.percent,
        "legal_unseen": [f"{cell.packet} while {cell.state}" for cell in coverage.unseen],
        "coverage_violations": list(coverage.violations),
    }


def _show_coverage(coverage: Coverage) -> None:
    """A row for each packet, a column for each state a packet can meet."""
    met = [state.value for state in State if state is not State.IDLE]
    table = Table(title="packets seen in each state", title_justify="left", caption_justify="left")
    table.caption = (
        "counts of legal pairs; (counts) of stale ones, which are dropped; red: legal but never seen"
    )
    table.add_column("packet", no_wrap=True)
    for state in met:
        table.add_column(state, justify="right")
    for packet, cells in coverage.rows():
        table.add_row(packet, *(_cell(cell.meaning, cell.seen) for cell in cells if cell.state in met))
    Console(highlight=False, width=max(console.width, 150)).print(table)
    seen = len(coverage.legal) - len(coverage.unseen)
    enough = "green" if coverage.percent >= LEGAL_PERCENT_MIN else "red"
    console.print(
        f"legal pairs seen: {seen} of {len(coverage.legal)}, {coverage.percent:.1f} %"
        f" (at least {LEGAL_PERCENT_MIN:.0f} % needed)",
        style=enough,
    )
    for cell in coverage.unseen:
        console.print(f"never seen: {cell.packet} while {cell.state}", markup=False)
    for violation in coverage.violations:
        console.print(f"violation: {violation}", markup=False, style="red")


def _cell(meaning: Meaning, seen: int) -> str:
    match meaning:
        case Meaning.LEGAL:
            return f"{seen:,}" if seen else "[red]0[/red]"
        case Meaning.STALE:
            return f"[dim]({seen:,})[/dim]" if seen else ""
        case Meaning.ILLEGAL:
            return f"[bold red]{seen:,}![/bold red]" if seen else "[dim]x[/dim]"


# -- mutants -------------------------------------------------------------------------------------


def _hunt(app: App | None, seeds: int, jobs: int, *, as_json: bool) -> None:
    try:
        from ordering.simulator.mutants import MUTANTS, MutantResult, hunt, play_planted
    except ImportError as missing:
        _refuse("--mutants", f"cannot hunt: {missing}")
    mutants, trial = MUTANTS, play_planted
    if app is App.ACTIONS:
        from apps.actions.simulation import mutants as of_actions

        mutants, trial = of_actions.MUTANTS, of_actions.play_planted
    started = time.monotonic()

    def tell(result: MutantResult) -> None:
        how = f"found by {result.checker}" if result.found else "NOT FOUND"
        messages.print(f"{result.name}: {how} after {result.seeds} seeds", markup=False)

    results = hunt((), seeds, jobs, tell, mutants, trial)
    missed = [result.name for result in results if not result.found]
    if as_json:
        rows = [{name: getattr(result, name) for name in _MUTANT_FIELDS} for result in results]
        typer.echo(json.dumps({"mutants": rows, "missed": missed}, indent=2))
    else:
        table = Table(title=f"mutants, {time.monotonic() - started:.0f} s", title_justify="left")
        for title in ("mutant", "what it breaks", "found by", "seeds"):
            table.add_column(title)
        for result in results:
            by = result.checker if result.found else "[bold red]nobody[/bold red]"
            table.add_row(result.name, result.pitfall, by, str(result.seeds))
        console.print(table)
    raise typer.Exit(1 if missed else 0)


_MUTANT_FIELDS = ("name", "pitfall", "found", "seeds", "checker")
