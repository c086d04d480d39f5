"""What has a site to do now? ``SiteCore`` hears duties, and what became of its effects; it does nothing
itself.

::

    effects = core.begin(registered.incarnation, intents on disk)
    async for page in follow(ActionLedger.duties, 0, name):
        effects = core.hear(page)
    effects = core.prepared(unit, error)    # error is empty if the intent is on disk

Each unit is in one of these states:

    QUEUED ──▶ PREPARING ──▶ PREPARED ──▶ COMMITTING ──▶ APPLIED ──▶ (reported)
       │           │             │            ▲ │
       ▼           ▼             ▼            │ ▼
    DECLINED    ABORTING ◀───────┘           FAILED

Who competes at this site goes one after the other: the next one is prepared when the one before is applied or
undone here. If that fails, the next one is voted down, and the one that failed is tried again.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from apps.actions.records import keys_of
from apps.actions.types import (
    Abort,
    CastVote,
    Commit,
    Duty,
    Operation,
    Prepare,
    Register,
    ReportFinished,
    RetryLater,
    SiteEffect,
    Task,
)
from apps.actions.units import Keys, Queue
from rsm.feeds import Feed


class Stage(StrEnum):
    QUEUED = "queued"  # to be prepared, or to be committed, when those before it are done
    PREPARING = "preparing"
    PREPARED = "prepared"  # or what was tried has failed, and left something perhaps
    COMMITTING = "committing"
    APPLIED = "applied"
    FAILED = "failed"  # to commit or to abort, and to be tried again
    ABORTING = "aborting"
    DECLINED = "declined"  # voted down, and never prepared


class Local(msgspec.Struct):
    """A unit here. ``wanted``: what the ledger has said last; None, not heard yet. ``voted``: in which
    incarnation."""

    unit: str
    stage: Stage
    place: int
    keys: Keys
    operations: tuple[Operation, ...] = ()
    wanted: Task | None = None
    incarnation: int = 0  # that is to vote
    voted: int = 0
    error: str = ""  # that kept it from being finished


class SiteCore:
    """One site's, for as long as its process lives. Each method gives what to do then, in this order."""

    def __init__(self) -> None:
        self.incarnation = 0
        self._locals: dict[str, Local] = {}
        self._at: dict[int, str] = {}  # by place
        self._queue = Queue()
        self._last_place = 0
        self._listed: dict[str, Duty] | None = None  # between RESET and COMPLETE
        self._listed_at = 0  # the slot of RESET
        self._out: list[SiteEffect] = []

    # -- what happens ----------------------------------------------------------------------------

    def begin(self, incarnation: int, recovered: Iterable[str]) -> list[SiteEffect]:
        """It is registered. ``recovered``: units that have an intent on its disk. Duties must be followed
        from 0 on, so that everything that stands is told; and of a state that has the registration in it, for
        an older one may not know of a vote that stands."""
        self.incarnation = incarnation
        self._listed = None
        for unit in recovered:
            if unit not in self._locals:  # what it touches is not known yet, so it may be anything
                self._add(unit, Stage.PREPARED, None)
        return self._taken()

    def hear(self, page: Feed[Duty]) -> list[SiteEffect]:
        for duty in page.events:
            match duty.task:
                case Task.RESET:
                    if duty.incarnation < self.incarnation:
                        raise ValueError("the ledger that was asked does not know of the registration yet")
                    self._listed, self._listed_at = {}, duty.slot
                case Task.COMPLETE if duty.slot > self._listed_at:
                    self._listed = None  # what an earlier page has may be aborted since, and nobody tells
                    self._out.append(Register())
                case Task.COMPLETE:
                    self._complete()
                case Task.OVER:
                    if duty.incarnation > self.incarnation:
                        self._out.append(Register())
                case _ if self._listed is not None:
                    self._listed[duty.unit] = duty
                case _:
                    self._heed(duty)
        return self._taken()

    def prepared(self, unit: str, error: str) -> list[SiteEffect]:
        local = self._locals[unit]
        assert local.stage is Stage.PREPARING
        local.stage = Stage.PREPARED
        if local.wanted is Task.PREPARE:
            self._vote(local, error)
        else:
            self._pursue(local)
        return self._taken()

    def committed(self, unit: str, error: str) -> list[SiteEffect]:
        local = self._locals[unit]
        assert local.stage is Stage.COMMITTING
        if error:
            self._failed(local, error)
            self._report(local)
        else:
            local.stage, local.error = Stage.APPLIED, ""
            self._report(local)
            self._leave_queue(local)
        return self._taken()

    def aborted(self, unit: str, error: str) -> list[SiteEffect]:
        local = self._locals[unit]
        assert local.stage is Stage.ABORTING
        if error:
            self._failed(local, error)
        else:
            del self._locals[unit]
            self._leave_queue(local)
        return self._taken()

    def retry(self, unit: str) -> list[SiteEffect]:
        local = self._locals.get(unit)
        if local is not None and local.stage is Stage.FAILED:
            self._pursue(local)
        return self._taken()

    def reported(self, units: Iterable[str]) -> list[SiteEffect]:
        """The ledger knows that these are applied."""
        for unit in units:
            local = self._locals.get(unit)
            if local is not None and local.stage is Stage.APPLIED:
                del self._locals[unit]
        return self._taken()

    def has(self, unit: str) -> bool:
        return unit in self._locals

    def owes(self, unit: str) -> bool:
        """Whether it is here and not applied, or not undone."""
        local = self._locals.get(unit)
        return local is not None and local.stage is not Stage.APPLIED

    # -- duties ----------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Everything that stands is listed. What is here and is not was aborted, or is over long since."""
        listed, self._listed = self._listed or {}, None
        for local in list(self._locals.values()):
            if local.unit not in listed:
                self._undo(local)
        for duty in listed.values():
            self._note(duty)
        for unit in listed:  # by now it is known what each of them touches
            self._try(unit)

    def _heed(self, duty: Duty) -> None:
        self._note(duty)
        self._try(duty.unit)

    def _note(self, duty: Duty) -> None:
        local = self._locals.get(duty.unit)
        match duty.task:
            case Task.PREPARE:
                if local is None and duty.incarnation == self.incarnation:
                    self._queue_up(duty)
            case Task.HOLD:
                if local is not None:
                    self._learn(local, duty)
            case Task.COMMIT:
                if local is None:
                    self._queue_up(duty)
                    return
                self._learn(local, duty)
                if local.stage is Stage.APPLIED or local.stage is Stage.FAILED:
                    self._report(local)  # the ledger has not heard it, or not from this incarnation
            case Task.ABORT:
                if local is not None:
                    self._undo(local)

    def _queue_up(self, duty: Duty) -> None:
        local = self._add(duty.unit, Stage.QUEUED, keys_of(duty.operations))
        local.operations, local.wanted, local.incarnation = duty.operations, duty.task, duty.incarnation

    def _learn(self, local: Local, duty: Duty) -> None:
        """What the ledger says of a unit that is here, and what it touches if that was not known."""
        if not local.operations:
            self._queue.remove(local.place, local.keys)
            del self._at[local.place]
            local.operations, local.keys = duty.operations, keys_of(duty.operations)
            self._take_place(local)
        local.wanted = duty.task

    def _undo(self, local: Local) -> None:
        """The ledger has aborted it. A prepare that is under way is undone when it ends."""
        local.wanted = Task.ABORT
        match local.stage:
            case Stage.QUEUED:
                del self._locals[local.unit]
                self._leave_queue(local)
            case Stage.APPLIED | Stage.DECLINED:  # there is nothing to undo, or nobody who would wait for it
                del self._locals[local.unit]
            case Stage.PREPARED | Stage.FAILED:
                self._pursue(local)

    # -- one after the other ---------------------------------------------------------------------

    def _add(self, unit: str, stage: Stage, keys: Keys) -> Local:
        local = self._locals[unit] = Local(unit, stage, 0, keys)
        self._take_place(local)
        return local

    def _take_place(self, local: Local) -> None:
        self._last_place += 1
        local.place = self._last_place
        self._at[local.place] = local.unit
        self._queue.add(local.place, local.keys)

    def _leave_queue(self, local: Local) -> None:
        """Its turn is over; somebody else's may have come."""
        self._queue.remove(local.place, local.keys)
        del self._at[local.place]
        candidates = list(self._queue.behind(local.keys))
        if local.keys is None:
            candidates += self._queue.between(local.place)
        for place in dict.fromkeys(candidates):
            if place in self._at:
                self._try(self._at[place])

    def _try(self, unit: str) -> None:
        local = self._locals.get(unit)
        if local is not None and local.stage in (Stage.QUEUED, Stage.PREPARED):
            self._pursue(local)

    def _pursue(self, local: Local) -> None:
        """Do what is wanted of it, if it is its turn."""
        match local.wanted:
            case Task.ABORT:
                local.stage = Stage.ABORTING
                self._out.append(Abort(local.unit))
            case Task.PREPARE if local.stage is Stage.QUEUED:
                if self._queue.is_first(local.place, local.keys):
                    local.stage = Stage.PREPARING
                    self._out.append(Prepare(local.unit, local.operations))
                else:
                    self._decline_if_stuck(local)
            case Task.COMMIT if self._queue.is_first(local.place, local.keys):
                local.stage = Stage.COMMITTING
                self._out.append(Commit(local.unit, local.operations))

    def _failed(self, local: Local, error: str) -> None:
        """It is tried again; who waits for it to be prepared is voted down meanwhile."""
        local.stage, local.error = Stage.FAILED, error
        self._out.append(RetryLater(local.unit))
        for place in list(self._queue.waiting_for(local.place, local.keys)):
            other = self._locals[self._at[place]] if place in self._at else None
            if other is not None and other.stage is Stage.QUEUED and other.wanted is Task.PREPARE:
                self._decline_if_stuck(other)

    def _decline_if_stuck(self, local: Local) -> None:
        for place in self._queue.ahead(local.place, local.keys):
            before = self._locals[self._at[place]]
            if before.stage is Stage.FAILED:
                self._vote(local, f"{before.unit} cannot be finished here: {before.error}")
                local.stage = Stage.DECLINED
                self._leave_queue(local)
                return

    # -- what is said ----------------------------------------------------------------------------

    def _vote(self, local: Local, error: str) -> None:
        """Once in an incarnation, and only for the one that was asked."""
        if local.incarnation != self.incarnation or local.voted == self.incarnation:
            return
        local.voted = self.incarnation
        self._out.append(CastVote(local.unit, self.incarnation, not error, error))

    def _report(self, local: Local) -> None:
        self._out.append(ReportFinished(local.unit, local.error))

    def _taken(self) -> list[SiteEffect]:
        out, self._out = self._out, []
        return out
