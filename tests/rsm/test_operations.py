"""An operator's orders to replicas that run: done once however often asked for, refused where they harm."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ordering.naming import group_id
from rsm import operations
from rsm.config import ReplicaConfig
from rsm.logbook import LogWanted
from rsm.operations import ForkWanted, Order, Outcome, PointWanted, Progress, RemovalWanted, SaveWanted
from rsm.replica import Replica
from rsm.transfer import Peer
from tests.rsm.machines import Counter
from tests.rsm.test_durable import play
from tests.rsm.test_replica import group_of

GROUP = "operated"


def three() -> AbstractAsyncContextManager[list[Replica[Counter]]]:
    return group_of(Counter, group=GROUP, ring={"orphan_ms": 2000})


async def order(replica: Replica[Counter], given: Order) -> Outcome:
    outcome = await Peer(replica.address, None, group_id(GROUP), 1).order(given)
    assert outcome is not None
    return outcome


async def until_done(replica: Replica[Counter], given: Order) -> Outcome:
    """As the command line does; the test's time is bounded."""
    while (outcome := await order(replica, given)).progress is not Progress.DONE:
        pass
    return outcome


def chain_of(replica: Replica[Counter]) -> int:
    assert replica.executor.group.view is not None
    return replica.executor.group.view.chain


def test_when_a_point_is_asked_for_then_it_is_behind_all_that_was_answered() -> None:
    async def main() -> None:
        async with three() as (first, second, _):
            chain = chain_of(first)
            for _ in range(20):
                await first.proxy.add(1)
                answered = first.executor.applied
                point = await order(second, PointWanted(chain))
                assert point.progress is Progress.DONE
                assert point.ts >= answered
            other = await order(second, PointWanted(chain + 1))
            assert other.progress is Progress.REFUSED
            assert "not in" in other.words

    play(main())


def test_when_a_removal_is_repeated_then_it_was_done() -> None:
    async def main() -> None:
        async with three() as (first, second, third):
            chain, gone = chain_of(first), third.member.site
            await third.stop()
            await until_done(first, RemovalWanted(chain, gone))
            for replica in (first, second):
                again = await order(replica, RemovalWanted(chain, gone))
                assert again.progress is Progress.DONE
            view = first.executor.group.view
            assert view is not None
            assert gone not in view.electorate
            assert await second.proxy.add(1) == 1
            last = await order(first, RemovalWanted(chain, second.member.site))
            assert last.progress is Progress.DONE  # it runs: it comes back as a new member
            await second.ready()
            assert second.member.site not in view.electorate
            assert await second.proxy.add(1) == 2

    play(main())


def test_when_a_majority_is_heard_then_a_fork_is_refused_and_else_it_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with three() as (first, second, third):
            chain = chain_of(first)
            await first.proxy.add(1)
            refused = await order(first, ForkWanted(chain))
            assert refused.progress is Progress.REFUSED
            assert "reaches a majority" in refused.words
            await asyncio.gather(second.stop(), third.stop())
            monkeypatch.setattr(operations, "WAIT_SECONDS", 0.3)
            point = await order(first, PointWanted(chain))
            assert point.progress is not Progress.DONE  # nobody can tell what is true now
            done = await until_done(first, ForkWanted(chain))
            assert done.chain == chain_of(first) != chain
            assert first.status().forks == 1
            assert await first.proxy.add(1) == 2
            again = await order(first, ForkWanted(chain))
            assert (again.progress, again.chain) == (Progress.DONE, done.chain)
            assert first.status().forks == 1
            here = await order(first, ForkWanted(done.chain))  # of one voter it is the majority
            assert here.progress is Progress.REFUSED

    play(main())


def test_when_a_state_is_to_be_saved_then_it_is_and_where_nothing_is_kept_it_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with three() as (memory, *_):
            refused = await order(memory, SaveWanted(chain_of(memory)))
            assert refused.progress is Progress.REFUSED
            assert "in memory alone" in refused.words
            peer = Peer(memory.address, None, group_id(GROUP), 1)
            page = await peer.log(LogWanted(chain_of(memory), 0, 10))
            assert page is not None
            assert not page.kept
        async with group_of(Counter, 1, group=GROUP, mode="durable", data=tmp_path) as (durable,):
            await durable.proxy.add(1)
            chain = chain_of(durable)
            executed = durable.executor.applied
            saved = await order(durable, SaveWanted(chain))
            assert saved.progress is Progress.DONE
            found = durable.status().snapshot
            assert found is not None
            assert found.slot >= executed
            peer = Peer(durable.address, None, group_id(GROUP), 1)
            page = await peer.log(LogWanted(chain, 0, 1000))
            assert page is not None
            assert page.kept
            assert [each.method for each in page.items if each.kind == "command"] == ["add"]
            other = await peer.log(LogWanted(chain + 1, 0, 1000))
            assert other is not None
            assert not other.items
            assert other.chain == chain

    play(main())


def test_when_a_replica_is_no_member_then_it_takes_no_orders() -> None:
    async def main() -> None:
        config = ReplicaConfig(group=GROUP, bind="127.0.0.1:0", insecure=True)
        replica = Replica(Counter, config)
        await replica.open()
        try:
            outcome = await order(replica, ForkWanted(1))
            assert outcome.progress is Progress.REFUSED
            assert "no member" in outcome.words
        finally:
            await replica.stop()

    play(main())
