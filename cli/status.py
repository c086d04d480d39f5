"""`rsm status`: how a group stands, once or again and again."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cli.asking import ask_all, load_site
from cli.over_http import (
    TIMEOUT,
    Access,
    Authority,
    Endpoint,
    Failure,
    Timeout,
    Token,
    access_of,
    asked,
    with_codes,
)
from cli.showing import Output, check_output, fitting_table, messages, refuse
from ordering.driver import run
from rsm.pages import fetch_locally
from rsm.showing import SOCKET_NAME
from rsm.status import ReplicaStatus, Standing

REDRAW_SECONDS: Final = 1.0
Found = dict[str, ReplicaStatus | None]


class Look(NamedTuple):
    """What was found: for a person, for a program, and whether a majority serves."""

    shown: RenderableType
    said: Any
    well: bool


def status(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Any site's TOML file of the group.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Ask one replica on this machine, by its data directory.")
    ] = None,
    endpoint: Endpoint = None,
    token: Token = "",
    ca: Authority = None,
    timeout: Timeout = TIMEOUT,
    output: Output = "table",
    members: Annotated[
        bool, typer.Option("--members", help="Show members as each replica sees them.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw it anew every second.")] = False,
) -> None:
    """Show how a group stands. With -c every founder and contact is asked; with
    --endpoint a gateway, over HTTP; with --data, and without a key, one
    replica.

    The exit code is 0 if a majority of those asked serves in one view
    (--endpoint: if there is a primary view), else 1; 5 if no gateway is there,
    or no replica behind it. --watch goes on until Ctrl-C, and then ends with 0.

      rsm status --watch -c site-1.toml
    """
    check_output(output)
    console = Console(highlight=False)
    look = _way(console, config, data, endpoint, members=members)
    if look is None:
        access = access_of(endpoint, token, ca, timeout)
        look = lambda: _at_gateway(access, console)  # noqa: E731
    if watch:
        _follow(look, console, output)
        return
    found = with_codes(look)
    if output == "json":
        typer.echo(msgspec.json.encode(found.said).decode())
    else:
        console.print(found.shown)
    raise typer.Exit(0 if found.well else 1)


def _way(
    console: Console, config: Path | None, data: Path | None, endpoint: list[str] | None, *, members: bool
) -> Callable[[], Look] | None:
    """How to look without a gateway, if that is what is wanted."""
    if config is not None and data is not None:
        refuse("--config, --data, --endpoint: give one of them")
    if data is not None:
        return lambda: _look_of(_ask_locally(data), console, members=members)
    if config is None:
        if endpoint is None:
            refuse("--config, --data, --endpoint: give one of them")
        return None
    site = load_site(config)
    addresses = dict.fromkeys((*site.founders, *site.contacts))
    return lambda: _look_of(run(ask_all(site, addresses)), console, members=members)


def _follow(look: Callable[[], Look], console: Console, output: str) -> None:
    try:
        if output == "json":
            while True:
                typer.echo(msgspec.json.encode(_or_why(look).said).decode())
                time.sleep(REDRAW_SECONDS)
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                live.update(_or_why(look).shown, refresh=True)
                time.sleep(REDRAW_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _or_why(look: Callable[[], Look]) -> Look:
    """Who watches wants to see it come back."""
    try:
        return look()
    except Failure as failure:
        return Look(Text(failure.words, style="red"), {"error": failure.words}, well=False)


# -- of replicas ---------------------------------------------------------------------------------


def _look_of(found: Found, console: Console, *, members: bool) -> Look:
    serving = [each.view for each in found.values() if each is not None and each.standing == Standing.SERVING]
    best = max((serving.count(view) for view in serving), default=0)
    return Look(_table(found, console, members=members), found, best > len(found) // 2)


def _ask_locally(data: Path) -> Found:
    """By the socket in the data directory: who may open that needs no key."""
    try:
        found = msgspec.json.decode(fetch_locally(data / SOCKET_NAME, "/status"), type=ReplicaStatus)
    except (OSError, msgspec.MsgspecError) as error:
        messages.print(f"{data / SOCKET_NAME}: {error}", markup=False, style="red", soft_wrap=True)
        return {str(data): None}
    return {found.address: found}


def _table(found: Found, console: Console, *, members: bool) -> RenderableType:
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
    shown: list[RenderableType] = [fitting_table(console, titles, rows.values())]
    if not any(found.values()):
        shown.append(Text("nobody answers; `rsm doctor` looks why", style="red"))
    for address, each in found.items():
        if each is not None and each.why:
            shown.append(Text(f"{address}: {each.why}", style="red"))
        if each is not None and each.forks:
            words = f"{address}: in a chain that has gone on without a majority (forks: {each.forks})"
            shown.append(Text(words, style="red"))
        if each is not None and members:
            shown.append(Text("\n".join([f"{address} sees:", *_seen(each)])))
    return Group(*shown)


def _seen(status: ReplicaStatus) -> list[str]:
    lines = []
    for member in status.members:
        role = ("voter" if member.voter else "learner") + ("" if member.in_ring else ", out of the ring")
        lines.append(
            f"  {member.address}  {member.site}  {role}  {member.state}  holds {member.held}"
            f"  lag {member.lag}  can run version {member.version}"
        )
    return lines


# -- of a gateway --------------------------------------------------------------------------------


def _at_gateway(access: Access, console: Console) -> Look:
    said = cluster_of(access)
    return Look(shown_cluster(said, console), said, bool(said["primary"]))


def cluster_of(access: Access) -> dict[str, Any]:
    """The group, as a gateway has found it (`/v1/cluster`)."""
    answer = asked(access, lambda gateways: gateways.ask("GET", "/v1/cluster"))
    return msgspec.json.decode(answer.content, type=dict[str, Any])


def shown_cluster(said: dict[str, Any], console: Console) -> RenderableType:
    members: list[dict[str, Any]] = said["members"]
    serving = sum(each["voter"] and each["state"] == Standing.SERVING for each in members)
    voters = sum(each["voter"] for each in members)
    head = f"group {said['group']}, chain {said['chain']}, view {said['view']}:"
    head += f" {serving} of {voters} voters serve"
    rows = [
        [
            each["address"],
            each["role"],
            each["state"] if each["applied"] is not None else "[red]no answer[/red]",
            "" if each["applied"] is None else str(each["applied"]),
            str(each["lag"]),
            "token" if each["address"] == said["token"]["address"] else "",
            str(each["pid"] or ""),
            each["site"],
        ]
        for each in members
    ]
    titles = ["address", "role", "standing", "slot", "lag", "has", "pid", "site"]
    shown: list[RenderableType] = [Text(head), fitting_table(console, titles, rows)]
    if not said["primary"]:
        shown.append(Text("no majority serves: nothing can be written now", style="red"))
    return Group(*shown)
