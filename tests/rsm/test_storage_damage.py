"""R8: whatever is altered, cut or lost is noticed; nothing is ever given back that was not written."""

import shutil
import sqlite3
from pathlib import Path
from random import Random

import pytest

from ordering.records import Entries, Ledger, Record, Transferred, Trimmed
from rsm.storage import Restored, StorageCorrupt, StorageMisuse, Store
from rsm.storage.claim import SLOT_BYTES
from tests.rsm.storage_kit import (
    BEGAN,
    GROUP,
    JOINED,
    block,
    blocks,
    claimed_in,
    copy_of,
    edit,
    flip,
    install,
    ledger_of,
    opened,
    position,
    promise,
    restored,
    written,
)

DIGEST = b"d" * 16
HISTORY: tuple[tuple[Record, ...], ...] = (
    (BEGAN, promise(0, 1)),
    (install(1, 1), Entries((block(2, b"one", b"two"),))),
    (blocks(5, 4),),
    (promise(1, 3),),
    (blocks(13, 1),),
)


def restore(directory: Path) -> Restored:
    with opened(directory) as store:
        return store.restore()


def reason(directory: Path) -> str:
    """Why the voter of this directory is amnesiac. It can be wiped, and then live again."""
    with opened(directory) as store:
        found = store.restore()
        assert found.amnesiac is not None
        assert vars(found.ledger) == vars(Ledger())
        assert found.snapshot is None
        with pytest.raises(StorageMisuse, match="wipe"):
            store.write((BEGAN,))
        store.wipe()
        store.write((BEGAN,))
    with opened(directory) as store:
        assert vars(store.restore().ledger) == vars(ledger_of([(BEGAN,)]))
    return found.amnesiac


def unclaimed(directory: Path, place: Path, *transactions: tuple[Record, ...]) -> Path:
    """A crash right after the log was synced: the claim is that of the transaction before the last."""
    with restored(directory) as store:
        for records in transactions[:-1]:
            store.write(records)
        claim = (directory / "claim").read_bytes()
        store.write(transactions[-1])
        copy_of(directory, place)
    (place / "claim").write_bytes(claim)
    # Bring its log into its file, so that rows can be edited.
    sqlite3.connect(place / "rsm.db").close()
    return place


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["rsm_entries", "rsm_state", "rsm_store"])
def test_when_any_number_in_a_row_changes_then_the_voter_is_amnesiac(tmp_path: Path, table: str) -> None:
    written(tmp_path / "whole", *HISTORY)
    with sqlite3.connect(tmp_path / "whole" / "rsm.db") as connection:
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        kinds = connection.execute(
            f"SELECT {', '.join(f'typeof({n})' for n in names)} FROM {table}"
        ).fetchone()
    connection.close()
    for name, kind in zip(names, kinds, strict=True):
        if name == "id":
            continue  # the one row's number says nothing
        place = copy_of(tmp_path / "whole", tmp_path / name)
        last = f"SELECT max({names[0]}) FROM {table}"
        if kind == "integer":
            edit(place, f"UPDATE {table} SET {name} = {name} + 64 WHERE {names[0]} = ({last})")
        else:
            changed = f"CAST(substr({name}, 1, length({name}) - 1) || x'7f' AS BLOB)"
            edit(place, f"UPDATE {table} SET {name} = {changed} WHERE {names[0]} = ({last})")
        assert reason(place)


@pytest.mark.parametrize("column", ["body", "crc", "chain", "last_ts", "epoch"])
@pytest.mark.parametrize("value", [7, "text", -1, 1.5, b"", b"\x01" * 16])
def test_when_a_column_has_another_type_or_value_then_the_voter_is_amnesiac(
    tmp_path: Path, column: str, value: object
) -> None:
    written(tmp_path, *HISTORY)
    edit(tmp_path, f"UPDATE rsm_entries SET {column} = ? WHERE first_ts = 7", value)
    assert "slot 7" in reason(tmp_path)


def test_when_a_row_below_the_claim_is_bad_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    written(tmp_path, *HISTORY)
    edit(tmp_path, "UPDATE rsm_entries SET crc = crc + 1 WHERE first_ts = 9")
    found = reason(tmp_path)
    assert "the block at slot 9 has a wrong checksum" in found
    assert "epoch 1 up to slot 14 was claimed" in found


