"""Who waits for an action is told what becomes of it, in whichever order that is heard."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from apps.actions.outcomes import Outcomes, is_decided, is_finished
from apps.actions.types import Action, Finish, State
from ordering.errors import NoPrimary
from rsm.errors import ChainChanged, OutcomeUnknown, RsmError
from rsm.feeds import Feed
from rsm.proxy import Fresh
from tests.apps.actions.bank import debit


def action(state: State, *finished: Finish) -> Action:
    decided = 5 if state.is_decided else 0
    operations = (debit("x", 1).at("a"),)
    return Action("x", state, operations, (), "x@3", "", 0, 3, decided, 0, "", (), (), finished)


class Ledger:
    """As a replica has it: what reads find, and what is followed, is up to the test."""

    def __init__(self) -> None:
        self.reads: asyncio.Queue[Fresh[Action | None] | Exception] = asyncio.Queue()
        self.feeds: asyncio.Queue[Action | Exception] = asyncio.Queue()
        self.followed_from: list[int] = []
        self.proxy = self

    def with_options(self, **_: object) -> "Ledger":
        return self

    async def reading(self, name: str, id_: str) -> Fresh[Action | None]:
        found = await self.reads.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def follow(self, _: object, since: int) -> AsyncGenerator[Feed[Action], None]:
        self.followed_from.append(since)
        while True:
            found = await self.feeds.get()
            if isinstance(found, Exception):
                raise found
            yield Feed([found], since)


def play(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


def outcomes() -> tuple[Outcomes, Ledger]:
    ledger = Ledger()
    through: Any = ledger
    return Outcomes(through), ledger


def test_when_a_read_began_before_the_request_then_it_is_no_verdict_on_it() -> None:
    async def main() -> None:
        watching, ledger = outcomes()
        with watching.watch("x") as watch:
            await asyncio.sleep(0)  # it has begun to read
            watch.tell(action(State.VOTING))
            ledger.reads.put_nowait(Fresh(None, 2, 0.0))
            ledger.feeds.put_nowait(action(State.COMMITTED))
            assert (await watch.until(is_decided)).state is State.COMMITTED
        assert ledger.followed_from == [2]

    play(main())


def test_when_the_chain_changes_and_the_action_is_gone_then_its_outcome_is_unknown() -> None:
    async def main() -> None:
        watching, ledger = outcomes()
        with watching.watch("x") as watch:
            ledger.reads.put_nowait(Fresh(action(State.VOTING), 4, 0.0))
            ledger.feeds.put_nowait(ChainChanged("another"))
            ledger.reads.put_nowait(Fresh(None, 1, 0.0))
            with pytest.raises(OutcomeUnknown, match="knows no such action"):
                await watch.until(is_decided)

    play(main())


def test_when_an_action_that_was_decided_is_gone_then_nobody_waits_for_its_end() -> None:
    async def main() -> None:
        watching, ledger = outcomes()
        with watching.watch("x") as watch:
            ledger.reads.put_nowait(Fresh(action(State.COMMITTED), 4, 0.0))
            ledger.feeds.put_nowait(ChainChanged("another"))
            ledger.reads.put_nowait(Fresh(None, 1, 0.0))
            with pytest.raises(OutcomeUnknown, match="knows no such action"):
                await watch.until(is_finished)
            assert (await watch.until(is_decided)).state is State.COMMITTED

    play(main())


def test_when_an_action_is_forgotten_before_its_decision_is_heard_then_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("apps.actions.outcomes.LOOK_SECONDS", 0.01)

    async def main() -> None:
        watching, ledger = outcomes()
        with watching.watch("x") as watch:
            ledger.reads.put_nowait(Fresh(action(State.VOTING), 4, 0.0))
            ledger.reads.put_nowait(NoPrimary("alone"))
            ledger.reads.put_nowait(Fresh(None, 9, 0.0))  # and there are no changes of it any more
            with pytest.raises(OutcomeUnknown, match="knows no such action, or not any more"):
                await watch.until(is_decided)
        assert ledger.followed_from == [4]

    play(main())


def test_when_a_replica_is_cut_off_then_who_waits_goes_on_waiting() -> None:
    async def main() -> None:
        watching, ledger = outcomes()
        with watching.watch("x") as watch:
            ledger.reads.put_nowait(NoPrimary("alone"))
            ledger.reads.put_nowait(Fresh(action(State.ABORTED), 4, 0.0))
            assert (await watch.until(is_decided)).state is State.ABORTED

    play(main())


def test_when_it_cannot_be_told_any_more_then_all_who_wait_are_told_that() -> None:
    async def main() -> None:
        watching, ledger = outcomes()
        with watching.watch("x") as one, watching.watch("x") as two:
            ledger.reads.put_nowait(RsmError("closed"))
            for watch in (one, two):
                with pytest.raises(OutcomeUnknown, match="closed"):
                    await watch.until(is_decided)
        with watching.watch("x") as three:  # another beginning
            ledger.reads.put_nowait(Fresh(action(State.COMMITTED), 4, 0.0))
            await three.until(is_decided)

    play(main())


def test_when_an_older_state_is_heard_later_then_the_newer_one_stays() -> None:
    async def main() -> None:
        watching, _ = outcomes()
        with watching.watch("x") as watch:
            done = action(State.COMMITTED, Finish("a", "", 9))
            watch.tell(done)
            watch.tell(action(State.VOTING))
            watch.tell(action(State.COMMITTED, Finish("a", "no room", 8)))
            assert await watch.until(is_finished) is done
        await watching.close()

    play(main())


@pytest.mark.parametrize(
    ("found", "finished"),
    [
        (action(State.VOTING), False),
        (action(State.ABORTED), True),
        (action(State.COMMITTED), False),
        (action(State.COMMITTED, Finish("a", "no room", 8)), False),
        (action(State.COMMITTED, Finish("b", "", 8)), False),
        (action(State.COMMITTED, Finish("a", "", 8)), True),
        (action(State.COMMITTED, Finish("a", "forgotten", 8)), True),
    ],
)
def test_when_all_sites_have_applied_it_or_are_given_up_then_it_is_finished(
    found: Action, finished: bool
) -> None:
    assert is_finished(found) is finished
