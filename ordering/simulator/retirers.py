"""Hosts that are stopped in an orderly way and started again, as in a rolling upgrade; and is that clean?

What they draw comes from a source of their own, so that a run without them does not depend on them. Some
runs are calm at first: nothing is stopped but by retirement, so whatever the group needs a poll or a view
change for is the fault of a retirement.
"""

from functools import partial
from random import Random
from typing import NamedTuple

from ordering.config import MS
from ordering.effects import (
    Abandoned,
    Effect,
    Ending,
    EndMembership,
    InstallView,
    Multicast,
    RetirementRefused,
)
from ordering.errors import MembershipError
from ordering.events import ChangeRequested
from ordering.kin import ROLL_CALL
from ordering.packets import ChangeKind, Poll
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.survivors import survivors
from ordering.simulator.cluster import Cluster
from ordering.simulator.faults import Injector
from ordering.simulator.plan import FaultKind
from ordering.simulator.process import Process
from ordering.views import SiteId, View, count_in, majority_of

SECOND = 1000 * MS
CALM_SECONDS = (0, 0, 3, 6)
ALWAYS = 1 << 62
GAPS_MS = (150, 500, 1500)
DOWN_MS = (1, 40, 300, 2000)
BIRTH = SECOND  # from here on a calm group is born


class Gone(NamedTuple):
    """A site that has retired: how far it had come."""

    chain: int
    boot: int
    frontier: int


class Retirers(Checker):
    """Random sites retire and come back.

    1. Who retires leaves a ring behind that is a majority of the electorate, and is not in it.
    2. It abandons none of its messages, and no later view has it in the ring under that boot.
    3. In calm there is no poll, and no epoch but the first.
    4. Once faults have stopped, every request is granted or refused.
    """

    name = "retirement"

    def __init__(self, cluster: Cluster, rng: Random, injector: Injector, *, calm: bool) -> None:
        super().__init__()
        self.cluster = cluster
        self.rng = rng
        self.injector = injector
        self.calm_ns = ALWAYS if calm else rng.choice(CALM_SECONDS) * SECOND
        self.active = True
        self._gap_ms = rng.choice(GAPS_MS)
        self._gone: dict[SiteId, Gone] = {}
        self._views: dict[int, View] = {}  # by process: the last it was told
        self._abandoned: dict[int, int] = {}  # by process: when it last gave up messages
        self._schedule()

    def _schedule(self) -> None:
        self.cluster.clock.after(int(self.rng.expovariate(1.0) * self._gap_ms * MS), self._retire_one)

    def _retire_one(self) -> None:
        if not self.active:
            return
        live = [p for p in self.cluster.live() if p.is_member() and not p.paused]
        if live and self.cluster.clock.now > BIRTH:
            self._retire(self.rng.choice(live))
        self._schedule()

    def _retire(self, process: Process) -> None:
        """In memory mode it takes its memory along: the group must be able to do without."""
        if not self.cluster.config.durable:
            if not self.injector.survivable([process.address]):
                return
            self.injector.retiring.add(process.member.site)
        try:
            self.cluster.handle(process, ChangeRequested(ChangeKind.RETIRE))
        except MembershipError:
            self.injector.retiring.discard(process.member.site)

    def _restart(self, process: Process) -> None:
        if self.cluster.processes[process.address] is process:
            self.cluster.restart(process.address)

    @property
    def _is_calm(self) -> bool:
        return self.active and BIRTH < self.cluster.clock.now < self.calm_ns

    # -- judging ---------------------------------------------------------------------------------

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        match effect:
            case Multicast(_, Poll(_, number, suspects)) if number < ROLL_CALL and self._is_calm:
                self.fail(now, f"site {process.member.site} polls in calm, suspecting {suspects}")
            case Abandoned():
                self._abandoned[process.key] = now
            case InstallView(ts, chain, view):
                self._judge_view(process, ts, chain, view, now)
            case EndMembership(Ending.RETIRED):
                self._judge_end(process, now)
                self.injector.count(FaultKind.RETIRE)
                down = self.rng.choice(DOWN_MS) * MS
                self.cluster.clock.after(down, partial(self._restart, process))
            case RetirementRefused():
                self.injector.retiring.discard(process.member.site)
            case _:
                pass

    def _judge_view(self, process: Process, ts: int, chain: int, view: View, now: int) -> None:
        before = self._views.get(process.key)
        self._views[process.key] = view
        if self._is_calm and view.id.epoch > 1:
            self.fail(now, f"view {view.id} is decided in calm")
        for site in view.ring:
            gone, member = self._gone.get(site), view.member(site)
            if gone is None or member is None or member.boot != gone.boot:
                continue
            if chain == gone.chain and ts > gone.frontier:
                self.fail(now, f"site {site} has retired, and view {view.id} at slot {ts} has it in its ring")
        if before is None or before.id.epoch != view.id.epoch or before.id.revision + 1 != view.id.revision:
            return
        retired = before.members == view.members and len(before.ring) > len(view.ring)
        if retired and count_in(view.electorate, view.ring) < majority_of(view.electorate):
            self.fail(now, f"a site has retired, and view {view.id} has no majority in its ring {view.ring}")

    def _judge_end(self, process: Process, now: int) -> None:
        me, site = process.member.site, process.engine.site
        self._gone[me] = Gone(site.chain, process.member.boot, site.queue.frontier)
        if process.view is None or me in process.view.ring:
            self.fail(now, f"site {me} has retired, and was told no view that has it out of the ring")
        if self._abandoned.get(process.key) == now:
            self.fail(now, f"site {me} has retired, and abandons messages it had accepted")

    def on_healed(self, cluster: Cluster, now: int) -> None:
        self.active = False

    def finish(self, cluster: Cluster, now: int) -> None:
        for process in survivors(cluster):
            if process.engine.site.retiring:
                self.fail(now, f"site {process.member.site} was asked to retire, and neither goes nor stays")
