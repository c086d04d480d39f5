"""Votes that are given before the request is ordered: when they decide, and when they do not count."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apps.actions.errors import ActionAborted
from apps.actions.handles import ActionHandle
from apps.actions.ledger import ActionLedger
from apps.actions.records import Limits
from apps.actions.site import SiteCore
from apps.actions.types import (
    Abort,
    Action,
    Commit,
    Duty,
    EarlyVote,
    NewAction,
    Offer,
    Operation,
    Prepare,
    Register,
    ReportFinished,
    RetryLater,
    State,
    Task,
    TellReady,
)
from rsm.errors import Unreachable
from rsm.feeds import Feed
from tests.apps.actions.bank import credit, debit, fill
from tests.apps.actions.kit import CHAIN, Group, at, new
from tests.apps.actions.sites import Bank, banks, carry_out, until, until_state
from tests.apps.actions.test_site import NOW, begun, duty, heard, ops, reset
from tests.rsm.postgres_kit import Server, postgres
from tests.rsm.test_replica import play


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other things does not decide whether votes are early."""
    monkeypatch.setattr("apps.actions.initiator.OFFER_SECONDS", 20.0)
    monkeypatch.setattr("apps.actions.offers.OFFERED_SECONDS", 20.0)


@pytest.fixture
def server() -> Iterator[Server]:
    with postgres(max_prepared_transactions=20) as running:
        yield running


# -- in the ledger -------------------------------------------------------------------------------


def early(group: Group, site: str, *, yes: bool = True, **changes: Any) -> EarlyVote:
    vote = EarlyVote(
        site,
        yes,
        "" if yes else "because",
        CHAIN,
        group.incarnations[site],
        group.context.timestamp,
    )
    return msgspec.structs.replace(vote, **changes)


def requested(group: Group, action: NewAction, *votes: EarlyVote, unit: str = "") -> Action:
    unit = unit or f"{action.id}@early-1"
    return group.call(group.ledger.request_voted, action, unit, votes)


TRANSFER = (at("a", "x"), at("b", "y"))


def test_when_all_have_voted_yes_then_it_is_committed_in_the_slot_of_its_request() -> None:
    group = Group()
    since = group.context.timestamp
    found = requested(group, new("t", *TRANSFER), early(group, "a"), early(group, "b"))
    assert (found.state, found.unit) == (State.COMMITTED, "t@early-1")
    assert found.requested == found.decided == group.context.timestamp
    assert [(vote.site, vote.yes, vote.timestamp) for vote in found.votes] == [
        ("a", True, found.decided),
        ("b", True, found.decided),
    ]
    assert group.tasks("a", since) == group.tasks("b", since) == [(Task.COMMIT, "t")]
    assert group.finish("t", "a") == group.finish("t", "b") == 1
    assert not group.tasks("a")
    assert group.ledger.alarm() is None
    group.request("next", *TRANSFER)
    assert group.state("next") is State.VOTING


def test_when_one_has_voted_no_then_it_is_aborted_in_that_slot_whoever_else_has_voted() -> None:
    group = Group()
    since = group.context.timestamp
    found = requested(group, new("t", *TRANSFER), early(group, "b", yes=False))
    assert (found.state, found.reason) == (State.ABORTED, "b voted no: because")
    assert [vote.site for vote in found.votes] == ["b"]
    assert group.tasks("a", since) == group.tasks("b", since) == [(Task.ABORT, "t")]
    found = requested(group, new("u", *TRANSFER), early(group, "a"), early(group, "b", yes=False))
    assert found.state is State.ABORTED
    assert len(found.votes) == 2


