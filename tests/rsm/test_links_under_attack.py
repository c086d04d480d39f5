"""Links whose other end is slow, wrong, gone or greedy, and readers who ask for what is not there."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest

from ordering.errors import BulkLost, MessageTooLarge, NotMember, Overloaded
from ordering.transports.bulk_tcp import BulkLimits, BulkStream
from rsm import link_client, links
from rsm.client import BlockingClient, Client, ClientConfig
from rsm.envelope import Language
from rsm.errors import ChainChanged, Refused, Rejected, RsmError
from rsm.feeds import Feed
from rsm.links import Asked, Frames, ReadAnswered, ReadLeft, ReadWanted, Said, framed
from rsm.methods import Catalogue
from rsm.operations import ForkWanted, Progress
from rsm.proxy import Consistency
from rsm.replica import Replica
from rsm.state_machine import StateMachine, command, query
from rsm.status import Standing
from rsm.transfer import CallWanted
from tests.rsm.test_links import linked
from tests.rsm.test_replica import crash, group_of, play, until

MIB = 1 << 20
made: list[int] = []  # sizes of blobs


class Notes(StateMachine):
    """A feed that leaves out what does not match, and then says how far it has looked."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, str]] = []
        self.first = 0
        self.last = 0

    @command
    def note(self, text: str) -> int:
        self.last = self.context.timestamp
        self.notes.append((self.last, text))
        return self.last

    @command
    def forget(self) -> None:
        self.first = self.last
        self.notes.clear()

    @command
    def refuse(self, text: str) -> None:
        self.note(text)  # it is not atomic: this stays
        raise Rejected("noted all the same")

    @query
    def count(self) -> int:
        return len(self.notes)

    @query
    def matching(self, slot: int, text: str) -> Feed[tuple[int, str]]:
        if slot < self.first:
            raise Rejected("compacted", {"first": self.first})
        found = [each for each in self.notes if each[0] > slot and each[1].startswith(text)]
        return Feed(found, self.last)

    @query
    def blob(self, size: int) -> bytes:
        made.append(size)
        return bytes(size)

    @query
    def exhaust(self) -> int:
        raise MemoryError


class NewerNotes(Notes):
    @query
    def newest(self) -> str:
        return self.notes[-1][1]

    @query
    def newer(self, slot: int) -> Feed[str]:
        return Feed([], slot)


LANGUAGE = Language(Catalogue(Notes))


def client_of(
    replicas: list[Replica[Any]], machine: type[Notes] = Notes, timeout: float | None = 20
) -> Client[Any]:
    addresses = tuple(replica.address for replica in replicas)
    return Client(machine, ClientConfig(group="tested", replicas=addresses, insecure=True, timeout=timeout))


@asynccontextmanager
async def group_and_client(**changes: Any) -> AsyncIterator[tuple[list[Replica[Any]], Client[Any]]]:
    async with group_of(Notes, **changes) as replicas:
        client = client_of(replicas)
        async with client:
            await linked(client, replicas)
            yield replicas, client


async def link_to(client: Client[Any], replica: Replica[Any]) -> None:
    """Have it there, and nowhere else."""
    link = client._link
    link._addresses = lambda: (replica.address,)
    await link.up()
    while link.hello is None or link.hello.address != replica.address:
        assert link._keeping is not None
        link._keeping.cancel()
        await link.closed()
        link._keeping = None
        await link.up()


def not_the_handler(replicas: list[Replica[Any]]) -> Replica[Any]:
    return next(each for each in replicas if not each.status().handler)


def stale(number: int, name: str, *args: Any) -> bytes:
    bound = Catalogue(Notes).query(name).bind(args, {})
    return framed(ReadWanted(number, Consistency.STALE, 0, False, LANGUAGE.encode_query(bound)))


# -- what was answered -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["note", "refuse"])
def test_when_a_client_has_no_timeout_then_its_sequential_reads_see_its_commands_as_well(name: str) -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas:
            client = client_of(replicas, timeout=None)
            async with client as notes:
                lagging = not_the_handler(replicas)
                await link_to(client, lagging)
                assert await notes.count() == 0
                lagging._intake.hold()
                with suppress(Rejected):
                    await getattr(notes, name)("x")
                client._link._addresses = lambda: client.addresses
                sequential = notes.with_options(consistency=Consistency.SEQUENTIAL)
                assert await sequential.count() == 1
                lagging._intake.release()

    play(main())