@pytest.mark.parametrize("first_ts", [1, 2, 5, 7, 11, 13])
def test_when_a_row_is_missing_then_the_voter_is_amnesiac(tmp_path: Path, first_ts: int) -> None:
    written(tmp_path, *HISTORY)
    edit(tmp_path, "DELETE FROM rsm_entries WHERE first_ts = ?", first_ts)
    assert "slot" in reason(tmp_path)


@pytest.mark.parametrize("part", range(1, 6))
def test_when_a_part_of_the_small_state_is_missing_then_the_voter_is_amnesiac(
    tmp_path: Path, part: int
) -> None:
    written(tmp_path, *HISTORY)
    edit(tmp_path, "DELETE FROM rsm_state WHERE part = ?", part)
    assert "missing" in reason(tmp_path)


def test_when_a_part_is_an_older_one_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    """A promise that went back in time has a sound checksum."""
    written(tmp_path, *HISTORY[:1])
    with sqlite3.connect(tmp_path / "rsm.db") as connection:
        old = connection.execute("SELECT body, crc FROM rsm_state WHERE part = 5").fetchone()
    connection.close()
    with restored(tmp_path) as store:
        for records in HISTORY[1:]:
            store.write(records)
    edit(tmp_path, "UPDATE rsm_state SET body = ?, crc = ? WHERE part = 5", *old)
    assert "not that of the last transaction" in reason(tmp_path)


def test_when_a_row_is_replaced_by_a_sound_one_of_another_log_then_the_voter_is_amnesiac(
    tmp_path: Path,
) -> None:
    written(tmp_path / "a", *HISTORY)
    written(tmp_path / "b", (BEGAN,), (install(1, 1), blocks(2, 1), blocks(4, 5)))
    with sqlite3.connect(tmp_path / "b" / "rsm.db") as connection:
        row = connection.execute("SELECT last_ts, body, crc FROM rsm_entries WHERE first_ts = 2").fetchone()
    connection.close()
    edit(tmp_path / "a", "UPDATE rsm_entries SET last_ts = ?, body = ?, crc = ? WHERE first_ts = 2", *row)
    assert "the block at slot 2 does not follow the one before it" in reason(tmp_path / "a")


def test_when_a_row_is_added_behind_the_last_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    written(tmp_path, *HISTORY)
    edit(
        tmp_path,
        "INSERT INTO rsm_entries SELECT 15, 16, epoch, body, crc, chain FROM rsm_entries WHERE first_ts = 13",
    )
    assert "slot 15" in reason(tmp_path)


# -- rows above the claim --------------------------------------------------------------------------


def test_when_a_row_above_the_claim_is_bad_then_it_is_cut_with_what_follows_and_said(tmp_path: Path) -> None:
    place = unclaimed(tmp_path / "a", tmp_path / "b", *HISTORY[:2], (blocks(5, 4),))
    edit(place, "UPDATE rsm_entries SET crc = crc + 1 WHERE first_ts = 9")
    with opened(place) as store:
        found = store.restore()
        assert found.amnesiac is None
        assert found.notes == ("the block at slot 9 has a wrong checksum; cut, for it was never claimed",)
        expected = ledger_of([*HISTORY[:2], (blocks(5, 2),)])
        assert vars(found.ledger) == vars(expected)
        store.write((blocks(9, 1),))
        expected.apply((blocks(9, 1),))
    with opened(place) as store:
        found = store.restore()
        assert vars(found.ledger) == vars(expected)
        assert found.notes == ()


def test_when_the_first_block_of_all_is_bad_and_unclaimed_then_the_log_is_empty(tmp_path: Path) -> None:
    place = unclaimed(tmp_path / "a", tmp_path / "b", (JOINED,), (blocks(7, 2),))
    edit(place, "UPDATE rsm_entries SET crc = crc + 1 WHERE first_ts = 7")
    found = restore(place)
    assert found.notes
    assert vars(found.ledger) == vars(ledger_of([(JOINED,)]))


