"""RMP's rotating token (§4.2): every ACK passes the token to the next ring member.

The ACK that orders a message is answered by the next token sites' own ACKs, and everybody hears
them; so a rotation is also the round of positive notification that makes a message stable. When
nothing is left to order the token goes round once more with NULL ACKs, at once and not by a timer,
until everyone in the ring is known to hold the last message; then it rests.

Once the last message is delivered here nobody is kept waiting by a slower round, so the NULL ACK waits for
``null_ms``: under a steady trickle of messages the next one comes first, and its own ACKs are the round. In
durable mode it always waits, and longer, for two syncs and ``confirm_ms``: every site says by itself what its
disk has, and a NULL block would be one more to sync.
"""

from ordering.config import MS
from ordering.site import Site, Timer
from ordering.views import SiteId, View

SYNCS = 2  # another's disk may be busy when ours is not


class Rotating:
    def __init__(self, site: Site) -> None:
        self.site = site
        self._waiting = (0, 0)  # the slot whose round is put off, and until when

    def next_site(self, view: View) -> SiteId:
        return view.successor(self.site.me)

    def first_site(self, ring: tuple[SiteId, ...]) -> SiteId:
        return ring[0]

    def wants_null(self) -> bool:
        site = self.site
        if len(site.view.ring) < 2:
            return False
        last = site.queue.last_real_ts
        if site.config.durable:
            # Disks speak up by themselves. Only who has not received it is asked, once that takes too long.
            return not site.stability.received_by(site.view.ring, last) and self._has_waited()
        return site.stability.stable < last and (site.delivered < last or self._has_waited())

    def _has_waited(self) -> bool:
        site = self.site
        if self._waiting[0] != site.queue.last_real_ts:
            config = site.config
            quiet_ms = config.confirm_ms if config.durable else 0  # a disk that need not hurry
            patience = (config.null_ms + quiet_ms) * MS + SYNCS * site.sync_ns
            self._waiting = (site.queue.last_real_ts, site.now + patience)
        if site.now >= self._waiting[1]:
            return True
        site.arm(Timer.NULL, self._waiting[1] - site.now)
        return False

    def notify(
        self, *, frontier_moved: bool, held_moved: bool, awaited: bool, level_moved: bool, sent_order: bool
    ) -> None:
        """Ring members speak when the token comes. Only an external voter whose hold statement is
        needed for a majority has to speak up by itself; and, in durable mode, whoever's disk has something
        new. If that was delivered here before, enough others have said that they hold it, and said it to
        all: the last disk need not hurry."""
        site = self.site
        view = site.view
        needed = not site.in_ring and view.ring_voters <= len(view.electorate) // 2
        hurries = awaited or not site.config.confirm_ms
        if (frontier_moved and needed) or (held_moved and hurries and not sent_order):
            site.confirm()
        elif held_moved and not sent_order:
            site.arm_if_idle(Timer.CONFIRM, site.config.confirm_ms * MS)
