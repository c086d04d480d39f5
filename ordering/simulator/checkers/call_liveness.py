"""Every call gets its answer."""

from typing import TYPE_CHECKING

from ordering.config import MS
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.survivors import survivors

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster

DETECTION_TIMES = 10


class CallLiveness(Checker):
    """Once faults stop and a majority can talk, callers that live and members that stay are answered.

    Each call and each request made before the run healed has its answer within ten detection times. (One
    that was given up has had it: the outcome is unknown.)
    """

    name = "call_liveness"

    def __init__(self) -> None:
        super().__init__()
        self._bound: int | None = None
        self._due: dict[tuple[int, int], int] = {}  # (site, boot) → first number after the run healed

    def on_healed(self, cluster: "Cluster", now: int) -> None:
        self._bound = now + DETECTION_TIMES * cluster.config.detection_ms * MS
        for caller in cluster.callers.values():
            self._due[caller.member.site, caller.member.boot] = caller.caller.next_number
        for process in cluster.live():
            requests = process.engine.submission.requests
            self._due[process.member.site, process.member.boot] = requests.next_number

    def finish(self, cluster: "Cluster", now: int) -> None:
        if self._bound is None or now < self._bound:
            return
        for caller in cluster.callers.values():
            if caller.alive:
                self._check(caller.member.site, caller.member.boot, caller.caller.outstanding, now)
        for process in survivors(cluster):
            waiting = tuple(process.engine.submission.requests.waiting)
            self._check(process.member.site, process.member.boot, waiting, now)

    def _check(self, site: int, boot: int, outstanding: tuple[int, ...], now: int) -> None:
        late = [number for number in outstanding if number < self._due.get((site, boot), 0)]
        if late:
            self.fail(now, f"{len(late)} calls of site {site} have no answer, the first is {late[0]}")
