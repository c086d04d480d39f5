"""Liveness."""

from typing import TYPE_CHECKING

from ordering.config import MS
from ordering.effects import Abandoned, Deliver, Delivery, Effect
from ordering.qos import Level, Qos
from ordering.simulator.checkers.history import History, Log, OrderChecker, Step
from ordering.simulator.checkers.survivors import survivors, unbroken
from ordering.views import SiteId

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process

DETECTION_TIMES = 10


class Accepted:
    """The last submission of one process to the ordered lane; source order covers those before it."""

    __slots__ = ("at", "last_seq")

    def __init__(self, at: int, last_seq: int) -> None:
        self.at = at
        self.last_seq = last_seq


class Liveness(OrderChecker):
    """Once faults stop and a majority can talk, the group gets its work done in time.

    Within ten detection times after the run healed
    1. each process at an unbroken host is a member and in the ring of the latest view;
    2. each ordered message accepted before, by a process that is still a member at the end, is
       final at every such member that was in the group at its slot.
    The run must last at least that long; hosts it leaves broken (``cluster.left_broken``) are let off.
    """

    name = "liveness"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._bound = 0
        self._accepted: dict[SiteId, Accepted] = {}
        self._due: dict[SiteId, Accepted] = {}
        # (receiver, source) → last sequence number there; → when the last one due came.
        self._reached: dict[tuple[int, SiteId], int] = {}
        self._done_at: dict[tuple[int, SiteId], int] = {}
        self._slots: dict[tuple[SiteId, int], int] = {}
        self._first_view_at: dict[int, int] = {}

    def on_submit(
        self, process: "Process", first_seq: int, messages: tuple[bytes, ...], qos: Qos, now: int
    ) -> None:
        if qos.rides_the_ring:
            self._accepted[process.member.site] = Accepted(now, first_seq + len(messages) - 1)

    def on_start(self, process: "Process", now: int) -> None:
        """What a process had accepted before it died is not due."""
        self._accepted.pop(process.member.site, None)
        self._due.pop(process.member.site, None)

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is Abandoned and effect.ordered:
            self._accepted.pop(process.member.site, None)
            self._due.pop(process.member.site, None)
        super().on_effect(process, effect, now)

    def on_step(self, process: "Process", step: Step, effect: Effect, now: int) -> None:
        key = process.key
        if key not in self._first_view_at and step.log.first_view is not None:
            self._first_view_at[key] = now
        if type(effect) is Deliver:
            for delivery in effect.deliveries:
                if not delivery.first_ts and delivery.qos.level == Level.SOURCE_ORDERED:
                    self._reach(key, delivery, now)
        super().on_step(process, step, effect, now)

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        self._slots[delivery.source, delivery.first_seq + len(delivery.messages) - 1] = delivery.first_ts
        self._reach(process.key, delivery, now)

    def _reach(self, process_key: int, delivery: Delivery, now: int) -> None:
        key = (process_key, delivery.source)
        last = delivery.first_seq + len(delivery.messages) - 1
        if last > self._reached.get(key, 0):
            self._reached[key] = last
        due = self._due.get(delivery.source)
        if due is not None and self._reached[key] >= due.last_seq:
            self._done_at.setdefault(key, now)

    def on_healed(self, cluster: "Cluster", now: int) -> None:
        self.healed_at = now
        self._bound = now + DETECTION_TIMES * cluster.config.detection_ms * MS
        self._due = dict(self._accepted)
        for (site, source), last in self._reached.items():
            if source in self._due and last >= self._due[source].last_seq:
                self._done_at[site, source] = now

    def finish(self, cluster: "Cluster", now: int) -> None:
        if self.healed_at is None or now < self._bound:
            return
        self._check_ring(cluster, now)
        members = survivors(cluster)
        for source in members:
            due = self._due.get(source.member.site)
            if due is None:
                continue
            for receiver in members:
                self._check_pair(receiver, source, due, now)

    def _check_ring(self, cluster: "Cluster", now: int) -> None:
        views = [p.view for p in survivors(cluster) if p.view is not None]
        newest = max(views, key=lambda view: view.id, default=None)
        for process in unbroken(cluster):
            if newest is None or not process.is_member() or process.member.site not in newest.ring:
                view = "no view" if newest is None else f"view {newest.id} with ring {newest.ring}"
                self.fail(
                    now,
                    f"site {process.member.site} ({process.engine.state.value}) is not in the ring: {view}",
                )

    def _check_pair(self, receiver: "Process", source: "Process", due: Accepted, now: int) -> None:
        key = (receiver.key, source.member.site)
        done_at = self._done_at.get(key)
        if done_at is not None and done_at <= self._bound:
            return
        slot = self._slots.get((key[1], due.last_seq))
        log = self.history.logs.get(key[0])
        if slot is not None and log is not None and log.start >= slot:
            return  # in the state the receiver took over
        if slot is None and log is not None and log.floor:
            return  # ahead of its slot elsewhere, and in the state the receiver leapt to
        if slot is None and receiver is not source and self._first_view_at.get(key[0], now) >= due.at:
            return  # a message without a slot, and a receiver that came after it
        late = "never" if done_at is None else f"only at {done_at / 1e9:.3f}s"
        self.fail(
            now,
            f"message {key[1]}:{due.last_seq}, accepted at {due.at / 1e9:.3f}s, is {late} final"
            f" at site {receiver.member.site} (there up to {self._reached.get(key, 0)})",
        )
