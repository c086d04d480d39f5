"""Programs that a benchmark starts as a user would, by their command line; always stopped, by their pid."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

    def says(self, word: str) -> bool:
        """Whether a line begins with it."""
        return any(line.startswith(word) for line in self.said().splitlines())

    def stop(self) -> None:
        """It holds nothing worth saving."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(_STOP_SECONDS)


def wait_until(running: Sequence[Program], done: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Until done; an end of any of the programs is noticed at once."""
    until = time.monotonic() + seconds
    while not done():
        for program in running:
            program.check()
        if time.monotonic() > until:
            raise BenchError(f"{otherwise} within {seconds:.0f} s")
        time.sleep(_LOOK_SECONDS)


@contextmanager
def programs() -> Iterator[list[Program]]:
    """Whatever is put into the list is stopped at the end of the block."""
    running: list[Program] = []
    try:
        yield running
    finally:
        for program in reversed(running):
            program.stop()
