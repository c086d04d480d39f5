"""Chaos with actions: its checks on bad histories, its failpoints, and short real rounds."""

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from apps.actions.participant import Unit
from apps.actions.types import Action, Finish, State
from bench.chaos.actions.bank import (
    ACCOUNTS,
    BALANCE,
    Ledgers,
    Move,
    account_of,
    make_bank,
    move,
    moves,
    name_of,
    read_bank,
)
from bench.chaos.actions.checks import judge_actions
from bench.chaos.actions.history import Actions, Begun, Found, Told, read_actions
from bench.chaos.actions.points import FailingParticipant
from bench.chaos.books import Books
from bench.chaos.failpoints import Arm, Cut, Failpoints, Point
from bench.chaos.history import Ended, Notes
from bench.chaos.plan import App, Database, Kind, kind_of, make_plan
from bench.chaos.rounds import Campaign, play
from bench.errors import BenchError, NotAvailable
from cli.main import app
from tests.bench.test_chaos import standing

# -- histories -----------------------------------------------------------------------------------

OUT, IN = Move("site-0", "account-1", -7), Move("site-1", "account-2", 7)


class Round(msgspec.Struct):
    """One that was good, to be spoiled."""

    history: Actions
    ledger: dict[str, Action]
    books: list[Ledgers]

    def problems(self) -> str:
        count = len(self.ledger)
        standings = [standing(order=(count, 1)), standing("two", order=(count, 1))]
        return "\n".join(judge_actions(self.history, list(self.ledger.values()), self.books, standings)[0])

    def apply(self, site: int, action: str, account: str, amount: int) -> None:
        book = self.books[site]
        entry = (action, account, amount)
        book.entries[entry] = book.entries.get(entry, 0) + 1
        book.balances[account] += amount


def action(name: str, state: State, decided: int, *done: str) -> Action:
    operations = (
        move(name, OUT.account, OUT.amount).at(OUT.site),
        move(name, IN.account, IN.amount).at(IN.site),
    )
    finished = tuple(Finish(site, "", decided) for site in done)
    return Action(name, state, operations, (), f"{name}@1", "", 0, 1, decided, 9, "", (), (), finished)


@pytest.fixture
def good() -> Round:
    """``yes`` is committed, and ``too`` behind it; ``no`` is aborted; ``never`` was refused."""
    begun = {name: Begun(name, [OUT, IN], []) for name in ("yes", "no", "never")}
    begun["too"] = Begun("too", [OUT, IN], ["yes"])
    ends = {"yes": Ended.OK, "too": Ended.UNKNOWN, "no": Ended.REJECTED, "never": Ended.REFUSED}
    ledger = {
        "yes": action("yes", State.COMMITTED, 4, "site-0", "site-1"),
        "too": action("too", State.COMMITTED, 6, "site-0", "site-1"),
        "no": action("no", State.ABORTED, 5),
    }
    books = [
        Ledgers(
            site=name_of(number),
            balances={account_of(each): BALANCE for each in range(ACCOUNTS)},
            entries={},
            prepared=[],
        )
        for number in range(2)
    ]
    made = Round(
        Actions(begun, {name: Told(name, end) for name, end in ends.items()}, [Found("site-1", ["too@1"])]),
        ledger,
        books,
    )
    for name in ("yes", "too"):
        made.apply(0, name, OUT.account, OUT.amount)
        made.apply(1, name, IN.account, IN.amount)
    return made


def test_when_a_round_is_good_then_nothing_is_said_and_everything_is_counted(good: Round) -> None:
    assert good.problems() == ""
    standings = [standing(order=(3, 1))]
    _, checked = judge_actions(good.history, list(good.ledger.values()), good.books, standings)
    assert (checked.operations, checked.committed, checked.acknowledged) == (4, 2, 2)
    assert (checked.unknown, checked.refused, checked.in_doubt, checked.dependent) == (1, 1, 1, 1)


def test_when_one_site_has_applied_it_and_another_not_then_it_is_found(good: Round) -> None:
    del good.books[1].entries["yes", IN.account, IN.amount]
    good.books[1].balances[IN.account] -= IN.amount
    found = good.problems()
    assert "yes: is committed, so 7 of account-2 at site-1 should be applied 1 times; it was 0 times" in found
    assert "all sites together have 5993; they began with 6000" in found


