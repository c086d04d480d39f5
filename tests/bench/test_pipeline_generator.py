"""Generated recordings: they keep all rules, and each plant breaks the one that it names."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench.pipeline import generator
from bench.pipeline.generator import Plant, generate
from bench.pipeline.plants import RULES
from ordering.recording import read_recording
from tests.bench.naive_rules import broken

ROWS = 8_000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several in each view, as in a large recording."""
    monkeypatch.setattr(generator, "CHUNK_BLOCKS", 400)
    monkeypatch.setattr(generator, "RETRIED", 50)
    monkeypatch.setattr(generator, "LOST", 60)


@pytest.mark.parametrize(("seed", "replicas"), [(1, 3), (2, 5)])
def test_when_nothing_is_planted_then_all_rules_hold(tmp_path: Path, seed: int, replicas: int) -> None:
    made = generate(tmp_path, ROWS, seed=seed, replicas=replicas)
    assert broken(tmp_path) == set()
    assert made.plants == []
    assert made.rows == pytest.approx(ROWS, rel=0.05)


def test_when_everything_is_planted_then_each_rule_is_broken_where_it_was_planted_and_nowhere_else(
    tmp_path: Path,
) -> None:
    plants = generate(tmp_path, ROWS, planted=RULES).plants
    assert {plant.rule for plant in plants} == set(RULES)
    found = broken(tmp_path)
    for plant in plants:
        assert any(_is_of(plant, *each) for each in found), plant
    for rule, slot in found:
        assert any(_is_of(plant, rule, slot) for plant in plants), (rule, slot)


def _is_of(plant: Plant, rule: str, slot: int) -> bool:
    return plant.rule == rule and plant.first_ts <= slot <= plant.last_ts


@pytest.mark.parametrize("rule", RULES)
def test_when_one_rule_is_planted_then_only_that_is_broken(tmp_path: Path, rule: str) -> None:
    plants = generate(tmp_path, ROWS, planted=(rule,)).plants
    assert {plant.rule for plant in plants} == {rule}
    assert {rule for rule, _ in broken(tmp_path)} == {rule}


def test_when_a_recording_is_read_then_it_has_the_rows_a_replica_writes_in_the_order_of_its_clock(
    tmp_path: Path,
) -> None:
    made = generate(tmp_path, ROWS, rows_per_file=500)
    events = read_recording(tmp_path)
    assert events.num_rows == made.events
    kinds = set(events["event"].to_pylist())
    assert kinds == {each.value for each in generator._KINDS}
    for replica in (1, 2, 3):
        paths = sorted(tmp_path.glob(f"replica-{replica}-*.parquet"))
        times = np.concatenate([pq.read_table(path)["mono_ns"].to_numpy() for path in paths])
        assert (np.diff(times) >= 0).all()
        assert len(paths) > 3
    boots = {(row["site"], row["boot"]) for row in events.select(["site", "boot"]).to_pylist()}
    assert len(boots) == 4
    operations = pq.read_table(tmp_path / "operations")
    assert operations.num_rows == made.operations
    assert set(operations["outcome"].to_pylist()) == {"ok", "rejected", "unknown"}


def test_when_a_recording_is_made_again_then_it_is_the_same_and_another_seed_is_not(tmp_path: Path) -> None:
    def rows(name: str, seed: int) -> object:
        generate(tmp_path / name, 2_000, seed=seed)
        return read_recording(tmp_path / name).to_pylist()

    assert rows("a", 1) == rows("b", 1)
    assert rows("c", 2) != rows("a", 1)


def test_when_there_are_too_few_rows_to_plant_then_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few"):
        generate(tmp_path, 100, planted=RULES)
