"""The seam between the engine and an ordering discipline."""

from typing import Protocol

from ordering.views import SiteId, View


class Discipline(Protocol):
    """Decides who orders next. The engine asks; the discipline looks at the shared site."""

    def next_site(self, view: View) -> SiteId:
        """Whom the block this site is about to create names as the next to order."""

    def first_site(self, ring: tuple[SiteId, ...]) -> SiteId:
        """Who orders first in a new epoch."""

    def wants_null(self) -> bool:
        """Whether the token should move on although there is nothing to order."""

    def notify(
        self, *, frontier_moved: bool, held_moved: bool, awaited: bool, level_moved: bool, sent_order: bool
    ) -> None:
        """After an event: tell others what they cannot learn from orders alone. ``held_moved``: a sync has
        come to an end (never in memory mode). ``awaited``: this site holds something that was not delivered
        here before, so others may wait for that statement."""
