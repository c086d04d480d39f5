"""How a replica stands, in one type for everybody who asks: command line, HTTP, dashboard, metrics.

Fields are only ever added, with defaults: replicas of two releases may ask each other.
"""

from enum import StrEnum
from typing import Final

import msgspec

from ordering.statistics import DriverStats, GroupStats, MemberStats, PassStats
from ordering.views import SiteId, View
from rsm.executor import Group

FIRST_SEEN: Final = "the first view seen"


class Standing(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    CUT_OFF = "without a majority"
    FETCHING = "fetching the state"
    OUTSIDE = "outside"
    HALTED = "halted"


class Role(StrEnum):
    RING = "ring"
    EXTERNAL = "external"  # a voter out of the ring
    LEARNER = "learner"


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A member as this replica's view has it. ``received`` and ``held`` are what it has stated; ``lag`` is
    how many slots it is behind the newest that is known here. ``applied`` and ``log_bytes`` a replica knows
    of itself alone: ask the others."""

    site: str
    address: str
    voter: bool
    in_ring: bool
    version: int  # the newest it can run, 0: it has not said
    name: str = ""
    boot: str = ""
    role: Role = Role.LEARNER
    state: str = ""  # a standing for the one that is asked; of the others ``heard`` or ``silent``
    silent_s: float = 0.0
    received: int = 0
    held: int = 0
    applied: int | None = None
    lag: int = 0
    log_bytes: int | None = None


class ViewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A view that was installed here, and what made it another than the one before."""

    view: str
    slot: int
    at_s: float  # wall clock
    ring: list[str]
    electorate: list[str]
    learners: list[str]
    why: str


class LockStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    handler: bool
    site: str  # of the holder, empty for nobody and for a session
    address: str
    fence: int
    queue: int


class SnapshotStatus(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    bytes: int
    age_s: float


class RecordingStatus(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    rows: int
    dropped: int
    error: str = ""  # it has stopped


class PassStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The token went on: ``source`` gave ``slot`` … ``last`` an order, or led a view change, and named
    ``target``. ``at_ns`` is the time of the slot, the same at every replica."""

    epoch: int
    slot: int
    last: int
    source: str
    target: str
    at_ns: int


class TrafficStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What went over the network and the ring, counted from the start; who wants rates asks twice.
    ``latency`` counts own submissions by the time until a majority held them: bucket *i* has those below 2 to
    the *i* nanoseconds. ``passes``: how often the token went on; ``path`` has the last ones, newest last."""

    datagrams_in: int = 0
    datagrams_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    delivered: int = 0  # messages of everybody
    latency: list[int] = []
    passes: int = 0
    path: list[PassStatus] = []


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``digest`` is of everything executed up to ``applied``: equal at equal slots. ``age_s``: how long ago a
    majority was last heard here. ``token`` is who the last block that is here names. ``majority`` and
    ``stable``: what a majority and what the whole ring is known to hold."""

    group: str
    address: str
    site: str
    standing: Standing
    mode: str
    chain: str = ""
    view: str = ""
    applied: int = 0
    digest: str = ""
    machine: str = ""
    version: int = 0
    sessions: int = 0
    outstanding: int = 0
    age_s: float = 0.0
    why: str = ""  # it halted
    clock_ns: int = 0  # the wall clock where it runs
    forks: int = 0  # so often has its chain gone on without a majority (R9)
    members: list[MemberStatus] = []
    boot: str = ""
    pid: int = 0  # of its process
    state: str = ""  # of the ordering engine
    uptime_s: float = 0.0
    received: int = 0
    held: int = 0
    majority: int = 0
    stable: int = 0
    lag: int = 0
    waiting: int = 0  # deliveries that are not executed yet
    backlog_bytes: int = 0
    window_messages: int = 0
    window_bytes: int = 0
    token: str = ""
    token_address: str = ""
    handler: bool = False  # it answers clients
    log_bytes: int = 0
    snapshot: SnapshotStatus | None = None
    recording: RecordingStatus | None = None
    locks: list[LockStatus] = []
    defects: dict[str, int] = {}
    counters: dict[str, int] = {}
    views: list[ViewStatus] = []  # the last ones, the newest last
    traffic: TrafficStatus | None = None


class Own(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica knows of itself and of nobody else."""

    site: SiteId
    standing: Standing
    applied: int
    log_bytes: int
    patience_ns: int  # who was not heard for longer is silent


def members_of(agreed: Group, own: Own, engine: GroupStats | None) -> list[MemberStatus]:
    """The view that the group has agreed on, what each member has announced, and what is heard of it."""
    view = agreed.view
    if view is None:
        return []
    known: dict[SiteId, MemberStats] = {} if engine is None else {each.site: each for each in engine.members}
    newest = max((each.received for each in known.values()), default=own.applied)
    members = []
    for site, address in view.addresses.items():
        me, seen, voter = site == own.site, known.get(site), site in view.electorate
        role = Role.RING if site in view.ring else Role.EXTERNAL if voter else Role.LEARNER
        announced = agreed.announced.get(site)
        received, held, silent_ns = (seen.received, seen.held, seen.silent_ns) if seen else (0, 0, 0)
        heard = seen is not None and silent_ns <= own.patience_ns
        members.append(
            MemberStatus(
                site=f"{site:x}",
                address=address,
                voter=voter,
                in_ring=role is Role.RING,
                version=0 if announced is None else max(announced.signatures, default=0),
                name=address,
                boot=f"{seen.boot:032x}" if seen else announced.boot.hex() if announced else "",
                role=role,
                state=own.standing if me else "heard" if heard else "silent",
                silent_s=silent_ns / 1e9,
                received=received,
                held=held,
                applied=own.applied if me else None,
                lag=max(newest - (own.applied if me else held), 0),
                log_bytes=own.log_bytes if me else None,
            )
        )
    return members


def locks_of(view: View | None) -> list[LockStatus]:
    if view is None:
        return []
    found = []
    for lock in view.locks.locks:
        owner = lock.holder.owner
        member = view.member(owner.site)
        found.append(
            LockStatus(
                name=str(lock.name),
                handler=isinstance(lock.name, int),
                site="" if member is None else f"{owner.site:x}",
                address="" if member is None else member.address,
                fence=lock.fence,
                queue=len(lock.queue),
            )
        )
    return found


def traffic_of(engine: GroupStats | None, driver: DriverStats) -> TrafficStatus:
    return TrafficStatus(
        datagrams_in=driver.datagrams_in,
        datagrams_out=driver.datagrams_out,
        bytes_in=driver.bytes_in,
        bytes_out=driver.bytes_out,
        delivered=0 if engine is None else engine.delivered,
        latency=[] if engine is None else list(engine.latency),
        passes=0 if engine is None else engine.placed,
        path=[] if engine is None else [_pass(each) for each in engine.passes],
    )


def _pass(made: PassStats) -> PassStatus:
    return PassStatus(
        epoch=made.epoch,
        slot=made.first_ts,
        last=made.last_ts,
        source=f"{made.orderer:x}",
        target=f"{made.next_site:x}",
        at_ns=made.time,
    )


def describe_change(before: View | None, after: View) -> str:
    """Why there is another view, as far as the two tell."""
    if before is None:
        return FIRST_SEEN
    addresses = {member.site: member.address for member in (*before.members, *after.members)}
    was, now = ({m.site: m.boot for m in view.members} for view in (before, after))
    changes = {
        "joined": [site for site in now if site not in was],
        "gone": [site for site in was if site not in now],
        "restarted": [site for site in now if site in was and was[site] != now[site]],
        "now votes": [s for s in after.electorate if s not in before.electorate and s in was],
        "votes no more": [s for s in before.electorate if s not in after.electorate and s in now],
        "out of the ring": [s for s in before.ring if s not in after.ring and s in now],
        "in the ring": [s for s in after.ring if s not in before.ring],
    }
    said = [f"{what}: {', '.join(addresses[s] for s in sites)}" for what, sites in changes.items() if sites]
    return ("view change; " if after.id.epoch != before.id.epoch else "") + (
        "; ".join(said) or "nobody changed"
    )
