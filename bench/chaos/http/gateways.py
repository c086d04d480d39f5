"""The gateways of a round: `rsm gateway`, as one would start it, killed and stopped while requests go on."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench.chaos.books import GATEWAY, Tally
from bench.chaos.plan import GATEWAYS, GatewayFault, Plan
from bench.errors import WorkerFailed
from bench.ports import free_ports
from bench.workers import Crew, Link, Worker

READY_SECONDS: Final = 60.0
_ROOT: Final = Path(__file__).parents[3]
_TICK_SECONDS: Final = 0.02
_SETTINGS: Final = {
    "RSM_GATEWAY_TIMEOUT": "3",  # a caller waits for longer, and is told 504
    "RSM_GATEWAY_HEARTBEAT_S": "1",
}

Note = Callable[..., None]


def become_gateway(_: Link, words: Sequence[str], out: Path, log: Path) -> None:
    """This process is one from here on, with the pid that it had."""
    for path, number in ((out, 1), (log, 2)):
        os.dup2(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644), number)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RSM_")}
    found = os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "cli.main", "gateway", *words]
    os.execve(sys.executable, command, {**kept, **_SETTINGS, "PYTHONPATH": found})


class Process:
    """One gateway. ``lives`` counts its starts."""

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.url = f"http://127.0.0.1:{port}"
        self.bind = f"127.0.0.1:{port}"
        self.lives = 0
        self.worker: Worker | None = None
        self.out = Path()


class Gateways:
    """All of a round."""

    def __init__(self, crew: Crew, directory: Path, group: Sequence[str], note: Note) -> None:
        self.processes = [Process(number, port) for number, port in enumerate(free_ports(GATEWAYS))]
        self.urls = tuple(each.url for each in self.processes)
        self._crew = crew
        self._directory = directory
        self._group = group  # the words by which a gateway finds it
        self._note = note

    def start(self, process: Process) -> None:
        process.lives += 1
        name = f"{GATEWAY}-{process.number}"
        process.out = self._directory / f"{name}-{process.lives}.out"
        words = (*self._group, "--bind", process.bind)
        log = self._directory / f"{name}.log"
        process.worker = self._crew.start(name, become_gateway, words, process.out, log)
        self._note("start gateway", gateway=process.number, pid=process.worker.pid)

    async def start_all(self) -> None:
        """Returns when all are ready."""
        for process in self.processes:
            self.start(process)
        for process in self.processes:
            await self._ready(process)

    async def _ready(self, process: Process) -> None:
        """Returns when it has said so."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not (process.out.exists() and process.out.read_bytes().startswith(b"ready")):
                    await asyncio.sleep(_TICK_SECONDS)
        except TimeoutError:
            words = f"gateway {process.number} was not ready within {READY_SECONDS:.0f} s"
            raise WorkerFailed(words) from None

    def fallen(self) -> list[str]:
        """Who has ended by itself since this was asked last."""
        told = []
        for process in self.processes:
            if process.worker is not None and process.worker.process.exitcode is not None:
                code = process.worker.process.exitcode
                told.append(
                    f"gateway {process.number}, life {process.lives}, ended by itself, exit code {code}"
                )
                self._bury(process, process.worker)
        return told

    # -- faults ----------------------------------------------------------------------------------

    async def strike(self, plan: Plan, tally: Tally, enough: asyncio.Event) -> None:
        """One at a time, until it is enough, and at least one; each to its end."""
        for struck, fault in enumerate(plan.gateway_faults()):
            if struck:
                with suppress(TimeoutError):
                    await asyncio.wait_for(enough.wait(), fault.after_s)
                    return
            await self._strike(fault, tally)

    async def _strike(self, fault: GatewayFault, tally: Tally) -> None:
        process = self.processes[fault.gateway]
        worker = process.worker
        if worker is None:  # it has ended by itself, which is a problem already
            return
        if fault.pause_s:
            os.kill(worker.pid, signal.SIGSTOP)
            self._note("stop gateway", gateway=process.number, seconds=fault.pause_s)
            try:
                await asyncio.sleep(fault.pause_s)
            finally:
                os.kill(worker.pid, signal.SIGCONT)
            tally.gateway_pauses += 1
            self._note("wake gateway", gateway=process.number)
            return
        self._note("kill gateway", gateway=process.number)
        os.kill(worker.pid, signal.SIGKILL)
        self._bury(process, worker)
        tally.killed(GATEWAY)
        await asyncio.sleep(fault.down_s)
        self.start(process)
        await self._ready(process)

    def _bury(self, process: Process, worker: Worker) -> None:
        """Returns when it is gone; it has no say in that."""
        worker.process.join()
        worker.pipe.close()
        worker.process.close()
        self._crew.workers.remove(worker)
        process.worker = None
