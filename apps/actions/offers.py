"""Early votes of a site: who waits for them, and how long do they stand?

Those who have offered a unit wait for the vote. Once it is given it stands until the order says that it does
not count any more; if nobody requests the unit for a while, the site has that ordered itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from apps.actions.site import SiteCore
from apps.actions.types import TellReady

OFFERED_SECONDS: Final = 0.25  # that a vote which nobody requests is kept, or twice as long


class Offers:
    """``withdraw`` orders that, or tells why not; ``rest`` returns after so long, or when all is over."""

    def __init__(
        self, withdraw: Callable[[SiteCore], Awaitable[None]], rest: Callable[[float], Awaitable[None]]
    ) -> None:
        self._withdraw = withdraw
        self._rest = rest
        self._waiting: dict[str, list[asyncio.Future[TellReady]]] = {}  # by unit
        self._gone: asyncio.Future[None] | None = None

    # -- who waits -------------------------------------------------------------------------------

    def wait(self, unit: str) -> "asyncio.Future[TellReady]":
        """Begun before the core hears of the offer, for that may answer at once."""
        future: asyncio.Future[TellReady] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(unit, []).append(future)
        return future

    def tell(self, told: TellReady) -> None:
        for each in self._waiting.pop(told.unit, ()):
            if not each.done():
                each.set_result(told)

    def refuse_all(self) -> None:
        """There is nobody here any more who would vote."""
        for unit in list(self._waiting):
            self.tell(TellReady(unit, is_vote=False))

    # -- how long --------------------------------------------------------------------------------

    async def keep(self, core: SiteCore, is_current: Callable[[SiteCore], bool]) -> None:
        """While there are any: withdraw what was voted for and is not requested for so long."""
        before: set[str] = set()
        while is_current(core) and core.has_offers:
            offers = set(core.offers)
            if before & offers:
                await self._withdraw(core)
            before = offers
            await self._rest(OFFERED_SECONDS)

    async def let_go(self, core: SiteCore) -> None:
        """All of them, while duties are still followed."""
        if core.has_offers:
            self._gone = asyncio.get_running_loop().create_future()
            await self._withdraw(core)
            if core.has_offers:
                await self._gone

    def heard(self, core: SiteCore) -> None:
        """A page of duties."""
        if self._gone is not None and not core.has_offers and not self._gone.done():
            self._gone.set_result(None)
