"""Sites of a bank as processes, each with a database of its own."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import create_engine, insert

from apps.actions import ActionLedger, Initiator
from apps.bank import accounts, metadata
from cli.asking import client_of, load_site
from rsm.client import Client
from tests.cli.groups import Group

T = TypeVar("T")


class BankGroup(Group):
    """Site ``site-1`` has the account ``ann-1`` with 100, and so on."""

    def __init__(self, directory: Path, sites: int = 3) -> None:
        super().__init__(directory / "g", sites, durable=False, ring={})
        self.names = {number: f"site-{number}" for number in range(1, sites + 1)}
        for number in self.names:
            engine = create_engine(self.url(number))
            metadata.create_all(engine)
            with engine.begin() as connection:
                connection.execute(insert(accounts).values(name=f"ann-{number}", balance=100))
            engine.dispose()

    def url(self, number: int) -> str:
        return f"sqlite:///{self.directory}/{number}.db"

    def words(self, number: int) -> tuple[object, ...]:
        return (
            *("site", self.names[number], "-c", self.config(number)),
            *("--operations", "apps.bank:bank", "--database", self.url(number)),
        )

    def ask(self, work: Callable[[Initiator], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            client = Client(ActionLedger, client_of(load_site(self.config())))
            async with client, Initiator(client, name="outside") as initiator:
                return await work(initiator)

        return asyncio.run(main())


@contextmanager
def running_bank(directory: Path) -> Iterator[BankGroup]:
    group = BankGroup(directory)
    try:
        group.start(*group.names)
        yield group
    finally:
        group.kill(*list(group.running))
