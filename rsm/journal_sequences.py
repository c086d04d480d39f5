"""Armed lists, deques and sets: see ``journal_containers``.

Lists are the one container that C code of the library changes without asking: ``heapq`` does. An armed
list compares its length and its ends before and after; where they do not fit, the journal says that it
cannot undo.

Undoing may give a set another internal order. That order differs between processes anyway.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from operator import index as as_index
from typing import Any

from rsm.journal_containers import JournaledDeque, JournaledList, JournaledSet, NotUndoable


def list_ends(container: list[Any]) -> tuple[int, Any, Any]:
    size = list.__len__(container)
    if not size:
        return 0, None, None
    return size, list.__getitem__(container, 0), list.__getitem__(container, -1)


def check_list(container: Any) -> None:
    (size, first, last), known = list_ends(container), container._record.ends
    if size != known[0] or first is not known[1] or last is not known[2]:
        raise NotUndoable(
            "a list was changed past its own methods, as heapq does; "
            "an atomic command may keep it in order by bisect.insort instead"
        )


def _changes(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def checked(self: Any, *arguments: Any, **more: Any) -> Any:
        check_list(self)
        try:
            return method(self, *arguments, **more)
        finally:
            self._record.ends = list_ends(self)

    return checked


class ArmedList(JournaledList):
    __slots__ = ()

    def __new__(cls, *arguments: Any) -> Any:
        return list(*arguments)

    # -- reading

    def __iter__(self) -> Iterator[Any]:
        return map(self._record.touch, list.__iter__(self))

    def __reversed__(self) -> Iterator[Any]:
        return map(self._record.touch, list.__reversed__(self))

    def __getitem__(self, at: Any) -> Any:
        found = list.__getitem__(self, at)
        if isinstance(at, slice):
            return list(map(self._record.touch, found))
        return self._record.touch(found)

    def copy(self) -> list[Any]:
        return list(self)

    def __add__(self, other: Any) -> Any:
        return list(self) + other

    def __radd__(self, other: Any) -> Any:
        return other + list(self) if isinstance(other, list) else NotImplemented

    def __mul__(self, times: Any) -> Any:
        return list(self) * times

    __rmul__ = __mul__

    # -- changing

    @_changes
    def __setitem__(self, at: Any, value: Any) -> None:
        note = self._record.note
        if not isinstance(at, slice):
            note((list.__setitem__, self, at, list.__getitem__(self, at)))
            list.__setitem__(self, at, value)
            return
        start, stop, step = at.indices(list.__len__(self))
        if step != 1:  # such a slice keeps the length, so it means the same when it is undone
            note((list.__setitem__, self, at, list.__getitem__(self, at)))
            list.__setitem__(self, at, value)
            return
        value = list(value)
        stop = max(start, stop)
        old = list.__getitem__(self, slice(start, stop))
        list.__setitem__(self, at, value)
        note((list.__setitem__, self, slice(start, start + len(value)), old))

    @_changes
    def __delitem__(self, at: Any) -> None:
        if not isinstance(at, slice):
            self._take(as_index(at))
            return
        start, stop, step = at.indices(list.__len__(self))
        if step == 1:
            old = list.__getitem__(self, slice(start, max(start, stop)))
            self._record.note((list.__setitem__, self, slice(start, start), old))
        else:
            self._note_all()
        list.__delitem__(self, at)

    def _take(self, at: int) -> Any:
        value = list.__getitem__(self, at)
        place = at if at >= 0 else at + list.__len__(self)
        list.__delitem__(self, at)
        self._record.note((list.insert, self, place, value))
        return value

    def _note_all(self) -> None:
        self._record.note((list.__setitem__, self, slice(None), list.__getitem__(self, slice(None))))

    def _note_size(self) -> None:
        self._record.note((list.__delitem__, self, slice(list.__len__(self), None)))

    @_changes
    def append(self, value: Any) -> None:
        self._record.note((list.pop, self))
        list.append(self, value)

    @_changes
    def extend(self, values: Any) -> None:
        self._note_size()
        list.extend(self, list(values) if values is self else values)

    @_changes
    def __iadd__(self, values: Any) -> Any:
        self._note_size()
        list.extend(self, list(values) if values is self else values)
        return self

    @_changes
    def __imul__(self, times: Any) -> Any:
        self._note_all()
        return list.__imul__(self, times)

    @_changes
    def insert(self, at: Any, value: Any) -> None:
        size = list.__len__(self)
        place = as_index(at)
        place = max(0, place + size) if place < 0 else min(place, size)
        list.insert(self, place, value)
        self._record.note((list.__delitem__, self, place))

    @_changes
    def pop(self, at: Any = -1, /) -> Any:
        size = list.__len__(self)
        place = as_index(at)
        if not -size <= place < size:
            raise IndexError("pop index out of range" if size else "pop from empty list")
        return self._record.touch(self._take(place))

    @_changes
    def remove(self, value: Any) -> None:
        try:
            place = list.index(self, value)
        except ValueError:
            raise ValueError("list.remove(x): x not in list") from None
        self._take(place)

    @_changes
    def clear(self) -> None:
        self._note_all()
        list.clear(self)

    @_changes
    def reverse(self) -> None:
        self._record.note((list.reverse, self))
        list.reverse(self)

    @_changes
    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._note_all()
        if key is not None:  # it is shown every entry
            list(self)
        list.sort(self, key=key, reverse=reverse)


# -- deques --------------------------------------------------------------------------------------


class ArmedDeque(JournaledDeque):
    __slots__ = ()

    def __new__(cls, *arguments: Any, **more: Any) -> Any:
        return deque(*arguments, **more)

    # -- reading

    def __iter__(self) -> Iterator[Any]:
        return map(self._record.touch, deque.__iter__(self))

    def __reversed__(self) -> Iterator[Any]:
        return map(self._record.touch, deque.__reversed__(self))

    def __getitem__(self, at: Any) -> Any:
        return self._record.touch(deque.__getitem__(self, at))

    def __add__(self, other: Any) -> Any:
        return self.copy() + other

    def __mul__(self, times: Any) -> Any:
        return self.copy() * times

    __rmul__ = __mul__

    # -- changing

    def append(self, value: Any) -> None:
        if self.maxlen is None or len(self) < self.maxlen:
            self._record.note((deque.pop, self))
        elif self.maxlen:
            self._record.note((_back_at_the_left, self, deque.__getitem__(self, 0)))
        deque.append(self, value)

    def appendleft(self, value: Any) -> None:
        if self.maxlen is None or len(self) < self.maxlen:
            self._record.note((deque.popleft, self))
        elif self.maxlen:
            self._record.note((_back_at_the_right, self, deque.__getitem__(self, -1)))
        deque.appendleft(self, value)

    def extend(self, values: Any) -> None:
        for value in list(values) if values is self else values:
            self.append(value)

    def extendleft(self, values: Any) -> None:
        for value in list(values) if values is self else values:
            self.appendleft(value)

    def __iadd__(self, values: Any) -> Any:
        self.extend(values)
        return self

    def __imul__(self, times: Any) -> Any:
        self._note_all()
        return deque.__imul__(self, times)

    def __setitem__(self, at: Any, value: Any) -> None:
        self._record.note((deque.__setitem__, self, at, deque.__getitem__(self, at)))
        deque.__setitem__(self, at, value)

    def __delitem__(self, at: Any) -> None:
        place = as_index(at)
        value = deque.__getitem__(self, place)
        place = place if place >= 0 else place + len(self)
        deque.__delitem__(self, place)
        self._record.note((deque.insert, self, place, value))

    def insert(self, at: Any, value: Any) -> None:
        size = len(self)
        place = as_index(at)
        deque.insert(self, place, value)
        place = max(0, place + size) if place < 0 else min(place, size)
        self._record.note((deque.__delitem__, self, place))

    def remove(self, value: Any) -> None:
        del self[deque.index(self, value)]

    def pop(self) -> Any:  # type: ignore[override]
        value = deque.pop(self)
        self._record.note((deque.append, self, value))
        return self._record.touch(value)

    def popleft(self) -> Any:
        value = deque.popleft(self)
        self._record.note((deque.appendleft, self, value))
        return self._record.touch(value)

    def rotate(self, steps: Any = 1, /) -> None:
        deque.rotate(self, steps)
        self._record.note((deque.rotate, self, -as_index(steps)))

    def reverse(self) -> None:
        self._record.note((deque.reverse, self))
        deque.reverse(self)

    def clear(self) -> None:
        self._note_all()
        deque.clear(self)

    def _note_all(self) -> None:
        self._record.note((_refill_deque, self, list(deque.__iter__(self))))


def _back_at_the_left(container: Any, dropped: Any) -> None:
    deque.pop(container)
    deque.appendleft(container, dropped)


def _back_at_the_right(container: Any, dropped: Any) -> None:
    deque.popleft(container)
    deque.append(container, dropped)


def _refill_deque(container: Any, values: list[Any]) -> None:
    deque.clear(container)
    deque.extend(container, values)


# -- sets ----------------------------------------------------------------------------------------


class _Probe:
    """Equal to what a value is equal to; looking for it in a set shows which object stands there."""

    __slots__ = ("found", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.found = value

    def __hash__(self) -> int:
        return int(self.value.__hash__())

    def __eq__(self, other: object) -> bool:
        same = other is self.value or bool(other == self.value)
        if same:
            self.found = other
        return same


def stored(container: Any, value: Any) -> Any:
    """The element of a set that equals a value: True may stand for 1."""
    probe = _Probe(value)
    if set.__contains__(container, probe):
        return probe.found
    # Its class says that it equals nothing of another class, instead of that it cannot tell.
    return next(element for element in set.__iter__(container) if element == value)


class ArmedSet(JournaledSet):
    __slots__ = ()

    def __new__(cls, *arguments: Any) -> Any:
        return set(*arguments)

    def __iter__(self) -> Iterator[Any]:
        return map(self._record.touch, set.__iter__(self))

    # -- changing

    def add(self, value: Any) -> None:
        if not set.__contains__(self, value):
            self._record.note((set.discard, self, value))
        set.add(self, value)

    def _take(self, value: Any) -> bool:
        if not set.__contains__(self, value):
            return False
        if isinstance(value, set):
            value = frozenset(value)
        self._record.note((set.add, self, stored(self, value)))
        set.discard(self, value)
        return True

    def discard(self, value: Any) -> None:
        self._take(value)

    def remove(self, value: Any) -> None:
        if not self._take(value):
            raise KeyError(value)

    def pop(self) -> Any:
        value = set.pop(self)
        self._record.note((set.add, self, value))
        return self._record.touch(value)

    def clear(self) -> None:
        self._record.note((set.update, self, list(set.__iter__(self))))
        set.clear(self)

    def update(self, *others: Any) -> None:
        for other in others:
            for value in list(other) if other is self else other:
                self.add(value)

    def difference_update(self, *others: Any) -> None:
        for other in others:
            for value in list(other) if other is self else other:
                self._take(value)

    def intersection_update(self, *others: Any) -> None:
        kept = set.intersection(self, *others)
        for value in [value for value in set.__iter__(self) if value not in kept]:
            self._take(value)

    def symmetric_difference_update(self, other: Any) -> None:
        for value in dict.fromkeys(other):
            if not self._take(value):
                self.add(value)

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        return self._in_place(self.update, other)

    def __iand__(self, other: Any) -> Any:  # type: ignore[misc]
        return self._in_place(self.intersection_update, other)

    def __isub__(self, other: Any) -> Any:  # type: ignore[misc]
        return self._in_place(self.difference_update, other)

    def __ixor__(self, other: Any) -> Any:  # type: ignore[misc]
        return self._in_place(self.symmetric_difference_update, other)

    def _in_place(self, change: Callable[[Any], None], other: Any) -> Any:
        if not isinstance(other, set | frozenset):
            return NotImplemented
        change(other)
        return self


def _giving(name: str) -> Callable[..., Any]:
    """A method of set that gives a new set: a plain one, whose elements are armed."""
    method = getattr(set, name)

    @wraps(method)
    def give(self: Any, *others: Any) -> Any:
        made = method(self, *others)
        if made is NotImplemented:
            return made
        if isinstance(made, frozenset):
            return frozenset(map(self._record.touch, made))
        return set(map(self._record.touch, set.__iter__(made)))

    return give


SET_GIVERS = (
    *("__and__", "__or__", "__sub__", "__xor__", "__rand__", "__ror__", "__rsub__", "__rxor__"),
    *("copy", "difference", "intersection", "symmetric_difference", "union"),
)
for _name in SET_GIVERS:
    setattr(ArmedSet, _name, _giving(_name))
