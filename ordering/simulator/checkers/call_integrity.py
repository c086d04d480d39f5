"""Integrity of calls."""

from typing import TYPE_CHECKING

import msgspec

from ordering.caller import CallRequested
from ordering.effects import CallsTaken, Deliver, Delivery, Effect
from ordering.events import SubmitRequested
from ordering.packets import Call, CallFlag
from ordering.qos import Qos
from ordering.simulator.checkers.base import Checker
from ordering.views import Member, ViewId

if TYPE_CHECKING:
    from ordering.simulator.process import Process

Key = tuple[int, int, int]


def key_of(call: Call) -> Key:
    return call.caller, call.boot, call.number


class Made(msgspec.Struct, frozen=True):
    """One request as its caller made it."""

    message: bytes
    qos: Qos
    handler: int
    view: ViewId | None
    to_group: bool


class CallIntegrity(Checker):
    """Only calls that were made are delivered, as they were made.

    1. Each call of a delivery was made by that caller under that number, with that message, quality and
       handler; a reply to the group names a request that asked for one.
    2. Who is told to reply has that handler lock: one site at most for each place in the order.
    3. A call bound to a view is only taken by a member that is in that view.
    """

    name = "call_integrity"

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Key, Made] = {}
        self._owed: dict[tuple[int, int, Key], int] = {}

    def on_called(
        self, caller: Member, first_number: int, request: CallRequested | SubmitRequested, now: int
    ) -> None:
        view = request.view if isinstance(request, CallRequested) else None
        to_group = isinstance(request, SubmitRequested) and request.reply_to_group
        for number, message in enumerate(request.messages, start=first_number):
            key = (caller.site, caller.boot, number)
            if key in self.made:
                self.fail(now, f"call {key} was numbered twice")
            self.made[key] = Made(message, request.qos, request.handler, view, to_group)

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is Deliver:
            for delivery in effect.deliveries:
                if delivery.calls:
                    self._check(process, delivery, now)
        elif type(effect) is CallsTaken:
            self._check_view(process, effect, now)

    def _check(self, process: "Process", delivery: Delivery, now: int) -> None:
        site = process.member.site
        for offset, (call, message) in enumerate(zip(delivery.calls, delivery.messages, strict=True)):
            made = self.made.get(key_of(call))
            if call.flags & CallFlag.IS_REPLY:
                is_so = made is not None and made.to_group
            else:
                is_so = made is not None and (made.message, made.qos, made.handler) == (
                    message,
                    delivery.qos,
                    call.handler,
                )
            if not is_so:
                self.fail(now, f"site {site} got call {key_of(call)}, which nobody made so: {made}")
            if offset in delivery.owed:
                self._check_owed(process, delivery.first_ts + offset, call, now, slot=delivery.first_ts)

    def _check_owed(self, process: "Process", ts: int, call: Call, now: int, *, slot: int) -> None:
        site = process.member.site
        if not call.handler:
            self.fail(now, f"site {site} is to reply to call {key_of(call)}, which has no handler")
        if slot and process.view is not None:
            place = (process.engine.site.chain, ts, key_of(call))
            other = self._owed.setdefault(place, site)
            if other != site and process.majority >= ts:
                self.fail(now, f"sites {other} and {site} are both to reply to call {key_of(call)} at {ts}")

    def _check_view(self, process: "Process", taken: CallsTaken, now: int) -> None:
        for call in taken.batch.calls:
            made = self.made.get(key_of(call))
            view = process.view
            if made is None or made.view is None or call.flags & CallFlag.IS_REPLY:
                continue
            if view is None or view.id != made.view:
                self.fail(
                    now,
                    f"site {process.member.site} took call {key_of(call)}, bound to view {made.view},"
                    f" in view {view.id if view is not None else '-'}",
                )
