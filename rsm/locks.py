"""Named locks of a replica, with fencing (R13).

::

    async with replica.lock("nightly job", lease_ms=5000) as grant:
        store.write(data, fencing_token=grant.fencing_token)

One replica of the group has a lock at a time, and within it one task. The token grows with every grant of the
lock. *A lock protects only what checks the token*: a process that was asleep may believe that it has a lock
which another has by now, and only who is written to can tell, by the smaller token. ``grant.is_lost`` says
what this replica knows.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ordering.effects import LockGranted, LockLost, LockRefused
from ordering.errors import LockError
from ordering.events import LockReleased, LockRequested


class Grant:
    """A lock while one has it. ``lost`` is done when it has ended before its release."""

    def __init__(self, name: str, fencing_token: int, lost: "asyncio.Future[None]") -> None:
        self.name = name
        self.fencing_token = fencing_token
        self.lost = lost

    @property
    def is_lost(self) -> bool:
        return self.lost.done()


class _Wanted:
    """A lock that some task here wants or has."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.granted: asyncio.Future[int] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()


class _Turn:
    """Tasks of this replica that want the same lock go one after the other."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Locks:
    """``tell`` brings the engine an event; it raises ``LockError`` where a lock cannot be asked for."""

    def __init__(
        self, tell: Callable[[LockRequested | LockReleased], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._tell = tell
        self._loop = loop
        self._wanted: dict[str, _Wanted] = {}
        self._turns: dict[str, _Turn] = {}

    @asynccontextmanager
    async def hold(self, name: str, lease_ms: int) -> AsyncIterator[Grant]:
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                wanted = self._wanted[name] = _Wanted(self._loop)
                try:
                    self._tell(LockRequested(name, lease_ms))
                    yield Grant(name, await wanted.granted, wanted.lost)
                finally:
                    del self._wanted[name]
                    self._tell(LockReleased(name))
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]

    # -- what the group says ---------------------------------------------------------------------

    def hear(self, notice: LockGranted | LockLost | LockRefused) -> None:
        """Handler locks, which have numbers, are the replica's own business."""
        wanted = self._wanted.get(notice.name) if isinstance(notice.name, str) else None
        if wanted is None:
            return
        match notice:
            case LockGranted(_, fence, _):
                if not wanted.granted.done():
                    wanted.granted.set_result(fence)
            case LockLost():
                self._lose(wanted)
            case LockRefused():
                if not wanted.granted.done():
                    wanted.granted.set_exception(LockError(f"lock {notice.name!r}: there is no room for it"))

    def interrupted(self) -> None:
        """The membership is over, and every lock it had with it; who waits is told to ask again."""
        for name, wanted in self._wanted.items():
            self._lose(wanted)
            if not wanted.granted.done():
                wanted.granted.set_exception(
                    LockError(f"lock {name!r}: this replica lost its place; ask again")
                )

    @staticmethod
    def _lose(wanted: _Wanted) -> None:
        if wanted.granted.done() and not wanted.lost.done():
            wanted.lost.set_result(None)
