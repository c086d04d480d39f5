"""A bank whose accounts are in the databases of several sites: what ``rsm demo bank`` runs.

Each site has accounts of its own. A transfer debits one and credits another, at another site as a rule, in
one action (``docs/actions.md``), so that the money of all sites together is always the same.
"""

from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, func, insert, select, update

from apps.actions.operations import Operations, values_of
from apps.actions.types import Operation
from rsm.errors import Rejected

bank = Operations()
metadata = MetaData()
accounts = Table(
    "accounts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("balance", Integer, nullable=False),
)


@bank.operation(keys=("account",))
def create(connection: Connection, account: str, balance: int) -> None:
    """An account that is not there yet."""
    if _balance(connection, account) is not None:
        raise Rejected(f"there is an account {account}")
    connection.execute(insert(accounts).values(name=account, balance=balance))


@bank.operation(keys=("account",))
def debit(connection: Connection, account: str, amount: int) -> None:
    """Take money out, if it is there."""
    found = _known(connection, account)
    if amount < 0:
        raise Rejected(f"{amount} is no amount")
    if found < amount:
        raise Rejected(f"{account} has {found}, not {amount}")
    _set(connection, account, found - amount)


@bank.operation(keys=("account",))
def credit(connection: Connection, account: str, amount: int) -> None:
    """Put money in."""
    if amount < 0:
        raise Rejected(f"{amount} is no amount")
    _set(connection, account, _known(connection, account) + amount)


@bank.operation(keys=("account",))
def balance(connection: Connection, account: str) -> int:
    """What is there. An action that has asked commits only if it is still so."""
    return _known(connection, account)


def total(connection: Connection) -> int:
    """All money of one site."""
    found: int = connection.execute(select(func.coalesce(func.sum(accounts.c.balance), 0))).scalar_one()
    return found


def effect_of(operation: Operation) -> tuple[str, int]:
    """The account that an operation touches, and by how much it changes it."""
    account, *amount = values_of(operation.arguments)
    match operation.name:
        case "credit" | "create":
            return account, amount[0]
        case "debit":
            return account, -amount[0]
        case _:
            return account, 0


def _balance(connection: Connection, account: str) -> int | None:
    found: int | None = connection.execute(
        select(accounts.c.balance).where(accounts.c.name == account)
    ).scalar_one_or_none()
    return found


def _known(connection: Connection, account: str) -> int:
    found = _balance(connection, account)
    if found is None:
        raise Rejected(f"there is no account {account}")
    return found


def _set(connection: Connection, account: str, amount: int) -> None:
    connection.execute(update(accounts).where(accounts.c.name == account).values(balance=amount))
