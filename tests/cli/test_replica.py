"""`rsm init`, `rsm replica` and `rsm call`, as a user runs them."""

import json
import os
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.ports import free_ports
from cli.main import app
from rsm.config import ReplicaConfig

ROOT = Path(__file__).parents[2]
MACHINE = "tests.rsm.machines:Counter"
SECONDS = 60
QUIET = ("--no-metrics",)


def rsm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "COLUMNS": "300"},
        check=False,
    )


def start(config: Path, machine: str = MACHINE, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cli.main",
            "replica",
            "--config",
            str(config),
            "--machine",
            machine,
            *options,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "300"},
    )


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def free_addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[Path, list["subprocess.Popen[str]"]]]:
    made = rsm("init", str(tmp_path / "g"), "--sites", ",".join(free_addresses(3)), "--group", "cli", *QUIET)
    assert made.returncode == 0, made.stderr
    running = [start(tmp_path / "g" / f"site-{number}.toml") for number in (1, 2, 3)]
    try:
        for process in running:
            assert first_line(process).startswith("ready: cli at 127.0.0.1")
        yield tmp_path / "g", running
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.communicate()


def call(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return rsm("call", *words, "--config", str(directory / "site-1.toml"), "--machine", MACHINE)


def test_when_a_group_runs_as_processes_then_it_can_be_called_killed_and_started_again(
    group: tuple[Path, list["subprocess.Popen[str]"]],
) -> None:
    directory, running = group
    added = call(directory, "add", "5")
    assert (added.returncode, json.loads(added.stdout)) == (0, 5), added.stderr
    refused = call(directory, "subtract", "50")
    assert refused.returncode == 1
    assert "Rejected: too little is there" in refused.stderr
    assert call(directory, "add", "five").returncode == 2
    assert call(directory, "multiply", "2").returncode == 2
    for process in running:
        process.kill()
    for process in running:
        process.communicate(timeout=SECONDS)
    unknown = call(directory, "add", "1", "--timeout", "0.5")
    assert unknown.returncode == 4
    assert "may still be executed" in unknown.stderr
    running[:] = [start(directory / f"site-{number}.toml") for number in (3, 1, 2)]
    for process in running:
        assert first_line(process).startswith("ready")
    assert json.loads(call(directory, "get").stdout) == 5


def test_when_a_call_asks_for_more_holders_than_there_are_then_its_result_is_shown_and_that_it_is_not_held(
    group: tuple[Path, list["subprocess.Popen[str]"]],
) -> None:
    directory, running = group
    held = call(directory, "add", "5", "--qos", "all")
    assert (held.returncode, json.loads(held.stdout)) == (0, 5), held.stderr
    assert call(directory, "add", "1", "--qos", "most").returncode == 2
    running[2].send_signal(signal.SIGTERM)
    running[2].communicate(timeout=SECONDS)
    fewer = call(directory, "add", "2", "--qos", "all")
    assert (fewer.returncode, json.loads(fewer.stdout)) == (3, 7), fewer.stderr
    assert "'all' was asked for, 'majority' is reached" in fewer.stderr


def test_when_a_configuration_is_wrong_then_the_commands_say_it_in_a_line(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    for text, words in {
        "mode = 'slow'": f"error: {site}: mode: 'slow' is wrong: it should be 'memory' or 'durable'\n",
        "[ring]\nsuspect_ms = 'x'": f"error: {site}: ring: Expected `int`, got `str` - at `$.suspect_ms`\n",
    }.items():
        site.write_text(f"group = 'g'\ninsecure = true\nbind = '127.0.0.1:0'\n{text}\n")
        done = rsm("replica", "-c", str(site), "-m", MACHINE, "--log-level", "error")
        assert (done.returncode != 0, done.stdout, done.stderr) == (True, "", words)
    site.write_text("group = 'g'\ninsecure = true\n")
    done = rsm("call", "get", "-c", str(site), "-m", MACHINE)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{site}: founders: there are none" in done.stderr
    done = rsm("init", str(tmp_path / "g"), "--group", "")
    assert (done.returncode, done.stderr) == (
        2,
        "error: group: '' is wrong: String should have at least 1 character\n",
    )


def test_when_a_replica_is_told_to_go_then_it_goes_in_order(
    group: tuple[Path, list["subprocess.Popen[str]"]],
) -> None:
    directory, running = group
    assert _status(directory)[0] == 0
    running[2].send_signal(signal.SIGTERM)
    said, _ = running[2].communicate(timeout=SECONDS)
    assert said.splitlines()[-1] == "stopped: it has left the ring, and the others go on without it"
    assert running[2].returncode == 0
    code, shown = _status(directory)
    assert code == 0
    assert [each and each["standing"] for each in shown.values()] == ["serving", "serving", None]
    assert json.loads(call(directory, "add", "1").stdout) == 1


def test_when_nobody_reads_what_a_replica_says_then_it_goes_all_the_same(
    group: tuple[Path, list["subprocess.Popen[str]"]],
) -> None:
    _, running = group
    assert running[1].stdout is not None
    running[1].stdout.close()
    running[1].stdout = None
    running[1].send_signal(signal.SIGTERM)
    assert running[1].wait(SECONDS) == 0


def _status(directory: Path) -> tuple[int, dict[str, dict[str, object] | None]]:
    done = rsm("status", "--config", str(directory / "site-1.toml"), "-o", "json")
    return done.returncode, json.loads(done.stdout)


def test_when_a_replica_is_asked_by_its_directory_then_it_answers_without_a_key_until_it_is_gone(
    group: tuple[Path, list["subprocess.Popen[str]"]],
) -> None:
    directory, running = group
    (directory / "group.key").unlink()
    asked = rsm("status", "--data", str(directory / "site-1.data"), "-o", "json")
    assert asked.returncode == 0, asked.stderr
    ((address, status),) = json.loads(asked.stdout).items()
    assert (status["address"], status["standing"], len(status["members"])) == (address, "serving", 3)
    running[0].send_signal(signal.SIGTERM)
    _, logged = running[0].communicate(timeout=SECONDS)
    events = [json.loads(line) for line in logged.splitlines()]
    named = [event["event"] for event in events]
    for word in ("started", "joining", "view installed", "joined", "stopped"):
        assert word in named
    (joined,) = [event for event in events if event["event"] == "joined"]
    assert (joined["group"], joined["site"], joined["level"]) == ("cli", status["site"], "info")
    again = rsm("status", "--data", str(directory / "site-1.data"))
    assert again.returncode == 1
    assert "status.sock" in again.stderr


def test_when_the_log_is_to_be_quiet_or_for_people_then_it_is(tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    rsm("init", str(tmp_path / "g"), "--sites", address, "--memory", "--no-metrics")
    site = tmp_path / "g" / "site-1.toml"
    shown = {}
    for name, options in {"console": ("--log-format", "console"), "quiet": ("--log-level", "error")}.items():
        process = start(site, MACHINE, *options)
        assert first_line(process).startswith("ready")
        process.send_signal(signal.SIGTERM)
        _, shown[name] = process.communicate(timeout=SECONDS)
    assert "[info     ] joined" in shown["console"]
    assert shown["quiet"] == ""


def test_when_a_result_has_no_place_in_json_then_it_is_shown_in_words(tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    rsm("init", str(tmp_path / "g"), "--sites", address, "--memory", *QUIET)
    site, machine = tmp_path / "g" / "site-1.toml", "tests.rsm.machines:Grid"
    process = start(site, machine)
    try:
        assert first_line(process).startswith("ready")
        done = rsm("call", "mark", "1", "2", "-c", str(site), "-m", machine)
        assert (done.returncode, json.loads(done.stdout)) == (0, "{(1, 2): 1}"), done.stderr
    finally:
        process.kill()
        process.communicate()


def test_when_a_group_is_made_then_each_site_has_a_port_for_metrics_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    rsm("init", str(tmp_path / "g"))
    rsm("init", str(tmp_path / "h"), "--no-metrics")
    ports = [tomllib.loads((tmp_path / "g" / f"site-{n}.toml").read_text())["metrics"] for n in (1, 2, 3)]
    assert ports == ["127.0.0.1:9401", "127.0.0.1:9402", "127.0.0.1:9403"]
    assert "metrics" not in (tmp_path / "h" / "site-1.toml").read_text()


def test_when_groups_share_a_machine_then_their_metrics_do_not_meet(tmp_path: Path) -> None:
    sites = {
        "10.0.0.1:7401": "127.0.0.1:9401",
        "127.0.0.2:7401": "127.0.0.2:9401",
        "[::1]:65000": "[::1]:63000",
    }
    assert rsm("init", str(tmp_path / "g"), "--sites", ",".join(sites)).returncode == 0
    for number, metrics in enumerate(sites.values(), 1):
        assert ReplicaConfig.load(tmp_path / "g" / f"site-{number}.toml").metrics == metrics


def test_when_nobody_is_named_then_the_status_is_refused() -> None:
    assert rsm("status").returncode == 2


def test_when_nobody_runs_then_the_status_says_so(tmp_path: Path) -> None:
    rsm("init", str(tmp_path / "g"), "--sites", ",".join(free_addresses(3)))
    done = rsm("status", "--config", str(tmp_path / "g" / "site-1.toml"))
    assert done.returncode == 1
    assert done.stdout.count("no answer") == 3


def test_when_a_second_process_takes_the_same_site_then_it_is_refused_and_says_why(
    group: tuple[Path, list["subprocess.Popen[str]"]],
) -> None:
    directory, _ = group
    second = start(directory / "site-1.toml")
    _, words = second.communicate(timeout=SECONDS)
    assert second.returncode == 1
    assert "bind" in words


def test_when_a_group_is_made_then_its_key_is_secret_and_it_is_made_once(tmp_path: Path) -> None:
    runner = CliRunner(env={"COLUMNS": "300"})
    assert runner.invoke(app, ["init", str(tmp_path / "g")]).exit_code == 0
    key = tmp_path / "g" / "group.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(bytes.fromhex(key.read_text())) == 32
    again = runner.invoke(app, ["init", str(tmp_path / "g")])
    assert again.exit_code == 2
    assert "founded once" in again.output
    wrong = runner.invoke(app, ["init", str(tmp_path / "h"), "--sites", "nowhere"])
    assert wrong.exit_code == 2
    assert not (tmp_path / "h").exists()


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("counter", "must be package.module:Class"),
        ("no_such_module:Counter", "No module named"),
        ("tests.rsm.machines:Nothing", "has no Nothing"),
        ("pathlib:Path", "no subclass of StateMachine"),
    ],
)
def test_when_the_machine_cannot_be_found_then_it_is_said_how(
    tmp_path: Path, machine: str, words: str
) -> None:
    runner = CliRunner(env={"COLUMNS": "300"})
    runner.invoke(app, ["init", str(tmp_path / "g")])
    done = runner.invoke(app, ["replica", "-c", str(tmp_path / "g" / "site-1.toml"), "-m", machine])
    assert done.exit_code == 2
    assert words in done.output
