"""Who is in the group: members, electorate, ring (rules R1, R5, R7); and who has its locks (R13).

A view is an immutable value. It is created in exactly two ways: by an ordered NewList inside an
epoch (the revision grows) or by the consensus that ends an epoch (the epoch grows, the revision is
zero). Both take a slot in the total order, so "the view at slot t" is well defined and the same at
every site that holds slot t.
"""

from collections.abc import Iterable
from typing import NewType, TypeAlias

import msgspec

SiteId = NewType("SiteId", int)
Timestamp = NewType("Timestamp", int)

NO_SITE = SiteId(0)
HANDLERS = (1, 2, 3, 4, 5, 6)  # RMP §3.2: the first six locks of a group are handler locks


class ViewId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Epochs are decided by consensus; revisions are ordered NewLists within one epoch."""

    epoch: int
    revision: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.revision}"


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One process. In memory mode a voter is bound to its boot: a restart is a new ``site``."""

    site: SiteId
    boot: int
    address: str
    # A learner that takes over a dead voter's seat names it here until it is promoted (R6).
    replaces: SiteId = NO_SITE


LockName: TypeAlias = int | str  # a handler number, or the name of any other lock


class Owner(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Whose a lock is: a voter under one boot, or a session (then there is no site)."""

    site: SiteId
    boot: int
    session: int = 0


NOBODY = Owner(NO_SITE, 0)


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """One request of an owner, by the number of the statement that first made it. 0: nobody asked, the
    owner has a handler lock because somebody must."""

    owner: Owner
    number: int
    lease_ms: int


UNCLAIMED = Claim(NOBODY, 0, 0)


class Lock(msgspec.Struct, frozen=True, array_like=True):
    """``fence`` is the slot of the grant, ``expires`` the slot time at which a lease ends (0: none)."""

    name: LockName
    holder: Claim = UNCLAIMED
    fence: int = 0
    expires: int = 0
    queue: tuple[Claim, ...] = ()


class LockTable(msgspec.Struct, frozen=True, array_like=True):
    """All locks of a view. ``versions`` has each owner's last statement that counted: what comes late,
    or twice, is known by it."""

    locks: tuple[Lock, ...] = ()
    versions: tuple[tuple[Owner, int], ...] = ()

    def version(self, owner: Owner) -> int:
        for known, version in self.versions:
            if known == owner:
                return version
        return 0

    def lock(self, name: LockName) -> Lock | None:
        for lock in self.locks:
            if lock.name == name:
                return lock
        return None


NO_LOCKS = LockTable()


class View(msgspec.Struct, frozen=True, array_like=True):
    """The membership in force from one slot on, and the locks."""

    id: ViewId
    members: tuple[Member, ...]
    electorate: tuple[SiteId, ...]
    ring: tuple[SiteId, ...]
    # R5: while an electorate change is not known to be held by a majority of the electorate before
    # it, quorums need both. ``joint_ts`` is the slot of that change, 0 when none is pending.
    joint_ts: int = 0
    joint_electorate: tuple[SiteId, ...] = ()
    locks: LockTable = NO_LOCKS

    def has(self, site: SiteId) -> bool:
        return any(member.site == site for member in self.members)

    def member(self, site: SiteId) -> Member | None:
        for member in self.members:
            if member.site == site:
                return member
        return None

    def at_address(self, address: str) -> Member | None:
        """The voter or learner at an address; the newest where a learner replaces a dead voter."""
        found = None
        for member in self.members:
            if member.address == address:
                found = member
        return found

    def differs_in_locks_only(self, other: "View") -> bool:
        """Whether the membership is the same, and the epoch: no news to who only cares for that (R5)."""
        return (
            self.id.epoch == other.id.epoch
            and self.members == other.members
            and self.electorate == other.electorate
            and self.ring == other.ring
        )

    @property
    def learners(self) -> tuple[SiteId, ...]:
        return tuple(m.site for m in self.members if m.site not in self.electorate)

    @property
    def external(self) -> tuple[SiteId, ...]:
        """Voters out of the ring: iRBP's external set, which here still votes and holds."""
        return tuple(site for site in self.electorate if site not in self.ring)

    @property
    def ring_voters(self) -> int:
        return sum(1 for site in self.ring if site in self.electorate)

    def successor(self, site: SiteId) -> SiteId:
        """The next ring member after ``site``; the first one if ``site`` is not in the ring."""
        if site not in self.ring:
            return self.ring[0]
        index = self.ring.index(site) + 1
        return self.ring[index if index < len(self.ring) else 0]

    def is_quorum(self, sites: Iterable[SiteId], *, joint: bool) -> bool:
        """Whether ``sites`` contain a majority of the electorate, and of both while joint (R1, R5)."""
        present = tuple(sites)
        if count_in(self.electorate, present) < majority_of(self.electorate):
            return False
        if not (joint and self.joint_ts):
            return True
        return count_in(self.joint_electorate, present) >= majority_of(self.joint_electorate)


def handler_holder(view: View, handler: int) -> SiteId:
    """Who replies to requests with this handler; NO_SITE if nobody holds its lock."""
    lock = view.locks.lock(handler)
    return NO_SITE if lock is None else lock.holder.owner.site


def majority_of(electorate: tuple[SiteId, ...]) -> int:
    """R1: ⌊n/2⌋+1 of the electorate, never of the ring."""
    return len(electorate) // 2 + 1


def count_in(electorate: tuple[SiteId, ...], sites: tuple[SiteId, ...]) -> int:
    return sum(1 for site in electorate if site in sites)
