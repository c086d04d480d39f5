"""Links: reads that take no slot, and feeds, from whichever replica is there."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from ordering.errors import BulkCorrupt, BulkLost
from ordering.transports.bulk_tcp import BulkStream
from rsm import links
from rsm.client import Client, ClientConfig
from rsm.envelope import REFUSED
from rsm.errors import Refusal, Rejected
from rsm.feeds import Feed
from rsm.link_client import LinkLost
from rsm.links import Frames, Pulse, ReadLeft, ReadWanted, framed
from rsm.proxy import Consistency
from rsm.replica import Replica
from rsm.state_machine import StateMachine, command, query
from tests.rsm.test_replica import crash, group_of, play


class Journal(StateMachine):
    """Everything that was noted, and a feed of it."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, str]] = []
        self.first = 0

    @command
    def note(self, text: str) -> int:
        self.notes.append((self.context.timestamp, text))
        return self.context.timestamp

    @command
    def forget(self) -> None:
        self.first = self.notes[-1][0]
        self.notes.clear()

    @command
    def refuse(self) -> None:
        raise Rejected("never")

    @query
    def count(self) -> int:
        return len(self.notes)

    @query
    def since(self, slot: int, limit: int = 10) -> Feed[tuple[int, str]]:
        if slot < self.first:
            raise Rejected("compacted", {"first": self.first})
        found = [each for each in self.notes if each[0] > slot][:limit]
        return Feed(found, found[-1][0] if found else slot)


def client_of(replicas: list[Replica[Any]], timeout: float | None = 20) -> Client[Journal]:
    addresses = tuple(replica.address for replica in replicas)
    return Client(Journal, ClientConfig(group="tested", replicas=addresses, insecure=True, timeout=timeout))


async def linked(client: Client[Any], replicas: list[Replica[Any]]) -> Replica[Any]:
    """The replica at the other end."""
    await client._link.up()
    hello = client._link.hello
    assert hello is not None
    return next(each for each in replicas if each.address == hello.address)


@asynccontextmanager
async def unhandling(
    replicas: list[Replica[Any]],
) -> AsyncIterator[tuple[Client[Journal], Replica[Any]]]:
    """A client without a timeout that is linked to a replica which does not answer commands."""
    while True:
        client = client_of(replicas, timeout=None)
        async with client:
            replica = await linked(client, replicas)
            if not replica.status().handler:
                yield client, replica
                return


# -- reads ---------------------------------------------------------------------------------------


def test_when_a_client_reads_over_its_link_then_no_slot_is_taken_and_it_misses_nothing() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                await linked(client, replicas)
                for number in range(1, 20):
                    await journal.note("x")
                    assert await journal.count() == number
                before = replicas[0].executor.applied
                found = await asyncio.gather(*(journal.count() for _ in range(200)))
                assert found == [19] * 200
                assert replicas[0].executor.applied - before < 20  # the ring's own

    play(main())


def test_when_a_read_is_answered_then_it_says_by_whom_in_which_view_and_of_which_slot() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                replica = await linked(client, replicas)
                told = await journal.with_details().note("x")
                assert told.replica in {each.address for each in replicas}
                read = await journal.with_details().count()
                assert (read.replica, read.view) == (replica.address, replica.status().view)
                assert read.view == told.view
                assert read.timestamp >= told.timestamp

    play(main())


def test_when_there_is_no_majority_then_stale_reads_are_answered_and_say_how_old_they_are() -> None:
    async def main() -> None:
        async with group_of(Journal, ring={"minority_ms": 300}) as replicas:
            client = client_of(replicas)
            async with client as journal:
                await journal.note("x")
                await asyncio.gather(crash(replicas[1]), crash(replicas[2]))
                while replicas[0].is_serving:
                    await asyncio.sleep(0.02)
                stale = journal.with_options(consistency=Consistency.STALE).with_details()
                read = await stale.count()
                assert (read.value, read.replica) == (1, replicas[0].address)
                assert read.age_s > 0.2
                with pytest.raises(TimeoutError):
                    await journal.with_options(timeout=0.5).count()

    play(main())


def test_when_a_sequential_read_names_a_slot_then_it_waits_for_that() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                await linked(client, replicas)
                sequential = journal.with_options(consistency=Consistency.SEQUENTIAL)
                noted = [await replicas[0].proxy.note("x")]
                ahead = noted[0] + 20
                pending = asyncio.ensure_future(sequential.with_options(after=ahead).with_details().count())
                while noted[-1] < ahead:
                    noted.append(await replicas[0].proxy.note("x"))
                read = await pending
                assert read.timestamp >= ahead
                assert read.value >= len([slot for slot in noted if slot <= ahead])

    play(main())


@pytest.mark.parametrize("refused", [False, True])
def test_when_a_command_was_answered_then_a_sequential_read_of_its_client_misses_nothing_before_it(
    refused: bool,
) -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas, unhandling(replicas) as (client, replica):
            journal = client.proxy
            vars(replica)["_apply"] = lambda: None  # it has stopped to execute, and does not know
            if refused:
                await next(each for each in replicas if each is not replica).proxy.note("x")
                with pytest.raises(Rejected):
                    await journal.refuse()
            else:
                await journal.note("x")
            assert await journal.with_options(consistency=Consistency.SEQUENTIAL).count() == 1
            del vars(replica)["_apply"]

    play(main())


