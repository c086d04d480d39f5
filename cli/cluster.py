"""`rsm cluster`: what an operator orders of a group: remove a site for good, go on without a majority."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.asking import SiteFile, ask, give, load_site, look, ordered, peer_at
from cli.over_http import (
    Access,
    Authority,
    Endpoint,
    Token,
    access_of,
    asked,
    path_of,
    with_codes,
)
from cli.showing import UNKNOWN, messages, refuse
from ordering.driver import run
from rsm import survey
from rsm.config import ReplicaConfig
from rsm.operations import ForkWanted, Outcome
from rsm.status import MemberStatus, Standing
from rsm.survey import Picture

app = typer.Typer(
    help="Change a group: remove a site that is gone, or go on without a majority.", no_args_is_help=True
)

RETRY_SECONDS: Final = 0.2

Timeout = Annotated[float, typer.Option(min=1.0, help="Seconds to wait for it to happen.")]


# -- remove --------------------------------------------------------------------------------------


@app.command()
def remove(
    site: Annotated[str, typer.Argument(help="Address or id, as rsm members shows it.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Any site's TOML file of the group.")
    ] = None,
    endpoint: Endpoint = None,
    token: Token = "",
    ca: Authority = None,
    force: Annotated[bool, typer.Option("--force", help="Also one that runs; it comes back as new.")] = False,
    timeout: Timeout = 30.0,
) -> None:
    """Take a site that is gone for good out of the electorate, so that it
    counts in no majority any more.

    To replace a host, start a replica elsewhere, with the others as its
    contacts, and then remove the old one. A new process at the *same* address
    needs no removal: it replaces its predecessor by itself.

    Exit codes: 0 removed, 1 refused, 2 a wrong call, 4 asked for and not
    known to have happened, 5 no gateway is there (--endpoint).

      rsm cluster remove 10.0.0.3:7401 -c site-1.toml
    """
    if config is None:
        if endpoint is None:
            refuse("--config, --endpoint: give one of them")
        with_codes(lambda: _remove_over_http(access_of(endpoint, token, ca, timeout), site, force=force))
        return
    ours = load_site(config)
    member, outcome = run(_remove(ours, site, timeout, force=force))
    typer.echo(f"removed: {member.address}, site {member.site}, before slot {outcome.ts + 1}")


def _remove_over_http(access: Access, named: str, *, force: bool) -> None:
    path = path_of("/v1/cluster/members", named.encode()) + ":remove"
    fields = {"force": "true"} if force else None
    asked(access, lambda gateways: gateways.ask("POST", path, fields=fields, once=None))
    typer.echo(f"removed: {named}")


async def _remove(
    ours: ReplicaConfig, named: str, timeout: float, *, force: bool
) -> tuple[MemberStatus, Outcome]:
    picture = await look(ours)
    return await ordered(survey.remove(picture, named, partial(peer_at, ours), timeout, force=force))


# -- recover -------------------------------------------------------------------------------------


@app.command()
def recover(
    config: SiteFile,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Say that commands may be lost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the group's name.")] = False,
    timeout: Timeout = 60.0,
) -> None:
    """A majority is gone for good: let the survivors go on without it, as a
    new chain.

    Commands that were answered may be lost: those that only the lost sites
    have. Never do it while the others may still run somewhere: there would be
    two groups. Sites of the old chain that come back later join the new one
    and begin anew. If a *majority* of the old chain comes back it is the old
    chain that stays, and what the new one has done is lost: empty the data
    directory of each before it is started.

    Exit codes: 0 the survivors serve, 1 refused, 2 a wrong call, 4 ordered
    and not known to have happened.

      rsm cluster recover --unsafe -c site-1.toml
    """
    ours = load_site(config)
    picture = run(look(ours))
    if picture.latest is None:
        refuse(
            "nobody answers; start a survivor first. If every replica of a durable group is stopped, start"
            " them all: that needs no recovery",
            1,
        )
    survivors = [each for each in picture.voters if picture.answer_of(each) is not None]
    lost = [each for each in picture.voters if each not in survivors]
    if len(survivors) > len(picture.voters) // 2:
        refuse(
            f"{len(survivors)} of {len(picture.voters)} voters answer: that is a majority, and nothing is to"
            " be recovered. If it does not serve, rsm doctor looks why; a site that is gone is removed by rsm"
            " cluster remove",
            1,
        )
    if not survivors:
        refuse("no voter answers; start a survivor first", 1)
    _warn(picture, survivors, lost)
    if not unsafe:
        refuse("this loses commands for good; say --unsafe if that is what you want", 1)
    if (
        not yes
        and typer.prompt("type the group's name to go on", default="", show_default=False) != ours.group
    ):
        refuse("that is not its name; nothing was done", 1)
    order = ForkWanted(int(picture.chain, 16))
    minority_ms = ours.engine((ours.bind,), ()).minority_ms
    able = [each.address for each in survivors if _chain_at(picture, each) == picture.chain]
    outcome = run(give(ours, able, order, timeout, patience=2 * minority_ms / 1000))
    chain = run(_until_served(ours, survivors, picture.chain, timeout))
    behind = f" behind slot {outcome.ts}" if chain == f"{outcome.chain:x}" else ""
    typer.echo(
        f"recovered: chain {chain} goes on{behind} with {', '.join(each.address for each in survivors)}"
    )
    typer.echo("before a lost site is started again, empty its data directory; then it joins as new")


def _chain_at(picture: Picture, member: MemberStatus) -> str:
    said = picture.answer_of(member)
    return "" if said is None else said.chain


def _warn(picture: Picture, survivors: list[MemberStatus], lost: list[MemberStatus]) -> None:
    """What is known, and what will be lost."""
    assert picture.latest is not None
    named = f"group {picture.latest.group}, chain {picture.chain}"
    lines = [f"{named}: {len(lost)} of {len(picture.voters)} voters are silent"]
    for each in survivors:
        said = picture.answer_of(each)
        assert said is not None
        lines.append(
            f"  survives  {each.address}  at slot {said.applied}, heard a majority {said.age_s:.0f} s ago"
        )
    lines += [f"  lost      {each.address}  site {each.site}" for each in lost]
    lines += [
        "Lost for good: every command behind the last slot that a survivor has, answered or not.",
        "If a silent site still runs, cut off from here, there will be two groups: stop it first.",
    ]
    messages.print("\n".join(lines), markup=False, style="yellow", soft_wrap=True)


async def _until_served(ours: ReplicaConfig, survivors: list[MemberStatus], left: str, timeout: float) -> str:
    """All survivors that answer serve in one chain, and not in the one that was ``left``; its id. Survivors
    that did not hear each other begin one each at first, and not each of these remains (R9)."""
    ends = time.monotonic() + timeout
    while time.monotonic() < ends:
        said = [await ask(ours, each.address) for each in survivors]
        there = [each for each in said if each is not None]
        chains = {each.chain if each.standing is Standing.SERVING else left for each in there}
        if len(chains) == 1 and left not in chains:
            return chains.pop()
        await asyncio.sleep(RETRY_SECONDS)
    refuse("the new chain has begun, and not every survivor serves in it yet; see rsm members", UNKNOWN)
