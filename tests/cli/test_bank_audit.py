"""The audit of the bank that `rsm demo bank` runs: it must see what is wrong, and nothing that is not."""

import asyncio
from typing import Any

import pytest

from apps.actions import Action, State
from apps.actions.types import Finish
from apps.bank import credit, debit
from cli.bank_audit import Audit, Cut, Violation
from cli.bank_crew import Snapshot
from rsm.feeds import Feed
from rsm.proxy import Fresh

MONEY = 200


class Ledger:
    """Gives what is noted, as changes behind a slot. It is a client, and a client's proxy."""

    def __init__(self) -> None:
        self.proxy = self
        self.slot = 0
        self.noted: list[tuple[int, Action]] = []

    def note(self, *actions: Action) -> None:
        self.slot += 1
        self.noted += [(self.slot, each) for each in actions]

    async def reading(self, name: str, since: int) -> Fresh[Feed[Action]]:
        assert name == "changes"
        found = {each.id: each for slot, each in self.noted if slot > since}
        return Fresh(Feed(list(found.values()), self.slot), self.slot, 0.0)


class Bank:
    """Two sites with an account each, of 100."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.balances = {"a": 100, "b": 100}
        self.marks: dict[str, set[str]] = {"a": set(), "b": set()}
        self.between: list[Any] = []  # what happens between the databases and the second look
        self.looks = 0
        client: Any = self.ledger
        self.audit = Audit(client, self.look, MONEY)

    async def look(self) -> dict[str, Snapshot]:
        self.looks += 1
        found = {
            name: Snapshot({"ann": self.balances[name]}, frozenset(self.marks[name]), {}) for name in "ab"
        }
        if self.between:
            self.between.pop(0)()
        return found

    def apply(self, site: str, change: int, mark: str = "t@1") -> None:
        self.balances[site] += change
        self.marks[site].add(mark)

    def cut(self) -> Cut:
        return asyncio.run(self.audit.cut())


def transfer(state: State, *finished: str, name: str = "t") -> Action:
    """Of 10, from a to b."""
    operations = (debit("ann", 10).at("a"), credit("ann", 10).at("b"))
    done = tuple(Finish(each, "", 1) for each in finished)
    return Action(name, state, operations, (), f"{name}@1", "", 0, 1, 2, 0, "", (), (), done)


def test_when_a_transfer_is_applied_at_one_site_then_the_rest_is_in_flight() -> None:
    bank = Bank()
    assert bank.cut().money == MONEY
    bank.ledger.note(transfer(State.VOTING))
    assert bank.cut().shares["b"].in_flight == 0
    bank.ledger.note(transfer(State.COMMITTED))
    bank.apply("a", -10)
    shares = bank.cut().shares
    assert [(each.total, each.in_flight, each.unapplied) for each in shares.values()] == [
        (90, 0, 0),
        (100, 10, 1),
    ]
    bank.apply("b", 10)
    bank.ledger.note(transfer(State.COMMITTED, "a"))
    bank.marks["a"].clear()  # it was reported
    assert [each.in_flight for each in bank.cut().shares.values()] == [0, 0]
    bank.ledger.note(transfer(State.COMMITTED, "a", "b"))
    bank.cut()
    bank.marks["b"].clear()
    assert bank.cut().money == MONEY
    assert bank.audit.decided == {State.COMMITTED: 1}


def test_when_a_site_reports_between_the_looks_then_the_cut_is_made_again() -> None:
    bank = Bank()
    bank.cut()
    bank.ledger.note(transfer(State.COMMITTED))
    looks = bank.looks

    def meanwhile() -> None:
        for site, change in (("a", -10), ("b", 10)):
            bank.balances[site] += change
        bank.ledger.note(transfer(State.COMMITTED, "a", "b"))

    bank.between = [meanwhile]
    assert bank.cut().money == MONEY
    assert bank.looks == looks + 2


@pytest.mark.parametrize("reported", [False, True])
def test_when_a_site_has_not_applied_what_it_says_then_the_books_are_wrong(reported: bool) -> None:
    bank = Bank()
    bank.cut()
    bank.ledger.note(transfer(State.COMMITTED, *(["a", "b"] if reported else [])))
    bank.apply("a", -10)
    bank.marks["b"].add("t@1")
    with pytest.raises(Violation, match="b: ann has"):
        bank.cut()


def test_when_a_site_has_applied_what_is_not_committed_then_the_books_are_wrong() -> None:
    for state in (State.ABORTED, State.VOTING):
        bank = Bank()
        bank.cut()
        bank.ledger.note(transfer(state))
        bank.marks["a"].add("t@1")
        with pytest.raises(Violation, match="a has applied t@1, which is not committed"):
            bank.cut()


def test_when_it_is_applied_twice_or_without_a_mark_then_the_books_are_wrong() -> None:
    for marks in (set(), {"t@1"}):
        bank = Bank()
        bank.cut()
        bank.ledger.note(transfer(State.COMMITTED))
        bank.balances["a"] -= 20
        bank.marks["a"] = marks
        with pytest.raises(Violation, match="a: ann has"):
            bank.cut()


def test_when_money_is_missing_from_the_start_then_the_books_are_wrong() -> None:
    bank = Bank()
    bank.balances["b"] = 99
    with pytest.raises(Violation, match="there is 199, and not 200"):
        bank.cut()


def test_when_two_ask_for_a_cut_at_once_then_they_have_one_each() -> None:
    bank = Bank()
    bank.cut()
    bank.ledger.note(transfer(State.COMMITTED))

    def meanwhile() -> None:
        bank.apply("a", -10)
        bank.ledger.note(transfer(State.COMMITTED, "a"))
        bank.marks["a"].clear()

    async def look() -> dict[str, Snapshot]:
        found = await bank.look()
        await asyncio.sleep(0)  # the other one may go on
        return found

    async def both() -> tuple[Cut, Cut]:
        bank.audit._look = look
        bank.between = [lambda: None, meanwhile]
        return await asyncio.gather(bank.audit.cut(), bank.audit.cut())

    assert [cut.money for cut in asyncio.run(both())] == [MONEY, MONEY]
