"""`rsm demo bank`, by itself and as a story."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.ports import free_ports
from cli.bank_crew import BALANCE, PEOPLE, VAULT, look_into
from tests.cli.demos import runs
from tests.cli.groups import ROOT, SECONDS, rsm, until

STORY_SECONDS = 280
FRESH = {f"site-{number}": dict.fromkeys([*PEOPLE, VAULT], BALANCE) for number in (1, 2, 3)}


def test_when_the_story_of_the_bank_is_played_then_every_step_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo", "bank"],  # no terminal: the story
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=STORY_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    steps = dict(re.findall(r"^✓ (.*?): (.*)$", done.stdout, re.MULTILINE))
    assert list(steps) == [
        "start",
        "transfers, from outside and at the sites",
        "kill -9 of a site before its vote",
        "kill -9 of a site after its vote",
        "kill -9 of a site under load",
        "kill -9 of all sites under load",
        "back, without customers",
        "the books",
    ]
    assert "site-3 has left the ring" in steps["kill -9 of a site before its vote"]
    assert "committed without site-3" in steps["kill -9 of a site after its vote"]
    assert "= 27000, in" in steps["the books"]


@contextmanager
def serving(directory: Path) -> Iterator[subprocess.Popen[str]]:
    before = balances(directory)
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "cli.main", "demo", "bank", "--serve", "--every", "0"),
            *("--dir", str(directory), "--port", str(port)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        until(lambda: len(now := balances(directory)) == 3 and now not in (before, FRESH))
        until(lambda: sites_at(port) == ["site-1", "site-2", "site-3"])
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)


def sites_at(port: int) -> list[str]:
    """That a gateway shows as here, with what operations they have; none if there is no gateway yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/actions/sites", timeout=5) as answer:
            found = json.load(answer)["items"]
    except OSError:
        return []
    return [each["name"] for each in found if each["here"] and each["operations"]]


def balances(directory: Path) -> dict[str, dict[str, int]]:
    return {path.stem: look_into(path).balances for path in directory.glob("*.db")}


def test_when_somebody_takes_money_out_of_a_database_then_the_demo_notices_and_ends_with_1(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as process:
        with closing(sqlite3.connect(tmp_path / "site-2.db", isolation_level=None)) as connection:
            connection.execute("UPDATE accounts SET balance = balance - 1 WHERE name = 'vault'")
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "the books are wrong: site-2: vault has 999" in said


def test_when_the_bank_is_interrupted_then_its_processes_go_with_it_and_it_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        with serving(tmp_path) as process:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert len(children) == 4  # a gateway too
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0
            assert said.rstrip().endswith("everything is stopped")
            assert not any(runs(int(pid)) for pid in children)


def test_when_options_stand_before_the_bank_then_they_are_not_ignored() -> None:
    done = rsm("demo", "--script", "bank")
    assert done.returncode == 2
    assert "rsm demo bank" in done.stderr
