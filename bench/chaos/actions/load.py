"""Transfers without end, from outside the group and from its sites: alone, behind others, and as one."""

import asyncio
from random import Random
from typing import Final

from apps.actions.book import LISTED_MAX
from apps.actions.errors import (
    ActionAborted,
    OperationFailed,
    RequestRefused,
    ResultChanged,
    SiteUnavailable,
)
from apps.actions.handles import ActionHandle
from apps.actions.initiator import Initiator
from apps.actions.ledger import ActionLedger
from apps.actions.types import Action
from bench.chaos.actions.bank import ACCOUNTS, Move, account_of, move, name_of
from bench.chaos.actions.history import Begun, Told
from bench.chaos.history import Ended, Notes
from bench.chaos.load import FETCH_SECONDS, CallerSetup, Calling
from bench.member import forget_settings, heard
from bench.wire import new_loop
from bench.workers import Link
from ordering.errors import OrderingError
from rsm.client import Client, ClientConfig
from rsm.errors import CallError, OutcomeUnknown, RsmError

DECIDED_SECONDS: Final = 4.0  # of the group's time
CALL_SECONDS: Final = 20.0
AMOUNT_MAX: Final = 60
ATTEMPTED_SHARE: Final = 0.6
BEHIND_SHARE: Final = 0.2
MUTUAL_SHARE: Final = 0.1
_SITES: Final = (2, 2, 2, 3)  # that money goes between


class Transfers(Calling):
    """Begun by one process. ``sites``: how many there are."""

    def __init__(self, by: Initiator, client: int, notes: Notes, rng: Random, sites: int) -> None:
        super().__init__(client, notes, rng)
        self._by = by
        self._sites = sites

    def _draw(self) -> list[Move]:
        """From one account to one or two others, each at a site of its own."""
        rng = self._rng
        first, *others = rng.sample(range(self._sites), min(rng.choice(_SITES), self._sites))
        amount = rng.randint(1, AMOUNT_MAX)
        into = [
            Move(name_of(site), account_of(rng.randrange(ACCOUNTS)), amount * (number + 1))
            for number, site in enumerate(others)
        ]
        out = -sum(each.amount for each in into)
        return [Move(name_of(first), account_of(rng.randrange(ACCOUNTS)), out), *into]

    def _action(self) -> ActionHandle:
        self._requests += 1
        return self._by.action(f"{self._client}-{self._requests}", timeout=DECIDED_SECONDS)

    async def call(self) -> bool:
        kind = self._rng.random()
        first = self._action()
        if kind >= BEHIND_SHARE + MUTUAL_SHARE:
            return await self._carry_out(first)
        second = self._action()
        second.read_from(first)
        mutual = kind < MUTUAL_SHARE
        if mutual:
            first.read_from(second)
        done = await asyncio.gather(
            self._carry_out(first, *([second.id] if mutual else [])), self._carry_out(second, first.id)
        )
        return any(done)

    async def _carry_out(self, action: ActionHandle, *depends: str) -> bool:
        """False if it was refused."""
        moves, attempted = self._draw(), self._rng.random() < ATTEMPTED_SHARE
        self._notes.write(Begun(action.id, moves, list(depends)))
        ended, why = Ended.UNKNOWN, ""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                for each in moves:
                    operation = move(action.id, each.account, each.amount)
                    if attempted:
                        await action.at(each.site, operation)
                    else:
                        action.add(each.site, operation)
                await action.commit()
            ended = Ended.OK
        except ActionAborted as aborted:
            ended, why = Ended.REJECTED, aborted.reason
        except RequestRefused as refusal:
            # Of this id there is one already only if it was requested before, and the answer got lost.
            ended = Ended.UNKNOWN if refusal.code == "exists" else Ended.REFUSED
            why = str(refusal)
        except (OutcomeUnknown, TimeoutError) as error:
            why = str(error)
        except (SiteUnavailable, OperationFailed, ResultChanged, CallError, OrderingError) as error:
            ended, why = Ended.REFUSED, f"{type(error).__name__}: {error}"
        action.abort()  # who waits for it hears that it will never be requested
        self._notes.write(Told(action.id, ended, why))
        return ended is not Ended.REFUSED


# -- a process outside the group -----------------------------------------------------------------


class ActionCallerSetup(CallerSetup, frozen=True, kw_only=True):
    sites: int


def action_caller(link: Link) -> None:
    setup: ActionCallerSetup = link.hear()
    forget_settings()
    loop = new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_call(link, setup))


async def _call(link: Link, setup: ActionCallerSetup) -> None:
    client = Client(ActionLedger, setup.config())
    await client.open()
    initiator = Initiator(client)
    load = Transfers(initiator, setup.client, Notes(setup.notes), Random(setup.seed), setup.sites)
    load.start(setup.tasks, setup.pause_s)
    link.say("calling")
    while True:
        match await heard(link):
            case "quiet":
                await load.stop()
                await initiator.__aexit__()
                client.close()
                link.say("")
            case "order":
                link.say(await fetch_actions(setup.config()))


async def fetch_actions(config: ClientConfig) -> list[Action] | str:
    """All that the ledger has, or why they cannot be told."""
    found: list[Action] = []
    try:
        async with Client(ActionLedger, config) as proxy:
            asking = proxy.with_options(timeout=FETCH_SECONDS)
            while page := await asking.actions(None, found[-1].id if found else "", LISTED_MAX):
                found.extend(page)
    except (RsmError, TimeoutError, OrderingError) as error:
        return f"the actions could not be fetched: {type(error).__name__}: {error}"
    return found
