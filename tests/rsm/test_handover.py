"""A state goes from replica to replica while commands flow: in chunks, and from whoever is there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ordering.effects import RequestState
from ordering.naming import group_id
from ordering.transports.bulk_tcp import BulkStream, serve_bulk
from rsm import handover, transfer
from rsm import replica as replica_module
from rsm.chunks import DIGEST_BYTES, Whole, name_of
from rsm.config import HANDLER
from rsm.errors import StateLost
from rsm.pace import restore
from rsm.replica import Replica
from rsm.spool import FileSpool, Spool
from rsm.state_machine import StateMachine, command, query
from rsm.status import Standing
from rsm.storage.errors import StorageFailed
from rsm.transfer import GIVEN_AT_ONCE, ChunkSent, Gifts, Offer, Peer, StateEnded, StateOffered, StateWanted
from tests.rsm.machines import Counter
from tests.rsm.test_replica import config, group_of, play
from tests.rsm.test_replica_lives import group_in, view_of


class Shelves(StateMachine):
    def __init__(self) -> None:
        self.shelves: dict[int, bytes] = {}

    @command
    def fill(self, first: int, count: int, size: int) -> int:
        chance = self.context.random
        for number in range(first, first + count):
            self.shelves[number] = chance.randbytes(size)
        return len(self.shelves)

    @command
    def put(self, number: int, value: bytes) -> int:
        self.shelves[number] = value
        return len(self.shelves)

    @query
    def get(self, number: int) -> bytes:
        return self.shelves[number]


async def fill(replica: Replica[Any], megabytes: int) -> None:
    for first in range(0, megabytes * 1_000, 500):
        await replica.proxy.fill(first, 500, 1_000)


def state_of(replica: Replica[Any]) -> bytes:
    return b"".join(replica.executor.machine.snapshot())


@asynccontextmanager
async def joining(replicas: list[Replica[Any]], **changes: Any) -> AsyncIterator[Replica[Any]]:
    contacts = tuple(replica.address for replica in replicas)
    joiner = Replica(type(replicas[0].executor.machine), config(contacts=contacts, **changes))
    try:
        await joiner.open()
        joiner.join((), contacts)
        yield joiner
    finally:
        await joiner.stop()


class Jam:
    """The first replica that gives a state away gets stuck on the way, until it is let go."""

    def __init__(self, replicas: list[Replica[Any]], chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.donor: Replica[Any] | None = None
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.chunks = chunks
        for replica in replicas:
            monkeypatch.setattr(replica.gifts, "sent", self._sent(replica, replica.gifts.sent))

    def _sent(self, replica: Replica[Any], sent: Callable[[int], Any]) -> Callable[[int], Any]:
        async def slowly(size: int) -> None:
            await sent(size)
            if self.donor is None:
                self.donor = replica
            if replica is self.donor and replica.gifts.chunks_sent == self.chunks:
                self.reached.set()
                await self.released.wait()

        return slowly

    async def until(self, joiner: Replica[Any]) -> None:
        """It is stuck, and what it has sent has come."""
        await self.reached.wait()
        while len(joiner._handover._spool.names()) < self.chunks * DIGEST_BYTES:
            await asyncio.sleep(0.001)


# -- while commands flow ---------------------------------------------------------------------------


def test_when_a_replica_joins_with_much_state_then_the_others_answer_all_the_time() -> None:
    async def main() -> None:
        async with group_of(Shelves) as replicas:
            await fill(replicas[0], 20)
            epoch = view_of(replicas[0]).epoch
            answered, at_chunk = 0, dict[int, int]()
            over = asyncio.Event()

            async def call(replica: Replica[Any]) -> None:
                nonlocal answered
                while not over.is_set():
                    await replica.proxy.put(answered % 1_000, b"%d" % answered)
                    answered += 1
                    at_chunk.setdefault(sum(each.gifts.chunks_sent for each in replicas), answered)

            callers = [asyncio.ensure_future(call(replica)) for replica in replicas]
            async with joining(replicas) as joiner:
                await joiner.ready()
                over.set()
                await asyncio.gather(*callers)
                sent = sum(replica.gifts.bytes_sent for replica in replicas)
                assert sent > 20_000_000
                # Between any few chunks somebody was answered: nothing was made or sent in one go.
                assert len(at_chunk) > sum(each.gifts.chunks_sent for each in replicas) / 10
                last = max(replica.executor.applied for replica in replicas)
                await asyncio.gather(*(each.when_applied(last) for each in (*replicas, joiner)))
                states = {state_of(each) for each in (*replicas, joiner)}
                assert len(states) == 1
                assert view_of(joiner).epoch == epoch, "somebody was suspected"

    play(main())


def test_when_a_state_is_wanted_then_who_answers_clients_is_asked_last() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            await replicas[0].proxy.add(1)
            asked: list[str] = []

            def nowhere(address: str) -> Peer:
                asked.append(address)
                return Peer("127.0.0.1:9", None, group_id("tested"), 2)

            group = group_in(replicas[0])
            donors = tuple(replica.member.site for replica in replicas)
            wanted = RequestState(1, view_of(replicas[0]).chain, donors)
            assert await replicas[0]._handover.fetch(wanted, group, "", nowhere) is None
            (holder,) = (each for each in replicas if each.member.site == group.handler(HANDLER))
            assert sorted(asked) == sorted(replica.address for replica in replicas)
            assert asked[-1] == holder.address

    play(main())


def test_when_there_is_much_to_catch_up_with_then_it_is_done_turn_by_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            monkeypatch.setattr(replica_module, "TURN_SECONDS", 0.0)  # one delivery in a turn
            intake = three._intake
            intake.hold()
            for _ in range(30):
                await one.proxy.add(1)
            reading = asyncio.ensure_future(three.proxy.get())
            await two.proxy.add(1)
            most, current, resume = 0, three.executor.machine, three._resume
            assert isinstance(current, Counter)

            def watched(of: Any) -> None:
                nonlocal most
                before = current.value
                resume(of)
                most = max(most, current.value - before)

            monkeypatch.setattr(three._handover, "_resume", watched)
            intake.release()
            watched(intake)
            assert await reading >= 30
            await three.when_applied(one.executor.applied)
            assert 1 <= most <= 2

    play(main())


def test_when_a_picture_is_taken_then_a_read_waits_for_what_was_answered_elsewhere() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, _, three):
            three._intake.hold()
            assert await one.proxy.add(7) == 7
            reading = asyncio.ensure_future(three.proxy.get())
            while not three._reads._ready:
                await asyncio.sleep(0.001)
            three._listen([])
            assert not reading.done()
            three._intake.release()
            three._resume(three._intake)
            assert await reading == 7

    play(main())


def test_when_nothing_is_executed_for_a_while_then_the_engine_knows_how_much_waits() -> None:
    async def main() -> None:
        async with group_of(Shelves) as (one, _, three):
            site = group_in(three)._engine.site
            three._intake.hold()
            for number in range(60):
                await one.proxy.put(number, bytes(50_000))
            async with asyncio.timeout(5):
                while site.backlog < 2_000_000:
                    await asyncio.sleep(0.001)
            three._intake.release()
            three._resume(three._intake)
            await three.when_applied(one.executor.applied)
            three._listen([])
            assert site.backlog == 0

    play(main())


# -- what breaks -----------------------------------------------------------------------------------


def test_when_the_donor_dies_on_the_way_then_another_one_gives_only_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with group_of(Shelves, sites=3) as replicas:
            await fill(replicas[0], 8)
            jam = Jam(replicas, 30, monkeypatch)
            async with joining(replicas) as joiner:
                await jam.until(joiner)
                assert jam.donor is not None
                await jam.donor.stop()
                await joiner.ready()
                (other,) = (each for each in replicas if each.gifts.chunks_known)
                total = other.gifts.chunks_known + other.gifts.chunks_sent
                assert other is not jam.donor
                assert total > 50
                assert other.gifts.chunks_known >= 28  # all but what the executor itself keeps
                assert state_of(joiner) == state_of(other)

    play(main())


def test_when_a_joiner_with_a_disk_dies_on_the_way_then_it_needs_only_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        replicas = [Replica(Shelves, config(mode="durable", data=tmp_path / f"{n}")) for n in range(3)]
        try:
            for replica in replicas:
                await replica.open()
            for replica in replicas:
                replica.join([each.address for each in replicas])
            await asyncio.gather(*(replica.ready() for replica in replicas))
            await fill(replicas[0], 8)
            jam = Jam(replicas, 30, monkeypatch)
            place = {"mode": "durable", "data": tmp_path / "joiner"}
            async with joining(replicas, **place) as joiner:
                await jam.until(joiner)
                address = joiner.address
            assert (tmp_path / "joiner" / "incoming").stat().st_size > 20 * 50_000
            jam.released.set()
            async with joining(replicas, **place, bind=address) as joiner:
                await joiner.ready()
                assert sum(each.gifts.chunks_known for each in replicas) >= 28
                assert state_of(joiner) == state_of(replicas[0])
                assert not (tmp_path / "joiner" / "incoming").exists()
                saved = joiner.executor.applied
            # What was saved is what came: it comes back from its own disk.
            async with joining(replicas, **place, bind=address) as joiner:
                assert 0 < joiner.executor.applied <= saved
                await joiner.ready()
                assert state_of(joiner) == state_of(replicas[0])
        finally:
            for replica in replicas:
                await replica.stop()

    play(main())


@pytest.mark.parametrize("mode", ["memory", "durable"])
def test_when_too_much_waits_for_a_state_then_it_is_let_go_and_a_later_state_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    async def main() -> None:
        room = 200_000
        monkeypatch.setattr(handover, "WAITING_BYTES", room)
        async with group_of(Shelves) as replicas:
            await fill(replicas[0], 4)
            jam = Jam(replicas, 10, monkeypatch)
            async with joining(replicas, mode=mode, data=tmp_path if mode == "durable" else None) as joiner:
                await jam.until(joiner)
                intake = joiner._intake
                most = 0
                while intake.forgotten < 2 * room // 1_000:  # it has happened more than once
                    await asyncio.gather(*(replicas[0].proxy.put(n, bytes(1_000)) for n in range(20)))
                    most = max(most, intake.backlog)
                assert most < 4 * room
                jam.released.set()
                await joiner.ready()
                assert joiner.executor.applied > intake.forgotten
                assert await joiner.proxy.put(5_000, b"") == 4_001
                await asyncio.gather(*(each.when_applied(joiner.executor.applied) for each in replicas))
                assert {state_of(each) for each in replicas} == {state_of(joiner)}
                # Most of what the first attempt brought was not sent again.
                assert sum(each.gifts.chunks_known for each in replicas) >= 8

    play(main())


class Giver:
    """Stands for a donor that sends what it is told; on real sockets."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts

    async def __call__(self, stream: BulkStream) -> None:
        async for _ in stream:
            pass
        for part in self.parts:
            await stream.send(part)


