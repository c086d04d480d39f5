"""Sites with databases beside real replicas, and a gateway to them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from api.app import Gateway
from api.server import Serving
from apps.actions.ledger import ActionLedger
from rsm.client import Client
from rsm.replica import Replica
from tests.api.gateways import client_config, served
from tests.apps.actions.sites import NAMES, Bank, banks
from tests.rsm.test_replica import play


class BankPlace(NamedTuple):
    """A gateway, and the sites behind it."""

    http: httpx2.AsyncClient
    serving: Serving
    gateway: Gateway
    client: Client[ActionLedger]
    bank: Bank

    @property
    def replicas(self) -> list[Replica[Any]]:
        return self.bank.replicas


@asynccontextmanager
async def bank_place(directory: Path, **changes: Any) -> AsyncIterator[BankPlace]:
    async with banks(directory, NAMES) as bank:
        client = Client(ActionLedger, client_config(bank.replicas))
        async with client, served(client, **changes) as (gateway, serving, http):
            yield BankPlace(http, serving, gateway, client, bank)


def ask_bank(test: Callable[[BankPlace], Awaitable[None]], directory: Path, **changes: Any) -> None:
    """Play a test against a bank of its own: sites a, b and c, each with an account of its name, of 100."""

    async def main() -> None:
        async with bank_place(directory, **changes) as place:
            await test(place)

    play(main())


def call(site: str, operation: str, *arguments: Any, **named: Any) -> dict[str, Any]:
    return {"site": site, "operation": operation, "arguments": named or list(arguments)}


def transfer(amount: int, source: str = "a", target: str = "b", **more: Any) -> dict[str, Any]:
    """A request's body."""
    return {
        "operations": [
            call(source, "debit", account=source, amount=amount),
            call(target, "credit", target, amount),
        ],
        **more,
    }
