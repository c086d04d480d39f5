"""Corosync beside our ring: its configuration, what is said where it is missing, and a tiny real run."""

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.errors import BenchError, NotAvailable
from bench.peers import contest, corosync
from bench.peers.corosync import SETTINGS, Setting, configuration, ready
from bench.peers.cpg import Work, build
from bench.workers import CrewMaker, Placement
from cli.main import app

ADDRESSES = ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
needs_corosync = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("corosync") is None, reason="needs root and an installed corosync"
)


def shared_memory() -> list[str]:
    """What corosync's library leaves when a daemon is killed."""
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith("qb-"))


def test_when_a_configuration_is_written_then_it_has_all_members_and_no_crypto() -> None:
    text = configuration(Setting("knet", (("window_size", 300),)), ADDRESSES)
    for address in ADDRESSES:
        assert f"ring0_addr: {address}\n" in text
    assert "crypto_cipher: none\n" in text
    assert "window_size: 300\n" in text
    assert "mcastaddr" not in text
    assert text.count("{") == text.count("}")


def test_when_the_transport_is_multicast_then_the_group_is_named() -> None:
    assert "mcastaddr: 239.77.3.1\n" in configuration(Setting("udp"), ADDRESSES)


def test_when_corosync_is_missing_then_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailable, match="apt-get install corosync libcpg4"):
        corosync.require()
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "peers", "corosync"])
    assert done.exit_code == 3
    assert "apt-get install corosync libcpg4" in done.output


def test_when_a_setting_is_unknown_then_the_known_ones_are_listed() -> None:
    with pytest.raises(BenchError, match="carrier pigeon is unknown; use some of: knet"):
        contest.ContestPlan(settings=("carrier pigeon",)).check()


def test_when_our_best_is_compared_then_it_is_with_their_best() -> None:
    plan = contest.ContestPlan(sizes=(16,))
    one, all_sending = (str(contest.Case(size, senders)) for size, senders in plan.loads)
    ratios = contest.ratios(
        plan,
        {
            "corosync knet": {one: {"messages_per_s": 10}, "one outstanding": {"latency": {"p50_us": 50.0}}},
            "corosync udp": {one: {"messages_per_s": 40}, "one outstanding": {"latency": {"p50_us": 20.0}}},
            "rsm unicast": {one: {"messages_per_s": 80}, "one outstanding": {"latency": {"p50_us": 40.0}}},
            "rsm multicast": {one: {"messages_per_s": 60}, "one outstanding": {"latency": {"p50_us": 10.0}}},
        },
    )
    assert ratios[f"rate, {one}"] == 2.0
    assert ratios[f"rate, {all_sending}"] is None
    assert ratios["one outstanding, p50_us"] == 0.5


@needs_corosync
@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_when_corosync_runs_then_all_members_received_the_same_and_nothing_is_left(
    native: bool, tmp_path: Path
) -> None:
    built = build(str(tmp_path)) if native else ""
    if native and shutil.which("cc"):
        assert built
    before = shared_memory()
    with ready(SETTINGS["udpu, 64 kB frames"], 3, Placement.FREE, CrewMaker(), built) as cluster:
        loaded = cluster.run(Work(size=100, senders=3, seconds=0.3))
        alone = cluster.run(Work(size=64, senders=1, seconds=0.3, one_outstanding=True))
        daemons = [process.pid for process in cluster.daemons.processes]
    assert isinstance(loaded["delivered"], int)
    assert loaded["delivered"] > 0
    assert isinstance(alone["latency"], dict)
    assert alone["latency"]["samples"]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in daemons)
    assert shared_memory() == before
