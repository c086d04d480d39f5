"""A small application for tests of the driver: its state is a hash of all it applied, in order."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import NamedTuple

from ordering import (
    Config,
    Deliver,
    EndMembership,
    InstallView,
    LevelReached,
    RequestState,
    Retract,
    StateTransferred,
    View,
)
from ordering.driver import Driver, Group, Notice, Stopped

PATIENCE_S = 60.0
TRANSFER_RETRY_S = 0.02


class Saved(NamedTuple):
    """The application's state after slot ``ts``."""

    ts: int
    digest: str
    applied: int


Fetch = Callable[["Replica", RequestState], Awaitable[Saved | None]]


class Replica:
    """Listens to one group. ``fetch`` brings the state of a donor, or None if no donor is ready."""

    def __init__(self, fetch: Fetch) -> None:
        self.state = Saved(0, "", 0)
        self.majority = 0
        self.views: list[View] = []
        self.notices: list[Notice] = []
        self.calls = 0
        self.has_state = True
        self.group: Group
        self._fetch = fetch
        self._log: list[tuple[int, tuple[bytes, ...]]] = []
        self._wanted: RequestState | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def join(self, driver: Driver, config: Config, *, founder: bool = True) -> "Replica":
        self.group = driver.join(config, self.listen, founder=founder)
        return self

    def listen(self, notices: list[Notice]) -> None:
        self.calls += 1
        for notice in notices:
            self._hear(notice)
        self._apply()
        self._changed.set()

    def _hear(self, notice: Notice) -> None:
        match notice:
            case Deliver(_, deliveries):
                self._log += [(d.first_ts, d.messages) for d in deliveries if d.first_ts]
            case LevelReached(majority, _):
                self.majority = majority
            case Retract(after):
                self._log = [(ts, messages) for ts, messages in self._log if ts <= after]
            case InstallView(_, _, view):
                self.views.append(view)
            case RequestState():
                self._wanted = notice
                self.has_state = False
                if self._fetching is None:
                    self._fetching = asyncio.get_running_loop().create_task(self._transfer())
            case EndMembership() | Stopped():
                if self._fetching is not None:
                    self._fetching.cancel()
        if not isinstance(notice, Deliver | LevelReached):
            self.notices.append(notice)

    def _apply(self) -> None:
        if not self.has_state:
            return
        at, digest, applied = self.state
        while self._log and self._log[0][0] <= self.majority:
            first_ts, messages = self._log.pop(0)
            for ts, message in enumerate(messages, first_ts):
                if ts > at:
                    digest = blake2b(digest.encode() + message, digest_size=16).hexdigest()
                    applied += 1
                    at = ts
        self.state = Saved(max(at, self.majority), digest, applied)

    async def _transfer(self) -> None:
        while (wanted := self._wanted) is not None:
            saved = await self._fetch(self, wanted)
            if saved is None or saved.ts < wanted.ts or wanted is not self._wanted:
                await asyncio.sleep(TRANSFER_RETRY_S)
                continue
            self._wanted = None
            if saved.ts > self.state.ts:
                self.state = saved
            self.has_state = True
            self._apply()
            self.group.handle(StateTransferred(saved.ts))
        self._fetching = None

    async def until(self, reached: Callable[["Replica"], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached(self):
                self._changed.clear()
                await self._changed.wait()

    @property
    def view(self) -> View | None:
        return self.views[-1] if self.views else None

    @property
    def votes(self) -> bool:
        return self.view is not None and self.group.member.site in self.view.electorate


class House:
    """Drivers and replicas in one event loop; donors are asked directly."""

    def __init__(self) -> None:
        self.drivers: list[Driver] = []
        self.replicas: list[Replica] = []

    async def __aenter__(self) -> "House":
        return self

    async def __aexit__(self, *_: object) -> None:
        for driver in self.drivers:
            driver.close()
        await asyncio.sleep(0)  # the last notices are on their way

    async def open(self, bind: str = "127.0.0.1:0") -> Driver:
        driver = await Driver.open(bind=bind, insecure=True)
        self.drivers.append(driver)
        return driver

    def join(self, driver: Driver, config: Config, *, founder: bool = True) -> Replica:
        replica = Replica(self.fetch).join(driver, config, founder=founder)
        self.replicas.append(replica)
        return replica

    async def fetch(self, asker: Replica, wanted: RequestState) -> Saved | None:
        for replica in self.replicas:
            donates = replica.group.member.site in wanted.donors and replica.has_state
            if donates and replica.group.name == asker.group.name and not replica.group.is_over:
                return replica.state
        return None

    async def found(self, group: str = "orders", sites: int = 3, bind: str = "127.0.0.1:0") -> list[Replica]:
        """A group of so many drivers, born."""
        drivers = [await self.open(bind) for _ in range(sites)]
        config = Config(group=group, founders=tuple(driver.address for driver in drivers))
        replicas = [self.join(driver, config) for driver in drivers]
        for replica in replicas:
            await replica.until(lambda r: r.view is not None)
        return replicas


async def submit_all(replica: Replica, name: str, count: int, *, at_once: int = 50) -> None:
    for first in range(0, count, at_once):
        batch = tuple(f"{name} {number}".encode() for number in range(first, min(first + at_once, count)))
        await replica.group.submit_when_free(batch)


async def all_applied(replicas: list[Replica], count: int) -> None:
    """All have applied so many messages, and the same."""
    for replica in replicas:
        await replica.until(lambda r: r.state.applied >= count)
    assert {(r.state.applied, r.state.digest) for r in replicas} == {(count, replicas[0].state.digest)}
