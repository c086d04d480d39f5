"""Chains that meet: one group, several forks, and who must yield (rule R9).

A site that hears of another chain of its group, or that looks for one, asks; whoever is asked answers
only if its own chain lives (ChainAlive). Whether it lives is no matter of memory: those heard a moment
ago may just have left it. So the answer needs a quorum of answers to a roll call begun after the
question. And the asker heeds only an answer to its own latest question: a claim that was true once may
come when the chain that made it is dead.

Of two chains that live, the one with fewer forks stays, then the lower id; the sites of the other end
and join as new. A site that has had no majority for ``orphan_ms`` yields to any chain that has one. So
one chain remains, and it is the one that never gave up its majority, if that still lives.
"""

from collections.abc import Callable

from ordering.config import MS
from ordering.packets import ChainAlive, Orphan, Packet, Poll, PollReply, RecoveryStart
from ordering.site import Site
from ordering.throttle import Throttle
from ordering.views import SiteId

ASKERS_MAX = 64
ROLL_CALL = 1 << 40  # its rounds are above those of a poll
CLAIMS = 4  # a claim heard in so many quarters of orphan_ms is still the same story


class Kin:
    """What this site knows, and tells, of the chains around it."""

    def __init__(self, site: Site, has_majority: Callable[[], bool]) -> None:
        self.site = site
        self._has_majority = has_majority
        self._question = 0
        self._asked_at = 0
        self._callers: dict[str, int] = {}  # who is to hear of this roll call, and their questions
        self._waiting: dict[str, int] = {}  # who asked after it began
        self._recent = Throttle(ASKERS_MAX)
        self._round = ROLL_CALL
        self._called_at = 0
        self._present: dict[SiteId, None] = {}
        self._unwell_since: int | None = None  # when another chain first found us without a majority
        self._claimed_at = 0

    def forget(self) -> None:
        """We have entered an epoch, or another chain."""
        self._callers.clear()
        self._waiting.clear()
        self._unwell_since = None

    # -- asking ----------------------------------------------------------------------------------

    def question(self) -> int:
        """A number that an answer must repeat; renewed so often that no answer is old."""
        site = self.site
        if not self._question or site.now - self._asked_at > site.config.orphan_ms * MS // 2:
            self._question = site.rng.getrandbits(62) + 1
            self._asked_at = site.now
        return self._question

    def statement(self, *, forced: bool) -> Orphan:
        return Orphan(self.site.head(), self.site.member.address, forced, self.question())

    def elsewhere(self) -> tuple[str, ...]:
        """Configured addresses where nobody of our ring is."""
        site = self.site
        ours = [member.address for member in site.view.members if member.site in site.view.ring]
        return tuple(a for a in (*site.config.founders, *site.config.contacts) if a not in ours)

    def _may_turn_to(self, address: str) -> bool:
        """Not to the same one again at once."""
        return self._recent.allows(address, self.site.now, self.site.config.request_ms * MS)

    # -- answering -------------------------------------------------------------------------------

    def on_foreign(self, packet: Packet) -> None:
        """A packet of another chain that asks for company, or that meets a chain which once forked."""
        site = self.site
        head = packet.head
        asks = head.epoch > 0 and isinstance(packet, RecoveryStart | Orphan)
        if not asks and not site.descent.depth:
            return
        if isinstance(packet, Orphan):
            self.call_roll({packet.address: packet.asks})
        elif (address := site.addresses.get(head.sender)) is not None:
            self._respond(address, 0)

    def _respond(self, address: str, question: int) -> None:
        """If we are well we say so, after a roll call; if not, we ask in turn."""
        if self._has_majority():
            self.call_roll({address: question})
        elif self._may_turn_to(address):
            self.site.multicast_to((address,), self.statement(forced=False))

    def call_roll(self, callers: dict[str, int]) -> None:
        """Who is here? Once a quorum has answered, ``callers`` are told that our chain lives."""
        site = self.site
        if site.fenced or not self._has_majority():
            return
        for address, asks in callers.items():
            if asks or self._may_turn_to(address):
                self._waiting[address] = asks
        while len(self._waiting) > ASKERS_MAX:
            del self._waiting[next(iter(self._waiting))]
        under_way = self._callers and site.now - self._called_at < site.config.minority_ms * MS
        if self._waiting and not under_way:
            self._begin()

    def _begin(self) -> None:
        site = self.site
        self._callers, self._waiting = self._waiting, {}
        self._round += 1
        self._called_at = site.now
        self._present = {site.me: None}
        site.multicast(Poll(site.head(), self._round, ()))
        self._count()

    def on_roll_call(self, reply: PollReply) -> None:
        if reply.round == self._round and self._callers:
            self._present[reply.head.sender] = None
            self._count()

    def _count(self) -> None:
        site = self.site
        if site.fenced or not site.view.is_quorum(self._present, joint=site.stability.joint(site.view)):
            return
        callers, self._callers = self._callers, {}
        for address, asked in callers.items():
            claim = ChainAlive(site.head(), site.member.address, site.descent, self.question(), asked)
            site.multicast_to((address,), claim)
        if self._waiting:
            self._begin()

    # -- yielding --------------------------------------------------------------------------------

    def yields_to(self, claim: ChainAlive, in_doubt_since: int | None) -> bool:
        """Whether this site must end because the group lives in the chain that speaks here.

        ``in_doubt_since``: when we entered a fork that is not decided; it is given time to be undone.
        """
        site = self.site
        if claim.descent.root != site.descent.root:
            return False
        patience = site.config.orphan_ms * MS
        asked = self._question and claim.answers == self._question
        if not asked or site.now - self._asked_at > patience:  # a late answer is as good as none
            self._respond(claim.address, claim.asks)
            return False
        if (claim.descent.depth, claim.head.chain) < (site.descent.depth, site.chain):
            return in_doubt_since is None or site.now - in_doubt_since >= patience
        if self._has_majority():
            self._unwell_since = None
            self._respond(claim.address, claim.asks)
            return False
        if self._unwell_since is None or site.now - self._claimed_at > patience // CLAIMS:
            self._unwell_since = site.now
        self._claimed_at = site.now
        return site.now - self._unwell_since >= patience
