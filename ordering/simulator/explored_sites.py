"""Sites under exploration: one engine taken one step, its fingerprint, and the comparison of several.

``explore`` says what is searched and what is abstracted; here is what one site does and what must hold.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from hashlib import blake2b
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ordering.config import MS, Config
from ordering.effects import Deliver, EndMembership, InstallView, Multicast, RequestState, Retract, Unicast
from ordering.engine import Engine
from ordering.errors import OrderingError, SubmitError
from ordering.events import Event, PacketsReceived, Started, StateTransferred, SubmitRequested, TimerFired
from ordering.packets import (
    Ack,
    Collected,
    Data,
    ListChangeRequest,
    Nack,
    NewList,
    Order,
    Packet,
    Poll,
    RecoveryAbort,
    RecoveryAckNewList,
    RecoveryNewList,
    RecoveryStart,
    RecoveryVote,
)
from ordering.simulator.clock import Clock
from ordering.state import RING, State
from ordering.views import Member, SiteId, View, majority_of

STEP: Final = MS // 20
LATE: Final = 100 * MS
HOP: Final = MS // 5
FENCED_ONLY: Final = (RecoveryStart, RecoveryVote, RecoveryNewList, RecoveryAckNewList, RecoveryAbort)

# Short times, so that one late firing is enough to suspect, or to propose without hearing from all, and
# the next one to try again; apart enough for a calm ring.
FOUNDERS: Final = ("s1", "s2", "s3")
CONFIG: Final = Config(
    null_ms=0,  # a wait is nothing to explore
    confirm_ms=0,
    group="explored", founders=FOUNDERS, contacts=FOUNDERS,
    rto_min_ms=5, rto_max_ms=6, probe_ms=20, suspect_ms=40, slow_ms=80, passive_ms=60,
    recovery_ms=100, return_ms=10, request_ms=10, minority_ms=1_000_000, orphan_ms=2_000_000,
)  # fmt: skip


# -- one site ----------------------------------------------------------------------------------------


class Steady(Random):
    """Draws the middle. Which timer fires is the search's choice, so a draw would only rename states."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start // 2

    def __reduce__(self) -> tuple[Any, ...]:
        return (Steady, ())


class Log:
    """What a site has seen and done that its engine may forget, but the comparison may not."""

    def __init__(self) -> None:
        self.placed: dict[int, Order] = {}  # blocks of its complete prefix, collected ones too
        self.final: dict[int, Order] = {}  # blocks it delivered: majority-held, it says
        self.delivered: dict[int, tuple[int, int, tuple[bytes, ...]]] = {}
        self.orders: dict[tuple[int, int], Order] = {}  # any order it ever stored, by epoch and slot
        self.installs: dict[int, Order] = {}
        self.view: View | None = None
        self.view_ts = 0
        self.request: RequestState | None = None
        self.ended = ""


class Facts:
    """A site as the comparison sees it. One for each distinct site state."""

    __slots__ = (
        "armed", "blob", "engine_gone", "epoch", "fenced", "holds_token", "log", "me", "outside",
        "pledged", "started_at",
    )  # fmt: skip

    def __init__(self, blob: bytes, engine: Engine, log: Log) -> None:
        site = engine.site
        self.blob = blob
        self.log = log
        self.me = site.me
        self.outside = site.outside
        self.engine_gone = site.state is State.GONE
        self.epoch = 0 if site.outside else site.epoch
        self.fenced = site.fenced and not site.outside
        self.armed = bool(site.deadlines)
        self.holds_token = not site.outside and site.holds_token()
        self.started_at = site.queue.started_at
        # Installs it has accepted, or knows to be decided, with everything before them in hand (R3).
        accepted = (engine.recovery.accepted, engine.recovery.decision)
        self.pledged = tuple(o for o in accepted if o is not None and o.ts <= site.queue.frontier + 1)

    def holds(self, ts: int, order: Order) -> bool:
        """Whether this site has the block, or, of an install, has accepted it with all before it."""
        return self.started_at >= ts or self.log.placed.get(ts) == order or order in self.pledged


Action: TypeAlias = tuple[str, Packet | bool | None]


class Outcome(NamedTuple):
    """A site after a step, and what it did."""

    blob: bytes
    sends: tuple[tuple[str, Packet], ...]
    problems: tuple[str, ...]
    fingerprint: str
    facts: Facts


