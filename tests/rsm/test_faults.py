"""One replica of three is broken, on real processes and disks: it says what is wrong, the others go on, and
nothing that was answered is lost."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rsm.client import Client, ClientConfig
from rsm.errors import InvalidCall, MachineError, Refusal, Refused, StateLost
from rsm.proxy import Proxy
from rsm.replica import Replica
from rsm.spool import Spool
from rsm.state_machine import StateMachine, command, query
from rsm.transfer import StateWanted
from tests.rsm.machines import Counter, Hoard
from tests.rsm.postgres_kit import Server
from tests.rsm.process_group import ProcessGroup, process_group
from tests.rsm.test_replica import config, group_of, play
from tests.rsm.test_storage_crash import small_disk
from tests.rsm.test_storage_postgres import server

__all__ = ["server", "small_disk"]


async def found(group: ProcessGroup) -> None:
    for number in (1, 2, 3):
        group.start(number)
    await group.ready(1, 2, 3)


# -- disks ---------------------------------------------------------------------------------------


def test_when_the_disk_of_one_is_full_then_it_halts_and_says_so_and_comes_back_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 << 20))

    async def main() -> None:
        async with process_group(tmp_path / "g", Hoard) as group:
            group.set(3, data=str(small_disk / "site"))
            await found(group)
            async with group.client() as hoard:
                answered = 0
                for _ in range(200):
                    assert await hoard.measure(bytes(200_000)) == 200_000
                    answered += 1
                    if group.running[3].poll() is not None:
                        break
                code, words = await group.ended(3)
                assert code == 1
                assert "halted" in words
                assert "full" in words
                assert await hoard.measure(b"after") == 5
                ballast.unlink()
                group.start(3)
                await group.ready(3)
                await group.kill(1)  # the majority needs it now
                assert await hoard.with_options(timeout=30).count() == answered + 1
                assert await hoard.measure(b"") == 0

    play(main())


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("when", [20, 41])
def test_when_a_sync_of_one_fails_then_it_halts_and_nothing_answered_is_lost(
    tmp_path: Path, when: int
) -> None:
    inject = ("strace", "-f", "-qq", "-o", os.devnull, "-e", f"inject=fdatasync:error=EIO:when={when}")

    async def main() -> None:
        async with process_group(tmp_path / "g", Counter) as group:
            group.start(1)
            group.start(2)
            group.start(3, inject)
            await group.ready(1, 2, 3)
            async with group.client() as counter:
                answered = 0
                while group.running[3].poll() is None:
                    assert answered < 1000
                    answered += 1
                    assert await counter.add(1) == answered
                code, words = await group.ended(3)
                assert code == 1
                assert "Input/output error" in words or "disk I/O error" in words
                assert "Mend the disk, or free space, and start the process again" in words
                await group.kill(1, 2)
                for number in (3, 1, 2):
                    group.start(number)
                await group.ready(1, 2, 3)
                assert await counter.with_options(timeout=30).get() == answered

    play(main())


def test_when_a_row_of_ones_log_is_bad_then_it_begins_anew_with_the_others_state(tmp_path: Path) -> None:
    async def main() -> None:
        async with process_group(tmp_path / "g", Counter) as group:
            await found(group)
            async with group.client() as counter:
                for _ in range(30):
                    await counter.add(1)
                await group.kill(3)
                with sqlite3.connect(tmp_path / "g" / "site-3.data" / "rsm.db") as database:
                    changed = database.execute(
                        "UPDATE rsm_entries SET body = zeroblob(length(body)) WHERE first_ts ="
                        " (SELECT first_ts FROM rsm_entries LIMIT 1 OFFSET 5)"
                    ).rowcount
                database.close()
                assert changed == 1
                await counter.add(1)
                group.start(3)
                await group.ready(3)
                await group.votes(3, asked=2)
                await group.kill(1)
                assert await counter.with_options(timeout=30).get() == 31
                assert await counter.add(1) == 32
                group.running[3].terminate()
                code, words = await group.ended(3)
                assert code == 0
                assert "forgotten what it claimed; it begins anew" in words

    play(main())


def test_when_postgres_has_the_log_then_kills_of_one_and_of_all_lose_nothing(
    tmp_path: Path, server: Server
) -> None:
    async def main() -> None:
        async with process_group(tmp_path / "g", Counter) as group:
            for number in (1, 2, 3):
                group.set(number, database=server.new_schema()[0])
            await found(group)
            async with group.client() as plain:
                counter = plain.with_options(timeout=30)
                for number in range(1, 51):
                    assert await counter.add(1) == number
                under_way = [asyncio.ensure_future(counter.add(1)) for _ in range(50)]
                await under_way[0]
                await group.kill(2)
                assert sorted(await asyncio.gather(*under_way)) == list(range(51, 101))
                group.start(2)
                await group.ready(2)
                await group.kill(1, 2, 3)
                for number in (2, 3, 1):
                    group.start(number)
                await group.ready(1, 2, 3)
                assert await counter.get() == 100
                assert await counter.add(1) == 101

    play(main())


# -- who is who ----------------------------------------------------------------------------------


def test_when_two_processes_have_one_directory_then_the_second_is_refused_and_says_who_has_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with process_group(tmp_path / "g", Counter) as group:
            await found(group)
            first = group.running.pop(1)
            try:
                group.set(1, bind="127.0.0.1:0")
                group.start(1)
                code, words = await group.ended(1)
                assert code == 1
                assert f"process {first.pid}" in words
                async with group.client() as counter:
                    assert await counter.add(1) == 1
            finally:
                first.kill()
                first.communicate()

    play(main())


def test_when_a_process_has_another_machine_then_it_halts_and_the_group_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with process_group(tmp_path / "g", Counter) as group:
            await found(group)
            async with group.client() as counter:
                assert await counter.add(1) == 1
                await group.kill(3)
                group.start(3, machine=Hoard)
                code, words = await group.ended(3)
                assert code == 1
                assert "the group runs Counter, this replica has Hoard" in words
                assert await counter.add(1) == 2
                group.start(3)
                await group.ready(3)
                assert await counter.with_options(qos="all", timeout=20).with_details().add(1)

    play(main())


class Other(StateMachine):
    """What a client may take the group's machine for."""

    def __init__(self) -> None:
        self.value = 0

    @command
    def add(self, n: str) -> int:
        return len(n)

    @command
    def multiply(self, n: int) -> int:
        return n

    @query
    def double(self) -> int:
        return 2 * self.value


