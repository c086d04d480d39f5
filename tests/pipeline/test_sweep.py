"""Sweep: runs in executors, rows that are pure, waves that resume, figures."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ordering.disciplines import DISCIPLINES
from ordering.simulator.measurement import Trial, measure
from pipeline.errors import BadSetting
from pipeline.experiments import DISCIPLINES as PLAYED
from pipeline.experiments import EXPERIMENTS, RATE, chosen
from pipeline.jobs import sweep
from pipeline.runs import Run
from pipeline.sweep_figures import SHEETS, draw
from pipeline.tables import SWEEP, Tables


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two points instead of hundreds."""
    few = {
        "rate": lambda: iter([{"sites": 2, "rate": 100}, {"sites": 2, "rate": 200}]),
        "loss": lambda: iter([{"sites": 2, "rate": 100, "loss": 0.05}]),
    }
    monkeypatch.setattr("pipeline.experiments.EXPERIMENTS", few)


def played(spark: SparkSession, folder: Path, **options: str) -> tuple[Any, list[str]]:
    said: list[str] = []
    output = str(folder)
    outcome = sweep.run(spark, Tables(spark, output), Run(output=output, options=options), said.append)
    return outcome, said


@pytest.mark.usefixtures("small")
def test_when_a_sweep_is_run_again_with_more_seeds_then_only_what_is_new_is_played(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, said = played(spark, tmp_path, seeds="1", seconds="1")
    assert first.rows == {"gold/sweep": 6}
    assert first.violations == 0
    assert said[0] == "0 of 6 runs"
    before = rows(spark, tmp_path)
    second, said = played(spark, tmp_path, seeds="2", seconds="1")
    assert second.rows == {"gold/sweep": 12}
    assert "12 runs planned, 6 played" in second.words[0]
    after = rows(spark, tmp_path)
    assert after.items() >= before.items()
    third, said = played(spark, tmp_path, seeds="2", seconds="1")
    assert "0 played" in third.words[0]
    assert said == ["drawing"]
    assert rows(spark, tmp_path) == after
    other, _ = played(spark, tmp_path, seeds="1", seconds="2", experiment="loss")
    assert other.rows == {"gold/sweep": 2}
    assert len(rows(spark, tmp_path)) == 14
    assert [Path(path).name for path in third.figures] == ["sweep-rate.png", "sweep-loss.png"]
    assert all(Path(path).stat().st_size > 10_000 for path in third.figures)


@pytest.mark.usefixtures("small")
def test_when_the_tables_are_far_away_then_figures_are_there_and_only_of_runs_that_the_table_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    for other in ("sweep-rates.png", "throughput.png"):
        (figures / other).write_bytes(b"old")
    root = f"file://{tmp_path}"
    for experiment in ("rate", "loss"):
        options = {"experiment": experiment, "seeds": "1", "seconds": "1"}
        outcome = sweep.run(spark, Tables(spark, root), Run(output=root, options=options), lambda words: None)
        assert outcome.figures == [f"{root}/figures/sweep-{experiment}.png"]
    found = sorted(path.name for path in figures.glob("*.png"))
    assert found == ["sweep-loss.png", "sweep-rate.png", "throughput.png"]


def rows(spark: SparkSession, folder: Path) -> dict[tuple[str, str], Any]:
    found = Tables(spark, str(folder)).read(SWEEP).collect()
    assert len({(row.experiment, row.replay) for row in found}) == len(found)
    return {(row.experiment, row.replay): row for row in found}


def test_when_a_run_is_played_in_an_executor_then_its_row_is_that_of_this_process(
    spark: SparkSession,
) -> None:
    trial = Trial(seed=3, sites=3, loss=0.02, seconds=1)
    found = sweep.play(
        spark, [("loss", trial), ("qos", Trial(seed=1, qos="unreliable", seconds=1))]
    ).collect()
    row = next(row for row in found if row.experiment == "loss")
    assert row.asDict() == sweep.row_of("loss", row.batch, trial, measure(trial))
    assert next(row for row in found if row.experiment == "qos").stability_p50_ms is None


def test_when_a_run_violates_then_the_outcome_counts_it_and_says_how_to_replay_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    trial = Trial(seed=3, sites=2, seconds=1)
    row = sweep.row_of("rate", "b", trial, measure(trial))
    broken = {**row, "violations": 2, "violation": "0.1s total_order: site 1", "replay": "again --seed 9"}
    tables = Tables(spark, str(tmp_path))
    tables.write(SWEEP, spark.createDataFrame([row, broken], SWEEP.schema))
    outcome = sweep._outcome(tables.read(SWEEP), tables, 2, 0, 0.0)
    assert outcome.violations == 1
    assert outcome.words[1] == "again --seed 9: 0.1s total_order: site 1"


def test_when_seeds_are_summed_up_then_medians_and_bands_are_those_of_the_rows(spark: SparkSession) -> None:
    trial = Trial(seed=0, sites=2, seconds=1)
    row = sweep.row_of("rate", "b", trial, measure(trial))
    many = [row | {"seed": seed, "delivery_p50_ms": float(seed)} for seed in range(11)]
    [point] = sweep.summary(spark.createDataFrame(many, SWEEP.schema)).collect()
    found = (point.runs, point.delivery_p50_ms_p10, point.delivery_p50_ms_median, point.delivery_p50_ms_p90)
    assert found == (11, 1.0, 5.0, 9.0)


def test_when_everything_is_planned_then_there_are_two_thousand_different_runs_and_all_sheets_know_them() -> (
    None
):
    planned = sweep.plan(chosen("all"), sweep.SEEDS, sweep.SECONDS)
    assert len({(name, trial.replay) for name, trial in planned}) == len(planned) >= 2000
    assert [trial.seed for _, trial in planned] == sorted(trial.seed for _, trial in planned)
    assert set(SHEETS) == set(EXPERIMENTS)
    assert all(trial.rate * trial.seconds >= 100 for _, trial in planned)
    assert set(PLAYED) == set(DISCIPLINES)
    assert Trial(seed=0).rate == RATE


@pytest.mark.parametrize(
    ("options", "word"),
    [({"experiment": "speed"}, "speed"), ({"seeds": "0"}, "seeds"), ({"seconds": "many"}, "seconds")],
)
def test_when_an_option_makes_no_sense_then_it_is_named(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], word: str
) -> None:
    with pytest.raises(BadSetting, match=word):
        played(spark, tmp_path, **options)


def test_when_an_experiment_has_no_points_then_nothing_is_drawn(tmp_path: Path) -> None:
    assert draw([], str(tmp_path)) == []
    assert not (tmp_path / "figures").exists()
