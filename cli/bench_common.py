"""What the commands of `rsm bench` share: their options, and how a run is shown and ended."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, NoReturn, Protocol

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench import ordering, raw
from bench.errors import BenchError, NotAvailable
from bench.member import Settings
from bench.ordering import OrderingPlan
from bench.workers import Placement
from cli.bench_tables import messages

FAILED = 1
MISSING = 3
INTERRUPTED = 130


class Transport(StrEnum):
    UNICAST = "unicast"
    MULTICAST = "multicast"


class Chosen(StrEnum):
    MEMORY = "memory"
    DURABLE = "durable"
    BOTH = "both"


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
Rounds = Annotated[
    int, typer.Option(min=1, max=100, help="Everything so often, in turn; the medians are shown.")
]
InFlight = Annotated[
    str, typer.Option(help="Calls without an answer, at each replica called; several, separated by commas.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


# -- running -------------------------------------------------------------------------------------


@contextmanager
def shown() -> Iterator[Callable[[str], None]]:
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


def nothing() -> None:
    """The progress display refreshes itself."""


def refuse(option: str, why: str) -> NoReturn:
    raise typer.BadParameter(why, param_hint=option)


def numbers_of(option: str, text: str, low: int, high: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        refuse(option, f"{text!r} is no list of numbers; write 16,1024")
    for number in numbers:
        if not low <= number <= high:
            refuse(option, f"{number} is not from {low} to {high}")
    return numbers


def senders_of(text: str, sites: int) -> int:
    if text == "all":
        return sites
    return numbers_of("--senders", text, 1, sites)[0]


def ordering_plan(
    sites: int, size: int, senders: str, seconds: float, qos: str, transport: Transport, *,
    sealed: bool, batch: int, window: int | None, pin: Placement,
) -> OrderingPlan:  # fmt: skip
    plan = OrderingPlan(
        sites=sites,
        size=size,
        senders=senders_of(senders, sites),
        seconds=seconds,
        qos=qos,
        multicast=transport is Transport.MULTICAST,
        sealed=sealed,
        batch=batch,
        placement=pin,
        settings=Settings(window_bytes=window),
    )
    check_plan(plan)
    return plan


class Plan(Protocol):
    def check(self) -> None: ...


def check_plan(plan: Plan) -> None:
    """Refuse the option that a plan cannot be carried out with."""
    try:
        plan.check()
    except NotAvailable as missing:
        messages.print(f"not available: {missing}", markup=False, style="yellow")
        raise typer.Exit(MISSING) from None
    except BenchError as error:
        name, _, why = str(error).partition(": ")
        refuse(f"--{name}", why)
