"""A state in a file, and founders' disks made of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordering.records import Ledger
from rsm import backup
from rsm.config import ReplicaConfig
from rsm.disk import Came, Disk
from rsm.envelope import OPEN, Language, session_of, value_of
from rsm.errors import MismatchedMachine
from rsm.executor import Executor
from rsm.methods import Catalogue
from rsm.storage.errors import StorageForeign
from tests.rsm.backup_kit import CATALOGUE, FOUNDERS, LANGUAGE, deliver, executor, lived
from tests.rsm.machines import Counter, Hoard


def disk_of(directory: Path) -> Came:
    config = ReplicaConfig(group="g", insecure=True, mode="durable", data=directory, founders=FOUNDERS)

    async def opened() -> Came:
        disk = Disk(config)
        try:
            return await disk.open()
        finally:
            await disk.close()

    return asyncio.run(opened())


def restored(file: Path, directory: Path, address: str, token: str = "t") -> Came:
    founding = backup.plan(backup.verify(file), "g", FOUNDERS, token)
    backup.found(file, founding, address, directory, None, "g")
    return disk_of(directory)


def test_when_founders_are_made_on_different_machines_then_they_are_of_one_chain(tmp_path: Path) -> None:
    file = tmp_path / "file"
    old, _ = lived()
    backup.save(file, "g", "here", old.snapshot())
    ledgers: list[Ledger] = []
    states: list[list[bytes]] = []
    for number, address in enumerate(FOUNDERS):
        came = restored(file, tmp_path / str(number), address)
        assert came.ledger is not None
        assert came.snapshot is not None
        ledgers.append(came.ledger)
        states.append(came.snapshot)
    assert len({ledger.chain for ledger in ledgers}) == 1
    assert ledgers[0].chain != 77
    assert len({ledger.site for ledger in ledgers}) == 3
    assert all(state == states[0] for state in states)
    for ledger in ledgers:
        assert (ledger.end, ledger.base and ledger.base.ts) == (old.applied, old.applied)
    contents = backup.verify(file)
    chains = {
        backup.plan(contents, "g", FOUNDERS, "t").chain,
        backup.plan(contents, "g", FOUNDERS, "u").chain,
        backup.plan(contents, "h", FOUNDERS, "t").chain,
        backup.plan(contents, "g", FOUNDERS[:2], "t").chain,
        backup.plan(backup.Contents(contents.header, contents.length, bytes(32)), "g", FOUNDERS, "t").chain,
    }
    assert len(chains) == 5


def test_when_a_client_repeats_a_call_of_the_old_chain_then_it_is_answered_and_not_executed_again(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    old, session = lived()
    backup.save(file, "g", "here", old.snapshot())
    came = restored(file, tmp_path / "d", FOUNDERS[0])
    new = executor()
    assert came.snapshot is not None
    new.restore(came.snapshot)
    assert new.applied == old.applied
    again = LANGUAGE.encode(session, 1, 0, CATALOGUE.command("add").bind((5,), {}))
    assert value_of(deliver(new, again)) == value_of(deliver(old, again))
    assert isinstance(new.machine, Counter)
    assert new.machine.value == 5
    mine = session_of(deliver(new, OPEN))
    theirs = session_of(deliver(old, OPEN))
    assert mine not in {session, theirs}  # opened at the same slot of another chain


def test_when_a_directory_is_in_use_or_not_empty_then_it_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    backup.save(file, "g", "here", lived()[0].snapshot())
    first = restored(file, tmp_path / "d", FOUNDERS[0])
    with pytest.raises(StorageForeign, match="has a log already"):
        restored(file, tmp_path / "d", FOUNDERS[0], "other")
    again = disk_of(tmp_path / "d")
    assert first.ledger is not None
    assert again.ledger is not None
    assert again.ledger.chain == first.ledger.chain


def test_when_another_machine_takes_the_state_then_it_refuses(tmp_path: Path) -> None:
    file = tmp_path / "file"
    backup.save(file, "g", "here", lived()[0].snapshot())
    other = Catalogue(Hoard)
    with pytest.raises(MismatchedMachine, match="the group runs Counter"):
        Executor(Hoard(), other, Language(other)).restore(backup.pieces(file))


def test_when_saving_fails_then_the_file_that_was_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    backup.save(file, "g", "here", lived()[0].snapshot())
    before = file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0

    def broken() -> object:
        chunks = iter(lived()[0].snapshot())
        yield next(chunks)
        raise RuntimeError("the donor is gone")

    with pytest.raises(backup.BackupError, match="is there already"):
        backup.save(file, "g", "here", lived()[0].snapshot())
    with pytest.raises(RuntimeError):
        backup.save(file, "g", "here", broken(), replace=True)  # type: ignore[arg-type]
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_when_two_save_to_one_file_at_once_then_it_is_one_of_the_two_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    old, _ = lived()

    def chunks() -> Iterator[bytes]:
        first, *rest = old.snapshot()
        yield first
        backup.save(file, "g", "the other", old.snapshot(), replace=True)
        yield from rest

    backup.save(file, "g", "this", chunks(), replace=True)
    assert backup.verify(file).header.source in {"this", "the other"}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
