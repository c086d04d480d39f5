"""Armed dicts: see ``journal_containers``.

Nobody can put a key back into the middle of a dict. So an armed dict does not take keys out: it marks them as
gone, and holds back those that come again, and everything new after them, in a *tail*. A commit does what was
put off; a rollback forgets it. Both cost what was touched, and the order is exact.

C code that reads a dict past its methods would see the marks. It cannot mistake them for values: no encoder
knows their type. ``Journal.presentable`` makes a result fit for such an encoder.
"""

from collections import Counter, defaultdict
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any, Final

from rsm.journal_containers import (
    NO_TAIL,
    NONE_GONE,
    JournaledCounter,
    JournaledDefaultDict,
    JournaledDict,
    Record,
)

GONE: Final = object()
_raw: Final[Any] = dict  # its own methods, for those who know about the marks


class _Keys(KeysView[Any]):
    _mapping: Any

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(self._mapping)


class _Values(ValuesView[Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[Any]:
        touch = self._mapping._record.touch
        return (touch(value) for _, value in self._mapping._walk())

    def __reversed__(self) -> Iterator[Any]:
        return (self._mapping[key] for key in reversed(self._mapping))


class _Items(ItemsView[Any, Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        touch = self._mapping._record.touch
        return ((touch(key), touch(value)) for key, value in self._mapping._walk())

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        key, value = item
        found = self._mapping._find(key)
        return found is not GONE and bool(found is value or found == value)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self._mapping[key]) for key in reversed(self._mapping))


class _Recording:
    """What armed dicts of all kinds do."""

    __slots__ = ()
    _record: Record

    # -- reading

    def _find(self, key: Any) -> Any:
        value = _raw.get(self, key, GONE)
        if value is GONE and self._record.tail:
            return self._record.tail.get(key, GONE)
        return value

    def _walk(self) -> Iterator[tuple[Any, Any]]:
        """The entries, with what a dict says to those who change it meanwhile."""
        size = len(self)
        for entries in (_raw.items(self), self._record.tail.items()):
            for entry in entries:
                if entry[1] is not GONE:
                    yield entry
                    if len(self) != size:
                        raise RuntimeError("dictionary changed size during iteration")

    def __len__(self) -> int:
        record = self._record
        return len(record.tail) - len(record.gone) + int(_raw.__len__(self))

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not GONE

    def __iter__(self) -> Iterator[Any]:
        touch = self._record.touch
        return (touch(key) for key, _ in self._walk())

    def __reversed__(self) -> Iterator[Any]:
        touch, size = self._record.touch, len(self)
        parts = (reversed(self._record.tail.items()), reversed(_raw.items(self)))
        for entries in parts:
            for key, value in entries:
                if value is not GONE:
                    yield touch(key)
                    if len(self) != size:
                        raise RuntimeError("dictionary changed size during iteration")

    def __getitem__(self, key: Any) -> Any:
        value = self._find(key)
        if value is GONE:
            missing = getattr(type(self), "__missing__", None)
            if missing is None:
                raise KeyError(key)
            value = missing(self, key)
        return self._record.touch(value)

    def get(self, key: Any, default: Any = None, /) -> Any:
        value = self._find(key)
        return default if value is GONE else self._record.touch(value)

    def keys(self) -> KeysView[Any]:
        return _Keys(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def items(self) -> ItemsView[Any, Any]:
        return _Items(self)

    @classmethod
    def fromkeys(cls, keys: Any, value: Any = None, /) -> Any:
        return dict.fromkeys(keys, value)

    # -- changing

    def __setitem__(self, key: Any, value: Any) -> None:
        record = self._record
        old = _raw.get(self, key, GONE)
        if old is not GONE:
            record.note((_raw.__setitem__, self, key, old))
        elif record.tail or (record.gone and key in record.gone):
            record.tail[key] = value
            return
        else:
            record.note((_raw.__delitem__, self, key))
        _raw.__setitem__(self, key, value)

    def _remove(self, key: Any) -> Any:
        record = self._record
        value = _raw.get(self, key, GONE)
        if value is GONE:
            return record.tail.pop(key, GONE) if record.tail else GONE
        record.note((_raw.__setitem__, self, key, value))
        _raw.__setitem__(self, key, GONE)
        if record.gone is NONE_GONE:
            record.gone, record.tail = {}, {}
        record.gone[key] = None
        return value

    def __delitem__(self, key: Any) -> None:
        if self._remove(key) is GONE:
            raise KeyError(key)

    def pop(self, key: Any, /, *default: Any) -> Any:
        if len(default) > 1:
            raise TypeError(f"pop expected at most 2 arguments, got {1 + len(default)}")
        value = self._remove(key)
        if value is not GONE:
            return self._record.touch(value)
        if default:
            return default[0]
        raise KeyError(key)

    def popitem(self) -> tuple[Any, Any]:
        record = self._record
        if record.tail:
            key, value = record.tail.popitem()
            return record.touch(key), record.touch(value)
        while True:  # behind the last entry there may be some that are gone
            key, value = _raw.popitem(self)
            record.note((_raw.__setitem__, self, key, value))
            if value is not GONE:
                return record.touch(key), record.touch(value)
            del record.gone[key]

    def setdefault(self, key: Any, default: Any = None, /) -> Any:
        value = self._find(key)
        if value is not GONE:
            return self._record.touch(value)
        self[key] = default
        return default

    def clear(self) -> None:
        record = self._record
        record.note((_refill_dict, self, list(_raw.items(self))))
        _raw.clear(self)
        record.gone, record.tail = NONE_GONE, NO_TAIL

    def update(self, *others: Any, **more: Any) -> None:
        if len(others) > 1:
            raise TypeError(f"update expected at most 1 argument, got {len(others)}")
        for other in others:
            if hasattr(other, "keys"):
                for key in other.keys():  # noqa: SIM118 - a mapping need not iterate over its keys
                    self[key] = other[key]
            else:
                for pair in other:
                    key, value = pair
                    self[key] = value
        for name, value in more.items():
            self[name] = value

    # -- the end

    def _settle(self) -> None:
        """A commit: what was put off."""
        record = self._record
        for key in record.gone:
            _raw.__delitem__(self, key)
        _raw.update(self, record.tail)


class _Comparing(_Recording):
    """What armed dicts do, except for counters, which compare and merge in their own way."""

    __slots__ = ()

    def copy(self) -> Any:
        return dict(self.items())

    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.copy()) if self._record.gone else super().__repr__()

    def __eq__(self, other: object) -> Any:
        return _raw.__eq__(_plain_dict(self), _plain_dict(other))

    def __ne__(self, other: object) -> Any:
        return _raw.__ne__(_plain_dict(self), _plain_dict(other))

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        merged = self.copy()
        merged.update(other)
        return merged

    def __ror__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        merged = other.copy()
        merged.update(self)
        return merged

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self


class ArmedDict(_Comparing, JournaledDict):  # type: ignore[misc]
    __slots__ = ()

    def __new__(cls, *arguments: Any, **more: Any) -> Any:
        return dict(*arguments, **more)


class ArmedDefaultDict(_Comparing, JournaledDefaultDict):  # type: ignore[misc]
    __slots__ = ()

    def __new__(cls, *arguments: Any, **more: Any) -> Any:
        return defaultdict(*arguments, **more)

    def copy(self) -> Any:
        return defaultdict(self.default_factory, self.items())

    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.copy())


class ArmedCounter(_Recording, JournaledCounter):  # type: ignore[misc]
    __slots__ = ()

    def __new__(cls, *arguments: Any, **more: Any) -> Any:
        return Counter(*arguments, **more)

    def __delitem__(self, key: Any) -> None:
        self._remove(key)  # a counter has nothing against it

    def update(self, other: Any = None, /, **more: Any) -> None:
        """As Counter's, which hands its first entries to dict, past everybody."""
        for source in (other, more):
            if hasattr(source, "items"):
                for key, count in source.items():
                    self[key] = count + self.get(key, 0)
            elif source is not None:
                for key in source:
                    self[key] = self.get(key, 0) + 1


def _plain_dict(value: Any) -> Any:
    if isinstance(value, _Recording) and value._record.gone:
        return dict(value.items())
    return value


def _refill_dict(container: Any, entries: list[tuple[Any, Any]]) -> None:
    _raw.clear(container)
    _raw.update(container, entries)
