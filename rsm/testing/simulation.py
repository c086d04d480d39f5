"""Many runs of a person's machine, and what they came to."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any, Final

import msgspec

from ordering.config import MS, Config
from ordering.simulator.checkers.survivors import survivors
from ordering.simulator.cluster import Cluster
from ordering.simulator.plan import FaultKind, FaultMix, Plan
from ordering.simulator.process import Replica
from ordering.simulator.run import Report as Run
from ordering.simulator.run import simulate as run_plan
from ordering.views import Member
from rsm.envelope import Language
from rsm.errors import MachineError
from rsm.executor import Executor
from rsm.linearizability import NEVER, Executed, Judgement, Key, Operation, Outcome, black_box, witness
from rsm.methods import Catalogue
from rsm.sessions import SessionLimits
from rsm.state_machine import StateMachine
from rsm.testing.clients import Client, Crew, Resident, Workload
from rsm.testing.hosting import Broken, Host
from rsm.testing.judge import Judge
from rsm.testing.twin import Twin, where

SECOND: Final = 1000 * MS
LAST_ANSWERS_S: Final = 5  # for clients, once the group is well
SEARCHED_MAX: Final = 300  # operations, from the beginning
STATES_MAX: Final = 20_000
FAILED_SEEDS_MAX: Final = 10


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Of all seeds."""

    sites: int = 5
    faults: str = "swarm"
    durable: bool | None = None
    clients: int = 8
    rate: int = 100
    seconds: int = 4

    def plan(self, seed: int) -> Plan:
        if self.faults not in set(FaultMix):
            raise ValueError(f"faults: {self.faults!r} must be one of {', '.join(FaultMix)}")
        return Plan(
            seed=seed,
            sites=self.sites,
            faults=FaultMix(self.faults),
            seconds=self.seconds,
            rate=self.rate,
            durable=self.durable,
            sealed=False,
            callers=0,
        )


class Failure(msgspec.Struct, frozen=True):
    """``replay`` is a line that plays the seed again."""

    seed: int
    replay: str
    violations: list[str]

    def __str__(self) -> str:
        return "\n".join(
            [f"seed {self.seed}:", *(f"  {each}" for each in self.violations), f"  {self.replay}"]
        )


class Report(msgspec.Struct, kw_only=True):
    """What all seeds came to. ``unknown`` operations are those whose caller never got an answer."""

    machine: str
    seeds: int = 0
    operations: int = 0
    unknown: int = 0
    refused: int = 0
    executed: int = 0
    repeated: int = 0
    searched: int = 0
    gave_up: int = 0
    views: int = 0
    simulated_ns: int = 0
    faults: dict[FaultKind, int] = msgspec.field(default_factory=dict)
    traces: dict[int, str] = msgspec.field(default_factory=dict)
    failures: list[Failure] = msgspec.field(default_factory=list)
    notes: dict[str, None] = msgspec.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failures

    def check(self) -> "Report":
        """Raise ``AssertionError`` with everything that was found, if anything was."""
        if self.failures:
            raise AssertionError(str(self))
        return self

    def __str__(self) -> str:
        words = (
            f"{self.machine}: {self.seeds} seeds, {self.simulated_ns / SECOND:.0f} s simulated,"
            f" {sum(self.faults.values())} faults, {self.views} views, {self.operations} operations"
            f" ({self.unknown} of unknown outcome), {self.executed} commands executed,"
            f" {self.repeated} repetitions, {len(self.failures)} failed seeds"
        )
        return "\n".join([words, *(f"note: {note}" for note in self.notes), *map(str, self.failures)])


