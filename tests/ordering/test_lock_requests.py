"""Asking for locks, at the door and under way (R13), and what a site does after its own pause (R14)."""

import pytest

from ordering.config import MS
from ordering.effects import (
    Effect,
    InstallView,
    LockGranted,
    LockLost,
    LockRefused,
    Multicast,
    Tick,
)
from ordering.errors import LockError
from ordering.events import LockRequested, PacketsReceived, TimerFired
from ordering.locks import LEASE_MS_MAX, NAME_BYTES_MAX, WISHES_MAX, restate, settle
from ordering.packets import LockRequest, LockStatement, NewList, PollReply, Wish
from ordering.simulator.process import Process
from ordering.simulator.stage import Stage
from ordering.views import LockName, Owner

SECOND = 1000 * MS


def told(stage: Stage, address: str) -> list[Effect]:
    site = stage.process(address).member.site
    kinds = LockGranted | LockLost | LockRefused
    return [e for who, e in stage.journal.effects if who == site and isinstance(e, kinds)]


def own(stage: Stage, address: str) -> list[Effect]:
    """What it was told of named locks."""
    return [e for e in told(stage, address) if isinstance(getattr(e, "name", None), str)]


def ask(process: Process, name: LockName, lease_ms: int = 0) -> list[Effect]:
    return process.engine.handle(LockRequested(name, lease_ms), process.engine.site.now)


# -- the door --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "ä" * 128, "\ud800", 0, 7, True, -1])
def test_when_a_name_makes_no_sense_then_the_request_is_refused(name: LockName) -> None:
    stage = Stage.born(3)
    with pytest.raises(LockError, match="name: "):
        ask(stage.process("s1"), name)


@pytest.mark.parametrize("lease_ms", [-1, LEASE_MS_MAX + 1])
def test_when_a_lease_is_out_of_range_then_the_request_is_refused(lease_ms: int) -> None:
    with pytest.raises(LockError, match="lease_ms: "):
        ask(Stage.born(3).process("s1"), "door", lease_ms)


def test_when_there_is_no_group_yet_then_the_request_is_refused() -> None:
    stage = Stage.born(3)
    process = stage.cluster.start("s4", founder=False)
    with pytest.raises(LockError, match="ask after the first InstallView"):
        ask(process, "door")


def test_when_a_learner_asks_then_it_is_told_to_wait_for_its_vote() -> None:
    stage = Stage.born(3)
    stage.network.connected = lambda one, other: False  # type: ignore[method-assign]  # no state arrives
    learner = stage.cluster.start("s4", founder=False)
    stage.until(lambda: learner.view is not None, "s4 has a seat")
    with pytest.raises(LockError, match="is a learner"):
        ask(learner, "door")


def test_when_a_site_wants_too_many_locks_then_the_next_is_refused_and_renewals_are_not() -> None:
    stage = Stage.born(3)
    process = stage.process("s1")
    for number in range(WISHES_MAX):
        ask(process, f"{number}")
    with pytest.raises(LockError, match="release one first"):
        ask(process, "door")
    assert ask(process, "1")


def test_when_the_table_has_no_room_then_the_request_is_refused_at_the_door() -> None:
    stage = Stage.born(3)
    for address in stage.addresses:
        for number in range(60):
            stage.lock(address, f"{address}.{number:->{NAME_BYTES_MAX - 3}}")
        stage.run(100 * MS)
    with pytest.raises(LockError, match="no room"):
        ask(stage.process("s1"), "x" * NAME_BYTES_MAX)


def test_when_a_lock_is_released_that_nobody_wants_then_nothing_happens() -> None:
    stage = Stage.born(3)
    stage.release("s1", "door")
    stage.run(50 * MS)
    assert stage.process("s1").engine.locks.version == 0


# -- under way -------------------------------------------------------------------------------------


def test_when_a_lock_is_granted_then_its_owner_is_told_in_order_and_no_view_is_announced() -> None:
    stage = Stage.born(3)
    stage.lock("s2", "door")
    stage.run(50 * MS)
    (granted,) = own(stage, "s2")
    assert granted == LockGranted("door", granted.fence, granted.fence)  # type: ignore[union-attr]
    site = stage.process("s2").member.site
    views = [e for who, e in stage.journal.effects if who == site and isinstance(e, InstallView)]
    assert [v.locks_only for v in views] == [False, True]
    assert own(stage, "s1") == own(stage, "s3") == []


