"""View change by consensus (RMP §4.4 and iRBP §4.4 made sound by rules R3, R4, R5).

Instance *e* decides the install that opens epoch *e*+1. It is single-decree Paxos in RMP's words:
RecoveryStart asks for a promise, RecoveryVote gives it with the accepted install and the voter's
frontier, RecoveryNewList proposes an install, RecoveryAckNewList accepts it, RecoveryAbort refuses.

Why nothing majority-delivered is lost. Delivery needed a quorum that stated, in epoch *e* and
before promising, to hold the slot. A promise fences its giver, so any quorum of promises contains
one of those sites, and the highest frontier promised covers the slot. The sync point is that
frontier; a site accepts only when it holds everything up to it; so a decided install is backed by
a quorum that holds all before it. Everything above the sync point is erased with the install.

RMP commits its list with two phases led by the initiator, and RBP with three; both can commit two
lists when the initiator dies half-way. Here a later initiator finds the accepted install in the
promises and completes it.
"""

from collections.abc import Callable

import msgspec

from ordering.config import MS
from ordering.detection import Detection
from ordering.disciplines import Discipline
from ordering.durability import Durability
from ordering.locks import with_locks
from ordering.packets import (
    NO_BALLOT,
    Ballot,
    Order,
    Poll,
    PollReply,
    RecoveryAbort,
    RecoveryAckNewList,
    RecoveryNewList,
    RecoveryStart,
    RecoveryVote,
)
from ordering.records import Instance
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.slot_time import agreed_time
from ordering.views import Member, SiteId, View, ViewId


def _nothing() -> None:
    """What a bare promise waits for."""


POLL_ROUNDS = 6
POLL_DOUBLINGS = 4
BACKOFF_DOUBLINGS = 3


