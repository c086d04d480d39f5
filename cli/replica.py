"""`rsm init`, `rsm replica`, `rsm status`, `rsm call`: make a group, run it, look at it, call it."""

import asyncio
import importlib
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypeAlias

import msgspec
import typer
from pydantic import ValidationError

from cli.asking import client_of, load_site
from cli.gateway import (
    HTTP,
    MACHINES,
    Certificate,
    Format,
    Insecure,
    Level,
    PrivateKey,
    Recording,
    Signals,
    Tokens,
    over_http,
    settings_of,
)
from cli.showing import UNKNOWN, say
from cli.showing import refuse as _refuse
from ordering.driver import run
from ordering.errors import ConfigurationError, OrderingError
from ordering.transports.addresses import Endpoint, is_loopback, parse_endpoint
from rsm import collecting
from rsm.client import Client
from rsm.config import ReplicaConfig, told
from rsm.errors import CallError, MachineError, NotHeld, OutcomeUnknown, RsmError
from rsm.logbook import plain
from rsm.logs import LogFormat, LogLevel, configure
from rsm.methods import Catalogue
from rsm.proxy import Changes
from rsm.replica import Replica
from rsm.state_machine import StateMachine
from rsm.storage.errors import StorageError

KEY_BYTES = 32
METRICS_APART = 2_000
PORT_MAX = 65_535
NOT_HELD = 3
KEY_VALUE = "apps.kv:KeyValueStore"

Machine = Annotated[
    str, typer.Option("--machine", "-m", help="The class, as package.module:Class; found from here.")
]


def load_machine(name: str) -> type[StateMachine]:
    """The class that ``package.module:Class`` names."""
    try:
        return Catalogue(load_named("--machine", name, "Class")).machine
    except MachineError as error:
        _refuse(f"--machine: {error}")


def load_named(option: str, name: str, what: str) -> Any:
    """What ``package.module:name`` names, with the working directory first in the search path."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        _refuse(f"{option}: {name!r} must be package.module:{what}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        _refuse(f"{option}: {error}; run from the directory that has it, or install it")
    except AttributeError:
        _refuse(f"{option}: module {module} has no {attribute}")


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
    data: Annotated[
        str, typer.Option(help="Directory on each site's machine for its log; none: beside its file.")
    ] = "",
    metrics: Annotated[
        bool, typer.Option(help="Serve metrics on loopback, at the site's own port + 2000.")
    ] = True,
) -> None:
    """Write a configuration for each founder of a new group, and a key that they share.

    Copy site-N.toml and group.key to the machine of site N; the key is what lets a process take part.
    """
    addresses = [address.strip() for address in sites.split(",") if address.strip()]
    try:
        files = write_group(directory, addresses, group, durable=durable, data=data, metrics=metrics)
    except OrderingError as error:
        _refuse(f"--sites: {error}")
    except ValidationError as error:
        _refuse(told(error, ReplicaConfig, ""))
    except FileExistsError as error:
        _refuse(f"{directory}: has {error} already; a group is founded once")
    typer.echo(f"{directory}: {', '.join(files)}")
    typer.echo(
        f"start each with: rsm replica --config {directory}/site-1.toml --machine package.module:Class\n"
        "without --machine it is the key-value store; rsm gateway --config serves that over HTTP"
    )


def write_group(
    directory: Path, addresses: list[str], group: str, *, durable: bool, data: str = "", metrics: bool = True
) -> list[str]:
    """The files of a new group: nothing is written if something is wrong, or there already."""
    files = {"group.key": secrets.token_bytes(KEY_BYTES).hex() + "\n"}
    for number, address in enumerate(addresses, start=1):
        ReplicaConfig(group=group, bind=address, insecure=True).engine(tuple(addresses), ())
        files[f"site-{number}.toml"] = _site(number, addresses, group, durable, data, metrics)
    existing = [name for name in files if (directory / name).exists()]
    if existing:
        raise FileExistsError(", ".join(existing))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "group.key").touch(mode=0o600)
    for name, text in files.items():
        (directory / name).write_text(text)
    return list(files)


def _site(number: int, addresses: list[str], group: str, durable: bool, data: str, metrics: bool) -> str:
    lines = [
        f"group = {_quoted(group)}",
        f"bind = {_quoted(addresses[number - 1])}",
        f"founders = [{', '.join(map(_quoted, addresses))}]",
        'key_file = "group.key"',
        f"mode = {_quoted('durable' if durable else 'memory')}",
    ]
    if durable:
        lines.append(f"data = {_quoted(str(Path(data) / f'site-{number}.data'))}")
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
    machine: Machine = KEY_VALUE,
    http: Annotated[
        str,
        typer.Option(
            help="Serve the key-value store, or actions, over HTTP here, as host:port.", rich_help_panel=HTTP
        ),
    ] = "",
    tokens: Tokens = None,
    tls_cert: Certificate = None,
    tls_key: PrivateKey = None,
    insecure: Insecure = False,
    recording: Recording = None,
    log_format: Format = LogFormat.AUTO,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run one replica of a group until Ctrl-C or SIGTERM; it leaves the ring first. A second signal stops it
    at once.

    Prints a line when it is ready, and logs to stderr. The exit code is 1 if the replica had to halt; the
    last line says why.
    """
    found = load_machine(machine)
    if http and not issubclass(found, tuple(MACHINES.values())):
        _refuse(f"--http: serves the key-value store ({KEY_VALUE}) and actions, and not {machine}")
    facade = settings_of(http, tokens, tls_cert, tls_key, insecure=insecure) if http else None
    configure(log_format, log_level)

    @asynccontextmanager
    async def facing(serving: Replica[Any], signals: Signals) -> AsyncIterator[Beside]:
        async with over_http(serving, facade, signals) as url:
            yield Beside(url)

    run_replica(found, config, facing, recording)


