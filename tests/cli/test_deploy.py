"""The unit files and the container file name commands and options that there are."""

import configparser
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.main import app

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def check(words: list[str]) -> None:
    """As the command line would take them apart, without running anything."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command = command.commands[words.pop(0)]
    command.make_context("rsm", words)


def unit_of(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text().replace("\\\n", " "))
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_when_a_unit_starts_something_then_the_command_takes_it(path: Path) -> None:
    unit = unit_of(path)
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/bin/rsm")
    check(words)
    assert unit["Service"]["User"] == "rsm"
    # Longer than a replica takes to leave, or a gateway to drain.
    assert int(unit["Service"]["TimeoutStopSec"]) > 5


def test_when_the_container_starts_something_then_the_command_takes_it() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    said = {
        name: json.loads(words)
        for name, words in re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
    }
    assert said["ENTRYPOINT"] == ["rsm"]
    check(said["CMD"])
    examples = re.findall(r"^#   podman run .* rsm(?: (.*))?$", text, re.MULTILINE)
    assert len(examples) == 2
    check(shlex.split(examples[1]))


def test_when_a_container_is_built_then_it_has_all_that_the_package_is_made_of() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()}
    project = tomllib.loads((DEPLOY.parents[1] / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = [project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"]
    assert copied == {*packages, *files, "constraints.txt"}


def test_when_there_are_units_then_the_page_for_operators_names_them() -> None:
    page = (DEPLOY.parent / "operations.md").read_text()
    assert UNITS
    for path in DEPLOY.iterdir():
        assert f"deploy/{path.name}" in page
