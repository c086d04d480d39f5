"""Gateways to a group as processes, for tests of commands that go over HTTP."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.groups import ROOT, SECONDS


class Started:
    """A process of `rsm`, from its line ``ready`` on."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *map(str, words)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "300"},
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline().rstrip()
        if not self.ready.startswith("ready"):
            raise AssertionError((self.ready, self.end(signal.SIGKILL)))

    @property
    def url(self) -> str:
        return self.ready.split()[-1]

    def end(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Its exit code, and what it said last."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err


@contextmanager
def gateway(config: Path, *options: object) -> Iterator[Started]:
    started = Started("gateway", "-c", config, "--bind", "127.0.0.1:0", *options)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.end(signal.SIGKILL)
