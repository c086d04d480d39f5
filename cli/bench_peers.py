"""`rsm bench peers`: other products under the same workload, beside ours in one run."""

import time
from typing import Annotated

import typer

from bench import ordering, raw
from bench.machine import IN_FLIGHT_MAX
from bench.member import Settings
from bench.peers import contest, pysyncobj
from bench.peers.corosync import SETTINGS
from bench.workers import Placement
from cli.bench_common import (
    AsJson,
    InFlight,
    Pin,
    Rounds,
    Sealed,
    Seconds,
    Sizes,
    Window,
    check_plan,
    nothing,
    numbers_of,
    shown,
)
from cli.bench_http import etcd_command
from cli.bench_tables import console, contest_table, print_result, pysyncobj_table, tell_complaints

app = typer.Typer(
    help="Other products under the same workload.", no_args_is_help=True, rich_markup_mode="rich"
)
app.command(name="etcd")(etcd_command)


@app.command(name="corosync")
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
        sizes=numbers_of("--sizes", sizes, raw.SIZE_MIN, ordering.SIZE_MAX),
        seconds=seconds,
        settings=names,
        batch=batch,
        kill=kill,
        sealed=sealed,
        placement=pin,
        ring=Settings(window_bytes=window),
    )
    started = time.monotonic()
    with shown() as step:
        result = contest.run(plan, step, nothing)
    if as_json:
        print_result(result, [], as_json=True)
    else:
        console.print(contest_table(plan, result))
        spoken = result.parameters["corosync_applications"]
        console.print(
            f"corosync {result.versions['corosync']}, applications in {spoken};"
            f" took {time.monotonic() - started:.0f} s",
            markup=False,
            style="dim",
        )


@app.command(name="pysyncobj")
def pysyncobj_command(
    in_flight: InFlight = "64,1000,5000",
    settings: Annotated[str, typer.Option(help="Which of its settings, separated by semicolons.")] = ";".join(
        pysyncobj.SETTINGS
    ),
    seconds: Seconds = 1.0,
    rounds: Rounds = 2,
    pin: Pin = Placement.FREE,
    as_json: AsJson = False,
) -> None:
    """PySyncObj and our replicas in memory, three processes each on loopback, side by side.

    Both count. Its calls are made at its leader, each from the callback of the one before; ours at one
    replica, by tasks that await it. All members must have counted what was acknowledged. Nothing is
    installed: where it is missing the command says how to get it.
    """
    plan = pysyncobj.PySyncObjPlan(
        in_flight=numbers_of("--in-flight", in_flight, 1, IN_FLIGHT_MAX),
        settings=tuple(name.strip() for name in settings.split(";")),
        seconds=seconds,
        placement=pin,
    )
    check_plan(plan)
    with shown() as step:
        result = pysyncobj.run(plan, rounds, step, nothing)
    print_result(result, [pysyncobj_table(plan, result)], as_json=as_json)
    if not as_json:
        tell_complaints(result)
