"""What initiators ask for: transfers between accounts of several sites, alone, in chains and in circles.

Many have their sites vote before. Offers and answers get lost, come twice, or late; and who has all votes
requests it at once, much later, or never.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

import msgspec

from apps.actions.records import EARLY
from apps.actions.simulation.bank import ACCOUNTS, Later, Move
from apps.actions.simulation.sites import SiteProgram
from apps.actions.types import EarlyVote, NewAction, Offer, Operation
from ordering.config import MS

MadeCall: TypeAlias = tuple[str, tuple[Any, ...]]
TIMEOUTS_MS: Final = (60, 250, 800, 2_000, 2_000)
RECENT: Final = 12
PATIENCE_NS: Final = (60 * MS, 400 * MS)  # one of these


class Initiators:
    """All of a run. Each client of the simulator makes the calls that ``calls`` gives it."""

    def __init__(self, programs: dict[str, SiteProgram], later: Later) -> None:
        self.programs = programs
        self.later = later
        self.count = 0
        self.recent: list[str] = []
        self.ready: list[MadeCall] = []  # whoever calls next

    def calls(self, rng: Random) -> Iterator[MadeCall]:
        while True:
            while self.ready:
                yield self.ready.pop(0)
            drawn = rng.randrange(100)
            if drawn < 46:
                action = self._action(rng, self._new_id())
                Offering(self, rng, action)
                yield "action", (action.id,)
            elif drawn < 58:
                yield "request", (self._action(rng, self._new_id()),)
            elif drawn < 68:
                yield from self._chain(rng)
            elif drawn < 76:
                yield from self._circle(rng)
            elif drawn < 84:
                yield from self._opened(rng)
            elif drawn < 90 and self.recent:
                yield "abort", (rng.choice(self.recent), "changed my mind")
            else:
                yield rng.choice((("sites", ()), ("actions", (None, "", 5)), ("action", (self._some(rng),))))

    def _chain(self, rng: Random) -> Iterator[MadeCall]:
        """One after the other, now and then the other way round, now and then on one that never comes."""
        ids = [self._new_id() for _ in range(rng.randrange(2, 4))]
        depends: list[tuple[str, ...]] = [(self._some(rng),) if rng.randrange(2) else ()]
        depends += [(each,) for each in ids[:-1]]
        if rng.randrange(5) == 0:
            depends[0] = ("never",)
        made = [self._action(rng, each, needed) for each, needed in zip(ids, depends, strict=True)]
        if rng.randrange(2):
            made.reverse()
        for action in made:
            if action.depends or rng.randrange(2):
                yield "request", (action,)
            else:
                Offering(self, rng, action)

    def _circle(self, rng: Random) -> Iterator[MadeCall]:
        ids = [self._new_id() for _ in range(rng.randrange(2, 4))]
        for number, each in enumerate(ids):
            yield "request", (self._action(rng, each, (ids[number - 1],)),)

    def _opened(self, rng: Random) -> Iterator[MadeCall]:
        """Two transfers, each whole in itself: the second may get lost."""
        action, more = self._action(rng, self._new_id()), self._action(rng, "")
        yield "open", (action,)
        yield "add", (action.id, more.operations)
        if rng.randrange(4):
            yield "commit", (action.id,)

    def _new_id(self) -> str:
        self.count += 1
        made = f"t{self.count}"
        self.recent = [*self.recent[-RECENT:], made]
        return made

    def _some(self, rng: Random) -> str:
        return rng.choice(self.recent) if self.recent else "nobody"

    def _action(self, rng: Random, name: str, depends: tuple[str, ...] = ()) -> NewAction:
        """Money goes from one to others, and none is made or lost."""
        sites = rng.sample(list(self.programs), rng.choice((1, 2, 2, 2, 3)))
        amount = rng.randrange(1, 25) * len(sites)
        moves = [self._move(rng, sites[0], -amount)]
        share = amount // len(sites)
        moves += [self._move(rng, site, share) for site in sites]
        needed = tuple(each for each in depends if each != name)
        return NewAction(name, tuple(moves), needed, rng.choice(TIMEOUTS_MS), "simulated")

    def _move(self, rng: Random, site: str, delta: int) -> Operation:
        account = rng.choice(ACCOUNTS)
        expected = self.programs[site].disk.accounts[account] if rng.randrange(100) < 15 else None
        keys = None if rng.randrange(100) < 6 else (account,)
        return Operation(site, "move", msgspec.msgpack.encode(Move(account, delta, expected)), keys)


class Offering:
    """One action, from its offers to its request."""

    def __init__(self, by: Initiators, rng: Random, action: NewAction) -> None:
        self.by = by
        self.rng = rng
        self.action = action
        self.unit = f"{action.id}@{EARLY}{by.count}"
        self.votes: dict[str, EarlyVote | None] = {}
        self.is_over = False
        for site in self._sites:
            own = tuple(each for each in action.operations if each.site == site)
            for _ in range(self._copies()):
                by.programs[site].offer(self._delay(), Offer(self.unit, own), partial(self._answered, site))
        by.later(rng.choice(PATIENCE_NS), self._end)

    @property
    def _sites(self) -> dict[str, None]:
        return dict.fromkeys(operation.site for operation in self.action.operations)

    def _copies(self) -> int:
        return self.rng.choices((0, 1, 2), (4, 92, 4))[0]

    def _delay(self) -> int:
        late = self.rng.randrange(100) < 5
        return self.rng.randrange(1, 500 if late else 12) * MS

    def _answered(self, site: str, vote: EarlyVote | None) -> None:
        for _ in range(self._copies()):
            self.by.later(self._delay(), partial(self._heard, site, vote))

    def _heard(self, site: str, vote: EarlyVote | None) -> None:
        if not self.is_over:
            self.votes.setdefault(site, vote)
            if len(self.votes) == len(self._sites):
                self._end()

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        votes = tuple(vote for vote in self.votes.values() if vote is not None)
        made: MadeCall = ("request", (self.action,))
        if len(votes) == len(self._sites) or not all(vote.yes for vote in votes):
            made = ("request_voted", (self.action, self.unit, votes))
        drawn = self.rng.randrange(100)
        if drawn < 80:
            self.by.ready.append(made)
        elif drawn < 92:
            self.by.later(self.rng.randrange(100, 1500) * MS, partial(self.by.ready.append, made))