def advance(blob: bytes, action: Action) -> Outcome | None:
    """Let one site take one step; None if it refuses a submission."""
    engine: Engine
    log: Log
    engine, log = pickle.loads(blob)
    site = engine.site
    kind, argument = action
    now = site.now + STEP
    event: Event
    match kind:
        case "deliver":
            now += LATE if isinstance(argument, Poll) and not site.fenced else 0
            event = PacketsReceived((argument,))  # type: ignore[arg-type]
        case "fire":
            now = max(now, min(site.deadlines.values(), default=0)) + (LATE if argument else 0)
            event = TimerFired()
        case "submit":
            event = SubmitRequested((f"{site.me}.{engine.submission.next_seq}".encode(),))
        case _:
            assert log.request is not None
            event = StateTransferred(log.request.ts)
            log.request = None
    reaction = react(engine, log, event, now)
    if reaction is None:
        return None
    return pack(engine, log, *reaction)


def pack(
    engine: Engine, log: Log, sends: tuple[tuple[str, Packet], ...] = (), problems: tuple[str, ...] = ()
) -> Outcome:
    blob = pickle.dumps((engine, log), 5)
    return Outcome(blob, sends, problems, fingerprint(engine, log), Facts(blob, engine, log))


def react(
    engine: Engine, log: Log, event: Event, now: int
) -> tuple[tuple[tuple[str, Packet], ...], tuple[str, ...]] | None:
    """Handle an event and judge what this site alone did; None if it refuses a submission."""
    site = engine.site
    engine._wake_at = 0  # lateness is the search's way to let time pass, not a pause of this site
    fenced = site.epoch if site.fenced and not site.outside else None
    problems: list[str] = []
    try:
        effects = list(engine.handle(event, now))
    except SubmitError:
        return None
    except (OrderingError, AssertionError, LookupError, ValueError, TypeError) as broken:
        problems.append(f"site {site.me} raised {type(broken).__name__}: {broken}")
        effects = []
    sends: list[tuple[str, Packet]] = []
    for effect in effects:
        match effect:
            case Multicast(to, packet):
                sends += [(address, packet) for address in to]
                problems += _judge_packet(site.me, packet, fenced)
            case Unicast(address, packet):
                sends.append((address, packet))
                problems += _judge_packet(site.me, packet, fenced)
            case Deliver() | InstallView() | Retract():
                if fenced is not None and site.epoch == fenced:
                    problems.append(f"site {site.me} told its application {effect} while fenced")
                problems += _note_delivery(site.me, log, effect)
            case RequestState():
                log.request = effect
            case EndMembership(ending):
                log.ended = ending.name
            case _:
                pass
    site.out = []
    if not site.outside:
        arrived = event.packets if isinstance(event, PacketsReceived) else ()
        packets = (*arrived, *(packet for _, packet in sends))
        seen = [p.order for p in packets if isinstance(p, Ack | NewList) and p.head.chain == site.chain]
        problems += _note_order(engine, log, seen)
    return tuple(sends), tuple(dict.fromkeys(problems))


def _judge_packet(me: SiteId, packet: Packet, fenced: int | None) -> list[str]:
    """R4: who is fenced states no hold and orders nothing new; whoever asks for or gives a promise is."""
    head = packet.head
    problems = []
    states = head.held or head.received or head.majority
    if states and (head.epoch == fenced or isinstance(packet, FENCED_ONLY)):
        problems.append(f"site {me} is fenced and states a hold: {describe(packet)}")
    if isinstance(packet, Ack | NewList) and packet.order.view is not None:
        problems += _judge_view(packet.order.view)
    return problems


def _judge_view(view: View) -> list[str]:
    members = {member.site for member in view.members}
    problems = []
    if not view.ring or not members.issuperset(view.ring):
        problems.append(f"view {view.id}: ring {view.ring} is empty or not within members {sorted(members)}")
    if not members.issuperset(view.electorate):
        problems.append(f"view {view.id}: electorate {view.electorate} is not within {sorted(members)}")
    return problems


