"""One connection to SQLite or PostgreSQL, set up so that a commit is on the disk when it returns.

SQLite: a write-ahead log with ``synchronous=FULL``, and the file locked for this connection alone. That keeps
other writers out (SQLite before 3.51.3 may corrupt a database when two connections write and reset its log),
and needs no shared memory. We checkpoint by ourselves: SQLite ignores the errors of an automatic checkpoint.
Its log is filled with zeros up to the length it will have: a sync of a file that grows takes twice as long.

PostgreSQL: ``synchronous_commit=on``, and an advisory lock on the schema for as long as the connection lives.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, TextClause, create_engine, event
from sqlalchemy import text as sql
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from rsm.storage import schema
from rsm.storage.claim import sync_directory
from rsm.storage.errors import StorageError, StorageFailed, StorageForeign, StorageLocked

CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
LOG_BYTES: Final = CHECKPOINT_BYTES + CHECKPOINT_BYTES // 2
# What a transaction writes beside its bodies, roughly: the pages it touches.
TRANSACTION_BYTES: Final = 3 * 4096

_PRAGMAS: Final = (
    "locking_mode=EXCLUSIVE",
    "journal_mode=WAL",
    "synchronous=FULL",
    "wal_autocheckpoint=0",
    "cell_size_check=ON",
    "trusted_schema=OFF",
)
# SQLite's result codes that speak of the machine, not of what is in the file.
_MACHINE: Final = frozenset(
    {sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM}
    | {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL}
    | {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_AUTH}
)
# PostgreSQL's classes of the same kind: connection, resources, intervention, system.
_MACHINE_CLASSES: Final = ("08", "53", "57", "58")
_LOCK_KEY: Final = "hashtextextended('rsm:' || current_schema(), 0)"


def write_rows(connection: Connection, statement: TextClause, rows: list[dict[str, Any]]) -> None:
    """Within a transaction, and on the way of every answer: SQLite is given the statement as it is, in a
    tenth of the time that it takes to be compiled and its result wrapped."""
    raw = connection.connection.driver_connection
    if isinstance(raw, sqlite3.Connection):
        raw.executemany(statement.text, rows)
    else:
        connection.execute(statement, rows)


def speaks_of_corruption(error: Exception) -> bool:
    """Whether a failed *read* tells of rotten contents rather than of a machine in trouble."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _MACHINE
    if isinstance(error, DBAPIError):
        state = getattr(cause, "sqlstate", None)
        return state is not None and not state.startswith(_MACHINE_CLASSES)
    return isinstance(error, UnicodeDecodeError | OverflowError)


