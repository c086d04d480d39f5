"""What an operator may order of a running replica, over the bulk channel (``docs/operations.md``).

    asks      PointWanted(chain)         how far must a state be that is true now? (R11)
    asks      RemovalWanted(chain, site) take a voter out of the electorate, so that it can be replaced (R5)
    asks      ForkWanted(chain)          the majority is gone for good: go on without it, in a new chain (R9)
    asks      SaveWanted(chain)          save the state now, and not when the log has grown
    answers   Outcome

Every order names the chain it is meant for, and is safe to repeat: one that comes late, or twice, finds what
it wants done, or another chain, and does nothing. A replica waits some seconds for what was ordered to
happen; who asked asks again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

import msgspec

from ordering.driver import Group
from ordering.errors import OrderingError
from ordering.events import ChangeRequested, ForkRequested
from ordering.packets import ChangeKind
from ordering.views import SiteId
from rsm.executor import Executor
from rsm.logs import logger

log = logger(__name__)

WAIT_SECONDS: Final = 4.0


class _Order(msgspec.Struct, frozen=True, array_like=True):
    chain: int


class PointWanted(_Order, frozen=True, tag=16):
    pass


class RemovalWanted(_Order, frozen=True, tag=17):
    site: int


class ForkWanted(_Order, frozen=True, tag=18):
    pass


class SaveWanted(_Order, frozen=True, tag=19):
    pass


Order: TypeAlias = PointWanted | RemovalWanted | ForkWanted | SaveWanted


class Progress(StrEnum):
    DONE = "done"
    UNDER_WAY = "under way"
    REFUSED = "refused"


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """``chain`` and ``ts`` are where this replica stands; ``words`` say why it is not done."""

    progress: Progress
    chain: int
    ts: int
    words: str = ""


class Site(Protocol):
    """A replica, as far as orders reach."""

    @property
    def executor(self) -> Executor: ...

    def when_applied(self, ts: int) -> "asyncio.Future[None]": ...

    def save(self) -> Awaitable[str]:
        """Save the state; says why not."""


Read: TypeAlias = "Callable[[], asyncio.Future[None]]"


async def perform(order: Order, site: Site, group: Group | None, read: Read) -> Outcome:
    """``read`` is done when the state here has everything that was answered to anybody before."""
    chain = site.executor.group.chain
    if group is None or group.is_over or not chain:
        return _outcome(Progress.REFUSED, site, "this replica is no member now; ask another one")
    if chain != order.chain:
        done = isinstance(order, ForkWanted) and group.forks > 0
        words = "" if done else f"this replica is in chain {chain:x}, not in {order.chain:x}; look again"
        return _outcome(Progress.DONE if done else Progress.REFUSED, site, words)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            if isinstance(order, SaveWanted):
                words = await asyncio.shield(site.save())
                return _outcome(Progress.REFUSED if words else Progress.DONE, site, words)
            await _perform(order, site, group, read)
    except TimeoutError:
        return _outcome(Progress.UNDER_WAY, site, _WAITING[type(order)])
    except OrderingError as error:
        return _outcome(Progress.REFUSED, site, str(error))
    return _outcome(Progress.DONE, site)


async def _perform(order: Order, site: Site, group: Group, read: Read) -> None:
    match order:
        case PointWanted():
            await asyncio.shield(read())
        case RemovalWanted(_, subject):
            if _has(site, subject):
                log.warning("an operator removes a site", group=group.name, removed=f"{subject:x}")
                group.handle(ChangeRequested(ChangeKind.REMOVE, SiteId(subject)))
            while _has(site, subject):
                await site.when_applied(site.executor.applied + 1)
        case ForkWanted(chain):
            log.critical(
                "an operator orders this site to go on without a majority, in a new chain; what only the lost"
                " sites have is lost",
                group=group.name,
            )
            group.handle(ForkRequested())
            while site.executor.group.chain == chain:
                await site.when_applied(site.executor.applied + 1)
            log.critical(
                "it goes on in another chain", group=group.name, chain=f"{site.executor.group.chain:x}"
            )


_WAITING: Final[dict[type[Order], str]] = {
    PointWanted: "no majority has answered yet",
    RemovalWanted: "the removal is asked for and not ordered yet: the ring must be a majority of the voters"
    " before and after it",
    SaveWanted: "the state is being saved",
    ForkWanted: "the survivors have not found together yet",
}


def _outcome(progress: Progress, site: Site, words: str = "") -> Outcome:
    return Outcome(progress, site.executor.group.chain, site.executor.applied, words)


def _has(site: Site, subject: int) -> bool:
    view = site.executor.group.view
    return view is not None and subject in view.addresses
