"""One token, one order."""

from typing import TYPE_CHECKING

from ordering.effects import Effect, Multicast, Unicast
from ordering.packets import Ack, NewList, Order
from ordering.simulator.checkers.base import Checker

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class SingleToken(Checker):
    """Within one epoch of a chain one site at a time may order, and a slot is ordered once (R6).

    1. After every event at most one unfenced process holds the token of an epoch. A process that
       sleeps or is cut off may still believe that it holds the token of an earlier one.
    2. All Acks and NewLists that ever carry the order of an epoch at a slot carry the same one.
    """

    name = "single_token"

    def __init__(self) -> None:
        super().__init__()
        self._holders: dict[tuple[int, int], Process] = {}
        self._orders: dict[tuple[int, int, int], Order] = {}

    def on_settled(self, process: "Process", now: int) -> None:
        site = process.engine.site
        tail = site.queue.tail
        if tail is None or tail.next_site != site.me:
            return  # most events end here, at little cost
        if site.outside or not site.holds_token():
            return
        key = (site.chain, site.epoch)
        holder = self._holders.get(key)
        if holder is process:
            return
        if holder is not None and _holds_token_of(holder, key):
            self.fail(
                now,
                f"sites {holder.member.site} and {process.member.site} both hold the token"
                f" of epoch {site.epoch}",
            )
        self._holders[key] = process

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is Multicast or type(effect) is Unicast:
            packet = effect.packet
            if type(packet) is Ack or type(packet) is NewList:
                order = packet.order
                known = self._orders.setdefault((packet.head.chain, order.epoch, order.ts), order)
                if known is not order and known != order:
                    self.fail(now, f"site {process.member.site} sent {order}, before that it was {known}")


def _holds_token_of(process: "Process", key: tuple[int, int]) -> bool:
    site = process.engine.site
    return (site.chain, site.epoch) == key and not site.outside and site.holds_token()
