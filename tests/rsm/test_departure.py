"""A replica that is told to stop leaves the ring first: nobody suspects it, and no epoch ends."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.ports import free_ports
from cli.replica import write_group
from ordering.errors import NotMember
from ordering.naming import group_id
from ordering.statistics import GroupStats
from rsm.client import Client, ClientConfig
from rsm.config import read_keyring
from rsm.departure import Departure
from rsm.proxy import Proxy
from rsm.replica import Replica
from rsm.status import ReplicaStatus, Standing
from rsm.transfer import Peer
from tests.rsm.machines import Counter
from tests.rsm.test_client import client_of
from tests.rsm.test_replica import config, crash, group_of, play

ROOT = Path(__file__).parents[2]
SECONDS = 60
# A machine that is busy must not look like a site that is dead: what is measured here is no detector.
PATIENT = {"suspect_ms": 4000, "slow_ms": 12_000, "passive_ms": 12_000, "minority_ms": 9000}


def stats_of(replica: Replica[Any]) -> GroupStats:
    assert replica._group is not None
    return replica._group.stats()


class Load:
    """A client that adds one, again and again, and counts what it was told was done."""

    def __init__(self, counter: Proxy[Any]) -> None:
        self.counter = counter
        self.acknowledged = 0
        self._task = asyncio.ensure_future(self._add())

    async def _add(self) -> None:
        while True:
            await self.counter.add(1)
            self.acknowledged += 1

    async def some_more(self) -> None:
        before = self.acknowledged
        while self.acknowledged < before + 20:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.001)

    async def end(self) -> int:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.acknowledged


@pytest.mark.parametrize("place", [0, 1, 2])
def test_when_a_replica_stops_under_load_then_nobody_suspects_it_and_the_epoch_goes_on(place: int) -> None:
    async def main() -> None:
        async with group_of(Counter, ring=PATIENT) as replicas, client_of(replicas) as counter:
            load = Load(counter)
            await load.some_more()
            before = replicas[place].executor.group.view
            others = [replica for replica in replicas if replica is not replicas[place]]
            assert await replicas[place].stop() is Departure.RETIRED
            await load.some_more()
            for other in others:
                view, counters = other.executor.group.view, stats_of(other).counters
                assert before is not None
                assert view is not None
                assert view.epoch == before.epoch
                assert view.revision > before.revision
                assert "polls" not in counters
            acknowledged = await load.end()
            assert acknowledged <= await counter.get() <= acknowledged + 1

    play(main())


def test_when_a_memory_replica_retires_then_it_joins_again_in_the_same_epoch() -> None:
    async def main() -> None:
        async with group_of(Counter, ring=PATIENT | {"suspect_ms": 500}) as replicas:
            founders = tuple(replica.address for replica in replicas)
            await replicas[0].proxy.add(5)
            assert await replicas[2].stop() is Departure.RETIRED
            again = Replica(Counter, config(bind=founders[2], founders=founders, ring=PATIENT))
            await again.start()
            try:
                assert await again.proxy.add(1) == 6
                view = replicas[0].executor.group.view
                assert view is not None
                assert view.epoch == 1
                assert "polls" not in stats_of(replicas[0]).counters
            finally:
                await again.stop()

    play(main())


def test_when_the_others_are_too_few_then_a_replica_stops_as_by_a_crash_and_says_so() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            assert await replicas[0].stop() is Departure.RETIRED
            assert await replicas[1].stop() is Departure.NEEDED
            assert await replicas[2].stop() is Departure.NEEDED
        async with group_of(Counter, sites=1) as replicas:
            assert await replicas[0].stop() is Departure.NEEDED

    play(main())


def test_when_a_group_is_stopped_at_once_then_nobody_waits_for_long() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            await replicas[1].proxy.add(1)
            async with asyncio.timeout(4):
                departures = await asyncio.gather(*(replica.stop() for replica in replicas))
            assert departures.count(Departure.RETIRED) == 1

    play(main())


def test_when_a_replica_is_told_twice_to_stop_then_both_wait_for_its_end() -> None:
    async def main() -> None:
        async with group_of(Counter, ring=PATIENT) as replicas:
            first = asyncio.ensure_future(replicas[0].stop())
            await asyncio.sleep(0)
            assert await replicas[0].stop() is Departure.RETIRED
            assert first.done()
            assert await replicas[0].stop() is Departure.RETIRED

    play(main())


def test_when_a_replica_is_over_then_nobody_waits_for_what_it_will_not_execute() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            await crash(replicas[0])
            with pytest.raises(NotMember):
                await replicas[0].when_applied(replicas[0].executor.applied + 1)

    play(main())


def test_when_a_stop_is_hurried_then_it_waits_for_nothing() -> None:
    async def main() -> None:
        async with group_of(Counter, ring=PATIENT) as replicas:
            one = replicas[0]
            for other in replicas[1:]:
                other._driver.close()
            stopping = asyncio.ensure_future(one.stop())
            await asyncio.sleep(0)
            one.hurry()
            assert await stopping is Departure.LATE

    play(main())


def test_when_who_waits_for_a_stop_gives_up_then_the_replica_is_stopped_all_the_same() -> None:
    async def main() -> None:
        async with group_of(Counter, ring=PATIENT) as replicas:
            one = replicas[0]
            for other in replicas[1:]:
                other._driver.close()  # nobody lets it go
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.stop(), 0.1)
            assert one._over.done()
            again = Replica(Counter, config(bind=one.address))
            await again.open()  # address and port are free
            await again.stop()

    play(main())


# -- as processes --------------------------------------------------------------------------------


class Processes:
    """`rsm replica`, three times, with disks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        write_group(directory, self.addresses, "departing", durable=True)
        ring = "".join(f"{name} = {value}\n" for name, value in PATIENT.items())
        for number in (1, 2, 3):
            path = directory / f"site-{number}.toml"
            path.write_text(f"{path.read_text()}\n[ring]\n{ring}")
        self.running: dict[int, asyncio.subprocess.Process] = {}

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Proxy[Any]]:
        try:
            await asyncio.gather(*map(self.start, (1, 2, 3)))
            config = ClientConfig(
                group="departing", replicas=tuple(self.addresses), key_file=self.directory / "group.key"
            )
            async with Client(Counter, config) as counter:
                yield counter
        finally:
            for process in self.running.values():
                process.kill()
            await asyncio.gather(*(process.communicate() for process in self.running.values()))

    async def start(self, number: int) -> None:
        self.running[number] = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", "replica", "--machine", "tests.rsm.machines:Counter"),
            *("--config", str(self.directory / f"site-{number}.toml")),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"ready")

    async def terminate(self, number: int) -> str:
        """What it says on its way out."""
        process = self.running.pop(number)
        process.send_signal(signal.SIGTERM)
        said, _ = await process.communicate()
        assert process.returncode == 0
        return said.decode()

    async def status(self, number: int) -> ReplicaStatus:
        keyring = read_keyring(self.directory / "group.key")
        status = await Peer(self.addresses[number - 1], keyring, group_id("departing"), 1).status()
        assert status is not None
        return status


