"""Bytes become a state again (``values_format`` says how).

Nothing is believed: a length is checked against what can be there before anything is read or made, what is
counted must come out as counted, and only listed classes are made. Whatever is wrong, whoever finds out,
comes out as ``NotDecodable``.

A frame per open container stands on an explicit stack. A frame is a generator: it asks for a value by giving
the token that begins it, gets the value sent, and returns what it made of them.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from enum import Enum, Flag
from typing import Any, Final, TypeAlias

import google_crc32c
import msgspec
from sortedcontainers import SortedDict, SortedList, SortedSet

from rsm.values_format import (
    FACTORIES,
    LEAF_DEPTH,
    MAGIC,
    PAYLOAD_MAX,
    RUN_ITEMS,
    TOKEN,
    VALUE_DEPTH_MAX,
    Leaf,
    NotDecodable,
    Op,
)
from rsm.values_leaves import ATOMS, int_from
from rsm.values_shapes import Classes, Shape, is_named_tuple

Frame: TypeAlias = Generator[tuple[int, int], Any, Any]

# As numbers: looking up a member of an enum takes longer than comparing it.
_RUN, _ROWS, _LAYOUT, _REF, _TUPLE = map(int, (Op.RUN, Op.ROWS, Op.LAYOUT, Op.REF, Op.TUPLE))
_CONTAINERS_IN_RUN: Final = frozenset({list, dict})  # leaves only: these have no number


class Source:
    """Chunks as one stream of bytes, with a checksum of what was taken."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = bytearray()
        self._at = 0
        self._summed = 0  # the checksum covers the buffer up to here
        self._crc = 0
        self.failure: Exception | None = None  # of whoever gives the chunks; not ours to explain

    def _more(self, count: int) -> None:
        """Have ``count`` bytes from here on in the buffer."""
        self._sum()
        buffer = self._buffer
        del buffer[: self._at]
        self._at = self._summed = 0
        while len(buffer) < count:
            chunk = self._next()
            if chunk is None:
                raise NotDecodable("the state is cut short")
            buffer += chunk

    def _next(self) -> bytes | None:
        try:
            return next(self._chunks, None)
        except Exception as error:
            self.failure = error
            raise

    def _sum(self) -> None:
        self._crc = google_crc32c.extend(self._crc, bytes(memoryview(self._buffer)[self._summed : self._at]))
        self._summed = self._at

    def token(self) -> tuple[int, int]:
        if len(self._buffer) - self._at < TOKEN.size:
            self._more(TOKEN.size)
        op, number = TOKEN.unpack_from(self._buffer, self._at)
        self._at += TOKEN.size
        return op, number

    def take(self, count: int) -> bytes:
        if count > PAYLOAD_MAX:
            raise NotDecodable(f"{count} bytes in one piece, more than {PAYLOAD_MAX}")
        if len(self._buffer) - self._at < count:
            self._more(count)
        end = self._at + count
        data = bytes(memoryview(self._buffer)[self._at : end])
        self._at = end
        return data

    def checksum(self) -> int:
        """Of everything taken so far."""
        self._sum()
        return self._crc

    def end(self) -> None:
        while self._at == len(self._buffer):
            chunk = self._next()
            if chunk is None:
                return
            self._buffer += chunk
        raise NotDecodable("something stands behind the state")


