"""Whatever a command did to whatever it could reach is undone: content, order, and which object is where."""

import copy
import heapq
import json
import operator
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedList

from rsm.journal import ARMED, COPIED_MIN, Journal, NotUndoable, adopt
from rsm.journal_containers import (
    JournaledCounter,
    JournaledDefaultDict,
    JournaledDeque,
    JournaledDict,
    JournaledList,
    JournaledSet,
)


@dataclass
class Account:
    balance: int = 0
    history: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    value: Any = None
    next: Any = None


@dataclass(frozen=True)
class Frozen:
    inside: Any


class Row(msgspec.Struct):
    value: Any = None


class Table:
    def __init__(self, entries: Any) -> None:
        self.entries = entries


class Refuse(Exception):
    pass


@contextmanager
def refused(journal: Journal, machine: object) -> Iterator[None]:
    """A command that raises at its end."""
    with suppress(Refuse), journal.recording(machine):
        yield
        raise Refuse


# -- order of dicts ------------------------------------------------------------------------------

DICT_STEPS: list[Callable[[Any, int], Any]] = [
    lambda d, k: d.__setitem__(k, -k),
    lambda d, k: d.pop(k, None),
    lambda d, k: d.__setitem__(k, d.pop(k, 0)),
    lambda d, k: d.popitem() if d else None,
    lambda d, k: d.setdefault(k, k),
    lambda d, k: d.clear() if k == 0 else None,
]


@given(st.lists(st.tuples(st.sampled_from(range(len(DICT_STEPS))), st.integers(0, 6)), max_size=12))
@settings(max_examples=500)
@example([(2, 1), (0, 6), (0, 5)])
@example([(1, 3), (3, 0), (3, 0), (0, 3), (2, 0)])
def test_when_few_keys_are_moved_a_lot_then_the_order_is_that_of_a_dict(steps: list[tuple[int, int]]) -> None:
    plain = {number: number for number in range(4)}
    machine, journal = Table(dict(plain)), Journal()
    journal.adopt(machine)
    journal.begin(machine)
    for step, key in steps:
        DICT_STEPS[step](machine.entries, key)
    journal.rollback()
    assert list(machine.entries.items()) == list(plain.items())
    with journal.recording(machine):
        for step, key in steps:
            assert DICT_STEPS[step](machine.entries, key) == DICT_STEPS[step](plain, key)
            assert list(machine.entries.items()) == list(plain.items())
            assert list(reversed(machine.entries)) == list(reversed(plain))
            assert (len(machine.entries), key in machine.entries) == (len(plain), key in plain)
    assert list(machine.entries.items()) == list(plain.items())


def undone(entries: Any, command: Callable[[Any], object]) -> Any:
    """The container after a command that raised."""
    machine, journal = Table(entries), Journal()
    journal.adopt(machine)
    before = machine.entries
    with refused(journal, machine):
        command(machine.entries)
    assert machine.entries is before
    return machine.entries


@pytest.mark.parametrize(
    "command",
    [
        lambda d: d.pop(2),
        lambda d: d.__setitem__(2, d.pop(2)),
        lambda d: [d.popitem() for _ in range(3)],
        lambda d: (d.pop(4), d.popitem(), d.__setitem__(4, 1), d.__setitem__(9, 1), d.pop(4)),
        lambda d: (d.clear(), d.update({3: 1, 2: 1})),
        lambda d: (d.pop(0), d.clear(), d.__setitem__(0, 1)),
        lambda d: (d.__setitem__(7, 1), d.pop(7), d.__setitem__(7, 2), d.__setitem__(8, 1), d.pop(1)),
    ],
)
def test_when_keys_were_moved_then_they_are_back_at_their_places(command: Callable[[Any], object]) -> None:
    assert list(undone({number: str(number) for number in range(5)}, command).items()) == [
        (number, str(number)) for number in range(5)
    ]


