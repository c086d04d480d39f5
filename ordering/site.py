"""What the parts of one engine share: identity, the order, the frontiers, and the way out.

The parts (discipline, stability, detection, membership, recovery, …) do not know the host and
hardly know each other; they meet here. Nothing in this module decides anything.
"""

from enum import IntEnum
from random import Random

from ordering.config import MS, Config
from ordering.effects import Effect, Multicast, Unicast
from ordering.naming import group_id
from ordering.ordering_queue import OrderingQueue
from ordering.packets import Confirm, Descent, Head, Packet
from ordering.pieces import Assemblies
from ordering.records import Parent
from ordering.slot_time import SlotClock
from ordering.stability import Stability
from ordering.state import State
from ordering.views import Member, SiteId, View

ADDRESSES_MAX = 64
_OUTSIDE = (State.IDLE, State.FOUNDING, State.JOINING, State.GONE)


class Timer(IntEnum):
    """What a site waits for; each has one deadline, the host sees only the earliest."""

    DATA = 0
    PASS = 1
    NACK = 2
    PROBE = 3
    PASSIVE = 4
    POLL = 5
    RECOVERY = 6
    REQUEST = 7
    HELLO = 8
    LANE = 9
    FORK = 10
    LOST = 11
    WAKING = 12
    LOCK = 13
    TICK = 14
    CALL = 15
    NULL = 16
    READ = 17
    CONFIRM = 18


