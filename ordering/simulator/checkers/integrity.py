"""Integrity."""

from typing import TYPE_CHECKING

from ordering.effects import Deliver, Delivery, Effect
from ordering.qos import Level, Qos
from ordering.simulator.checkers.history import History, Log, OrderChecker, Step
from ordering.views import SiteId

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class Lane:
    """What one process submitted in one lane; sequence numbers start at 1 and have no gaps."""

    __slots__ = ("earlier", "messages", "qualities")

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.qualities: list[Qos] = []
        self.earlier: list[Lane] = []  # as it was before a voter came back and numbered on from lower

    def renumber(self, first_seq: int) -> None:
        """What had this number and higher was never ordered."""
        before = Lane()
        before.messages, before.qualities = list(self.messages), list(self.qualities)
        self.earlier.append(before)
        del self.messages[first_seq - 1 :]
        del self.qualities[first_seq - 1 :]

    def has(self, delivery: Delivery) -> bool:
        start = delivery.first_seq - 1
        end = start + len(delivery.messages)
        return (
            0 <= start < end <= len(self.messages)
            and self.messages[start:end] == list(delivery.messages)
            and self.qualities[start] == delivery.qos == self.qualities[end - 1]
        )


class Integrity(OrderChecker):
    """Nothing is made up, changed or repeated.

    1. Every message delivered was submitted by the process named as its source, with this sequence
       number, content and quality of service, and before it was delivered.
    2. A message of the ordered lane is final at most once at a process (one that came ahead of its
       slot is final at once), and an UNORDERED one is delivered at most once. UNRELIABLE ones have
       no sequence number and may be repeated by the network.
    """

    name = "integrity"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._ordered: dict[SiteId, Lane] = {}
        self._unordered: dict[SiteId, Lane] = {}
        self._unreliable: dict[SiteId, set[bytes]] = {}
        self._seen: dict[int, set[tuple[bool, SiteId, int, bytes]]] = {}
        self._numbered: dict[tuple[bool, SiteId], int] = {}  # the process that numbered last

    def on_submit(
        self, process: "Process", first_seq: int, messages: tuple[bytes, ...], qos: Qos, now: int
    ) -> None:
        site = process.member.site
        if qos.level == Level.UNRELIABLE:
            self._unreliable.setdefault(site, set()).update(messages)
            return
        lane = self._lanes(qos).setdefault(site, Lane())
        again = self._numbered.setdefault((qos.rides_the_ring, site), process.key) != process.key
        self._numbered[qos.rides_the_ring, site] = process.key
        if again and first_seq <= len(lane.messages):
            lane.renumber(first_seq)
        if first_seq != len(lane.messages) + 1:
            self.fail(
                now,
                f"site {site} numbered a submission {first_seq}, its next number is {len(lane.messages) + 1}",
            )
        lane.messages += messages
        lane.qualities += [qos] * len(messages)

    def _lanes(self, qos: Qos) -> dict[SiteId, Lane]:
        return self._ordered if qos.level >= Level.SOURCE_ORDERED else self._unordered

    def on_step(self, process: "Process", step: Step, effect: Effect, now: int) -> None:
        if type(effect) is Deliver:
            for delivery in effect.deliveries:
                self._check_content(process, delivery, now)
                # A call may be forwarded again, by another boot under the same number.
                if not delivery.first_ts and delivery.qos.level != Level.UNRELIABLE and not delivery.calls:
                    self._check_once(process, delivery, now)
        super().on_step(process, step, effect, now)

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        self._check_once(process, delivery, now)

    def _check_once(self, process: "Process", delivery: Delivery, now: int) -> None:
        site = process.member.site
        seen = self._seen.get(process.key)
        if seen is None:
            seen = self._seen[process.key] = set()
        # A voter that came back may use a number again that was never ordered.
        ordered = delivery.qos.level >= Level.SOURCE_ORDERED
        key = (ordered, delivery.source, delivery.first_seq, delivery.messages[0])
        if key in seen:
            self.fail(now, f"site {site} got message {_name(delivery)} twice")
        seen.add(key)

    def _check_content(self, process: "Process", delivery: Delivery, now: int) -> None:
        if not self._was_submitted(delivery):
            self.fail(
                now,
                f"site {process.member.site} got {_name(delivery)}, which nobody submitted so: {delivery}",
            )

    def _was_submitted(self, delivery: Delivery) -> bool:
        if delivery.qos.level == Level.UNRELIABLE:
            return self._unreliable.get(delivery.source, set()).issuperset(delivery.messages)
        lane = self._lanes(delivery.qos).get(delivery.source)
        return lane is not None and any(numbered.has(delivery) for numbered in (lane, *lane.earlier))


def _name(delivery: Delivery) -> str:
    return f"{delivery.source}:{delivery.first_seq}"
