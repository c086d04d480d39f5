"""Calls become bytes and bytes calls, by the annotations of a machine."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from rsm.errors import InvalidCall, MachineError
from rsm.methods import Catalogue
from rsm.state_machine import Context, Since, StateMachine, command, query

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass
class Item:
    name: str
    count: int = 1


class Point(msgspec.Struct, tag=True):
    x: int
    y: int


class Circle(msgspec.Struct, tag=True):
    radius: float


class Shop(StateMachine):
    version = 2

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    @command
    def put(self, item: Item, note: str = "", *, urgent: bool = False) -> int:
        self.items[item.name] = item.count
        return item.count + urgent

    @command(atomic=True)
    def draw(self, shape: Point | Circle, data: bytes = b"") -> Point | Circle:
        return shape

    @command
    def restock(self, name: str, by: int, limit: Annotated[int, Since(2)] = 10) -> int:
        self.items[name] = min(self.items.get(name, 0) + by, limit)
        return self.items[name]

    @command(since=2)
    def clear(self) -> None:
        self.items.clear()

    @query
    def count(self, name: str) -> int:
        return self.items.get(name, 0)


CATALOGUE = Catalogue(Shop)


def test_when_a_machine_is_read_then_its_methods_are_known_by_kind() -> None:
    assert list(CATALOGUE.commands) == ["clear", "draw", "put", "restock"]
    assert list(CATALOGUE.queries) == ["count"]
    assert CATALOGUE.command("draw").mark.atomic


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "result"),
    [
        ("put", (Item("tea", 3),), {}, 3),
        ("put", (Item("tea", 3), "now"), {"urgent": True}, 4),
        ("put", ({"name": "tea"},), {}, 1),  # of the same form
        ("draw", (Point(1, 2),), {}, Point(1, 2)),
        ("draw", (Circle(0.5), b"\xff"), {}, Circle(0.5)),
    ],
)
def test_when_a_call_is_bound_then_it_can_be_made(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
) -> None:
    method = CATALOGUE.command(name)
    bound = method.bind(args, kwargs)
    assert method.invoke(Shop(), bound, 2) == result
    assert method.decode_result(msgspec.msgpack.encode(result)) == result


def test_when_arguments_are_bound_then_they_share_nothing_with_the_callers() -> None:
    class Lists(StateMachine):
        @command
        def take(self, numbers: list[int]) -> None:
            self.numbers = numbers

    numbers = [1, 2]
    bound: Any = Catalogue(Lists).command("take").bind((numbers,), {})
    numbers.append(3)
    assert bound.numbers == [1, 2]


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "words"),
    [
        ("put", ("tea",), {}, "Shop.put: Expected `object`, got `str` - at `item`"),
        ("put", (Item("tea", 2.5),), {}, "at `item.count`"),  # type: ignore[arg-type]
        ("put", (), {}, "Shop.put: missing argument 'item'"),
        ("put", (Item("tea"), "", True), {}, "Shop.put: takes 2 arguments, was given 3"),
        ("put", (Item("tea"),), {"colour": "red"}, "colour"),
        ("restock", ("tea", 1 << 70), {}, "Shop.restock"),
        ("draw", (object(),), {}, "Shop.draw"),
        ("nothing", (), {}, "Shop.nothing: is no command; there are: clear, draw, put, restock"),
    ],
)
def test_when_arguments_are_wrong_then_the_call_is_refused_with_the_place(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidCall) as refusal:
        CATALOGUE.command(name).bind(args, kwargs)
    assert words in str(refusal.value)


def test_when_arguments_refer_to_themselves_then_the_call_is_refused() -> None:
    class Trees(StateMachine):
        @command
        def take(self, tree: list[Any]) -> None: ...

    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(InvalidCall, match=r"Trees\.take"):
        Catalogue(Trees).command("take").bind((tree,), {})


def _broken(body: str) -> type[StateMachine]:
    names: dict[str, Any] = {
        "StateMachine": StateMachine, "command": command, "Later": Annotated[int, Since(2)],
    }  # fmt: skip
    exec(f"class Broken(StateMachine):\n    {body}", names)
    machine: type[StateMachine] = names["Broken"]
    return machine


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x = 1", "has no command"),
        ("@command\n    def f(self, n) -> None: ...", "argument n has no annotation"),
        ("@command\n    def f(self, n: int): ...", "no result annotation"),
        ("@command\n    def f(self, *n: int) -> None: ...", "pass a list"),
        ("@command\n    def f(self, **n: int) -> None: ...", "pass a list or a dict"),
        ("@command\n    def f(self, n: 'Missing') -> None: ...", "Missing"),
        ("@command\n    def f(self, n: slice) -> None: ...", "cannot be encoded"),
        ("@command\n    def f(self, n: int) -> slice: ...", "cannot be encoded"),
        ("@command\n    def f(self, n: list[int] = [1]) -> None: ...", "use a tuple"),
        ("@command(since=2)\n    def f(self) -> None: ...", "Broken.version is 1"),
        (
            "version = 2\n    @command\n    def f(self, n: Later) -> None: ...",
            "no default",
        ),
        (
            "version = 2\n    @command\n    def f(self, n: Later = 1, m: int = 2) -> None: ...",
            "must come last",
        ),
    ],
)
def test_when_a_class_cannot_be_replicated_then_it_is_said_which_method_and_why(
    body: str, words: str
) -> None:
    with pytest.raises(MachineError) as refusal:
        Catalogue(_broken(body))
    assert words in str(refusal.value)
    assert "Broken" in str(refusal.value)


def test_when_something_else_is_passed_then_it_is_refused() -> None:
    with pytest.raises(MachineError, match="no subclass"):
        Catalogue(dict)  # type: ignore[arg-type]


# -- versions ------------------------------------------------------------------------------------


class Older(StateMachine):
    """``Shop`` as it was."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    @command
    def put(self, item: Item, note: str = "", *, urgent: bool = False) -> int:
        return 0

    @command(atomic=True)
    def draw(self, shape: Point | Circle, data: bytes = b"") -> Point | Circle:
        return shape

    @command
    def restock(self, name: str, by: int) -> int:
        return by


