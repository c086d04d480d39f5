"""Whether every answer of a run was right.

Replicas of a service do not tell what they have executed, so there is a witness of another kind: the *audit*,
a watch of all keys of the run from before its first request to behind its last. It has every change in the
order of its revisions, and whose it was stands in what was written. With that the checks are those of
``bench.chaos.http.checks``: the order is replayed on one machine and must give every answer and every event
again; a search that believes no timestamps looks at samples.

Groups of keys do not affect each other. So records are dealt into parts by group, and judged part by part: a
long run needs no more memory than a short one. Only times and timestamps are looked at all together.
"""

import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from apps.kv.types import Event
from bench.chaos.books import Checked
from bench.chaos.checks import STATES_MAX, Order
from bench.chaos.history import Ended
from bench.chaos.http.cells import Cell, Cells
from bench.chaos.http.checks import Asked, as_cells, check_repeats, check_watch, counted, place, replayed
from bench.chaos.http.draws import Request
from bench.chaos.http.requests import TIMESTAMP, told
from bench.chaos.http.store import NOBODY, Name, Shown, added, group_of, marked, name_of
from bench.chaos.http.watching import EVENTS, Broke, Got, Line, Opened, read_watch
from loadtests.records import SUFFIX, Kind, Record, Writer, read_records
from rsm.linearizability import Judgement, Model, Operation, Outcome, black_box, witness

AUDIT: Final = "audit.jsonl"
END: Final = b"end"  # the group of the last key, which the audit waits for
PART_BYTES: Final = 1 << 20  # of records as they are on disk: some twenty thousand
PARTS_MAX: Final = 64
WINDOW: Final = 200  # operations in a sample
SEARCH_SECONDS: Final = 1.0  # for the samples of a part, and
SEARCH_SHARE: Final = 0.3  # of the time that the rest of it took
TOLD_MAX: Final = 5  # by one check of one part
KEPT_MAX: Final = 200
_MODEL: Final = Model(Shown)
_LINES: Final = msgspec.json.Decoder(Line)

Observer = Callable[[Record], None]
Step = Callable[[int, int], None]


class Verdict(msgspec.Struct, kw_only=True):
    """``wrong``: answers that no right store gives. ``unsure``: what could not be judged."""

    wrong: list[str] = []
    unsure: list[str] = []
    checked: Checked = msgspec.field(default_factory=Checked)


def judge(directory: Path, end_revision: int, observe: Observer, step: Step, seed: int = 0) -> Verdict:
    """``end_revision``: up to where the audit has seen everything; 0: it has not come to its end.
    ``observe`` is told each record, ``step`` how many parts are judged and how many there are."""
    verdict = Verdict()
    parts = Parts(directory, end_revision)
    clock = Clock()
    for record in parts.deal():
        clock.note(record)
        observe(record)
    verdict.unsure += parts.unsure
    verdict.wrong += clock.problems()
    for number in range(parts.count):
        step(number, parts.count)
        wrong, checked = judge_part(
            parts.records(number), parts.audit(number), parts.watches(number), f"{seed} {number}"
        )
        verdict.wrong += wrong
        verdict.checked.add(checked)
    step(parts.count, parts.count)
    verdict.wrong = verdict.wrong[:KEPT_MAX]
    return verdict


# -- parts ---------------------------------------------------------------------------------------


