"""Recordings as tables have them, made without the jobs that make them."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from ordering.recording import read_recording
from pipeline import schemas

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


def lifecycle_of(events: Iterable[Row]) -> list[Row]:
    """As ``silver/lifecycle``: message by message, and then messages that have everything in common put
    together."""
    found: list[Row] = []
    submitted: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    levels: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    events = list(events)
    for row in events:
        match row["event"]:
            case "submitted":
                for offset in range(row["count"]):
                    submitted[row["site"], row["first_seq"] + offset, row["qos"]].append(row["mono_ns"])
            case "level":
                levels["majority", row["site"], row["boot"]].append((row["first_ts"], row["mono_ns"]))
                stable = int(row["detail"].removeprefix("stable "))
                levels["stable", row["site"], row["boot"]].append((stable, row["mono_ns"]))
            case "applied":
                levels["applied", row["site"], row["boot"]].append((row["first_ts"], row["mono_ns"]))
    for row in events:
        if row["event"] == "delivered" and row["first_ts"] is not None:
            for offset in range(row["count"]):
                _add(found, _message(row, offset, submitted, levels))
    return found


def _message(row: Row, offset: int, submitted: Any, levels: Any) -> Row:
    ts, seq = row["first_ts"] + offset, row["first_seq"] + offset
    sent = [at for at in submitted[row["source"], seq, row["qos"]] if at <= row["mono_ns"]]
    times = {}
    for name in ("majority", "stable", "applied"):
        told = levels[name, row["site"], row["boot"]]
        place = bisect_left(told, (ts, 0))
        times[f"{name}_ns"] = told[place][1] if place < len(told) else None
    kept = ("chain", "source", "qos", "epoch", "revision", "site", "boot")
    return (
        dict.fromkeys(field.name for field in schemas.LIFECYCLE.fields)
        | {name: row[name] for name in kept}
        | {"first_ts": ts, "first_seq": seq, "count": 1, "level": row["detail"]}
        | {"delivered_ns": row["mono_ns"], "delivered_wall_ns": row["wall_ns"]}
        | {"submitted_ns": max(sent) if sent else None}
        | times
    )


def _add(found: list[Row], message: Row) -> None:
    if found:
        last = found[-1]
        moving = {"first_ts", "first_seq", "count"}
        same = all(last[name] == message[name] for name in message if name not in moving)
        follows = all(last[name] + last["count"] == message[name] for name in ("first_ts", "first_seq"))
        if same and follows:
            last["count"] += 1
            return
    found.append(message)
