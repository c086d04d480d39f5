"""Leaving the ring and not the electorate: a process that is to be stopped goes without being missed.

One that just stops costs the others the time until they suspect it, and a view change by consensus. A site
that *retires* asks for an ordered NewList that takes it out of the ring; RETURN is the opposite. It stays a
voter, so no majority changes, and at that slot its handler locks go to a member that stays (R13).

1. From the request on it takes no messages and no calls. What it has accepted must have its slots first.
2. It asks for RETIRE until the view at its frontier has it out. A view change may erase that view, or draw
   the ring anew with everybody who promised; then it asks again.
3. It stays until its application has been told of that view, so a majority holds it; for a moment more, in
   which replies that the application owed go out; and until every ring member is known to have it. Then
   nobody needs a packet that only this site has, and nobody waits for one. A ring member that is dead and not
   missed yet is missed now, and the view change has this site in the ring again. In durable mode its own disk
   must tell of the view too, so that it does not come back as somebody whom the ring waits for.

A ring that is no majority of the electorate could deliver nothing without the very site that goes. So no such
view is ordered. The site waits as long as there are others, heard lately, that may come back into the ring,
and is refused when they are too few. It may be stopped all the same: then it has crashed.
"""

from ordering.config import MS
from ordering.detection import Detection
from ordering.effects import RetirementRefused
from ordering.membership import Membership
from ordering.packets import ChangeKind
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.submission import Submission
from ordering.views import SiteId


class Retirement:
    """How far this site is on its way out of the ring."""

    def __init__(
        self,
        site: Site,
        detection: Detection,
        membership: Membership,
        submission: Submission,
        rtt: RoundTrip,
    ) -> None:
        self.site = site
        self.detection = detection
        self.membership = membership
        self.submission = submission
        self.rtt = rtt
        self._told_at: int | None = None  # when the application had heard that we are out

    def follow_view(self) -> None:
        """Ask to go, or ask again, or give it up (called when settled)."""
        site = self.site
        if not site.retiring:
            return
        site.arm_if_idle(Timer.REQUEST, site.config.request_ms * MS)
        if not site.in_ring:
            return
        self._told_at = None
        if not self._others_can_go_on():
            self._refuse()
        elif self._is_drained():
            self.membership.want(ChangeKind.RETIRE, site.member)

    def is_over(self) -> bool:
        """Whether nobody will miss this site."""
        site = self.site
        told = site.told_view
        if site.fenced or site.in_ring or told is None or site.me in told.ring or not site.view.has(site.me):
            return False
        if (ChangeKind.RETURN, site.me) in self.membership.wanted:
            return False  # what was asked for before may happen yet; back in the ring it can go again
        if self._told_at is None:
            self._told_at = site.now
            site.arm(Timer.REQUEST, self.rtt.rto)
        out_at = site.queue.out_of_ring_at(site.me)
        if site.now - self._told_at < self.rtt.rto or not self.submission.is_final() or site.held < out_at:
            return False
        return site.stability.received_by(site.view.ring, out_at) or not self._others_can_go_on()

    def _is_drained(self) -> bool:
        """Whether all that was accepted is ordered, or confirmed: the view behind it makes it final."""
        return self.submission.occupied() == (0, 0)

    def _others_can_go_on(self) -> bool:
        """Whether enough others for a majority live, in the ring or on their way there. A ring whose token
        site has died is silent until that is noticed."""
        site = self.site
        config = site.config
        in_ring_ms = config.detection_ms + config.suspect_ms
        outside_ms = config.probe_ms + config.suspect_ms
        present: list[SiteId] = []
        for member in site.view.members:
            patience = in_ring_ms if member.site in site.view.ring else outside_ms
            if member.site != site.me and self.detection.was_heard(member.site, patience):
                present += (member.site, member.replaces)
        return site.view.is_quorum(present, joint=site.stability.joint(site.view))

    def _refuse(self) -> None:
        """Everything is as before."""
        site = self.site
        site.retiring = False
        self.membership.wanted.pop((ChangeKind.RETIRE, site.me), None)
        site.count("retirements refused")
        site.out.append(RetirementRefused())