class Parts:
    """The records and the audit of a run, dealt by groups of keys into files beside them."""

    def __init__(self, directory: Path, end_revision: int) -> None:
        self._sources = sorted(directory.glob(f"*{SUFFIX}"))
        self._watches = sorted(directory.glob("watch-*.jsonl"))
        self._audit = directory / AUDIT
        self._end_revision = end_revision
        self._place = directory / "parts"
        size = sum(path.stat().st_size for path in self._sources)
        self.count = min(1 + size // PART_BYTES, PARTS_MAX)
        self.unsure: list[str] = []

    def _of(self, group: bytes) -> int:
        return crc32(group) % self.count

    def _file(self, number: int, suffix: str) -> Path:
        return self._place / f"{number}{suffix}"

    def deal(self) -> Iterator[Record]:
        """Each record once, as it goes to its part."""
        self._place.mkdir(exist_ok=True)
        for old in self._place.iterdir():
            old.unlink()
        writers = [Writer(self._file(number, SUFFIX)) for number in range(self.count)]
        for path in self._sources:
            for record in read_records(path):
                writers[self._of(record.group)].write(record)
                yield record
        for writer in writers:
            writer.close()
        self._deal_audit()

    def _deal_audit(self) -> None:
        """What is of no key goes to all. Before each stream stands how far the last one had come, for a part
        may not have had the last event; and at the end, that everything has come."""
        files = [self._file(number, ".jsonl").open("wb") for number in range(self.count)]
        reached = 0

        def to_all(line: Line) -> None:
            for file in files:
                file.write(msgspec.json.encode(line) + b"\n")

        with self._audit.open("rb") as source:
            for text in source:
                line = _LINES.decode(text)
                if isinstance(line, Got):
                    reached = max(reached, line.id)
                if isinstance(line, Got) and line.kind in EVENTS:
                    group = line.key.partition(b"/")[0]
                    if not group.endswith(b"." + END):
                        files[self._of(group)].write(text)
                    continue
                if isinstance(line, Opened) and reached:
                    to_all(Got("", reached))
                if isinstance(line, Broke) and "HTTP 410" in line.why:
                    self.unsure.append(f"the audit lost its place, history was forgotten: {line.why}")
                to_all(line)
        if self._end_revision:
            to_all(Got("", self._end_revision))
        else:
            self.unsure.append("the audit did not come to the end of the run: its last writes are not judged")
        for file in files:
            file.close()

    def records(self, number: int) -> Iterator[Record]:
        return read_records(self._file(number, SUFFIX))

    def audit(self, number: int) -> list[Line]:
        return read_watch(self._file(number, ".jsonl"))

    def watches(self, number: int) -> dict[str, tuple[bytes, list[Line]]]:
        """Of users that followed a group of this part, by name."""
        found = {}
        for path in self._watches:
            group = path.stem.removeprefix("watch-").rsplit("-", 3)[0].encode()
            if self._of(group) == number:
                found[path.stem] = (group, read_watch(path))
        return found


# -- all together --------------------------------------------------------------------------------


class Clock:
    """Who returned before another was called has the smaller timestamp, whatever their keys."""

    def __init__(self) -> None:
        self._rows = array("q")

    def note(self, record: Record) -> None:
        ts = record.headers.get(TIMESTAMP, "")
        if record.kind is Kind.ANSWERED and ts.isdigit():
            reads = record.method in {"get", "listing"}
            self._rows.extend(
                (record.call_ns, record.return_ns, int(ts), reads, record.client, record.request)
            )

    def problems(self) -> list[str]:
        if not self._rows:
            return []
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 6)
        calls, returns, stamps, reads = (rows[:, place] for place in range(4))
        by_return = np.argsort(returns, kind="stable")
        latest = np.maximum.accumulate(stamps[by_return])
        before = np.searchsorted(returns[by_return], calls, side="left")
        floor = np.where(before > 0, latest[np.maximum(before - 1, 0)], -1)
        # A read stands behind the slot whose state it has read.
        late = np.flatnonzero((stamps < floor) | ((stamps == floor) & (reads == 0)))
        return [
            f"request {rows[row, 5]} of client {rows[row, 4]} has timestamp {stamps[row]}; when it was"
            f" called, one with {floor[row]} had returned"
            for row in late[:TOLD_MAX].tolist()
        ]


# -- one part ------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """Everything that was asked for, and who was told that nothing had been done."""

    asked: dict[Name, Asked]
    refused: dict[Name, str]

    @property
    def meant(self) -> list[Asked]:
        return [each for name, each in self.asked.items() if name not in self.refused]


