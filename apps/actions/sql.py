"""A database that takes part in actions: SQLite or PostgreSQL, by SQLAlchemy.

::

    participant = SqlParticipant("sqlite:////var/lib/bank/accounts.db", bank)
    participant = SqlParticipant("postgresql://bank@10.0.0.7/bank", bank)

Two tables are added to it: ``rsm_intents``, what is prepared, and ``rsm_applied``, the marks of what is done.
Its other users may go on reading and writing.

*SQLite.* A prepared unit is a row with its operations; to prepare it they are carried out and undone again.
To commit it they are carried out once more, in one transaction with the mark. Nothing is locked in between,
so what is promised holds for what goes by actions and keys. The database is set to a write-ahead log, and
every transaction is synced. What comes while another is being synced shares the next transaction. Constraints
that are deferred to the commit are not seen by a preparation.

*PostgreSQL.* Its own two-phase commit: the operations and the mark are in a prepared transaction, which keeps
its locks until it is decided. Its name is too short for a unit's, so a row says which unit it is; that row is
committed without a sync of its own, for the log is written in order, and the preparation syncs it. Attempts
may wait for what is prepared, so they have a connection of their own; and so have commits, which must not
wait for anybody.
"""

import asyncio
import sqlite3
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    create_engine,
    delete,
    event,
    insert,
    or_,
    select,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from apps.actions.errors import NotPrepared, OperationDefect, ParticipantError
from apps.actions.operations import Operations, seen_of, words_of
from apps.actions.participant import Participant, Prepared, Recovered, Unit
from apps.actions.types import Operation
from rsm.logs import logger

log = logger(__name__)
T = TypeVar("T")

LOCK_MS: Final = 2_000
IDLE_MS: Final = 60_000  # a process that is paused within a transaction holds its locks no longer
AGAIN_MAX: Final = 5
FORGOTTEN_AT_ONCE: Final = 100
TOGETHER_MAX: Final = 64  # units in one transaction of SQLite
_AGAIN: Final = ("40001", "40P01")  # somebody has changed it meanwhile, or a deadlock: the next try may do
_NO_SUCH_OBJECT: Final = "42704"
_BUSY: Final = "55000"
BUSY_TRIES: Final = 50
BUSY_SECONDS: Final = 0.02
_UNIT_SHOWN: Final = 60  # of its name, in that of a prepared transaction; PostgreSQL allows 199 bytes in all

metadata = MetaData()

# Chains are numbers of 64 bits without a sign, which are no column's; so they are text.
intents = Table(
    "rsm_intents",
    metadata,
    Column("unit", Text, primary_key=True),
    Column("chain", Text, primary_key=True),
    Column("operations", LargeBinary, nullable=False),
)
applied = Table(
    "rsm_applied",
    metadata,
    Column("unit", Text, primary_key=True),
    Column("chain", Text, primary_key=True),
)


def _of(table: Table, unit: Unit) -> Any:
    return and_(table.c.unit == unit.name, table.c.chain == str(unit.chain))


def _this(table: Table) -> Any:
    return and_(table.c.unit == bindparam("this"), table.c.chain == bindparam("within"))


def _key(unit: Unit) -> dict[str, Any]:
    """For statements with ``_this``."""
    return {"this": unit.name, "within": str(unit.chain)}


def _row(unit: Unit) -> dict[str, Any]:
    return {"unit": unit.name, "chain": str(unit.chain)}


# Each unit needs several of them, and to put one together takes longer than to carry it out.
_KEPT: Final = select(intents.c.operations).where(_this(intents))
_KEEP: Final = insert(intents)
_LET_GO: Final = delete(intents).where(_this(intents))
_APPLIED: Final = select(applied.c.unit).where(_this(applied))
_MARK: Final = insert(applied)


