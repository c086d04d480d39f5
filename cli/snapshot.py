"""`rsm snapshot`: back up the state of a group, look into a backup, and found a new group with it."""

import asyncio
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from cli.asking import SiteFile, load_site, look, peer_at
from cli.replica import load_machine
from cli.showing import UNKNOWN, Output, check_output, refuse
from ordering.driver import run
from rsm import backup
from rsm.backup import BackupError, Contents
from rsm.config import ReplicaConfig
from rsm.envelope import Language
from rsm.errors import Halted, RsmError
from rsm.executor import Executor
from rsm.logbook import moment
from rsm.methods import Catalogue
from rsm.operations import PointWanted, Progress
from rsm.replaying import replay
from rsm.spool import Spool
from rsm.state_machine import StateMachine
from rsm.storage.errors import StorageError
from rsm.storage.looking import looking
from rsm.survey import Picture
from rsm.transfer import StateWanted

app = typer.Typer(
    help="Back up the state of a group in a file, and found a new group with it.", no_args_is_help=True
)

TRIES: Final = 5
RETRY_SECONDS: Final = 0.5

File = Annotated[Path, typer.Argument(help="The snapshot's file.")]


# -- save ----------------------------------------------------------------------------------------


@app.command()
def save(
    file: File,
    config: SiteFile,
    source: Annotated[str, typer.Option("--from", help="Address of the replica to take it from.")] = "",
    offline: Annotated[
        bool, typer.Option("--offline", help="From this site's data directory; see above.")
    ] = False,
    machine: Annotated[
        str, typer.Option("--machine", "-m", help="package.module:Class, with --offline.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Over a file that is there.")] = False,
) -> None:
    """Save the state of a running group: everything that was answered to
    anybody before this began.

    With --offline it is taken from the data directory of --config, whether
    its replica runs or not. The directory is only read. With --machine its
    log is executed too, to the end: what was in it but was never answered is
    then in the state as well. Without, it is the last snapshot that the
    replica saved itself.

    Exit codes: 0 saved and read again, 1 it cannot be, 2 a wrong call, 4
    nobody gave the state.

      rsm snapshot save monday.rsm -c site-1.toml

      rsm snapshot save rescued.rsm -c site-1.toml --offline -m counter:Counter
    """
    site = load_site(config)
    found = load_machine(machine) if machine else None
    try:
        contents = _of_disk(file, site, found, force) if offline else _of_group(file, site, source, force)
    except (BackupError, StorageError, RsmError) as error:
        refuse(str(error), 1)
    except OSError as error:
        refuse(f"{file}: {error.strerror}", 1)
    typer.echo(
        f"saved: {file}, {contents.length} bytes of {contents.header.machine} at slot {contents.header.slot}"
    )


def _of_group(file: Path, site: ReplicaConfig, source: str, force: bool) -> Contents:
    picture = run(look(site))
    if not picture.has_majority:
        refuse(
            "a majority does not serve, so nobody can tell what the latest state is; start the others, or"
            " save what a site has by --offline",
            1,
        )
    donors = [source] if source else [each.address for each in reversed(picture.present)]
    taken = run(_take(site, picture, donors))
    if taken is None:
        refuse(f"no state came from {', '.join(donors)}; try again, or name another one by --from", UNKNOWN)
    address, chunks = taken
    return backup.save(file, site.group, address, chunks, replace=force)


async def _take(
    site: ReplicaConfig, picture: Picture, donors: list[str]
) -> tuple[str, Iterable[bytes]] | None:
    """A state with everything that was answered before we asked (R11), of the first who gives one."""
    chain = int(picture.chain, 16)
    spool = Spool()  # what came from one donor need not come again from the next
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(RETRY_SECONDS)
        for address in donors:
            peer = peer_at(site, address)
            point = await peer.order(PointWanted(chain))
            if point is None or point.progress is not Progress.DONE:
                continue
            offer = await peer.state(StateWanted(chain, point.ts), spool)
            if offer is not None:
                return address, offer.chunks
    return None


def _of_disk(file: Path, site: ReplicaConfig, machine: type[StateMachine] | None, force: bool) -> Contents:
    if site.data is None:
        refuse('mode: a replica in "memory" mode has no directory; save from the running group')
    with looking(site.data, site.database) as look:
        if machine is not None:
            snapshot = look.chunks() if look.snapshot is not None else None
            executor = replay(machine, snapshot, look.ledger)
            return backup.save(file, site.group, str(site.data), executor.snapshot(), replace=force)
        if look.snapshot is None:
            refuse(
                f"{site.data} has a log and no snapshot yet; name the --machine, and the log is executed",
                1,
            )
        return backup.save(file, site.group, str(site.data), look.chunks(), replace=force)


