"""Changes of keys by hand, and the job ``history`` on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

from pipeline import history, schemas
from pipeline import tables as all_tables
from pipeline.jobs import history as job
from pipeline.runs import Outcome, Run
from pipeline.tables import Tables

Recorded = list[dict[str, Any]]
State = dict[bytes, tuple[bytes, int, int, int, int]]
_TABLES = {"changes": all_tables.CHANGES, "operations": all_tables.OPERATIONS}


def bronze(tables: Tables, table: str, rows: Sequence[dict[str, Any]]) -> None:
    described = _TABLES[table]
    values = [tuple(row[name] for name in described.schema.fieldNames()) for row in rows]
    tables.write(described, tables.spark.createDataFrame(values, described.schema).coalesce(1))


class Ran(NamedTuple):
    tables: Tables
    outcome: Outcome


def run_job(
    spark: SparkSession,
    output: Path,
    changes: Recorded,
    operations: Sequence[dict[str, Any]] = (),
    **options: str,
) -> Ran:
    tables = Tables(spark, str(output))
    bronze(tables, "changes", changes)
    bronze(tables, "operations", operations)
    outcome = job.run(spark, tables, Run(output=str(output), options=options), lambda _: None)
    return Ran(tables, outcome)


def state_in(rows: DataFrame) -> State:
    return {
        bytes(row.key): (bytes(row.value), row.revision, row.created, row.version, row.lease)
        for row in rows.collect()
    }


def as_of(tables: Tables, slot: int, chain: int | None = None) -> State:
    changes = tables.read(all_tables.KV_CHANGES)
    if chain is not None:
        changes = changes.where(fn.col("chain") == chain)
    slots = changes.select("chain").distinct().withColumn("as_of", fn.lit(slot).cast("long"))
    return state_in(history.state_as_of(changes, slots))


def problems(tables: Tables) -> list[Row]:
    found = tables.read(all_tables.QUALITY).where("job = 'history' AND severity != 'note'")
    return found.orderBy("check").collect()


def values_as_of(tables: Tables, chain: int, slot: int) -> dict[bytes, bytes]:
    return {key: state[0] for key, state in as_of(tables, slot, chain).items()}


def problems_of(ran: Ran, subject: str) -> list[Row]:
    return [each for each in problems(ran.tables) if each.subject == subject]


def change(
    kind: str, ts: int, key: bytes | None = None, value: bytes | None = None, **more: Any
) -> dict[str, Any]:
    row = dict.fromkeys(schemas.CHANGES.fieldNames())
    row |= {"chain": 1, "site": 1, "boot": 1, "kind": kind, "ts": ts, "key": key, "value": value}
    row |= {
        "wall_ns": ts * 10**9,
        "recorder": "r",
        "file": "f",
        "batch": "b",
        "revision": ts if key else None,
    }
    return {**row, **more}


def placed(*rows: dict[str, Any]) -> Recorded:
    return [{**row, "position": position} for position, row in enumerate(rows)]


def command(ts: int, **more: Any) -> dict[str, Any]:
    """An operation, as a caller saw it."""
    row = dict.fromkeys(schemas.OPERATIONS.fieldNames())
    row |= {"chain": 1, "client": 1, "request": ts, "kind": "command", "operation": "put", "ts": ts}
    row |= {"call_ns": ts, "return_ns": ts + 1, "wall_ns": ts * 10**9, "outcome": "ok", "position": ts}
    return {**row, "recorder": "caller", "file": "f", "batch": "b", **more}