def test_when_an_equal_key_of_another_type_took_its_place_then_the_first_one_is_back() -> None:
    assert repr(undone({1: "a", 2: "b"}, lambda d: (d.pop(True), d.__setitem__(True, "c")))) == (
        "{1: 'a', 2: 'b'}"
    )
    assert repr(undone({1, 2}, lambda s: (s.remove(True), s.add(True)))) == "{1, 2}"


def test_when_an_armed_dict_has_lost_keys_then_it_looks_like_one_that_never_had_them() -> None:
    machine, journal = Table({"a": 1, "b": 2, "c": 3}), Journal()
    journal.adopt(machine)
    with journal.recording(machine):
        entries = machine.entries
        entries["a"] = entries.pop("a")
        del entries["b"]
        assert repr(entries) == "{'c': 3, 'a': 1}"
        assert json.dumps(entries) == '{"c": 3, "a": 1}'
        assert entries == {"a": 1, "c": 3} != {}
        assert entries == {"a": 1, "c": 3}
        assert dict(entries) == {**entries} == entries | {} == {} | entries
        assert list(reversed(entries)) == ["a", "c"]
        assert type(entries.copy()) is type(copy.deepcopy(entries)) is type(entries.fromkeys("x")) is dict
        with pytest.raises(TypeError):  # C code that reads past the methods fails, and does not mistake it
            msgspec.json.encode(entries)
    assert list(machine.entries.items()) == [("c", 3), ("a", 1)]
    assert msgspec.json.encode(machine.entries) == b'{"c":3,"a":1}'


def test_when_a_result_has_lost_keys_then_it_can_be_made_fit_for_an_encoder() -> None:
    machine, journal = Table({"a": Account(1, [{"x": 1, "y": 2}]), "b": 2}), Journal()
    journal.adopt(machine)
    with journal.recording(machine):
        assert journal.presentable(machine.entries) is machine.entries
        del machine.entries["a"].history[0]["x"]
        shown = journal.presentable([machine.entries["a"], (machine.entries,)])
        assert msgspec.json.encode(shown[0]) == b'{"balance":1,"history":[{"y":2}]}'
        assert msgspec.json.encode(journal.presentable(machine.entries["b"])) == b"2"


# -- cost ----------------------------------------------------------------------------------------


class Key:
    """Counts how often it is looked up."""

    looks = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        Key.looks += 1
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.number == self.number


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize(
    "command",
    [
        lambda d, key: d.__setitem__(key, 1),
        lambda d, key: d.__setitem__(Key(-5), 1),
        lambda d, key: d.pop(key),
        lambda d, key: d.__setitem__(key, d.pop(key)),
        lambda d, key: d.popitem(),
    ],
)
def test_when_one_key_of_a_large_dict_was_touched_then_only_few_are_looked_up(
    command: Callable[[Any, Any], object], raises: bool
) -> None:
    machine, journal = Table({Key(number): number for number in range(100_000)}), Journal()
    journal.adopt(machine)
    middle = Key(50_000)
    Key.looks = 0
    journal.begin(machine)
    command(machine.entries, middle)
    assert len(journal._log) <= 2
    assert len(journal._noted) <= 3  # the machine, and keys that were handed out
    (journal.rollback if raises else journal.commit)()
    assert Key.looks <= 12


def test_when_one_record_of_many_was_touched_then_only_that_one_is_noted() -> None:
    machine, journal = Table({number: Account(number) for number in range(10_000)}), Journal()
    journal.adopt(machine)
    journal.begin(machine)
    machine.entries[500].balance = -1
    assert len(journal._noted) == 2
    journal.rollback()
    assert machine.entries[500].balance == 500


# -- what is touched -----------------------------------------------------------------------------


def test_when_a_command_keeps_using_what_it_assigned_then_it_is_in_the_state() -> None:
    machine, journal = Table({}), Journal()
    journal.adopt(machine)
    with journal.recording(machine):
        mine: list[int] = []
        machine.entries["mine"] = mine
        mine.append(1)
    assert machine.entries["mine"] is mine
    assert undone({"mine": mine}, lambda d: d["mine"].append(2)) == {"mine": [1]}


