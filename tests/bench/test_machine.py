"""Tiny real runs of replicated machines: content is compared, speed is not."""

import asyncio
import importlib
import importlib.util
import json
import time
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from typer.testing import CliRunner, Result

from bench import disk, machine, soak
from bench.disk import file_system, require_disk, sync_cost
from bench.errors import BenchError, NotAvailable, WorkerFailed
from bench.machine import MachinePlan, Mode, Replicas, ratios, replicas, summary, verdict
from bench.peers import pysyncobj
from bench.peers.pysyncobj import PySyncObjPlan
from bench.results import Value
from bench.tally import KEYS, SIZE_MIN, Caller, Kind, Place, Stopwatch, Tally, Work, value_of
from bench.workers import CrewMaker, Placement
from cli.main import app
from ordering.errors import NoPrimary
from rsm import Replica
from rsm.envelope import Language
from rsm.methods import Catalogue
from rsm.proxy import Proxy

SECONDS = 0.2
needs_pysyncobj = pytest.mark.skipif(
    importlib.util.find_spec("pysyncobj") is None, reason="needs an installed PySyncObj"
)


def rsm_bench(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["bench", *words])


def state(**changes: object) -> dict[str, object]:
    return {"applied": 90, "digest": "0badcafe", "count": 30, "acknowledged": 10} | changes


# -- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SIZE_MIN, 100, 1000])
def test_when_a_command_is_to_have_a_size_then_its_message_has_about_that(size: int) -> None:
    catalogue = Catalogue(Tally)
    command = catalogue.command("put").bind((1, value_of(size)), {})
    assert abs(len(Language(catalogue).encode(1_000, 100_000, 99_000, command)) - size) <= 2


def test_when_there_are_too_many_latencies_then_some_go_and_the_longest_stays() -> None:
    watch = Stopwatch(samples_max=8)
    for nanoseconds in [*range(100), 5000, *range(100)]:
        watch.note(nanoseconds)
    assert watch.count == 201
    assert 4 <= len(watch.samples) <= 8
    assert max(watch.samples) == 5000


def test_when_a_call_that_was_due_fails_then_there_is_no_result() -> None:
    keys: list[int] = []

    class Failing:
        async def put(self, key: int, value: bytes) -> None:
            keys.append(key)
            if len(keys) == 3:
                raise NoPrimary("nobody answers")

    async def main() -> None:
        caller = Caller(Replica(Tally, Place().config(0)), 0, b"")
        until = time.monotonic_ns() + 50_000_000
        await caller._put_at(cast(Proxy[Any], Failing()), Stopwatch(), until, 1000)

    with pytest.raises(NoPrimary):
        asyncio.run(main())
    assert keys[:10] == list(range(10)), "one after the other, also behind the one that failed"


def test_when_few_latencies_are_noted_then_all_are_kept() -> None:
    watch = Stopwatch(samples_max=8)
    for nanoseconds in (3, 1, 2):
        watch.note(nanoseconds)
    assert watch.samples == [3, 1, 2]
    assert Stopwatch().samples == []


# -- one group -----------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
def test_when_all_replicas_are_called_then_each_command_is_executed_once_everywhere(
    durable: bool, tmp_path: Path
) -> None:
    place = Place(directory=tmp_path if durable else None)
    with replicas(CrewMaker(), Placement.FREE, place) as group:
        puts = group.run(Work(in_flight=8, senders=3, seconds=SECONDS))
        gets = group.run(Work(kind=Kind.GET, in_flight=8, seconds=SECONDS))
        adds = group.run(Work(kind=Kind.ADD, in_flight=2, seconds=SECONDS))
        agreed = group.check()
    written = [row["answered"] for row in (puts, adds)]
    assert all(isinstance(count, int) and count > 0 for count in (*written, gets["answered"]))
    assert agreed["executed"] == 3 * KEYS + sum(count for count in written if isinstance(count, int))
    assert isinstance(puts["latency"], dict)
    assert puts["latency"]["samples"]
    logs = sorted(path.name for path in tmp_path.iterdir())
    assert logs == (["site-1", "site-2", "site-3"] if durable else [])


def test_when_a_replica_dies_then_there_is_no_result() -> None:
    group = Replicas(CrewMaker(), Placement.FREE, Place())
    try:
        group.ring.crew.kill(group.ring.workers[2])
        with pytest.raises(WorkerFailed, match="site 3"):
            group.run(Work(seconds=SECONDS))
    finally:
        group.close()


