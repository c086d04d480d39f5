"""How do actions stand? One look at the ledger's changes serves everybody in a process who waits."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from apps.actions.ledger import ActionLedger
from apps.actions.records import FORGOTTEN
from apps.actions.types import Action, State
from ordering.errors import NoPrimary, OrderingError, Overloaded
from rsm.client import Client
from rsm.errors import ChainChanged, OutcomeUnknown, RsmError
from rsm.proxy import Consistency
from rsm.replica import Replica

Through: TypeAlias = Replica[ActionLedger] | Client[ActionLedger]
Condition: TypeAlias = Callable[[Action], bool]

PAUSE_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 5.0  # who waits for longer has its action looked at by itself
IDLE_SECONDS: Final = 1.0  # until nobody looks any more: who has one action carried out has others
_UNKNOWN: Final = "the ledger knows no such action, or not any more"


def is_decided(action: Action) -> bool:
    return action.state.is_decided


def is_finished(action: Action) -> bool:
    """Everywhere, or aborted. A site that was given up is not waited for."""
    return action.state is State.ABORTED or (action.state is State.COMMITTED and not unfinished_at(action))


def unfinished_at(action: Action) -> tuple[str, ...]:
    """Sites that have not applied what is committed."""
    if action.state is not State.COMMITTED:
        return ()
    done = [each.site for each in action.finished if each.error in {"", FORGOTTEN}]
    return tuple(each for each in action.sites if each not in done)


def _progress(action: Action) -> tuple[bool, bool, int]:
    """Reads and changes may come in another order than they were made; an action never goes back."""
    return action.requested > 0, action.decided > 0, sum(not each.error for each in action.finished)


class Watch:
    """One action, for as long as somebody waits for it."""

    def __init__(self) -> None:
        self.latest: Action | None = None
        self._waiting: dict[asyncio.Future[Action], Condition] = {}
        self._error: Exception | None = None

    def tell(self, action: Action) -> None:
        if self.latest is None or _progress(action) >= _progress(self.latest):
            self.latest = action
        for future, holds in list(self._waiting.items()):
            if not future.done() and holds(action):
                future.set_result(action)

    def fail(self, error: Exception) -> None:
        self._error = error
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)

    async def until(self, holds: Condition) -> Action:
        if self.latest is not None and holds(self.latest):
            return self.latest
        if self._error is not None:
            raise self._error
        future: asyncio.Future[Action] = asyncio.get_running_loop().create_future()
        self._waiting[future] = holds
        try:
            return await future
        finally:
            del self._waiting[future]


class Outcomes:
    """All that is watched in a process. When nothing has been for a while, it costs nothing."""

    def __init__(self, through: Through) -> None:
        self._through = through
        self._proxy = through.proxy.with_options(consistency=Consistency.SEQUENTIAL)
        self._watches: dict[str, list[Watch]] = {}
        self._following: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    @contextmanager
    def watch(self, action: str) -> Iterator[Watch]:
        """From before its request on, so that nothing is missed; or see ``look``."""
        watch = Watch()
        self._watches.setdefault(action, []).append(watch)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._attend())
        try:
            yield watch
        finally:
            self._watches[action].remove(watch)
            if not self._watches[action]:
                del self._watches[action]
            if not self._watches and self._following is not None:
                self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._rest)

    def _rest(self) -> None:
        self._idle = None
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def look(self, action: str) -> Action | None:
        """As it is now, whoever has asked for it."""
        found = await self._through.proxy.action(action)
        if found is not None:
            self._tell(found)
        return found

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            self._fail(RsmError("nobody looks at the ledger any more: this was closed"))

    def _tell(self, action: Action) -> None:
        for watch in self._watches.get(action.id, ()):
            watch.tell(action)

    def _fail(self, error: Exception) -> None:
        unknown = OutcomeUnknown(f"how it stands cannot be told here any more: {error}")
        for watches in self._watches.values():
            for watch in watches:
                watch.fail(unknown)

    async def _attend(self) -> None:
        looking = asyncio.get_running_loop().create_task(self._look_again())
        try:
            await self._follow()
        finally:
            looking.cancel()

    async def _look_again(self) -> None:
        """What was forgotten before it was heard of is among no changes: a process that was paused, say."""
        while True:
            waiting = {each: list(watches) for each, watches in self._watches.items()}
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(OrderingError, RsmError, TimeoutError):  # as who follows finds out
                for action, watches in waiting.items():
                    left = [each for each in self._watches.get(action, ()) if each in watches]
                    if left:
                        await self._read(action, left)

    async def _follow(self) -> None:
        try:
            while True:
                try:
                    since = await self._refresh()
                    async for feed in self._through.follow(ActionLedger.changes, since):
                        for action in feed.events:
                            self._tell(action)
                except ChainChanged:
                    continue
                except (
                    NoPrimary,
                    Overloaded,
                    OutcomeUnknown,
                    TimeoutError,
                ):  # this replica is cut off, or the like
                    await asyncio.sleep(PAUSE_SECONDS)
        except (OrderingError, RsmError) as error:
            self._fail(error)
            self._following = None

    async def _refresh(self) -> int:
        """How everything stands that is watched; gives the slot from which on changes are to be followed."""
        since: int | None = None
        for action, watches in list(self._watches.items()):
            timestamp = await self._read(action, watches)
            since = timestamp if since is None else min(since, timestamp)
        return since or 0

    async def _read(self, action: str, watches: list[Watch]) -> int:
        """Tell how it stands; gives as of which slot."""
        # Of those the read misses nothing; others may be requested while it is under way.
        known = [each for each in watches if each.latest is not None]
        read = await self._proxy.reading("action", action)
        if read.value is not None:
            self._tell(read.value)
        else:
            for watch in known:
                watch.fail(OutcomeUnknown(_UNKNOWN))
        return read.timestamp
