"""The `rsm` command itself: what it loads, and what it tells a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.groups import rsm

ROOT = Path(__file__).parents[2]


def complete(line: str, cursor: int) -> list[str]:
    done = subprocess.run(
        [Path(sys.executable).parent / "rsm"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "_RSM_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(cursor),
        },
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "cursor", "words"),
    [
        ("rsm le", 1, ["leases"]),
        ("rsm kv ", 2, ["get", "put", "del", "ls", "history", "txn", "watch"]),
        ("rsm kv put --t", 3, ["--ttl", "--token", "--timeout"]),
    ],
)
def test_when_a_shell_asks_what_comes_next_then_it_is_told(line: str, cursor: int, words: list[str]) -> None:
    assert complete(line, cursor) == words


def test_when_help_is_asked_for_then_every_command_is_named_with_what_it_does() -> None:
    shown = rsm("--help").stdout
    for name in ("demo", "gateway", "kv", "leases", "locks", "token", "status", "bench", "sim"):
        assert f" {name} " in shown
    assert "--install-completion" in shown
    assert "--install-completion" not in rsm("kv", "--help").stdout


def test_when_a_key_is_read_then_neither_the_engine_nor_a_server_is_loaded() -> None:
    script = (
        "import sys; sys.argv = ['rsm', 'kv', 'get', 'k', '--endpoint', 'ftp://x']\n"
        "from cli.main import app\n"
        "try: app()\n"
        "except SystemExit: print(sorted({'ordering', 'rsm', 'fastapi', 'sqlalchemy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
