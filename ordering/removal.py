"""Removal of the lost: the slow policy, apart from failure detection (iRBP's conservative view, R1).

Suspicion takes a site out of the ring, and nothing more. Only a voter that is out of the ring and has
been silent for ``remove_ms`` is removed from the electorate, if that is set. Silence is counted in the
time during which this site was awake to listen: one that was paused itself must not take the others
for lost.
"""

from ordering.config import MS
from ordering.detection import Detection
from ordering.membership import Membership
from ordering.packets import ChangeKind
from ordering.site import Site, Timer
from ordering.views import SiteId

LOOKS = 8  # so often within remove_ms


class Removal:
    """Who has been silent for how long, and what this site has asked for because of it."""

    def __init__(self, site: Site, detection: Detection, membership: Membership) -> None:
        self.site = site
        self.detection = detection
        self.membership = membership
        self._looked_at = 0
        self._silent: dict[SiteId, int] = {}
        self._asked: list[SiteId] = []  # removals wanted by policy, not by an operator

    @property
    def _period(self) -> int:
        return self.site.config.remove_ms * MS // LOOKS

    def start(self) -> None:
        if self.site.config.remove_ms:
            self._looked_at = self.site.now
            self.site.arm(Timer.LOST, self._period)

    def fire(self) -> None:
        self._look()
        site = self.site
        site.arm(Timer.LOST, self._period)
        view = site.view
        for voter in [v for v in self._asked if not self._is_lost(v)]:
            self._asked.remove(voter)
            self.membership.wanted.pop((ChangeKind.REMOVE, voter), None)
        if site.me not in view.ring[:1] or len(view.electorate) <= site.config.electorate_min:
            return
        for lost in view.external:
            member = view.member(lost)
            if member is not None and self._is_lost(lost) and lost not in self._asked:
                self.membership.want(ChangeKind.REMOVE, member)
                self._asked.append(lost)
                return

    def _look(self) -> None:
        """Add the time since the last look, as far as it is believable, to everybody's silence."""
        site = self.site
        awake = min(site.now - self._looked_at, 2 * self._period)
        last_heard = self.detection.last_heard
        self._silent = {
            voter: 0 if last_heard.get(voter, 0) >= self._looked_at else self._silent.get(voter, 0) + awake
            for voter in site.view.electorate
        }
        self._looked_at = site.now

    def _is_lost(self, voter: SiteId) -> bool:
        return self._silent.get(voter, 0) >= self.site.config.remove_ms * MS
