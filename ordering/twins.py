"""The wire's forms of our types, with every bound the engine relies on (R18).

A twin is what msgspec decodes: each field is there, and within its bounds. ``original`` makes the checks
that take more than one field, and gives the value itself. A boot has 128 bits, more than a MessagePack
integer, so it travels as 16 bytes.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from ordering import packets as p
from ordering.errors import DecodeError
from ordering.locks import LEASE_MS_MAX, NAME_BYTES_MAX, NAMED_MAX, WAITERS_MAX, WISHES_MAX
from ordering.qos import Level, Qos
from ordering.slot_time import TIME_MAX
from ordering.views import (
    HANDLERS,
    NO_SITE,
    Claim,
    Lock,
    LockName,
    LockTable,
    Member,
    Owner,
    SiteId,
    View,
    ViewId,
)

COUNT_MAX: Final = (1 << 63) - 1
# Views are compared member by member; this keeps that cheap whatever a datagram claims.
MEMBERS_MAX: Final = 1024
ADDRESS_MAX: Final = 255
BOOT_BYTES: Final = 16
# A receiver makes room for a whole message when its first piece comes.
MESSAGE_MAX: Final = 1 << 30
SPANS_MAX: Final = 64

WireSite: TypeAlias = Annotated[SiteId, Meta(ge=0)]
WireCount: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
WirePositive: TypeAlias = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
WireBoot: TypeAlias = Annotated[bytes, Meta(min_length=BOOT_BYTES, max_length=BOOT_BYTES)]
WireAddress: TypeAlias = Annotated[str, Meta(max_length=ADDRESS_MAX)]
WireCaller: TypeAlias = Annotated[SiteId, Meta(ge=1)]
WireHandler: TypeAlias = Annotated[int, Meta(ge=0, le=HANDLERS[-1])]
WireFlags: TypeAlias = Annotated[int, Meta(ge=0, le=sum(p.CallFlag))]
WireMessages: TypeAlias = Annotated[tuple[bytes, ...], Meta(min_length=1)]
WireSites: TypeAlias = Annotated[tuple[WireSite, ...], Meta(max_length=MEMBERS_MAX)]
WireTime: TypeAlias = Annotated[int, Meta(ge=0, le=TIME_MAX)]
WireLease: TypeAlias = Annotated[int, Meta(ge=0, le=LEASE_MS_MAX)]
WireLockName: TypeAlias = (
    Annotated[int, Meta(ge=HANDLERS[0], le=HANDLERS[-1])]
    | Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
)
WireVector: TypeAlias = Annotated[tuple[tuple[WireSite, WireCount], ...], Meta(max_length=MEMBERS_MAX)]


class Twin(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The wire's form of a type of ours: every field must be there, each within its bounds."""

    def original(self) -> object:
        """The value itself, after the checks that take more than one field to make."""
        raise NotImplementedError


class WireRun(Twin, frozen=True):
    source: WireSite
    first_seq: WirePositive
    count: WirePositive

    def original(self) -> p.Run:
        if self.first_seq + self.count > COUNT_MAX:
            raise DecodeError("body")
        return p.Run(self.source, self.first_seq, self.count)


class WireQos(Twin, frozen=True):
    level: Level
    k: WireCount

    def original(self) -> Qos:
        if self.k and self.level is not Level.K_RESILIENT:
            raise DecodeError("body")
        return Qos(self.level, self.k)


class WireCall(Twin, frozen=True):
    caller: WireCaller
    boot: WireBoot
    number: WirePositive
    address: WireAddress
    handler: WireHandler
    flags: WireFlags


def calls_of(wired: tuple[WireCall, ...]) -> tuple[p.Call, ...]:
    """The originals of many, most of them of one caller."""
    calls: list[p.Call] = []
    known, boot = b"", 0
    for each in wired:
        if each.boot != known:
            known, boot = each.boot, int.from_bytes(each.boot, "big")
        calls.append(p.Call(each.caller, boot, each.number, each.address, each.handler, each.flags))
    return tuple(calls)


class WireBatch(Twin, frozen=True):
    source: WireSite
    boot: WireBoot
    first_seq: WireCount
    qos: WireQos
    messages: WireMessages
    calls: tuple[WireCall, ...]

    def original(self) -> p.Batch:
        first_seq = self.first_seq
        qos = self.qos.original()
        unnumbered = first_seq == 0 and qos.level is not Level.UNRELIABLE
        calls = calls_of(self.calls) if self.calls else ()
        count = len(self.messages)
        if unnumbered or first_seq + count > COUNT_MAX or len(calls) not in (0, count):
            raise DecodeError("body")
        return p.Batch(self.source, int.from_bytes(self.boot, "big"), first_seq, qos, self.messages, calls)