def test_when_a_vote_does_not_count_then_sites_are_asked_as_ever() -> None:
    def asks(*votes: Callable[[Group], EarlyVote], before: Callable[[Group], object] = id) -> None:
        group = Group()
        given = [vote(group) for vote in votes]
        before(group)
        found = requested(group, new("t", *TRANSFER), *given)
        assert found.state in (State.VOTING, State.WAITING)
        assert found.unit == f"t@{found.requested}"
        assert not found.votes

    def a(group: Group) -> EarlyVote:
        return early(group, "a")

    def b(group: Group) -> EarlyVote:
        return early(group, "b")

    def asked_for(*operations: Operation, voted: str = "") -> Callable[[Group], None]:
        def ask(group: Group) -> None:
            group.request("other", *operations)
            for site in voted:
                group.vote("other", site)

        return ask

    asks()
    asks(a)
    asks(a, lambda group: early(group, "b", chain=CHAIN + 1))
    asks(a, lambda group: early(group, "b", incarnation=group.incarnations["b"] - 1))
    asks(a, b, before=lambda group: group.register("b", 2))
    asks(a, b, before=lambda group: group.call(group.ledger.withdraw, "b", group.incarnations["b"]))
    asks(a, lambda group: early(group, "b", yes=False, chain=0))
    # Whoever competes and was asked for since then has made the site let go, however that has ended.
    asks(a, b, before=asked_for(at("b", "y")))
    asks(a, b, before=asked_for(at("b", "y"), voted="b"))
    asks(a, b, before=asked_for(at("b", whole=True), voted="b"))


def test_when_somebody_waits_who_competes_then_nobody_overtakes_it() -> None:
    group = Group()
    group.request("first", at("c", "z"))
    group.request("waits", at("c", "z"), at("b", "y"))
    votes = early(group, "a"), early(group, "b")  # b is not asked for anything
    assert requested(group, new("t", *TRANSFER), *votes).state is State.WAITING


def test_what_does_not_compete_or_was_asked_for_before_does_not_matter() -> None:
    group = Group()
    group.request("before", *TRANSFER)
    group.vote("before", "a")
    group.vote("before", "b")
    votes = early(group, "a"), early(group, "b")
    group.request("beside", at("b", "other"))
    assert requested(group, new("t", *TRANSFER), *votes).state is State.COMMITTED
    votes = early(group, "a"), early(group, "b")
    group.call(group.ledger.withdraw, "c", group.incarnations["c"])
    assert requested(group, new("u", *TRANSFER), *votes).state is State.COMMITTED


def test_when_more_keys_were_asked_for_than_are_remembered_then_older_votes_do_not_count() -> None:
    class Small(ActionLedger):
        limits = Limits(asked_keys_max=2)

    group = Group(Small)
    votes = early(group, "a"), early(group, "b")
    for number in range(3):
        group.request(f"r{number}", at("b", f"k{number}"))
    later = early(group, "a"), early(group, "b")
    assert requested(group, new("old", *TRANSFER), *votes).state is State.VOTING
    group.call(group.ledger.abort, "old", "")
    assert requested(group, new("new", at("b", "k9")), later[1]).state is State.COMMITTED
    assert group.ledger._seats["b"].asked == group.restored()._seats["b"].asked


def test_who_depends_on_what_is_decided_early_follows_it() -> None:
    for yes, state in ((True, State.VOTING), (False, State.ABORTED)):
        group = Group()
        group.request("second", at("c", "z"), depends=("first",))
        assert group.state("second") is State.WAITING
        requested(group, new("first", *TRANSFER), early(group, "a"), early(group, "b", yes=yes))
        assert group.state("second") is state


def test_what_depends_on_others_is_not_decided_early() -> None:
    group = Group()
    group.request("first", at("c", "z"))
    action = new("second", *TRANSFER, depends=("first",))
    assert requested(group, action, early(group, "a"), early(group, "b")).state is State.WAITING


def test_a_name_that_a_slot_might_give_and_votes_of_strangers_are_refused() -> None:
    group = Group()
    action = new("t", *TRANSFER)
    a, c = early(group, "a"), early(group, "c")
    for unit, votes in (("t@17", (a,)), ("u@early-1", (a,)), ("t@early-1", (a, c)), ("t@early-1", (a, a))):
        with group.refused("bad_request"):
            requested(group, action, *votes, unit=unit)
    with group.refused("away"):
        group.call(group.ledger.withdraw, "a", group.incarnations["a"] - 1)


