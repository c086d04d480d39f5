"""Mutual exclusion."""

from typing import TYPE_CHECKING

from ordering.effects import Delivery, Effect, InstallView, LockGranted, LockLost
from ordering.simulator.checkers.history import TELLS_OF_ORDER, History, Log, OrderChecker
from ordering.views import Claim, Lock, LockName, Owner, View

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class LockExclusion(OrderChecker):
    """At each slot a lock has one owner, the same for all, and fences tell its grants apart (R13).

    1. Of one chain, a lock's fence names one grant. From one view to the next a lock keeps owner and
       fence, or has a fence that lies behind the first view and not behind the second.
    2. Owners, and all who wait, are members under the boot the view names.
    3. A request is granted once, however often and late it comes.
    4. A process is told of a grant, or of its end, when the view it is in says so.
    5. No slot's time reaches the end of a lease that its view still counts.
    """

    name = "lock_exclusion"

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history)
        self._grants: dict[tuple[int, LockName, int], Claim] = {}
        self._fences: dict[tuple[int, LockName, Owner, int], int] = {}
        self._seen: set[tuple[int, int]] = set()
        self._views: dict[int, InstallView] = {}
        self._expiry: dict[int, int] = {}

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is LockGranted or type(effect) is LockLost:
            self._check_told(process, effect, now)
        elif type(effect) in TELLS_OF_ORDER:
            super().on_effect(process, effect, now)

    def on_final_view(self, process: "Process", log: Log, install: InstallView, now: int) -> None:
        before = self._views.get(process.key)
        locks = install.view.locks.locks
        if (install.chain, install.ts) not in self._seen:  # view_agreement has it that it is the same for all
            self._seen.add((install.chain, install.ts))
            for lock in locks:
                self._check_grant(lock, install, now)
                self._check_owners(lock, install.view, now)
        if before is not None and before.view.locks != install.view.locks:
            for lock in locks:
                if lock.fence > before.ts or before.view.locks.lock(lock.name) != lock:
                    self._check_change(before, lock, install, now)
        self._views[process.key] = install
        self._expiry[process.key] = min([lock.expires for lock in locks if lock.expires], default=0)

    def _check_grant(self, lock: Lock, install: InstallView, now: int) -> None:
        claim = lock.holder
        if not claim.owner.site and not claim.owner.session:
            return
        known = self._grants.setdefault((install.chain, lock.name, lock.fence), claim)
        if (known.owner, known.number) != (claim.owner, claim.number):
            self.fail(now, f"lock {lock.name!r}: fence {lock.fence} is of {claim} and of {known}")
        if not claim.number:
            return
        fence = self._fences.setdefault((install.chain, lock.name, claim.owner, claim.number), lock.fence)
        if fence != lock.fence:
            self.fail(
                now,
                f"lock {lock.name!r}: request {claim.number} of site {claim.owner.site} was granted twice,"
                f" at slots {fence} and {lock.fence}",
            )

    def _check_change(self, before: InstallView, lock: Lock, install: InstallView, now: int) -> None:
        old = before.view.locks.lock(lock.name)
        if old is not None and old.fence == lock.fence:
            return
        if lock.fence and not before.ts < lock.fence <= install.ts:
            self.fail(
                now,
                f"lock {lock.name!r}: fence {lock.fence} of view {install.view.id} at slot {install.ts} does"
                f" not lie behind view {before.view.id} at slot {before.ts}",
            )

    def _check_owners(self, lock: Lock, view: View, now: int) -> None:
        for claim in (lock.holder, *lock.queue):
            if claim.owner.site and not is_member(claim.owner, view):
                self.fail(now, f"lock {lock.name!r}: {claim.owner} has it or waits, and is not in {view.id}")

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        expiry = self._expiry.get(process.key, 0)
        if 0 < expiry <= delivery.time:
            self.fail(now, f"slot {delivery.first_ts} of time {delivery.time} counts a lease until {expiry}")

    def _check_told(self, process: "Process", told: LockGranted | LockLost, now: int) -> None:
        install = self._views.get(process.key)
        lock = None if install is None else install.view.locks.lock(told.name)
        mine = lock is not None and lock.holder.owner == Owner(process.member.site, process.member.boot)
        has = mine and lock is not None and lock.fence == told.fence
        if has is not (type(told) is LockGranted):
            self.fail(now, f"site {process.member.site} was told {told}, its view has {lock}")


def is_member(owner: Owner, view: View) -> bool:
    """Judged here, and not by the engine's own idea of it."""
    return any(m.site == owner.site and m.boot == owner.boot for m in view.members)
