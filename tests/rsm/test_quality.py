"""How many voters hold a command when it is answered (R10): the answer waits, and nothing else does."""

import asyncio
import signal
from pathlib import Path

import pytest

from ordering.errors import NotMember
from ordering.events import HoldersRequested
from rsm.errors import InvalidCall, NotHeld, OutcomeUnknown, Rejected
from rsm.proxy import Proxy
from rsm.quality import Held, Holders, voters_of
from tests.rsm.machines import Counter, Echo, Hoard
from tests.rsm.test_client import client_of
from tests.rsm.test_far_calls import processes
from tests.rsm.test_replica import group_of, play


@pytest.mark.parametrize("sites", [1, 3, 5])
def test_when_all_are_well_then_every_level_is_reached_and_told(sites: int) -> None:
    async def main() -> None:
        async with group_of(Counter, sites) as replicas, client_of(replicas) as outside:
            levels = ["ordered", "majority", *(f"k={k}" for k in range(sites)), "all"]
            for caller in (replicas[0].proxy, outside):
                assert (await caller.with_details().add(1)).qos == "majority"
                for qos in levels:
                    before = await caller.with_details().get()
                    done = await caller.with_options(qos=qos).with_details().add(1)
                    assert done.value == before.value + 1
                    assert done.timestamp > before.timestamp
                    assert await caller.with_options(qos=qos).add(1) == done.value + 1
                    assert done.qos == "all" or qos != "all"
            assert await outside.get() == 2 * (1 + 2 * len(levels))
            if sites > 1:  # alone a majority is everybody
                everybody = outside.with_options(qos=f"k={sites - 1}").with_details()
                assert (await everybody.add(0)).qos == "all"

    play(main())


def test_when_the_machine_takes_bytes_then_they_have_a_level_too() -> None:
    async def main() -> None:
        async with group_of(Echo) as replicas:
            assert await replicas[0].proxy.with_options(qos="all").apply(b"ab") == b"ba"
            with pytest.raises(NotHeld) as caught:
                await replicas[0].proxy.with_options(qos="k=3").apply(b"cd")
            assert (caught.value.value, caught.value.qos) == (b"dc", "all")

    play(main())


def test_when_a_command_is_refused_by_the_machine_then_nobody_waits_for_more_holders() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas, client_of(replicas) as counter:
            for caller in (replicas[0].proxy, counter):
                with pytest.raises(Rejected):
                    await caller.with_options(qos="all").subtract(1)

    play(main())


@pytest.mark.parametrize("qos", ["", "k", "k=", "k=-1", "k=x", "k=²", "total", "ALL"])
def test_when_a_level_is_none_then_it_is_refused(qos: str) -> None:
    with pytest.raises(InvalidCall, match="is no level"):
        voters_of(qos)


def test_when_a_level_is_none_then_no_proxy_is_made_with_it() -> None:
    async def main() -> None:
        async with group_of(Counter, 1) as (one,):
            with pytest.raises(InvalidCall, match="use "):
                one.proxy.with_options(qos="most")

    play(main())


def test_when_a_voter_is_gone_then_the_level_that_was_reached_is_told_and_the_rest_goes_on() -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas, client_of(replicas) as outside:
            await replicas[2].stop()
            for caller in (replicas[0].proxy, outside):
                strict = caller.with_options(qos="all")
                waiting = asyncio.ensure_future(strict.with_details().add(1))
                assert await caller.add(1) >= 1
                done = await waiting
                assert done.qos == "majority"
                with pytest.raises(NotHeld, match="'majority' is reached; it was executed at slot") as caught:
                    await strict.add(1)
                assert caught.value.value == await caller.get()
                assert await caller.with_options(qos="k=1").add(1) == await caller.get()

    play(main())


def test_when_a_process_is_paused_then_all_waits_and_majority_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with processes(tmp_path / "g") as (client, running):
            hoard: Proxy[Hoard] = client.proxy
            assert (await hoard.with_options(qos="all").with_details().measure(b"a")).qos == "all"
            paused = next(iter(running.values()))
            paused.send_signal(signal.SIGSTOP)
            try:
                impatient = hoard.with_options(qos="all", timeout=5).with_details()
                waiting = asyncio.ensure_future(impatient.measure(b"ab"))
                assert await hoard.with_options(timeout=20).measure(b"abc") == 3
                assert (await waiting).value == 2
                assert waiting.result().qos == "majority"
            finally:
                paused.send_signal(signal.SIGCONT)
            async with asyncio.timeout(30):  # it comes back into the ring
                while (await hoard.with_options(qos="all").with_details().measure(b"")).qos != "all":
                    pass
            assert await hoard.count() >= 4

    play(main())


def test_when_the_time_is_over_while_holders_are_awaited_then_the_outcome_is_known_all_the_same() -> None:
    class Slow(Holders):
        async def of(self, ts: int, voters: int) -> Held | None:
            await asyncio.Event().wait()
            return None

    async def main() -> None:
        async with group_of(Counter) as (one, *_):
            one._holders = Slow(one._ask_holders, asyncio.get_running_loop())
            hurried = one.proxy.with_options(qos="all", timeout=0.2)
            assert (await hurried.with_details().add(1)).qos == "majority"
            with pytest.raises(NotHeld):
                await hurried.add(1)
            assert await one.proxy.get() == 2
            with pytest.raises(OutcomeUnknown):
                await one.proxy.with_options(qos="all", timeout=0).add(1)

    play(main())


def test_when_the_membership_ends_then_who_waits_for_holders_is_told_that_nobody_knows() -> None:
    async def main() -> None:
        asked: list[HoldersRequested] = []
        holders = Holders(asked.append, asyncio.get_running_loop())
        waiting = asyncio.ensure_future(holders.of(5, 3))
        await asyncio.sleep(0)
        assert asked == [HoldersRequested(1, 5, 3)]
        holders.interrupted()
        assert await waiting is None

        def refuse(_: HoldersRequested) -> None:
            raise NotMember("no member")

        assert await Holders(refuse, asyncio.get_running_loop()).of(5, 3) is None

    play(main())
