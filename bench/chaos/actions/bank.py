"""Accounts at sites, and an entry for each move of money, which shows what was applied, and how often."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    func,
    insert,
    select,
)
from sqlalchemy.pool import NullPool

from apps.actions.operations import Operations
from apps.actions.sql import intents
from apps.bank import accounts, credit, debit
from apps.bank import metadata as bank_metadata

ACCOUNTS: Final = 6  # of a site
BALANCE: Final = 500

moves: Final = Operations()
metadata = MetaData()
# Without a key: an entry that is made twice is there twice.
entries = Table(
    "entries",
    metadata,
    Column("action", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("amount", Integer, nullable=False),
)


@moves.operation(keys=("account",))
def move(connection: Connection, action: str, account: str, amount: int) -> int:
    """Into an account, or out of it; gives what is there then."""
    (credit if amount >= 0 else debit).function(connection, account, abs(amount))
    connection.execute(insert(entries).values(action=action, account=account, amount=amount))
    found: int = connection.execute(select(accounts.c.balance).where(accounts.c.name == account)).scalar_one()
    return found


class Move(msgspec.Struct, frozen=True, array_like=True):
    site: str
    account: str
    amount: int


class Ledgers(msgspec.Struct, kw_only=True):
    """What a site's database has when all is over. ``prepared``: units that nobody has ended."""

    site: str
    balances: dict[str, int]
    entries: dict[tuple[str, str, int], int]  # action, account and amount; how often
    prepared: list[str]


def name_of(number: int) -> str:
    return f"site-{number}"


def account_of(number: int) -> str:
    return f"account-{number}"


@contextmanager
def _engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url, poolclass=NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


def make_bank(url: str) -> None:
    with _engine(url) as engine, engine.begin() as connection:
        bank_metadata.create_all(connection)
        metadata.create_all(connection)
        rows = [{"name": account_of(number), "balance": BALANCE} for number in range(ACCOUNTS)]
        connection.execute(insert(accounts), rows)


def read_bank(site: str, url: str) -> Ledgers:
    """By nobody's leave but the database's."""
    with _engine(url) as engine, engine.connect() as connection:
        rows = connection.execute(select(accounts.c.name, accounts.c.balance))
        balances = {row.name: row.balance for row in rows}
        counted = connection.execute(
            select(entries.c.action, entries.c.account, entries.c.amount, func.count()).group_by(
                entries.c.action, entries.c.account, entries.c.amount
            )
        )
        made = {(action, account, amount): count for action, account, amount, count in counted}
        prepared = list(connection.scalars(select(intents.c.unit)))
        if engine.dialect.name == "postgresql":
            there = connection.exec_driver_sql(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            )
            prepared += [gid for (gid,) in there]
    return Ledgers(site=site, balances=balances, entries=made, prepared=prepared)


def sums(books: Sequence[Ledgers]) -> Counter[tuple[str, str]]:
    """What each account must have, by its entries."""
    found: Counter[tuple[str, str]] = Counter()
    for each in books:
        for number in range(ACCOUNTS):
            found[each.site, account_of(number)] = BALANCE
        for (_, account, amount), count in each.entries.items():
            found[each.site, account] += amount * count
    return found