def test_when_the_name_is_taken_then_sites_are_asked_as_ever() -> None:
    group = Group()
    unit = "t@early-1@early-2"
    requested(group, new("t@early-1", at("a", "x")), early(group, "a"), unit=unit)
    found = requested(group, new("t", at("a", "z")), early(group, "a"), unit=unit)
    assert (found.state, found.unit) == (State.VOTING, f"t@{found.requested}")


# -- at a site -----------------------------------------------------------------------------------

LATER = TellReady("x", is_vote=False)


def ready(unit: str = "x", error: str = "", heard_to: int = 1) -> TellReady:
    return TellReady(unit, is_vote=True, error=error, incarnation=NOW, heard=heard_to)


def complete(*recovered: str) -> SiteCore:
    core = begun(*recovered)
    reset(core)
    return core


def test_an_offer_is_prepared_answered_and_committed_when_the_ledger_says_so() -> None:
    core = complete()
    assert core.offer("x", ops("k")) == [Prepare("x", ops("k"))]
    assert core.offer("x", ops("k")) == []  # it came twice
    assert core.prepared("x", "") == [ready()]
    assert core.offer("x", ops("k")) == [ready()]
    assert heard(core, duty(Task.COMMIT, "x", "k")) == [Commit("x", ops("k"))]
    assert core.offers == []
    assert core.committed("x", "") == [ReportFinished("x", "")]


def test_when_it_cannot_be_prepared_then_the_answer_is_no_and_what_is_left_is_undone() -> None:
    core = complete()
    core.offer("x", ops("k"))
    assert core.prepared("x", "full") == [ready(error="full"), Abort("x")]
    assert core.aborted("x", "locked") == [RetryLater("x")]
    assert core.retry("x") == [Abort("x")]
    assert core.aborted("x", "") == []
    assert not core.has("x")


def test_when_something_competes_then_there_is_no_vote_unless_it_is_committed_already() -> None:
    core = complete()
    heard(core, duty(Task.PREPARE, "other", "k"))
    assert core.offer("x", ops("k")) == core.offer("x", ops()) == [LATER]
    assert core.offer("y", ops("free")) == [Prepare("y", ops("free"))]
    core.prepared("other", "")
    assert heard(core, duty(Task.HOLD, "other", "k")) == []
    assert core.offer("x", ops("k")) == [LATER]
    heard(core, duty(Task.COMMIT, "other", "k"))
    assert core.offer("x", ops("k")) == []  # in its turn
    assert core.committed("other", "") == [ReportFinished("other", ""), Prepare("x", ops("k"))]
    assert core.offer("z", ops("k")) == [TellReady("z", is_vote=False)]  # nobody waits for an offer


def test_when_what_it_waits_for_cannot_be_applied_then_there_is_no_vote() -> None:
    core = complete()
    heard(core, duty(Task.PREPARE, "other", "k"))
    core.prepared("other", "")
    heard(core, duty(Task.COMMIT, "other", "k"))
    core.offer("x", ops("k"))
    assert LATER in core.committed("other", "full")
    assert not core.has("x")
    assert core.offers == []
    assert core.offer("x", ops("k")) == [LATER]


def test_an_offer_makes_way_for_what_the_ledger_asks_for() -> None:
    core = complete()
    core.offer("x", ops("k"))
    core.prepared("x", "")
    assert heard(core, duty(Task.PREPARE, "beside", "free")) == [Prepare("beside", ops("free"))]
    assert heard(core, duty(Task.PREPARE, "other", "k")) == [LATER, Abort("x")]
    assert core.aborted("x", "") == [Prepare("other", ops("k"))]


def test_when_it_makes_way_while_it_is_prepared_then_it_is_undone_at_the_end() -> None:
    core = complete()
    core.offer("x", ops("k"))
    assert heard(core, duty(Task.PREPARE, "whole")) == [LATER]
    assert core.prepared("x", "") == [Abort("x")]
    assert core.aborted("x", "") == [Prepare("whole", ops())]


