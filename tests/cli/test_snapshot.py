"""`rsm snapshot`: a backup of a group that runs or is stopped, and new groups founded with it."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

from tests.cli.groups import MACHINE, Group, rsm, running_group, until


def show(file: Path) -> dict[str, object]:
    done = rsm("snapshot", "show", file, "-m", MACHINE, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def forget(group: Group, *numbers: int) -> None:
    for number in numbers:
        shutil.rmtree(group.data(number))


def site_at(shown: dict[str, Any], address: str) -> str:
    """The newest: a learner is listed behind the dead voter whose place it takes."""
    return [str(each["site"]) for each in shown["members"] if each["address"] == address][-1]


def configs(group: Group, *numbers: int) -> list[object]:
    return [word for number in numbers for word in ("-c", group.config(number))]


def test_when_a_running_group_is_saved_then_all_its_founders_begin_a_new_chain_with_that_state(
    tmp_path: Path,
) -> None:
    file = tmp_path / "monday.rsm"
    with running_group(tmp_path) as group:
        assert group.call("add", 5) == 5
        saved = rsm("snapshot", "save", file, "-c", group.config(2))
        assert saved.returncode == 0, saved.stderr
        again = rsm("snapshot", "save", file, "-c", group.config(2))
        assert again.returncode == 1
        assert "is there already" in again.stderr
        assert group.call("add", 100) == 105
        before = group.json("members")
        assert show(file)["chain"] == before["chain"]
        occupied = rsm("snapshot", "restore", file, *configs(group, 1, 2, 3))
        assert occupied.returncode == 1
        assert "is in use by process" in occupied.stderr
        group.kill(1, 2, 3)
        occupied = rsm("snapshot", "restore", file, *configs(group, 1, 2, 3))
        assert occupied.returncode == 1
        assert "has a log already" in occupied.stderr

        forget(group, 1, 3)
        half = rsm("snapshot", "restore", file, *configs(group, 1, 2, 3))
        assert half.returncode == 1
        assert not group.data(1).exists()  # nothing is written unless all can be
        forget(group, 2)
        restored = rsm("snapshot", "restore", file, *configs(group, 1, 2, 3), "-m", MACHINE, "--token", "t")
        assert restored.returncode == 0, restored.stderr
        group.start(1, 2, 3)
        after = group.json("members")
        assert after["chain"] != before["chain"]
        assert group.call("get") == 5
        assert group.call("add", 1) == 6
        group.kill(1, 2, 3)  # its own log goes on behind the state
        group.start(2, 3, 1)
        assert group.call("get") == 6
        assert group.json("members")["chain"] == after["chain"]

        group.kill(3)  # restored once more it has forgotten what it claimed, and the others have not
        forget(group, 3)
        assert rsm("snapshot", "restore", file, *configs(group, 3), "--token", "t").returncode == 0
        group.start(3)
        assert site_at(after, group.addresses[2]) != site_at(group.json("members"), group.addresses[2])
        assert group.call("add", 1, site=3) == 7


def test_when_one_founder_is_restored_then_it_waits_until_a_majority_is(tmp_path: Path) -> None:
    file = tmp_path / "monday.rsm"
    with running_group(tmp_path) as group:
        group.call("add", 5)
        assert rsm("snapshot", "save", file, "-c", group.config(1)).returncode == 0
        group.kill(1, 2, 3)
        forget(group, 1, 2, 3)
        first = rsm("snapshot", "restore", file, *configs(group, 1))
        assert first.returncode == 0, first.stderr
        command = first.stdout.strip().splitlines()[-1].split()
        token = command[command.index("--token") + 1]
        assert all(address in first.stdout for address in group.addresses[1:])
        other = rsm("snapshot", "restore", file, *configs(group, 3))  # with a token of its own: another group
        assert other.returncode == 0
        group.begin(1, 2, 3)  # 2 has nothing, and would found a group if the others had nothing either
        until(lambda: group.answer(1, 2, 3))
        unanswered = rsm("call", "get", "-c", group.config(1), "-m", MACHINE, "--timeout", "2")
        assert unanswered.returncode == 4

        group.kill(2, 3)
        forget(group, 2, 3)
        second = rsm("snapshot", "restore", file, "--token", token, *configs(group, 2))
        assert second.returncode == 0, second.stderr
        group.start(2)
        group.await_line(1, "ready")
        assert group.call("get") == 5
        group.start(3)  # with an empty directory it joins
        assert group.call("add", 1) == 6
        assert len(group.json("members")["members"]) == 3


def test_when_a_directory_is_saved_then_its_log_is_executed_and_it_is_left_as_it_was(tmp_path: Path) -> None:
    file, twin = tmp_path / "rescued.rsm", tmp_path / "twin.rsm"
    with running_group(tmp_path) as group:
        assert group.call("add", 7) == 7
        running = rsm("snapshot", "save", twin, "-c", group.config(3), "--offline", "-m", MACHINE)
        assert running.returncode == 0, running.stderr
        assert group.call("add", 1) == 8
        group.kill(1, 2, 3, how=signal.SIGTERM)
        before = {path.name: path.read_bytes() for path in group.data(3).iterdir()}
        nothing = rsm("snapshot", "save", file, "-c", group.config(3), "--offline")
        assert nothing.returncode == 1
        assert "name the --machine" in nothing.stderr
        saved = rsm("snapshot", "save", file, "-c", group.config(3), "--offline", "-m", MACHINE)
        assert saved.returncode == 0, saved.stderr
        assert {path.name: path.read_bytes() for path in group.data(3).iterdir()} == before
        forget(group, 1, 2, 3)
        assert rsm("snapshot", "restore", file, *configs(group, 1, 2, 3)).returncode == 0
        group.start(1, 2, 3)
        assert group.call("get") == 8
    assert show(twin)["machine"] == "Counter"


def test_when_a_file_is_damaged_then_nothing_is_made_of_it(tmp_path: Path) -> None:
    file = tmp_path / "monday.rsm"
    with running_group(tmp_path) as group:
        group.call("add", 5)
        assert rsm("snapshot", "save", file, "-c", group.config(1)).returncode == 0
        group.kill(1, 2, 3)
        forget(group, 1, 2, 3)
    whole = file.read_bytes()
    damaged = tmp_path / "damaged.rsm"
    for altered in (
        whole[:-1],
        whole[: len(whole) // 2],
        whole + b"x",
        bytes([whole[0] ^ 1]) + whole[1:],
        whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:],
        b"",
    ):
        damaged.write_bytes(altered)
        assert rsm("snapshot", "show", damaged).returncode == 1
    done = rsm("snapshot", "restore", damaged, *configs(group, 1, 2, 3))
    assert done.returncode == 1
    assert not group.data(1).exists()
