"""Crashes and failing disks: what was answered is there, and what is there was written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from ordering.records import Ledger
from rsm.storage import StorageFailed
from tests.rsm.storage_child import STOPPED
from tests.rsm.storage_kit import (
    BEGAN,
    LARGE,
    blocks,
    claimed_in,
    copy_of,
    ledger_of,
    opened,
    restored,
    script,
    written,
)

ROOT = Path(__file__).resolve().parent.parent.parent
SIZE = 300


def scripted(count: int, size: int = SIZE) -> Ledger:
    return ledger_of(list(islice(script(size), count)))


@contextmanager
def child(
    directory: Path, done: int, size: int = SIZE, before: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A process that writes; it is gone when the block ends."""
    command = [*before, sys.executable, "-m", "tests.rsm.storage_child", str(directory), str(done), str(size)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def last_answer(output: str) -> int:
    """Of the lines that are whole."""
    return int(output[: output.rindex("\n")].splitlines()[-1])


def check(directory: Path, answered: int, size: int = SIZE) -> int:
    """Everything answered is there, and at most the transaction under way beside it. Returns how many."""
    claimed = claimed_in(directory)
    with opened(directory) as store:
        found = store.restore()
    assert found.amnesiac is None
    assert found.notes == ()
    for count in (answered, answered + 1):
        ledger = scripted(count, size)
        if vars(found.ledger) == vars(ledger):
            assert (claimed.epoch, claimed.held) <= (ledger.epoch, ledger.end)
            return count
    raise AssertionError(f"{answered} transactions were answered; what is there is neither that nor one more")


# -- killed ----------------------------------------------------------------------------------------


def test_when_the_process_is_killed_again_and_again_then_everything_answered_is_there(tmp_path: Path) -> None:
    rng = Random(3)
    done = 0
    for _ in range(8):
        with child(tmp_path, done) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            told = "".join(process.stdout.readline() for _ in range(rng.randrange(1, 30)))
            process.kill()
            rest = process.stdout.read()  # communicate() would pass over what is in the buffer already
            errors = process.stderr.read()
        assert not errors
        done = check(tmp_path, last_answer(told + rest))
    assert done > 30


def test_when_the_directory_is_copied_at_any_moment_then_the_copy_has_what_was_answered(
    tmp_path: Path,
) -> None:
    with restored(tmp_path / "a") as store:
        for number, records in enumerate(islice(script(SIZE), 25), start=1):
            store.write(records)
            assert check(copy_of(tmp_path / "a", tmp_path / "b"), number) == number


def test_when_a_crash_left_a_log_then_restoring_brings_it_into_the_file(tmp_path: Path) -> None:
    """What a killed process has left may be in the machine's memory only: it is written and synced anew."""
    with restored(tmp_path / "a") as store:
        for records in islice(script(SIZE), 10):
            store.write(records)
        copy_of(tmp_path / "a", tmp_path / "b")
    with opened(tmp_path / "b") as store:
        store.restore()
        (tmp_path / "c").mkdir()
        for name in ("rsm.db", "claim"):
            shutil.copy(tmp_path / "b" / name, tmp_path / "c")
    assert check(tmp_path / "c", 10) == 10


# -- between log and claim ---------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_when_it_ends_between_log_and_claim_then_the_log_has_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def crashing(*_: object) -> int:
        raise Crash

    with restored(tmp_path) as store:
        store.write((BEGAN,))
        monkeypatch.setattr(os, call, crashing)
        with pytest.raises(Crash):
            store.write((blocks(1, 1),))
        monkeypatch.undo()
        with pytest.raises(StorageFailed, match="interrupted"):
            store.write((blocks(3, 1),))
    with opened(tmp_path) as store:
        assert vars(store.restore().ledger) == vars(ledger_of([(BEGAN,), (blocks(1, 1),)]))


def test_when_it_ends_there_twice_then_the_site_still_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restoring must not run ahead of the claim either."""

    def crashing(*_: object) -> int:
        raise Crash

    written(tmp_path, (BEGAN,))
    for again in (False, True):
        with opened(tmp_path) as store:
            if not again:
                store.restore()
            monkeypatch.setattr(os, "fdatasync", crashing)
            with pytest.raises(Crash):
                store.restore() if again else store.write((blocks(1, 1),))
            monkeypatch.undo()
    with opened(tmp_path) as store:
        assert vars(store.restore().ledger) == vars(ledger_of([(BEGAN,), (blocks(1, 1),)]))


# -- the disk fails ----------------------------------------------------------------------------------


def test_when_the_claim_cannot_be_synced_then_the_store_stops_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    with restored(tmp_path) as store:
        store.write((BEGAN,))
        monkeypatch.setattr(os, "fdatasync", failing)
        with pytest.raises(StorageFailed, match=r"write failed in .*Input/output error.*start the process"):
            store.write((blocks(1, 1),))
        monkeypatch.undo()
        for attempt in (lambda: store.write((blocks(1, 1),)), store.restore, store.wipe, store.tidy):
            with pytest.raises(StorageFailed, match="Input/output error"):
                attempt()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("when", [3, 12, 13, 40])
def test_when_a_sync_fails_then_the_process_says_nothing_more(tmp_path: Path, when: int) -> None:
    with restored(tmp_path):
        pass
    inject = ("strace", "-f", "-qq", "-o", os.devnull, "-e", f"inject=fdatasync:error=EIO:when={when}")
    with child(tmp_path, 0, before=inject) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == STOPPED, errors
    assert "start the process again" in errors
    check(tmp_path, last_answer(output))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system with a few free megabytes."""
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    image.write_bytes(bytes(24 * 1024 * 1024))
    mounted.mkdir()
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True, timeout=60)
        subprocess.run(
            ["mount", "-o", "loop", str(image), str(mounted)], check=True, capture_output=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can mount a small disk")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True, capture_output=True, timeout=60)
        image.unlink()


def test_when_the_disk_is_full_then_the_store_stops_and_what_was_answered_is_there(small_disk: Path) -> None:
    size = 2 * LARGE
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * 1024 * 1024))
    done = 0
    for room in (True, False):
        with child(small_disk / "site", done, size) as process:
            output, errors = process.communicate(timeout=120)
        assert process.returncode == STOPPED, errors
        assert "full" in errors
        if room:
            ballast.unlink()
        answered = last_answer(output)
        assert answered > done
        done = answered if not room else check(small_disk / "site", answered, size)
