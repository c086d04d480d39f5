"""Going on without a majority: a new chain (RMP §4.4's minimum size, made sound by rule R9).

Off unless ``minimum_size`` is set or an operator asks for it. Voters that have had no majority for
``orphan_ms`` say so (Orphan). The first of those who hear of each other leads: the company S becomes
the electorate of a new chain whose id is drawn from S, their boots and the chain they leave, so that
whoever is asked to take part can check it. From there it is a birth with a history: the first
instance of the new chain is a view change of S from the epoch they share. Nothing is proposed before
*all* of S have promised, so the sync point covers all that any of them was told, and nothing told is
taken back. What only the lost sites held is lost; that is the price, and why the chain has a new id.

To enter the new chain is to leave the old one: a site gives no promise, statement or token in both.
A fork that cannot come about is undone: a site of S that is heard in a later epoch of the old chain
never entered and never will, so nothing was proposed, and the others go back with the promises they
had given. One of S that died is left behind by a further fork.

Where the lost were only cut off, two chains live; ``kin`` says what happens when they meet.
"""

from ordering.config import MS
from ordering.detection import Detection
from ordering.errors import MembershipError
from ordering.kin import Kin
from ordering.naming import chain_id
from ordering.packets import ChainAlive, Descent, Head, Orphan, RecoveryStart
from ordering.records import Parent
from ordering.recovery import Recovery
from ordering.site import Site, Timer
from ordering.views import SiteId, View, ViewId

STATEMENTS = 8  # so many times in orphan_ms an orphan says that it is one


