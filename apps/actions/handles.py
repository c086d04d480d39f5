"""What a program holds in its hand: an action that is being put together.

::

    async with manager.action("transfer-42") as action:
        balance = await action.at("site-a", debit("alice", 10))
        with suppress(Rejected):
            async with action.nested() as part:
                await part.at("site-b", credit("bob", 10))
    # committed, or it has raised ActionAborted

Until it is left nothing is ordered, and nothing is held anywhere. Left by an exception, nothing happens.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from apps.actions.errors import ActionAborted, ActionMisused
from apps.actions.operations import BoundOperation, seen_of
from apps.actions.outcomes import Outcomes, is_decided
from apps.actions.types import Action, EarlyVote, NewAction, Operation, State

R = TypeVar("R")


class Early(NamedTuple):
    """What sites have voted before an action is requested; and on what, by its name."""

    unit: str
    votes: tuple[EarlyVote, ...]


class Backend(Protocol):
    """What an action needs of who has it carried out (``initiator``)."""

    name: str
    outcomes: Outcomes

    async def request(self, action: NewAction, early: Early | None = None) -> Action: ...

    async def offer(self, action: NewAction) -> Early | None: ...

    async def attempt(self, site: str, operations: Sequence[Operation], timeout: float) -> bytes: ...

    async def operations_of(self, id: str) -> tuple[Operation, ...]: ...  # noqa: A002

    async def finished(self, id: str) -> Action: ...  # noqa: A002

    def applied_here(self, action: Action) -> Awaitable[None]: ...

    def give_up(self, requesting: "asyncio.Future[Action]", reason: str) -> None: ...


class _Scope(ABC):
    """A list of operations that grows; an attempt carries out all of them that are at one site."""

    def __init__(self, by: Backend, timeout: float, turns: dict[str, asyncio.Lock]) -> None:
        self._by = by
        self._timeout = timeout
        self._turns = turns  # at one site the action does one thing after the other
        self._operations: list[Operation] = []
        self._is_open = True

    @abstractmethod
    async def _before(self, site: str) -> list[Operation]:
        """What attempts at a site see beside this scope's own operations."""

    def _check(self) -> None:
        if not self._is_open:
            raise ActionMisused("this action takes no more operations: it was left, aborted or committed")

    async def at(self, site: str, operation: BoundOperation[R]) -> R:
        """Have the operation attempted behind those that the action has there so far, and get its result. It
        becomes part of the action, which will commit only if the result is still the same then.

        Raises ``Rejected`` if the operation refuses, ``OperationFailed`` if it fails, ``ResultChanged`` if
        something that the action was told before is not so any more, ``SiteUnavailable`` if there is no
        answer; then the operation is no part of the action."""
        self._check()
        async with self._turns.setdefault(site, asyncio.Lock()):
            before = await self._before(site)
            own = [each for each in self._operations if each.site == site]
            result = await self._by.attempt(site, [*before, *own, operation.at(site)], self._timeout)
            value = operation.result(result)
            self._check()
            self._operations.append(operation.at(site, seen_of(result)))
        return value

    def add(self, site: str, operation: BoundOperation[R]) -> None:
        """Make it part of the action without an attempt, whatever its result will be."""
        self._check()
        self._operations.append(operation.at(site))

    def nested(self) -> "NestedAction":
        """A part that may fail alone: left by an exception, its operations are dropped, and the exception
        goes on; else they become this action's."""
        self._check()
        return NestedAction(self._by, self, self._timeout)


class NestedAction(_Scope):
    """What it does sees what the action around it has done."""

    def __init__(self, by: Backend, around: _Scope, timeout: float) -> None:
        super().__init__(by, timeout, around._turns)
        self._around = around

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if kind is None:
            self._around._check()
            self._around._operations.extend(self._operations)

    async def _before(self, site: str) -> list[Operation]:
        around = self._around
        self._around._check()
        own = [each for each in around._operations if each.site == site]
        return [*await around._before(site), *own]


