"""Sites of a bank as processes, each with a SQLite database of its own beside its replica."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import create_engine, insert

from apps.bank import accounts, metadata
from cli.bank_customers import SETTINGS, Settings
from cli.crew import GATEWAY, Crew

BALANCE: Final = 1_000
PEOPLE: Final = ("ann", "bob", "cem", "dee", "eva", "fay", "gil", "hu")
VAULT: Final = "vault"  # an account of each site that no customer has


class BankCrew(Crew):
    """``rate``: transfers a second that customers at each site ask for, while the bank is open to them."""

    def __init__(self, directory: Path, sites: int | None, rate: float, port: int = 0) -> None:
        super().__init__(directory, sites, port, durable=True)
        self.is_open = rate > 0
        self._rate = rate
        for name in self.replicas:
            if not self.database_of(name).exists():
                _found(self.database_of(name))

    @property
    def money(self) -> int:
        """Of all sites together, for ever."""
        return len(self.replicas) * (len(PEOPLE) + 1) * BALANCE

    def database_of(self, name: str) -> Path:
        return self.directory / f"{name}.db"

    def customers(self, seed: int | None = None) -> Settings:
        return Settings(tuple(self.replicas), PEOPLE, self._rate, seed)

    def _named(self, number: int) -> str:
        return f"site-{number}"

    def _words(self, name: str) -> tuple[str, ...]:
        if name == GATEWAY:
            return (*super()._words(name), "--app", "actions")
        words: Sequence[str] = (
            *("site", name, "--config", str(self.config_of(name))),
            *("--operations", "apps.bank:bank", "--database", f"sqlite:///{self.database_of(name)}"),
        )
        return (*words, "--run", "cli.bank_customers:at_a_site") if self.is_open else tuple(words)

    def _more(self, name: str) -> dict[str, str]:
        if name == GATEWAY:
            return super()._more(name)
        return {SETTINGS: msgspec.json.encode(self.customers()).decode()}


def _found(path: Path) -> None:
    """Whole or not at all: what is begun and not ended is begun anew."""
    begun = path.with_suffix(".begun")
    begun.unlink(missing_ok=True)
    engine = create_engine(f"sqlite:///{begun}")
    metadata.create_all(engine)
    with engine.begin() as connection:
        names = (*PEOPLE, VAULT)
        connection.execute(insert(accounts), [{"name": each, "balance": BALANCE} for each in names])
    engine.dispose()
    os.replace(begun, path)


class Snapshot(msgspec.Struct, frozen=True):
    """What one transaction finds in a site's database."""

    balances: dict[str, int]
    applied: frozenset[str]  # units whose marks are kept
    prepared: dict[str, int]  # units, and the chains they were prepared in


def look_into(path: Path) -> Snapshot:
    """Whether or not its site runs."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        balances = dict(connection.execute("SELECT name, balance FROM accounts"))
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if "rsm_intents" not in tables:
            return Snapshot(balances, frozenset(), {})
        applied = frozenset(unit for (unit,) in connection.execute("SELECT unit FROM rsm_applied"))
        prepared = {
            unit: int(chain) for unit, chain in connection.execute("SELECT unit, chain FROM rsm_intents")
        }
        return Snapshot(balances, applied, prepared)
