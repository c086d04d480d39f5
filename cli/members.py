"""`rsm members`: who is in the group, and how each of them stands."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from cli.asking import load_site, look
from cli.over_http import TIMEOUT, Authority, Endpoint, Timeout, Token, access_of, with_codes
from cli.showing import Output, check_output, fitting_table, refuse
from cli.status import cluster_of, shown_cluster
from ordering.driver import run
from rsm.status import MemberStatus
from rsm.survey import Picture


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the group's view has it, and what it says of itself."""

    address: str
    site: str
    role: str
    boot: str
    standing: str
    view: str
    slot: int | None
    version: int
    can_run: int
    machine: str


def members(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Any site's TOML file of the group.")
    ] = None,
    endpoint: Endpoint = None,
    token: Token = "",
    ca: Authority = None,
    timeout: Timeout = TIMEOUT,
    output: Output = "table",
) -> None:
    """Show the members of a group: the latest view that anybody has, and how
    each says that it stands. With -c all of them are asked, with --endpoint a
    gateway, over HTTP.

    The exit code is 0 if a majority of the voters serves, else 1; 5 if no
    gateway is there, or no replica behind it.

      rsm members -c demo/site-1.toml
    """
    check_output(output)
    if config is None:
        _of_gateway(endpoint, token, ca, timeout, output)
        return
    picture = run(look(load_site(config)))
    shown = [_shown(picture, member) for member in picture.members]
    if output == "json":
        said = {"chain": picture.chain, "view": picture.latest and picture.latest.view, "members": shown}
        typer.echo(msgspec.json.encode(said).decode())
    else:
        _show(picture, shown)
    raise typer.Exit(0 if picture.has_majority else 1)


def _of_gateway(endpoint: list[str] | None, token: str, ca: Path | None, timeout: float, output: str) -> None:
    if endpoint is None:
        refuse("--config, --endpoint: give one of them")
    said = with_codes(lambda: cluster_of(access_of(endpoint, token, ca, timeout)))
    if output == "json":
        typer.echo(msgspec.json.encode({key: said[key] for key in ("chain", "view", "members")}).decode())
    else:
        console = Console(highlight=False)
        console.print(shown_cluster(said, console))
    raise typer.Exit(0 if said["primary"] else 1)


def _shown(picture: Picture, member: MemberStatus) -> Shown:
    said = picture.answer_of(member)
    return Shown(
        address=member.address,
        site=member.site,
        role="learner" if not member.voter else "ring" if member.in_ring else "external",
        boot=member.boot,
        standing="no answer" if said is None else str(said.standing),
        view="" if said is None else said.view,
        slot=None if said is None else said.applied,
        version=0 if said is None else said.version,
        can_run=member.version,
        machine="" if said is None else said.machine,
    )


def _show(picture: Picture, shown: list[Shown]) -> None:
    console = Console(highlight=False)
    if picture.latest is None:
        console.print("nobody answers; is a replica running? rsm doctor looks why", style="red")
        return
    forked = f", gone on without a majority (forks: {picture.latest.forks})" if picture.latest.forks else ""
    console.print(
        f"group {picture.latest.group}, chain {picture.chain}{forked}, view {picture.latest.view}:"
        f" {len(picture.present)} of {len(picture.voters)} voters serve",
        markup=False,
    )
    titles = ["address", "role", "standing", "view", "slot", "machine", "can run", "site", "boot"]
    rows = []
    for each in shown:
        standing = each.standing if each.slot is not None else "[red]no answer[/red]"
        slot = "" if each.slot is None else str(each.slot)
        machine = f"{each.machine} {each.version}" if each.machine else ""
        cells = [each.address, each.role, standing, each.view, slot, machine, str(each.can_run or "")]
        rows.append([*cells, each.site, each.boot[:8]])
    console.print(fitting_table(console, titles, rows))
    strangers = [a for a, said in picture.answers.items() if said is not None and said.chain != picture.chain]
    for address in strangers:
        said = picture.answers[address]
        assert said is not None
        where = f"in chain {said.chain}" if said.chain else said.standing
        console.print(f"{address}: not a member of this chain: {where}", markup=False, style="yellow")
