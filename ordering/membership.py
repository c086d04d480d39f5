"""Join, promote, leave, remove, return, retire: single ordered NewLists (RMP §4.3, rules R5, R6, R7).

``apply_change`` is the pure heart: a view and a change give the next view, or nothing if there is
nothing to do. The rest asks for changes until they have happened and keeps the requests of others
until this site has the token.
"""

from typing import NamedTuple

from ordering.config import MS
from ordering.detection import Detection
from ordering.effects import Ending
from ordering.errors import MembershipError
from ordering.locks import with_locks
from ordering.packets import Change, ChangeKind, ListChangeRequest, NotMember, Order
from ordering.retransmission import block_packet
from ordering.site import Site, Timer
from ordering.state import State
from ordering.throttle import Throttle
from ordering.transfer import Transfer
from ordering.views import NO_SITE, Member, SiteId, View, ViewId, count_in, majority_of

REQUESTS_MAX = 64
RETURN_DOUBLINGS = 5


def apply_change(
    view: View, change: Change, after: SiteId, ts: int, time: int, *, joint: bool
) -> View | None:
    """The view that ``change`` makes of ``view`` at slot ``ts`` of this time; None if it changes nothing.

    ``after`` is the token site: who enters the ring enters behind it. ``joint`` says that the last
    electorate change still needs both quorums, so another one must wait (R5).
    """
    subject = change.member
    known = view.member(subject.site)
    members, electorate, ring = view.members, view.electorate, view.ring
    match change.kind:
        case ChangeKind.JOIN:
            if known is not None:
                return None
            members, ring = _seat_joiner(view, subject, after)
        case ChangeKind.RETURN:
            if known is None or subject.site in ring:
                return None
            if any(m.replaces == subject.site for m in members):
                return None  # a late request of one that is known to be dead
            members = tuple(_returned(m, subject) if m.site == subject.site else m for m in members)
            ring = _insert_after(ring, after, subject.site)
        case ChangeKind.RETIRE:
            if known is None or known.boot != subject.boot or subject.site not in ring:
                return None  # nothing to do, or a late request of an earlier boot
            ring = tuple(s for s in ring if s != subject.site)
            if not _ring_is_majority(ring, electorate):
                return None
            if joint and not _ring_is_majority(ring, view.joint_electorate):
                return None
        case ChangeKind.PROMOTE:
            if known is None or subject.site in electorate or subject.site not in ring:
                return None
            electorate = (*(s for s in electorate if s != known.replaces), subject.site)
            members = tuple(
                _promoted(m) if m.site == subject.site else m for m in members if m.site != known.replaces
            )
            ring = tuple(s for s in ring if s != known.replaces)
        case ChangeKind.LEAVE | ChangeKind.REMOVE:
            if known is None or electorate == (subject.site,):
                return None
            members = tuple(m for m in members if m.site != subject.site)
            electorate = tuple(s for s in electorate if s != subject.site)
            ring = tuple(s for s in ring if s != subject.site)
    if not ring:
        return None
    next_id = ViewId(view.id.epoch, view.id.revision + 1)
    if electorate == view.electorate:
        next_view = View(next_id, members, electorate, ring)
        if joint:
            next_view = View(next_id, members, electorate, ring, view.joint_ts, view.joint_electorate)
    elif joint or not (_ring_is_majority(view.ring, view.electorate) and _ring_is_majority(ring, electorate)):
        return None
    else:
        next_view = View(next_id, members, electorate, ring, ts, view.electorate)
    return with_locks(next_view, view.locks, ts, time)


def _ring_is_majority(ring: tuple[SiteId, ...], electorate: tuple[SiteId, ...]) -> bool:
    """Only a ring that is a majority, before and after, may change the electorate: otherwise the
    change could wedge the very group that orders it. And who retires leaves such a ring behind."""
    return count_in(electorate, ring) >= majority_of(electorate)


def _seat_joiner(view: View, joiner: Member, after: SiteId) -> tuple[tuple[Member, ...], tuple[SiteId, ...]]:
    """A learner behind the token site. Whoever was at its address before is dead: out of the ring
    at once, and out of the electorate when the learner is promoted in its place (R6)."""
    earlier = [m for m in view.members if m.address == joiner.address]
    dead_voter = next((m.site for m in earlier if m.site in view.electorate), NO_SITE)
    dead_learners = tuple(m.site for m in earlier if m.site not in view.electorate)
    members = tuple(m for m in view.members if m.site not in dead_learners)
    ring = tuple(s for s in view.ring if s not in {m.site for m in earlier})
    seat = Member(joiner.site, joiner.boot, joiner.address, dead_voter)
    return (*members, seat), _insert_after(ring, after, joiner.site)


