"""Who does all that in a process? A site of actions, beside a replica of the ledger.

::

    replica = Replica(ActionLedger, config)
    participant = SqlParticipant("sqlite:////var/lib/bank/accounts.db", bank)
    async with replica, ActionManager(replica, site="site-a", participant=participant) as manager:
        async with manager.action("transfer-42") as action:
            await action.at("site-a", debit("alice", 10))
            await action.at("site-b", credit("bob", 10))

It registers its name, follows its duties at its own replica, and has ``SiteCore`` say what to do; what that
says it does with the participant, and tells the ledger. After being away it registers again. When another
process takes the name it stops with ``Superseded``. Units that were prepared in another chain are in doubt:
they are reported and left as they are, until somebody settles them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from heapq import heappop, heappush
from typing import Any, Final, Self

import msgspec

from apps.actions.binding import Binder, bind_question, describe_question
from apps.actions.doubts import Desk, doubts_name
from apps.actions.errors import ActionError, ActionMisused, OperationFailed, ResultChanged, Superseded
from apps.actions.figures import SiteCounts
from apps.actions.initiator import (
    AttemptAnswer,
    AttemptChanged,
    Attempted,
    AttemptFailed,
    AttemptRejected,
    Initiator,
    offer_question,
    question_name,
)
from apps.actions.ledger import ActionLedger
from apps.actions.offers import Offers
from apps.actions.operations import words_of
from apps.actions.participant import Participant, Prepared, Recovered, Unit
from apps.actions.site import SiteCore
from apps.actions.types import (
    Abort,
    Action,
    CastVote,
    Commit,
    Duty,
    EarlyVote,
    Offer,
    Operation,
    Prepare,
    Register,
    Registered,
    ReportFinished,
    RetryLater,
    SiteEffect,
    Task,
    TellReady,
)
from ordering.errors import OrderingError
from rsm.errors import CallError, ChainChanged, OutcomeUnknown, Rejected, RsmError
from rsm.feeds import Feed
from rsm.figures import Figure
from rsm.logs import Throttle, logger
from rsm.replica import Replica

log = logger(__name__)

ATTEMPTS_AT_ONCE: Final = 4  # at the participant: what was decided does not wait behind more of them
REPORTS_MAX: Final = 256
REPORT_SECONDS: Final = 0.05
REPORT_BUSY_SECONDS: Final = 0.2  # where one report follows the other
PAUSE_SECONDS: Final = 0.05  # before something is tried again; it doubles
PAUSE_SECONDS_MAX: Final = 5.0
CLOSE_SECONDS: Final = 5.0
UNREGISTER_SECONDS: Final = 2.0
SWEEP_SECONDS: Final = 30.0  # between two looks for what other processes have left
DONE_KEPT: Final = 4096
SETTLED_KEPT: Final = 1000
SAID_AGAIN_S: Final = 10.0


class ActionManager(Initiator):
    """The site ``site``, whose database is ``participant``, beside ``replica``."""

    def __init__(
        self, replica: Replica[ActionLedger], *, site: str, participant: Participant, offers: bool = True
    ) -> None:
        super().__init__(replica, name=site, offers=offers)
        self.site = site
        self.in_doubt: dict[Unit, Prepared] = {}
        self._replica = replica
        self._participant = participant
        self._core = SiteCore()
        self._chain = 0
        self._older: dict[str, int] = {}  # committed units of chains before, and these
        self._counts = SiteCounts(site)
        self._attempts = asyncio.Semaphore(ATTEMPTS_AT_ONCE)
        binder = Binder(participant.operations)
        self._settled: dict[Unit, bool] = {}  # whether they were committed
        self._settling: dict[Unit, tuple[bool, asyncio.Future[None]]] = {}
        desk = Desk(
            lambda: self.in_doubt, self._settled, lambda unit, commit: self.settle(unit, commit=commit)
        )
        self._questions = {
            question_name(site): self._answer,
            offer_question(site): self._take_offer,
            doubts_name(site): desk.answer,
            bind_question(site): binder.bind,
            describe_question(site): binder.describe,
        }
        self._offered: list[str] = []  # of these questions
        self._recovered: tuple[str, ...] = ()  # units of this chain that were found prepared
        self._at_work: dict[asyncio.Task[None], None] = {}  # at the participant
        self._is_entered = False
        self._incarnation = 0  # that was registered last
        self._is_registered = False  # no other registration is needed, as far as we know
        self._ready: asyncio.Future[None]
        self._over: asyncio.Future[None]
        self._running: asyncio.Task[None] | None = None
        self._offers_here = Offers(self._withdraw_votes, lambda s: self._unless_over(asyncio.sleep(s)))
        self._keeping: asyncio.Task[None] | None = None
        self._pauses: dict[str, float] = {}  # of units that could not be finished
        self._reports: dict[str, str] = {}  # units, and errors
        self._reporting: asyncio.Task[None] | None = None
        self._done: dict[str, None] = {}  # units that were applied lately
        self._heard = 0  # the slot up to which duties are known
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}  # for a unit to be applied, or to fail
        self._unheard: list[tuple[int, str]] = []  # a heap: of these units, those decided behind that slot
        self._listed: dict[str, None] | None = None  # units of duties, between RESET and COMPLETE
        self._marks: dict[Unit, None] = {}  # found at the start
        self._forgettable: list[Unit] = []
        self._throttle = Throttle(SAID_AGAIN_S)
        self._next_sweep = 0.0
        self._next_report = 0.0  # before, it is one of many

    # -- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Returns when it is registered, and knows what there is to be done. Once: for another life make
        another manager."""
        if self._is_entered:
            raise ActionMisused(f"{self.site}: this manager was started before; make another")
        self._is_entered = True
        loop = asyncio.get_running_loop()
        self._ready, self._over = loop.create_future(), loop.create_future()
        for future in (self._ready, self._over):
            future.add_done_callback(lambda each: each.cancelled() or each.exception())
        await self._participant.open()
        try:
            for name, handler in self._questions.items():
                self._replica.answer(name, handler)
                self._offered.append(name)
            self._replica.show_figures(question_name(self.site), self._figures)
            self._running = loop.create_task(self._run())
            await self._ready
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """The name is away from here on. What is under way at the database is waited for."""
        self._withdraw()
        if self._running is not None and self._is_registered:
            await self._let_go()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if not self._over.done():
            self._over.set_result(None)
        await self._unregister()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await super().__aexit__()
        await self._participant.close()

    async def _let_go(self) -> None:
        """Of what was voted for and is not requested; if that takes too long, who is next here does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNREGISTER_SECONDS):
                letting_go = asyncio.ensure_future(self._offers_here.let_go(self._core))
                await self._unless_over(letting_go)

    async def _unregister(self) -> None:
        """So that nobody waits for this site. If it cannot be ordered, its replica's leaving says so."""
        if not self._incarnation:
            return
        try:
            async with asyncio.timeout(UNREGISTER_SECONDS):
                await self.ledger.unregister(self.site, self._incarnation)
        except (RsmError, OrderingError, TimeoutError) as error:
            log.info("a site goes without a word", site=self.site, error=f"{type(error).__name__}: {error}")

    async def ended(self) -> None:
        """Returns when it was closed, and raises why if it has stopped by itself."""
        await asyncio.shield(self._over)

    async def _run(self) -> None:
        watching = asyncio.ensure_future(self._replica.ended())
        working = asyncio.ensure_future(self._work())
        try:
            await asyncio.wait([watching, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
            await watching
            self._stop(ActionError("its replica was stopped"))
        except Exception as error:  # noqa: BLE001 - told by ``ended``
            self._stop(error)
        finally:
            for task in (watching, working):
                task.cancel()
            await asyncio.gather(watching, working, return_exceptions=True)

    def _stop(self, error: Exception) -> None:
        log.error("a site of actions has stopped", site=self.site, error=f"{type(error).__name__}: {error}")
        self._withdraw()
        self._core = SiteCore()  # what is under way ends, and nothing follows
        for future in (self._ready, self._over):
            if not future.done():
                future.set_exception(error)
        self._wake_all()

    def _withdraw(self) -> None:
        """Answer nothing more. Somebody else may do that here by now."""
        while self._offered:
            self._replica.answer(self._offered.pop(), None)
            self._replica.show_figures(question_name(self.site), None)
        self._offers_here.refuse_all()

    def _figures(self) -> Iterator[Figure]:
        return self._counts.figures(in_doubt=len(self.in_doubt), under_way=len(self._at_work))

    async def _work(self) -> None:
        while True:
            await self._register()
            with contextlib.suppress(ChainChanged):
                async for page in self._replica.follow(ActionLedger.duties, 0, self.site):
                    if self._is_older(page):
                        break
                    self._hear(page)
                    if not self._is_registered:
                        break
            self._is_registered = False  # until then, nothing that would be offered could be requested

    def _is_older(self, page: Feed[Duty]) -> bool:
        """Whether the ledger does not know of the registration: it is that of another chain by now."""
        return any(
            duty.task is Task.RESET and duty.incarnation < self._core.incarnation for duty in page.events
        )

    # -- its registration ------------------------------------------------------------------------

    async def _register(self) -> None:
        registered = await self._order_registration()
        if registered.chain != self._chain:
            await self._begin_chain(registered.chain)
        log.info("a site is registered", site=self.site, incarnation=registered.incarnation)
        self._is_registered, self._incarnation = True, registered.incarnation
        recovered, self._recovered = self._recovered, ()
        self._do(self._core.begin(registered.incarnation, recovered))

    async def _order_registration(self) -> Registered:
        """As often as it takes. Only the first one takes the name from who has it."""
        pause = PAUSE_SECONDS
        while True:
            try:
                if self._core.incarnation:
                    await self._check_name()
                member = self._replica.member
                return await self.ledger.register(self.site, member.site, f"{member.boot:032x}")
            except (OutcomeUnknown, CallError, OrderingError) as error:
                if isinstance(error, Rejected) and error.message == "bad_request":
                    raise ActionMisused(f"{self.site!r} is no name for a site: {error.detail}") from None
                self._say_once("a site cannot register yet", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _check_name(self) -> None:
        """Of this very process may be another registration that was ordered late: it is not somebody else."""
        member = self._replica.member
        own = (member.site, f"{member.boot:032x}")
        for each in await self.ledger.sites():
            if each.name == self.site and each.is_here and (each.site, each.boot) != own:
                raise Superseded(
                    f"{self.site}: another process has taken this name, at {each.address or each.boot}"
                )

    async def _begin_chain(self, chain: int) -> None:
        """What was prepared before in another chain nobody can decide any more."""
        self._core = SiteCore()  # that of the chain before hears nothing any more of what is under way
        if self._at_work:
            await asyncio.wait(list(self._at_work))
        self._wake_all()
        self._offers_here.refuse_all()
        self._keeping = None
        self._reports.clear()
        self._reporting = None  # who reports for the chain before ends by itself
        self._done.clear()
        self._heard = 0
        self._unheard.clear()
        self._pauses.clear()
        self._older.clear()
        self._chain = chain
        found = await self._recover()
        self._recovered = tuple(each.unit.name for each in found.prepared if each.unit.chain == chain)
        self._marks = dict.fromkeys(found.applied)
        for unit in found.applied:  # an operator may not know yet that a word of before has counted
            if unit.chain != chain:
                self._note_settled(unit, committed=True)
        self.in_doubt = {each.unit: each for each in found.prepared if each.unit.chain != chain}
        for unit, prepared in self.in_doubt.items():
            log.error(
                "in doubt: prepared in a chain that is not the group's any more, and left as it is; find out"
                " what the other sites did, and settle it",
                site=self.site,
                unit=unit.name,
                chain=f"{unit.chain:x}",
                operations=[each.name for each in prepared.operations],
            )

    async def _recover(self) -> Recovered:
        pause = PAUSE_SECONDS
        while True:
            try:
                return await self._participant.recover()
            except Exception as error:  # noqa: BLE001 - the database's; it may come back
                self._say_once("a database does not tell what is prepared", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def settle(self, unit: Unit, *, commit: bool) -> None:
        """Commit or abort a unit that is in doubt, on an operator's word. If other sites did the opposite,
        the action is not atomic any more. It goes on if who waits for it goes, and may be said again."""
        committed = self._settled.get(unit)
        if committed is None and unit in self._settling:
            committed = self._settling[unit][0]
        if committed is not None and committed is not commit:
            words = "committed" if committed else "aborted"
            raise ActionMisused(f"{unit.name} of chain {unit.chain:x}: it is {words} at {self.site}")
        if unit in self._settled:
            return
        if unit not in self._settling:
            if unit not in self.in_doubt:
                raise ActionMisused(f"{unit.name} of chain {unit.chain:x} is not in doubt at {self.site}")
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            told.add_done_callback(lambda each: each.cancelled() or each.exception())
            self._settling[unit] = commit, told
            self._begin(self._settle(self.in_doubt[unit], told, commit=commit))
        await asyncio.shield(self._settling[unit][1])

    async def _settle(self, prepared: Prepared, told: "asyncio.Future[None]", *, commit: bool) -> None:
        unit = prepared.unit
        try:
            if commit:
                await self._participant.commit(unit, prepared.operations)
                self._forgettable.append(unit)
            else:
                await self._participant.abort(unit)
            self.in_doubt.pop(unit, None)
            self._note_settled(unit, committed=commit)
            log.warning("settled by hand", site=self.site, unit=unit.name, committed=commit)
            told.set_result(None)
        except Exception as error:  # noqa: BLE001 - the operator is told; it is in doubt as before
            told.set_exception(error)
        finally:
            del self._settling[unit]
            told.cancel()

    def _note_settled(self, unit: Unit, *, committed: bool) -> None:
        self._settled[unit] = committed
        if len(self._settled) > SETTLED_KEPT:
            del self._settled[next(iter(self._settled))]

    # -- duties ----------------------------------------------------------------------------------

    def _hear(self, page: Feed[Duty]) -> None:
        for duty in page.events:
            if duty.task is Task.RESET:
                self._listed = {}
            elif duty.task is Task.COMPLETE and self._listed is not None:
                self._forget_others(self._listed)
                self._listed = None
                if not self._ready.done():
                    self._ready.set_result(None)
            elif self._listed is not None:
                self._listed[duty.unit] = None
            if duty.task is Task.COMMIT and duty.chain != self._chain:
                self._bring_along(Unit(duty.unit, duty.chain))
        self._do(self._core.hear(page))
        if self._is_registered:  # else what was listed may have been of no use
            self._heard = max(self._heard, page.position)
        self._offers_here.heard(self._core)
        self._wake_ended(was_listed=any(duty.task is Task.COMPLETE for duty in page.events))

    def _bring_along(self, unit: Unit) -> None:
        """It was committed in a chain before, and the ledger still knows that: there is no doubt."""
        self._older[unit.name] = unit.chain
        if self.in_doubt.pop(unit, None) is not None:
            log.warning(
                "not in doubt any more: the ledger has it as committed", site=self.site, unit=unit.name
            )

    def _unit(self, name: str) -> Unit:
        return Unit(name, self._older.get(name, self._chain))

    def _forget_others(self, listed: dict[str, None]) -> None:
        """Marks that were found and that the ledger does not ask for: it was told before the crash."""
        needed = set(map(self._unit, listed))
        self._forgettable.extend(unit for unit in self._marks if unit not in needed)
        self._marks = {}

    def _do(self, effects: list[SiteEffect]) -> None:
        core = self._core
        for effect in effects:
            match effect:
                case Prepare(unit, operations):
                    self._begin(self._prepare(core, unit, operations))
                case Commit(unit, operations):
                    self._begin(self._commit(core, unit, operations))
                case Abort(unit):
                    self._begin(self._abort_here(core, unit))
                case CastVote():
                    self._spawn(self._vote(core, effect))
                case TellReady():
                    self._offers_here.tell(effect)
                case ReportFinished(unit, error):
                    self._reports[unit] = error
                    if self._reporting is None:
                        self._reporting = self._spawn(self._report(core))
                case RetryLater(unit):
                    self._spawn(self._retry(core, unit))
                case Register():
                    self._is_registered = False

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """At the participant."""
        task = self._spawn(work)
        self._at_work[task] = None
        task.add_done_callback(self._at_work.pop)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """What goes wrong in the background goes wrong for the site."""
        task = super()._spawn(work)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._stop(error)
            if self._running is not None:
                self._running.cancel()

    async def _prepare(self, core: SiteCore, unit: str, operations: tuple[Operation, ...]) -> None:
        named = self._unit(unit)
        error = await _error_of(self._participant.prepare(named, operations))
        self._counts.note("prepare", error)
        if not self._is_current(core):
            await self._undo(
                named
            )  # nobody votes for it any more, and who has the name now missed it perhaps
        elif error and asyncio.get_running_loop().time() >= self._next_sweep:
            self._next_sweep = asyncio.get_running_loop().time() + SWEEP_SECONDS
            self._begin(self._sweep(core))
        self._heed(core, lambda: core.prepared(unit, error))

    async def _sweep(self, core: SiteCore) -> None:
        """Who had the name before may have been killed behind a preparation that it had begun in its time and
        ended in ours. It was not voted for, and is in the way of others."""
        try:
            found = await self._participant.recover()
        except Exception as error:  # noqa: BLE001 - the database's; the next one may find more
            self._say_once("a database does not tell what is prepared", error)
            return
        for each in found.prepared:
            if self._is_current(core) and each.unit.chain == self._chain and not core.has(each.unit.name):
                log.warning("prepared by another process, and undone", site=self.site, unit=each.unit.name)
                await self._undo(each.unit)

    async def _undo(self, unit: Unit) -> None:
        """What was not voted for. If that fails, whoever has the name next finds it."""
        error = await _error_of(self._participant.abort(unit))
        if error:
            self._say_once("what was not voted for cannot be undone here", error, unit=unit.name)

    async def _commit(self, core: SiteCore, unit: str, operations: tuple[Operation, ...]) -> None:
        error = ""
        if unit not in self._done:
            error = await _error_of(self._participant.commit(self._unit(unit), operations))
            self._counts.note("commit", error)
        if error:
            self._say_once("a committed unit cannot be applied here, and is tried again", error, unit=unit)
        else:
            self._pauses.pop(unit, None)
            self._done[unit] = None
            if len(self._done) > DONE_KEPT:
                del self._done[next(iter(self._done))]
        self._wake(unit)
        self._heed(core, lambda: core.committed(unit, error))

    async def _abort_here(self, core: SiteCore, unit: str) -> None:
        error = await _error_of(self._participant.abort(self._unit(unit)))
        self._counts.note("abort", error)
        if error:
            self._say_once("an aborted unit cannot be undone here, and is tried again", error, unit=unit)
        else:
            self._pauses.pop(unit, None)
            self._wake(unit)  # of a committed one nobody waits for this site any more
        self._heed(core, lambda: core.aborted(unit, error))

    async def _retry(self, core: SiteCore, unit: str) -> None:
        pause = self._pauses.get(unit, PAUSE_SECONDS)
        self._pauses[unit] = min(2 * pause, PAUSE_SECONDS_MAX)
        await self._unless_over(asyncio.sleep(pause))
        self._heed(core, lambda: core.retry(unit))

    def _heed(self, core: SiteCore, told: Callable[[], list[SiteEffect]]) -> None:
        """Unless another chain has begun meanwhile, or it has stopped."""
        if self._is_current(core):
            self._do(told())

    def _is_current(self, core: SiteCore) -> bool:
        return core is self._core and not self._over.done()

    async def _unless_over(self, work: Awaitable[None]) -> None:
        waiting = asyncio.ensure_future(work)
        try:
            await asyncio.wait([waiting, self._over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    # -- what the ledger is told -----------------------------------------------------------------

    async def _vote(self, core: SiteCore, vote: CastVote) -> None:
        """Until it is ordered, or does not count any more."""
        pause = PAUSE_SECONDS
        while core is self._core and vote.incarnation == core.incarnation and not self._over.done():
            try:
                await self.ledger.vote(vote.unit, self.site, vote.incarnation, vote.yes, vote.reason)
                return
            except Rejected as refusal:
                log.debug("a vote does not count", unit=vote.unit, why=refusal.message)
                return
            except (RsmError, OrderingError) as error:
                self._say_once("a vote is not ordered yet", error)
                await self._unless_over(asyncio.sleep(pause))
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _report(self, core: SiteCore) -> None:
        """Many at a time, a moment after the first. Each chain has its own: what another has to tell is not
        for this one to take."""
        loop = asyncio.get_running_loop()
        pause = REPORT_SECONDS if loop.time() > self._next_report else REPORT_BUSY_SECONDS
        while self._reports and core is self._core:
            if len(self._reports) < REPORTS_MAX:
                await self._unless_over(asyncio.sleep(pause))
                if core is not self._core:
                    return
            # What comes meanwhile comes again, under a registration that may be another by then.
            some = [(unit, self._reports.pop(unit)) for unit in [*self._reports][:REPORTS_MAX]]
            try:
                await self.ledger.finished(self.site, core.incarnation, some)
                applied = [unit for unit, error in some if not error]
            except Rejected as refusal:  # another registration tells what is missing
                log.debug("reports do not count", why=refusal.message)
                applied = []
            except (RsmError, OrderingError) as error:
                self._say_once("finished units are not reported yet", error)
                if core is not self._core or self._over.done():
                    return
                self._reports = dict(some) | self._reports
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
                continue
            if core is not self._core:
                return
            self._reported(core, applied)
            self._next_report = loop.time() + REPORT_BUSY_SECONDS
            pause = REPORT_BUSY_SECONDS
        if core is self._core:
            self._reporting = None

    def _reported(self, core: SiteCore, applied: list[str]) -> None:
        self._heed(core, lambda: core.reported(applied))
        self._forgettable.extend(map(self._unit, applied))
        for unit in applied:
            self._older.pop(unit, None)
        if len(self._forgettable) >= REPORTS_MAX:
            some, self._forgettable = self._forgettable, []
            self._spawn(self._forget(some))

    async def _forget(self, units: list[Unit]) -> None:
        error = await _error_of(self._participant.forget(units))
        if error:
            self._say_once("marks cannot be forgotten", error)

    async def applied_here(self, action: Action) -> None:
        if self.site not in action.sites or self._over.done():
            return
        is_heard = action.decided <= self._heard
        if is_heard and not self._core.owes(action.unit):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(action.unit, []).append(future)
        if not is_heard:
            heappush(self._unheard, (action.decided, action.unit))
        await future

    def _wake_ended(self, *, was_listed: bool) -> None:
        """Those that wait for what has nothing left to do here, as is known by now."""
        heard = []
        while self._unheard and self._unheard[0][0] <= self._heard:
            heard.append(heappop(self._unheard)[1])
        if was_listed:  # what the ledger waits for no longer is among no duties, whenever it was decided
            unheard = {unit for _, unit in self._unheard}
            heard = [unit for unit in self._waiting if unit not in unheard]
        for unit in heard:
            if not self._core.owes(unit):
                self._wake(unit)

    def _wake(self, unit: str) -> None:
        for each in self._waiting.pop(unit, ()):
            if not each.done():
                each.set_result(None)

    def _wake_all(self) -> None:
        for unit in list(self._waiting):
            self._wake(unit)

    # -- offers ----------------------------------------------------------------------------------

    async def _take_offer(self, question: bytes) -> bytes:
        """Prepare before it is requested. Who asks may go meanwhile; what it has begun ends by the order."""
        offer = msgspec.msgpack.decode(question, type=Offer)
        core, chain = self._core, self._chain
        vote: EarlyVote | None = None
        if self._is_registered and not self._over.done():
            waiting = self._offers_here.wait(offer.unit)
            self._do(core.offer(offer.unit, offer.operations))
            if self._keeping is None:
                self._keeping = self._spawn(self._keep_offers(core))
            told = await waiting
            if told.is_vote:
                yes, heard = not told.error, told.heard
                vote = EarlyVote(self.site, yes, told.error, chain, told.incarnation, heard)
        return msgspec.msgpack.encode(vote)

    async def _keep_offers(self, core: SiteCore) -> None:
        await self._offers_here.keep(core, self._is_current)
        if core is self._core:
            self._keeping = None

    async def _withdraw_votes(self, core: SiteCore) -> None:
        try:
            await self.ledger.withdraw(self.site, core.incarnation)
        except Rejected as refusal:  # another registration ends them
            log.debug("votes are not withdrawn", why=refusal.message)
        except (RsmError, OrderingError) as error:
            self._say_once("early votes are not withdrawn yet", error)

    # -- attempts --------------------------------------------------------------------------------

    async def _answer(self, question: bytes) -> bytes:
        operations = msgspec.msgpack.decode(question, type=tuple[Operation, ...])
        answer: AttemptAnswer
        try:
            async with self._attempts:
                answer = Attempted((await self._participant.attempt(operations))[-1])
        except Rejected as refusal:
            answer = AttemptRejected(refusal.message, refusal.detail)
        except OperationFailed as error:
            answer = AttemptFailed(error.operation, error.kind, error.message)
        except ResultChanged as error:
            answer = AttemptChanged(str(error))
        return msgspec.msgpack.encode(answer)

    def _say_once(self, what: str, error: Exception | str, **fields: str) -> None:
        words = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        if (unsaid := self._throttle.admits((what, words))) is not None:
            log.warning(what, site=self.site, error=words, **fields, **unsaid)


async def _error_of(work: Awaitable[None]) -> str:
    """What a participant has raised, in words; empty if nothing."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a vote no, or is tried again
        words = words_of(error)
        if not words or not isinstance(error, Rejected | ActionError):
            words = f"{type(error).__name__}: {words}"
        # What cannot be sent, or is too large to be, would keep the vote from being ordered.
        return words[: ActionLedger.limits.reason_max].encode(errors="backslashreplace").decode()
    return ""
