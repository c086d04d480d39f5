"""Groups of real processes, each replica an `rsm replica` with a disk, for tests that break one of them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.ports import free_ports
from cli.replica import write_group
from ordering.naming import group_id
from ordering.sealing import Keyring
from rsm.client import Client, ClientConfig
from rsm.state_machine import StateMachine
from rsm.status import ReplicaStatus
from rsm.transfer import Peer

ROOT = Path(__file__).parents[2]
SECONDS = 60


class ProcessGroup:
    """Three sites, numbered from 1."""

    def __init__(self, directory: Path, machine: type[StateMachine]) -> None:
        self.directory = directory
        self.machine = machine
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        write_group(directory, self.addresses, "broken", durable=True)
        self.running: dict[int, subprocess.Popen[str]] = {}

    def config(self, number: int) -> Path:
        return self.directory / f"site-{number}.toml"

    def set(self, number: int, **settings: object) -> None:
        """Change a site's file."""
        path = self.config(number)
        kept = [line for line in path.read_text().splitlines() if line.partition(" =")[0] not in settings]
        new = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in settings.items()]
        path.write_text("\n".join([*kept, *new]) + "\n")

    def start(
        self, number: int, before: tuple[str, ...] = (), machine: type[StateMachine] | None = None
    ) -> None:
        """``before``: the command it is run under."""
        runs = machine or self.machine
        words = ["--config", str(self.config(number)), "--machine", f"{runs.__module__}:{runs.__name__}"]
        self.running[number] = subprocess.Popen(
            [*before, sys.executable, "-m", "cli.main", "replica", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "1000"},
        )

    async def ready(self, *numbers: int) -> None:
        for number in numbers:
            stdout = self.running[number].stdout
            assert stdout is not None
            line = await asyncio.to_thread(stdout.readline)
            assert line.startswith("ready"), (line, await self.ended(number))

    async def ended(self, number: int) -> tuple[int, str]:
        """Its exit code and its last words, once it has ended by itself."""
        process = self.running[number]
        ending = asyncio.ensure_future(asyncio.to_thread(process.communicate, timeout=SECONDS))
        try:
            _, words = await asyncio.shield(ending)
        except BaseException:  # nobody waits for it any more, and the thread must not go on to
            _kill(process)
            await asyncio.wait([ending])
            raise
        del self.running[number]
        return process.returncode, words

    async def status(self, number: int) -> ReplicaStatus | None:
        keyring = Keyring.from_text((self.directory / "group.key").read_text())
        return await Peer(self.addresses[number - 1], keyring, group_id("broken"), 1).status()

    async def votes(self, number: int, asked: int) -> None:
        """Returns when the site is a voter, as another one sees it; who begins anew is none at first."""
        async with asyncio.timeout(SECONDS):
            while True:
                status = await self.status(asked)
                members = () if status is None else status.members
                at = [member for member in members if member.address == self.addresses[number - 1]]
                if [member.voter and member.in_ring for member in at] == [True]:
                    return
                await asyncio.sleep(0.05)

    async def kill(self, *numbers: int) -> None:
        for number in numbers:
            _kill(self.running[number])
        for number in numbers:
            await self.ended(number)

    def client(self, **changes: Any) -> Client[Any]:
        key = self.directory / "group.key"
        config = ClientConfig(group="broken", replicas=tuple(self.addresses), key_file=key, **changes)
        return Client(self.machine, config)


@asynccontextmanager
async def process_group(directory: Path, machine: type[StateMachine]) -> AsyncIterator[ProcessGroup]:
    """Nothing runs yet; nothing runs any more afterwards."""
    group = ProcessGroup(directory, machine)
    try:
        yield group
    finally:
        for process in group.running.values():
            _kill(process)
        for process in group.running.values():
            process.communicate()


def _kill(process: "subprocess.Popen[str]") -> None:
    """With what it was run under."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
