"""How the containers of a state become journaled ones.

A twin takes the place of each plain dict, list, set and deque, everywhere it is referred to: what was one
object stays one. So the whole state is walked before anything is changed, and a container stays plain if
something refers to it that cannot be told of the twin, such as a sorted list, which keeps its elements in its
own way.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sized
from typing import Any, Final, TypeVar

from sortedcontainers import SortedKeyList, SortedList, SortedSet

from rsm.journal_containers import (
    JournaledCounter,
    JournaledDefaultDict,
    JournaledDeque,
    JournaledDict,
    JournaledList,
    JournaledSet,
)
from rsm.journal_kinds import ATOMIC, PLAIN, keeper_of
from rsm.values_shapes import Shape

T = TypeVar("T")

_TWINS: Final[dict[type, Callable[[Any], Any]]] = {
    dict: lambda _: JournaledDict(),
    list: lambda _: JournaledList(),
    set: lambda _: JournaledSet(),
    deque: lambda plain: JournaledDeque(maxlen=plain.maxlen),
    defaultdict: lambda plain: JournaledDefaultDict(plain.default_factory),
    Counter: lambda _: JournaledCounter(),
}
_JOURNALED: Final = frozenset(
    {JournaledDict, JournaledDefaultDict, JournaledCounter, JournaledList, JournaledSet, JournaledDeque}
)
# What is in these stays as it is, and so do the keys of mappings.
_UNTOLD: Final = (set, frozenset, SortedList, SortedKeyList, SortedSet)


def adopt(value: T) -> T:
    """The value with its containers journaled: a twin if it is a container, itself if it is an object."""
    adoption = Adoption()
    adoption.walk([value])
    adoption.replace()
    made: T = adoption.told(value)
    return made


class Adoption:
    """One walk through a state."""

    def __init__(self) -> None:
        self.walked = 0  # entries looked at
        self._met: dict[int, Any] = {}  # keeps them, so that ids stay theirs
        self._untold: set[int] = set()
        self._twins: dict[int, Any] = {}
        self._rebuilt: dict[int, Any] = {}

    def machine(self, machine: object, ignored: Collection[str]) -> None:
        keeper = keeper_of(machine)
        attributes = {
            name: value for name, value in keeper.named(keeper.save(machine)) if name not in ignored
        }
        self._met[id(machine)] = None  # it may be referred to by its own state
        self.walk(list(attributes.values()))
        self.replace()
        for name, value in attributes.items():
            told = self.told(value)
            if told is not value:
                object.__setattr__(machine, name, told)

    def walk(self, values: list[Any]) -> None:
        met = self._met
        waiting = values
        while waiting:
            thing = waiting.pop()
            if type(thing) in ATOMIC or id(thing) in met:
                continue
            met[id(thing)] = thing
            if type(thing) not in _JOURNALED:
                keeper_of(thing)  # or nobody: refused
            if isinstance(thing, dict):
                keys, inside = _changing(thing), _changing(thing.values())
                self._leave(keys)
                inside += keys
            elif isinstance(thing, list | deque | set):
                inside = _changing(thing)
            else:
                keeper = keeper_of(thing)
                inside = _changing(keeper.inside(keeper.save(thing)))
            if isinstance(thing, _UNTOLD):
                self._leave(inside)
            self.walked += 1 + (len(thing) if hasattr(thing, "__len__") else 0)
            waiting += inside

    def _leave(self, things: list[Any]) -> None:
        """These cannot be replaced, nor can what is in tuples among them."""
        waiting = list(things)
        while waiting:
            thing = waiting.pop()
            self._untold.add(id(thing))
            if isinstance(thing, tuple):
                waiting += thing

    def replace(self) -> None:
        for at, thing in self._met.items():
            if type(thing) in PLAIN and at not in self._untold:
                self._twins[at] = _TWINS[type(thing)](thing)
        for at, thing in self._met.items():
            self._tell(thing, self._twins.get(at, thing))

    def _tell(self, thing: Any, place: Any) -> None:
        """Put into ``place`` what ``thing`` holds, with twins for what has one."""
        told = self.told
        if isinstance(thing, dict):
            if place is not thing:
                dict.update(place, zip(thing, map(told, thing.values()), strict=True))
            else:
                for key, value in [(key, value) for key, value in thing.items() if told(value) is not value]:
                    thing[key] = told(value)
        elif isinstance(thing, list | deque):
            if place is not thing:
                place.extend(map(told, thing))
            else:
                for at, value in enumerate(list(thing)):
                    if told(value) is not value:
                        thing[at] = told(value)
        elif isinstance(thing, set):
            if place is not thing:
                place.update(thing)
        elif thing is not None and (shape := keeper_of(thing).shape) is not None:
            _tell_object(thing, shape, told)

    def told(self, value: Any) -> Any:
        """What is to stand where the value stands."""
        if type(value) in ATOMIC:
            return value
        at = id(value)
        if at in self._twins:
            return self._twins[at]
        if not isinstance(value, tuple) or at in self._untold:
            return value
        if at not in self._rebuilt:
            items = list(map(self.told, value))
            same = all(new is old for new, old in zip(items, value, strict=True))
            self._rebuilt[at] = value if same else tuple.__new__(type(value), items)
        return self._rebuilt[at]


def _changing(things: Iterable[Any]) -> list[Any]:
    """Those that can change or lead to what can; most often none, which is found out quickly."""
    things = things if isinstance(things, Sized) else list(things)
    if set(map(type, things)) <= ATOMIC:
        return []
    return [thing for thing in things if type(thing) not in ATOMIC]


def _tell_object(thing: Any, shape: Shape, told: Callable[[Any], Any]) -> None:
    for name, value in shape.apart(thing).items():
        new = told(value)
        if new is not value:
            shape.fill(thing, {name: new})