def test_an_offer_ends_in_the_slot_of_a_withdrawal_and_one_that_is_requested_does_not() -> None:
    core = complete()
    for unit in ("x", "y"):
        core.offer(unit, ops(unit))
        core.prepared(unit, "")
    heard(core, duty(Task.COMMIT, "y", "y"))
    assert heard(core, Duty(Task.WITHDRAWN, slot=1)) == []  # it was offered in that slot, or behind it
    assert heard(core, Duty(Task.WITHDRAWN, slot=2)) == [LATER, Abort("x")]


def test_offers_outlive_a_list_of_what_stands_but_not_another_registration() -> None:
    core = complete()
    core.offer("x", ops("k"))
    core.prepared("x", "")
    heard(core, Duty(Task.RESET, incarnation=NOW))
    assert core.offer("y", ops("free")) == [TellReady("y", is_vote=False)]
    assert heard(core, Duty(Task.COMPLETE)) == []
    assert core.offers == ["x"]
    core.begin(NOW + 4, ("x",))
    assert core.offer("y", ops("free")) == [TellReady("y", is_vote=False)]
    assert reset(core) == [LATER, Abort("x")]


def test_when_an_offer_was_requested_before_the_next_registration_then_it_is_committed() -> None:
    core = complete()
    core.offer("x", ops("k"))
    core.prepared("x", "")
    core.begin(NOW + 4, ("x",))
    assert reset(core, duty(Task.COMMIT, "x", "k")) == [Commit("x", ops("k"))]


def test_when_a_registration_is_over_then_nothing_is_offered_under_it() -> None:
    core = complete()
    heard(core, Duty(Task.OVER, incarnation=NOW + 1))
    assert core.offer("x", ops("k")) == [LATER]


def test_when_what_was_listed_is_of_no_use_then_a_withdrawal_in_it_undoes_nothing() -> None:
    class Small(ActionLedger):
        limits = Limits(aborts_kept_max=1, duties_max=2)

    group, core = Group(Small), SiteCore()
    core.begin(group.incarnations["a"], ())
    page = group.ledger.duties(0, "a")
    core.hear(page)
    core.offer("t@early-1", TRANSFER[:1])
    (told,) = core.prepared("t@early-1", "")
    assert isinstance(told, TellReady)
    vote = early(group, "a", heard=told.heard)
    assert requested(group, new("t", *TRANSFER), vote, early(group, "b")).state is State.COMMITTED
    group.call(group.ledger.withdraw, "a", group.incarnations["a"])
    for number in range(6):  # it hears of none of them, and of so many it is not told one by one
        group.request(f"r{number}", at("a", f"k{number}"))
        group.call(group.ledger.abort, f"r{number}", "")
        if number == 3:
            page = group.ledger.duties(page.position, "a")
            assert page.position < 0
            assert core.hear(page) == []
    effects: list[object] = []
    while page.position != group.context.timestamp:
        page = group.ledger.duties(page.position, "a")
        effects += core.hear(page)
    assert effects == [Register()]
    assert core.offers == ["t@early-1"]
    core.begin(group.register("a", 1), ("t@early-1",))
    page, effects = Feed([], 0), []
    while page.position != group.context.timestamp:
        page = group.ledger.duties(page.position, "a")
        effects += core.hear(page)
    assert effects == [Commit("t@early-1", TRANSFER[:1])]


def test_when_a_registration_is_over_then_its_offers_are_undone_and_what_was_requested_is_not() -> None:
    core = complete()
    for unit in ("x", "y"):
        core.offer(unit, ops(unit))
        core.prepared(unit, "")
    over = Duty(Task.OVER, incarnation=NOW + 1)
    found = heard(core, duty(Task.COMMIT, "y", "y"), over)
    assert found == [Commit("y", ops("y")), LATER, Abort("x"), Register()]


# -- in a group ----------------------------------------------------------------------------------


def prepared_at(made: Bank, site: str) -> list[str]:
    return [step for step, _ in made.participants[site].calls]


async def offered(made: Bank, name: str) -> tuple[NewAction, Any]:
    """All sites have voted, and nobody has requested it."""
    manager = made.managers["c"]
    parts = (debit("a", 10).at("a"), credit("b", 10).at("b"))
    action = NewAction(name, parts)
    return action, await manager.offer(action)