class Fork:
    """One site's way out of a chain that has lost its majority."""

    def __init__(self, site: Site, detection: Detection, recovery: Recovery) -> None:
        self.site = site
        self.detection = detection
        self.recovery = recovery
        self.forced = False
        self._entered_at = 0
        self._well_at = 0  # when we last had a majority, as far as we looked
        self._orphans: dict[SiteId, int] = {}
        self._later: dict[SiteId, int] = {}  # heard in a later epoch of this chain, and when
        self._company: tuple[SiteId, ...] = ()
        self._company_since = 0
        self.kin = Kin(site, self._has_majority)

    @property
    def _period(self) -> int:
        return self.site.config.orphan_ms * MS // STATEMENTS

    def start(self) -> None:
        """The site has become a member of its chain."""
        self._well_at = self.site.now
        if self.site.config.minimum_size or self.site.descent.depth:
            self.site.arm(Timer.FORK, self._period)

    def installed(self) -> None:
        """An install makes the chain we are in our own."""
        self.kin.forget()
        self._orphans.clear()
        self._later.clear()
        if self.site.parents:
            self.site.parents.clear()
            self.start()

    def force(self) -> None:
        """An operator's order."""
        if self._has_majority():
            raise MembershipError(
                "fork: this site reaches a majority of its voters; a fork would split a living group."
                " Stop the sites that must not go on, or REMOVE them"
            )
        if self.site.is_behind_its_state:
            raise MembershipError(
                f"fork: the state here is of slot {self.site.state_ts}, and the log ends at"
                f" {self.site.queue.frontier}; a fork would give the slots between anew. Fork at another site"
            )
        self.forced = True
        self.site.arm(Timer.FORK, 1)

    # -- orphans ---------------------------------------------------------------------------------

    def heard_later(self, sender: SiteId) -> None:
        """Somebody of our chain speaks in a later epoch: the chain lives, we are behind."""
        self._later[sender] = self.site.now

    def _has_majority(self) -> bool:
        """Whether the chain lives, as far as we can hear. An undecided fork does not."""
        site = self.site
        if site.queue.fork is not None:
            return False
        limit = site.now - site.config.minority_ms * MS
        later = [s for s, at in self._later.items() if at > limit]
        return self.detection.reaches_majority(later)

    def is_orphan(self) -> bool:
        site = self.site
        if site.outside or not site.epoch or site.me not in site.view.electorate or self._has_majority():
            return False
        if site.is_behind_its_state:  # what it lacks may be had from those it has lost, and only from them
            return False
        since = max(self._well_at, self._entered_at)
        return self.forced or (
            site.config.minimum_size > 0 and site.now - since >= site.config.orphan_ms * MS
        )

    def fire(self) -> None:
        """Look whether we are well; if not for long, say so, and lead who says the same."""
        site = self.site
        if self._has_majority():
            self._well_at = site.now
            self.forced = False
            if site.descent.depth:
                self.kin.call_roll(dict.fromkeys(self.kin.elsewhere(), 0))
        else:
            statement = self.kin.statement(forced=self.forced)
            if site.descent.depth:
                site.multicast_to(self.kin.elsewhere(), statement)
            if self.is_orphan():
                site.multicast(statement)
                self._lead()
        if site.config.minimum_size or site.descent.depth or self.forced:
            site.arm(Timer.FORK, self._period)

    def on_orphan(self, orphan: Orphan) -> None:
        self._orphans[orphan.head.sender] = self.site.now
        if orphan.forced and not self.forced and not self._has_majority():
            self.forced = True
            self.site.arm(Timer.FORK, 1)

    def _lead(self) -> None:
        """Whoever comes first in the electorate leads the company, once it is the same for a while;
        the next one if nothing comes of that. A voter that speaks and is no orphan may only not have
        noticed yet: it would be left behind, and could go on alone as well. So it is waited for."""
        site = self.site
        view = site.view
        fresh = site.now - 2 * self._period
        company = tuple(s for s in view.electorate if s == site.me or self._orphans.get(s, 0) > fresh)
        if company != self._company:
            self._company = company
            self._company_since = site.now
        if len(company) < max(site.config.minimum_size, 1):
            return
        turn = 2 + 2 * company.index(site.me)
        if any(s not in company and self.detection.speaks(s) for s in view.electorate):
            turn += STATEMENTS
        if site.now - self._company_since < turn * self._period:
            return
        members = tuple(m for m in view.members if m.site in company)
        fork = View(ViewId(site.epoch, view.id.revision), members, company, ())
        self._enter(self._chain_of(fork), fork)
        self.recovery.initiate()

    # -- entering, and going back ----------------------------------------------------------------

    def _chain_of(self, fork: View) -> int:
        return chain_id(self.site.group, tuple((m.site, m.boot) for m in fork.members), self.site.chain)

    def invites(self, start: RecoveryStart) -> bool:
        """Whether this is the first instance of a fork of our chain that names us; then enter it."""
        site = self.site
        view = start.view
        me = view.member(site.me)
        if (
            start.head.epoch != site.epoch
            or me is None
            or start.head.chain != self._chain_of(view)
            or not self.is_orphan()
        ):
            return False
        self._enter(start.head.chain, view)
        return True

    def _enter(self, chain: int, fork: View) -> None:
        """Leave the chain for good, unless the fork turns out to be impossible."""
        site = self.site
        site.parents.append(Parent(site.chain, site.descent, site.queue.fork, self.recovery.leave()))
        site.chain = chain
        site.descent = Descent(site.descent.root, site.descent.depth + 1)
        site.queue.fork = fork
        self._turn()

    def is_undone_by(self, head: Head) -> bool:
        """Whether this head proves that the fork we entered cannot come about; then go back."""
        site = self.site
        fork = site.queue.fork
        if fork is None or head.chain != site.parents[-1].chain:
            return False
        member = fork.member(head.sender)
        if member is None or head.epoch <= site.epoch:
            return False
        parent = site.parents.pop()
        site.chain = parent.chain
        site.descent = parent.descent
        site.queue.fork = parent.fork
        self.recovery.resume(parent.instance)
        self._turn()
        return True

    def _turn(self) -> None:
        """Nothing said in one chain counts in another."""
        site = self.site
        site.stability.forget(site.queue.frontier)
        site.queue.known_end = site.queue.frontier
        self._entered_at = site.now
        self._company = ()
        self._orphans.clear()
        self._later.clear()
        self.kin.forget()
        self.detection.enter_epoch()

    def yields_to(self, claim: ChainAlive) -> bool:
        """Whether this site must end for the sake of another chain."""
        in_doubt_since = None if self.site.queue.fork is None else self._entered_at
        return self.kin.yields_to(claim, in_doubt_since)
