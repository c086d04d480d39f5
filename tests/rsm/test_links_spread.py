"""To which replicas clients have their links, and how they come back."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from rsm import link_client
from rsm.client import Client, ClientConfig
from rsm.replica import Replica
from tests.rsm.test_links import Journal, client_of, linked
from tests.rsm.test_replica import crash, group_of, play, until


def preferred(client: Client[Any]) -> list[str]:
    return client._link._preferred()


async def cut(replica: Replica[Any]) -> None:
    """Break all links to a replica, once."""
    for link in list(replica._desk._exchange._links):
        link._stream.abort()


async def arrived(client: Client[Any], address: str) -> None:
    await until(lambda: client.linked_to == address and client._link.is_up)


def test_when_many_clients_are_linked_then_they_spread_and_spread_again_when_a_replica_dies() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            clients = [client_of(replicas) for _ in range(36)]
            for client in clients:
                await client.open()
            at = Counter([(await linked(client, replicas)).address for client in clients])
            assert len(at) == 3, at
            assert all(client.linked_to == preferred(client)[0] for client in clients)
            await crash(replicas[0])
            for client in clients:
                others = [each for each in preferred(client) if each != replicas[0].address]
                await arrived(client, others[0])
            at = Counter(client.linked_to for client in clients)
            assert set(at) == {replicas[1].address, replicas[2].address}, at
            for client in clients:
                await client.__aexit__()

    play(main())


def test_when_a_link_was_broken_then_it_goes_back_and_no_read_or_event_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_client, "HOME_SECONDS", 0.2)

    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                home = await linked(client, replicas)
                seen: list[str] = []
                over = asyncio.Event()

                async def follow() -> None:
                    async for feed in client.follow(Journal.since, 0):
                        seen.extend(text for _, text in feed.events)
                        if "end" in seen:
                            return

                async def read() -> None:
                    newest = 0
                    while not over.is_set():
                        count = await journal.count()
                        assert count >= newest
                        newest = count

                work = [asyncio.ensure_future(follow()), *(asyncio.ensure_future(read()) for _ in range(8))]
                for number in range(3):
                    made = client._link.made
                    await cut(home)
                    await arrived(client, preferred(client)[1])
                    await arrived(client, home.address)
                    assert client._link.made == made + 2
                    await journal.note(str(number))
                await journal.note("end")
                over.set()
                await asyncio.gather(*work)
                assert seen == ["0", "1", "2", "end"]

    play(main())


def test_when_who_is_preferred_does_not_serve_then_a_link_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_client, "HOME_SECONDS", 0.05)
    tried: list[str] = []
    serves = link_client.Link._serves

    async def noted(link: link_client.Link, address: str) -> bool:
        found = await serves(link, address)
        assert not found
        tried.append(address)
        return found

    monkeypatch.setattr(link_client.Link, "_serves", noted)

    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                await crash(await linked(client, replicas))
                await arrived(client, preferred(client)[1])
                made = client._link.made
                await until(lambda: len(tried) >= 3)
                assert set(tried) == {preferred(client)[0]}
                assert await journal.count() == 0
                assert client._link.made == made

    play(main())


def test_when_who_is_preferred_most_has_a_name_that_is_none_then_a_link_goes_back_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_client, "HOME_SECONDS", 0.05)
    odd = "a..b:7400"  # to look it up is no error of the network

    async def main() -> None:
        async with group_of(Journal) as replicas:
            addresses = (odd, *(replica.address for replica in replicas))
            while True:
                client = Client(Journal, ClientConfig(group="tested", replicas=addresses, insecure=True))
                async with client:
                    order = preferred(client)
                    if order[0] != odd:
                        continue
                    home = await linked(client, replicas)
                    assert home.address == order[1]
                    await cut(home)
                    await arrived(client, order[2])
                    await arrived(client, order[1])
                    return

    play(main())


def test_when_who_is_preferred_breaks_again_and_again_then_it_is_gone_back_to_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_client, "HOME_SECONDS", 0.02)
    monkeypatch.setattr(link_client, "HOME_SECONDS_MAX", 0.3)

    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client:
                home = await linked(client, replicas)
                found: list[float] = []
                for _ in range(6):
                    await cut(home)
                    await arrived(client, preferred(client)[1])
                    await arrived(client, home.address)
                    found.append(client._link._patience)
                assert found == sorted(found)
                assert found[-1] == 0.3
                await until(lambda: client._link._patience == 0.02)  # it has stayed

    play(main())