Other.__name__ = "Counter"


def test_when_a_client_has_another_class_then_its_calls_are_refused_and_change_nothing() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            addresses = tuple(replica.address for replica in replicas)
            settings = ClientConfig(group="tested", replicas=addresses, insecure=True)
            async with Client(Other, settings) as stranger:
                for call in (stranger.add("five"), stranger.multiply(2), stranger.double()):
                    with pytest.raises(Refused, match="no such command, or takes other arguments") as caught:
                        await call
                    assert caught.value.refusal is Refusal.UNREADABLE
            async with Client(Counter, settings) as counter:
                for wrong in ("add", "subtract"):
                    with pytest.raises(InvalidCall, match="Expected `int`"):
                        await getattr(counter, wrong)("5")
                with pytest.raises(InvalidCall, match="is no command; there are: add"):
                    await getattr(counter, "multiply")(2)  # noqa: B009 - mypy knows that it is not there
                assert await counter.get() == 0

    play(main())


# -- snapshots -----------------------------------------------------------------------------------


class Forgetful(StateMachine):
    """Its first state can be restored, and later ones cannot."""

    def __init__(self) -> None:
        self.values: list[int] = []

    @command
    def add(self, n: int) -> int:
        self.values.append(n)
        return len(self.values)

    def restore(self, chunks: Iterable[bytes]) -> None:
        super().restore(chunks)
        if self.values:
            raise ValueError("an index is missing")


