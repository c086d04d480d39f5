"""Source order."""

from typing import TYPE_CHECKING

from ordering.effects import Deliver, Delivery, Effect, InstallView
from ordering.qos import Level
from ordering.simulator.checkers.history import History, Log, OrderChecker, Step
from ordering.views import SiteId, ViewId

if TYPE_CHECKING:
    from ordering.simulator.process import Process

BIRTH = ViewId(1, 0)
ANYWHERE = 0


class Stream:
    """What one process has of one source."""

    __slots__ = ("early", "leaps", "next_seq", "told")

    def __init__(self, next_seq: int) -> None:
        self.next_seq = next_seq
        self.leaps = 0  # how many boots of the source are still to begin here
        self.told = False  # its latest boot is named here, so that the next message is surely of it
        self.early: dict[int, int] = {}  # delivered without a slot, so never void: first → last


class SourceOrder(OrderChecker):
    """Each process delivers the ordered messages of each source in sequence, without gaps, once.

    This holds across levels from SOURCE_ORDERED up, whether a message comes ahead of its slot or at
    it. Void deliveries do not count: their messages come again, while those that ran ahead do not.
    A process that was there when the source started begins with message 1; a learner may begin
    anywhere.
    """

    name = "source_order"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._streams: dict[tuple[int, SiteId], Stream] = {}
        self._boots: dict[SiteId, int] = {}  # the latest of each site
        self._starts: dict[SiteId, int] = {}

    def on_start(self, process: "Process", now: int) -> None:
        """A voter that comes back numbers on from the order: what it had sent without one ends, though not
        before its new boot is heard of; until then it may still arrive."""
        self._boots[process.member.site] = process.member.boot
        self._starts[process.member.site] = self._starts.get(process.member.site, 0) + 1
        for key, stream in self._streams.items():
            if key[1] == process.member.site:
                stream.leaps += 1
                stream.told = False

    def on_restart(self, process: "Process") -> None:
        """It may go on anywhere; but what ran ahead of its slot before does not come again."""
        for key, stream in self._streams.items():
            if key[0] == process.key:
                stream.next_seq = ANYWHERE

    def on_step(self, process: "Process", step: Step, effect: Effect, now: int) -> None:
        if type(effect) is Deliver:
            for delivery in effect.deliveries:
                if delivery.qos.level >= Level.SOURCE_ORDERED:
                    self._take(process, step.log, delivery, now)
        elif type(effect) is InstallView:
            for member in effect.view.members:
                stream = self._streams.get((process.key, member.site))
                if stream is not None and self._boots.get(member.site) == member.boot:
                    stream.told = True
        for delivery in step.void:
            stream = self._streams.get((process.key, delivery.source))
            if stream is not None and stream.next_seq != ANYWHERE:
                stream.next_seq = min(stream.next_seq, delivery.first_seq)

    def _take(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        key = (process.key, delivery.source)
        stream = self._streams.get(key)
        if stream is None:
            expected = 1 if _saw_start(log, delivery.source) else delivery.first_seq
            stream = self._streams[key] = Stream(expected)
            # A receiver that comes back as well has what earlier boots sent in its log.
            stream.leaps = max(self._starts.get(delivery.source, 1) - 1, 0)
        if stream.next_seq not in (delivery.first_seq, ANYWHERE):
            if not stream.leaps:
                self.fail(
                    now,
                    f"site {process.member.site} got message {key[1]}:{delivery.first_seq},"
                    f" expected {stream.next_seq}",
                )
            stream.leaps = max(stream.leaps - 1, 0)
            stream.early.clear()
        if stream.told:
            stream.leaps = 0
        last = delivery.first_seq + len(delivery.messages) - 1
        if not delivery.first_ts:
            stream.early[delivery.first_seq] = last
        stream.next_seq = last + 1
        while (last := stream.early.get(stream.next_seq, 0)) != 0:
            stream.next_seq = last + 1


def _saw_start(log: Log, source: SiteId) -> bool:
    """Whether the process was a member before the source sent anything."""
    first = log.first_view
    return first is not None and not log.floor and (first.view.id == BIRTH or not first.view.has(source))
