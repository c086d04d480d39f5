"""One violation of every rule, and more of some, at places that are known.

All but one are in the last view: nobody goes on from it to another, so what is missing there breaks agreement
and not virtual synchrony. The exception is that of virtual synchrony, at the end of the view before.
"""

from collections.abc import Callable, Collection
from typing import Final

import numpy as np

from bench.pipeline.generator import (
    APPLIED,
    COMMAND,
    DELIVERED,
    MS,
    NONE,
    OK,
    SESSIONS,
    SUBMITTED,
    US,
    VIEW,
    Chunk,
    Column,
    Edits,
    Plant,
    Rows,
    joined,
    single,
)

RULES: Final = (
    "total-order",
    "agreement",
    "integrity",
    "source-order",
    "virtual-synchrony",
    "single-primary",
    "exactly-once",
    "one-reply",
    "equal-digests",
    "real-time",
)
_NEAR_NS: Final = 300 * US
# As many places, one behind the other, as there are plants in the last chunk.
_PLACES: Final = 12

EventEdit = Callable[[int, Rows], Rows]
OperationEdit = Callable[[Rows], Rows]


class Planting:
    """Decides, chunk by chunk, what is broken there."""

    def __init__(self, rules: Collection[str]) -> None:
        self._rules = rules
        self.plants: list[Plant] = []
        self._events: list[EventEdit] = []
        self._operations: list[OperationEdit] = []
        self._free = 0  # no plant is in this block, nor behind it

    def edits(self, chunk: Chunk) -> Edits:
        self._events, self._operations = [], []
        if chunk.epoch == 2 and chunk.closes:
            self._virtual_synchrony(chunk)
        if chunk.epoch == 3 and chunk.is_new:
            self._other_list(chunk)
        if chunk.is_last:
            self._in_the_last(chunk)
        return Edits(self._edit_events, self._edit_operations)

    def _edit_events(self, chunk: Chunk, replica: int, rows: Rows) -> Rows:
        for edit in self._events:
            rows = edit(replica, rows)
        return rows

    def _edit_operations(self, chunk: Chunk, rows: Rows) -> Rows:
        for edit in self._operations:
            rows = edit(rows)
        return rows

    def _plant(
        self,
        rule: str,
        how: str,
        chunk: Chunk,
        *blocks: int,
        events: EventEdit | None = None,
        operations: OperationEdit | None = None,
    ) -> None:
        self._free = max(blocks) + 1
        first = int(min(chunk.first_ts[block] for block in blocks))
        plant = Plant(rule, how, first, int(max(chunk.last_ts[block] for block in blocks)))
        self._keep(plant, events=events, operations=operations)

    def _keep(
        self, plant: Plant, events: EventEdit | None = None, operations: OperationEdit | None = None
    ) -> None:
        if plant.rule not in self._rules:
            return
        self.plants.append(plant)
        if events is not None:
            self._events.append(events)
        if operations is not None:
            self._operations.append(operations)

    # -- in the order -----------------------------------------------------------------------------

    def _virtual_synchrony(self, chunk: Chunk) -> None:
        block = len(chunk.count) - 1

        def edit(replica: int, rows: Rows) -> Rows:
            if replica == 1:
                rows["epoch"][_at(rows, DELIVERED, block)] = chunk.epoch + 1
            return rows

        self._plant(
            "virtual-synchrony", "replica 2 delivers a range one view later", chunk, block, events=edit
        )

    def _other_list(self, chunk: Chunk) -> None:
        def edit(replica: int, rows: Rows) -> Rows:
            if replica == 1:
                rows["detail"][rows["kind"] == VIEW] = len(chunk.ring) - 1
            return rows

        ts = chunk.view_ts
        self._keep(
            Plant("single-primary", "replica 2 has another list of the last view", ts, ts), events=edit
        )

    def _in_the_last(self, chunk: Chunk) -> None:
        """Each at a place of its own, far from the others and from the ends."""
        self._free = 1
        wanted = np.linspace(0, len(chunk.count), _PLACES + 2).astype(int)[1:-1].tolist()
        places = (max(place, self._free) for place in wanted)
        self._total_order(chunk, next(places))
        self._agreement(chunk, next(places))
        self._delivered_twice(chunk, next(places))
        self._never_submitted(chunk, next(places))
        self._source_order(chunk, next(places))
        self._digest(chunk, next(places))
        self._two_slots(chunk, next(places))
        self._one_slot_for_two(chunk, next(places))
        self._two_replies(chunk, next(places))
        self._real_time(chunk, next(places))
        self._small_ring(chunk)

    def _total_order(self, chunk: Chunk, place: int) -> None:
        follows = (chunk.source[:-1] != chunk.source[1:]) & (chunk.count[:-1] == chunk.count[1:])
        block = _next(follows & (chunk.first_ts[1:] == chunk.last_ts[:-1] + 1), place)

        def edit(replica: int, rows: Rows) -> Rows:
            if replica == 1:
                one, other = _at(rows, DELIVERED, block), _at(rows, DELIVERED, block + 1)
                for name in ("source", "first_seq"):
                    rows[name][one], rows[name][other] = rows[name][other], rows[name][one]
            return rows

        self._plant(
            "total-order",
            "replica 2 has two ranges the other way round",
            chunk,
            block,
            block + 1,
            events=edit,
        )

    def _agreement(self, chunk: Chunk, place: int) -> None:
        def edit(replica: int, rows: Rows) -> Rows:
            return _without(rows, _at(rows, DELIVERED, place)) if replica == 1 else rows

        self._plant("agreement", "replica 2 lacks a range", chunk, place, events=edit)

    def _delivered_twice(self, chunk: Chunk, place: int) -> None:
        def edit(replica: int, rows: Rows) -> Rows:
            if replica != 0:
                return rows
            again = {name: column[[_at(rows, DELIVERED, place)]] for name, column in rows.items()}
            again["time"] = again["time"] + MS
            return joined([rows, again])

        self._plant("integrity", "replica 1 delivers a range twice", chunk, place, events=edit)

    def _never_submitted(self, chunk: Chunk, place: int) -> None:
        def edit(replica: int, rows: Rows) -> Rows:
            return _without(rows, _at(rows, SUBMITTED, place)) if replica == chunk.source[place] else rows

        self._plant(
            "integrity", "a range is delivered that its source did not submit", chunk, place, events=edit
        )

    def _source_order(self, chunk: Chunk, place: int) -> None:
        """Two ranges of one source, of the same length and next to each other in its numbers: at all replicas
        the later numbers come first."""
        own = np.flatnonzero(chunk.source == chunk.source[place])
        same = chunk.count[own[:-1]] == chunk.count[own[1:]]
        at = _next(same & (own[:-1] >= place), 0)
        one, other = int(own[at]), int(own[at + 1])

        def edit(_: int, rows: Rows) -> Rows:
            first, second = _at(rows, DELIVERED, one), _at(rows, DELIVERED, other)
            numbers = rows["first_seq"]
            numbers[first], numbers[second] = numbers[second], numbers[first]
            return rows

        self._plant(
            "source-order",
            "later numbers of a source stand before earlier ones",
            chunk,
            one,
            other,
            events=edit,
        )

    def _digest(self, chunk: Chunk, place: int) -> None:
        block = _next(chunk.reached, place)
        self._free = block + 1

        def edit(replica: int, rows: Rows) -> Rows:
            if replica == 1:
                rows["digest"][_at(rows, APPLIED, block)] ^= np.uint64(1)
            return rows

        last = int(chunk.last_ts[block])
        self._keep(Plant("equal-digests", "replica 2 has another state", last, last), events=edit)

    def _small_ring(self, chunk: Chunk) -> None:
        """Behind everything, so that it disturbs nothing."""
        ts = int(chunk.last_ts[-1]) + 2
        lasts_ns = int(chunk.time[-1]) - chunk.begins_ns

        def edit(replica: int, rows: Rows) -> Rows:
            if replica != 0:
                return rows
            view = single(chunk, VIEW, lasts_ns + 10 * MS, first_ts=ts, detail=1, epoch=chunk.epoch + 1)
            return joined([rows, view])

        self._keep(Plant("single-primary", "replica 1 makes a ring of itself alone", ts, ts), events=edit)

    # -- in what callers saw ----------------------------------------------------------------------

    def _two_slots(self, chunk: Chunk, place: int) -> None:
        """The other slot is of a session that nobody records, and ordered while the call was under way."""
        recorded = chunk.session % SESSIONS == 0
        near = chunk.time[1:] - chunk.time[:-1] < _NEAR_NS
        block = _next(recorded[:-1] & ~recorded[1:] & near, place)
        ts = int(chunk.first_ts[block + 1])

        def edit(rows: Rows) -> Rows:
            again = _first_of(rows, block)
            again["ts"][:] = ts
            return joined([rows, again])

        self._plant("exactly-once", "a request has two slots", chunk, block, block + 1, operations=edit)

    def _one_slot_for_two(self, chunk: Chunk, place: int) -> None:
        block = _next(chunk.session % SESSIONS == 0, place)

        def edit(rows: Rows) -> Rows:
            other = _first_of(rows, block)
            other["request"] += 1 << 40
            return joined([rows, other])

        self._plant("exactly-once", "two requests have one slot", chunk, block, operations=edit)

    def _two_replies(self, chunk: Chunk, place: int) -> None:
        block = _next(chunk.session % SESSIONS == 0, place)

        def edit(rows: Rows) -> Rows:
            again = _first_of(rows, block)
            again["reply"] = again["reply"] ^ np.uint64(1)
            return joined([rows, again])

        self._plant("one-reply", "a request was answered in two ways", chunk, block, operations=edit)

    def _real_time(self, chunk: Chunk, place: int) -> None:
        """Called when others behind it had returned."""
        block = _next(chunk.session % SESSIONS == 0, place)

        def edit(rows: Rows) -> Rows:
            at = _commands(rows, block)[0]
            same = (rows["client"] == rows["client"][at]) & (rows["request"] == rows["request"][at])
            for name in ("call_ns", "return_ns"):
                rows[name][same] += 20 * MS
            return rows

        self._plant(
            "real-time", "a command was called when later ones had returned", chunk, block, operations=edit
        )


def _next(which: Column, place: int) -> int:
    """The first such block from a place on."""
    found = np.flatnonzero(which[place:])
    if not len(found):
        raise ValueError(f"rows: too few to plant everything; there is no fit place behind block {place}")
    return place + int(found[0])


def _at(rows: Rows, kind: int, block: int) -> int:
    return int(np.flatnonzero((rows["kind"] == kind) & (rows["block"] == block))[0])


def _without(rows: Rows, at: int) -> Rows:
    return {name: np.delete(column, at) for name, column in rows.items()}


def _commands(rows: Rows, block: int) -> Column:
    """Of a block, those whose answer came at once."""
    known = (rows["kind"] == COMMAND) & (rows["outcome"] == OK) & (rows["ts"] != NONE)
    return np.flatnonzero(known & (rows["block"] == block))


def _first_of(rows: Rows, block: int) -> Rows:
    at = _commands(rows, block)[:1]
    return {name: column[at].copy() for name, column in rows.items()}
