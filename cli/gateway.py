"""`rsm gateway`: a group's key-value store or actions over HTTP, from a process that is no member of it."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from api.settings import GatewaySettings
from api.store import App
from apps.actions.ledger import ActionLedger
from apps.kv import KeyValueStore
from cli.asking import client_of, load_site
from cli.showing import refuse, say
from ordering.driver import run
from ordering.errors import OrderingError
from rsm import collecting
from rsm.client import Client, ClientConfig
from rsm.config import told
from rsm.errors import RsmError
from rsm.logs import LogFormat, LogLevel, configure
from rsm.replica import Replica
from rsm.state_machine import StateMachine

MACHINES: Final[dict[App, type[StateMachine]]] = {App.KV: KeyValueStore, App.ACTIONS: ActionLedger}
BIND: Final = "127.0.0.1:8080"
HTTP: Final = "HTTP"

Format = Annotated[
    LogFormat,
    typer.Option(envvar="RSM_LOG_FORMAT", help="For people or machines; auto: does a person look?"),
]
Level = Annotated[
    LogLevel, typer.Option(envvar="RSM_LOG_LEVEL", help="From which level on events are logged.")
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        envvar="RSM_GATEWAY_TOKENS",
        help="File of tokens (rsm token new); none: everybody may do everything.",
        rich_help_panel=HTTP,
    ),
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", help="Certificate chain, PEM.", rich_help_panel=HTTP)
]
PrivateKey = Annotated[
    Path | None, typer.Option("--tls-key", help="Its private key, PEM.", rich_help_panel=HTTP)
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Without tokens beyond loopback, on purpose.", rich_help_panel=HTTP),
]

Recording = Annotated[
    Path | None,
    typer.Option(
        "--recording",
        metavar="DIR",
        file_okay=False,
        help="Record here what happens, for `rsm pipeline`.",
    ),
]


def gateway(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Any site's TOML file of the group.")
    ] = None,
    group: Annotated[str, typer.Option(help="Instead: the group's name,")] = "",
    replicas: Annotated[str, typer.Option(help="some of its replicas, host:port, with commas between,")] = "",
    key_file: Annotated[Path | None, typer.Option(help="and its key.")] = None,
    app: Annotated[
        App, typer.Option(envvar="RSM_GATEWAY_APP", help="What the group runs: keys, or actions.")
    ] = App.KV,
    bind: Annotated[
        str, typer.Option(envvar="RSM_GATEWAY_BIND", help="Where to serve.", rich_help_panel=HTTP)
    ] = BIND,
    tokens: Tokens = None,
    tls_cert: Certificate = None,
    tls_key: PrivateKey = None,
    insecure: Insecure = False,
    recording: Recording = None,
    log_format: Format = LogFormat.AUTO,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Serve the key-value store of a group, or its actions, over HTTP until
    Ctrl-C or SIGTERM; what is under way is finished first. A second signal
    stops it at once.

    A gateway keeps nothing: run as many as you like, wherever the replicas can
    be reached. Prints a line with its URL when it serves, and logs to stderr.
    Further settings come from RSM_GATEWAY_… variables (docs/http.md).

      rsm gateway -c site-1.toml --bind 127.0.0.1:8080
    """
    configure(log_format, log_level)
    where = _group(config, group, replicas, key_file, insecure=insecure)
    settings = settings_of(bind, tokens, tls_cert, tls_key, insecure=insecure, recording=recording)
    if settings.recording is not None:
        told_to = {"recording": settings.recording, "recording_name": f"gateway-{settings.bind}"}
        where = where.model_copy(update=told_to)
    try:
        run(_serve(MACHINES[app], where, settings))
    except (OrderingError, RsmError) as error:
        refuse(str(error), 1)


def settings_of(
    bind: str,
    tokens: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    *,
    insecure: bool,
    recording: Path | None = None,
) -> GatewaySettings:
    """What is not given stands in variables, or has its default."""
    given: dict[str, Any] = {
        "bind": bind,
        "tokens": tokens,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "insecure": insecure,
        "recording": recording,
    }
    try:
        return GatewaySettings(**{name: value for name, value in given.items() if value})
    except ValidationError as error:
        refuse(told(error, GatewaySettings, ""))


def _group(
    config: Path | None, group: str, replicas: str, key_file: Path | None, *, insecure: bool
) -> ClientConfig:
    if (config is None) == (not group or not replicas):
        refuse("--config, or --group and --replicas with --key-file: give one of them")
    if config is not None:
        return client_of(load_site(config))
    addresses = tuple(part.strip() for part in replicas.split(",") if part.strip())
    try:
        return ClientConfig(
            group=group, replicas=addresses, key_file=key_file, insecure=insecure and key_file is None
        )
    except ValidationError as error:
        refuse(told(error, ClientConfig, ""))


class Signals:
    """SIGINT and SIGTERM: the first says that it is ``enough``, the next that it is to end ``at_once``."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.enough: asyncio.Future[None] = loop.create_future()
        self.at_once: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        for each in (self.enough, self.at_once):
            if not each.done():
                each.set_result(None)
                return


@asynccontextmanager
async def over_http(
    group: Client[Any] | Replica[Any], settings: GatewaySettings | None, signals: Signals
) -> AsyncIterator[str]:
    """Serve the group, if that is wanted; the URL. At the end what is under way is finished, unless it is to
    end at once."""
    if settings is None:
        yield ""
        return
    from api.app import create_app  # a replica that serves no HTTP need not have it in memory
    from api.server import Serving

    serving = Serving(create_app(group, settings), settings)
    await serving.start()
    try:
        yield serving.url
    finally:
        stopping = asyncio.ensure_future(serving.stop())
        await asyncio.wait([stopping, signals.at_once], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


async def _serve(machine: type[StateMachine], where: ClientConfig, settings: GatewaySettings) -> None:
    signals = Signals()
    client = Client(machine, where)
    async with client, over_http(client, settings, signals) as url:
        with collecting.serving():
            say(f"ready: {where.group} at {url}")
            await signals.enough
        say("stopping: finishes what is under way; a second signal stops it at once")
    say(f"stopped: {'at once' if signals.at_once.done() else 'what was under way is finished'}")
