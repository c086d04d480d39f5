"""Applications that lock and unlock, and clocks that are set wrong while they do.

What they draw comes from a source of their own, so that a seed's other faults do not depend on them.
"""

from collections.abc import Callable
from random import Random

from ordering.config import MS
from ordering.events import LockReleased, LockRequested
from ordering.simulator.cluster import Cluster
from ordering.simulator.plan import FaultKind

SECOND = 1000 * MS
NAMES = ("a", "b", "c", 1, 2, 6)
LEASES_MS = (0, 0, 40, 300, 2000)
ERRORS_S = (-3600, -5, -1, 1, 5, 3600)
OPERATIONS_PER_SECOND = (4, 12, 36)


class LockUsers:
    """In half of the runs: random sites that ask for locks and give them back."""

    def __init__(self, cluster: Cluster, rng: Random, count: Callable[[FaultKind], None]) -> None:
        self.cluster = cluster
        self.rng = rng
        self.count = count
        self.active = rng.random() < 0.5
        self.honest = rng.random() < 0.3
        self.rate = rng.choice(OPERATIONS_PER_SECOND)
        if rng.random() < 0.8:
            cluster.wall_errors = {}

    def start(self) -> None:
        if self.active:
            self._schedule()
            if self.cluster.wall_errors is not None and not self.honest:
                self._schedule_clock()

    def stop(self) -> None:
        """No more requests, and every clock is right again."""
        self.active = False
        if self.cluster.wall_errors is not None:
            self.cluster.wall_errors.clear()
            for process in self.cluster.live():
                self.cluster.set_clock(process)

    def _schedule(self) -> None:
        self.cluster.clock.after(int(self.rng.expovariate(1.0) * SECOND / self.rate), self._operate)

    def _operate(self) -> None:
        if not self.active:
            return
        live = [p for p in self.cluster.live() if not p.paused]
        if live:
            process = self.rng.choice(live)
            wanted = list(process.engine.locks.wishes)
            if wanted and self.rng.random() < 0.5:
                self.cluster.ask_lock(process, LockReleased(self.rng.choice(wanted)))
            else:
                name, lease = self.rng.choice(NAMES), self.rng.choice(LEASES_MS)
                self.cluster.ask_lock(process, LockRequested(name, lease))
        self._schedule()

    def _schedule_clock(self) -> None:
        self.cluster.clock.after(int(self.rng.expovariate(1.0) * SECOND), self._set_clock)

    def _set_clock(self) -> None:
        live = self.cluster.live()
        errors = self.cluster.wall_errors
        if not self.active or errors is None:
            return
        if live:
            process = self.rng.choice(live)
            errors[process.address] = self.rng.choice(ERRORS_S) * SECOND if self.rng.random() < 0.6 else 0
            self.count(FaultKind.CLOCK_SET)
            self.cluster.set_clock(process)
        self._schedule_clock()