def test_when_it_was_applied_twice_then_it_is_found(good: Round) -> None:
    good.apply(0, "yes", OUT.account, OUT.amount)
    assert "should be applied 1 times; it was 2 times" in good.problems()


def test_when_an_aborted_or_refused_action_was_applied_then_it_is_found(good: Round) -> None:
    good.apply(0, "no", OUT.account, OUT.amount)
    good.apply(1, "never", IN.account, IN.amount)
    found = good.problems()
    assert "no: is aborted, so -7 of account-1 at site-0 should be applied 0 times; it was 1 times" in found
    assert "never: is not in the ledger, so 7 of account-2" in found


def test_when_a_balance_is_not_what_its_entries_give_then_it_is_found(good: Round) -> None:
    good.books[0].balances["account-0"] -= BALANCE + 1
    good.books[1].balances["account-0"] += BALANCE + 1
    found = good.problems()
    assert "account-0 at site-0 has -1; its entries give 500" in found
    assert "account-0 at site-0 has -1, less than nothing" in found


@pytest.mark.parametrize(
    ("name", "ended", "words"),
    [
        ("yes", Ended.REJECTED, "yes: its caller was told aborted; it is committed"),
        ("no", Ended.OK, "no: its caller was told committed; it is aborted"),
        ("yes", Ended.REFUSED, "yes: its caller was told refused; it is committed"),
        ("never", Ended.OK, "never: its caller was told committed; it is not in the ledger"),
    ],
)
def test_when_a_caller_was_told_something_else_then_it_is_found(
    good: Round, name: str, ended: Ended, words: str
) -> None:
    good.history.told[name] = Told(name, ended)
    assert words in good.problems()


def test_when_something_is_undecided_or_unfinished_or_prepared_then_it_is_found(good: Round) -> None:
    good.ledger["no"] = action("no", State.VOTING, 0)
    good.ledger["yes"] = action("yes", State.COMMITTED, 4, "site-0")
    good.books[1].prepared.append("no@1")
    found = good.problems()
    assert "no: is voting, and nothing is under way any more" in found
    assert "yes: is committed; of site-0, site-1 only site-0 have finished it" in found
    assert "no@1: is still prepared at site-1" in found


def test_when_what_it_depends_on_was_aborted_or_came_later_then_it_is_found(good: Round) -> None:
    good.history.begun["yes"] = Begun("yes", [OUT, IN], ["no", "too"])
    found = good.problems()
    assert "yes: is committed, and no, which it depends on, is not" in found
    assert "yes: was committed in slot 4, before too in 6" in found


def test_when_nobody_has_begun_it_or_replicas_differ_then_it_is_found(good: Round) -> None:
    good.ledger["ghost"] = action("ghost", State.ABORTED, 9)
    assert "ghost: nobody has begun it" in good.problems()
    standings = [standing(order=(4, 1)), standing("two", order=(4, 2))]
    problems, _ = judge_actions(good.history, list(good.ledger.values()), good.books, standings)
    assert "the replicas differ" in problems[0]


def test_when_notes_are_read_then_what_is_cut_off_is_passed_over(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "calls")
    lines: list[msgspec.Struct] = [
        Begun("a", [OUT, IN], ["b"]),
        Told("a", Ended.OK),
        Found("site-1", ["a@3"]),
    ]
    for line in lines:
        notes.write(line)
    with (tmp_path / "calls").open("ab") as file:
        file.write(b'["begun","c",[["si')
    history = read_actions([tmp_path / "calls"])
    assert [history.begun["a"], history.told["a"], *history.found] == lines
    assert len(history.begun) == 1


# -- sites ---------------------------------------------------------------------------------------


