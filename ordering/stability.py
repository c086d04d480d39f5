"""How a site learns that others hold the order: positive notification (DTP §3, rules R1, R2, R5).

Each packet's head states how far its sender holds the order of its epoch. Statements of other
epochs do not count (R3), and only voters' statements count for a majority (R1). What a site
concludes (``majority``, ``stable``) is itself a fact about the epoch's only order, so it is passed
on in the head and believed: one site's knowledge spares the others their waiting.

``stable`` speaks of a ring, and the ring of a site that is ahead may be a later and smaller one. So it is
believed once this site is as far as who said it: then it knows every view that ring may be of.
"""

from ordering.packets import Head
from ordering.views import SiteId, View, majority_of


class Stability:
    """Who holds what, in this epoch."""

    def __init__(self) -> None:
        self.received: dict[SiteId, int] = {}
        self.held: dict[SiteId, int] = {}
        self.majority = 0
        self.stable = 0
        self.everyone = 0
        self._said_stable: list[tuple[int, int]] = []  # the first and the last of who is ahead: how far, what
        self._concluded: tuple[View, int] | None = None  # what ``update`` last saw; None: hear again

    def forget(self, frontier: int) -> None:
        """Statements made in another chain do not count in this one (R9), and what its majority held
        beyond our own frontier may be lost."""
        self._forget_statements()
        self.majority = min(self.majority, frontier)
        self.stable = min(self.stable, frontier)

    def _forget_statements(self) -> None:
        self.received.clear()
        self.held.clear()
        self._said_stable.clear()
        self._concluded = None

    def enter_epoch(self, install_ts: int, *, view_erased: bool) -> None:
        """The install was accepted by quorums that hold everything before it: it is majority-held."""
        self._forget_statements()
        self.majority = max(self.majority, install_ts)
        # What was stable above the sync point is erased, and its slots will be given anew. What the ring of
        # an erased view held, no ring of this order may hold.
        self.stable = 0 if view_erased else min(self.stable, install_ts - 1)

    def leap(self, ts: int, *, new_epoch: bool) -> None:
        """Everything up to ``ts`` was delivered at MAJORITY."""
        if new_epoch:
            self._forget_statements()
            self.stable = 0  # of a view that may be erased
        self.majority = max(self.majority, ts)
        self._concluded = None

    def note(self, head: Head) -> None:
        """Learn from a head of this epoch."""
        site = head.sender
        if head.held > self.held.get(site, 0):
            self.held[site] = head.held
            self._concluded = None
        if head.received > self.received.get(site, 0):
            self.received[site] = head.received
        if head.majority > self.majority:
            self.majority = head.majority
            self._concluded = None
        if head.stable > self.stable:
            self._hear_stable(head.received, head.stable)

    def _hear_stable(self, received: int, stable: int) -> None:
        """Kept for ``update``: the first, which comes true soonest, and the best behind it."""
        said = self._said_stable
        if len(said) > 1 and stable > said[1][1]:
            del said[1]
        if len(said) < 2 and (not said or stable > said[0][1]):
            said.append((received, stable))
            self._concluded = None

    def note_own(self, me: SiteId, received: int, held: int) -> None:
        """What this site has itself; in durable mode it holds what is synced (R8)."""
        self.received[me] = received
        if self.held.get(me) != held:
            self.held[me] = held
            self._concluded = None

    def update(self, view: View, frontier: int) -> None:
        """Draw the conclusions: what a majority, the ring, and all members are known to hold.

        Only up to our own frontier: beyond it a NewList we have not seen may have changed whose
        statements count. Where nothing new was heard there is nothing to conclude.
        """
        if self._concluded is not None and self._concluded[0] is view and self._concluded[1] == frontier:
            return
        self._concluded = (view, frontier)
        self.majority = max(self.majority, min(self._majority(view), frontier))
        said = self._said_stable
        while said and said[0][0] <= frontier:
            self.stable = max(self.stable, said.pop(0)[1])
        held = self.held
        if view.ring:
            stable = min(held.get(site, 0) for site in view.ring)
            self.stable = max(self.stable, min(stable, frontier))
        self.everyone = min(held.get(member.site, 0) for member in view.members)

    def _majority(self, view: View) -> int:
        new = self.held_by_majority(view.electorate)
        if not view.joint_ts:
            return new
        # R5: slots before the change need only the old electorate, later ones both, until a
        # majority of the old electorate is known to hold the change itself.
        if not self.joint(view):
            return new
        old = self.held_by_majority(view.joint_electorate)
        return max(min(old, view.joint_ts - 1), min(old, new))

    def joint(self, view: View) -> bool:
        """Whether quorums still need both electorates of the last change (R5)."""
        if not view.joint_ts or self.majority >= view.joint_ts:
            return False
        return self.held_by_majority(view.joint_electorate) < view.joint_ts

    def held_by_majority(self, electorate: tuple[SiteId, ...]) -> int:
        """The highest slot that a majority of ``electorate`` is known to hold."""
        claims = sorted(self.held.get(site, 0) for site in electorate)
        return claims[len(electorate) - majority_of(electorate)]

    def received_by(self, sites: tuple[SiteId, ...], ts: int) -> bool:
        """Whether all of ``sites`` are known to have received everything up to ``ts``."""
        return all(self.received.get(site, 0) >= ts for site in sites)

    def holders(self, view: View, ts: int) -> int:
        """How many voters are known to hold everything up to ``ts``."""
        return sum(1 for site in view.electorate if self.held.get(site, 0) >= ts)
