"""How `rsm bench` shows its results."""

import typer
from rich.console import Console
from rich.table import Table

from bench import attack
from bench.machine import HALF, MachinePlan, part
from bench.network.cases import Case
from bench.network.checks import Judged, Verdict
from bench.peers import contest, pysyncobj
from bench.results import Result, Value
from bench.soak import SoakPlan
from bench.wire import loop_name

console = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True, highlight=False, soft_wrap=True)


# -- any result ----------------------------------------------------------------------------------


def text_of(values: Value, *names: str) -> str:
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    if values is None:
        return ""
    return f"{values:,}" if isinstance(values, int | float) else str(values)


def rates_table(title: str, rows: dict[str, Value]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("messages/s", "MB/s", "packets/message", "CPU µs/message"):
        table.add_column(name, justify="right")
    for name, row in rows.items():
        cells = ("messages_per_s", "mb_per_s", "packets_per_message", "cpu_us_per_message")
        table.add_row(name, *(text_of(row, cell) for cell in cells))
    return table


def latencies_table(rows: dict[str, Value]) -> Table:
    table = Table(title="latency, µs", title_justify="left")
    table.add_column("")
    names = ("p50", "p90", "p99", "p99.9", "max")
    for name in names:
        table.add_column(name, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(text_of(row, f"{percent}_us") for percent in names))
    return table


def print_result(result: Result, tables: list[Table], *, as_json: bool) -> None:
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
        f" load average before: {text_of(ground, 'load_average')}",
        markup=False,
        style="dim",
    )


# -- machine -------------------------------------------------------------------------------------

_CALL_COLUMNS = ("per s", "p50 µs", "p99 µs", "max µs", "CPU µs each")


def _call_table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in _CALL_COLUMNS:
        table.add_column(column, justify="right")
    return table


def _call_cells(row: Value, rate: str = "per_s", cpu: str = "cpu_us") -> list[str]:
    waits = (text_of(row, "latency", name) for name in ("p50_us", "p99_us", "max_us"))
    return [text_of(row, rate), *waits, text_of(row, cpu)]


def machine_table(title: str, plan: MachinePlan, result: Result) -> Table:
    """Beside the commands: the ring's messages, and the disk's writes."""
    values = result.values
    table = _call_table(title)
    for name, ring in (("the ring", "ring"), ("the ring, one outstanding", "ring_one_outstanding")):
        table.add_row(name, *_call_cells(values[ring], "messages_per_s", "cpu_us_per_message"))
    if "sync" in values:
        table.add_row("write and fdatasync", *_call_cells({"latency": values["sync"]}))
    for mode in plan.modes:
        table.add_section()
        for kind, what in (("put", "commands"), ("get", "reads")):
            for in_flight in map(str, plan.in_flight):
                row = part(values, mode.value, in_flight, kind)
                table.add_row(f"{mode.value}: {what}, {in_flight} in flight", *_call_cells(row))
        half = part(values, mode.value, HALF, "put")
        if half is not None:
            table.add_row(f"{mode.value}: commands, at half of that rate", *_call_cells(half))
    return table


def soak_table(plan: SoakPlan, result: Result) -> Table:
    title = f"{plan.mode.value}: {plan.size} B commands, {plan.in_flight} in flight"
    table = Table(title=title, title_justify="left")
    for column in ("commands", "commands/s", "p50 µs", "p99 µs", "largest replica, MB"):
        table.add_column(column, justify="right")
    stages = result.values["stages"]
    assert isinstance(stages, dict)
    for commands, stage in stages.items():
        waits = (text_of(stage, "latency", name) for name in ("p50_us", "p99_us"))
        table.add_row(f"{int(commands):,}", text_of(stage, "per_s"), *waits, text_of(stage, "resident_mb"))
    return table


# -- transfer ------------------------------------------------------------------------------------


def transfer_table(title: str, result: Result) -> Table:
    values = result.values
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in ("commands/s", "longest gap ms", "memory MB", "peak MB", "seconds"):
        table.add_column(column, justify="right")
    for name, row in (
        ("calm: all replicas", values["calm"]),
        ("joining: all replicas, gap of those that do not give", values["joining"]),
        ("joining: who gives", part(values, "joining", "donor")),
        ("joining: who takes", values["joiner"]),
    ):
        cells = ("per_s", "longest_gap_ms", "memory_mb", "peak_mb", "seconds")
        table.add_row(name, *(text_of(row, cell) for cell in cells))
    return table


