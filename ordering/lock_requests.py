"""Asking for locks, and being asked (RMP §4.3, rule R13).

RMP has a packet for each request. Here an owner states everything it wants, in numbered versions, and
repeats the latest until the view has it. So nothing depends on which of several requests came first, came
twice or came late: the view remembers the last version of each owner that counted, and a version it has
seen changes nothing. A view change that erases the NewList erases the memory of it with it, and the owner,
which follows the view, states it again.

The token site takes in all statements it has with one NewList; ``locks`` says what becomes of them.
"""

from ordering.config import MS
from ordering.effects import LockGranted, LockLost, LockRefused
from ordering.errors import LockError
from ordering.locks import (
    LEASE_MS_MAX,
    NAME_BYTES_MAX,
    WISHES_MAX,
    earliest_expiry,
    has_room,
    is_sound,
    restate,
    settle,
    with_table,
)
from ordering.packets import LockRequest, LockStatement, Wish
from ordering.site import Site, Timer
from ordering.views import HANDLERS, LockName, LockTable, Owner, View


class LockRequests:
    """What this site wants locked, what its application was told, and what others want."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.owner = Owner(site.me, site.member.boot)
        self.version = 0
        self.wishes: dict[LockName, Wish] = {}
        self.held: dict[LockName, int] = {}  # locks the application was told it has, and their fences
        self.statements: dict[Owner, LockStatement] = {}
        self._expiry: tuple[LockTable | None, int] = (None, 0)

    # -- the application's door --------------------------------------------------------------------

    def request(self, name: LockName, lease_ms: int) -> None:
        """Want a lock; wanted already, renew its lease."""
        self._check_name(name)
        self._check(name, lease_ms)
        known = self.wishes.get(name)
        self.version += 1
        number = self.version if known is None else known.number
        self.wishes[name] = Wish(name, number, lease_ms, self.version)
        self._state()

    def release(self, name: LockName) -> None:
        """Want it no more. What is not wanted may be released as often as one likes: a lease may have
        ended a moment ago."""
        self._check_name(name)
        if self.wishes.pop(name, None) is None:
            return
        self.held.pop(name, None)
        self.version += 1
        self._state()

    def _check_name(self, name: LockName) -> None:
        if isinstance(name, str):
            if not 0 < _size(name) <= NAME_BYTES_MAX:
                raise LockError(f"name: {name!r} is not text of 1 to {NAME_BYTES_MAX} bytes; use another")
        elif type(name) is not int or name not in HANDLERS:
            raise LockError(
                f"name: {name!r} is no handler; use {HANDLERS[0]} to {HANDLERS[-1]}, or a name of your own"
            )

    def _check(self, name: LockName, lease_ms: int) -> None:
        site = self.site
        if site.outside or not site.epoch:
            raise LockError(f"lock: this site is {site.state.value}; ask after the first InstallView")
        if site.me not in site.view.electorate:
            raise LockError("lock: this site is a learner; ask again when a view has it in its electorate")
        if not 0 <= lease_ms <= LEASE_MS_MAX:
            raise LockError(f"lease_ms: {lease_ms} must be 0 (no lease) to {LEASE_MS_MAX}")
        if name in self.wishes:
            return
        if len(self.wishes) >= WISHES_MAX:
            raise LockError(f"lock: this site wants {len(self.wishes)} locks already; release one first")
        if not has_room(site.view.locks, name):
            raise LockError(
                f"name: no room to lock {name!r}; too many locks, or too many sites wait for it. Retry later,"
                " or use fewer and shorter names"
            )

    # -- stating it --------------------------------------------------------------------------------

    def _state(self) -> None:
        site = self.site
        statement = LockStatement(self.owner, self.version, tuple(self.wishes.values()))
        self.statements[self.owner] = statement
        site.multicast(LockRequest(site.head(), statement, forwarded=False))
        site.arm(Timer.LOCK, site.config.request_ms * MS + site.jitter(site.config.request_ms))

    def fire(self) -> None:
        """Say it again, until the view has it."""
        if self._is_owed():
            self._state()

    def follow_view(self) -> None:
        """A view change may have erased what was settled (called when settled)."""
        if self.version and self._is_owed():
            self.site.arm_if_idle(Timer.LOCK, 1)

    def _is_owed(self) -> bool:
        view = self.site.view
        return view.locks.version(self.owner) < self.version and is_sound(self.owner, view)

    # -- being asked -------------------------------------------------------------------------------

    def on_request(self, request: LockRequest) -> None:
        """Keep the latest statement of each voter, and pass it on once."""
        site = self.site
        statement = request.statement
        owner = statement.owner
        if not self._counts(statement):
            site.count("dropped: lock request, late or of a non-voter")
            return
        known = self.statements.get(owner)
        if known is None or known.version < statement.version:
            self.statements[owner] = statement
            if len(self.statements) > len(site.view.electorate):
                self._drop_settled()
        tail = site.queue.tail
        if not request.forwarded and tail is not None and tail.next_site != site.me:
            site.unicast(tail.next_site, LockRequest(site.head(), statement, forwarded=True))

    def _counts(self, statement: LockStatement) -> bool:
        view = self.site.view
        owner = statement.owner
        known = owner.site in view.electorate and is_sound(owner, view)
        return known and statement.version > view.locks.version(owner)

    def _drop_settled(self) -> None:
        """Keep what still counts: at most one statement of each voter."""
        self.statements = {o: said for o, said in self.statements.items() if self._counts(said)}

    def next_view(self, ts: int, time: int, *, yields: bool) -> View | None:
        """The token site's turn: all that was asked for, and every lease that has ended, in one view.

        ``yields``: data waits behind a view; requests wait a block, so that they cannot starve it. A lease
        does not: no slot has a time at which a lease of its view is over.
        """
        site = self.site
        view = site.view
        expired = 0 < self.expiry(view.locks) <= time
        if not expired and (yields or not self.statements):
            return None
        self._drop_settled()
        table = view.locks
        for statement in self.statements.values():
            table = restate(table, statement, time)
        table = settle(table, view, ts, time)
        if table == view.locks:
            return None
        return with_table(view, table, joint=site.stability.joint(view))

    def expiry(self, table: LockTable) -> int:
        """When the next lease ends. Looked up at every turn, so it is kept as long as the table is."""
        if self._expiry[0] is not table:
            self._expiry = (table, earliest_expiry(table))
        return self._expiry[1]

    # -- telling the application -------------------------------------------------------------------

    def tell(self, view: View, ts: int) -> None:
        """A majority holds the view at slot ``ts``: what of it is this site's (R5)."""
        out = self.site.out
        mine = {lock.name: lock for lock in view.locks.locks if lock.holder.owner == self.owner}
        lost = [name for name, fence in self.held.items() if name not in mine or mine[name].fence != fence]
        for name in lost:
            out.append(LockLost(name, self.held.pop(name)))
        for name, lock in mine.items():
            number = lock.holder.number
            wish = self.wishes.get(name)
            wanted = not number or (wish is not None and wish.number == number)
            if name not in self.held and wanted:
                self.held[name] = lock.fence
                out.append(LockGranted(name, lock.fence, ts))
        if self.wishes:
            self._drop_ended(view.locks, lost)

    def _drop_ended(self, table: LockTable, lost: list[LockName]) -> None:
        """Forget wishes that have counted and are neither granted nor waiting any more."""
        version = table.version(self.owner)
        for name, wish in list(self.wishes.items()):
            if wish.number > version:
                continue
            lock = table.lock(name)
            claims = () if lock is None else (lock.holder, *lock.queue)
            if not any(c.owner == self.owner and c.number == wish.number for c in claims):
                del self.wishes[name]
                if name not in lost:
                    self.site.out.append(LockRefused(name))


def _size(name: str) -> int:
    """Bytes on the wire; 0 if it cannot be written."""
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        return 0
