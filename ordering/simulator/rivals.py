"""The duel that consensus is for: two initiators whose proposals reach the voters at once.

What a site sends that has asked for promises is held back. When it has them and proposes, it goes
deaf and its clock all but stops. The others lose patience, and one of them initiates above it. In
the moment in which that one proposes, the first one's old proposal is let go, and it hears again
from everyone but its rival.
"""

from ordering.config import MS
from ordering.simulator.cluster import Cluster
from ordering.simulator.process import Process

PATIENCE = 300 * MS
AFTERMATH = 20 * MS
SLOWLY = 5  # per mille


class Rivals:
    """Arranges one duel."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.first: Process | None = None
        self.over = False
        self._cut: int | None = None

    def on_settled(self, process: Process) -> bool:
        """Move on if ``process`` does what is waited for; true when the duel has begun."""
        recovery = process.engine.recovery
        if self.first is None:
            if recovery.initiating and recovery.proposal is None:
                self._hold(process)
            return False
        if self.over:
            return False
        if process is self.first:
            if recovery.proposal is not None and self._cut is None:
                self._deafen()
            return False
        if self._cut is None or not recovery.initiating or recovery.proposal is None:
            return False
        self._clash(process)
        return True

    def _hold(self, process: Process) -> None:
        self.first = process
        self.cluster.network.hold(process.address)
        self.cluster.clock.after(PATIENCE, self.end)

    def _deafen(self) -> None:
        assert self.first is not None
        address = self.first.address
        links = [(other, address) for other in self.cluster.processes if other != address]
        self._cut = self.cluster.network.cut(*links)
        self.cluster.skew(self.first, SLOWLY)

    def _clash(self, rival: Process) -> None:
        assert self.first is not None
        network = self.cluster.network
        silence = network.cut((rival.address, self.first.address))
        self.cluster.clock.after(AFTERMATH, lambda: network.mend(silence))
        self.end()

    def end(self) -> None:
        """Let everything go; also after a while in which nobody took up the duel."""
        if self.over or self.first is None:
            return
        self.over = True
        if self._cut is not None:
            self.cluster.network.mend(self._cut)
            self.cluster.clock.after(AFTERMATH, self._wake)
        self.cluster.network.release(self.first.address)

    def _wake(self) -> None:
        assert self.first is not None
        self.cluster.skew(self.first, 1000)
