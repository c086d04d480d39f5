"""The audit finds what is broken under its own rule and nothing else, and says the same as DuckDB."""

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from ordering.simulator.plan import Plan
from ordering.simulator.recorder import RunRecorder
from ordering.simulator.run import simulate
from pipeline import tables as at
from pipeline.audit import verdicts
from pipeline.errors import BadSetting
from pipeline.jobs import audit
from pipeline.runs import Outcome, Run
from pipeline.tables import Tables
from rsm.replica import Replica
from tests.pipeline.audit_cases import BROKEN, SOUND, WIDTH, Made, corrupted
from tests.pipeline.bronze import Row, from_folder, from_rows, write_bronze
from tests.pipeline.duck_audit import violated
from tests.rsm.machines import Counter
from tests.rsm.test_replica import config, crash, founded, play

SEEDS = (13, 69)  # with crashes, states taken over, a chain that forks
CORRUPTED_SEED = 104
COPIES = 24
FIRST_CHAIN = 1_000
_DRIVER = ("collect", "toPandas", "toLocalIterator", "take", "head", "first", "count", "tail", "foreach")


def simulated(seed: int, folder: Path) -> pa.Table:
    report = simulate(Plan(seed=seed), (RunRecorder(folder / f"seed-{seed}"),))
    assert not report.violations
    return from_folder(folder / f"seed-{seed}")


async def real_cluster(folder: Path) -> None:
    """Three replicas; one crashes under load, and another takes its place."""
    async with founded([Replica(Counter, config(recording=folder)) for _ in range(3)]) as replicas:
        for replica in replicas:
            await asyncio.gather(*(replica.proxy.add(1) for _ in range(60)))
        lost = replicas.pop()
        await crash(lost)
        await asyncio.gather(*(replicas[0].proxy.add(1) for _ in range(60)))
        late: Replica[Counter] = Replica(Counter, config(recording=folder))
        await late.open()
        replicas.append(late)
        late.join((), (replicas[0].address,))
        await late.ready()
        await asyncio.gather(*(replica.proxy.add(1) for replica in replicas for _ in range(60)))
        last = max(replica.executor.applied for replica in replicas)
        await asyncio.gather(*(replica.when_applied(last) for replica in replicas))


class Judged(NamedTuple):
    root: Path
    tables: Tables
    outcome: Outcome
    chains: dict[str, str]  # of each case, as verdicts name them
    clean: set[str]  # chains of real and simulated clusters
    found: dict[str, list[Any]]  # by chain
    on_driver: list[list[str]]  # what was brought to the driver: the files it was read from


def hexadecimal(chain: int) -> str:
    return f"{chain & (1 << 64) - 1:x}"


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """All recordings in one run: a chain for each case."""
    folder, root = tmp_path_factory.mktemp("recorded"), tmp_path_factory.mktemp("out")
    play(real_cluster(folder / "real"))
    sound = [from_folder(folder / "real"), *(simulated(seed, folder) for seed in SEEDS)]
    base: list[Row] = simulated(CORRUPTED_SEED, folder).to_pylist()
    copies = [from_rows(_renumbered(corrupted(base, mark, Random(mark)))) for mark in range(1, COPIES + 1)]
    cases = [*SOUND.items(), *((name, case[0]) for name, case in BROKEN.items())]
    made = {name: Made(FIRST_CHAIN + number) for number, (name, _) in enumerate(cases)}
    for name, strike in cases:
        strike(made[name])
    hand_made = [from_rows(each.events) for each in made.values()]
    operations = [row for each in made.values() for row in each.operations]
    files = [row for each in made.values() for row in each.files]
    write_bronze(root, pa.concat_tables([*sound, *copies, *hand_made]), operations, files)
    tables = Tables(spark, str(root))
    spark.conf.set("spark.sql.codegen.wholeStage", "false")  # so little data is not worth a compiler
    with pytest.MonkeyPatch.context() as patch:
        on_driver = _watched(patch, spark)
        outcome = audit.run(
            spark, tables, Run(output=str(root), options={"part_slots": str(WIDTH)}), lambda _: None
        )
    spark.conf.unset("spark.sql.codegen.wholeStage")
    found: dict[str, list[Any]] = defaultdict(list)
    for row in tables.read(at.VERDICTS).collect():
        found[row.chain].append(row)
    chains = {name: hexadecimal(each.chain) for name, each in made.items()}
    clean = {hexadecimal(chain) for table in sound for chain in table["chain"].unique().to_pylist()} - {"0"}
    return Judged(root, tables, outcome, chains, clean, found, on_driver)


