"""What the tests of this folder ask of a stage."""

from collections.abc import Iterator
from typing import TypeVar

from ordering.config import MS
from ordering.effects import Deliver, Delivery, Multicast, Unicast
from ordering.packets import Ack, NewList, Order, Packet
from ordering.simulator.process import Process
from ordering.simulator.stage import Stage

P = TypeVar("P", bound=Packet)


def ms(count: int) -> int:
    return count * MS


def sent(stage: Stage, kind: type[P], since: int = 0) -> list[tuple[int, P]]:
    """(sender, packet) of each packet of a type sent since a mark; a multicast is one packet."""
    found: list[tuple[int, P]] = []
    for site, effect in stage.journal.effects[since:]:
        if isinstance(effect, Multicast | Unicast) and isinstance(effect.packet, kind):
            found.append((site, effect.packet))
    return found


def mark(stage: Stage) -> int:
    """A point in what has happened, for ``sent``."""
    return len(stage.journal.effects)


def orders(stage: Stage, since: int = 0) -> list[Order]:
    """Every order made, once, in the order of the slots."""
    made: dict[tuple[int, int], Order] = {}
    acks = [packet.order for _, packet in sent(stage, Ack, since)]
    new_lists = [packet.order for _, packet in sent(stage, NewList, since)]
    for order in (*acks, *new_lists):
        made.setdefault((order.epoch, order.ts), order)
    return [made[key] for key in sorted(made)]


def log(stage: Stage, process: Process) -> list[tuple[int, str]]:
    """(timestamp, message) as the application was told, without what was taken back."""
    return stage.journal.delivered.get(process.member.site, [])


def texts(stage: Stage, address: str) -> list[str]:
    return [text for _, text in log(stage, stage.process(address))]


def delivered_after_ms(stage: Stage, address: str, text: str) -> int | None:
    """Milliseconds after birth at which a site delivered a message."""
    at = stage.journal.delivered_at.get((stage.process(address).member.site, text))
    return None if at is None else (at - stage.born_at) // MS


def history(stage: Stage, address: str) -> Iterator[tuple[int, str]]:
    """Messages and views of a site's application in the order in which it was told."""
    site = stage.process(address).member.site
    events = [(ts, text) for ts, text in stage.journal.delivered.get(site, [])]
    views = [(ts, f"view {view.id}") for ts, view in stage.journal.views.get(site, [])]
    yield from sorted([*events, *views])


def deliveries(stage: Stage, address: str) -> list[Delivery]:
    site = stage.process(address).member.site
    found = [effect for at, effect in stage.journal.effects if at == site and isinstance(effect, Deliver)]
    return [delivery for effect in found for delivery in effect.deliveries]