class Application:
    """Puts hosts and clients in the place of the simulator's own."""

    def __init__(self, catalogue: Catalogue, workload: Workload, plan: Plan, options: Options) -> None:
        self.catalogue = catalogue
        self.workload = workload
        self.plan = plan
        self.options = options
        self.hosts: dict[str, Host] = {}
        self.judge = Judge(catalogue, self.hosts)
        self.cluster: Cluster
        self.crew: Crew

    def configure(self, config: Config) -> Config:
        """A group that may fork forgets answers, and says so: no machine could be judged by that."""
        plain = Config(group=config.group, founders=config.founders)
        limits = self._draw_limits()
        for address in config.founders:
            self.hosts[address] = Host(address, self.catalogue, limits, self.judge)
        return msgspec.structs.replace(
            config,
            durable=self.plan.is_durable,
            minimum_size=0,
            minority_ms=plain.minority_ms,
            orphan_ms=plain.orphan_ms,
        )

    def _draw_limits(self) -> SessionLimits:
        """In some runs sessions are few, or soon over: their clients must do with an unknown outcome."""
        rng = Random(f"sessions {self.plan.seed}")
        if self.plan.faults is not FaultMix.SWARM or rng.random() < 0.7:
            return SessionLimits()
        return SessionLimits(sessions_max=rng.choice((3, 6, 10_000)), session_ms=rng.choice((300, 3_000)))

    def replica(self, member: Member) -> Replica:
        return self.hosts[member.address].begin(self.cluster, member)

    def load(self, cluster: Cluster, rng: Random) -> Crew:
        self.cluster = cluster
        if self.plan.faults is not FaultMix.SWARM:  # which has its own, right and wrong
            cluster.wall_errors = {}
        hosts, options = list(self.hosts.values()), self.options
        self.crew = Crew(
            cluster, self.catalogue, hosts, self.workload, rng, clients=options.clients, rate=options.rate
        )
        return self.crew


