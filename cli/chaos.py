"""`rsm chaos`: kill and stop replicas at the worst moments, under load, and check every answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.chaos.books import Books, Checked, Quotas
from bench.chaos.plan import SITES_MAX, SITES_MIN, App, Database, Plan, roles_of
from bench.chaos.rounds import Campaign, Played, play, run
from bench.errors import BenchError

VIOLATED = 1
WRONG = 2
INTERRUPTED = 130

console = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True, highlight=False, soft_wrap=True)

Sites = Annotated[int, typer.Option(min=SITES_MIN, max=SITES_MAX, help="Replicas, each with a disk.")]
RoundSeconds = Annotated[
    float, typer.Option(min=2, max=3600, help="How long a group is under attack; the next round has another.")
]
Kills = Annotated[int, typer.Option(min=0, help="By SIGKILL, in each role.")]
Pauses = Annotated[int, typer.Option(min=0, help="By SIGSTOP, for half to ten times the detection time.")]
Restarts = Annotated[
    int, typer.Option(min=0, help="All of three sites killed, in each order they can come back in.")
]
Directory = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Progress, and what is left of bad rounds; else chaos, chaos-http or chaos-actions.",
        show_default=False,
    ),
]
Http = Annotated[
    bool, typer.Option("--http", help="Call over HTTP, by way of two gateways, and strike these too.")
]
TheApp = Annotated[
    App, typer.Option("--app", help="What the replicas run: registers, or actions at several databases.")
]
TheDatabase = Annotated[
    Database, typer.Option("--database", help="Of each site of actions; PostgreSQL is started here for it.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the first round of a new campaign.")]
Replay = Annotated[
    int | None, typer.Option(min=0, help="Instead: play the round of this seed.", show_default=False)
]
Record = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        help="Record each round to DIR/round-N, for `rsm pipeline`.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


def chaos(
    sites: Sites = 5,
    round_seconds: RoundSeconds = 30.0,
    kills: Kills = 50,
    pauses: Pauses = 200,
    restarts: Restarts = 1,
    directory: Directory = None,
    seed: Seed = 1,
    replay: Replay = None,
    http: Http = False,
    app: TheApp = App.REGISTERS,
    database: TheDatabase = Database.SQLITE,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Run durable replicas as real processes, strike them, and check that every call was linearizable.

    Sites die in the middle of each duty they can have (token site, next token site, sender, initiator,
    joiner, donor, lock holder), fall asleep and wake up, and all die at once, while clients call. A round is
    a fresh group; rounds go on until every quota is met. Ctrl-C, and the same command later, go on with the
    campaign in the directory.

    With --http the clients speak HTTP to two gateways, which are killed and stopped as well: keys,
    conditions, transactions, counters, requests repeated over the other gateway, and watches.

    With --app actions every site has a database, and money moves between them in actions, alone and behind
    others. Sites die before and after an attempt, when a request is ordered, before and behind prepare and
    commit, behind their vote, and those that begin actions before and behind the request. At the end every
    action is decided, the same everywhere, applied once at all its sites or at none, and no money is lost.

    The exit code is 0 if the quotas are met, 1 if anything was violated, 130 after Ctrl-C.

    [bold]Examples[/bold]

      rsm chaos                                the whole campaign, about half an hour

      rsm chaos --kills 2 --pauses 5           a first impression

      rsm chaos --http                         the same over HTTP

      rsm chaos --app actions --sites 3        transfers between the databases of three sites

      rsm chaos --replay 17 --record DIR       the faults of round 17 again, recorded for rsm pipeline
    """
    if http and app is App.ACTIONS:
        raise typer.BadParameter("is for registers; actions have no gateway", param_hint="--http")
    directory = directory or Path(_directory(app, database, http=http))
    gateways = kills if http else 0
    quotas = Quotas(kills=kills, pauses=pauses, restarts=restarts, gateways=gateways, roles=roles_of(app))
    campaign = Campaign(
        sites=sites,
        round_seconds=round_seconds,
        quotas=quotas,
        directory=directory,
        seed=seed,
        http=http,
        app=app,
        database=database,
        recording=record,
    )
    try:
        if replay is not None:
            _replay(campaign, replay, as_json=as_json)
        else:
            directory.mkdir(parents=True, exist_ok=True)
            books = Books.load(directory, sites, seed, http=http, app=app, database=database)
            _go_on(campaign, books, as_json=as_json)
    except (BenchError, OSError) as error:
        messages.print(f"error: {error}", markup=False, style="red")
        raise typer.Exit(WRONG) from None


def _directory(app: App, database: Database, *, http: bool) -> str:
    if app is App.ACTIONS:
        return "chaos-actions" if database is Database.SQLITE else f"chaos-actions-{database}"
    return "chaos-http" if http else "chaos"


# -- one round -----------------------------------------------------------------------------------