def test_when_a_version_is_shared_then_its_signature_is_and_another_has_another() -> None:
    older = Catalogue(Older)
    assert older.signatures == {1: CATALOGUE.signature(1)}
    assert CATALOGUE.signature(1) != CATALOGUE.signature(2)


def test_when_the_group_runs_an_older_version_then_later_arguments_have_their_defaults() -> None:
    method = CATALOGUE.command("restock")
    sent = method.bind(("tea", 50), {"limit": 40})
    assert method.invoke(Shop(), sent, 2) == 40
    assert method.invoke(Shop(), sent, 1) == 10


def test_when_an_older_machine_reads_a_newer_call_then_it_knows_the_rest() -> None:
    sent = msgspec.msgpack.encode(CATALOGUE.command("restock").bind(("tea", 5, 40), {}))
    read = msgspec.msgpack.decode(sent, type=Catalogue(Older).command("restock").arguments)
    assert msgspec.structs.astuple(read) == ("tea", 5)


def said_under_seeds(code: str, *seeds: str) -> set[str]:
    """What the code prints in processes with these hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in seeds
    }


def test_when_hash_seeds_differ_then_signatures_do_not() -> None:
    line = "from tests.rsm.test_methods import CATALOGUE; print(CATALOGUE.signatures)"
    assert said_under_seeds(line, "1", "2") == {f"{CATALOGUE.signatures}\n"}


# -- the class itself ----------------------------------------------------------------------------


def test_when_methods_are_called_directly_then_they_are_plain_methods() -> None:
    shop = Shop()
    assert shop.put(Item("tea", 2)) == 2
    assert shop.count("tea") == 2


def test_when_no_command_is_under_way_then_there_is_no_context() -> None:
    shop = Shop()
    with pytest.raises(MachineError, match="no command is under way"):
        _ = shop.context
    shop.context = Context()
    assert shop.context.timestamp == 0
    assert vars(shop) == {"items": {}}


def test_when_chance_is_asked_for_then_it_depends_on_the_slot_alone() -> None:
    one, other = Context(), Context()
    one.timestamp = other.timestamp = 7
    first = [one.random.random(), one.random.random()]
    assert first == [other.random.random(), other.random.random()]
    one.timestamp = 8
    assert one.random.random() not in first