def test_when_the_unclaimed_transaction_did_more_than_append_then_the_voter_is_amnesiac(
    tmp_path: Path,
) -> None:
    """An acceptance stays only with everything up to its slot: half of the transaction cannot be kept."""
    place = unclaimed(tmp_path / "a", tmp_path / "b", *HISTORY[:2], (blocks(5, 4), promise(1, 3)))
    edit(place, "UPDATE rsm_entries SET crc = crc + 1 WHERE first_ts = 9")
    assert "slot 9" in reason(place)


def test_when_the_bad_row_is_below_the_claim_then_nothing_is_cut(tmp_path: Path) -> None:
    place = unclaimed(tmp_path / "a", tmp_path / "b", *HISTORY[:2], (blocks(5, 4),))
    edit(place, "UPDATE rsm_entries SET crc = crc + 1 WHERE first_ts = 2")
    assert "slot 2" in reason(place)


def test_when_the_log_has_more_than_was_claimed_then_it_is_claimed_before_it_is_given_back(
    tmp_path: Path,
) -> None:
    place = unclaimed(tmp_path / "a", tmp_path / "b", *HISTORY)
    before = claimed_in(place)
    found = restore(place)
    assert vars(found.ledger) == vars(ledger_of(list(HISTORY)))
    after = claimed_in(place)
    assert (after.seq, after.epoch, after.held) == (before.seq + 1, 1, 14)


# -- the claim -------------------------------------------------------------------------------------


def test_when_the_claim_is_missing_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    written(tmp_path, *HISTORY)
    (tmp_path / "claim").unlink()
    assert "the claim is missing" in reason(tmp_path)


def test_when_the_claim_is_rolled_back_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    written(tmp_path, *HISTORY[:2])
    claim = (tmp_path / "claim").read_bytes()
    with restored(tmp_path) as store:
        for records in HISTORY[2:]:
            store.write(records)
    (tmp_path / "claim").write_bytes(claim)
    assert "the claim was rolled back" in reason(tmp_path)


def test_when_the_database_is_rolled_back_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    for count in range(1, len(HISTORY)):
        place = tmp_path / str(count)
        written(place, *HISTORY[:count])
        old = (place / "rsm.db").read_bytes()
        with restored(place) as store:
            for records in HISTORY[count:]:
                store.write(records)
        (place / "rsm.db").write_bytes(old)
        assert f"ends with transaction {count}, and 5 was claimed" in reason(place)


def test_when_only_a_promise_is_rolled_back_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    """The log reaches the claimed slot; what was promised is forgotten all the same."""
    written(tmp_path, *HISTORY[:3])
    old = (tmp_path / "rsm.db").read_bytes()
    with restored(tmp_path) as store:
        store.write(HISTORY[3])
    (tmp_path / "rsm.db").write_bytes(old)
    assert "ends with transaction 3, and 4 was claimed" in reason(tmp_path)


def test_when_two_lives_of_one_copy_are_mixed_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    written(tmp_path / "a", *HISTORY[:2])
    copy_of(tmp_path / "a", tmp_path / "b")
    with restored(tmp_path / "a") as store:
        store.write((blocks(5, 1),))
    with restored(tmp_path / "b") as store:
        store.write((blocks(5, 2),))
    shutil.copy(tmp_path / "b" / "claim", tmp_path / "a" / "claim")
    assert "transaction 3 of the database is not the one that was claimed" in reason(tmp_path / "a")


def test_when_the_claim_is_of_another_database_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    written(tmp_path / "a", *HISTORY)
    written(tmp_path / "b", *HISTORY)
    shutil.copy(tmp_path / "b" / "claim", tmp_path / "a" / "claim")
    assert "another database" in reason(tmp_path / "a")


def test_when_both_slots_are_bad_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    written(tmp_path, *HISTORY)
    flip(tmp_path / "claim", 20)
    flip(tmp_path / "claim", SLOT_BYTES + 20)
    assert "has no claim that can be read" in reason(tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 71])
