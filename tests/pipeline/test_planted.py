"""The audit on generated recordings: every plant under its own rule, and nothing else."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.pipeline.generator import Plant, generate
from bench.pipeline.plants import RULES
from bench.pipeline.run import Violation, is_of
from pipeline.jobs import audit, ingest
from pipeline.runs import Run
from pipeline.tables import RULES as JUDGED
from pipeline.tables import VERDICTS, Tables

ROWS = 20_000


def audited(
    spark: SparkSession, folder: Path, planted: tuple[str, ...]
) -> tuple[list[Plant], list[Violation]]:
    made = generate(folder / "recording", ROWS, planted=planted)
    tables = Tables(spark, str(folder / "tables"))
    run = Run(input=(str(made.folder),), output=tables.root)
    ingest.run(spark, tables, run, lambda _: None)
    outcome = audit.run(spark, tables, run, lambda _: None)
    rows = tables.read(VERDICTS).collect()
    assert (outcome.violations > 0) == bool(rows) == bool(planted)
    wanted = {rule: "violated" if rule in planted else "held" for rule in RULES}
    assert {row.rule: row.verdict for row in tables.read(JUDGED).collect()} == wanted
    return made.plants, [Violation(row.rule, row.first_ts, row.last_ts, row.words) for row in rows]


@pytest.mark.parametrize("planted", [(), RULES], ids=["clean", "planted"])
def test_when_a_recording_is_audited_then_what_was_planted_is_found_and_nothing_else(
    spark: SparkSession, tmp_path: Path, planted: tuple[str, ...]
) -> None:
    plants, found = audited(spark, tmp_path, planted)
    for plant in plants:
        assert any(is_of(plant, each) for each in found), plant
    for each in found:
        assert any(is_of(plant, each) for plant in plants), each
