"""The processes of a round, from outside: which of them live, are ready, are stopped; and their words."""

import asyncio
import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from bench.chaos.actions.load import ActionCallerSetup, action_caller
from bench.chaos.actions.site import ActionSetup, action_site
from bench.chaos.failpoints import Arm
from bench.chaos.http.gateways import Gateways
from bench.chaos.http.outside import HttpSetup, http_caller
from bench.chaos.load import CallerSetup, caller
from bench.chaos.plan import App, Kind, Plan
from bench.chaos.site import Halted, Ready, SiteSetup, Standing, site
from bench.errors import WorkerFailed
from bench.ports import free_ports
from bench.workers import Crew, Worker
from rsm import status

GROUP: Final = "chaos"
TICK_SECONDS: Final = 0.01
_ANSWER_SECONDS: Final = 3.0
_CLIENTS_OF_A_SITE: Final = 1000  # lives
_SPARES: Final = 2


class Condition(StrEnum):
    DOWN = "down"
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"


class Process:
    """One site. ``lives`` counts its starts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lives = 0
        self.condition = Condition.DOWN
        self.worker: Worker | None = None
        self.answers: dict[int, Standing | None] = {}
        self.quiet = False


class Cluster:
    """All processes of a round. ``problems`` are what no fault explains. ``databases``: of the sites, if they
    have any. ``recording``: where everybody records what it does, if anywhere."""

    def __init__(
        self,
        crew: Crew,
        plan: Plan,
        directory: Path,
        databases: Sequence[str] = (),
        recording: Path | None = None,
    ) -> None:
        self.plan = plan
        self.databases = databases
        self._site = site if plan.app is App.REGISTERS else action_site
        self.directory = directory
        self._recording = recording
        self.problems: list[str] = []
        self.sites = [Process(number) for number in range(plan.sites)]
        self._deaths: dict[tuple[int, int], None] = {}  # site and life, by SIGKILL
        self._explained: set[tuple[int, int]] = set()
        self._crew = crew
        self._callers: list[Worker] = []
        self._spares: list[Worker] = []
        self._asked = 0
        self._began = time.monotonic()
        self._trace = (directory / "faults.jsonl").open("ab", buffering=0)
        self._key = directory / "group.key"
        self._key.write_text(secrets.token_hex(32))
        self._addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(plan.sites))
        self.gateways = Gateways(crew, directory, self._words(), self.note) if plan.http else None

    def _words(self) -> tuple[str, ...]:
        """By which a gateway finds the group, and records."""
        recording = () if self._recording is None else ("--recording", str(self._recording))
        found = ("--group", GROUP, "--replicas", ",".join(self._addresses), "--key-file", str(self._key))
        return (*found, *recording)

    def note(self, what: str, **details: object) -> None:
        """A line of the trace."""
        at = round(time.monotonic() - self._began, 3)
        self._trace.write(msgspec.json.encode({"at": at, "what": what, **details}) + b"\n")

    def complain(self, problem: str) -> None:
        self.note("problem", text=problem)
        self.problems.append(problem)

    def those(self, condition: Condition) -> list[Process]:
        return [each for each in self.sites if each.condition is condition]

    # -- starting and ending ---------------------------------------------------------------------

    def start(self, number: int, arm: Arm | None = None) -> None:
        process, plan = self.sites[number], self.plan
        assert process.condition is Condition.DOWN
        process.lives += 1
        client = (number + 1) * _CLIENTS_OF_A_SITE + process.lives
        setup = SiteSetup(
            number=number,
            client=client,
            seed=f"{plan.seed} {client}",
            group=GROUP,
            addresses=self._addresses,
            key_file=self._key,
            data=self.directory / f"site-{number}",
            notes=self.directory / f"calls-{client}.jsonl",
            log=self.directory / f"site-{number}.log",
            snapshot_bytes=plan.snapshot_bytes,
            ring=plan.ring,
            pause_s=plan.site_pause_s,
            http=plan.http,
            arm=arm,
            recording=self._recording,
        )
        if plan.app is App.ACTIONS:
            setup = ActionSetup(
                **structs.asdict(setup), database=self.databases[number], sites=len(self.databases)
            )
        process.quiet = False
        process.worker = worker = self._spares.pop(0) if self._spares else self._spare()
        worker.name = f"site {number}, life {process.lives}"
        worker.tell(setup)
        process.condition = Condition.STARTING
        self.note("start", site=number, life=process.lives, pid=worker.pid)

    def prepare(self) -> None:
        """Processes that wait for their turn: who comes back, comes back at once."""
        wanted = self.plan.sites if self.plan.kind is Kind.ALL_DOWN else _SPARES
        while len(self._spares) < wanted:
            self._spares.append(self._spare())

    def _spare(self) -> Worker:
        return self._crew.start("spare", self._site)

    def start_callers(self) -> None:
        calling = http_caller if self.plan.http else caller
        if self.plan.app is App.ACTIONS:
            calling = action_caller
        self._callers = [self._crew.start(f"client {n + 1}", calling) for n in range(self.plan.callers)]

    def begin_calls(self) -> None:
        plan = self.plan
        for client, worker in enumerate(self._callers, start=1):
            setup = CallerSetup(
                client=client,
                seed=f"{plan.seed} {client}",
                group=GROUP,
                replicas=self._addresses,
                key_file=self._key,
                notes=self.directory / f"calls-{client}.jsonl",
                tasks=plan.tasks,
                pause_s=plan.pause_s,
                recording=self._recording,
            )
            if self.gateways is not None:
                watch = self.directory / f"watch-{client}.jsonl"
                setup = HttpSetup(**structs.asdict(setup), gateways=self.gateways.urls, watch=watch)
            elif plan.app is App.ACTIONS:
                setup = ActionCallerSetup(**structs.asdict(setup), sites=len(self.databases))
            worker.tell(setup)

    def kill(self, number: int) -> None:
        self.explain(number)
        self._signal(number, signal.SIGKILL)

    def explain(self, number: int) -> None:
        """The present life of a site was to end, or has ended as it was to."""
        self._explained.add((number, self.sites[number].lives))

    def unexplained(self) -> list[str]:
        """Deaths by a signal that nobody here has sent: the kernel, short of memory, say."""
        return [
            f"site {number}, life {life}, was killed by nobody"
            for number, life in self._deaths
            if (number, life) not in self._explained
        ]

    def stop(self, number: int) -> None:
        self._signal(number, signal.SIGSTOP)
        self.sites[number].condition = Condition.STOPPED

    def wake(self, number: int) -> None:
        if self.sites[number].condition is Condition.STOPPED:
            self._signal(number, signal.SIGCONT)
            self.sites[number].condition = Condition.READY
            self.note("wake", site=number)

    def _signal(self, number: int, which: signal.Signals) -> None:
        worker = self.sites[number].worker
        if worker is not None:
            os.kill(worker.pid, which)

    def wipe(self, number: int) -> None:
        assert self.sites[number].condition is Condition.DOWN
        shutil.rmtree(self.directory / f"site-{number}")
        self.note("wipe", site=number)

    def tell(self, process: Process, what: object) -> None:
        """Whoever is gone hears nothing, and needs nothing."""
        try:
            if process.worker is not None:
                process.worker.tell(what)
        except WorkerFailed:
            pass

    # -- watching --------------------------------------------------------------------------------

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Words and deaths are noticed inside the block."""
        watching = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            (ended,) = await asyncio.gather(watching, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended

    async def _watch(self) -> None:
        while True:
            self.prepare()
            for process in self.sites:
                if process.worker is not None:
                    self._look_after(process, process.worker)
            for problem in self.gateways.fallen() if self.gateways is not None else ():
                self.complain(problem)
            await asyncio.sleep(TICK_SECONDS)

    def _look_after(self, process: Process, worker: Worker) -> None:
        exit_code = worker.process.exitcode  # before the last words are read
        try:
            while worker.pipe.poll():
                self._hear(process, *worker.pipe.recv())
        except (EOFError, OSError):
            pass
        if exit_code is None:
            return
        self.note("died", site=process.number, exit_code=exit_code)
        if exit_code == -signal.SIGKILL:
            self._deaths[process.number, process.lives] = None
        else:
            self.complain(f"{worker.name} ended by itself, exit code {exit_code}")
        self._bury(process, worker)

    def _bury(self, process: Process, worker: Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        worker.process.close()
        self._crew.workers.remove(worker)
        process.worker = None
        process.condition = Condition.DOWN

    def _hear(self, process: Process, kind: str, what: Any) -> None:
        name = "" if process.worker is None else process.worker.name
        match what:
            case _ if kind == "failed":
                self.complain(f"{name} failed: {what}")
            case Ready():
                if process.condition is Condition.STARTING:
                    process.condition = Condition.READY
                self.note("ready", site=process.number)
            case Halted(why):
                self.complain(f"{name} halted: {why}")
            case (int(number), standing):
                process.answers[number] = standing
            case "quiet":
                process.quiet = True

    # -- asking ----------------------------------------------------------------------------------

    async def until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Whether ``reached()`` came about in time."""
        end = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(TICK_SECONDS)
        return True

    async def until_ready(self, number: int, seconds: float) -> bool:
        return await self.until(lambda: self.sites[number].condition is Condition.READY, seconds)

    async def standings(self, processes: Sequence[Process]) -> list[Standing | None]:
        """None of those that do not answer in time."""
        self._asked = number = self._asked + 1
        for process in processes:
            self.tell(process, ("standing", number))
        await self.until(lambda: all(number in each.answers for each in processes), _ANSWER_SECONDS)
        return [process.answers.pop(number, None) for process in processes]

    async def note_standings(self) -> None:
        """For who looks for the reason of something that did not happen."""
        living = [each for each in self.sites if each.worker is not None]
        for process, standing in zip(living, await self.standings(living), strict=True):
            self.note("standing", site=process.number, standing=standing)

    async def is_whole(self) -> bool:
        """Everybody is there, votes, and sees the same."""
        if len(self.those(Condition.READY)) < len(self.sites):
            return False
        found = [each.status for each in await self.standings(self.sites) if each is not None]
        return (
            len(found) == len(self.sites)
            and len({each.view for each in found}) == 1
            and all(each.standing is status.Standing.SERVING for each in found)
            and all(len(each.members) == len(self.sites) for each in found)
            and all(member.voter and member.in_ring for each in found for member in each.members)
        )

    async def until_whole(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not await self.is_whole():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.1)
        return True

    async def ask_callers(self, word: str, callers: int, seconds: float) -> list[Any]:
        """The first ``callers`` of them."""
        for worker in self._callers[:callers]:
            worker.tell(word)
        return [await self._word_of(worker, seconds) for worker in self._callers[:callers]]

    async def hear_callers(self, seconds: float) -> None:
        for worker in self._callers:
            await self._word_of(worker, seconds)

    async def _word_of(self, worker: Worker, seconds: float) -> Any:
        """Not in a thread: whoever interrupts us waits for no thread."""
        if not await self.until(worker.pipe.poll, seconds):
            raise WorkerFailed(f"{worker.name}: said nothing for {seconds:.0f} s")
        try:
            kind, what = worker.pipe.recv()
        except (EOFError, OSError):
            raise WorkerFailed(f"{worker.name}: is gone") from None
        if kind == "failed":
            raise WorkerFailed(f"{worker.name}: {what}")
        return what

    def close(self) -> None:
        self._trace.close()
