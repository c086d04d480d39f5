"""`rsm members` and `rsm cluster`: looking at a group, removing who is gone, going on without a majority."""

import shutil
import time
from pathlib import Path

import pytest

from tests.cli.groups import Group, rsm, running_group, until

# An orphan yields to a chain that lives after this long.
QUICK = {"orphan_ms": 2000}


def roles(group: Group, *, site: int = 1, code: int = 0) -> dict[str, tuple[str, str]]:
    shown = group.json("members", site=site, code=code)
    return {each["address"]: (each["role"], each["standing"]) for each in shown["members"]}


def test_when_the_members_are_asked_for_then_each_is_shown_as_the_view_and_itself_have_it(
    tmp_path: Path,
) -> None:
    with running_group(tmp_path) as group:
        group.call("add", 1)
        shown = group.json("members", site=2)
        assert {each["address"] for each in shown["members"]} == set(group.addresses)
        for each in shown["members"]:
            assert (each["role"], each["standing"]) == ("ring", "serving")
            assert (each["machine"], each["version"], each["can_run"]) == ("Counter", 1, 1)
            assert len(each["boot"]) == 32
            assert each["slot"] > 0
        group.kill(3)
        assert roles(group)[group.addresses[2]][1] == "no answer"
        group.kill(2)
        ends = time.monotonic() + 30
        while roles(group, code=1)[group.addresses[0]][1] != "without a majority":  # it notices
            assert time.monotonic() < ends
        table = rsm("members", "-c", group.config(1))
        assert table.returncode == 1
        assert "0 of 3 voters serve" in table.stdout
    silent = rsm("members", "-c", group.config(1))
    assert silent.returncode == 1
    assert "nobody answers" in silent.stdout


def test_when_a_dead_site_is_removed_then_two_of_two_are_the_majority(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        alive = rsm("cluster", "remove", group.addresses[2], "-c", group.config(1))
        assert alive.returncode == 1
        assert "stop it first" in alive.stderr
        unknown = rsm("cluster", "remove", "10.9.9.9:1", "-c", group.config(1))
        assert unknown.returncode == 2
        assert "is no member; there are" in unknown.stderr
        group.kill(3)
        done = rsm("cluster", "remove", group.addresses[2], "-c", group.config(1))
        assert done.returncode == 0, done.stderr
        assert set(roles(group)) == set(group.addresses[:2])
        assert group.call("add", 1) == 1
        group.start(3)  # its log is of a site that is none any more: it begins anew
        assert roles(group)[group.addresses[2]][1] == "serving"
        assert group.call("get") == 1
        group.kill(2, 3)
        helpless = rsm("cluster", "remove", group.addresses[1], "-c", group.config(1))
        assert helpless.returncode == 1
        assert "rsm cluster recover" in helpless.stderr


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "memory"])
def test_when_the_majority_is_gone_then_an_operator_lets_the_survivors_go_on(
    tmp_path: Path, durable: bool
) -> None:
    with running_group(tmp_path, 5, durable=durable, ring=QUICK) as group:
        assert group.call("add", 7) == 7
        healthy = rsm("cluster", "recover", "--unsafe", "--yes", "-c", group.config(1))
        assert healthy.returncode == 1
        assert "that is a majority" in healthy.stderr
        before = group.json("members")["chain"]
        group.kill(3, 4, 5)
        careless = rsm("cluster", "recover", "-c", group.config(1))
        assert careless.returncode == 1
        assert "say --unsafe" in careless.stderr
        assert "3 of 5 voters are silent" in careless.stderr
        wrong = rsm("cluster", "recover", "--unsafe", "-c", group.config(1), given="nonsense\n")
        assert wrong.returncode == 1
        assert "nothing was done" in wrong.stderr
        assert group.json("members", code=1)["chain"] == before

        done = rsm("cluster", "recover", "--unsafe", "-c", group.config(1), given="ops\n")
        assert done.returncode == 0, done.stdout + done.stderr
        after = group.json("members")
        assert after["chain"] != before
        assert {each["address"] for each in after["members"]} == set(group.addresses[:2])
        assert group.call("add", 1) == 8
        loud = rsm("status", "-c", group.config(1))
        assert "gone on without a majority (forks: 1)" in loud.stdout

        group.start(4)  # alone it is no majority of the old chain, and yields
        assert roles(group)[group.addresses[3]][1] == "serving"
        if durable:
            shutil.rmtree(group.data(5))
        group.start(5)
        assert group.json("members")["chain"] == after["chain"]
        assert len(roles(group)) == 4
        assert group.call("add", 1, site=4) == 9


def test_when_the_majority_was_only_away_then_the_old_chain_stays_and_the_survivor_comes_back_to_it(
    tmp_path: Path,
) -> None:
    """What operations.md warns of: lost sites that are started again with their logs, and are a majority."""
    with running_group(tmp_path, 3, ring=QUICK) as group:
        assert group.call("add", 7) == 7
        before = group.json("members")["chain"]
        group.kill(2, 3)
        done = rsm("cluster", "recover", "--unsafe", "--yes", "-c", group.config(1))
        assert done.returncode == 0, done.stdout + done.stderr
        assert group.call("add", 1) == 8
        group.start(2, 3)
        until(lambda: [standing for _, standing in roles(group, site=2).values()] == ["serving"] * 3)
        assert group.json("members", site=2)["chain"] == before
        assert group.call("get") == 7  # what the survivor did alone is lost


def test_when_everything_stopped_and_most_disks_are_lost_then_those_that_come_back_can_go_on(
    tmp_path: Path,
) -> None:
    with running_group(tmp_path, 5, ring=QUICK) as group:
        assert group.call("add", 7) == 7
        before = group.json("members")["chain"]
        group.kill(1, 2, 3, 4, 5)
        for number in (3, 4, 5):
            shutil.rmtree(group.data(number))
        group.begin(1, 2)
        until(lambda: rsm("members", "-c", group.config(1)).stdout.count("ring") >= 2)
        until(lambda: group.answer(1, 2))
        done = rsm("cluster", "recover", "--unsafe", "--yes", "-c", group.config(1))
        assert done.returncode == 0, done.stdout + done.stderr
        for number in (1, 2):
            group.await_line(number, "ready")
        assert group.call("get") == 7
        group.start(3)  # a founder with an empty disk: it joins
        assert group.call("add", 1, site=3) == 8
        assert group.json("members")["chain"] != before
