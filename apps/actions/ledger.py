"""What does the order say? Requests, votes, decisions (``docs/actions.md``)."""

from collections import deque
from itertools import islice

from apps.actions import records
from apps.actions.book import Book
from apps.actions.checking import (
    check_action,
    check_early,
    check_operations,
    check_text,
    refuse,
    were_added,
)
from apps.actions.figures import Counts
from apps.actions.records import Asked, Entry, Part, Seat, Unit
from apps.actions.types import (
    Action,
    EarlyVote,
    Finish,
    NewAction,
    Operation,
    Registered,
    SiteState,
    State,
    Vote,
)
from apps.actions.units import Parked, Queue
from rsm.errors import Rejected
from rsm.state_machine import GroupView, command


class ActionLedger(Book):
    """Actions at several sites, each committed at all of them or at none.

    Refusals: ``exists``, ``unknown``, ``decided``, ``away`` (a site is not in the ring, or its registration
    is over), ``outside`` (who registers is not in the ring), ``behind`` (a site has too much to finish),
    ``changed`` (others have added), ``full``, ``bad_request``.
    """

    state_types = (Entry, Part, Unit, Seat, Queue, Parked, Vote, Finish, Operation, State, Counts, Asked)

    # -- sites -----------------------------------------------------------------------------------

    @command
    def register(self, name: str, site: int, boot: str) -> Registered:
        """From this slot on, its incarnation, the name is this process'. Whatever the one before has not
        voted for is aborted."""
        check_text("name", name, self.limits)
        if self._ring.get(site) != boot:
            raise Rejected("outside", {"site": site, "boot": boot})
        seat = self._seats.get(name)
        if seat is None:
            if len(self._seats) >= self.limits.sites_max:
                raise Rejected("full", {"sites_max": self.limits.sites_max})
            seat = self._seats[name] = Seat(name)
            self._queues[name] = Queue()
        else:
            self._end_registration(seat, f"{name} was registered anew")
        seat.site, seat.boot, seat.is_here = site, boot, True
        seat.incarnation = seat.since = self.context.timestamp
        self._go_on()
        return Registered(seat.incarnation, self._chain)

    @command
    def unregister(self, name: str, incarnation: int) -> bool:
        """The name is away from this slot on, wherever its replica is. Gives whether it was here in that
        incarnation: a later one stays."""
        seat = self._seats.get(name)
        if seat is None or not seat.is_here or seat.incarnation != incarnation:
            return False
        self._leave(seat, f"{name} has gone")
        self._go_on()
        return True

    def on_view(self, view: GroupView) -> None:
        begun_anew = self._chain not in (0, view.chain)
        self._chain = view.chain
        self._ring = {site: view.boots.get(site, "") for site in view.ring}
        for seat in self._seats.values():
            if seat.is_here and (begun_anew or self._ring.get(seat.site) != seat.boot):
                self._leave(seat, f"{seat.name} has left the ring")
        if begun_anew:  # votes of another chain may be votes that its other survivors do not know of
            why = "the group has begun anew"
            self._doomed.extend((self._units[name].members[0], why) for name in self._placed.values())
            self._doomed.extend((each, why) for each in self._parked.lacking)
        self._go_on()

    def _leave(self, seat: Seat, why: str) -> None:
        seat.is_here = False
        seat.since = self.context.timestamp
        self._end_registration(seat, why)

    def _end_registration(self, seat: Seat, why: str) -> None:
        """No vote of that incarnation counts from here on, so nothing can commit that lacks one."""
        self._doomed.extend((action, why) for action in seat.involved)
        seat.involved = {}

    @command
    def forget(self, site: str) -> SiteState:
        """Wait no longer for what a site has to finish: it will never be applied there, or somebody sees to
        it. Some of it at a time; ``unfinished`` says how much is left. A site that is here undoes what it had
        prepared of it."""
        seat = self._seat(site)
        waiting = (
            unit
            for name in seat.duties.values()
            if (unit := self._units.get(name)) is not None and unit.state is State.COMMITTED
        )
        for unit in list(islice(waiting, self.limits.step_max)):
            self._end_part(unit, seat, records.FORGOTTEN)
            seat.forgotten = self.context.timestamp  # who follows is told everything anew
        state = seat.shown(self.context.view)
        if not seat.is_here and not seat.count:
            del self._seats[site], self._queues[site]
        return state

    # -- requests --------------------------------------------------------------------------------

    @command
    def open(self, action: NewAction) -> Action:
        """Record an action whose commit may be requested later."""
        entry = self._new_entry(action)
        entry.opened = self.context.timestamp
        self._record(entry)
        return self._action(entry)

    @command
    def add(self, action: str, operations: tuple[Operation, ...], behind: int | None = None) -> Action:
        """Operations of an open action, behind those that it has; or once, behind so many of them."""
        entry = self._open_entry(action)
        if behind is not None and were_added(entry.operations, operations, behind):
            return self._action(entry)
        together = (*entry.operations, *operations)
        size = check_operations(together, self.limits)
        self._check_room(size - entry.size, 0)
        self._bytes += size - entry.size
        entry.operations, entry.size = together, size
        self._changed(entry)
        return self._action(entry)

    @command
    def request(self, action: NewAction) -> Action:
        """Commit a new action."""
        entry = self._new_entry(action)
        self._check_request(entry)
        self._record(entry)
        self._request(entry)
        return self._action(entry)

    @command
    def request_voted(self, action: NewAction, unit: str, votes: tuple[EarlyVote, ...]) -> Action:
        """Commit a new action whose sites have voted to its initiator. If these votes count, it is decided
        in this slot, under the name for which they were given; else it is requested like any other."""
        check_early(action, unit, votes, self.limits)
        entry = self._new_entry(action)
        self._check_request(entry)
        self._record(entry)
        counted = () if unit in self._units else self._counting(entry, votes)
        self._request(entry, unit if counted else "", counted)
        return self._action(entry)

    @command
    def withdraw(self, site: str, incarnation: int) -> int:
        """No early vote that a site has given counts from this slot on, unless it is requested already.
        Gives the slot."""
        seat = self._seat(site)
        if not seat.is_here or seat.incarnation != incarnation:
            raise Rejected("away", {"site": site, "incarnation": seat.incarnation})
        seat.withdrawn = self.context.timestamp
        return seat.withdrawn

    @command
    def commit(self, action: str) -> Action:
        """Commit an open one."""
        entry = self._open_entry(action)
        self._check_request(entry)
        self._deadlines.remove((entry.deadline_ns, entry.id))
        entry.deadline_ns = self.context.time_ns + entry.timeout_ms * records.MS
        self._deadlines.add((entry.deadline_ns, entry.id))
        self._request(entry)
        return self._action(entry)

    @command
    def abort(self, action: str, reason: str) -> Action:
        """Unless it is committed."""
        entry = self._entry(action)
        if entry.state is State.COMMITTED:
            raise Rejected("decided", {"id": action, "state": entry.state.value})
        if not entry.state.is_decided:
            self._abort(entry, self._cut(reason) or "aborted")
            self._go_on()
        return self._action(entry)

    def _new_entry(self, action: NewAction) -> Entry:
        check_action(action, self.limits)
        size = check_operations(action.operations, self.limits)
        known: Entry | None = self._entries.get(action.id)
        if known is not None:
            raise Rejected("exists", {"id": known.id, "state": known.state.value, "decided": known.decided})
        self._check_room(size, 1)
        return Entry(
            action.id,
            action.operations,
            tuple(dict.fromkeys(action.depends)),
            action.timeout_ms,
            action.initiator,
            State.OPEN,
            self.context.time_ns + action.timeout_ms * records.MS,
            size,
            asked=action.asked,
        )

    def _record(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        self._by_state[entry.state].add(entry.id)
        self._deadlines.add((entry.deadline_ns, entry.id))
        self._undecided += 1
        self._bytes += entry.size
        self._changed(entry)

    def _check_room(self, size: int, count: int) -> None:
        limits = self.limits
        if self._undecided + count > limits.undecided_max:
            raise Rejected("full", {"undecided_max": limits.undecided_max})
        if size > 0 and self._bytes + size > limits.bytes_max:
            raise Rejected("full", {"bytes_max": limits.bytes_max})

    def _check_request(self, entry: Entry) -> None:
        """All sites are there, and have room for it."""
        if not entry.operations:
            refuse("operations", count=0, least=1)
        limits = self.limits
        for name in entry.sites:
            seat = self._seats.get(name)
            if seat is None or not seat.is_here:
                raise Rejected("away", {"site": name})
            if seat.count >= limits.site_actions_max or seat.bytes + entry.size > limits.site_bytes_max:
                raise Rejected("behind", {"site": name, "unfinished": seat.unfinished})
        if len(self._parked) >= limits.parked_max and self._lacking(entry):
            raise Rejected("full", {"parked_max": limits.parked_max})

    def _counting(self, entry: Entry, votes: tuple[EarlyVote, ...]) -> tuple[EarlyVote, ...]:
        """Of early votes, those that decide: one that is no; or one of every site, if nobody that competes is
        before it, or was ever asked for since its site has prepared it."""
        if entry.depends:
            return ()
        cast = {vote.site: vote for vote in votes if self._seats[vote.site].has_cast(vote, self._chain)}
        if any(not vote.yes for vote in cast.values()):
            return tuple(cast.values())
        for name in entry.sites:
            keys = records.keys_of(tuple(each for each in entry.operations if each.site == name))
            vote = cast.get(name)
            if vote is None or any(True for _ in self._queues[name].competing(keys)):
                return ()
            if self._seats[name].asked.latest(keys) > vote.heard:
                return ()
        return tuple(cast.values())

    def _request(self, entry: Entry, unit: str = "", votes: tuple[EarlyVote, ...] = ()) -> None:
        entry.requested = self.context.timestamp
        self._set_state(entry, State.WAITING)
        for name in entry.sites:
            seat = self._seats[name]
            seat.involved[entry.id] = None
            seat.count += 1
            seat.bytes += entry.size_at(name)
        self._parked.add(entry.id, self._lacking(entry))
        aborted = [each for each in entry.depends if self._is_aborted(each)]
        if aborted:
            self._abort(entry, _follows(aborted[0]))
        else:
            early: Unit | None = None
            for members in self._parked.completed_by(entry.id, self._requested_at):
                if unit and members == (entry.id,):
                    early = self._placed_unit(members, unit)
                else:
                    self._place(members)
            if early is not None:  # whoever depends on it has its place by now, and waits for it
                self._decide_early(early, votes)
        self._go_on()

    def _lacking(self, entry: Entry) -> tuple[str, ...]:
        """Of its dependencies, those without a place."""
        return tuple(each for each in entry.depends if self._lacks_place(each))

    def _lacks_place(self, action: str) -> bool:
        entry: Entry | None = self._entries.get(action)
        return entry is None or not (entry.unit or entry.state.is_decided)

    def _is_aborted(self, action: str) -> bool:
        entry: Entry | None = self._entries.get(action)
        return entry is not None and entry.state is State.ABORTED

    def _requested_at(self, action: str) -> int:
        requested: int = self._entries[action].requested
        return requested

    # -- places ----------------------------------------------------------------------------------

    def _place(self, members: tuple[str, ...]) -> None:
        """Actions that are decided together take their place in the queues of their sites."""
        # An id may be used again when its action is forgotten; this name never is.
        self._begin_if_first(self._placed_unit(members, f"{members[0]}@{self.context.timestamp}"))

    def _placed_unit(self, members: tuple[str, ...], name: str) -> Unit:
        self._last_place += 1
        entries = [self._entries[each] for each in members]
        unit = Unit(name, self._last_place, members, {}, (), chain=self._chain)
        self._units[unit.name] = unit
        self._placed[unit.place] = unit.name
        for entry in entries:
            entry.unit = unit.name
            self._changed(entry)
        for site in dict.fromkeys(site for entry in entries for site in entry.sites):
            operations = self._operations_at(unit, site)
            size = sum(entry.size_at(site) for entry in entries if site in entry.sites)
            part = Part(self._seats[site].incarnation, records.keys_of(operations), size)
            unit.parts[site] = part
            self._queues[site].add(unit.place, part.keys)
        unit.missing = unit.undone = len(unit.parts)
        awaits: dict[str, None] = {}
        for each in dict.fromkeys(each for entry in entries for each in entry.depends):
            other = self._units.get(self._entries[each].unit) if each in self._entries else None
            if other is not None and other is not unit and not other.state.is_decided:
                awaits[other.name] = None
                other.dependents.append(unit.name)
        unit.awaits = tuple(awaits)
        return unit

    def _begin_if_first(self, unit: Unit) -> None:
        """Ask for votes, when nobody it competes with is before it and all it depends on is committed."""
        if unit.state is not State.WAITING or unit.awaits:
            return
        for name, part in unit.parts.items():
            if not self._queues[name].is_first(unit.place, part.keys):
                return
        unit.state = State.VOTING
        for each in unit.members:
            self._set_state(self._entries[each], State.VOTING)
        for name, part in unit.parts.items():
            seat = self._seats[name]
            self._set_duty(seat, unit, part)
            seat.asked.note(part.keys, self.context.timestamp, self.limits.asked_keys_max)

    # -- votes and decisions ---------------------------------------------------------------------

    @command
    def vote(self, unit: str, site: str, incarnation: int, yes: bool, reason: str) -> State:
        """The first vote of a site counts. Gives how the unit stands then."""
        voted = self._units.get(unit)
        if voted is None:
            raise Rejected("unknown", {"unit": unit})
        part = voted.parts.get(site)
        if part is None:
            refuse("site", site=site, why="it has no part in it")
        if voted.state.is_decided:
            return voted.state
        seat = self._seats[site]
        if part.vote is None:
            if not seat.is_here or incarnation != part.incarnation or incarnation != seat.incarnation:
                raise Rejected("away", {"site": site, "incarnation": seat.incarnation})
            if voted.state is not State.VOTING:
                refuse("vote", unit=unit, why="nobody has asked for it yet")
            self._count_vote(voted, seat, yes=yes, reason=reason)
            for each in voted.members:
                self._changed(self._entries[each])
            if not yes:
                self._decide(voted, State.ABORTED, _voted_no(site, self._cut(reason)))
            elif not voted.missing:
                self._decide(voted, State.COMMITTED, "")
            self._go_on()
        return voted.state

    def _count_vote(self, unit: Unit, seat: Seat, *, yes: bool, reason: str) -> None:
        unit.parts[seat.name].vote = Vote(seat.name, yes, self._cut(reason), self.context.timestamp)
        self._counts.note_vote(yes=yes)
        unit.missing -= 1
        for each in unit.members:
            seat.involved.pop(each, None)

    def _decide_early(self, unit: Unit, votes: tuple[EarlyVote, ...]) -> None:
        """By votes that count, in the slot of the request. Sites are told as if they had been asked."""
        unit.state = State.VOTING
        for vote in votes:
            self._count_vote(unit, self._seats[vote.site], yes=vote.yes, reason=vote.reason)
        refusal = next((vote for vote in votes if not vote.yes), None)
        if refusal is None:
            self._decide(unit, State.COMMITTED, "")
        else:
            self._decide(unit, State.ABORTED, _voted_no(refusal.site, self._cut(refusal.reason)))

    def _decide(self, unit: Unit, state: State, reason: str) -> None:
        """Once. What waits for it is looked at, what depends on it follows."""
        assert not unit.state.is_decided
        asked = unit.state is State.VOTING
        unit.state = state
        for each in unit.members:
            self._settle(self._entries[each], state, reason)
        for name, part in unit.parts.items():
            seat = self._seats[name]
            if state is State.COMMITTED:
                self._set_duty(seat, unit, part)
                seat.unfinished += 1
                continue
            for each in unit.members:
                seat.involved.pop(each, None)
            seat.count -= sum(name in self._entries[each].sites for each in unit.members)
            seat.bytes -= part.size
            if asked:
                self._set_duty(seat, unit, part)
                self._keep_abort(seat, part.duty)
        del self._placed[unit.place]
        for name, part in unit.parts.items():
            self._queues[name].remove(unit.place, part.keys)
        if state is State.ABORTED:
            self._retain(unit.members)
        if unit.dependents:
            self._telling.append((unit.name, state, unit.dependents))
            unit.dependents = deque()
        for name, part in unit.parts.items():
            self._look_behind(name, unit.place, part)

    def _tell(self, name: str, state: State, dependent: str) -> None:
        """A unit that another one has waited for is decided."""
        other = self._units.get(dependent)
        if other is None or other.state.is_decided:
            return
        if state is State.ABORTED:
            self._decide(other, State.ABORTED, _follows(name.rpartition("@")[0]))
        else:
            other.awaits = tuple(each for each in other.awaits if each != name)
            self._begin_if_first(other)

    def _look_behind(self, site: str, place: int, part: Part) -> None:
        """Who may be first there now?"""
        for each in list(self._queues[site].behind(part.keys)):
            self._begin_if_first(self._units[self._placed[each]])
        if part.keys is None:
            self._released.append((site, place))

    def _abort(self, entry: Entry, reason: str) -> None:
        """An undecided action, and whatever is one with it."""
        if entry.unit:
            self._decide(self._units[entry.unit], State.ABORTED, reason)
            return
        if entry.requested:
            for name in entry.sites:
                seat = self._seats[name]
                seat.involved.pop(entry.id, None)
                seat.count -= 1
                seat.bytes -= entry.size_at(name)
        self._parked.remove(entry.id)
        self._settle(entry, State.ABORTED, reason)
        self._retain((entry.id,))

    def _settle(self, entry: Entry, state: State, reason: str) -> None:
        entry.decided, entry.reason = self.context.timestamp, reason
        took_ns = max(self.context.time_ns - entry.asked_ns, 0) if entry.requested else None
        self._counts.note_decision(state, took_ns)
        self._deadlines.remove((entry.deadline_ns, entry.id))
        self._undecided -= 1
        self._set_state(entry, state)
        if state is State.ABORTED:
            self._doomed.extend((each, _follows(entry.id)) for each in self._parked.who_wants(entry.id))

    # -- finishing -------------------------------------------------------------------------------

    @command
    def finished(self, site: str, incarnation: int, reports: list[tuple[str, str]]) -> int:
        """What became of committed units at a site: applied, or the error that kept it from that so far.
        Gives how many of them this was news of."""
        seat = self._seat(site)
        if len(reports) > self.limits.reports_max:
            refuse("reports", count=len(reports), most=self.limits.reports_max)
        if seat.incarnation != incarnation:
            raise Rejected("away", {"site": site, "incarnation": seat.incarnation})
        news = 0
        for name, error in reports:
            unit = self._units.get(name)
            part = None if unit is None else unit.parts.get(site)
            if unit is None or part is None or unit.state is not State.COMMITTED or part.is_done:
                continue
            news += 1
            if error:
                part.finish = Finish(site, self._cut(error), self.context.timestamp)
                for each in unit.members:
                    self._changed(self._entries[each])
            else:
                self._end_part(unit, seat, "")
        return news

    def _end_part(self, unit: Unit, seat: Seat, error: str) -> None:
        part = unit.parts[seat.name]
        part.finish = Finish(seat.name, error, self.context.timestamp)
        part.is_done = True
        del seat.duties[part.duty]
        part.duty = 0
        seat.unfinished -= 1
        seat.count -= sum(seat.name in self._entries[each].sites for each in unit.members)
        seat.bytes -= part.size
        unit.undone -= 1
        for each in unit.members:
            self._changed(self._entries[each])
        if not unit.undone:
            self._retain(unit.members)

    def _retain(self, members: tuple[str, ...]) -> None:
        """They are over, and stay until there are too many that are."""
        limits = self.limits
        for each in members:
            size = self._entries[each].size
            self._over.append(each)
            self._over_bytes += size
            self._bytes -= size
        while len(self._over) > limits.retained_max or self._over_bytes > limits.retained_bytes_max:
            entry: Entry = self._entries.pop(self._over.popleft())
            self._over_bytes -= entry.size
            self._by_state[entry.state].remove(entry.id)
            del self._changes[entry.changed]
            self._units.pop(entry.unit, None)

    # -- steps and time --------------------------------------------------------------------------

    def alarm(self) -> int | None:
        if self._has_more():
            return self._resume_ns
        return self._deadlines[0][0] if self._deadlines else None

    def on_alarm(self) -> None:
        if not self._doomed:
            for deadline_ns, action in islice(self._deadlines, self.limits.step_max):
                if deadline_ns > self.context.time_ns:
                    break
                self._doomed.append((action, "its time was over"))
        self._go_on()

    def _go_on(self) -> None:
        """Do what follows, as much as a slot may; an alarm calls for the rest."""
        for _ in range(self.limits.step_max):
            if self._doomed:
                action, why = self._doomed.popleft()
                entry: Entry | None = self._entries.get(action)
                if entry is not None and not entry.state.is_decided:
                    self._abort(entry, why)
            elif self._telling:
                name, state, dependents = self._telling[0]
                dependent = dependents.popleft()
                if not dependents:
                    self._telling.popleft()
                self._tell(name, state, dependent)
            elif self._released:
                self._release(*self._released.popleft())
            else:
                break
        self._resume_ns = self.context.time_ns

    def _has_more(self) -> bool:
        return bool(self._doomed or self._telling or self._released)

    def _release(self, site: str, low: int) -> None:
        """Look at one of those that waited for somebody who touched everything."""
        queue = self._queues.get(site)
        place = None if queue is None else next(queue.between(low), None)
        if place is not None:
            self._released.appendleft((site, place + 1))
            self._begin_if_first(self._units[self._placed[place]])


def _voted_no(site: str, reason: str) -> str:
    return f"{site} voted no: {reason}"


def _follows(other: str) -> str:
    return f"depends on {other}, which was aborted"
