"""Operations that several tests use, and databases for them."""

from pathlib import Path
from typing import Annotated, Final

import msgspec
from sqlalchemy import Connection, create_engine
from sqlalchemy import text as sql
from sqlalchemy.pool import NullPool

from apps.actions.operations import Operations
from rsm.errors import Rejected

Positive = Annotated[int, msgspec.Meta(gt=0)]

bank: Final = Operations()


def _balance(connection: Connection, account: str) -> int:
    found = connection.scalar(sql("SELECT balance FROM accounts WHERE name = :name"), {"name": account})
    if found is None:
        raise Rejected(f"there is no account {account}")
    return int(found)


def _set(connection: Connection, account: str, balance: int) -> int:
    connection.execute(
        sql("UPDATE accounts SET balance = :balance WHERE name = :name"),
        {"balance": balance, "name": account},
    )
    return balance


@bank.operation(keys=("account",))
def debit(connection: Connection, account: str, amount: Positive) -> int:
    balance = _balance(connection, account)
    if balance < amount:
        raise Rejected("too little is there", {"there": balance})
    return _set(connection, account, balance - amount)


@bank.operation(keys=("account",))
def credit(connection: Connection, account: str, amount: Positive) -> int:
    return _set(connection, account, _balance(connection, account) + amount)


@bank.operation(keys=("account",))
def look(connection: Connection, account: str) -> int:
    return _balance(connection, account)


@bank.operation
def total(connection: Connection) -> int:
    return int(connection.scalar(sql("SELECT SUM(balance) FROM accounts")))


@bank.operation
def spoil(connection: Connection) -> None:
    """A defect: it ends the transaction that is not its own."""
    _set(connection, "alice", 999)
    connection.commit()


@bank.operation
def spoil_in_sql(connection: Connection) -> None:
    connection.execute(sql("COMMIT"))


@bank.operation
def misspell(connection: Connection) -> None:
    connection.execute(sql("SELEKT 1"))


def run(url: str, *statements: str) -> None:
    """Beside the actions."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sql(statement))
    engine.dispose()


def fill(url: str, **accounts: int) -> str:
    """Accounts in a new database."""
    run(
        url,
        "CREATE TABLE accounts (name TEXT PRIMARY KEY, balance BIGINT NOT NULL CHECK (balance < 1000))",
        *(f"INSERT INTO accounts VALUES ('{name}', {balance})" for name, balance in accounts.items()),
    )
    return url


def sqlite(path: Path, **accounts: int) -> str:
    return fill(f"sqlite:///{path}", **accounts)


def balances(url: str) -> dict[str, int]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        rows = connection.execute(sql("SELECT name, balance FROM accounts ORDER BY name")).all()
    engine.dispose()
    return {row.name: row.balance for row in rows}
