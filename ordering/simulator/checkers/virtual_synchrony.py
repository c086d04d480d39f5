"""Virtual synchrony."""

from typing import TYPE_CHECKING

from ordering.effects import Deliver, Delivery, Effect, InstallView
from ordering.qos import Level
from ordering.simulator.checkers.history import History, Log, OrderChecker, Step
from ordering.views import SiteId, ViewId

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class VirtualSynchrony(OrderChecker):
    """Views come in the same order everywhere, and with the same messages between them.

    1. Of one chain, all processes that install a view V and another one after it install the same
       one next.
    2. Two processes that both go from V to V' find the same messages final in between (levels from
       TOTALLY_ORDERED up; SOURCE_ORDERED ones promise only the order of their source).
    3. A message with a slot is delivered in the view of its slot: the last one its process
       installed, which lies before it.
    """

    name = "virtual_synchrony"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._view: dict[int, InstallView] = {}
        self._since_view: dict[int, list[tuple[int, SiteId, int]]] = {}
        self._next: dict[tuple[int, int], tuple[int, ViewId]] = {}
        self._between: dict[tuple[int, int, int], tuple[int, list[tuple[int, SiteId, int]]]] = {}

    def on_step(self, process: "Process", step: Step, effect: Effect, now: int) -> None:
        if type(effect) is Deliver:
            self._check_view(process, effect, now)
        super().on_step(process, step, effect, now)

    def _check_view(self, process: "Process", effect: Deliver, now: int) -> None:
        install = self._view.get(process.key)
        for delivery in effect.deliveries:
            if not delivery.first_ts:
                continue
            if install is None or effect.view != install.view.id or delivery.first_ts <= install.ts:
                where = "no view" if install is None else f"view {install.view.id} of slot {install.ts}"
                self.fail(
                    now,
                    f"site {process.member.site} got slot {delivery.first_ts} as of view {effect.view}"
                    f" while in {where}",
                )

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        if delivery.qos.level >= Level.TOTALLY_ORDERED:
            since = self._since_view.get(process.key)
            if since is not None:
                since.append((delivery.first_ts, delivery.source, delivery.first_seq))

    def on_final_view(self, process: "Process", log: Log, install: InstallView, now: int) -> None:
        site = process.key
        before = self._view.get(site)
        if before is not None and before.ts >= log.floor:
            this = (install.ts, install.view.id)
            other = self._next.setdefault((log.chain, before.ts), this)
            if other != this:
                self.fail(
                    now,
                    f"after view {before.view.id} site {site} installed {this[1]} at slot {this[0]},"
                    f" another process {other[1]} at slot {other[0]}",
                )
            mine = self._since_view[site]
            peer, theirs = self._between.setdefault((log.chain, before.ts, install.ts), (site, mine))
            if theirs != mine:
                odd = sorted(set(mine) ^ set(theirs))[:3] or mine[:3]
                self.fail(
                    now,
                    f"from view {before.view.id} to {install.view.id} sites {site} and {peer} differ in"
                    f" (slot, source, sequence number) {odd}",
                )
        self._view[site] = install
        self._since_view[site] = []