class SqlParticipant(Participant):
    """``url`` is SQLAlchemy's. Who waits for a lock of the database for more than ``lock_ms`` has failed."""

    def __init__(self, url: str, operations: Operations, *, lock_ms: int = LOCK_MS) -> None:
        self.operations = operations
        parsed = _parsed(url)
        kind = _Sqlite if parsed.get_backend_name() == "sqlite" else _Postgres
        self._side: _Side = kind(parsed, operations, lock_ms)

    async def open(self) -> None:
        try:
            await self._side.work.run(self._side.set_up)
        except BaseException as error:
            await self.close()
            if isinstance(error, DBAPIError):
                raise ParticipantError(f"the database cannot be opened: {words_of(error)}") from error
            raise

    async def close(self) -> None:
        for seat in (self._side.tries, self._side.work, self._side.ends):
            await seat.close()

    async def recover(self) -> Recovered:
        return await self._side.work.run(self._side.recover)

    async def attempt(self, operations: Sequence[Operation]) -> list[bytes]:
        return await self._side.tries.run(self._side.attempt, operations)

    async def prepare(self, unit: Unit, operations: Sequence[Operation]) -> None:
        await self._side.prepare(unit, tuple(operations))

    async def commit(self, unit: Unit, operations: Sequence[Operation]) -> None:
        await self._side.commit(unit, operations)

    async def abort(self, unit: Unit) -> None:
        await self._side.abort(unit)

    async def forget(self, units: Sequence[Unit]) -> None:
        await self._side.ends.run(self._side.forget, units)


def _parsed(text: str) -> URL:
    try:
        url = make_url(text)
        if url.drivername in {"postgresql", "postgres"}:
            url = url.set(drivername="postgresql+psycopg")
        if url.get_dialect().name not in {"sqlite", "postgresql"}:
            raise ParticipantError(f"url: {url.drivername} is not supported; use sqlite:/// or postgresql://")
    except (ArgumentError, NoSuchModuleError) as error:
        raise ParticipantError(f"url: {error}; use sqlite:///file.db or postgresql://user@host/db") from None
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise ParticipantError("url: a database in memory keeps nothing it has promised; name a file")
    return url


