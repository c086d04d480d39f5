"""Looking at a log without touching it: of a site that is stopped, or that runs.

A running site has its SQLite file to itself (``database``): another connection is kept out, and one that
got in could end or reset its write-ahead log. So nobody connects: the two files are copied, without a lock,
and the copy is opened. That is sound although both may be written meanwhile. SQLite changes the file only
by copying into it what its log has, and a log keeps what was copied until it begins anew, with another salt
in its header. If the salt is the same before and after, everything that the file lacks, or has too early, is
in the copy of the log, up to its last complete transaction. Then all is verified as in a restart; what does
not fit is copied again, and is damage only if it never fits.

PostgreSQL gives a reader a picture of its own: one transaction, read-only and repeatable.

The claim is compared as well. At a site that runs it may lag behind the log by what was written since.

Look from another process: one that closes a file loses its own locks on it, those of SQLite among them.
"""

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Connection, create_engine
from sqlalchemy import text as sql
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from ordering.records import Ledger
from rsm.storage import restoring, schema, snapshots
from rsm.storage.claim import Claimed, look_at_claim
from rsm.storage.database import server_url, speaks_of_corruption
from rsm.storage.errors import SchemaTooNew, StorageCorrupt, StorageError, StorageFailed, StorageForeign
from rsm.storage.rows import Part, SnapshotInfo, Tip, decode_part, hashed

TRIES: Final = 5
PAUSE_SECONDS: Final = 0.05
_SALT: Final = slice(16, 24)  # of the header of SQLite's log
_COPY_BYTES: Final = 64 * 1024 * 1024


class Look:
    """What a directory had at one moment. ``owner`` is the process that runs there, 0 if none does."""

    def __init__(self, connection: Connection, found: restoring.Found | None, owner: int, group: str) -> None:
        self._connection = connection
        self.ledger = Ledger() if found is None else found.ledger
        self.transactions = 0 if found is None else found.tip.seq
        self.snapshot: SnapshotInfo | None = None if found is None else found.snapshot
        self.note = None if found is None else found.cut
        self.owner = owner
        self.group = group

    def damage(self) -> str | None:
        """SQLite's own view of the pages of the copy; None if all is well, or if there is none."""
        if self._connection.dialect.name != "sqlite":
            return None
        found = self._connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        return None if found == "ok" else str(found)

    def chunks(self) -> Iterator[bytes]:
        """Of the snapshot, verified as they are read, all of them together at the end."""
        info = self.snapshot
        if info is None:
            return
        places = range(info.chunks)
        yield from snapshots.verified(
            info, (snapshots.read_chunk(self._connection, info, place) for place in places)
        )


@contextmanager
def looking(directory: Path, url: str | None = None) -> Iterator[Look]:
    """Look at a directory, and at the database of ``url`` where that is not in it. Raises ``StorageCorrupt``
    if what is there is not what was written, and other ``StorageError``s where one cannot look."""
    if not directory.is_dir():
        raise StorageFailed(
            f"{directory}: there is no such directory; is `data` right, and this its machine?"
        )
    with _connected(directory, url) as connection:
        owner = owner_of(directory)
        yield _look(connection, directory, owner)


@contextmanager
def _connected(directory: Path, url: str | None) -> Iterator[Connection]:
    try:
        if url is not None:
            yield from _on_server(url)
        else:
            with tempfile.TemporaryDirectory(prefix="rsm-look-") as place:
                yield from _on_copy(directory, Path(place))
    except (SQLAlchemyError, sqlite3.Error) as error:
        words = str(getattr(error, "orig", None) or error).strip()
        if speaks_of_corruption(error):
            raise StorageCorrupt(f"the database cannot be read: {words}") from error
        raise StorageFailed(f"the database cannot be read: {words}") from error


def _on_server(url: str) -> Iterator[Connection]:
    engine = create_engine(server_url(url), poolclass=NullPool, hide_parameters=True)
    try:
        with engine.connect() as connection:
            picture = connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            with picture.begin():
                yield picture
    finally:
        engine.dispose()


