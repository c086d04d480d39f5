"""How things that are not journaled are saved by a shallow copy, and restored in place."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from operator import is_
from re import Pattern
from types import BuiltinFunctionType, EllipsisType, FunctionType, MethodType, ModuleType, NotImplementedType
from typing import Any, Final
from uuid import UUID

from sortedcontainers import SortedDict, SortedKeyList, SortedList, SortedSet

from rsm.journal_containers import NotUndoable
from rsm.values_shapes import Opaque, Shape, is_named_tuple, qualified_name, set_class

# What cannot change, and leads nowhere. Code is not state.
ATOMIC: Final[frozenset[type]] = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, Decimal, Fraction, UUID, Pattern, type}
    | {date, datetime, time, timedelta, timezone}
    | {EllipsisType, ModuleType, NotImplementedType}
)
PLAIN: Final[frozenset[type]] = frozenset({dict, list, set, deque, defaultdict, Counter})

_VALUES: Final = (int, float, complex, str, bytes)


class Keeper:
    """Saves things of one kind."""

    shape: Shape | None = None  # of an object

    def save(self, thing: Any) -> Any:
        """A shallow copy; None where nothing can change."""

    def inside(self, saved: Any) -> Iterable[Any]:
        """What a thing that was saved leads to."""
        return ()

    def named(self, saved: Any) -> Iterable[tuple[str, Any]]:
        """The same, by the names of attributes."""
        return ()

    def restore(self, thing: Any, saved: Any) -> None:
        """In place."""


class _Immutable(Keeper):
    """A tuple or the like: it cannot change, but what is in it may."""

    def save(self, thing: Any) -> Any:
        return thing

    def inside(self, saved: Any) -> Iterable[Any]:
        yield from saved


class _Method(Keeper):
    def save(self, thing: Any) -> Any:
        return (thing.__self__,)

    def inside(self, saved: Any) -> Iterable[Any]:
        yield from saved


class _Elements(Keeper):
    """A container of elements, refilled by ``clear`` and a method that takes many."""

    def __init__(self, refill: str) -> None:
        self.refill = refill

    def save(self, thing: Any) -> Any:
        return list(thing)

    def inside(self, saved: Any) -> Iterable[Any]:
        yield from saved

    def restore(self, thing: Any, saved: Any) -> None:
        thing.clear()
        getattr(thing, self.refill)(saved)


class _Entries(Keeper):
    """A mapping. A counter's own update would add."""

    def __init__(self, refill: Callable[[Any, Any], None]) -> None:
        self.refill = refill

    def save(self, thing: Any) -> Any:
        return list(thing.items()), getattr(thing, "default_factory", None)

    def inside(self, saved: Any) -> Iterable[Any]:
        for entry in saved[0]:
            yield from entry

    def restore(self, thing: Any, saved: Any) -> None:
        entries, factory = saved
        thing.clear()
        self.refill(thing, entries)
        if isinstance(thing, defaultdict):
            thing.default_factory = factory


class _Bytes(Keeper):
    def save(self, thing: Any) -> Any:
        return bytes(thing)

    def restore(self, thing: Any, saved: Any) -> None:
        thing[:] = saved


class _Object(Keeper):
    """An object of a class in Python: slots, and a ``__dict__``."""

    def __init__(self, shape: Shape) -> None:
        self.shape: Shape = shape

    def save(self, thing: Any) -> Any:
        return self.shape.apart(thing)

    def inside(self, saved: Any) -> Iterable[Any]:
        yield from saved.values()

    def named(self, saved: Any) -> Iterable[tuple[str, Any]]:
        yield from saved.items()

    def restore(self, thing: Any, saved: Any) -> None:
        if type(thing) is not self.shape.cls:
            set_class(thing, self.shape.cls)
        now = self.shape.apart(thing)
        if list(now) == list(saved) and all(map(is_, now.values(), saved.values())):
            return
        for name, slot in self.shape.slots.items():
            if name in saved:
                slot.__set__(thing, saved[name])
            elif name in now:
                slot.__delete__(thing)
        if self.shape.has_dict:
            attributes = thing.__dict__
            attributes.clear()
            attributes.update((name, saved[name]) for name in saved if name not in self.shape.slots)


_NONE: Final = Keeper()
_IMMUTABLE: Final = _Immutable()
_KEEPERS: Final[dict[type, Keeper]] = {
    tuple: _IMMUTABLE,
    frozenset: _IMMUTABLE,
    MethodType: _Method(),
    list: _Elements("extend"),
    deque: _Elements("extend"),
    set: _Elements("update"),
    SortedList: _Elements("update"),
    SortedKeyList: _Elements("update"),
    SortedSet: _Elements("update"),
    dict: _Entries(dict.update),
    defaultdict: _Entries(dict.update),
    Counter: _Entries(dict.update),
    OrderedDict: _Entries(OrderedDict.update),
    SortedDict: _Entries(SortedDict.update),
    bytearray: _Bytes(),
}


def keeper_of(thing: Any) -> Keeper:
    """Who saves a thing; raises NotUndoable if nobody can."""
    kind = type(thing)
    keeper = _KEEPERS.get(kind)
    if keeper is None:
        if kind is FunctionType or kind is BuiltinFunctionType:
            return _function_keeper(thing)
        keeper = _KEEPERS[kind] = _keeper_for(kind)
    return keeper


def _function_keeper(function: Any) -> Keeper:
    """Code is not state, unless it carries some along."""
    carried = getattr(function, "__closure__", None)
    if carried is None and isinstance(getattr(function, "__self__", None), ModuleType | type | None):
        return _NONE
    raise NotUndoable(f"function {function.__qualname__} carries state that an atomic command cannot undo")


def _keeper_for(kind: type) -> Keeper:
    if issubclass(kind, Enum | type):
        return _NONE
    if not kind.__dictoffset__:
        if is_named_tuple(kind):
            return _IMMUTABLE
        if issubclass(kind, _VALUES):
            return _NONE
    try:
        return _Object(Shape(kind))
    except Opaque as reason:
        raise NotUndoable(
            f"what an atomic command does to a {qualified_name(kind)} cannot be undone: {reason}; "
            "keep it out of the state, or do without atomic"
        ) from None
