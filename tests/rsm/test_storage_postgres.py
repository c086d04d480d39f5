"""The same store on PostgreSQL: lock and claim in the directory, the rest in a schema of the database."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from sqlalchemy import text as sql

from ordering.records import Entries, Ledger, Record
from rsm import backup
from rsm.storage import StorageFailed, StorageForeign, StorageLocked, Store
from rsm.storage.looking import looking
from tests.rsm.backup_kit import FOUNDERS, lived
from tests.rsm.postgres_kit import Server, postgres
from tests.rsm.storage_kit import BEGAN, GROUP, block, blocks, histories, ledger_of, opened, promise

DIGEST = b"d" * 16


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres() as running:
        yield running


@pytest.fixture
def url(server: Server) -> str:
    return server.new_schema()[0]


def check(store: Store, ledger: Ledger) -> None:
    found = store.restore()
    assert found.amnesiac is None
    assert vars(found.ledger) == vars(ledger)


def write(directory: Path, url: str, *transactions: tuple[Record, ...]) -> None:
    with opened(directory, url) as store:
        assert store.restore().amnesiac is None
        for records in transactions:
            store.write(records)


def reason(directory: Path, url: str) -> str:
    with opened(directory, url) as store:
        found = store.restore()
        assert found.amnesiac is not None
        assert vars(found.ledger) == vars(Ledger())
        store.wipe()
        check(store, Ledger())
        store.write((BEGAN,))
    with opened(directory, url) as store:
        check(store, ledger_of([(BEGAN,)]))
    return found.amnesiac


@settings(max_examples=15)
@given(histories())
def test_when_records_are_written_to_postgres_then_a_ledger_with_the_same_comes_back(
    server: Server, history: list[tuple[Record, ...]]
) -> None:
    url, _ = server.new_schema()
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), url, *history)
        with opened(Path(name), url) as store:
            check(store, ledger_of(history))


def test_when_a_snapshot_is_in_postgres_then_it_comes_back(tmp_path: Path, url: str) -> None:
    write(tmp_path, url, (BEGAN, blocks(1, 2)))
    with opened(tmp_path, url) as store:
        store.restore()
        store.save_snapshot(2, [b"old"] * 20, DIGEST)
        store.save_snapshot(4, [b"a" * 100_000, b""], DIGEST)
    with opened(tmp_path, url) as store:
        check(store, ledger_of([(BEGAN, blocks(1, 2))]))
        loaded = store.load_snapshot()
        assert loaded is not None
        assert (loaded[0], list(loaded[1]), loaded[2]) == (4, [b"a" * 100_000, b""], DIGEST)


def test_when_numbers_use_63_bits_then_postgres_keeps_them(tmp_path: Path, url: str) -> None:
    began = msgspec.structs.replace(BEGAN, chain=(1 << 64) - 1, started_at=1 << 62)
    records = (began, blocks((1 << 62) + 1, 1, epoch=1 << 40))
    write(tmp_path, url, records)
    with opened(tmp_path, url) as store:
        check(store, ledger_of([records]))


def test_when_another_site_uses_the_schema_then_it_is_refused(tmp_path: Path, url: str) -> None:
    with opened(tmp_path / "a", url) as store:
        store.restore()
        store.write((BEGAN,))
        with pytest.raises(StorageLocked, match="another process has this schema"):
            Store.open(tmp_path / "b", url, group=GROUP)
    with pytest.raises(StorageForeign, match="has no claim on what is in the database"):
        Store.open(tmp_path / "b", url, group=GROUP)
    with opened(tmp_path / "a", url) as store:
        check(store, ledger_of([(BEGAN,)]))


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM rsm_entries WHERE first_ts = 3",
        "UPDATE rsm_entries SET body = body || '\\x00'::bytea WHERE first_ts = 3",
        "UPDATE rsm_entries SET crc = crc + 1 WHERE first_ts = 1",
        "DELETE FROM rsm_state WHERE part = 5",
        "UPDATE rsm_state SET crc = 0 WHERE part = 1",
        "UPDATE rsm_store SET version = 0",
        "DELETE FROM rsm_store",
        "DROP TABLE rsm_entries",
    ],
    ids=["no block", "body", "checksum", "no part", "tip", "version", "no identity", "no table"],
)
def test_when_rows_in_postgres_are_damaged_then_the_voter_is_amnesiac(
    tmp_path: Path, server: Server, damage: str
) -> None:
    url, name = server.new_schema()
    write(tmp_path, url, (BEGAN,), (blocks(1, 3),), (promise(1, 2),))
    server.run(f"SET search_path = {name}; {damage}")
    assert reason(tmp_path, url)


def test_when_another_directory_meets_damaged_rows_then_it_does_not_take_them_for_its_own(
    tmp_path: Path, server: Server
) -> None:
    url, name = server.new_schema()
    write(tmp_path / "a", url, (BEGAN,))
    server.run(f"SET search_path = {name}; DELETE FROM rsm_store")
    with pytest.raises(StorageForeign, match="has no claim"):
        Store.open(tmp_path / "b", url, group=GROUP)


def test_when_the_schema_was_emptied_then_the_voter_is_amnesiac(tmp_path: Path, server: Server) -> None:
    url, name = server.new_schema()
    write(tmp_path, url, (BEGAN,), (blocks(1, 3),))
    server.run(f"DROP SCHEMA {name} CASCADE; CREATE SCHEMA {name}")
    assert "the database is empty, and transaction 2 was claimed" in reason(tmp_path, url)


def test_when_the_connection_is_lost_then_the_store_stops_and_what_was_answered_is_there(
    tmp_path: Path, server: Server, url: str
) -> None:
    with opened(tmp_path, url) as store:
        store.restore()
        store.write((BEGAN, blocks(1, 1)))
        server.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        with pytest.raises(StorageFailed, match="start the process again"):
            store.write((blocks(3, 1),))
        with pytest.raises(StorageFailed):
            store.write((blocks(3, 1),))
    with opened(tmp_path, url) as store:
        check(store, ledger_of([(BEGAN, blocks(1, 1))]))


def test_when_the_server_is_not_there_then_it_says_so(tmp_path: Path, server: Server) -> None:
    with pytest.raises(StorageFailed, match="start the process again"):
        Store.open(tmp_path, "postgresql://nobody@127.0.0.1:1/none", group=GROUP)


def test_when_it_is_connected_then_a_commit_waits_for_the_disk(tmp_path: Path, url: str) -> None:
    with opened(tmp_path, url) as store, store._database.transaction() as connection:
        assert connection.scalar(sql("SHOW synchronous_commit")) == "on"


def test_when_postgres_is_wiped_and_the_claim_is_not_yet_then_the_voter_is_amnesiac(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def crash(_: bytes) -> None:
        raise Crash

    write(tmp_path, url, (BEGAN, blocks(1, 1)))
    with opened(tmp_path, url) as store:
        store.restore()
        monkeypatch.setattr(store._claim, "create", crash)
        with pytest.raises(Crash):
            store.wipe()
    assert "the database is empty" in reason(tmp_path, url)


def test_when_a_block_is_large_then_postgres_takes_it(tmp_path: Path, url: str) -> None:
    records = (BEGAN, Entries((block(1, bytes(8_000_000), b"x"),)))
    write(tmp_path, url, records)
    with opened(tmp_path, url) as store:
        check(store, ledger_of([records]))


def test_when_the_url_has_no_driver_then_psycopg_is_used(tmp_path: Path, url: str) -> None:
    write(tmp_path, url.replace("postgresql+psycopg://", "postgresql://"), (BEGAN,))
    with opened(tmp_path, url) as store:
        check(store, ledger_of([(BEGAN,)]))


def test_when_a_log_in_postgres_is_looked_at_then_its_owner_goes_on(tmp_path: Path, url: str) -> None:
    with opened(tmp_path, url) as store:
        store.restore()
        store.write((BEGAN, blocks(1, 2)))
        store.save_snapshot(2, [b"state"] * 3, DIGEST)
        with looking(tmp_path, url) as look:
            store.write((blocks(5, 1),))  # the picture stays as it was
            assert vars(look.ledger) == vars(ledger_of([(BEGAN, blocks(1, 2))]))
            assert b"".join(look.chunks()) == b"state" * 3
        with looking(tmp_path, url) as look:
            assert look.ledger.end == 6


def test_when_a_founder_has_postgres_then_a_saved_state_is_restored_into_it(
    tmp_path: Path, server: Server
) -> None:
    file, (url, _) = tmp_path / "file", server.new_schema()
    old, _ = lived()
    backup.save(file, GROUP, "here", old.snapshot())
    founding = backup.plan(backup.verify(file), GROUP, FOUNDERS, "t")
    backup.check_empty(tmp_path / "d", url, GROUP)
    backup.found(file, founding, FOUNDERS[0], tmp_path / "d", url, GROUP)
    with pytest.raises(StorageForeign, match="has a log already"):
        backup.check_empty(tmp_path / "d", url, GROUP)
    with opened(tmp_path / "d", url) as store:
        found = store.restore()
        assert (found.ledger.chain, found.ledger.end) == (founding.chain, old.applied)
        assert found.snapshot is not None
        assert found.snapshot.ts == old.applied
