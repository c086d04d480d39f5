"""How a replica goes when it is told to: it waits for its own calls, and leaves the ring."""

import asyncio
from enum import StrEnum

from ordering.driver import Group
from ordering.errors import MembershipError
from rsm.calls import Calls


class Departure(StrEnum):
    """How a replica has stopped, as the others see it."""

    RETIRED = "it has left the ring, and the others go on without it"
    NEEDED = "as by a crash: the others are too few to go on without it"
    LATE = "as by a crash: it was not out of the ring in time"
    OUTSIDE = "it was not in the ring"


class Going:
    """A departure under way."""

    def __init__(self, group: Group, calls: Calls, seconds: float) -> None:
        self._task = asyncio.get_running_loop().create_task(_depart(group, calls, seconds))

    async def end(self) -> Departure:
        try:
            await asyncio.wait([self._task])
        finally:
            self._task.cancel()
        return Departure.LATE if self._task.cancelled() else self._task.result()

    def hurry(self) -> None:
        self._task.cancel()


async def _depart(group: Group, calls: Calls, seconds: float) -> Departure:
    try:
        async with asyncio.timeout(seconds):
            await calls.drained(seconds)
            if await group.retire():
                return Departure.RETIRED
            return Departure.OUTSIDE if group.is_over else Departure.NEEDED
    except TimeoutError:
        return Departure.LATE
    except MembershipError:
        return Departure.OUTSIDE
