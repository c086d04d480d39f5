"""`rsm init`, `rsm replica`, `rsm status`, `rsm call`: make a group, run it, look at it, call it."""

import asyncio
import importlib
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from pydantic import ValidationError
from rich.console import Console

from cli.asking import UNKNOWN, Output, ask_all, check_output, fitting_table, load_site, messages
from cli.asking import refuse as _refuse
from ordering.driver import run
from ordering.errors import ConfigurationError, OrderingError
from ordering.transports.addresses import Endpoint, is_loopback, parse_endpoint
from rsm.client import Client, ClientConfig
from rsm.config import ReplicaConfig, told
from rsm.errors import CallError, MachineError, NotHeld, OutcomeUnknown, RsmError
from rsm.logbook import plain
from rsm.logs import LogFormat, LogLevel, configure
from rsm.methods import Catalogue
from rsm.pages import fetch_locally
from rsm.proxy import Changes
from rsm.replica import Replica
from rsm.showing import SOCKET_NAME
from rsm.state_machine import StateMachine
from rsm.status import ReplicaStatus, Standing
from rsm.storage.errors import StorageError

KEY_BYTES = 32
METRICS_APART = 2_000
PORT_MAX = 65_535
NOT_HELD = 3

Machine = Annotated[
    str, typer.Option("--machine", "-m", help="The class, as package.module:Class; found from here.")
]


def load_machine(name: str) -> type[StateMachine]:
    """The class that ``package.module:Class`` names, with the working directory first in the search path."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        _refuse(f"--machine: {name!r} must be package.module:Class")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
        catalogue = Catalogue(found)
    except ModuleNotFoundError as error:
        _refuse(f"--machine: {error}; run from the directory that has it, or install it")
    except AttributeError:
        _refuse(f"--machine: module {module} has no {attribute}")
    except MachineError as error:
        _refuse(f"--machine: {error}")
    return catalogue.machine


# -- init ----------------------------------------------------------------------------------------


def init(
    directory: Annotated[Path, typer.Argument(help="Where the files go; made if it is not there.")],
    sites: Annotated[str, typer.Option(help="Addresses of the founders, host:port, with commas between.")] = (
        "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403"
    ),
    group: Annotated[str, typer.Option(help="The group's name.")] = "demo",
    durable: Annotated[
        bool, typer.Option("--durable/--memory", help="Write a log, or only remember.")
    ] = True,
    metrics: Annotated[
        bool, typer.Option(help="Serve metrics on loopback, at the site's own port + 2000.")
    ] = True,
) -> None:
    """Write a configuration for each founder of a new group, and a key that they share.

    Copy site-N.toml and group.key to the machine of site N; the key is what lets a process take part.
    """
    addresses = [address.strip() for address in sites.split(",") if address.strip()]
    try:
        files = write_group(directory, addresses, group, durable=durable, metrics=metrics)
    except OrderingError as error:
        _refuse(f"--sites: {error}")
    except ValidationError as error:
        _refuse(told(error, ReplicaConfig, ""))
    except FileExistsError as error:
        _refuse(f"{directory}: has {error} already; a group is founded once")
    typer.echo(f"{directory}: {', '.join(files)}")
    typer.echo(
        f"start each with: rsm replica --config {directory}/site-1.toml --machine package.module:Class"
    )


def write_group(
    directory: Path, addresses: list[str], group: str, *, durable: bool, metrics: bool = True
) -> list[str]:
    """The files of a new group: nothing is written if something is wrong, or there already."""
    files = {"group.key": secrets.token_bytes(KEY_BYTES).hex() + "\n"}
    for number, address in enumerate(addresses, start=1):
        ReplicaConfig(group=group, bind=address, insecure=True).engine(tuple(addresses), ())
        files[f"site-{number}.toml"] = _site(number, addresses, group, durable, metrics)
    existing = [name for name in files if (directory / name).exists()]
    if existing:
        raise FileExistsError(", ".join(existing))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "group.key").touch(mode=0o600)
    for name, text in files.items():
        (directory / name).write_text(text)
    return list(files)


def _site(number: int, addresses: list[str], group: str, durable: bool, metrics: bool) -> str:
    lines = [
        f"group = {_quoted(group)}",
        f"bind = {_quoted(addresses[number - 1])}",
        f"founders = [{', '.join(map(_quoted, addresses))}]",
        'key_file = "group.key"',
        f"mode = {_quoted('durable' if durable else 'memory')}",
    ]
    if durable:
        lines.append(f'data = "site-{number}.data"')
    if metrics:
        lines.append(f"metrics = {_quoted(_metrics_of(addresses[number - 1]))}")
    return "\n".join(lines) + "\n"


def _metrics_of(address: str) -> str:
    """A place for metrics that belongs to this site alone, whatever other groups there are on its machine: as
    far from its own port as everybody's, on its own loopback address if it has one."""
    host, port = parse_endpoint(address, "sites")
    apart = METRICS_APART if port + METRICS_APART <= PORT_MAX else -METRICS_APART
    return str(Endpoint(host if is_loopback(host) else "127.0.0.1", port + apart))


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