class WirePart(Twin, frozen=True):
    source: WireSite
    boot: WireBoot
    seq: WirePositive
    qos: WireQos
    offset: WireCount
    total: Annotated[int, Meta(ge=1, le=MESSAGE_MAX)]
    data: Annotated[bytes, Meta(min_length=1)]
    calls: Annotated[tuple[WireCall, ...], Meta(max_length=1)]

    def original(self) -> p.Part:
        qos = self.qos.original()
        if qos.level is Level.UNRELIABLE or self.offset + len(self.data) > self.total:
            raise DecodeError("body")
        boot = int.from_bytes(self.boot, "big")
        calls = calls_of(self.calls)
        return p.Part(self.source, boot, self.seq, qos, self.offset, self.total, self.data, calls)


class WireSpan(Twin, frozen=True):
    source: WireSite
    seq: WirePositive
    ordered: bool
    first: WireCount
    end: Annotated[int, Meta(ge=1, le=MESSAGE_MAX)]

    def original(self) -> p.Span:
        if self.first >= self.end:
            raise DecodeError("body")
        return p.Span(self.source, self.seq, self.ordered, self.first, self.end)


class WireViewId(Twin, frozen=True):
    epoch: WireCount
    revision: WireCount

    def original(self) -> ViewId:
        return ViewId(self.epoch, self.revision)


class WireMember(Twin, frozen=True):
    site: WireSite
    boot: WireBoot
    address: WireAddress
    replaces: WireSite

    def original(self) -> Member:
        boot = int.from_bytes(self.boot, "big")
        return Member(self.site, boot, self.address, self.replaces)


class WireOwner(Twin, frozen=True):
    site: WireSite
    boot: WireBoot
    session: WireCount

    def original(self) -> Owner:
        return Owner(self.site, int.from_bytes(self.boot, "big"), self.session)


class WireClaim(Twin, frozen=True):
    owner: WireOwner
    number: WireCount
    lease_ms: WireLease

    def original(self) -> Claim:
        return Claim(self.owner.original(), self.number, self.lease_ms)


class WireLock(Twin, frozen=True):
    name: WireLockName
    holder: WireClaim
    fence: WireCount
    expires: WireCount
    queue: Annotated[tuple[WireClaim, ...], Meta(max_length=WAITERS_MAX)]

    def original(self) -> Lock:
        _check_name(self.name)
        queue = tuple([claim.original() for claim in self.queue])
        return Lock(self.name, self.holder.original(), self.fence, self.expires, queue)


def _check_name(name: LockName) -> None:
    """The bound is in bytes; the decoder of strings counts characters."""
    if isinstance(name, str) and len(name.encode()) > NAME_BYTES_MAX:
        raise DecodeError("body")


class WireLockTable(Twin, frozen=True):
    locks: Annotated[tuple[WireLock, ...], Meta(max_length=NAMED_MAX + len(HANDLERS))]
    versions: Annotated[tuple[tuple[WireOwner, WireCount], ...], Meta(max_length=MEMBERS_MAX)]

    def original(self) -> LockTable:
        if len({lock.name for lock in self.locks}) != len(self.locks):
            raise DecodeError("body")
        locks = tuple([lock.original() for lock in self.locks])
        return LockTable(locks, tuple([(owner.original(), version) for owner, version in self.versions]))


class WireWish(Twin, frozen=True):
    name: WireLockName
    number: WirePositive
    lease_ms: WireLease
    renewed: WirePositive

    def original(self) -> p.Wish:
        _check_name(self.name)
        return p.Wish(self.name, self.number, self.lease_ms, self.renewed)


class WireLockStatement(Twin, frozen=True):
    owner: WireOwner
    version: WirePositive
    wishes: Annotated[tuple[WireWish, ...], Meta(max_length=WISHES_MAX)]

    def original(self) -> p.LockStatement:
        names = {wish.name for wish in self.wishes}
        if len(names) != len(self.wishes) or any(wish.number > self.version for wish in self.wishes):
            raise DecodeError("body")
        wishes = tuple([wish.original() for wish in self.wishes])
        return p.LockStatement(self.owner.original(), self.version, wishes)


