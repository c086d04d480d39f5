"""The example of the documents runs as it is printed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_when_the_example_runs_then_all_members_have_the_same_lines() -> None:
    command = [sys.executable, "docs/driver_example.py"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "300 lines, the same at all three: True\n", done.stderr
