"""`rsm doctor`: each thing that can be wrong with a site is found, and it says what to do."""

import json
import os
import re
import secrets
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.checkup import Verdict
from cli.doctor import Visit, _others
from cli.main import app
from rsm.status import ReplicaStatus, Standing
from tests.cli.groups import Group, rsm, running_group
from tests.rsm.storage_kit import edit, flip

Found = dict[str, tuple[str, str]]


def examine(config: Path, code: int) -> Found:
    """Verdict and words of each check, and the advice where there is one."""
    done = rsm("doctor", "-c", config, "-o", "json")
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert all(each["advice"] for each in found if each["verdict"] != "well")
    return {each["what"]: (each["verdict"], f"{each['words']}; {each['advice']}") for each in found}


def alter(group: Group, number: int, old: str, new: str) -> None:
    text = group.config(number).read_text()
    assert old in text
    group.config(number).write_text(text.replace(old, new))


def test_when_a_group_runs_then_all_is_well_and_what_is_missing_is_named(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        group.call("add", 1)
        found = examine(group.config(1), 0)
        assert {verdict for verdict, _ in found.values()} <= {"well", "mind"}
        for what in ("configuration", "key", "address", "group", "log", "space", "snapshot", "SQLite"):
            assert found[what][0] == "well", found[what]
        assert f"in use by this group's replica by process {group.running[1].pid}" in found["address"][1]
        for address in group.addresses[1:]:
            assert found[f"site {address}"] == (
                "well",
                "UDP and TCP answer, the key is the same, serving; ",
            )
        assert "3 of 3 voters serve" in found["group"][1]
        assert f"process {group.running[1].pid} runs" in found["log"][1]

        alter(group, 2, "group.key", "other.key")
        other = group.directory / "other.key"
        other.write_text(secrets.token_hex(32) + "\n")
        other.chmod(0o640)
        stranger = examine(group.config(2), 1)
        assert stranger["key"][0] == "wrong"
        assert "chmod 600" in stranger["key"][1]
        assert stranger[f"site {group.addresses[0]}"][0] == "wrong"
        assert "fingerprints" in stranger[f"site {group.addresses[0]}"][1]

        group.kill(2, 3)
        alone = examine(group.config(1), 1)
        assert alone["group"][0] == "wrong"
        assert re.search("[01] of 3 voters serve", alone["group"][1])  # it notices after a while
        assert alone[f"site {group.addresses[1]}"][0] == "mind"
        assert rsm("members", "-c", group.config(1)).returncode == 1


def test_when_a_stopped_site_is_damaged_then_it_is_found_and_nothing_is_changed(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        group.call("add", 1)
    data = group.data(1)
    before = {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()}
    assert examine(group.config(1), 0)["log"][0] == "well"
    assert {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()} == before
    flip(data / "claim", 20)
    flip(data / "claim", 4096 + 20)
    assert examine(group.config(1), 1)["log"][0] == "wrong"
    # Not the last one: a site that was killed need not have claimed that.
    second = "SELECT first_ts FROM rsm_entries ORDER BY first_ts LIMIT 1 OFFSET 1"
    edit(group.data(2), f"DELETE FROM rsm_entries WHERE first_ts = ({second})")
    found = examine(group.config(2), 1)
    assert found["log"][0] == "wrong"
    assert "takes the state from the others" in found["log"][1]


def test_when_the_address_is_taken_or_not_here_then_it_says_by_whom(tmp_path: Path) -> None:
    group = Group(tmp_path / "g", 3, durable=False, ring={})
    host, port = group.addresses[0].split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, int(port)))
        found = examine(group.config(1), 1)
        assert found["address"][0] == "wrong"
        assert f"process {os.getpid()}" in found["address"][1]
    assert examine(group.config(1), 0)["address"][0] == "well"
    alter(group, 2, group.addresses[1], "192.0.2.1:7402")
    assert "address of this machine" in examine(group.config(2), 1)["address"][1]
    strict = rsm("doctor", "-c", group.config(1), "--strict")  # nobody else runs
    assert strict.returncode == 1
    assert "what to do" in strict.stdout


def test_when_the_file_system_is_in_memory_then_durable_is_not(tmp_path: Path) -> None:
    place = Path("/dev/shm")
    if not place.is_dir() or "tmpfs" not in Path("/proc/mounts").read_text():
        pytest.skip("there is no tmpfs")
    group = Group(tmp_path / "g", 3, durable=True, ring={})
    alter(group, 1, '"site-1.data"', f'"{place / "rsm-doctor-test"}"')
    found = examine(group.config(1), 1)
    assert found["file system"][0] == "wrong"
    assert "tmpfs" in found["file system"][1]
    assert not (place / "rsm-doctor-test").exists()


def test_when_the_configuration_is_wrong_then_that_is_what_is_said(tmp_path: Path) -> None:
    runner = CliRunner(env={"COLUMNS": "300"})
    none = runner.invoke(app, ["doctor", "-c", str(tmp_path / "none.toml")])
    assert none.exit_code == 1
    assert "cannot be read" in none.output
    file = tmp_path / "site.toml"
    file.write_text('group = "g"\ninsecure = true\nbind = "127.0.0.1:0"\n[ring]\nsuspect_ms = 5000\n')
    assert "slow is a longer patience" in examine(file, 1)["configuration"][1]
    file.write_text('group = "g"\ninsecure = true\nbind = "127.0.0.1:0"\n')
    assert "neither founders nor contacts" in examine(file, 1)["configuration"][1]


def test_when_a_clock_is_off_or_a_way_is_closed_then_it_is_told_apart() -> None:
    def said(visit: Visit) -> tuple[Verdict, str]:
        (finding,) = _others("a:1", visit)
        return finding.verdict, f"{finding.words}; {finding.advice}"

    status = ReplicaStatus(group="g", address="a:1", site="1", standing=Standing.SERVING, mode="memory")
    assert said(Visit(status=status, udp="answers"))[0] is Verdict.WELL
    verdict, words = said(Visit(status=status, udp="answers", skew_s=-3.0))
    assert verdict is Verdict.MIND
    assert "-3.0 s" in words
    verdict, words = said(Visit(status=status))
    assert verdict is Verdict.WRONG
    assert "open the port for UDP" in words
    verdict, words = said(Visit(udp="answers"))
    assert verdict is Verdict.WRONG
    assert "for it" in words