def _note_delivery(me: SiteId, log: Log, effect: Deliver | InstallView | Retract) -> list[str]:
    problems = []
    match effect:
        case Deliver(_, deliveries):
            for item in deliveries:
                if item.first_ts <= max(log.delivered, default=0) or item.first_ts <= log.view_ts:
                    problems.append(f"site {me} delivered slot {item.first_ts} out of order")
                log.delivered[item.first_ts] = (item.source, item.first_seq, item.messages)
        case InstallView(ts, _, view):
            if ts <= max(log.delivered, default=0) or ts <= log.view_ts:
                problems.append(f"site {me} installed the view at slot {ts} out of order")
            log.view, log.view_ts = view, ts
        case Retract(after):
            if after < max(log.view_ts, *log.delivered, 0):  # else only empty blocks, which nobody sees
                problems.append(f"site {me} retracts slots above {after}, delivered at MAJORITY")
    return problems


def _note_order(engine: Engine, log: Log, seen: list[Order]) -> list[str]:
    """Carry the log over the event, and compare the site with its own past."""
    queue = engine.site.queue
    problems = []
    for order in (*seen, *queue.blocks.values()):
        known = log.orders.setdefault((order.epoch, order.ts), order)
        if known != order:
            problems.append(f"site {engine.site.me}: {order} at a slot of its epoch that had {known}")
    kept = {ts: order for ts, order in log.placed.items() if ts <= min(queue.base, queue.frontier)}
    log.placed = kept | {ts: order for ts, order in queue.blocks.items() if ts <= queue.frontier}
    ts = max([order.last_ts for order in kept.values()], default=queue.started_at) + 1
    while ts <= queue.base:  # placed and collected within this very event
        log.placed[ts] = log.orders[max(key for key in log.orders if key[1] == ts)]
        ts = log.placed[ts].last_ts + 1
    decision, accepted = engine.recovery.decision, engine.recovery.accepted
    if accepted is not None and accepted.ts > queue.frontier + 1:
        problems.append(
            f"site {engine.site.me} accepted an install at slot {accepted.ts} and holds only {queue.frontier}"
        )
    known_blocks = (*log.placed.values(), *(() if decision is None else (decision,)))
    installs = [order for order in known_blocks if order.is_install]
    problems += [
        f"site {engine.site.me}: two installs of epoch {order.epoch}"
        for order in installs
        if log.installs.setdefault(order.epoch, order) != order
    ]
    for ts, order in log.placed.items():
        if order.is_null or order.last_ts > engine.delivery.cursor:
            continue
        if log.final.setdefault(ts, order) != order:
            problems.append(f"site {engine.site.me}: the delivered block at slot {ts} was replaced")
    if any(ts not in log.placed for ts in log.final):
        problems.append(f"site {engine.site.me} erased a block it had delivered at MAJORITY")
    return problems


# -- the fingerprint ---------------------------------------------------------------------------------


def _nothing(_: Any) -> Any:
    return None


def _whether(value: Any) -> Any:
    return value is not None