def test_when_all_sites_ask_at_once_then_one_new_list_serves_who_was_heard() -> None:
    stage = Stage.born(5)
    holder = stage.token_site()
    others = [a for a in stage.addresses if a != holder.address]
    requests = []
    for address in others:
        process = stage.process(address)
        statement = LockStatement(
            Owner(process.member.site, process.member.boot), 1, (Wish("door", 1, 0, 1),)
        )
        requests.append(LockRequest(process.engine.site.head(), statement, forwarded=False))
    effects = holder.engine.handle(PacketsReceived(tuple(requests)), holder.engine.site.now)
    lists = [e.packet for e in effects if isinstance(e, Multicast) and isinstance(e.packet, NewList)]
    assert len(lists) == 1
    view = lists[0].order.view
    assert view is not None
    door = view.locks.lock("door")
    assert door is not None
    assert 1 + len(door.queue) == len(others)


def test_when_the_answer_is_lost_then_the_request_is_repeated() -> None:
    stage = Stage.born(3)
    asker = next(a for a in stage.addresses if a != stage.token_site().address)
    stage.drop(asker, "*", LockRequest, 1)
    stage.lock(asker, "door")
    stage.run(200 * MS)
    assert len(own(stage, asker)) == 1
    stage.finish()


def test_when_the_application_has_released_before_the_grant_comes_then_it_is_told_of_neither() -> None:
    stage = Stage.born(3)
    stage.lock("s1", "door")
    stage.release("s1", "door")
    stage.run(200 * MS)
    assert own(stage, "s1") == []
    view = stage.process("s1").view
    assert view is not None
    assert view.locks.lock("door") is None


def test_when_a_request_finds_no_room_in_the_ring_then_its_owner_is_told_so() -> None:
    """Two fill the table at the same time: each saw room for itself."""
    stage = Stage.born(3)
    for address in stage.addresses:
        for number in range(60):
            stage.lock(address, f"{address}.{number:->{NAME_BYTES_MAX - 3}}")
    stage.run(SECOND)
    refused = [e for a in stage.addresses for e in own(stage, a) if isinstance(e, LockRefused)]
    granted = [e for a in stage.addresses for e in own(stage, a) if isinstance(e, LockGranted)]
    assert len(refused) + len(granted) == 180
    assert refused
    assert all(not stage.process(a).engine.locks._is_owed() for a in stage.addresses)


def test_when_lock_requests_never_end_then_data_is_ordered_all_the_same() -> None:
    stage = Stage.born(3)
    for number in range(40):
        address = stage.addresses[number % 3]
        (stage.lock if number % 2 else stage.release)(address, "door")
        stage.submit(address, f"m{number}")
        stage.run(MS)
    stage.run(100 * MS)
    for address in stage.addresses:
        assert len(stage.journal.delivered[stage.process(address).member.site]) == 40


def test_when_a_statement_of_a_dead_boot_comes_then_it_is_dropped() -> None:
    stage = Stage.born(3)
    process = stage.process("s1")
    member = stage.process("s2").member
    head = stage.process("s2").engine.site.head()
    statement = LockStatement(Owner(member.site, member.boot + 1), 1, (Wish("door", 1, 0, 1),))
    process.engine.handle(
        PacketsReceived((LockRequest(head, statement, forwarded=False),)), process.engine.site.now
    )
    stage.run(100 * MS)
    assert process.engine.locks.statements == {}
    assert process.view is not None
    assert process.view.locks.lock("door") is None


def test_when_a_view_without_a_grant_replaces_one_with_it_then_settling_it_again_changes_nothing() -> None:
    stage = Stage.born(3)
    stage.lock("s1", "door")
    stage.run(100 * MS)
    view = stage.process("s1").engine.site.view
    assert settle(view.locks, view, 99, 0) == view.locks
    assert restate(view.locks, LockStatement(Owner(view.ring[0], 1), 1, ()), 0) != view.locks


