"""The example of docs/actions.md runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "actions.md"


def test_when_the_example_runs_then_it_prints_what_its_comments_say(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if block.startswith("import")]
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.split() == re.findall(r"print\(.*# (\w+)", example), done.stderr
