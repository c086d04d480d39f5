"""Resilience: nothing acknowledged is lost."""

from typing import TYPE_CHECKING

from ordering.effects import Deliver, Delivery, Effect, InstallView, LevelReached
from ordering.packets import Order
from ordering.qos import Level
from ordering.records import Ledger
from ordering.simulator.checkers.agreement import FinalSets, Slot
from ordering.simulator.checkers.history import History, Log, Step
from ordering.simulator.checkers.history import last_ts as last_ts_of
from ordering.simulator.checkers.survivors import survivors
from ordering.views import SiteId, View, majority_of

if TYPE_CHECKING:
    from ordering.ordering_queue import OrderingQueue
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process


class Resilience(FinalSets):
    """A delivery stands on what its level promises, and what stands on a majority stays.

    1. At the moment of a delivery at K_RESILIENT, K+1 voters hold its slot; at MAJORITY and above,
       and for everything LevelReached covers, a majority of the electorate of the slot's view; at
       TOTAL also the whole ring of that or of a later view that the site has reached. To hold is to have
       the same order at that slot and everything before it (in durable mode on the disk), whether the
       process lives or has died since. The install that opens an epoch is held already by who has
       accepted it.
    2. What was final at any process, also at one that died right after, is final at the same slot
       at every live member at the end (of those that were in the group at that slot).
    3. A fork takes back nothing that any of its voters was told as final before.
    """

    name = "resilience"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._processes: dict[SiteId, Process] = {}
        self._opened: set[int] = set()
        self._homes: dict[int, int] = {}
        self._accepted: dict[tuple[SiteId, int], Order] = {}  # also by a site that has left the chain

    def on_settled(self, process: "Process", now: int) -> None:
        if self._processes.get(process.member.site) is not process:
            self._processes[process.member.site] = process
        accepted = process.engine.recovery.accepted
        if accepted is not None:
            self._accepted[process.member.site, process.engine.site.chain] = accepted

    # -- claim 1 -----------------------------------------------------------------------------------

    def on_step(self, process: "Process", step: Step, effect: Effect, now: int) -> None:
        super().on_step(process, step, effect, now)
        if type(effect) is Deliver:
            # Holding is contiguous: who holds the last slot of a level holds the others as well.
            strongest: dict[tuple[Level, int], Delivery] = {}
            for delivery in effect.deliveries:
                if delivery.first_ts and delivery.reached >= Level.K_RESILIENT:
                    strongest[delivery.reached, delivery.qos.k] = delivery
            if step.log.home not in (0, process.engine.site.chain):
                return  # what a fork takes over from its chain stands on the fork's voters
            for delivery in strongest.values():
                self._check_delivery(process, delivery, now)
        elif type(effect) is LevelReached:
            view = process.view
            # While the application is behind, the view of the slot is not the one it knows.
            own = process.engine.site
            if view is not None and view.id == own.view.id and step.log.home in (0, own.chain):
                self._check_majority(process, view, effect.majority, now)

    def _check_delivery(self, process: "Process", delivery: Delivery, now: int) -> None:
        view = process.view
        if view is None:
            return
        ts = last_ts_of(delivery)
        if delivery.reached == Level.K_RESILIENT:
            if self._is_superseded(process):
                return  # its holders may have erased the slot since; the Retract is on its way
            voters = {*view.electorate, *process.engine.site.view.electorate}
            held = sum(self._holders(process, tuple(sorted(voters)), ts))
            if held <= delivery.qos.k:
                self.fail(
                    now,
                    f"site {process.member.site} delivered slot {ts} as {delivery.qos.k}-resilient,"
                    f" {held} voters hold it",
                )
            return
        self._check_majority(process, view, ts, now)
        if delivery.reached == Level.TOTAL and not self._some_ring_holds(process, view, ts):
            self.fail(
                now, f"site {process.member.site} delivered slot {ts} as TOTAL, the ring does not hold it"
            )

    def _is_superseded(self, process: "Process") -> bool:
        """Whether some site has entered a later epoch than the one ``process`` is in."""
        own = process.engine.site
        sites = [other.engine.site for other in self._processes.values()]
        return any(s.chain == own.chain and s.epoch > own.epoch for s in sites)

    def _check_majority(self, process: "Process", view: View, ts: int, now: int) -> None:
        if _block_of(process.engine.site.queue, ts) is None:
            return  # collected, so it was found majority-held before
        held = sum(self._holders(process, view.electorate, ts))
        if held < majority_of(view.electorate):
            self.fail(
                now,
                f"site {process.member.site} takes slot {ts} for majority-held,"
                f" {held} of {len(view.electorate)} voters hold it",
            )

    def _some_ring_holds(self, process: "Process", view: View, ts: int) -> bool:
        """Whoever found the slot stable may follow a later view, with fewer in its ring; it is known here."""
        views = [later for _, later in process.engine.site.queue.views if later.id > view.id]
        return any(all(self._holders(process, each.ring, ts)) for each in (view, *views))

    def _holders(self, process: "Process", sites: tuple[SiteId, ...], ts: int) -> list[bool]:
        """For each of ``sites`` whether it holds everything up to ``ts`` as ``process`` has it."""
        processes = self._processes
        chain = process.engine.site.chain
        order = _block_of(process.engine.site.queue, ts)
        installs = order is not None and order.is_install
        held = []
        for site in sites:
            other = process if site == process.member.site else processes.get(site)
            if installs and self._accepted.get((site, chain)) == order:
                held.append(True)
            else:
                held.append(other is not None and _holds(other, order, ts))
        return held

    # -- claim 2 -----------------------------------------------------------------------------------

    def finish(self, cluster: "Cluster", now: int) -> None:
        self.check_survivors(cluster, list(self.final), now)
        if self.healed_at is not None and self.final and not survivors(cluster):
            self.fail(now, "no live member is left to have what was final")

    def report_missing(self, process: "Process", slot: Slot, where: int, now: int) -> None:
        ts, source, seq = slot
        self.fail(
            now,
            f"message {source}:{seq}, final at slot {ts} at process {where},"
            f" is lost at site {process.member.site}",
        )

    # -- claim 3 -----------------------------------------------------------------------------------

    def on_final_view(self, process: "Process", log: Log, install: InstallView, now: int) -> None:
        left = self._homes.get(process.key, 0)
        self._homes[process.key] = log.home
        if install.view.id.revision or install.chain in self._opened:
            return
        self._opened.add(install.chain)
        for voter in install.view.electorate:
            known = self._processes.get(voter)
            told = None if known is None else self.history.logs.get(known.key)
            # A voter that has moved on meanwhile, to another fork, was told more there.
            if (
                told is not None
                and known is not process
                and told.home == left
                and told.last_final >= install.ts
            ):
                self.fail(
                    now,
                    f"chain {install.chain:x} begins at slot {install.ts}, its voter {voter} was told"
                    f" {told.last_final}",
                )


