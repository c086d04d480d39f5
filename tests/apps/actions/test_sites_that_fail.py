"""Sites that crash and come back, lose their group, or have a database that fails."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from apps.actions.doubts import Question, Settled, ask_doubts
from apps.actions.errors import (
    ActionAborted,
    ActionMisused,
    ParticipantError,
    Superseded,
)
from apps.actions.initiator import Initiator
from apps.actions.ledger import ActionLedger
from apps.actions.manager import ActionManager
from apps.actions.participant import Unit
from apps.actions.sql import SqlParticipant
from apps.actions.types import Finish, State
from rsm.errors import AnswerFailed, NotAnswered, OutcomeUnknown, RsmError
from rsm.operations import ForkWanted
from rsm.replica import Replica
from tests.apps.actions.bank import balances, bank, credit, debit, run, total
from tests.apps.actions.sites import NAMES, Bank, banks, carry_out, until, until_voted
from tests.rsm.test_operations import chain_of, until_done
from tests.rsm.test_replica import config, crash, founded, group_of, play

# -- crashes -------------------------------------------------------------------------------------


async def come_back(made: Bank, name: str) -> ActionManager:
    """Another process, with the same database."""
    others = [
        each.address for each in made.replicas if each.address != made.replicas[NAMES.index(name)].address
    ]
    replica: Replica[Any] = Replica(ActionLedger, config())
    made.replicas.append(replica)  # it is stopped with the others
    await replica.open()
    replica.join([], others)
    await replica.ready()
    return await made.start(name, replica)


def test_when_a_site_crashes_before_its_vote_then_it_is_aborted_and_undone_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            came = made.participants["c"].hold("prepared")  # on its disk, and not voted
            action = made.managers["a"].action("half")
            action.add("a", debit("a", 10))
            action.add("c", credit("c", 10))
            waiting = asyncio.ensure_future(action.commit())
            await came.wait()
            await made.crash("c")
            with pytest.raises(ActionAborted, match="c has left the ring"):
                await waiting
            manager = await come_back(made, "c")
            await until(lambda: ("aborted", "half") in made.participants["c"].calls)
            assert not (await made.participants["c"].recover()).prepared
            assert made.found == [100, 100, 100]
            async with manager.action() as action:
                await action.at("c", debit("c", 1))
            assert made.found == [100, 100, 99]

    play(main())


def test_when_a_site_crashes_behind_its_vote_then_it_counts_and_is_finished_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            held = made.participants["b"].hold("prepare")
            action = made.managers["a"].action("late")
            action.add("b", debit("b", 10))
            action.add("c", credit("c", 10))
            waiting = asyncio.ensure_future(action.commit())
            await held.wait()
            await until_voted(made.managers["a"], "late", "c")
            await made.crash("c")
            made.participants["b"].release("prepare")
            await waiting
            assert made.found in ([100, 90, 100], [100, 100, 100])
            await come_back(made, "c")
            await action.finished()
            assert made.found == [100, 90, 110]

    play(main())


def test_when_a_site_crashes_between_its_commit_and_the_report_then_it_is_applied_once(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            came = made.participants["c"].hold("committed")  # on its disk, and not told
            async with made.managers["a"].action("told") as action:
                action.add("c", credit("c", 10))
            await came.wait()
            await made.crash("c")
            assert made.found == [100, 100, 110]
            await come_back(made, "c")
            await action.finished()
            assert made.found == [100, 100, 110]
            assert made.participants["c"].calls == [("commit", "told"), ("committed", "told")]

    play(main())


def test_when_another_process_takes_the_name_then_the_first_stops_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path, names=("a", "b")) as made:
            first = made.managers.pop("b")
            try:
                second = await made.start("b", made.replicas[2])
                with pytest.raises(
                    Superseded, match=f"b: another process has taken this name, at {made.replicas[2].address}"
                ):
                    await first.ended()
                async with made.managers["a"].action() as action:
                    assert await action.at("b", debit("b", 1)) == 99
                await action.finished()
                assert made.found[1] == 99
                assert second.in_doubt == {}
            finally:
                await first.__aexit__()

    play(main())


def test_when_an_older_registration_of_the_same_process_comes_late_then_the_site_registers_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager, member = made.managers["b"], made.replicas[1].member
            late = await made.replicas[1].proxy.register("b", member.site, f"{member.boot:032x}")
            await until(lambda: manager._core.incarnation > late.incarnation)
            async with made.managers["a"].action() as action:
                assert await action.at("b", debit("b", 1)) == 99
            await action.finished()
            assert made.found[1] == 99

    play(main())


def test_when_a_name_is_in_use_beside_the_same_replica_then_the_second_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            first = made.managers["b"]
            participant = SqlParticipant(made.urls["b"], bank)
            second = ActionManager(made.replicas[1], site="b", participant=participant)
            with pytest.raises(RsmError, match="is answered by somebody here already"):
                await second.__aenter__()
            async with first.action() as action:
                assert await action.at("b", debit("b", 1)) == 99
            assert made.found[1] == 99

    play(main())


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_when_the_ledger_refuses_a_name_then_the_manager_does_not_start(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with banks(tmp_path, names="b") as made:
            participant = SqlParticipant(made.urls["a"], bank)
            manager = ActionManager(made.replicas[0], site=name, participant=participant)
            with pytest.raises(ActionMisused, match=r"is no name for a site: .*'most': 256"):
                await manager.__aenter__()
            assert [each.name for each in await made.managers["b"].ledger.sites()] == ["b"]

    play(main())


def test_when_a_replica_is_thrown_out_and_comes_back_then_its_site_registers_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            before = made.managers["c"]._core.incarnation
            member = made.replicas[2].member
            await made.replicas[0].remove(made.replicas[2].address, timeout=20, force=True)
            await until(lambda: made.managers["c"]._core.incarnation > before)
            assert made.replicas[2].member != member
            await made.managers["a"].ledger.sites()  # its own replica knows of that by now too
            async with made.managers["a"].action() as action:
                assert await action.at("c", debit("c", 1)) == 99
            await action.finished()
            assert made.found[2] == 99

    play(main())


# -- in doubt ------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_when_the_group_begins_anew_then_what_is_prepared_is_in_doubt_until_it_is_settled(
    tmp_path: Path, commit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            held = made.participants["b"].hold("prepare")
            action = made.managers["a"].action("lost")
            action.add("b", debit("b", 10))
            action.add("c", credit("c", 10))
            waiting = asyncio.ensure_future(action.commit())
            await held.wait()
            await until_voted(made.managers["a"], "lost", "c")
            await asyncio.gather(*map(crash, made.replicas))
            for name in NAMES:
                made.participants[name].gates.clear()
                await made.stop(name)
            with pytest.raises(OutcomeUnknown):
                await waiting
            urls = made.urls
        replicas: list[Replica[Any]] = [Replica(ActionLedger, config()) for _ in NAMES]
        async with founded(replicas), AsyncExitStack() as stack:
            participants = [SqlParticipant(urls[name], bank) for name in NAMES]
            managers = [
                await stack.enter_async_context(ActionManager(replica, site=name, participant=participant))
                for name, replica, participant in zip(NAMES, replicas, participants, strict=True)
            ]
            manager = managers[2]
            assert managers[0].in_doubt == {}
            (unit,) = manager.in_doubt
            assert unit.name.startswith("lost@")
            assert manager.in_doubt[unit].operations == (credit("c", 10).at("c"),)
            assert "in doubt" in caplog.text
            async with managers[0].action("lost") as again:  # the name is free in this chain
                await again.at("c", credit("c", 1))
            await again.finished()
            assert balances(urls["c"])["c"] == 101
            await manager.settle(unit, commit=commit)
            assert manager.in_doubt == {}
            await manager.settle(unit, commit=commit)  # said again, it is as it was
            with pytest.raises(ActionMisused, match=f"it is {'committed' if commit else 'aborted'} at c"):
                await manager.settle(unit, commit=not commit)
            with pytest.raises(ActionMisused, match="is not in doubt at c"):
                await manager.settle(Unit("another", unit.chain), commit=commit)
            assert balances(urls["c"])["c"] == (111 if commit else 101)
            assert not (await participants[2].recover()).prepared

    play(main())


async def doubtful(made: Bank, name: str) -> Unit:
    """As a site's database is whose group had to begin anew."""
    unit = Unit("lost@7", 48879)
    participant = SqlParticipant(made.urls[name], bank)
    await participant.open()
    await participant.prepare(unit, [credit(name, 10).at(name)])
    await participant.close()
    await made.stop(name)
    await made.start(name)
    return unit


