"""The order of one caller's calls."""

from typing import TYPE_CHECKING

from ordering.caller import CallerEffect, CallRequested
from ordering.effects import CallFailed, Delivery
from ordering.events import SubmitRequested
from ordering.packets import CallFlag
from ordering.qos import Level
from ordering.simulator.checkers.call_integrity import Key, key_of
from ordering.simulator.checkers.history import History, Log, OrderChecker
from ordering.views import Member

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process


class CallerOrder(OrderChecker):
    """The first places of a caller's calls are in the order of their numbers, whoever forwarded them.

    Claimed for calls of MAJORITY and above whose answer the caller waits for and did not give up, among those
    that became final.
    A call may have more places than one; only the first counts. Not where the group may fork.
    """

    name = "caller_order"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._first: dict[Key, int] = {}
        self._exempt: set[Key] = set()

    def on_called(
        self, caller: Member, first_number: int, request: CallRequested | SubmitRequested, now: int
    ) -> None:
        waited_for = isinstance(request, CallRequested) and (request.acknowledged or request.handler)
        if request.qos.level < Level.MAJORITY or not waited_for:
            for number in range(first_number, first_number + len(request.messages)):
                self._exempt.add((caller.site, caller.boot, number))

    def on_caller_effect(self, caller: Member, effect: CallerEffect, now: int) -> None:
        if type(effect) is CallFailed:
            self._exempt.add((caller.site, caller.boot, effect.number))

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        for offset, call in enumerate(delivery.calls):
            if not call.flags & CallFlag.IS_REPLY:
                ts = delivery.first_ts + offset
                key = key_of(call)
                self._first[key] = min(ts, self._first.get(key, ts))

    def finish(self, cluster: "Cluster", now: int) -> None:
        if cluster.config.minimum_size:
            return
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for (site, boot, number), ts in sorted(self._first.items()):
            if (site, boot, number) in self._exempt:
                continue
            before = last.get((site, boot), (0, 0))
            if ts < before[1]:
                self.fail(
                    now, f"call {site}:{number} is at slot {ts}, before call {before[0]} at slot {before[1]}"
                )
            last[site, boot] = (number, ts)