def test_when_a_site_comes_to_its_place_then_the_database_is_as_far_as_the_place_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database really has entries twice if something is applied twice, and shows what is prepared."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    make_bank(url)
    seen: list[tuple[int, int]] = []

    def strike(*_: int) -> None:
        found = read_bank("site-0", url)
        seen.append((len(found.prepared), sum(found.entries.values())))

    monkeypatch.setattr("bench.chaos.failpoints.os.kill", strike)

    async def main() -> None:
        points = Failpoints(0)
        participant = FailingParticipant("site-0", url, moves, points, Notes(tmp_path / "calls"))
        await participant.open()
        for number in (1, 2):
            for place in (Point.BEFORE_PREPARE, Point.AFTER_PREPARE, Point.BEFORE_COMMIT, Point.AFTER_COMMIT):
                points.arm(Arm(place, Cut.HALF, str(tmp_path / f"{place}-{number}")))
            operations = [move("twice", "account-1", 5).at("site-0")]
            await participant.prepare(Unit(f"unit-{number}", 1), operations)
            assert len((await participant.recover()).prepared) == 1
            await participant.commit(Unit(f"unit-{number}", 1), operations)
        await participant.close()

    asyncio.run(main())
    assert seen == [(0, 0), (1, 0), (1, 0), (0, 1), (0, 1), (1, 1), (1, 1), (0, 2)]
    found = read_bank("site-0", url)
    assert found.entries == {("twice", "account-1", 5): 2}
    assert found.balances["account-1"] == BALANCE + 10
    assert read_actions([tmp_path / "calls"]).found == [Found("site-0", [f"unit-{n}"]) for n in (1, 2)]


# -- plans and books -----------------------------------------------------------------------------


def test_when_actions_are_attacked_then_each_point_has_its_turn() -> None:
    plan = make_plan(5, 3, 30, app=App.ACTIONS)
    deck = list(islice(plan.faults(), len(Point) + 5))
    assert sorted(fault.role for fault in deck if fault.role and not fault.pause) == sorted(Point)


def test_when_books_belong_to_another_app_or_database_then_they_are_refused(tmp_path: Path) -> None:
    Books.load(tmp_path, 3, 1, app=App.ACTIONS).save(tmp_path)
    assert Books.load(tmp_path, 3, 1, app=App.ACTIONS).app is App.ACTIONS
    others: list[dict[str, Any]] = [{}, {"app": App.ACTIONS, "database": Database.POSTGRESQL}]
    for changes in others:
        with pytest.raises(BenchError, match="--app actions --database sqlite"):
            Books.load(tmp_path, 3, 1, **changes)


def test_when_a_round_of_actions_was_bad_then_the_replay_says_which() -> None:
    campaign = Campaign(sites=3, app=App.ACTIONS, database=Database.POSTGRESQL)
    assert campaign.replay(7) == (
        "rsm chaos --app actions --database postgresql --replay 7 --sites 3 --round-seconds 30"
    )


def test_when_actions_are_asked_for_over_http_then_it_is_refused() -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["chaos", "--http", "--app", "actions"])
    assert done.exit_code == 2
    assert "actions have no gateway" in done.output


# -- real processes ------------------------------------------------------------------------------


def seed_with(*points: Point) -> int:
    """Of a round whose first kills are these, in whatever order."""
    for seed in range(100_000):
        if kind_of(seed) is Kind.SINGLE:
            first = list(islice(make_plan(seed, 3, 2.0, app=App.ACTIONS).faults(), len(points)))
            if {fault.role for fault in first} == set(points) and not any(fault.pause for fault in first):
                return seed
    raise AssertionError("no such seed")


def play_short(tmp_path: Path, database: Database, *points: Point) -> Any:
    plan = make_plan(seed_with(*points), 3, 60.0, app=App.ACTIONS, database=database)
    return play(msgspec.structs.replace(plan, callers=1, faults_max=len(points)), tmp_path)


def test_when_sites_die_at_their_places_then_each_action_is_applied_everywhere_or_nowhere(
    tmp_path: Path,
) -> None:
    done = play_short(tmp_path, Database.SQLITE, Point.AFTER_PREPARE, Point.AFTER_VOTE)
    assert done.problems == []
    assert done.tally.kills == {Point.AFTER_PREPARE: 1, Point.AFTER_VOTE: 1}
    assert done.checked.committed > 5
    assert done.checked.in_doubt > 0
    assert list(tmp_path.iterdir()) == []


def test_when_the_databases_are_postgresql_then_the_same_holds(tmp_path: Path) -> None:
    try:
        done = play_short(tmp_path, Database.POSTGRESQL, Point.AFTER_PREPARE, Point.AFTER_COMMIT)
    except NotAvailable:
        pytest.skip("no PostgreSQL server is installed")
    assert done.problems == []
    assert done.tally.kills == {Point.AFTER_PREPARE: 1, Point.AFTER_COMMIT: 1}
    assert done.checked.committed > 5
    assert list(tmp_path.iterdir()) == []