def test_when_a_slot_is_named_that_is_far_ahead_then_who_named_it_waits_and_nobody_else() -> None:
    async def main() -> None:
        async with group_and_client() as (replicas, client):
            far = client.proxy.with_options(consistency=Consistency.SEQUENTIAL, after=1 << 40)
            waiting = asyncio.ensure_future(far.with_options(timeout=2.5).count())
            before = replicas[0].executor.applied
            while not waiting.done():
                assert await client.proxy.count() == 0
                await asyncio.sleep(0.02)
            with pytest.raises(TimeoutError):
                await waiting
            assert client._link.made == 1
            assert replicas[0].executor.applied - before < 10  # no read was ordered

    play(main())


def test_when_one_read_takes_too_long_then_it_goes_another_way_and_the_link_stays() -> None:
    async def main() -> None:
        async with group_and_client() as (replicas, client):
            replica = await linked(client, replicas)
            calls = count()
            caught_up = replica.caught_up
            never = asyncio.get_running_loop().create_future()
            vars(replica)["caught_up"] = lambda: caught_up() if next(calls) else never
            late = asyncio.ensure_future(client.proxy.count())
            await asyncio.sleep(0.01)
            while not late.done():
                assert await client.proxy.count() == 0
                await asyncio.sleep(0.05)
            assert await late == 0
            assert client._link.made == 1

    play(main())


def test_when_the_view_changes_then_the_next_answer_says_so() -> None:
    async def main() -> None:
        async with group_and_client() as (replicas, client):
            replica = await linked(client, replicas)
            before = replica.status().view
            await crash(next(each for each in replicas if each is not replica))
            while replica.status().view == before:
                await asyncio.sleep(0)
            read = await client.proxy.with_options(consistency=Consistency.STALE).with_details().count()
            assert read.view == replica.status().view

    play(main())


# -- readers that have no answer -------------------------------------------------------------------


def test_when_too_many_reads_are_under_way_then_the_next_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_client, "UNDER_WAY_MAX", 3)

    async def main() -> None:
        async with group_and_client() as (_, client):
            following = [
                asyncio.ensure_future(anext(client.follow(Notes.matching, 0, "x"))) for _ in range(3)
            ]
            await asyncio.sleep(0.05)
            with pytest.raises(Overloaded):
                await client.proxy.with_options(consistency=Consistency.STALE).count()
            with pytest.raises(Overloaded):
                await anext(client.follow(Notes.matching, 0, "x"))
            assert await client.proxy.count() == 0  # it goes over the ring
            await client.proxy.note("x")
            for each in following:
                assert len((await each).events) == 1

    play(main())


def test_when_a_client_is_closed_then_who_waits_for_a_link_or_a_feed_is_told() -> None:
    async def main() -> None:
        async with group_and_client() as (replicas, client):
            following = asyncio.ensure_future(anext(client.follow(Notes.matching, 0, "x")))
            await asyncio.sleep(0.05)
            nobody = client_of(replicas)
            nobody.config = nobody.config.model_copy(update={"replicas": ("127.0.0.1:9",)})
            await nobody.open()
            waiting = asyncio.ensure_future(
                nobody.proxy.with_options(consistency=Consistency.STALE, timeout=None).count()
            )
            await asyncio.sleep(0.05)
            client.close()
            await nobody.__aexit__()
            for each in (following, waiting):
                with pytest.raises(RsmError, match="closed"):
                    await each
            with pytest.raises(RsmError, match="closed"):
                await anext(client.follow(Notes.matching, 0, "x"))

    play(main())


def test_when_a_blocking_client_is_left_then_stale_reads_of_other_threads_end() -> None:
    config = ClientConfig(group="tested", replicas=("127.0.0.1:9",), insecure=True)
    errors: list[BaseException] = []
    begun = threading.Event()

    def read(notes: Any) -> None:
        begun.set()
        try:
            notes.with_options(consistency=Consistency.STALE).count()
        except RsmError as error:
            errors.append(error)

    with BlockingClient(Notes, config) as notes:
        thread = threading.Thread(target=read, args=(notes,))
        thread.start()
        begun.wait()
    thread.join(20)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_when_the_replicas_do_not_know_a_query_then_it_is_refused_at_every_consistency() -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas:
            client = client_of(replicas, NewerNotes)
            async with client as notes:
                await linked(client, replicas)
                for consistency in Consistency:
                    with pytest.raises(Refused):
                        await notes.with_options(consistency=consistency).newest()
                with pytest.raises(Refused):
                    await anext(client.follow(NewerNotes.newer, 0))
                assert client._link.made == 1

    play(main())


