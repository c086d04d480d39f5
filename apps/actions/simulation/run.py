"""Play a seed of actions."""

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Final

from apps.actions.ledger import ActionLedger
from apps.actions.records import Limits
from apps.actions.simulation.bank import Witnesses
from apps.actions.simulation.checkers import ActionChecker, End, all_checkers
from apps.actions.simulation.initiators import Initiators
from apps.actions.simulation.sites import SiteProgram
from apps.actions.types import Action
from ordering.config import MS
from ordering.effects import Delivery
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.survivors import survivors
from ordering.simulator.cluster import Cluster
from ordering.simulator.plan import Plan
from ordering.simulator.process import Process
from ordering.simulator.run import Report
from ordering.simulator.run import simulate as run_plan
from ordering.views import SiteId
from rsm.executor import Executor
from rsm.methods import Catalogue
from rsm.sessions import SessionLimits
from rsm.testing.clients import Crew
from rsm.testing.hosting import Broken
from rsm.testing.judge import Judge
from rsm.testing.simulation import Application, Options

SECOND: Final = 1000 * MS
CLIENTS: Final = 6
LAST_S: Final = 8  # for what is under way when the group is well again
STATES_EVERY: Final = 64  # slots between two comparisons of whole states
HALTED: Final = "halted"


class ActionsPlan(Plan, frozen=True, kw_only=True):
    """Short and small: what is to be found needs few messages, and many seeds."""

    command: ClassVar[str] = "rsm sim --app actions"

    sites: int = 3
    seconds: int = 3
    rate: int = 40
    callers: int = 0
    sealed: bool | None = False


class CrampedLedger(ActionLedger):
    """Sites are told everything anew all the time, in many pages, and early votes are soon too old."""

    limits = Limits(aborts_kept_max=2, duties_max=2, asked_keys_max=2)


class ActionTeller(Checker):
    """Tells what becomes of actions, where it is first known."""

    name = "actions"

    def __init__(self, write: Callable[[object], None]) -> None:
        super().__init__()
        self._write = write
        self._told: dict[str, tuple[object, ...]] = {}

    def changed(self, now: int, host: str, action: Action) -> None:
        votes = ", ".join(f"{vote.site} {'yes' if vote.yes else 'no'}" for vote in action.votes)
        done = ", ".join(f"{each.site} {each.error or 'done'}" for each in action.finished)
        said = (action.state, votes, done)
        if self._told.get(action.id) != said:
            self._told[action.id] = said
            words = [f"{now // MS} ms {host}: {action.id} is {action.state.value}"]
            words += [part for part in (votes, done, action.reason) if part]
            self._write("; ".join(words))


class ActionsJudge(Judge):
    """Gives the checkers what ledgers say, and wakes the sites."""

    def __init__(self, application: "ActionsApplication") -> None:
        super().__init__(application.catalogue, application.hosts)
        self.application = application
        self._seen: dict[int, int] = {}  # of each process: the slot up to which it was looked at

    def on_start(self, process: Process, now: int) -> None:
        super().on_start(process, now)
        self.application.programs[process.address].started(self.application.cluster)

    def on_healed(self, cluster: Cluster, now: int) -> None:
        for program in self.application.programs.values():
            program.calm()

    def applied(self, site: SiteId, delivery: Delivery, replies: list[bytes], executor: Executor) -> None:
        unheard: list[bytes] = []
        for ts, message in enumerate(delivery.messages, delivery.first_ts):
            known = self.log.get(ts)
            if known is None:
                unheard.append(message)
            elif replies[ts - delivery.first_ts] and known.message != message:
                self.differ(ts, f"sites {known.site} and {site} have executed different messages")
        super().applied(site, delivery, replies, executor)
        for message in unheard:
            self._hear_vote(message)

    def _hear_vote(self, message: bytes) -> None:
        command: Any = getattr(self.language.decode(message), "command", None)
        if type(command) is self.application.vote_type:
            for checker in self.application.checkers:
                checker.voted(command.site, command.unit, yes=command.yes)

    def _compare_states(self, site: SiteId, first: int, last: int, executor: Executor) -> None:
        if last % STATES_EVERY == 0:
            super()._compare_states(site, first, last, executor)

    def on_settled(self, process: Process, now: int) -> None:
        """Whatever a replica was to execute, it has executed by now."""
        host = self.hosts[process.address]
        replica = host.replica
        if replica is None or host.process is not process or not replica.intake.ready:
            return
        executor = replica.intake.executor
        seen, view = self._seen.get(process.key, 0), executor.context.view
        if executor.applied == seen or view is None:
            return
        self._seen[process.key] = executor.applied
        application, machine = self.application, executor.machine
        assert isinstance(machine, ActionLedger)
        application.programs[process.address].wake()
        changes = machine.changes(min(seen, executor.applied)).events
        for checker in application.checkers:
            checker.now = now
            checker.stepped(process.address, machine, view)
            for action in changes:
                checker.changed(process.address, action)
        for teller in application.tellers:
            for action in changes:
                teller.changed(now, process.address, action)