GOOD = [bytes([number]) * 1_000 for number in range(3)]


def framed(chunk: bytes, name: bytes | None = None) -> bytes:
    return transfer._framed(ChunkSent(name or name_of(chunk), len(chunk))) + chunk


def ended(chunks: list[bytes], ts: int = 9) -> bytes:
    whole = Whole(ts)
    for chunk in chunks:
        whole.add(name_of(chunk), len(chunk))
    return transfer._framed(StateEnded(whole.chunks, whole.length, whole.digest()))


OFFER = transfer._framed(StateOffered(9))


async def given(spool: Spool, *parts: bytes) -> Offer | None:
    await spool.open()
    async with await serve_bulk("127.0.0.1", 0, None, Giver(*parts), boot=1) as server:
        peer = Peer(f"127.0.0.1:{server.port}", None, group_id("tested"), 2)
        return await peer.state(StateWanted(1, 1), spool)


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ((OFFER, framed(GOOD[0]), framed(GOOD[1], name_of(GOOD[2]))), 1),
        ((OFFER, framed(GOOD[0]), framed(GOOD[1]), ended(GOOD)), 2),
        ((OFFER, framed(GOOD[0]), framed(GOOD[1]), ended([GOOD[1], GOOD[0]])), 2),
        ((OFFER, framed(GOOD[0]), framed(GOOD[1]), ended(GOOD[:2], ts=8)), 2),
        ((OFFER, framed(GOOD[0]), framed(GOOD[1])[:-1]), 1),
        ((OFFER, framed(GOOD[0]), transfer._framed(ChunkSent(name_of(b""), 1 << 30))), 1),
        ((OFFER, transfer._framed(transfer.ChunkKnown(name_of(GOOD[0]), 1_000)), ended(GOOD[:1])), 0),
        ((OFFER, OFFER), 0),
        ((framed(GOOD[0]), OFFER), 0),
        ((OFFER, b"\xff\xff\xff\xff"), 0),
        ((OFFER, b"\0\0\0\2\xff\xff"), 0),
        ((b"\0\0",), 0),
        ((), 0),
    ],
)
def test_when_what_comes_is_not_what_it_says_then_it_is_refused_and_the_rest_is_kept(
    parts: tuple[bytes, ...], kept: int
) -> None:
    async def main() -> None:
        spool = Spool()
        assert await given(spool, *parts) is None
        assert spool.names() == b"".join(map(name_of, GOOD[:kept]))

    play(main())


