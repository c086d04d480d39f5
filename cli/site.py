"""`rsm site`: one site of actions, a database beside a replica of the ledger, as a process."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from apps.actions import ActionLedger, ActionManager, Operations, ParticipantError, SqlParticipant
from cli.gateway import Format, Level, Signals
from cli.replica import Beside, load_named, run_replica
from cli.showing import refuse
from rsm.logs import LogFormat, LogLevel, configure
from rsm.replica import Replica

Program: TypeAlias = Callable[[ActionManager], Awaitable[None]]


def site(
    name: Annotated[str, typer.Argument(help="The site's name, the same wherever its process runs.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The TOML file of its replica.")],
    operations: Annotated[
        str, typer.Option(help="What can be done here, as package.module:operations; found from here.")
    ],
    database: Annotated[
        str,
        typer.Option(
            envvar="RSM_SITE_DATABASE",
            help="The site's own: sqlite:///file.db or postgresql://user@host/db.",
            show_default=False,
        ),
    ],
    program: Annotated[
        str,
        typer.Option(
            "--run", help="An async function of yours that is told the site's ActionManager, as module:name."
        ),
    ] = "",
    log_format: Format = LogFormat.AUTO,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run one site of actions until Ctrl-C or SIGTERM: a replica of the ledger,
    and beside it a database that takes part in actions. It finishes what its
    database is doing, and leaves the ring. A second signal stops it at once.

    Prints a line when it is registered, and logs to stderr. The exit code is 1
    if it had to halt, as when another process has taken its name; the last
    line says why. A database has two tables more from then on: rsm_intents and
    rsm_applied. --run is cancelled at the end, and has the site halt if it
    raises.

      rsm site berlin -c site-1.toml --operations apps.bank:bank --database sqlite:///berlin.db
    """
    found = load_named("--operations", operations, "operations")
    if not isinstance(found, Operations):
        refuse(f"--operations: {operations} is {type(found).__name__}, not apps.actions.Operations")
    told = load_named("--run", program, "function") if program else None
    if told is not None and not inspect.iscoroutinefunction(told):
        refuse(f"--run: {program} must be an async function of one argument, the site's ActionManager")
    try:
        participant = SqlParticipant(database, found)
    except ParticipantError as error:
        refuse(f"--database: {error}")
    configure(log_format, log_level)

    @asynccontextmanager
    async def managed(replica: Replica[Any], signals: Signals) -> AsyncIterator[Beside]:
        manager = ActionManager(replica, site=name, participant=participant)
        await manager.__aenter__()
        running = asyncio.ensure_future(_run(told, manager))
        try:
            doubts = f", {len(manager.in_doubt)} in doubt" if manager.in_doubt else ""
            yield Beside(f"{name}{doubts}", (manager.ended(), running))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            leaving = asyncio.ensure_future(manager.__aexit__())
            await asyncio.wait([leaving, signals.at_once], return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    run_replica(ActionLedger, config, managed)


async def _run(program: Program | None, manager: ActionManager) -> None:
    """Its end is not the site's."""
    if program is not None:
        await program(manager)
    await asyncio.Event().wait()
