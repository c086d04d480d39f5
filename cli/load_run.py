"""One load run: a group of our own or one that is there, locust beside it, and all who look on."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import quote

import httpx2
import msgspec

from bench.chaos.http.watching import Watcher
from bench.errors import BenchError
from cli.crew import GATEWAY, Crew
from cli.over_http import Access, Gateways, path_of
from loadtests.faults import Mark, plan_faults, strike
from loadtests.judging import AUDIT, end_key
from loadtests.runs import FAULTS, PROCESSES, RINGS, LoadPlan, Told
from loadtests.watching import Lines, Rings, sample

LOCUST: Final = "locust"
LOCUST_LOG: Final = "locust.log"
ROOT: Final = Path(__file__).parents[1]
ASK_SECONDS: Final = 60.0
BEGIN_SECONDS: Final = 30.0
END_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 25.0  # a stream says something every 10 s
SAMPLES: Final = 600  # of each process, at most, and one a second
CODES: Final = frozenset({0, 1})  # 1: some requests have failed, which is for us to judge

Show = Callable[[str], None]


async def run_load(plan: LoadPlan, crew: Crew | None, token: str, show: Show) -> Told:
    """Until locust has ended; all processes are stopped then. What they noted is in ``plan.records``."""
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    try:
        if crew is not None:
            show(f"starting {len(crew.replicas)} replicas and a gateway")
            await crew.start(*crew.replicas)
            await crew.start(GATEWAY)
        return await _Run(plan, crew, token, show).play()
    finally:
        if crew is not None:
            await crew.stop()


class _Run:
    def __init__(self, plan: LoadPlan, crew: Crew | None, token: str, show: Show) -> None:
        self.plan = plan
        self.crew = crew
        self.token = token
        self.show = show
        self.locust: Process | None = None
        self.struck = 0

    async def play(self) -> Told:
        plan = self.plan
        access = Access((plan.endpoint,), token=self.token, timeout=ASK_SECONDS)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        timeout = httpx2.Timeout(10.0, read=None)
        async with (
            Gateways(access) as gateways,
            httpx2.AsyncClient(timeout=timeout, headers=headers) as client,
        ):
            await self._mark(gateways)  # also says whether there is anybody
            audit = Watcher(
                client,
                [plan.endpoint],
                0,
                plan.records / AUDIT,
                prefix=quote(f"{plan.run}."),
                silence_seconds=SILENCE_SECONDS,
            )
            try:
                async with asyncio.timeout(BEGIN_SECONDS):
                    await audit.begun()
                began_ns = time.monotonic_ns()
                async with self._looked_at(gateways):
                    await self._load()
                ended_ns = time.monotonic_ns()
                self.show("waiting for the audit")
                last = await self._mark(gateways)
                end_revision = 0
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_SECONDS):
                        await audit.reached(last)
                        end_revision = last
            finally:
                await audit.stop()
            if self.crew is None:
                await _clean_up(gateways, plan.run)
        return Told(began_ns=began_ns, ended_ns=ended_ns, end_revision=end_revision)

    async def _mark(self, gateways: Gateways) -> int:
        """A key that is written first and last: the audit has seen the run when it has seen this."""
        answer = await gateways.ask("PUT", path_of("/v1/kv", end_key(self.plan.run)), body=b"here")
        return int(answer.headers["etag"].strip('"'))

    # -- locust ----------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Locust, and faults meanwhile."""
        plan = self.plan
        with (plan.report / LOCUST_LOG).open("wb") as log:
            self.locust = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "locust", *locust_words(plan)),
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "RSM_TOKEN": self.token},
                start_new_session=True,  # Ctrl-C is for us, who stop it in order
            )
        faults: asyncio.Task[None] | None = None
        if plan.faults and self.crew is not None:
            faults = asyncio.ensure_future(self._strike(self.crew))
        ended = asyncio.ensure_future(self._ended(self.locust))
        try:
            if faults is not None:
                await asyncio.wait([ended, faults], return_when=asyncio.FIRST_COMPLETED)
                if faults.done():
                    faults.result()  # a replica that does not come back ends the run now, not at its end
            code = await ended
            if faults is not None and plan.web_port is None:
                await faults
        finally:
            tasks = [ended] if faults is None else [ended, faults]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if code not in CODES:
            raise BenchError(f"locust ended with code {code}: {_last_line(plan.report / LOCUST_LOG)}")

    async def _ended(self, locust: Process) -> int:
        """With a web page, Ctrl-C is how it ends."""
        if self.plan.web_port is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, _interrupt, locust)
        try:
            return await locust.wait()
        finally:
            if locust.returncode is None:
                locust.kill()
                await locust.wait()

    async def _strike(self, crew: Crew) -> None:
        notes = Lines(self.plan.records / FAULTS)

        def note(mark: Mark) -> None:
            self.struck += 1
            notes.write(mark)

        run_time_s = self.plan.run_time_s
        try:
            plan = plan_faults(crew.replicas, Random(self.plan.seed), run_time_s)
            await strike(crew, plan, run_time_s, note)
        finally:
            notes.close()

    # -- who looks on ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _looked_at(self, gateways: Gateways) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self._follow(gateways)), asyncio.ensure_future(self._measure())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    async def _follow(self, gateways: Gateways) -> None:
        notes, rings = Lines(self.plan.records / RINGS), Rings()
        try:
            async for event in gateways.events("/v1/cluster/events", {}):
                if event.event == "cluster":
                    notes.write_all(rings.take(msgspec.json.decode(event.data)))
        finally:
            notes.close()

    async def _measure(self) -> None:
        """Memory and descriptors, and how far we are."""
        notes = Lines(self.plan.records / PROCESSES)
        between = max((self.plan.run_time_s or 0) / SAMPLES, 1.0)
        began = time.monotonic()
        try:
            while True:
                notes.write_all(sample(self._pids()))
                self.show(self._words(time.monotonic() - began))
                await asyncio.sleep(between)
        finally:
            notes.close()

    def _pids(self) -> dict[str, int]:
        running = {} if self.crew is None else {name: each.pid for name, each in self.crew.running.items()}
        return running | ({LOCUST: self.locust.pid} if self.locust is not None else {})

    def _words(self, elapsed_s: float) -> str:
        plan = self.plan
        if plan.web_port is not None:
            return f"locust's page: http://127.0.0.1:{plan.web_port}; Ctrl-C ends the load, and judges it"
        faults = f", {self.struck} faults" if plan.faults else ""
        return f"{plan.shape} load, {elapsed_s:.0f} of {plan.run_time_s:g} s{faults}"


