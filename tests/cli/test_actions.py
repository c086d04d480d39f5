"""`rsm actions`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import create_engine, select

from apps.actions import ActionAborted, Initiator, NewAction
from apps.actions.sql import intents
from apps.actions.sql import metadata as tables
from apps.bank import accounts, credit, debit
from tests.cli.banks import BankGroup
from tests.cli.groups import ROOT, SECONDS, Done, rsm, running_group


def in_doubt(bank: BankGroup, unit: str) -> None:
    """As a site's database is whose group had to begin anew."""
    engine = create_engine(bank.url(3))
    tables.create_all(engine)
    operations = (credit("ann-3", 5).at("site-3"),)
    with engine.begin() as connection:
        connection.execute(
            intents.insert().values(unit=unit, chain="48879", operations=msgspec.msgpack.encode(operations))
        )
    engine.dispose()


def money(bank: BankGroup, number: int) -> int:
    engine = create_engine(bank.url(number))
    with engine.connect() as connection:
        found: int = connection.execute(select(accounts.c.balance)).scalar_one()
    engine.dispose()
    return found


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BankGroup]:
    group = BankGroup(tmp_path_factory.mktemp("bank"))
    for unit in ("lost@7", "gone@8"):
        in_doubt(group, unit)

    async def fill(initiator: Initiator) -> None:
        async with initiator.action("paid") as action:
            await action.at("site-1", debit("ann-1", 10))
            await action.at("site-2", credit("ann-2", 10))
        await action.finished()
        refused = initiator.action("too-much")
        refused.add("site-1", debit("ann-1", 1000))
        refused.add("site-2", credit("ann-2", 1000))
        with pytest.raises(ActionAborted):
            await refused.commit()
        for name in ("later", "never"):
            operations = (debit("ann-2", 1).at("site-2"), credit("ann-1", 1).at("site-1"))
            await initiator.ledger.open(NewAction(name, operations, timeout_ms=600_000))

    try:
        group.start(1, 2, 3)
        group.ask(fill)
        yield group
    finally:
        group.kill(*list(group.running))


def actions(bank: BankGroup, *words: object, given: str | None = None) -> Done:
    return rsm("actions", *words, "-c", bank.config(), given=given)


