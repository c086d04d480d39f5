"""`rsm bench`: what the ring reaches here, beside what the machine can carry and what others reach on it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import attack, bare, failover, ordering, raw
from bench.attack import AttackPlan
from bench.errors import BenchError, NotAvailable
from bench.failover import FailoverPlan, Loss
from bench.member import Settings
from bench.network import battery
from bench.network.battery import NetworkPlan
from bench.network.cases import NAMES as NETWORK_CASES
from bench.network.cases import Case
from bench.network.checks import Judged, Verdict
from bench.ordering import OrderingPlan
from bench.peers import contest
from bench.peers.corosync import SETTINGS
from bench.results import Result, Value, calibrate, versions
from bench.wire import loop_name
from bench.workers import Placement

FAILED = 1
MISSING = 3
INTERRUPTED = 130

console = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True, highlight=False, soft_wrap=True)

app = typer.Typer(
    help="Measure on this machine. Quote the ratios, measured in one run; rates depend on the hour.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
peers = typer.Typer(
    help="Other products under the same workload.", no_args_is_help=True, rich_markup_mode="rich"
)
app.add_typer(peers, name="peers")


class Transport(StrEnum):
    UNICAST = "unicast"
    MULTICAST = "multicast"


Size = Annotated[int, typer.Option(help=f"Bytes in a message, {raw.SIZE_MIN} to {ordering.SIZE_MAX}.")]
Sizes = Annotated[str, typer.Option(help="Bytes in a message; several, separated by commas.")]
Seconds = Annotated[float, typer.Option(min=0.1, max=3600, help="How long each measurement sends.")]
Sites = Annotated[int, typer.Option(min=2, max=16, help="Processes in the group.")]
Senders = Annotated[str, typer.Option(help="How many of them send: a number, or all.")]
Way = Annotated[
    Transport,
    typer.Option(help="multicast runs in a network namespace that the command makes (needs root)."),
]
Pin = Annotated[
    Placement,
    typer.Option(
        help="Where processes run: free (the scheduler decides), spread over the CPUs, one CPU for all."
    ),
]
Sealed = Annotated[
    bool, typer.Option("--sealed/--plain", help="Datagrams authenticated and encrypted, or not.")
]
Window = Annotated[
    int | None,
    typer.Option(min=1, help="Bytes a site may have unordered (window_bytes).", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


# -- running -------------------------------------------------------------------------------------


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """Says on a terminal what is being measured; turns failures into exit codes."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal)
    task = progress.add_task("starting")
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with progress:
            yield lambda what: progress.update(task, description=what)
    except NotAvailable as missing:
        messages.print(f"not available: {missing}", markup=False, style="yellow")
        raise typer.Exit(MISSING) from None
    except BenchError as error:
        messages.print(f"failed: {error}", markup=False, style="red")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        messages.print("interrupted: all processes are stopped, nothing was measured", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, _: object) -> NoReturn:
    """Clean up first: the default would leave a compiled file behind."""
    raise SystemExit(128 + number)


def _nothing() -> None:
    """The progress display refreshes itself."""


def _refuse(option: str, why: str) -> NoReturn:
    raise typer.BadParameter(why, param_hint=option)


