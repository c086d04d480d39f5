"""The program at a site: what ``ActionManager`` is in a process of its own, in virtual time."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

from apps.actions.ledger import ActionLedger
from apps.actions.simulation.bank import Bank, Disk, Witness
from apps.actions.site import SiteCore
from apps.actions.types import (
    Abort,
    CastVote,
    Commit,
    EarlyVote,
    Offer,
    Prepare,
    Register,
    Registered,
    ReportFinished,
    RetryLater,
    SiteEffect,
    Task,
    TellReady,
)
from ordering.config import MS
from ordering.errors import SubmitError
from ordering.simulator.cluster import Cluster
from rsm import envelope
from rsm.errors import CallError, RsmError
from rsm.methods import Catalogue
from rsm.testing.hosting import Host

LOOK_NS: Final = 40 * MS  # how often it looks although nobody has told it to
REGISTER_AGAIN_NS: Final = 60 * MS
REPORT_NS: Final = 30 * MS
RETRY_NS: Final = 50 * MS
AGAIN_NS: Final = 50 * MS
WITHDRAW_LOOKS: Final = 6  # between two looks at what was offered and is not requested
RESTARTS: Final = 50  # one look of so many ends in a restart of the program


Answer: TypeAlias = Callable[[EarlyVote | None], None]


class SiteProgram:
    """It dies with its host's process, and is begun anew with the next. Its disk stays."""

    def __init__(self, host: Host, catalogue: Catalogue, rng: Random, witness: Witness) -> None:
        self.host = host
        self.name = host.address
        self.catalogue = catalogue
        self.rng = rng
        self.witness = witness
        self.disk = Disk()
        self.is_calm = False
        self.cluster: Cluster
        self.bank: Bank
        self.core: SiteCore
        self.life = 0
        self.lives = False
        self.chain = 0
        self.position = 0
        self.is_registering = False
        self.registered = 0  # the incarnation, 0 before
        self._reports: dict[str, str] = {}
        self._reporting = False
        self._awake = False
        self._asked: dict[str, list[Answer]] = {}  # who has offered a unit
        self._offers: set[str] = set()  # that were there at the last look
        self._looks = 0
        host.residents.append(self)

    # -- life ------------------------------------------------------------------------------------

    def started(self, cluster: Cluster) -> None:
        """A process is there; it may be the same as before with another membership."""
        self.cluster = cluster
        if self.lives:
            return
        self.life += 1
        self.lives = True
        self.registered, self.is_registering = 0, False
        self._reports, self._reporting, self._awake = {}, False, False
        self._asked, self._offers = {}, set()
        self.core = SiteCore()
        self.bank = Bank(self.name, self.disk, self.rng, self.witness, self._later)
        self.bank.is_calm = self.is_calm
        self._register()
        self._later(LOOK_NS, self._look_again)

    def died(self) -> None:
        if self.lives:
            self.lives = False
            self.bank.crash()

    def calm(self) -> None:
        self.is_calm = True
        if self.lives:
            self.bank.is_calm = True

    def _later(self, after_ns: int, call: Callable[[], object]) -> None:
        self.cluster.clock.after(after_ns, partial(self._soon, self.life, call))

    def _soon(self, life: int, call: Callable[[], object]) -> None:
        """Who is called before it in the same turn of the loop may end the program."""
        self.host.loop.call_soon(self._if_alive, life, call)

    def _if_alive(self, life: int, call: Callable[[], object]) -> None:
        if self.lives and life == self.life:
            call()

    # -- commands --------------------------------------------------------------------------------

    def _call(self, name: str, args: tuple[Any, ...], then: Callable[[Any], None]) -> None:
        """Until it is answered: all of these may be carried out twice."""
        method = self.catalogue.command(name)
        again = partial(self._later, AGAIN_NS, partial(self._call, name, args, then))
        try:
            future = self.host.calls.execute(method.bind(args, {}))
        except SubmitError:
            again()
            return

        def answered(future: Any) -> None:
            try:
                value = envelope.result_of(future.result().reply, method)
            except CallError as refusal:
                then(refusal)
            except (RsmError, SubmitError):
                again()
            else:
                then(value)

        future.add_done_callback(partial(self._unless_over, self.life, answered))

    def _unless_over(self, life: int, answered: Callable[[Any], None], future: Any) -> None:
        """A call of a program that has ended may still be carried out; its answer is nobody's."""
        if self.lives and life == self.life:
            answered(future)

    def _register(self) -> None:
        if self.is_registering:
            return
        self.is_registering = True
        process = self.host.process
        if process is None:
            self._later(REGISTER_AGAIN_NS, self._register_again)
            return
        member = process.member
        self._call("register", (self.name, member.site, f"{member.boot:032x}"), self._registered)

    def _register_again(self) -> None:
        self.is_registering = False
        self._register()

    def _registered(self, result: Registered | CallError) -> None:
        if isinstance(result, CallError):  # it is not in the ring yet
            self._later(REGISTER_AGAIN_NS, self._register_again)
            return
        self.is_registering = False
        self.registered, self.chain, self.position = result.incarnation, result.chain, 0
        recovered = [unit for unit, (chain, _) in self.disk.intents.items() if chain == self.chain]
        self._carry_out(self.core.begin(result.incarnation, recovered))
        self.wake()

    # -- duties ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something new."""
        if self.lives and not self._awake:
            self._awake = True
            self.host.loop.call_soon(self._look)

    def _look_again(self) -> None:
        if not self.is_calm and self.rng.randrange(RESTARTS) == 0:
            self._restart()
            return
        self.wake()
        self._looks += 1
        if self._looks % WITHDRAW_LOOKS == 0:
            offers = set(self.core.offers)
            if offers & self._offers:
                self._call("withdraw", (self.name, self.registered), _ignore)
            self._offers = offers
        self._later(LOOK_NS, self._look_again)

    def offer(self, after_ns: int, offer: Offer, answer: Answer) -> None:
        """It comes after a while, unless the program ends before."""
        if self.lives:
            self._later(after_ns, partial(self._take_offer, offer, answer))

    def _take_offer(self, offer: Offer, answer: Answer) -> None:
        if not self.registered or self.is_registering:
            answer(None)
            return
        self._asked.setdefault(offer.unit, []).append(answer)
        self._carry_out(self.core.offer(offer.unit, offer.operations))

    def _tell_ready(self, told: TellReady) -> None:
        vote: EarlyVote | None = None
        if told.is_vote:
            yes, heard = not told.error, told.heard
            vote = EarlyVote(self.name, yes, told.error, self.chain, told.incarnation, heard)
        for answer in self._asked.pop(told.unit, ()):
            answer(vote)

    def _restart(self) -> None:
        """The manager alone, in a process that stays: nobody sees that but by its registration, or by its
        word, which comes sooner or later."""
        if self.registered and self.rng.randrange(2):
            self._call("unregister", (self.name, self.registered), _ignore)
        self.died()
        self.started(self.cluster)

    def _look(self) -> None:
        self._awake = False
        replica = self.host.replica
        if not self.registered or self.is_registering or replica is None or not replica.intake.ready:
            return
        executor = replica.intake.executor
        if executor.applied < self.registered or executor.group.chain != self.chain:
            return  # it does not know of the registration yet
        machine = executor.machine
        assert isinstance(machine, ActionLedger)
        page = machine.duties(self.position, self.name)
        self.position = page.position
        self._carry_out(self.core.hear(page))
        for unit in dict.fromkeys(duty.unit for duty in page.events if duty.task is Task.PREPARE):
            self.witness.waiting(self.name, unit, self.core.offers_before(unit))
        if page.position < 0:
            self.wake()

    def _carry_out(self, effects: list[SiteEffect]) -> None:
        core, bank = self.core, self.bank
        for effect in effects:
            match effect:
                case Prepare(unit, operations):
                    bank.prepare(unit, self.chain, operations, self._ended(core.prepared))
                case Commit(unit):
                    bank.commit(unit, self._ended(core.committed))
                case Abort(unit):
                    bank.abort(unit, self._ended(core.aborted))
                case CastVote(unit, incarnation, yes, reason):
                    self._call("vote", (unit, self.name, incarnation, yes, reason), _ignore)
                case TellReady():
                    self._tell_ready(effect)
                case ReportFinished(unit, error):
                    self._reports[unit] = error
                    self._report_soon()
                case RetryLater(unit):
                    self._later(RETRY_NS, partial(self._retry, unit))
                case Register():
                    self._register()

    def _ended(self, tell: Callable[[str, str], list[SiteEffect]]) -> Callable[[str, str], None]:
        return lambda unit, error: self._carry_out(tell(unit, error))

    def _retry(self, unit: str) -> None:
        self._carry_out(self.core.retry(unit))

    # -- reports ---------------------------------------------------------------------------------

    def _report_soon(self) -> None:
        if not self._reporting and self._reports:
            self._reporting = True
            self._later(REPORT_NS, self._report)

    def _report(self) -> None:
        reports, self._reports = self._reports, {}
        args = (self.name, self.registered, list(reports.items()))
        self._call("finished", args, partial(self._reported, reports))

    def _reported(self, reports: dict[str, str], result: int | CallError) -> None:
        self._reporting = False
        if isinstance(result, CallError):  # of a registration that is over: they are asked for again
            self._report_soon()
            return
        done = [unit for unit, error in reports.items() if not error]
        self._carry_out(self.core.reported(done))
        self._report_soon()


def _ignore(result: object) -> None:
    """What became of a vote, the duties tell."""