def said(bank: BankGroup, *words: object, code: int = 0) -> Any:
    done = actions(bank, *words, "-o", "json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_when_actions_are_listed_then_all_are_there_or_those_of_a_state(bank: BankGroup) -> None:
    names = [each["id"] for each in said(bank, "ls")["items"]]
    assert names == sorted(names)
    assert {"paid", "too-much", "later", "never"} <= set(names)
    (aborted,) = [
        each for each in said(bank, "ls", "--state", "aborted")["items"] if each["id"] == "too-much"
    ]
    assert "site-1 voted no: ann-1 has 90, not 1000" in aborted["reason"]
    assert len(said(bank, "ls", "--limit", "1")["items"]) == 1
    assert "too-much" in actions(bank, "ls").stdout


def test_when_an_action_is_shown_then_votes_have_their_slots_and_reasons(bank: BankGroup) -> None:
    paid = said(bank, "show", "paid")
    assert paid["operations"][0] == {
        "site": "site-1",
        "operation": "debit",
        "arguments": ["ann-1", 10],
        "keys": ["ann-1"],
    }
    slots = [vote["slot"] for vote in paid["votes"]]
    assert slots == sorted(slots)
    asked = paid["requested"]
    assert slots == [asked, asked] or asked < slots[0] < slots[1]  # in the request, or behind it
    assert slots[1] == paid["decided"]
    assert {each["site"]: each["error"] for each in paid["finished"]} == {"site-1": "", "site-2": ""}
    shown = actions(bank, "show", "paid").stdout
    assert f"slot {slots[0]}  {paid['votes'][0]['site']}  yes" in shown
    assert "debit('ann-1', 10)" in shown
    refused = next(vote for vote in said(bank, "show", "too-much")["votes"] if not vote["yes"])
    assert f"slot {refused['slot']}  site-1  no: ann-1 has 90, not 1000" in (
        actions(bank, "show", "too-much").stdout
    )
    none = actions(bank, "show", "nothing")
    assert none.returncode == 1
    assert "rsm actions ls" in none.stderr


def test_when_an_open_action_is_committed_then_it_is_and_one_that_watches_sees_it_through(
    bank: BankGroup,
) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "actions", "watch", "later", "-c", bank.config()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("later  open")
    done = actions(bank, "commit", "later")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("later  committed")
    seen, _ = watching.communicate(timeout=SECONDS)
    assert watching.returncode == 0
    assert seen.splitlines()[-1].endswith("applied everywhere")
    again = actions(bank, "commit", "later")
    assert again.returncode == 1
    assert "later: is committed already" in again.stderr
    late = actions(bank, "abort", "later")
    assert late.returncode == 1


def test_when_an_open_action_is_aborted_then_who_watches_it_ends_with_1(bank: BankGroup) -> None:
    assert actions(bank, "abort", "never", "--reason", "not wanted").returncode == 0
    watched = actions(bank, "watch", "never")
    assert watched.returncode == 1
    assert "not wanted" in watched.stdout
    assert actions(bank, "watch", "nothing").returncode == 1


def test_when_something_is_in_doubt_then_sites_says_so_and_an_operator_settles_it_knowingly(
    bank: BankGroup,
) -> None:
    found = {each["name"]: each for each in said(bank, "sites", code=1)["items"]}
    assert [found[name]["in_doubt"] for name in ("site-1", "site-2")] == [[], []]
    assert {each["unit"]: each["chain"] for each in found["site-3"]["in_doubt"]} == {
        "lost@7": "beef",
        "gone@8": "beef",
    }
    assert "in doubt at site-3: lost@7  chain beef  credit('ann-3', 5)" in actions(bank, "sites").stdout
    assert "lost@7" in actions(bank, "settle", "site-3").stdout
    assert actions(bank, "settle", "site-3", "lost@7").returncode == 2  # which of the two?
    for given in ("n\n", ""):
        left = actions(bank, "settle", "site-3", "lost@7", "--commit", given=given)
        assert left.returncode == 1
        assert "breaks the action in two: done here and not there" in left.stderr
    assert money(bank, 3) == 100
    done = actions(bank, "settle", "site-3", "lost@7", "--commit", given="y\n")
    assert done.returncode == 0, done.stderr
    assert money(bank, 3) == 105
    assert actions(bank, "settle", "site-3", "gone@8", "--abort", "--yes").returncode == 0
    assert money(bank, 3) == 105
    again = actions(bank, "settle", "site-3", "lost@7", "--commit")
    assert (again.returncode, again.stdout) == (0, "settled before: lost@7 is committed at site-3\n")
    other = actions(bank, "settle", "site-3", "lost@7", "--abort", "--yes")
    assert other.returncode == 1
    assert "lost@7 is committed at site-3 since before" in other.stderr
    never = actions(bank, "settle", "site-3", "never@9", "--abort", "--yes")
    assert never.returncode == 1
    assert "never@9: is not in doubt at site-3; there is: nothing" in never.stderr
    assert money(bank, 3) == 105
    assert all(each["in_doubt"] == [] for each in said(bank, "sites")["items"])


def test_when_a_site_is_forgotten_then_it_is_asked_for_and_nobody_waits_for_it(bank: BankGroup) -> None:
    asked = actions(bank, "forget", "site-2", given="n\n")
    assert asked.returncode == 1
    assert "site-2 has 0 committed actions to apply" in asked.stderr
    assert "forgotten: 0" in actions(bank, "forget", "site-2", "--yes").stdout
    none = actions(bank, "forget", "site-9", "--yes")
    assert none.returncode == 1
    assert "rsm actions sites" in none.stderr


def test_when_nobody_is_there_or_the_group_has_another_machine_then_the_error_says_what_to_do(
    tmp_path: Path,
) -> None:
    silent = actions(BankGroup(tmp_path, sites=1), "ls", "--timeout", "0.5")
    assert silent.returncode == 4
    assert "rsm status" in silent.stderr
    with running_group(tmp_path / "other", 1, durable=False) as other:
        done = rsm("actions", "ls", "-c", other.config())
    assert done.returncode == 1
    assert "does this group run actions?" in done.stderr
