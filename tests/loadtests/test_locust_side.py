"""What runs in locust's process, which patches the standard library: tried in processes of their own."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.cli.groups import ROOT


def told_by(code: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_shapes_have_their_shape_and_stay_at_its_end_without_a_run_time() -> None:
    code = """
import json
from loadtests.shapes import SHAPES, users_at
times = [(at, 100.0) for at in (0, 5, 30, 45, 60, 99, 100)] + [(1e6, None)]
print(json.dumps({name: [users_at(name, *time, 50) for time in times] for name in SHAPES}))
"""
    assert told_by(code) == {
        "constant": [50, 50, 50, 50, 50, 50, None, 50],
        "steps": [10, 10, 20, 30, 40, 50, None, 50],
        "spike": [10, 10, 10, 50, 10, 10, None, 10],
        "soak": [1, 50, 50, 50, 50, 50, None, 50],
    }


def test_who_comes_later_goes_on_with_the_numbers_and_workers_have_their_own() -> None:
    code = """
import json
from loadtests.users import Run
one = Run("r", None, rate=1, groups=1, value_bytes=1)
two = Run("r", None, rate=1, groups=1, value_bytes=1, worker=1)
first = one.enter()
names = [first.next(), first.next()]
one.leave(first)
names += [one.enter().next(), one.enter().next(), two.enter().next()]
print(json.dumps(names))
"""
    assert told_by(code) == [[1, 1], [1, 2], [1, 3], [2, 1], [1001, 1]]


def test_the_class_in_the_document_is_one_of_locust(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "loadtests.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^(?:    .*|)\n)+", document, re.MULTILINE)
    (block,) = (each for each in blocks if "class Sessions" in each)
    (tmp_path / "mine.py").write_text(textwrap.dedent(block))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(tmp_path / "mine.py"),
            "--show-task-ratio",
            "--shape",
            "spike",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "Sessions" in done.stdout
    assert "ReadMostly" not in done.stdout


def test_who_is_in_the_mix_comes_and_nobody_else() -> None:
    code = """
import json
from types import SimpleNamespace
from loadtests.locustfile import USERS, weigh
environment = SimpleNamespace(parsed_options=SimpleNamespace(mix="cas=1,txn=3"), user_classes=[])
weigh(environment)
print(json.dumps({user.__name__: user.weight for user in environment.user_classes}))
"""
    assert told_by(code) == {"CasContention": 1, "Transactions": 3}
