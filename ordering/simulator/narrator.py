"""A checker that checks nothing: it tells what happens, one line per notable event.

It sees what every checker sees: effects, submissions, crashes. So a start is told when a process is first
seen, a pause or a skewed clock when anything happens after it, and a cut link never: only its results.
Partitions are a matter of the network, and the network has no hooks.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from ordering import packets as p
from ordering.caller import CallerEffect, CallRequested
from ordering.effects import (
    Abandoned,
    CallAcknowledged,
    CallAnswered,
    CallFailed,
    CallRepeated,
    Deliver,
    Delivery,
    Effect,
    EndMembership,
    InstallView,
    LevelReached,
    LockGranted,
    LockLost,
    LockRefused,
    Multicast,
    RequestState,
    RetirementRefused,
    Retract,
    Tick,
    Unicast,
)
from ordering.events import SubmitRequested
from ordering.kin import ROLL_CALL
from ordering.qos import Level, Qos
from ordering.self_suspicion import WAKING
from ordering.simulator.checkers.base import Checker
from ordering.views import NO_SITE, LockName, LockTable, Member, SiteId, View

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process

LISTED_MAX: Final = 6
QUOTED_MAX: Final = 32


class Topic(Enum):
    """What a line is about, so that a reader of lines can choose."""

    PROCESS = "process"
    SUBMIT = "submit"
    ORDER = "order"
    TOKEN = "token"
    DELIVERY = "delivery"
    VIEW = "view"
    MEMBERSHIP = "membership"
    RECOVERY = "recovery"
    LOCK = "lock"
    STATE = "state"
    CALL = "call"
    PACKET = "packet"
    RUN = "run"


class Line(msgspec.Struct, frozen=True):
    """One thing that happened. ``str`` gives the columns a person reads."""

    now: int
    site: str
    state: str
    topic: Topic
    text: str

    def __str__(self) -> str:
        return f"{self.now / 1e9:11.6f}s  {self.site:<7} {self.state:<15}  {self.text}"


# Told with -v, and only when the site says something new: a repetition is a retransmission. Data,
# Nack, Confirm, Probe and DataConfirm are routine: they are told with -vv.
NOTABLE: Final[dict[type, Topic]] = {
    p.Ack: Topic.ORDER,
    p.NewList: Topic.MEMBERSHIP,
    p.ListChangeRequest: Topic.MEMBERSHIP,
    p.Collected: Topic.MEMBERSHIP,
    p.NotMember: Topic.MEMBERSHIP,
    p.Hello: Topic.MEMBERSHIP,
    p.Poll: Topic.RECOVERY,
    p.PollReply: Topic.RECOVERY,
    p.RecoveryStart: Topic.RECOVERY,
    p.RecoveryVote: Topic.RECOVERY,
    p.RecoveryNewList: Topic.RECOVERY,
    p.RecoveryAckNewList: Topic.RECOVERY,
    p.RecoveryAbort: Topic.RECOVERY,
    p.Orphan: Topic.RECOVERY,
    p.ChainAlive: Topic.RECOVERY,
    p.Forgotten: Topic.RECOVERY,
    p.LockRequest: Topic.LOCK,
    p.NonMemberAck: Topic.CALL,
    p.NonMemberReply: Topic.CALL,
    p.NonMemberRefusal: Topic.CALL,
}


class Narrator(Checker):
    """Tells a run to ``write``. Verbosity 1: protocol events; 2: every packet as well."""

    name = "narrator"

    def __init__(self, write: Callable[[Line], None], verbosity: int = 1) -> None:
        super().__init__()
        self._write = write
        self._verbosity = verbosity
        self._names: dict[SiteId, str] = {}
        self._processes: dict[SiteId, Process] = {}
        self._addresses: set[str] = set()
        self._paused: set[SiteId] = set()
        self._speeds: dict[SiteId, int] = {}
        self._told: dict[tuple[SiteId, type], str] = {}
        self._ordered: dict[tuple[int, SiteId], tuple[int, int]] = {}
        self._views: dict[tuple[int, int], View] = {}  # the latest of each chain and epoch
        self._locked: set[tuple[SiteId, LockName]] = set()

    # -- hooks -----------------------------------------------------------------------------------

    def on_submit(
        self, process: "Process", first_seq: int, messages: tuple[bytes, ...], qos: Qos, now: int
    ) -> None:
        self._look(process, now)
        what = f"{_span(first_seq, len(messages))}{_quoted(messages)}"
        self._tell(process, now, Topic.SUBMIT, f"submits {what} at {_level(qos)}")

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        self._look(process, now)
        match effect:
            case Multicast(to, packet):
                self._packet(process, to, packet, now)
            case Unicast(to, packet):
                self._packet(process, (to,), packet, now)
            case Deliver(_, deliveries):
                self._tell(process, now, Topic.DELIVERY, f"delivers {self._deliveries(deliveries)}")
            case Retract(after):
                self._tell(process, now, Topic.DELIVERY, f"retracts every delivery above {after}")
            case InstallView(_, _, _, _, locks_only) if locks_only and self._verbosity < 2:
                pass  # the grants in it are told
            case InstallView(ts, _, view):
                self._tell(process, now, Topic.VIEW, f"installs view {self._view(view)} at slot {ts}")
            case LockGranted() | LockLost() | LockRefused():
                self._lock(process, effect, now)
            case Tick(ts, _):
                self._tell(process, now, Topic.DELIVERY, f"is told the time at slot {ts}")
            case Abandoned(first_seq, count, _):
                text = f"abandons own messages {_span(first_seq, count)}: outcome unknown"
                self._tell(process, now, Topic.SUBMIT, text)
            case RequestState(ts, _, donors):
                text = f"needs the state at {ts} or later from one of {self._sites(donors)}"
                self._tell(process, now, Topic.STATE, text)
            case EndMembership(ending):
                self._tell(process, now, Topic.MEMBERSHIP, f"ends its membership: {_words(ending.name)}")
            case RetirementRefused():
                self._tell(process, now, Topic.MEMBERSHIP, "cannot retire: the others are too few")
            case CallRepeated(call, message):
                text = f"is asked again for the reply to {self._call(call)}{_quoted((message,))}"
                self._tell(process, now, Topic.CALL, text)
            case CallAnswered() | CallFailed():
                self._tell(process, now, Topic.CALL, _outcome(effect))
            case LevelReached(majority, stable) if self._verbosity > 1:
                text = f"knows a majority holds all up to {majority}, the ring up to {stable}"
                self._tell(process, now, Topic.DELIVERY, text)
            case _:
                pass

    def _lock(self, process: "Process", effect: LockGranted | LockLost | LockRefused, now: int) -> None:
        """Handler locks come and go unasked with every view; they are told to who asked for them."""
        key = (process.member.site, effect.name)
        if isinstance(effect, LockGranted):
            if isinstance(effect.name, int) and effect.name not in process.engine.locks.wishes:
                return
            self._locked.add(key)
            text = f"has lock {effect.name} from slot {effect.ts} on, fence {effect.fence}"
        elif isinstance(effect, LockLost):
            if key not in self._locked:
                return
            self._locked.discard(key)
            text = f"has lost lock {effect.name}, fence {effect.fence}"
        else:
            text = f"is refused lock {effect.name}"
        self._tell(process, now, Topic.LOCK, text)

    def on_called(
        self, caller: Member, first_number: int, request: CallRequested | SubmitRequested, now: int
    ) -> None:
        what = f"{_span(first_number, len(request.messages))}{_quoted(request.messages)}"
        handler = f", handler {request.handler}" if request.handler else ""
        self._write(
            Line(now, self._member(caller), "", Topic.CALL, f"calls {what} at {_level(request.qos)}{handler}")
        )

    def on_caller_effect(self, caller: Member, effect: CallerEffect, now: int) -> None:
        match effect:
            case CallAcknowledged() | CallAnswered() | CallFailed():
                self._write(Line(now, self._member(caller), "", Topic.CALL, _outcome(effect)))
            case Multicast(to, packet) if self._verbosity > 1:
                text = f"{type(packet).__name__} to {' '.join(to)}: {self._describe(packet)}"
                self._write(Line(now, self._member(caller), "", Topic.PACKET, text))
            case Unicast(address, packet) if self._verbosity > 1:
                text = f"{type(packet).__name__} to {address}: {self._describe(packet)}"
                self._write(Line(now, self._member(caller), "", Topic.PACKET, text))
            case _:
                pass

    def on_restored(self, process: "Process", donor: "Process", now: int) -> None:
        self._look(process, now)
        text = f"takes over the state of {self._site(donor.member.site)}, up to {process.replica.ts}"
        self._tell(process, now, Topic.STATE, text)

    def on_settled(self, process: "Process", now: int) -> None:
        self._look(process, now)

    def on_start(self, process: "Process", now: int) -> None:
        if process.disk.has_member:
            self._meet(process, now)

    def on_crash(self, process: "Process", now: int) -> None:
        self._look(process, now)
        self._tell(process, now, Topic.PROCESS, "crashes; its memory is gone")

    def on_healed(self, cluster: "Cluster", now: int) -> None:
        broken = ", ".join(sorted(cluster.left_broken))
        rest = f", except that {broken} stays cut off" if broken else ""
        self._write(
            Line(now, "-", "", Topic.RUN, f"faults and load end here{rest}; all must be well again soon")
        )

    def finish(self, cluster: "Cluster", now: int) -> None:
        self._write(Line(now, "-", "", Topic.RUN, "the run ends"))

    # -- what no hook reports --------------------------------------------------------------------

    def _look(self, process: "Process", now: int) -> None:
        """Notice new processes, pauses and changed clocks."""
        if process.member.site not in self._processes:
            self._meet(process, now)
        for site, known in self._processes.items():
            if known.paused is not (site in self._paused):
                if known.paused:
                    self._paused.add(site)
                else:
                    self._paused.discard(site)
                if known.alive:
                    self._tell(
                        known, now, Topic.PROCESS, "is paused" if known.paused else "goes on after a pause"
                    )
            if known.per_mille != self._speeds[site]:
                self._speeds[site] = known.per_mille
                self._tell(
                    known, now, Topic.PROCESS, f"has a clock that runs at {known.per_mille / 10:.1f} %"
                )

    def _meet(self, process: "Process", now: int) -> None:
        site = process.member.site
        for old in [s for s, p_ in self._processes.items() if p_.address == process.address]:
            del self._processes[old]
        self._processes[site] = process
        self._speeds[site] = process.per_mille
        self._names[site] = f"{process.address}#{site}"
        again = process.address in self._addresses
        self._addresses.add(process.address)
        what = "restarts with an empty memory" if again else "starts"
        if process.disk.has_member:
            what = f"comes back from its disk, which has everything up to {process.disk.ledger.end}"
        self._tell(process, now, Topic.PROCESS, what)

    # -- packets ---------------------------------------------------------------------------------

    def _packet(self, process: "Process", to: tuple[str, ...], packet: p.Packet, now: int) -> None:
        text = self._describe(packet)
        kind = type(packet)
        if self._verbosity > 1:
            self._tell(process, now, Topic.PACKET, f"{kind.__name__} to {' '.join(to)}: {text}")
            return
        if kind not in NOTABLE or self._is_routine(process.member.site, packet, text):
            return
        topic = NOTABLE[kind]
        if isinstance(packet, p.Ack) and packet.order.is_null:
            topic = Topic.TOKEN
        elif isinstance(packet, p.NewList) and packet.order.is_install:
            topic = Topic.RECOVERY
        self._tell(process, now, topic, text)

    def _is_routine(self, site: SiteId, packet: p.Packet, text: str) -> bool:
        """Retransmissions: of an order by whoever holds it, of anything else in the same words."""
        if isinstance(packet, p.Ack | p.NewList):
            order = packet.order
            slot = (order.epoch, order.ts)
            # Whoever decides a view change may announce the install that another proposed.
            speaker = NO_SITE if order.is_install else site
            if slot <= self._ordered.get((packet.head.chain, speaker), (0, 0)):
                return True
            if not order.is_install and order.orderer != site:
                return True
            self._ordered[packet.head.chain, speaker] = slot
            return False
        if isinstance(packet, p.ListChangeRequest | p.LockRequest) and packet.forwarded:
            return True
        if self._told.get((site, type(packet))) == text:
            return True
        self._told[site, type(packet)] = text
        return False

    def _describe(self, packet: p.Packet) -> str:
        match packet:
            case p.Ack(_, order):
                return self._order(order)
            case p.NewList(head, order, _, _):
                assert order.view is not None
                before = self._views.get((head.chain, order.epoch))
                newer = before is None or order.view.id > before.id
                if newer:
                    self._views[head.chain, order.epoch] = order.view
                if newer and before is not None and order.view.differs_in_locks_only(before):
                    locks = self._locks(order.view.locks)
                    return f"orders locks at slot {order.ts}: {locks}; token to {self._site(order.next_site)}"
                return f"{'announces' if order.is_install else 'orders'} {self._order(order)}"
            case p.Data(_, batch):
                span = _span(batch.first_seq, len(batch.messages)) if batch.first_seq else "unnumbered"
                return f"{self._site(batch.source)}:{span}{_quoted(batch.messages)} at {_level(batch.qos)}"
            case p.Confirm(head) | p.Probe(head):
                return (
                    f"holds {head.held}, majority {head.majority}, stable {head.stable}, epoch {head.epoch}"
                )
            case p.Piece(_, part, _):
                end = part.offset + len(part.data)
                return f"{self._site(part.source)}:{part.seq} bytes {part.offset}..{end} of {part.total}"
            case p.PieceConfirm(_, _, seq, end):
                return f"has message {seq} up to byte {end}"
            case p.Nack(_, named, first_ts, last_ts, data, after_epoch, spans):
                whom = self._site(named) if named != NO_SITE else "any holder"
                wants = [f"slots {first_ts}..{last_ts}"] if last_ts else []
                wants += [f"data {self._runs(data)}"] if data else []
                wants += [
                    f"bytes {span.first}..{span.end} of {self._site(span.source)}:{span.seq}"
                    for span in spans
                ]
                wants += [f"the install after epoch {after_epoch}"] if after_epoch is not None else []
                return f"asks {whom} for {' and '.join(wants)}"
            case p.ListChangeRequest(_, change, forwarded):
                verb = "passes on a request to" if forwarded else "asks to"
                return f"{verb} {change.kind.name} {self._member(change.member)}"
            case p.Collected(_, position, _, _):
                return f"has collected everything up to slot {position.ts}"
            case p.NotMember(_, subject, view):
                return f"tells {self._site(subject)} that view {view.id} does not contain it"
            case p.Hello(_, member, standing, _, _):
                return f"says hello: {self._member(member)} is {_STANDINGS[standing]}"
            case p.LockRequest(_, statement, _):
                wishes = ", ".join(
                    f"{w.name} for {w.lease_ms} ms" if w.lease_ms else f"{w.name}" for w in statement.wishes
                )
                return f"wants locked: {wishes or 'nothing'}"
            case p.DataConfirm(_, _, seq):
                return f"has unordered data up to {seq}"
            case p.NonMemberData(head, _, first, _, _, _, messages):
                whose = self._site(head.sender)
                verb = f"passes on of {whose}" if packet.passed_on else "asks"
                return f"{verb} {_span(first, len(messages))}{_quoted(messages)}"
            case p.NonMemberAck(_, _, _, receipts):
                return "has delivered " + _listed(f"call {r.number} at {r.ts}" for r in receipts)
            case p.NonMemberReply(_, _, _, answers):
                return "replies to " + _listed(f"call {answer.number}" for answer in answers)
            case p.NonMemberRefusal(_, _, directory, reason, first, count, _):
                why = f"{_words(reason.name)}, it is in view {directory.view}"
                return f"refuses calls {_span(first, count)}: {why}"
            case _:
                return self._recovery(packet)

    def _recovery(self, packet: p.Packet) -> str:
        match packet:
            case p.Orphan(_, _, forced, _):
                why = "by an operator's order" if forced else "and would go on without"
                return f"has lost the majority, {why}"
            case p.ChainAlive(head, _, descent, _, _):
                return f"says that chain {head.chain:x} lives (forked {descent.depth} times)"
            case p.Forgotten(_, subject, _, epoch, held):
                return f"tells {self._site(subject)} that it has held {held} of epoch {epoch} before"
            case p.Poll(_, round_, _) if round_ > WAKING:
                return "was paused; asks who is still in the ring"
            case p.PollReply(_, round_, _) if round_ > WAKING:
                return "says that it is"
            case p.Poll(_, round_, _) if round_ > ROLL_CALL:
                return "calls the roll"
            case p.PollReply(_, round_, _) if round_ > ROLL_CALL:
                return "answers the roll call"
            case p.Poll(_, round_, suspects):
                suspected = self._sites(suspects) if suspects else "nobody, but sees no progress"
                return f"suspects {suspected}; polls the others (round {round_})"
            case p.PollReply(_, round_, agrees):
                return f"{'agrees' if agrees else 'disagrees'} in poll round {round_}"
            case p.RecoveryStart(head, ballot, _):
                return f"asks for promises to end epoch {head.epoch}, ballot {self._ballot(ballot)}"
            case p.RecoveryVote(_, ballot, accepted_ballot, accepted, frontier):
                had = f", accepted {self._ballot(accepted_ballot)} before" if accepted is not None else ""
                return f"promises ballot {self._ballot(ballot)}, holds all up to {frontier}{had}"
            case p.RecoveryNewList(_, ballot, order):
                return f"proposes in ballot {self._ballot(ballot)}: {self._order(order)}"
            case p.RecoveryAckNewList(_, ballot):
                return f"accepts ballot {self._ballot(ballot)}"
            case p.RecoveryAbort(_, ballot, promised):
                return f"refuses ballot {self._ballot(ballot)}: promised {self._ballot(promised)}"
            case _:
                return "?"

    # -- words -----------------------------------------------------------------------------------

    def _tell(self, process: "Process", now: int, topic: Topic, text: str) -> None:
        name = self._site(process.member.site)
        self._write(Line(now, name, process.engine.state.value, topic, text))

    def _order(self, order: p.Order) -> str:
        token = f"token to {self._site(order.next_site)}"
        if order.view is not None:
            return f"view {self._view(order.view)} at slot {order.ts}; {token}"
        if not order.runs:
            return f"orders nothing at slot {order.ts}; {token}"
        slots = _span(order.ts + 1, order.last_ts - order.ts)
        return f"orders {slots} = {self._runs(order.runs)} in block {order.ts}; {token}"

    def _view(self, view: View) -> str:
        parts = [
            f"{view.id}: ring {self._sites(view.ring)}",
            f"electorate {self._sites(view.electorate)}",
            f"external {self._sites(view.external)}",
            f"learners {self._sites(view.learners)}",
        ]
        for member in view.members:
            self._names.setdefault(member.site, f"{member.address}#{member.site}")
        if view.joint_ts:
            parts.append(f"joint with {self._sites(view.joint_electorate)}")
        return ", ".join(parts)

    def _locks(self, table: LockTable) -> str:
        """Whoever asked for a lock and has it, and who waits."""
        told = []
        for lock in table.locks:
            waits = f", then {self._sites(claim.owner.site for claim in lock.queue)}" if lock.queue else ""
            if lock.holder.number:
                told.append(f"{lock.name} of {self._site(lock.holder.owner.site)}{waits}")
        return "; ".join(told) or "none"

    def _deliveries(self, deliveries: tuple[Delivery, ...]) -> str:
        return _listed(self._delivery(delivery) for delivery in deliveries)

    def _delivery(self, delivery: Delivery) -> str:
        count = len(delivery.messages)
        source = self._site(delivery.source)
        where = (
            f"{_span(delivery.first_ts, count)} from {source}"
            if delivery.first_ts
            else f"{count} of {source}"
        )
        weaker = delivery.reached < delivery.qos.level
        note = f" (asked for {_level(delivery.qos)}, got {_words(delivery.reached.name)})" if weaker else ""
        return f"{where}{_quoted(delivery.messages)}{note}"

    def _runs(self, runs: tuple[p.Run, ...]) -> str:
        return _listed(f"{self._site(run.source)}:{_span(run.first_seq, run.count)}" for run in runs)

    def _call(self, call: p.Call) -> str:
        return f"call {call.number} of {self._names.get(call.caller, call.address)}"

    def _ballot(self, ballot: p.Ballot) -> str:
        return f"{ballot.round} of {self._site(ballot.site)}"

    def _member(self, member: Member) -> str:
        self._names.setdefault(member.site, f"{member.address}#{member.site}")
        return self._names[member.site]

    def _sites(self, sites: Iterable[SiteId]) -> str:
        return " ".join(self._site(site) for site in sites) or "-"

    def _site(self, site: SiteId) -> str:
        return self._names.get(site, f"#{site}")


_STANDINGS = {
    p.Standing.NEVER: "not a member of any group yet",
    p.Standing.UNDECIDED: "in a birth that is not decided",
    p.Standing.MEMBER: "a member",
}


def _outcome(effect: CallAcknowledged | CallAnswered | CallFailed) -> str:
    match effect:
        case CallAcknowledged(number, ts, reached, _):
            return f"has call {number} acknowledged: delivered at {ts}, {_words(reached.name)}"
        case CallAnswered(number, ts, payload, _):
            return f"has the reply to call {number}:{_quoted((payload,))} of {ts}"
        case CallFailed(number, failure, _):
            return f"gives up call {number}: {_words(failure.name)}, outcome unknown"


def _span(first: int, count: int) -> str:
    return f"{first}..{first + count - 1}" if count > 1 else str(first)


def _quoted(messages: tuple[bytes, ...]) -> str:
    """Short readable messages in quotes; nothing for the rest."""
    text = b", ".join(messages)
    return (
        f' "{text.decode()}"'
        if len(text) <= QUOTED_MAX and text.isascii() and text.decode().isprintable()
        else ""
    )


def _listed(items: Iterable[str]) -> str:
    found = list(items)
    more = f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
    return ", ".join(found[:LISTED_MAX]) + more


def _level(qos: Qos) -> str:
    return f"k={qos.k}" if qos.level == Level.K_RESILIENT else _words(qos.level.name)


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