async def held_up(made: Bank) -> tuple[ActionHandle, "asyncio.Future[None]"]:
    """Site b is about to prepare what it is offered; it goes on by ``release``."""
    came = made.participants["b"].hold("prepare")
    action = made.managers["c"].action("t")
    waiting = asyncio.ensure_future(carry_out(action, a=debit("a", 1), b=credit("b", 1)))
    await came.wait()
    return action, waiting


def test_when_sites_vote_early_then_one_message_is_ordered_and_decides(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            async with made.managers["c"].action("t") as action:
                assert await action.at("a", debit("a", 10)) == 90
                assert await action.at("b", credit("b", 10)) == 110
            assert action.record is not None
            assert action.record.requested == action.record.decided
            assert {vote.timestamp for vote in action.record.votes} == {action.record.decided}
            await action.finished()
            assert made.found == [90, 110, 100]

    play(main())


def test_when_a_site_refuses_early_then_it_is_aborted_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            with pytest.raises(ActionAborted, match="b voted no: too little") as told:
                await carry_out(made.managers["c"].action("t"), a=credit("a", 500), b=debit("b", 500))
            assert ("b", False) in {(vote.site, vote.yes) for vote in told.value.votes}
            await until(lambda: not made.managers["a"]._core.has(told.value.id))
            assert made.found == [100, 100, 100]

    play(main())


def test_when_who_has_all_votes_never_requests_then_they_are_withdrawn_and_count_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.actions.offers.OFFERED_SECONDS", 0.05)

    async def main() -> None:
        async with banks(tmp_path) as made:
            action, votes = await offered(made, "t")
            assert votes is not None
            assert all(vote.yes for vote in votes.votes)
            await until(lambda: all("aborted" in prepared_at(made, site) for site in "ab"))
            assert not any(made.managers[site]._core.offers for site in "ab")
            found = await made.managers["c"].request(action, votes)
            assert found.unit != votes.unit  # it is asked for anew, under another name
            await made.managers["c"].finished("t")
            assert made.found == [90, 110, 100]

    play(main())


def test_when_offers_are_not_requested_then_others_are_not_held_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            _, votes = await offered(made, "t")
            assert votes is not None
            await carry_out(made.managers["b"].action("u"), a=debit("a", 1), b=credit("b", 1))
            found = await made.managers["b"].outcome("u")
            assert found.unit == f"u@{found.requested}"
            await made.managers["b"].finished("u")
            assert made.found == [99, 101, 100]

    play(main())


def test_when_a_site_dies_behind_its_early_vote_and_is_back_then_it_has_undone_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dead(_: object) -> None:
        """Nothing is let go of."""

    monkeypatch.setattr("apps.actions.manager.ActionManager._let_go", dead)

    async def main() -> None:
        async with banks(tmp_path) as made:
            action, votes = await offered(made, "t")
            assert votes is not None
            await made.stop("b")
            again = await made.start("b")
            await until(lambda: "aborted" in prepared_at(made, "b"))
            found = await again.request(action, votes)
            assert found.unit != votes.unit
            await again.finished("t")
            assert made.found == [90, 110, 100]

    play(main())


def test_when_it_is_requested_and_its_site_is_back_only_then_that_commits_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            made.participants["b"].hold("commit")
            action, votes = await offered(made, "t")
            found = await made.managers["c"].request(action, votes)
            assert (found.state, found.unit) == (State.COMMITTED, votes.unit)
            await until(lambda: "commit" in prepared_at(made, "b"))
            stopping = asyncio.ensure_future(made.stop("b"))
            made.participants["b"].errors["commit"] = RuntimeError("killed")
            made.participants["b"].release("commit")
            await stopping
            await made.start("b")
            await made.managers["c"].finished("t")
            assert made.found == [90, 110, 100]

    play(main())


def test_when_who_waits_for_early_votes_is_cancelled_then_nothing_was_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.actions.offers.OFFERED_SECONDS", 0.05)

    async def main() -> None:
        async with banks(tmp_path) as made:
            action, waiting = await held_up(made)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert action.state is State.ABORTED
            made.participants["b"].release("prepare")
            await until(lambda: all("aborted" in prepared_at(made, site) for site in "ab"))
            assert await made.managers["c"].ledger.action("t") is None
            assert made.found == [100, 100, 100]

    play(main())


def test_when_a_site_is_slow_to_vote_then_its_action_is_requested_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.actions.initiator.OFFER_SECONDS", 0.05)

    async def main() -> None:
        async with banks(tmp_path) as made:
            action, waiting = await held_up(made)
            await until_state(made.managers["c"], "t", State.VOTING)
            made.participants["b"].release("prepare")
            await waiting
            await action.finished()
            assert made.found == [99, 101, 100]
            assert "aborted" in prepared_at(made, "b")  # the offer made way

    play(main())


def test_when_a_site_is_closed_then_it_has_undone_what_it_had_voted_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            _, votes = await offered(made, "t")
            assert votes is not None
            await made.stop("b")
            assert "aborted" in prepared_at(made, "b")

    play(main())


def test_when_a_site_is_closed_while_it_prepares_then_who_has_asked_is_told_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            came = made.participants["b"].hold("prepare")
            waiting = made.managers["b"]._offers_here.wait("t@early-1")
            offering = asyncio.ensure_future(offered(made, "t"))
            await came.wait()
            stopping = asyncio.ensure_future(made.stop("b"))
            _, votes = await offering  # the site still holds what it prepares
            assert votes is None
            assert not (await waiting).is_vote
            made.participants["b"].release("prepare")
            await stopping
            assert "aborted" in prepared_at(made, "b")

    play(main())


def test_an_offer_is_made_to_one_process_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has had the name before, at the same database, would undo what the next one has voted for."""

    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["c"]
            await manager.attempt("b", [credit("b", 1).at("b")], 5)  # where it is, is known
            asked: list[tuple[str, bool]] = []

            async def ask(address: str, name: str, question: bytes, timeout: float, *, once: bool) -> bytes:
                asked.append((name, once))
                raise Unreachable("the connection broke")

            monkeypatch.setattr(manager.through, "ask", ask)
            assert await manager._offer("b", Offer("t@early-1", (credit("b", 1).at("b"),))) is None
            assert asked == [("actions.offer/b", True)]

    play(main())


def test_when_the_group_begins_anew_then_nothing_is_offered_until_the_site_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with banks(tmp_path) as made:
            manager, registering = made.managers["b"], asyncio.Event()

            async def register() -> None:
                registering.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(manager, "_register", register)
            monkeypatch.setattr(manager, "_is_older", lambda _: True)
            await made.managers["c"].ledger.request(NewAction("o", (credit("b", 1).at("b"),)))
            await registering.wait()
            _, votes = await offered(made, "t")
            assert votes is None
            assert "prepare" not in prepared_at(made, "b")

    play(main())


def test_when_nobody_tells_where_a_site_is_then_its_action_is_requested_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(_: str) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        async with banks(tmp_path) as made:
            manager = made.managers["c"]
            monkeypatch.setattr("apps.actions.initiator.OFFER_SECONDS", 0.05)
            monkeypatch.setattr(manager, "_address", nobody)
            await carry_out(manager.action("t"), a=debit("a", 1), b=credit("b", 1))
            found = await manager.finished("t")
            assert found.unit == f"t@{found.requested}"
            assert made.found == [99, 101, 100]

    play(main())


def test_when_an_offer_is_withdrawn_then_postgresql_has_let_go_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setattr("apps.actions.offers.OFFERED_SECONDS", 0.05)

    async def main() -> None:
        async with banks(tmp_path, names=("a", "c")) as made:
            made.urls["b"] = fill(server.new_schema()[0], b=100)
            manager = await made.start("b")
            _, votes = await offered(made, "t")
            assert votes is not None
            await until(lambda: "aborted" in prepared_at(made, "b"))
            assert (await made.participants["b"].recover()).prepared == ()
            await carry_out(manager.action("u"), a=debit("a", 1), b=credit("b", 1))
            await manager.finished("u")
            assert made.found == [99, 101, 100]

    play(main())
