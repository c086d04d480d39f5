"""Applications that multicast: random sites, batches and qualities of service."""

from random import Random

from ordering.config import MS
from ordering.qos import (
    MAJORITY,
    SOURCE_ORDERED,
    TOTAL,
    TOTALLY_ORDERED,
    UNORDERED,
    UNRELIABLE,
    Qos,
    k_resilient,
)
from ordering.simulator.cluster import Cluster

SECOND = 1000 * MS
TRIES = 3
LADDER = (UNRELIABLE, UNORDERED, SOURCE_ORDERED, TOTALLY_ORDERED, k_resilient(1), MAJORITY, TOTAL)


class Workload:
    """Submits ``rate`` messages a second, all told, until stopped."""

    def __init__(self, cluster: Cluster, rng: Random, rate: int, large: float = 0.0) -> None:
        self.cluster = cluster
        self.rng = rng
        self.rate = rate
        self.active = True
        self.submitted = 0
        self.refused = 0
        self._number = 0
        self._large = large  # the share of messages that may be as large as is allowed
        # Swarm: some runs are all majority, some use the whole ladder.
        self.mixed = rng.random() < 0.5

    def start(self) -> None:
        self._schedule()

    def _schedule(self) -> None:
        size = self._size()
        self.cluster.clock.after(
            int(self.rng.expovariate(1.0) * size * SECOND / self.rate), lambda: self._send(size)
        )

    def _size(self) -> int:
        return self.rng.choice((1, 1, 1, 2, 3, 10))

    def _send(self, size: int) -> None:
        if not self.active:
            return
        live = [p for p in self.cluster.live() if not p.paused]
        qos = self._qos()
        # A refused application tries at another site, as a client would.
        for process in self.rng.sample(live, min(TRIES, len(live))):
            messages = tuple(self._message(process.member.site, qos) for _ in range(size))
            if self.cluster.submit(process, messages, qos) is None:
                self.submitted += size
                break
            self.refused += size
        self._schedule()

    def _message(self, site: int, qos: Qos) -> bytes:
        self._number += 1
        name = b"%d.%d" % (site, self._number)
        if not self._large or qos == UNRELIABLE:
            return name
        content = Random(self._number)  # of its own: what is sent does not change when
        if content.random() >= self._large:
            return name
        return name + b"|" + content.randbytes(content.randrange(self.cluster.config.message_bytes_max - 40))

    def _qos(self) -> Qos:
        return self.rng.choice(LADDER) if self.mixed else MAJORITY
