"""What a store gives back is what a ``Ledger`` holds after the same records."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from sqlalchemy import Connection, TextClause
from sqlalchemy import text as sql
from sqlalchemy.exc import IntegrityError

from ordering.config import MS
from ordering.effects import Persist
from ordering.events import SnapshotSaved
from ordering.records import Entries, Ledger, Record, Trimmed
from ordering.simulator.stage import Stage
from rsm.storage import (
    SchemaTooNew,
    StorageError,
    StorageFailed,
    StorageForeign,
    StorageLocked,
    StorageMisuse,
    Store,
    schema,
)
from rsm.storage.database import Database, write_rows
from tests.rsm.storage_kit import (
    BEGAN,
    GROUP,
    block,
    blocks,
    edit,
    histories,
    install,
    ledger_of,
    opened,
    position,
    promise,
    restored,
    written,
)


def check(store: Store, ledger: Ledger) -> None:
    found = store.restore()
    assert found.amnesiac is None
    assert found.notes == ()
    assert vars(found.ledger) == vars(ledger)
    assert list(found.ledger.entries) == list(ledger.entries)


# -- histories -------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(histories())
def test_when_records_are_written_then_a_ledger_with_the_same_comes_back(
    history: list[tuple[Record, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        written_to = Path(name)
        with restored(written_to) as store:
            for records in history:
                store.write(records)
            check(store, ledger_of(history))
        with opened(written_to) as store:
            check(store, ledger_of(history))


@settings(max_examples=10)
@given(histories())
def test_when_the_store_is_opened_again_after_each_write_then_nothing_is_missing(
    history: list[tuple[Record, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        ledger = Ledger()
        for records in history:
            with opened(Path(name)) as store:
                check(store, ledger)
                store.write(records)
                ledger.apply(records)


def test_when_engines_drive_it_then_it_holds_what_the_simulated_disk_holds(tmp_path: Path) -> None:
    stage = Stage.born(3, durable=1, retain_slots=16)
    for number in range(30):
        stage.submit("s1", f"{number}")
        stage.run(50 * MS)
    process = stage.process("s2")
    stage.cluster.handle(process, SnapshotSaved(process.replica.ts))
    stage.cluster.crash("s3")
    stage.run(3000 * MS)
    asked = [e for site, e in stage.journal.effects if site == process.member.site and isinstance(e, Persist)]
    with restored(tmp_path) as store:
        for persist in asked:
            store.write(persist.records)
        check(store, process.disk.ledger)
    kinds = {type(record).__name__ for persist in asked for record in persist.records}
    assert kinds >= {"Began", "Entries", "Installed", "Commitment", "Trimmed", "Heard"}


def test_when_an_install_erases_blocks_of_the_same_transaction_then_they_are_gone(tmp_path: Path) -> None:
    history = (BEGAN,), (blocks(1, 3), install(2, 3), Entries((block(4, b"x", epoch=2),)))
    ledger = written(tmp_path, *history)
    assert list(ledger.entries) == [1, 3, 4]
    with opened(tmp_path) as store:
        check(store, ledger)


def test_when_everything_is_trimmed_then_the_end_stays_and_the_log_goes_on(tmp_path: Path) -> None:
    trimmed = Trimmed(position(1, 6), ())
    history: list[tuple[Record, ...]] = [(BEGAN,), (blocks(1, 3),), (trimmed,), (blocks(7, 1),)]
    with opened(tmp_path) as store:
        store.restore()
        for index, records in enumerate(history):
            store.write(records)
            check(store, ledger_of(history[: index + 1]))


# -- what is refused -------------------------------------------------------------------------------


def test_when_a_block_does_not_follow_then_the_store_stops(tmp_path: Path) -> None:
    with restored(tmp_path) as store:
        store.write((BEGAN, blocks(1, 1)))
        with pytest.raises(StorageFailed, match="the log ends at 2, the next entry begins at 4"):
            store.write((blocks(4, 1),))
        with pytest.raises(StorageFailed, match="nothing more is written"):
            store.write((blocks(3, 1),))
    with opened(tmp_path) as store:
        check(store, ledger_of([(BEGAN, blocks(1, 1))]))


def test_when_a_membership_begins_over_the_blocks_of_another_then_the_store_stops(tmp_path: Path) -> None:
    with restored(tmp_path) as store:
        store.write((BEGAN, blocks(1, 1)))
        with pytest.raises(StorageFailed, match="has blocks of another"):
            store.write((BEGAN,))


def test_when_nothing_was_restored_or_it_is_closed_then_a_write_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(StorageMisuse, match="restore"):
        store.write((BEGAN,))
    with pytest.raises(StorageMisuse, match="closed"):
        store.write((BEGAN,))
    with pytest.raises(StorageMisuse, match="closed"):
        store.restore()
    store.close()


def test_when_the_directory_belongs_to_another_group_then_it_is_refused(tmp_path: Path) -> None:
    written(tmp_path, (BEGAN,))
    with pytest.raises(StorageForeign, match="belongs to group 'g', not to 'h'"):
        Store.open(tmp_path, group="h")
    with opened(tmp_path) as store:
        check(store, ledger_of([(BEGAN,)]))


@pytest.mark.parametrize("url", ["mysql://host/x", "sqlite:///x", "nonsense", "x://y"])
def test_when_the_url_is_of_no_known_database_then_it_says_what_to_use(tmp_path: Path, url: str) -> None:
    with pytest.raises(StorageError, match="use postgresql://"):
        Store.open(tmp_path, url, group=GROUP)


def test_when_the_directory_cannot_be_made_then_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="cannot be used"):
        Store.open(tmp_path / "file" / "below", group=GROUP)


# -- two processes ---------------------------------------------------------------------------------

SECOND = """
import sys
from pathlib import Path
from rsm.storage import StorageLocked, Store
try:
    Store.open(Path(sys.argv[1]), group="g")