def judge_part(
    records: Iterable[Record],
    audit: Sequence[Line],
    watches: Mapping[str, tuple[bytes, Sequence[Line]]],
    seed: str,
) -> tuple[list[str], Checked]:
    began = time.monotonic()
    judged = read(records)
    order = order_of(judged, changes_of(audit))
    executed, misplaced = place(judged.asked, judged.refused, order)
    meant = judged.meant
    operations = [each.operation for each in meant]
    events, effects = replayed(executed)
    watched, missed = check_watch("the audit", audit, events)
    problems = [
        *misplaced[:TOLD_MAX],
        *missed[:TOLD_MAX],
        *witness(operations, Shown, executed=executed)[:TOLD_MAX],
        *check_repeats(meant)[:TOLD_MAX],
    ]
    for watcher, (group, lines) in watches.items():
        seen, missed = check_watch(watcher, lines, [e for e in events if e.key.startswith(group + b"/")])
        watched += seen
        problems += missed[:TOLD_MAX]
    seconds = SEARCH_SECONDS + SEARCH_SHARE * (time.monotonic() - began)
    searched, gave_up, found = search_samples(meant, effects, events, Random(seed), seconds)
    checked = counted(meant, len(judged.refused), len(order), watched)
    checked.searched, checked.gave_up = searched, gave_up
    return [*problems, *found], checked


def read(records: Iterable[Record]) -> Judged:
    judged = Judged({}, {})
    for record in records:
        name = (record.client, record.request)
        arguments = msgspec.structs.astuple(_MODEL.bind(record.method, record.arguments))
        request = Request(name_of(record.method, arguments), record.method, arguments)
        operation = Operation(
            client=record.client,
            request=record.request,
            method=record.method,
            arguments=record.arguments,
            call_ns=record.call_ns,
        )
        if record.kind not in {Kind.UNKNOWN, Kind.BROKEN_OFF}:
            said = told(request, record)
            if said.ended is Ended.REFUSED:
                judged.refused[name] = said.why
            else:
                operation = msgspec.structs.replace(
                    operation,
                    return_ns=record.return_ns,
                    outcome=Outcome(said.ended.value),
                    ts=said.ts,
                    reply=said.reply,
                )
        judged.asked[name] = Asked(operation, request.name, arguments)
    return judged


# -- what happened -------------------------------------------------------------------------------


class Change(NamedTuple):
    """All of one revision. ``name`` is nobody's if it only deleted."""

    revision: int
    name: Name
    keys: tuple[bytes, ...]


def changes_of(audit: Sequence[Line]) -> list[Change]:
    """Once each: a stream that goes on may begin with events that had come before."""
    revisions: dict[int, dict[bytes, Got]] = {}
    for line in audit:
        if isinstance(line, Got) and line.kind in EVENTS:
            revisions.setdefault(line.revision, {}).setdefault(line.key, line)
    sums: dict[bytes, int] = {}
    changes = []
    for revision, events in sorted(revisions.items()):
        name = NOBODY
        for got in events.values():
            found = _named(got, sums)
            if name == NOBODY:
                name = found
        changes.append(Change(revision, name, tuple(events)))
    return changes


def _named(got: Got, sums: dict[bytes, int]) -> Name:
    """By the mark in its value; a counter by what was added."""
    if got.value is None or not got.value.isdigit():
        sums.pop(got.key, None)
        return NOBODY if got.value is None else marked(got.value)
    total = int(got.value)
    delta = total - sums.get(got.key, 0)
    sums[got.key] = total
    return added(delta) if delta > 0 else NOBODY


def order_of(judged: Judged, changes: Sequence[Change]) -> Order:
    """Slot, client and request of all that was executed and told of, or changed anything. An answer says
    where it was; of the rest the audit says whose it was."""
    order: dict[int, Name] = {}
    for each in judged.meant:
        if each.name != NOBODY and each.operation.ts:
            order.setdefault(each.operation.ts, each.name)
    lost = _lost_deletes(judged)
    for change in changes:
        if change.revision not in order:
            order[change.revision] = change.name if change.name != NOBODY else _deleter(change, lost)
    return [(slot, *name) for slot, name in sorted(order.items())]


