"""Nothing acknowledged or answered is lost."""

from typing import TYPE_CHECKING

from ordering.caller import CallerEffect
from ordering.effects import CallAcknowledged, CallAnswered, Delivery, Effect
from ordering.packets import CallFlag
from ordering.qos import Level
from ordering.simulator.checkers.call_integrity import Key, key_of
from ordering.simulator.checkers.history import History, Log, OrderChecker
from ordering.simulator.checkers.survivors import survivors
from ordering.views import Member

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process


class CallResilience(OrderChecker):
    """What a caller is told at MAJORITY or above stands on a majority, and stays.

    1. When an acknowledgement of that level, or a reply of an application that executes at MAJORITY,
       reaches its caller, the call is final at its timestamp at some process, dead or alive. What is
       final anywhere is majority-held (``resilience``).
    2. At the end it is final there at every live member that was in the group at that slot.
    Not where the group may fork: a chain that lost its majority has lost what only that held (R9).
    """

    name = "call_resilience"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._final: dict[tuple[Key, int], None] = {}
        self._final_at: dict[int, set[tuple[Key, int]]] = {}
        self._promised: dict[tuple[Key, int], int] = {}

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        for offset, call in enumerate(delivery.calls):
            if not call.flags & CallFlag.IS_REPLY:
                place = (key_of(call), delivery.first_ts + offset)
                self._final[place] = None
                self._final_at.setdefault(process.key, set()).add(place)

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        super().on_effect(process, effect, now)
        if type(effect) is CallAnswered and effect.ts:
            self._promise(process.member, effect.number, effect.ts, now)

    def on_caller_effect(self, caller: Member, effect: CallerEffect, now: int) -> None:
        match effect:
            case CallAcknowledged(number, ts, reached, _) if reached >= Level.MAJORITY:
                self._promise(caller, number, ts, now)
            case CallAnswered(number, ts, _, _) if ts:
                self._promise(caller, number, ts, now)
            case _:
                pass

    def _promise(self, caller: Member, number: int, ts: int, now: int) -> None:
        place = ((caller.site, caller.boot, number), ts)
        self._promised[place] = now
        if place not in self._final:
            self.fail(now, f"call {caller.site}:{number} was answered at slot {ts}, final nowhere")

    def finish(self, cluster: "Cluster", now: int) -> None:
        if cluster.config.minimum_size:
            return
        for process in survivors(cluster):
            site = process.member.site
            log = self.history.logs.get(process.key)
            final = self._final_at.get(process.key, set())
            for (key, ts), at in self._promised.items():
                if log is not None and log.start < ts and (key, ts) not in final:
                    self.fail(
                        now,
                        f"call {key[0]}:{key[2]}, answered at {at / 1e9:.3f}s for slot {ts}, is not final at"
                        f" site {site}",
                    )
