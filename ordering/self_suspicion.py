"""A site that notices its own long pause suspects itself (rule R14).

A timer that fires much later than it was asked for says that this process slept: it was stopped, swapped
out, or its machine was. Whatever it believes may be over, the token it had above all. So it orders nothing
until a majority of the ring has answered a question asked *after* the pause, in the same epoch and without
a fence: what lies in its socket may be as old as the pause. Or until it learns of a later epoch.

Safety does not need this: a block of a site that was left behind is erased, and nothing of it was
delivered at MAJORITY. It spares the others the waste, and the application a late surprise.

All may have slept together, as on a laptop. Everyone answers, whatever it thinks of itself, so one round
trip after the last one woke they go on. And where a majority of the ring stays silent the site asks for a
view change like anybody who sees no progress.
"""

from collections.abc import Callable

from ordering.config import MS
from ordering.detection import Detection
from ordering.packets import Poll, PollReply
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.state import RING
from ordering.views import SiteId

WAKING = 1 << 41  # its rounds are above those of a roll call
DOUBLINGS = 4
PATIENT_TRIES = 3


class SelfSuspicion:
    """Whether this site may trust what it knows."""

    def __init__(
        self, site: Site, detection: Detection, rtt: RoundTrip, see_no_progress: Callable[[], None]
    ) -> None:
        self.site = site
        self.detection = detection
        self.rtt = rtt
        self.doubting = False
        self._see_no_progress = see_no_progress
        self._noticed = 0  # the timer that told us of our last pause: once is enough
        self._round = WAKING
        self._tries = 0
        self._awake: dict[SiteId, None] = {}

    def notice(self, wake_at: int) -> None:
        """Something happens, and the timer of ``wake_at`` has not fired yet: how late is it?"""
        site = self.site
        late = wake_at and site.now - wake_at > site.config.suspect_ms * MS
        if not late or wake_at == self._noticed or site.state not in RING:
            return
        self._noticed = wake_at
        site.count("self-suspicions")
        self.detection.forgive()
        self.doubting = True
        self._round += 1
        self._tries = 0
        self._awake = {site.me: None}
        self.fire()

    def fire(self) -> None:
        """Ask, or ask again."""
        site = self.site
        if not self.doubting or self._count():
            return
        if not site.fenced:
            site.multicast(Poll(site.head(), self._round, ()))
            if self._tries >= PATIENT_TRIES:
                self._see_no_progress()
        site.arm(Timer.WAKING, self.rtt.rto << min(self._tries, DOUBLINGS))
        self._tries += 1

    def on_reply(self, reply: PollReply) -> None:
        """A fenced site states zeros: it is about to end the epoch, and no proof that it goes on."""
        if self.doubting and reply.round == self._round and reply.head.received:
            self._awake[reply.head.sender] = None
            self._count()

    def _count(self) -> bool:
        ring = self.site.view.ring
        if sum(1 for site in ring if site in self._awake) > len(ring) // 2:
            self.enter_epoch()
        return not self.doubting

    def enter_epoch(self) -> None:
        """What we knew before the pause is confirmed, or over."""
        self.doubting = False
        self.site.disarm(Timer.WAKING)
