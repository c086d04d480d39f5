"""Recordings as tables have them, made without the jobs that make them."""

from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from ordering.recording import read_recording
from pipeline import schemas
from pipeline.files import ROW_BITS

Row = dict[str, Any]


def events_of(directory: Path) -> list[Row]:
    """As ``bronze/events``."""
    rows = []
    for position, row in enumerate(read_recording(directory).to_pylist()):
        del row["schema_version"]
        for name in ("chain", "site", "source"):
            row[name] = None if row[name] is None else schemas.signed(row[name])
        row["boot"] = int.from_bytes(row["boot"][:8], "big", signed=True)
        rows.append(
            row | {"recorder": "run", "position": position, "file": "run-000001.parquet", "batch": "b"}
        )
    return rows


def event(kind: str, at_ns: int, site: int = 1, **columns: Any) -> Row:
    """One by hand, whose clocks are the same."""
    none = dict.fromkeys(field.name for field in schemas.EVENTS.fields)
    place: Row = {"recorder": f"site-{site}", "file": f"site-{site}-000001.parquet", "batch": "b"}
    place |= {"position": next(_POSITIONS)}
    clocks = {"mono_ns": at_ns, "wall_ns": at_ns}
    return none | place | clocks | {"chain": 7, "site": site, "boot": 1, "event": kind} | columns


_POSITIONS = count()


def ranged(first_ts: int, messages: int, site: int = 1, **columns: Any) -> Row:
    """A row of ``silver/lifecycle`` by hand, whose clocks are the same."""
    none = dict.fromkeys(field.name for field in schemas.LIFECYCLE.fields)
    given = {
        "chain": 7,
        "first_ts": first_ts,
        "count": messages,
        "source": 1,
        "first_seq": first_ts,
        "site": site,
    }
    row = none | given | {"boot": 1} | columns
    return row | {"delivered_wall_ns": row["delivered_ns"]}


def in_files(rows: Iterable[Row], rows_per_file: int, *without: tuple[int, int]) -> list[Row]:
    """As if each site had a recorder of its own; ``without``: sites, and numbers of files that are lost."""
    counts: Counter[int] = Counter()
    found = []
    for row in sorted(rows, key=lambda each: (each["wall_ns"], each["position"])):
        site = row["site"]
        file, place = divmod(counts[site], rows_per_file)
        counts[site] += 1
        name = f"site-{site}"
        origin = {"recorder": name, "file": f"{name}-{file + 1:06}.parquet"}
        if (site, file + 1) not in without:
            found.append(row | origin | {"position": (file + 1 << ROW_BITS) + place})
    return found
