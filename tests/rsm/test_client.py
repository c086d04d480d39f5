"""Processes outside the group call its machine, whatever becomes of the replica they spoke to."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rsm.client import BlockingClient, Client, ClientConfig
from rsm.errors import CommandFailed, InvalidCall, OutcomeUnknown, Rejected, RsmError
from rsm.replica import Replica
from tests.rsm.machines import Counter, Hoard
from tests.rsm.test_replica import crash, group_of, play


def client_of(replicas: list[Replica[Any]], machine: type[Any] = Counter, **changes: Any) -> Client[Any]:
    addresses = tuple(replica.address for replica in replicas)
    return Client(machine, ClientConfig(group="tested", replicas=addresses, insecure=True, **changes))


def test_when_a_client_calls_then_it_gets_what_a_replica_would() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas, client_of(replicas) as counter:
            assert await counter.add(5) == 5
            assert await replicas[0].proxy.add(1) == 6
            assert await counter.get() == 6
            with pytest.raises(Rejected, match="too little"):
                await counter.subtract(50)
            with pytest.raises(CommandFailed, match="KeyError"):
                await counter.break_down(1)
            with pytest.raises(InvalidCall):
                await counter.add("five")

    play(main())


def test_when_many_clients_call_then_each_call_is_executed_once() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            clients = [client_of(replicas) for _ in range(3)]
            for client in clients:
                await client.open()
            calls = [client.proxy.add(1) for _ in range(200) for client in clients]
            assert sorted(await asyncio.gather(*calls)) == list(range(1, 601))
            for client in clients:
                client.close()

    play(main())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_when_a_replica_dies_under_way_then_every_call_is_answered_and_executed_once(place: int) -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas, client_of(replicas) as counter:
            assert await counter.add(1) == 1
            calls = [asyncio.ensure_future(counter.add(1)) for _ in range(300)]
            await calls[10]
            await crash(replicas[place])
            assert sorted(await asyncio.gather(*calls)) == list(range(2, 302))
            assert await counter.get() == 301

    play(main())


def test_when_the_group_is_gone_then_a_call_says_that_its_outcome_is_unknown() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas, client_of(replicas) as counter:
            await counter.add(1)
            for replica in replicas:
                await replica.stop()
            with pytest.raises(OutcomeUnknown, match="may still be executed"):
                await counter.with_options(timeout=0.3).add(1)
            with pytest.raises(TimeoutError):
                await counter.with_options(timeout=0.3).get()

    play(main())


def test_when_a_client_is_closed_then_its_calls_end() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            client = client_of(replicas)
            await client.open()
            await client.proxy.add(1)
            pending = client.execute(client.catalogue.command("add").bind((1,), {}))
            await asyncio.sleep(0)
            client.close()
            with pytest.raises(OutcomeUnknown):
                await pending

    play(main())


def test_when_a_program_has_no_event_loop_then_it_can_call_from_any_thread() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            addresses = tuple(replica.address for replica in replicas)
            config = ClientConfig(group="tested", replicas=addresses, insecure=True)

            def program() -> list[int]:
                with BlockingClient(Counter, config) as counter:
                    with ThreadPoolExecutor(4) as pool:
                        values = list(pool.map(lambda _: counter.add(1), range(40)))
                    with pytest.raises(Rejected):
                        counter.subtract(1000)
                    assert counter.with_options(timeout=5).get() == 40
                    assert counter.reading("get").timestamp > 0
                return values

            assert sorted(await asyncio.to_thread(program)) == list(range(1, 41))

    play(main())


@contextmanager
def silent_replica() -> Iterator[tuple[ClientConfig, socket.socket]]:
    """Takes connections and says nothing; and what a client of it is to know."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        yield ClientConfig(group="tested", replicas=(address,), insecure=True), listener


def test_when_a_blocking_client_is_closed_then_calls_of_other_threads_end_and_nothing_is_left() -> None:
    with silent_replica() as (config, listener), ThreadPoolExecutor(1) as pool:
        client = BlockingClient(Hoard, config)
        with client as hoard:
            asked = pool.submit(hoard.length, bytes(200_000))
            connection, _ = listener.accept()
        with connection, pytest.raises(OutcomeUnknown, match="this client was closed"):
            asked.result(timeout=10)
        assert not asyncio.all_tasks(client._loop)
        with pytest.raises(RsmError, match="this client was closed"):
            hoard.count()


def test_when_a_client_is_closed_while_it_asks_who_holds_a_slot_then_nobody_can_say() -> None:
    async def main() -> None:
        with silent_replica() as (config, listener):
            async with (client := Client(Hoard, config)):
                asked = asyncio.ensure_future(client.held(1, 0))
                connection, _ = await asyncio.to_thread(listener.accept)
            with connection:
                assert await asyncio.wait_for(asked, 10) is None

    play(main())


@asynccontextmanager
async def sealed_group(
    directory: Path, machine: type[Any]
) -> AsyncIterator[tuple[list[Replica[Any]], ClientConfig, ClientConfig]]:
    """A group with a key; a client's configuration with that, and one with another."""
    right, wrong = directory / "right", directory / "wrong"
    right.write_text("11" * 32)
    wrong.write_text("22" * 32)
    async with group_of(machine, insecure=False, key_file=right) as replicas:
        addresses = tuple(replica.address for replica in replicas)
        config = ClientConfig(group="tested", replicas=addresses, key_file=right)
        yield replicas, config, config.model_copy(update={"key_file": wrong})


def test_when_keys_are_used_then_only_who_has_them_is_heard(tmp_path: Path) -> None:
    async def main() -> None:
        async with sealed_group(tmp_path, Counter) as (replicas, config, stranger):
            async with Client(Counter, config) as counter:
                assert await counter.add(3) == 3
            async with Client(Counter, stranger) as counter:
                with pytest.raises(OutcomeUnknown):
                    await counter.with_options(timeout=0.3).add(1)
            assert await replicas[0].proxy.get() == 3

    play(main())


def test_when_a_client_is_closed_then_its_session_ends() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            one = replicas[0]
            before = len(one.executor.sessions)
            async with client_of(replicas) as counter:
                await counter.add(1)
                await one.proxy.add(1)
                assert len(one.executor.sessions) > before
                most = len(one.executor.sessions)
            async with asyncio.timeout(10):
                while len(one.executor.sessions) >= most:
                    await one.proxy.add(1)

    play(main())


def test_when_nobody_is_there_then_the_timeout_of_the_client_holds() -> None:
    async def main() -> None:
        config = ClientConfig(group="tested", replicas=("127.0.0.1:1",), insecure=True, timeout=0.2)
        async with Client(Counter, config) as counter:
            with pytest.raises(OutcomeUnknown, match=r"no answer within 0\.2 s"):
                await counter.add(1)

    play(main())