def test_when_a_query_is_too_large_then_it_fails_and_the_link_stays() -> None:
    async def main() -> None:
        async with group_and_client(message_bytes_max=10_000) as (_, client):
            text = "x" * 20_000
            with pytest.raises(MessageTooLarge):
                await client.proxy.with_options(consistency=Consistency.STALE).matching(0, text)
            assert (await client.proxy.matching(0, text)).events == []  # the ring takes it
            with pytest.raises(MessageTooLarge):
                await anext(client.follow(Notes.matching, 0, text))
            assert client._link.made == 1

    play(main())


def test_when_a_replica_stops_then_who_waits_at_it_gets_an_error_and_is_not_cancelled() -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas:
            replica = replicas[0]
            far = replica.proxy.with_options(consistency=Consistency.SEQUENTIAL, after=1 << 40)
            waiting = [
                asyncio.ensure_future(far.count()),
                asyncio.ensure_future(anext(replica.follow(Notes.matching, 0, "x"))),
            ]
            await asyncio.sleep(0.05)
            await crash(replica)
            for each in waiting:
                with pytest.raises(NotMember):
                    await each

    play(main())


def test_when_a_replica_is_removed_and_comes_back_then_who_waits_at_it_looks_again() -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas:
            one, two, _ = replicas
            ahead = two.executor.applied + 60  # of another chain it might never come
            slot = two.when_applied(1 << 40)
            following = asyncio.ensure_future(anext(two.follow(Notes.matching, 0, "x")))
            sequential = two.proxy.with_options(consistency=Consistency.SEQUENTIAL, after=ahead)
            waiting = asyncio.ensure_future(sequential.with_details().count())
            await asyncio.sleep(0)
            await one.remove(two.address, 20, force=True)
            await slot
            await one.proxy.note("x")
            assert len((await following).events) == 1
            while one.executor.applied < ahead:
                assert not waiting.done()
                await one.proxy.note("x")
            assert (await waiting).timestamp >= ahead

    play(main())


def test_when_an_address_is_none_then_the_link_is_made_to_another() -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas:
            client = client_of(replicas)
            async with client:
                peer = client._link._peer
                asked = count()

                def failing(address: str) -> Any:
                    if next(asked) < 2:
                        raise ValueError(address)
                    return peer(address)

                client._link._peer = failing
                await linked(client, replicas)

    play(main())


# -- a client that asks too much -------------------------------------------------------------------


async def _answers(stream: BulkStream, wanted: int) -> list[ReadAnswered]:
    frames = Frames(Said, 64 * MIB)
    found: list[ReadAnswered] = []
    async for chunk in stream:
        found += [said for said in frames.take(chunk) if isinstance(said, ReadAnswered)]
        if len(found) >= wanted:
            break
    return found


def test_when_a_client_never_reads_its_answers_then_few_are_made_and_its_link_is_given_up() -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas:
            replica = replicas[0]
            replica._bulk._limits = BulkLimits(stall_ms=500)
            client = client_of(replicas)
            async with client.peer(replica.address).linked() as stream:
                made.clear()
                await stream.send(b"".join(stale(number, "blob", MIB) for number in range(400)))
                await until(lambda: made)
                await stream.send(stale(1000, "blob", MIB))
                await until(lambda: replica._desk._exchange.links == 0)
                assert len(made) < 50
                stream.abort()

    play(main())


def test_when_a_client_asks_for_much_at_once_then_it_gets_all_of_it_as_it_reads() -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas:
            client = client_of(replicas)
            async with client.peer(replicas[0].address).linked() as stream:
                await stream.send(b"".join(stale(number, "blob", MIB) for number in range(100)))
                found = await _answers(stream, 100)
                assert [each.number for each in found] == list(range(100))
                assert all(len(each.reply) > MIB for each in found)
                stream.abort()

    play(main())


def test_when_a_query_has_no_memory_then_its_link_ends_and_the_others_go_on() -> None:
    async def main() -> None:
        async with group_and_client() as (replicas, client):
            replica = await linked(client, replicas)
            async with client.peer(replica.address).linked() as stream:
                await stream.send(stale(1, "exhaust"))
                with pytest.raises(BulkLost):
                    await _answers(stream, 1)
            assert await client.proxy.with_options(consistency=Consistency.STALE).count() == 0
            assert replica.status().standing is Standing.SERVING

    play(main())


def test_when_all_links_and_all_calls_are_taken_then_other_questions_find_a_place() -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas, AsyncExitStack() as stack:
            replica = replicas[0]
            client = client_of(replicas)
            peer = client.peer(replica.address)
            streams = [await stack.enter_async_context(peer.linked()) for _ in range(links.LINKS_MAX)]
            ahead = LANGUAGE.encode(1, 1, 0, Catalogue(Notes).command("forget").bind((), {}))
            for _ in range(32):
                asked = peer._asked(CallWanted(ahead, 1 << 40))
                streams.append(await stack.enter_async_context(asked))
            await until(lambda: len(replica._bulk._serving) >= 64)
            assert await peer.status() is not None
            for stream in streams:
                stream.abort()

    play(main())


