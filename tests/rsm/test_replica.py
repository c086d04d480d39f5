"""Replicas in one process and in several, on real sockets."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from ordering.driver import run
from ordering.effects import CallRepeated
from ordering.errors import NoPrimary, NotMember, Overloaded
from ordering.events import Reply
from ordering.packets import Call
from ordering.views import SiteId
from rsm.config import ReplicaConfig
from rsm.departure import Departure
from rsm.errors import CommandFailed, Diverged, InvalidCall, MismatchedMachine, Rejected
from rsm.executor import CHECKPOINT_SLOTS
from rsm.proxy import Consistency
from rsm.replica import Replica
from rsm.state_machine import StateMachine
from tests.rsm.machines import Counter, Echo, Ledger, Old

T = TypeVar("T")
SECONDS = 60


def play(main: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(SECONDS):
            return await main

    return run(bounded())


async def until(is_so: Callable[[], object]) -> None:
    """For what tells nobody that it has come about."""
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


async def crash(replica: Replica[Any]) -> None:
    """Close it as SIGKILL would: the others have to find out."""
    stopping = asyncio.ensure_future(replica.stop())
    await asyncio.sleep(0)
    replica.hurry()
    assert await stopping is not Departure.RETIRED


def config(**changes: Any) -> ReplicaConfig:
    settings: dict[str, Any] = {"group": "tested", "bind": "127.0.0.1:0", "insecure": True}
    return ReplicaConfig(**settings | changes)


@asynccontextmanager
async def group_of(
    machine: type[StateMachine], sites: int = 3, **changes: Any
) -> AsyncIterator[list[Replica[Any]]]:
    async with founded([Replica(machine, config(**changes)) for _ in range(sites)]) as replicas:
        yield replicas


@asynccontextmanager
async def founded(replicas: list[Replica[Any]]) -> AsyncIterator[list[Replica[Any]]]:
    """A group of them, all ready."""
    try:
        for replica in replicas:
            await replica.open()
        founders = [replica.address for replica in replicas]
        for replica in replicas:
            replica.join(founders)
        await asyncio.gather(*(replica.ready() for replica in replicas))
        yield replicas
    finally:
        for replica in replicas:
            await replica.stop()


def test_when_three_replicas_run_then_each_sees_the_commands_of_all() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            one, two, three = (replica.proxy for replica in replicas)
            assert await one.add(1) == 1
            assert await two.add(2) == 3
            assert await three.add(3) == 6
            assert [await each.get() for each in (one, two, three)] == [6, 6, 6]

    play(main())


def test_when_a_thousand_calls_are_under_way_then_each_gets_its_own_answer() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            calls = [replica.proxy.add(1) for _ in range(1000) for replica in replicas]
            answers = await asyncio.gather(*calls)
            assert sorted(answers) == list(range(1, 3001))
            last = max(replica.executor.applied for replica in replicas)
            await asyncio.gather(*(replica.when_applied(last) for replica in replicas))
            assert len({replica.executor.group.digest for replica in replicas}) == 1

    play(main())


def test_when_a_call_is_refused_or_fails_then_it_raises_what_the_machine_raised() -> None:
    async def main() -> None:
        async with group_of(Counter) as (replica, *_):
            counter = replica.proxy
            with pytest.raises(Rejected, match="too little"):
                await counter.subtract(5)
            with pytest.raises(CommandFailed, match="KeyError"):
                await counter.break_down(1)
            with pytest.raises(InvalidCall, match="Expected `int`"):
                await counter.add("five")
            with pytest.raises(InvalidCall, match="is no command"):
                await counter.multiply(2)
            assert await counter.with_options(consistency=Consistency.SEQUENTIAL).get() == 1

    play(main())


def test_when_a_machine_takes_bytes_then_the_proxy_does() -> None:
    async def main() -> None:
        async with group_of(Echo) as (replica, *_):
            assert await replica.proxy.apply(b"abc") == b"cba"

    play(main())


def test_when_a_replica_is_stopped_then_the_others_go_on_and_its_calls_end() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            await one.proxy.add(1)
            await three.stop()
            with pytest.raises(NotMember):
                await three.proxy.add(1)
            assert await two.proxy.add(1) == 2
            assert await one.proxy.get() == 2

    play(main())


def test_when_a_replica_joins_later_then_it_takes_the_state_over() -> None:
    async def main() -> None:
        async with group_of(Ledger) as replicas:
            ledger = replicas[0].proxy
            for _ in range(20):
                await ledger.note()
            late = Replica(Ledger, config(contacts=tuple(replica.address for replica in replicas)))
            try:
                await late.start()
                assert await late.proxy.note()
                await ledger.note()
                await late.proxy.note()
                assert len(late.executor.machine.entries) == 23  # type: ignore[attr-defined]
            finally:
                await late.stop()

    play(main())


def test_when_a_process_comes_back_at_its_address_then_it_is_a_member_again() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            await one.proxy.add(41)
            address = three.address
            founders = [each.address for each in (one, two, three)]
            await three.stop()
            again = Replica(Counter, ReplicaConfig(group="tested", bind=address, insecure=True))
            try:
                await again.open()
                again.join(founders)
                await again.ready()
                assert await again.proxy.add(1) == 42
                assert await one.proxy.get() == 42
            finally:
                await again.stop()

    play(main())


def test_when_a_replica_has_another_machine_then_it_halts_and_says_so() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            stranger = Replica(Old, config(contacts=tuple(replica.address for replica in replicas)))
            await stranger.open()
            stranger.join((), stranger.config.contacts)
            with pytest.raises(MismatchedMachine, match="runs Counter, this replica has Old"):
                await stranger.ended()
            await stranger.stop()
            again = Replica(Old, stranger.config)
            with pytest.raises(MismatchedMachine, match="runs Counter"):
                await again.start()
            assert await replicas[0].proxy.add(1) == 1

    play(main())


def test_when_founders_have_different_machines_then_who_halts_says_why_and_shows_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        replicas: list[Replica[Any]] = [Replica(each, config()) for each in (Counter, Counter, Old)]
        try:
            for replica in replicas:
                await replica.open()
            for replica in replicas:
                replica.join([each.address for each in replicas])
            endings = [asyncio.ensure_future(replica.ended()) for replica in replicas]
            done, rest = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
            for ending in rest:
                ending.cancel()
            for ending in done:
                with pytest.raises(MismatchedMachine, match="start it with the machine of its group"):
                    await ending
        finally:
            for replica in replicas:
                await replica.stop()

    play(main())
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert errors
    for record in errors:
        assert "MismatchedMachine" in record.getMessage()
        assert record.exc_info is None


def test_when_too_much_is_outstanding_then_a_call_is_refused_at_once() -> None:
    async def main() -> None:
        async with group_of(Counter, outstanding_max=10) as (replica, *_):
            calls = [replica.execute(replica.catalogue.command("add").bind((1,), {})) for _ in range(10)]
            with pytest.raises(Overloaded):
                await replica.proxy.add(1)
            await asyncio.gather(*calls)
            assert await replica.proxy.add(0) == 10

    play(main())


def test_when_a_session_has_ended_then_the_next_call_opens_another() -> None:
    async def main() -> None:
        async with group_of(Counter, session_ms=50, ring={"tick_ms": 20}) as (replica, *_):
            assert await replica.proxy.add(1) == 1
            before = replica.executor.group.time
            while replica.executor.group.time - before < 100_000_000:
                await replica.proxy.get()
            assert await replica.proxy.add(1) == 2

    play(main())


def test_when_a_replica_is_cut_off_then_it_answers_only_who_accepts_a_stale_state() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            await one.proxy.add(5)
            await three.proxy.get()
            await one.stop()
            await two.stop()
            stale = three.proxy.with_options(consistency=Consistency.STALE)
            before = await stale.reading("get")
            assert (before.value, before.timestamp) == (5, three.executor.applied)
            with pytest.raises(TimeoutError):
                await three.proxy.with_options(timeout=0.5).get()
            with pytest.raises(NoPrimary):
                await _read_for_ever(three)
            after = await stale.reading("get")
            assert after.value == 5
            assert after.age_s > before.age_s + 0.4

    play(main())


def test_when_a_machine_depends_on_the_process_then_who_differs_halts_and_says_where() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, three):
            await asyncio.gather(*(one.proxy.add(1) for _ in range(1000)))
            three.executor.machine.value += 1  # type: ignore[attr-defined]
            await one.proxy.add(1)
            first = one.executor.applied
            adding = asyncio.ensure_future(_add_until(one, CHECKPOINT_SLOTS))
            with pytest.raises(Diverged, match="a majority has another digest") as diverged:
                await three.ended()
            assert f"127.0.0.1:{one.address.rpartition(':')[2]} at slot" in str(diverged.value)
            slot = int(re.findall(r"at slot (\d+)", str(diverged.value))[0])
            assert first - 5 <= slot <= first
            await adding
            assert await two.proxy.add(0) > 1000

    play(main())


async def _read_for_ever(replica: Replica[Any]) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            await replica.proxy.with_options(timeout=0.2).get()


async def _add_until(replica: Replica[Any], slot: int) -> None:
    while replica.executor.applied < slot + 100:
        await asyncio.gather(*(replica.proxy.add(1) for _ in range(100)))


def test_when_replicas_are_read_then_nothing_is_written_and_reads_share_a_round() -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, _):
            await one.proxy.add(3)
            await two.proxy.get()
            slots = two.executor.group.applied
            assert await asyncio.gather(*(two.proxy.get() for _ in range(500))) == [3] * 500
            assert two.executor.group.applied - slots < 10
            assert two._reads.rounds < 10

    play(main())


def test_when_a_query_is_repeated_then_it_is_answered_only_from_a_state_that_is_surely_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who holds the handler lock may have come back a moment ago, with a log it has not executed yet."""

    async def main() -> None:
        async with group_of(Counter) as (one, *_):
            loop = asyncio.get_running_loop()
            answered: asyncio.Future[list[Reply]] = loop.create_future()
            fresh: asyncio.Future[None] = loop.create_future()
            monkeypatch.setattr(one, "_reply", answered.set_result)
            monkeypatch.setattr(one, "caught_up", lambda: fresh)
            ask = one._language.encode_query(one.catalogue.query("get").bind((), {}))
            one._listen([CallRepeated(Call(SiteId(999), 1, 1, "127.0.0.1:9", 1, 0), ask)])
            for _ in range(3):
                await asyncio.sleep(0)
            assert not answered.done()
            fresh.set_result(None)
            (reply,) = await answered
            assert reply.ts == one.executor.applied

    play(main())
