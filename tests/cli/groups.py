"""A group as processes, for tests of commands that look at one or change it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from bench.ports import free_ports
from cli.main import app

ROOT = Path(__file__).parents[2]
MACHINE = "tests.rsm.machines:Counter"
SECONDS = 90
PAUSE = 0.1


def until(holds: Callable[[], bool]) -> None:
    """Of what other processes come to, nobody here is told; so look now and then, and not for ever."""
    ends = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(PAUSE)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def rsm(*words: object, given: str | None = None) -> Done:
    """A command of the command line, in this process: its replicas are processes, and starting one more for
    every question would take most of the time."""
    runner = CliRunner(env={"COLUMNS": "300"})
    result = runner.invoke(app, [str(word) for word in words], input=given, catch_exceptions=False)
    return Done(result.exit_code, result.stdout, result.stderr)


class Group:
    """Sites by number, from 1 on."""

    def __init__(
        self, directory: Path, sites: int, *, durable: bool, ring: dict[str, int], machine: str = MACHINE
    ) -> None:
        self.directory = directory
        self.machine = machine
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(sites)]
        self.running: dict[int, subprocess.Popen[str]] = {}
        mode = "--durable" if durable else "--memory"
        made = rsm("init", directory, "--sites", ",".join(self.addresses), "--group", "ops", mode)
        assert made.returncode == 0, made.stderr
        lines = ["[ring]", *(f"{name} = {value}" for name, value in ring.items())]
        for number in range(1, sites + 1):
            with self.config(number).open("a") as file:
                file.write("\n".join(lines) + "\n")

    def config(self, number: int = 1) -> Path:
        return self.directory / f"site-{number}.toml"

    def data(self, number: int) -> Path:
        return self.directory / f"site-{number}.data"

    def start(self, *numbers: int) -> None:
        """Start all, and wait until each is ready."""
        self.begin(*numbers)
        for number in numbers:
            self.await_line(number, "ready")

    def begin(self, *numbers: int) -> None:
        for number in numbers:
            with self.log(number).open("a") as log:
                self.running[number] = subprocess.Popen(
                    [sys.executable, "-m", "cli.main", *map(str, self.words(number))],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, "COLUMNS": "300"},
                )

    def log(self, number: int) -> Path:
        return self.directory / f"{number}.log"

    def words(self, number: int) -> tuple[object, ...]:
        return ("replica", "-c", self.config(number), "-m", self.machine)

    def await_line(self, number: int, words: str) -> None:
        process = self.running[number]
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(words), (line, process.poll())

    def answer(self, *numbers: int) -> bool:
        """Whether they run, and can say how they stand."""
        done = rsm("status", "-c", self.config(numbers[0]), "-o", "json")
        found = json.loads(done.stdout)
        return all(found[self.addresses[number - 1]] is not None for number in numbers)

    def kill(self, *numbers: int, how: signal.Signals = signal.SIGKILL) -> None:
        for number in numbers:
            self.running[number].send_signal(how)
        for number in numbers:
            self.running.pop(number).communicate(timeout=SECONDS)

    def call(self, *words: object, site: int = 1) -> Any:
        done = rsm("call", *words, "-c", self.config(site), "-m", MACHINE, "--timeout", "30")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def json(self, *words: object, site: int = 1, code: int = 0) -> Any:
        done = rsm(*words, "-c", self.config(site), "-o", "json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)


@contextmanager
def running_group(
    directory: Path,
    sites: int = 3,
    *,
    durable: bool = True,
    ring: dict[str, int] | None = None,
    machine: str = MACHINE,
) -> Iterator[Group]:
    group = Group(directory / "g", sites, durable=durable, ring=ring or {}, machine=machine)
    try:
        group.start(*range(1, sites + 1))
        yield group
    finally:
        group.kill(*list(group.running))
