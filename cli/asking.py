"""What commands that ask a running group have in common: whose it is, and asking everybody who is there."""

import secrets
from collections.abc import Awaitable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cli.showing import UNKNOWN, WRONG, refuse
from ordering.errors import OrderingError
from ordering.naming import group_id
from rsm import survey
from rsm.client import ClientConfig
from rsm.config import ReplicaConfig
from rsm.errors import OutcomeUnknown
from rsm.operations import Order, Outcome
from rsm.status import ReplicaStatus
from rsm.survey import Answers, Picture
from rsm.transfer import Peer

T = TypeVar("T")

SiteFile = Annotated[Path, typer.Option("--config", "-c", help="Any site's TOML file of the group.")]


def load_site(path: Path, **given: Any) -> ReplicaConfig:
    """``given``: settings from the command line."""
    try:
        site = ReplicaConfig.load(path, **given)
        site.keyring()
    except OrderingError as error:
        refuse(str(error))
    return site


def client_of(site: ReplicaConfig) -> ClientConfig:
    """How somebody outside calls the group of ``site``."""
    return ClientConfig(
        group=site.group,
        replicas=tuple(dict.fromkeys((*site.founders, *site.contacts))),
        key_file=site.key_file,
        insecure=site.insecure,
        message_bytes_max=site.message_bytes_max,
    )


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
