"""The skip guard of conftest.py, run in a pytest of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = {
    "at_run": "import pytest\ndef test_it():\n    pytest.skip('no database')\n",
    "by_mark": "import pytest\n@pytest.mark.skip\ndef test_it():\n    pass\n",
    "at_import": "import pytest\npytest.skip('no module', allow_module_level=True)\n",
}


def run(folder: Path, body: str, allowed: str, *, ci: bool = True, jobs: int = 0) -> tuple[int, str]:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "allowed_skips.txt").write_text(allowed, encoding="utf-8")
    (folder / "test_it.py").write_text(body, encoding="utf-8")
    (folder / "test_other.py").write_text("def test_other():\n    pass\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["CI"] = "true" if ci else ""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs), "--rootdir=."]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("jobs", [0, 2])
@pytest.mark.parametrize("kind", sorted(SKIPS))
def test_when_ci_meets_an_unlisted_skip_then_the_run_fails(tmp_path: Path, kind: str, jobs: int) -> None:
    code, output = run(tmp_path, SKIPS[kind], allowed="", jobs=jobs)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "skip not allowed: test_it.py" in output


def test_when_the_skip_is_listed_with_a_reason_then_the_run_passes_and_says_why(tmp_path: Path) -> None:
    code, output = run(tmp_path, SKIPS["at_run"], allowed="test_it.py::test_it  # needs a database\n")
    assert code == pytest.ExitCode.OK, output
    assert "skip allowed: test_it.py::test_it (needs a database)" in output


def test_when_the_listed_skip_has_no_reason_then_the_run_fails(tmp_path: Path) -> None:
    code, output = run(tmp_path, SKIPS["at_run"], allowed="test_it.py::test_it\n")
    assert code == pytest.ExitCode.USAGE_ERROR, output


def test_when_not_in_ci_then_a_skip_passes(tmp_path: Path) -> None:
    code, output = run(tmp_path, SKIPS["at_run"], allowed="", ci=False)
    assert code == pytest.ExitCode.OK, output


def test_when_ci_meets_an_expected_failure_then_it_is_not_a_skip(tmp_path: Path) -> None:
    body = "import pytest\n@pytest.mark.xfail\ndef test_it():\n    assert False\n"
    code, output = run(tmp_path, body, allowed="")
    assert code == pytest.ExitCode.OK, output