def test_when_a_snapshot_does_not_load_then_who_takes_it_over_halts_and_the_others_go_on() -> None:
    async def main() -> None:
        async with group_of(Forgetful) as replicas:
            assert await replicas[0].proxy.add(1) == 1
            late: Replica[Any] = Replica(Forgetful, config(contacts=(replicas[0].address,)))
            with pytest.raises(StateLost, match=r"Forgetful.restore: ValueError: an index is missing"):
                await late.start()
            assert await replicas[1].proxy.add(1) == 2

    play(main())


async def until_saved(group: ProcessGroup, machine: Proxy[Any], site: int) -> int:
    """Add until the site has saved a state with something in it; how many were added. Each snapshot waits for
    as much log as the one before was large, and the first is of a state that nothing was added to."""
    first = await machine.with_details().add(1)
    assert first.value == 1
    for added in range(1, 1000):
        status = await group.status(site)
        if status is not None and status.snapshot is not None and status.snapshot.slot >= first.timestamp:
            return added
        assert await machine.add(1) == added + 1
    raise AssertionError("no snapshot was saved")


def test_when_a_snapshot_on_disk_does_not_load_then_the_replica_says_so_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with process_group(tmp_path / "g", Forgetful) as group:
            for number in (1, 2, 3):
                group.set(number, snapshot_bytes=200)
            await found(group)
            async with group.client() as machine:
                added = await until_saved(group, machine, 3)
                await group.kill(3)
                group.start(3)
                code, words = await group.ended(3)
                assert code == 1
                assert "Forgetful.restore: ValueError: an index is missing" in words
                assert await machine.add(1) == added + 1

    play(main())


class Unsaved(StateMachine):
    def __init__(self) -> None:
        self.thing = object()

    @command
    def add(self) -> None: ...


def test_when_a_state_cannot_be_saved_then_no_replica_of_it_is_made() -> None:
    with pytest.raises(MachineError, match="Unsaved: a snapshot of its first state cannot be taken"):
        Replica(Unsaved, config())


class Spoilt(StateMachine):
    """A defect of the application's: what one of its commands keeps cannot be saved."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    @command
    def spoil(self) -> int:
        self.kept.append(object())
        return len(self.kept)

    @command
    def mend(self) -> int:
        self.kept = [each for each in self.kept if type(each) is int]
        return len(self.kept)

    @command
    def add(self, n: int) -> int:
        self.kept.append(n)
        return len(self.kept)


def test_when_a_state_cannot_be_saved_any_more_then_its_replica_goes_on_and_saves_it_when_it_can(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        settings = config(mode="durable", data=tmp_path / "d", snapshot_bytes=1)
        async with one_of(Replica(Spoilt, settings)) as replica:
            await replica.proxy.spoil()
            failed = replica._watch.counts
            while not failed["snapshots failed"]:
                await replica.proxy.add(1)
            assert replica.is_serving
            mended = await replica.proxy.with_details().mend()
            while (saved := replica.status().snapshot) is None or saved.slot < mended.timestamp:
                await replica.proxy.add(1)

    play(main())


def test_when_a_state_cannot_be_given_then_its_replica_goes_on_and_gives_it_when_it_can() -> None:
    async def main() -> None:
        async with group_of(Spoilt) as replicas:
            await replicas[0].proxy.spoil()
            late: Replica[Any] = Replica(Spoilt, config(contacts=(replicas[0].address,)))
            starting = asyncio.ensure_future(late.start())
            try:
                while not hasattr(late, "_bulk") or not late._watch.counts["transfers begun"]:
                    await asyncio.sleep(0.01)
                view = replicas[0].executor.group.view
                assert view is not None
                peer = late.peer(replicas[0].address)
                assert await peer.state(StateWanted(view.chain, 1), Spool()) is None
                assert "handler failed" not in replicas[0]._bulk.counters
                assert await replicas[1].proxy.mend() == 0
                await starting
                assert await late.proxy.add(1) == 1
            finally:
                await late.stop()

    play(main())


@asynccontextmanager
async def one_of(replica: Replica[Any]) -> AsyncIterator[Replica[Any]]:
    """A group of one."""
    try:
        await replica.open()
        replica.join([replica.address])
        await replica.ready()
        yield replica
    finally:
        await replica.stop()