class Reader:
    """Reads one state."""

    def __init__(self, classes: Classes, chunks: Iterable[bytes]) -> None:
        self.classes = classes
        self.source = Source(chunks)
        self.names: list[str] = []  # of the classes, as the writer knew them
        self.layouts: list[tuple[Shape, tuple[str, ...]]] = []
        self.makers: dict[int, Callable[[tuple[Any, ...]], Any]] = {}  # by the place of their layout
        self.objects: list[Any] = []  # those with an identity, in the order of appearance
        self._leaf_depth = 0
        self._decode = msgspec.msgpack.Decoder(list, ext_hook=self._extension).decode

    def read(self) -> dict[str, object]:
        if self.source.take(len(MAGIC)) != MAGIC:
            raise NotDecodable("this is no saved state, or one of another version")
        self.names = self._texts(Op.TYPES)
        names = self._texts(Op.NAMES)
        values: list[Any] = []
        self._run(self._items(len(names), values.extend))
        checksum = self.source.checksum()
        if self.source.token() != (Op.END, checksum):
            raise NotDecodable("the state is damaged: its checksum differs")
        self.source.end()
        return dict(zip(names, values, strict=True))

    def _texts(self, expected: Op) -> list[str]:
        op, size = self.source.token()
        if op != expected:
            raise NotDecodable(f"{expected.name} is missing")
        texts = msgspec.msgpack.decode(self.source.take(size), type=list[str])
        if len(set(texts)) != len(texts):
            raise NotDecodable(f"a name stands twice in {expected.name}")
        return texts

    def _run(self, frame: Frame) -> None:
        """The stack of open containers."""
        stack, depths = [frame], [0]
        value: Any = None
        while stack:
            try:
                op, number = stack[-1].send(value)
            except StopIteration as done:
                stack.pop()
                depths.pop()
                value = done.value
                continue
            opened = _NODES.get(op)
            if opened is None:
                raise NotDecodable(f"there is no token {op}")
            stack.append(opened(self, number))
            depths.append(depths[-1] + 1 if op >= _TUPLE else 0)
            if depths[-1] > VALUE_DEPTH_MAX:
                raise NotDecodable(f"tuples in tuples are nested deeper than {VALUE_DEPTH_MAX}")
            value = None

    # -- items -----------------------------------------------------------------------------------

    def _items(self, count: int, put: Callable[[list[Any]], object]) -> Frame:
        """Read as many values as a container has, and hand them over in lists."""
        source = self.source
        while count:
            op, number = source.token()
            if op == _RUN:
                values = self._leaves(number)
            elif op == _ROWS:
                values = self._rows(number)
            elif op == _LAYOUT:
                self._layout(number)
                continue
            elif op == _REF:
                values = [self._referred(number)]
            else:
                values = [(yield op, number)]
            if not 0 < len(values) <= count:
                raise NotDecodable("a container has not as many entries as it says")
            count -= len(values)
            put(values)

    def _leaves(self, size: int) -> list[Any]:
        values: list[Any] = self._decode(self.source.take(size))
        if not _CONTAINERS_IN_RUN.isdisjoint(map(type, values)):
            raise NotDecodable("a container stands among leaves")
        return values

    def _leaf(self) -> Any:
        """A parameter of a container."""
        op, size = self.source.token()
        if op == Op.RUN:
            values = self._leaves(size)
            if len(values) == 1:
                return values[0]
        raise NotDecodable("a container's parameter is missing")

    def _rows(self, size: int) -> list[Any]:
        layout, *fields = self._leaves(size)
        shape, names = self._layout_at(layout)
        width = len(names)
        if not width or len(fields) % width:
            raise NotDecodable("objects are cut short")
        if layout not in self.makers:
            self.makers[layout] = shape.maker(names)
        things = list(map(self.makers[layout], zip(*[iter(fields)] * width, strict=True)))
        if not shape.by_value:
            self.objects += things
        return things

    def _referred(self, number: int) -> Any:
        if number >= len(self.objects):
            raise NotDecodable("a reference leads nowhere")
        return self.objects[number]

    def _class_at(self, index: object) -> type:
        if type(index) is not int or not 0 <= index < len(self.names):
            raise NotDecodable("a class is not in the table")
        name = self.names[index]
        cls = self.classes.by_name.get(name)
        if cls is None:
            raise NotDecodable(f"the state holds a {name}: list the class among the types of the machine")
        return cls

    def _layout(self, size: int) -> None:
        index, *names = self._leaves(size)
        cls = self._class_at(index)
        shape = self.classes.shapes.get(cls)
        if shape is None or not all(type(name) is str for name in names) or len(set(names)) != len(names):
            raise NotDecodable(f"objects of {cls.__qualname__} do not look like this")
        misfit = shape.misfit(tuple(names))
        if misfit:
            raise NotDecodable(
                f"{self.names[index]} {misfit}: the class has changed since the state was saved"
            )
        self.layouts.append((shape, tuple(names)))

    def _layout_at(self, index: object) -> tuple[Shape, tuple[str, ...]]:
        if type(index) is not int or not 0 <= index < len(self.layouts):
            raise NotDecodable("an object has no layout")
        return self.layouts[index]

    # -- leaves ----------------------------------------------------------------------------------

    def _extension(self, code: int, view: memoryview) -> object:
        data = bytes(view)
        made = ATOMS.get(code)
        if made is not None:
            return made(data)
        if self._leaf_depth > LEAF_DEPTH + 1:
            raise NotDecodable("leaves are nested too deep")
        self._leaf_depth += 1
        parts = self._decode(data)
        self._leaf_depth -= 1
        if not _CONTAINERS_IN_RUN.isdisjoint(map(type, parts)):
            raise NotDecodable("a container stands among leaves")
        if code == Leaf.TUPLE:
            return tuple(parts)
        if code == Leaf.FROZENSET:
            return _whole(frozenset(parts), len(parts))
        if code == Leaf.ENUM:
            index, key = parts
            return _member(self._class_at(index), key)
        if code == Leaf.NAMED:
            return _named(self._class_at(parts[0]), parts[1:])
        if code == Leaf.VALUE:
            return _valued(*self._layout_at(parts[0]), parts[1:])
        raise NotDecodable(f"there is no leaf {code}")

    # -- values with items -----------------------------------------------------------------------

    def _tuple(self, count: int) -> Frame:
        items: list[Any] = []
        yield from self._items(count, items.extend)
        return tuple(items)

    def _frozenset(self, count: int) -> Frame:
        items: list[Any] = []
        yield from self._items(count, items.extend)
        return _whole(frozenset(items), count)

    def _named(self, index: int) -> Frame:
        cls = self._class_at(index)
        if not is_named_tuple(cls):
            raise NotDecodable(f"{cls.__qualname__} is no named tuple")
        items: list[Any] = []
        yield from self._items(len(cls._fields), items.extend)  # type: ignore[attr-defined]
        return _named(cls, items)

    def _value(self, index: int) -> Frame:
        shape, names = self._layout_at(index)
        items: list[Any] = []
        yield from self._items(len(names), items.extend)
        return _valued(shape, names, items)

    def _blob(self, code: int) -> Frame:
        yield from ()
        made = ATOMS.get(code)
        if made is None:
            raise NotDecodable(f"there is no leaf {code}")
        return made(b"".join(self._pieces()))

    def _pieces(self) -> Iterator[bytes]:
        while True:
            op, size = self.source.token()
            if op != Op.PIECE:
                raise NotDecodable("pieces are missing")
            if not size:
                return
            yield self.source.take(size)

    # -- containers and objects, known by their number before they are filled --------------------

    def _known(self, thing: Any) -> Any:
        self.objects.append(thing)
        return thing

    def _object(self, index: int) -> Frame:
        shape, names = self._layout_at(index)
        if shape.by_value:
            raise NotDecodable(f"a {shape.cls.__qualname__} has no identity")
        thing = self._known(shape.blank())
        items: list[Any] = []
        yield from self._items(len(names), items.extend)
        shape.fill(thing, dict(zip(names, items, strict=True)))
        return thing

    def _list(self, count: int) -> Frame:
        made: list[Any] = self._known([])
        yield from self._items(count, made.extend)
        return made

    def _deque(self, count: int) -> Frame:
        made: deque[Any] = self._known(deque(maxlen=self._leaf()))
        yield from self._items(count, made.extend)
        return _whole(made, count)

    def _set(self, count: int) -> Frame:
        made: set[Any] = self._known(set())
        yield from self._items(count, made.update)
        return _whole(made, count)

    def _bytearray(self, _: int) -> Frame:
        yield from ()
        made = self._known(bytearray())
        for piece in self._pieces():
            made += piece
        return made

    def _sorted_list(self, count: int) -> Frame:
        return self._collected(self._known(SortedList()), count)

    def _sorted_set(self, count: int) -> Frame:
        return self._collected(self._known(SortedSet()), count)

    def _collected(self, made: Any, count: int) -> Frame:
        """Elements are compared, so all of them must be complete first."""
        items: list[Any] = []
        yield from self._items(count, items.extend)
        made.update(items)
        return _whole(made, count)

    def _entries(self, made: Any, count: int, put: Callable[[Any], object]) -> Frame:
        left = count
        while left:
            size = min(left, RUN_ITEMS)
            keys: list[Any] = []
            values: list[Any] = []
            yield from self._items(size, keys.extend)
            yield from self._items(size, values.extend)
            put(zip(keys, values, strict=True))
            left -= size
        return _whole(made, count)

    def _dict(self, count: int) -> Frame:
        made: dict[Any, Any] = self._known({})
        return self._entries(made, count, made.update)

    def _ordered_dict(self, count: int) -> Frame:
        made: OrderedDict[Any, Any] = self._known(OrderedDict())
        return self._entries(made, count, made.update)

    def _counter(self, count: int) -> Frame:
        made: Counter[Any] = self._known(Counter())
        return self._entries(made, count, super(Counter, made).update)  # its own would add

    def _defaultdict(self, count: int) -> Frame:
        index = self._leaf()
        if type(index) is not int or not 0 <= index < len(FACTORIES):
            raise NotDecodable("a defaultdict's factory is unknown")
        made: defaultdict[Any, Any] = self._known(defaultdict(FACTORIES[index]))
        return self._entries(made, count, made.update)

    def _sorted_dict(self, count: int) -> Frame:
        made = self._known(SortedDict())
        pairs: list[Any] = []
        yield from self._entries(pairs, count, pairs.extend)
        made.update(pairs)
        return _whole(made, count)


