"""What commands that ask a running group have in common: refusing, and asking everybody who is there."""

import secrets
from collections.abc import Awaitable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from ordering.errors import OrderingError
from ordering.naming import group_id
from rsm import survey
from rsm.config import ReplicaConfig
from rsm.errors import OutcomeUnknown
from rsm.operations import Order, Outcome
from rsm.status import ReplicaStatus
from rsm.survey import Answers, Picture
from rsm.transfer import Peer

T = TypeVar("T")

WRONG, UNKNOWN = 2, 4

messages = Console(stderr=True, highlight=False)

SiteFile = Annotated[Path, typer.Option("--config", "-c", help="Any site's TOML file of the group.")]
Output = Annotated[str, typer.Option("--output", "-o", help="table or json.")]


def refuse(words: str, code: int = WRONG) -> NoReturn:
    messages.print(f"error: {words}", markup=False, style="red", soft_wrap=True)
    raise typer.Exit(code)


def load_site(path: Path) -> ReplicaConfig:
    try:
        site = ReplicaConfig.load(path)
        site.keyring()
    except OrderingError as error:
        refuse(str(error))
    return site


def check_output(output: str) -> None:
    if output not in {"table", "json"}:
        refuse(f"--output: {output!r} must be table or json")


def peer_at(site: ReplicaConfig, address: str) -> Peer:
    return Peer(address, site.keyring(), group_id(site.group), secrets.randbits(128))


async def ask(site: ReplicaConfig, address: str) -> ReplicaStatus | None:
    return await survey.ask(peer_at(site, address))


async def ask_all(site: ReplicaConfig, addresses: Iterable[str]) -> Answers:
    return await survey.ask_all(partial(peer_at, site), addresses)


async def look(site: ReplicaConfig) -> Picture:
    """Everybody who is configured, and everybody whom those name as a member."""
    return await survey.survey(
        partial(peer_at, site), (*site.founders, *site.contacts, site.advertise or site.bind)
    )


async def give(
    site: ReplicaConfig, addresses: list[str], order: Order, timeout: float, patience: float = 0.0
) -> Outcome:
    """Have an order carried out, or end with why it was not."""
    return await ordered(survey.give(order, addresses, partial(peer_at, site), timeout, patience))


async def ordered(order: Awaitable[T]) -> T:
    try:
        return await order
    except survey.OrderRefused as error:
        refuse(str(error), WRONG if error.code == "member_not_found" else 1)
    except OutcomeUnknown as error:
        refuse(str(error), UNKNOWN)
    except OrderingError as error:
        refuse(str(error))


def fitting_table(console: Console, titles: list[str], rows: Iterable[list[str]]) -> Table:
    """As many columns, from the left, as the terminal has room for: a cut address tells nothing."""
    rows = [row + [""] * (len(titles) - len(row)) for row in rows]
    unbounded = console.options.update(max_width=10_000)  # else what is too wide measures as wide as there is
    count = len(titles)
    while True:
        table = Table()
        for title in titles[:count]:
            table.add_column(title, no_wrap=True)
        for row in rows:
            table.add_row(*row[:count])
        if count == 1 or console.measure(table, options=unbounded).maximum <= console.width:
            return table
        count -= 1