def locust_words(plan: LoadPlan) -> tuple[str, ...]:
    loadtests = ROOT / "loadtests"
    words = [
        *("--config", str(loadtests / "locust.conf"), "-f", str(loadtests / "locustfile.py")),
        *("--host", plan.endpoint, "--users", str(plan.users), "--spawn-rate", str(plan.spawn_rate)),
        *("--shape", plan.shape, "--rate", str(plan.rate), "--groups", str(plan.groups)),
        *("--value-bytes", str(plan.value_bytes), "--mix", plan.mix),
        *("--run-name", plan.run, "--records", str(plan.records.resolve())),
        *("--html", str((plan.report / "locust.html").resolve())),
    ]
    if plan.workers > 1:
        words += ["--processes", str(plan.workers)]
    if plan.web_port is not None:
        return (*words, "--web-port", str(plan.web_port))
    return (*words, "--headless", "--only-summary", "--run-time", f"{plan.run_time_s:.0f}s")


def _interrupt(locust: Process) -> None:
    with suppress(ProcessLookupError):
        locust.send_signal(signal.SIGINT)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


async def _clean_up(gateways: Gateways, run: str) -> None:
    """What we have written into somebody's store."""
    while True:
        answer = await gateways.ask("DELETE", "/v1/kv", fields={"prefix": f"{run}.", "limit": 1000})
        if not msgspec.json.decode(answer.content)["more"]:
            return