class Beside(NamedTuple):
    """What runs beside a replica: words for the line that says that all is ready, and who ends only if
    something is wrong."""

    words: str = ""
    watched: tuple[Awaitable[None], ...] = ()


# It may begin when the replica is ready, and is left before that leaves the ring.
Besides: TypeAlias = Callable[[Replica[Any], Signals], AbstractAsyncContextManager[Beside]]


def run_replica(
    machine: type[StateMachine], config: Path, beside: Besides, recording: Path | None = None
) -> NoReturn:
    """Until a signal says that it is enough; then the process ends with a code. ``recording``: there, and not
    where the file says."""
    settings = load_site(config) if recording is None else load_site(config, recording=recording)
    try:
        code = run(_serve(machine, settings, beside))
    except ConfigurationError as error:
        _refuse(f"{config}: {error}", 1)
    except (OrderingError, RsmError, StorageError) as error:
        _refuse(str(error), 1)
    raise typer.Exit(code)


async def _serve(machine: type[StateMachine], config: ReplicaConfig, beside: Besides) -> int:
    serving: Replica[Any] = Replica(machine, config)
    signals = Signals()
    signals.at_once.add_done_callback(lambda _: serving.hurry())
    begun = asyncio.ensure_future(serving.start())
    await asyncio.wait([begun, signals.enough], return_when=asyncio.FIRST_COMPLETED)
    if not begun.done():
        begun.cancel()
        await asyncio.sleep(0)
        serving.hurry()  # it is no member yet whom anybody would miss
        await asyncio.gather(begun, return_exceptions=True)
        say("stopped: before it was ready")
        return 0
    await begun
    try:
        ended = await _until_over(serving, beside(serving, signals), signals)
    finally:
        departure = await serving.stop()
    if ended is not None:
        _refuse(f"{config.group}: this replica halted: {ended}", 1)
    say(f"stopped: {departure}")
    return 0


async def _until_over(
    serving: Replica[Any], beside: AbstractAsyncContextManager[Beside], signals: Signals
) -> Exception | None:
    """Why the replica halted, or what is beside it, unless it was told to go."""
    entering: asyncio.Future[Any] = asyncio.ensure_future(beside.__aenter__())
    await asyncio.wait([entering, signals.enough], return_when=asyncio.FIRST_COMPLETED)
    if not entering.done():
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        return None
    words, watched = await entering
    over: list[asyncio.Future[None]] = [asyncio.ensure_future(each) for each in (serving.ended(), *watched)]
    try:
        with collecting.serving():
            typer.echo(
                f"ready: {serving.config.group} at {serving.address}, site {serving.member.site:x},"
                f" slot {serving.executor.applied}{f', {words}' if words else ''}"
            )
            await asyncio.wait([*over, signals.enough], return_when=asyncio.FIRST_COMPLETED)
        for each in over:
            each.cancel()
        if signals.enough.done():
            say("stopping: waits for its calls and leaves the ring; a second signal stops it at once")
    finally:
        await beside.__aexit__(None, None, None)
    found = await asyncio.gather(*over, return_exceptions=True)
    return next((each for each in found if isinstance(each, Exception)), None)


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
    async with Client(machine, client_of(site)) as proxy:
        return await getattr(proxy.with_options(**options), method)(*arguments)


def _argument(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