class ActionsApplication(Application):
    """Sites with programs and disks, and initiators as clients."""

    def __init__(self, plan: Plan, tellers: list[ActionTeller]) -> None:
        options = Options(
            sites=plan.sites, faults=plan.faults.value, durable=plan.durable, clients=CLIENTS, rate=plan.rate
        )
        cramped = Random(f"limits {plan.seed}").randrange(3) == 0
        catalogue = Catalogue(CrampedLedger if cramped else ActionLedger)
        self.disks_rng = Random(f"disks {plan.seed}")
        self.checkers: list[ActionChecker] = all_checkers()
        self.tellers = tellers
        self.programs: dict[str, SiteProgram] = {}
        self.vote_type: Any = type(catalogue.command("vote").bind(("", "", 0, True, ""), {}))
        super().__init__(catalogue, self._calls, plan, options)
        self.judge = ActionsJudge(self)
        self.initiators: Initiators

    def _draw_limits(self) -> SessionLimits:
        """Sessions may be short, but not fewer than programs: they would only push each other out."""
        return SessionLimits(session_ms=Random(f"sessions {self.plan.seed}").choice((300, 60_000, 60_000)))

    def _calls(self, rng: Random) -> object:
        return self.initiators.calls(rng)

    def load(self, cluster: Cluster, rng: Random) -> Crew:
        for address, host in self.hosts.items():
            chance = Random(self.disks_rng.getrandbits(64))
            program = SiteProgram(host, self.catalogue, chance, Witnesses(self.checkers))
            self.programs[address] = program
        self.initiators = Initiators(self.programs, cluster.clock.after)
        crew = super().load(cluster, rng)
        cluster.wall_errors = {}  # else the group's time stands still, and no deadline comes
        return crew

    def finish(self) -> None:
        """The group is well by now; let deadlines pass, and sites finish."""
        cluster = self.cluster
        end = cluster.clock.now + LAST_S * SECOND
        while cluster.clock.now < end and not (self._is_quiet() or any(c.violations for c in self.checkers)):
            cluster.clock.run_until(cluster.clock.now + SECOND // 5)
        well = [process.address for process in survivors(cluster)]
        best = max(
            (self.hosts[address].replica for address in well),
            key=lambda replica: 0 if replica is None else replica.intake.executor.applied,
            default=None,
        )
        if best is None:
            return
        machine = best.intake.executor.machine
        assert isinstance(machine, ActionLedger)
        disks = {name: program.disk for name, program in self.programs.items()}
        for checker in self.checkers:
            checker.now = cluster.clock.now
            checker.finish(End(machine, disks, well))

    def _is_quiet(self) -> bool:
        """Nothing is left to do, or nobody is left to ask."""
        well = survivors(self.cluster)
        for process in well:
            replica = self.hosts[process.address].replica
            if replica is None or not isinstance(replica.intake.executor.machine, ActionLedger):
                return False
            machine = replica.intake.executor.machine
            names = [each.address for each in well]
            unfinished = [site for site in machine.sites() if site.name in names and site.unfinished]
            away = [site for site in machine.sites() if site.name in names and not site.is_here]
            if machine.alarm() is not None or unfinished or away:
                return False
        return not any(self.programs[each.address].disk.intents for each in well)


def run_actions(plan: Plan, extra: tuple[Checker, ...] = (), *, stop_broken: bool = False) -> Report:
    """Run a plan to its end, with sites and initiators on its ring."""
    tellers = [each for each in extra if isinstance(each, ActionTeller)]
    application = ActionsApplication(plan, tellers)
    found: list[str] = []
    try:
        report = run_plan(plan, (application.judge, *extra), stop_broken=stop_broken, application=application)
        application.finish()
    except Broken as broken:
        report = _broken_report(plan, application)
        found.append(f"{application.cluster.clock.now // MS}ms {HALTED}: {broken}")
    found += [f"0ms {each}" for each in application.judge.divergence()]
    for checker in application.checkers:
        found += checker.violations
    report.violations = [*found, *report.violations]
    return report


def _broken_report(plan: Plan, application: ActionsApplication) -> Report:
    """Of a run that came to no end."""
    return Report(
        plan=plan,
        violations=[],
        simulated_ns=application.cluster.clock.now,
        submitted=application.crew.submitted,
        refused=application.crew.refused,
        applied=0,
        views=0,
        packets=application.cluster.network.sent,
        faults={},
        pairs={},
        trace="",
    )
