"""Total order."""

from typing import TYPE_CHECKING

from ordering.effects import Delivery, Effect, InstallView
from ordering.qos import Level
from ordering.simulator.checkers.history import History, Log, OrderChecker, Step

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class TotalOrder(OrderChecker):
    """Of one chain, all processes see the same history.

    1. Two processes that find something final at the same slot find the same message or view there.
    2. Two processes that have the same final slot go on from it with the same next one. So their
       histories agree wherever both have one, without gaps. SOURCE_ORDERED messages may run ahead
       of their slot, and so may be absent here; they are held to claim 1 only.
    3. At one process timestamps only grow, except after a Retract, and a Retract takes back nothing
       final.
    4. What is delivered at MAJORITY or above is covered by LevelReached before the event is over.
    """

    name = "total_order"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._content: dict[tuple[int, int], Delivery | InstallView] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._last: dict[int, int] = {}

    def on_step(self, process: "Process", step: Step, effect: Effect, now: int) -> None:
        for problem in step.problems:
            self.fail(now, f"site {process.member.site}: {problem}")
        super().on_step(process, step, effect, now)

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        key = (log.chain, delivery.first_ts)
        known = self._content.setdefault(key, delivery)
        if known is not delivery and not _same_messages(known, delivery):
            self.fail(
                now, f"slot {delivery.first_ts} at site {process.member.site}: {delivery}, elsewhere {known}"
            )
        if delivery.qos.level >= Level.TOTALLY_ORDERED:
            self._follow(process, log, delivery.first_ts, now)

    def on_final_view(self, process: "Process", log: Log, install: InstallView, now: int) -> None:
        known = self._content.setdefault((log.chain, install.ts), install)
        if known is not install and not _same_view(known, install):
            self.fail(now, f"slot {install.ts} at site {process.member.site}: {install}, elsewhere {known}")
        self._follow(process, log, install.ts, now)

    def _follow(self, process: "Process", log: Log, ts: int, now: int) -> None:
        site = process.member.site
        last = self._last.get(process.key)
        if last is not None and last >= log.floor:
            expected = self._next.setdefault((log.chain, last), ts)
            if expected != ts:
                self.fail(now, f"site {site} goes on from slot {last} with {ts}, others with {expected}")
        self._last[process.key] = ts

    def on_settled(self, process: "Process", now: int) -> None:
        log = self.history.unproven.pop(process.key, None) if self.history.unproven else None
        if log is not None:
            self.fail(
                now,
                f"site {process.member.site} delivered slot {log.claimed} at MAJORITY,"
                f" LevelReached says that a majority holds {log.majority}",
            )


def _same_view(one: Delivery | InstallView, other: InstallView) -> bool:
    """Whether it brings news of the membership depends on what a process was told before, and its time on
    whether it leapt there."""
    return type(one) is InstallView and one.view == other.view


def _same_messages(one: Delivery | InstallView, other: Delivery) -> bool:
    return (
        type(one) is Delivery
        and one.source == other.source
        and one.first_seq == other.first_seq
        and one.qos == other.qos
        and one.messages == other.messages
    )