@pytest.mark.parametrize("name", ["refuse", "since"])
def test_when_a_call_is_refused_then_it_says_by_whom_in_which_view_and_in_which_slot(name: str) -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                replica = await linked(client, replicas)
                await journal.note("x")
                await journal.forget()
                before = await journal.note("x")
                asked = {"refuse": (), "since": (0,)}[name]
                with pytest.raises(Rejected) as refusal:
                    await getattr(journal.with_details(), name)(*asked)
                assert refusal.value.timestamp >= before
                assert refusal.value.replica in {each.address for each in replicas}
                assert refusal.value.view == replica.status().view

    play(main())


def test_when_the_linked_replica_dies_then_reads_go_on() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                replica = await linked(client, replicas)
                await journal.note("x")
                reading = asyncio.gather(*(journal.count() for _ in range(50)))
                await asyncio.sleep(0)
                await crash(replica)
                assert await reading == [1] * 50
                assert await journal.count() == 1
                assert (await linked(client, replicas)) is not replica

    play(main())


def test_when_the_linked_replica_greets_and_does_not_answer_then_it_is_left() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                replica = await linked(client, replicas)
                loop = asyncio.get_running_loop()
                vars(replica)["caught_up"] = loop.create_future  # it has stopped to execute
                made = client._link.made
                assert await journal.count() == 0
                while client._link.made == made:
                    await client._link.up()
                    await asyncio.sleep(0.01)
                assert (await linked(client, replicas)) is not replica

    play(main())


def test_when_a_reader_goes_away_then_the_replica_forgets_its_read() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                await linked(client, replicas)
                following = client.follow(Journal.since, 0)
                waiting = asyncio.ensure_future(anext(following))
                await asyncio.sleep(0.05)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                assert client._link._reads == {}
                assert await journal.count() == 0

    play(main())


# -- feeds ---------------------------------------------------------------------------------------


def test_when_a_feed_is_followed_then_everything_comes_once_and_in_order_whoever_dies() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                seen: list[str] = []

                async def follow() -> None:
                    async for feed in client.follow(Journal.since, 0):
                        seen.extend(text for _, text in feed.events)
                        if len(seen) >= 300:
                            return

                following = asyncio.ensure_future(follow())
                for number in range(300):
                    if number == 150:
                        await crash(await linked(client, replicas))
                    await journal.note(str(number))
                await following
                assert seen == [str(number) for number in range(300)]

    play(main())


def test_when_a_feed_is_followed_at_a_replica_then_it_needs_no_link() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            following = replicas[1].follow(Journal.since, 0, limit=2)
            waiting = asyncio.ensure_future(anext(following))
            for text in ("a", "b", "c"):
                await replicas[0].proxy.note(text)
            texts = [text for _, text in (await waiting).events]
            while len(texts) < 3:
                texts += [text for _, text in (await anext(following)).events]
            assert texts == ["a", "b", "c"]

    play(main())


def test_when_what_is_asked_for_is_forgotten_then_who_follows_is_told() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                await journal.note("x")
                await journal.forget()
                with pytest.raises(Rejected, match="compacted"):
                    await anext(client.follow(Journal.since, 0))

    play(main())


# -- bounds --------------------------------------------------------------------------------------


def _messages(count: int) -> Iterator[ReadWanted | ReadLeft | Pulse]:
    for number in range(count):
        yield ReadWanted(number, Consistency.STALE, 7, False, b"x" * (number % 50))
        yield ReadLeft(number)
        yield Pulse()


def test_however_a_stream_is_cut_then_its_messages_are_the_same() -> None:
    sent = list(_messages(50))
    stream = b"".join(map(framed, sent))
    chance = Random(3)
    for _ in range(20):
        frames = Frames(links.Asked, 1000)
        cuts = sorted(chance.choices(range(len(stream)), k=30))
        taken: list[Any] = []
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            taken += frames.take(stream[start:end])
        assert taken == sent


@pytest.mark.parametrize(
    "stream",
    [
        b"\xff\xff\xff\xff",
        (1001).to_bytes(4, "big"),
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x02\x91\x63",
        b"\x00\x00\x00\x00",
    ],
)
def test_when_a_message_is_too_long_or_unreadable_then_the_link_ends(stream: bytes) -> None:
    with pytest.raises(BulkCorrupt):
        list(Frames(links.Asked, 1000).take(stream))


def test_when_a_replica_has_enough_links_then_others_read_over_the_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "LINKS_MAX", 0)

    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                await journal.note("x")
                assert await journal.count() == 1
                assert not client._link.is_up
                with pytest.raises(LinkLost):
                    await client._link.read(b"", Consistency.STALE)

    play(main())


def test_when_a_client_asks_for_nonsense_over_a_link_then_only_that_read_fails() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                await linked(client, replicas)
                reading = await client._link.read(b"\xc1nonsense", Consistency.LINEARIZABLE)
                assert reading.reply == REFUSED[Refusal.UNREADABLE]
                assert await journal.count() == 0
                assert client._link.made == 1

    play(main())


async def _read_to_its_end(stream: BulkStream) -> None:
    async for _ in stream:
        pass


def test_when_a_number_is_used_twice_then_the_link_ends_and_the_replica_does_not() -> None:
    async def main() -> None:
        async with group_of(Journal) as replicas:
            client = client_of(replicas)
            async with client as journal:
                replica = await linked(client, replicas)
                loop = asyncio.get_running_loop()
                vars(replica)["caught_up"] = loop.create_future
                read = framed(ReadWanted(1, Consistency.LINEARIZABLE, 0, False, b""))
                async with client.peer(replica.address).linked() as stream:
                    await stream.send(read + read)
                    with pytest.raises(BulkLost):
                        await _read_to_its_end(stream)
                assert await journal.count() == 0

    play(main())
