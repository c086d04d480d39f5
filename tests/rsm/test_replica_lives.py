"""Memberships that end and begin again: births that fail, transfers and disks under way, calls meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ordering.driver import Group
from ordering.effects import CallRepeated, Deliver, Delivery, Ending, LevelReached, RequestState
from ordering.errors import NoPrimary
from ordering.events import Reply
from ordering.packets import Call
from ordering.qos import MAJORITY, Level
from ordering.views import SiteId
from rsm import envelope
from rsm.disk import Came, Disk
from rsm.envelope import Activate
from rsm.errors import Halted, MismatchedMachine, OutcomeUnknown
from rsm.replica import Replica
from rsm.state_machine import GroupView, StateMachine, command
from rsm.storage import Store
from rsm.transfer import Offer, StateWanted
from tests.rsm.machines import Counter, New, Old
from tests.rsm.test_replica import config, group_of, play


class Leaver(BaseException):
    pass


class Leaving(StateMachine):
    def __init__(self) -> None:
        self.value = 0

    @command
    def leave(self) -> int:
        raise Leaver

    @command
    def add(self, n: int) -> int:
        self.value += n
        return self.value


def group_in(replica: Replica[Any]) -> Group:
    assert replica._group is not None
    return replica._group


def view_of(replica: Replica[Any]) -> GroupView:
    assert replica.executor.group.view is not None
    return replica.executor.group.view


def disk_of(replica: Replica[Any]) -> Disk:
    assert replica._disk is not None
    return replica._disk


def newest_task(replica: Replica[Any]) -> "asyncio.Task[None]":
    return next(reversed(replica._tasks))


async def state_of(replica: Replica[Any]) -> Offer:
    offer = await replica.offer(StateWanted(view_of(replica).chain, 1))
    assert offer is not None
    return Offer(offer.ts, list(offer.chunks))


def end_membership(replica: Replica[Any], ending: Ending) -> None:
    """By hand, because which founder dies within a birth, or who is removed in which turn of the event loop,
    cannot be arranged with real packets."""
    group = group_in(replica)
    engine = group._engine
    engine._end(ending)
    effects, engine.site.out = engine.site.out, []
    group.note(effects, 0)
    group.tell()


class Gate:
    """Stands for the fetching of a state, which comes when the test lets it."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.asked = asyncio.Event()
        self.open = asyncio.Event()

    async def fetch(self, wanted: RequestState) -> Offer:
        self.asked.set()
        await self.open.wait()
        return self.offer


@asynccontextmanager
async def durable(directory: Path) -> AsyncIterator[Replica[Any]]:
    """A group of one, in which something was executed."""
    replica = Replica(Counter, config(mode="durable", data=directory))
    try:
        await replica.open()
        replica.join([replica.address])
        await replica.ready()
        await replica.proxy.add(5)
        yield replica
    finally:
        await replica.stop()


def test_when_a_birth_has_failed_then_its_founders_are_ready_after_the_next() -> None:
    async def main() -> None:
        replicas = [Replica(Counter, config()) for _ in range(3)]
        try:
            for replica in replicas:
                await replica.open()
            founders = [replica.address for replica in replicas]
            replicas[0].join(founders)
            end_membership(replicas[0], Ending.UNBORN)
            for replica in replicas[1:]:
                replica.join(founders)
            async with asyncio.timeout(8):
                await asyncio.gather(*(replica.ready() for replica in replicas))
            assert await replicas[0].proxy.add(1) == 1
        finally:
            for replica in replicas:
                await replica.stop()

    play(main())


def test_when_a_replica_was_removed_then_the_end_of_a_transfer_does_not_make_it_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, _, three):
            await one.proxy.add(5)
            await three.proxy.get()
            gate = Gate(await state_of(one))
            monkeypatch.setattr(three, "_fetch", gate.fetch)
            # By hand: it fell behind the others' logs, and is removed while the state is on its way.
            three._hear(RequestState(1, view_of(one).chain, (one.member.site,)))
            transfer = newest_task(three)
            await gate.asked.wait()
            end_membership(three, Ending.REMOVED)
            assert not three._intake.ready
            gate.open.set()
            async with asyncio.timeout(5):
                await transfer
            assert not three._intake.ready, "a removed replica serves"

    play(main())


def test_when_a_transfer_ends_while_the_disk_is_wiped_then_a_durable_replica_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with durable(tmp_path / "d") as replica:
            disk = disk_of(replica)
            open_disk, wipe_disk = disk._open, disk.wipe
            gate = Gate(await state_of(replica))
            transferred = threading.Event()

            def open_slowly(*, wipe: bool = False) -> tuple[Store, Came]:
                transferred.wait(timeout=5)
                return open_disk(wipe=wipe)

            async def wipe() -> None:
                gate.open.set()  # the transfer goes on when this waits for the disk
                await wipe_disk()

            monkeypatch.setattr(replica, "_fetch", gate.fetch)
            monkeypatch.setattr(disk, "_open", open_slowly)
            monkeypatch.setattr(disk, "wipe", wipe)
            replica._hear(RequestState(1, view_of(replica).chain, ()))  # by hand: there is no other donor
            newest_task(replica).add_done_callback(lambda _: transferred.set())
            await gate.asked.wait()
            end_membership(replica, Ending.REMOVED)
            async with asyncio.timeout(10):
                await replica.ready()
            assert transferred.is_set()
            assert not replica._over.done(), repr(replica._over)

    play(main())