def _on_copy(directory: Path, place: Path) -> Iterator[Connection]:
    """The first copy that verifies; the last one, whatever it is."""
    for attempt in range(1, TRIES + 1):
        copied = _copy(directory, place)
        engine = create_engine(URL.create("sqlite", database=str(place / "rsm.db")), poolclass=NullPool)
        try:
            with engine.connect() as connection:
                if attempt == TRIES or (copied and _verifies(connection, directory)):
                    yield connection
                    return
        finally:
            engine.dispose()
        time.sleep(PAUSE_SECONDS)


def _verifies(connection: Connection, directory: Path) -> bool:
    try:
        _look(connection, directory, owner_of(directory))
    except (StorageError, SQLAlchemyError, sqlite3.Error):
        return False
    return True


def _copy(directory: Path, place: Path) -> bool:
    """Whether what was copied can be a picture of one moment."""
    for old in place.iterdir():
        old.unlink()
    source = directory / "rsm.db"
    if not source.exists():
        raise StorageFailed(f"{directory} has no rsm.db: nothing was ever written there, or it is elsewhere")
    log = source.with_name("rsm.db-wal")
    try:
        before = _salt(log)
        _copy_file(source, place / source.name)
        with suppress(FileNotFoundError):
            _copy_file(log, place / log.name)
        return before == _salt(log)
    except OSError as error:
        raise StorageFailed(
            f"{directory} cannot be copied: {error}; TMPDIR needs room for its database, and one must be"
            " allowed to read that"
        ) from error


def _salt(log: Path) -> bytes | None:
    try:
        with log.open("rb") as file:
            return file.read(32)[_SALT]
    except FileNotFoundError:
        return None


def _copy_file(source: Path, target: Path) -> None:
    """Within the kernel where that can be; a file system may then share the blocks."""
    with source.open("rb") as old, target.open("wb") as new:
        try:
            while os.copy_file_range(old.fileno(), new.fileno(), _COPY_BYTES):
                pass
        except OSError:
            old.seek(0)
            new.seek(0)
            new.truncate()
            shutil.copyfileobj(old, new, _COPY_BYTES)


def _look(connection: Connection, directory: Path, owner: int) -> Look:
    identity = _identify(connection)
    claimed = look_at_claim(directory / "claim")
    if claimed is not None and owner:
        claimed = _as_of(connection, claimed, identity.identity)
    return Look(connection, restoring.read(connection, claimed, identity.identity), owner, identity.group)


def _identify(connection: Connection) -> schema.Identity:
    identity = schema.read_identity(connection)
    if identity.version > schema.VERSION:
        raise SchemaTooNew(
            f"the database has schema {identity.version}, this version of rsm knows {schema.VERSION};"
            " look with the version that wrote it, or a later one"
        )
    if identity.version < schema.VERSION:
        raise StorageForeign(
            f"the database has schema {identity.version}; start its replica once, it migrates"
        )
    return identity


def _as_of(connection: Connection, claimed: Claimed, identity: bytes) -> Claimed:
    """What the site will have claimed when it has claimed what we have before us. The claim was read after
    the log, so it may also be later than the picture; then nothing can be told from it."""
    if claimed.identity != identity:
        return claimed
    row = connection.execute(
        sql("SELECT body FROM rsm_state WHERE part = :part"), {"part": int(Part.TIP)}
    ).first()
    if row is None:
        return msgspec.structs.replace(claimed, seq=0, torn=False)
    tip = decode_part(Part.TIP, row[0])
    assert isinstance(tip, Tip)
    return Claimed(identity, tip.seq, tip.epoch, tip.end, hashed(row[0]))


def owner_of(directory: Path) -> int:
    """The process that has the directory, 0 if none. Asking must not take the lock, be it for a moment: a
    site that starts just then would be refused."""
    try:
        status = (directory / "lock").stat()
        said = (directory / "lock").read_text().strip()
    except OSError:
        return 0
    pid = int(said) if said.isdigit() else 0
    try:
        held = Path("/proc/locks").read_text()
    except OSError:
        return pid if pid and _is_alive(pid) else 0
    return (pid or -1) if any(map(_names(pid, status), held.splitlines())) else 0


def _names(pid: int, status: os.stat_result) -> Callable[[str], bool]:
    """Whether a line of /proc/locks is of this file. Some file systems show another device there."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"

    def names(line: str) -> bool:
        match line.split():
            case [_, "FLOCK", _, _, holder, file, *_]:
                where, _, number = file.rpartition(":")
                return number == str(status.st_ino) and (where == device or holder == str(pid))
        return False

    return names


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