# What the fingerprint leaves out or coarsens: class and attribute → what is kept of it.
REDUCED: Final[dict[tuple[str, str], Callable[[Any], Any]]] = {
    ("Site", "now"): _nothing,
    ("Site", "out"): _nothing,
    ("Site", "rng"): _nothing,
    ("Site", "config"): _nothing,
    ("Site", "counters"): _nothing,
    ("SlotClock", "placed_at"): _nothing,
    ("OrderingQueue", "placed"): _nothing,
    ("OrderingQueue", "passes"): _nothing,
    ("LockRequests", "_expiry"): _nothing,
    ("SelfSuspicion", "_see_no_progress"): _nothing,
    ("SelfSuspicion", "_noticed"): _nothing,
    ("Site", "deadlines"): sorted,  # which timers are armed
    ("RoundTrip", "srtt"): _nothing,
    ("RoundTrip", "_variance"): _nothing,
    ("RoundTrip", "_late"): _nothing,
    ("Detection", "last_heard"): _nothing,
    ("Detection", "last_progress"): _nothing,
    ("Detection", "_restarted"): sorted,
    ("Detection", "_stuck"): lambda stuck: {site: received for site, (received, _) in stuck.items()},
    ("Duty", "since"): _nothing,
    ("Duty", "moved_at"): _nothing,
    ("Engine", "_handlers"): _nothing,
    ("Engine", "_timers"): _nothing,
    ("Birth", "_heard"): lambda heard: {address: hello for address, (_, hello) in heard.items()},
    ("Engine", "_wake_at"): _nothing,
    ("Rotating", "_waiting"): _nothing,
    ("Token", "_suspect"): _nothing,
    ("Token", "_passed_at"): _nothing,
    ("Token", "_probe_gap"): _nothing,
    ("Token", "_probed_at"): _nothing,
    ("Token", "_pass_tries"): _nothing,
    ("Recovery", "_grace_ends"): _whether,
    ("Fork", "_entered_at"): _nothing,
    ("Fork", "_well_at"): _nothing,
    ("Fork", "_company_since"): _nothing,
    ("Fork", "_orphans"): sorted,
    ("Fork", "_later"): _nothing,  # when forks are off
    ("Kin", "_asked_at"): _nothing,
    ("Kin", "_recent"): _nothing,
    ("Kin", "_called_at"): _nothing,
    ("Kin", "_claimed_at"): _nothing,
    ("Kin", "_unwell_since"): _whether,
    ("Kin", "_has_majority"): _nothing,
    ("Removal", "_looked_at"): _nothing,
    ("Removal", "_silent"): _nothing,
    ("Recovery", "_attempts"): _nothing,
    ("Recovery", "_attempt_ends"): _nothing,
    ("Recovery", "_poll_tries"): _nothing,
    ("Retransmission", "_sent"): _nothing,
    ("Retransmission", "_helped"): _nothing,
    ("Transfer", "_refused"): lambda refused: refused[0],
    ("Detection", "_waiting_since"): _whether,
    ("Flight", "sent_at"): _nothing,
    ("Flight", "asked_at"): _nothing,
    ("SlidingWindow", "window"): _nothing,
    ("SlidingWindow", "threshold"): _nothing,
    ("SlidingWindow", "_cut_at"): _nothing,
    ("SlidingWindow", "_nacked"): _nothing,
    ("Sending", "_asks"): _nothing,
    ("Stability", "_concluded"): _nothing,
    ("Submission", "_tries"): _nothing,
    ("Submission", "_lane_first"): _nothing,
    ("Lanes", "_tries"): _nothing,
    ("Membership", "_falls"): _nothing,
    ("Membership", "_return_at"): _whether,
    ("Membership", "_ring_since"): _whether,
    ("Membership", "_told"): _nothing,
    ("Membership", "requests"): lambda requests: [request.change for request in requests.values()],
}


def fingerprint(engine: Engine, log: Log) -> str:
    """What two states of a site must share to be the same one."""
    return blake2b(repr(_canonical((engine, log), set())).encode(), digest_size=16).hexdigest()


@lru_cache(4096)
def _written(value: msgspec.Struct) -> str:
    """Views and orders are large, and come again in state after state."""
    return repr(value)


def _canonical(value: Any, seen: set[int]) -> Any:
    """Nested tuples of plain values. Parts refer to each other: each is written once."""
    if value is None or isinstance(value, int | str | bytes | State):
        return value
    if isinstance(value, msgspec.Struct):
        return _written(value)
    if isinstance(value, dict):
        return sorted(((k, _canonical(v, seen)) for k, v in value.items()), key=lambda item: repr(item[0]))
    if isinstance(value, list | tuple | deque):
        return [_canonical(item, seen) for item in value]
    if id(value) in seen:
        return None
    seen.add(id(value))
    slots = getattr(type(value), "__slots__", None)
    fields = {name: getattr(value, name) for name in slots} if slots else vars(value)
    name = type(value).__name__
    kept = []
    for field, content in fields.items():
        reduce = REDUCED.get((name, field))
        kept.append((field, _canonical(content if reduce is None else reduce(content), seen)))
    return (name, kept)


# -- comparing sites ---------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Two sites compared. The last two: does each hold what the other delivered last?"""

    problems: tuple[str, ...]
    two_tokens: bool
    first_holds: bool
    second_holds: bool


def compare(one: Facts, other: Facts) -> Pair:
    problems = [*_differences(one, other), *_lost(one, other), *_lost(other, one)]
    two_tokens = one.holds_token and other.holds_token and one.epoch == other.epoch
    return Pair(tuple(problems), two_tokens, _backs(one, other), _backs(other, one))


def _differences(one: Facts, other: Facts) -> Iterator[str]:
    for what, ours, theirs in (
        ("delivered at slot", one.log.delivered, other.log.delivered),
        ("final block at slot", one.log.final, other.log.final),
        ("order at (epoch, slot)", one.log.orders, other.log.orders),
        ("install of epoch", one.log.installs, other.log.installs),
    ):
        mine: dict[Any, Any] = dict(ours)
        for key, value in theirs.items():
            if key in mine and mine[key] != value:
                yield f"{what} {key}: site {one.me} has {mine[key]}, site {other.me} has {value}"
    first = max(min(one.log.final, default=0), min(other.log.final, default=0))
    last = min(max(one.log.final, default=0), max(other.log.final, default=0))
    ours_between = {ts for ts in one.log.final if first <= ts <= last}
    theirs_between = {ts for ts in other.log.final if first <= ts <= last}
    if one.log.final and other.log.final and ours_between != theirs_between:
        yield f"sites {one.me} and {other.me} delivered different slots between {first} and {last}"


