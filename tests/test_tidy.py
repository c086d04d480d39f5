"""Applies the house rules of tidy.py to the repository, and shows that each rule can fail."""

import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests import tidy
from tests.tidy import Source, Violation

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ordering", "rsm", "apps", "api", "pipeline", "cli", "bench", "loadtests")

Rule = Callable[[Source], Iterator[Violation]]
CORE_RULES: list[Rule] = [tidy.forbidden_imports, tidy.forbidden_calls, tidy.floats, tidy.set_iteration]
PACKAGE_RULES: list[Rule] = [tidy.long_functions]
FILE_RULES: list[Rule] = [tidy.long_file, tidy.leftovers]


def python_sources(*folders: str) -> list[Source]:
    """Parsed files of those folders that exist."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [
        Source.parse(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths
    ]


def core_sources() -> list[Source]:
    core = [source for source in python_sources("ordering", "rsm", "apps") if tidy.is_core(source.path)]
    known_sets = tidy.declared_sets(source.tree for source in core)
    return [Source(source.path, source.text, source.tree, known_sets) for source in core]


def repository_files() -> list[Path]:
    """Files that git tracks or would add. Without git: all files outside hidden folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
            "\0"
        )
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)
        ]
    return sorted(path for path in paths if path.is_file())


def assert_none(violations: Iterable[Violation]) -> None:
    found = [str(violation) for violation in violations]
    assert not found, f"{len(found)} violations\n" + "\n".join(found)


@pytest.mark.parametrize("rule", CORE_RULES, ids=lambda rule: rule.__name__)
def test_core_is_deterministic(rule: Rule) -> None:
    assert_none(violation for source in core_sources() for violation in rule(source))


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_packages_are_readable(rule: Rule) -> None:
    assert_none(violation for source in python_sources(*PACKAGES) for violation in rule(source))


@pytest.mark.parametrize("rule", FILE_RULES, ids=lambda rule: rule.__name__)
def test_files_are_finished(rule: Rule) -> None:
    assert_none(violation for source in python_sources(*PACKAGES, "tests") for violation in rule(source))


def test_repository_speaks_of_the_product_alone() -> None:
    texts = ((path.relative_to(ROOT).as_posix(), tidy.read_text(path)) for path in repository_files())
    assert_none(
        violation for path, text in texts if text is not None for violation in tidy.foreign_words(path, text)
    )


# --- the rules themselves


def found(rule: Rule, text: str, known_sets: Iterable[str] = ()) -> list[Violation]:
    return list(rule(Source.parse("ordering/example.py", text, known_sets)))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("ordering/engine.py", True),
        ("ordering/disciplines/rotating.py", True),
        ("ordering/driver.py", False),
        ("ordering/recording.py", False),
        ("ordering/transports/udp.py", False),
        ("ordering/simulator/cluster.py", False),
        ("cli/main.py", False),
        ("apps/kv/store.py", True),
        ("apps/actions/manager.py", False),
        ("rsm/executor.py", True),
        ("rsm/replica.py", False),
    ],
)
def test_core_is_ordering_without_its_shell_and_what_replicas_execute(path: str, expected: bool) -> None:
    assert tidy.is_core(path) is expected


@pytest.mark.parametrize(
    "text",
    [
        *(f"import {name}" for name in sorted(tidy.FORBIDDEN_IN_CORE)),
        "import os.path",
        "import socket as wire",
        "from time import monotonic",
        "from random import randint",
        "from random import Random, choice",
        "def late():\n    import asyncio",
    ],
)
def test_forbidden_import_is_found(text: str) -> None:
    assert len(found(tidy.forbidden_imports, text)) == 1


@pytest.mark.parametrize("text", ["from random import Random", "from .time import Clock", "import msgspec"])
def test_harmless_import_is_not_found(text: str) -> None:
    assert not found(tidy.forbidden_imports, text)


@pytest.mark.parametrize(
    "text", ["hash(x)", "y = id(x)", "print(x)", "float(x)", "open('f')", "__import__('os')", "Random()"]
)
def test_forbidden_call_is_found(text: str) -> None:
    assert len(found(tidy.forbidden_calls, text)) == 1


@pytest.mark.parametrize("text", ["x.id()", "hash_of(x)", "Random(7)", "def __hash__(self): return self.n"])
def test_harmless_call_is_not_found(text: str) -> None:
    assert not found(tidy.forbidden_calls, text)


@pytest.mark.parametrize("text", ["x = 1.5", "x = a / b", "x /= 2", "def f(x=0.1): ...", "x = 1e3", "x = 2j"])
def test_float_is_found(text: str) -> None:
    assert len(found(tidy.floats, text)) == 1


@pytest.mark.parametrize("text", ["x = a // b", "x = 10", "x = '1.5'"])
def test_integer_is_not_a_float(text: str) -> None:
    assert not found(tidy.floats, text)