def _replay(campaign: Campaign, seed: int, *, as_json: bool) -> None:
    try:
        with _shown(campaign.quotas) as show:
            plan = campaign.plan(seed)
            show(0, f"round {seed}: {plan.kind.value}, {plan.sites} sites")
            played = play(plan, campaign.directory, campaign.recording)
    except KeyboardInterrupt:
        messages.print("interrupted: all processes are stopped", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(msgspec.json.encode(played, enc_hook=str).decode())
    else:
        console.print(_line(played), markup=False)
        _complain(played, "")
    raise typer.Exit(VIOLATED if played.problems else 0)


def _line(played: Played) -> str:
    tally, checked, plan = played.tally, played.checked, played.plan
    struck = [f"{role} {count}" for role, count in sorted(tally.kills.items())]
    struck += [f"pauses {tally.pauses}"] if tally.pauses else []
    struck += [f"gateway pauses {tally.gateway_pauses}"] if tally.gateway_pauses else []
    struck += [f"all down {name}" for name in tally.orders]
    struck += [f"missed {name} {count}" for name, count in sorted(tally.missed.items())]
    return (
        f"round {plan.seed} ({plan.kind.value}, {plan.sites} sites, {played.seconds:.0f} s):"
        f" {', '.join(struck) or 'nothing struck'}; {checked.operations:,} operations checked,"
        f" {checked.unknown:,} of unknown outcome{_seen(checked)}; violations {len(played.problems)}"
    )


def _seen(checked: Checked) -> str:
    if checked.committed:
        return f", {checked.committed:,} committed, {checked.in_doubt:,} found prepared by who came back"
    return f", {checked.watched:,} events watched" if checked.watched else ""


def _complain(played: Played, replay: str) -> None:
    for problem in played.problems[:20]:
        messages.print(f"violation: {problem}", markup=False, style="red")
    if played.problems:
        messages.print(f"kept: {played.directory}", markup=False, style="red")
        if replay:
            messages.print(f"to replay: {replay}", markup=False, style="red")


# -- a campaign ----------------------------------------------------------------------------------


def _go_on(campaign: Campaign, books: Books, *, as_json: bool) -> None:
    whole = True
    try:
        with _shown(campaign.quotas) as show:

            def began(plan: Plan) -> None:
                done = campaign.quotas.done(books.tally)
                show(done, f"round {plan.seed}: {plan.kind.value}, {plan.sites} sites; {_counts(books)}")

            def told(played: Played) -> None:
                messages.print(_line(played), markup=False)
                _complain(played, campaign.replay(played.plan.seed))

            run(campaign, books, began, told)
    except KeyboardInterrupt:
        whole = False
    _show(campaign, books, as_json=as_json)
    if not whole:
        messages.print("interrupted: the round under way does not count; the rest is kept", style="yellow")
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(VIOLATED if books.bad else 0)


def _counts(books: Books) -> str:
    kills = sum(books.tally.kills.values())
    return f"{kills} kills, {books.tally.pauses} pauses, violations {books.violations}"


@contextmanager
def _shown(quotas: Quotas) -> Iterator[Callable[[float, str], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal)
    task = progress.add_task("starting", total=1.0)
    with progress:
        yield lambda done, what: progress.update(task, completed=done, description=what)


def _show(campaign: Campaign, books: Books, *, as_json: bool) -> None:
    quotas, checked = campaign.quotas, books.checked
    progress = quotas.progress(books.tally)
    if as_json:
        summary: dict[str, Any] = msgspec.to_builtins(books)
        summary |= {
            "violations": books.violations,
            "quotas": {name: {"done": done, "wanted": wanted} for name, (done, wanted) in progress.items()},
            "met": not quotas.missing(books.tally),
        }
        typer.echo(msgspec.json.encode(summary).decode())
        return
    table = Table(title=f"{books.rounds} rounds, {books.seconds / 60:.1f} minutes", title_justify="left")
    for title in ("", "done", "wanted"):
        table.add_column(title, justify="left" if not title else "right")
    for name, (done, wanted) in progress.items():
        table.add_row(name, f"{done:,}", f"{wanted:,}", style="green" if done >= wanted else None)
    table.add_section()
    table.add_row("disks wiped", f"{books.tally.wipes:,}", "")
    if campaign.http:
        table.add_row("gateways paused", f"{books.tally.gateway_pauses:,}", "")
    table.add_row("operations checked", f"{checked.operations:,}", "")
    table.add_row("  acknowledged", f"{checked.acknowledged:,}", "")
    table.add_row("  of unknown outcome", f"{checked.unknown:,}", "")
    if campaign.http:
        table.add_row("  repeated over another gateway", f"{checked.repeated:,}", "")
        table.add_row("watch events checked", f"{checked.watched:,}", "")
    if campaign.app is App.ACTIONS:
        table.add_row("  that depend on others", f"{checked.dependent:,}", "")
        table.add_row("  committed", f"{checked.committed:,}", "")
        table.add_row("found prepared by who came back", f"{checked.in_doubt:,}", "")
    else:
        table.add_row("commands executed", f"{checked.executed:,}", "")
        table.add_row("keys searched", f"{checked.searched:,}", "")
        table.add_row("  given up", f"{checked.gave_up:,}", "")
    table.add_section()
    table.add_row("violations", f"{books.violations:,}", "", style="red" if books.bad else "green")
    console.print(table)
    for bad in books.bad:
        console.print(f"{bad.replay}   # {bad.directory}", markup=False, style="red")