class ActionHandle(_Scope):
    """An action of this process. As a context manager it is committed at the end, unless it was before."""

    def __init__(self, by: Backend, id: str, timeout: float) -> None:  # noqa: A002
        super().__init__(by, timeout, {})
        self.id = id
        self.record: Action | None = None  # as the ledger had it last, once commit was requested
        self._ended = State.OPEN  # without the ledger
        self._depends: dict[str, ActionHandle | None] = {}

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._is_open:
            await self.commit()

    @property
    def state(self) -> State:
        return self._ended if self.record is None else self.record.state

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self._operations)

    def read_from(self, other: "ActionHandle | str") -> None:
        """From here on attempts see what ``other`` has done so far, its operations before this action's: a
        handle, or the id of an action that is open in the ledger. This action commits only after it, or
        together with it, and aborts if it does."""
        self._check()
        if isinstance(other, str):
            self._depends.setdefault(other, None)
        else:
            self._depends[other.id] = other
        if self.id in self._depends:
            del self._depends[self.id]
            raise ActionMisused(f"action {self.id!r} cannot read from itself")

    async def _before(self, site: str) -> list[Operation]:
        found: list[Operation] = []
        await self._collect(site, found, {self.id})
        return found

    async def _collect(self, site: str, found: list[Operation], visited: set[str]) -> None:
        """Those of whatever it depends on, the farthest first. What is decided is in the database, or will
        never be."""
        for id, other in self._depends.items():  # noqa: A001
            if id in visited:
                continue
            visited.add(id)
            if other is None:
                found.extend(each for each in await self._by.operations_of(id) if each.site == site)
            elif not other.state.is_decided:
                await other._collect(site, found, visited)
                found.extend(each for each in other._operations if each.site == site)

    def abort(self) -> None:
        """Nothing of it was ordered, and nothing will be. Once commit is requested it does nothing: then to
        cancel who waits for it asks the group to abort."""
        if self._is_open:
            self._is_open = False
            self._ended = State.ABORTED

    async def commit(self) -> None:
        """Request it, and return when it is committed, and applied at this process' own site if that took
        part; or raise ``ActionAborted``. ``RequestRefused``: nothing happened. Who is cancelled meanwhile
        asks the group to abort; how it ended ``outcome`` tells. Without operations there is nothing to do."""
        self._check()
        self._is_open = False
        if not self._operations:
            self._ended = State.COMMITTED
            return
        action = NewAction(
            self.id, self.operations, tuple(self._depends), max(int(self._timeout * 1000), 1), self._by.name
        )
        early = await self._offered(action)
        with self._by.outcomes.watch(self.id) as watch:
            # To cancel who waits is not to cancel this: only its answer tells whose the id is.
            requesting = asyncio.ensure_future(self._by.request(action, early))
            try:
                self.record = await asyncio.shield(requesting)
                watch.tell(self.record)
                self.record = await watch.until(is_decided)
            except asyncio.CancelledError:
                self._by.give_up(requesting, "who has begun it does not wait any more")
                raise
        if self.record.state is State.ABORTED:
            raise ActionAborted(self.id, self.record.reason, self.record.votes)
        await self._by.applied_here(self.record)

    async def _offered(self, action: NewAction) -> Early | None:
        """Nothing is ordered by that, so who is cancelled here has aborted it."""
        if action.depends:
            return None
        try:
            return await self._by.offer(action)
        except asyncio.CancelledError:
            self._ended = State.ABORTED
            raise

    async def finished(self) -> None:
        """Returns when all sites have applied it; ``ActionAborted`` if none will."""
        if self._ended is State.COMMITTED:
            return
        if self.record is None:
            raise ActionMisused(f"action {self.id!r}: commit it first")
        self.record = await self._by.finished(self.id)
        if self.record.state is State.ABORTED:
            raise ActionAborted(self.id, self.record.reason, self.record.votes)