def _numbers(option: str, text: str, low: int, high: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        _refuse(option, f"{text!r} is no list of numbers; write 16,1024")
    for number in numbers:
        if not low <= number <= high:
            _refuse(option, f"{number} is not from {low} to {high}")
    return numbers


def _senders(text: str, sites: int) -> int:
    if text == "all":
        return sites
    return _numbers("--senders", text, 1, sites)[0]


def _plan(
    sites: int, size: int, senders: str, seconds: float, qos: str, transport: Transport, *,
    sealed: bool, batch: int, window: int | None, pin: Placement,
) -> OrderingPlan:  # fmt: skip
    plan = OrderingPlan(
        sites=sites,
        size=size,
        senders=_senders(senders, sites),
        seconds=seconds,
        qos=qos,
        multicast=transport is Transport.MULTICAST,
        sealed=sealed,
        batch=batch,
        placement=pin,
        settings=Settings(window_bytes=window),
    )
    try:
        plan.check()
    except NotAvailable as missing:
        messages.print(f"not available: {missing}", markup=False, style="yellow")
        raise typer.Exit(MISSING) from None
    except BenchError as error:
        _refuse_plan(error)
    return plan


def _refuse_plan(error: BenchError) -> NoReturn:
    name, _, why = str(error).partition(": ")
    _refuse(f"--{name}", why)


# -- showing -------------------------------------------------------------------------------------


def _cell(values: Value, *names: str) -> str:
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    if values is None:
        return ""
    return f"{values:,}" if isinstance(values, int | float) else str(values)


def _rates(title: str, rows: dict[str, Value]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("messages/s", "MB/s", "packets/message", "CPU µs/message"):
        table.add_column(name, justify="right")
    for name, row in rows.items():
        cells = ("messages_per_s", "mb_per_s", "packets_per_message", "cpu_us_per_message")
        table.add_row(name, *(_cell(row, cell) for cell in cells))
    return table


def _latencies(rows: dict[str, Value]) -> Table:
    table = Table(title="latency, µs", title_justify="left")
    table.add_column("")
    names = ("p50", "p90", "p99", "p99.9", "max")
    for name in names:
        table.add_column(name, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(_cell(row, f"{percent}_us") for percent in names))
    return table


def _print(result: Result, tables: list[Table], *, as_json: bool) -> None:
    if as_json:
        typer.echo(result.to_json())
        return
    for table in tables:
        console.print(table)
    for name, value in result.ratios.items():
        console.print(f"{name}: {'not measured' if value is None else value}", markup=False)
    ground = result.calibration
    console.print(
        f"{result.parameters.get('placement', '')}; {result.parameters.get('event_loop', loop_name())};"
        f" load average before: {_cell(ground, 'load_average')}",
        markup=False,
        style="dim",
    )


def _part(values: Value, *names: str) -> Value:
    found = values
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


# -- commands ------------------------------------------------------------------------------------


@app.command(name="raw")
def raw_command(
    sizes: Sizes = "64,1024,8192,59000",
    receivers: Annotated[int, typer.Option(min=1, max=16, help="Processes that receive.")] = 3,
    seconds: Seconds = 2.0,
    transport: Way = Transport.UNICAST,
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """Raw UDP sockets: how many datagrams the slowest of several receivers gets, without any loss.

    The sender learns from the receivers how far they are and keeps within their buffers. This is the
    ceiling of everything else here. The round trip is taken across CPUs and on one: waking another core
    costs more than many a protocol.
    """
    wanted = _numbers("--sizes", sizes, raw.SIZE_MIN, ordering.SIZE_MAX)
    values: dict[str, Value] = {}
    plan = OrderingPlan(multicast=transport is Transport.MULTICAST)
    calibration = calibrate()
    with _shown() as step, ordering.crews(plan, _nothing) as crew_of:
        for size in wanted:
            step(f"{size} bytes")
            one = raw.RawPlan(size=size, receivers=receivers, seconds=seconds, multicast=plan.multicast)
            values[f"{size} B"] = raw.throughput(one, pin, crew_of)
        for placement in (Placement.SPREAD, Placement.ONE):
            step(f"round trip, {placement.value}")
            trip = raw.RawPlan(size=64, seconds=1.0)
            values[f"round trip, {placement.value}"] = raw.round_trip(trip, placement, crew_of)
    result = Result(
        name="raw",
        parameters={
            "sizes": list(wanted), "receivers": receivers, "seconds": seconds, "transport": transport.value,
            "placement": pin.describe(receivers + 1), "event_loop": loop_name(),
        },
        values=values,
        ratios={},
        calibration=calibration,
        versions=versions(),
    )  # fmt: skip
    trips = {name: row for name, row in values.items() if name.startswith("round")}
    rates = {name: row for name, row in values.items() if name not in trips}
    _print(result, [_rates(f"raw {transport.value}", rates), _latencies(trips)], as_json=as_json)


@app.command(name="bare")
def bare_command(
    sizes: Sizes = "16,1024,59000",
    sites: Sites = 3,
    senders: Senders = "1",
    seconds: Seconds = 2.0,
    transport: Way = Transport.UNICAST,
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """The bare ordered loop: a token ring without recovery, membership or a call for each message.

    It is what Python can do at all with this protocol's packets, and what `rsm bench ordering` is
    compared with.
    """
    wanted = _numbers("--sizes", sizes, raw.SIZE_MIN, ordering.SIZE_MAX)
    sending = _senders(senders, sites)
    plan = OrderingPlan(multicast=transport is Transport.MULTICAST)
    values: dict[str, Value] = {}
    calibration = calibrate()
    with _shown() as step, ordering.crews(plan, _nothing) as crew_of:
        for size in wanted:
            step(f"{size} bytes")
            one = bare.BarePlan(
                size=size, sites=sites, senders=sending, seconds=seconds, multicast=plan.multicast
            )
            values[f"{size} B"] = bare.run(one, pin, crew_of)
        step("one outstanding")
        alone = bare.BarePlan(
            size=64, sites=sites, seconds=1.0, multicast=plan.multicast, one_outstanding=True
        )
        values["one outstanding"] = bare.run(alone, pin, crew_of)
    result = Result(
        name="bare",
        parameters={
            "sizes": list(wanted), "sites": sites, "senders": sending, "seconds": seconds,
            "transport": transport.value, "placement": pin.describe(sites), "event_loop": loop_name(),
        },
        values=values,
        ratios={},
        calibration=calibration,
        versions=versions(),
    )  # fmt: skip
    rates = {name: row for name, row in values.items() if name != "one outstanding"}
    latency = {"one outstanding": _part(values, "one outstanding", "latency")}
    _print(result, [_rates(f"bare loop, {transport.value}", rates), _latencies(latency)], as_json=as_json)


@app.command(name="ordering")
def ordering_command(
    sites: Sites = 3,
    size: Size = 1024,
    senders: Senders = "1",
    qos: Annotated[
        str, typer.Option(help="majority, total, totally_ordered, source_ordered, or k=N.")
    ] = "majority",
    transport: Way = Transport.UNICAST,
    sealed: Sealed = False,
    seconds: Seconds = 1.0,
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="Everything so often, in turn; the medians are shown.")
    ] = 3,
    batch: Annotated[int, typer.Option(min=0, help="Messages in one submit call; 0: a packet's worth.")] = 0,
    window: Window = None,
    members: Annotated[
        str, typer.Option(help="Instead: packets and CPU per message for groups of these sizes, as 3,5,8.")
    ] = "",
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """The engine in real processes, with raw sockets and the bare loop measured in the same run.

    Every member's application receives every message's bytes and hashes them; the hashes are compared.
    Rates are those of the slowest member. Latency runs from the submit call to the delivery at the
    sender, under load and with one message outstanding.

    [bold]Examples[/bold]

      rsm bench ordering                             1 KiB messages from one of three sites

      rsm bench ordering --size 16 --senders all     small ones, from all

      rsm bench ordering --batch 1                   one message to the call

      rsm bench ordering --transport multicast       as root, in a namespace of its own

      rsm bench ordering --members 3,5,8             what a larger group costs
    """
    plan = _plan(
        sites, size, senders, seconds, qos, transport, sealed=sealed, batch=batch, window=window, pin=pin
    )
    if members:
        counts = list(_numbers("--members", members, 2, 16))
        with _shown() as step:
            result = ordering.by_members(plan, counts, step, _nothing)
        rows = {f"{count} members": row for count, row in result.values.items()}
        _print(result, [_rates(f"{size} B by group size", rows)], as_json=as_json)
        return
    with _shown() as step:
        result = ordering.compare(plan, rounds, step, _nothing)
    values = result.values
    rates = {
        "raw sockets": values["raw"],
        "raw sockets, whole packets": values["raw_packets"],
        "bare loop": values["bare"],
        "the ring": values["ring"],
    }
    waits = {
        "raw round trip": values["raw_round_trip"],
        "bare loop, one outstanding": _part(values, "bare_one_outstanding", "latency"),
        "the ring, one outstanding": _part(values, "ring_one_outstanding", "latency"),
        "the ring under load": _part(values, "ring", "latency"),
    }
    seal = "sealed" if sealed else "plain"
    title = f"{size} B, {plan.senders} of {sites} sending, {qos}, {transport.value}, {seal}"
    _print(result, [_rates(title, rates), _latencies(waits)], as_json=as_json)


@app.command(name="failover")
def failover_command(
    sites: Annotated[int, typer.Option(min=3, max=16, help="Processes in the group.")] = 3,
    losses: Annotated[
        str, typer.Option(help="kill (SIGKILL), stop (SIGSTOP), link (pulled; needs root); commas between.")
    ] = "kill,stop",
    repetitions: Annotated[int, typer.Option("--repeat", min=1, max=1000, help="Of each kind of loss.")] = 5,
    calm: Annotated[
        float,
        typer.Option(
            min=0, max=3600, help="Instead: full load for so many seconds; counts false suspicions."
        ),
    ] = 0.0,
    sealed: Sealed = False,
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """How long messages stop when a site is lost, with default settings.

    All sites submit at a steady pace; one is killed, stopped or cut off. Shown are the times until
    messages flow again and until the site is out of the ring, at the slower survivor. With --calm
    nothing is broken: the exit code is 1 if any site was suspected all the same.
    """
    if calm:
        plan = OrderingPlan(sites=sites, senders=sites, seconds=calm, sealed=sealed, placement=pin)
        with _shown() as step:
            result = failover.calm(plan, step, _nothing)
        _print(
            result, [_rates(f"full load for {calm:g} s", {"the ring": dict(result.values)})], as_json=as_json
        )
        changes = result.values["view_changes"]
        if not as_json:
            console.print(f"view changes: {changes}", style="red" if changes else "green")
            console.print(
                f"timers were late by up to {_cell(result.values, 'loop_late_max_ms')} ms, of which"
                f" {_cell(result.values, 'loop_busy_max_ms')} ms can be the site's own work",
                style="dim",
            )
        raise typer.Exit(FAILED if changes else 0)
    try:
        kinds = tuple(Loss(word) for word in losses.split(","))
    except ValueError:
        _refuse("--losses", f"{losses!r}: use some of {', '.join(Loss)}")
    chosen = FailoverPlan(sites=sites, losses=kinds, repetitions=repetitions, sealed=sealed, placement=pin)
    with _shown() as step:
        result = failover.run(chosen, step, _nothing)
    table = Table(title="milliseconds after the loss", title_justify="left")
    table.add_column("")
    names = ("flow_ms_median", "flow_ms_max", "out_ms_median", "out_ms_max")
    for title in ("flow again, median", "worst", "out of the ring, median", "worst"):
        table.add_column(title, justify="right")
    for name, row in result.values.items():
        table.add_row(name, *(_cell(row, cell) for cell in names))
    _print(result, [table], as_json=as_json)


@app.command(name="attack")
def attack_command(
    datagrams: Annotated[int, typer.Option(min=100, help="Hostile datagrams, to all sites together.")] = (
        1_000_000
    ),
    rate: Annotated[int, typer.Option(min=1, max=1_000_000, help="Of them in a second.")] = 10_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Calm, decoyed and attacked, in turn.")] = 4,
    size: Size = 1024,
    senders: Senders = "1",
    seed: Annotated[int, typer.Option(min=0, help="Of the attacker's choices.")] = 1,
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """A sealed ring of three under load, attacked by a process that has no key and overhears datagrams.

    It replays them, to whom they were sent and to others, alters, cuts, splices and lengthens them, and
    sends noise, plain datagrams, other groups' and such as are sealed with a wrong key. The exit code is
    1 if anything was accepted, is not accounted for, stopped a site or changed the ring. How much of the
    throughput stays is shown, and wanted to be 0.8, but fails nothing: it depends on the machine.
    """
    plan = AttackPlan(
        datagrams=datagrams, rate=rate, rounds=rounds, size=size, senders=_senders(senders, attack.SITES),
        seed=seed, placement=pin,
    )  # fmt: skip
    try:
        plan.check()
    except BenchError as error:
        _refuse_plan(error)
    with _shown() as step:
        result = attack.run(plan, step, _nothing)
    values = result.values
    rates = {name: values[name] for name in ("calm", "decoyed", "attacked")}
    _print(result, [_rates(f"{size} B, sealed", rates), _drops_table(values["sites"])], as_json=as_json)
    checks = values["checks"]
    assert isinstance(checks, dict)
    if not as_json:
        _show_attack(result, checks)
    raise typer.Exit(0 if all(checks.values()) else FAILED)


def _drops_table(sites: Value) -> Table:
    assert isinstance(sites, dict)
    table = Table(title="the attack, datagram by datagram", title_justify="left")
    table.add_column("")
    for name in sites:
        table.add_column(name, justify="right")
    reasons = sorted({reason for row in sites.values() for reason in _names(_part(row, "reasons"))})
    for reason in reasons:
        table.add_row(
            reason.removeprefix("dropped: "), *(_cell(row, "reasons", reason) for row in sites.values())
        )
    table.add_section()
    for title, name in (
        ("sent here", "sent"), ("dropped", "dropped"), ("dropped by the kernel", "kernel_drops"),
        ("sent to another, opened here", "strayed"), ("accepted", "accepted"),
    ):  # fmt: skip
        table.add_row(title, *(_cell(row, name) for row in sites.values()))
    return table


def _names(row: Value) -> list[str]:
    return list(row) if isinstance(row, dict) else []


def _show_attack(result: Result, checks: dict[str, Value]) -> None:
    told = _part(result.values, "attack")
    console.print(
        f"{_cell(told, 'sent')} datagrams in {_cell(told, 'seconds')} s, {_cell(told, 'per_s')} a second,"
        f" {_cell(told, 'mb_per_s')} MB/s; the attacker took {_cell(told, 'cpu_s')} s of CPU, a datagram cost"
        f" its site {_cell(result.values, 'cpu_us_per_hostile')} µs",
        markup=False,
    )
    for name, passed in checks.items():
        console.print(f"{name}: {'yes' if passed else 'NO'}", style="green" if passed else "bold red")
    kept = result.ratios["attacked_to_calm"]
    if kept is not None and kept < attack.RATIO_WANTED:
        console.print(f"throughput: {kept} of the calm rounds', wanted {attack.RATIO_WANTED}", style="yellow")


@app.command(name="network")
def network_command(
    sites: Annotated[str, typer.Option(help="Processes in the group; several, separated by commas.")] = "3,5",
    case: Annotated[
        str, typer.Option("--case", help=f"Some of {', '.join(NETWORK_CASES)}; commas between.")
    ] = "all",
    hold: Annotated[float, typer.Option(min=0.5, max=600, help="Seconds a network stays apart.")] = 4.0,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long a network loses.")] = 10.0,
    rate: Annotated[int, typer.Option(min=200, max=5000, help="Messages per second from each site.")] = 400,
    sealed: Sealed = True,
    as_json: AsJson = False,
) -> None:
    """Break the network under a group of real processes, mend it, and compare what all have delivered.

    Each site has a network namespace of its own, joined by a bridge in another, which the command makes and
    removes; needs root, and nft for rules. Checked are one order and one primary at all times, that the
    majority goes on and the minority refuses, that nothing acknowledged is lost, and that all are in one
    ring again by themselves. The exit code is 1 if a case failed. *Starved* means that the machine kept a
    site off the CPU for so long that others had to take it for dead: repeat it on a quieter one.

    [bold]Examples[/bold]

      rsm bench network --case halves,one-way

      rsm bench network --case loss-1,loss-5 --seconds 300
    """
    names = NETWORK_CASES if case == "all" else tuple(word.strip() for word in case.split(","))
    plan = NetworkPlan(
        sites=_numbers("--sites", sites, 3, 16),
        cases=names,
        hold_seconds=hold,
        loss_seconds=seconds,
        rate=rate,
        sealed=sealed,
    )
    try:
        plan.check()
    except BenchError as error:
        name, _, why = str(error).partition(": ")
        _refuse(f"--{name}", why)
    table = Table(title=f"{hold:g} s apart, or {seconds:g} s of loss", title_justify="left")
    for title in ("", *(column for column, _ in _NETWORK_COLUMNS)):
        table.add_column(title, justify="left" if title in {"", "verdict"} else "right")
    verdicts: list[Verdict] = []

    def told(played: Case, judged: Judged) -> None:
        verdicts.append(judged.verdict)
        _tell_case(played, judged)
        cells = (_cell(dict(judged.values), cell) for _, cell in _NETWORK_COLUMNS[1:])
        table.add_row(played.title, _VERDICT_STYLES[judged.verdict], *cells)

    with _shown() as step:
        result = battery.run(plan, step, told, _nothing)
    _print(result, [table], as_json=as_json)
    raise typer.Exit(FAILED if Verdict.FAILED in verdicts else 0)


_NETWORK_COLUMNS = (
    ("verdict", ""),
    ("silence ms", "silence_ms"),
    ("refused after ms", "refuse_ms"),
    ("whole after ms", "whole_ms"),
    ("views", "views_during"),
    ("after", "views_after"),
    ("messages/s", "messages_per_s"),
    ("retransmissions", "retransmissions"),
    ("Nacks", "nacks"),
    ("states sent", "transfers"),
    ("late ms", "late_ms"),
)
_VERDICT_STYLES = {
    Verdict.HELD: "[green]held[/green]",
    Verdict.STARVED: "[yellow]starved[/yellow]",
    Verdict.FAILED: "[bold red]failed[/bold red]",
}


def _tell_case(played: Case, judged: Judged) -> None:
    """At once: a battery takes minutes, and may be interrupted."""
    style = {Verdict.HELD: "green", Verdict.STARVED: "yellow", Verdict.FAILED: "red"}[judged.verdict]
    messages.print(f"{played.title}: {judged.verdict.value}", markup=False, style=style)
    for line in judged.lines:
        if not line.held:
            messages.print(f"    not so: {line.name} ({line.detail})", markup=False)


@peers.command(name="corosync")
def corosync_command(
    sizes: Sizes = "16,1024,4096,59000",
    seconds: Seconds = 0.7,
    settings: Annotated[
        str, typer.Option(help="Which of corosync's settings, separated by semicolons, or all.")
    ] = ";".join(contest.DEFAULT_SETTINGS),
    batch: Annotated[
        int,
        typer.Option(
            min=0, help="Messages in one of our submit calls; 0: a packet's worth. Corosync's takes one."
        ),
    ] = 0,
    kill: Annotated[bool, typer.Option("--kill", help="Also: kill a member, time to the new view.")] = False,
    sealed: Sealed = False,
    window: Window = None,
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """Corosync and our ring, three members each, side by side. Needs root, corosync and libcpg.

    Three corosync daemons run in network namespaces of their own, joined by a bridge; our ring runs on a
    bridge of the same make. Nothing is installed, nothing outside the namespaces is touched, and
    everything is gone afterwards. Where a C compiler is found, corosync's applications are in C.
    """
    names = tuple(SETTINGS) if settings == "all" else tuple(name.strip() for name in settings.split(";"))
    plan = contest.ContestPlan(
        sizes=_numbers("--sizes", sizes, raw.SIZE_MIN, ordering.SIZE_MAX),
        seconds=seconds,
        settings=names,
        batch=batch,
        kill=kill,
        sealed=sealed,
        placement=pin,
        ring=Settings(window_bytes=window),
    )
    started = time.monotonic()
    with _shown() as step:
        result = contest.run(plan, step, _nothing)
    if as_json:
        _print(result, [], as_json=True)
    else:
        console.print(_contest_table(plan, result))
        spoken = result.parameters["corosync_applications"]
        console.print(
            f"corosync {result.versions['corosync']}, applications in {spoken};"
            f" took {time.monotonic() - started:.0f} s",
            markup=False,
            style="dim",
        )


def _contest_table(plan: contest.ContestPlan, result: Result) -> Table:
    table = Table(title="messages/s at the slowest member", title_justify="left")
    table.add_column("")
    for name in result.values:
        table.add_column(name, justify="right")
    table.add_column("our best to theirs", justify="right")
    rows = list(result.values.values())
    for size, senders in plan.loads:
        case = str(contest.Case(size, senders))
        table.add_row(
            case,
            *(_cell(row, case, "messages_per_s") for row in rows),
            _cell(result.ratios.get(f"rate, {case}")),
        )
    for percent in ("p50_us", "p99_us"):
        name = f"one outstanding, {percent}"
        cells = (_cell(row, "one outstanding", "latency", percent) for row in rows)
        table.add_row(name, *cells, _cell(result.ratios.get(name)))
    if plan.kill:
        cells = (_cell(row, "killed_to_new_view_s") or "rsm bench failover" for row in rows)
        table.add_row("killed → new view, s", *cells, "")
    return table