def test_when_replicas_differ_at_one_slot_then_there_is_no_result() -> None:
    verdict([state(), state(), state()])
    with pytest.raises(BenchError, match="different content"):
        verdict([state(), state(digest="deadbeef"), state()])


@pytest.mark.parametrize("count", [29, 31])
def test_when_more_or_less_was_executed_than_acknowledged_then_there_is_no_result(count: int) -> None:
    states = [state(count=count) for _ in range(3)]
    with pytest.raises(BenchError, match=f"30 commands were acknowledged, but .* {count}, {count}"):
        verdict(states)


def test_when_nothing_was_answered_then_there_is_no_result() -> None:
    report = {"count": 0, "took": [], "started_ns": 0, "ended_ns": 1, "cpu_s": 0.0, "view_changes": 0}
    with pytest.raises(BenchError, match="no call was answered"):
        summary([report])


def test_when_a_replica_is_behind_then_the_rate_ends_with_it() -> None:
    report = {"count": 10, "took": [1000], "started_ns": 0, "cpu_s": 0.5, "view_changes": 0}
    report["resident_bytes"] = 1
    ends = (1_000_000_000, 2_000_000_000)
    told = summary([{**report, "ended_ns": end} for end in ends])
    assert (told["per_s"], told["answered"], told["cpu_us"]) == (10, 20, 50_000.0)


# -- the disk ------------------------------------------------------------------------------------

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /mem tmpfs rw 0 0
/dev/vdb /mem/disk xfs rw 0 0
/dev/vdc /with\\040blank ext3 rw 0 0
/dev/vdd /mem/disk btrfs rw 0 0
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/", "ext4"),
        ("/memory", "ext4"),
        ("/mem/x", "tmpfs"),
        ("/mem/disk/y", "btrfs"),
        ("/with blank", "ext3"),
    ],
)
def test_when_a_directory_is_looked_up_then_the_nearest_mount_counts(place: str, kind: str) -> None:
    assert file_system(Path(place), MOUNTS) == kind


def test_when_a_directory_is_in_memory_then_durable_mode_is_refused_and_memory_mode_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "file_system", lambda _: "tmpfs")
    with pytest.raises(BenchError, match="tmpfs, which is memory"):
        MachinePlan(directory=tmp_path).check()
    MachinePlan(modes=(Mode.MEMORY,), directory=tmp_path).check()
    done = rsm_bench("machine", "--directory", str(tmp_path))
    assert done.exit_code == 2
    assert "--directory" in done.output


def test_when_there_is_no_directory_then_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="is no directory"):
        require_disk(tmp_path / "nothing")


def test_when_a_sync_is_timed_then_nothing_is_left(tmp_path: Path) -> None:
    told = sync_cost(tmp_path, 100)
    assert isinstance(told["samples"], int)
    assert told["samples"] > 0
    assert list(tmp_path.iterdir()) == []


# -- the command ---------------------------------------------------------------------------------


