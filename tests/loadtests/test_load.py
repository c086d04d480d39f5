"""`rsm load` as one would run it: a short load on a store of its own, and two that are lied to."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from typer.testing import CliRunner

from cli.main import app
from tests.cli.demos import Demo, runs, serving
from tests.cli.groups import ROOT
from tests.loadtests.liars import Fails, Forgets, Relay, Remembers, relaying

SHORT = (
    "--users",
    "12",
    "--spawn-rate",
    "50",
    "--run-time",
    "2s",
    "--groups",
    "8",
    "--mix",
    "read=4,write=4,cas=2,txn=1,watch=1",
)
UNWATCHED = ("--mix", "read=4,write=4,cas=2,txn=2")
PNG = b"\x89PNG"


def rsm_load(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", "load", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "160"},
    )


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with serving("--memory", "--sites", 1) as running:
        yield running


def test_when_a_store_of_its_own_is_loaded_then_everything_is_right_and_reported(tmp_path: Path) -> None:
    done = rsm_load(*SHORT, "--report", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RIGHT: 0 wrong of" in done.stdout
    phases = [line.partition(",")[0] for line in done.stderr.splitlines()]
    assert phases[:2] == ["starting 3 replicas and a gateway", "constant load"]
    assert phases[-1] == "writing the report"
    page = (tmp_path / "index.html").read_text()
    assert "RIGHT: 0 wrong of" in page
    assert "http://" not in page.replace("http://127.0.0.1", "")
    assert "/v1/kv/[key]" in (tmp_path / "locust.html").read_text()
    for name in ("run.png", "distribution.png", "processes.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    result = json.loads((tmp_path / "result.json").read_text())
    everything = result["rows"][-1]
    assert everything["answered"] == result["counts"]["answered"] > 100
    assert {row["operation"] for row in result["rows"]} >= {"get", "put", "txn", "all"}
    checked = result["verdict"]["checked"]
    assert checked["operations"] >= everything["answered"]
    assert checked["watched"] > checked["executed"] / 2
    assert checked["searched"] > 3
    assert logged(tmp_path / "intended.hlog") == logged(tmp_path / "service.hlog") == everything["answered"]
    assert not (tmp_path / "records").exists()


def logged(path: Path) -> int:
    """How many waits are in it, as another program reads it."""
    whole = HdrHistogram(1, 600_000_000, 3)
    reader = HistogramLogReader(str(path), whole)
    while (interval := reader.get_next_interval_histogram()) is not None:
        whole.add(interval)
    reader.close()
    return int(whole.get_total_count())


@pytest.mark.parametrize(
    ("liar", "lie"),
    [(Forgets, r"the audit, behind .* was to come"), (Remembers, r"get\(.*\) → .*; one machine gives")],
)
def test_when_a_relay_lies_then_the_exit_code_says_so(
    demo: Demo, tmp_path: Path, liar: type[Relay], lie: str
) -> None:
    with relaying(liar, f"http://127.0.0.1:{demo.port}") as endpoint:
        done = rsm_load(*SHORT, *UNWATCHED, "--report", tmp_path, "--endpoint", endpoint)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
    assert "WRONG" in (tmp_path / "index.html").read_text()
    wrong = json.loads((tmp_path / "result.json").read_text())["verdict"]["wrong"]
    assert any(re.match(lie, each) for each in wrong), wrong
    assert not list((tmp_path / "records").glob("watch-*"))  # no watchers in this mix
    left = httpx2.get(f"http://127.0.0.1:{demo.port}/v1/kv", params={"prefix": "load-"}).json()
    assert left["items"] == []
    again = CliRunner().invoke(app, ["load", "--judge", str(tmp_path)])
    assert again.exit_code == 1
    assert "WRONG" in again.output


def test_when_requests_are_refused_and_answers_are_lost_then_nothing_is_wrong_and_each_counts_apart(
    demo: Demo, tmp_path: Path
) -> None:
    with relaying(Fails, f"http://127.0.0.1:{demo.port}") as endpoint:
        done = rsm_load(*SHORT, *UNWATCHED, "--report", tmp_path, "--endpoint", endpoint)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED: 0 wrong of" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["verdict"]["wrong"] == result["verdict"]["unsure"] == []
    assert result["counts"]["pushed back"] > 3
    assert result["counts"]["unknown"] > 0
    assert set(result["statuses"]) <= {"503", "0", "-1"}
    assert "pushed back 503" in (tmp_path / "locust.html").read_text()


def test_when_it_is_told_to_stop_then_it_takes_all_processes_along(tmp_path: Path) -> None:
    words = (*SHORT[:4], "--run-time", "60s", "--report", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "load", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "locust.log"
    end = time.monotonic() + 60
    while not (log.exists() and "All users spawned" in log.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    children = children_of(process.pid)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "all processes are stopped" in said
    assert len(children) == 5  # three replicas, a gateway, locust
    assert not any(runs(child) for child in children)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--endpoint", "http://example.org"), "--i-own-this-target"),
        (("--endpoint", "example"), "must be a URL"),
        (("--endpoint", "http://127.0.0.1:1", "--faults"), "only processes that this command has started"),
        (("--run-time", "long"), "--run-time"),
        (("--shape", "round"), "must be one of constant, steps, spike, soak"),
        (("--mix", "reed=1"), "'reed' is no kind of user"),
    ],
)
def test_when_an_option_is_wrong_then_it_is_named(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(app, ["load", *words, "--report", str(tmp_path)])
    assert done.exit_code == 2
    assert told in done.output
    assert list(tmp_path.iterdir()) == []


def test_when_a_report_has_no_records_then_it_says_how_to_keep_them(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["load", "--judge", str(tmp_path)])
    assert done.exit_code == 1
    assert "--keep" in done.output


def test_nothing_of_locust_is_loaded_into_our_own_process() -> None:
    code = (
        "import sys, cli.load, cli.load_run, loadtests.report\n"
        "print([name for name in ('gevent', 'locust') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
