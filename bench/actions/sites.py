"""The three processes of each side: two with a database, and one that has transfers carried out.

Both sides carry out the same operations with the same participant, which notes the time at which it begins
and ends each step; all processes of one machine have one clock.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from sqlalchemy import create_engine, insert
from sqlalchemy.pool import NullPool

from apps import bank
from apps.actions.errors import ActionError
from apps.actions.initiator import Initiator
from apps.actions.ledger import ActionLedger
from apps.actions.manager import ActionManager
from apps.actions.participant import Unit
from apps.actions.sql import SqlParticipant
from apps.actions.types import Operation
from bench.actions.two_phase import Aborted, Coordinator, DecisionLog, Worker
from bench.errors import BenchError
from bench.member import Network, Settings, forget_settings, heard
from bench.wire import new_loop
from bench.workers import Link
from rsm import Replica, ReplicaConfig

GROUP: Final = "bench"
NAMES: Final = ("site-a", "site-b")
CALLER: Final = len(NAMES)  # the third process
ACCOUNTS: Final = 256
BALANCE: Final = 1_000_000_000
_BIRTH_SECONDS: Final = 20.0


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """``databases``: of the sites. ``log``: of the ledger's replicas, or the coordinator; None: in memory."""

    databases: Path
    log: Path | None

    def url(self, me: int) -> str:
        return f"sqlite:///{self.databases}/{NAMES[me]}.db"

    def make_accounts(self) -> None:
        for me in range(len(NAMES)):
            engine = create_engine(self.url(me), poolclass=NullPool)
            with engine.begin() as connection:
                bank.metadata.create_all(connection)
                rows = [{"name": f"{number}", "balance": BALANCE} for number in range(ACCOUNTS)]
                connection.execute(insert(bank.accounts), rows)
            engine.dispose()

    def balances(self) -> list[int]:
        """All money of each site."""
        found = []
        for me in range(len(NAMES)):
            engine = create_engine(self.url(me), poolclass=NullPool)
            with engine.connect() as connection:
                found.append(bank.total(connection))
            engine.dispose()
        return found


class Work(msgspec.Struct, frozen=True, kw_only=True):
    in_flight: int = 1
    seconds: float = 1.0
    name: str = "t"


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """When it began, was attempted at both sites, and was committed for its caller."""

    id: str
    began: int
    attempted: int
    committed: int


class Steps(msgspec.Struct, array_like=True):
    """Of one transfer at one site. 0: it did not come to that."""

    prepare: int = 0
    prepared: int = 0
    end: int = 0  # it begins to commit, or to abort
    ended: int = 0


class Timed(SqlParticipant):
    """``holding``: say so when something is prepared, and go no further."""

    def __init__(self, url: str, link: Link) -> None:
        super().__init__(url, bank.bank)
        self.steps: dict[str, Steps] = {}
        self.holding: asyncio.Event | None = None
        self._link = link

    def _steps(self, unit: Unit) -> Steps:
        return self.steps.setdefault(unit.name.partition("@")[0], Steps())

    async def prepare(self, unit: Unit, operations: Sequence[Operation]) -> None:
        # What was prepared early, and had to make way, is prepared once more: that is not over.
        steps = self.steps[unit.name.partition("@")[0]] = Steps(prepare=time.monotonic_ns())
        await super().prepare(unit, operations)
        steps.prepared = time.monotonic_ns()
        if self.holding is not None:
            self._link.say("prepared")
            await self.holding.wait()

    async def commit(self, unit: Unit, operations: Sequence[Operation]) -> None:
        steps = self._steps(unit)
        steps.end = time.monotonic_ns()
        await super().commit(unit, operations)
        steps.ended = time.monotonic_ns()

    async def abort(self, unit: Unit) -> None:
        steps = self._steps(unit)
        steps.end = time.monotonic_ns()
        await super().abort(unit)
        steps.ended = time.monotonic_ns()


# -- a site's words ------------------------------------------------------------------------------


async def _take_part(link: Link, participant: Timed) -> None:
    """``hold`` and ``go``; ``report``, and ``forget``, which is for when nothing is under way."""
    while (word := await heard(link)) is not None:
        match word:
            case "hold":
                participant.holding = asyncio.Event()
                link.say("holding")
            case "go":
                if participant.holding is not None:
                    participant.holding.set()
                    participant.holding = None
            case "report":
                link.say(participant.steps)
            case "forget":
                participant.steps = {}


class Acting(Protocol):
    """An action, or a transaction."""

    async def at(self, site: str, operation: Any) -> Any: ...

    async def commit(self) -> None: ...


class Through(Protocol):
    def hold(self) -> None: ...

    def begin(self, id: str) -> Acting: ...  # noqa: A002


async def _call(link: Link, through: Through) -> None:
    while (word := await heard(link)) is not None:
        match word:
            case Work():
                link.say(await _work(through, word))
            case "hold":
                through.hold()
                link.say("holding")
            case ("once", str(name)):
                link.say(await _once(through, name, 0))


