"""The store on real replicas, asked from outside."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from apps.kv import Compare, Event, KeyValueStore, Put
from rsm.client import Client, ClientConfig
from rsm.errors import Rejected
from rsm.feeds import Feed
from rsm.replica import Replica
from tests.rsm.test_replica import group_of, play


def client_of(replicas: list[Replica[Any]]) -> Client[KeyValueStore]:
    addresses = tuple(replica.address for replica in replicas)
    return Client(KeyValueStore, ClientConfig(group="tested", replicas=addresses, insecure=True, timeout=20))


async def events_of(feeds: AsyncIterator[Feed[Event]], count: int) -> list[Event]:
    found: list[Event] = []
    async for feed in feeds:
        found += feed.events
        if len(found) >= count:
            break
    return found


def test_when_a_client_writes_and_follows_then_it_sees_what_happened_and_what_expired() -> None:
    async def main() -> None:
        async with group_of(KeyValueStore) as replicas:
            client = client_of(replicas)
            async with client as store:
                written = await store.put(b"a", b"1", ttl_ms=300)
                assert (await store.put(b"b", b"2")).created > written.revision
                with pytest.raises(Rejected) as refused:
                    await store.put(b"b", b"", 0)
                assert refused.value.message == "conflict"
                compare = [Compare(b"b", "exists", "=", True)]
                assert (await store.txn(compare, [Put(b"c", b"3")], [])).succeeded
                events = await events_of(client.follow(KeyValueStore.changes, 0), 4)
                assert [(event.key, event.value, event.expired) for event in events] == [
                    (b"a", b"1", False),
                    (b"b", b"2", False),
                    (b"c", b"3", False),
                    (b"a", None, True),
                ]
                assert await store.get(b"a") is None
                before = await store.get(b"a", written.revision)
                assert before is not None
                assert before.value == b"1"

    play(main())


def test_when_a_large_lease_ends_in_an_idle_group_then_all_its_keys_go_one_slot_after_the_other() -> None:
    async def main() -> None:
        async with group_of(KeyValueStore) as replicas:
            client = client_of(replicas)
            async with client as store:
                lease = (await store.lease_grant(60_000)).id
                for number in range(0, 2500, 100):
                    keys = [b"%05d" % each for each in range(number, number + 100)]
                    await store.txn([], [Put(key, b"", lease=lease) for key in keys], [])
                position = (await store.range(limit=1)).revision
                await store.lease_revoke(lease)
                events = await events_of(client.follow(KeyValueStore.changes, position), 2500)
                assert all(event.expired for event in events)
                assert len({event.revision for event in events}) == 3
                assert (await store.statistics()).keys == 0

    play(main())