@pytest.mark.parametrize("step", ["commit", "committed"])
def test_when_an_operator_does_not_wait_then_it_is_settled_all_the_same_and_told_when_said_again(
    tmp_path: Path, step: str
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            unit = await doubtful(made, "c")
            through, slow = made.replicas[0], made.participants["c"]
            address = made.replicas[2].address
            came = slow.hold(step)
            with pytest.raises(NotAnswered):
                await ask_doubts(through, "c", address, 0.2, Question(unit, True))
            await came.wait()
            with pytest.raises(AnswerFailed, match="lost@7 of chain beef: it is committed at c"):
                await ask_doubts(through, "c", address, 5, Question(unit, False))
            again = asyncio.ensure_future(ask_doubts(through, "c", address, 5, Question(unit, True)))
            slow.release(step)
            told = await again
            assert (told.left, told.settled) == ((), (Settled(*unit, True),))
            assert [each for each in slow.calls if each[0] == "commit"] == [("commit", "lost")]
            assert balances(made.urls["c"]) == {"c": 110}
            await made.stop("c")
            await made.start("c")  # another process finds the mark
            told = await ask_doubts(through, "c", address, 5, Question(unit, True))
            assert told.settled == (Settled(*unit, True),)

    play(main())


def test_when_a_unit_cannot_be_settled_then_the_operator_is_told_and_it_is_in_doubt_as_before(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            unit = await doubtful(made, "c")
            manager, errors = made.managers["c"], made.participants["c"].errors
            errors["commit"] = ParticipantError("the disk is full")
            with pytest.raises(ParticipantError, match="the disk is full"):
                await manager.settle(unit, commit=True)
            assert list(manager.in_doubt) == [unit]
            await manager.settle(unit, commit=False)  # nothing was done, so it may be the other
            assert balances(made.urls["c"]) == {"c": 100}

    play(main())


@pytest.mark.parametrize("step", ["commit", "committed"])
def test_when_the_group_goes_on_in_another_chain_then_what_was_committed_before_is_applied_once(
    tmp_path: Path, step: str
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager, replica = made.managers["c"], made.replicas[2]
            came = made.participants["c"].hold(step)  # it is on the disk there, or not
            await carry_out(made.managers["a"].action("late"), a=debit("a", 10), c=credit("c", 10))
            await came.wait()
            await asyncio.gather(made.crash("a"), made.crash("b"))
            await until_done(replica, ForkWanted(chain_of(replica)))
            made.participants["c"].errors[step] = ParticipantError("not yet")
            made.participants["c"].release(step)
            await until(lambda: manager._chain == chain_of(replica))
            made.participants["c"].errors.clear()
            while (found := await reported(manager, "late", "c")).error or not found.timestamp:
                await asyncio.sleep(0.01)
            assert manager.in_doubt == {}
            assert balances(made.urls["c"]) == {"c": 110}
            await carry_out(manager.action(), c=credit("c", 1))  # nothing is in its way

    play(main())


def test_when_a_report_of_the_chain_before_is_still_to_come_then_it_takes_none_of_the_new_chain_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager, replica, participant = made.managers["c"], made.replicas[2], made.participants["c"]
            waits, go_on = asyncio.Event(), asyncio.Event()

            async def held(pause: Any) -> None:
                pause.close()
                waits.set()
                await go_on.wait()

            participant.errors["commit"] = ParticipantError("not yet")
            with monkeypatch.context() as patched:
                patched.setattr(manager, "_unless_over", held)
                await carry_out(made.managers["a"].action("late"), c=credit("c", 10))
                await waits.wait()
                await until(lambda: manager._reporting is not None)
            await asyncio.gather(made.crash("a"), made.crash("b"))
            participant.errors.clear()
            await until_done(replica, ForkWanted(chain_of(replica)))
            await until(lambda: ("committed", "late") in participant.calls)
            go_on.set()
            while (found := await reported(manager, "late", "c")).error or not found.timestamp:
                await asyncio.sleep(0.01)
            assert balances(made.urls["c"]) == {"c": 110}

    play(main())


# -- databases that fail -------------------------------------------------------------------------


def test_when_a_database_fails_at_prepare_then_the_site_votes_no(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            made.participants["b"].errors["prepare"] = OSError(28, "No space left on device")
            with pytest.raises(ActionAborted, match=r"b voted no: OSError: .*No space left"):
                async with made.managers["a"].action() as action:
                    action.add("b", debit("b", 10))
            del made.participants["b"].errors["prepare"]
            async with made.managers["a"].action() as action:
                action.add("b", debit("b", 10))
            await action.finished()
            assert made.found == [100, 90, 100]

    play(main())


def test_when_a_database_fails_at_commit_then_it_is_reported_and_healed_and_others_are_voted_down(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            made.participants["b"].errors["commit"] = ParticipantError("the disk is full")
            async with manager.action("stuck") as action:
                action.add("a", debit("a", 10))
                action.add("b", credit("b", 10))
            assert action.state is State.COMMITTED
            while not (found := await reported(manager, "stuck", "b")).error:
                await asyncio.sleep(0.01)
            assert found.error == "the disk is full"
            with pytest.raises(ActionAborted, match=r"stuck@.* cannot be finished here: the disk is full"):
                async with manager.action() as other:
                    other.add("b", debit("b", 10))
            async with manager.action() as free:  # another key, another matter
                free.add("a", debit("a", 1))
            made.participants["b"].errors.clear()
            await action.finished()
            assert made.found == [89, 110, 100]
            async with manager.action() as other:
                other.add("b", debit("b", 10))
            await other.finished()
            assert made.found == [89, 100, 100]

    play(main())


async def reported(manager: Initiator, id_: str, site: str) -> Finish:
    found = await manager.ledger.action(id_)
    assert found is not None
    return next((each for each in found.finished if each.site == site), Finish(site, "", 0))


def test_when_the_own_site_cannot_apply_it_then_the_commit_is_told_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            made.participants["a"].errors["commit"] = ParticipantError("the disk is full")
            async with made.managers["a"].action() as action:
                action.add("a", debit("a", 10))
            assert (action.state, made.found[0]) == (State.COMMITTED, 100)
            made.participants["a"].errors.clear()
            await action.finished()
            assert made.found[0] == 90

    play(main())


def test_when_many_are_finished_then_marks_are_forgotten(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("apps.actions.manager.REPORTS_MAX", 8)

    async def main() -> None:
        async with banks(tmp_path) as made:
            for _ in range(3):
                actions = [made.managers["a"].action() for _ in range(8)]
                for action in actions:
                    action.add("b", debit("b", 1))
                await asyncio.gather(*(action.commit() for action in actions))
                await asyncio.gather(*(action.finished() for action in actions))
            while len((await made.participants["b"].recover()).applied) > 8:
                await asyncio.sleep(0.01)
            assert made.found == [100, 76, 100]
            await made.stop("b")
            await made.start("b")
            while made.managers["b"]._marks:
                await asyncio.sleep(0.01)
            async with made.managers["a"].action() as action:
                assert await action.at("b", total()) == 76

    play(main())


def test_when_a_database_cannot_be_opened_then_the_manager_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with group_of(ActionLedger, 1) as (replica,):
            participant = SqlParticipant(f"sqlite:///{tmp_path}/none/x.db", bank)
            with pytest.raises(ParticipantError, match="cannot be opened"):
                async with ActionManager(replica, site="a", participant=participant):
                    pass
            assert await replica.proxy.sites() == []

    play(main())


def test_when_the_core_meets_a_defect_then_the_manager_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:

            def fail(unit: str, error: str) -> Any:
                raise AssertionError("a defect")

            monkeypatch.setattr(made.managers["b"]._core, "prepared", fail)
            made.managers["a"].action("x").add("b", debit("b", 1))
            with pytest.raises(ActionAborted):
                async with made.managers["a"].action(timeout=0.5) as action:
                    action.add("b", debit("b", 1))
            with pytest.raises(AssertionError, match="a defect"):
                await made.managers["b"].ended()
            run(made.urls["b"], "SELECT 1")

    play(main())


# -- errors that are odd -------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["x" * 5_000_000, "no such file: \udcff"], ids=["long", "no text"])
def test_when_an_error_cannot_be_sent_as_it_is_then_votes_and_reports_come_all_the_same(
    tmp_path: Path, words: str
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager, errors = made.managers["a"], made.participants["b"].errors
            errors["prepare"] = ValueError(words)
            with pytest.raises(ActionAborted, match=r"b voted no: ValueError: (xxx|no such file)"):
                await carry_out(manager.action(), a=debit("a", 10), b=credit("b", 10))
            del errors["prepare"]
            errors["commit"] = ValueError(words)
            action = manager.action("late")
            await carry_out(action, a=debit("a", 10), b=credit("b", 10))
            while not any(each.error for each in (await manager.outcome("late")).finished):
                await asyncio.sleep(0.01)
            del errors["commit"]
            await action.finished()
            assert made.found == [90, 110, 100]

    play(main())


class HeldReports:
    """The ledger, whose first report is under way until it is let go."""

    def __init__(self, ledger: Any) -> None:
        self.is_held = asyncio.Event()
        self.let_go = asyncio.Event()
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def finished(self, site: str, incarnation: int, reports: list[tuple[str, str]]) -> int:
        if not self.is_held.is_set():
            self.is_held.set()
            await self.let_go.wait()
        told: int = await self._ledger.finished(site, incarnation, reports)
        return told


def test_when_a_site_is_registered_anew_while_its_report_is_under_way_then_the_report_is_made_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["b"]
            held: Any = HeldReports(manager.ledger)
            manager.ledger = held
            action = made.managers["a"].action("transfer")
            await carry_out(action, a=debit("a", 10), b=credit("b", 10))
            await held.is_held.wait()
            before, member = manager._core.incarnation, manager._replica.member
            await manager.ledger.register("b", member.site, f"{member.boot:032x}")
            # It follows that registration with one of its own, and is told all that stands.
            await until(lambda: manager._heard >= manager._core.incarnation > before)
            held.let_go.set()
            await action.finished()

    play(main())
