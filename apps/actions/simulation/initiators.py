"""What initiators ask for: transfers between accounts of several sites, alone, in chains and in circles."""

from collections.abc import Iterator
from random import Random
from typing import Any, Final, TypeAlias

import msgspec

from apps.actions.simulation.bank import ACCOUNTS, Disk, Move
from apps.actions.types import NewAction, Operation

MadeCall: TypeAlias = tuple[str, tuple[Any, ...]]
TIMEOUTS_MS: Final = (60, 250, 800, 2_000, 2_000)
RECENT: Final = 12


class Initiators:
    """All of a run. Each client of the simulator makes the calls that ``calls`` gives it."""

    def __init__(self, disks: dict[str, Disk]) -> None:
        self.disks = disks
        self.count = 0
        self.recent: list[str] = []

    def calls(self, rng: Random) -> Iterator[MadeCall]:
        while True:
            drawn = rng.randrange(100)
            if drawn < 58:
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
            yield "request", (action,)

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
        sites = rng.sample(list(self.disks), rng.choice((1, 2, 2, 2, 3)))
        amount = rng.randrange(1, 25) * len(sites)
        moves = [self._move(rng, sites[0], -amount)]
        share = amount // len(sites)
        moves += [self._move(rng, site, share) for site in sites]
        needed = tuple(each for each in depends if each != name)
        return NewAction(name, tuple(moves), needed, rng.choice(TIMEOUTS_MS), "simulated")

    def _move(self, rng: Random, site: str, delta: int) -> Operation:
        account = rng.choice(ACCOUNTS)
        expected = self.disks[site].accounts[account] if rng.randrange(100) < 15 else None
        keys = None if rng.randrange(100) < 6 else (account,)
        return Operation(site, "move", msgspec.msgpack.encode(Move(account, delta, expected)), keys)
