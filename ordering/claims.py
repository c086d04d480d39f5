"""Everyone remembers what everyone has claimed, so that a disk which went back in time is caught (R8).

A boot that a voter comes back with shows, in every head, how far its disk goes, until the order names it. If
an earlier boot was heard to hold more, the directory was restored from an old copy: its promises and holds
are void, it must not be counted, and it is told so. Statements of one boot may come late and are never
compared with each other. Once it is named it states nothing while it is fenced (R4), like everybody; who has
not reached the slot that names it must not take that for a disk with nothing on it.
"""

from ordering.detection import Detection
from ordering.packets import Forgotten, Head
from ordering.records import Claim, Ledger
from ordering.site import Site
from ordering.views import SiteId


class Claims:
    """The most that each member was heard to hold; kept in durable mode only."""

    def __init__(self, site: Site, detection: Detection) -> None:
        self.site = site
        self.detection = detection
        self.heard: dict[SiteId, Claim] = {}
        self._news: dict[SiteId, Claim] = {}  # not written down yet

    def restore(self, ledger: Ledger) -> None:
        self.heard = dict(ledger.claims)

    def take_news(self) -> tuple[tuple[SiteId, Claim], ...]:
        """What has been heard since the last time, to be written down."""
        news = tuple(self._news.items())
        self._news.clear()
        return news

    def enter_view(self) -> None:
        view = self.site.view
        self.heard = {member: claim for member, claim in self.heard.items() if view.has(member)}

    def hear(self, head: Head) -> None:
        """A member speaks under the boot that the view names."""
        if not head.held or not self.site.config.durable:
            return
        known = self.heard.get(head.sender)
        if known is None or (known.epoch, known.held) < (head.epoch, head.held):
            claim = Claim(head.boot, head.epoch, head.held)
            self.heard[head.sender] = self._news[head.sender] = claim

    def on_other_boot(self, head: Head) -> bool:
        """R6: a voter is back from its disk, or a late packet of an earlier boot comes. True if it may be
        worked on: what it has, and votes, is as good as ever; what it states does not count, and that it is
        back is suspicion of who it was."""
        site = self.site
        if not site.config.durable:
            return False
        claim = self.heard.get(head.sender)
        silent = head.epoch and not head.held  # a disk that has an epoch has the slot it began with
        if (
            claim is not None
            and claim.boot != head.boot
            and not silent
            and (claim.epoch, claim.held) > (head.epoch, head.held)
        ):
            site.count("dropped: rolled back")
            told = Forgotten(site.head(), head.sender, head.boot, claim.epoch, claim.held)
            site.unicast(head.sender, told)
            return False
        self.detection.note_restart(head.sender)
        self.detection.heard_unnamed(head.sender)
        return True

    def are_broken(self, told: Forgotten) -> bool:
        """Whether it is our disk that went back. Who is named has been taken at its word already."""
        site = self.site
        mine = told.subject == site.me and told.boot == site.member.boot
        return mine and site.unnamed and (told.epoch, told.held) > (site.epoch, site.synced)