class _Runner:
    """Plays one seed after the other."""

    def __init__(
        self,
        machine: type[StateMachine],
        workload: Workload,
        options: Options,
        key: Key | None,
        twin: Twin | None,
    ) -> None:
        self.machine = machine
        self.catalogue = Catalogue(machine)
        self.workload = workload
        self.options = options
        self.key = key
        self.twin = twin
        self.report = Report(machine=machine.__name__)
        self._try_snapshot()

    def _try_snapshot(self) -> None:
        """As a replica does when it is made: what can never be transferred needs no simulation."""
        language = Language(self.catalogue)
        try:
            first, second = (Executor(self.machine(), self.catalogue, language) for _ in range(2))
            second.restore(first.snapshot())
        except Exception as error:
            raise MachineError(
                f"{self.catalogue.name}: a snapshot of its first state cannot be taken and restored: {error}"
            ) from error

    def play(self, seed: int) -> None:
        report = self.report
        application = Application(self.catalogue, self.workload, self.options.plan(seed), self.options)
        try:
            run = run_plan(application.plan, (application.judge,), application=application)
            violations = list(run.violations)
            self._finish(application)
            self._count(application, run)
            violations += self._judge(application)
        except Broken as broken:
            violations = [f"halted: {broken}", *application.judge.divergence()]
        report.seeds += 1
        if violations:
            replay = replay_line(self.machine, self.workload, self.options, seed)
            report.failures.append(Failure(seed, replay, violations))

    def _finish(self, application: Application) -> None:
        """The group is well by now; who waits gets the time for a few tries more."""
        cluster, crew = application.cluster, application.crew
        end = cluster.clock.now + LAST_ANSWERS_S * SECOND
        while any(client.is_waiting for client in crew.clients) and cluster.clock.now < end:
            cluster.clock.run_until(cluster.clock.now + SECOND // 10)

    def _count(self, application: Application, run: Run) -> None:
        report, operations = self.report, application.crew.operations
        report.operations += len(operations)
        report.unknown += sum(each.outcome is Outcome.UNKNOWN for each in operations)
        report.refused += application.crew.refused
        report.repeated += sum(each.repeats > 0 for each in application.judge.log.values())
        report.views += run.views
        report.simulated_ns += run.simulated_ns
        report.traces[run.plan.seed] = f"{application.cluster.trace:08x}"
        for kind, count in run.faults.items():
            report.faults[kind] = report.faults.get(kind, 0) + count

    def _judge(self, application: Application) -> list[str]:
        judge, crew = application.judge, application.crew
        if not judge.differences and self.twin is not None:
            why_not = self.twin.compare(judge)
            if why_not:
                self.report.notes[why_not] = None
        diverged = judge.divergence()
        if diverged:
            return diverged  # all else follows from it
        order = list(judge.order())
        self.report.executed += sum(isinstance(each, Executed) for each in order)
        operations = [*crew.operations, *_under_way(crew)]
        problems = witness(operations, self.machine, executed=order)
        return [
            *(f"witness: {problem}" for problem in problems),
            *self._search(operations),
            *crew.complaints,
            *(f"no answer: {text}" for text in _unanswered(application)),
        ]

    def _search(self, operations: list[Operation]) -> list[str]:
        """The beginning of the history. What returned after the cut is unknown to it."""
        operations = sorted(operations, key=lambda each: each.call_ns)
        cut = operations[SEARCHED_MAX].call_ns if len(operations) > SEARCHED_MAX else NEVER
        sample = [_as_of(each, cut) for each in operations[:SEARCHED_MAX]]
        verdict = black_box(sample, self.machine, states_max=STATES_MAX, key=self.key)
        self.report.searched += len(sample)
        if verdict.judgement is Judgement.VIOLATION:
            return [f"black box: {verdict.explanation}"]
        if verdict.judgement is Judgement.GAVE_UP:
            self.report.gave_up += 1
            if verdict.explanation.startswith("the machine"):
                self.report.notes[f"black box: {verdict.explanation}"] = None
        return []


def _as_of(operation: Operation, cut: int) -> Operation:
    if operation.return_ns < cut:
        return operation
    return msgspec.structs.replace(operation, return_ns=NEVER, outcome=Outcome.UNKNOWN, ts=0, reply=b"")


def _under_way(crew: Crew) -> Iterator[Operation]:
    """What clients still wait for may have been executed."""
    for client in crew.clients:
        operation = client.under_way()
        if operation is not None:
            yield operation


def _unanswered(application: Application) -> Iterator[str]:
    """Travellers find a site that works; a resident's own must be one that was to recover."""
    cluster = application.cluster
    well = {process.address for process in survivors(cluster)}
    for client in application.crew.clients:
        if client.is_waiting and (not isinstance(client, Resident) or client.host.address in well):
            assert client.current is not None
            yield (
                f"client {client.number} ({_kind(client)}) has called {client.current.method} at"
                f" {client.called_at / SECOND:.3f}s and waits"
            )


def _kind(client: Client) -> str:
    return f"resident at {client.host.address}" if isinstance(client, Resident) else "traveller"


def simulate(
    machine: type[StateMachine],
    workload: Workload,
    *,
    sites: int = 5,
    faults: str = "swarm",
    seeds: Iterable[int] = range(100),
    durable: bool | None = None,
    clients: int = 8,
    rate: int = 100,
    seconds: int = 4,
    key: Key | None = None,
    other_hashes: bool = True,
) -> Report:
    """Run a machine on simulated sites under faults, once for each seed, and check everything.

    ``workload`` is a function of a ``Random`` that gives a call, ``("add", (1,))``; or one that gives an
    iterator over a client's calls; or calls that every client makes in turn. ``faults`` is ``none``,
    ``light`` or ``swarm``; ``durable``: with disks, without, or (None) drawn. ``clients`` make ``rate`` calls
    a second, all told, for so many virtual ``seconds``. ``key``: see ``black_box``. ``other_hashes``: execute
    each history again in a process whose sets have another order.
    """
    options = Options(
        sites=sites, faults=faults, durable=durable, clients=clients, rate=rate, seconds=seconds
    )
    calls: Workload = workload if callable(workload) else list(workload)
    with ExitStack() as stack:
        twin, note = None, ""
        if other_hashes:
            who = where(machine)
            if who is None:
                note = f"sets were not tried in another order: {machine.__qualname__} cannot be imported"
            else:
                twin = stack.enter_context(Twin(who))
        runner = _Runner(machine, calls, options, key, twin)
        if note:
            runner.report.notes[note] = None
        for seed in seeds:
            runner.play(seed)
            if len(runner.report.failures) >= FAILED_SEEDS_MAX:
                runner.report.notes[f"stopped after {FAILED_SEEDS_MAX} failed seeds"] = None
                break
    return runner.report


def replay_line(
    machine: type[StateMachine], workload: Workload | Callable[..., Any], options: Options, seed: int
) -> str:
    """Code that plays one seed again; a whole command where everything has a name."""
    changed = [
        f"{name}={getattr(options, name)!r}"
        for name in options.__struct_fields__
        if getattr(options, name) != getattr(Options(), name)
    ]
    names = [machine.__qualname__.replace("<locals>.", ""), _name(workload)]
    call = f"simulate({', '.join([*names, *changed, f'seeds=[{seed}]'])})"
    modules = [getattr(each, "__module__", "") for each in (machine, workload)]
    local = "<" in names[1] or "<" in machine.__qualname__
    if local or any(not module or module == "__main__" for module in modules):
        return call
    imports = [
        f"from {module} import {name.partition('.')[0]}" for module, name in zip(modules, names, strict=True)
    ]
    code = "; ".join(dict.fromkeys([*imports, "from rsm.testing import simulate", f"print({call})"]))
    return f'python -c "{code}"'


def _name(value: object) -> str:
    name: str = getattr(value, "__qualname__", "<workload>")
    return "<workload>" if "<" in name else name
