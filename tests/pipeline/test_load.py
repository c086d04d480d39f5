"""Results over time: what is read, what got worse, and by whose word."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from pyspark.sql import SparkSession

from bench.results import Result
from loadtests.judging import Verdict
from loadtests.latencies import Row as LoadRow
from loadtests.records import Kind
from loadtests.report import Result as LoadResult
from loadtests.runs import LoadPlan
from pipeline import tables as at
from pipeline.errors import BadInput, BadSetting
from pipeline.jobs import load as job
from pipeline.runs import Outcome, Run
from pipeline.tables import Tables

HOUR = 3600
BEGIN = 1_790_000_000


def bench(
    folder: Path,
    hour: int,
    rate: float,
    p99: float,
    ratio: float | None = 0.5,
    rounds: int = 2,
    name: str = "ordering",
) -> Path:
    result = Result(
        name=name,
        parameters={"sites": 3, "rounds": rounds},
        values={"ring": {"messages_per_s": rate, "latency": {"p99_us": p99, "samples": 7}}, "words": "so"},
        ratios={"ring_to_raw": ratio},
        calibration={"cpus": 2, "python_loops_per_s": 40_000_000},
        versions={"rsm": "0.1.0"},
    )
    return put(folder / f"{name}-{rounds}-{hour:03}.json", hour, result.to_json())


def put(path: Path, hour: int, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (BEGIN + hour * HOUR, BEGIN + hour * HOUR))
    return path


def loaded(folder: Path, hour: int, p99: float) -> Path:
    plan = LoadPlan(
        run=f"load-{hour}", endpoint="http://127.0.0.1:1", users=4, spawn_rate=1.0, run_time_s=2.0,
        shape="constant", mix="", rate=1.0, groups=1, value_bytes=40, faults=False, sites=3, web_port=None,
        workers=1, seed=hour, report=folder,
    )  # fmt: skip
    waits = {"p50": 1.0, "p99": p99}
    row = LoadRow(operation="all", answered=100, per_s=50.0, service_ms=waits, intended_ms=waits)
    result = LoadResult(
        plan=plan, seconds=2.0, counts=dict.fromkeys(Kind, 0), statuses={}, rows=[row], verdict=Verdict(),
        faults={}, view_changes=0, stalls_s=[], trends=[],
    )  # fmt: skip
    return put(
        folder / f"run-{hour}" / "result.json", hour, msgspec.json.encode(result, enc_hook=str).decode()
    )


def run_on(spark: SparkSession, root: Path, *places: Path, **options: str) -> Outcome:
    tables = Tables(spark, str(root))
    run = Run(input=tuple(map(str, places)), output=str(root), options=options)
    return job.run(spark, tables, run, lambda words: None)


RATES = [1000, 1010, 990, 1005, 995, 1000, 700, 1002, 1500, 960]
P99S = [100, 101, 99, 100, 100, 102, 100, 180, 100, 104]


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, Outcome]:
    results, out = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("out")
    for hour, (rate, p99) in enumerate(zip(RATES, P99S, strict=True)):
        bench(results, hour, rate, p99, None if hour == 3 else 0.5 - 0.3 * (hour == 9))
        loaded(results, hour, 5.0 + 20 * (hour == 8))
    bench(results, 20, 10, 1e6, rounds=7)  # other parameters: nothing to compare with
    put(results / "cut.json", 1, '{"name": "ordering", "val')
    put(results / "deep" / "other.json", 1, '{"a": 1}')
    put(results / "odd.json", 1, '{"name": "x", "values": [1]}')
    put(results / "notes.txt", 1, "no result, and nobody says so")
    return Tables(spark, str(out)), run_on(spark, out, results)


def test_when_results_are_read_then_each_number_is_a_row(run: tuple[Tables, Outcome]) -> None:
    load = run[0].read(at.LOAD)
    first = load.where("name = 'ordering' AND parameters LIKE '%: 2%'").orderBy("time", "value_name").limit(4)
    rows = [(row.value_name, row.value, row.is_ratio, row.better) for row in first.collect()]
    assert rows == [
        ("ring.latency.p99_us", 100.0, False, "less"),
        ("ring.latency.samples", 7.0, False, None),
        ("ring.messages_per_s", 1000.0, False, "more"),
        ("ring_to_raw", 0.5, True, "more"),
    ]
    one = load.where("name = 'load' AND value_name = 'all.intended_ms.p99'").orderBy("time").collect()
    assert [row.value for row in one] == [5.0] * 8 + [25.0, 5.0]
    assert len({row.parameters for row in one}) == 1
    assert {row.loops_per_s for row in load.where("name = 'ordering'").collect()} == {40e6}


def test_when_files_cannot_be_read_then_quality_names_them_and_the_rest_is_there(
    run: tuple[Tables, Outcome],
) -> None:
    rows = run[0].read(at.QUALITY).where("job = 'load'").collect()
    broken = {Path(row.file).name: row.reason for row in rows if row.severity == "error"}
    assert set(broken) == {"cut.json", "other.json", "odd.json"}
    assert "cut off" in broken["cut.json"]
    assert "neither" in broken["other.json"]
    assert [row.rows for row in rows if row.severity == "note"] == [21]


def _worse(values: list[float], sign: int) -> list[int]:
    """From the rule's text, with the standard library."""
    found = []
    for place, value in enumerate(values):
        before = values[max(0, place - 10) : place]
        if len(before) >= 3:
            middle = statistics.median(before)
            spread = statistics.median([abs(each - middle) for each in before])
            by = sign * (value - middle)
            if by > 3 * spread and by >= 0.1 * middle:
                found.append(place)
    return found


