"""The examples of README and documents run as they are printed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from cli.main import app
from tests.cli.demos import serving

README = Path(__file__).resolve().parents[2] / "README.md"
ENGINE = README.parent / "docs" / "engine.md"
GUARANTEES = ENGINE.with_name("guarantees.md")
PAGES = [*sorted(README.parent.glob("*.md")), *sorted(ENGINE.parent.rglob("*.md"))]
# In a block of its own, with what it does behind it; or between backticks.
COMMANDS = re.compile(r"^ {4,}rsm (.+?)(?: {2,}.*)?$|`rsm ([^`]+)`", re.MULTILINE)


@pytest.mark.parametrize("page", [README, ENGINE], ids=lambda page: page.stem)
def test_when_a_page_shows_python_then_it_runs(page: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("target", ["demo", "test"])
def test_when_the_readme_names_a_make_target_then_the_makefile_has_it(target: str) -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert f"make {target}" in README.read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def commands() -> list[str]:
    found = [match for page in PAGES for match in COMMANDS.findall(page.read_text(encoding="utf-8"))]
    return sorted({block or inline for block, inline in found})


@pytest.mark.parametrize("line", commands())
def test_when_a_page_names_a_command_then_it_is_there_with_those_options(line: str) -> None:
    command: Any = get_command(app)
    words = shlex.split(line)
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        _, command, words = command.resolve_command(Context(command), words)
    known = {"--help"}.union(*((*option.opts, *option.secondary_opts) for option in command.params))
    named = {word for word in words if re.match("--?[a-z]", word)}
    assert {re.sub("^-v+$", "-v", name) for name in named} <= known


class Walk:
    """Commands with what they print, one after the other. Numbers need not be those that are printed, but
    where a number stands twice so does what came in its place; `…` stands for anything."""

    def __init__(self, page: Path, **numbers: str) -> None:
        blocks = re.findall(
            r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        steps = re.split(r"^\$ ", "".join(blocks), flags=re.MULTILINE)[1:]
        self.steps = [self._parted(step.splitlines()) for step in steps]
        self.numbers = dict(numbers)

    @staticmethod
    def _parted(lines: list[str]) -> tuple[str, list[str]]:
        more = [line[2:] for line in lines[1:] if line.startswith("> ")]
        return "\n".join([lines[0], *more]), [line for line in lines[1:] if not line.startswith("> ")]

    def command(self, words: str) -> str:
        """With the numbers that were met in place of those that are printed."""
        return re.sub(r"(?<![\w.:/-])\d+(?![\w.])", lambda found: self.numbers.get(found[0], found[0]), words)

    def compare(self, expected: list[str], shown: str) -> None:
        """All lines that are printed came, in this order, among others."""
        lines = iter(shown.splitlines())
        for words in expected:
            pattern = re.sub(r"\d+", r"(\\d+)", re.escape(words)).replace("…", ".*")
            for line in lines:
                found = re.fullmatch(pattern, line.rstrip())
                if found is not None:
                    break
            else:
                raise AssertionError(f"{words!r} is not in {shown!r}")
            for printed, came in zip(re.findall(r"\d+", words), found.groups(), strict=True):
                assert self.numbers.setdefault(printed, came) == came, (words, shown)


def test_when_a_user_walks_as_the_readme_says_then_it_shows_what_is_printed() -> None:
    with serving() as demo:
        walk = Walk(README, **{"8080": str(demo.port), "31383": str(demo.pids["replica 2"])})
        assert len(walk.steps) > 10
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"}
        for command, expected in walk.steps:
            words = walk.command(command)
            name, _, value = words.removeprefix("export ").partition("=")
            if words.startswith("export "):
                env[name] = value.replace("8080", str(demo.port))
                continue
            done = subprocess.run(
                ["bash", "-c", words.replace("curl ", "curl --silent ", 1)],
                capture_output=True,
                text=True,
                env={**env, "PYTHONPATH": str(README.parent)},
                timeout=60,
                check=False,
            )
            assert done.returncode in {0, 28}, (words, done.stderr)  # 28: curl ended after --max-time
            walk.compare(expected, done.stdout)


def promises() -> Iterator[tuple[Path, str]]:
    """Files of tests that the last column of a table of guarantees names, each with the part of a test's name
    that stands behind it, if there is one."""
    for row in re.findall(r"^\|.*\|([^|]*)\|$", GUARANTEES.read_text(encoding="utf-8"), re.MULTILINE):
        file: Path | None = None
        for word in re.findall("`([^`]+)`", row):
            if word.endswith(".py"):
                file = README.parent / (word if "/" in word else f"tests/rsm/{word}")
                yield file, ""
            elif file is not None:
                yield file, word


@pytest.mark.parametrize(("file", "name"), [*promises()], ids=lambda each: getattr(each, "name", each))
def test_when_a_guarantee_names_a_test_then_it_is_there(file: Path, name: str) -> None:
    names = re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    wanted = ".*".join(map(re.escape, name.split("..."))) or ".+"
    assert any(re.fullmatch(wanted, each) for each in names)
