"""Tiny real runs of the ceilings and of the ring: content is compared, speed is not."""

import json

import msgspec
import pytest
from typer.testing import CliRunner, Result

from bench import bare, failover, raw
from bench.errors import BenchError
from bench.failover import FailoverPlan, Loss, interruption
from bench.member import Load, Network, Settings
from bench.ordering import OrderingPlan, Ring, summary
from bench.workers import CrewMaker, Placement
from cli.main import app

SECONDS = 0.3


def rsm_bench(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["bench", *words])


# -- raw sockets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [raw.SIZE_MIN, 59_000])
def test_when_raw_sockets_are_measured_then_every_receiver_got_everything(size: int) -> None:
    plan = raw.RawPlan(size=size, receivers=2, seconds=SECONDS)
    values = raw.throughput(plan, Placement.FREE, CrewMaker())
    assert values["lost"] == 0
    assert isinstance(values["sent"], int)
    assert values["sent"] > 0


def test_when_two_processes_play_ping_pong_then_round_trips_are_counted() -> None:
    values = raw.round_trip(raw.RawPlan(size=64, seconds=SECONDS), Placement.ONE, CrewMaker())
    assert isinstance(values["samples"], int)
    assert values["samples"] > 0
    assert "on CPU" in str(values["placement"])


# -- the bare loop -------------------------------------------------------------------------------


@pytest.mark.parametrize(("sites", "senders"), [(3, 1), (3, 3), (2, 2), (5, 2)])
def test_when_the_bare_loop_ends_then_all_sites_delivered_the_same(sites: int, senders: int) -> None:
    plan = bare.BarePlan(size=100, sites=sites, senders=senders, seconds=SECONDS)
    values = bare.run(plan, Placement.FREE, CrewMaker())  # which raises where digests differ
    assert isinstance(values["delivered"], int)
    assert values["delivered"] > 0
    assert str(values["digest"]).startswith(f"{values['delivered']}:{values['delivered'] * 100}:")


def test_when_one_message_is_outstanding_then_each_is_timed() -> None:
    plan = bare.BarePlan(size=64, seconds=SECONDS, one_outstanding=True)
    values = bare.run(plan, Placement.FREE, CrewMaker())
    assert isinstance(values["latency"], dict)
    assert isinstance(values["latency"]["samples"], int)
    assert values["latency"]["samples"] > 0


# -- the ring ------------------------------------------------------------------------------------


def test_when_a_ring_does_several_loads_then_all_members_agree_on_each() -> None:
    network = Network.loopback(3, multicast=False, sealed=False)
    ring = Ring(CrewMaker(), network, Settings(), Placement.FREE)
    try:
        all_send = ring.run(Load(size=100, senders=3, seconds=SECONDS, batch=50))
        alone = ring.run(Load(size=64, seconds=SECONDS, one_outstanding=True))
        by_source = ring.run(Load(size=64, senders=2, seconds=SECONDS, batch=5, qos="source_ordered"))
    finally:
        ring.close()
    assert isinstance(all_send["delivered"], int)
    assert all_send["delivered"] > 3
    assert isinstance(alone["latency"], dict)
    assert alone["latency"]["samples"]
    assert str(by_source["digest"]).count("+") == 1


def test_when_members_received_different_content_then_the_summary_refuses() -> None:
    report = {"digest": "a", "count": 1, "seconds": 1.0, "took": [], "cpu_s": 0.0, "packets": 1}
    with pytest.raises(BenchError, match="different content"):
        summary([report, report | {"digest": "b"}], Load())


def test_when_the_command_prints_json_then_it_has_the_agreed_shape() -> None:
    done = rsm_bench("ordering", "--seconds", str(SECONDS), "--rounds", "1", "--size", "100", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert list(shown) == ["name", "parameters", "values", "ratios", "calibration", "versions"]
    assert shown["name"] == "ordering"
    assert shown["parameters"]["senders"] == 1
    ceilings = ["raw", "raw_packets", "raw_round_trip", "bare", "bare_one_outstanding"]
    assert list(shown["values"]) == [*ceilings, "ring", "ring_one_outstanding"]
    assert all(value is not None and value > 0 for value in shown["ratios"].values())


def test_when_group_sizes_are_compared_then_each_has_its_row() -> None:
    done = rsm_bench("ordering", "--seconds", str(SECONDS), "--members", "2,3", "--size", "100")
    assert done.exit_code == 0, done.output
    assert "2 members" in done.output
    assert "packets_per_message_3_to_2" in done.output


# -- failover ------------------------------------------------------------------------------------


def test_when_deliveries_go_on_for_a_moment_then_the_longest_silence_counts() -> None:
    delivered = [0, 10, 20, 30, 330, 340, 350]
    assert interruption(delivered, lost_ns=15) == 315


def test_when_a_longer_silence_ended_before_the_loss_then_it_does_not_count() -> None:
    assert interruption([0, 500, 510, 560, 570], lost_ns=505) == 55


def test_when_nothing_came_after_the_loss_then_there_is_no_result() -> None:
    with pytest.raises(BenchError, match="nothing was delivered"):
        interruption([1, 2, 3], lost_ns=4)


def test_when_a_site_is_killed_then_the_others_go_on_and_the_times_are_told() -> None:
    plan = FailoverPlan(losses=(Loss.KILL,), repetitions=1)
    result = failover.run(plan, lambda _: None, lambda: None)
    told = result.values["kill"]
    assert isinstance(told, dict)
    assert isinstance(told["out_ms_max"], float)
    assert told["out_ms_max"] > 0
    assert isinstance(told["runs"], list)
    assert len(told["runs"]) == 1


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["ordering", "--size", "5"], "--size"),
        (["ordering", "--senders", "4"], "--senders"),
        (["ordering", "--senders", "some"], "--senders"),
        (["ordering", "--qos", "best"], "--qos"),
        (["ordering", "--qos", "unreliable"], "--qos"),
        (["ordering", "--members", "3,x"], "--members"),
        (["raw", "--sizes", "1"], "--sizes"),
        (["failover", "--losses", "fire"], "--losses"),
    ],
)
def test_when_an_option_makes_no_sense_then_nothing_is_started(words: list[str], hint: str) -> None:
    done = rsm_bench(*words)
    assert done.exit_code == 2, done.output
    assert hint in done.output


def test_when_a_plan_has_more_senders_than_sites_then_it_is_refused() -> None:
    plan = OrderingPlan(sites=3, senders=3)
    plan.check()
    with pytest.raises(BenchError, match="senders"):
        msgspec.structs.replace(plan, senders=4).check()