async def _work(through: Through, work: Work) -> list[Transfer]:
    until = time.monotonic_ns() + int(work.seconds * 1e9)

    async def run(account: int) -> list[Transfer]:
        """An account of its own at each site: nobody waits for anybody."""
        done: list[Transfer] = []
        while time.monotonic_ns() < until:
            found = await _once(through, f"{work.name}-{account}-{len(done)}", account)
            if isinstance(found, str):
                raise BenchError(f"a transfer was aborted: {found}")
            done.append(found)
        return done

    rows = await asyncio.gather(*(run(account) for account in range(work.in_flight)))
    return [each for row in rows for each in row]


async def _once(through: Through, name: str, account: int) -> Transfer | str:
    """A transfer of one, or why there was none."""
    began = time.monotonic_ns()
    action = through.begin(name)
    await action.at(NAMES[0], bank.debit(f"{account}", 1))
    await action.at(NAMES[1], bank.credit(f"{account}", 1))
    attempted = time.monotonic_ns()
    try:
        await action.commit()
    except (ActionError, Aborted) as error:
        return str(error)
    return Transfer(name, began, attempted, time.monotonic_ns())


# -- ours ----------------------------------------------------------------------------------------


def _begin(main: Any) -> None:
    forget_settings()
    logging.getLogger("ordering").setLevel(logging.ERROR)  # that it is insecure is known here
    logging.getLogger("rsm").setLevel(logging.ERROR)
    loop = new_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(main)


def ours(link: Link, me: int, _network: Network, _settings: Settings, ground: Ground) -> None:
    _begin(_ours(link, me, ground))


class _Actions:
    def __init__(self, initiator: Initiator) -> None:
        self._initiator = initiator

    def hold(self) -> None:
        """There is nothing between the last vote and the decision."""

    def begin(self, id: str) -> Acting:  # noqa: A002
        return self._initiator.action(id)


async def _ours(link: Link, me: int, ground: Ground) -> None:
    durable: dict[str, Any] = (
        {} if ground.log is None else {"mode": "durable", "data": ground.log / f"replica-{me + 1}"}
    )
    replica = Replica(ActionLedger, ReplicaConfig(group=GROUP, bind="127.0.0.1:0", insecure=True, **durable))
    await replica.open()
    link.say(replica.address)
    replica.join(tuple(await heard(link)))
    try:
        async with asyncio.timeout(_BIRTH_SECONDS):
            await replica.ready()
    except TimeoutError:
        raise BenchError(f"no group came about in {_BIRTH_SECONDS:.0f} s") from None
    if me == CALLER:
        async with Initiator(replica) as initiator:
            await _until_registered(initiator)
            link.say("member")
            await _call(link, _Actions(initiator))
    else:
        participant = Timed(ground.url(me), link)
        async with ActionManager(replica, site=NAMES[me], participant=participant):
            link.say("member")
            await _take_part(link, participant)
    await replica.stop()


async def _until_registered(initiator: Initiator) -> None:
    async with asyncio.timeout(_BIRTH_SECONDS):
        while {each.name for each in await initiator.ledger.sites() if each.is_here} != set(NAMES):
            await asyncio.sleep(0.01)


# -- theirs --------------------------------------------------------------------------------------


class Rising(msgspec.Struct, frozen=True):
    """The coordinator is to be back, on this port."""

    port: int


def two_phase(link: Link, me: int, _network: Network, _settings: Settings, ground: Ground) -> None:
    _begin(_two_phase(link, me, ground))


class _Transactions:
    def __init__(self, coordinator: Coordinator, link: Link) -> None:
        self._coordinator = coordinator
        self._link = link

    def hold(self) -> None:
        """Have all votes, say so, and decide nothing."""

        async def forever() -> None:
            self._link.say("voted")
            await asyncio.Event().wait()

        self._coordinator.before_decision = forever

    def begin(self, id: str) -> Acting:  # noqa: A002
        return self._coordinator.transaction(id)


async def _two_phase(link: Link, me: int, ground: Ground) -> None:
    if me == CALLER:
        await _coordinate(link, ground, 0)
        return
    participant = Timed(ground.url(me), link)
    await participant.open()
    link.say("")
    addresses = await heard(link)
    await Worker(NAMES[me], participant, addresses[CALLER]).open()
    link.say("member")
    await _take_part(link, participant)


async def _coordinate(link: Link, ground: Ground, port: int) -> None:
    coordinator = Coordinator(DecisionLog(None if ground.log is None else ground.log / "decisions"))
    link.say(await coordinator.open(port))
    if not port:
        await heard(link)
    async with asyncio.timeout(_BIRTH_SECONDS):
        await coordinator.ready(NAMES)
    link.say("member")

    await _call(link, _Transactions(coordinator, link))


def coordinator_again(link: Link, ground: Ground) -> None:
    """Waits, with everything imported, until it is to take the place of one that died."""
    rising: Rising = link.hear()
    _begin(_coordinate(link, ground, rising.port))