class Site:
    """Shared state of one site in one group."""

    def __init__(self, config: Config, member: Member, rng: Random) -> None:
        self.config = config
        self.member = member
        self.me: SiteId = member.site
        self.group = group_id(config.group)
        self.rng = rng
        self.now = 0
        self.out: list[Effect] = []
        self.state = State.IDLE
        self.chain = 0
        self.descent = Descent(0, 0)
        self.chains: list[tuple[int, int]] = []  # (first slot, chain): a fork takes over what was before
        self.epoch = 0
        self.fenced = False
        self.delivered = 0  # last slot up to which everything was handed to the application
        self.told_view: View | None = None  # the last view it was told of: always one that a majority holds
        self.state_ts = 0  # of the last state that was taken over; the log may not have come that far
        self.synced = 0  # last slot of this epoch's log that is on the disk; durable mode only
        self.sync_ns = 0  # how long a sync takes here, smoothed
        self.parents: list[Parent] = []  # the chains we left for a fork that is not decided yet
        self.retiring = False  # it is to be stopped: it takes no work, and asks out of the ring
        self.decided = False  # the install that ends this epoch is known, its slots not all here
        self.queue = OrderingQueue()
        self.clock = SlotClock()
        self.assemblies = Assemblies(config.assembly_bytes_max)
        self.backlog = 0  # bytes the application has not taken
        self.stability = Stability()
        self.addresses: dict[SiteId, str] = {}  # of members, and of some who no longer are
        self.deadlines: dict[Timer, int] = {}
        self.counters: dict[str, int] = {}

    # -- chains ----------------------------------------------------------------------------------

    def begin_chain(self, ts: int) -> None:
        """From slot ``ts`` on the order is that of the chain we are in now."""
        if not self.chains or self.chains[-1][1] != self.chain:
            self.chains.append((ts, self.chain))

    def chain_of(self, ts: int) -> int:
        """The chain that gave slot ``ts`` its place. Called in the order of the slots."""
        while len(self.chains) > 1 and self.chains[1][0] <= ts:
            del self.chains[0]
        return self.chains[0][1] if self.chains else self.chain

    # -- views -----------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        return self.queue.view

    @property
    def outside(self) -> bool:
        """No chain yet, or no longer."""
        return self.state in _OUTSIDE

    @property
    def in_ring(self) -> bool:
        return self.me in self.view.ring

    @property
    def is_behind_its_state(self) -> bool:
        """R9: the application has slots of this chain that the log has not: no other may give them anew."""
        return self.queue.frontier < self.state_ts

    @property
    def unnamed(self) -> bool:
        """R6: back from the disk, and the view still names the boot that died."""
        if not self.config.durable:
            return False
        member = self.view.member(self.me)
        return member is not None and member.boot != self.member.boot

    @property
    def may_number(self) -> bool:
        """R6: whether no view change can take this boot's name out of the order again. Before that it numbers
        no message: the numbers would be given out anew, to others."""
        if not self.config.durable:
            return True
        member = None if self.told_view is None else self.told_view.member(self.me)
        return member is not None and member.boot == self.member.boot and not self.unnamed

    @property
    def held(self) -> int:
        """How far this site holds the order: in durable mode, on its disk (R8)."""
        return min(self.synced, self.queue.frontier) if self.config.durable else self.queue.frontier

    def holds_token(self) -> bool:
        """Gap-free token acceptance (RMP §4.2): the last block names this site and nothing is missing."""
        tail = self.queue.tail
        return (
            tail is not None
            and not self.fenced
            and tail.next_site == self.me
            and tail.last_ts == self.queue.frontier
            and self.in_ring
            and not self.unnamed
        )

    def is_short_of_buffers(self) -> bool:
        """R16: more with a slot than we can keep; ordering more would only make it worse."""
        return self.queue.ordered_bytes + self.backlog > self.config.buffer_bytes_max

    def forget_strangers(self) -> None:
        """R15: the unfinished messages of who is no longer a member, and what came by other means."""
        assemblies = self.assemblies
        if assemblies.lanes:
            assemblies.keep(self.view)
            for site, source in self.queue.sources.items():
                assemblies.passed(site, source.boot, source.contiguous)

    def enter_view(self) -> None:
        self.note_addresses()
        self.forget_strangers()

    def note_addresses(self, *earlier: View) -> None:
        """Remember where members are, also after they have gone: they may need a last answer, and of a change
        that is not settled the quorum before it may need them (R5)."""
        for view in (*earlier, self.view):
            for member in view.members:
                self.addresses.pop(member.site, None)
                self.addresses[member.site] = member.address
        while len(self.addresses) > ADDRESSES_MAX:
            del self.addresses[next(iter(self.addresses))]

    # -- sending ---------------------------------------------------------------------------------

    def head(self) -> Head:
        """Nobody counts what an unnamed boot states; it shows how far its disk goes, fenced or not."""
        fenced = self.fenced
        frontier = self.queue.frontier
        unheld = fenced and not (self.config.durable and not self.outside and self.unnamed)
        stability = self.stability
        return Head(
            self.group,
            self.chain,
            self.me,
            self.member.boot,
            self.epoch,
            0 if fenced else frontier,
            0 if unheld else self.held,
            0 if fenced else stability.majority,
            0 if fenced else stability.stable,
        )

    def multicast(self, packet: Packet, *earlier: View) -> None:
        """To all other members of the view in force: ring, external voters and learners. They see from the
        head how far we are: a confirm that was put off is not needed any more."""
        self.multicast_to(tuple([m.address for v in (*earlier, self.view) for m in v.members]), packet)
        self.disarm(Timer.CONFIRM)

    def multicast_to(self, addresses: tuple[str, ...], packet: Packet) -> None:
        """To other addresses, each once: a dead voter and its successor share one."""
        to = tuple(dict.fromkeys(address for address in addresses if address != self.member.address))
        if to:
            self.out.append(Multicast(to, packet))

    def unicast(self, site: SiteId, packet: Packet) -> None:
        address = self.addresses.get(site)
        if address is not None and site != self.me:
            self.out.append(Unicast(address, packet))

    def confirm(self) -> None:
        """Tell everyone how far we are."""
        self.multicast(Confirm(self.head()))

    def confirm_to(self, site: SiteId) -> None:
        self.unicast(site, Confirm(self.head()))

    # -- time and counting -----------------------------------------------------------------------

    def arm(self, timer: Timer, after_ns: int) -> None:
        self.deadlines[timer] = self.now + max(after_ns, 1)

    def arm_if_idle(self, timer: Timer, after_ns: int) -> None:
        if timer not in self.deadlines:
            self.arm(timer, after_ns)

    def disarm(self, timer: Timer) -> None:
        self.deadlines.pop(timer, None)

    def jitter(self, span_ms: int) -> int:
        """A drawn part of ``span_ms``, in nanoseconds: keeps sites from acting in step."""
        return self.rng.randrange(span_ms * MS)

    def count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1
