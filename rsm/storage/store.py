"""The disk of one site: log, small state, the application's snapshot, and the claim (``docs/storage.md``).

``Ledger`` says what records mean, and applies them here as well: the store keeps one without blocks. A store
is synchronous and belongs to one thread at a time; ``Writer`` has one for it.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Connection
from sqlalchemy import text as sql
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ordering.errors import InvariantViolation
from ordering.records import (
    Began,
    Commitment,
    Entries,
    Entry,
    Heard,
    Installed,
    Leapt,
    Ledger,
    Record,
    Transferred,
    Trimmed,
)
from rsm.storage import restoring, snapshots
from rsm.storage.claim import Claimed, ClaimFile, sync_directory
from rsm.storage.database import Database, speaks_of_corruption, write_rows
from rsm.storage.errors import (
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageForeign,
    StorageLocked,
    StorageMisuse,
)
from rsm.storage.log import End, Log, read_some
from rsm.storage.rows import (
    NO_HASH,
    Base,
    Part,
    Place,
    SnapshotInfo,
    Tip,
    Value,
    checksum,
    decode_part,
    digest_of,
    encode_part,
    hashed,
)

_CHANGES: Final[dict[type[Record], tuple[Part, ...]]] = {
    Began: (Part.BEGAN, Part.PLACE, Part.BASE),
    Entries: (),
    Installed: (Part.PLACE, Part.COMMITMENT),
    Commitment: (Part.COMMITMENT,),
    Leapt: (Part.BASE, Part.PLACE, Part.COMMITMENT),
    Trimmed: (Part.BASE,),
    Transferred: (Part.PLACE,),
    Heard: (Part.CLAIMS,),
}
_UPSERT: Final = sql(
    "INSERT INTO rsm_state (part, body, crc) VALUES (:part, :body, :crc)"
    " ON CONFLICT (part) DO UPDATE SET body = excluded.body, crc = excluded.crc"
)
_FRESH: Final = Tip(0, 0, 0, NO_HASH, NO_HASH, digest_of({}), NO_HASH, True)
# What a database, a disk or a record that cannot be written may raise.
_FAILURES: Final = (
    SQLAlchemyError,
    sqlite3.Error,
    OSError,
    InvariantViolation,
    ValueError,
    TypeError,
    OverflowError,
)


class Restored(msgspec.Struct, frozen=True):
    """What came back. ``amnesiac`` says why the voter is gone; then the ledger is empty, and nothing can be
    written before ``wipe``. ``notes`` are for the operator: what was cut, or is bad and not needed."""

    ledger: Ledger
    amnesiac: str | None
    snapshot: SnapshotInfo | None
    notes: tuple[str, ...] = ()


class Store:
    """Made by ``open``; ``restore`` comes before anything else."""

    def __init__(self, directory: Path, database: Database, lock: int) -> None:
        self.directory = directory
        self._database = database
        self._lock = lock
        self._claim = ClaimFile(directory / "claim")
        self._identity = b""
        self._broken: str | None = None  # the database cannot be opened for what is in it
        self._failed: str | None = None
        self._refusal: str | None = "restore() has not been called yet"
        self._ledger = Ledger()  # without blocks
        self._tip = _FRESH
        self._mark = NO_HASH
        self._hashes: dict[Part, bytes] = {}
        self._snapshot: SnapshotInfo | None = None
        self._saving = False

    # -- opening and closing ---------------------------------------------------------------------

    @classmethod
    def open(cls, directory: Path, url: str | None = None, *, group: str) -> "Store":
        """Take the directory for this process. ``url`` names a PostgreSQL database to use instead of SQLite;
        lock and claim are in the directory in either case."""
        database = Database(directory, url, group)
        try:
            _make_directory(directory)
            lock = _take_lock(directory)
        except OSError as error:
            raise StorageFailed(
                f"{directory} cannot be used: {error}; check the path and its rights"
            ) from error
        store = cls(directory, database, lock)
        try:
            store._open()
        except BaseException:
            store.close()
            raise
        return store

    def _open(self) -> None:
        claimed: Claimed | None = None
        virgin = False
        with self._stopping("open"):
            try:
                claimed = self._claim.read()
            except StorageCorrupt as error:
                self._broken = str(error)
            try:
                self._identity = self._database.open().identity
                with self._database.transaction() as connection:
                    virgin = restoring.is_virgin(connection)
            except StorageCorrupt as error:
                self._broken = f"{self._database.path or 'the database'}: {error}"
            except _FAILURES as error:
                if not speaks_of_corruption(error):
                    raise
                self._broken = f"{self._database.path or 'the database'}: {_words(error)}"
            stranger = claimed is None or (self._broken is None and claimed.identity != self._identity)
            if self._database.path is None and stranger and not virgin:
                raise StorageForeign(
                    f"{self.directory} has no claim on what is in the database; give each site a database or"
                    " schema of its own, and empty it by hand if its directory is lost"
                )
            unused = claimed is None or (claimed.seq == 0 and not claimed.torn)
            if self._broken is None and virgin and unused:
                self._claim.create(self._identity)

    def close(self) -> None:
        """Let go of the directory. Everything that was written is synced already."""
        self._refusal = "the store is closed; open it again"
        try:
            self._database.abandon()
            self._claim.close()
        finally:
            lock, self._lock = self._lock, -1
            if lock >= 0:
                os.close(lock)

    # -- restoring -------------------------------------------------------------------------------

    def restore(self) -> Restored:
        """Read and verify everything. What it returns is synced, and claimed: the engine may build on it."""
        self._check_alive()
        with self._stopping("restore"):
            try:
                return self._restore()
            except StorageCorrupt as error:
                reason = str(error)
            except _FAILURES as error:
                if not speaks_of_corruption(error):
                    raise
                reason = f"the database cannot be read: {_words(error)}"
        self._refusal = f"the log is lost ({reason}); wipe() the store and let the site start anew"
        return Restored(Ledger(), reason, None)

    def _restore(self) -> Restored:
        if self._broken is not None:
            raise StorageCorrupt(self._broken)
        wrong = self._database.check()
        if wrong is not None:
            raise StorageCorrupt(f"SQLite finds its file damaged: {wrong}")
        claimed = self._claim.read()
        with self._database.transaction() as connection:
            found = restoring.read(connection, claimed, self._identity)
        if found is None or claimed is None:
            self._begin_anew()
            return Restored(Ledger(), None, None)
        notes: list[str] = []
        bad = self._judge_snapshot(found)
        self._database.checkpoint()
        self._take_up(found)
        if found.cut is not None:
            notes.append(f"{found.cut}; cut, for it was never claimed")
            self._cut(found)
        self._write_claim()  # also one that was read: it may not be on the disk yet
        if bad is not None:
            notes.append(f"{bad}; dropped, for the log goes back to before it")
            self._commit({Part.SNAPSHOT: None})
            self._snapshot = None
        self._refusal = None
        return Restored(found.ledger, None, self._snapshot, tuple(notes))

    def _judge_snapshot(self, found: restoring.Found) -> str | None:
        """What is wrong with the snapshot; raises if the application cannot come back without it."""
        if found.snapshot is None:
            return None
        try:
            for _ in self._chunks(found.snapshot):
                pass
        except StorageCorrupt as error:
            ledger = found.ledger
            founder = ledger.began is not None and ledger.began.founders is not None
            if ledger.base is not None if founder else ledger.transferred:
                raise StorageCorrupt(f"{error}, and the log does not go back to before it") from None
            return str(error)
        return None

    def _take_up(self, found: restoring.Found) -> None:
        self._ledger = found.ledger.copy()
        self._ledger.entries.clear()
        self._tip, self._mark = found.tip, found.mark
        self._hashes = found.hashes
        self._snapshot = found.snapshot

    def _cut(self, found: restoring.Found) -> None:
        """The last transaction as it would have been without the bad block and what came behind it."""
        with self._database.transaction() as connection:
            first = found.end.ts + 1
            connection.execute(sql("DELETE FROM rsm_entries WHERE first_ts >= :ts"), {"ts": first})
            end = found.end
            tip = msgspec.structs.replace(self._tip, epoch=end.epoch, end=end.ts, head=end.head)
            self._put_tip(connection, tip, {})

    def _begin_anew(self) -> None:
        self._ledger = Ledger()
        self._tip, self._mark, self._hashes = _FRESH, NO_HASH, {}
        self._snapshot = None
        self._refusal = None

    # -- writing ---------------------------------------------------------------------------------

    def write(self, records: tuple[Record, ...]) -> None:
        """One transaction; log and claim are synced when it returns. After an error nothing is written any
        more."""
        self._check_ready()
        with self._stopping("write"):
            if self._database.checkpoint_is_due:
                self.tidy()
            self._commit({}, records)

    def tidy(self) -> None:
        """What need not be done before somebody is answered: bring SQLite's log into its file when it is
        long. A write does it first if nobody has."""
        self._check_ready()
        with self._stopping("checkpoint"):
            if self._database.checkpoint_is_due:
                self._database.checkpoint()

    def _commit(self, values: dict[Part, Value], records: tuple[Record, ...] = ()) -> None:
        """First the log, then the claim, each synced: the claim is never ahead of the log, and nobody is told
        anything that is not claimed."""
        tip = self._tip
        with self._database.transaction() as connection:
            log = Log(connection, tip.anchor, End(tip.end, tip.epoch, tip.head))
            changed = self._apply(log, records)
            log.flush()
            parts = {part: self._part(part) for part in sorted(changed)} | values
            bodies = {part: _encode(part, value) for part, value in parts.items()}
            self._hashes.update((part, hashed(body)) for part, body in bodies.items())
            plain = not values and all(isinstance(record, Entries | Heard) for record in records)
            end = log.end
            assert end.ts == self._ledger.end
            following = Tip(
                tip.seq + 1,
                end.epoch,
                end.ts,
                log.anchor,
                end.head,
                digest_of(self._hashes),
                self._mark,
                plain,
            )
            self._put_tip(connection, following, bodies)
        self._database.wrote(log.written + sum(map(len, bodies.values())))
        self._write_claim()

    def _put_tip(self, connection: Connection, tip: Tip, bodies: dict[Part, bytes]) -> None:
        body = encode_part(tip)
        rows = [
            {"part": int(part), "body": blob, "crc": checksum(bytes((part,)), blob)}
            for part, blob in [*bodies.items(), (Part.TIP, body)]
        ]
        write_rows(connection, _UPSERT, rows)
        self._tip, self._mark = tip, hashed(body)

    def _write_claim(self) -> None:
        tip = self._tip
        base = self._ledger.base
        epoch = max(tip.epoch, base.epoch if base is not None else 0)
        self._claim.write(Claimed(self._identity, tip.seq, epoch, tip.end, self._mark))

    def _apply(self, log: Log, records: tuple[Record, ...]) -> set[Part]:
        """Blocks go to the log, the rest into the ledger, which also checks that blocks follow each other."""
        ledger = self._ledger
        changed: set[Part] = set()
        for record in records:
            match record:
                case Began():
                    if not log.is_empty:
                        raise InvariantViolation("a membership begins, and the log has blocks of another")
                case Installed(order):
                    log.cut_from(order.ts)
                    ledger.end = log.end.ts
                case Leapt(position):
                    log.clear(position.ts)
                case Trimmed(position):
                    log.trim(position.ts)
                case _:
                    pass
            ledger.apply((record,))
            ledger.entries.clear()
            match record:
                case Began(started_at=started_at):
                    log.end = msgspec.structs.replace(log.end, ts=started_at)
                case Entries(entries):
                    for entry in entries:
                        log.append(entry)
                case Installed(order):
                    log.append(Entry(order, ()))
                case _:
                    pass
            changed.update(_CHANGES[type(record)])
        return changed

    def _part(self, part: Part) -> Value:
        """As the ledger has it now."""
        ledger = self._ledger
        match part:
            case Part.CLAIMS:
                return Heard(tuple(ledger.claims.items()))
            case Part.BEGAN:
                return ledger.began
            case Part.PLACE:
                return Place(ledger.chain, ledger.descent, ledger.chains, ledger.transferred)
            case Part.BASE:
                return Base(ledger.base, ledger.departed)
            case Part.COMMITMENT:
                return ledger.commitment
            case _:
                raise InvariantViolation(f"no record changes the {part.name.lower()}")

    # -- snapshots -------------------------------------------------------------------------------

    def save_snapshot(self, ts: int, chunks: Iterable[bytes], digest: bytes) -> None:
        """The application's state after slot ``ts``. Complete and synced when it returns."""
        for _ in self.saving(ts, chunks, digest):
            pass

    def saving(self, ts: int, chunks: Iterable[bytes], digest: bytes) -> Iterator[None]:
        """The same in steps: between any two of them the log may be written. An error of ``chunks`` itself is
        the caller's, and only leaves the snapshot out."""
        self._check_ready()
        if self._saving:
            raise StorageMisuse("a snapshot is being saved already; wait for it")
        if self._snapshot is not None and ts < self._snapshot.ts:
            raise StorageMisuse(
                f"the snapshot at slot {self._snapshot.ts} is later than one at {ts}; keep it"
            )
        self._saving = True
        return self._save(ts, chunks, digest)

    def _save(self, ts: int, chunks: Iterable[bytes], digest: bytes) -> Iterator[None]:
        try:
            before = 0 if self._snapshot is None else self._snapshot.number
            number = before + 1
            yield from self._delete_chunks(keep=before)
            seal = snapshots.Seal(ts, digest)
            for chunk in chunks:
                self._check_ready()
                with self._stopping("save a snapshot"), self._database.transaction() as connection:
                    snapshots.insert_chunk(connection, number, seal.chunks, chunk)
                self._database.wrote(len(chunk))
                seal.add(chunk)
                self.tidy()
                yield
            info = SnapshotInfo(number, ts, digest, seal.chunks, seal.length, seal.value())
            self._check_ready()
            with self._stopping("save a snapshot"):
                self._commit({Part.SNAPSHOT: info})
            self._snapshot = info
            yield
            yield from self._delete_chunks(keep=number)
        finally:
            self._saving = False

    def _delete_chunks(self, keep: int) -> Iterator[None]:
        more = True
        while more:
            self._check_ready()
            with self._stopping("delete a snapshot"), self._database.transaction() as connection:
                more = snapshots.delete_some(connection, keep)
            self._database.wrote(0)
            yield

    @property
    def snapshot(self) -> SnapshotInfo | None:
        """The latest one that is complete."""
        return self._snapshot

    def bytes_used(self) -> int:
        """What SQLite has of the disk, its log and free pages as well; 0 with PostgreSQL."""
        path = self._database.path
        if path is None:
            return 0
        files = (path, path.with_name(path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def load_snapshot(self) -> tuple[int, Iterator[bytes], bytes] | None:
        """Slot, chunks and digest of the latest snapshot. The chunks are verified while they are read, all of
        them together at the end: use nothing before the iterator has ended."""
        self._check_ready()
        info = self._snapshot
        return None if info is None else (info.ts, self._chunks(info), info.digest)

    def _chunks(self, info: SnapshotInfo) -> Iterator[bytes]:
        return snapshots.verified(info, (self._chunk(info, place) for place in range(info.chunks)))

    def _chunk(self, info: SnapshotInfo, place: int) -> bytes:
        self._check_alive()
        try:
            with self._database.transaction() as connection:
                return snapshots.read_chunk(connection, info, place)
        except _FAILURES as error:
            if speaks_of_corruption(error):
                raise StorageCorrupt(
                    f"chunk {place} of the snapshot at slot {info.ts}: {_words(error)}"
                ) from error
            raise StorageFailed(f"the snapshot cannot be read: {_words(error)}; mend the disk") from error

    def blocks(self, since: int, blocks_max: int, bytes_max: int) -> list[Entry]:
        """The first blocks of the log that have a slot behind ``since``. An error of a reader stops nothing:
        what is wrong with the disk the log will find out."""
        self._check_ready()
        try:
            with self._database.transaction() as connection:
                return read_some(connection, since, blocks_max, bytes_max)
        except _FAILURES as error:
            raise StorageError(f"the log cannot be read: {_words(error)}") from error

    # -- starting anew ---------------------------------------------------------------------------

    def wipe(self) -> None:
        """Empty everything: the site is a new one. The claim goes last, in one step: whatever a crash leaves
        of the rest is all of it, or is not what was claimed, and an amnesiac's."""
        self._check_alive()
        with self._stopping("wipe"):
            self._identity = self._database.erase().identity
            self._claim.create(self._identity)
            self._broken = None
            self._begin_anew()

    # -- failing ---------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise StorageFailed(self._failed)
        if self._lock < 0:
            raise StorageMisuse("the store is closed; open it again")

    def _check_ready(self) -> None:
        self._check_alive()
        if self._refusal is not None:
            raise StorageMisuse(self._refusal)

    @contextmanager
    def _stopping(self, what: str) -> Iterator[None]:
        """Whatever goes wrong inside ends the store; what the caller can act on is raised as it is."""
        try:
            yield
        except StorageError as error:
            self._failed = self._failed or str(error)
            raise
        except _FAILURES as error:
            self._failed = (
                f"{what} failed in {self.directory}: {_words(error)}; nothing more is written. Mend the disk,"
                " or free space, and start the process again"
            )
            raise StorageFailed(self._failed) from error
        except BaseException as error:
            self._failed = self._failed or f"{what} was interrupted: {error!r}; start the process again"
            raise


def _words(error: Exception) -> str:
    """What the database itself said; around it there would be statements, and the application's data."""
    return str(error.orig if isinstance(error, DBAPIError) else error).strip()


def _encode(part: Part, value: Value) -> bytes:
    """What cannot be read back must not be written: it would be found out when it is needed."""
    body = encode_part(value)
    try:
        readable = decode_part(part, body) == value
    except StorageCorrupt:
        readable = False
    if not readable:
        raise InvariantViolation(f"the {part.name.lower()} cannot be read back from its bytes: {value!r}")
    return body


def _make_directory(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_directory(path.parent)


def _take_lock(directory: Path) -> int:
    path = directory / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise StorageLocked(
            f"{directory} is in use by process {owner}; end it, or give this one a directory of its own"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
