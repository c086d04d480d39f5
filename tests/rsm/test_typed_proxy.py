"""What type checkers know of a proxy: real mypy on real programs, with the plugin and without."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MACHINES = """
from typing import Generic, TypeVar
from rsm import StateMachine, command, query

class Counter(StateMachine):
    def __init__(self) -> None:
        self.value = 0

    @command
    def add(self, n: int, *, times: int = 1) -> int:
        self.value += n * times
        return self.value

    @command(atomic=True)
    def rename(self, old: str, new: str = "x") -> None: ...

    @query
    def get(self) -> int:
        return self.value

    def helper(self) -> int:
        return self.value

class Better(Counter):
    @command
    def reset(self) -> None:
        self.value = 0
"""

# Each line ends as the checker judges it: with the error, or with nothing.
GOOD_AND_BAD = """
import asyncio
from typing import assert_type
from machines import Better, Counter
from rsm import BlockingClient, Client, ClientConfig, Fresh, Replica, ReplicaConfig, Result

async def replicas(config: ReplicaConfig) -> None:
    async with Replica(Counter, config) as counter:
        assert_type(await counter.add(1), int)
        assert_type(await counter.add(n=1, times=2), int)
        assert_type(await counter.get(), int)
        assert_type(await counter.with_options(timeout=1).add(1), int)
        assert_type(await counter.with_details().add(1), Result[int])
        assert_type(await counter.with_details().get(), Fresh[int])
        assert_type(await counter.with_options(timeout=1).with_details().get(), Fresh[int])
        one, two = await asyncio.gather(counter.add(1), counter.get())
        assert_type(two, int)
        await counter.rename("a")
        await counter.rename("a", "b")
        await counter.add("one")  # E: incompatible type "str"; expected "int"
        await counter.add()  # E: Missing positional argument "n"
        await counter.add(1, 2)  # E: Too many positional arguments
        await counter.add(1, sometimes=2)  # E: Unexpected keyword argument "sometimes"
        await counter.rename(1)  # E: incompatible type "int"; expected "str"
        await counter.multiply(2)  # E: "Counter" has no command or query "multiply"
        await counter.helper()  # E: "helper" of "Counter" is no command or query
        counter.value  # E: "value" of "Counter" is no command or query
        text: str = await counter.get()  # E: expression has type "int", variable has type "str"
        wrong: int = counter.get()  # E: expression has type "Coroutine[Any, Any, int]"
        counter.with_options(timeot=1)  # E: Unexpected keyword argument "timeot"

async def clients(config: ClientConfig) -> None:
    async with Client(Better, config) as better:
        assert_type(await better.add(1), int)
        await better.reset()
        await better.reset(1)  # E: Too many arguments
        assert_type(await better.call(Better.add, 1, times=2), int)
        assert_type(await better.call(Counter.add, 1), int)

def blocking(config: ClientConfig) -> None:
    with BlockingClient(Counter, config) as counter:
        assert_type(counter.add(1), int)
        assert_type(counter.with_options(timeout=1).get(), int)
        assert_type(counter.with_details().add(1), Result[int])
        assert_type(counter.call(Counter.add, 1), int)
        counter.add("one")  # E: incompatible type "str"; expected "int"
        counter.subtract(1)  # E: "Counter" has no command or query "subtract"

def directly() -> None:
    machine = Better()
    assert_type(machine.add(1), int)
    assert_type(machine.get(), int)
    machine.add("one")  # E: incompatible type "str"; expected "int"
"""

WITHOUT_A_PLUGIN = """
from typing import assert_type
from machines import Better, Counter
from rsm import BlockingClient, ClientConfig, Replica, ReplicaConfig

async def replicas(config: ReplicaConfig) -> None:
    async with Replica(Counter, config) as counter:
        assert_type(await counter.call(Counter.add, 1), int)
        assert_type(await counter.call(Counter.add, n=1, times=2), int)
        assert_type(await counter.call(Counter.get), int)
        await counter.call(Counter.add, "one")  # E:
        await counter.call(Counter.add)  # E:
        await counter.call(Better.reset)  # E:
        await counter.call(Counter.helper)  # E:
        await counter.add("whatever")

def blocking(config: ClientConfig) -> None:
    with BlockingClient(Counter, config) as counter:
        assert_type(counter.call(Counter.get), int)
        counter.call(Counter.get, 1)  # E:

def directly() -> None:
    assert_type(Counter().add(1, times=2), int)
    assert_type(Counter.add(Counter(), 1), int)
    Counter().add("one")  # E:
"""


def expected(program: str) -> dict[int, str]:
    marks = [(number, line.partition("# E:")) for number, line in enumerate(program.splitlines(), 1)]
    return {number: words.strip() for number, (_, mark, words) in marks if mark}


def judged(expected_errors: dict[int, str], found: dict[int, str]) -> None:
    assert found.keys() == expected_errors.keys(), found
    for number, words in expected_errors.items():
        assert words in found[number]


def mypy(directory: Path, program: str, *, plugin: bool) -> dict[int, str]:
    """The errors by line. What is in the cache was checked by another run."""
    (directory / "machines.py").write_text(MACHINES)
    (directory / "program.py").write_text(program)
    plugins = "plugins = rsm.mypy_plugin\n" if plugin else ""
    (directory / "mypy.ini").write_text(f"[mypy]\nstrict = True\n{plugins}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-pretty", "program.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    errors = re.findall(r"^program\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert len(errors) == done.stdout.count(": error: "), done.stdout
    return {int(number): words for number, words in errors}


def test_when_mypy_has_the_plugin_then_it_knows_each_method_and_no_other(tmp_path: Path) -> None:
    judged(expected(GOOD_AND_BAD), mypy(tmp_path, GOOD_AND_BAD, plugin=True))
    # Once more, with the machine's module from the cache.
    judged(expected(GOOD_AND_BAD), mypy(tmp_path, GOOD_AND_BAD.rstrip() + "\n\n", plugin=True))


def test_when_mypy_has_no_plugin_then_calls_by_the_class_are_checked(tmp_path: Path) -> None:
    judged(expected(WITHOUT_A_PLUGIN), mypy(tmp_path, WITHOUT_A_PLUGIN, plugin=False))


def test_when_pyright_looks_then_calls_by_the_class_are_checked(tmp_path: Path) -> None:
    pyright = shutil.which("basedpyright") or shutil.which("pyright")
    if pyright is None:
        pytest.skip("needs pyright")
    (tmp_path / "machines.py").write_text(MACHINES)
    (tmp_path / "program.py").write_text(WITHOUT_A_PLUGIN)
    done = subprocess.run(
        [pyright, "--outputjson", "--pythonpath", sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = json.loads(done.stdout)["generalDiagnostics"]
    errors = {each["range"]["start"]["line"] + 1 for each in said if each["severity"] == "error"}
    assert errors == expected(WITHOUT_A_PLUGIN).keys(), done.stdout