def _lost(one: Facts, other: Facts) -> Iterator[str]:
    """What ``one`` delivered in an epoch must be part of every later epoch that ``other`` enters."""
    if other.outside:
        return
    for ts, order in one.log.final.items():
        if order.epoch < other.epoch and ts > other.started_at and other.log.placed.get(ts) != order:
            yield (
                f"slot {ts} of epoch {order.epoch} was delivered at MAJORITY by site {one.me}"
                f" and is not part of epoch {other.epoch} at site {other.me}"
            )


def _backs(one: Facts, other: Facts) -> bool:
    """Whether ``one`` holds the last block that ``other`` delivered."""
    last = max(other.log.final, default=0)
    return last == 0 or one.holds(last, other.log.final[last])


def judge(sites: list[Facts], dead: list[int], pair_of: Callable[[Facts, Facts], Pair]) -> tuple[str, ...]:
    """Compare all sites with each other, and count who backs what was delivered."""
    problems: list[str] = []
    holders = {site.me: [site.me] for site in sites}
    for index, one in enumerate(sites):
        for later, other in enumerate(sites[index + 1 :], index + 1):
            pair = pair_of(one, other)
            problems += pair.problems
            if pair.two_tokens and index not in dead and later not in dead:
                problems.append(f"sites {one.me} and {other.me} both hold the token of epoch {one.epoch}")
            if pair.first_holds:
                holders[other.me].append(one.me)
            if pair.second_holds:
                holders[one.me].append(other.me)
    for site in sites:
        view = site.log.view
        if view is not None:
            # R2: what was delivered is held by a majority of the electorate.
            voters = sum(1 for voter in view.electorate if voter in holders[site.me])
            if voters < majority_of(view.electorate):
                last = max(site.log.final, default=0)
                problems.append(f"site {site.me} delivered slot {last}, which only {holders[site.me]} hold")
    return tuple(dict.fromkeys(problems))


# -- playing on ----------------------------------------------------------------------------------------


class Table:
    """Engines that talk first in, first out, on one clock. For births, and for endings."""

    def __init__(self, parts: list[tuple[Engine, Log]], *, transfers: bool = True) -> None:
        self.clock = Clock()
        self.clock.run_until(max(engine.site.now for engine, _ in parts) + MS)
        self.parts = {engine.site.member.address: (engine, log) for engine, log in parts}
        self.problems: list[str] = []
        self.flying = 0
        self.transfers = transfers
        for address, (engine, _) in self.parts.items():
            self._wake(address, engine)

    def handle(self, address: str, event: Event) -> None:
        engine, log = self.parts[address]
        reaction = react(engine, log, event, self.clock.now)
        if reaction is None:
            return
        sends, problems = reaction
        self.problems += problems
        for to, packet in sends:
            if to in self.parts:
                self.flying += 1
                self.clock.after(HOP, partial(self._arrive, to, packet))
        self._wake(address, engine)
        self._transfer()

    def _arrive(self, address: str, packet: Packet) -> None:
        self.flying -= 1
        self.handle(address, PacketsReceived((packet,)))

    def _wake(self, address: str, engine: Engine) -> None:
        at = min(engine.site.deadlines.values(), default=0)
        if at:
            self.clock.at(max(at, self.clock.now), partial(self._tick, address, engine, at))

    def _tick(self, address: str, engine: Engine, at: int) -> None:
        if min(engine.site.deadlines.values(), default=0) == at:
            self.handle(address, TimerFired())

    def _transfer(self) -> None:
        if not self.transfers:
            return
        for address, (_, log) in self.parts.items():
            request = log.request
            if request is not None and any(
                e.site.me in request.donors and donor.view_ts >= request.ts
                for e, donor in self.parts.values()
            ):
                log.request = None
                self.clock.after(HOP, partial(self.handle, address, StateTransferred(request.ts)))

    def run_until(self, done: Callable[[], bool], bound: int) -> bool:
        """Run in slices until ``done``; false if ``bound`` nanoseconds were not enough."""
        end = self.clock.now + bound
        while not done():
            if self.clock.now >= end or self.problems:
                return False
            self.clock.run_until(self.clock.now + MS)
        return True


