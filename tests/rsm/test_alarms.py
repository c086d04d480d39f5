"""Machines whose state changes with time alone: in the order, and also in a group where nobody calls."""

import asyncio
from random import Random
from typing import Any

import pytest

from rsm import envelope
from rsm.alarms import AGAIN_SECONDS, REPEAT_SECONDS, TURN_SECONDS, AlarmClock
from rsm.executor import NEVER
from rsm.replica import Replica
from rsm.state_machine import StateMachine, command
from rsm.testing import simulate
from tests.rsm.machines import Timers
from tests.rsm.test_executor import MS, Bench
from tests.rsm.test_replica import crash, group_of, play


class Defective(StateMachine):
    def __init__(self) -> None:
        self.asked = 0

    @command
    def go(self) -> int:
        return 7

    def alarm(self) -> int | None:
        raise RuntimeError("it does not know")


def test_when_an_alarm_is_due_then_it_goes_off_before_the_first_message_that_is_not_earlier() -> None:
    bench = Bench(Timers)
    bench.give([bench.message("set", "a", 10)])
    bench.time += 9 * MS
    bench.give([envelope.BARRIER])
    machine = bench.executor.machine
    assert isinstance(machine, Timers)
    assert machine.gone == []
    bench.time += 1 * MS
    bench.give([bench.message("set", "b", 10), envelope.BARRIER])
    assert machine.gone == [("a", bench.ts - 1)]
    assert bench.executor.alarm_at == bench.time + 10 * MS


def test_when_more_is_due_than_is_done_at_once_then_the_next_messages_do_the_rest() -> None:
    bench = Bench(Timers)
    bench.give([bench.message("set", name, 10) for name in "abcde"])
    bench.time += 20 * MS
    first = bench.ts + 1
    bench.give([envelope.BARRIER, envelope.BARRIER, envelope.BARRIER, envelope.BARRIER])
    machine = bench.executor.machine
    assert isinstance(machine, Timers)
    slots = [first, first, first + 1, first + 1, first + 2]
    assert machine.gone == list(zip("abcde", slots, strict=True))
    assert bench.executor.alarm_at == NEVER


def test_however_the_messages_are_cut_into_deliveries_then_alarms_go_off_at_the_same_slots() -> None:
    def states(cuts: list[int]) -> list[tuple[str, int]]:
        bench = Bench(Timers)
        messages = [bench.message("set", str(n), n % 3) for n in range(30)]
        for start, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
            if start < end:
                bench.give(messages[start:end])
        bench.time += 5 * MS
        for _ in range(20):
            bench.give([envelope.BARRIER])
        machine = bench.executor.machine
        assert isinstance(machine, Timers)
        return machine.gone

    chance = Random(5)
    whole = states([])
    assert len(whole) == 30
    for _ in range(20):
        assert states(sorted(chance.sample(range(1, 30), chance.randrange(1, 12)))) == whole


def test_when_a_state_is_restored_then_its_alarm_is_set() -> None:
    bench = Bench(Timers)
    bench.give([bench.message("set", "a", 10)])
    other = Bench(Timers)
    other.executor.restore(bench.executor.snapshot())
    assert other.executor.alarm_at == bench.executor.alarm_at != NEVER


def test_when_a_machine_cannot_say_its_alarm_then_commands_go_on_and_the_defect_is_counted() -> None:
    bench = Bench(Defective)
    reply = bench.give([bench.message("go")])[0]
    assert envelope.result_of(reply, bench.catalogue.command("go")) == 7
    assert bench.executor.defects["alarm: RuntimeError"] >= 1


async def _until_gone(replicas: list[Replica[Any]], names: list[str]) -> list[list[tuple[str, int]]]:
    while True:
        found: list[list[tuple[str, int]]] = [vars(each.executor.machine)["gone"] for each in replicas]
        if all([name for name, _ in each] == names for each in found):
            return found
        await asyncio.sleep(0.01)