def test_when_all_replicas_are_restarted_in_turn_then_nothing_is_lost_and_the_epoch_is_the_same(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        processes = Processes(tmp_path)
        async with processes.up() as counter:
            load = Load(counter)
            await load.some_more()
            assert (await processes.status(1)).view.startswith("1.")
            for number in (1, 2, 3):
                said = await processes.terminate(number)
                assert said.splitlines()[-1] == f"stopped: {Departure.RETIRED}"
                await load.some_more()
                await processes.start(number)
                await load.some_more()
            acknowledged = await load.end()
            assert acknowledged <= await counter.get() <= acknowledged + 1
            for number in (1, 2, 3):
                status = await processes.status(number)
                assert status.standing is Standing.SERVING
                assert status.view.startswith("1."), "some replica was missed, and an epoch ended"

    play(main())


def test_when_a_replica_gets_a_second_signal_then_it_stops_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(tmp_path)
        async with processes.up():
            for dead in (processes.running.pop(2), processes.running.pop(3)):
                dead.kill()
                await dead.communicate()
            process = processes.running.pop(1)
            assert process.stdout is not None
            process.send_signal(signal.SIGTERM)
            assert (await process.stdout.readline()).startswith(b"stopping: ")
            process.send_signal(signal.SIGTERM)
            assert (await process.stdout.read()).decode().splitlines() == [f"stopped: {Departure.LATE}"]
            assert await process.wait() == 0

    play(main())
