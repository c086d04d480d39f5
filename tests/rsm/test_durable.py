"""Replicas with disks: one, several and all of them die and come back."""

import asyncio
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ordering.driver import run
from ordering.naming import group_id
from ordering.records import Record
from rsm.config import ReplicaConfig
from rsm.disk import ROW_BYTES, Came, Disk
from rsm.errors import OutcomeUnknown
from rsm.proxy import Consistency
from rsm.replica import Replica
from rsm.status import Standing
from rsm.storage import Store
from rsm.storage.errors import StorageFailed, StorageLocked
from rsm.transfer import Peer
from tests.rsm.machines import Counter
from tests.rsm.storage_kit import BEGAN
from tests.rsm.test_replica import crash

T = TypeVar("T")
SECONDS = 90


def play(main: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(SECONDS):
            return await main

    return run(bounded())


class Cluster:
    """Three sites with directories; each can be stopped and started again at its address."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.directory = directory
        self.changes = changes
        self.founders = ["127.0.0.1:0"] * 3
        self.replicas: dict[int, Replica[Counter]] = {}

    def config(self, site: int) -> ReplicaConfig:
        return ReplicaConfig(
            group="durable",
            bind=self.founders[site],
            insecure=True,
            mode="durable",
            data=self.directory / f"site-{site}",
            **self.changes,
        )

    async def found(self) -> None:
        for site in range(3):
            self.replicas[site] = Replica(Counter, self.config(site))
            await self.replicas[site].open()
            self.founders[site] = self.replicas[site].address
        for replica in self.replicas.values():
            replica.join(self.founders)
        await self.ready()

    async def ready(self) -> None:
        await asyncio.gather(*(replica.ready() for replica in self.replicas.values()))

    async def start(self, *sites: int) -> None:
        for site in sites:
            self.replicas[site] = Replica(Counter, self.config(site))
            await self.replicas[site].open()
            self.replicas[site].join(self.founders)

    async def stop(self, *sites: int) -> None:
        """As by a crash."""
        for site in sites:
            await crash(self.replicas.pop(site))

    async def __aenter__(self) -> "Cluster":
        await self.found()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(*list(self.replicas))


def test_when_one_dies_and_comes_back_then_it_is_the_same_site_with_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            for _ in range(10):
                await cluster.replicas[0].proxy.add(1)
            site = cluster.replicas[2].member.site
            await cluster.stop(2)
            assert await cluster.replicas[0].proxy.add(1) == 11
            await cluster.start(2)
            await cluster.ready()
            assert await cluster.replicas[2].proxy.add(1) == 12
            assert cluster.replicas[2].member.site == site

    play(main())


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_when_all_die_then_everything_is_back_in_whatever_order_they_return(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            for number in range(30):
                await cluster.replicas[number % 3].proxy.add(1)
            await cluster.stop(0, 1, 2)
            for site in order:
                await cluster.start(site)
            await cluster.ready()
            assert await cluster.replicas[1].proxy.get() == 30
            assert await cluster.replicas[0].proxy.add(1) == 31

    play(main())


def test_when_one_comes_back_alone_then_its_state_is_as_old_as_what_it_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.stop(0, 1, 2)
            await asyncio.sleep(1)
            await cluster.start(0)
            replica = cluster.replicas[0]
            stale = replica.proxy.with_options(consistency=Consistency.STALE)
            assert (await stale.reading("get")).age_s > 1

    play(main())


def test_when_two_of_three_come_back_then_the_group_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.replicas[0].proxy.add(5)
            await cluster.stop(0, 1, 2)
            await cluster.start(1, 2)
            await cluster.ready()
            assert await cluster.replicas[2].proxy.add(1) == 6

    play(main())


def test_when_snapshots_are_taken_then_the_log_is_trimmed_and_restarts_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path, snapshot_bytes=2_000) as cluster:
            for _ in range(20):
                await asyncio.gather(*(cluster.replicas[0].proxy.add(1) for _ in range(20)))
            await cluster.stop(0, 1, 2)
            await cluster.start(0, 1, 2)
            assert any(replica.executor.applied for replica in cluster.replicas.values())
            await cluster.ready()
            assert await cluster.replicas[0].proxy.get() == 400

    play(main())


def test_when_there_are_many_rows_of_few_bytes_then_they_are_trimmed_as_well(tmp_path: Path) -> None:
    """What a restart costs goes by rows, where messages are small."""

    async def main() -> None:
        async with Cluster(tmp_path, snapshot_bytes=200 * ROW_BYTES) as cluster:
            replica = cluster.replicas[0]
            saved = None
            for _ in range(1000):
                await replica.proxy.add(1)
                saved = replica.status().snapshot
                if saved is not None:
                    break
            assert saved is not None
            assert saved.slot >= 100

    play(main())


def test_when_a_disk_is_lost_then_the_site_begins_anew_with_the_others_state(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.replicas[0].proxy.add(7)
            before = cluster.replicas[2].member.site
            await cluster.stop(2)
            shutil.rmtree(tmp_path / "site-2")
            await cluster.start(2)
            await cluster.ready()
            assert await cluster.replicas[2].proxy.add(1) == 8
            assert cluster.replicas[2].member.site != before

    play(main())


def test_when_two_processes_use_one_directory_then_the_second_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            config = cluster.config(0).model_copy(update={"bind": "127.0.0.1:0"})
            second = Replica(Counter, config)
            with pytest.raises(StorageLocked):
                await second.open()
            await second.stop()
            assert await cluster.replicas[0].proxy.add(1) == 1

    play(main())


def test_when_a_disk_fails_then_its_replica_halts_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write, from one moment on: full, or broken."""

    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.replicas[0].proxy.add(1)
            broken = cluster.replicas[2]
            await broken.proxy.add(1)
            write = Store.write

            def fail(self: Store, records: tuple[Record, ...]) -> None:
                if self.directory == broken.config.data:
                    raise StorageFailed("no space left on device")
                write(self, records)

            monkeypatch.setattr(Store, "write", fail)
            under_way = asyncio.ensure_future(broken.proxy.add(1))
            with pytest.raises(StorageFailed, match="no space left"):
                await broken.ended()
            (answer,) = await asyncio.gather(under_way, return_exceptions=True)
            assert answer == 3 or isinstance(answer, OutcomeUnknown)  # the others' disks may be faster
            assert await cluster.replicas[0].proxy.add(1) in {3, 4}
            monkeypatch.undo()
            await cluster.stop(2)
            await cluster.start(2)
            await cluster.ready()
            values = [await replica.proxy.get() for replica in cluster.replicas.values()]
            assert len(set(values)) == 1

    play(main())


def test_when_a_replica_is_asked_how_it_stands_while_it_reads_its_disk_then_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        asked, opened = asyncio.Event(), Disk.open

        async def slowly(self: Disk) -> Came:
            await asked.wait()
            return await opened(self)

        monkeypatch.setattr(Disk, "open", slowly)
        replica = Replica(Counter, Cluster(tmp_path).config(0))
        opening = asyncio.ensure_future(replica.open())
        while not hasattr(replica, "_bulk"):
            await asyncio.sleep(0)
        status = await Peer(replica.address, None, group_id("durable"), 1).status()
        assert status is not None
        assert status.standing == Standing.OUTSIDE
        asked.set()
        await opening
        await replica.stop()

    play(main())


@pytest.mark.parametrize("wipes", [False, True], ids=["open", "wipe"])
def test_when_who_waits_for_a_disk_is_cancelled_then_its_directory_is_free(
    tmp_path: Path, wipes: bool
) -> None:
    async def main() -> None:
        disk = Disk(Cluster(tmp_path).config(0))
        if wipes:
            await disk.open()
        begun, go, taken = asyncio.Event(), threading.Event(), disk._open
        loop = asyncio.get_running_loop()

        def slowly(*, wipe: bool = False) -> tuple[Store, Came]:
            found = taken(wipe=wipe)
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(30)
            return found

        disk._open = slowly  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(disk.wipe() if wipes else disk.open())
        await begun.wait()
        waiting.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await disk.close()
        Store.open(tmp_path / "site-0", group="durable").close()

    play(main())


def test_when_a_replica_comes_back_then_it_knows_how_large_its_last_snapshot_was(tmp_path: Path) -> None:
    """However large a state is, snapshots write no more than the log does."""

    async def main() -> None:
        disk = Disk(Cluster(tmp_path, snapshot_bytes=10).config(0))
        await disk.open()
        disk.unsaved = 10
        assert disk.begins_snapshot()
        disk.persist(1, (BEGAN,), lambda _: None)
        await disk.save(1, [bytes(1000)], 7, disk.tenure)
        await disk.close()
        disk = Disk(Cluster(tmp_path, snapshot_bytes=10).config(0))
        assert (await disk.open()).snapshot is not None
        disk.unsaved = 999
        assert not disk.begins_snapshot()
        disk.unsaved = 1000
        assert disk.begins_snapshot()
        disk.unsaved = 1000
        assert not disk.begins_snapshot()  # one at a time
        disk.ends_snapshot()
        await disk.wipe()
        disk.unsaved = 10
        assert disk.begins_snapshot()
        await disk.close()

    play(main())