def test_when_a_membership_has_ended_then_its_snapshot_is_not_saved_to_the_disk_of_the_next(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with durable(tmp_path / "d") as replica:
            disk = disk_of(replica)
            # By hand: another save is under way, and takes until after the disk was emptied.
            await disk._saving.acquire()
            saving = asyncio.ensure_future(
                replica._handover.save_now(replica._intake, disk, group_in(replica))
            )
            await asyncio.sleep(0)
            await disk.wipe()
            disk._saving.release()
            await saving
        store = Store.open(tmp_path / "d", None, group="tested")
        found = store.restore()
        store.close()
        assert found.snapshot is None, found.snapshot

    play(main())


def test_when_a_replica_halts_on_what_waited_for_its_state_then_it_is_no_member_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with group_of(New) as replicas:
            one = replicas[0]
            # By hand: replicas that can all run version 2 begin with that, and one that cannot comes later.
            for each in replicas:
                each.executor.group.version, each.executor.group.signature = 1, each.catalogue.signature(1)
            late = Replica(Old, config(contacts=tuple(replica.address for replica in replicas)))
            fetch = late._fetch

            async def fetch_slowly(wanted: RequestState) -> Offer | None:
                """Between the snapshot and its taking over the others go on to version 2."""
                offer = await fetch(wanted)
                if offer is not None:
                    activated = await one._calls.send(envelope.encode(Activate(2)))
                    async with asyncio.timeout(5):
                        while late._intake.majority < activated.ts:
                            await asyncio.sleep(0.01)
                return offer

            monkeypatch.setattr(late, "_fetch", fetch_slowly)
            await late.open()
            try:
                late.join((), late.config.contacts)
                async with asyncio.timeout(10):
                    with pytest.raises(MismatchedMachine, match="can run up to 1"):
                        await late.ended()
                    await group_in(late).ended
                assert group_in(late).is_over
            finally:
                await late.stop()

    play(main())


def test_when_a_query_is_repeated_then_it_sees_what_was_delivered_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with group_of(Counter) as (one, two, _):
            await one.proxy.add(5)
            answered: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
            monkeypatch.setattr(one, "_reply", answered.set_result)
            session = envelope.session_of((await two._calls.send(envelope.OPEN)).reply)
            await one.proxy.get()
            ts, view = one.executor.applied, group_in(one)._engine.site.view.id
            add, get = one.catalogue.command("add"), one.catalogue.query("get")
            write = one._language.encode(session, 1, 0, add.bind((1,), {}))
            ask = one._language.encode_query(get.bind((), {}))
            delivery = Delivery(ts + 1, SiteId(12345), 1, MAJORITY, Level.MAJORITY, (write, ask))
            # By hand, what comes at once after the handler has changed: a write that the holder before has
            # answered, the query behind it, and the query's repetition.
            one._listen(
                [
                    Deliver(view, (delivery,)),
                    LevelReached(ts + 2, ts),
                    CallRepeated(Call(SiteId(999), 1, 1, "127.0.0.1:9", 1, 0), ask),
                ]
            )
            async with asyncio.timeout(5):
                (reply,) = await answered
            assert msgspec.msgpack.decode(envelope.value_of(reply.payload)) == 6
            one._stop_serving(RuntimeError("tampered with"))

    play(main())


def test_when_calls_are_more_than_the_window_has_room_for_then_all_are_answered() -> None:
    async def main() -> None:
        async with group_of(Counter, ring={"window_messages": 64}) as (one, *_):
            async with asyncio.timeout(5):
                answers = await asyncio.gather(*(one.proxy.add(1) for _ in range(200)))
            assert sorted(answers) == list(range(1, 201))

    play(main())


def test_when_a_command_raises_what_is_no_exception_then_the_replica_halts_and_its_calls_end() -> None:
    async def main() -> None:
        async with group_of(Leaving) as (one, *_):
            await one.proxy.add(1)
            calls = [
                asyncio.ensure_future(call)
                for call in (one.proxy.add(1), one.proxy.leave(), one.proxy.add(1))
            ]
            _, pending = await asyncio.wait(calls, timeout=2)
            assert not pending, "neither executed nor refused"
            for call in calls:
                call.exception()
            async with asyncio.timeout(2):
                with pytest.raises(Halted, match="a command raised Leaver"):
                    await one.ended()

    play(main())


def test_when_nobody_knows_what_became_of_the_first_message_then_a_replica_sends_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was sent by a member that then lost its majority; that is no reason not to start."""

    async def main() -> None:
        replica: Replica[Any] = Replica(Counter, config())
        await replica.open()
        barriers: list[BaseException | None] = [OutcomeUnknown("lost its place"), NoPrimary("alone"), None]

        def barrier() -> "asyncio.Future[None]":
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            error = barriers.pop(0)
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
            return future

        monkeypatch.setattr(replica._calls, "barrier", barrier)
        await replica.ready()
        assert barriers == []
        await replica.stop()

    play(main())
