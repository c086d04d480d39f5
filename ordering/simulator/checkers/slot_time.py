"""One time for all."""

from typing import TYPE_CHECKING

from ordering.effects import Delivery, Effect, InstallView, Tick
from ordering.simulator.checkers.history import TELLS_OF_ORDER, History, Log, OrderChecker

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class SlotTime(OrderChecker):
    """Slot time is part of the order (R14).

    1. Of one chain, a slot that is final has the same time at all processes.
    2. At one process the time never goes back from one final slot to the next.
    """

    name = "slot_time"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._times: dict[tuple[int, int], int] = {}
        self._last: dict[int, tuple[int, int]] = {}

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) in TELLS_OF_ORDER:
            super().on_effect(process, effect, now)
        elif type(effect) is Tick:
            log = self.history.logs.get(process.key)
            if log is not None:
                self._check(process, log, effect.ts, effect.time, now)

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        self._check(process, log, delivery.first_ts, delivery.time, now)

    def on_final_view(self, process: "Process", log: Log, install: InstallView, now: int) -> None:
        if install.ts >= log.floor:  # else the time is that of the position it leapt to
            self._check(process, log, install.ts, install.time, now)

    def _check(self, process: "Process", log: Log, ts: int, time: int, now: int) -> None:
        site = process.member.site
        known = self._times.setdefault((log.chain, ts), time)
        if known != time:
            self.fail(now, f"slot {ts} has time {time} at site {site}, elsewhere {known}")
        last_ts, last = self._last.get(process.key, (0, 0))
        if ts > last_ts and time < last:
            self.fail(now, f"site {site}: the time goes back from {last} to {time} at slot {ts}")
        self._last[process.key] = (ts, time)