def test_when_values_get_worse_then_they_are_regressions_and_others_are_not(
    run: tuple[Tables, Outcome],
) -> None:
    tables, outcome = run
    found = {
        (row.value_name, round((row.time.timestamp() - BEGIN) / HOUR))
        for row in tables.read(at.REGRESSIONS).collect()
    }
    expected = {("ring.messages_per_s", hour) for hour in _worse(list(map(float, RATES)), -1)}
    expected |= {("ring.latency.p99_us", hour) for hour in _worse(list(map(float, P99S)), 1)}
    assert expected == {("ring.messages_per_s", 6), ("ring.latency.p99_us", 7)}
    expected |= {("ring_to_raw", 9), ("all.intended_ms.p99", 8), ("all.service_ms.p99", 8)}
    assert found == expected
    assert outcome.violations == 0
    assert any("ring_to_raw" in words and "60% worse" in words for words in outcome.words)


def test_when_regressions_are_asked_of_duckdb_then_it_says_the_same(run: tuple[Tables, Outcome]) -> None:
    tables, _ = run
    load = tables.read(at.LOAD).toPandas()  # noqa: F841 - DuckDB reads it by its name
    found = duckdb.execute(
        """
        SELECT value_name, run FROM (
          SELECT n.value_name, n.run, n.value, any_value(n.better) AS better, median(o.value) AS middle,
            mad(o.value) AS spread, count(*) AS runs
          FROM load n JOIN load o ON o.name = n.name AND o.parameters = n.parameters
            AND o.value_name = n.value_name AND o.is_ratio = n.is_ratio AND o.time < n.time
          WHERE n.better IS NOT NULL GROUP BY ALL)
        WHERE runs >= 3 AND CASE better WHEN 'less' THEN value - middle ELSE middle - value END
          > greatest(3 * spread, 0) AND abs(value - middle) >= 0.1 * middle
        """
    ).fetchall()
    ours = {(row.value_name, row.run) for row in tables.read(at.REGRESSIONS).collect()}
    assert ours == set(found)


def test_when_there_are_several_runs_then_each_benchmark_has_a_figure(run: tuple[Tables, Outcome]) -> None:
    names = [Path(figure).name for figure in run[1].figures]
    assert names == ["load-load.png", "load-ordering.png"]