def start(count: int, *, joiner: bool, seated: bool) -> list[Outcome]:
    """A born ring at rest; a joiner, where there is one, has just asked, or is seated as a learner."""
    parts = []
    for index in range(count):
        member = Member(SiteId(index + 1), 1001 + index, f"s{index + 1}")
        parts.append((Engine(CONFIG, member, Steady()), Log()))
    table = Table(parts, transfers=False)
    for address in FOUNDERS:
        table.handle(address, Started(founder=True))
    ring = [engine for engine, _ in parts[:3]]
    born = table.run_until(lambda: not table.flying and _rests(ring), 1000 * MS)
    assert born, "the ring was not born"
    if joiner and seated:
        engine, log = parts[3]
        table.handle("s4", Started(founder=False))
        done = table.run_until(
            lambda: not table.flying and log.request is not None and _rests([*ring, engine]), 1000 * MS
        )
        assert done, "the joiner was not seated"
    outcomes = [pack(engine, log) for engine, log in parts]
    if joiner and not seated:
        engine, log = parts[3]
        react(engine, log, Started(founder=False), table.clock.now)
        reaction = react(engine, log, TimerFired(), table.clock.now + STEP)
        assert reaction is not None
        outcomes[3] = pack(engine, log, *reaction)
    return outcomes


def _rests(engines: list[Engine]) -> bool:
    """All follow, nothing is unordered or unheld, and someone has the token."""
    return all(
        engine.state in RING
        and not engine.submission.outbox
        and engine.delivery.cursor == engine.site.queue.frontier == engines[0].site.queue.frontier
        for engine in engines
    ) and any(engine.site.holds_token() for engine in engines)


def can_go_on(live: list[Facts]) -> bool:
    """Whether those alive are enough to expect anything of them."""
    views = [f.log.view for f in live if f.log.view is not None]
    if not views or any(f.engine_gone for f in live):
        return False
    sites = [f.me for f in live if not f.outside]
    known = [o.view for f in live for o in f.log.orders.values() if o.view is not None]
    return all(view.is_quorum(sites, joint=True) for view in (*views, *known))


def finish(live: list[Facts]) -> tuple[str, ...]:
    """Let the living talk without faults; what is wrong after a long while."""
    parts: list[tuple[Engine, Log]] = [pickle.loads(facts.blob) for facts in live]
    table = Table(parts)
    engines = [engine for engine, _ in parts]
    if table.run_until(lambda: _rests(engines), 3000 * MS) or table.problems:
        return tuple(dict.fromkeys(table.problems))
    places = ", ".join(
        f"site {e.site.me} is {e.state.value} in epoch {e.site.epoch} at slot {e.site.queue.frontier}"
        f" with {e.submission.outbox.messages} pending"
        for e in engines
    )
    return (f"no rest is found: {places}",)


def describe(packet: Packet) -> str:
    """A packet in a few words."""
    head = packet.head
    text = f"{type(packet).__name__} of site {head.sender} (epoch {head.epoch}, holds {head.held}"
    text += f", majority {head.majority})"
    match packet:
        case Ack() | NewList() | RecoveryNewList():
            order = packet.order
            what = f" view {order.view.id} ring {order.view.ring}" if order.view is not None else ""
            runs = "".join(f" {run.source}:{run.first_seq}+{run.count}" for run in order.runs)
            text += f" slot {order.ts} of epoch {order.epoch}{what}{runs}, next {order.next_site}"
        case Data():
            text += f" message {packet.batch.source}:{packet.batch.first_seq}"
        case Nack():
            data = [f"{run.source}:{run.first_seq}" for run in packet.data]
            text += f" to {packet.named} for slots {packet.first_ts}-{packet.last_ts}, data {data}"
            text += f", install after {packet.after_epoch}"
        case ListChangeRequest():
            text += f" {packet.change.kind.name} {packet.change.member.site}"
        case Collected():
            text += f" up to {packet.position.ts}"
        case _:
            pass
    if isinstance(packet, FENCED_ONLY):
        text += f" ballot {packet.ballot.round}.{packet.ballot.site}"
    if isinstance(packet, RecoveryVote):
        text += f" frontier {packet.frontier}"
    return text