def test_when_plain_containers_were_copied_often_then_they_are_adopted() -> None:
    machine, journal = Table({}), Journal()
    journal.adopt(machine)
    machine.entries["big"] = shared = list(range(COPIED_MIN))
    machine.entries["same"] = (shared,)
    for number in range(3):
        with journal.recording(machine):
            machine.entries["big"].append(number)
    assert type(machine.entries["big"]) is JournaledList
    assert machine.entries["same"][0] is machine.entries["big"]
    assert len(machine.entries["big"]) == COPIED_MIN + 3


def test_when_a_container_is_also_in_a_sorted_list_then_it_stays_one_object() -> None:
    both = [3]
    machine = Table({"list": both, "sorted": SortedList([[1], both])})
    Journal().adopt(machine)
    assert machine.entries["sorted"][1] is machine.entries["list"] is both


def test_when_a_container_in_a_tuple_is_also_in_a_sorted_list_then_it_stays_one_object() -> None:
    both = [3]
    machine = Table({"list": both, "sorted": SortedList([(1, both)])})
    Journal().adopt(machine)
    assert machine.entries["sorted"][0][1] is machine.entries["list"]


def test_when_a_slot_was_set_for_the_first_time_then_it_is_unset_again() -> None:
    thing = Slotted(1)
    del thing.next
    undone([thing], lambda items: setattr(items[0], "next", 1))
    assert not hasattr(thing, "next")


def test_when_an_object_got_another_class_or_a_defaultdict_another_factory_then_they_are_back() -> None:
    class Other(Account):
        pass

    account, groups = Account(1), defaultdict(list, {1: [2]})

    def change(entries: Any) -> None:
        entries["account"].__class__ = Other
        entries["groups"].default_factory = int

    entries = undone({"account": account, "groups": groups}, change)
    assert type(account) is Account
    assert entries["groups"].default_factory is list


def test_when_a_state_refers_to_itself_then_adoption_keeps_the_cycles() -> None:
    entries: dict[str, Any] = {}
    entries["self"] = entries
    entries["pair"] = (entries, [entries])
    machine = Table(entries)
    entries["machine"] = machine
    Journal().adopt(machine)
    found = machine.entries
    assert found is found["self"] is found["pair"][0] is found["pair"][1][0]
    assert type(found) is JournaledDict
    assert found["machine"] is machine


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.__dict__.__setitem__("entries", 1),
        lambda m: m.entries["frozen"].inside.append(1),
        lambda m: m.entries["pair"][1]["x"].append(1),
        lambda m: next(iter(m.entries["keys"])).history.append(1),
        lambda m: m.entries["bound"](9),
        lambda m: [account.history.clear() for account in m.entries["sorted"]],
        lambda m: m.entries["list"].sort(key=lambda account: account.history.append(1) or 1),
        lambda m: m.entries["default"]["missing"].append(1),
        lambda m: list(map(operator.methodcaller("__setattr__", "value", 2), m.entries["rows"] * 2)),
        lambda m: m.entries["queue"][0].append(1),
    ],
)
def test_when_a_change_is_made_along_a_crooked_way_then_it_is_undone(change: Callable[[Any], object]) -> None:
    class Keyed(Account):
        __hash__ = object.__hash__

        def __lt__(self, other: Any) -> bool:
            return bool(self.balance < other.balance)

    machine = Table(
        {
            "frozen": Frozen([1]),
            "pair": (1, {"x": []}),
            "keys": {Keyed(1): 1},
            "bound": MethodType(setattr_value, Slotted(1)),
            "sorted": SortedList([Keyed(2), Keyed(1)]),
            "list": [Keyed(1), Keyed(2)],
            "default": defaultdict(list),
            "rows": [Row(1), Row([1])],
            "queue": deque([[1]]),
        }
    )
    journal = Journal()
    journal.adopt(machine)

    def looks() -> str:
        return repr({name: value for name, value in machine.entries.items() if name != "bound"}) + repr(
            machine.entries["bound"].__self__.value
        )

    before = looks()
    with refused(journal, machine):
        change(machine)
    assert looks() == before


