"""Programs that a benchmark starts as a user would, by their command line; always stopped, by their pid."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.errors import BenchError

_STOP_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """What a process has used, all its threads together; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="utf-8") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return 0


def free_ports(count: int, kind: socket.SocketKind) -> list[int]:
    """Held together, so that they differ; they may be taken before a program gets there, which it says."""
    with ExitStack() as held:
        taken = [held.enter_context(socket.socket(socket.AF_INET, kind)) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


class Program:
    """What it says goes to a file, whose last line tells why it ended."""

    def __init__(
        self, name: str, words: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = directory / f"{name.replace(' ', '-')}.log"
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*dies_with_us, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # a Ctrl-C is ours to handle
            )
        self.pid = self.process.pid

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def check(self) -> None:
        if self.process.poll() is not None:
            last = self.said().strip().splitlines()[-1:]
            why = last[0] if last else "it said nothing"
            raise BenchError(f"{self.name} ended with exit code {self.process.returncode}: {why}")

    def wait_until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Until done; an end of the program is noticed at once."""
        until = time.monotonic() + seconds
        while not done():
            self.check()
            if time.monotonic() > until:
                raise BenchError(f"{self.name}: {what} within {seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """It holds nothing worth saving."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(_STOP_SECONDS)


@contextmanager
def programs() -> Iterator[list[Program]]:
    """Whatever is put into the list is stopped at the end of the block."""
    running: list[Program] = []
    try:
        yield running
    finally:
        for program in reversed(running):
            program.stop()