def test_when_the_write_of_a_claim_is_torn_then_the_site_comes_back(tmp_path: Path, keep: int) -> None:
    place = unclaimed(tmp_path / "a", tmp_path / "b", *HISTORY)
    torn = len(HISTORY) % 2 * SLOT_BYTES
    claim = bytearray((place / "claim").read_bytes())
    whole = (tmp_path / "a" / "claim").read_bytes()
    claim[torn : torn + keep] = whole[torn : torn + keep]
    claim[torn + keep] ^= 1
    (place / "claim").write_bytes(claim)
    assert claimed_in(place).torn
    found = restore(place)
    assert found.amnesiac is None
    assert vars(found.ledger) == vars(ledger_of(list(HISTORY)))
    assert claimed_in(place) == claimed_in(tmp_path / "a")


def test_when_a_claim_is_torn_and_a_row_is_bad_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    """Nobody can tell what stood in the slot: the whole log may have been claimed."""
    place = unclaimed(tmp_path / "a", tmp_path / "b", *HISTORY)
    flip(place / "claim", len(HISTORY) % 2 * SLOT_BYTES + 20)
    edit(place, "UPDATE rsm_entries SET crc = crc + 1 WHERE first_ts = 13")
    assert "slot 13" in reason(place)


def test_when_the_claim_is_torn_and_the_database_ends_before_it_then_the_voter_is_amnesiac(
    tmp_path: Path,
) -> None:
    written(tmp_path, *HISTORY)
    flip(tmp_path / "claim", (len(HISTORY) + 1) % 2 * SLOT_BYTES + 20)
    assert "ends with transaction 5, and 6 was claimed" in reason(tmp_path)


# -- files -----------------------------------------------------------------------------------------


def test_when_the_database_is_missing_then_the_voter_is_amnesiac(tmp_path: Path) -> None:
    written(tmp_path, *HISTORY)
    (tmp_path / "rsm.db").unlink()
    assert "the database is empty, and transaction 5 was claimed" in reason(tmp_path)


def test_when_nothing_was_written_then_a_lost_file_is_no_loss(tmp_path: Path) -> None:
    for name in ("rsm.db", "claim"):
        with opened(tmp_path / name) as store:
            store.restore()
        (tmp_path / name / name).unlink()
        assert restore(tmp_path / name).amnesiac is None


@pytest.mark.parametrize("content", [b"", b"no database at all" * 300, bytes(8192)])
def test_when_the_file_is_no_database_then_the_voter_is_amnesiac(tmp_path: Path, content: bytes) -> None:
    written(tmp_path, *HISTORY)
    (tmp_path / "rsm.db").write_bytes(content)
    assert reason(tmp_path)


def judge(place: Path, ledger: Ledger) -> bool:
    """Whether the site can come back; if so, with everything."""
    found = restore(place)
    if found.amnesiac is not None:
        assert vars(found.ledger) == vars(Ledger())
        return False
    assert vars(found.ledger) == vars(ledger)
    return True


def test_when_bits_flip_in_the_file_then_it_is_harmless_or_noticed(tmp_path: Path) -> None:
    ledger = written(tmp_path / "whole", *HISTORY)
    size = (tmp_path / "whole" / "rsm.db").stat().st_size
    rng = Random(5)
    outcomes = []
    for _ in range(60):
        place = copy_of(tmp_path / "whole", tmp_path / "bad")
        flip(place / "rsm.db", rng.randrange(size), rng.randrange(8))
        outcomes.append(judge(place, ledger))
    # Most bytes of a small database are empty space in pages: aim at what is used as well.
    data = (tmp_path / "whole" / "rsm.db").read_bytes()
    used = [offset for offset, byte in enumerate(data) if byte]
    for _ in range(60):
        place = copy_of(tmp_path / "whole", tmp_path / "bad")
        flip(place / "rsm.db", rng.choice(used), rng.randrange(8))
        outcomes.append(judge(place, ledger))
    assert set(outcomes) == {True, False}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.8])
def test_when_the_file_is_cut_then_the_voter_is_amnesiac(tmp_path: Path, share: float) -> None:
    written(tmp_path, *HISTORY)
    data = (tmp_path / "rsm.db").read_bytes()
    (tmp_path / "rsm.db").write_bytes(data[: int(len(data) * share)])
    assert reason(tmp_path)