def setattr_value(slotted: Slotted, value: int) -> None:
    slotted.value = value


def test_when_attributes_are_not_state_then_they_are_left_alone() -> None:
    class Hosted:
        def __init__(self) -> None:
            self.host: Any = threading.Lock()
            self.value = 1

    machine, journal = Hosted(), Journal(ignored=["host"])
    journal.adopt(machine)
    with refused(journal, machine):
        machine.host, machine.value = None, 2
    assert (machine.host, machine.value) == (None, 1)


# -- refusals ------------------------------------------------------------------------------------


def closure() -> Callable[[], list[int]]:
    hidden: list[int] = []
    return lambda: hidden


class OwnList(list[int]):
    pass


@pytest.mark.parametrize(
    "thing", [threading.Lock(), iter([1]), closure(), [].append, OwnList(), KeyError(), memoryview(b"")]
)
def test_when_a_thing_cannot_be_undone_then_it_is_refused_when_adopted_and_when_touched(thing: Any) -> None:
    with pytest.raises(NotUndoable):
        Journal().adopt(Table({"thing": thing}))
    machine, journal = Table({}), Journal()
    journal.adopt(machine)
    machine.entries["thing"] = thing
    journal.begin(machine)
    machine.entries["other"] = 1
    with pytest.raises(NotUndoable):
        machine.entries["thing"]
    journal.rollback()
    assert list(machine.entries) == ["thing"]
    machine.entries = thing
    with pytest.raises(NotUndoable):
        journal.begin(machine)
    assert not journal.active


@pytest.mark.parametrize(
    "command",
    [
        lambda heap: heapq.heappush(heap, 5),
        heapq.heappop,
        lambda heap: [change(heap) for change in (heapq.heappop, lambda rest: heapq.heappush(rest, 9))],
        lambda heap: heapq.heapreplace(heap, 9),
        lambda heap: heapq.heappushpop(heap, 9),
    ],
)
@pytest.mark.parametrize("raises", [True, False])
def test_when_a_list_was_changed_past_its_methods_then_the_journal_says_so(
    command: Callable[[Any], object], raises: bool
) -> None:
    machine, journal = Table([1, 3, 2, 7]), Journal()
    journal.adopt(machine)
    journal.begin(machine)
    command(machine.entries)
    with pytest.raises(NotUndoable, match="heapq"):
        (journal.rollback if raises else journal.commit)()
    assert type(machine.entries) is JournaledList
    with journal.recording(machine):
        machine.entries.append(8)


def test_when_a_list_was_changed_past_its_methods_then_the_next_method_says_so() -> None:
    machine, journal = Table([1, 3, 2, 7]), Journal()
    journal.adopt(machine)
    journal.begin(machine)
    heapq.heappush(machine.entries, 5)
    with pytest.raises(NotUndoable, match="heapq"):
        machine.entries.append(1)


def test_when_a_heap_is_used_outside_of_atomic_commands_then_nothing_is_wrong() -> None:
    machine, journal = Table([1, 3, 2, 7]), Journal()
    journal.adopt(machine)
    heapq.heappush(machine.entries, 0)
    with journal.recording(machine):
        machine.entries[-1] = 5
    assert machine.entries[0] == 0


def test_when_a_recording_is_begun_or_ended_twice_then_it_is_refused() -> None:
    journal = Journal()
    with pytest.raises(RuntimeError):
        journal.commit()
    journal.begin(Table(1))
    with pytest.raises(RuntimeError):
        journal.begin(Table(1))
    with pytest.raises(RuntimeError):
        journal.adopt(Table(1))


