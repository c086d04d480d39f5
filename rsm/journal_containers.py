"""Containers that can take back what was done to them.

A journaled container has two classes. At rest it is a ``JournaledDict``: a dict with nothing overridden, so
it costs what a dict costs. While an atomic command runs, what the command reaches is *armed*: it changes its
``__class__`` to a recording one, whose mutators note how to undo themselves, and whose readers arm what they
hand out, so that nothing is reached unarmed. At the end it changes back. Arming costs the same for ten
entries and for ten million.

These are the classes at rest; ``journal_dicts`` and ``journal_sequences`` have the armed ones. To everyone
who looks, copies, compares or prints, they are dicts, lists, sets and deques.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any, Final


class NotUndoable(TypeError):
    """A state holds, or a command did, what a journal cannot take back."""


# Stand for empty dicts until there is something to put into one: most commands delete nothing.
NONE_GONE: Final[dict[Any, None]] = {}
NO_TAIL: Final[dict[Any, Any]] = {}


class Record:
    """What an armed container knows of its journal, and of itself."""

    __slots__ = ("ends", "gone", "note", "tail", "touch")

    def __init__(self, note: Callable[[tuple[Any, ...]], None], touch: Callable[[Any], Any]) -> None:
        self.note = note  # takes (function, *arguments), to be called on rollback
        self.touch = touch  # arms a value that is handed out
        self.gone: dict[Any, None] = NONE_GONE  # keys of a dict that stand there, marked
        self.tail: dict[Any, Any] = NO_TAIL  # its entries behind all others
        self.ends: tuple[int, Any, Any] = (0, None, None)  # of a list


class JournaledDict(dict[Any, Any]):
    __slots__ = ("_record",)
    _record: Record

    def __copy__(self) -> dict[Any, Any]:
        return self.copy()

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (), None, None, iter(self.items())


class JournaledDefaultDict(defaultdict[Any, Any]):
    __slots__ = ("_record",)
    _record: Record

    def copy(self) -> Any:
        return defaultdict(self.default_factory, self)

    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce_ex__(self, _: Any) -> Any:
        return defaultdict, (self.default_factory,), None, None, iter(self.items())


class JournaledCounter(Counter[Any]):
    __slots__ = ("_record",)
    _record: Record

    def copy(self) -> Any:
        return Counter(self)

    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce_ex__(self, _: Any) -> Any:
        return Counter, (), None, None, iter(self.items())


class JournaledList(list[Any]):
    __slots__ = ("_record",)
    _record: Record

    def __copy__(self) -> list[Any]:
        return self.copy()

    def __reduce_ex__(self, _: Any) -> Any:
        return list, (), None, iter(self)


class JournaledSet(set[Any]):
    __slots__ = ("_record",)
    _record: Record

    def copy(self) -> set[Any]:
        return set(self)

    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce_ex__(self, _: Any) -> Any:
        return set, (list(self),)


class JournaledDeque(deque[Any]):
    __slots__ = ("_record",)
    _record: Record

    def copy(self) -> Any:
        return deque(self, self.maxlen)

    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce_ex__(self, _: Any) -> Any:
        return deque, ((), self.maxlen), None, iter(self)
