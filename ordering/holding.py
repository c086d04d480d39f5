"""How many voters hold a slot, for who wants more than a majority (rule R10).

Replicas apply at majority level whatever a caller asks for, and nothing waits for a stronger level but the
caller itself: its host asks here for so many holders of a slot that it has applied, and is told when there
are so many, or when there are as many as the ring can give. A voter that is out of the ring is not waited
for; it may be dead, and the answer says how many there are without it.

Holders are counted by their statements (``stability``), in durable mode those of synced slots.
"""

from heapq import heappop, heappush

from ordering.effects import HoldersKnown
from ordering.errors import NotMember, Overloaded
from ordering.events import HoldersRequested
from ordering.site import Site
from ordering.views import View, majority_of

WAITING_MAX = 65_536


class Holding:
    """Questions of this site's application that have no answer yet."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._waiting: dict[int, list[tuple[int, int]]] = {}  # by voters wanted: slot, number; lowest first

    def request(self, asked: HoldersRequested) -> None:
        site = self.site
        if site.outside or not site.epoch or not site.view.has(site.me):
            raise NotMember(f"group {site.config.group!r}: this site is {site.state.value}")
        if sum(map(len, self._waiting.values())) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} calls wait for more holders already; wait for some of them")
        heappush(self._waiting.setdefault(asked.voters, []), (asked.ts, asked.number))

    def run(self) -> None:
        """Called when everything due is delivered; never while fenced (R4). Who holds a slot holds all
        before it, so of equal wishes only that of the lowest slot is looked at."""
        view = self.site.told_view  # a later one may be erased, with the voter that it makes
        if not self._waiting or view is None:
            return
        voters, reachable = len(view.electorate), view.ring_voters
        for wanted, asked in list(self._waiting.items()):
            enough = min(wanted or voters, voters, reachable)
            while asked and (holders := self._holders(view, asked[0][0])) and holders >= enough:
                _, number = heappop(asked)
                self.site.out.append(HoldersKnown(number, holders, voters))
            if not asked:
                del self._waiting[wanted]

    def _holders(self, view: View, ts: int) -> int:
        """Known one by one, or as a majority; 0 if it was not even delivered on that level.

        Each change of the electorate is held by a majority of the one before (R5), so the majority of a view
        that is not here yet proves one of those that are. That a ring holds it (``stable``) proves nothing of
        the kind: it may be that of a view which is not final yet, and smaller."""
        stability, queue = self.site.stability, self.site.queue
        if min(stability.majority, self.site.delivered) < ts:
            return 0
        majorities = [majority_of(each.electorate) for each in queue.views_since(ts)]
        return max(stability.holders(view, ts), min(majorities))