class Recovery:
    """One site's part in ending its epoch: voter always, initiator sometimes."""

    def __init__(
        self,
        site: Site,
        detection: Detection,
        discipline: Discipline,
        rtt: RoundTrip,
        durability: Durability,
    ) -> None:
        self.site = site
        self.durability = durability
        self.detection = detection
        self.discipline = discipline
        self.rtt = rtt
        self.decision: Order | None = None  # decided install we cannot enter yet
        self.decided_here: Order | None = None  # decided by our own count of acceptances
        self._poll_round = 0
        self.suspected: tuple[SiteId, ...] = ()  # in the last poll; nobody: the ring does not move
        self.enter_epoch()

    def enter_epoch(self) -> None:
        """Forget the instance that is over."""
        self.promised = NO_BALLOT
        self._pledge: RecoveryVote | None = None  # our vote for the promised ballot, once it is synced
        self.accepted_ballot = NO_BALLOT
        self._acceptance = NO_BALLOT  # the accepted ballot, once that is synced
        self.accepted: Order | None = None
        self.decision = None
        self.decided_here = None
        self.ballot: Ballot | None = None
        self.proposal: Order | None = None
        self._waiting: RecoveryNewList | None = None
        self._votes: dict[SiteId, RecoveryVote] = {}
        self._acks: dict[SiteId, None] = {}
        self._grace_ends: int | None = None  # until then the rest may promise too
        self._highest_round = 0
        self._attempts = 0
        self._attempt_ends = 0
        self._polling = False
        self._poll_tries = 0
        self._agreeing: dict[SiteId, None] = {}
        self.site.fenced = False
        self.site.decided = False
        for timer in (Timer.POLL, Timer.RECOVERY):
            self.site.disarm(timer)

    def leave(self) -> Instance:
        """Turn to the first instance of another chain (R9), and remember this one."""
        instance = self._instance()
        self.enter_epoch()
        self.site.fenced = True
        self.wait_for_others()
        return instance

    def _instance(self) -> Instance:
        return Instance(self.promised, self.accepted_ballot, self.accepted, self.decision, self.site.fenced)

    def resume(self, instance: Instance) -> None:
        """Turn back: a promise and an acceptance hold for ever."""
        self.enter_epoch()
        self.promised = instance.promised
        self._highest_round = instance.promised.round
        self.accepted_ballot = self._acceptance = instance.accepted_ballot
        self.accepted = instance.accepted
        if instance.promised != NO_BALLOT:
            self._pledge = self._vote(instance.promised)
        self.site.fenced = instance.fenced
        if instance.fenced:
            self.wait_for_others()
        if instance.decision is not None:
            self.decide(instance.decision)

    @property
    def initiating(self) -> bool:
        return self.ballot is not None and self.ballot == self.promised

    # -- the poll (R4) -----------------------------------------------------------------------------

    @property
    def polls(self) -> int:
        """How many were begun so far."""
        return self._poll_round

    def start_poll(self) -> None:
        """Ask whether others see it too; without a majority that does, nothing is frozen."""
        if self._polling or self.site.fenced:
            return
        self._polling = True
        self.site.count("polls")
        self._poll_tries = 0
        self._poll_round += 1
        self._agreeing = {self.site.me: None}
        self.fire_poll()

    def fire_poll(self) -> None:
        """Repeat the poll a few times, then let it go: the detectors will ask again."""
        site = self.site
        self._poll_tries += 1
        if self._poll_tries > POLL_ROUNDS:
            self._polling = False
            return
        if self._poll_agreed():
            return
        self.suspected = self.detection.suspects()
        poll = Poll(site.head(), self._poll_round, self.suspected)
        site.multicast_to(self._whom_to_ask(), poll)
        site.arm(Timer.POLL, self.rtt.rto << min(self._poll_tries - 1, POLL_DOUBLINGS))

    def on_poll(self, poll: Poll) -> None:
        site = self.site
        agrees = (
            site.fenced
            or self.detection.stalled()
            or (poll.head.sender in site.view.ring and self.detection.has_restarted(poll.head.sender))
            or any(self._shares(suspect) for suspect in poll.suspects if suspect != site.me)
        )
        site.unicast(poll.head.sender, PollReply(site.head(), poll.round, agrees))

    def _shares(self, suspect: SiteId) -> bool:
        return self.detection.misses(suspect) or self.detection.is_stuck(suspect)

    def on_poll_reply(self, reply: PollReply) -> None:
        if self._polling and reply.round == self._poll_round and reply.agrees:
            self._agreeing[reply.head.sender] = None
            self._poll_agreed()

    def _poll_agreed(self) -> bool:
        site = self.site
        if not site.view.is_quorum(self._agreeing, joint=site.stability.joint(site.view)):
            return False
        self._polling = False
        site.disarm(Timer.POLL)
        self.initiate()
        return True

    # -- the initiator -----------------------------------------------------------------------------

    def initiate(self) -> None:
        """Start an attempt above every ballot seen."""
        site = self.site
        self._attempts += 1
        self._highest_round = max(self._highest_round, self.promised.round) + 1
        self.ballot = Ballot(self._highest_round, site.me)
        self.proposal = None
        self._votes = {}
        self._acks = {}
        self._grace_ends = None
        self._promise(self.ballot, self._begin_attempt)

    def _begin_attempt(self) -> None:
        """Nobody is asked before our own promise is synced: a restart must not use the ballot again."""
        site = self.site
        if self._pledge is None or self._pledge.ballot != self.ballot:
            return
        if site.config.durable:
            self.wait_for_others()
        self._attempt_ends = site.deadlines[Timer.RECOVERY]
        self._votes[site.me] = self._pledge
        self._solicit()

    def _solicit(self) -> None:
        """(Re)send the current question to whoever has not answered; come back in one RTO."""
        site = self.site
        assert self.ballot is not None
        addresses = self._whom_to_ask()
        if self.proposal is None:
            start = RecoveryStart(site.head(), self.ballot, site.view)
            site.multicast_to(addresses, start)
        else:
            site.multicast_to(addresses, RecoveryNewList(site.head(), self.ballot, self.proposal))
        site.deadlines[Timer.RECOVERY] = min(self._attempt_ends, site.now + self.rtt.rto)
        self._try_propose()

    def _whom_to_ask(self) -> tuple[str, ...]:
        """All members of our view and of the best one promised, and who is just leaving: until the
        change is settled the quorum of the electorate before it may need it (R5)."""
        site = self.site
        best = self._quorum_view()
        addresses = [m.address for view in (site.view, best) for m in view.members]
        leaving = (*site.view.joint_electorate, *best.joint_electorate)
        addresses += [site.addresses[s] for s in leaving if s in site.addresses]
        return tuple(dict.fromkeys(addresses))

    def _best_vote(self) -> RecoveryVote:
        """R3: compared by (epoch, timestamp); all votes of an instance are of its epoch."""
        return max(self._votes.values(), key=lambda vote: vote.frontier)

    def _quorum_view(self) -> View:
        return self._best_vote().view if self._votes else self.site.view

    def on_vote(self, vote: RecoveryVote) -> None:
        if self.initiating and vote.ballot == self.ballot and self.proposal is None:
            self._votes[vote.head.sender] = vote
            self._try_propose()

    def _try_propose(self) -> None:
        """With a quorum of promises: wait briefly for the rest, then propose."""
        site = self.site
        if self.proposal is not None or not self._votes:
            return
        best = self._best_vote()
        if not best.view.is_quorum(self._votes, joint=best.joint) or not self._may_be_born():
            return
        if self._grace_ends is None:
            grace = min(self.rtt.rto, max(self._attempt_ends - site.now, 0) // 2)
            self._grace_ends = site.now + grace
            site.deadlines[Timer.RECOVERY] = min(site.deadlines[Timer.RECOVERY], self._grace_ends)
        everyone = all(m.site in self._votes for m in best.view.members)
        if not everyone and site.now < self._grace_ends:
            return
        self.proposal = self._choose(best)
        assert self.ballot is not None
        self._solicit()
        self._accept(RecoveryNewList(site.head(), self.ballot, self.proposal))

    def nothing_accepted(self) -> bool:
        """Whether a quorum has promised our own ballot and reports no accepted install."""
        if not self.initiating or not self._votes or self.proposal is not None:
            return False
        best = self._best_vote()
        free = all(vote.accepted is None for vote in self._votes.values())
        return free and best.view.is_quorum(self._votes, joint=best.joint)

    def _may_be_born(self) -> bool:
        """R9: the first instance of a chain, born or forked, proposes nothing until all its founders
        are in, which an accepted install proves."""
        settled = self.site.epoch > 0 and self.site.queue.fork is None
        if settled or any(vote.accepted is not None for vote in self._votes.values()):
            return True
        return all(founder in self._votes for founder in self.site.view.electorate)

    def _choose(self, best: RecoveryVote) -> Order:
        """An install accepted before must be kept; else the sync point is the best frontier."""
        accepted = [vote for vote in self._votes.values() if vote.accepted is not None]
        if accepted:
            order = max(accepted, key=lambda vote: vote.accepted_ballot).accepted
            assert order is not None
            return order
        view = best.view
        willing = [s for s in self._votes if s in view.electorate or self._votes[s].frontier == best.frontier]
        able = [s for s in willing if not self._is_slow(s)]
        if view.is_quorum(able, joint=best.joint):
            willing = able
        ring = tuple(s for s in view.ring if s in willing)
        ring += tuple(m.site for m in view.members if m.site in willing and m.site not in ring)
        if self.site.me in ring:
            index = ring.index(self.site.me)
            ring = ring[index:] + ring[:index]
        members = tuple(self._as_promised(member) for member in view.members)
        epoch, ts = self.site.epoch + 1, best.frontier + 1
        time = agreed_time([v.time for v in self._votes.values() if v.frontier == best.frontier])
        next_view = View(ViewId(epoch, 0), members, view.electorate, ring)
        next_view = with_locks(next_view, view.locks, ts, time)
        first = self.discipline.first_site(ring)
        return Order(epoch, ts, self.site.me, first, view=next_view, vector=best.vector, time=time)

    def _as_promised(self, member: Member) -> Member:
        """R6: a voter that is back from its disk takes part under the boot that has promised."""
        vote = self._votes.get(member.site)
        if vote is None or vote.head.boot == member.boot:
            return member
        return Member(member.site, vote.head.boot, member.address, member.replaces)

    def _is_slow(self, site: SiteId) -> bool:
        """R16: who holds up the ring for lack of buffers goes on without the token, as an external voter."""
        return site in self.detection.overdue or (site == self.site.me and self.site.is_short_of_buffers())

    def on_ack_new_list(self, ack: RecoveryAckNewList) -> None:
        if self.initiating and ack.ballot == self.ballot and self.proposal is not None:
            self._acks[ack.head.sender] = None
            self._try_decide()

    def _try_decide(self) -> None:
        if not self._votes:
            return
        best = self._best_vote()
        if self.proposal is not None and best.view.is_quorum(self._acks, joint=best.joint):
            self.decided_here = self.proposal
            self.decide(self.proposal)

    def decide(self, order: Order) -> None:
        """The epoch is over: fetch what is missing up to the sync point, then install."""
        site = self.site
        self.decision = order
        site.decided = True
        site.fenced = True
        site.queue.expect_end(order.ts - 1)

    def on_abort(self, abort: RecoveryAbort) -> None:
        """Someone promised a higher ballot: step back and let it try, for a drawn while."""
        if self.initiating and abort.ballot == self.ballot and abort.promised > abort.ballot:
            self._highest_round = max(self._highest_round, abort.promised.round)
            self.ballot = None
            self.wait_for_others()

    # -- the voter ---------------------------------------------------------------------------------

    def on_start(self, start: RecoveryStart) -> None:
        site = self.site
        if start.ballot < self.promised:
            site.multicast_to(
                self._address_of(start), RecoveryAbort(site.head(), start.ballot, self.promised)
            )
            return
        if start.ballot > self.promised:
            self._promise(start.ballot, lambda: self._send_pledge(start))
        else:
            self._send_pledge(start)

    def _send_pledge(self, start: RecoveryStart) -> None:
        if self._pledge is not None and self._pledge.ballot == start.ballot:
            vote = msgspec.structs.replace(self._pledge, head=self.site.head())
            self.site.multicast_to(self._address_of(start), vote)

    def _address_of(self, start: RecoveryStart) -> tuple[str, ...]:
        """The initiator may be in a later view than ours, and says where it is; or on its way out."""
        member = start.view.member(start.head.sender)
        address = self.site.addresses.get(start.head.sender, "") if member is None else member.address
        return (address,) if address else ()

    def _promise(self, ballot: Ballot, then: Callable[[], None]) -> None:
        """Fenced at once; the vote, with all it says we have, waits for the disk (R8)."""
        site = self.site
        self.promised = ballot
        self._highest_round = max(self._highest_round, ballot.round)
        self._polling = False
        self._waiting = None
        site.disarm(Timer.POLL)
        site.fenced = True
        self.wait_for_others()
        self._pledge = None
        vote = self._vote(ballot)

        def synced() -> None:
            if self.promised == ballot:
                self._pledge = vote
                then()

        self.durability.commit(self._instance(), synced)

    def _vote(self, ballot: Ballot) -> RecoveryVote:
        site = self.site
        return RecoveryVote(
            site.head(),
            ballot,
            self.accepted_ballot,
            self.accepted,
            site.queue.frontier,
            self._view_with_locks(),
            site.stability.joint(site.view),
            site.queue.vector(),
            site.clock.stamp(site.queue.time, site.now),
        )

    def _view_with_locks(self) -> View:
        """A fork's view is its leader's, who may be behind us: the locks are those at our frontier."""
        view, at_frontier = self.site.view, self.site.queue.views[-1][1]
        if view is at_frontier:
            return view
        return msgspec.structs.replace(view, locks=at_frontier.locks)

    def on_new_list(self, proposal: RecoveryNewList) -> None:
        if proposal.ballot < self.promised:
            self.site.unicast(
                proposal.head.sender, RecoveryAbort(self.site.head(), proposal.ballot, self.promised)
            )
            return
        if proposal.ballot > self.promised:
            self._promise(proposal.ballot, _nothing)
        self._accept(proposal)

    def _accept(self, proposal: RecoveryNewList) -> None:
        """R3: accept only with everything up to the sync point in hand; fetch it first if need be."""
        site = self.site
        sync = proposal.order.ts - 1
        if site.queue.frontier < sync:
            self._waiting = proposal
            site.queue.known_end = max(site.queue.known_end, sync)
            return
        self._waiting = None
        ballot = proposal.ballot
        if self.accepted_ballot == ballot:
            self._send_acceptance(ballot)
            return
        self.accepted_ballot = ballot
        self.accepted = proposal.order

        def synced() -> None:
            if self.accepted_ballot == ballot:
                self._acceptance = ballot
                self._send_acceptance(ballot)

        self.durability.commit(self._instance(), synced)

    def _send_acceptance(self, ballot: Ballot) -> None:
        site = self.site
        if self._acceptance != ballot:
            return  # the disk is not that far
        if ballot.site == site.me:
            self._acks[site.me] = None
            self._try_decide()
        else:
            site.unicast(ballot.site, RecoveryAckNewList(site.head(), ballot))

    def caught_up(self) -> None:
        """The frontier moved: a proposal that waited for it may now be acceptable."""
        if self._waiting is not None:
            self._accept(self._waiting)

    # -- time --------------------------------------------------------------------------------------

    def wait_for_others(self) -> None:
        """Arm the patience after which this site initiates: drawn, and longer with each attempt of its own.
        A deaf site, whose attempts come to nothing, so leaves ever more time to the others."""
        patience = self.site.config.recovery_ms << min(self._attempts, BACKOFF_DOUBLINGS)
        syncs = 2 * self.site.sync_ns  # theirs may take as long as ours: to promise, to accept
        self.site.arm(Timer.RECOVERY, patience * MS + self.site.jitter(patience) + syncs)

    def fire(self) -> None:
        """Resend within an attempt; when its time is up, or nobody decides, initiate (R4)."""
        waits_for_disk = self.initiating and self.site.me not in self._votes
        if self.decision is not None or waits_for_disk:
            self.wait_for_others()
        elif self.initiating and self.site.now < self._attempt_ends:
            self._solicit()
        else:
            self.initiate()
