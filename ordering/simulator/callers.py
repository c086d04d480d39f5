"""Processes outside the group that call it, and what happens to them; also members' own requests.

They draw from their own random source, and only runs that have callers pay for them.
"""

from random import Random
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ordering.caller import Caller, CallerEvent, CallRequested
from ordering.config import MS, Config
from ordering.effects import Accepted, Multicast, SetTimer, Unicast
from ordering.errors import SubmitError
from ordering.events import PacketsReceived, TimerFired
from ordering.packets import Packet
from ordering.qos import MAJORITY, Qos
from ordering.simulator.process import FREE
from ordering.simulator.workload import LADDER
from ordering.views import HANDLERS, Member, SiteId

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster

SECOND: Final = 1000 * MS
FIRST_SITE: Final = 1000  # site ids of callers, out of the way of members'


class CallerProcess:
    """A caller and its host loop."""

    def __init__(self, cluster: "Cluster", config: Config, member: Member, rng: Random) -> None:
        self.cluster = cluster
        self.member = member
        self.address = member.address
        self.caller = Caller(config, member, rng)
        self.alive = True
        self._timer_at = 0
        cluster.callers[member.address] = self

    def call(self, request: CallRequested) -> SubmitError | None:
        """Call as an application would; a refusal is an answer, not a failure."""
        try:
            self.handle(request)
        except SubmitError as refusal:
            return refusal
        return None

    def arrive(self, packet: Packet) -> None:
        if self.alive:
            self.handle(PacketsReceived((packet,)))

    def handle(self, event: CallerEvent) -> None:
        cluster = self.cluster
        now = cluster.clock.now
        effects = self.caller.handle(event, now)
        for effect in effects:
            if isinstance(effect, Accepted) and isinstance(event, CallRequested):
                for listener in cluster.checkers:
                    listener.on_called(self.member, effect.first_number, event, now)
        for effect in effects:
            for listener in cluster.checkers:
                listener.on_caller_effect(self.member, effect, now)
            match effect:
                case Multicast(to, packet):
                    for address in to:
                        cluster.network.send(self.address, address, packet)
                case Unicast(address, packet):
                    cluster.network.send(self.address, address, packet)
                case SetTimer(at):
                    self._timer_at = at
                    cluster.clock.at(at, lambda at=at: self._tick(at))  # type: ignore[misc]
                case _:
                    pass
        line = f"{now} {self.member.site} {type(event).__name__} {len(effects)}"
        cluster.trace = crc32(line.encode(), cluster.trace)

    def _tick(self, at: int) -> None:
        if self.alive and self._timer_at == at:
            self.handle(TimerFired())

    def crash(self) -> None:
        self.alive = False


class Callers:
    """Callers ``c1`` … that call at random until stopped, crash, come back, and are cut off."""

    def __init__(self, cluster: "Cluster", rng: Random, count: int) -> None:
        self.cluster = cluster
        self.rng = rng
        self.addresses = [f"c{number}" for number in range(1, count + 1)]
        self.active = True
        self.calls = 0
        self.rate = rng.choice((20, 60))  # calls and requests a second, all told
        self.mixed = rng.random() < 0.5
        self.troubled = rng.random() < 0.7
        self._site = FIRST_SITE
        self._number = 0

    def start(self) -> None:
        if not self.addresses:
            return
        for address in self.addresses:
            self._boot(address)
        self._schedule()
        if self.troubled:
            self._schedule_trouble()

    def _boot(self, address: str) -> None:
        self._site += 1
        member = Member(SiteId(self._site), self.rng.getrandbits(127) + 1, address)
        CallerProcess(self.cluster, self.cluster.config, member, Random(self.rng.getrandbits(64)))

    def _schedule(self) -> None:
        self.cluster.clock.after(int(self.rng.expovariate(1.0) * SECOND / self.rate), self._ask)

    def _ask(self) -> None:
        if not self.active:
            return
        if self.rng.random() < 0.15:
            self._request()
        else:
            self._call()
        self._schedule()

    def _message(self, qos: Qos) -> bytes:
        self._number += 1
        # The simulated application keeps sessions for what has a place in the order, and only for that.
        return b"call %d" % self._number if qos.level > FREE else b"~call %d" % self._number

    def _call(self) -> None:
        rng = self.rng
        process = self.cluster.callers[rng.choice(self.addresses)]
        if not process.alive:
            return
        qos = rng.choice(LADDER) if self.mixed else MAJORITY
        size = rng.choice((1, 1, 1, 2, 5))
        view = process.caller.view
        process.call(
            CallRequested(
                tuple(self._message(qos) for _ in range(size)),
                qos,
                handler=rng.choice((0, 1, rng.randrange(len(HANDLERS) + 1))),
                implicit=rng.random() < 0.3,
                view=view if view.epoch and rng.random() < 0.1 else None,
                acknowledged=rng.random() < 0.95,
            )
        )
        self.calls += size

    def _request(self) -> None:
        """A member asks the holder of a handler lock."""
        rng = self.rng
        live = [p for p in self.cluster.live() if not p.paused]
        if live:
            qos = rng.choice(LADDER) if self.mixed else MAJORITY
            process = rng.choice(live)
            self.cluster.request(process, (self._message(qos),), qos, to_group=rng.random() < 0.3)

    # -- trouble ---------------------------------------------------------------------------------

    def _schedule_trouble(self) -> None:
        self.cluster.clock.after(self.rng.randrange(100, 1500) * MS, self._strike)

    def _strike(self) -> None:
        if not self.active:
            return
        rng = self.rng
        address = rng.choice(self.addresses)
        if rng.random() < 0.25:
            self.cluster.callers[address].crash()
            self.cluster.clock.after(rng.randrange(1, 1000) * MS, lambda: self._restart(address))
        else:
            network = self.cluster.network
            members = list(self.cluster.processes)
            away = rng.sample(members, rng.randrange(1, len(members) + 1))
            links = {
                "deaf": [(member, address) for member in away],
                "dumb": [(address, member) for member in away],
                "away": [link for member in away for link in ((address, member), (member, address))],
            }[rng.choice(("deaf", "dumb", "away"))]
            cut = network.cut(*links)
            self.cluster.clock.after(rng.randrange(20, 1500) * MS, lambda: network.mend(cut))
        self._schedule_trouble()

    def _restart(self, address: str) -> None:
        if not self.cluster.callers[address].alive:
            self._boot(address)

    def heal(self) -> None:
        self.active = False
        for address in self.addresses:
            self._restart(address)