def test_however_reads_and_farewells_come_then_nothing_of_them_stays() -> None:
    async def main() -> None:
        async with group_of(Notes) as replicas:
            replica = replicas[0]
            client = client_of(replicas)
            bound = Catalogue(Notes).query("matching").bind((0, "x"), {})
            message = LANGUAGE.encode_query(bound)
            async with client.peer(replica.address).linked() as stream:
                for number in range(1000):
                    ahead = ReadWanted(2 * number, Consistency.SEQUENTIAL, 1 << 40, False, message)
                    waits = ReadWanted(2 * number + 1, Consistency.SEQUENTIAL, 0, True, message)
                    asked: list[Asked] = [ahead, waits, ReadLeft(2 * number), ReadLeft(2 * number + 1)]
                    await stream.send(b"".join(map(framed, asked)))
                await stream.send(stale(5000, "count"))
                assert len(await _answers(stream, 1)) == 1
                (link,) = replica._desk._exchange._links
                assert (link._under_way, link._later, link._feeds) == ({}, {}, {})
                assert len(replica._applied._waiting) < 100
                stream.abort()

    play(main())


# -- feeds -----------------------------------------------------------------------------------------


def test_when_nothing_matches_for_long_then_a_feed_is_not_left_behind_by_what_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "PROGRESS_SECONDS", 0.1, raising=False)

    async def main() -> None:
        async with group_and_client() as (replicas, client):
            notes = client.proxy
            following = asyncio.ensure_future(anext(client.follow(Notes.matching, 0, "wanted")))
            for _ in range(10):
                await notes.note("other")
            await asyncio.sleep(1.5)
            await notes.forget()
            await crash(await linked(client, replicas))
            await notes.note("wanted")
            assert [text for _, text in (await following).events] == ["wanted"]

    play(main())


def test_when_a_feed_goes_on_at_a_replica_that_lags_then_nothing_comes_twice() -> None:
    async def main() -> None:
        async with group_and_client() as (replicas, client):
            lagging = not_the_handler(replicas)
            await link_to(client, next(each for each in replicas if each is not lagging))
            following = client.follow(Notes.matching, 0, "")
            await client.proxy.note("first")
            lagging._intake.hold()
            await client.proxy.note("second")
            seen: list[str] = []
            while len(seen) < 2:
                seen += [text for _, text in (await anext(following)).events]
            more = asyncio.ensure_future(anext(following))
            await link_to(client, lagging)
            await asyncio.sleep(0.2)
            lagging._intake.release()
            lagging._resume(lagging._intake)
            await client.proxy.note("third")
            seen += [text for _, text in (await more).events]
            assert seen == ["first", "second", "third"]

    play(main())


def test_when_the_group_forks_then_who_follows_is_told_and_sequential_reads_do_not_wait() -> None:
    async def main() -> None:
        async with group_of(Notes, ring={"minority_ms": 300}) as replicas:
            client = client_of(replicas)
            async with client as notes:
                await notes.note("before")
                one, two, three = replicas
                await link_to(client, one)
                assert await notes.count() == 1
                following = client.follow(Notes.matching, 0, "")
                assert len((await anext(following)).events) == 1
                more = asyncio.ensure_future(anext(following))
                chain = int(one.status().chain, 16)
                client._calls.seen = 1 << 40  # what only the others had
                asked = notes.with_options(consistency=Consistency.SEQUENTIAL, timeout=15).count()
                under_way = asyncio.ensure_future(asked)
                await asyncio.sleep(0)
                await asyncio.gather(crash(two), crash(three))
                await until(lambda: one.status().standing is Standing.CUT_OFF)
                while True:
                    outcome = await client.peer(one.address).order(ForkWanted(chain))
                    if outcome is not None and outcome.progress is Progress.DONE:
                        break
                await until(lambda: one.is_serving)
                await one.proxy.note("after")
                with pytest.raises(ChainChanged):
                    await more
                sequential = notes.with_options(consistency=Consistency.SEQUENTIAL, timeout=5)
                assert await sequential.count() == 2
                began = asyncio.get_running_loop().time()
                for _ in range(10):
                    assert await sequential.count() == 2
                assert asyncio.get_running_loop().time() - began < 1.0
                assert await under_way in {1, 2}

    play(main())
