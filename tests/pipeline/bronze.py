"""Recordings as bronze tables, for tests of the jobs behind ``ingest``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ordering.recording import read_recording
from pipeline.schemas import EVENTS, FILES, OPERATIONS

Row = dict[str, Any]
_ARROW = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
BATCH = "tests"


def _schema(of: Any) -> pa.Schema:
    return pa.schema(
        [pa.field(each.name, _ARROW[each.dataType.simpleString()], each.nullable) for each in of]
    )


def write_bronze(
    root: Path, events: pa.Table, operations: Iterable[Row] = (), files: Iterable[Row] = ()
) -> None:
    for table, rows, schema in (
        ("events", events, EVENTS),
        ("operations", pa.Table.from_pylist(list(operations), _schema(OPERATIONS)), OPERATIONS),
        ("files", pa.Table.from_pylist(list(files), _schema(FILES)), FILES),
    ):
        folder = root / "bronze" / table / f"batch={BATCH}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.cast(_schema(schema)).drop_columns(["batch"]), folder / "part.parquet")


def from_rows(rows: Iterable[Row]) -> pa.Table:
    """Hand-made rows; columns that they do not name are null, places are as they come."""
    made = [
        {"recorder": "r", "file": "r-000001.parquet", "batch": BATCH, "position": n} | row
        for n, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, _schema(EVENTS))


def from_folder(folder: Path) -> pa.Table:
    """What replicas or the simulator recorded, as ``ingest`` has it."""
    told = read_recording(folder)
    columns: dict[str, Any] = {}
    count = told.num_rows
    for name in _schema(EVENTS).names:
        if name in ("chain", "site", "source"):
            columns[name] = _signed(told[name])
        elif name == "boot":
            raw = b"".join(boot[:8] for boot in told["boot"].to_pylist())
            columns[name] = pa.array(np.frombuffer(raw, dtype=">i8").astype(np.int64))
        elif name in told.column_names:
            columns[name] = told[name].cast(_ARROW["string"]) if name in ("event", "qos") else told[name]
    columns["recorder"] = pa.array([folder.name] * count)
    columns["position"] = pa.array(range(count), pa.int64())
    columns["file"] = pa.array([f"{folder.name}-000001.parquet"] * count)
    columns["batch"] = pa.array([BATCH] * count)
    return pa.table(columns).cast(_schema(EVENTS))


def _signed(column: pa.ChunkedArray) -> pa.Array:
    numbers = column.combine_chunks()
    filled = numbers.fill_null(0).to_numpy(zero_copy_only=False).view(np.int64)
    return pa.array(filled, pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))
