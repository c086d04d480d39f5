"""Applications that read what is true now, and whether they do (R11).

What they draw comes from a source of their own, so that a run without reads does not depend on them.
"""

from random import Random
from typing import NamedTuple

from ordering.config import MS
from ordering.effects import Effect, LevelReached, ReadReady
from ordering.errors import SubmitError
from ordering.events import ReadRequested
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.survivors import survivors
from ordering.simulator.cluster import Cluster
from ordering.simulator.process import Process

SECOND = 1000 * MS
READS_PER_SECOND = (5, 40, 200)


class Asked(NamedTuple):
    """A read under way: what was final anywhere when it was asked for."""

    process: Process
    chain: int
    final: int
    at: int


class Readers(Checker):
    """Random sites read. An answered read stands on everything that was final at any site of its chain when
    it was asked for; and once faults have stopped, every read of a member is answered."""

    name = "reads"

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        super().__init__()
        self.cluster = cluster
        self.rng = rng
        self.rate = rng.choice(READS_PER_SECOND)
        self.active = True
        self.count = 0
        self._asked: dict[tuple[int, int], Asked] = {}  # by process and number
        self._final: dict[int, int] = {}  # by chain
        self._reached: dict[int, int] = {}  # by process
        self._schedule()

    def _schedule(self) -> None:
        self.cluster.clock.after(int(self.rng.expovariate(1.0) * SECOND / self.rate), self._read)

    def _read(self) -> None:
        if not self.active:
            return
        live = [p for p in self.cluster.live() if not p.paused]
        if live:
            self._ask(self.rng.choice(live))
        self._schedule()

    def _ask(self, process: Process) -> None:
        self.count += 1
        chain = process.engine.site.chain
        asked = Asked(process, chain, self._final.get(chain, 0), self.cluster.clock.now)
        self._asked[process.key, self.count] = asked
        try:
            self.cluster.handle(process, ReadRequested(self.count))
        except SubmitError:
            self._asked.pop((process.key, self.count), None)

    # -- judging ---------------------------------------------------------------------------------

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        match effect:
            case LevelReached(majority, _):
                chain = process.engine.site.chain
                self._reached[process.key] = majority
                self._final[chain] = max(majority, self._final.get(chain, 0))
            case ReadReady(numbers):
                for number in numbers:
                    asked = self._asked.pop((process.key, number), None)
                    if asked is not None:  # it may be the read of another application
                        self._judge(process, asked, now)
            case _:
                pass

    def _judge(self, process: Process, asked: Asked, now: int) -> None:
        reached = self._reached.get(process.key, 0)
        if process.engine.site.chain == asked.chain and reached < asked.final:
            self.fail(
                now,
                f"site {process.member.site} reads at slot {reached}, but {asked.final} was final at"
                f" {asked.at / 1e9:.3f}s, when it was asked to",
            )

    def on_healed(self, cluster: Cluster, now: int) -> None:
        self.active = False

    def finish(self, cluster: Cluster, now: int) -> None:
        for process in survivors(cluster):
            for key, asked in self._asked.items():
                if key[0] == process.key:
                    self.fail(
                        now, f"site {process.member.site} has no answer to a read of {asked.at / 1e9:.3f}s"
                    )
                    break