# -- show ----------------------------------------------------------------------------------------


@app.command()
def show(
    file: File,
    machine: Annotated[str, typer.Option("--machine", "-m", help="Also load it into this class.")] = "",
    output: Output = "table",
) -> None:
    """Tell what is in a snapshot, and check that it is what was saved.

      rsm snapshot show monday.rsm

    The exit code is 1 if the file is damaged, or the machine cannot be
    restored from it.
    """
    check_output(output)
    contents = _verified(file, machine)
    header = contents.header
    told = {
        "group": header.group,
        "machine": header.machine,
        "version": header.version,
        "chain": f"{header.chain:x}",
        "slot": header.slot,
        "time": moment(header.time),
        "digest": f"{header.digest:08x}",
        "sessions": header.sessions,
        "bytes": contents.length,
        "saved from": header.source,
        "saved at": moment(header.saved_at),
        "saved by": f"rsm {header.saved_by}",
        "hash": contents.hash.hex(),
    }
    if output == "json":
        typer.echo(msgspec.json.encode(told).decode())
        return
    for name, value in told.items():
        typer.echo(f"{name:12}{value}")


def _verified(file: Path, machine: str) -> Contents:
    """The file is whole, and the machine, if there is one, comes back from it."""
    found = load_machine(machine) if machine else None
    try:
        contents = backup.verify(file)
        if found is not None:
            catalogue = Catalogue(found)
            Executor(found(), catalogue, Language(catalogue)).restore(backup.pieces(file))
    except (BackupError, Halted) as error:
        refuse(str(error), 1)
    return contents


# -- restore -------------------------------------------------------------------------------------


@app.command()
def restore(
    file: File,
    config: Annotated[
        list[Path], typer.Option("--config", "-c", help="A founder's TOML file; may be repeated.")
    ],
    machine: Annotated[
        str, typer.Option("--machine", "-m", help="Also try to load it into this class.")
    ] = "",
    token: Annotated[str, typer.Option(help="As the first restore of this group has printed it.")] = "",
) -> None:
    """Found a NEW group with the state of a snapshot: write the data
    directory of each founder named.

    Every founder needs it before it is started for the first time, with the
    same file, founders and token. Those on this machine are named here
    together; for the others the command to run there is printed. Until a
    majority of the founders has it, none of them serves. Data directories
    must be empty.

    The group begins behind the slot of the snapshot, in a chain of its own;
    what happened after the snapshot is not in it. Clients keep their
    sessions. Stop the old group first, if it has the same addresses.

    Exit codes: 0 written, 1 it cannot be, 2 a wrong call.

      rsm snapshot restore monday.rsm -c site-1.toml -c site-2.toml -c site-3.toml
    """
    contents = _verified(file, machine)
    sites = [load_site(path) for path in config]
    for path, site in zip(config, sites, strict=True):
        _check(path, site, sites[0])  # all of them before anything is written
    token = token or secrets.token_hex(8)
    group, founders = sites[0].group, sites[0].founders
    founding = backup.plan(contents, group, founders, token)
    for path, site in zip(config, sites, strict=True):
        assert site.data is not None
        try:
            backup.found(file, founding, site.advertise or site.bind, site.data, site.database, group)
        except (BackupError, StorageError) as error:
            refuse(f"{path}: {error}; mend that, and go on with --token {token}", 1)
        typer.echo(f"{path}: {site.data} holds slot {contents.header.slot} of chain {founding.chain:x}")
    named = {site.advertise or site.bind for site in sites}
    missing = [address for address in founders if address not in named]
    if missing:
        typer.echo(f"still to be restored: {', '.join(missing)}; at each of them, with the same file:")
        typer.echo(f"  rsm snapshot restore {file.name} --token {token} -c SITE.toml")


def _check(path: Path, site: ReplicaConfig, first: ReplicaConfig) -> None:
    if site.mode != "durable" or site.data is None:
        refuse(f'{path}: mode: a state is restored into data directories; say "durable", and where data is')
    address = site.advertise or site.bind
    if address not in site.founders:
        refuse(f"{path}: founders: {address} is not among them; only founders are restored, others join")
    if (site.group, site.founders) != (first.group, first.founders):
        refuse(f"{path}: has another group, or other founders in another order, than the first one named")
    try:
        backup.check_empty(site.data, site.database, site.group)
    except StorageError as error:
        refuse(f"{path}: {error}", 1)
