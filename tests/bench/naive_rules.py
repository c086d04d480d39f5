"""The audit's rules, message by message, from their text in ``docs/pipeline.md``: slow, easy to believe."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ordering.recording import read_recording

Row = dict[str, Any]
Found = tuple[str, int]  # the rule, and the slot where it is broken


def broken(folder: Path) -> set[Found]:
    events = read_recording(folder).to_pylist()
    paths = sorted((folder / "operations").glob("*.parquet"))
    operations = [row for path in paths for row in pq.read_table(path).to_pylist()]
    ordered = _Ordered(events)
    return {
        *ordered.total_order(),
        *ordered.agreement(),
        *ordered.integrity(),
        *ordered.source_order(),
        *ordered.virtual_synchrony(),
        *_single_primary(events),
        *_equal_digests(events),
        *_callers(operations),
        *_real_time(operations),
    }


class _Ordered:
    """By process (site and boot): slot, source, number and epoch of all that it delivered."""

    def __init__(self, events: list[Row]) -> None:
        self.submitted: set[tuple[int, int]] = set()
        self.views: dict[Any, list[int]] = defaultdict(list)
        self.delivered: dict[Any, list[tuple[int, int, int, int]]] = defaultdict(list)
        for row in events:
            process = (row["site"], row["boot"])
            match row["event"]:
                case "submitted":
                    numbers = range(row["first_seq"], row["first_seq"] + row["count"])
                    self.submitted |= {(row["source"], number) for number in numbers}
                case "delivered":
                    self.delivered[process] += [
                        (row["first_ts"] + each, row["source"], row["first_seq"] + each, row["epoch"])
                        for each in range(row["count"])
                    ]
                case "view":
                    self.views[process].append(row["epoch"])

    def _all(self) -> Iterator[tuple[int, int, int, int]]:
        for messages in self.delivered.values():
            yield from messages

    def total_order(self) -> Iterator[Found]:
        known: dict[int, tuple[int, int]] = {}
        for slot, source, number, _ in self._all():
            if known.setdefault(slot, (source, number)) != (source, number):
                yield "total-order", slot

    def agreement(self) -> Iterator[Found]:
        everything = {slot for slot, *_ in self._all()}
        for messages in self.delivered.values():
            own = {slot for slot, *_ in messages}
            for slot in everything - own:
                if min(own) < slot < max(own):
                    yield "agreement", slot

    def integrity(self) -> Iterator[Found]:
        for messages in self.delivered.values():
            seen: set[int] = set()
            for slot, source, number, _ in messages:
                if slot in seen or (source, number) not in self.submitted:
                    yield "integrity", slot
                seen.add(slot)

    def source_order(self) -> Iterator[Found]:
        for messages in self.delivered.values():
            last: dict[int, tuple[int, int]] = {}
            for slot, source, number, _ in sorted(set(messages)):
                before = last.get(source)
                if before is not None and number <= before[1]:
                    yield "source-order", slot
                last[source] = (slot, number)

    def virtual_synchrony(self) -> Iterator[Found]:
        epochs: dict[int, int] = {}
        for slot, _, _, epoch in self._all():
            if epochs.setdefault(slot, epoch) != epoch:
                yield "virtual-synchrony", slot
        together: dict[tuple[int, int], list[set[int]]] = defaultdict(list)
        for process, views in self.views.items():
            for old, new in pairwise(sorted(views)):
                mine = {slot for slot, _, _, epoch in self.delivered[process] if epoch == old}
                together[old, new].append(mine)
        for sets in together.values():
            for slot in set[int]().union(*sets):
                if not all(slot in each for each in sets):
                    yield "virtual-synchrony", slot


def _single_primary(events: list[Row]) -> Iterator[Found]:
    views = [row for row in events if row["event"] == "view"]
    known: dict[tuple[int, int], tuple[int, str]] = {}
    for row in sorted(views, key=lambda row: row["first_ts"]):
        said = (row["first_ts"], row["detail"])
        if known.setdefault((row["epoch"], row["revision"]), said) != said:
            yield "single-primary", row["first_ts"]
        _, voters, ring = (part.split()[1:] for part in row["detail"].split(";"))
        if 2 * len(set(ring) & set(voters)) <= len(voters):
            yield "single-primary", row["first_ts"]
    ordered = sorted({(row["first_ts"], row["epoch"]) for row in views})
    for (_, before), (slot, epoch) in pairwise(ordered):
        if epoch < before:
            yield "single-primary", slot


def _equal_digests(events: list[Row]) -> Iterator[Found]:
    known: dict[int, bytes] = {}
    for row in events:
        if row["digest"] is not None and known.setdefault(row["first_ts"], row["digest"]) != row["digest"]:
            yield "equal-digests", row["first_ts"]


def _callers(operations: list[Row]) -> Iterator[Found]:
    slots: dict[tuple[int, int], int] = {}
    owners: dict[int, tuple[int, int]] = {}
    replies: dict[tuple[int, int], bytes] = {}
    for row in operations:
        if row["ts"] is None or row["kind"] != "command":
            continue
        request = (row["client"], row["request"])
        if slots.setdefault(request, row["ts"]) != row["ts"]:
            yield "exactly-once", row["ts"]
        if owners.setdefault(row["ts"], request) != request:
            yield "exactly-once", row["ts"]
        if replies.setdefault(request, row["reply"]) != row["reply"]:
            yield "one-reply", row["ts"]


def _real_time(operations: list[Row]) -> Iterator[Found]:
    """A request that was tried again began with its first call, and was over with its first answer."""
    tries: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in operations:
        tries[row["client"], row["request"]].append(row)
    spans = [
        (min(row["call_ns"] for row in rows), min(row["return_ns"] for row in answered), answered[0]["ts"])
        for rows in tries.values()
        if (answered := [row for row in rows if row["ts"] is not None])
    ]
    for called, _, slot in spans:
        if any(returned < called and other > slot for _, returned, other in spans):
            yield "real-time", slot
