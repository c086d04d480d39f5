"""Which tables are of today? A job that came to its end leaves a mark: what was ingested then, and its
options."""

import json
from collections.abc import Iterable
from typing import Final

from pipeline import tables as all_tables
from pipeline.jobs import ingest
from pipeline.tables import Table, Tables

_IF_ASKED: Final = (all_tables.KV_TRAIL,)  # a run may well leave none


def tables_of(name: str) -> list[Table]:
    """What a run of this job always writes."""
    listed = [each for each in vars(all_tables).values() if isinstance(each, Table)]
    return [table for table in listed if table.made_by == name and table not in _IF_ASKED]


def remove(tables: Tables, name: str) -> None:
    tables.drop(all_tables.RUNS, name)


def leave(tables: Tables, name: str, options: dict[str, str]) -> None:
    mark = (name, f"{ingest.state_of(tables)} {_words(options)}")
    rows = tables.spark.createDataFrame([mark], all_tables.RUNS.schema)
    tables.write_partition(all_tables.RUNS, name, rows.coalesce(1))


def has(tables: Tables, name: str) -> bool:
    return name in _marks(tables) and all(tables.has(table) for table in tables_of(name))


def is_of_today(tables: Tables, name: str, options: dict[str, str] | None) -> bool:
    """Whether it was run on all that is ingested, with these options. None: with whatever options."""
    if not has(tables, name):
        return False
    state, _, told = _marks(tables)[name].partition(" ")
    return state == ingest.state_of(tables) and (options is None or told == _words(options))


def old(tables: Tables, names: Iterable[str]) -> list[str]:
    """Those of these jobs that have left tables, but not of all that is ingested, or not to their end."""
    if not tables.has(all_tables.FILES):
        return []
    left = [name for name in names if any(tables.has(table) for table in tables_of(name))]
    return [name for name in left if not is_of_today(tables, name, None)]


def _marks(tables: Tables) -> dict[str, str]:
    return {each.job: each.state for each in tables.read_or_empty(all_tables.RUNS).collect()}


def _words(options: dict[str, str]) -> str:
    return json.dumps(options, sort_keys=True)