def _block_of(queue: "OrderingQueue", ts: int) -> Order | None:
    """The block that contains slot ``ts``; None where it is collected."""
    blocks = queue.blocks
    for start in range(ts, queue.base, -1):
        order = blocks.get(start)
        if order is not None:
            return order if order.last_ts >= ts else None
    return None


def _holds(process: "Process", order: Order | None, ts: int) -> bool:
    if process.engine.site.config.durable:
        return any(_has(ledger, order, ts) for ledger in (process.disk.ledger, *process.disk.before))
    queue = process.engine.site.queue
    if order is not None and order.is_install and process.engine.recovery.accepted == order:
        return queue.frontier >= order.ts - 1
    if queue.frontier < ts:
        return False
    if order is None or queue.base >= order.ts:
        return True  # only what is final and everywhere is collected
    theirs = queue.blocks.get(order.ts)
    return theirs is order or theirs == order


def _has(ledger: Ledger, order: Order | None, ts: int) -> bool:
    """The same for a disk: only what is synced is held (R8)."""
    commitment = ledger.commitment
    accepted = None if commitment is None else commitment.instance.accepted
    if order is not None and order.is_install and accepted == order:
        return ledger.end >= order.ts - 1
    if ledger.end < ts:
        return False
    if order is None or (ledger.base is not None and ledger.base.ts >= order.ts):
        return True
    entry = ledger.entries.get(order.ts)
    return entry is None or entry.order == order