@pytest.mark.parametrize(
    "text",
    [
        "for x in {1, 2}: ...",
        "for x in set(y): ...",
        "for x in {y for y in z}: ...",
        "[x for x in frozenset(y)]",
        "{x: 1 for x in {1, 2}}",
        "SITES = frozenset('ab')\nfor x in SITES: ...",
        "def f(sites: set[int]):\n    for x in sites: ...",
        "def f(*, sites: frozenset[int] | None):\n    return list(sites)",
        "def f():\n    sites = set()\n    for x in sites: ...",
        "def f():\n    sites: set[int] = make()\n    yield from sites",
        "def f(sites: set[int]):\n    rest = sites - {1}\n    return tuple(rest)",
        "def f(sites: set[int]):\n    return sites.union(y).pop()",
        "def f(sites: set[int]):\n    return [*sites]",
        "def f(sites: set[int]):\n    first, = sites",
        "def f(sites: set[int]):\n    [first, second] = sites",
        "def f(sites: set[int]):\n    return max(sites, key=rank)",
        "def f(sites: set[str]):\n    return ','.join(sites)",
        "def f(sites: set[int]):\n    return dict.fromkeys(sites)",
        "def f(sites: set[int]):\n    def g():\n        return next(iter(sites))",
        "class A:\n    sites: set[int]\n    def f(self):\n        for x in self.sites: ...",
        "class A:\n  def a(self):\n    self.s = set()\n  def b(self):\n    return [x for x in self.s]",
        "class A:\n  def a(self):\n    self.s: set[int] = x\n  def b(self):\n    for x in self.s | y: ...",
    ],
)
def test_iteration_over_a_set_is_found(text: str) -> None:
    assert len(found(tidy.set_iteration, text)) == 1, text


@pytest.mark.parametrize(
    "text",
    [
        "for x in sorted({1, 2}): ...",
        "for x in [1, 2]: ...",
        "def f(sites: set[int]):\n    return 1 in sites and len(sites)",
        "def f(sites: set[int]):\n    return any(x > 1 for x in sites)",
        "def f(sites: set[int]):\n    return sorted([x for x in sites])",
        "def f(sites: set[int]):\n    return {x + 1 for x in sites}",
        "def f(sites: set[int]):\n    return {*sites, 3}",
        "def f(sites: set[int]):\n    return max(sites)",
        "def f(sites: set[int]): ...\ndef g(sites: list[int]):\n    for x in sites: ...",
        "class A:\n  s: set[int]\nclass B:\n  s: list[int]\n  def f(self):\n    for x in self.s: ...",
        "def f(sites: dict[int, set[int]]):\n    for x in sites: ...",
        "def f(sites: list[int]):\n    return sites.pop()",
    ],
)
def test_ordered_use_is_not_found(text: str) -> None:
    assert not found(tidy.set_iteration, text), text


def test_iteration_over_a_set_declared_in_another_file_is_found() -> None:
    declaration = Source.parse(
        "ordering/views.py",
        "class View:\n"
        "    members: frozenset[int]\n"
        "    ring: tuple[int, ...]\n"
        "    def outside(self) -> set[int]: ...\n",
    )
    known_sets = tidy.declared_sets([declaration.tree])
    assert found(tidy.set_iteration, "for x in view.members: ...", known_sets)
    assert found(tidy.set_iteration, "for x in view.outside(): ...", known_sets)
    assert not found(tidy.set_iteration, "for x in view.ring: ...", known_sets)


def test_name_that_is_a_set_only_in_some_classes_is_not_guessed() -> None:
    tree = Source.parse("a.py", "class A:\n    s: set[int]\nclass B:\n    s: list[int]\n").tree
    assert not tidy.declared_sets([tree])


def test_long_function_is_found() -> None:
    body = "    pass\n" * (tidy.FUNCTION_LINES_MAX - 1)
    assert not found(tidy.long_functions, f"def f():\n{body}")
    assert found(tidy.long_functions, f"def f():\n{body}    pass\n")
    assert found(tidy.long_functions, f"async def f():\n{body}    pass\n")


def test_long_file_is_found() -> None:
    assert not found(tidy.long_file, "pass\n" * tidy.FILE_LINES_MAX)
    assert found(tidy.long_file, "pass\n" * (tidy.FILE_LINES_MAX + 1))


# A bar splits each bad word below, because this file obeys the rules too.


@pytest.mark.parametrize("split_word", ["TO|DO", "FIX|ME", "XX|X"])
def test_leftover_is_found(split_word: str) -> None:
    word = split_word.replace("|", "")
    assert found(tidy.leftovers, f"x = 1  # {word}: later")
    assert not found(tidy.leftovers, f"x = '{word}ISH'")


@pytest.mark.parametrize(
    "split_text",
    [
        "see /ho|me/someone/file",
        "cd '/wo|rk/main'",
        "/ro|ot/.bashrc",
        "https://py|pi.org/simple",
        "files.python|hosted.org",
        "--index-|url=x",
        "see Issue |#12",
        "done in this |session",
        "as the previous |session left it",
    ],
)
def test_foreign_word_is_found(split_text: str) -> None:
    assert len(list(tidy.foreign_words("a.md", split_text.replace("|", "")))) == 1


@pytest.mark.parametrize(
    "text",
    ["GET /v1/home/x", "~/work/x", "a session opens by an ordered Open", "the session's replies", "issues"],
)
def test_plain_word_is_not_foreign(text: str) -> None:
    assert not list(tidy.foreign_words("a.md", text))


def test_binary_file_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"PAR1\0\1")
    assert tidy.read_text(tmp_path / "data") is None