def test_when_nobody_calls_then_an_alarm_goes_off_at_one_slot_at_all_replicas() -> None:
    async def main() -> None:
        async with group_of(Timers) as replicas:
            await replicas[0].proxy.set("a", 300)
            found = await _until_gone(replicas, ["a"])
            assert found[0] == found[1] == found[2]

    play(main())


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_when_a_replica_dies_before_an_alarm_then_it_goes_off_at_the_others(killed: int) -> None:
    async def main() -> None:
        async with group_of(Timers) as replicas:
            await replicas[killed].proxy.set("a", 400)
            await crash(replicas[killed])
            left = [replica for at, replica in enumerate(replicas) if at != killed]
            found = await _until_gone(left, ["a"])
            assert found[0] == found[1]

    play(main())


class _Hands:
    """An event loop's timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        self.callback: Any = None

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Any) -> "_Hands":
        self.waits.append(round(seconds, 6))
        self.callback = callback
        return self

    def cancel(self) -> None:
        self.callback = None


class _Stage:
    """An alarm clock at a group whose time is a second."""

    def __init__(self) -> None:
        self.hands = _Hands()
        self.wall = 1_000 * MS
        self.proposed = 0
        self.executor = Bench(Timers).executor
        self.executor.group.time = 1_000 * MS
        loop: Any = self.hands
        self.clock = AlarmClock(self._propose, loop, lambda: self.wall)

    def _propose(self) -> None:
        self.proposed += 1

    def set(self, at_ms: int | None, *, first: bool) -> None:
        self.executor.alarm_at = NEVER if at_ms is None else at_ms * MS
        self.clock.set(self.executor, first=first)

    def pass_time(self, ms: int) -> None:
        self.hands.now += ms / 1000
        self.wall += ms * MS


def test_when_it_is_not_its_turn_then_a_replica_leaves_the_first_some_time() -> None:
    stage = _Stage()
    stage.set(3_000, first=False)
    assert stage.hands.waits == [2.0 + TURN_SECONDS]
    stage.set(3_000, first=True)
    assert stage.hands.waits[-1] == 2.0
    stage.pass_time(2_000)
    stage.hands.callback()
    assert stage.proposed == 1
    assert stage.hands.waits[-1] == REPEAT_SECONDS
    stage.set(None, first=True)
    assert stage.hands.callback is None


def test_when_a_clock_is_put_back_or_ahead_then_nothing_is_ordered_in_vain() -> None:
    stage = _Stage()
    stage.set(3_000, first=True)
    stage.hands.now += 2
    stage.wall -= 60_000 * MS
    stage.hands.callback()
    assert stage.proposed == 0
    assert stage.hands.waits[-1] > 60
    stage.wall += 3_600_000 * MS
    stage.hands.now -= 1
    stage.hands.callback()
    assert stage.proposed == 0
    assert stage.hands.waits[-1] == 1.0


def test_when_the_time_of_the_group_stood_still_then_it_is_waited_for() -> None:
    stage = _Stage()
    stage.wall += 3_600_000 * MS  # all were down for an hour
    stage.set(3_000, first=True)
    assert stage.hands.waits == [2.0]
    stage.pass_time(1_000)
    stage.executor.group.time += 500 * MS
    stage.set(3_000, first=True)
    stage.pass_time(1_000)
    stage.hands.callback()
    assert stage.proposed == 0
    assert stage.hands.waits[-1] == 0.5


def test_when_more_is_due_after_an_alarm_then_the_next_slot_is_ordered_soon() -> None:
    stage = _Stage()
    stage.set(3_000, first=True)
    stage.pass_time(5_000)
    stage.executor.alarms += 1
    stage.set(3_000, first=True)
    assert stage.hands.waits[-1] == AGAIN_SECONDS


def test_when_many_are_due_at_one_time_then_an_idle_group_is_soon_done() -> None:
    async def main() -> None:
        async with group_of(Timers) as replicas:
            await asyncio.gather(*(replicas[0].proxy.set(str(n), 300) for n in range(60)))
            async with asyncio.timeout(5):  # two at a slot, and a slot every quarter of a second were 7.5
                while len(vars(replicas[0].executor.machine)["gone"]) < 60:
                    await asyncio.sleep(0.01)

    play(main())


# -- alike everywhere ----------------------------------------------------------------------------


class Moody(StateMachine):
    """Its alarm depends on when it is asked, which it should not."""

    def __init__(self) -> None:
        self.gone: list[int] = []

    @command
    def go(self) -> int:
        return len(self.gone)

    def alarm(self) -> int | None:
        return self.context.time_ns + 10 * MS

    def on_alarm(self) -> None:
        self.gone.append(self.context.timestamp)


def test_when_a_state_is_restored_between_alarms_then_the_next_goes_off_at_the_same_slot() -> None:
    bench, other = Bench(Moody), Bench(Moody)
    bench.give([bench.message("go")])
    bench.time += 9 * MS
    bench.give([envelope.BARRIER])
    other.executor.restore(bench.executor.snapshot())
    other.ts, other.time = bench.ts, bench.time
    for each in (bench, other):
        each.time += 1 * MS
        each.give([envelope.BARRIER])
    assert vars(bench.executor.machine)["gone"] == vars(other.executor.machine)["gone"] == [bench.ts]
    assert bench.executor.group.digest == other.executor.group.digest


class Wrong(StateMachine):
    def __init__(self) -> None:
        self.at: Any = None

    @command
    def choose(self, which: int) -> int:
        self.at = ("soon", 1.5, True, 10**400, -(10**400))[which]
        return which

    def alarm(self) -> int | None:
        found: int | None = self.at
        return found


@pytest.mark.parametrize("which", range(5))
def test_whatever_a_machine_says_of_its_alarm_then_commands_go_on(which: int) -> None:
    async def main() -> None:
        async with group_of(Wrong) as replicas:
            for _ in range(2):
                assert await replicas[0].proxy.choose(which) == which
            await asyncio.gather(*(each.proxy.choose(which) for each in replicas))

    play(main())


class Curious(StateMachine):
    def __init__(self) -> None:
        self.sessions: list[int] = []

    @command
    def go(self) -> int:
        return self.context.session

    def alarm(self) -> int | None:
        return self.context.time_ns

    def on_alarm(self) -> None:
        self.sessions.append(self.context.session)


def test_when_an_alarm_goes_off_behind_a_command_then_it_has_no_session() -> None:
    bench = Bench(Curious)
    bench.give([bench.message("go"), bench.message("go"), envelope.BARRIER])
    assert set(vars(bench.executor.machine)["sessions"]) == {0}


def test_when_an_alarm_goes_off_at_one_replica_only_then_its_digest_differs() -> None:
    bench, other = Bench(Timers), Bench(Timers)
    for each in (bench, other):
        each.give([each.message("set", "a", 10)])
    assert bench.executor.group.digest == other.executor.group.digest
    other.executor.alarm_at = NEVER
    for each in (bench, other):
        each.time += 20 * MS
        each.give([envelope.BARRIER])
    assert bench.executor.group.digest != other.executor.group.digest


# -- in the simulator ----------------------------------------------------------------------------


rung: dict[tuple[str, int], int] = {}


class Loud(Timers):
    """Tells its process of each alarm."""

    def on_alarm(self) -> None:
        before = len(self.gone)
        super().on_alarm()
        for each in self.gone[before:]:
            rung[each] = rung.get(each, 0) + 1


def _timers(chance: Random) -> tuple[str, tuple[Any, ...]]:
    if chance.random() < 0.5:
        return "set", (str(chance.randrange(100)), chance.randrange(500))
    return "went_off", ()


def test_when_machines_with_alarms_are_simulated_under_faults_then_nothing_is_found() -> None:
    report = simulate(Timers, _timers, seeds=range(5)).check()
    assert any("with time alone" in note for note in report.notes)


@pytest.mark.parametrize("faults", ["none", "light"])
def test_when_a_simulated_group_is_idle_then_its_alarms_go_off(faults: str) -> None:
    rung.clear()
    simulate(
        Loud, [("set", ("a", 1500))], sites=3, faults=faults, seeds=[1], clients=1, other_hashes=False
    ).check()
    names = [name for name, _ in rung]
    assert names.count("a") >= 1
    slots = {slot for _, slot in rung}
    assert len(slots) == len(names)


class Hasty(Timers):
    """Decides by what differs between replicas: an alarm that goes off at some of them only."""

    def alarm(self) -> int | None:
        wrong = id(self) // 64 % 2
        return None if wrong else super().alarm()


def test_when_alarms_differ_between_replicas_then_the_simulator_says_so() -> None:
    report = simulate(Hasty, _timers, seeds=range(3), sites=3, faults="none", other_hashes=False)
    assert any("diverged" in violation for failure in report.failures for violation in failure.violations)
