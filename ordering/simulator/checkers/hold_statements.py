"""Hold statements and fences."""

from typing import TYPE_CHECKING

from ordering.effects import Deliver, Effect, Multicast, Unicast
from ordering.packets import Ack, Head, NewList, Order
from ordering.simulator.checkers.base import Checker
from ordering.views import SiteId

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class HoldStatements(Checker):
    """A site says only what it has, and nothing of an epoch it has promised to end (R3, R4).

    1. ``held`` and ``received`` in a packet's head are at most the sender's frontier.
    2. Once a process was fenced in an epoch it states no hold in that epoch (zeros instead), sends
       no order of its own that it had not sent before, and delivers nothing that rides the ring
       until it enters the next one. Retransmissions are allowed; unordered data knows no epoch.
    """

    name = "hold_statements"

    def __init__(self) -> None:
        super().__init__()
        # Highest epoch of a chain in which the process was fenced.
        self._fenced: dict[tuple[SiteId, int], int] = {}
        self._unnamed: set[int] = set()  # processes that were so before this event
        self._ordered: dict[SiteId, tuple[int, int]] = {}  # epoch and slot of its last own order

    def on_start(self, process: "Process", now: int) -> None:
        """A promise that was never synced was never given (R8)."""
        ledger = process.disk.ledger
        commitment = ledger.commitment
        for key in [key for key in self._fenced if key[0] == process.member.site]:
            if commitment is None or (commitment.chain, commitment.epoch) != (key[1], self._fenced[key]):
                del self._fenced[key]

    def on_settled(self, process: "Process", now: int) -> None:
        site = process.engine.site
        if site.config.durable and not site.outside:
            if site.unnamed:
                self._unnamed.add(process.key)
            else:
                self._unnamed.discard(process.key)
        if site.fenced and not site.outside:
            self._fenced[site.me, site.chain] = site.epoch

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is Multicast or type(effect) is Unicast:
            packet = effect.packet
            if packet.head.held or packet.head.received:
                self._check_statement(process, packet.head, now)
            if type(packet) is Ack or type(packet) is NewList:
                self._check_order(process, packet.head.chain, packet.order, now)
        elif type(effect) is Deliver:
            site = process.engine.site
            ordered = any(delivery.qos.rides_the_ring for delivery in effect.deliveries)
            if ordered and site.fenced and self._fenced.get((site.me, site.chain)) == site.epoch:
                self.fail(now, f"site {site.me} delivered in epoch {site.epoch} after its promise: {effect}")

    def _check_statement(self, process: "Process", head: Head, now: int) -> None:
        site = process.engine.site
        if site.unnamed or process.key in self._unnamed:
            return  # nobody counts it
        held = max(head.held, head.received)
        if site.config.durable and head.epoch == site.epoch and head.held > process.disk.ledger.end:
            self.fail(now, f"site {site.me} states {head.held}, its disk has {process.disk.ledger.end}")
        # A packet of the epoch that just ended may state slots which its end has erased.
        if held > site.queue.frontier and head.epoch == site.epoch:
            self.fail(now, f"site {site.me} states {held} and holds {site.queue.frontier}")
        fenced = self._fenced.get((site.me, head.chain))
        if fenced is not None and head.epoch <= fenced:
            self.fail(now, f"site {site.me} stated {held} in epoch {head.epoch} after its promise")

    def _check_order(self, process: "Process", chain: int, order: Order, now: int) -> None:
        site = process.engine.site
        if order.orderer != site.me or order.is_install:
            return  # an install is decided by others as well, and whoever knows it passes it on
        this = (order.epoch, order.ts)
        if this > self._ordered.get(site.me, (0, 0)):
            fenced = self._fenced.get((site.me, chain))
            if fenced is not None and order.epoch <= fenced:
                self.fail(
                    now, f"site {site.me} ordered slot {order.ts} of epoch {order.epoch} after its promise"
                )
            self._ordered[site.me] = this
