"""Is the money all there? An audit of databases that nobody stops.

The databases of several sites are never looked at in the same instant, so their totals need not add up. What
has to add up is a **cut**: every site as of one slot of the order, with exactly those actions applied that
are committed by then. It is made of three looks:

1. the ledger, at a slot: what a site has reported as applied by then, it had applied before
2. each database, in one transaction: the balances, and the marks of units that are applied
3. the ledger again, at the cut's slot: all that was found applied must be committed there

An action that is committed by the cut's slot and has no mark in a database is *in flight* there, unless its
site had reported it before the first look: marks are dropped only after that. One that was reported between
the two looks, and has no mark, may be either; then the cut is made again. Otherwise a site's balances must be
those of the cut before, with the effects of what was applied since, account by account; and the balances of
all sites, with what is in flight, must be all the money there is.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from apps.actions import Action, ActionLedger, State
from apps.bank import effect_of
from cli.bank_crew import Snapshot
from ordering.errors import OrderingError
from rsm.client import Client
from rsm.errors import OutcomeUnknown

TRIES_MAX: Final = 200
LATEST: Final = 5

Look: TypeAlias = Callable[[], Awaitable[dict[str, Snapshot]]]


class Violation(Exception):
    """Money was made or lost, or an action is applied that was not committed."""


class Share(msgspec.Struct, frozen=True):
    """A site's in a cut."""

    total: int  # in its database
    in_flight: int  # committed, and not applied there yet
    unapplied: int  # so many actions
    prepared: dict[str, int]


class Cut(msgspec.Struct, frozen=True):
    slot: int
    shares: dict[str, Share]

    @property
    def money(self) -> int:
        return sum(each.total + each.in_flight for each in self.shares.values())


class Unclear(Exception):
    """A site has reported something between the looks."""


class Audit:
    """Of a bank with so much ``money``. The first cut is what the next are compared with."""

    def __init__(self, client: Client[ActionLedger], look: Look, money: int) -> None:
        self._client = client
        self._look = look
        self._money = money
        self._since = 0
        self._known: dict[str, Action] = {}  # undecided, or committed and not yet accounted for everywhere
        self._accounted: dict[str, set[str]] = {}  # sites, by actions
        self._committed: set[str] = set()  # units
        self._balances: dict[str, Counter[str]] = {}  # by sites, of what is accounted for
        self._turn = asyncio.Lock()
        self.cuts = 0
        self.decided: Counter[State] = Counter()
        self.latest: deque[Action] = deque(maxlen=LATEST)

    def is_undecided(self, action: str) -> bool:
        return action in self._known and not self._known[action].state.is_decided

    async def cut(self) -> Cut:
        """Check one. Raises ``Violation``; whatever keeps the ledger from being read is raised as it is."""
        async with self._turn:  # what another one accounts for meanwhile is not what this one has seen
            for _ in range(TRIES_MAX):
                await self._learn()
                self._account()
                found = await self._look()
                slot = await self._learn()
                try:
                    cut = self._judge(found, slot)
                except Unclear:
                    continue
                self.cuts += 1
                return cut
        raise Violation(f"no clear cut in {TRIES_MAX} tries; is a site reporting the same again and again?")

    async def _learn(self) -> int:
        """All changes up to a slot, which it gives."""
        while True:
            read = await self._client.proxy.reading("changes", self._since)
            for action in read.value.events:
                self._note(action)
            self._since = read.value.position
            if self._since >= read.timestamp:
                return self._since

    def _note(self, action: Action) -> None:
        before = self._known.get(action.id)
        if action.state.is_decided and (before is None or not before.state.is_decided):
            self.decided[action.state] += 1
            self.latest.append(action)
        if action.state is State.ABORTED:
            self._known.pop(action.id, None)
            self._accounted.pop(action.id, None)
            return
        if action.state is State.COMMITTED:
            self._committed.add(action.unit)
        self._known[action.id] = action

    def _account(self) -> None:
        """What sites have reported is in their databases, whatever these are asked from here on."""
        for action in list(self._known.values()):
            done = self._accounted.setdefault(action.id, set())
            for site in _reported(action) - done:
                if site in self._balances:
                    self._balances[site].update(_effects(action, site))
                done.add(site)
            if action.state is State.COMMITTED and done.issuperset(action.sites):
                del self._known[action.id], self._accounted[action.id]

    def _judge(self, found: Mapping[str, Snapshot], slot: int) -> Cut:
        shares = {}
        for site, snapshot in found.items():
            applied, in_flight = self._parted(site, snapshot)
            expected = Counter(snapshot.balances)
            for action in applied:
                expected.subtract(_effects(action, site))
            if site not in self._balances:
                self._committed |= snapshot.applied  # of an earlier life, if the ledger has forgotten it
                self._balances[site] = expected
            self._compare(site, expected)
            strange = snapshot.applied - self._committed
            if strange:
                raise Violation(f"{site} has applied {min(strange)}, which is not committed")
            flying = sum(sum(_effects(action, site).values()) for action in in_flight)
            total = sum(snapshot.balances.values())
            shares[site] = Share(total, flying, len(in_flight), snapshot.prepared)
        cut = Cut(slot, shares)
        if cut.money != self._money:
            raise Violation(f"at slot {slot} there is {cut.money}, and not {self._money}: {shares}")
        # A mark that is gone, of an action that is accounted for, does not come back.
        self._committed = {each.unit for each in self._known.values() if each.state is State.COMMITTED}
        self._committed.update(*(each.applied for each in found.values()))
        return cut

    def _parted(self, site: str, snapshot: Snapshot) -> tuple[list[Action], list[Action]]:
        """Committed actions that the site has not reported before: those it has applied, and the others."""
        applied, in_flight = [], []
        for action in self._known.values():
            if action.state is not State.COMMITTED or site not in action.sites:
                continue
            if site in self._accounted.get(action.id, ()):
                continue
            if action.unit in snapshot.applied:
                applied.append(action)
            elif site in _reported(action):
                raise Unclear
            else:
                in_flight.append(action)
        return applied, in_flight

    def _compare(self, site: str, balances: Counter[str]) -> None:
        known = self._balances[site]
        for account in known.keys() | balances.keys():
            if known[account] != balances[account]:
                raise Violation(
                    f"{site}: {account} has {balances[account]}, without what is not reported yet, and not"
                    f" {known[account]}"
                )


def _reported(action: Action) -> set[str]:
    return {each.site for each in action.finished if not each.error}


def _effects(action: Action, site: str) -> Counter[str]:
    changes: Counter[str] = Counter()
    for operation in action.operations:
        if operation.site == site:
            account, change = effect_of(operation)
            changes[account] += change
    return changes


async def in_turn(audit: Audit, pause: float, tell: Callable[[Cut], None]) -> None:
    """Cut after cut. While nothing can be read there is none."""
    while True:
        with suppress(TimeoutError, OutcomeUnknown, OrderingError):
            tell(await audit.cut())
        await asyncio.sleep(pause)