def _insert_after(ring: tuple[SiteId, ...], after: SiteId, site: SiteId) -> tuple[SiteId, ...]:
    index = ring.index(after) + 1 if after in ring else len(ring)
    return (*ring[:index], site, *ring[index:])


def _returned(member: Member, subject: Member) -> Member:
    """R6: a voter that is back from its disk is named by its new boot, wherever it is now."""
    return Member(member.site, subject.boot, subject.address, member.replaces)


def _promoted(member: Member) -> Member:
    return Member(member.site, member.boot, member.address)


class Request(NamedTuple):
    """A change that was asked for: when it was first, and last, in which epoch, and which slots of it who
    asked last had."""

    change: Change
    first_at: int
    last_at: int
    epoch: int
    received: int


class Membership:
    """What this site wants changed, and what others asked it to change."""

    def __init__(self, site: Site, detection: Detection, transfer: Transfer) -> None:
        self.site = site
        self.detection = detection
        self.transfer = transfer
        self.wanted: dict[tuple[ChangeKind, SiteId], Change] = {}
        self.requests: dict[tuple[ChangeKind, SiteId], Request] = {}
        self.leaving = False
        self.promotable = False
        self._falls = 0
        self._ring_since: int | None = None
        self._return_at: int | None = None  # when to ask back into the ring
        self._dropped: list[tuple[int, Member]] = []
        self._told = Throttle(REQUESTS_MAX)

    # -- asking ----------------------------------------------------------------------------------

    def request(self, kind: ChangeKind, subject: SiteId) -> None:
        """An operator's change."""
        site = self.site
        if kind not in (ChangeKind.LEAVE, ChangeKind.REMOVE, ChangeKind.RETIRE):
            raise MembershipError(
                f"kind: {kind.name} is not an operator's change; use LEAVE or RETIRE for this site, or REMOVE"
                " with a member's id"
            )
        if site.outside:
            raise MembershipError(f"kind: cannot ask for {kind.name} while {site.state.value}; join first")
        if kind is ChangeKind.RETIRE:
            self._retire()
            return
        leaver = site.me if kind is ChangeKind.LEAVE else subject
        if site.view.electorate == (leaver,):
            raise MembershipError(f"kind: the last voter cannot {kind.name}; stop the process instead")
        if kind is ChangeKind.LEAVE:
            self.leaving = True
            site.retiring = False  # to go for good is more than to go for a while
            return
        member = site.view.member(subject)
        if member is None:
            raise MembershipError(f"site: {subject} is not a member; REMOVE takes a member's id")
        self.want(ChangeKind.REMOVE, member)

    def _retire(self) -> None:
        site = self.site
        if not site.epoch or site.unnamed or self.leaving or not site.view.has(site.me):
            raise MembershipError(
                "kind: RETIRE is for a member under the boot its view names that does not leave; stop the"
                " process instead"
            )
        site.retiring = True

    def may_promote(self) -> None:
        """The state is here, and in durable mode on the disk (R7)."""
        self.promotable = True

    def want(self, kind: ChangeKind, member: Member) -> None:
        key = (kind, member.site)
        if key not in self.wanted:
            self.wanted[key] = Change(kind, member)
            self.site.arm(Timer.REQUEST, 1)

    def fire(self) -> None:
        """Ask again for what has not happened yet."""
        site = self.site
        for change in self.wanted.values():
            request = ListChangeRequest(site.head(), change, forwarded=False)
            if site.state is State.JOINING:
                site.multicast_to(site.config.contacts or site.config.founders, request)
            else:
                self._keep(change, site.queue.frontier)
                site.multicast(request)
        if self.wanted or self._return_at is not None:
            site.arm(Timer.REQUEST, site.config.request_ms * MS + site.jitter(site.config.request_ms))

    def follow_view(self) -> None:
        """Drop wishes that came true; form new ones from our place in the view (called when settled)."""
        site = self.site
        view = site.view
        seated = site.me in view.ring and site.me in view.electorate
        if seated and not self.wanted and self._return_at is None and self._ring_since is not None:
            return  # the rule: nothing to wish for
        for key in [key for key, change in self.wanted.items() if self._has_happened(change)]:
            del self.wanted[key]
        me = view.member(site.me)
        if me is None or self.leaving or site.retiring:
            return
        if site.me in view.ring:
            if self._return_at is not None or self._ring_since is None:
                self._ring_since = site.now
            self._return_at = None
            if site.me not in view.electorate and self.promotable and not site.unnamed:
                self.want(ChangeKind.PROMOTE, me)
        elif self._return_at is None:
            longest = site.config.return_ms * MS << RETURN_DOUBLINGS
            if self._ring_since is not None and site.now - self._ring_since > longest:
                self._falls = 0  # it had been well for long
            wait = site.config.return_ms * MS << min(self._falls, RETURN_DOUBLINGS)
            self._return_at = site.now + wait + site.jitter(site.config.return_ms)
            self._falls += 1
            site.arm_if_idle(Timer.REQUEST, wait)
        elif (
            site.now >= self._return_at
            and site.queue.known_end == site.queue.frontier
            and not site.is_short_of_buffers()
        ):
            self.want(ChangeKind.RETURN, site.member)

    def _has_happened(self, change: Change) -> bool:
        view = self.site.view
        subject = change.member.site
        match change.kind:
            case ChangeKind.JOIN:
                return view.has(subject)
            case ChangeKind.RETURN:
                return subject in view.ring or not view.has(subject)
            case ChangeKind.RETIRE:
                return subject not in view.ring
            case ChangeKind.PROMOTE:
                return subject in view.electorate or not view.has(subject)
            case ChangeKind.LEAVE | ChangeKind.REMOVE:
                return not view.has(subject)

    # -- being asked -----------------------------------------------------------------------------

    def on_request(self, request: ListChangeRequest, delivered: View | None) -> bool:
        """Keep a request and pass it on, or answer it. True if it gives cause for suspicion (R6)."""
        site = self.site
        change = request.change
        if change.kind is ChangeKind.RETURN and request.head.epoch != site.epoch:
            site.count("dropped: return from an earlier epoch")
            return False
        if self._is_of_dead_boot(change, request.head.received):
            site.count("dropped: return of an earlier boot")
            return False
        if self._is_premature(change, request.head.received):
            site.count("dropped: return of who was in the ring")
            return False
        if change.kind is ChangeKind.JOIN:
            if site.view.has(change.member.site):
                self._resend_seat(change.member)
                return False
            if self._has_had_seat(request):
                site.count("dropped: request of one that had its seat")
                self.tell_outsider(change.member.site, change.member.address, delivered)
                return False
        self._pass_on(request)
        return change.kind is ChangeKind.JOIN and self._is_restart(change.member)

    def _is_of_dead_boot(self, change: Change, received: int) -> bool:
        """R6: a RETURN under another boot than the view's names a newer one, unless who asked did not know
        yet that the view's is named: then it is the one before. ``received``: the slots known there."""
        view = self.site.view
        named = view.member(change.member.site)
        if change.kind is not ChangeKind.RETURN or named is None or named.boot == change.member.boot:
            return False
        named_at = 0
        for ts, earlier in reversed(self.site.queue.views):
            member = earlier.member(named.site)
            if member is None or member.boot != named.boot:
                break
            named_at = ts
        return received < named_at

    def _is_premature(self, change: Change, received: int) -> bool:
        """A RETURN of who did not know yet that it is out of the ring is an old one. It may have gone since,
        on its own wish, and must not be called back into a ring that would have to miss it."""
        return change.kind is ChangeKind.RETURN and received < self.site.queue.out_of_ring_at(
            change.member.site
        )

    def _pass_on(self, request: ListChangeRequest) -> None:
        site = self.site
        self._keep(request.change, request.head.received)
        tail = site.queue.tail
        if not request.forwarded and tail is not None and tail.next_site != site.me:
            site.unicast(tail.next_site, ListChangeRequest(site.head(), request.change, forwarded=True))

    def _resend_seat(self, joiner: Member) -> None:
        """The joiner lost the NewList that names it: any later view block serves as well, or, when they
        are all collected, the position where our log begins."""
        site = self.site
        for ts, view in reversed(site.queue.views):
            order = site.queue.blocks.get(ts)
            if order is not None and view.has(joiner.site):
                site.unicast(joiner.site, block_packet(site, order))
                return
        self.transfer.refuse(joiner.site)

    def _is_restart(self, joiner: Member) -> bool:
        """R6: a restart counts as suspicion. One member is enough to act on it."""
        site = self.site
        replaced = [m.site for m in site.view.members if m.address == joiner.address and m.site != site.me]
        for member in replaced:
            self.detection.note_restart(member)
        others = [s for s in site.view.ring if s not in replaced]
        return bool(replaced) and others[:1] == [site.me] and not site.fenced

    def _keep(self, change: Change, received: int) -> None:
        key = (change.kind, change.member.site)
        known = self.requests.get(key)
        now, epoch = self.site.now, self.site.epoch
        if known is not None:
            self.requests[key] = Request(change, known.first_at, now, epoch, received)
        elif len(self.requests) < REQUESTS_MAX:
            self.requests[key] = Request(change, now, now, epoch, received)
        else:
            self.site.count("membership requests dropped")

    def next_view(self, ts: int, time: int) -> View | None:
        """The token site's turn: the first request that changes something now."""
        site = self.site
        lifetime = 4 * site.config.request_ms * MS
        joint = site.stability.joint(site.view)
        for key, request in list(self.requests.items()):
            change = request.change
            late = change.kind is ChangeKind.JOIN and change.member.site in site.queue.departed
            late = late or (change.kind is ChangeKind.RETURN and request.epoch != site.epoch)
            late = late or self._is_of_dead_boot(change, request.received)
            late = late or self._is_premature(change, request.received)
            if late or site.now - request.last_at > lifetime:
                del self.requests[key]
                continue
            if change.kind is ChangeKind.JOIN and self._address_is_alive(change.member):
                continue
            if change.kind is ChangeKind.PROMOTE and not self._is_alive(change.member.site, request):
                continue
            view = apply_change(site.view, change, site.me, ts, time, joint=joint)
            if view is not None and self._can_settle(view):
                del self.requests[key]
                return view
        return None

    def _can_settle(self, view: View) -> bool:
        """A ring may count sites that have died: whoever changes the electorate must be in touch with the
        majorities that are to hold the change."""
        changes = view.electorate != self.site.view.electorate
        return not changes or self.detection.reaches_quorum_of(view, joint=True)

    def _is_alive(self, learner: SiteId, request: Request) -> bool:
        """Whether a learner lived on after it asked for its vote. A request may come late, alone or with
        others in a burst, from a process that is dead; a dead voter costs more than a moment."""
        if learner == self.site.me:
            return True
        heard = self.detection.last_heard.get(learner, 0)
        return heard - request.first_at >= self.site.config.request_ms * MS // 2

    def _address_is_alive(self, joiner: Member) -> bool:
        """A late duplicate of a dead process' request must not push out the one that lives now."""
        site = self.site
        limit = site.config.suspect_ms * MS
        for member in site.view.members:
            if member.address == joiner.address and member.site != joiner.site:
                heard = self.detection.last_heard.get(member.site)
                if heard is not None and site.now - heard < limit:
                    return True
        return False

    # -- telling who is out ------------------------------------------------------------------------

    def note_order(self, before: View, order: Order) -> None:
        """This site ordered a NewList: whoever it dropped is told once a majority holds it."""
        assert order.view is not None
        self._dropped += [(order.ts, m) for m in before.members if not order.view.has(m.site)]

    def tell_dropped(self, delivered: View) -> None:
        site = self.site
        for ts, member in list(self._dropped):
            if site.stability.majority >= ts:
                self._dropped.remove((ts, member))
                if not delivered.has(member.site):
                    site.multicast_to((member.address,), NotMember(site.head(), member.site, delivered))

    def tell_outsider(self, sender: SiteId, address: str, delivered: View | None) -> None:
        """Somebody of our chain speaks who is in no majority-held view (R17); say so, not too often."""
        site = self.site
        address = address or site.addresses.get(sender, "")
        if delivered is None or delivered.has(sender) or not address:
            return
        if self._told.allows(sender, site.now, site.config.request_ms * MS):
            site.multicast_to((address,), NotMember(site.head(), sender, delivered))

    def doubt_seat(self) -> None:
        """A learner that has never heard that a majority holds its seat, in a ring without progress, shows
        itself: if its seat was erased nobody knows it, or where it is, and it must be told (R5). So does who
        may have been removed while the others came back from their disks, which do not say where it is."""
        site = self.site
        if site.config.durable and not site.retiring:
            site.multicast(
                ListChangeRequest(site.head(), Change(ChangeKind.RETURN, site.member), forwarded=True)
            )
        if site.me not in site.view.electorate and site.stability.majority < site.queue.seat_ts:
            site.multicast(
                ListChangeRequest(site.head(), Change(ChangeKind.JOIN, site.member), forwarded=True)
            )

    def _has_had_seat(self, request: ListChangeRequest) -> bool:
        """Whether who asks to join was a member before, or takes itself for one (then it is told)."""
        subject = request.change.member.site
        mistaken = request.head.chain == self.site.chain and request.head.sender == subject
        return mistaken or subject in self.site.queue.departed

    def is_seated_again(self) -> bool:
        """Whether we were removed, and a late request of ours has made us a member once more."""
        site = self.site
        removed_at = site.queue.departed.get(site.me)
        return removed_at is not None and site.stability.majority >= removed_at and site.view.has(site.me)

    def ending(self) -> Ending:
        return Ending.LEFT if self.leaving else Ending.REMOVED
