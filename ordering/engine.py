"""One door in, one door out: ``Engine.handle(event, now) -> effects``. Dispatch only.

The engine owns no rule of its own. It hands each packet to the part that understands it, then
settles: moves the frontier, takes and passes the token, delivers, watches for gaps, and states when
it wants to be woken.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from ordering import admission, restart
from ordering import packets as p
from ordering.birth import Birth
from ordering.claims import Claims
from ordering.config import MS, Config
from ordering.delivery import DeliveryCursor
from ordering.detection import Detection
from ordering.disciplines import make_discipline
from ordering.durability import Durability
from ordering.effects import Effect, Ending, EndMembership, SetTimer
from ordering.errors import InvariantViolation, MembershipError
from ordering.events import (
    BacklogReported,
    ChangeRequested,
    Event,
    ForkRequested,
    HoldersRequested,
    LockReleased,
    LockRequested,
    PacketsReceived,
    Persisted,
    PersistFailed,
    ReadRequested,
    ReplyRequested,
    Restarted,
    SnapshotSaved,
    Started,
    StateTransferred,
    SubmitRequested,
    TimerFired,
    WallClockSet,
)
from ordering.fork import Fork
from ordering.holding import Holding
from ordering.kin import ROLL_CALL
from ordering.lanes import Lanes
from ordering.lock_requests import LockRequests
from ordering.membership import Membership
from ordering.multirpc import MultiRpc
from ordering.orderer import Orderer
from ordering.packets import ChangeKind, Order, Packet, Standing
from ordering.reads import Reads
from ordering.reception import Reception
from ordering.recovery import Recovery
from ordering.removal import Removal
from ordering.retirement import Retirement
from ordering.retransmission import Retransmission, block_packet
from ordering.rtt import RoundTrip
from ordering.self_suspicion import WAKING, SelfSuspicion
from ordering.sending import Sending
from ordering.site import Site, Timer
from ordering.state import LEGAL_PACKETS, MOVES, RING, State
from ordering.submission import Submission
from ordering.token import Token
from ordering.transfer import Transfer
from ordering.views import Member, View

# Who is in no chain can call, ask to be let in, or ask whether there is a group at all; nothing else.
_FROM_OUTSIDE = (p.Hello, p.ListChangeRequest, p.NonMemberData)
# What means something whatever epoch its sender is in: data, and questions.
_OF_LATER_EPOCHS = (
    p.Data, p.Piece, p.PieceConfirm, p.Ack, p.NewList, p.Collected, p.NotMember, p.Nack, p.Forgotten,
)  # fmt: skip
_OF_EARLIER_EPOCHS = (
    p.Data, p.Piece, p.PieceConfirm, p.Nack, p.ListChangeRequest, p.LockRequest, p.Forgotten,
)  # fmt: skip


def _nothing_new(_: p.ChainAlive) -> None:
    """Our own chain lives: we know."""


def _time_has_come() -> None:
    """The token site that is woken orders what is due as it settles."""


class Engine:
    """The RMP engine of one site in one group. Same state, event and time: same effects."""

    def __init__(self, config: Config, member: Member, rng: Random) -> None:
        self.site = site = Site(config, member, rng)
        self.rtt = RoundTrip(config)
        self.discipline = make_discipline(config.discipline, site)
        self.detection = Detection(site, self.rtt)
        self.transfer = Transfer(site)
        self.membership = Membership(site, self.detection, self.transfer)
        self.removal = Removal(site, self.detection, self.membership)
        self.claims = Claims(site, self.detection)
        self.durability = Durability(site, self.claims)
        self.recovery = Recovery(site, self.detection, self.discipline, self.rtt, self.durability)
        self.sending = Sending(site, self.rtt)
        self.lanes = Lanes(site, self.rtt, self.sending)
        self.submission = Submission(site, self.detection, self.lanes, self.rtt, self.sending)
        self.retransmission = Retransmission(
            site, self.rtt, self.transfer, self.sending, self.submission.own_flight
        )
        self.retirement = Retirement(site, self.detection, self.membership, self.submission, self.rtt)
        self.locks = LockRequests(site)
        self.rpc = MultiRpc(site, self.detection, self.membership, self.submission, self.lanes, self.rtt)
        self.delivery = DeliveryCursor(site, self.locks, self.rpc)
        self.reads = Reads(site, self.rtt)
        self.holding = Holding(site)
        self.reception = Reception(site, self.submission, self.lanes, self.delivery)
        self.orderer = Orderer(site, self.discipline, self.membership, self.locks)
        self.doubt = SelfSuspicion(site, self.detection, self.rtt, self.recovery.start_poll)
        self.birth = Birth(site)
        self.fork = Fork(site, self.detection, self.recovery)
        self.token = Token(site, self.detection, self.rtt, self._check_suspects)
        self._wake_at = 0
        self.founded = False  # here since the first slot, so no state transfer was ever needed
        self._handlers = self._make_handlers()
        self._timers = self._make_timers()

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            p.Data: self.reception.on_data,
            p.Ack: self._on_ack,
            p.Confirm: self.token.on_confirm,
            p.Nack: self.retransmission.answer,
            p.NewList: self._on_new_list,
            p.ListChangeRequest: self._on_list_change_request,
            p.Probe: self.token.on_probe,
            p.Collected: self._on_collected,
            p.NotMember: self._on_not_member,
            p.Hello: self._on_hello,
            p.Poll: self.recovery.on_poll,
            p.PollReply: self._on_poll_reply,
            p.RecoveryStart: self._on_recovery_start,
            p.RecoveryVote: self.recovery.on_vote,
            p.RecoveryNewList: self.recovery.on_new_list,
            p.RecoveryAckNewList: self.recovery.on_ack_new_list,
            p.RecoveryAbort: self.recovery.on_abort,
            p.DataConfirm: self.lanes.on_confirm,
            p.Orphan: self.fork.on_orphan,
            p.ChainAlive: _nothing_new,
            p.Forgotten: self._on_forgotten,
            p.LockRequest: self.locks.on_request,
            p.NonMemberData: self.rpc.on_data,
            p.NonMemberReply: self.rpc.on_reply,
            p.Piece: self.reception.on_piece,
            p.PieceConfirm: self.reception.on_piece_confirm,
            p.ReadProbe: self.reads.on_probe,
            p.ReadReply: self.reads.on_reply,
        }

    def _make_timers(self) -> dict[Timer, Callable[[], None]]:
        return {
            Timer.DATA: self.submission.fire,
            Timer.PASS: self.token.fire_pass,
            Timer.NACK: self.retransmission.fire,
            Timer.PROBE: self.token.fire_probe,
            Timer.PASSIVE: self._fire_passive,
            Timer.POLL: self.recovery.fire_poll,
            Timer.RECOVERY: self._fire_recovery,
            Timer.REQUEST: self._fire_request,
            Timer.HELLO: self.birth.fire,
            Timer.LANE: self.lanes.fire,
            Timer.FORK: self._fire_fork,
            Timer.LOST: self.removal.fire,
            Timer.WAKING: self.doubt.fire,
            Timer.LOCK: self.locks.fire,
            Timer.TICK: _time_has_come,
            Timer.NULL: _time_has_come,
            Timer.CALL: self.rpc.fire,
            Timer.READ: self.reads.fire,
            Timer.CONFIRM: self.token.fire_confirm,
        }

    # -- the door --------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.site.state

    def handle(self, event: Event, now: int) -> list[Effect]:
        """React to one event at ``now`` (nanoseconds, never going back)."""
        site = self.site
        if now < site.now:
            raise InvariantViolation(f"time went back from {site.now} to {now}")
        site.now, site.out = now, []
        if site.state is State.GONE and not isinstance(
            event, SubmitRequested | LockRequested | ReadRequested | HoldersRequested
        ):
            return site.out
        before = site.state
        self.doubt.notice(self._wake_at)
        match event:
            case PacketsReceived(packets):
                for packet in packets:
                    self._receive(packet)
                    if self.recovery.decision is not None:
                        self._settle()  # what follows may already be of the next epoch
            case TimerFired():
                self._fire_due()
            case SubmitRequested():
                self.submission.submit(event, self.delivery.view)
            case ReplyRequested(replies):
                self.rpc.reply(replies)
            case Started(founder):
                admission.start(self, founder=founder)
            case BacklogReported(size):
                site.backlog = max(size, 0)
            case ChangeRequested(kind, subject):
                self.membership.request(kind, subject)
            case Persisted(seq):
                self.durability.on_persisted(seq)
            case StateTransferred(ts):
                restart.take_state(self, ts)
            case SnapshotSaved(ts):
                self.durability.on_snapshot(ts)
            case PersistFailed():
                self._end(Ending.STOPPED)
            case Restarted(ledger):
                restart.bring_back(self, ledger)
            case ForkRequested():
                self._force_fork()
            case ReadRequested(number):
                self.reads.request(number)
            case HoldersRequested():
                self.holding.request(event)
            case LockRequested(name, lease_ms):
                self.locks.request(name, lease_ms)
            case LockReleased(name):
                self.locks.release(name)
            case WallClockSet(offset):
                site.clock.offset = offset
        self._settle()
        self.durability.flush()
        self._move(before)
        return site.out

    def _move(self, before: State) -> None:
        """Find our place in the state table, check the move, and say when to wake us."""
        site = self.site
        after = self._place()
        if after is not before and after not in MOVES[before]:
            raise InvariantViolation(f"illegal move from {before.value} to {after.value}")
        site.state = after
        if after is State.GONE:
            site.deadlines.clear()
            return
        wake_at = min(site.deadlines.values(), default=0)
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            if wake_at:
                site.out.append(SetTimer(wake_at))

    def _place(self) -> State:
        site = self.site
        if site.outside:
            return site.state
        if self.recovery.decision is not None:
            return State.CATCHING_UP
        if self.recovery.initiating:
            return State.INITIATING
        if site.fenced:
            return State.PROMISED
        if site.holds_token():
            return State.TOKEN_SITE
        if self.token.passing is not None:
            return State.PASSING_TOKEN
        queue = site.queue
        if queue.ahead and any(order.next_site == site.me for order in queue.ahead.values()):
            return State.GETTING_PACKETS
        return State.NOT_TOKEN_SITE

    # -- local events ----------------------------------------------------------------------------

    def _force_fork(self) -> None:
        if self.site.outside or not self.site.epoch:
            raise MembershipError(
                f"fork: this site is {self.site.state.value}; only a member can fork its chain"
            )
        self.fork.force()

    def _end(self, ending: Ending) -> None:
        """R17: stop serving at once."""
        site = self.site
        if site.state is not State.GONE:
            self.submission.abandon()
            self.submission.requests.abandon()
            site.out.append(EndMembership(ending))
            site.state = State.GONE

    # -- packets ---------------------------------------------------------------------------------

    def _receive(self, packet: Packet) -> None:
        """Filter, learn from the head, then hand over."""
        site = self.site
        head = packet.head
        kind = type(packet)
        if head.group != site.group:
            site.count("dropped: foreign group")
        elif head.sender == site.me:
            site.count("dropped: own packet")  # from a mirror, or of a boot before this one
        elif kind not in LEGAL_PACKETS[site.state]:
            site.count(f"dropped: {kind.__name__} while {site.state.value}")
        elif site.outside or (head.chain == 0 and kind in _FROM_OUTSIDE):
            self._handlers[kind](packet)
        elif head.chain != site.chain:
            self._on_foreign(packet)
        elif self._learn(packet):
            self._handlers[kind](packet)

    def _on_foreign(self, packet: Packet) -> None:
        """A packet of another chain: a fork that invites us, kin that lives, or nothing to us (R9)."""
        if isinstance(packet, p.RecoveryStart) and self.fork.invites(packet):
            self.leave_epoch()
            self.recovery.on_start(packet)
        elif isinstance(packet, p.ChainAlive):
            if self.fork.yields_to(packet):
                self._end(Ending.SUPERSEDED)
        elif self.fork.is_undone_by(packet.head):
            self.leave_epoch()
        else:
            self.site.count("dropped: foreign chain")
            self.fork.kin.on_foreign(packet)

    def leave_epoch(self) -> None:
        self.token.forget()
        self.transfer.forget()
        self.retransmission.behind_epoch = 0

    def _learn(self, packet: Packet) -> bool:
        """Take in the head's statements; true if the packet itself may be worked on."""
        site = self.site
        head = packet.head
        member = site.view.member(head.sender)
        if member is None:
            self._on_outsider(packet)
        elif member.boot != head.boot and not self.claims.on_other_boot(head):
            site.count("dropped: stale boot")
            return False
        named = member is None or member.boot == head.boot
        if head.epoch == site.epoch:
            site.queue.known_end = max(site.queue.known_end, head.received)
            if named:
                site.stability.note(head)
            if named and member is not None:
                self.detection.heard(head.sender)
                self.claims.hear(head)
            return True
        if head.epoch > site.epoch:
            self.retransmission.behind_epoch = max(self.retransmission.behind_epoch, head.epoch)
            if member is not None:
                self.fork.heard_later(head.sender)
            return isinstance(packet, _OF_LATER_EPOCHS)
        if member is not None:
            self.retransmission.help_laggard(head.sender, head.epoch)
        return isinstance(packet, _OF_EARLIER_EPOCHS)

    def _on_forgotten(self, packet: p.Forgotten) -> None:
        if self.claims.are_broken(packet):
            self._end(Ending.FORGOTTEN)

    def _on_outsider(self, packet: Packet) -> None:
        """The sender is in no view we know: it may be newer than we are, or out (R17)."""
        sender = packet.head.sender
        address = ""
        if isinstance(packet, p.RecoveryStart) and (member := packet.view.member(sender)) is not None:
            address = member.address
        elif isinstance(packet, p.ListChangeRequest) and packet.change.member.site == sender:
            address = packet.change.member.address
        self.membership.tell_outsider(sender, address, self.delivery.view)

    def _on_ack(self, packet: p.Ack) -> None:
        self._on_order(packet.order)

    def _on_order(self, order: Order) -> None:
        site = self.site
        if order.epoch == site.epoch:
            reason = site.queue.add_block(order, site.config.horizon)
            if reason:
                site.count(reason)
        elif order.epoch > site.epoch:
            self.retransmission.behind_epoch = max(self.retransmission.behind_epoch, order.epoch)
        else:
            site.count("dropped: order of an earlier epoch")

    def _on_new_list(self, packet: p.NewList) -> None:
        site = self.site
        order = packet.order
        if site.outside:
            if self._names_me(order.view):
                admission.begin_with_new_list(self, packet)
        elif order.is_install and order.epoch == site.epoch + 1:
            self.recovery.decide(order)
        else:
            self._on_order(order)

    def _on_collected(self, packet: p.Collected) -> None:
        """The gap of a member; or the seat of a joiner, when the NewList that named it is collected."""
        if not self.site.outside:
            self.transfer.on_collected(packet)
        elif self._names_me(packet.position.view):
            admission.begin_at_position(self, packet)

    def _names_me(self, view: View | None) -> bool:
        return view is not None and view.has(self.site.me)

    def _on_list_change_request(self, packet: p.ListChangeRequest) -> None:
        if self.membership.on_request(packet, self.delivery.view):
            self._check_suspects()

    def _on_not_member(self, packet: p.NotMember) -> None:
        """R17. An older view than ours says nothing: the sender may not know us yet. A joiner that hears
        this had a seat without knowing, and lost it: it must come under another name."""
        site = self.site
        if packet.subject != site.me or self._names_me(packet.view):
            return
        if site.outside or packet.view.id >= site.view.id:
            self._end(self.membership.ending())

    # -- birth and view change -------------------------------------------------------------------

    def _on_hello(self, packet: p.Hello) -> None:
        site = self.site
        founding = site.state is State.FOUNDING
        self.birth.answer(packet)
        if packet.standing is Standing.MEMBER and packet.answers == site.member.boot:
            if founding:
                admission.join(self)
            elif site.epoch == 0 and packet.chain != site.chain:
                self._end(Ending.UNBORN)
        elif site.epoch == 0:
            view = self.birth.on_hello(packet)
            if founding:
                admission.try_birth(self, view)

    def _on_poll_reply(self, packet: p.PollReply) -> None:
        if packet.round > WAKING:
            self.doubt.on_reply(packet)
        elif packet.round > ROLL_CALL:
            self.fork.kin.on_roll_call(packet)
        else:
            self.recovery.on_poll_reply(packet)

    def _on_recovery_start(self, packet: p.RecoveryStart) -> None:
        site = self.site
        if site.state is State.FOUNDING:
            if packet.head.epoch or not self._names_me(packet.view):
                return
            admission.enter_birth(self, packet.head.chain, packet.view)
        self.recovery.on_start(packet)

    def _install(self, order: Order) -> None:
        """R3: erase what lies above the sync point and enter the epoch, in one step."""
        site = self.site
        sync = order.ts - 1
        decided_here = self.recovery.decided_here is order
        self.delivery.erase_above(sync)
        view_erased = site.queue.erase_above(sync)
        self.durability.cut(sync)
        site.epoch = order.epoch
        # What no majority of the old chain was known to hold stands on the voters of the new one.
        site.begin_chain(min(order.ts, site.stability.majority + 1))
        site.disarm(Timer.HELLO)
        self.recovery.enter_epoch()
        site.stability.enter_epoch(order.ts, view_erased=view_erased)
        site.queue.known_end = sync
        site.queue.add_block(order, site.config.horizon)
        placed = site.queue.next_complete()
        assert placed is order
        self.durability.installed(order)
        site.clock.placed_at = site.now
        self.token.forget()
        if not site.view.has(site.me):
            self._end(self.membership.ending())
            return
        self.detection.enter_epoch()
        self.doubt.enter_epoch()
        self.reads.enter_epoch()
        self.fork.installed()
        site.enter_view()
        self.lanes.enter_view()
        self.submission.reclaim()
        if decided_here:
            site.multicast(block_packet(site, order))
            self.token.hand_over(order)

    # -- settling --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Bring the site to rest after an event: nothing below waits for a timer."""
        site = self.site
        if site.outside:
            return
        self.rpc.take_in()
        frontier, level, sent = site.queue.frontier, site.stability.majority + site.stability.stable, False
        held, final = site.stability.held.get(site.me, 0), min(site.delivered, site.stability.majority)
        while site.state is not State.GONE:
            self._advance()
            decision = self.recovery.decision
            if decision is not None and site.queue.frontier >= decision.ts - 1:
                self._install(decision)
                continue
            self._update_levels()
            self.submission.pump()  # our own data must be out before we order them
            if not site.holds_token() or self.doubt.doubting or not self._order():
                break
            sent = True
        if site.state is State.GONE:
            return
        if not site.fenced:
            self.delivery.run()
            if site.me in site.queue.departed and self.membership.is_seated_again():
                self._end(self.membership.ending())
                return
            if self.delivery.view is not None:
                self.membership.tell_dropped(self.delivery.view)
            self.reads.run()
            self.holding.run()
            self._collect()
            self.token.keep_watch()
            self._follow_view()
            self.discipline.notify(
                frontier_moved=site.queue.frontier > frontier,
                held_moved=site.config.durable and site.stability.held.get(site.me, 0) > held,
                awaited=site.held > final,
                level_moved=site.stability.majority + site.stability.stable > level,
                sent_order=sent,
            )
        self.rpc.answer()
        self.retransmission.watch()
        if site.retiring and self.retirement.is_over():
            self._end(Ending.RETIRED)

    def _advance(self) -> None:
        site = self.site
        moved = False
        unnamed = site.unnamed
        before = site.view
        while (order := site.queue.next_complete()) is not None:
            moved = True
            self.submission.note_order(order)
            if order.view is not None:
                self.detection.enter_view(before)
                before = site.view
                site.enter_view()
                self.lanes.enter_view()
                if not site.view.has(site.me):
                    site.arm(Timer.REQUEST, 1)
                elif unnamed and not site.unnamed:
                    self.submission.reclaim()
                unnamed = site.unnamed
        if moved:
            site.clock.placed_at = site.now
            self.detection.moved()
            self.recovery.caught_up()

    def _update_levels(self) -> None:
        site = self.site
        if not site.fenced:
            if not site.unnamed:
                site.stability.note_own(site.me, site.queue.frontier, site.held)
            site.stability.update(site.view, site.queue.frontier)

    def _order(self) -> bool:
        """We are the token site: order what there is, or rest."""
        site = self.site
        before = site.view
        self.delivery.run()  # whether the round may wait depends on it
        order = self.orderer.next_block()
        if order is None:
            self.token.rest()
            return False
        site.queue.add_block(order, site.config.horizon)
        self._advance()
        self._update_levels()
        site.multicast(block_packet(site, order), before)
        if order.view is not None:
            self.membership.note_order(before, order)
        self.token.hand_over(order)
        return True

    def _collect(self) -> None:
        site = self.site
        stability = site.stability
        keep_from = max(stability.everyone, site.queue.frontier - site.config.retain_slots)
        if 2 * (site.queue.ordered_bytes + site.backlog) > site.config.buffer_bytes_max:
            keep_from = max(keep_from, stability.stable)
        if site.config.durable:  # what is not on its way to the disk yet stays
            keep_from = min(keep_from, self.durability.handed)
        base = site.queue.base
        site.queue.collect(min(self.delivery.cursor, stability.majority, keep_from))
        if site.config.durable and site.queue.base > base:
            self.durability.sample(self.transfer.position())

    # -- our place in the view ---------------------------------------------------------------------

    def _follow_view(self) -> None:
        """Ask for our place in the view; a leaver asks to go once its own messages are ordered."""
        site = self.site
        membership = self.membership
        if membership.leaving and not self.submission.outbox and site.view.has(site.me):
            membership.want(ChangeKind.LEAVE, site.member)
        membership.follow_view()
        self.retirement.follow_view()
        self.locks.follow_view()

    # -- time ------------------------------------------------------------------------------------

    def _fire_due(self) -> None:
        site = self.site
        self._wake_at = 0
        for timer, fire in self._timers.items():
            deadline = site.deadlines.get(timer)
            if deadline is not None and deadline <= site.now:
                del site.deadlines[timer]
                fire()

    def _fire_recovery(self) -> None:
        """A birth that cannot come about, for a founder died in it, is tried anew under new boots."""
        site = self.site
        if site.epoch == 0 and self.birth.has_failed(self.recovery):
            self._end(Ending.UNBORN)
        else:
            self.recovery.fire()

    def _fire_passive(self) -> None:
        """Passive detector (iRBP §4.1): no progress, nobody in particular."""
        site = self.site
        site.arm(Timer.PASSIVE, site.config.passive_ms * MS + site.jitter(site.config.passive_ms))
        self.membership.doubt_seat()
        if site.state in RING and not site.holds_token():
            self.recovery.start_poll()

    def _fire_fork(self) -> None:
        chain = self.site.chain
        self.fork.fire()
        if self.site.chain != chain:
            self.leave_epoch()

    def _fire_request(self) -> None:
        """Membership wishes; a site whose removal is on its way keeps stating what it holds."""
        site = self.site
        if site.state in RING and not site.view.has(site.me):
            site.confirm()
            site.arm(Timer.REQUEST, site.config.request_ms * MS)
        else:
            self.membership.fire()

    def _check_suspects(self) -> None:
        if self.detection.suspects():
            self.recovery.start_poll()