def test_when_all_that_comes_is_right_then_it_is_offered(tmp_path: Path) -> None:
    async def main() -> None:
        for spool in (Spool(), FileSpool(tmp_path / "incoming")):
            twice = [*GOOD, GOOD[0]]
            known = transfer._framed(transfer.ChunkKnown(name_of(GOOD[0]), len(GOOD[0])))
            offer = await given(spool, OFFER, *map(framed, GOOD), known, ended(twice))
            assert offer is not None
            assert (offer.ts, list(offer.chunks)) == (9, twice)
            spool.close()

    play(main())


def test_when_the_disk_cannot_keep_what_comes_then_the_replica_halts(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            group_of(Counter) as replicas,
            joining(replicas, mode="durable", data=tmp_path / "d") as joiner,
        ):
            (tmp_path / "d" / "incoming").mkdir()
            with pytest.raises(StorageFailed, match="a state that comes in cannot be kept"):
                await joiner.ended()

    play(main())


# -- bounds ----------------------------------------------------------------------------------------


async def asked(replica: Replica[Any], spool: Spool) -> Offer | None:
    peer = Peer(replica.address, None, group_id("tested"), 2)
    return await peer.state(StateWanted(view_of(replica).chain, 1), spool)


def test_when_a_replica_gives_to_many_already_then_it_refuses_one_more() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, *_):
            taken = [one.gifts.one() for _ in range(GIVEN_AT_ONCE)]
            assert all(each.__enter__() for each in taken)
            assert await asked(one, Spool()) is None
            taken.pop().__exit__(None, None, None)
            assert await asked(one, Spool()) is not None

    play(main())


