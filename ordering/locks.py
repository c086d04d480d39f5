"""Locks as part of the view (RMP §3.3 and §4.3, rule R13): what becomes of them at a slot.

Everything here is pure: a table, a membership, a slot and its time give the next table. ``restate``
takes in what an owner wants; ``settle`` then sees to it that every lock is where it belongs. Both run at
the token site only; the others read the result in the NewList. So a view change that erases a NewList
erases the grants in it too, and joins, leaps and forks hand the locks over with the view.

A **handler lock** (1 … 6) always has an owner, a voter in the ring, for it says who answers. One that
nobody asked for falls to the first voter of the ring, and passes to whoever asks. Its owner loses it by
leaving the ring. A **named lock** exists while somebody has it or waits for it, and ends by release, by
the end of its lease or by the removal of its owner; never because the owner fell out of the ring, for
that happens to healthy sites, and a lock lost by mistake is worse than one kept a little longer.
"""

from ordering.config import MS
from ordering.packets import LockStatement, Wish
from ordering.views import (
    HANDLERS,
    UNCLAIMED,
    Claim,
    Lock,
    LockName,
    LockTable,
    Owner,
    View,
    ViewId,
)

NAME_BYTES_MAX = 255
NAMED_MAX = 256
WAITERS_MAX = 64
# Of one owner: they travel in one packet.
WISHES_MAX = 64
# A promise carries two views, so a table must fit into a datagram more than twice.
TABLE_BYTES_MAX = 16_384
LEASE_MS_MAX = 30 * 24 * 3600 * 1000
CLAIM_BYTES = 48  # of a claim, or of a lock without its name and queue, on the wire at most


def with_locks(view: View, table: LockTable, ts: int, time: int) -> View:
    """The membership ``view``, opened at slot ``ts``, with the locks that were in force before it."""
    locks = settle(table, view, ts, time)
    return View(
        view.id, view.members, view.electorate, view.ring, view.joint_ts, view.joint_electorate, locks
    )


def with_table(view: View, table: LockTable, *, joint: bool) -> View:
    """The next revision of ``view``: the same membership, other locks."""
    revision = ViewId(view.id.epoch, view.id.revision + 1)
    if not joint:
        return View(revision, view.members, view.electorate, view.ring, locks=table)
    return View(
        revision, view.members, view.electorate, view.ring, view.joint_ts, view.joint_electorate, table
    )


# -- where every lock belongs ----------------------------------------------------------------------


def settle(table: LockTable, view: View, ts: int, time: int) -> LockTable:
    """Take locks from who may not have them, and grant what is free to who waits first."""
    known = {lock.name: lock for lock in table.locks}
    locks = [_settle_handler(known.get(number, Lock(number)), view, ts, time) for number in HANDLERS]
    for lock in table.locks:
        if isinstance(lock.name, str):
            settled = _settle_named(lock, view, ts, time)
            if settled.holder.number:
                locks.append(settled)
    versions = tuple(entry for entry in table.versions if is_sound(entry[0], view))
    return LockTable(tuple(locks), versions)


def is_sound(owner: Owner, view: View) -> bool:
    """Whether ``owner`` still exists: a member under the boot the view names; a session ends elsewhere."""
    if owner.session:
        return True
    member = view.member(owner.site)
    return member is not None and member.boot == owner.boot


def _may_answer(owner: Owner, view: View) -> bool:
    return is_sound(owner, view) and owner.site in view.ring and owner.site in view.electorate


def _settle_handler(lock: Lock, view: View, ts: int, time: int) -> Lock:
    queue = tuple(claim for claim in lock.queue if is_sound(claim.owner, view))
    lock = Lock(lock.name, lock.holder, lock.fence, lock.expires, queue)
    free = not _may_answer(lock.holder.owner, view) or _has_expired(lock, time)
    first = next((claim for claim in queue if _may_answer(claim.owner, view)), None)
    if first is not None and (free or not lock.holder.number):
        return _grant(lock, first, ts, time)
    if not free:
        return lock
    for site in view.ring:
        member = view.member(site)
        if member is not None and site in view.electorate:
            return _grant(lock, Claim(Owner(site, member.boot), 0, 0), ts, time)
    return Lock(lock.name, queue=queue)


def _settle_named(lock: Lock, view: View, ts: int, time: int) -> Lock:
    queue = tuple(claim for claim in lock.queue if is_sound(claim.owner, view))
    lock = Lock(lock.name, lock.holder, lock.fence, lock.expires, queue)
    if lock.holder.number and is_sound(lock.holder.owner, view) and not _has_expired(lock, time):
        return lock
    return _grant(lock, queue[0], ts, time) if queue else Lock(lock.name)