def test_when_the_log_of_sqlite_is_cut_or_flips_then_nothing_claimed_is_silently_lost(
    tmp_path: Path,
) -> None:
    """SQLite ends its log silently at a bad frame."""
    with restored(tmp_path / "a") as store:
        for records in HISTORY:
            store.write(records)
        whole = copy_of(tmp_path / "a", tmp_path / "whole")
    ledger = ledger_of(list(HISTORY))
    data = (whole / "rsm.db-wal").read_bytes()
    used = len(data.rstrip(b"\0"))
    rng = Random(6)
    outcomes = []
    for _ in range(25):
        place = copy_of(whole, tmp_path / "bad")
        (place / "rsm.db-wal").write_bytes(data[: rng.randrange(used)])
        outcomes.append(judge(place, ledger))
    for _ in range(40):
        place = copy_of(whole, tmp_path / "bad")
        flip(place / "rsm.db-wal", rng.randrange(used), rng.randrange(8))
        outcomes.append(judge(place, ledger))
    assert not any(outcomes)
    assert judge(copy_of(whole, tmp_path / "bad"), ledger)


# -- snapshots -------------------------------------------------------------------------------------


def with_snapshot(directory: Path, *transactions: tuple[Record, ...]) -> None:
    with restored(directory) as store:
        for records in transactions:
            store.write(records)
        store.save_snapshot(8, [b"one", b"two" * 3000], DIGEST)


DAMAGES = (
    "UPDATE rsm_chunks SET body = x'00' WHERE place = 1",
    "UPDATE rsm_chunks SET crc = crc + 1 WHERE place = 0",
    "UPDATE rsm_chunks SET place = 7 WHERE place = 1",
    "UPDATE rsm_chunks SET number = number + 1",
    "DELETE FROM rsm_chunks WHERE place = 0",
    "DELETE FROM rsm_chunks",
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_when_a_snapshot_is_bad_and_the_log_goes_back_then_it_is_dropped_and_said(
    tmp_path: Path, damage: str
) -> None:
    with_snapshot(tmp_path, *HISTORY)
    edit(tmp_path, damage)
    with opened(tmp_path) as store:
        found = store.restore()
        assert found.amnesiac is None
        assert found.snapshot is None
        assert "of the snapshot at slot 8" in found.notes[0]
        assert vars(found.ledger) == vars(ledger_of(list(HISTORY)))
        assert store.load_snapshot() is None
        store.save_snapshot(8, [b"again"], DIGEST)
    found = restore(tmp_path)
    assert found.snapshot is not None
    assert found.notes == ()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "transactions",
    [
        (*HISTORY, (Trimmed(position(1, 8), ()),)),
        ((JOINED, blocks(7, 1)), (Transferred(8),)),
    ],
    ids=["trimmed", "transferred"],
)
def test_when_a_snapshot_is_bad_and_the_log_begins_behind_it_then_the_voter_is_amnesiac(
    tmp_path: Path, damage: str, transactions: tuple[tuple[Record, ...], ...]
) -> None:
    with_snapshot(tmp_path, *transactions)
    edit(tmp_path, damage)
    assert "of the snapshot at slot 8" in reason(tmp_path)


def test_when_a_learner_has_not_got_the_state_yet_then_a_bad_snapshot_is_no_loss(tmp_path: Path) -> None:
    with_snapshot(tmp_path, (JOINED, blocks(7, 1)))
    edit(tmp_path, DAMAGES[0])
    found = restore(tmp_path)
    assert found.amnesiac is None
    assert found.notes


def test_when_a_chunk_goes_bad_while_the_store_is_open_then_reading_it_says_so(tmp_path: Path) -> None:
    with_snapshot(tmp_path, *HISTORY)
    with restored(tmp_path) as store:
        with store._database.transaction() as connection:
            connection.exec_driver_sql(DAMAGES[0])
        loaded = store.load_snapshot()
        assert loaded is not None
        with pytest.raises(StorageCorrupt, match="chunk 1 of the snapshot"):
            list(loaded[1])


def test_when_the_directory_is_whole_then_opening_it_twice_changes_nothing(tmp_path: Path) -> None:
    ledger = written(tmp_path, *HISTORY)
    claims = []
    for _ in range(2):
        store = Store.open(tmp_path, group=GROUP)
        assert vars(store.restore().ledger) == vars(ledger)
        store.close()
        claims.append((tmp_path / "claim").read_bytes())
    assert claims[0] == claims[1]