def _renumbered(rows: list[Row]) -> list[Row]:
    return [row | {"position": place} for place, row in enumerate(rows)]


def _watched(patch: pytest.MonkeyPatch, spark: SparkSession) -> list[list[str]]:
    """Whatever brings rows to the driver tells what it reads."""
    seen: list[list[str]] = []
    kind = type(spark.range(1))
    for name in _DRIVER:
        original = getattr(kind, name)

        def watched(self: DataFrame, *arguments: Any, _original: Any = original, **named: Any) -> Any:
            seen.append(self.inputFiles())
            return _original(self, *arguments, **named)

        patch.setattr(kind, name, watched)
    return seen


@pytest.mark.parametrize("name", BROKEN)
def test_when_a_rule_is_broken_then_it_is_found_under_this_rule_alone_with_who_and_where(
    judged: Judged, name: str
) -> None:
    _, rule, sites, (first, last) = BROKEN[name]
    rows = judged.found[judged.chains[name]]
    assert {row.rule for row in rows} == {rule}, [row.words for row in rows]
    for row in rows:
        assert sites <= set(row.sites), row
        assert first <= row.first_ts <= row.last_ts <= last, row
        assert row.files
        assert all(file.endswith("-000001.parquet") for file in row.files)
        assert "?" not in row.words


@pytest.mark.parametrize("name", SOUND)
def test_when_it_only_looks_broken_then_nobody_is_accused(judged: Judged, name: str) -> None:
    assert [row.words for row in judged.found[judged.chains[name]]] == []


def test_when_clusters_had_crashes_and_forks_then_nobody_is_accused(judged: Judged) -> None:
    assert len(judged.clean) >= 4
    for chain in judged.clean:
        assert [row.words for row in judged.found[chain]] == []


def test_when_duckdb_is_asked_then_it_says_the_same_of_every_rule_and_chain(judged: Judged) -> None:
    mine = {(row.rule, chain) for chain, rows in judged.found.items() for row in rows}
    assert mine == violated(judged.root)
    assert len({chain for _, chain in mine}) >= len(BROKEN) + COPIES // 2, "most corruptions show"


def test_when_rules_are_broken_then_the_outcome_counts_all_of_it(judged: Judged) -> None:
    rules = {row.rule: row for row in judged.tables.read(at.RULES).collect()}
    assert set(rules) == set(verdicts.RULES)
    counted: dict[str, int] = defaultdict(int)
    for rows in judged.found.values():
        for row in rows:
            counted[row.rule] += 1
    for rule, row in rules.items():
        assert row.verdict == "violated"
        assert row.violations == counted[rule] > 0
        assert row.rows > 0
    assert judged.outcome.violations == sum(counted.values())


def test_when_the_audit_runs_then_only_its_small_results_come_to_the_driver(judged: Judged) -> None:
    assert judged.on_driver, "nothing was watched"
    for files in judged.on_driver:
        assert all("/gold/" in file for file in files), files


def test_when_one_part_has_too_many_violations_then_the_first_are_told_and_all_are_counted(
    spark: SparkSession,
) -> None:
    rows = [("agreement", 1, part, [1], ts, ts, None, None, "w", [1]) for part in (0, 1) for ts in range(5)]
    found = spark.createDataFrame(rows, verdicts.FOUND)
    kept = verdicts.told([found], most=3)
    assert [(row.part, row.first_ts, row.of) for row in kept.orderBy("part", "first_ts").collect()] == [
        (part, ts, 5) for part in (0, 1) for ts in range(3)
    ]
    checked = spark.createDataFrame(
        [("agreement", 7), ("real-time", 0), ("one-reply", 3)], "rule string, rows long"
    )
    rules = {
        row.rule: (row.verdict, row.rows, row.violations) for row in verdicts.rules(kept, checked).collect()
    }
    assert rules == {
        "agreement": ("violated", 7, 10),
        "real-time": ("unchecked", 0, 0),
        "one-reply": ("held", 3, 0),
    }


@pytest.mark.parametrize("option", [{"part_slots": "0"}, {"part_slots": "x"}, {"clock_error_ms": "-1"}])
def test_when_an_option_makes_no_sense_then_it_is_named(
    spark: SparkSession, tmp_path: Path, option: dict[str, str]
) -> None:
    with pytest.raises(BadSetting, match=next(iter(option))):
        audit.run(
            spark, Tables(spark, str(tmp_path)), Run(output=str(tmp_path), options=option), lambda _: None
        )
