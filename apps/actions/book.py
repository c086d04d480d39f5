"""What has the ledger written down, and what does it show? Nothing here decides anything."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar, Final

from sortedcontainers import SortedDict, SortedList

from apps.actions import records
from apps.actions.figures import Counts, of_ledger
from apps.actions.records import Entry, Limits, Part, Seat, Unit
from apps.actions.types import Action, Duty, Operation, SiteState, State, Task
from apps.actions.units import Parked, Queue
from rsm.errors import Rejected
from rsm.feeds import Feed
from rsm.figures import Figure
from rsm.state_machine import StateMachine, query

LISTED_MAX: Final = 1_000
PAGE_BYTES: Final = 1 << 20


class Book(StateMachine):
    """The records of ``ActionLedger``, and queries of them."""

    limits: ClassVar[Limits] = Limits()

    def __init__(self) -> None:
        self._chain = 0
        self._ring: dict[int, str] = {}  # boots
        self._entries: Any = SortedDict()  # by id
        self._by_state: dict[State, Any] = {state: SortedList() for state in State}
        self._units: dict[str, Unit] = {}
        self._placed: dict[int, str] = {}  # undecided units by their places
        self._last_place = 0
        self._seats: dict[str, Seat] = {}
        self._queues: dict[str, Queue] = {}
        self._parked = Parked()
        self._deadlines: Any = SortedList()  # (deadline_ns, id) of what is undecided
        self._changes: Any = SortedDict()  # the last one of each action
        self._last_change = 0
        self._undecided = 0
        self._bytes = 0  # of what is not over
        self._over: deque[str] = deque()  # the oldest first
        self._over_bytes = 0
        # What follows from what was decided, and is done in steps of a bounded size.
        self._doomed: deque[tuple[str, str]] = deque()
        self._telling: deque[tuple[str, State, deque[str]]] = deque()  # a decided unit, and who depends on it
        self._released: deque[tuple[str, int]] = deque()  # a site, and the place to look from
        self._resume_ns = 0
        self._counts = Counts()

    def figures(self) -> Iterator[Figure]:
        return of_ledger(self._by_state, self._seats, self._counts, self._bytes)

    # -- what a site has to do -------------------------------------------------------------------

    @query
    def duties(self, since: int, site: str) -> Feed[Duty]:
        """What a site has to do behind a slot. From 0 on, and behind what is forgotten, it is everything that
        stands, from RESET to COMPLETE. Whoever is registered anew begins with 0."""
        seat = self._seats.get(site)
        now = self.context.timestamp
        if seat is None or since > now:
            return Feed([], since)
        is_reset = since <= 0 or since < seat.forgotten
        duties = [Duty(Task.RESET, "", seat.incarnation, (), now)] if since >= 0 and is_reset else []
        behind = 0 if since >= 0 and is_reset else abs(since)
        size, slot = 0, behind
        for change in seat.duties.irange((behind + 1) << records.CHANGES_SHIFT):
            if change >> records.CHANGES_SHIFT != slot:
                if size >= PAGE_BYTES or len(duties) >= self.limits.duties_max:
                    return Feed(duties, -slot if is_reset else slot)
                slot = change >> records.CHANGES_SHIFT
            duty = self._duty(seat.duties[change], site)
            duties.append(duty)
            size += sum(map(records.size_of, duty.operations))
        if is_reset:
            duties.append(Duty(Task.COMPLETE, slot=seat.forgotten))
        if seat.since > since:
            duties.append(Duty(Task.OVER, incarnation=seat.since))
        if seat.withdrawn > max(since, 0):
            duties.append(Duty(Task.WITHDRAWN, slot=seat.withdrawn))
        return Feed(duties, now)

    def _duty(self, name: str, site: str) -> Duty:
        unit = self._units.get(name)
        if unit is None or unit.state is State.ABORTED:
            return Duty(Task.ABORT, name)
        part = unit.parts[site]
        task = Task.PREPARE if part.vote is None else Task.HOLD
        if unit.state is State.COMMITTED:
            task = Task.COMMIT
        return Duty(task, name, part.incarnation, self._operations_at(unit, site), chain=unit.chain)

    def _set_duty(self, seat: Seat, unit: Unit, part: Part) -> None:
        if part.duty:
            del seat.duties[part.duty]
        part.duty = self._next_change()
        seat.duties[part.duty] = unit.name

    def _keep_abort(self, seat: Seat, duty: int) -> None:
        """Who follows is told of it; who was away when it is forgotten finds out that it is not there."""
        seat.aborts.append(duty)
        if len(seat.aborts) > self.limits.aborts_kept_max:
            oldest = seat.aborts.popleft()
            del seat.duties[oldest]
            seat.forgotten = oldest >> records.CHANGES_SHIFT

    # -- who watches -----------------------------------------------------------------------------

    @query
    def sites(self) -> list[SiteState]:
        return [self._seats[name].shown(self.context.view) for name in sorted(self._seats)]

    @query
    def action(self, action: str) -> Action | None:
        entry: Entry | None = self._entries.get(action)
        return None if entry is None else self._action(entry)

    @query
    def actions(self, state: State | None = None, after: str = "", limit: int = LISTED_MAX) -> list[Action]:
        """By their ids, from the one behind ``after`` on; 1,000 at most, and a mebibyte or little more."""
        ids = self._entries if state is None else self._by_state[state]
        found: list[Action] = []
        size = 0
        for action in islice(ids.irange(after, None, (False, True)), max(min(limit, LISTED_MAX), 0)):
            entry = self._entries[action]
            found.append(self._action(entry))
            size += entry.size
            if size >= PAGE_BYTES:
                break
        return found

    @query
    def changes(self, since: int, action: str = "") -> Feed[Action]:
        """Actions that have changed behind a slot, each as it is now; or one of them."""
        now = self.context.timestamp
        if since > now:
            return Feed([], since)
        if action:
            entry = self._entry(action)
            return Feed([self._action(entry)] if entry.changed >> records.CHANGES_SHIFT > since else [], now)
        found: list[Action] = []
        size, slot = 0, since
        for change in self._changes.irange((max(since, 0) + 1) << records.CHANGES_SHIFT):
            if change >> records.CHANGES_SHIFT != slot:
                if size >= PAGE_BYTES or len(found) >= LISTED_MAX:
                    return Feed(found, slot)
                slot = change >> records.CHANGES_SHIFT
            entry = self._entries[self._changes[change]]
            found.append(self._action(entry))
            size += entry.size
        return Feed(found, now)

    def _action(self, entry: Entry) -> Action:
        unit = self._units.get(entry.unit)
        return records.shown(entry, unit, self._waits_for(entry, unit))

    def _waits_for(self, entry: Entry, unit: Unit | None) -> Iterator[str]:
        """The foremost of those, not all."""
        if unit is None:
            yield from self._parked.lacking.get(entry.id, ())
        elif unit.state is State.WAITING:
            for name in unit.awaits:
                yield from self._units[name].members
            for site, part in unit.parts.items():
                for place in self._queues[site].ahead(unit.place, part.keys):
                    yield from self._units[self._placed[place]].members

    # -- records ---------------------------------------------------------------------------------

    def _operations_at(self, unit: Unit, site: str) -> tuple[Operation, ...]:
        return tuple(
            operation
            for each in unit.members
            for operation in self._entries[each].operations
            if operation.site == site
        )

    def _entry(self, action: str) -> Entry:
        entry: Entry | None = self._entries.get(action)
        if entry is None:
            raise Rejected("unknown", {"id": action})
        return entry

    def _open_entry(self, action: str) -> Entry:
        entry = self._entry(action)
        if entry.state is not State.OPEN:
            code = "decided" if entry.state.is_decided else "exists"
            raise Rejected(code, {"id": action, "state": entry.state.value})
        return entry

    def _seat(self, site: str) -> Seat:
        seat = self._seats.get(site)
        if seat is None:
            raise Rejected("unknown", {"site": site})
        return seat

    def _set_state(self, entry: Entry, state: State) -> None:
        self._by_state[entry.state].remove(entry.id)
        self._by_state[state].add(entry.id)
        entry.state = state
        self._changed(entry)

    def _next_change(self) -> int:
        self._last_change = max(self._last_change + 1, self.context.timestamp << records.CHANGES_SHIFT)
        return self._last_change

    def _changed(self, entry: Entry) -> None:
        """Changes are told by slots, so one of a slot is enough."""
        if entry.changed >> records.CHANGES_SHIFT == self.context.timestamp:
            return
        if entry.changed:
            del self._changes[entry.changed]
        entry.changed = self._next_change()
        self._changes[entry.changed] = entry.id

    def _cut(self, text: str) -> str:
        return text[: self.limits.reason_max]