except StorageLocked as error:
    print(error)
"""


def test_when_another_process_opens_it_then_it_is_told_who_has_it(tmp_path: Path) -> None:
    with restored(tmp_path) as store:
        command = [sys.executable, "-c", SECOND, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert f"is in use by process {os.getpid()};" in done.stdout
        store.write((BEGAN,))
    with opened(tmp_path) as store:
        check(store, ledger_of([(BEGAN,)]))


def test_when_the_same_process_opens_it_twice_then_it_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StorageLocked):
        Store.open(tmp_path, group=GROUP)


# -- transactions ----------------------------------------------------------------------------------


def _execute(connection: Connection, statement: TextClause, rows: list[dict[str, Any]]) -> None:
    connection.execute(statement, rows)


@pytest.mark.parametrize("write", [write_rows, _execute])
def test_when_a_commit_fails_then_nothing_is_written_and_no_transaction_is_left(
    tmp_path: Path, write: Callable[[Connection, TextClause, list[dict[str, Any]]], None]
) -> None:
    database = Database(tmp_path, None, GROUP)
    database.open()
    owed = sql("INSERT INTO owed VALUES (:id)")  # checked at the end only
    with database.transaction() as connection:
        connection.execute(sql("CREATE TABLE known (id INTEGER PRIMARY KEY)"))
        connection.execute(
            sql("CREATE TABLE owed (id INTEGER REFERENCES known (id) DEFERRABLE INITIALLY DEFERRED)")
        )
    database.connection.exec_driver_sql("PRAGMA foreign_keys=ON")
    database.connection.rollback()
    with pytest.raises((IntegrityError, sqlite3.IntegrityError)), database.transaction() as connection:
        write(connection, owed, [{"id": 7}])
    with database.transaction() as connection:
        assert connection.scalar(sql("SELECT count(*) FROM owed")) == 0
    database.close()


# -- versions --------------------------------------------------------------------------------------


def test_when_the_schema_is_newer_then_it_says_what_to_run(tmp_path: Path) -> None:
    written(tmp_path, (BEGAN,))
    database = Database(tmp_path, None, GROUP)
    database.open()
    with database.transaction() as connection:
        schema.prepare(connection, GROUP, (*schema.MIGRATIONS, lambda _: None))
    database.close()
    with pytest.raises(SchemaTooNew, match="has schema 2, this version of rsm knows 1; run the version"):
        Store.open(tmp_path, group=GROUP)


def test_when_a_migration_fails_then_none_has_happened(tmp_path: Path) -> None:
    def add(connection: Connection) -> None:
        connection.execute(sql("CREATE TABLE rsm_more (x INTEGER)"))

    def fail(connection: Connection) -> None:
        raise ArithmeticError

    written(tmp_path, (BEGAN,))
    database = Database(tmp_path, None, GROUP)
    database.open()
    with pytest.raises(ArithmeticError), database.transaction() as connection:
        schema.prepare(connection, GROUP, (*schema.MIGRATIONS, add, fail))
    with database.transaction() as connection:
        schema.prepare(connection, GROUP, (*schema.MIGRATIONS, add))
        assert connection.scalar(sql("SELECT version FROM rsm_store")) == 2
    database.close()


def test_when_the_tables_are_there_then_no_migration_runs_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = store._identity
    with opened(tmp_path) as store:
        assert store._identity == first


# -- snapshots -------------------------------------------------------------------------------------

DIGEST = b"d" * 16


def snapshot_of(store: Store) -> tuple[int, list[bytes], bytes] | None:
    loaded = store.load_snapshot()
    return None if loaded is None else (loaded[0], list(loaded[1]), loaded[2])


def test_when_a_snapshot_is_saved_then_it_is_there_after_a_restart_and_the_older_is_gone(
    tmp_path: Path,
) -> None:
    with restored(tmp_path) as store:
        assert snapshot_of(store) is None
        store.write((BEGAN, blocks(1, 4)))
        store.save_snapshot(4, [b"old"] * 40, DIGEST)
        store.save_snapshot(6, iter([b"a" * 100_000, b"", b"c"]), DIGEST)
    with opened(tmp_path) as store:
        found = store.restore()
        assert found.snapshot is not None
        assert (found.snapshot.ts, found.snapshot.chunks, found.snapshot.length) == (6, 3, 100_001)
        assert snapshot_of(store) == (6, [b"a" * 100_000, b"", b"c"], DIGEST)
        assert vars(found.ledger) == vars(ledger_of([(BEGAN, blocks(1, 4))]))
    edit(tmp_path, "DELETE FROM rsm_chunks WHERE number = 2")
    with pytest.raises(AssertionError):
        edit(tmp_path, "DELETE FROM rsm_chunks")


def test_when_the_state_is_empty_then_its_snapshot_has_no_chunks(tmp_path: Path) -> None:
    with restored(tmp_path) as store:
        store.save_snapshot(0, [], b"")
    with restored(tmp_path) as store:
        assert snapshot_of(store) == (0, [], b"")


def test_when_saving_ends_half_way_then_the_snapshot_before_is_the_one(tmp_path: Path) -> None:
    with restored(tmp_path) as store:
        store.save_snapshot(4, [b"old"], DIGEST)
        steps = store.saving(6, [b"new"] * 3, DIGEST)
        for _ in range(3):
            next(steps)
        with pytest.raises(StorageMisuse, match="being saved already"):
            store.save_snapshot(7, [], DIGEST)
        store.write((BEGAN, blocks(1, 1)))
    with restored(tmp_path) as store:
        assert snapshot_of(store) == (4, [b"old"], DIGEST)
        store.save_snapshot(8, [b"newer"], DIGEST)
        assert snapshot_of(store) == (8, [b"newer"], DIGEST)
    with restored(tmp_path) as store:
        assert snapshot_of(store) == (8, [b"newer"], DIGEST)


def test_when_the_application_cannot_make_its_chunks_then_the_store_goes_on(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise ArithmeticError

    with restored(tmp_path) as store:
        with pytest.raises(ArithmeticError):
            store.save_snapshot(4, broken(), DIGEST)
        store.write((BEGAN,))
        store.save_snapshot(5, [b"y"], DIGEST)
        assert snapshot_of(store) == (5, [b"y"], DIGEST)


def test_when_an_older_snapshot_comes_then_it_is_refused(tmp_path: Path) -> None:
    with restored(tmp_path) as store:
        store.save_snapshot(6, [b"new"], DIGEST)
        with pytest.raises(StorageMisuse, match="later than one at 5"):
            store.save_snapshot(5, [b"old"], DIGEST)
        assert snapshot_of(store) == (6, [b"new"], DIGEST)


# -- starting anew ---------------------------------------------------------------------------------


def test_when_it_is_wiped_then_a_new_life_can_be_written(tmp_path: Path) -> None:
    with restored(tmp_path) as store:
        store.write((BEGAN, blocks(1, 2), promise(1, 2)))
        store.save_snapshot(2, [b"x"], DIGEST)
        store.wipe()
        assert store.load_snapshot() is None
        check(store, Ledger())
        store.write((BEGAN, blocks(1, 1)))
        check(store, ledger_of([(BEGAN, blocks(1, 1))]))
    with opened(tmp_path) as store:
        check(store, ledger_of([(BEGAN, blocks(1, 1))]))


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("call", ["unlink", "rename", "open", "fsync"])
@pytest.mark.parametrize("lives", range(6))
def test_when_a_wipe_is_cut_short_then_all_is_there_or_the_voter_is_amnesiac(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, lives: int
) -> None:
    ledger = written(tmp_path, (BEGAN, blocks(1, 2)), (promise(1, 2),), (blocks(5, 1),))
    left = lives
    real = getattr(os, call)

    def crashing(*args: object, **kwargs: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        return real(*args, **kwargs)

    with restored(tmp_path) as store:
        store.write((blocks(7, 1),))
        ledger.apply((blocks(7, 1),))
        monkeypatch.setattr(os, call, crashing)
        with suppress(Crash):
            store.wipe()
        monkeypatch.undo()
    assert left < 0 or lives
    with opened(tmp_path) as store:
        found = store.restore()
        if found.amnesiac is None:
            assert vars(found.ledger) in (vars(ledger), vars(Ledger()))
            assert left < 0 or found.ledger.began is None
        else:
            assert vars(found.ledger) == vars(Ledger())
            store.wipe()
            check(store, Ledger())