def _has_expired(lock: Lock, time: int) -> bool:
    return 0 < lock.expires <= time


def _grant(lock: Lock, claim: Claim, ts: int, time: int) -> Lock:
    """The slot is the fencing token: slots only grow, so it is higher than that of every grant before."""
    queue = tuple(waiting for waiting in lock.queue if waiting is not claim)
    return Lock(lock.name, claim, ts, _end_of_lease(claim, time), queue)


def _end_of_lease(claim: Claim, time: int) -> int:
    return time + claim.lease_ms * MS if claim.lease_ms else 0


def earliest_expiry(table: LockTable) -> int:
    """When the next lease ends, in slot time; 0 if none does."""
    return min((lock.expires for lock in table.locks if lock.expires), default=0)


# -- what an owner wants ---------------------------------------------------------------------------


def restate(table: LockTable, statement: LockStatement, time: int) -> LockTable:
    """The table after an owner has said what it wants; to be settled. What is already known changes
    nothing, and a wish that was known before is not granted a second time."""
    owner = statement.owner
    last = table.version(owner)
    if statement.version <= last:
        return table
    wishes = {wish.name: wish for wish in statement.wishes}
    locks = {lock.name: _heed(lock, owner, wishes.get(lock.name), last, time) for lock in table.locks}
    _admit(locks, statement, last, _table_bytes(locks, table))
    versions = (*(entry for entry in table.versions if entry[0] != owner), (owner, statement.version))
    return LockTable(tuple(locks.values()), versions)


def _heed(lock: Lock, owner: Owner, wish: Wish | None, last: int, time: int) -> Lock:
    """One lock after its owner, or someone who waits for it, has spoken."""
    queue = tuple(c for c in lock.queue if c.owner != owner or (wish is not None and c.number == wish.number))
    holder, fence, expires = lock.holder, lock.fence, lock.expires
    if holder.owner == owner and holder.number:
        if wish is None or wish.number != holder.number:
            holder, fence, expires = UNCLAIMED, 0, 0
        elif wish.renewed > last and not _has_expired(lock, time):
            holder = Claim(owner, holder.number, wish.lease_ms)
            expires = _end_of_lease(holder, time)
    return Lock(lock.name, holder, fence, expires, queue)


def _admit(locks: dict[LockName, Lock], statement: LockStatement, last: int, size: int) -> None:
    """Take in what is new since version ``last``. Whatever was wished for before has had its turn: where
    it neither has the lock nor waits for it, it has ended."""
    for wish in statement.wishes:
        if wish.number > last:
            size = _queue(locks, wish, statement.owner, size)


def _queue(locks: dict[LockName, Lock], wish: Wish, owner: Owner, size: int) -> int:
    """Let a new wish wait its turn, if there is room; returns the size of the table."""
    lock = locks.get(wish.name, Lock(wish.name))
    named = sum(1 for name in locks if isinstance(name, str))
    larger = size + (CLAIM_BYTES if wish.name in locks else claim_bytes(wish.name))
    full = wish.name not in locks and isinstance(wish.name, str) and named >= NAMED_MAX
    if full or len(lock.queue) >= WAITERS_MAX or larger > TABLE_BYTES_MAX:
        return size
    claim = Claim(owner, wish.number, wish.lease_ms)
    locks[wish.name] = Lock(lock.name, lock.holder, lock.fence, lock.expires, (*lock.queue, claim))
    return larger


def has_room(table: LockTable, name: LockName) -> bool:
    """Whether a new wish for ``name`` would be heeded if nothing else came first."""
    lock = table.lock(name)
    locks = {known.name: known for known in table.locks}
    size = _table_bytes(locks, table)
    if lock is not None:
        return len(lock.queue) < WAITERS_MAX and size + CLAIM_BYTES <= TABLE_BYTES_MAX
    named = sum(1 for known in locks if isinstance(known, str))
    return named < NAMED_MAX and size + claim_bytes(name) <= TABLE_BYTES_MAX


def claim_bytes(name: LockName) -> int:
    return 2 * CLAIM_BYTES + (len(name.encode()) if isinstance(name, str) else 1)


def _table_bytes(locks: dict[LockName, Lock], table: LockTable) -> int:
    claims = sum(len(lock.queue) for lock in locks.values()) + len(table.versions)
    return CLAIM_BYTES * claims + sum(claim_bytes(name) for name in locks)