@pytest.mark.parametrize(
    ("name", "is_ratio", "expected"),
    [
        ("ring.messages_per_s", False, "more"),
        ("ring.mb_per_s", False, "more"),
        ("all.per_s", False, "more"),
        ("round trip, one.p99.9_us", False, "less"),
        ("all.intended_ms.max", False, "less"),
        ("ring.cpu_us_per_message", False, "less"),
        ("ring.packets_per_message", False, "less"),
        ("killed_to_new_view_s", False, "less"),
        ("ring.latency.samples", False, None),
        ("64 B.window", False, None),
        ("ring_to_raw", True, "more"),
        ("ring_cpu_to_bare_cpu", True, "less"),
        ("latency_p50_to_raw_round_trip", True, "less"),
        ("ring_to_raw_packets_bytes", True, "more"),
        ("memory_1_reads_to_writes", True, "more"),
        ("rate, durable put, 64 connections, to bare", True, "more"),
        ("packets_per_message_9_to_3", True, "less"),
    ],
)
def test_when_a_value_has_a_name_then_it_is_known_which_way_is_better(
    name: str, is_ratio: bool, expected: str | None
) -> None:
    assert job.better(name, is_ratio=is_ratio) == expected


def test_when_there_is_nothing_to_read_then_it_says_what_to_name(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--input"):
        run_on(spark, tmp_path)
    with pytest.raises(BadInput, match="nowhere"):
        run_on(spark, tmp_path, tmp_path / "nowhere")


def test_when_no_file_is_a_result_then_it_says_why_and_what_was_there_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    results, empty, out = tmp_path / "results", tmp_path / "empty", tmp_path / "out"
    put(results / "cut.json", 1, '{"name": "ordering", "val')
    empty.mkdir()
    for hour in range(2):
        bench(tmp_path / "good", hour, 1000, 100)
    run_on(spark, out, tmp_path / "good")
    before = Tables(spark, str(out)).read(at.LOAD).count()
    with pytest.raises(BadInput, match=r"results.*cut\.json: not JSON, or cut off"):
        run_on(spark, out, results)
    with pytest.raises(BadInput, match=r"empty: no file that ends in \.json"):
        run_on(spark, out, empty)
    assert Tables(spark, str(out)).read(at.LOAD).count() == before > 0


def test_when_names_look_alike_then_each_has_a_figure_and_those_of_the_run_before_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    for hour in range(2):
        for name in ("disk 1", "disk-1", "disk.1"):
            bench(results, hour, 1000, 100, name=name)
    figures = out / "figures"
    figures.mkdir(parents=True)
    for other in ("load-long-ago.png", "throughput.png"):
        (figures / other).write_bytes(b"old")
    made = run_on(spark, out, results).figures
    expected = ["load-disk-1-2.png", "load-disk-1-3.png", "load-disk-1.png"]
    assert sorted(Path(figure).name for figure in made) == expected
    assert sorted(path.name for path in figures.iterdir()) == [*expected, "throughput.png"]


def test_when_parameters_differ_then_only_those_that_do_are_told() -> None:
    given = ({"sites": 3, "disk": {"sync": True, "size": 1}}, {"sites": 3, "disk": {"size": 2}, "qos": "k=1"})
    first, second = (json.dumps(each) for each in given)
    assert job.differing({first, second}) == {
        first: "disk.size=1, disk.sync=true, qos=none",
        second: "disk.size=2, disk.sync=none, qos=k=1",
    }
    assert job.differing({first}) == {first: ""}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process lives by another clock than Greenwich's."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_when_a_time_is_told_then_it_is_of_utc(run: tuple[Tables, Outcome]) -> None:
    tables, _ = run
    worse = tables.read(at.REGRESSIONS).where("value_name = 'ring_to_raw'").collect()
    [_, _, words] = job._words(10, worse)
    assert words.startswith("2026-09-21T23:13:20Z ordering: ring_to_raw 0.2")


@pytest.mark.parametrize("name", ["load", "sweep"])
def test_when_an_executor_loads_a_job_then_nothing_is_there_to_draw_with(name: str) -> None:
    """Its functions are sent by their names, and executors need not have Matplotlib."""
    code = f"import sys, pipeline.jobs.{name}; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("options", [{"last": "2"}, {"last": "4.5"}, {"times": "-1"}, {"times": "often"}])
def test_when_an_option_makes_no_sense_then_it_is_named(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(BadSetting, match=next(iter(options))):
        run_on(spark, tmp_path, tmp_path, **options)
