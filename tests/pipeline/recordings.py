"""Small recordings, written by the recorder itself, and ways to spoil them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ordering.recording import SCHEMA, EventKind, Recorder, Row
from pipeline.schemas import CHANGES, OPERATIONS, ORIGIN

SECOND = 1_000_000_000
CHAIN = (1 << 63) + 77  # beyond what a signed number holds
WALL = 1_790_000_000 * SECOND


def row(ts: int, *, site: int = 1, chain: int = CHAIN, wall_ns: int | None = None, **other: Any) -> Row:
    """A delivery, a millisecond after the one before."""
    boot = (site % 1000 << 64) + (1 << 127)
    mono_ns = ts * SECOND // 1000
    given: dict[str, Any] = {
        "event": EventKind.DELIVERED,
        "first_ts": ts,
        "count": 1,
        "source": site,
        "first_seq": ts,
        "detail": "majority",
        **other,
    }
    when = WALL + mono_ns if wall_ns is None else wall_ns
    return Row(chain=chain, site=site, boot=boot, mono_ns=mono_ns, wall_ns=when, **given)


def record(folder: Path, name: str, *files: list[Row], tail: list[Row] | None = None) -> None:
    """Closed files, and an open tail that its writer left."""
    recording(folder, name, *files, tail=tail).abandon()


def recording(folder: Path, name: str, *files: list[Row], tail: list[Row] | None = None) -> Recorder:
    """The same of one that lives: close or abandon it."""
    recorder = Recorder(folder, name, rows_per_flush=10)
    for rows in files:
        for each in rows:
            recorder.add(each)
        recorder.rotate()
    for each in tail or []:
        recorder.add(each)
    recorder.flush()
    return recorder


def rows(first: int, end: int, **other: Any) -> list[Row]:
    return [row(ts, **other) for ts in range(first, end)]


def table(count: int = 3) -> pa.Table:
    """As a recorder would write it, to be spoiled."""
    arrays = []
    values: list[Any]
    for field in SCHEMA:
        if field.name == "schema_version":
            values = [1] * count
        elif pa.types.is_dictionary(field.type) or pa.types.is_string(field.type):
            values = ["delivered"] * count
        elif pa.types.is_binary(field.type) or pa.types.is_fixed_size_binary(field.type):
            values = [bytes(16)] * count
        else:
            values = list(range(count))
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def changed(told: pa.Table, name: str, values: Any, kind: pa.DataType) -> pa.Table:
    at = told.column_names.index(name)
    return told.set_column(at, name, pa.array(values, kind))


def recorded_schema(of: str) -> pa.Schema:
    """Of operations and changes: the columns of bronze, as their writers have them."""
    table = {"operations": OPERATIONS, "changes": CHANGES}[of]
    kinds = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    special = {"chain": pa.uint64(), "site": pa.uint64(), "boot": pa.binary(16)}
    fields = [pa.field("schema_version", pa.uint16(), nullable=False)]
    for each in table.fields[: -len(ORIGIN)]:
        kind = special.get(each.name, kinds[each.dataType.simpleString()])
        fields.append(pa.field(each.name, kind, each.nullable))
    return pa.schema(fields)


def write_rows(path: Path, schema: pa.Schema, told: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = [{"schema_version": 1, **each} for each in told]
    pq.write_table(pa.Table.from_pylist(whole, schema), path)


def operation(request: int) -> dict[str, Any]:
    return {
        "chain": CHAIN,
        "client": 5,
        "request": request,
        "kind": "command",
        "operation": "add",
        "call_ns": request,
        "wall_ns": WALL,
        "outcome": "ok",
        "ts": request,
    }


def change(ts: int) -> dict[str, Any]:
    boot = np.int64(9).tobytes()[::-1] + bytes(8)
    return {
        "chain": CHAIN,
        "site": 1,
        "boot": boot,
        "kind": "put",
        "ts": ts,
        "key": b"k",
        "value": b"v",
        "wall_ns": WALL,
    }
