"""Locks move on."""

from typing import TYPE_CHECKING

from ordering.config import MS
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.survivors import survivors

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster

DETECTION_TIMES = 10
SLACK = 3000 * MS  # a clock may run a tenth slow, and a view change keeps the time where it was


class LockLiveness(Checker):
    """Ten detection times after a run healed

    1. no lock that somebody waits for is free, and whatever a survivor last asked for has been heard;
    2. no lease that ended long ago, by the right time, is still counted. A slot time that wrong clocks
       have carried ahead is waited for.
    """

    name = "lock_liveness"

    def __init__(self) -> None:
        super().__init__()
        self._bound: int | None = None

    def on_healed(self, cluster: "Cluster", now: int) -> None:
        self._bound = now + DETECTION_TIMES * cluster.config.detection_ms * MS

    def finish(self, cluster: "Cluster", now: int) -> None:
        if self._bound is None or now < self._bound:
            return
        for process in survivors(cluster):
            view = process.view
            if view is None:
                continue
            site = process.member.site
            locks = process.engine.locks
            if locks.version != view.locks.version(locks.owner) and site in view.electorate:
                self.fail(now, f"site {site} has stated {locks.version}, its view does not have it")
            for lock in view.locks.locks:
                if lock.queue and not lock.holder.owner.site and not lock.holder.owner.session:
                    self.fail(now, f"lock {lock.name!r} is free, and {lock.queue} wait for it")
                if self._is_over(cluster, lock.expires, now):
                    self.fail(now, f"site {site}: lock {lock.name!r} outlives its lease, {lock.holder}")

    def _is_over(self, cluster: "Cluster", expires: int, now: int) -> bool:
        if cluster.wall_errors is None or not expires:
            return False
        return expires + SLACK < cluster.true_wall(now)
