"""`rsm log`: what is in the log of a replica that runs, was killed, or goes on while one looks."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest

import cli.log
from tests.cli.groups import MACHINE, ROOT, SECONDS, rsm, running_group, until

Block = dict[str, Any]


def exported(config: Path, *words: object) -> list[Block]:
    done = rsm("log", "export", "-", "-c", config, "-m", MACHINE, *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def commands(blocks: list[Block]) -> list[tuple[str, object]]:
    """A request may have come more than once; it is executed once."""
    found = [message for block in blocks for message in block["messages"] if message["kind"] == "command"]
    requests = {(each["session"], each["number"]): each for each in found}
    return [(each["method"], each["arguments"]) for each in requests.values()]


def write_to_a_full_disk(target: IO[str], found: Iterable[object], output: str) -> int:
    target.write("half of a ")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_when_a_log_is_exported_then_it_has_every_command_whether_the_replica_runs_or_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_group(tmp_path) as group:
        group.call("add", 5)
        group.call("subtract", 2)
        wanted = [("add", {"n": 5}), ("subtract", {"n": 2})]
        running = exported(group.config(2))
        assert commands(running) == wanted
        assert running[0]["view"]["words"] == "epoch 1 begins; 3 voters"
        slots = [(block["slot"], block["last"]) for block in running]
        assert all(last + 1 == first for (_, last), (first, _) in pairwise(slots))
        some = exported(group.config(2), "--from", slots[1][0], "--to", slots[2][1])
        assert [block["slot"] for block in some] == [slots[1][0], slots[2][0]]
        group.kill(2)
        assert commands(exported(group.config(2))) == wanted
        group.call("add", 1)

        def tail() -> str:
            return rsm("log", "tail", "-c", group.config(1), "-n", 100).stdout

        until(lambda: "is out of the ring" in tail())  # the call may have been answered before that
        text = tail()
        assert f"{group.addresses[1]} " in text
        assert "subtract" not in text  # without a machine nothing of the contents is shown
        group.start(2)
        assert group.call("get") == 4
        file = tmp_path / "log.jsonl"
        with monkeypatch.context() as full:
            full.setattr(cli.log, "_write", write_to_a_full_disk)
            failed = rsm("log", "export", file, "-c", group.config(1))
            assert failed.returncode == 1
            assert "No space left" in failed.stderr
        assert rsm("log", "export", file, "-c", group.config(1)).returncode == 0
        again = rsm("log", "export", file, "-c", group.config(1))
        assert again.returncode == 2
        assert "is there already" in again.stderr


def test_when_a_log_is_followed_then_what_comes_is_shown_and_the_group_is_not_disturbed(
    tmp_path: Path,
) -> None:
    with running_group(tmp_path) as group:
        following = subprocess.Popen(
            [
                *(sys.executable, "-m", "cli.main", "log", "tail", "-f", "-n", "1", "-o", "jsonl"),
                *("-c", str(group.config(1)), "-m", MACHINE),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        late = threading.Timer(SECONDS, following.kill)
        late.start()
        try:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())  # it has begun
            for number in (1, 2, 3):
                group.call("add", number)
                while commands([json.loads(following.stdout.readline())]) != [("add", {"n": number})]:
                    pass
            following.send_signal(signal.SIGINT)
            assert following.wait(SECONDS) in {0, 130}
        finally:
            late.cancel()
            following.kill()
            following.communicate()
        shown = group.json("members")
        assert shown["view"] == "1.0"  # nobody was suspected
        assert {each["standing"] for each in shown["members"]} == {"serving"}


def test_when_there_is_no_log_then_it_is_said_why(tmp_path: Path) -> None:
    made = rsm("init", tmp_path / "g")
    assert made.returncode == 0
    none = rsm("log", "tail", "-c", tmp_path / "g" / "site-1.toml")
    assert none.returncode == 1
    assert "there is no such directory" in none.stderr
    rsm("init", tmp_path / "m", "--memory")
    memory = rsm("log", "tail", "-c", tmp_path / "m" / "site-1.toml")
    assert memory.returncode == 2
    assert "has no log" in memory.stderr
