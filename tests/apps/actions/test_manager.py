"""Actions at three sites: what commits, what does not, and what who waits is told."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from apps.actions.errors import (
    ActionAborted,
    ActionMisused,
    ActionUnknown,
    OperationFailed,
    ParticipantError,
    RequestRefused,
    ResultChanged,
    SiteUnavailable,
)
from apps.actions.handles import ActionHandle
from apps.actions.initiator import Initiator
from apps.actions.ledger import ActionLedger
from apps.actions.operations import BoundOperation
from apps.actions.types import NewAction, State
from rsm.client import Client, ClientConfig
from rsm.errors import OutcomeUnknown, Rejected
from tests.apps.actions.bank import credit, debit, fill, look, misspell
from tests.apps.actions.sites import NAMES, banks, carry_out, until, until_state, until_voted
from tests.rsm.postgres_kit import postgres
from tests.rsm.test_replica import crash, play

# -- commit and abort ----------------------------------------------------------------------------


def test_when_all_sites_agree_then_it_is_committed_at_all_of_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            async with made.managers["a"].action("transfer-42") as action:
                assert await action.at("a", debit("a", 10)) == 90
                assert await action.at("b", credit("b", 10)) == 110
                assert await action.at("b", credit("b", 1)) == 111
                assert made.found == [100, 100, 100]
            assert action.state is State.COMMITTED
            assert made.found[0] == 90  # its own site, at once
            await action.finished()
            assert made.found == [90, 111, 100]
            assert action.record is not None
            assert [each.error for each in action.record.finished] == ["", ""]
            assert (await made.managers["c"].outcome("transfer-42")).state is State.COMMITTED

    play(main())


def test_when_the_site_itself_takes_no_part_then_it_can_begin_actions_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            async with made.managers["c"].action() as action:
                action.add("a", debit("a", 1))
                action.add("b", credit("b", 1))
            await action.finished()
            assert made.found == [99, 101, 100]

    play(main())


def test_when_a_client_begins_an_action_then_it_has_all_that_a_site_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            addresses = tuple(replica.address for replica in made.replicas)
            settings = ClientConfig(group="tested", replicas=addresses, insecure=True)
            client: Client[ActionLedger] = Client(ActionLedger, settings)
            async with client, Initiator(client, name="teller") as initiator:
                async with initiator.action() as action:
                    assert await action.at("a", debit("a", 10)) == 90
                    assert await action.at("c", credit("c", 10)) == 110
                assert action.id.startswith("teller-")
                await action.finished()
                assert made.found == [90, 100, 110]
                poor = initiator.action("poor")
                with pytest.raises(ActionAborted, match="b voted no: too little is there"):
                    await carry_out(poor, a=credit("a", 10), b=debit("b", 1000))
                assert (await initiator.outcome("poor")).state is State.ABORTED
                assert made.found == [90, 100, 110]

    play(main())


def test_when_a_site_votes_no_then_nothing_happens_anywhere_and_the_reason_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            action = manager.action("poor")
            with pytest.raises(ActionAborted, match="b voted no: too little is there") as told:
                await carry_out(action, a=credit("a", 200), b=debit("b", 200))
            assert [vote.reason for vote in told.value.votes if not vote.yes] == ["too little is there"]
            assert action.state is State.ABORTED
            with pytest.raises(ActionAborted):
                await action.finished()
            for name in "ab":
                while (await made.participants[name].recover()).prepared:
                    await asyncio.sleep(0.01)
            assert made.found == [100, 100, 100]

    play(main())


def test_when_a_result_was_changed_meanwhile_then_it_is_aborted(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            one, two = made.managers["a"], made.managers["b"]
            slow, fast = one.action(), two.action()
            assert await slow.at("c", look("c")) == 100
            await slow.at("a", debit("a", 1))
            await carry_out(fast, c=debit("c", 5))
            await fast.finished()
            with pytest.raises(ActionAborted, match="somebody else was faster"):
                await slow.commit()
            assert made.found == [100, 100, 95]

            slow, fast = one.action(), two.action()
            assert await slow.at("c", look("c")) == 95
            await carry_out(fast, c=debit("c", 5))
            await fast.finished()
            with pytest.raises(ResultChanged):  # it is told when it asks again
                await slow.at("c", debit("c", 1))

    play(main())


async def fail_within(action: ActionHandle, operation: BoundOperation[Any]) -> None:
    async with action:
        await action.at("b", operation)
        raise KeyError


def test_when_an_action_is_left_by_an_exception_then_nothing_was_ordered(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            action = manager.action("never")
            with pytest.raises(KeyError):
                await fail_within(action, debit("b", 5))
            assert action.state is State.ABORTED
            async with manager.action("neither") as action:
                await action.at("b", debit("b", 5))
                action.abort()
            for id_ in ("never", "neither"):
                with pytest.raises(ActionUnknown):
                    await manager.outcome(id_)
            async with manager.action("empty") as action:
                pass
            await action.finished()
            with pytest.raises(ActionUnknown):
                await manager.outcome("empty")
            assert await manager.ledger.actions() == []
            assert made.found == [100, 100, 100]

    play(main())


def test_when_an_attempt_is_refused_or_fails_then_it_is_told_and_the_action_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            async with made.managers["a"].action() as action:
                with pytest.raises(Rejected, match="too little") as told:
                    await action.at("b", debit("b", 200))
                assert told.value.detail == {"there": 100}
                with pytest.raises(OperationFailed, match=r"misspell: OperationalError: .*SELEKT"):
                    await action.at("b", misspell())
                with pytest.raises(SiteUnavailable, match="z: there is no such site; there are: a, b, c"):
                    await action.at("z", debit("b", 1))
                assert await action.at("b", debit("b", 1)) == 99
            await action.finished()
            assert made.found == [100, 99, 100]
            with pytest.raises(ActionMisused):
                await action.at("b", debit("b", 1))
            with pytest.raises(ActionMisused):
                action.add("b", debit("b", 1))
            with pytest.raises(ActionMisused):
                await action.commit()

    play(main())


def test_when_the_ledger_refuses_a_request_then_it_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            async with manager.action("once") as action:
                action.add("a", debit("a", 1))
            for id_, site, words in (
                ("once", "a", "there is one of this id, and it is committed"),
                ("away", "z", "z is not there at present"),
                ("x" * 300, "a", "characters"),
            ):
                with pytest.raises(RequestRefused, match=words):
                    async with manager.action(id_) as action:
                        action.add(site, debit("a", 1))
            assert made.found[0] == 99

    play(main())


def test_when_many_compete_for_one_account_then_each_is_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:

            async def move(number: int) -> bool:
                source, target = NAMES[number % 3], NAMES[(number + 1) % 3]
                try:
                    async with made.managers[source].action() as action:
                        await action.at(source, debit(source, 1 + number))
                        await action.at(target, credit(target, 1 + number))
                except (ActionAborted, ResultChanged):
                    return False
                await action.finished()
                return True

            moved = await asyncio.gather(*map(move, range(24)))
            assert any(moved)
            expected = [100, 100, 100]
            for number, done in enumerate(moved):
                expected[number % 3] -= done * (1 + number)
                expected[(number + 1) % 3] += done * (1 + number)
            assert made.found == expected

    play(main())


# -- who goes ------------------------------------------------------------------------------------


def test_when_a_manager_is_closed_then_its_name_is_away_at_once_and_what_it_has_not_voted_for_is_aborted(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path, offers=False) as made:
            manager, slow = made.managers["a"], made.participants["b"]
            came = slow.hold("prepare")
            half = manager.action("half", timeout=60)
            waiting = asyncio.ensure_future(carry_out(half, a=debit("a", 1), b=credit("b", 1)))
            await came.wait()
            closing = asyncio.ensure_future(made.stop("b"))
            with pytest.raises(ActionAborted, match="b has gone"):
                await waiting
            with pytest.raises(RequestRefused, match="b is not there at present"):
                await carry_out(manager.action(), b=credit("b", 1))
            with pytest.raises(SiteUnavailable, match="b: is not there at present"):
                await manager.action().at("b", credit("b", 1))
            slow.release("prepare")
            await closing
            assert ("aborted", "half") in slow.calls
            await made.start("b")  # beside the replica that has stayed
            await carry_out(manager.action("again"), a=debit("a", 1), b=credit("b", 1))
            await manager.finished("again")
            assert made.found == [99, 101, 100]

    play(main())


def test_when_a_manager_is_closed_behind_its_vote_then_that_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            came = made.participants["c"].hold("prepare")
            action = manager.action("late", timeout=60)
            waiting = asyncio.ensure_future(carry_out(action, b=credit("b", 1), c=debit("c", 1)))
            await came.wait()
            await until_voted(manager, "late", "b")
            await made.stop("b")
            made.participants["c"].release("prepare")
            await waiting
            assert made.found[1] == 100
            await made.start("b")
            await action.finished()
            assert made.found == [100, 101, 99]

    play(main())


def test_when_a_manager_is_entered_twice_then_that_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["b"]
            with pytest.raises(ActionMisused, match="b: this manager was started before; make another"):
                await manager.__aenter__()
            async with manager.action() as action:
                assert await action.at("b", debit("b", 1)) == 99
            await made.stop("b")
            with pytest.raises(ActionMisused, match="started before"):
                await manager.__aenter__()
            assert made.found[1] == 99

    play(main())


# -- nested and dependent ------------------------------------------------------------------------


async def fail_nested(action: ActionHandle) -> None:
    async with action.nested() as part:
        await part.at("b", credit("b", 7))
        await part.at("a", debit("a", 500))


def test_when_a_nested_part_fails_then_it_alone_is_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            async with made.managers["a"].action() as action:
                await action.at("a", debit("a", 10))
                async with action.nested() as part:
                    assert await part.at("a", debit("a", 5)) == 85
                    async with part.nested() as inner:
                        assert await inner.at("a", debit("a", 1)) == 84
                with pytest.raises(Rejected, match="too little"):
                    await fail_nested(action)
                assert await action.at("b", credit("b", 16)) == 116
            await action.finished()
            assert made.found == [84, 116, 100]

    play(main())


def test_when_an_action_reads_from_another_then_it_sees_it_and_commits_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            first, second = manager.action("first"), manager.action("second")
            await first.at("b", debit("b", 30))
            second.read_from(first)
            assert await second.at("b", debit("b", 30)) == 40
            waiting = asyncio.ensure_future(second.commit())
            await until_state(manager, "second", State.WAITING)
            await first.commit()
            await waiting
            await second.finished()
            assert made.found == [100, 40, 100]
            assert second.record is not None
            assert first.record is not None
            assert second.record.decided > first.record.decided

    play(main())


def test_when_what_it_has_read_from_aborts_then_it_does_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            first, second = manager.action("first"), manager.action("second")
            await first.at("b", debit("b", 30))
            second.read_from(first)
            assert await second.at("b", look("b")) == 70
            waiting = asyncio.ensure_future(second.commit())
            await until_state(manager, "second", State.WAITING)
            first.add("c", debit("c", 500))
            with pytest.raises(ActionAborted, match="too little"):
                await first.commit()
            with pytest.raises(ActionAborted, match="depends on first"):
                await waiting
            assert made.found == [100, 100, 100]

    play(main())


def test_when_two_depend_on_each_other_then_they_are_decided_as_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            one = made.managers["a"].action("one")
            two = made.managers["b"].action("two")
            one.read_from(two)
            two.read_from(one)
            await one.at("c", debit("c", 30))
            await two.at("a", debit("a", 5))
            await asyncio.gather(one.commit(), two.commit())
            await asyncio.gather(one.finished(), two.finished())
            assert made.found == [95, 100, 70]
            assert one.record is not None
            assert two.record is not None
            assert one.record.decided == two.record.decided
            with pytest.raises(ActionMisused, match="itself"):
                made.managers["a"].action("x").read_from("x")

    play(main())


def test_when_an_action_reads_from_one_that_is_open_in_the_ledger_then_it_sees_its_operations(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            await manager.ledger.open(NewAction("shared", (debit("b", 30).at("b"),)))
            action = manager.action()
            action.read_from("shared")
            assert await action.at("b", debit("b", 10)) == 60
            waiting = asyncio.ensure_future(action.commit())
            await until_state(manager, action.id, State.WAITING)
            await manager.ledger.commit("shared")
            await waiting
            await action.finished()
            assert made.found == [100, 60, 100]

    play(main())


# -- who waits -----------------------------------------------------------------------------------


def test_when_who_waits_is_cancelled_then_the_group_is_asked_to_abort(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path, offers=False) as made:
            manager = made.managers["a"]
            came = made.participants["b"].hold("prepare")
            action = manager.action("slow")
            action.add("a", debit("a", 1))
            action.add("b", credit("b", 1))
            waiting = asyncio.ensure_future(action.commit())
            await came.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            found = await manager.outcome("slow")
            assert (found.state, found.reason) == (
                State.ABORTED,
                "who has begun it does not wait any more",
            )
            made.participants["b"].release("prepare")
            await until(lambda: ("aborted", "slow") in made.participants["b"].calls)
            assert made.found == [100, 100, 100]

    play(main())


def test_when_who_waits_is_cancelled_before_its_request_is_ordered_then_it_is_aborted_all_the_same(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path, offers=False) as made:
            made.participants["b"].hold("prepare")
            waiting = asyncio.ensure_future(
                carry_out(made.managers["a"].action("brief"), b=credit("b", 1), c=debit("c", 1))
            )
            await asyncio.sleep(0)  # it has begun, and nothing can be ordered yet
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until_state(made.managers["b"], "brief", State.ABORTED)
            made.participants["b"].release("prepare")

    play(main())


def test_when_who_is_cancelled_has_used_the_id_of_another_then_that_one_is_not_aborted(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            came = made.participants["b"].hold("prepare")
            first = asyncio.ensure_future(
                carry_out(made.managers["a"].action("same"), a=debit("a", 1), b=credit("b", 1))
            )
            await came.wait()
            manager = made.managers["c"]
            second = asyncio.ensure_future(carry_out(manager.action("same"), c=debit("c", 5)))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            await until(lambda: not manager._tasks)  # what it asks for when it is cancelled is over
            made.participants["b"].release("prepare")
            await first
            assert made.found[0] == 99

    play(main())


def test_when_a_preparation_hangs_then_the_deadline_decides_and_the_site_undoes_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            made.participants["b"].hold("prepared")
            late = made.managers["a"].action("late", timeout=0.2)
            with pytest.raises(ActionAborted, match="its time was over"):
                await carry_out(late, a=debit("a", 1), b=credit("b", 1))
            made.participants["b"].release("prepared")
            await until(lambda: ("aborted", "late") in made.participants["b"].calls)
            assert not (await made.participants["b"].recover()).prepared
            assert made.found == [100, 100, 100]

    play(main())


def test_when_many_were_applied_since_then_one_is_known_to_be_applied_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.actions.manager.DONE_KEPT", 2)

    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            first = manager.action("first")
            await carry_out(first, a=debit("a", 1))
            for _ in range(4):
                await carry_out(manager.action(), a=debit("a", 1))
            assert first.record is not None
            await manager.applied_here(first.record)

    play(main())


def test_when_the_own_site_hears_of_the_decision_late_then_who_waits_is_told_once_it_is_applied(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            came = made.participants["a"].hold("commit")
            waiting = asyncio.ensure_future(carry_out(manager.action("held"), a=debit("a", 1)))
            await came.wait()
            other = asyncio.ensure_future(manager.applied_here(await manager.outcome("held")))
            await asyncio.sleep(0)
            assert not other.done()
            made.participants["a"].release("commit")
            await asyncio.gather(waiting, other)
            assert made.found[0] == 99

    play(main())


def test_when_a_site_is_forgotten_that_cannot_apply_it_then_who_waits_for_it_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["a"]
            made.participants["a"].errors["commit"] = ParticipantError("the disk is full")
            await carry_out(manager.action("stuck"), a=debit("a", 1))
            made.participants["a"].hold("commit")
            waiting = asyncio.ensure_future(manager.applied_here(await manager.outcome("stuck")))
            await manager.ledger.forget("a")
            made.participants["a"].release("commit")
            await waiting
            assert made.found[0] == 100

    play(main())


def test_when_the_replica_of_who_waits_stops_then_the_outcome_is_unknown_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path, offers=False) as made:
            came = made.participants["b"].hold("prepare")
            action = made.managers["a"].action("left")
            action.add("b", credit("b", 1))
            waiting = asyncio.ensure_future(action.commit())
            await came.wait()
            await crash(made.replicas[0])
            with pytest.raises(OutcomeUnknown):
                await waiting
            made.participants["b"].release("prepare")
            assert (await made.managers["c"].outcome("left")).state is State.COMMITTED
            with pytest.raises(Exception, match="replica"):
                await made.managers["a"].ended()

    play(main())


def test_when_one_site_has_sqlite_and_another_postgres_then_both_commit_or_neither(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with banks(tmp_path, names="a") as made:
            made.urls["b"] = url
            await made.start("b")
            manager = made.managers["a"]
            async with manager.action() as action:
                assert await action.at("a", debit("a", 10)) == 90
                assert await action.at("b", credit("b", 10)) == 110
            await action.finished()
            with pytest.raises(ActionAborted, match="a voted no"):
                await carry_out(manager.action(), a=debit("a", 500), b=credit("b", 500))
            async with manager.action() as action:  # nothing is held
                assert await action.at("b", debit("b", 1)) == 109
            await action.finished()
            assert made.found == [90, 109, 100]

    with postgres(max_prepared_transactions=10) as server:
        play(main(fill(server.new_schema()[0], b=100)))
