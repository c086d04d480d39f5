"""Fault injection: draws what to break, for how long, and mends it again.

Crashes lose memory, lost disks, leaves and removals lose voters, so they are kept to a minority of the
electorate: a group in memory mode does not survive more, and says so. The exceptions are a group that may
fork, and crashes in durable mode. Everything else may hit anyone, as often as it likes.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from ordering.config import MS
from ordering.effects import Ending
from ordering.errors import MembershipError
from ordering.events import BacklogReported, ChangeRequested
from ordering.packets import ChangeKind
from ordering.simulator.checkers.base import Checker
from ordering.simulator.cluster import SYNC_US, Cluster
from ordering.simulator.network import Weather
from ordering.simulator.plan import FaultKind
from ordering.simulator.process import Process
from ordering.simulator.rivals import Rivals
from ordering.simulator.sealed_network import SealedNetwork
from ordering.state import State
from ordering.views import SiteId, View, count_in, majority_of

SECOND = 1000 * MS


class Injector(Checker):
    """Breaks a cluster until told to stop, then leaves at most a minority broken."""

    name = "injector"

    def __init__(
        self,
        cluster: Cluster,
        rng: Random,
        kinds: tuple[FaultKind, ...],
        mean_gap_ms: int,
        *,
        deafens: bool = False,
    ) -> None:
        super().__init__()
        self.cluster = cluster
        self.rng = rng
        self.kinds = kinds
        self.mean_gap_ms = mean_gap_ms
        self.counts: dict[FaultKind, int] = {}
        self.deafens = deafens
        self.active = True
        self.aims: list[FaultKind] = []
        self.duel: Rivals | None = None
        self.lost_chain = 0  # a chain whose majority has died
        self._deafen_until = 0
        self.condemned: set[SiteId] = set()  # asked to leave or to be removed: count as lost
        self.retiring: set[SiteId] = set()  # may go at any moment, and with them their memory
        self._actions: dict[FaultKind, Callable[[], bool]] = {
            FaultKind.LOSS: self._loss,
            FaultKind.DUPLICATION: self._duplication,
            FaultKind.REORDERING: self._reordering,
            FaultKind.DELAY: self._delay,
            FaultKind.CLOG: self._clog,
            FaultKind.ONE_WAY_CUT: self._one_way_cut,
            FaultKind.HALVES: self._halves,
            FaultKind.ONE_AWAY: self._one_away,
            FaultKind.BRIDGE: self._bridge,
            FaultKind.FLAPPING: self._flapping,
            FaultKind.CRASH: self._crash,
            FaultKind.FAST_RESTART: self._fast_restart,
            FaultKind.PAUSE: self._pause,
            FaultKind.LEAVE: self._leave,
            FaultKind.REMOVE: self._remove,
            FaultKind.SKEW: self._skew,
            FaultKind.TOKEN_SITE: lambda: self._aim(FaultKind.TOKEN_SITE),
            FaultKind.INITIATOR: lambda: self._aim(FaultKind.INITIATOR),
            FaultKind.RIVALS: self._provoke,
            FaultKind.LOST_MAJORITY: self._lose_majority,
            FaultKind.ALL_DOWN: self._all_down,
            FaultKind.SLOW_DISK: self._slow_disk,
            FaultKind.SYNC_FAILED: self._fail_sync,
            FaultKind.DISK_LOST: self._lose_disk,
            FaultKind.ROLLED_BACK: self._roll_back,
            FaultKind.REPLAY: self._replay,
            FaultKind.FORGERY: self._forge,
            FaultKind.OVERRUN: self._overrun,
            FaultKind.SLOW_APPLICATION: self._slow_application,
        }

    def start(self) -> None:
        if self.kinds:
            self.cluster.watch(self)
            self._schedule()

    def delay_a_founder(self) -> None:
        """One founder cannot be reached while the group is born, and comes late."""
        addresses = list(self.cluster.config.founders)
        late = self.rng.choice(addresses)
        self.count(FaultKind.LATE_FOUNDER)
        self._cut_between([late], [a for a in addresses if a != late])

    def _schedule(self) -> None:
        gap = int(self.rng.expovariate(1.0) * self.mean_gap_ms * MS)
        self.cluster.clock.after(gap, self._strike)

    def _strike(self) -> None:
        if not self.active:
            return
        kind = self.rng.choice(self.kinds)
        if self._actions[kind]():
            self.count(kind)
        self._schedule()

    def count(self, kind: FaultKind) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _later(self, low_ms: int, high_ms: int, action: Callable[[], None]) -> None:
        self.cluster.clock.after(self.rng.randrange(low_ms, high_ms) * MS, action)

    # -- the network -----------------------------------------------------------------------------

    def _set_weather(self, **changes: float) -> bool:
        """Change the weather for a while; the latest spell wins."""
        weather = self.cluster.network.weather
        for name, value in changes.items():
            setattr(weather, name, value)
        fair = Weather()

        def clear() -> None:
            for name in changes:
                setattr(weather, name, getattr(fair, name))

        self._later(50, 2000, clear)
        return True

    def _loss(self) -> bool:
        return self._set_weather(loss=self.rng.choice((0.01, 0.05, 0.1, 0.2, 0.3)))

    def _duplication(self) -> bool:
        return self._set_weather(duplicates=self.rng.choice((0.02, 0.1, 0.3)))

    def _reordering(self) -> bool:
        return self._set_weather(
            reordering=self.rng.choice((0.05, 0.2)), reorder_us=self.rng.choice((2_000, 20_000))
        )

    def _delay(self) -> bool:
        return self._set_weather(latency_us=self.rng.choice((1_000, 5_000, 20_000)), spread_us=2_000)

    def _overrun(self) -> bool:
        """Links that carry little, and drop what does not fit in front of them."""
        packet = self.cluster.config.packet_bytes
        return self._set_weather(
            bytes_per_ms=self.rng.choice((200, 1_000)), queue_bytes=packet * self.rng.choice((4, 16))
        )

    def _slow_application(self) -> bool:
        """An application that takes nothing for a while: its site is short of buffers."""
        live = [p for p in self.cluster.live() if p.is_member() and not p.paused]
        if not live:
            return False
        process = self.rng.choice(live)
        self.cluster.handle(process, BacklogReported(2 * self.cluster.config.buffer_bytes_max))
        self._later(100, 4000, lambda: self._take_all(process))
        return True

    def _take_all(self, process: Process) -> None:
        if process.alive:
            self.cluster.handle(process, BacklogReported(0))

    def _replay(self) -> bool:
        network = self.cluster.network
        return isinstance(network, SealedNetwork) and network.replay(self.rng, self.rng.choice((1, 30, 300)))

    def _forge(self) -> bool:
        network = self.cluster.network
        return isinstance(network, SealedNetwork) and network.forge(self.rng, self.rng.choice((1, 30, 300)))

    def _pair(self) -> tuple[str, str] | None:
        addresses = list(self.cluster.processes)
        if len(addresses) < 2:
            return None
        one, other = self.rng.sample(addresses, 2)
        return one, other

    def _clog(self) -> bool:
        pair = self._pair()
        if pair is None:
            return False
        self.cluster.network.clog(*pair, self.cluster.clock.now + self.rng.randrange(10, 800) * MS)
        return True

    def _one_way_cut(self) -> bool:
        pair = self._pair()
        return pair is not None and self._cut([pair])

    def _cut(self, links: list[tuple[str, str]]) -> bool:
        network = self.cluster.network
        cut = network.cut(*links)
        self._later(20, 3000, lambda: network.mend(cut))
        return bool(links)

    def _cut_between(self, side: list[str], rest: list[str]) -> bool:
        return self._cut([(a, b) for a in side for b in rest] + [(b, a) for a in side for b in rest])

    def _split(self, size: int) -> tuple[list[str], list[str]]:
        addresses = list(self.cluster.processes)
        side = self.rng.sample(addresses, min(size, len(addresses)))
        return side, [a for a in addresses if a not in side]

    def _halves(self) -> bool:
        return self._cut_between(*self._split(len(self.cluster.processes) // 2))

    def _one_away(self) -> bool:
        return self._cut_between(*self._split(1))

    def _bridge(self) -> bool:
        """Two sides that see each other only through one site."""
        addresses = list(self.cluster.processes)
        self.rng.shuffle(addresses)
        rest = addresses[1:]
        return self._cut_between(rest[: len(rest) // 2], rest[len(rest) // 2 :])

    def _flapping(self) -> bool:
        pair = self._pair()
        if pair is None:
            return False
        period = self.rng.randrange(10, 150) * MS
        for turn in range(self.rng.randrange(2, 10)):
            self.cluster.clock.after(2 * turn * period, lambda: self._flap(pair, period))
        return True

    def _flap(self, link: tuple[str, str], period: int) -> None:
        if self.active:
            network = self.cluster.network
            cut = network.cut(link)
            self.cluster.clock.after(period, lambda: network.mend(cut))

    # -- processes -------------------------------------------------------------------------------

    def survivable(self, victims: list[str]) -> bool:
        """Whether a majority of every electorate in play keeps its memory without ``victims``."""
        for process in self._present():
            site = process.engine.site
            if site.outside:
                if site.state.value == "founding" or site.chain == 0:
                    continue
                return False
            if site.chain == self.lost_chain or site.queue.fork is not None:
                return False  # until the survivors have found their way out
            if not self._has_majority(site.view, site.chain, victims):
                return False
        # What a dead site ordered last may still be under way.
        chains = {p.engine.site.chain for p in self._present()}
        last_words = [p.engine.site for p in self.cluster.graveyard if not p.engine.site.outside]
        return all(self._has_majority(s.view, s.chain, victims) for s in last_words if s.chain in chains)

    def _has_majority(self, view: View, chain: int, victims: list[str]) -> bool:
        """Whether the view keeps its majority; one that all who live have left behind does not count."""
        live = [p.engine.site for p in self._present() if p.engine.site.chain == chain]
        if all(site.view.id > view.id for site in live):
            return True
        sound = self._sound_voters(chain, victims)
        electorates = [e for e in (view.electorate, view.joint_electorate) if e]
        # A learner that is lost now may have asked for its vote before.
        electorates += [(*view.electorate, learner) for learner in view.learners if learner not in sound]
        return all(count_in(e, sound) >= majority_of(e) for e in electorates)

    def _sound_voters(self, chain: int, victims: list[str]) -> tuple[SiteId, ...]:
        """Voters of a chain that live and stay."""
        return tuple(
            p.member.site
            for p in self._present()
            if p.engine.site.chain == chain
            and p.address not in victims
            and p.member.site not in self.condemned
            and p.member.site not in self.retiring
        )

    def _present(self) -> list[Process]:
        """Who has not lost its memory, which in durable mode is its disk."""
        if not self.cluster.config.durable:
            return self.cluster.live()
        latest = self.cluster.processes.values()
        return [p for p in latest if p.ended is None and (p.alive or self._can_come_back(p))]

    def _can_come_back(self, process: Process) -> bool:
        ledger = self.cluster.disks[process.address].ledger
        return ledger.began is not None and ledger.site == process.member.site

    def _victim(self) -> Process | None:
        live = [p for p in self.cluster.live() if not p.paused]
        if not live:
            return None
        victim = self.rng.choice(live)
        return victim if self._may_lose(victim) else None

    def _may_lose(self, victim: Process) -> bool:
        """A birth is not disturbed by amnesia of a majority either: founders count as an electorate."""
        if self.cluster.config.durable:
            return True
        inside = [p for p in self.cluster.live() if not p.engine.site.outside]
        if not inside:
            return False
        return self.survivable([victim.address])

    def _crash(self) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        self.cluster.crash(victim.address)
        self._later(100, 4000, lambda: self._restart(victim.address))
        return True

    def _lose_majority(self) -> bool:
        """Where the group may go on in a new chain (R9): a majority dies at once."""
        least = self.cluster.config.minimum_size
        live = self.cluster.live()
        chains = {p.engine.site.chain for p in live if not p.engine.site.outside}
        view = self.cluster.newest_view()
        if not least or len(chains) != 1 or view is None or self.lost_chain in chains:
            return False
        voters = [p for p in live if p.member.site in view.electorate and not p.engine.site.outside]
        sound = self._sound_voters(voters[0].engine.site.chain, []) if voters else ()
        able = [p for p in voters if p.member.site in sound and p.engine.site.epoch == view.id.epoch]
        lost = majority_of(view.electorate)
        if any(p.paused for p in live) or len(able) <= least or lost <= least or len(voters) < lost:
            return False
        most = min(len(able), lost) - 1
        spared = self.rng.sample(able, self.rng.randrange(least, most + 1))
        self.lost_chain = voters[0].engine.site.chain
        for process in voters:
            if process not in spared:
                self.cluster.crash(process.address)
                self._later(100, 4000, partial(self._restart, process.address))
        return True

    def _restart(self, address: str) -> None:
        if not self.cluster.processes[address].alive:
            self.count(FaultKind.RESTART)
            self.cluster.restart(address)

    def _fast_restart(self) -> bool:
        """Back before anyone can have noticed, with an empty memory."""
        victim = self._victim()
        if victim is None:
            return False
        self.cluster.crash(victim.address)
        self._later(1, 30, lambda: self._restart(victim.address))
        return True

    def _pause(self) -> bool:
        live = [p for p in self.cluster.live() if not p.paused]
        if not live:
            return False
        address = self.rng.choice(live).address
        self.cluster.pause(address)
        self._later(20, 4000, lambda: self.cluster.resume(address))
        return True

    def _skew(self) -> bool:
        """A clock that runs up to a tenth fast or slow from now on."""
        live = self.cluster.live()
        if not live:
            return False
        self.cluster.skew(self.rng.choice(live), 900 + self.rng.randrange(201))
        return True

    # -- disks -----------------------------------------------------------------------------------

    def _all_down(self) -> bool:
        """Every process dies, at once or one after the other, and they come back in any order."""
        live = self.cluster.live()
        if not self.cluster.config.durable or not live:
            return False
        spread = self.rng.choice((1, 50, 500))
        for process in live:
            self._later(0, spread, partial(self._kill, process))
        return True

    def _kill(self, process: Process) -> None:
        address = process.address
        if (
            self.active
            and process.alive
            and not process.paused
            and self.cluster.processes[address] is process
        ):
            self.cluster.crash(address)
            self._later(1, 1500, partial(self._restart, address))

    def _slow_disk(self) -> bool:
        if not self.cluster.config.durable:
            return False
        self.cluster.sync_us = self.rng.choice(((5_000, 50_000), (100, 200_000), (400_000,)))

        def recover() -> None:
            self.cluster.sync_us = SYNC_US

        self._later(50, 1500, recover)
        return True

    def _fail_sync(self) -> bool:
        live = [p for p in self.cluster.live() if p.is_member()]
        if not self.cluster.config.durable or not live:
            return False
        self.cluster.failing_disks.add(self.rng.choice(live).address)
        return True

    def _lose_disk(self) -> bool:
        """A process dies, and its disk is bad when it comes back: empty, or a bit has flipped."""
        victim = self._disk_victim()
        if victim is None:
            return False
        self.cluster.crash(victim.address)
        if self.rng.random() < 0.5 or not victim.disk.rot(self.rng):
            self.cluster.wipe(victim.address)
        self._later(1, 2000, lambda: self._restart(victim.address))
        return True

    def _roll_back(self) -> bool:
        """A process dies, and somebody restores an old copy of its directory. That can only be noticed if
        others remember; so all do."""
        victim = self._disk_victim()
        if victim is None:
            return False
        left = victim.disk.oldest_claim
        others = [p for p in self.cluster.processes.values() if p is not victim]
        if left is None or not all(p.alive and _remembers(p, victim, left) for p in others):
            return False
        self.condemned.add(victim.member.site)
        self.cluster.crash(victim.address)
        victim.disk.roll_back()
        self._later(1, 2000, lambda: self._restart(victim.address))
        return True

    def _disk_victim(self) -> Process | None:
        """A voter whose memory the group can do without."""
        if not self.cluster.config.durable:
            return None
        live = [p for p in self.cluster.live() if p.is_member() and not p.paused and p.disk.has_member]
        victim = self.rng.choice(live) if live else None
        return victim if victim is not None and self.survivable([victim.address]) else None

    # -- aimed strikes ---------------------------------------------------------------------------

    def _aim(self, kind: FaultKind) -> bool:
        """Wait for the worst moment: the next site that orders, or that has proposed an install."""
        if kind not in self.aims:
            self.aims.append(kind)
        return False

    def _provoke(self) -> bool:
        """The next view change shall be a duel."""
        if self.duel is None or self.duel.over:
            self.duel = Rivals(self.cluster)
        return False

    def on_settled(self, process: Process, now: int) -> None:
        if not self.active:
            if now < self._deafen_until and process.engine.state is State.TOKEN_SITE:
                self._deafen(process)
            return
        if self.duel is not None and self.duel.on_settled(process):
            self.count(FaultKind.RIVALS)
        if not self.aims:
            return
        engine = process.engine
        if FaultKind.TOKEN_SITE in self.aims and engine.state is State.PASSING_TOKEN:
            self._hit(process, FaultKind.TOKEN_SITE)
        elif FaultKind.INITIATOR in self.aims and engine.recovery.proposal is not None:
            self._hit(process, FaultKind.INITIATOR)

    def _hit(self, process: Process, kind: FaultKind) -> None:
        """Crash it, stop it, or cut it off, at once or a moment later (some packets are out)."""
        self.aims.remove(kind)
        self.count(kind)
        address = process.address
        delay = self.rng.choice((0, 0, 300_000, 1_000_000))
        how = self.rng.choice(("crash", "pause", "cut", "dumb"))

        def strike() -> None:
            if self.cluster.processes[address] is not process or not process.alive or not self.active:
                return
            others = [a for a in self.cluster.processes if a != address]
            if how == "crash" and self._may_lose(process) and not process.paused:
                self.cluster.crash(address)
                self._later(100, 3000, lambda: self._restart(address))
            elif how == "pause":
                self.cluster.pause(address)
                self._later(100, 3000, lambda: self.cluster.resume(address))
            elif how == "dumb":
                self._cut([(address, a) for a in others])
            else:
                self._cut_between([address], others)

        self.cluster.clock.after(delay, strike)

    # -- membership ------------------------------------------------------------------------------

    def _leave(self) -> bool:
        candidates = [p for p in self.cluster.live() if p.is_member() and not p.paused]
        if len(candidates) < 4:
            return False
        process = self.rng.choice(candidates)
        if not self.survivable([process.address]):
            return False
        self.condemned.add(process.member.site)
        return self._request(process, ChangeRequested(ChangeKind.LEAVE))

    def _remove(self) -> bool:
        """An operator removes a voter that is out of the ring."""
        candidates = [p for p in self.cluster.live() if p.is_member() and not p.paused]
        if not candidates:
            return False
        process = self.rng.choice(candidates)
        view = process.engine.site.view
        lost = [s for s in view.external if len(view.electorate) > 3]
        if not lost or process.member.site not in view.ring:
            return False
        subject = self.rng.choice(lost)
        address = next((m.address for m in view.members if m.site == subject), "")
        if not self.survivable([address]):
            return False
        self.condemned.add(subject)
        return self._request(process, ChangeRequested(ChangeKind.REMOVE, subject))

    def _request(self, process: Process, event: ChangeRequested) -> bool:
        try:
            self.cluster.handle(process, event)
        except MembershipError:
            return False
        return True

    # -- the end ---------------------------------------------------------------------------------

    def heal(self) -> None:
        """Stop breaking things. Sometimes leave a minority broken: the rest must manage without."""
        self.active = False
        if self.duel is not None:
            self.duel.end()
        cluster = self.cluster
        cluster.network.clear()
        cluster.network.weather = Weather()
        cluster.sync_us = SYNC_US
        cluster.failing_disks.clear()
        for address, process in list(cluster.processes.items()):
            if process.paused:
                cluster.resume(address)
            self._take_all(process)
        for address, process in list(cluster.processes.items()):
            if not process.alive or (process.ended is not None and process.ended.ending is not Ending.LEFT):
                cluster.restart(address)
        born = any(p.engine.site.epoch for p in cluster.live())  # a birth needs every founder (R9)
        if self.kinds and born and self.rng.random() < 0.3:
            self._leave_one_broken()
        if self.deafens and born and not cluster.left_broken:
            self._deafen_until = cluster.clock.now + cluster.config.passive_ms * MS

    def _leave_one_broken(self) -> None:
        """One site stays away, or stays deaf, or stays dumb: anyone, or the one that has the token."""
        cluster = self.cluster
        holders = [p.address for p in cluster.live() if p.engine.state is State.TOKEN_SITE]
        address = self.rng.choice(list(cluster.processes))
        if holders and self.rng.random() < 0.5:
            address = self.rng.choice(holders)
        if len(cluster.processes) < 3 or not self.survivable([address]):
            return
        cluster.left_broken.add(address)
        others = [a for a in cluster.processes if a != address]
        how = self.rng.choice(("away", "deaf", "dumb"))
        for other in others:
            if how in ("away", "deaf"):
                cluster.network.cut((other, address))
            if how in ("away", "dumb"):
                cluster.network.cut((address, other))

    def _deafen(self, holder: Process) -> None:
        """Nothing is left to order, but somebody asks to be let in: a token site that does not hear it, and
        goes on to probe, must not be taken for one that does its duty."""
        cluster = self.cluster
        live = cluster.live()
        view = cluster.newest_view()
        if view is None or holder.member.site not in view.ring or len(view.ring) < 3:
            return
        wanting = [p for p in live if p.member.site not in view.ring]
        busy = any(p.engine.submission.outbox.pending for p in live)
        if not wanting or busy or not self.survivable([holder.address]):
            return
        self._deafen_until = 0
        self.count(FaultKind.DEAF_TOKEN_SITE)
        cluster.left_broken.add(holder.address)
        cluster.network.cut(*((p, holder.address) for p in cluster.processes if p != holder.address))


def _remembers(process: Process, victim: Process, left: tuple[int, int]) -> bool:
    """Whether a process has written down that the victim claimed more than ``left``."""
    claim = process.disk.ledger.claims.get(victim.member.site)
    return claim is not None and (claim.epoch, claim.held) > left
