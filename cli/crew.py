"""Replicas and a gateway as processes of this one: started, watched, killed, and stopped for good."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.markup import escape

from api.control import State
from bench.ports import free_ports
from cli.replica import write_group
from ordering.errors import ConfigurationError
from rsm.config import ReplicaConfig

GROUP: Final = "demo"
GATEWAY: Final = "gateway"
READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0
RESTART_SECONDS: Final = 3.0
FAILURES_MAX: Final = 3  # starts that come to nothing, one after the other

Teller = Callable[[str], None]


class NotStarted(Exception):
    """A process that did not come up. The text says why."""


class Crew:
    """A group of ``sites`` replicas and a gateway; they are called ``replica 1`` and so on, and ``gateway``.
    What is in ``directory`` already is gone on with."""

    def __init__(
        self,
        directory: Path,
        sites: int | None,
        port: int,
        *,
        durable: bool,
        recording: Path | None = None,
    ) -> None:
        self.directory = directory
        self._recording = () if recording is None else ("--recording", str(recording.absolute()))
        self.port = port
        self._configs = _found(directory, sites, durable=durable)
        self.replicas = [self._named(number) for number in range(1, len(self._configs) + 1)]
        self.running: dict[str, Process] = {}
        self.control: Path | None = None  # where the gateway may ask for the orders below
        self._addresses = {
            name: ReplicaConfig.load(path).bind
            for name, path in zip(self.replicas, self._configs, strict=True)
        }
        self._starting: set[str] = set()
        self._paused: set[str] = set()
        self._ending: set[str] = set()
        self._wanted = {name: asyncio.Event() for name in [*self.replicas, GATEWAY]}
        self._stopping = False

    def _named(self, number: int) -> str:
        return f"replica {number}"

    def config_of(self, name: str) -> Path:
        return self._configs[self.replicas.index(name)]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def site(self) -> ReplicaConfig:
        return ReplicaConfig.load(self._configs[0])

    def addresses(self) -> dict[str, str]:
        return self._addresses

    def log_of(self, name: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.log"

    async def start(self, *names: str) -> None:
        """Start all of these, and wait until each is ready."""
        self._starting.update(names)
        for gone in (self._paused, self._ending):
            gone.difference_update(names)
        try:
            for name in names:
                await self._begin(name)
            await asyncio.gather(*(self._ready(name) for name in names))
        finally:
            self._starting.difference_update(names)

    async def _begin(self, name: str) -> None:
        with self.log_of(name).open("ab") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cli.main", *self._words(name)),
                stdout=PIPE,
                stderr=log,
                env={**os.environ, **self._more(name), "PYTHONPATH": str(Path(__file__).parents[1])},
                start_new_session=True,  # Ctrl-C is for the parent, which stops them in order
            )

    def _more(self, name: str) -> dict[str, str]:
        is_asked = name == GATEWAY and self.control is not None
        return {"RSM_GATEWAY_DEMO": str(self.control)} if is_asked else {}

    def _words(self, name: str) -> tuple[str, ...]:
        if name == GATEWAY:
            place = ("--bind", f"127.0.0.1:{self.port}", *self._recording)
            return ("gateway", "--config", str(self._configs[0]), *place)
        return ("replica", "--config", str(self.config_of(name)), *self._recording)

    async def _ready(self, name: str) -> None:
        process = self.running[name]
        assert process.stdout is not None
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                line = await process.stdout.readline()
        if not line.startswith(b"ready"):
            raise NotStarted(f"{name} did not start: {self._last_words(name)}")

    def _last_words(self, name: str) -> str:
        lines = self.log_of(name).read_text(errors="replace").splitlines()
        return lines[-1] if lines else f"no word within {READY_SECONDS:g} s"

    async def kill(self, *names: str) -> None:
        processes = [self.running.pop(name) for name in names]
        for process in processes:
            _signal(process, signal.SIGKILL)
        for process in processes:
            await process.wait()

    # -- orders ----------------------------------------------------------------------------------

    def state_of(self, name: str) -> State:
        process = self.running.get(name)
        if process is None or process.returncode is not None:
            return "down"
        if name in self._paused:
            return "paused"
        if name in self._ending:
            return "stopping"
        return "starting" if name in self._starting else "running"

    def pause(self, name: str) -> None:
        """It stands still, and keeps its memory and its port: nobody can tell that from a slow network."""
        self._paused.add(name)
        _signal(self.running[name], signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._paused.discard(name)
        _signal(self.running[name], signal.SIGCONT)

    def strike(self, name: str) -> None:
        """Kill it, and leave the rest to who looks after it."""
        self._paused.discard(name)
        self._ending.add(name)
        _signal(self.running[name], signal.SIGKILL)

    def restart(self, name: str) -> None:
        """One that runs is stopped in good order first; one that is down begins at once."""
        self._wanted[name].set()
        if self.state_of(name) != "down":
            self.resume(name)
            self._ending.add(name)
            _signal(self.running[name], signal.SIGTERM)

    # -- the end ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """The gateway first, so that nobody is refused by it; then all replicas."""
        self._stopping = True
        if GATEWAY in self.running:
            await self.end(GATEWAY)
        await asyncio.gather(*(self.end(name) for name in list(self.running)))

    async def end(self, name: str) -> None:
        """As an operator would; also one that is paused."""
        process = self.running.pop(name)
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)  # one that is paused hears nothing else
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except BaseException as error:
            _signal(process, signal.SIGKILL)
            await process.wait()
            if not isinstance(error, TimeoutError):
                raise

    # -- looking after ---------------------------------------------------------------------------

    async def look_after(self, name: str, tell: Teller, *, restart: bool) -> None:
        """Say when the process goes, and start it again: after a while, or when that is wanted."""
        failures = 0
        while True:
            process = self.running.get(name)
            if process is not None:
                await process.wait()
                if self._stopping:
                    return
                tell(f"[red]{name}[/red] (pid {process.pid}) is gone: {_how(process)}")
            if failures >= FAILURES_MAX:
                tell(f"{name} stays down; its log is {self.log_of(name)}")
            elif not restart and not self._wanted[name].is_set():
                tell(f"{name} stays down (--no-restart)")
            await self._is_time(name, RESTART_SECONDS if restart and failures < FAILURES_MAX else None)
            try:
                await self.start(name)
            except NotStarted as error:
                failures += 1
                await self.kill(name)
                tell(f"[red]{escape(str(error))}[/red]")
            else:
                failures = 0
                tell(f"[green]{name}[/green] is back (pid {self.running[name].pid}), and has caught up")

    async def _is_time(self, name: str, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted[name].wait()
        self._wanted[name].clear()


def _found(directory: Path, sites: int | None, *, durable: bool) -> list[Path]:
    """The group's files, new ones or those that are there."""
    there = sorted(directory.glob("site-*.toml"), key=lambda path: int(path.stem.removeprefix("site-")))
    if not there:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(sites or 3)]
        write_group(directory, addresses, GROUP, durable=durable, metrics=False)
        return [directory / f"site-{number}.toml" for number in range(1, len(addresses) + 1)]
    if sites not in {None, len(there)}:
        raise ConfigurationError(f"--sites: {directory} has a group of {len(there)}; name another --dir")
    if not durable or ReplicaConfig.load(there[0]).mode != "durable":
        raise ConfigurationError(
            f"--memory: there is nothing to go on with in {directory}; name another --dir"
        )
    return there


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _how(process: Process) -> str:
    code = process.returncode
    assert code is not None
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it has ended with code {code}"
