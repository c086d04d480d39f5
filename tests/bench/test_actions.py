"""Transfers by actions and by two-phase commit: the rival's protocol, and short real runs of both."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from apps import bank
from apps.actions.participant import Unit
from apps.actions.sql import SqlParticipant
from apps.actions.types import Operation
from bench.actions.compare import ActionsPlan, Side, ratios, summary
from bench.actions.sites import ACCOUNTS, BALANCE, NAMES, Ground, Steps, Transfer
from bench.actions.two_phase import Aborted, Coordinator, DecisionLog, Worker
from bench.errors import BenchError
from bench.machine import Mode
from cli.main import app

WHOLE = ACCOUNTS * BALANCE


def ground_at(directory: Path) -> Ground:
    ground = Ground(databases=directory, log=directory)
    ground.make_accounts()
    return ground


class Rival:
    """A coordinator and its participants, in one process."""

    def __init__(self, ground: Ground, stack: AsyncExitStack) -> None:
        self.ground = ground
        self.participants: list[SqlParticipant] = []
        self._stack = stack

    async def coordinator(self, port: int = 0) -> tuple[Coordinator, str]:
        coordinator = Coordinator(DecisionLog(self.ground.databases / "decisions"))
        address = await coordinator.open(port)
        self._stack.push_async_callback(coordinator.close)
        return coordinator, address

    async def join(self, me: int, address: str, *units: tuple[Unit, Operation]) -> None:
        participant = SqlParticipant(self.ground.url(me), bank.bank)
        await participant.open()
        self._stack.push_async_callback(participant.close)
        for unit, operation in units:
            await participant.prepare(unit, [operation])
        worker = Worker(NAMES[me], participant, address)
        await worker.open()
        self._stack.push_async_callback(worker.close)
        self.participants.append(participant)

    async def whole(self) -> tuple[Coordinator, str]:
        coordinator, address = await self.coordinator()
        for me in range(len(NAMES)):
            await self.join(me, address)
        await coordinator.ready(NAMES)
        return coordinator, address

    async def until_nothing_is_prepared(self) -> None:
        while any([(await each.recover()).prepared for each in self.participants]):
            await asyncio.sleep(0.01)


def committed(directory: Path) -> list[str]:
    log = DecisionLog(directory / "decisions")
    log.close()
    return list(log.committed)


def play(directory: Path, main: Callable[[Rival], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            await main(Rival(ground_at(directory), stack))

    asyncio.run(bounded())


async def until_balances(ground: Ground, *wanted: int) -> None:
    while ground.balances() != list(wanted):
        await asyncio.sleep(0.01)


# -- the rival -----------------------------------------------------------------------------------


def test_when_all_vote_yes_then_it_is_logged_and_applied_everywhere(tmp_path: Path) -> None:
    async def main(rival: Rival) -> None:
        coordinator, _ = await rival.whole()
        transaction = coordinator.transaction("t")
        await transaction.at(NAMES[0], bank.debit("1", 5))
        assert await transaction.at(NAMES[0], bank.balance("1")) == BALANCE - 5
        await transaction.at(NAMES[1], bank.credit("1", 5))
        await transaction.commit()
        assert committed(tmp_path) == ["t"]
        await until_balances(rival.ground, WHOLE - 5, WHOLE + 5)

    play(tmp_path, main)


def test_when_one_votes_no_then_nothing_happens_anywhere(tmp_path: Path) -> None:
    async def main(rival: Rival) -> None:
        coordinator, _ = await rival.whole()
        transaction = coordinator.transaction("t")
        transaction.add(NAMES[0], bank.debit("1", 5))
        transaction.add(NAMES[1], bank.debit("1", BALANCE + 1))
        with pytest.raises(Aborted, match="1 has"):
            await transaction.commit()
        await rival.until_nothing_is_prepared()
        assert rival.ground.balances() == [WHOLE, WHOLE]
        assert committed(tmp_path) == []

    play(tmp_path, main)


@pytest.mark.parametrize("logged", [True, False])
def test_when_the_coordinator_dies_then_the_prepared_wait_for_it_and_its_log_decides(
    tmp_path: Path, logged: bool
) -> None:
    async def main(rival: Rival) -> None:
        first, address = await rival.whole()
        voted = asyncio.Event()

        async def die() -> None:
            if logged:
                await first._log.commit("t")
            voted.set()
            await asyncio.Event().wait()

        first.before_decision = die
        transaction = first.transaction("t")
        transaction.add(NAMES[0], bank.debit("1", 5))
        transaction.add(NAMES[1], bank.credit("1", 5))
        committing = asyncio.ensure_future(transaction.commit())
        await voted.wait()
        await first.close()
        committing.cancel()
        assert [len((await each.recover()).prepared) for each in rival.participants] == [1, 1]
        await rival.coordinator(int(address.rpartition(":")[2]))
        await until_balances(rival.ground, *([WHOLE - 5, WHOLE + 5] if logged else [WHOLE, WHOLE]))
        await rival.until_nothing_is_prepared()

    play(tmp_path, main)


def test_when_a_participant_comes_back_then_it_hears_what_became_of_what_it_has_prepared(
    tmp_path: Path,
) -> None:
    async def main(rival: Rival) -> None:
        coordinator, address = await rival.coordinator()
        await coordinator._log.commit("done")
        prepared = [
            (Unit("done", 0), bank.debit("1", 5).at("a")),
            (Unit("not", 0), bank.debit("2", 9).at("a")),
        ]
        await rival.join(0, address, *prepared)
        await until_balances(rival.ground, WHOLE - 5, WHOLE)
        await rival.until_nothing_is_prepared()

    play(tmp_path, main)


def test_when_a_record_was_being_written_then_it_was_no_decision(tmp_path: Path) -> None:
    async def main(_: Rival) -> None:
        log = DecisionLog(tmp_path / "decisions")
        await asyncio.gather(log.commit("one"), log.commit("two"))
        await log.commit("three")
        log.close()

    play(tmp_path, main)
    path = tmp_path / "decisions"
    data = path.read_bytes()
    at = data.index(b"three")
    path.write_bytes(data[:at] + b"thr\0\0" + data[at + 5 :])
    assert committed(tmp_path) == ["one", "two"]


# -- what is shown -------------------------------------------------------------------------------


def test_when_transfers_are_summed_up_then_the_later_site_counts() -> None:
    transfers = [Transfer("t", 1_000, 11_000, 31_000)]
    steps = [{"t": Steps(13_000, 20_000, 32_000, 40_000)}, {"t": Steps(14_000, 25_000, 33_000, 51_000)}]
    found = summary(transfers, steps, 2.0, 0.5)
    assert found["attempt"]["p50_us"] == 10.0  # type: ignore[index,call-overload]
    assert found["decision"]["p50_us"] == 20.0  # type: ignore[index,call-overload]
    assert found["applied"]["p50_us"] == 50.0  # type: ignore[index,call-overload]
    assert list(found["parts_p50_us"].values()) == [2.0, 12.0, 6.0, 1.0, 19.0]  # type: ignore[union-attr]


def test_when_ratios_are_taken_then_they_are_ours_to_theirs() -> None:
    plan = ActionsPlan(modes=(Mode.MEMORY,), in_flight=(1,))
    row = {"transfer": {"p50_us": 30.0}, "cpu_us": 8.0}
    other = {"transfer": {"p50_us": 20.0}, "cpu_us": 4.0}
    values: Any = {"memory": {Side.ACTIONS.value: {"1": row}, Side.TWO_PHASE.value: {"1": other}}}
    found = ratios(plan, values)
    assert (found["memory_1_transfer_p50"], found["memory_1_cpu"]) == (1.5, 2.0)
    assert found["memory_1_applied_p50"] is None


@pytest.mark.parametrize(
    "plan",
    [
        ActionsPlan(in_flight=()),
        ActionsPlan(in_flight=(0,)),
        ActionsPlan(down_seconds=(0,)),
        ActionsPlan(directory=Path("/no")),
    ],
)
def test_when_a_plan_cannot_be_measured_then_it_is_refused(plan: ActionsPlan) -> None:
    with pytest.raises(BenchError):
        plan.check()


# -- real processes ------------------------------------------------------------------------------


def rsm_bench(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["bench", "actions", *words])


def test_when_transfers_are_made_then_both_sides_have_a_result(tmp_path: Path) -> None:
    words = ("--seconds", "0.3", "--rounds", "1", "--in-flight", "2", "--kills", "0")
    run = rsm_bench(*words, "--directory", str(tmp_path), "--json")
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    for mode in ("memory", "durable"):
        for side in Side:
            row = result["values"][mode][side.value]["2"]
            assert row["transfer"]["p50_us"] < row["applied"]["p50_us"]
        assert result["ratios"][f"{mode}_2_transfer_p50"] > 0
    assert not list(tmp_path.iterdir())


def test_when_somebody_dies_then_only_two_phase_commit_waits_for_it(tmp_path: Path) -> None:
    words = ("--seconds", "0.1", "--rounds", "1", "--in-flight", "1", "--kills", "1", "--down", "3")
    run = rsm_bench(*words, "--mode", "durable", "--directory", str(tmp_path), "--json")
    assert run.exit_code == 0, run.output
    blocked = json.loads(run.stdout)["values"]["blocked"]
    assert blocked["two-phase commit, caller, back after 3 s"]["median_ms"] >= 3000
    assert 0 < blocked["actions, caller"]["median_ms"] < 3000
    assert set(blocked) == {
        "actions, caller",
        "actions, participant",
        "two-phase commit, caller, back after 3 s",
        "two-phase commit, participant",
    }
