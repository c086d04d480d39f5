"""The examples of README and documents run as they are printed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.main import app

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
    while words and hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {"--help"}.union(*((*option.opts, *option.secondary_opts) for option in command.params))
    named = {word for word in words if re.match("--?[a-z]", word)}
    assert {re.sub("^-v+$", "-v", name) for name in named} <= known


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