class Database:
    """The tables of one site and group. ``path`` is None when they are on a server."""

    def __init__(self, directory: Path, url: str | None, group: str) -> None:
        self.path = directory / "rsm.db" if url is None else None
        self.group = group
        self._url = URL.create("sqlite", database=str(self.path)) if url is None else server_url(url)
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._sqlite: sqlite3.Connection | None = None  # what is under it
        self._unchecked = 0  # bytes written since the last checkpoint, roughly

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise StorageFailed("the database could not be opened; start the process again")
        return self._connection

    # -- opening and closing ---------------------------------------------------------------------

    def open(self) -> schema.Identity:
        """Connect, make or migrate the tables. A file that is no database, or a rotten one, raises what
        ``speaks_of_corruption`` knows, or ``StorageCorrupt``."""
        engine = create_engine(self._url, poolclass=NullPool, hide_parameters=True)
        self._engine = engine
        if self.path is not None:
            event.listen(engine, "connect", _set_up_sqlite)
        self._connection = engine.connect()
        raw = self._connection.connection.driver_connection
        if isinstance(raw, sqlite3.Connection):
            self._sqlite = raw
        else:
            self._set_up_server()
        with self.transaction() as connection:
            identity = schema.prepare(connection, self.group)
        if self.path is not None:
            sync_directory(self.path.parent)
            _lengthen(self.path.with_name(self.path.name + "-wal"))
        return identity

    def _set_up_server(self) -> None:
        connection = self.connection
        with connection.begin():
            # For the session, not for the transaction.
            connection.execute(sql("SET synchronous_commit = on"))
            if connection.scalar(sql("SHOW fsync")) != "on":
                raise StorageForeign(
                    "the server runs with fsync=off, so nothing is sure to be on its disk; set fsync=on"
                )
            if not connection.scalar(sql(f"SELECT pg_try_advisory_lock({_LOCK_KEY})")):
                raise StorageLocked(
                    "another process has this schema of the database; end it, or give each site a schema"
                    " or database of its own"
                )

    def close(self) -> None:
        self._sqlite = None
        connection, self._connection = self._connection, None
        engine, self._engine = self._engine, None
        try:
            if connection is not None:
                connection.close()
        finally:
            if engine is not None:
                engine.dispose()

    def abandon(self) -> None:
        """Close after a failure: nothing that goes wrong now matters."""
        try:
            self.close()
        except (DBAPIError, sqlite3.Error):
            self._connection = self._engine = None

    def erase(self) -> schema.Identity:
        """Delete everything and begin anew. SQLite's files go: a rotten one cannot be emptied otherwise. Its
        log goes first: without its file it would be taken for that of the next one."""
        if self.path is None:
            with self.transaction() as connection:
                for table in reversed(schema.metadata.sorted_tables):
                    connection.execute(sql(f"DROP TABLE IF EXISTS {table.name}"))
                return schema.prepare(connection, self.group)
        self.abandon()
        for suffix in ("-wal", "-shm", "-journal", ""):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            sync_directory(self.path.parent)
        return self.open()

    # -- using -----------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """SQLite's begins and ends at the driver, for it is on the way of every answer: SQLAlchemy takes as
        long for that as SQLite does for the rows. It joins in when it is given something to execute."""
        connection, raw = self.connection, self._sqlite
        if raw is None:
            with connection.begin():
                yield connection
            return
        raw.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            (connection if connection.in_transaction() else raw).commit()
        except BaseException:
            with suppress(DBAPIError, sqlite3.Error):  # what went wrong first is what is told
                (connection if connection.in_transaction() else raw).rollback()
            raise

    def wrote(self, size: int) -> None:
        self._unchecked += size + TRANSACTION_BYTES

    @property
    def checkpoint_is_due(self) -> bool:
        return self.path is not None and self._unchecked >= CHECKPOINT_BYTES

    def checkpoint(self) -> None:
        """Bring SQLite's log into its file, both synced. Also after a crash: a log that was read may be in
        the memory of the machine only, and even a sync that succeeds need not write it again if one
        has failed before. The copy in the file is written anew."""
        self._unchecked = 0
        if self._sqlite is None:
            return
        busy, _, _ = self._sqlite.execute("PRAGMA wal_checkpoint(FULL)").fetchall()[0]
        if busy:
            raise StorageFailed("SQLite could not checkpoint: another connection reads the database; end it")

    def check(self) -> str | None:
        """SQLite's own view of its pages, of those too that no row of ours lies on; None if all is well."""
        if self._sqlite is None:
            return None
        (found,) = self._sqlite.execute("PRAGMA quick_check(1)").fetchall()[0]
        return None if found == "ok" else str(found)


def _lengthen(path: Path) -> None:
    """Zeros behind SQLite's log. It reads frames only as far as their checksums go on, and goes back to the
    beginning after a checkpoint; what is behind is what an earlier round has left, or nothing."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        missing = LOG_BYTES - os.fstat(fd).st_size
        if missing > 0:
            os.write(fd, bytes(missing))
            os.fsync(fd)
    finally:
        os.close(fd)


def server_url(text: str) -> URL:
    try:
        url = make_url(text)
        if url.drivername in {"postgresql", "postgres"}:
            url = url.set(drivername="postgresql+psycopg")
        if url.get_dialect().name != "postgresql":
            raise StorageError(
                f"url: {url.drivername} is not supported; use postgresql://, or no URL for SQLite"
            )
    except (ArgumentError, NoSuchModuleError) as error:
        raise StorageError(
            f"url: {error}; use postgresql://user@host/database, or no URL for SQLite"
        ) from None
    return url


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin where we say so
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").fetchall()