class _Seat:
    """A connection and the thread that uses it. A connection that breaks is made anew when it is needed."""

    def __init__(self, name: str, url: URL, set_up: Callable[[Any], None]) -> None:
        self._name = name
        self._url = url
        self._set_up = set_up
        self._pool: ThreadPoolExecutor | None = None
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._is_ours = True  # nobody but us may end a transaction

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._work, work, arguments)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.submit(self.drop)
            await asyncio.to_thread(pool.shutdown)

    # -- in the thread ---------------------------------------------------------------------------

    def _work(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        try:
            return work(*arguments)
        finally:
            self._tidy()

    def _tidy(self) -> None:
        """No transaction outlives its work, and no broken connection either."""
        connection = self._connection
        try:
            if connection is not None and connection.invalidated:
                self.drop()
            elif connection is not None:
                connection.rollback()  # what SQLAlchemy thinks has begun
                raw: Any = connection.connection.driver_connection
                raw.rollback()  # what the database knows, and SQLAlchemy does not in this mode
        except (DBAPIError, sqlite3.Error):
            self.drop()

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            # The driver begins no transactions of its own: they begin and end where we say so.
            self._engine = create_engine(
                self._url, poolclass=NullPool, hide_parameters=True, isolation_level="AUTOCOMMIT"
            )
            event.listen(self._engine, "connect", lambda raw, _: self._set_up(raw))
            event.listen(self._engine, "commit", self._check_end)
            event.listen(self._engine, "rollback", self._check_end)
            self._connection = self._engine.connect()
        return self._connection

    def _check_end(self, _: Connection) -> None:
        if not self._is_ours:
            raise OperationDefect("an operation must neither commit nor roll back; the action does")

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        engine, self._engine = self._engine, None
        with suppress(DBAPIError, sqlite3.Error):  # whatever it was: it is not used any more
            if connection is not None:
                connection.close()
            if engine is not None:
                engine.dispose()

    def say(self, statement: str) -> None:
        self.connection.exec_driver_sql(statement)

    @contextmanager
    def transaction(self, begin: str) -> Iterator[Connection]:
        """It is rolled back at the end, unless it was ended by then."""
        try:
            self.say(begin)
            yield self.connection
        finally:
            self._tidy()

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """To operations."""
        self._is_ours = False
        try:
            yield self.connection
        finally:
            self._is_ours = True


class _Side(ABC):
    """What the two databases do alike. All of it but the coroutines runs in the thread of a seat."""

    begin: str

    def __init__(self, operations: Operations, tries: _Seat, work: _Seat, ends: _Seat) -> None:
        self.tries = tries  # attempts
        self.work = work  # preparations, and the rest
        self.ends = ends  # commits and aborts
        self._operations = operations

    @abstractmethod
    def set_up(self) -> None: ...

    @abstractmethod
    def recover(self) -> Recovered: ...

    @abstractmethod
    async def prepare(self, unit: Unit, operations: tuple[Operation, ...]) -> None: ...

    @abstractmethod
    async def commit(self, unit: Unit, operations: Sequence[Operation]) -> None: ...

    @abstractmethod
    async def abort(self, unit: Unit) -> None: ...

    def attempt(self, operations: Sequence[Operation]) -> list[bytes]:
        def once() -> list[bytes]:
            with self.tries.transaction(self.begin):
                return self._carry_out(self.tries, operations)

        return _patiently(once)

    def _carry_out(self, seat: _Seat, operations: Sequence[Operation]) -> list[bytes]:
        with seat.lent() as connection:
            try:
                results = self._operations.carry_out(connection, operations)
            except Exception:
                raise
            except BaseException as error:  # it would end who waits for the thread, and be no vote
                raise OperationDefect(
                    f"an operation has raised {type(error).__name__}; raise an Exception"
                ) from error
        if not _is_within_transaction(connection):
            raise OperationDefect("an operation has ended the transaction; only the action may do that")
        return results

    def forget(self, units: Sequence[Unit]) -> None:
        for at in range(0, len(units), FORGOTTEN_AT_ONCE):
            some = units[at : at + FORGOTTEN_AT_ONCE]
            with self.ends.transaction("BEGIN") as connection:
                connection.execute(delete(applied).where(or_(*(_of(applied, unit) for unit in some))))
                self.ends.say("COMMIT")

    def _kept(self, connection: Connection, unit: Unit) -> tuple[Operation, ...] | None:
        """What a unit's intent says."""
        found = connection.scalar(_KEPT, _key(unit))
        return None if found is None else _decoded(found)

    def _is_applied(self, connection: Connection, unit: Unit) -> bool:
        return connection.execute(_APPLIED, _key(unit)).first() is not None

    def _all_kept(self, connection: Connection) -> list[Prepared]:
        rows = connection.execute(select(intents.c.unit, intents.c.chain, intents.c.operations)).all()
        return [Prepared(Unit(name, int(chain)), _decoded(operations)) for name, chain, operations in rows]

    def _all_applied(self, connection: Connection) -> tuple[Unit, ...]:
        rows = connection.execute(select(applied.c.unit, applied.c.chain)).all()
        return tuple(Unit(name, int(chain)) for name, chain in rows)


def _decoded(operations: bytes) -> tuple[Operation, ...]:
    return msgspec.msgpack.decode(operations, type=tuple[Operation, ...])


def _check_same(unit: Unit, kept: tuple[Operation, ...], operations: tuple[Operation, ...]) -> None:
    """Two sites on one database would take each other's intents for their own."""
    if kept != operations:
        raise ParticipantError(
            f"{unit.name}: is prepared here with other operations; give each site a database, or a schema, of"
            " its own"
        )


def _is_within_transaction(connection: Connection) -> bool:
    raw: Any = connection.connection.driver_connection
    if isinstance(raw, sqlite3.Connection):
        return raw.in_transaction
    return bool(raw.info.transaction_status)


def _state_of(error: BaseException | None) -> str:
    """The SQLSTATE of an error of the database, or of what it has led to."""
    while error is not None:
        if isinstance(error, DBAPIError):
            return getattr(error.orig, "sqlstate", None) or ""
        error = error.__cause__
    return ""


def _patiently(work: Callable[[], T]) -> T:
    """Again, where somebody else has changed the same rows in the meantime."""
    for _ in range(AGAIN_MAX - 1):
        try:
            return work()
        except Exception as error:
            if _state_of(error) not in _AGAIN:
                raise
    return work()


class _Sqlite(_Side):
    begin = "BEGIN IMMEDIATE"

    def __init__(self, url: URL, operations: Operations, lock_ms: int) -> None:
        self._lock_ms = lock_ms
        self._jobs: deque[_Job] = deque()
        seat = _Seat("rsm-actions-sqlite", url, self._connected)
        super().__init__(operations, seat, seat, seat)

    def _connected(self, raw: sqlite3.Connection) -> None:
        raw.execute(f"PRAGMA busy_timeout={self._lock_ms}")
        raw.execute("PRAGMA journal_mode=WAL")
        raw.execute("PRAGMA synchronous=EXTRA")  # FULL, and where there can be no WAL its directory too

    def set_up(self) -> None:
        self._jobs.clear()  # nobody waits for what an earlier life has left
        with self.work.transaction(self.begin) as connection:
            metadata.create_all(connection)
            self.work.say("COMMIT")

    def recover(self) -> Recovered:
        with self.work.transaction("BEGIN") as connection:
            return Recovered(tuple(self._all_kept(connection)), self._all_applied(connection))

    async def prepare(self, unit: Unit, operations: tuple[Operation, ...]) -> None:
        await self._together(lambda connection: self._prepare(connection, unit, operations))

    async def commit(self, unit: Unit, operations: Sequence[Operation]) -> None:
        await self._together(lambda connection: self._commit(connection, unit, operations))

    async def abort(self, unit: Unit) -> None:
        await self._together(lambda connection: connection.execute(_LET_GO, _key(unit)))

    def _prepare(self, connection: Connection, unit: Unit, operations: tuple[Operation, ...]) -> None:
        kept = self._kept(connection, unit)
        if kept is not None:
            _check_same(unit, kept, operations)
            return
        self.work.say("SAVEPOINT rsm_prepare")
        self._carry_out(self.work, operations)
        self.work.say("ROLLBACK TO rsm_prepare")
        connection.execute(_KEEP, _row(unit) | {"operations": msgspec.msgpack.encode(operations)})

    def _commit(self, connection: Connection, unit: Unit, operations: Sequence[Operation]) -> None:
        if self._is_applied(connection, unit):
            return
        if self._kept(connection, unit) is None:
            raise NotPrepared(
                f"{unit.name}: is neither prepared nor applied in this database; is it an older one?"
            )
        # It was decided, so it is done, whatever the results are now.
        decided = [msgspec.structs.replace(each, seen=b"") for each in operations]
        results = self._carry_out(self.work, decided)
        connection.execute(_LET_GO, _key(unit))
        connection.execute(_MARK, _row(unit))
        for operation, result in zip(operations, results, strict=True):
            if operation.seen and operation.seen != seen_of(result):
                log.error(
                    "a committed operation gave another result than the initiator was told; who changes this"
                    " database beside the actions, or without naming a key?",
                    unit=unit.name,
                    operation=operation.name,
                )

    # -- many units in one transaction, which is one sync ----------------------------------------

    async def _together(self, work: Callable[[Connection], object]) -> None:
        """With all others that wait for the thread at the same time. Units that compete never do."""
        job = _Job(work)
        self._jobs.append(job)
        await self.work.run(self._finish, job)

    def _finish(self, job: "_Job") -> None:
        while not job.is_done:  # before it may be those of whom nobody waits any more, and many
            self._do_all([self._jobs.popleft() for _ in range(min(len(self._jobs), TOGETHER_MAX))])
        if job.error is not None:
            raise job.error

    def _do_all(self, jobs: list["_Job"]) -> None:
        try:
            with self.work.transaction(self.begin) as connection:
                for job in jobs:
                    self._do(job, connection)
                self.work.say("COMMIT")
        except Exception as error:  # noqa: BLE001 - nothing is on the disk, and everybody is told
            for job in jobs:
                job.error = job.error or error
        for job in jobs:
            job.is_done = True

    def _do(self, job: "_Job", connection: Connection) -> None:
        self.work.say("SAVEPOINT rsm_unit")
        try:
            job.work(connection)
        except Exception as error:  # noqa: BLE001 - its own; if the transaction is lost, the next line raises
            job.error = error
            self.work.say("ROLLBACK TO rsm_unit")
        self.work.say("RELEASE rsm_unit")


class _Job:
    """What is to be done for a unit, and what became of it."""

    def __init__(self, work: Callable[[Connection], object]) -> None:
        self.work = work
        self.is_done = False
        self.error: Exception | None = None


class _Postgres(_Side):
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"

    def __init__(self, url: URL, operations: Operations, lock_ms: int) -> None:
        self._lock_ms = lock_ms
        self._place = ""  # of database and schema, among all of the server
        names = ("rsm-actions-tries", "rsm-actions-work", "rsm-actions-ends")
        super().__init__(operations, *(_Seat(name, url, self._connected) for name in names))

    def _connected(self, raw: Any) -> None:
        raw.execute(f"SET lock_timeout = {self._lock_ms}")
        raw.execute("SET synchronous_commit = on")
        raw.execute(f"SET idle_in_transaction_session_timeout = {IDLE_MS}")

    def set_up(self) -> None:
        connection = self.work.connection
        if connection.scalar(sql("SHOW max_prepared_transactions")) == "0":
            raise ParticipantError(
                "the server keeps no prepared transactions; set max_prepared_transactions to 64, say, in"
                " postgresql.conf (or: ALTER SYSTEM SET max_prepared_transactions = 64), and start it anew"
            )
        if connection.scalar(sql("SHOW fsync")) != "on":
            raise ParticipantError(
                "the server runs with fsync=off, so nothing is sure to be on its disk; set fsync=on"
            )
        place = connection.scalar(sql("SELECT current_database() || '/' || current_schema()"))
        if place is None:
            raise ParticipantError("there is no schema to work in; name one that exists in search_path")
        self._place = blake2b(place.encode(), digest_size=4).hexdigest()
        with self.work.transaction("BEGIN") as connection:
            metadata.create_all(connection)
            self.work.say("COMMIT")

    def _gid(self, unit: Unit) -> str:
        """It begins with what people can read, as far as it is plain."""
        digest = blake2b(f"{unit.chain} {unit.name}".encode(), digest_size=16).hexdigest()
        plain = "".join(
            each if each.isascii() and (each.isalnum() or each in "-_.:") else "_" for each in unit.name
        )
        return f"rsm:{self._place}:{plain[:_UNIT_SHOWN]}:{digest}"

    def _is_prepared(self, connection: Connection, unit: Unit) -> bool:
        found = sql("SELECT 1 FROM pg_prepared_xacts WHERE gid = :gid AND database = current_database()")
        return connection.execute(found, {"gid": self._gid(unit)}).first() is not None

    def recover(self) -> Recovered:
        found = sql(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE :ours"
        )
        with self.work.transaction("BEGIN") as connection:
            kept = self._all_kept(connection)  # first: what is committed meanwhile is not there any more
            there = set(connection.scalars(found, {"ours": f"rsm:{self._place}:%"}))
            for each in kept:  # a crash came before the preparation, or behind the commit
                if self._gid(each.unit) not in there:
                    self._outwait(self.work, each.unit)
                    connection.execute(_LET_GO, _key(each.unit))
            marks = self._all_applied(connection)
            self.work.say("COMMIT")
        prepared = tuple(each for each in kept if self._gid(each.unit) in there)
        for gid in sorted(there - {self._gid(each.unit) for each in prepared}):
            log.error("a prepared transaction of ours has lost its intent; see ROLLBACK PREPARED", gid=gid)
        return Recovered(prepared, marks)

    async def prepare(self, unit: Unit, operations: tuple[Operation, ...]) -> None:
        await self.work.run(self._prepare, unit, operations)

    async def commit(self, unit: Unit, operations: Sequence[Operation]) -> None:
        await self.ends.run(self._commit, unit)

    async def abort(self, unit: Unit) -> None:
        await self.ends.run(self._undo, self.ends, unit)

    def _prepare(self, unit: Unit, operations: tuple[Operation, ...]) -> None:
        work = self.work
        with work.transaction("BEGIN") as connection:
            if self._is_prepared(connection, unit):
                _check_same(unit, self._kept(connection, unit) or (), operations)
                return
            work.say("SET LOCAL synchronous_commit = off")
            connection.execute(_LET_GO, _key(unit))
            connection.execute(_KEEP, _row(unit) | {"operations": msgspec.msgpack.encode(operations)})
            work.say("COMMIT")
        try:
            _patiently(lambda: self._prepare_once(unit, operations))
        except Exception:
            with suppress(DBAPIError):  # else it is found when we are back
                self._undo(work, unit)  # it may be prepared, and only the answer was lost
            raise

    def _prepare_once(self, unit: Unit, operations: tuple[Operation, ...]) -> None:
        with self.work.transaction(self.begin) as connection:
            self._carry_out(self.work, operations)
            connection.execute(_MARK, _row(unit))
            self.work.say(f"PREPARE TRANSACTION '{self._gid(unit)}'")

    def _commit(self, unit: Unit) -> None:
        if not self._end(self.ends, "COMMIT", unit) and not self._is_applied(self.ends.connection, unit):
            raise NotPrepared(
                f"{unit.name}: is neither prepared nor applied in this database; is it an older one?"
            )
        self._let_go(self.ends, unit)

    def _undo(self, seat: _Seat, unit: Unit) -> None:
        if not self._end(seat, "ROLLBACK", unit):
            with seat.transaction("BEGIN"):
                self._outwait(seat, unit)
        self._let_go(seat, unit)

    def _end(self, seat: _Seat, how: str, unit: Unit) -> bool:
        """Whether it was prepared. An older process may be about the same right now: it is waited for."""
        for tries_left in reversed(range(BUSY_TRIES)):
            try:
                seat.say(f"{how} PREPARED '{self._gid(unit)}'")
            except DBAPIError as error:
                state = _state_of(error)
                if state == _NO_SUCH_OBJECT:
                    return False
                if state != _BUSY or not tries_left:
                    raise
                time.sleep(BUSY_SECONDS)
            else:
                break
        return True

    def _outwait(self, seat: _Seat, unit: Unit) -> None:
        """Where a connection breaks the server may still be about to prepare what came over it. Whoever does
        that has inserted the unit's mark: to insert it too waits for that, and fails if it is prepared."""
        seat.say("SAVEPOINT rsm_outwait")
        seat.connection.execute(postgresql.insert(applied).values(_row(unit)).on_conflict_do_nothing())
        seat.say("ROLLBACK TO rsm_outwait")

    def _let_go(self, seat: _Seat, unit: Unit) -> None:
        with seat.transaction("BEGIN") as connection:
            seat.say("SET LOCAL synchronous_commit = off")
            connection.execute(_LET_GO, _key(unit))
            seat.say("COMMIT")
