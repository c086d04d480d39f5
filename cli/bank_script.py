"""The story that `rsm demo bank --script` plays."""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import Final

from rich.console import Console

from apps.actions import Action, ActionAborted, Initiator, State
from apps.bank import credit, debit
from cli.action_words import votes_of
from cli.bank_audit import Audit, Cut, Violation, in_turn
from cli.bank_crew import VAULT, BankCrew, Snapshot, look_into
from cli.bank_customers import Customers, Ended
from cli.steps import Step, hold, told
from ordering.errors import OrderingError
from rsm.errors import RsmError

SCRIPT_SECONDS: Final = 240.0
TRANSFERS: Final = 200
WORKERS: Final = 8
UNDER_LOAD_SECONDS: Final = 3.0
CUT_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 0.02
REFUSED_SECONDS: Final = 0.1
AMOUNT: Final = 7


async def play(crew: BankCrew, initiator: Initiator, audit: Audit, console: Console) -> bool:
    """Whether every step held, and every cut meanwhile."""
    story = Story(crew, initiator, audit)
    return await told(story.steps, console, SCRIPT_SECONDS, (Violation, RsmError, OrderingError))


class Story:
    def __init__(self, crew: BankCrew, initiator: Initiator, audit: Audit) -> None:
        self.crew = crew
        self.initiator = initiator
        self.audit = audit
        self.customers = Customers(initiator, crew.customers(seed=1))
        self.steps: list[Step] = [
            ("start", self.start),
            ("transfers, from outside and at the sites", self.audited(self.transfer)),
            ("kill -9 of a site before its vote", self.audited(self.kill_before_vote)),
            ("kill -9 of a site after its vote", self.audited(self.kill_after_vote)),
            ("kill -9 of a site under load", self.audited(self.kill_one)),
            ("kill -9 of all sites under load", self.kill_all),
            ("back, without customers", self.come_back),
            ("the books", self.close),
        ]

    def audited(self, step: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[str]]:
        """Cut after cut is checked while the step runs."""

        async def both() -> str:
            before = self.audit.cuts
            auditing = asyncio.ensure_future(in_turn(self.audit, CUT_SECONDS, lambda _: None))
            stepping = asyncio.ensure_future(step())
            try:
                await asyncio.wait([auditing, stepping], return_when=asyncio.FIRST_COMPLETED)
                if auditing.done():
                    await auditing  # raises what is wrong
                figures = await stepping
            finally:
                for task in (auditing, stepping):
                    task.cancel()
                await asyncio.gather(auditing, stepping, return_exceptions=True)
            await self.audit.cut()
            return f"{figures}; {self.audit.cuts - before} cuts, each with {self.crew.money} in all"

        return both

    async def start(self) -> str:
        began = time.monotonic()
        await self.crew.start(*self.crew.replicas)
        took = time.monotonic() - began
        cut = await self.audit.cut()
        return (
            f"{len(self.crew.replicas)} sites, each a process with a database of its own, in {took:.1f} s;"
            f" {cut.money} at slot {cut.slot}"
        )

    async def transfer(self) -> str:
        before = sum(self.audit.decided.values())
        began = time.monotonic()
        left = iter(range(TRANSFERS))

        async def worker() -> None:
            for _ in left:
                await self.customers.transfer()

        await asyncio.gather(*(worker() for _ in range(WORKERS)))
        took = time.monotonic() - began
        await self.audit.cut()
        ended = self.customers.ended
        others = sum(self.audit.decided.values()) - before - ended[Ended.COMMITTED] - ended[Ended.ABORTED]
        hold(ended[Ended.COMMITTED] > 0 and others > 0, f"{dict(ended)}, and {others} of others")
        hold(ended[Ended.UNKNOWN] == 0, f"nobody has failed, and {ended[Ended.UNKNOWN]} answers were lost")
        return (
            f"{TRANSFERS} in {took:.1f} s: {ended[Ended.COMMITTED]} committed,"
            f" {ended[Ended.ABORTED]} aborted, {ended[Ended.REFUSED]} refused before that;"
            f" {others} of the sites' own"
        )

    # -- a site that is killed at a certain moment -------------------------------------------------

    async def kill_before_vote(self) -> str:
        """Its database is kept busy, so that it cannot prepare; when the other one has voted it is killed."""
        payer, payee = self.crew.replicas[0], self.crew.replicas[-1]
        record = await self._kill_when(payee, voted=payer, busy=payee)
        hold(record.state is State.ABORTED, f"{record.id} is {record.state}, and {payee} had not voted")
        hold(payee not in _voters(record), f"{payee} has voted: {votes_of(record)}")
        await self.crew.start(payee)
        await self._nothing_prepared(record)
        return f"{payer} had voted yes, {payee} was killed: aborted at slot {record.decided}: {record.reason}"

    async def kill_after_vote(self) -> str:
        """Now the other one's is kept busy until the first has voted and is dead."""
        payer, payee = self.crew.replicas[0], self.crew.replicas[-1]
        before = self._vaults(payer, payee)
        record = await self._kill_when(payee, voted=payee, busy=payer)
        hold(record.state is State.COMMITTED, f"{record.id} was aborted: {record.reason}")
        there = self._look(payee)
        hold(record.unit in there.prepared, f"{payee} has voted for {record.unit}, and it is not prepared")
        hold(there.balances[VAULT] == before[1], f"{payee} is dead, and has applied {record.unit}")
        await self.crew.start(payee)
        await self.initiator.finished(record.id)
        moved = [after - before for before, after in zip(before, self._vaults(payer, payee), strict=True)]
        hold(moved == [-AMOUNT, AMOUNT], f"the vaults have changed by {moved}")
        votes = votes_of(record)
        return f"committed without {payee} at slot {record.decided} ({votes}); back, it has applied it"

    async def _kill_when(self, victim: str, *, voted: str, busy: str) -> Action:
        """Pay from the first site to the last while a database is busy, and kill a site at the moment when
        one has voted; then nothing is busy any more. How it was decided."""
        action = self.initiator.action()
        action.add(self.crew.replicas[0], debit(VAULT, AMOUNT))
        action.add(self.crew.replicas[-1], credit(VAULT, AMOUNT))
        with self._busy(busy), self.initiator.outcomes.watch(action.id) as watch:
            committing = asyncio.ensure_future(action.commit())
            found = await watch.until(lambda each: voted in _voters(each) or each.state.is_decided)
            await self.crew.kill(victim)
        with suppress(ActionAborted):  # its record tells
            await committing
        hold(not found.state.is_decided, f"{action.id} was {found.state} too early: {found.reason}")
        return await self.initiator.outcome(action.id)

    def _vaults(self, *names: str) -> list[int]:
        return [self._look(name).balances[VAULT] for name in names]

    async def _nothing_prepared(self, record: Action) -> None:
        while any(record.unit in self._look(name).prepared for name in record.sites):
            await asyncio.sleep(CUT_SECONDS)

    @contextmanager
    def _busy(self, name: str) -> Iterator[None]:
        """Nobody else can write to its database meanwhile."""
        with closing(sqlite3.connect(self.crew.database_of(name), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def _look(self, name: str) -> Snapshot:
        return look_into(self.crew.database_of(name))

    # -- at any moment -----------------------------------------------------------------------------

    async def kill_one(self) -> str:
        victim = self.crew.replicas[1]
        before = sum(self.audit.decided.values())
        async with self._load():
            await asyncio.sleep(UNDER_LOAD_SECONDS / 3)
            await self.crew.kill(victim)
            await asyncio.sleep(UNDER_LOAD_SECONDS)
            await self.crew.start(victim)
            await asyncio.sleep(UNDER_LOAD_SECONDS / 3)
        await self.audit.cut()
        return f"{victim} killed and back; {sum(self.audit.decided.values()) - before} decided meanwhile"

    async def kill_all(self) -> str:
        """While one database is busy there are transfers that some site is ready for, and no decision."""
        async with self._load():
            await asyncio.sleep(UNDER_LOAD_SECONDS / 3)
            with self._busy(self.crew.replicas[-1]):
                while not any(self._look(name).prepared for name in self.crew.replicas):
                    await asyncio.sleep(LOOK_SECONDS)
                await self.crew.kill(*self.crew.replicas)
        found = [self._look(name) for name in self.crew.replicas]
        prepared = sum(len(each.prepared) for each in found)
        total = sum(sum(each.balances.values()) for each in found)
        return f"{prepared} parts of transfers are prepared; the databases have {total} of {self.crew.money}"

    @asynccontextmanager
    async def _load(self) -> AsyncIterator[None]:
        """Customers come meanwhile, one when another has gone."""

        async def worker() -> None:
            while True:
                if await self.customers.transfer() is Ended.REFUSED:
                    await asyncio.sleep(REFUSED_SECONDS)

        working = [asyncio.ensure_future(worker()) for _ in range(WORKERS)]
        try:
            yield
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def come_back(self) -> str:
        self.crew.is_open = False
        began = time.monotonic()
        await self.crew.start(*self.crew.replicas)
        while True:
            cut = await self.audit.cut()
            sites = await self.initiator.ledger.sites()
            left = sum(len(each.prepared) + each.unapplied for each in cut.shares.values())
            if not left and not any(each.unfinished for each in sites):
                break
            await asyncio.sleep(CUT_SECONDS)
        took = time.monotonic() - began
        return f"nothing is prepared, in doubt or unfinished after {took:.1f} s"

    async def close(self) -> str:
        """Everybody who was told nothing finds out."""
        lost = [await self.initiator.ledger.action(name) for name in self.customers.unknown]
        for found in lost:
            hold(found is None or found.state.is_decided, f"{found and found.id} is not decided")
        ended = Counter(found.state for found in lost if found is not None)
        cut: Cut = await self.audit.cut()
        totals = [each.total for each in cut.shares.values()]
        hold(sum(totals) == self.crew.money, f"{totals}")
        decided = self.audit.decided
        return (
            f"{decided[State.COMMITTED]} committed, {decided[State.ABORTED]} aborted;"
            f" answers lost: {len(lost)}, of these {ended[State.COMMITTED]} committed,"
            f" {ended[State.ABORTED]} aborted, the others not requested;"
            f" {' + '.join(map(str, totals))} = {sum(totals)}, in {self.audit.cuts} cuts"
        )


def _voters(action: Action) -> set[str]:
    return {vote.site for vote in action.votes if vote.yes}
