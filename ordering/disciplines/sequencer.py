"""A fixed sequencer, as in Amoeba: the first ring member orders everything.

Orders name the sequencer itself as next, so nothing rotates. Positive notification needs packets of
its own: each receiver confirms to the sequencer how far it holds the order, and the sequencer
tells everyone when a majority, or all, do. Cheaper for one busy sender at the sequencer, at the
price of one site doing all the ordering and all the gathering.
"""

from ordering.site import Site
from ordering.views import SiteId, View


class Sequencer:
    def __init__(self, site: Site) -> None:
        self.site = site

    def next_site(self, view: View) -> SiteId:
        return view.ring[0]

    def first_site(self, ring: tuple[SiteId, ...]) -> SiteId:
        return ring[0]

    def wants_null(self) -> bool:
        return False

    def notify(
        self, *, frontier_moved: bool, held_moved: bool, awaited: bool, level_moved: bool, sent_order: bool
    ) -> None:
        site = self.site
        if site.me == site.view.ring[0]:
            if level_moved and not sent_order:
                site.confirm()
        elif frontier_moved or held_moved:
            site.confirm_to(site.view.ring[0])
