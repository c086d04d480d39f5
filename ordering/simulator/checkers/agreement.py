"""Agreement."""

from typing import TYPE_CHECKING, TypeAlias

from ordering.config import MS
from ordering.effects import Delivery
from ordering.qos import Level
from ordering.simulator.checkers.history import History, Log, OrderChecker
from ordering.simulator.checkers.survivors import survivors
from ordering.views import SiteId

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process

# Timestamp, source and sequence number of the first message of a delivery.
Slot: TypeAlias = tuple[int, SiteId, int]


class FinalSets(OrderChecker):
    """Collects what is final where, for checkers that compare at the end."""

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self.final: dict[int, dict[Slot, tuple[int, int]]] = {}  # with the time and the chain

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        if delivery.qos.level >= Level.TOTALLY_ORDERED:
            slots = self.final.get(process.key)
            if slots is None:
                slots = self.final[process.key] = {}
            slots[delivery.first_ts, delivery.source, delivery.first_seq] = (now, log.chain)

    def on_healed(self, cluster: "Cluster", now: int) -> None:
        self.healed_at = now

    def check_survivors(self, cluster: "Cluster", keys: list[int], now: int) -> None:
        """Every survivor must have what is final in its chain at any of ``keys``, from its first view on.

        Without a time to heal a survivor may lag: then only up to its own last final slot. With it,
        only what became final too short a while ago is let off.
        """
        recent = now - cluster.config.detection_ms * MS
        wanted: dict[int, dict[Slot, tuple[int, int]]] = {}
        for key in keys:
            for slot, (since, chain) in self.final.get(key, {}).items():
                found = wanted.setdefault(chain, {})
                if slot not in found or since < found[slot][0]:
                    found[slot] = (since, key)
        for process in survivors(cluster):
            log = self.history.logs.get(process.key)
            if log is None:
                continue
            mine = self.final.get(process.key, {})
            missing = wanted.get(log.chain, {}).keys() - mine.keys()
            for slot in sorted(missing):
                since, where = wanted[log.chain][slot]
                due = slot[0] <= log.last_final or (self.healed_at is not None and since <= recent)
                if slot[0] > log.start and due:
                    self.report_missing(process, slot, where, now)

    def report_missing(self, process: "Process", slot: Slot, where: int, now: int) -> None:
        """``slot`` is final at process ``where`` and not at the survivor ``process``."""


class Agreement(FinalSets):
    """All survivors have the same messages.

    At the end of a run, what is final at one live member is final, at the same slot, at every other
    live member that was in the group at that slot. If the run had time to heal this includes the
    latest messages; if not, it holds up to the last slot that is final at the other member.
    """

    name = "agreement"

    def finish(self, cluster: "Cluster", now: int) -> None:
        self.check_survivors(cluster, [process.key for process in survivors(cluster)], now)

    def report_missing(self, process: "Process", slot: Slot, where: int, now: int) -> None:
        ts, source, seq = slot
        self.fail(
            now,
            f"message {source}:{seq}, final at slot {ts} at process {where},"
            f" is not so at site {process.member.site}",
        )