class WireView(Twin, frozen=True):
    id: WireViewId
    members: Annotated[tuple[WireMember, ...], Meta(max_length=MEMBERS_MAX)]
    electorate: WireSites
    ring: WireSites
    joint_ts: WireCount
    joint_electorate: WireSites
    locks: WireLockTable

    def original(self) -> View:
        sites = {member.site for member in self.members}
        if (
            NO_SITE in sites
            or len(sites) != len(self.members)
            or not _is_choice(self.electorate, sites)
            or not _is_choice(self.ring, sites)
        ):
            raise DecodeError("body")
        return View(
            self.id.original(),
            tuple([member.original() for member in self.members]),
            self.electorate,
            self.ring,
            self.joint_ts,
            self.joint_electorate,
            self.locks.original(),
        )


def _is_choice(chosen: tuple[SiteId, ...], sites: set[SiteId]) -> bool:
    return sites.issuperset(chosen) and len(set(chosen)) == len(chosen)


class WireOrder(Twin, frozen=True):
    """What an Ack carries: runs, no view."""

    epoch: WireCount
    ts: WirePositive
    orderer: WireSite
    next_site: WireSite
    runs: tuple[WireRun, ...]
    view: None
    vector: tuple[()]
    time: WireTime
    tick: bool

    def original(self) -> p.Order:
        runs = tuple([run.original() for run in self.runs])
        order = p.Order(
            self.epoch, self.ts, self.orderer, self.next_site, runs, time=self.time, tick=self.tick
        )
        if order.last_ts > COUNT_MAX or (self.tick and runs):
            raise DecodeError("body")
        return order


class WireViewOrder(Twin, frozen=True):
    """What a NewList carries: a view that someone can order in, and where its members start."""

    epoch: WireCount
    ts: WirePositive
    orderer: WireSite
    next_site: WireSite
    runs: tuple[()]
    view: WireView
    vector: WireVector
    time: WireTime
    tick: bool

    def original(self) -> p.Order:
        view = self.view.original()
        sites = {member.site for member in view.members}
        strangers = any(site not in sites for site, _ in self.vector)
        if not view.ring or not view.electorate or strangers or self.tick:
            raise DecodeError("body")
        return p.Order(
            self.epoch,
            self.ts,
            self.orderer,
            self.next_site,
            view=view,
            vector=self.vector,
            time=self.time,
        )


class WireBallot(Twin, frozen=True):
    round: WireCount
    site: WireSite

    def original(self) -> p.Ballot:
        return p.Ballot(self.round, self.site)


class WirePosition(Twin, frozen=True):
    epoch: WireCount
    ts: WirePositive
    view_ts: WireCount
    view: WireView
    vector: WireVector
    time: WireTime

    def original(self) -> p.Position:
        view = self.view.original()
        sites = {member.site for member in view.members}
        if self.view_ts > self.ts or not view.ring or {site for site, _ in self.vector} != sites:
            raise DecodeError("body")
        return p.Position(self.epoch, self.ts, self.view_ts, view, self.vector, self.time)


class WireDescent(Twin, frozen=True):
    root: WireSite
    depth: WireCount

    def original(self) -> p.Descent:
        return p.Descent(self.root, self.depth)


class WireChange(Twin, frozen=True):
    kind: p.ChangeKind
    member: WireMember

    def original(self) -> p.Change:
        return p.Change(self.kind, self.member.original())


class WireReceipt(Twin, frozen=True):
    number: WirePositive
    ts: WireCount
    reached: Level

    def original(self) -> p.Receipt:
        return p.Receipt(self.number, self.ts, self.reached)


class WireAnswer(Twin, frozen=True):
    number: WirePositive
    ts: WireCount
    payload: bytes

    def original(self) -> p.Answer:
        return p.Answer(self.number, self.ts, self.payload)


class WireDirectory(Twin, frozen=True):
    view: WireViewId
    addresses: Annotated[tuple[WireAddress, ...], Meta(max_length=MEMBERS_MAX)]

    def original(self) -> p.Directory:
        return p.Directory(self.view.original(), self.addresses)


class WireParcel(Twin, frozen=True):
    """What a NonMemberData carries, as one field: its numbers must fit together."""

    address: WireAddress
    first: WirePositive
    handler: WireHandler
    flags: Annotated[int, Meta(ge=0, lt=p.CallFlag.IS_REPLY.value)]
    qos: WireQos
    messages: WireMessages
    floor: WireCount
    after: WireCount
    view: WireViewId
    bound: bool
    turn: WireCount | None
    passed_on: bool

    def fields(self) -> tuple[object, ...]:
        last = self.first + len(self.messages) - 1
        if last > COUNT_MAX or self.floor > last or self.after >= self.first:
            raise DecodeError("body")
        rest = (self.messages, self.floor, self.after, self.view.original(), self.bound, self.turn)
        return self.address, self.first, self.handler, self.flags, self.qos.original(), *rest, self.passed_on
