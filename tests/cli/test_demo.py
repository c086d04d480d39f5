"""`rsm demo`, by hand and as a story."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from bench.ports import free_ports
from ordering.recording import read_recording
from rsm import change_records, operation_records
from tests.cli.demos import runs, serving
from tests.cli.groups import ROOT, SECONDS, rsm, until

STORY_SECONDS = 240


def test_when_the_story_is_played_then_every_step_holds_and_the_recording_tells_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo", "--script", "--record", str(tmp_path / "recorded")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=STORY_SECONDS,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    steps = re.findall(r"^✓ (.*?): (.*)$", done.stdout, re.MULTILINE)
    assert [title for title, _ in steps] == [
        "start",
        "writes",
        "reads",
        "compare and set",
        "transaction",
        "watch",
        "kill -9 of the token site under load",
        "restart",
        "kill -9 of all replicas, and restart",
    ]
    assert all(re.search(r"\d", figures) for _, figures in steps)
    check_recording(tmp_path / "recorded")


def check_recording(directory: Path) -> None:
    """What the gateway's callers were answered is what all replicas say happened to keys."""
    assert {row["site"] for row in read_recording(directory).to_pylist()}
    contents: dict[tuple[int, bytes], set[tuple[object, ...]]] = {}
    sites = set()
    for row in read_recording(directory / change_records.FOLDER, change_records.SCHEMA).to_pylist():
        if row["kind"] in {"put", "delete"}:
            sites.add(row["site"])
            told = (row["chain"], row["kind"], row["value"], row["created"], row["version"])
            contents.setdefault((row["ts"], row["key"]), set()).add(told)
    assert len(sites) == 3
    assert all(len(each) == 1 for each in contents.values())
    operations = read_recording(directory / operation_records.FOLDER, operation_records.SCHEMA).to_pylist()
    written = [row for row in operations if row["operation"] == "put" and row["outcome"] == "ok"]
    assert len(written) >= 300
    assert {row["ts"] for row in written} <= {ts for ts, _ in contents}
    assert len({row["ts"] for row in written}) == len(written)
    assert {row["chain"] for row in written} == {chain for each in contents.values() for chain, *_ in each}


def test_when_a_replica_of_the_demo_is_killed_then_it_is_said_and_started_again(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    with serving("--dir", directory) as demo:
        assert set(demo.pids) == {"replica 1", "replica 2", "replica 3", "gateway"}
        curls = [line for line in demo.shown.splitlines() if line.startswith("curl ")]
        assert len(curls) == 5
        assert httpx2.put(demo.key("greeting"), content=b"hello", trust_env=False).status_code == 201
        os.kill(demo.pids["replica 2"], signal.SIGKILL)
        demo.until(f"replica 2 (pid {demo.pids['replica 2']}) is gone: killed by SIGKILL")
        assert httpx2.get(demo.key("greeting"), trust_env=False, timeout=30).text == "hello"
        demo.until("replica 2 is back")
        said = demo.end()
        assert demo.process.returncode == 0
        assert said.rstrip().endswith("everything is stopped")
    assert (directory / "site-1.toml").exists()
    with serving("--dir", directory) as again:
        assert httpx2.get(again.key("greeting"), trust_env=False, timeout=30).text == "hello"
    other = rsm("demo", "--serve", "--dir", directory, "--sites", "5", "--port", free_ports(1)[0])
    assert other.returncode == 2
    assert "has a group of 3" in other.stderr


def test_when_a_replica_is_to_stay_dead_then_it_does_and_nothing_is_left_at_the_end() -> None:
    with serving("--no-restart", "--memory") as demo:
        directory = Path(re.findall(r"in (\S+) …", demo.shown)[0])
        assert directory.is_dir()
        os.kill(demo.pids["replica 3"], signal.SIGKILL)
        demo.until("replica 3 stays down (--no-restart)")
        assert httpx2.put(demo.key("k"), content=b"v", trust_env=False, timeout=30).status_code == 201
        demo.end(signal.SIGTERM)
        assert demo.process.returncode == 0
    assert not directory.exists()


def state_of(pid: int) -> str:
    """As the kernel has it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_when_a_demo_is_told_to_pause_kill_or_restart_a_replica_then_it_does(tmp_path: Path) -> None:
    with serving("--no-restart", "--dir", tmp_path / "kept") as demo:
        assert demo.shown.index(f"dashboard: {demo.url}/") < demo.shown.index("replica 1")

        def order(name: str, what: str) -> httpx2.Response:
            path = f"{demo.url}/v1/demo/members/{name.replace(' ', '%20')}:{what}"
            return httpx2.post(path, trust_env=False, timeout=30)

        def states() -> dict[str, str]:
            shape = httpx2.get(f"{demo.url}/v1/demo", trust_env=False, timeout=30).json()
            assert shape["restart_s"] is None
            return {each["name"]: each["state"] for each in shape["members"]}

        assert states() == dict.fromkeys(["replica 1", "replica 2", "replica 3"], "running")
        assert order("replica 2", "pause").status_code == 200
        until(lambda: state_of(demo.pids["replica 2"]) == "T")
        assert states()["replica 2"] == "paused"
        assert order("replica 2", "pause").json()["code"] == "order_refused"
        assert httpx2.put(demo.key("k"), content=b"v", trust_env=False, timeout=30).status_code == 201
        assert order("replica 2", "resume").status_code == 200
        until(lambda: state_of(demo.pids["replica 2"]) != "T")
        assert order("replica 3", "kill").status_code == 200
        demo.until("replica 3 stays down (--no-restart)")
        assert states()["replica 3"] == "down"
        assert order("replica 3", "kill").json()["code"] == "order_refused"
        assert order("replica 3", "restart").status_code == 200
        demo.until("replica 3 is back")
        assert order("replica 2", "restart").status_code == 200
        demo.until("replica 2 (pid")  # it was stopped in good order, and is started at once
        demo.until("replica 2 is back")
        assert states() == dict.fromkeys(["replica 1", "replica 2", "replica 3"], "running")
        assert order("gateway", "kill").json()["code"] == "member_not_found"
        assert order("replica 1", "pause").status_code == 200
        said = demo.end()  # also of one that hears nothing
        assert demo.process.returncode == 0
        assert said.rstrip().endswith("everything is stopped")


def test_when_the_port_is_taken_then_the_error_names_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = rsm("demo", "--serve", "--port", taken.getsockname()[1])
    assert done.returncode == 1
    assert "--port" in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_when_the_story_is_interrupted_then_its_processes_go_with_it(how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "cli.main", "demo"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("✓ start")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 4
    process.send_signal(how)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    until(lambda: not any(runs(int(pid)) for pid in children))
