"""How jobs are called: which run before, what is said, how it ends. The jobs are the test's, and ingest."""

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from cli.main import app
from pipeline import main as entry
from pipeline import tables as all_tables
from pipeline.errors import BadSetting
from pipeline.registry import QUESTIONS, options_of
from pipeline.running import _spark_words, run_job
from pipeline.runs import Outcome, Run, Step
from pipeline.tables import Tables
from tests.pipeline.recordings import record, rows


class Log:
    """What ran, with which options."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, dict[str, str]]] = []

    def names(self) -> list[str]:
        names = [name for name, _ in self.ran]
        self.ran.clear()
        return names


def job(
    log: Log,
    name: str,
    needs: tuple[str, ...],
    act: Callable[[Tables], Outcome],
    options: dict[str, tuple[Any, str]] | None = None,
) -> ModuleType:
    module: Any = ModuleType(f"pipeline.jobs.{name}")

    def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
        step("at work")
        log.ran.append((name, run.options))
        return act(tables)

    module.NEEDS, module.OPTIONS, module.HELP, module.run = needs, options or {}, "What it says.", run
    return module  # type: ignore[no-any-return]


def write_lifecycle(tables: Tables) -> Outcome:
    tables.write(all_tables.LIFECYCLE, tables.spark.createDataFrame([], all_tables.LIFECYCLE.schema))
    return Outcome(rows={"silver/lifecycle": 0})


def refuse_soon(options: dict[str, str]) -> None:
    if options["window"] == "soon":
        raise BadSetting("window: 'soon' must be a time")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    options = {
        "window": ("10s", "How long a window is."),
        "deep": (False, "Look deeper."),
        "key": (None, "Of."),
    }
    metrics: Any = job(log, "metrics", ("ingest", "lifecycle"), lambda _: Outcome(words=["fast"]), options)
    metrics.check = refuse_soon
    for module in (
        job(log, "lifecycle", ("ingest",), write_lifecycle),
        metrics,
        job(log, "audit", (), lambda tables: Outcome(violations=2)),
    ):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return log


def test_when_a_job_needs_others_then_only_those_run_that_are_missing_or_old(
    spark: SparkSession, tmp_path: Path, log: Log
) -> None:
    recordings = tmp_path / "in"
    record(recordings, "a", rows(0, 5))
    told: list[str] = []
    run = Run(input=(str(recordings),), output=str(tmp_path / "out"))

    def ran(name: str = "metrics") -> list[str]:
        done = run_job(spark, name, run, told.append)
        return [each.job for each in done.before]

    assert ran() == ["ingest", "lifecycle"]
    assert "lifecycle: at work" in told
    assert ran() == []
    assert log.names() == ["lifecycle", "metrics", "metrics"]
    record(recordings, "a", rows(5, 9))
    assert ran() == ["ingest", "lifecycle"]
    record(recordings, "a", rows(9, 12))
    assert ran("ingest") == []
    assert ran() == ["lifecycle"]  # it has not seen what ingest has
    log.ran.clear()
    run_job(spark, "metrics", Run(output=run.output, options={"deep": "true"}), told.append)
    assert log.ran == [("metrics", {"window": "10s", "deep": "true"})]
    with pytest.raises(BadSetting, match="no option colour"):
        options_of(sys.modules["pipeline.jobs.metrics"], {"colour": "red"})


def rsm(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *arguments])


def test_when_a_job_is_called_then_its_end_says_how_it_went(
    spark: SparkSession, tmp_path: Path, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "in", "a", rows(0, 5))
    common = ("--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"))
    well = rsm("ingest", *common, "-o", "json")
    assert well.exit_code == 0, well.output
    assert json.loads(well.stdout)["rows"]["bronze/events"] == 5
    shown = rsm("ingest", *common)
    assert "0 files read now, 1 in all" in shown.stdout
    for _ in range(2):  # a file that cannot be read is no less so the second time
        (tmp_path / "bad").mkdir(exist_ok=True)
        (tmp_path / "bad" / "a-000001.parquet").write_bytes(b"PAR1")
        bad = rsm("metrics", "--input", str(tmp_path / "bad"), "--output", str(tmp_path / "spoiled"))
        assert (bad.exit_code, "none can be read" in bad.stderr) == (3, True)
    assert rsm("audit", *common).exit_code == 1
    assert "2 violations" in rsm("audit", *common).stdout
    nowhere = rsm("ingest", "--input", str(tmp_path / "none"), "--output", str(tmp_path / "out"))
    assert (nowhere.exit_code, "no folder with recordings" in nowhere.stderr) == (3, True)
    for wrong in (("ingest", "--output", "x"), ("ingest", *common, "--set", "x"), ("nothing",)):
        assert rsm(*wrong).exit_code == 2
    assert rsm("ingest", *common, "-o", "xml").exit_code == 2
    log.ran.clear()
    assert entry.main(["metrics", *common, "--window", "5s", "--deep", "-o", "json"]) == 0
    assert log.ran[-1] == ("metrics", {"window": "5s", "deep": "true"})
    assert json.loads(capsys.readouterr().out)["words"] == ["fast"]
    assert rsm("metrics", *common, "--key", "k").exit_code == 0
    assert log.ran[-1] == ("metrics", {"window": "10s", "key": "k"})
    assert entry.main(["nothing"]) == 2


def test_when_an_option_makes_no_sense_then_nothing_is_started(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("pipeline.running.session", never)
    record(tmp_path / "in", "a", rows(0, 5))
    common = ("--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"))
    refused = rsm("metrics", *common, "--window", "soon")
    assert (refused.exit_code, "'soon' must be a time" in refused.stderr) == (2, True)
    for wrong in (
        ("load", "--times", "often"),
        ("sweep", "--seeds", "0"),
        ("sweep", "--experiment", "dance"),
    ):
        refused = rsm(wrong[0], *common, *wrong[1:])
        assert (refused.exit_code, wrong[2] in refused.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
    assert log.ran == []


def test_when_needed_jobs_would_run_then_options_are_looked_at_before_them(
    spark: SparkSession, tmp_path: Path, log: Log
) -> None:
    record(tmp_path / "in", "a", rows(0, 5))
    run = Run(input=(str(tmp_path / "in"),), output=str(tmp_path / "out"), options={"window": "soon"})
    with pytest.raises(BadSetting, match="soon"):
        run_job(spark, "metrics", run, lambda words: None)
    assert not (tmp_path / "out").exists()


def test_when_a_job_is_interrupted_then_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*arguments: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            logging.exception("KeyboardInterrupt while sending command.")  # as Py4J does
            raise

    monkeypatch.setattr("pipeline.running.session", interrupted)
    ended = rsm("ingest", "--input", str(tmp_path), "--output", str(tmp_path / "out"))
    assert (ended.exit_code, ended.stderr.startswith("error: interrupted")) == (130, True)
    assert caplog.records == []


def test_when_java_fails_then_its_stack_is_not_shown() -> None:
    told = """An error occurred while calling o57.parquet.
    : java.io.IOException: No space left on device
    \tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
    \tat org.apache.spark.sql.Dataset.$anonfun$withAction$2(Dataset.scala:4363)
    \t... 42 more
    Caused by: java.io.IOException: the disk is full
    """
    assert _spark_words(Exception(told)).splitlines() == [
        "Spark: An error occurred while calling o57.parquet.",
        ": java.io.IOException: No space left on device",
        "Caused by: java.io.IOException: the disk is full",
    ]


def test_when_help_is_asked_for_then_it_teaches(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    taught = rsm("--help").stdout
    assert entry.main(["--help"]) == 0
    for told in (taught, capsys.readouterr().out):
        assert all(name in told for name in QUESTIONS)
        assert "audit --input recordings --output out" in told
    of_job = re.sub(r"\s+", " ", rsm("metrics", "--help").stdout)
    for words in ("How long a window is. (else 10s)", "Look deeper.", "What it says.", "--master"):
        assert words in of_job


def test_when_java_or_spark_is_missing_then_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    without = rsm("metrics", "--output", "x")
    assert without.exit_code == 3
    assert "apt-get install" in without.stderr
    monkeypatch.setattr("cli.pipeline.find_spec", lambda name: None)
    without = rsm("metrics", "--output", "x")
    assert without.exit_code == 3
    assert "pip install 'rsm[pipeline]'" in without.stderr
    assert log.ran == []