def test_when_machines_are_measured_then_the_result_has_both_modes_and_their_ground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "require_disk", lambda _: None)  # tests may well run in memory
    done = rsm_bench(
        "machine", "--seconds", str(SECONDS), "--rounds", "1", "--in-flight", "1,16",
        "--directory", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["name"] == "machine"
    assert set(shown["values"]) == {"ring", "ring_one_outstanding", "sync", "memory", "durable"}
    for mode in ("memory", "durable"):
        for in_flight in ("1", "16"):
            for kind in ("put", "get"):
                row = shown["values"][mode][in_flight][kind]
                assert row["answered"] > 0
                assert {"p50_us", "p99_us", "max_us"} <= set(row["latency"])
                assert row["cpu_us"] > 0
    wanted = {"memory_16_to_ring", "durable_16_to_ring", "durable_p50_to_sync", "durable_16_reads_to_writes"}
    assert wanted <= set(shown["ratios"])
    assert {"memory_half_load_p99_to_p50", "durable_half_load_p99_to_p50"} <= set(shown["ratios"])
    assert all(value is not None and value > 0 for value in shown["ratios"].values())
    assert list(tmp_path.iterdir()) == []


def test_when_commands_are_counted_in_stages_then_each_tells_its_memory() -> None:
    done = rsm_bench("soak", "--commands", "400", "--in-flight", "8", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    stages = shown["values"]["stages"]
    assert shown["values"]["commands"] == int(list(stages)[-1]) >= 400
    assert sum(stage["answered"] for stage in stages.values()) == shown["values"]["commands"]
    assert all(stage["resident_mb"] > 1 for stage in stages.values())
    assert shown["ratios"]["memory_end_to_first_tenth"] > 0


def test_when_memory_grows_then_the_ratio_says_so() -> None:
    stages: dict[str, Value] = {str(10 * n): {"resident_mb": 50 + 5 * n} for n in range(1, 11)}
    assert soak.growth(stages, 100) == {"memory_end_to_first_tenth": round(100 / 55, 4)}


def test_when_only_memory_is_measured_then_a_table_is_shown_and_no_disk_is_touched(tmp_path: Path) -> None:
    done = rsm_bench(
        "machine", "--seconds", str(SECONDS), "--rounds", "1", "--in-flight", "4", "--mode", "memory",
        "--senders", "all", "--directory", str(tmp_path),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "memory: commands, 4 in flight" in done.output
    assert "memory: reads, 4 in flight" in done.output
    assert "fdatasync" not in done.output


def test_when_a_call_alone_was_not_measured_then_no_ratio_of_it_is_told() -> None:
    plan = MachinePlan(modes=(Mode.DURABLE,), in_flight=(64,))
    assert set(ratios(plan, {})) == {
        "durable_64_to_ring", "durable_64_cpu_to_ring_cpu", "durable_64_reads_to_writes"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["machine", "--senders", "2"], "--senders"),
        (["machine", "--in-flight", "0"], "--in-flight"),
        (["machine", "--in-flight", "many"], "--in-flight"),
        (["machine", "--size", "10"], "--size"),
        (["machine", "--mode", "paper"], "--mode"),
        (["machine", "--directory", "/proc/nothing"], "--directory"),
        (["peers", "pysyncobj", "--settings", "slow"], "--settings"),
        (["peers", "pysyncobj", "--in-flight", "0"], "--in-flight"),
    ],
)
def test_when_an_option_makes_no_sense_then_nothing_is_started(words: list[str], hint: str) -> None:
    done = rsm_bench(*words)
    assert done.exit_code == 2, done.output
    assert hint in done.output


def test_when_a_plan_asks_for_nothing_then_it_is_refused() -> None:
    plan = MachinePlan(modes=(Mode.MEMORY,))
    plan.check()
    for changes in ({"modes": ()}, {"in_flight": ()}, {"in_flight": (machine.IN_FLIGHT_MAX + 1,)}):
        with pytest.raises(BenchError):
            msgspec.structs.replace(plan, **changes).check()


# -- PySyncObj -----------------------------------------------------------------------------------


def test_when_pysyncobj_is_missing_then_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(NotAvailable, match="pip install"):
        pysyncobj.require()
    done = rsm_bench("peers", "pysyncobj")
    assert done.exit_code == 3
    assert "pip install" in done.output


def test_when_ours_is_compared_with_pysyncobj_then_it_is_with_each_of_its_settings() -> None:
    plan = PySyncObjPlan(in_flight=(64,), settings=("default", "tuned"))
    row: dict[str, Value] = {"per_s": 30, "latency": {"p50_us": 4.0}, "cpu_us": 2.0}
    told = pysyncobj.ratios(
        plan,
        {
            "pysyncobj default": {"64": row},
            "pysyncobj tuned": {"64": row | {"per_s": 120}},
            "rsm memory": {"64": row | {"per_s": 60, "latency": {"p50_us": 1.0}}},
        },
    )
    assert told["rate, 64 in flight, to default"] == 2.0
    assert told["rate, 64 in flight, to tuned"] == 0.5
    assert told["p50, 64 in flight, to tuned"] == 0.25
    assert told["CPU, 64 in flight, to default"] == 1.0


@needs_pysyncobj
def test_when_pysyncobj_runs_then_all_have_counted_what_was_acknowledged() -> None:
    done = rsm_bench(
        "peers", "pysyncobj", "--seconds", str(SECONDS), "--rounds", "1", "--in-flight", "16",
        "--settings", "default;tuned", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output  # the counts are compared within
    shown = json.loads(done.stdout)
    assert list(shown["values"]) == ["pysyncobj default", "pysyncobj tuned", "rsm memory", "complaints"]
    assert all(shown["values"][name]["16"]["answered"] > 0 for name in list(shown["values"])[:3])
    assert all(value is not None and value > 0 for value in shown["ratios"].values())
    assert "pysyncobj" in shown["versions"]
