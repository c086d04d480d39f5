"""Play one plan and report."""

from functools import partial
from random import Random
from typing import Protocol

import msgspec

from ordering.config import MS, Config
from ordering.effects import Effect, InstallView
from ordering.simulator.callers import Callers
from ordering.simulator.checkers import make_checkers
from ordering.simulator.checkers.base import Checker
from ordering.simulator.cluster import Cluster
from ordering.simulator.faults import Injector
from ordering.simulator.holder_askers import HolderAskers
from ordering.simulator.lock_users import LockUsers
from ordering.simulator.plan import FaultKind, FaultMix, Plan
from ordering.simulator.process import Process, Replica
from ordering.simulator.readers import Readers
from ordering.simulator.retirers import Retirers
from ordering.simulator.workload import Workload
from ordering.views import Member

SECOND = 1000 * MS
LIVENESS_FACTOR = 10


class Report(msgspec.Struct, kw_only=True):
    """What a run came to."""

    plan: Plan
    violations: list[str]
    simulated_ns: int
    submitted: int
    refused: int
    calls: int = 0
    applied: int
    views: int
    packets: int
    faults: dict[FaultKind, int]
    pairs: dict[tuple[str, str], int]
    trace: str

    @property
    def replay(self) -> str:
        return self.plan.replay


class Load(Protocol):
    """Who uses the group. What was under way when ``active`` ends may go on."""

    active: bool
    submitted: int
    refused: int

    def start(self) -> None: ...


class Application(Protocol):
    """What runs on the ring instead of the simulator's own replica and workload."""

    def configure(self, config: Config) -> Config:
        """The settings that were drawn, as far as this application can live with them."""

    def replica(self, member: Member) -> Replica: ...

    def load(self, cluster: Cluster, rng: Random) -> Load: ...


class Tally(Checker):
    """Counts for the report: what was applied first, and how many views there were."""

    name = "tally"

    def __init__(self) -> None:
        super().__init__()
        self.applied: set[int] = set()
        self.views: set[tuple[int, int, int]] = set()

    def on_applied(self, process: Process, ts: int, digest: bytes, now: int) -> None:
        self.applied.add(ts)

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        if isinstance(effect, InstallView) and not effect.locks_only:
            self.views.add((effect.chain, effect.view.id.epoch, effect.view.id.revision))


def simulate(
    plan: Plan,
    extra: tuple[Checker, ...] = (),
    *,
    stop_broken: bool = False,
    application: Application | None = None,
) -> Report:
    """Run a plan to its end. ``extra`` checkers watch too (a narrator, a recorder).

    An engine that stops on an invariant is a violation, unless ``stop_broken`` lets it count as a
    crash: planted bugs must be found by checkers.
    """
    rng = Random(plan.seed)
    config = plan.draw_config(rng)
    tally = Tally()
    checkers = [*make_checkers(), tally, *extra]
    replicas = None
    if application is not None:
        config, replicas = application.configure(config), application.replica
    cluster = Cluster(config, rng.getrandbits(64), checkers, sealed=plan.is_sealed, replicas=replicas)
    if plan.faults is FaultMix.SWARM:
        cluster.transfer_ms = (0, 0, 20, 200, 800)
    workload = _workload(plan, cluster, Random(rng.getrandbits(64)), application)
    kinds = plan.draw_kinds(rng)
    count, callers_rng = plan.draw_callers()
    callers = Callers(cluster, callers_rng, count)
    gap_ms = 400 if plan.faults is FaultMix.LIGHT else rng.choice((100, 200, 400))
    injector = Injector(cluster, Random(rng.getrandbits(64)), kinds, gap_ms, deafens=plan.deafens)
    users = LockUsers(cluster, Random(plan.seed), injector.count) if plan.faults is FaultMix.SWARM else None
    readers_rng = plan.draw_readers()
    if readers_rng is not None:
        cluster.watch(Readers(cluster, readers_rng))
        cluster.watch(HolderAskers(cluster, Random(f"holders {plan.seed}")))
    retirers_rng = plan.draw_retirers()
    calm_ns = 0
    if retirers_rng is not None:
        retirers = Retirers(cluster, retirers_rng, injector, calm=plan.faults is FaultMix.NONE)
        cluster.watch(retirers)
        calm_ns = retirers.calm_ns
    _play(plan, cluster, workload, callers, injector, rng, users, calm_ns)
    violations = [] if stop_broken else list(cluster.broken)
    for checker in checkers:
        violations += checker.violations
    return Report(
        plan=plan,
        violations=violations,
        simulated_ns=cluster.clock.now,
        submitted=workload.submitted,
        refused=workload.refused,
        calls=callers.calls,
        applied=len(tally.applied),
        views=len(tally.views),
        packets=cluster.network.sent,
        faults=dict(injector.counts),
        pairs={(state.value, kind.__name__): n for (state, kind), n in cluster.pairs.items()},
        trace=f"{cluster.trace:08x}",
    )


def _workload(plan: Plan, cluster: Cluster, rng: Random, application: Application | None) -> Load:
    if application is not None:
        return application.load(cluster, rng)
    drawn = plan.draw_load()
    return Workload(cluster, rng, plan.rate, 0.0 if drawn is None else drawn.share)


def _play(
    plan: Plan,
    cluster: Cluster,
    workload: Load,
    callers: Callers,
    injector: Injector,
    rng: Random,
    users: LockUsers | None,
    calm_ns: int,
) -> None:
    """Birth, load under faults, heal, and the time within which all must be well again."""
    for address in cluster.config.founders:
        cluster.clock.after(rng.randrange(20) * MS, partial(cluster.start, address, founder=True))
    # Some births are disturbed; most are not, or the run would be about nothing else.
    disturbed = plan.faults is FaultMix.SWARM and plan.sites > 1 and rng.random() < 0.2
    if disturbed and not calm_ns:
        injector.delay_a_founder()
        injector.start()
    else:
        cluster.clock.after(calm_ns or 200 * MS, injector.start)
    cluster.clock.run_until(20 * MS)
    workload.start()
    callers.start()
    if users is not None:
        users.start()
    cluster.clock.run_until(plan.seconds * SECOND)
    workload.active = False
    if users is not None:
        users.stop()
    injector.heal()
    callers.heal()
    for checker in cluster.checkers:
        checker.on_healed(cluster, cluster.clock.now)
    bound = LIVENESS_FACTOR * cluster.config.detection_ms * MS
    cluster.clock.run_until(cluster.clock.now + bound)
    for checker in cluster.checkers:
        checker.finish(cluster, cluster.clock.now)
