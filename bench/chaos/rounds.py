"""A round from its birth to its verdict, and a campaign of them."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.chaos.actions.bank import name_of, read_bank
from bench.chaos.actions.checks import judge_actions
from bench.chaos.actions.databases import databases
from bench.chaos.actions.history import read_actions
from bench.chaos.books import Bad, Books, Checked, Quotas, Tally
from bench.chaos.checks import judge
from bench.chaos.cluster import Cluster, Condition
from bench.chaos.faults import READY_SECONDS, Faults
from bench.chaos.history import read_history
from bench.chaos.http.checks import judge_http
from bench.chaos.http.watching import read_watch
from bench.chaos.plan import App, Database, Kind, Plan, make_plan
from bench.chaos.site import Standing
from bench.errors import WorkerFailed
from bench.workers import Crew
from rsm import status

BAD_ROUNDS_MAX: Final = 5
_AFTER_SECONDS: Final = 0.5
_QUIET_SECONDS: Final = 60.0
_SETTLED_SECONDS: Final = 30.0
_ORDER_SECONDS: Final = 90.0

Told = Callable[["Played"], None]


class Played(msgspec.Struct, kw_only=True):
    plan: Plan
    tally: Tally
    checked: Checked
    problems: list[str]
    seconds: float
    directory: Path


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    sites: int = 5
    round_seconds: float = 30.0
    quotas: Quotas = Quotas()
    directory: Path = Path("chaos")
    seed: int = 1
    http: bool = False
    app: App = App.REGISTERS
    database: Database = Database.SQLITE
    recording: Path | None = None

    def plan(self, seed: int) -> Plan:
        return make_plan(
            seed, self.sites, self.round_seconds, http=self.http, app=self.app, database=self.database
        )

    def replay(self, seed: int) -> str:
        what = " --http" if self.http else ""
        if self.app is App.ACTIONS:
            what = f" --app actions --database {self.database}"
        return f"rsm chaos{what} --replay {seed} --sites {self.sites} --round-seconds {self.round_seconds:g}"


def run(campaign: Campaign, books: Books, began: Callable[[Plan], None], told: Told) -> None:
    """Round after round, until the quotas are met or too much went wrong. The books are saved after each."""
    quotas = campaign.quotas
    while quotas.missing(books.tally) and len(books.bad) < BAD_ROUNDS_MAX:
        plan = campaign.plan(books.next_seed)
        if quotas.wants(books.tally, plan.kind, plan.sites):
            began(plan)
            played = play(plan, campaign.directory, campaign.recording)
            books.add(played.tally, played.checked, played.seconds, _bad(campaign, played))
            books.next_seed += 1
            books.save(campaign.directory)
            told(played)
        else:
            books.next_seed += 1


def _bad(campaign: Campaign, played: Played) -> Bad | None:
    if not played.problems:
        return None
    return Bad(
        seed=played.plan.seed,
        directory=str(played.directory),
        replay=campaign.replay(played.plan.seed),
        problems=played.problems,
    )


def play(plan: Plan, parent: Path, recordings: Path | None = None) -> Played:
    """A fresh group, from nothing. Its directory stays if something was wrong, its recording in any case."""
    directory = _fresh(parent, plan.seed)
    recording = None if recordings is None else _fresh(recordings, plan.seed)
    began = time.monotonic()
    try:
        with databases(plan, directory) as urls, Crew() as crew:
            played = asyncio.run(_play(plan, directory, crew, urls, recording))
    except KeyboardInterrupt:
        shutil.rmtree(directory)
        raise
    played.seconds = time.monotonic() - began
    if played.problems:
        words = "\n".join(played.problems) + "\n"
        (directory / "problems.txt").write_text(words)
    else:
        shutil.rmtree(directory)
    return played


def _fresh(parent: Path, seed: int) -> Path:
    """What an earlier round with this seed has left is kept."""
    directory, number = parent / f"round-{seed}", 1
    while directory.exists():
        number += 1
        directory = parent / f"round-{seed}-{number}"
    directory.mkdir(parents=True)
    return directory.resolve()


async def _play(
    plan: Plan, directory: Path, crew: Crew, urls: Sequence[str], recording: Path | None
) -> Played:
    (directory / "plan.json").write_bytes(msgspec.json.encode(plan))
    cluster = Cluster(crew, plan, directory, urls, recording)
    faults = Faults(cluster)
    played = Played(
        plan=plan,
        tally=faults.tally,
        checked=Checked(),
        problems=cluster.problems,
        seconds=0.0,
        directory=directory,
    )
    try:
        async with cluster.watched():
            await _be_born(cluster)
            async with _gateways_struck(cluster, faults.tally):
                if plan.kind is Kind.ALL_DOWN:
                    await faults.run_restarts(plan.seconds)
                else:
                    await faults.run(plan.seconds)
            standings, order = await _come_to_rest(cluster)
    except WorkerFailed as error:
        cluster.complain(str(error))
        return played
    finally:
        cluster.close()
    cluster.problems.extend(cluster.unexplained())
    if order is not None:
        if plan.app is App.ACTIONS:
            found, played.checked = _judge_actions(cluster, order, standings)
        else:
            found, played.checked = _judge(plan, directory, order, standings)
        cluster.problems.extend(found)
    return played


def _judge(
    plan: Plan, directory: Path, order: list[tuple[int, int, int]], standings: list[Standing]
) -> tuple[list[str], Checked]:
    history = read_history(sorted(directory.glob("calls-*.jsonl")))
    if not plan.http:
        return judge(history, order, standings, plan.seed)
    watches = {path.stem: read_watch(path) for path in sorted(directory.glob("watch-*.jsonl"))}
    return judge_http(history, order, standings, watches, plan.seed)


def _judge_actions(
    cluster: Cluster, order: list[Any], standings: list[Standing]
) -> tuple[list[str], Checked]:
    history = read_actions(sorted(cluster.directory.glob("calls-*.jsonl")))
    books = [read_bank(name_of(number), url) for number, url in enumerate(cluster.databases)]
    return judge_actions(history, order, books, standings)


@asynccontextmanager
async def _gateways_struck(cluster: Cluster, tally: Tally) -> AsyncIterator[None]:
    """Inside the block, and at least once; all are there again behind it."""
    if cluster.gateways is None:
        yield
        return
    enough = asyncio.Event()
    striking = asyncio.ensure_future(cluster.gateways.strike(cluster.plan, tally, enough))
    try:
        yield
        enough.set()
        await striking
    finally:
        striking.cancel()
        await asyncio.gather(striking, return_exceptions=True)


async def _be_born(cluster: Cluster) -> None:
    for process in cluster.sites:
        cluster.start(process.number)
    cluster.start_callers()
    everyone = len(cluster.sites)
    if not await cluster.until(lambda: len(cluster.those(Condition.READY)) == everyone, READY_SECONDS):
        raise WorkerFailed(f"no group of {everyone} came about within {READY_SECONDS:.0f} s")
    if cluster.gateways is not None:
        await cluster.gateways.start_all()
    cluster.begin_calls()
    await cluster.hear_callers(READY_SECONDS)


async def _come_to_rest(cluster: Cluster) -> tuple[list[Standing], list[Any] | None]:
    """Everybody is there and has the same; and the order of everything, if it can be had."""
    for process in cluster.sites:
        cluster.wake(process.number)
        if process.condition is Condition.DOWN:
            cluster.start(process.number)
    everyone = len(cluster.sites)
    if not await cluster.until(lambda: len(cluster.those(Condition.READY)) == everyone, READY_SECONDS):
        late = ", ".join(str(each.number) for each in cluster.sites if each.condition is not Condition.READY)
        cluster.complain(f"sites {late} were not ready {READY_SECONDS:.0f} s after the last fault")
        await cluster.note_standings()
        return [], None
    await asyncio.sleep(_AFTER_SECONDS)
    for process in cluster.sites:
        cluster.tell(process, "quiet")
    if not await cluster.until(lambda: all(each.quiet for each in cluster.sites), _QUIET_SECONDS):
        cluster.complain(f"calls of a site had no end within {_QUIET_SECONDS:.0f} s")
        return [], None
    for problem in filter(None, await cluster.ask_callers("quiet", cluster.plan.callers, _QUIET_SECONDS)):
        cluster.complain(problem)
    standings = await _settled(cluster)
    if standings is None:
        return [], None
    (order,) = await cluster.ask_callers("order", 1, _ORDER_SECONDS)
    if isinstance(order, str):
        cluster.complain(order)
        return standings, None
    return standings, order


async def _settled(cluster: Cluster) -> list[Standing] | None:
    """All replicas at one slot, with nothing under way."""
    end = time.monotonic() + _SETTLED_SECONDS
    found: list[Standing] = []
    while time.monotonic() < end:
        found = [each for each in await cluster.standings(cluster.sites) if each is not None]
        if (
            len(found) == len(cluster.sites)
            and all(each.status.standing is status.Standing.SERVING for each in found)
            and not any(each.status.outstanding or each.unfinished for each in found)
            and len({each.status.applied for each in found}) == 1
        ):
            return found
        await asyncio.sleep(0.1)
    told = "; ".join(
        f"{each.status.address} is {each.status.standing.value} at slot {each.status.applied} with"
        f" {each.status.outstanding} calls under way and {each.unfinished} to be finished"
        for each in found
    )
    cluster.complain(f"the replicas did not come to rest within {_SETTLED_SECONDS:.0f} s: {told}")
    await cluster.note_standings()
    return None
