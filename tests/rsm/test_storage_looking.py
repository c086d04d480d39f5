"""Looking at a directory: while its owner writes, after it died, and when it is damaged."""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import rsm.storage.looking  # noqa: F401
from ordering.records import Ledger
from rsm import storage
from rsm.storage.errors import StorageCorrupt, StorageFailed
from rsm.storage.looking import looking, owner_of
from tests.rsm.storage_kit import BEGAN, blocks, copy_of, edit, flip, opened, restored, script, written

LOOKS = 12
LOOK_FROM = 400  # transactions; more than fill SQLite's log once, at this size
SIZE = 20_000


def same(ledger: Ledger, size: int, most: int) -> bool:
    """Whether the script comes by this ledger."""
    expected = Ledger()
    for records in islice(script(size), most):
        expected.apply(records)
        if expected.end == ledger.end and vars(expected) == vars(ledger):
            return True
    return False


def files(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}


def test_when_a_process_writes_then_every_look_is_a_picture_of_one_moment(tmp_path: Path) -> None:
    """SQLite's log is reset and brought into its file again and again meanwhile."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.rsm.storage_child", str(tmp_path), "0", str(SIZE)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        ends: list[int] = []
        written = 0
        for _ in range(LOOKS):
            while written < LOOK_FROM * len(ends) // LOOKS + 2:
                written = int(child.stdout.readline())
            with looking(tmp_path) as look:
                assert look.owner == child.pid
                assert look.note is None
                ledger = look.ledger
                assert look.snapshot is None or sum(map(len, look.chunks())) == look.snapshot.length
            assert same(ledger, SIZE, 100_000), f"no prefix of what was written ends at {ledger.end}"
            ends.append(ledger.end)
        assert ends == sorted(ends)
        assert child.poll() is None  # nothing of this has disturbed it
    finally:
        child.kill()
        child.communicate()
    with looking(tmp_path) as look:
        assert look.owner == 0
        killed = look.ledger
    with opened(tmp_path) as store:
        assert vars(store.restore().ledger) == vars(killed)


def test_when_the_log_of_sqlite_begins_anew_between_two_copies_then_all_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file without what the old log had, and a log that does not have it any more."""
    with restored(tmp_path) as store:
        store.write((BEGAN, blocks(1, 3)))
        store.write((blocks(7, 1),))
        copy, copied = storage.looking._copy_file, []

        def interrupted(source: Path, target: Path) -> None:
            copy(source, target)
            copied.append(source.name)
            if copied == ["rsm.db"]:
                store._database.checkpoint()
                store.write((blocks(9, 1),))

        monkeypatch.setattr(storage.looking, "_copy_file", interrupted)
        with looking(tmp_path) as look:
            assert look.ledger.end == 10
            assert list(look.ledger.entries) == [1, 3, 5, 7, 9]
        assert copied == ["rsm.db", "rsm.db-wal"] * 2


def test_when_nobody_runs_then_looking_leaves_no_trace(tmp_path: Path) -> None:
    with restored(tmp_path / "a") as store:
        store.write((BEGAN, blocks(1, 3)))
        dead = copy_of(tmp_path / "a", tmp_path / "dead")  # with a log that was not brought into its file
    before = files(dead)
    with looking(dead) as look:
        assert look.owner == 0
        assert look.ledger.end == 6
        assert look.damage() is None
    assert files(dead) == before


def test_when_the_owner_is_asked_for_then_the_lock_is_not_taken(tmp_path: Path) -> None:
    assert owner_of(tmp_path) == 0
    with opened(tmp_path):
        assert owner_of(tmp_path) == os.getpid()
    assert owner_of(tmp_path) == 0
    with opened(tmp_path):
        pass


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM rsm_entries WHERE first_ts = 3",
        "UPDATE rsm_entries SET crc = crc + 1 WHERE first_ts = 3",
        "DELETE FROM rsm_state WHERE part = 1",
        "UPDATE rsm_state SET crc = crc + 1 WHERE part = 2",
    ],
)
def test_when_rows_are_damaged_then_looking_says_so(tmp_path: Path, statement: str) -> None:
    written(tmp_path, (BEGAN, blocks(1, 3)), (blocks(7, 1),))
    edit(tmp_path, statement)
    with pytest.raises(StorageCorrupt), looking(tmp_path):
        pass


def test_when_the_claim_is_ahead_then_looking_says_that_the_log_was_rolled_back(tmp_path: Path) -> None:
    written(tmp_path / "a", (BEGAN, blocks(1, 3)))
    old = copy_of(tmp_path / "a", tmp_path / "old")
    with restored(tmp_path / "a") as store:
        store.write((blocks(7, 1),))
        store.write((blocks(9, 1),))
    (old / "claim").write_bytes((tmp_path / "a" / "claim").read_bytes())
    with pytest.raises(StorageCorrupt, match="rolled back"), looking(old):
        pass


def test_when_the_file_is_no_database_then_looking_says_so(tmp_path: Path) -> None:
    written(tmp_path, (BEGAN, blocks(1, 3)))
    flip(tmp_path / "rsm.db", 3)
    with pytest.raises(StorageCorrupt), looking(tmp_path):
        pass


def test_when_there_is_nothing_then_looking_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=r"no rsm\.db"), looking(tmp_path):
        pass
    with pytest.raises(StorageFailed, match="no such directory"), looking(tmp_path / "none"):
        pass
    with opened(tmp_path) as store:
        store.restore()
        with looking(tmp_path) as look:
            assert (look.ledger.end, look.transactions, look.owner) == (0, 0, os.getpid())
