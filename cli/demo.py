"""`rsm demo`: a counter as three processes with disks, and what happens when they are killed."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.panel import Panel

from bench.ports import free_ports
from cli.replica import write_group
from ordering.driver import run
from rsm.client import Client, ClientConfig
from rsm.proxy import Proxy
from rsm.state_machine import StateMachine, command, query

INTRODUCTION: Final = """\
Three processes run the same class, a counter, each with a log on disk. A client outside of them calls it.
One process is killed and comes back; then all are killed at once and come back. kill -9, each time."""
SITES: Final = 3
READY_SECONDS: Final = 30.0
CALL_SECONDS: Final = 20.0


class Counter(StateMachine):
    def __init__(self) -> None:
        self.value = 0

    @command
    def add(self, n: int) -> int:
        self.value += n
        return self.value

    @query
    def get(self) -> int:
        return self.value


class Cluster:
    """Three replicas as processes of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(SITES)]
        write_group(directory, self.addresses, "demo", durable=True, metrics=False)
        self.running: dict[int, Process] = {}

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            self.running[number] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cli.main", "replica", "--machine", "cli.demo:Counter"),
                *("--config", str(self.directory / f"site-{number}.toml"), "--log-level", "error"),
                stdout=PIPE,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )
        await asyncio.gather(*(self._ready(number) for number in numbers))

    async def _ready(self, number: int) -> None:
        process = self.running[number]
        assert process.stdout is not None
        async with asyncio.timeout(READY_SECONDS):
            line = await process.stdout.readline()
        if not line.startswith(b"ready"):
            raise RuntimeError(f"replica {number} did not start: {line.decode()!r}")

    async def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.running[number].send_signal(signal.SIGKILL)
        for number in numbers:
            await self.running.pop(number).wait()

    async def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        await asyncio.gather(*(process.wait() for process in self.running.values()))


class _Teller:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.began = time.monotonic()

    def say(self, words: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:6.2f} s[/dim]  {words}")


def demo(
    calls: Annotated[int, typer.Option(min=1, max=100_000, help="In each part of the story.")] = 300,
) -> None:
    """Run a replicated counter as three processes, kill them, and see that nothing acknowledged is lost.

    Takes some seconds, uses 127.0.0.1 only, and leaves nothing behind. The exit code is 1 if a count is
    wrong. `rsm story` shows the protocol underneath.
    """
    console = Console(highlight=False)
    console.print(Panel(INTRODUCTION, title="a replicated counter", title_align="left"))
    with tempfile.TemporaryDirectory(prefix="rsm-demo-") as directory:
        right = run(_play(Path(directory), calls, _Teller(console)))
    if right:
        console.print("Every call was executed exactly once.", style="bold green")
        console.print("More: rsm story, rsm init --help, docs/framework.md", style="dim")
    else:
        console.print("A count is wrong: this is a bug.", style="bold red")
    raise typer.Exit(0 if right else 1)


async def _play(directory: Path, calls: int, teller: _Teller) -> bool:
    cluster = Cluster(directory)
    try:
        await cluster.start(1, 2, 3)
        teller.say(f"three replicas are ready at {', '.join(cluster.addresses)}")
        key = directory / "group.key"
        config = ClientConfig(group="demo", replicas=tuple(cluster.addresses), key_file=key)
        async with Client(Counter, config) as proxy:
            return await _tell(cluster, proxy, calls, teller)
    finally:
        await cluster.stop()


async def _tell(cluster: Cluster, proxy: Proxy[Counter], calls: int, teller: _Teller) -> bool:
    counter = proxy.with_options(timeout=CALL_SECONDS)
    await _add(counter, calls)
    teller.say(f"{calls} calls of add(1): the counter is at {await counter.get()}")

    adding = asyncio.ensure_future(_add(counter, calls))
    await asyncio.sleep(0)
    await cluster.kill(2)
    teller.say("[red]kill -9[/red] of replica 2, with calls under way")
    gap = await adding
    teller.say(f"{calls} more calls, none lost: {await counter.get()}; the longest pause was {gap:.2f} s")

    await cluster.start(2)
    teller.say("replica 2 is back from its disk, and has caught up")
    await cluster.kill(1, 2, 3)
    teller.say("[red]kill -9[/red] of all three at once: nobody is left")
    await cluster.start(3, 1, 2)
    total = await counter.get()
    teller.say(f"all are back from their disks: the counter is at {total}")
    await _add(counter, calls)
    total = await counter.get()
    teller.say(f"{calls} more calls: {total}")
    return bool(total == 3 * calls)


async def _add(counter: Proxy[Counter], calls: int) -> float:
    """So many calls, ten at a time; the longest time without an answer."""
    longest, before = 0.0, time.monotonic()
    for first in range(0, calls, 10):
        pending = [counter.add(1) for _ in range(first, min(first + 10, calls))]
        await asyncio.gather(*pending)
        longest, before = max(longest, time.monotonic() - before), time.monotonic()
    return longest