_NODES: Final[dict[int, Callable[[Reader, int], Frame]]] = {
    Op.LIST: Reader._list,
    Op.DICT: Reader._dict,
    Op.SET: Reader._set,
    Op.DEQUE: Reader._deque,
    Op.ORDERED: Reader._ordered_dict,
    Op.DEFAULT: Reader._defaultdict,
    Op.COUNTER: Reader._counter,
    Op.SORTED_DICT: Reader._sorted_dict,
    Op.SORTED_LIST: Reader._sorted_list,
    Op.SORTED_SET: Reader._sorted_set,
    Op.BYTEARRAY: Reader._bytearray,
    Op.OBJECT: Reader._object,
    Op.TUPLE: Reader._tuple,
    Op.FROZENSET: Reader._frozenset,
    Op.NAMED: Reader._named,
    Op.VALUE: Reader._value,
    Op.BLOB: Reader._blob,
}


def _whole(made: Any, count: int) -> Any:
    """Equal keys or elements, or a deque too short for what was in it, are damage."""
    if len(made) != count:
        raise NotDecodable("a container has not as many entries as it says")
    return made


def _named(cls: type, items: list[Any]) -> object:
    if not is_named_tuple(cls) or len(items) != len(cls._fields):  # type: ignore[attr-defined]
        raise NotDecodable(f"a {cls.__qualname__} has other fields: the class has changed since")
    return tuple.__new__(cls, items)


def _valued(shape: Shape, names: tuple[str, ...], items: list[Any]) -> object:
    if not shape.by_value:
        raise NotDecodable(f"a {shape.cls.__qualname__} has an identity")
    return shape.together(dict(zip(names, items, strict=True)))


def _member(cls: type, key: object) -> object:
    if not issubclass(cls, Enum):
        raise NotDecodable(f"{cls.__qualname__} is no enum")
    if issubclass(cls, Flag):
        if type(key) is bytes:
            return cls(int_from(key))
    elif type(key) is str and key in cls.__members__:
        return cls.__members__[key]
    raise NotDecodable(f"{cls.__qualname__} has no member {key!r}: the class has changed since")
