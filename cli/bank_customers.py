"""Customers of a bank: they have money moved between accounts of different sites, all the time."""

import asyncio
import os
from collections import Counter
from enum import StrEnum
from random import Random
from typing import Final

import msgspec

from apps.actions import ActionAborted, ActionManager, Initiator
from apps.bank import credit, debit
from ordering.errors import OrderingError
from rsm.errors import OutcomeUnknown, RsmError

SETTINGS: Final = "RSM_BANK_CUSTOMERS"
AMOUNT_MAX: Final = 200
UNSEEN: Final = 0.3  # of transfers that are requested without asking first


class Settings(msgspec.Struct, frozen=True):
    sites: tuple[str, ...]
    people: tuple[str, ...]
    rate: float
    seed: int | None = None


class Ended(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    REFUSED = "refused"  # nothing of it was ordered
    UNKNOWN = "unknown"


class Customers:
    """``unknown``: transfers that nobody here was told the end of."""

    def __init__(self, initiator: Initiator, settings: Settings) -> None:
        self._initiator = initiator
        self._settings = settings
        self._random = Random(settings.seed)
        self.ended: Counter[Ended] = Counter()
        self.unknown: dict[str, None] = {}

    async def transfer(self) -> Ended:
        """One, between two sites."""
        how = await self._transfer()
        self.ended[how] += 1
        return how

    async def _transfer(self) -> Ended:
        random = self._random
        here, there = random.sample(self._settings.sites, 2)
        amount = random.randint(1, AMOUNT_MAX)
        take = debit(random.choice(self._settings.people), amount)
        give = credit(random.choice(self._settings.people), amount)
        action = self._initiator.action()
        try:
            if random.random() < UNSEEN:
                action.add(here, take)
                action.add(there, give)
            else:
                await action.at(here, take)
                await action.at(there, give)
            await action.commit()
        except ActionAborted:
            return Ended.ABORTED
        except (OutcomeUnknown, TimeoutError):
            self.unknown[action.id] = None
            return Ended.UNKNOWN
        except asyncio.CancelledError:
            self.unknown[action.id] = None
            raise
        except (RsmError, OrderingError):
            return Ended.REFUSED
        return Ended.COMMITTED

    async def come(self) -> None:
        """As many a second as the settings say, on the average, whether or not those before are done."""
        under_way: set[asyncio.Task[Ended]] = set()
        try:
            while True:
                await asyncio.sleep(self._random.expovariate(self._settings.rate))
                task = asyncio.ensure_future(self.transfer())
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


async def at_a_site(manager: ActionManager) -> None:
    """What `rsm site --run` runs."""
    settings = msgspec.json.decode(os.environ[SETTINGS], type=Settings)
    await Customers(manager, settings).come()
