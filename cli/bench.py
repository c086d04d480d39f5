"""`rsm bench`: what the ring reaches here, beside what the machine can carry and what others reach on it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench import attack, bare, failover, machine, ordering, raw, soak, transfer
from bench.attack import AttackPlan
from bench.failover import FailoverPlan, Loss
from bench.machine import MachinePlan, Mode, part
from bench.network import battery
from bench.network.battery import NetworkPlan
from bench.network.cases import NAMES as NETWORK_CASES
from bench.network.cases import Case
from bench.network.checks import Judged, Verdict
from bench.ordering import OrderingPlan
from bench.results import Result, Value, calibrate, versions
from bench.soak import SoakPlan
from bench.transfer import TransferPlan
from bench.wire import loop_name
from bench.workers import Placement
from cli.bench_actions import actions_command
from cli.bench_common import (
    FAILED,
    AsJson,
    Chosen,
    InFlight,
    Pin,
    Rounds,
    Sealed,
    Seconds,
    Senders,
    Sites,
    Size,
    Sizes,
    Transport,
    Way,
    Window,
    check_plan,
    nothing,
    numbers_of,
    ordering_plan,
    refuse,
    senders_of,
    shown,
)
from cli.bench_http import http_command, overload_command
from cli.bench_peers import app as peers
from cli.bench_pipeline import pipeline_command
from cli.bench_tables import (
    NETWORK_COLUMNS,
    VERDICT_STYLES,
    console,
    drops_table,
    latencies_table,
    machine_table,
    print_result,
    rates_table,
    show_attack,
    soak_table,
    tell_case,
    text_of,
    transfer_table,
)

app = typer.Typer(
    help="Measure on this machine. Quote the ratios, measured in one run; rates depend on the hour.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(peers, name="peers")


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
    wanted = numbers_of("--sizes", sizes, raw.SIZE_MIN, ordering.SIZE_MAX)
    values: dict[str, Value] = {}
    plan = OrderingPlan(multicast=transport is Transport.MULTICAST)
    calibration = calibrate()
    with shown() as step, ordering.crews(plan, nothing) as crew_of:
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
    print_result(
        result, [rates_table(f"raw {transport.value}", rates), latencies_table(trips)], as_json=as_json
    )


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
    wanted = numbers_of("--sizes", sizes, raw.SIZE_MIN, ordering.SIZE_MAX)
    sending = senders_of(senders, sites)
    plan = OrderingPlan(multicast=transport is Transport.MULTICAST)
    values: dict[str, Value] = {}
    calibration = calibrate()
    with shown() as step, ordering.crews(plan, nothing) as crew_of:
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
    latency = {"one outstanding": part(values, "one outstanding", "latency")}
    print_result(
        result,
        [rates_table(f"bare loop, {transport.value}", rates), latencies_table(latency)],
        as_json=as_json,
    )


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
    rounds: Rounds = 3,
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
    plan = ordering_plan(
        sites, size, senders, seconds, qos, transport, sealed=sealed, batch=batch, window=window, pin=pin
    )
    if members:
        counts = list(numbers_of("--members", members, 2, 16))
        with shown() as step:
            result = ordering.by_members(plan, counts, step, nothing)
        rows = {f"{count} members": row for count, row in result.values.items()}
        print_result(result, [rates_table(f"{size} B by group size", rows)], as_json=as_json)
        return
    with shown() as step:
        result = ordering.compare(plan, rounds, step, nothing)
    values = result.values
    rates = {
        "raw sockets": values["raw"],
        "raw sockets, whole packets": values["raw_packets"],
        "bare loop": values["bare"],
        "the ring": values["ring"],
    }
    waits = {
        "raw round trip": values["raw_round_trip"],
        "bare loop, one outstanding": part(values, "bare_one_outstanding", "latency"),
        "the ring, one outstanding": part(values, "ring_one_outstanding", "latency"),
        "the ring under load": part(values, "ring", "latency"),
    }
    seal = "sealed" if sealed else "plain"
    title = f"{size} B, {plan.senders} of {sites} sending, {qos}, {transport.value}, {seal}"
    print_result(result, [rates_table(title, rates), latencies_table(waits)], as_json=as_json)


@app.command(name="machine")
def machine_command(
    mode: Annotated[
        Chosen, typer.Option(help="Replicas without a disk, with a log that is synced, or both in turn.")
    ] = Chosen.BOTH,
    in_flight: InFlight = "1,64,1000",
    senders: Annotated[str, typer.Option(help="Call at one replica, or at all: 1 or all.")] = "1",
    size: Annotated[
        int, typer.Option(help=f"Bytes in a command, {machine.SIZE_MIN} to {machine.SIZE_MAX}.")
    ] = 100,
    seconds: Seconds = 1.0,
    rounds: Rounds = 2,
    directory: Annotated[
        Path, typer.Option(help="On whose file system the logs are; a directory in it is made and removed.")
    ] = Path(),
    recording: Annotated[
        bool, typer.Option("--recording", help="The replicas record what they do, in that directory too.")
    ] = False,
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """Replicated commands and linearizable reads, three replicas in processes of their own.

    In the same run: the bare ring with messages of the same size, and a write of that size with an fdatasync
    on the same disk. A rate ends when the slowest replica has executed everything. There is a result only if
    all replicas have the same digest at the same slot, and have executed what was acknowledged, each once.

    [bold]Examples[/bold]

      rsm bench machine --mode memory --senders all

      rsm bench machine --mode durable --in-flight 1 --directory /var/tmp
    """
    plan = MachinePlan(
        modes=tuple(Mode) if mode is Chosen.BOTH else (Mode(mode.value),),
        in_flight=numbers_of("--in-flight", in_flight, 1, machine.IN_FLIGHT_MAX),
        senders=senders_of(senders, machine.SITES),
        size=size,
        seconds=seconds,
        directory=directory,
        placement=pin,
        recording=recording,
    )
    check_plan(plan)
    with shown() as step:
        result = machine.run(plan, rounds, step, nothing)
    title = f"{size} B commands, called at {plan.senders} of {machine.SITES} replicas"
    print_result(result, [machine_table(title, plan, result)], as_json=as_json)


@app.command(name="soak")
def soak_command(
    mode: Annotated[Mode, typer.Option(help="Replicas without a disk, or with a log that is synced.")] = (
        Mode.MEMORY
    ),
    commands: Annotated[int, typer.Option(help="How many, in all.")] = 10_000_000,
    in_flight: Annotated[int, typer.Option(help=f"Calls at a time, 1 to {machine.IN_FLIGHT_MAX}.")] = 1000,
    size: Annotated[
        int, typer.Option(help=f"Bytes in a command, {machine.SIZE_MIN} to {machine.SIZE_MAX}.")
    ] = 100,
    directory: Annotated[
        Path, typer.Option(help="On whose file system the logs are; a directory in it is made and removed.")
    ] = Path(),
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """Millions of commands at three replicas: rates, waits and memory, stage by stage.

    The ratio is the memory of the largest replica at the end to that after the first tenth: 1.0 is flat.

    [bold]Example[/bold]

      rsm bench soak --mode durable --commands 1000000 --directory /var/tmp
    """
    plan = SoakPlan(
        mode=mode, commands=commands, in_flight=in_flight, size=size, directory=directory, placement=pin
    )
    check_plan(plan)
    with shown() as step:
        result = soak.run(plan, step, nothing)
    print_result(result, [soak_table(plan, result)], as_json=as_json)


@app.command(name="transfer")
def transfer_command(
    mib: Annotated[int, typer.Option(min=1, max=16_384, help="MiB of state in each replica.")] = 256,
    size: Annotated[int, typer.Option(min=1, max=65_536, help="Bytes in an entry of it.")] = 1_000,
    in_flight: Annotated[int, typer.Option(min=1, max=1_000, help="Calls at a time, at each replica.")] = 8,
    durable: Annotated[bool, typer.Option("--durable", help="Replicas with a log on disk.")] = False,
    directory: Annotated[
        Path, typer.Option(help="On whose file system the logs are; a directory in it is made and removed.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """A fourth replica joins a group with a large state, while the three others are called all the time.

    Shown are the longest time without an answer, calm and while the state is transferred, and what becomes of
    the memory of the replica that gives it. There is a result only if nobody was suspected, and all
    replicas have the same digest at the same slot. It takes four times the memory of the state, and some.

    [bold]Examples[/bold]

      rsm bench transfer --mib 1024

      rsm bench transfer --durable --directory /var/tmp
    """
    plan = TransferPlan(mib=mib, size=size, in_flight=in_flight, directory=directory if durable else None)
    check_plan(plan)
    with shown() as step:
        result = transfer.run(plan, step, nothing)
    title = f"{mib} MiB in entries of {size} B, called at {transfer.SITES} replicas"
    print_result(result, [transfer_table(title, result)], as_json=as_json)


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
        with shown() as step:
            result = failover.calm(plan, step, nothing)
        print_result(
            result,
            [rates_table(f"full load for {calm:g} s", {"the ring": dict(result.values)})],
            as_json=as_json,
        )
        changes = result.values["view_changes"]
        if not as_json:
            console.print(f"view changes: {changes}", style="red" if changes else "green")
            console.print(
                f"timers were late by up to {text_of(result.values, 'loop_late_max_ms')} ms, of which"
                f" {text_of(result.values, 'loop_busy_max_ms')} ms can be the site's own work",
                style="dim",
            )
        raise typer.Exit(FAILED if changes else 0)
    try:
        kinds = tuple(Loss(word) for word in losses.split(","))
    except ValueError:
        refuse("--losses", f"{losses!r}: use some of {', '.join(Loss)}")
    chosen = FailoverPlan(sites=sites, losses=kinds, repetitions=repetitions, sealed=sealed, placement=pin)
    with shown() as step:
        result = failover.run(chosen, step, nothing)
    table = Table(title="milliseconds after the loss", title_justify="left")
    table.add_column("")
    names = ("flow_ms_median", "flow_ms_max", "out_ms_median", "out_ms_max")
    for title in ("flow again, median", "worst", "out of the ring, median", "worst"):
        table.add_column(title, justify="right")
    for name, row in result.values.items():
        table.add_row(name, *(text_of(row, cell) for cell in names))
    print_result(result, [table], as_json=as_json)


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
        datagrams=datagrams, rate=rate, rounds=rounds, size=size, senders=senders_of(senders, attack.SITES),
        seed=seed, placement=pin,
    )  # fmt: skip
    check_plan(plan)
    with shown() as step:
        result = attack.run(plan, step, nothing)
    values = result.values
    rates = {name: values[name] for name in ("calm", "decoyed", "attacked")}
    print_result(
        result, [rates_table(f"{size} B, sealed", rates), drops_table(values["sites"])], as_json=as_json
    )
    checks = values["checks"]
    assert isinstance(checks, dict)
    if not as_json:
        show_attack(result, checks)
    raise typer.Exit(0 if all(checks.values()) else FAILED)


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
        sites=numbers_of("--sites", sites, 3, 16),
        cases=names,
        hold_seconds=hold,
        loss_seconds=seconds,
        rate=rate,
        sealed=sealed,
    )
    check_plan(plan)
    table = Table(title=f"{hold:g} s apart, or {seconds:g} s of loss", title_justify="left")
    for title in ("", *(column for column, _ in NETWORK_COLUMNS)):
        table.add_column(title, justify="left" if title in {"", "verdict"} else "right")
    verdicts: list[Verdict] = []

    def told(played: Case, judged: Judged) -> None:
        verdicts.append(judged.verdict)
        tell_case(played, judged)
        cells = (text_of(dict(judged.values), cell) for _, cell in NETWORK_COLUMNS[1:])
        table.add_row(played.title, VERDICT_STYLES[judged.verdict], *cells)

    with shown() as step:
        result = battery.run(plan, step, told, nothing)
    print_result(result, [table], as_json=as_json)
    raise typer.Exit(FAILED if Verdict.FAILED in verdicts else 0)


app.command(name="actions")(actions_command)
app.command(name="http")(http_command)
app.command(name="overload")(overload_command)
app.command(name="pipeline")(pipeline_command)