def test_when_somebody_takes_a_state_too_slowly_then_it_is_left_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with group_of(Shelves) as (one, *_):
            await fill(one, 1)
            spool = Spool()
            with monkeypatch.context() as patched:
                patched.setattr(transfer, "PATIENCE_SECONDS", 0.0)
                patched.setattr(transfer, "BYTES_PER_S_MIN", 1 << 50)
                assert await asked(one, spool) is None
            async with asyncio.timeout(5):
                while one.gifts.under_way:
                    await asyncio.sleep(0.001)
            assert one._bulk.counters["BulkTimeout"] == 1
            assert spool.size > 0
            assert await asked(one, spool) is not None

    play(main())


def test_when_a_rate_is_set_then_sending_takes_its_time() -> None:
    async def main() -> None:
        gifts = Gifts(1_000_000)
        clock = asyncio.get_running_loop().time
        began = clock()
        await asyncio.gather(*(gifts.sent(10_000) for _ in range(20)))
        assert clock() - began >= 0.19
        assert gifts.bytes_per_s_min < 1_000_000

    play(main())


def test_when_a_state_is_not_wanted_any_more_then_restoring_it_ends() -> None:
    async def main() -> None:
        async with group_of(Shelves) as (one, *_):
            await fill(one, 2)
            offer = await one.offer(StateWanted(view_of(one).chain, 1))
            assert offer is not None
            chunks, read = list(offer.chunks), 0

            def counted() -> Any:
                nonlocal read
                for chunk in chunks:
                    read += 1
                    yield chunk

            with pytest.raises(StateLost, match="not wanted"):
                await restore(one._new_executor(), counted(), lambda: read < 3)
            assert read == 3

    play(main())


def test_when_another_state_is_wanted_then_what_was_fetched_before_is_given_up_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with group_of(Shelves) as replicas:
            await fill(replicas[0], 4)
            jam = Jam(replicas, 10, monkeypatch)
            async with joining(replicas) as joiner:
                await jam.until(joiner)
                wanted = joiner._wanted
                assert wanted is not None
                assert joiner.status().standing is Standing.FETCHING
                # By hand: the ring asks again, for a later slot. The first donor never gets on.
                joiner._hear(RequestState(wanted.ts, wanted.chain, wanted.donors))
                async with asyncio.timeout(20):  # the channel would give up after 30 s
                    await joiner.ready()
                assert not jam.released.is_set()
                assert sum(each.gifts.chunks_known for each in replicas) >= 8  # not what the executor keeps

    play(main())