def _lost_deletes(judged: Judged) -> dict[bytes, list[Name]]:
    """Deletes of unknown outcome by key, as they were sent."""
    lost: dict[bytes, list[Name]] = {}
    for each in sorted(judged.meant, key=lambda each: each.operation.call_ns):
        if each.operation.method == "delete" and each.operation.outcome is Outcome.UNKNOWN:
            lost.setdefault(each.arguments[0], []).append(each.name)
    return lost


def _deleter(change: Change, lost: dict[bytes, list[Name]]) -> Name:
    waiting = lost.get(change.keys[0])
    return waiting.pop(0) if waiting else NOBODY


# -- samples -------------------------------------------------------------------------------------


def search_samples(
    asked: Sequence[Asked], effects: Mapping[Name, int], events: Sequence[Event], rng: Random, seconds: float
) -> tuple[int, int, list[str]]:
    """Samples searched, given up on, and what no order explains. A sample is what a group of keys was asked
    between two slots; it begins with the state that the keys had there."""
    groups: dict[bytes, list[Asked]] = {}
    for each in sorted(asked, key=lambda each: each.operation.ts):
        if each.operation.ts:
            groups.setdefault(_group(each), []).append(each)
    changed: dict[bytes, list[Event]] = {}
    for event in events:
        changed.setdefault(event.key.partition(b"/")[0], []).append(event)
    names = sorted(groups)
    rng.shuffle(names)
    searched = gave_up = 0
    problems: list[str] = []
    end = time.monotonic() + seconds
    lost = [each for each in asked if not each.operation.ts]
    while names and time.monotonic() < end and len(problems) < TOLD_MAX:
        group = names.pop(0)
        found = groups[group]
        first = rng.randrange(max(len(found) - WINDOW, 0) + 1)
        begin = found[first - 1].operation.ts if first else 0
        last = found[min(first + WINDOW, len(found)) - 1].operation.ts
        behind = bisect_right(found, last, lo=first, key=lambda each: each.operation.ts)
        sample = [each for each in found[first:behind] if _begins(each, effects, begin)]
        sample += [
            each for each in lost if _group(each) == group and begin < effects.get(each.name, -1) <= last
        ]
        machine = _beginning_with(_cells_at(changed.get(group, []), begin))
        verdict = black_box(as_cells(sample, effects), machine, states_max=STATES_MAX)
        searched += 1
        gave_up += verdict.judgement is Judgement.GAVE_UP
        if verdict.judgement is Judgement.VIOLATION:
            problems.append(f"keys {group.decode()}, slots {begin} to {last}: {verdict.explanation}")
        if len(found) > WINDOW:
            names.append(group)
    return searched, gave_up, problems


def _group(asked: Asked) -> bytes:
    return group_of(asked.operation.method, asked.arguments)


def _begins(asked: Asked, effects: Mapping[Name, int], begin: int) -> bool:
    """Whether it is behind the beginning, and so is all that its answer depends on: not if it repeats what
    was done before."""
    if asked.operation.ts <= begin:
        return False
    return asked.name == NOBODY or effects.get(asked.name, asked.operation.ts) > begin


def _cells_at(events: Sequence[Event], slot: int) -> dict[bytes, Cell]:
    cells: dict[bytes, Cell] = {}
    for event in events:
        if event.revision > slot:
            break
        if event.value is None:
            cells.pop(event.key, None)
        else:
            cells[event.key] = (event.value, event.revision, event.created, event.version)
    return cells


def _beginning_with(cells: Mapping[bytes, Cell]) -> type[Cells]:
    class Begun(Cells):
        def __init__(self) -> None:
            super().__init__()
            self.cells = dict(cells)

    return Begun


def end_key(run: str) -> bytes:
    return run.encode() + b"." + END + b"/z"
