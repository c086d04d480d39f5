"""Sites with real databases beside real replicas, in one process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from apps.actions.handles import ActionHandle
from apps.actions.initiator import Initiator
from apps.actions.ledger import ActionLedger
from apps.actions.manager import ActionManager
from apps.actions.operations import BoundOperation
from apps.actions.participant import Unit
from apps.actions.sql import SqlParticipant
from apps.actions.types import Operation, State
from rsm.replica import Replica
from tests.apps.actions.bank import balances, bank, sqlite
from tests.rsm.test_replica import crash, group_of

NAMES = ("a", "b", "c")


class Bank:
    """Three sites with an account each, of 100."""

    def __init__(self, replicas: list[Replica[Any]], directory: Path, *, offers: bool = True) -> None:
        self.replicas = replicas
        self.offers = offers
        self.urls = {name: sqlite(directory / f"{name}.db", **{name: 100}) for name in NAMES}
        self.participants: dict[str, Watched] = {}
        self.managers: dict[str, ActionManager] = {}

    async def start(self, name: str, replica: Replica[Any] | None = None) -> ActionManager:
        participant = self.participants[name] = Watched(self.urls[name])
        replica = replica or self.replicas[NAMES.index(name)]
        manager = ActionManager(replica, site=name, participant=participant, offers=self.offers)
        await manager.__aenter__()
        self.managers[name] = manager
        return manager

    async def stop(self, name: str) -> None:
        await self.managers.pop(name).__aexit__()

    async def crash(self, name: str) -> None:
        """The process is gone, as far as the others see: no word more from it, and its calls end nowhere."""
        await crash(self.managers[name]._replica)
        await self.stop(name)

    @property
    def found(self) -> list[int]:
        return [balances(self.urls[name])[name] for name in NAMES]


class Watched(SqlParticipant):
    """One that tests can hold up, or have fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url, bank)
        self.errors: dict[str, Exception] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.calls: list[tuple[str, str]] = []
        self.came: dict[str, asyncio.Event] = {}

    def hold(self, step: str) -> asyncio.Event:
        """Gives an event that is set when it comes there; it goes on by ``release``."""
        self.gates[step] = asyncio.Event()
        self.came[step] = asyncio.Event()
        return self.came[step]

    def release(self, step: str) -> None:
        self.gates.pop(step).set()

    async def _pass(self, step: str, unit: Unit) -> None:
        self.calls.append((step, unit.name.partition("@")[0]))
        if step in self.came:
            self.came[step].set()
        if step in self.gates:
            await self.gates[step].wait()
        if step in self.errors:
            raise self.errors[step]

    async def prepare(self, unit: Unit, operations: Sequence[Operation]) -> None:
        await self._pass("prepare", unit)
        await super().prepare(unit, operations)
        await self._pass("prepared", unit)

    async def commit(self, unit: Unit, operations: Sequence[Operation]) -> None:
        await self._pass("commit", unit)
        await super().commit(unit, operations)
        await self._pass("committed", unit)

    async def abort(self, unit: Unit) -> None:
        await self._pass("abort", unit)
        await super().abort(unit)
        await self._pass("aborted", unit)


@asynccontextmanager
async def banks(
    directory: Path, names: Sequence[str] = NAMES, *, offers: bool = True, **changes: Any
) -> AsyncIterator[Bank]:
    """``offers``: whether sites are asked for their votes before a request is ordered."""
    async with group_of(ActionLedger, **changes) as replicas:
        made = Bank(replicas, directory, offers=offers)
        try:
            for name in names:
                await made.start(name)
            yield made
        finally:
            for name in list(made.managers):
                await made.stop(name)


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def until_state(manager: Initiator, id_: str, state: State) -> None:
    while (found := await manager.ledger.action(id_)) is None or found.state is not state:
        await asyncio.sleep(0.01)


async def until_voted(manager: Initiator, id_: str, site: str) -> None:
    while True:
        found = await manager.ledger.action(id_)
        if found is not None and site in {vote.site for vote in found.votes}:
            return
        await asyncio.sleep(0.01)


async def carry_out(action: ActionHandle, **operations: BoundOperation[Any]) -> None:
    """Without attempts."""
    async with action:
        for site, operation in operations.items():
            action.add(site, operation)
