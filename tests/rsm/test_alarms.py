"""Machines whose state changes with time alone: in the order, and also in a group where nobody calls."""

import asyncio
from random import Random
from typing import Any

import pytest

from rsm import envelope
from rsm.alarms import REPEAT_SECONDS, TURN_SECONDS, AlarmClock
from rsm.executor import NEVER
from rsm.replica import Replica
from rsm.state_machine import StateMachine, command
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
        self.waits: list[float] = []
        self.callback: Any = None

    def call_later(self, seconds: float, callback: Any) -> "_Hands":
        self.waits.append(seconds)
        self.callback = callback
        return self

    def cancel(self) -> None:
        self.callback = None


def test_when_it_is_not_its_turn_then_a_replica_leaves_the_first_some_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hands: Any = _Hands()
    proposed: list[int] = []
    monkeypatch.setattr("rsm.alarms.time.time_ns", lambda: 1_000_000_000)
    clock = AlarmClock(lambda: proposed.append(1), hands)
    clock.set(3_000_000_000, first=False)
    assert hands.waits == [2.0 + TURN_SECONDS]
    clock.set(3_000_000_000, first=True)
    assert hands.waits[-1] == 2.0
    hands.callback()  # the clock was put back meanwhile: it is too early
    assert proposed == []
    monkeypatch.setattr("rsm.alarms.time.time_ns", lambda: 3_000_000_000)
    hands.callback()
    assert proposed == [1]
    assert hands.waits[-1] == REPEAT_SECONDS
    clock.set(NEVER, first=True)
    assert hands.callback is None
