"""`rsm load`: users on a key-value store over HTTP, and the judgement of every answer."""

import asyncio
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.errors import BenchError
from bench.ports import free_ports
from cli.crew import Crew, NotStarted
from cli.leases import seconds_of
from cli.over_http import Failure
from cli.showing import refuse
from loadtests.mix import weights_of
from loadtests.runs import Left, LoadPlan
from loadtests.shapes import SHAPES
from ordering.driver import run
from ordering.errors import OrderingError

if TYPE_CHECKING:
    from loadtests.report import Result

WRONG_ANSWERS: Final = 1
MISSING: Final = 3
INTERRUPTED: Final = 130
SITES: Final = 3
WEB_PORT: Final = 8089
SHOWN_MAX: Final = 20
LINE_SECONDS: Final = 60.0
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

console = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True, highlight=False, soft_wrap=True)
Show = Callable[[str], None]

Users = Annotated[int, typer.Option(min=1, max=1000, help="Users at most.")]
SpawnRate = Annotated[float, typer.Option(min=0.1, help="Users that come or go a second.")]
RunTime = Annotated[str, typer.Option(help="How long: 30s, 5m, 1h.")]
ShapeOption = Annotated[
    str,
    typer.Option(help="constant; steps: five up; spike: suddenly all, and back; soak: the same for long."),
]
Mix = Annotated[
    str,
    typer.Option(
        help="Weights of users: read, write, cas, txn, watch, as read=60,write=40. Not named: none.",
        show_default="read=50,write=20,cas=10,txn=10,watch=10",
    ),
]
Rate = Annotated[float, typer.Option(min=0.01, help="Requests that each user means to send a second.")]
Faults = Annotated[
    bool, typer.Option("--faults", help="Kill, pause and restart replicas meanwhile, one at a time.")
]
Report = Annotated[
    Path, typer.Option(file_okay=False, help="Where the report goes; what is there is replaced.")
]
Endpoint = Annotated[
    str, typer.Option(help="A store that is there, instead of one of our own.", show_default="one of our own")
]
Own = Annotated[
    bool, typer.Option("--i-own-this-target", help="Allow an --endpoint that is not on this machine.")
]
Token = Annotated[str, typer.Option(envvar="RSM_TOKEN", help="For --endpoint.", show_default=False)]
Sites = Annotated[int, typer.Option(min=1, max=9, help="Replicas of our own, each with a disk.")]
Groups = Annotated[int, typer.Option(min=1, max=100_000, help="Groups of four keys; the first are hotter.")]
ValueBytes = Annotated[int, typer.Option(min=40, max=100_000, help="Size of values.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the faults and the samples.")]
Web = Annotated[bool, typer.Option("--web", help="Locust's page instead of a run by itself; Ctrl-C ends it.")]
WebPort = Annotated[int, typer.Option(min=1, max=65_535, help="Of locust's page.")]
Workers = Annotated[int, typer.Option(min=1, max=9, help="Processes of locust that users are spread over.")]
Record = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        help="Record what our own store does, for `rsm pipeline`.",
        show_default=False,
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the records also of a run that went well.")]
Judge = Annotated[
    Path | None,
    typer.Option(
        file_okay=False, help="Instead: judge the run in this report once more.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


def load(
    users: Users = 40,
    spawn_rate: SpawnRate = 20.0,
    run_time: RunTime = "30s",
    shape: ShapeOption = "constant",
    mix: Mix = "",
    rate: Rate = 10.0,
    faults: Faults = False,
    report: Report = Path("load-report"),
    endpoint: Endpoint = "",
    i_own_this_target: Own = False,
    token: Token = "",
    sites: Sites = SITES,
    groups: Groups = 64,
    value_bytes: ValueBytes = 100,
    seed: Seed = 1,
    web: Web = False,
    web_port: WebPort = WEB_PORT,
    workers: Workers = 1,
    record: Record = None,
    keep: Keep = False,
    judge: Judge = None,
    as_json: AsJson = False,
) -> None:
    """Put a key-value store under the load of many users, and judge every answer.

    Starts three durable replicas and a gateway of its own on 127.0.0.1, and locust beside them. Users read,
    write, compare and set, run transactions, and watch, each by a schedule that slow answers do not move.

    Afterwards every request is replayed on one machine, in the order of timestamps: a lost update, a stale
    linearizable read, a request carried out twice, a watch with a gap are found. The report is a page with
    plots (index.html), beside locust's own. docs/loadtests.md has the rest.

    The exit code is 0 if every answer was right and none failed that no fault excuses; 1 if one was wrong,
    failed or could not be judged; 2 for a wrong option; 3 without the extra 'load'; 130 after Ctrl-C.

      rsm load                                           half a minute, on a store of its own

      rsm load --shape steps --users 200 --run-time 5m   how much it can take

      rsm load --shape soak --faults --run-time 30m      what grows

      rsm load --faults --record DIR                     replicas die, come back, and record for rsm pipeline

      rsm load --endpoint http://127.0.0.1:8080 --web    by hand, a store that is there
    """
    _check_installed()
    with _exits():
        if judge is not None:
            raise typer.Exit(_judged(Left.load(judge), as_json=as_json, keep=True))
        plan = LoadPlan(
            run=f"load-{secrets.token_hex(4)}",
            endpoint=_checked_endpoint(endpoint, record, faults=faults, own=i_own_this_target),
            users=users,
            spawn_rate=spawn_rate,
            run_time_s=None if web else _checked_time(run_time),
            shape=_checked_shape(shape),
            mix=_checked_mix(mix),
            rate=rate,
            groups=groups,
            value_bytes=value_bytes,
            faults=faults,
            sites=None if endpoint else sites,
            web_port=web_port if web else None,
            workers=workers,
            seed=seed,
            report=report,
        )
        raise typer.Exit(_judged(_play(plan, token, record), as_json=as_json, keep=keep))


@contextmanager
def _exits() -> Iterator[None]:
    try:
        yield
    except (BenchError, OrderingError, NotStarted, Failure, OSError) as error:
        refuse(str(error), WRONG_ANSWERS)
    except (KeyboardInterrupt, asyncio.CancelledError):
        messages.print("interrupted: all processes are stopped, nothing was judged", style="yellow")
        raise typer.Exit(INTERRUPTED) from None


# -- options -------------------------------------------------------------------------------------


def _check_installed() -> None:
    missing = [name for name in ("locust", "hdrh", "matplotlib") if find_spec(name) is None]
    if missing:
        words = f"not available: {', '.join(missing)}; pip install 'rsm[load]', or make load"
        messages.print(words, markup=False, style="yellow")
        raise typer.Exit(MISSING)


def _checked_endpoint(endpoint: str, record: Path | None, *, faults: bool, own: bool) -> str:
    if not endpoint:
        return f"http://127.0.0.1:{free_ports(1)[0]}"
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        refuse(f"--endpoint: {endpoint!r} must be a URL, as http://127.0.0.1:8080")
    if parts.hostname not in LOOPBACK and not own:
        refuse(
            f"--endpoint: {parts.hostname} is not this machine. A load test can stop a service; if it is"
            " yours, say so with --i-own-this-target"
        )
    if record is not None:
        refuse("--record: a store that is there records by itself (recording = in its file)")
    if faults:
        refuse("--faults: only processes that this command has started are struck; leave out --endpoint")
    return endpoint.rstrip("/")


def _checked_time(run_time: str) -> float:
    seconds = seconds_of(run_time, "--run-time")
    if seconds < 1:
        refuse("--run-time: must be a second or more")
    return float(round(seconds))


def _checked_shape(shape: str) -> str:
    if shape not in SHAPES:
        refuse(f"--shape: {shape!r} must be one of {', '.join(SHAPES)}")
    return shape


def _checked_mix(mix: str) -> str:
    if mix:
        try:
            weights_of(mix)
        except ValueError as error:
            refuse(f"--mix: {error}")
    return mix


# -- playing -------------------------------------------------------------------------------------


def _play(plan: LoadPlan, token: str, record: Path | None) -> Left:
    from cli.load_run import run_load

    shutil.rmtree(plan.records, ignore_errors=True)
    plan.records.mkdir(parents=True)
    with (
        _shown() as show,
        tempfile.TemporaryDirectory(prefix="rsm-load-", ignore_cleanup_errors=True) as made,
    ):
        crew = None
        if plan.sites is not None:
            port = urlsplit(plan.endpoint).port or 0
            crew = Crew(Path(made), plan.sites, port, durable=True, recording=record)
        told = run(run_load(plan, crew, token, show))
    left = Left(plan=plan, told=told)
    left.save()
    return left


@contextmanager
def _shown() -> Iterator[Show]:
    """On a terminal, one line that says where it is; else a line for each phase, and every minute."""
    if not messages.is_terminal:
        yield _Lines().show
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task("starting")
        yield lambda words: progress.update(task, description=words)


class _Lines:
    def __init__(self) -> None:
        self._phase = ""
        self._at = 0.0

    def show(self, words: str) -> None:
        phase, now = re.split("[,:]", words)[0], time.monotonic()
        if phase != self._phase or now - self._at >= LINE_SECONDS:
            self._phase, self._at = phase, now
            messages.print(words, markup=False)


# -- judging -------------------------------------------------------------------------------------


def _judged(left: Left, *, as_json: bool, keep: bool) -> int:
    """The exit code."""
    from loadtests.judging import judge
    from loadtests.latencies import Latencies
    from loadtests.report import PAGE, RESULT, Seen, result_of, write_report

    plan, told = left.plan, left.told
    latencies = Latencies(told.began_ns, told.ended_ns)
    with _shown() as show:
        show("reading the records")
        verdict = judge(
            plan.records,
            told.end_revision,
            latencies.note,
            lambda done, of: show(f"judging: {done} of {of} parts"),
            plan.seed,
        )
        show("writing the report")
        seen = Seen.read(plan.records)
        result = result_of(plan, latencies, verdict, seen)
        write_report(result, latencies, seen)
    shutil.rmtree(plan.records / "parts", ignore_errors=True)
    if result.good and not keep:
        shutil.rmtree(plan.records)
    code = 0 if result.good else WRONG_ANSWERS
    if as_json:
        typer.echo((plan.report / RESULT).read_text())
        return code
    _show(result)
    for problem in [*verdict.wrong[:SHOWN_MAX], *verdict.unsure]:
        messages.print(f"wrong: {problem}", markup=False, style="red")
    if not result.good:
        messages.print(
            f"kept: {plan.records}; again: rsm load --judge {plan.report}", markup=False, style="red"
        )
    console.print(result.words, style="bold green" if result.good else "bold red", markup=False)
    console.print(f"report: {os.path.relpath(plan.report / PAGE)}", markup=False)
    return code


def _show(result: "Result") -> None:
    names = ("p50", "p99", "p99.9", "max")
    table = Table(title=f"{result.seconds:.0f} s, milliseconds from the intended start", title_justify="left")
    for title in ("operation", "answered", "per s", *names):
        table.add_column(title, justify="left" if title == "operation" else "right")
    for row in result.rows:
        cells = [f"{row.intended_ms[name]:,.1f}" if row.intended_ms else "" for name in names]
        table.add_row(row.operation, f"{row.answered:,}", f"{row.per_s:,.1f}", *cells)
    console.print(table)
    told = {kind.value: count for kind, count in result.counts.items() if count}
    struck = {fault.value: count for fault, count in result.faults.items()}
    for words, counts in (("requests", told), ("faults", struck)):
        if counts:
            listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            console.print(f"{words}: {listed}", markup=False)
    for trend in result.trends:
        if trend.flat is not None or trend.filling:
            middle = f"{trend.middle:,.1f} {trend.unit}".rstrip()
            slope = f"{trend.per_hour:+,.1f} {trend.unit}".rstrip()
            console.print(f"{trend.what}: {middle}, {slope} an hour: {trend.words}", markup=False)