# -- containers like any other -------------------------------------------------------------------

MUTATORS: dict[type, set[str]] = {
    dict: {"__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"},
    list: {"__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "clear", "extend", "insert"}
    | {"pop", "remove", "reverse", "sort"},
    set: {"__iand__", "__ior__", "__isub__", "__ixor__", "add", "clear", "difference_update", "discard"}
    | {"intersection_update", "pop", "remove", "symmetric_difference_update", "update"},
    deque: {"__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "appendleft", "clear", "extend"}
    | {"extendleft", "insert", "pop", "popleft", "remove", "reverse", "rotate"},
}
READERS: dict[type, set[str]] = {
    dict: {"__getitem__", "__iter__", "__len__", "__contains__", "__eq__", "__ne__", "__or__", "__repr__"}
    | {"__reversed__", "__ror__", "copy", "get", "items", "keys", "values", "fromkeys"},
    list: {"__getitem__", "__iter__", "__add__", "__mul__", "__rmul__", "__reversed__", "copy"},
    set: {"__iter__", "__and__", "__or__", "__rand__", "__ror__", "__rsub__", "__rxor__", "__sub__"}
    | {"__xor__", "copy", "difference", "intersection", "symmetric_difference", "union"},
    deque: {"__getitem__", "__iter__", "__add__", "__mul__", "__rmul__", "__reversed__", "copy", "__copy__"},
}
# Neither change a container nor hand out what is in it.
HARMLESS = {
    *dir(object),
    *("__class_getitem__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__len__"),
    *("index", "count", "isdisjoint", "issubset", "issuperset", "maxlen"),
}


@pytest.mark.parametrize("at_rest", [JournaledDict, JournaledList, JournaledSet, JournaledDeque])
def test_when_python_has_a_method_that_nobody_thought_of_then_this_fails(at_rest: type) -> None:
    base = at_rest.__mro__[1]
    armed = ARMED[at_rest]
    known = MUTATORS[base] | READERS[base] | HARMLESS
    assert set(dir(base)) <= known
    own = [name for name in MUTATORS[base] | READERS[base] if getattr(armed, name) is getattr(base, name)]
    assert not own
    overridden = [name for name in MUTATORS[base] if getattr(at_rest, name) is not getattr(base, name)]
    assert not overridden


@pytest.mark.parametrize(
    "plain",
    [
        {1: [2]},
        [1, [2]],
        {1, 2},
        deque([1, [2]], 3),
        defaultdict(list, {1: [2]}),
        Counter("aab"),
    ],
    ids=type,
)
@pytest.mark.parametrize("armed", [False, True])
def test_a_journaled_container_is_like_the_plain_one(plain: Any, armed: bool) -> None:
    machine, journal = Table(copy.deepcopy(plain)), Journal()
    journal.adopt(machine)
    container = machine.entries
    if armed:
        journal.begin(machine)
    assert isinstance(container, type(plain))
    assert container == plain
    assert plain == container
    assert repr(container) == repr(plain)
    for copied in (copy.copy(container), copy.deepcopy(container), container.copy()):
        assert type(copied) is type(plain)
        assert copied == plain
        assert getattr(copied, "maxlen", None) == getattr(plain, "maxlen", None)
    if armed:
        journal.commit()


def test_adopt_makes_journaled_containers_of_plain_ones_and_leaves_objects() -> None:
    account = Account(1, [{}])
    assert type(adopt({1: [2]})[1]) is JournaledList
    assert adopt(account) is account
    assert type(account.history[0]) is JournaledDict
    plain: list[Any] = [set(), deque(), defaultdict(int), Counter()]
    kinds = [type(adopt(each)) for each in plain]
    assert kinds == [JournaledSet, JournaledDeque, JournaledDefaultDict, JournaledCounter]
    assert adopt(deque([1], 5)).maxlen == 5
    assert adopt(5) == 5
