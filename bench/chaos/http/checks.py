"""Whether a round over HTTP was good.

First everything that was executed gets its request: by the slot that an answer tells, else by its name. Then
the order is replayed and compared with all answers (witness), requests that were sent twice are compared with
each other, the events of watchers with those that the replay gives, and a search that believes no timestamp
looks at the groups of keys one by one.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from apps.kv.types import Event
from bench.chaos.books import Checked
from bench.chaos.checks import SEARCH_SECONDS, STATES_MAX, Order, compare_replicas
from bench.chaos.history import History
from bench.chaos.http.cells import Cells
from bench.chaos.http.store import NOBODY, Name, Shown, group_of, name_of
from bench.chaos.http.watching import EVENTS, Got, Line, Opened, streams
from bench.chaos.site import Standing
from rsm.linearizability import (
    Executed,
    Judgement,
    Model,
    Operation,
    Outcome,
    black_box,
    describe,
    describe_call,
    outcome_of,
    witness,
)
from rsm.state_machine import Context

_TOLD_MAX: Final = 20
_MODEL: Final = Model(Shown)
_CELLS: Final = Model(Cells)


class Asked(NamedTuple):
    """An operation, and what it asks for."""

    operation: Operation
    name: Name
    arguments: tuple[Any, ...]

    @property
    def once(self) -> bytes | None:
        return None if self.name == NOBODY else self.arguments[-1]

    @property
    def slot(self) -> tuple[int, int]:
        return self.operation.client, self.operation.request


def judge_http(
    history: History,
    order: Order,
    standings: Sequence[Standing],
    watches: Mapping[str, Sequence[Line]],
    seed: int,
) -> tuple[list[str], Checked]:
    """Everything that is wrong, and how much was looked at."""
    asked = {name: _asked(each) for name, each in history.operations.items()}
    executed, problems = place(asked, history.refused, order)
    meant = [each for name, each in asked.items() if name not in history.refused]
    operations = [each.operation for each in meant]
    events, effects = replayed(executed)
    problems += compare_replicas(standings, order)
    problems += witness(operations, Shown, executed=executed)
    problems += check_repeats(meant)
    watched = 0
    for watcher, lines in watches.items():
        seen, found = check_watch(watcher, lines, events)
        watched += seen
        problems += found
    searched, gave_up, found = search_groups(meant, effects, seed)
    checked = counted(meant, len(history.refused), len(order), watched)
    checked.searched, checked.gave_up = searched, gave_up
    return [*problems, *found], checked


def counted(meant: Sequence[Asked], refused: int, executed: int, watched: int) -> Checked:
    """Before anything is searched."""
    unknown = sum(not _is_known(each) for each in meant)
    return Checked(
        operations=len(meant),
        acknowledged=len(meant) - unknown,
        unknown=unknown,
        refused=refused,
        executed=executed,
        repeated=sum(each.name not in {NOBODY, each.slot} for each in meant),
        watched=watched,
    )


def _asked(operation: Operation) -> Asked:
    arguments = msgspec.structs.astuple(_MODEL.bind(operation.method, operation.arguments))
    return Asked(operation, name_of(operation.method, arguments), arguments)


# -- which request was executed where ------------------------------------------------------------


def place(
    asked: Mapping[tuple[int, int], Asked], refused: Mapping[tuple[int, int], str], order: Order
) -> tuple[list[Executed], list[str]]:
    """The order with the requests in it. Of one that was sent several times, those that do not tell where
    are taken as they were sent: nothing tells them apart."""
    names = {ts: (client, request) for ts, client, request in order}
    told: dict[int, Asked] = {}
    silent: dict[Name, deque[Asked]] = {}
    for each in sorted(asked.values(), key=lambda each: each.operation.call_ns):
        if each.name == NOBODY or each.slot in refused:
            continue
        if names.get(each.operation.ts) != each.name or told.setdefault(each.operation.ts, each) is not each:
            silent.setdefault(each.name, deque()).append(each)
    sent = {each.name for each in asked.values()}
    executed: list[Executed] = []
    problems: list[str] = []
    last = 0
    for ts, client, request in order:
        if ts <= last:
            problems.append(f"slot {ts} was executed after slot {last}")
        last = ts
        name = (client, request)
        found = told.pop(ts, None)
        if found is None and silent.get(name):
            found = silent[name].popleft()
        if found is not None:
            operation = found.operation
            executed.append(Executed(ts, *found.slot, operation.method, operation.arguments))
        elif name not in sent:
            problems.append(f"slot {ts}: nobody has sent request {request} of client {client}")
        else:
            problems.append(f"slot {ts}: {_one_too_many(name, asked, refused)}")
    return executed, problems[:_TOLD_MAX]


def _one_too_many(
    name: Name, asked: Mapping[tuple[int, int], Asked], refused: Mapping[tuple[int, int], str]
) -> str:
    tries = [each for each in asked.values() if each.name == name]
    for each in tries:
        if each.slot in refused:
            why = refused[each.slot]
            return f"{describe(each.operation)} was executed; its caller was told that it was refused: {why}"
    first = tries[0].operation
    called = describe_call(first.method, first.arguments)
    return (
        f"{called} of client {name[0]} was executed more often than it was sent, which was {len(tries)} times"
    )


# -- one answer for one request ------------------------------------------------------------------


def check_repeats(asked: Sequence[Asked]) -> list[str]:
    """Who sends a request again under its key is told what was told first, unless that was a refusal: then
    nothing had been done, and it may be done now."""
    answers: dict[Name, Operation] = {}
    problems = []
    for each in sorted(asked, key=lambda each: each.operation.ts):
        operation = each.operation
        if each.once is None or operation.outcome is not Outcome.OK:
            continue
        first = answers.setdefault(each.name, operation)
        if first.reply != operation.reply:
            problems.append(f"{describe(operation)} repeats {describe(first)}, and was told something else")
    return problems[:_TOLD_MAX]


# -- the replay ----------------------------------------------------------------------------------


def replayed(executed: Sequence[Executed]) -> tuple[list[Event], dict[Name, int]]:
    """What watchers are to see, and the slot in which each request had its effect."""
    machine = Shown()
    context = machine.context = Context()
    events: list[Event] = []
    effects: dict[Name, int] = {}
    for each in executed:
        context.timestamp = each.ts
        bound = _MODEL.bind(each.method, each.arguments)
        if outcome_of(_MODEL.call(machine, each.method, bound)) is Outcome.OK:
            effects.setdefault(name_of(each.method, msgspec.structs.astuple(bound)), each.ts)
        events += machine.store.changes(each.ts - 1).events
    return events, effects


# -- watches -------------------------------------------------------------------------------------


def check_watch(watcher: str, lines: Sequence[Line], events: Sequence[Event]) -> tuple[int, list[str]]:
    """How many events came, and where they are not what happened. A stream has everything behind the
    revision it begins at, in order, with nothing between; an id says that all up to it has come."""
    seen = 0
    problems: list[str] = []
    reached = -1
    for opened, came in streams(lines):
        stream = _Stream(events, opened)
        for got in came:
            seen += got.kind in EVENTS
            problem = stream.take(got)
            if problem:
                problems.append(f"{watcher}, behind {stream.since} at gateway {opened.gateway}: {problem}")
                break
        if reached >= 0 and opened.since != reached:
            problems.append(f"{watcher}: went on behind {opened.since}, having reached {reached}")
        reached = max((got.id for got in came if got.id), default=opened.since)
    return seen, problems[:_TOLD_MAX]


class _Stream:
    def __init__(self, events: Sequence[Event], opened: Opened) -> None:
        self._events = events
        self.since = opened.since
        self._at = self._behind(opened.since) if opened.since >= 0 else -1

    def _behind(self, revision: int) -> int:
        low, high = 0, len(self._events)
        while low < high:
            middle = (low + high) // 2
            if self._events[middle].revision <= revision:
                low = middle + 1
            else:
                high = middle
        return low

    def take(self, got: Got) -> str:
        """What is wrong with it."""
        if self._at < 0:
            if got.kind != "ready":
                return f"it begins with {got.kind or 'an id'} instead of where it begins"
            self.since = got.id
            self._at = self._behind(got.id)
            return ""
        if got.kind not in EVENTS:
            return self._check_id(got.id) if got.id else ""
        if self._at == len(self._events):
            return f"{_describe(got)} never happened"
        wanted = self._events[self._at]
        kind = "delete" if wanted.value is None else "put"
        what = (kind, wanted.revision, wanted.key, wanted.value, wanted.created, wanted.version)
        if what != (got.kind, got.revision, got.key, got.value, got.created, got.version):
            skipped = f"{kind} {wanted.key!r} at {wanted.revision}"
            return f"{_describe(got)} came where {skipped} was to come"
        self._at += 1
        following = self._events[self._at].revision if self._at < len(self._events) else None
        if got.id != (0 if following == got.revision else got.revision):
            return f"{_describe(got)} has id {got.id}; the next event is of {following}"
        return ""

    def _check_id(self, number: int) -> str:
        if self._at < len(self._events) and self._events[self._at].revision <= number:
            return f"id {number} came before the events of {self._events[self._at].revision}"
        return ""


def _describe(got: Got) -> str:
    return f"{got.kind} {got.key!r} at {got.revision}"


# -- without timestamps --------------------------------------------------------------------------


def search_groups(
    asked: Sequence[Asked], effects: Mapping[Name, int], seed: int, seconds: float = SEARCH_SECONDS
) -> tuple[int, int, list[str]]:
    """Groups searched, given up on, and what no order explains. Those with requests of unknown outcome come
    first, in an order drawn; whatever fits into the time."""
    groups: dict[bytes, list[Asked]] = {}
    for each in asked:
        groups.setdefault(group_of(each.operation.method, each.arguments), []).append(each)
    drawn = sorted(groups)
    Random(f"search {seed}").shuffle(drawn)
    drawn.sort(key=lambda group: all(_is_known(each) for each in groups[group]))
    searched = gave_up = 0
    problems: list[str] = []
    end = time.monotonic() + seconds
    for group in drawn:
        if time.monotonic() > end or len(problems) >= _TOLD_MAX:
            break
        verdict = black_box(as_cells(groups[group], effects), Cells, states_max=STATES_MAX)
        searched += 1
        gave_up += verdict.judgement is Judgement.GAVE_UP
        if verdict.judgement is Judgement.VIOLATION:
            problems.append(f"keys {group.decode()}: {verdict.explanation}")
    return searched, gave_up, problems


def _is_known(asked: Asked) -> bool:
    return asked.operation.outcome is not Outcome.UNKNOWN


def as_cells(asked: Sequence[Asked], effects: Mapping[Name, int]) -> list[Operation]:
    """The same operations with the marks of their effects; what had none has a mark that nobody can have
    seen. Only what was sent more than once need be remembered by its key."""
    tries: dict[Name, int] = {}
    for each in asked:
        tries[each.name] = tries.get(each.name, 0) + 1
    made = []
    for number, each in enumerate(asked, start=1):
        operation, arguments = each.operation, each.arguments
        if each.name != NOBODY:
            once = each.once if tries[each.name] > 1 else None
            arguments = (*arguments[:-1], once)
            if operation.method != "delete":
                arguments = (*arguments, effects.get(each.name, -1 - number))
        method = (_CELLS.catalogue.queries | _CELLS.catalogue.commands)[operation.method]
        encoded = msgspec.msgpack.encode(method.bind(arguments, {}))
        made.append(msgspec.structs.replace(operation, arguments=encoded))
    return made
