"""Causal order."""

from bisect import bisect_right
from typing import TYPE_CHECKING

from ordering.effects import Delivery
from ordering.qos import Level, Qos
from ordering.simulator.checkers.history import History, Log, OrderChecker
from ordering.views import SiteId

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class CausalOrder(OrderChecker):
    """What a process knew when it submitted a message comes before that message, everywhere.

    1. If something at slot t was final at a process, or part of the state transferred to it, when
       it submitted a message of a level from TOTALLY_ORDERED up, then wherever that message is
       final its timestamp is above t.
    2. The messages a process submitted at these levels become final in the order of submission.
    """

    name = "causal_order"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        # Per submitter, in step: first sequence number of a submission, and what was known then.
        self._submitted: dict[SiteId, tuple[list[int], list[int]]] = {}
        self._restored: dict[int, int] = {}
        self._last_seq: dict[tuple[int, SiteId], int] = {}

    def on_submit(
        self, process: "Process", first_seq: int, messages: tuple[bytes, ...], qos: Qos, now: int
    ) -> None:
        if qos.level < Level.TOTALLY_ORDERED:
            return
        site = process.member.site
        log = self.history.logs.get(process.key)
        known = max(log.last_final if log is not None else 0, self._restored.get(process.key, 0))
        firsts, knowledge = self._submitted.setdefault(site, ([], []))
        while firsts and firsts[-1] >= first_seq:  # a voter came back; what it had sent has no place
            firsts.pop()
            knowledge.pop()
        firsts.append(first_seq)
        knowledge.append(known)

    def on_restored(self, process: "Process", donor: "Process", now: int) -> None:
        super().on_restored(process, donor, now)
        self._restored[process.key] = process.replica.ts

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        if delivery.qos.level < Level.TOTALLY_ORDERED:
            return
        source, first_seq = delivery.source, delivery.first_seq
        submitted = self._submitted.get(source)
        if submitted is not None:
            index = bisect_right(submitted[0], first_seq) - 1
            if index >= 0 and delivery.first_ts <= submitted[1][index]:
                self.fail(
                    now,
                    f"message {source}:{first_seq} has slot {delivery.first_ts}, but its submitter"
                    f" already knew slot {submitted[1][index]}",
                )
        pair = (process.key, source)
        if first_seq <= self._last_seq.get(pair, 0):
            self.fail(
                now,
                f"site {process.member.site} got message {source}:{first_seq}"
                f" after {source}:{self._last_seq[pair]}",
            )
        self._last_seq[pair] = first_seq + len(delivery.messages) - 1
