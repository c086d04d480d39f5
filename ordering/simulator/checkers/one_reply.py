"""One reply value for each request."""

from typing import TYPE_CHECKING

from ordering.caller import CallerEffect
from ordering.effects import CallAnswered, Deliver, Effect, Unicast
from ordering.packets import CallFlag, NonMemberReply
from ordering.simulator.checkers.base import Checker
from ordering.views import Member

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process


class OneReply(Checker):
    """Whoever replies to a request, whenever and however often, says the same (R12).

    Of replies that are sent, reach their caller, or go to the group. The sessions that make it so are the
    application's; that the engine brings each reply to its own request is the engine's. Not where the
    group may fork: two chains execute by themselves.
    """

    name = "one_reply"

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[tuple[int, int], bytes] = {}
        self._conflicts: list[tuple[int, str]] = []

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is Unicast and type(effect.packet) is NonMemberReply:
            for answer in effect.packet.answers:
                self._check(effect.packet.boot, answer.number, answer.ts, answer.payload, now)
        elif type(effect) is CallAnswered:
            self._check(process.member.boot, effect.number, effect.ts, effect.payload, now)
        elif type(effect) is Deliver:
            for delivery in effect.deliveries:
                for call, message in zip(delivery.calls, delivery.messages, strict=False):
                    if call.flags & CallFlag.IS_REPLY:
                        self._check(call.boot, call.number, 0, message, now)

    def on_caller_effect(self, caller: Member, effect: CallerEffect, now: int) -> None:
        if type(effect) is CallAnswered:
            self._check(caller.boot, effect.number, effect.ts, effect.payload, now)

    def _check(self, boot: int, number: int, ts: int, payload: bytes, now: int) -> None:
        first = self._values.setdefault((boot, number), payload)
        if first != payload:
            text = f"request {number} of boot {boot:x} got {payload!r} at {ts} after {first!r}"
            self._conflicts.append((now, text))

    def finish(self, cluster: "Cluster", now: int) -> None:
        if not cluster.config.minimum_size:
            for at, text in self._conflicts:
                self.fail(at, text)
