"""`rsm site`."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apps.actions import Initiator
from apps.bank import balance, credit, debit
from tests.cli.banks import BankGroup, running_bank
from tests.cli.groups import ROOT, SECONDS, rsm, until

SITE = ("site", "berlin", "-c", "nowhere.toml")


def test_when_sites_run_then_they_change_their_databases_together_and_leave_in_good_order(
    tmp_path: Path,
) -> None:
    async def transfer(initiator: Initiator) -> list[int]:
        async with initiator.action("first") as action:
            await action.at("site-1", debit("ann-1", 30))
            await action.at("site-3", credit("ann-3", 30))
        await action.finished()
        async with initiator.action() as look:
            return [
                await look.at("site-1", balance("ann-1")),
                await look.at("site-3", balance("ann-3")),
            ]

    with running_bank(tmp_path) as bank:
        assert bank.ask(transfer) == [70, 130]
        leaving = bank.running.pop(2)
        leaving.send_signal(signal.SIGTERM)
        said, _ = leaving.communicate(timeout=SECONDS)
        assert leaving.returncode == 0
        assert "stopped: it has left the ring" in said


def test_when_another_process_takes_a_sites_name_then_the_earlier_one_halts_and_says_so(
    tmp_path: Path,
) -> None:
    bank = BankGroup(tmp_path)
    try:
        bank.start(1, 2, 3)
        bank.kill(3)
        bank.names[3] = "site-2"  # and a database that is another's: it has no part in anything here
        bank.start(3)
        earlier = bank.running.pop(2)
        earlier.communicate(timeout=SECONDS)
        assert earlier.returncode == 1
        assert "this replica halted: site-2: another process has taken this name" in bank.log(2).read_text()
    finally:
        bank.kill(*list(bank.running))


def test_when_a_signal_comes_before_a_site_is_registered_then_it_ends(tmp_path: Path) -> None:
    bank = BankGroup(tmp_path)
    try:
        bank.begin(1)  # alone it never is
        until(lambda: bank.answer(1))
        bank.running[1].send_signal(signal.SIGTERM)
        said, _ = bank.running.pop(1).communicate(timeout=SECONDS)
        assert "stopped" in said
    finally:
        bank.kill(*list(bank.running))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--operations", "apps.bank", "--database", "sqlite:///x.db"), "must be package.module:operations"),
        (("--operations", "apps.bank:debit", "--database", "sqlite:///x.db"), "not apps.actions.Operations"),
        (("--operations", "apps.bank:loans", "--database", "sqlite:///x.db"), "has no loans"),
        (("--operations", "apps.bank:bank", "--database", "mysql://x/y"), "--database: url: mysql"),
        (("--operations", "apps.bank:bank", "--database", "sqlite://"), "name a file"),
        (
            (
                "--operations",
                "apps.bank:bank",
                "--database",
                "sqlite:///x.db",
                "--run",
                "apps.bank:effect_of",
            ),
            "--run: apps.bank:effect_of must be an async function",
        ),
        (("--operations", "apps.bank:bank", "--database", "sqlite:///x.db"), "nowhere.toml"),
    ],
)
def test_when_an_option_of_a_site_is_wrong_then_the_error_names_it(
    options: tuple[str, ...], words: str
) -> None:
    done = rsm(*SITE, *options)
    assert done.returncode == 2
    assert words in done.stderr


def test_when_a_sites_database_cannot_be_opened_then_it_ends_and_says_so(tmp_path: Path) -> None:
    bank = BankGroup(tmp_path, sites=1)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cli.main", "site", "berlin", "-c", str(bank.config())),
            *("--operations", "apps.bank:bank", "--database", f"sqlite:///{tmp_path}/none/x.db"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "the database cannot be opened: unable to open database file" in done.stderr
