"""How many voters hold a slot, for who wants more than a majority (rule R10).

Replicas apply at majority level whatever a caller asks for, and nothing waits for a stronger level but the
caller itself: its host asks here for so many holders of a slot that it has applied, and is told when there
are so many, or when there are as many as the ring can give. A voter that is out of the ring is not waited
for; it may be dead, and the answer says how many there are without it.

Holders are counted by their statements (``stability``), in durable mode those of synced slots.
"""

from ordering.effects import HoldersKnown
from ordering.errors import NotMember, Overloaded
from ordering.events import HoldersRequested
from ordering.site import Site
from ordering.views import majority_of

WAITING_MAX = 65_536


class Holding:
    """Questions of this site's application that have no answer yet."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.waiting: list[HoldersRequested] = []

    def request(self, asked: HoldersRequested) -> None:
        site = self.site
        if site.outside or not site.epoch or not site.view.has(site.me):
            raise NotMember(f"group {site.config.group!r}: this site is {site.state.value}")
        if len(self.waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} calls wait for more holders already; wait for some of them")
        self.waiting.append(asked)

    def run(self) -> None:
        """Called when everything due is delivered; never while fenced (R4)."""
        if not self.waiting:
            return
        view = self.site.view
        voters, reachable = len(view.electorate), view.ring_voters
        still: list[HoldersRequested] = []
        for asked in self.waiting:
            holders = self._holders(asked.ts)
            wanted = min(asked.voters, voters) if asked.voters else voters
            if holders and holders >= min(wanted, reachable):
                self.site.out.append(HoldersKnown(asked.number, holders, voters))
            else:
                still.append(asked)
        self.waiting = still

    def _holders(self, ts: int) -> int:
        """Known one by one, or as a majority or a whole ring, of any view from that of the slot on; 0 if not
        even a majority is known to."""
        stability, queue = self.site.stability, self.site.queue
        if stability.majority < ts:
            return 0
        views = queue.views_since(ts)
        known = [stability.holders(self.site.view, ts), min(majority_of(view.electorate) for view in views)]
        if stability.stable >= ts:
            known.append(min(view.ring_voters for view in views))
        return max(known)
