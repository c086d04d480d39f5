"""`rsm bench http`, `rsm bench overload`, `rsm bench peers etcd`: the key-value store as users reach it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench import http_measure, http_overload
from bench.http_generators import Generator
from bench.http_load import CONNECTIONS_MAX
from bench.http_measure import HttpPlan
from bench.http_overload import OverloadPlan
from bench.http_services import KEYS, Kind
from bench.machine import Mode, part
from bench.peers import etcd
from bench.peers.etcd import EtcdPlan
from bench.results import Result, Value
from cli.bench_common import (
    FAILED,
    AsJson,
    Chosen,
    Rounds,
    Seconds,
    check_plan,
    nothing,
    numbers_of,
    refuse,
    shown,
)
from cli.bench_tables import console, print_result, text_of

Connections = Annotated[
    str, typer.Option(help="Requests at a time, a connection each; several, separated by commas.")
]
ValueSize = Annotated[int, typer.Option(help=f"Bytes in a value, 1 to {http_measure.SIZE_MAX}.")]
Gateways = Annotated[
    int,
    typer.Option(
        min=1, max=http_measure.GATEWAYS_MAX, help="Of ours; with several the bundled generator is used."
    ),
]
By = Annotated[
    Generator, typer.Option(help="Of closed loops; auto: wrk where it is installed, else the bundled one.")
]
Directory = Annotated[
    Path, typer.Option(help="On whose file system the data is; a directory in it is made and removed.")
]


# -- tables --------------------------------------------------------------------------------------

_COLUMNS = ("per s", "p50 µs", "p99 µs", "errors", "gateway", "replicas", "load", "CPU µs")


def _table(title: str) -> Table:
    caption = "cores kept busy by gateway, replicas and load generator; CPU of all of them for one request"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column("")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    return table


def _cells(row: Value) -> list[str]:
    waits = (f"{_number(row, 'latency', name):,.0f}" for name in ("p50_us", "p99_us"))
    rate, errors, cpu = (f"{_number(row, name):,.0f}" for name in ("per_s", "errors", "cpu_us"))
    return [rate, *waits, errors, *_cores(row), cpu]


def _number(row: Value, *names: str) -> float:
    found = part(row, *names)
    assert isinstance(found, int | float)
    return found


def _cores(row: Value) -> list[str]:
    """A server that is its own gateway counts as replica."""
    cpu = part(row, "cpu")
    assert isinstance(cpu, dict)
    busy: dict[str, list[float]] = {"gateway": [], "replicas": [], "generator": []}
    for name, cores in cpu.items():
        kind = next((each for each in ("gateway", "generator") if name.startswith(each)), "replicas")
        assert isinstance(cores, int | float)
        busy[kind].append(cores)
    return [f"{sum(cores):.2f}" if cores else "" for cores in busy.values()]


def http_table(plan: HttpPlan, result: Result) -> Table:
    by = result.parameters["generator"]
    table = _table(f"{plan.size} B values, {KEYS:,} keys; so many connections, by {by}")
    groups = [(http_measure.BARE, (Kind.PUT, Kind.GET)), *((mode.value, plan.kinds) for mode in plan.modes)]
    for group, kinds in groups:
        table.add_section()
        for kind in kinds:
            for connections in map(str, plan.connections):
                row = part(result.values, group, kind.value, connections)
                table.add_row(f"{group} {kind.value} {connections}", *_cells(row))
    return table


def etcd_table(plan: EtcdPlan, result: Result) -> Table:
    title = f"{plan.size} B values, {plan.connections} connections, by {result.parameters['generator']}"
    table = _table(f"{title}; half loads by bundled")
    for name in (*(kind.value for kind in etcd.CLOSED), etcd.SAME, etcd.OWN):
        table.add_section()
        for system in (etcd.OURS, etcd.THEIRS):
            table.add_row(f"{system}: {name}", *_cells(part(result.values, system, name)))
    return table


def overload_table(plan: OverloadPlan, result: Result) -> Table:
    values = result.values
    table = _table(f"{plan.mode.value}: puts, by bundled")
    search = values["search"]
    assert isinstance(search, dict)
    for connections, row in search.items():
        table.add_row(f"{connections} connections", *_cells(row))
    table.add_section()
    at = text_of(values, "sustained_connections")
    table.add_row(f"{at} sustained", *_cells(values["sustained"]))
    table.add_row(f"{text_of(values, 'overload', 'connections')} connections", *_cells(values["overload"]))
    table.add_row(f"{at} again", *_cells(values["afterwards"]))
    return table


def _show_overload(plan: OverloadPlan, result: Result) -> None:
    values = result.values
    statuses = part(values, "overload", "statuses")
    assert isinstance(statuses, dict)
    counts = ", ".join(f"{status}: {count:,}" for status, count in statuses.items())
    console.print(f"statuses under overload: {counts}", markup=False)
    for when in ("before", "settled", "after"):
        mb = part(values, "resident_mb", when)
        assert isinstance(mb, dict)
        console.print(f"MB {when}: {', '.join(f'{name} {each}' for name, each in mb.items())}", markup=False)
    checks = values["checks"]
    assert isinstance(checks, dict)
    for name, held in checks.items():
        console.print(f"{name}: {'yes' if held else 'NO'}", style="green" if held else "bold red")
    p99 = result.ratios["p99, accepted, to sustained"]
    if p99 is not None and p99 > http_overload.P99_WANTED:
        console.print(
            f"p99 of who was accepted: {p99} times that at {values['sustained_connections']} connections,"
            f" wanted {http_overload.P99_WANTED:g}",
            style="yellow",
        )


# -- commands ------------------------------------------------------------------------------------


def http_command(
    mode: Annotated[Chosen, typer.Option(help="Replicas without a disk, with a log that is synced, or both.")]
    = Chosen.BOTH,
    connections: Connections = "1,16,64,256",
    seconds: Seconds = 2.0,
    kinds: Annotated[str, typer.Option(help=f"Some of {', '.join(Kind)}; commas between.")]
    = ",".join(Kind),
    size: ValueSize = 100,
    gateways: Gateways = 1,
    generator: By = Generator.AUTO,
    directory: Directory = Path(),
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """The key-value store over HTTP: three replicas and a gateway as processes, loaded from outside.

    Puts, linearizable and stale gets, and half of each, with so many connections on which every answer
    brings the next request. Shown is which process kept how much of a core busy. The ratios are to a bare
    server, the one that the gateway runs on with an application that does nothing, in the same run.

    [bold]Examples[/bold]

      rsm bench http --mode memory --connections 64

      rsm bench http --mode durable --generator bundled --directory /var/tmp
    """
    try:
        chosen = tuple(Kind(word.strip()) for word in kinds.split(","))
    except ValueError:
        refuse("--kinds", f"{kinds!r}: use some of {', '.join(Kind)}")
    plan = HttpPlan(
        modes=tuple(Mode) if mode is Chosen.BOTH else (Mode(mode.value),),
        connections=numbers_of("--connections", connections, 1, CONNECTIONS_MAX),
        kinds=chosen,
        size=size,
        seconds=seconds,
        gateways=gateways,
        generator=generator,
        directory=directory,
    )
    check_plan(plan)
    with shown() as step:
        result = http_measure.run(plan, step, nothing)
    print_result(result, [http_table(plan, result)], as_json=as_json)


def overload_command(
    mode: Annotated[Mode, typer.Option(help="Replicas without a disk, or with a log that is synced.")] = (
        Mode.MEMORY
    ),
    connections: Annotated[
        int, typer.Option(help="That the gateway sustains; 0: they are looked for.", min=0)
    ] = 0,
    seconds: Seconds = 60.0,
    directory: Directory = Path(),
    as_json: AsJson = False,
) -> None:
    """Ten times the connections that a gateway can use, each of which repeats at once when it is refused.

    The exit code is 1 unless everybody was served or told when to come back, the view stayed what it was,
    no program has grown, and the generator had time to spare. How long those waited who were served is
    shown, and wanted to be at most twice what it is at the load that the gateway sustains, measured before
    and after for as long; but it fails nothing: neighbours on the machine count as well.

    [bold]Example[/bold]

      rsm bench overload --seconds 10
    """
    plan = OverloadPlan(mode=mode, connections=connections, seconds=seconds, directory=directory)
    check_plan(plan)
    with shown() as step:
        result = http_overload.run(plan, step, nothing)
    print_result(result, [overload_table(plan, result)], as_json=as_json)
    if not as_json:
        _show_overload(plan, result)
    checks = result.values["checks"]
    assert isinstance(checks, dict)
    raise typer.Exit(0 if all(checks.values()) else FAILED)


def etcd_command(
    connections: Annotated[int, typer.Option(help="Requests at a time, a connection each.", min=1)] = 64,
    seconds: Seconds = 3.0,
    size: ValueSize = 100,
    rounds: Rounds = 1,
    gateways: Gateways = 1,
    generator: By = Generator.AUTO,
    directory: Directory = Path(),
    as_json: AsJson = False,
) -> None:
    """Three etcd servers and our durable key-value store, asked over HTTP by the same generator.

    Puts, linearizable gets, and etcd's serializable gets against our stale ones, on connections on which
    every answer brings the next request; then puts by the clock, at half of the rate of the slower, and
    of each one's own. The data of both is on one disk. Nothing is installed: where etcd is missing
    the command says how to get it.
    """
    plan = EtcdPlan(
        connections=connections, size=size, seconds=seconds, gateways=gateways, generator=generator,
        directory=directory,
    )  # fmt: skip
    check_plan(plan)
    with shown() as step:
        result = etcd.run(plan, rounds, step, nothing)
    print_result(result, [etcd_table(plan, result)], as_json=as_json)
    if not as_json:
        console.print(f"etcd {result.versions['etcd']}", markup=False, style="dim")
