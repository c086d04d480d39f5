"""Java is found as Spark finds it; where it is missing or too old, the one line that helps is said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import checkup
from pipeline.errors import JavaMissing
from pipeline.java import INSTALL, require_java

ROOT = Path(__file__).parents[2]


def java(folder: Path, says: str) -> Path:
    """One that says its version, as they do."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    path.chmod(0o755)
    return path


def test_when_java_home_is_set_then_that_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="has no bin/java") as missing:
        require_java()
    assert INSTALL in str(missing.value)
    path = java(tmp_path, 'openjdk version "21.0.3" 2024-04-16')
    assert require_java() == (path, 21)
    for old in ('java version "1.8.0_402"', 'openjdk version "11.0.2"', "hello"):
        java(tmp_path, old)
        with pytest.raises(JavaMissing, match="Java 17 or newer"):
            require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="no java on the PATH"):
        require_java()


def test_when_a_site_is_examined_then_java_is_minded_only_where_the_pipeline_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (found,) = checkup.java()
    assert found.verdict == "mind"
    assert INSTALL in found.advice
    java(tmp_path, 'openjdk version "17.0.1"')
    (found,) = checkup.java()
    assert found.verdict == "well"
    monkeypatch.setattr(checkup, "find_spec", lambda name: None)
    assert list(checkup.java()) == []


def test_when_make_finds_no_java_then_it_prints_the_line_and_installs_only_when_told(tmp_path: Path) -> None:
    """A tree of its own, in which apt-get is ours and only says what it was told."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "pipeline").symlink_to(ROOT / "pipeline")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / ".venv" / ".installed").write_text(f"{tmp_path.resolve()}\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "apt-get").write_text('#!/bin/sh\necho "apt-get $*"\n')
    (tools / "apt-get").chmod(0o755)

    def made(*arguments: str, **more: str) -> str:
        environment = {
            key: value for key, value in os.environ.items() if key not in {"CI", "JAVA_HOME", "PYTHONPATH"}
        }
        environment |= {"JAVA_HOME": "/nowhere", "PATH": f"{tools}:{environment['PATH']}"} | more
        done = subprocess.run(
            ["make", "--no-print-directory", "java", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout + done.stderr

    told = made()
    assert INSTALL in told
    assert "apt-get update" not in told
    assert f"apt-get update -q\n{INSTALL}" in made("JAVA=install")
    if os.geteuid() == 0:
        assert f"apt-get update -q\n{INSTALL}" in made(CI="true")
    java(tmp_path / "jdk", 'openjdk version "17.0.1"')
    assert made("JAVA=install", JAVA_HOME=str(tmp_path / "jdk")) == ""