# -- attack --------------------------------------------------------------------------------------


def drops_table(sites: Value) -> Table:
    assert isinstance(sites, dict)
    table = Table(title="the attack, datagram by datagram", title_justify="left")
    table.add_column("")
    for name in sites:
        table.add_column(name, justify="right")
    reasons = sorted({reason for row in sites.values() for reason in _names(part(row, "reasons"))})
    for reason in reasons:
        table.add_row(
            reason.removeprefix("dropped: "), *(text_of(row, "reasons", reason) for row in sites.values())
        )
    table.add_section()
    for title, name in (
        ("sent here", "sent"), ("dropped", "dropped"), ("dropped by the kernel", "kernel_drops"),
        ("sent to another, opened here", "strayed"), ("accepted", "accepted"),
    ):  # fmt: skip
        table.add_row(title, *(text_of(row, name) for row in sites.values()))
    return table


def _names(row: Value) -> list[str]:
    return list(row) if isinstance(row, dict) else []


def show_attack(result: Result, checks: dict[str, Value]) -> None:
    told = part(result.values, "attack")
    console.print(
        f"{text_of(told, 'sent')} datagrams in {text_of(told, 'seconds')} s,"
        f" {text_of(told, 'per_s')} a second, {text_of(told, 'mb_per_s')} MB/s;"
        f" the attacker took {text_of(told, 'cpu_s')} s of CPU, a datagram cost its site"
        f" {text_of(result.values, 'cpu_us_per_hostile')} µs",
        markup=False,
    )
    for name, passed in checks.items():
        console.print(f"{name}: {'yes' if passed else 'NO'}", style="green" if passed else "bold red")
    kept = result.ratios["attacked_to_calm"]
    if kept is not None and kept < attack.RATIO_WANTED:
        console.print(f"throughput: {kept} of the calm rounds', wanted {attack.RATIO_WANTED}", style="yellow")


# -- network -------------------------------------------------------------------------------------

NETWORK_COLUMNS = (
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
VERDICT_STYLES = {
    Verdict.HELD: "[green]held[/green]",
    Verdict.STARVED: "[yellow]starved[/yellow]",
    Verdict.FAILED: "[bold red]failed[/bold red]",
}


def tell_case(played: Case, judged: Judged) -> None:
    """At once: a battery takes minutes, and may be interrupted."""
    style = {Verdict.HELD: "green", Verdict.STARVED: "yellow", Verdict.FAILED: "red"}[judged.verdict]
    messages.print(f"{played.title}: {judged.verdict.value}", markup=False, style=style)
    for line in judged.lines:
        if not line.held:
            messages.print(f"    not so: {line.name} ({line.detail})", markup=False)


# -- peers ---------------------------------------------------------------------------------------


def contest_table(plan: contest.ContestPlan, result: Result) -> Table:
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
            *(text_of(row, case, "messages_per_s") for row in rows),
            text_of(result.ratios.get(f"rate, {case}")),
        )
    for percent in ("p50_us", "p99_us"):
        name = f"one outstanding, {percent}"
        cells = (text_of(row, "one outstanding", "latency", percent) for row in rows)
        table.add_row(name, *cells, text_of(result.ratios.get(name)))
    if plan.kill:
        cells = (text_of(row, "killed_to_new_view_s") or "rsm bench failover" for row in rows)
        table.add_row("killed → new view, s", *cells, "")
    return table


def pysyncobj_table(plan: pysyncobj.PySyncObjPlan, result: Result) -> Table:
    table = _call_table("counter increments, three replicas in memory")
    for in_flight in map(str, plan.in_flight):
        table.add_section()
        for name in (*map(pysyncobj.theirs, plan.settings), pysyncobj.OURS):
            table.add_row(
                f"{name}, {in_flight} in flight", *_call_cells(part(result.values, name, in_flight))
            )
    return table


def tell_complaints(result: Result) -> None:
    complaints = result.values["complaints"]
    assert isinstance(complaints, dict)
    for name, said in complaints.items():
        console.print(f"{name} complained: {said}", markup=False, style="yellow")
