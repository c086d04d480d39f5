"""A demonstration that serves, for tests that try it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.ports import free_ports
from tests.cli.groups import ROOT, SECONDS


class Demo:
    """A demonstration that serves, read line by line."""

    def __init__(self, *options: object) -> None:
        (self.port,) = free_ports(1)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "cli.main", "demo", "--serve", "--port", str(self.port)),
                *map(str, options),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        self.shown = self.until("Ctrl-C stops everything")

    def until(self, words: str) -> str:
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if words in line:
                return said
        raise AssertionError(f"it never said {words!r}: {said}")

    @property
    def pids(self) -> dict[str, int]:
        return {name: int(pid) for name, pid in re.findall(r"(replica \d|gateway) +pid (\d+)", self.shown)}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, name: str) -> str:
        return f"{self.url}/v1/kv/{name}"

    def end(self, how: signal.Signals = signal.SIGINT) -> str:
        self.process.send_signal(how)
        said, _ = self.process.communicate(timeout=SECONDS)
        return said


@contextmanager
def serving(*options: object) -> Iterator[Demo]:
    demo = Demo(*options)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.end(signal.SIGTERM)
        for pid in demo.pids.values():
            assert not runs(pid)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
