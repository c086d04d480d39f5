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

*Offers.* Who is about to request a unit may have it prepared before, if nothing that competes is under way
here, or only what is committed and waits to be applied. What was answered is a vote that the ledger may
count, so it is kept until the order says that it will not: by asking for what competes, by a registration
that ends, or by the slot of a ``withdraw``.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

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
    TellReady,
)
from apps.actions.units import Keys, Queue
from rsm.feeds import Feed

OFFERS_MAX: Final = 1_000


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
    incarnation. ``offered``: of an offer, the slot up to which duties were known when it came."""

    unit: str
    stage: Stage
    place: int
    keys: Keys
    operations: tuple[Operation, ...] = ()
    wanted: Task | None = None
    incarnation: int = 0  # that is to vote
    voted: int = 0
    error: str = ""  # that kept it from being finished
    offered: int = 0


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
        self._heard = 0  # the slot up to which duties are known
        self._is_complete = False  # all that stands was told to this incarnation
        self._offers: dict[str, Local] = {}  # that are neither requested nor given up, as far as is known
        self._out: list[SiteEffect] = []

    # -- what happens ----------------------------------------------------------------------------

    def begin(self, incarnation: int, recovered: Iterable[str]) -> list[SiteEffect]:
        """It is registered. ``recovered``: units that have an intent on its disk. Duties must be followed
        from 0 on, so that everything that stands is told; and of a state that has the registration in it, for
        an older one may not know of a vote that stands."""
        self.incarnation = incarnation
        self._listed = None
        self._is_complete = False
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
                    self._is_complete = False
                case Task.COMPLETE if duty.slot > self._listed_at:
                    self._listed = None  # what an earlier page has may be aborted since, and nobody tells
                    self._ask_to_register()
                case Task.COMPLETE:
                    self._complete()
                case Task.OVER:
                    if duty.incarnation > self.incarnation:
                        self._let_go_of_offers(duty.incarnation)
                        self._ask_to_register()
                case Task.WITHDRAWN:
                    self._let_go_of_offers(duty.slot)
                case _ if self._listed is not None:
                    self._listed[duty.unit] = duty
                case _:
                    self._heed(duty)
        if self._is_complete:
            self._heard = page.position
        return self._taken()

    def offer(self, unit: str, operations: tuple[Operation, ...]) -> list[SiteEffect]:
        """Prepare it, for who says that it will be requested. ``TellReady`` follows, at once or later."""
        local = self._offers.get(unit)
        if local is not None:  # it is asked once more
            if local.stage is Stage.PREPARED:
                self._tell_ready(local, "")
            return self._taken()
        keys = keys_of(operations)
        is_full = len(self._offers) >= OFFERS_MAX
        if not self._is_complete or unit in self._locals or is_full or not self._is_open_to(keys):
            self._out.append(TellReady(unit, is_vote=False))
            return self._taken()
        local = self._offers[unit] = self._add(unit, Stage.QUEUED, keys)
        local.operations, local.incarnation, local.offered = operations, self.incarnation, self._heard
        self._pursue(local)
        return self._taken()

    def _is_open_to(self, keys: Keys) -> bool:
        """Whatever competes will be applied soon, without anybody's word. To wait for an offer would not do:
        at another site it may be that one which waits."""
        for place in self._queue.competing(keys):
            other = self._locals[self._at[place]]
            if other.wanted is not Task.COMMIT or other.stage is Stage.FAILED:
                return False
        return True

    @property
    def has_offers(self) -> bool:
        return bool(self._offers)

    @property
    def offers(self) -> list[str]:
        """What stands prepared for a request of somebody who has the vote."""
        return [unit for unit, local in self._offers.items() if local.stage is Stage.PREPARED]

    def offers_before(self, unit: str) -> list[str]:
        """Of these, those that a unit would have to wait for; for who looks at the core from outside."""
        local = self._locals.get(unit)
        if local is None or local.stage is not Stage.QUEUED:
            return []
        competing = (self._at[place] for place in self._queue.competing(local.keys))
        return [each for each in competing if each in self._offers]

    def prepared(self, unit: str, error: str) -> list[SiteEffect]:
        local = self._locals[unit]
        assert local.stage is Stage.PREPARING
        local.stage = Stage.PREPARED
        if local.wanted is Task.PREPARE:
            self._vote(local, error)
        elif unit in self._offers:
            self._tell_ready(local, error)
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
        self._is_complete = True
        for local in list(self._locals.values()):
            is_offer = local.unit in self._offers and local.incarnation == self.incarnation
            if local.unit not in listed and not is_offer:
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
        if duty.task is Task.PREPARE and self._offers:
            self._make_way(local)

    def _learn(self, local: Local, duty: Duty) -> None:
        """What the ledger says of a unit that is here, and what it touches if that was not known."""
        if not local.operations:
            self._queue.remove(local.place, local.keys)
            del self._at[local.place]
            local.operations, local.keys = duty.operations, keys_of(duty.operations)
            self._take_place(local)
        local.wanted = duty.task
        self._offers.pop(local.unit, None)

    def _undo(self, local: Local) -> None:
        """The ledger has aborted it. A prepare that is under way is undone when it ends."""
        local.wanted = Task.ABORT
        if self._offers.pop(local.unit, None) is not None:
            self._out.append(TellReady(local.unit, is_vote=False))  # if nobody waits, nobody hears it
        match local.stage:
            case Stage.QUEUED:
                del self._locals[local.unit]
                self._leave_queue(local)
            case Stage.APPLIED | Stage.DECLINED:  # there is nothing to undo, or nobody who would wait for it
                del self._locals[local.unit]
            case Stage.PREPARED | Stage.FAILED:
                self._pursue(local)

    # -- offers ----------------------------------------------------------------------------------

    def _prepare_offer(self, local: Local) -> None:
        if self._queue.is_first(local.place, local.keys):
            local.stage = Stage.PREPARING
            self._out.append(Prepare(local.unit, local.operations))

    def _tell_ready(self, local: Local, error: str) -> None:
        incarnation, heard = local.incarnation, local.offered
        self._out.append(
            TellReady(local.unit, is_vote=True, error=error, incarnation=incarnation, heard=heard)
        )
        if error:  # a vote no binds nobody
            del self._offers[local.unit]
            self._undo(local)

    def _make_way(self, asked: Local) -> None:
        """The ledger asks for what competes with offers. From that slot on they do not count."""
        places = dict.fromkeys(self._queue.competing(asked.keys))
        for unit in [self._at[place] for place in places]:
            if unit in self._offers:
                self._undo(self._offers[unit])

    def _let_go_of_offers(self, slot: int) -> None:
        """Those of before do not count, as of a slot that is heard. Where what was listed is of no use, who
        knows what else was heard? Then the next registration tells which of them were requested."""
        for local in list(self._offers.values()) if self._is_complete else ():
            if local.offered < slot:
                self._undo(local)

    def _ask_to_register(self) -> None:
        self._is_complete = False
        self._out.append(Register())

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
            case None if local.stage is Stage.QUEUED:
                self._prepare_offer(local)
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
            elif other is not None and other.stage is Stage.QUEUED and other.unit in self._offers:
                self._undo(other)

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
