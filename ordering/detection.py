"""The two failure detectors of iRBP §4.1, counting time and not rotations.

*Active*: a site that owes us a positive acknowledgement (the token was passed to it, or it was
probed) and shows no progress for ``suspect_ms`` is suspected; one that answers yet never does its
duty is suspected after ``slow_ms``. *Passive*: nobody in particular, but the ring has made no
progress and sent no probe for ``passive_ms``. Either leads to a poll first (R4), never straight to
a view change, and a view change only takes the site out of the ring (R1).
"""

from collections.abc import Iterable

from ordering.config import MS
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.views import SiteId, View, majority_of


class Duty:
    """What one site owes: since when, and how far it had come when last seen to move."""

    __slots__ = ("moved_at", "received", "since")

    def __init__(self, now: int, received: int) -> None:
        self.since = now
        self.moved_at = now
        self.received = received


class Detection:
    """Who was heard when, who owes what, and whether the ring moves."""

    def __init__(self, site: Site, rtt: RoundTrip) -> None:
        self.site = site
        self.rtt = rtt
        self.last_heard: dict[SiteId, int] = {}
        self.last_progress = 0
        self.duties: dict[SiteId, Duty] = {}
        self._stuck: dict[SiteId, tuple[int, int]] = {}  # how far it was when first asked about, and when
        self._restarted: dict[SiteId, int] = {}  # another process speaks at its address since
        self._unnamed: dict[SiteId, int] = {}  # back from its disk, not in a view yet; when it last spoke
        self._waiting_since: int | None = None  # data could be ordered, and the token site rests
        self.overdue: dict[SiteId, None] = {}  # token sites that rested on it for too long

    def enter_epoch(self) -> None:
        """Everyone starts with a clean slate; external voters keep the time they were last heard."""
        site = self.site
        self.duties.clear()
        self._restarted.clear()
        self._unnamed.clear()
        self._stuck.clear()
        self.moved()
        for member in site.view.members:
            if member.site in site.view.ring or member.site not in self.last_heard:
                self.last_heard[member.site] = site.now
        self.last_heard = {s: at for s, at in self.last_heard.items() if site.view.has(s)}

    def enter_view(self, before: View) -> None:
        """Who comes back into the ring, or under another boot, owes nothing of before, and was heard."""
        site = self.site
        for newcomer in site.view.ring:
            if newcomer not in before.ring or site.view.member(newcomer) != before.member(newcomer):
                self.duties.pop(newcomer, None)
                self._restarted.pop(newcomer, None)
                self._unnamed.pop(newcomer, None)
                self._stuck.pop(newcomer, None)
                self.last_heard[newcomer] = site.now

    def heard(self, sender: SiteId) -> None:
        self.last_heard[sender] = self.site.now

    def heard_unnamed(self, sender: SiteId) -> None:
        """It speaks under another boot than the view names (R6)."""
        self._unnamed[sender] = self.site.now

    def progress(self) -> None:
        """The ring moved, or its resting token site gave a sign of life."""
        self.last_progress = self.site.now
        self.site.arm(Timer.PASSIVE, self.site.config.passive_ms * MS)

    def moved(self) -> None:
        """The frontier moved: whoever was waited for has done its part."""
        self._waiting_since = None
        self.overdue.clear()
        self.progress()

    def probed_by(self, holder: SiteId) -> None:
        """A resting token site is alive. If it rests although there is something to order it is short of
        buffers, and waited for (RMP §4.6); but not for ever (R16)."""
        site = self.site
        if not site.queue.has_orderable(site.view):
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = site.now
        elif site.now - self._waiting_since >= site.config.slow_ms * MS:
            self.overdue[holder] = None
            return
        self.progress()

    # -- the active detector ---------------------------------------------------------------------

    def owe(self, debtor: SiteId) -> None:
        """``debtor`` must answer from now on (if it did not have to already)."""
        if debtor not in self.duties and debtor != self.site.me:
            self.duties[debtor] = Duty(self.site.now, self.site.stability.received.get(debtor, 0))

    def forgive(self) -> None:
        """We slept: whoever owes us an answer may have given it long ago, and has all its time again; and
        that we saw no progress says nothing of the ring."""
        self.progress()
        for duty in self.duties.values():
            duty.since = duty.moved_at = self.site.now

    def settle(self, debtor: SiteId) -> None:
        self.duties.pop(debtor, None)

    def note_restart(self, member: SiteId) -> None:
        """R6: another process asks to join at the address of ``member``, which must be dead."""
        since = self._restarted.get(member)
        if since is None or self.last_heard.get(member, 0) > since:
            self._restarted[member] = self.site.now

    def has_restarted(self, member: SiteId) -> bool:
        """Whether it is silent since: an old request of a dead process must not bring down a living one."""
        since = self._restarted.get(member)
        return since is not None and self.last_heard.get(member, 0) <= since

    def suspects(self) -> tuple[SiteId, ...]:
        """Debtors whose time is up, and members whose process was replaced."""
        site = self.site
        config = site.config
        late = []
        for debtor, duty in self.duties.items():
            received = site.stability.received.get(debtor, 0)
            if received > duty.received:
                duty.received = received
                duty.moved_at = site.now
            silent = site.now - duty.moved_at >= config.suspect_ms * MS
            slow = site.now - duty.since >= config.slow_ms * MS
            if silent or slow:
                late.append(debtor)
        for member, since in self._restarted.items():
            settled = site.now - since >= 2 * self.rtt.rto
            if settled and self.has_restarted(member) and member in site.view.ring and member not in late:
                late.append(member)
        return tuple(late)

    # -- the passive detector, and what a poll asks ------------------------------------------------

    def stalled(self) -> bool:
        """Half the active detector's patience: whoever polls us has waited longer."""
        return self.site.now - self.last_progress >= self.site.config.suspect_ms * MS // 2

    def misses(self, other: SiteId) -> bool:
        quiet = self.site.now - self.last_heard.get(other, 0)
        return quiet >= self.site.config.suspect_ms * MS // 2 or self.has_restarted(other)

    def was_heard(self, other: SiteId, within_ms: int) -> bool:
        heard = self.last_heard.get(other)
        return heard is not None and self.site.now - heard < within_ms * MS

    def speaks(self, other: SiteId) -> bool:
        """Whether it was heard lately, under whatever boot; that does not make it count in a majority."""
        minority_ms = self.site.config.minority_ms
        back = self._unnamed.get(other)
        is_back = back is not None and self.site.now - back < minority_ms * MS
        return is_back or self.was_heard(other, minority_ms)

    def is_stuck(self, other: SiteId) -> bool:
        """Whether it speaks but does not move: deaf, or hopelessly slow. Takes being asked twice."""
        site = self.site
        received = site.stability.received.get(other, 0)
        before, since = self._stuck.setdefault(other, (received, site.now))
        if received != before or received >= site.queue.last_real_ts:
            del self._stuck[other]
            return False
        return site.now - since >= site.config.suspect_ms * MS // 2

    def reaches_majority(self, others: Iterable[SiteId] = ()) -> bool:
        """Whether enough voters were heard lately to go on accepting work."""
        site = self.site
        return self.reaches_quorum_of(site.view, others, joint=site.stability.joint(site.view))

    def reaches_quorum_of(self, view: View, others: Iterable[SiteId] = (), *, joint: bool) -> bool:
        site = self.site
        limit = site.config.minority_ms * MS
        heard = [s for s, at in self.last_heard.items() if site.now - at < limit]
        return view.is_quorum((site.me, *heard, *others), joint=joint)

    def majority_heard_at(self) -> int | None:
        """When enough voters for a majority had last been heard, beside ourselves; None: none is needed, or
        there is no view yet."""
        site = self.site
        electorate = site.view.electorate
        if not electorate:
            return None
        others = sorted((self.last_heard.get(s, 0) for s in electorate if s != site.me), reverse=True)
        needed = majority_of(electorate) - (site.me in electorate)
        return others[needed - 1] if needed else None