# -- time ------------------------------------------------------------------------------------------


def clocked(**settings: int) -> Stage:
    stage = Stage.born(3, 1, **settings)
    stage.cluster.wall_errors = {}
    for process in stage.cluster.live():
        stage.cluster.set_clock(process)
    return stage


def test_when_ticks_are_asked_for_then_an_idle_group_tells_the_time_at_the_same_slots_everywhere() -> None:
    stage = clocked(tick_ms=100)
    stage.run(SECOND)
    ticks = {
        a: [
            e
            for who, e in stage.journal.effects
            if who == stage.process(a).member.site and isinstance(e, Tick)
        ]
        for a in stage.addresses
    }
    assert 8 <= len(ticks["s1"]) <= 12
    assert ticks["s1"] == ticks["s2"] == ticks["s3"]
    stage.finish()


def test_when_nobody_asked_for_ticks_then_an_idle_group_orders_nothing() -> None:
    stage = clocked()
    before = stage.process("s1").engine.site.queue.frontier
    stage.run(5 * SECOND)
    assert stage.process("s1").engine.site.queue.frontier == before


def test_when_the_application_is_told_of_messages_then_each_has_the_time_of_its_slot() -> None:
    stage = clocked()
    stage.submit("s2", "one")
    stage.run(300 * MS)
    stage.submit("s3", "two")
    stage.run(300 * MS)
    times: dict[int, set[int]] = {}
    for _, effect in stage.journal.effects:
        for delivery in getattr(effect, "deliveries", ()):
            times.setdefault(delivery.first_ts, set()).add(delivery.time)
    (first,), (second,) = times.values()
    assert 290 * MS <= second - first <= 310 * MS


# -- after a pause ---------------------------------------------------------------------------------


def test_when_the_token_site_has_slept_then_it_orders_after_a_majority_of_the_ring_has_answered() -> None:
    stage = Stage.born(3)
    holder = stage.token_site()
    stage.isolate(holder.address)
    holder.engine.handle(TimerFired(), holder.local_time(stage.cluster.clock.now) + 5 * SECOND)
    assert holder.engine.doubt.doubting
    frontier = holder.engine.site.queue.frontier
    ask(holder, "door")
    assert holder.engine.site.queue.frontier == frontier
    doubt = holder.engine.doubt
    other = next(p for p in stage.cluster.live() if p is not holder)
    old = PollReply(other.engine.site.head(), doubt._round - 1, True)
    holder.engine.handle(PacketsReceived((old,)), holder.engine.site.now)
    assert doubt.doubting
    fresh = PollReply(other.engine.site.head(), doubt._round, False)
    holder.engine.handle(PacketsReceived((fresh,)), holder.engine.site.now)
    assert holder.engine.site.queue.frontier > frontier


def test_when_a_timer_is_a_little_late_then_a_site_trusts_itself() -> None:
    stage = Stage.born(3)
    holder = stage.token_site()
    late = min(holder.engine.site.deadlines.values()) + holder.engine.site.config.suspect_ms * MS
    holder.engine.handle(TimerFired(), late)
    assert not holder.engine.doubt.doubting
    assert "self-suspicions" not in holder.engine.site.counters


def test_when_the_ring_of_a_sleeper_is_dead_then_the_group_goes_on_without_it() -> None:
    stage = Stage.born(5)
    holder = stage.token_site()
    stage.cluster.pause(holder.address)
    others = [a for a in stage.addresses if a != holder.address]
    for address in others[:2]:
        stage.cluster.crash(address)
    stage.run(20 * MS)
    stage.cluster.resume(holder.address)
    stage.submit(others[2], "hello")
    stage.run(5 * SECOND)
    for address in (holder.address, *others[2:]):
        assert (stage.process(address).member.site, "hello") in stage.journal.delivered_at


def test_when_a_lone_site_has_slept_then_it_goes_on_at_once() -> None:
    stage = Stage.born(1)
    stage.cluster.pause("s1")
    stage.run(10 * SECOND)
    stage.cluster.resume("s1")
    assert stage.submit("s1", "hello") is None
    assert (stage.process("s1").member.site, "hello") in stage.journal.delivered_at
