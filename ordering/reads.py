"""When does this site know everything that was answered so far? Reads without a slot (rule R11).

A read waits for a round: a ReadProbe to everybody, and answers that were given *after* it, by unfenced
voters of this epoch, in whose heads stands how far they hold the order. What was answered to anybody before
the probe is held by a majority; every quorum of answers has one of these voters in it, so the highest
frontier answered is at or behind it. When that is delivered here, at majority level, this site has
everything that the read must see.

*Whose quorum* depends on slots that may not be here yet. So answers are counted when this site has all slots
up to the highest of them, by the view it has then; and what it has then must be delivered as well, for a
voter may have been replaced in between. If the electorate has changed behind that, a majority of the one
before holds the change, or is needed beside the new one (R5), and either way an answer would have shown it.

*A later epoch* answers nothing here, and begins every round anew. Reads that are asked for while a round is
under way wait for the next one: its answers may be older than they are. So any number of reads shares few
packets, no slot, and no write to a disk.
"""

from ordering.effects import ReadReady
from ordering.errors import NotMember, Overloaded
from ordering.packets import ReadProbe, ReadReply
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.views import SiteId

READS_MAX = 1_000_000
DOUBLINGS = 4


class Reads:
    """Reads of this site's application, and answers to others'."""

    def __init__(self, site: Site, rtt: RoundTrip) -> None:
        self.site = site
        self.rtt = rtt
        self.waiting: list[int] = []  # for a round that has not begun
        self.asking: list[int] = []  # of the round under way
        self._round = 0
        self._tries = 0
        self._answers: dict[SiteId, int] = {}  # how far who has answered holds the order
        self._bound: int | None = None  # what must be delivered, once that is known

    def request(self, number: int) -> None:
        site = self.site
        if site.outside or not site.epoch or not site.view.has(site.me):
            raise NotMember(
                f"group {site.config.group!r}: this site is {site.state.value}; read after the first"
                " InstallView"
            )
        if len(self.waiting) + len(self.asking) >= READS_MAX:
            raise Overloaded(f"{READS_MAX} reads wait already; wait for some of them first")
        self.waiting.append(number)

    def enter_epoch(self) -> None:
        """Answers of an epoch count in it alone."""
        self.waiting = self.asking + self.waiting
        self.asking = []
        self.site.disarm(Timer.READ)

    # -- asking ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Called when everything due is delivered; never while fenced (R4)."""
        site = self.site
        while self.asking or self.waiting:
            if not self.asking:
                self._begin()
            if self._bound is None:
                self._count()
            if self._bound is None or min(site.delivered, site.stability.majority) < self._bound:
                return
            site.out.append(ReadReady(tuple(self.asking)))
            self.asking = []
            site.disarm(Timer.READ)

    def _begin(self) -> None:
        site = self.site
        self.asking, self.waiting = self.waiting, []
        self._round += 1
        self._tries = 0
        self._bound = None
        self._answers = {} if site.unnamed else {site.me: site.held}
        self._ask()

    def _ask(self) -> None:
        site = self.site
        site.multicast(ReadProbe(site.head(), self._round))
        site.arm(Timer.READ, self.rtt.rto << min(self._tries, DOUBLINGS))

    def fire(self) -> None:
        """Probes and answers get lost."""
        if self.asking and self._bound is None and not self.site.fenced:
            self._tries += 1
            self._ask()

    def _count(self) -> None:
        site = self.site
        highest = max(self._answers.values(), default=0)
        if site.queue.frontier < highest:
            return
        view = site.view
        if view.is_quorum(tuple(self._answers), joint=site.stability.joint(view)):
            self._bound = max(highest, site.queue.frontier)
            site.disarm(Timer.READ)

    # -- answering -------------------------------------------------------------------------------

    def on_probe(self, probe: ReadProbe) -> None:
        """In the same epoch (others do not get here), and not fenced: what we hold counts."""
        site = self.site
        if not site.unnamed:
            site.unicast(probe.head.sender, ReadReply(site.head(), probe.head.boot, probe.round))

    def on_reply(self, reply: ReadReply) -> None:
        """It names the process and the round it answers: nothing older, and nothing brought here from
        elsewhere, proves anything."""
        site, head = self.site, reply.head
        member = site.view.member(head.sender)
        if reply.boot != site.member.boot or reply.round != self._round or not self.asking:
            site.count("dropped: late answer to a read")
        elif member is not None and member.boot == head.boot:
            self._answers[head.sender] = head.held
