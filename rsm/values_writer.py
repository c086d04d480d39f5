"""A state becomes bytes (``values_format`` says which).

A frame per open container stands on an explicit stack, so depth is bounded by memory alone. A frame is a
generator: it gives the next value that needs a frame of its own, or FLUSH where the buffer may be cut.

Objects with an identity are numbered in the order of appearance. The table of numbers is keyed by ``id()``;
ids never reach the output, and stay valid because the state holds the objects while it is written.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, Flag
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import google_crc32c
import msgspec
from msgspec.msgpack import Ext
from sortedcontainers import SortedDict, SortedList, SortedSet

from rsm.journal_containers import (
    JournaledCounter,
    JournaledDefaultDict,
    JournaledDeque,
    JournaledDict,
    JournaledList,
    JournaledSet,
)
from rsm.values_format import (
    CHUNK_BYTES,
    FACTORIES,
    LEAF_BYTES,
    LEAF_DEPTH,
    LEAF_ITEMS,
    MAGIC,
    NUMBER_MAX,
    ROW_FIELDS,
    RUN_CHARS,
    RUN_ITEMS,
    TOKEN,
    VALUE_DEPTH_MAX,
    Leaf,
    NotEncodable,
    Op,
)
from rsm.values_leaves import ATOM_BYTES, int_bytes, text_bytes
from rsm.values_shapes import Classes, Shape, is_named_tuple, qualified_name

Frame: TypeAlias = Iterator[object]

_encode: Final = msgspec.msgpack.Encoder().encode
_INT_MIN: Final = -(1 << 63)
_INT_MAX: Final = (1 << 64) - 1
_FIXED: Final = frozenset({type(None), bool, float})
_SIZED: Final = frozenset({str, bytes})
_PLAIN: Final = _FIXED | _SIZED | {int}
_SORTABLE: Final = frozenset({int, str, bytes})

_NODE: Final = object()  # no leaf: needs a frame
_FLUSH: Final = object()
_END: Final = object()

# What became of a batch that was to be written by one call.
_DONE: Final = 0
_SPLIT: Final = 1
_MIXED: Final = 2


# What needs no listing.
def is_own(cls: type) -> bool:
    return cls in _PLAIN or cls in ATOM_BYTES or cls in _CONTAINERS or cls in {tuple, frozenset}


def unknown(value: object) -> NotEncodable:
    name = qualified_name(type(value))
    return NotEncodable(f"a {name} cannot be saved: list its class among the types of the machine")


class Writer:
    """Writes one state."""

    def __init__(self, classes: Classes) -> None:
        self.classes = classes
        self.out = bytearray()
        self.numbers: dict[int, int] = {}
        self.layouts: dict[tuple[type, tuple[str, ...]], int] = {}

    def write(self, state: Mapping[str, object]) -> Iterator[bytes]:
        out, crc = self.out, 0
        out += MAGIC
        self._payload(Op.TYPES, self.classes.names)
        self._payload(Op.NAMES, list(state))
        stack: list[Frame] = [self._sequence(state.values())]
        depths = [0]  # of tuples in tuples
        while stack:
            value = next(stack[-1], _END)
            if value is _END:
                stack.pop()
                depths.pop()
            elif value is not _FLUSH:
                frame = self._node(value)
                if frame is not None:
                    stack.append(frame)
                    depths.append(0 if id(value) in self.numbers else depths[-1] + 1)
                    if depths[-1] > VALUE_DEPTH_MAX:
                        raise NotEncodable(
                            f"tuples or frozen objects are nested deeper than {VALUE_DEPTH_MAX}"
                        )
            while len(out) >= CHUNK_BYTES:
                chunk = bytes(memoryview(out)[:CHUNK_BYTES])
                del out[:CHUNK_BYTES]
                crc = google_crc32c.extend(crc, chunk)
                yield chunk
        chunk = bytes(out)
        yield chunk + TOKEN.pack(Op.END, google_crc32c.extend(crc, chunk))

    # -- tokens ----------------------------------------------------------------------------------

    def _token(self, op: Op, number: int) -> None:
        if number > NUMBER_MAX:
            raise NotEncodable(f"a container has {number} entries, more than {NUMBER_MAX}")
        self.out += TOKEN.pack(op, number)

    def _payload(self, op: Op, value: object) -> None:
        data = _encode(value)
        self.out += TOKEN.pack(op, len(data))
        self.out += data

    def _pieces(self, code: int | None, size: int, cut: Callable[[int, int], bytes]) -> Frame:
        """Long bytes or texts, a slice at a time."""
        if code is not None:
            self._token(Op.BLOB, code)
        step = CHUNK_BYTES // 4
        for start in range(0, size, step):
            data = cut(start, start + step)
            self._token(Op.PIECE, len(data))
            self.out += data
            yield _FLUSH
        self._token(Op.PIECE, 0)

    # -- items -----------------------------------------------------------------------------------

    def _sequence(self, items: Iterable[object]) -> Frame:
        iterator = iter(items)
        while batch := list(islice(iterator, RUN_ITEMS)):
            yield from self._items(batch)

    def _items(self, batch: list[object]) -> Frame:
        work = [batch]
        while work:
            part = work.pop()
            outcome = self._at_once(part)
            if outcome == _SPLIT and len(part) > 1:
                middle = len(part) // 2
                work += (part[middle:], part[:middle])
            elif outcome != _DONE:
                yield from self._one_by_one(part)
            yield _FLUSH

    def _at_once(self, batch: list[Any]) -> int:
        """Many values by one call, if they are simple enough; decided by the values alone."""
        kinds = set(map(type, batch))
        if kinds <= _PLAIN:
            if not kinds.isdisjoint(_SIZED) and _chars(batch, kinds) > RUN_CHARS:
                return _SPLIT
            try:
                data = _encode(batch)
            except (OverflowError, UnicodeEncodeError):
                return _MIXED
            self.out += TOKEN.pack(Op.RUN, len(data))
            self.out += data
            return _DONE
        if len(kinds) == 1:
            shape = self.classes.shapes.get(type(batch[0]))
            if shape is not None:
                return self._rows(batch, shape)
        return _MIXED

    def _rows(self, batch: list[Any], shape: Shape) -> int:
        """Objects of one class, none of which came before, whose attributes are all leaves."""
        ids = list(map(id, batch))
        if not shape.by_value and not (self.numbers.keys().isdisjoint(ids) and len(set(ids)) == len(ids)):
            return _MIXED
        names, fields = _columns(batch, shape)
        if not names:
            return _MIXED
        if len(fields) > ROW_FIELDS:
            return _SPLIT
        kinds = set(map(type, fields))
        if not kinds <= _PLAIN:
            fields = list(map(self._leaf, fields))
            if any(field is _NODE for field in fields):
                return _MIXED
            kinds = set(map(type, fields))
        if not kinds <= _FIXED and _chars(fields, kinds) > RUN_CHARS:
            return _SPLIT
        layout = self._layout(shape, names)
        try:
            data = _encode([layout, *fields])
        except (OverflowError, UnicodeEncodeError):
            return _MIXED
        if not shape.by_value:
            start = len(self.numbers)
            self.numbers.update(zip(ids, range(start, start + len(ids)), strict=True))
        self.out += TOKEN.pack(Op.ROWS, len(data))
        self.out += data
        return _DONE

    def _one_by_one(self, batch: list[object]) -> Frame:
        run: list[object] = []
        size = 0
        for value in batch:
            leaf = self._leaf(value)
            if leaf is not _NODE:
                run.append(leaf)
                size += _weight(leaf)
            if run and (leaf is _NODE or size > RUN_CHARS):
                self._payload(Op.RUN, run)
                run, size = [], 0
                yield _FLUSH
            if leaf is _NODE:
                yield value
        if run:
            self._payload(Op.RUN, run)

    def _layout(self, shape: Shape, names: tuple[str, ...]) -> int:
        """The number of a class and its attributes; told to the reader before it is first used."""
        layout = self.layouts.get((shape.cls, names))
        if layout is None:
            if not all(type(name) is str for name in names):
                raise NotEncodable(
                    f"an attribute of a {qualified_name(shape.cls)} has a name that is no text"
                )
            layout = self.layouts[shape.cls, names] = len(self.layouts)
            self._payload(Op.LAYOUT, [self.classes.index[shape.cls], *names])
        return layout

    # -- leaves ----------------------------------------------------------------------------------

    def _leaf(self, value: Any, depth: int = 0) -> object:
        """What stands for the value in a run, or _NODE."""
        kind = type(value)
        if kind in _FIXED:
            return value
        if kind is int and _INT_MIN <= value <= _INT_MAX:
            return value
        if kind is bytes:
            return value if len(value) <= RUN_CHARS else _NODE
        if kind is str:
            if len(value) > RUN_CHARS:
                return _NODE
            return value if _is_utf8(value) else _extension(Leaf.TEXT, text_bytes(value))
        if kind in ATOM_BYTES:
            code, convert = ATOM_BYTES[kind]
            return _extension(code, convert(value))
        if kind is tuple:
            return self._composite(Leaf.TUPLE, (), value, depth)
        if kind is frozenset:
            return self._composite(Leaf.FROZENSET, (), value, depth)
        if kind in self.classes.index:
            return self._leaf_of_class(value, kind, depth)
        return _NODE

    def _leaf_of_class(self, value: Any, kind: type, depth: int) -> object:
        shape = self.classes.shapes.get(kind)
        if shape is not None:
            if not shape.by_value:
                return _NODE
            attributes = shape.apart(value)
            head = (self._layout(shape, tuple(attributes)),)
            return self._composite(Leaf.VALUE, head, tuple(attributes.values()), depth)
        index = self.classes.index[kind]
        if issubclass(kind, Enum):
            return _extension(Leaf.ENUM, _encode([index, _enum_key(value)]))
        return self._composite(Leaf.NAMED, (index,), value, depth)

    def _composite(self, code: Leaf, head: tuple[int, ...], items: Any, depth: int) -> object:
        if len(items) > LEAF_ITEMS or depth > LEAF_DEPTH:
            return _NODE
        leaves: list[object] = list(head)
        for item in self._ordered(items) if code == Leaf.FROZENSET else items:
            leaf = self._leaf(item, depth + 1)
            if leaf is _NODE:
                return _NODE
            leaves.append(leaf)
        return _extension(code, _encode(leaves))

    # -- sets ------------------------------------------------------------------------------------

    def _ordered(self, items: Any) -> list[Any]:
        """The elements of a set, in an order that is the same in every process."""
        kinds = set(map(type, items))
        if len(kinds) == 1 and kinds <= _SORTABLE:
            return sorted(items)
        return sorted(items, key=lambda item: _encode(self._rank(item, 0)))

    def _rank(self, value: Any, depth: int) -> list[object]:
        """Like a leaf, but with nothing in it that depends on what was written before."""
        kind = type(value)
        if depth > LEAF_DEPTH:
            raise NotEncodable(f"an element of a set is nested deeper than {LEAF_DEPTH}")
        if kind in _FIXED or kind is bytes:
            return [0, value]
        if kind is str:
            return [1, text_bytes(value)]
        if kind in ATOM_BYTES:
            code, convert = ATOM_BYTES[kind]
            return [code, convert(value)]
        if kind is tuple:
            return [Leaf.TUPLE, [self._rank(item, depth + 1) for item in value]]
        if kind is frozenset:
            return [Leaf.FROZENSET, sorted(_encode(self._rank(item, depth + 1)) for item in value)]
        index = self.classes.index.get(kind)
        if index is None:
            raise unknown(value)
        shape = self.classes.shapes.get(kind)
        if issubclass(kind, Enum):
            return [Leaf.ENUM, index, _enum_key(value)]
        if shape is None:
            return [Leaf.NAMED, index, [self._rank(item, depth + 1) for item in value]]
        if shape.by_value:
            attributes = shape.apart(value)
            return [Leaf.VALUE, index, [(name, self._rank(of, depth + 1)) for name, of in attributes.items()]]
        raise NotEncodable(
            f"a set holds a {qualified_name(kind)}, whose place in it differs between processes; "
            "use a dict with the objects as keys, or freeze the class"
        )

    # -- nodes -----------------------------------------------------------------------------------

    def _node(self, value: Any) -> Frame | None:
        """Write the head of a value; the frame writes the rest, if there is one."""
        kind = type(value)
        plain = _CONTAINERS.get(kind)
        shape = self.classes.shapes.get(kind)
        if plain is not None or (shape is not None and not shape.by_value):
            number = self.numbers.get(id(value))
            if number is not None:
                self._token(Op.REF, number)
                return None
            self.numbers[id(value)] = len(self.numbers)
        if plain is not None:
            return plain(self, value)
        if shape is not None:
            return self._object(value, shape)
        if kind in _SIZED or kind in ATOM_BYTES:
            return self._blob(value, kind)
        if kind is tuple:
            self._token(Op.TUPLE, len(value))
            return self._sequence(value)
        if kind is frozenset:
            self._token(Op.FROZENSET, len(value))
            return self._sequence(self._ordered(value))
        if is_named_tuple(kind) and kind in self.classes.index:
            self._token(Op.NAMED, self.classes.index[kind])
            return self._sequence(value)
        raise unknown(value)

    def _blob(self, value: Any, kind: type) -> Frame:
        if kind is bytes:
            return self._pieces(Leaf.BYTES, len(value), lambda start, end: value[start:end])
        if kind is str:
            return self._pieces(Leaf.TEXT, len(value), lambda start, end: text_bytes(value[start:end]))
        code, convert = ATOM_BYTES[kind]
        data = convert(value)
        return self._pieces(code, len(data), lambda start, end: data[start:end])

    def _object(self, value: object, shape: Shape) -> Frame | None:
        attributes = shape.apart(value)
        layout = self._layout(shape, tuple(attributes))
        self._token(Op.VALUE if shape.by_value else Op.OBJECT, layout)
        return self._few(list(attributes.values()))

    def _few(self, items: list[object]) -> Frame | None:
        """Items that may fit a run; most containers inside others are small."""
        if not items:
            return None
        if len(items) <= RUN_ITEMS:
            outcome = self._at_once(items)
            if outcome == _DONE:
                return None
            if outcome == _MIXED:
                return self._one_by_one(items)
        return self._sequence(items)

    def _list(self, value: list[object]) -> Frame | None:
        self._token(Op.LIST, len(value))
        return self._counted(value) if len(value) > RUN_ITEMS else self._few(value)

    def _counted(self, value: list[object]) -> Frame:
        """Unlike the others, a list does not notice that it is changed while it is read."""
        size = len(value)
        yield from self._sequence(value)
        if len(value) != size:
            raise RuntimeError("the state was changed while it was saved")

    def _deque(self, value: deque[object]) -> Frame | None:
        self._token(Op.DEQUE, len(value))
        self._payload(Op.RUN, [value.maxlen])
        return self._sequence(value) if len(value) > RUN_ITEMS else self._few(list(value))

    def _set(self, value: set[object]) -> Frame | None:
        self._token(Op.SET, len(value))
        return self._few(self._ordered(value))

    def _sorted_list(self, value: Any) -> Frame:
        self._token(Op.SORTED_LIST, len(value))
        return self._sequence(value)

    def _sorted_set(self, value: Any) -> Frame:
        _check_key(value)
        self._token(Op.SORTED_SET, len(value))
        return self._sequence(value)

    def _bytearray(self, value: bytearray) -> Frame:
        self._token(Op.BYTEARRAY, 0)
        return self._pieces(None, len(value), lambda start, end: bytes(value[start:end]))

    def _entries(self, value: Mapping[object, object]) -> Frame:
        keys, values = iter(value), iter(value.values())
        while batch := list(islice(keys, RUN_ITEMS)):
            yield from self._items(batch)
            yield from self._items(list(islice(values, RUN_ITEMS)))

    def _dict(self, value: dict[object, object]) -> Frame | None:
        self._token(Op.DICT, len(value))
        return self._entries(value) if value else None

    def _ordered_dict(self, value: OrderedDict[object, object]) -> Frame:
        _check_bare(value)
        self._token(Op.ORDERED, len(value))
        return self._entries(value)

    def _counter(self, value: Counter[object]) -> Frame:
        _check_bare(value)
        self._token(Op.COUNTER, len(value))
        return self._entries(value)

    def _defaultdict(self, value: defaultdict[object, object]) -> Frame:
        factory = value.default_factory
        index = next((at for at, known in enumerate(FACTORIES) if known is factory), None)
        if index is None:
            names = ", ".join(known.__name__ for known in FACTORIES if known)
            raise NotEncodable(f"a defaultdict makes its values by {factory!r}; it may use {names}")
        self._token(Op.DEFAULT, len(value))
        self._payload(Op.RUN, [index])
        return self._entries(value)

    def _sorted_dict(self, value: Any) -> Frame:
        _check_key(value)
        self._token(Op.SORTED_DICT, len(value))
        return self._entries(value)


_CONTAINERS: Final[dict[type, Callable[[Writer, Any], Frame | None]]] = {
    list: Writer._list,
    JournaledList: Writer._list,
    dict: Writer._dict,
    JournaledDict: Writer._dict,
    set: Writer._set,
    JournaledSet: Writer._set,
    deque: Writer._deque,
    JournaledDeque: Writer._deque,
    OrderedDict: Writer._ordered_dict,
    Counter: Writer._counter,
    JournaledCounter: Writer._counter,
    defaultdict: Writer._defaultdict,
    JournaledDefaultDict: Writer._defaultdict,
    SortedDict: Writer._sorted_dict,
    SortedList: Writer._sorted_list,
    SortedSet: Writer._sorted_set,
    bytearray: Writer._bytearray,
}


def _columns(batch: list[Any], shape: Shape) -> tuple[tuple[str, ...], list[Any]]:
    """The attributes the objects have in common, and their values, object by object; none if they differ."""
    if shape.getter is not None and not shape.has_dict:
        try:
            return tuple(shape.slots), list(chain.from_iterable(map(shape.getter, batch)))
        except AttributeError:
            return (), []
    if shape.slots:
        return (), []
    attributes = [thing.__dict__ for thing in batch]
    names = tuple(attributes[0])
    if any(tuple(other) != names for other in attributes):
        return (), []
    return names, list(chain.from_iterable([each.values() for each in attributes]))


def _chars(batch: list[Any], kinds: set[type]) -> int:
    """The bulk of a batch."""
    if kinds <= _SIZED:
        return sum(map(len, batch))
    return sum(map(_weight, batch))


def _weight(leaf: Any) -> int:
    kind = type(leaf)
    if kind is str or kind is bytes:
        return len(leaf)
    return len(leaf.data) if kind is Ext else 0


def _is_utf8(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _extension(code: int, data: bytes) -> object:
    return Ext(int(code), data) if len(data) <= LEAF_BYTES else _NODE


def _enum_key(value: Enum) -> str | bytes:
    """A flag may be a combination, which has no name of its own."""
    return int_bytes(value.value) if isinstance(value, Flag) else value.name


def _check_key(value: Any) -> None:
    if value.key is not None:
        raise NotEncodable(f"a {type(value).__name__} with a key function cannot be saved")


def _check_bare(value: Any) -> None:
    if vars(value):
        raise NotEncodable(f"a {type(value).__name__} has attributes of its own, which would be lost")
