"""A site's own database: accounts, on a disk that is not the ring's.

What is done takes time and is durable at its end. If the process dies before, it is there afterwards or not;
whoever asked for it will never know.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final, TypeAlias

import msgspec

from apps.actions.records import keys_of
from apps.actions.types import Operation
from ordering.config import MS

ACCOUNTS: Final = ("0", "1", "2", "3")
BALANCE: Final = 100
SWEEP_NS: Final = 20 * MS  # until an intent goes that is applied; a crash leaves it


Later: TypeAlias = Callable[[int, Callable[[], object]], None]


class Move(msgspec.Struct, frozen=True, array_like=True):
    """An operation's arguments. ``expected``: the balance its initiator was told, None if it did not ask."""

    account: str
    delta: int
    expected: int | None = None


def moved(operation: Operation) -> Move:
    return msgspec.msgpack.decode(operation.arguments, type=Move)


class Disk:
    """What survives a crash."""

    def __init__(self) -> None:
        self.accounts = dict.fromkeys(ACCOUNTS, BALANCE)
        self.intents: dict[str, tuple[int, tuple[Operation, ...]]] = {}  # with the chain they were made in
        self.applied: dict[str, int] = {}  # marks: how often, which must be once


class Witness:
    """Who sees what disks do (``checkers.py``)."""

    def preparing(self, site: str, unit: str, others: list[str]) -> None:
        """``others``: units that touch the same, and are under way there."""

    def waiting(self, site: str, unit: str, offers: list[str]) -> None:
        """A unit that the ledger asks for; ``offers``: those before it that nobody has requested."""

    def durable(self, site: str, unit: str) -> None:
        """An intent is."""

    def applied(self, site: str, unit: str, operations: tuple[Operation, ...]) -> None: ...

    def undone(self, site: str, unit: str) -> None: ...


class Bank:
    """One site's, for one life of its process. ``later`` calls after so many nanoseconds, if that still
    lives."""

    def __init__(self, site: str, disk: Disk, rng: Random, witness: Witness, later: Later) -> None:
        self.site = site
        self.disk = disk
        self.rng = rng
        self.witness = witness
        self.later = later
        self.is_calm = False  # nothing fails any more
        self._under_way: dict[tuple[str, str], Callable[[], str]] = {}
        self._touched: dict[str, tuple[Operation, ...]] = {}

    def crash(self) -> None:
        for finish in self._under_way.values():
            if self.rng.randrange(2):
                finish()
        self._under_way.clear()

    def prepare(
        self, unit: str, chain: int, operations: tuple[Operation, ...], done: Callable[[str, str], None]
    ) -> None:
        waiting = [each for each in self.disk.intents if each not in self.disk.applied]
        others = [each for each in (*self._touched, *waiting) if each != unit]
        others = [each for each in dict.fromkeys(others) if self._compete(each, operations)]
        self.witness.preparing(self.site, unit, others)
        self._touched[unit] = operations
        hangs = not self.is_calm and self.rng.randrange(100) < 8
        takes = self.rng.randrange(1, 12) * MS + (self.rng.randrange(50, 900) * MS if hangs else 0)

        def finish() -> str:
            error = self._objection(operations)
            if not error:
                self._keep_intent(unit, chain, operations)
            return error

        self._do("prepare", unit, takes, finish, done)

    def _compete(self, other: str, operations: tuple[Operation, ...]) -> bool:
        theirs = self._touched.get(other) or self.disk.intents[other][1]
        mine, yours = keys_of(operations), keys_of(theirs)
        return mine is None or yours is None or any(key in yours for key in mine)

    def _objection(self, operations: tuple[Operation, ...]) -> str:
        if not self.is_calm and self.rng.randrange(100) < 4:
            return "the disk is full"
        balances = dict(self.disk.accounts)
        for operation in operations:
            move = moved(operation)
            if move.expected is not None and balances[move.account] != move.expected:
                return f"{move.account} has {balances[move.account]}, not {move.expected}"
            balances[move.account] += move.delta
            if balances[move.account] < 0:
                return f"{move.account} has too little"
        return ""

    def _keep_intent(self, unit: str, chain: int, operations: tuple[Operation, ...]) -> None:
        self.disk.intents[unit] = (chain, operations)
        self.witness.durable(self.site, unit)

    def commit(self, unit: str, done: Callable[[str, str], None]) -> None:
        fails = not self.is_calm and self.rng.randrange(100) < 8

        def finish() -> str:
            if fails:
                return "the database is locked"
            if self._is_applied(unit):
                self._sweep(unit)
                return ""
            intent = self.disk.intents.get(unit)
            if intent is None:
                return "there is no intent"
            for operation in intent[1]:
                move = moved(operation)
                self.disk.accounts[move.account] += move.delta
            self.disk.applied[unit] = self.disk.applied.get(unit, 0) + 1
            self._touched.pop(unit, None)
            self.witness.applied(self.site, unit, intent[1])
            self._sweep(unit)
            return ""

        self._do("commit", unit, self.rng.randrange(1, 8) * MS, finish, done)

    def _is_applied(self, unit: str) -> bool:
        return unit in self.disk.applied

    def _sweep(self, unit: str) -> None:
        self.later(SWEEP_NS, partial(self.disk.intents.pop, unit, None))

    def abort(self, unit: str, done: Callable[[str, str], None]) -> None:
        fails = not self.is_calm and self.rng.randrange(100) < 3

        def finish() -> str:
            if fails:
                return "the database is locked"
            if self.disk.intents.pop(unit, None) is not None:
                self.witness.undone(self.site, unit)
            self._touched.pop(unit, None)
            return ""

        self._do("abort", unit, self.rng.randrange(1, 4) * MS, finish, done)

    def _do(
        self, what: str, unit: str, takes: int, finish: Callable[[], str], done: Callable[[str, str], None]
    ) -> None:
        key = (what, unit)
        self._under_way[key] = finish

        def end() -> None:
            del self._under_way[key]
            done(unit, finish())

        self.later(takes, end)


class Witnesses(Witness):
    """Several."""

    def __init__(self, each: Sequence[Witness]) -> None:
        self._each = each

    def preparing(self, site: str, unit: str, others: list[str]) -> None:
        for witness in self._each:
            witness.preparing(site, unit, others)

    def waiting(self, site: str, unit: str, offers: list[str]) -> None:
        for witness in self._each:
            witness.waiting(site, unit, offers)

    def durable(self, site: str, unit: str) -> None:
        for witness in self._each:
            witness.durable(site, unit)

    def applied(self, site: str, unit: str, operations: tuple[Operation, ...]) -> None:
        for witness in self._each:
            witness.applied(site, unit, operations)

    def undone(self, site: str, unit: str) -> None:
        for witness in self._each:
            witness.undone(site, unit)
