"""`rsm bench pipeline`: what it makes of times and of what was found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.errors import BenchError, WorkerFailed
from bench.pipeline import run as bench
from bench.pipeline.generator import Generated, Plant
from bench.pipeline.run import PipelinePlan, Violation, growth, is_of, play, tree_bytes
from bench.results import Value
from cli.bench import app
from pipeline import timed

PLANT = Plant("total-order", "two ranges the other way round", 100, 120)


def size(rows: int, **seconds: float) -> Value:
    return {"rows": rows, "jobs": {job: {"seconds": took} for job, took in seconds.items()}}


def test_when_ten_times_the_rows_take_twelve_times_as_long_then_growth_is_a_fifth_above_linear() -> None:
    sizes = {"1000": size(1000, audit=2.0), "10000": size(10_000, audit=24.0), "20000": size(20_000)}
    found = growth(sizes, ("audit",))
    assert found == {"audit: growth to 10,000 rows": 1.2, "audit: growth to 20,000 rows": None}


@pytest.mark.parametrize(
    ("rule", "first", "last", "is_found"),
    [
        ("total-order", 120, 130, True),
        ("total-order", 90, 100, True),
        ("total-order", 121, 130, False),
        ("agreement", 100, 120, False),
        ("total-order", None, None, False),
        ("total-order", 110, None, True),
    ],
)
def test_when_a_violation_has_the_rule_and_slots_of_a_plant_then_it_is_that(
    rule: str, first: int | None, last: int | None, is_found: bool
) -> None:
    assert is_of(PLANT, Violation(rule, first, last, "")) is is_found


def test_when_there_is_no_such_job_then_the_failure_says_so_before_spark_is_started(tmp_path: Path) -> None:
    made = Generated(folder=tmp_path / "recording", events=0, operations=0, slots=0, plants=[])
    with pytest.raises(WorkerFailed, match="there is no job 'dance'"):
        play(made, ("dance",), "nothing", lambda _: None)


def test_when_the_jobs_speak_then_what_they_say_is_what_the_bench_reads() -> None:
    pairs: list[tuple[Any, Any]] = [
        (timed.Timed, bench.Job), (timed.Found, bench.Found), (timed.Violation, bench.Violation),
        (timed.Progress, bench.Progress), (timed.Failed, bench.Failed),
    ]  # fmt: skip
    for said, heard in pairs:
        assert said.__struct_fields__ == heard.__struct_fields__
        assert said.__struct_config__.tag == heard.__struct_config__.tag


def test_when_a_process_has_children_then_their_memory_counts() -> None:
    code = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"
    alone = tree_bytes(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_bytes(os.getpid()) > alone
        child.communicate()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"rows": (10**9,) * 4, "planted": (), "keep": True}, "directory.* 480;"),
        ({"rows": (5,)}, "rows"),
        ({"jobs": ("dance",)}, "jobs"),
        ({"directory": Path("/nowhere")}, "directory"),
    ],
)
def test_when_a_plan_makes_no_sense_then_it_says_which_option(
    wrong: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One recording of a billion rows would have room, four would not."""
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=200 * 10**9))
    PipelinePlan(rows=(10**9,) * 4, planted=()).check()
    with pytest.raises(BenchError, match=word):
        PipelinePlan(**wrong).check()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the jobs, whose answers are given: all but one plant."""

    def played(made: Generated, jobs: Any, title: str, step: Any) -> bench.Played:
        step(f"{title}: at work")
        found = [Violation(plant.rule, plant.first_ts, plant.last_ts, "seen") for plant in made.plants[1:]]
        times = [bench.Job(job, 2.0, {}, 0) for job in jobs]
        audited = bench.Found({}, found) if "audit" in jobs else None
        return bench.Played(jobs=times, found=audited, memory_bytes=1 << 30)

    monkeypatch.setattr(bench, "play", played)


@pytest.mark.usefixtures("given")
def test_when_a_result_is_shown_then_times_plants_and_checks_are_there() -> None:
    shown = CliRunner().invoke(
        app, ["pipeline", "--rows", "10000,20000", "--planted", "30000"], terminal_width=200
    )
    assert shown.exit_code == 1, shown.output
    told = next(line for line in shown.output.splitlines() if line.startswith("audit: growth to 20,000 rows"))
    assert float(told.rpartition(" ")[2]) == pytest.approx(0.5, rel=0.05)
    assert "nothing in clean recordings: yes" in shown.output
    assert "every plant under its own rule: no" in shown.output
    assert "nothing but the plants: yes" in shown.output


@pytest.mark.usefixtures("given")
def test_when_nothing_was_audited_then_nobody_says_that_it_was_well() -> None:
    arguments = ["pipeline", "--rows", "10000", "--planted", "none", "--jobs", "ingest"]
    shown = CliRunner().invoke(app, arguments, terminal_width=200)
    assert shown.exit_code == 0, shown.output
    for name in ("nothing in clean recordings", "every plant under its own rule", "nothing but the plants"):
        assert f"{name}: not checked" in shown.output


@pytest.mark.usefixtures("given")
def test_when_json_is_wanted_then_the_steps_are_told_beside_it() -> None:
    shown = CliRunner().invoke(app, ["pipeline", "--rows", "10000", "--planted", "30000", "--json"])
    assert json.loads(shown.stdout)["values"]["checks"]["nothing in clean recordings"] is True
    assert "10,000 rows: at work" in shown.stderr.splitlines()
    assert "generating 10,000 rows: 100 %" in shown.stderr.splitlines()