# -- replica -------------------------------------------------------------------------------------


def replica(
    config: Annotated[Path, typer.Option("--config", "-c", help="The site's TOML file.")],
    machine: Machine,
    log_format: Annotated[
        LogFormat,
        typer.Option(envvar="RSM_LOG_FORMAT", help="For people or machines; auto: does a person look?"),
    ] = LogFormat.AUTO,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="RSM_LOG_LEVEL", help="From which level on events are logged.")
    ] = LogLevel.INFO,
) -> None:
    """Run one replica of a group until Ctrl-C or SIGTERM; it leaves the ring first. A second signal stops it
    at once.

    Prints a line when it is ready, and logs to stderr. The exit code is 1 if the replica had to halt; the
    last line says why.
    """
    found = load_machine(machine)
    configure(log_format, log_level)
    settings = load_site(config)
    try:
        code = run(_serve(found, settings))
    except ConfigurationError as error:
        _refuse(f"{config}: {error}", 1)
    except (OrderingError, RsmError, StorageError) as error:
        _refuse(str(error), 1)
    raise typer.Exit(code)


async def _serve(machine: type[StateMachine], config: ReplicaConfig) -> int:
    serving: Replica[Any] = Replica(machine, config)
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if told.done():
            serving.hurry()
        else:
            told.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    begun = asyncio.ensure_future(serving.start())
    await asyncio.wait([begun, told], return_when=asyncio.FIRST_COMPLETED)
    if not begun.done():
        begun.cancel()
        await asyncio.sleep(0)
        serving.hurry()  # it is no member yet whom anybody would miss
        await asyncio.gather(begun, return_exceptions=True)
        _say("stopped: before it was ready")
        return 0
    await begun
    typer.echo(
        f"ready: {config.group} at {serving.address}, site {serving.member.site:x},"
        f" slot {serving.executor.applied}"
    )
    over = asyncio.ensure_future(serving.ended())
    await asyncio.wait([over, told], return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    ended = (await asyncio.gather(over, return_exceptions=True))[0]
    if told.done():
        _say("stopping: waits for its calls and leaves the ring; a second signal stops it at once")
    departure = await serving.stop()
    if isinstance(ended, Exception):
        _refuse(f"{config.group}: this replica halted: {ended}", 1)
    _say(f"stopped: {departure}")
    return 0


def _say(words: str) -> None:
    """Whoever started this replica may be gone, and nobody reads it any more; that must not keep it here."""
    try:
        typer.echo(words)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer


# -- status --------------------------------------------------------------------------------------


def status(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Any site's TOML file of the group.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Ask one replica on this machine, by its data directory.")
    ] = None,
    output: Output = "table",
    members: Annotated[
        bool, typer.Option("--members", help="Show members as each replica sees them.")
    ] = False,
) -> None:
    """Ask every founder and contact of a group how it stands; or, with --data and without a key, one replica.

    The exit code is 0 if a majority of those asked serves in one view, else 1.
    """
    check_output(output)
    if (config is None) == (data is None):
        _refuse("--config, --data: give one of them")
    found = _ask_locally(data) if data is not None else _ask_group(config)
    if output == "json":
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _show(found, members=members)
    serving = [each.view for each in found.values() if each is not None and each.standing == Standing.SERVING]
    best = max((serving.count(view) for view in serving), default=0)
    raise typer.Exit(0 if best > len(found) // 2 else 1)


def _ask_group(config: Path | None) -> dict[str, ReplicaStatus | None]:
    assert config is not None
    site = load_site(config)
    return run(ask_all(site, dict.fromkeys((*site.founders, *site.contacts))))


def _ask_locally(data: Path) -> dict[str, ReplicaStatus | None]:
    """By the socket in the data directory: who may open that needs no key."""
    try:
        found = msgspec.json.decode(fetch_locally(data / SOCKET_NAME, "/status"), type=ReplicaStatus)
    except (OSError, msgspec.MsgspecError) as error:
        messages.print(f"{data / SOCKET_NAME}: {error}", markup=False, style="red", soft_wrap=True)
        return {str(data): None}
    return {found.address: found}


def _show(found: dict[str, ReplicaStatus | None], *, members: bool) -> None:
    console = Console(highlight=False)
    titles = ["address", "standing", "view", "slot", "digest", "majority heard", "machine", "site"]
    rows = {
        address: [address, "[red]no answer[/red]"]
        if each is None
        else [
            address,
            each.standing,
            each.view,
            str(each.applied),
            each.digest,
            f"{each.age_s:.1f} s ago",
            f"{each.machine} {each.version}" if each.machine else "",
            each.site,
        ]
        for address, each in found.items()
    }
    console.print(fitting_table(console, titles, rows.values()))
    if not any(found.values()):
        console.print("nobody answers; `rsm doctor` looks why", style="red")
    for address, each in found.items():
        if each is not None and each.why:
            console.print(f"{address}: {each.why}", markup=False, style="red")
        if each is not None and each.forks:
            words = f"{address}: in a chain that has gone on without a majority (forks: {each.forks})"
            console.print(words, markup=False, style="red")
        if each is not None and members:
            console.print(f"{address} sees:")
            for member in each.members:
                role = ("voter" if member.voter else "learner") + (
                    "" if member.in_ring else ", out of the ring"
                )
                console.print(
                    f"  {member.address}  {member.site}  {role}  {member.state}  holds {member.held}"
                    f"  lag {member.lag}  can run version {member.version}"
                )


# -- call ----------------------------------------------------------------------------------------


def call(
    method: Annotated[str, typer.Argument(help="A command or query of the machine.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Each as JSON, or as a plain word.")] = None,
    config: Annotated[Path, typer.Option("--config", "-c", help="Any site's TOML file of the group.")] = Path(
        "site-1.toml"
    ),
    machine: Machine = "",
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds.")] = 5.0,
    qos: Annotated[
        str, typer.Option(help="Who is to hold a command before its result is shown: majority, k=N or all.")
    ] = "majority",
) -> None:
    """Call a command or query of a running group, and print the result as JSON.

    Exit codes: 0 done, 1 the machine refused or failed, 2 a wrong call, 3 done, but fewer hold it than --qos
    asks for, 4 the outcome is unknown.

      rsm call add 5 --config demo/site-1.toml --machine counter:Counter
    """
    if not machine:
        _refuse("--machine: name the class whose method is called, as package.module:Class")
    found = load_machine(machine)
    catalogue = Catalogue(found)
    if method not in catalogue.commands and method not in catalogue.queries:
        known = ", ".join([*catalogue.commands, *catalogue.queries])
        _refuse(f"{catalogue.name}.{method}: there is no such command or query; there are: {known}")
    site = load_site(config)
    if not (site.founders or site.contacts):
        _refuse(f"{config}: founders: there are none, and no contacts; nobody can be asked")
    options = Changes(timeout=timeout, qos=qos)
    try:
        result = run(_call(found, site, method, [_argument(text) for text in arguments or []], options))
    except NotHeld as error:
        typer.echo(_encoded(error.value))
        _refuse(str(error), NOT_HELD)
    except CallError as error:
        _refuse(f"{type(error).__name__}: {error}", 1)
    except (OutcomeUnknown, TimeoutError) as error:
        words = str(error) or f"no answer within {timeout} s"
        _refuse(
            f"{words}; does the group serve? `rsm status -c {config}` and `rsm doctor -c {config}` tell",
            UNKNOWN,
        )
    except (OrderingError, RsmError) as error:
        _refuse(str(error))
    typer.echo(_encoded(result))


def _encoded(result: object) -> str:
    """It was executed: whatever it is must not look like a failure."""
    return msgspec.json.encode(plain(result)).decode()


async def _call(
    machine: type[StateMachine], site: ReplicaConfig, method: str, arguments: list[Any], options: Changes
) -> Any:
    config = ClientConfig(
        group=site.group,
        replicas=tuple(dict.fromkeys((*site.founders, *site.contacts))),
        key_file=site.key_file,
        insecure=site.insecure,
        message_bytes_max=site.message_bytes_max,
    )
    async with Client(machine, config) as proxy:
        return await getattr(proxy.with_options(**options), method)(*arguments)


def _argument(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
