"""Applications that want to know how many voters hold a slot, and whether what they are told is true (R10).

They play in the runs that have readers. What they draw comes from a source of their own.
"""

from random import Random
from typing import NamedTuple

from ordering.config import MS
from ordering.effects import Effect, HoldersKnown, InstallView, LevelReached
from ordering.errors import SubmitError
from ordering.events import HoldersRequested
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.survivors import survivors
from ordering.simulator.cluster import Cluster
from ordering.simulator.process import Process
from ordering.views import SiteId, majority_of

SECOND = 1000 * MS
ASKED_PER_SECOND = 40


class Asked(NamedTuple):
    process: Process
    chain: int
    ts: int
    voters: int
    at: int


class HolderAskers(Checker):
    """As many voters as are told have held the slot at some time, and they are as many as were asked for if
    the ring has so many; and once faults have stopped, every question of a member is answered."""

    name = "holders"

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        super().__init__()
        self.cluster = cluster
        self.rng = rng
        self.active = True
        self.count = 0
        self._asked: dict[tuple[int, int], Asked] = {}  # by process and number
        self._reached: dict[int, int] = {}  # by process
        self._electors: dict[SiteId, None] = {}  # who has ever voted, also in the chain that was forked
        self._installs: dict[tuple[int, int], int] = {}  # and how many had accepted each
        self._held: dict[SiteId, int] = {}  # the most that a site has ever held
        self._schedule()

    def _schedule(self) -> None:
        self.cluster.clock.after(int(self.rng.expovariate(1.0) * SECOND / ASKED_PER_SECOND), self._ask)

    def _ask(self) -> None:
        if not self.active:
            return
        live = [p for p in self.cluster.live() if not p.paused and self._reached.get(p.key)]
        if live:
            process = self.rng.choice(live)
            self.count += 1
            voters = self.rng.randrange(len(self.cluster.config.founders) + 2)
            # Mostly what was applied, as a replica asks; sometimes what is yet to come.
            ts = max(self._reached[process.key] - self.rng.randrange(20) + 5 * (self.rng.random() < 0.1), 1)
            asked = Asked(process, process.engine.site.chain, ts, voters, self.cluster.clock.now)
            self._asked[process.key, self.count] = asked
            try:
                self.cluster.handle(process, HoldersRequested(self.count, ts, voters))
            except SubmitError:
                self._asked.pop((process.key, self.count), None)
        self._schedule()

    # -- judging ---------------------------------------------------------------------------------

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        self._note(process)
        match effect:
            case LevelReached(majority, _):
                self._reached[process.key] = majority
            case InstallView(ts, chain, view):
                self._electors.update(dict.fromkeys(view.electorate))
                if not view.id.revision:
                    self._installs[chain, ts] = majority_of(view.electorate)
            case HoldersKnown(number, holders, _):
                asked = self._asked.pop((process.key, number), None)
                if asked is not None:  # it may be the question of another application
                    self._judge(process, asked, holders, now)
            case _:
                pass

    def _note(self, process: Process) -> None:
        """It does nothing without an effect, so it holds nothing unseen that anybody knows of."""
        site = process.engine.site
        self._held[site.me] = max(site.held, self._held.get(site.me, 0))

    def _judge(self, process: Process, asked: Asked, holders: int, now: int) -> None:
        site = process.engine.site
        if site.chain != asked.chain or (asked.chain, asked.ts) in self._installs:
            return
        told = f"site {process.member.site} is told that {holders} hold slot {asked.ts}"
        true = sum(self._held.get(each, 0) >= asked.ts for each in self._electors)
        # Who accepts holds all before, if only for the moment in which it also decides.
        accepted = [count for (_, ts), count in self._installs.items() if ts > asked.ts]
        true = max([true, *accepted])
        if holders > true:
            self.fail(now, f"{told}, but {true} ever did")
        view = process.view  # at this effect: the same event may have brought later ones
        assert view is not None
        wanted = min(asked.voters or len(view.electorate), view.ring_voters)
        if holders < wanted:
            self.fail(now, f"{told}, and wanted {wanted}")

    def on_healed(self, cluster: Cluster, now: int) -> None:
        self.active = False

    def finish(self, cluster: Cluster, now: int) -> None:
        for process in survivors(cluster):
            for key, asked in self._asked.items():
                if key[0] == process.key and asked.ts <= self._reached.get(process.key, 0):
                    words = f"has no answer to how many hold slot {asked.ts}, of {asked.at / 1e9:.3f}s"
                    self.fail(now, f"site {process.member.site} {words}")
                    break
