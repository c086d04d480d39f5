"""A state becomes bytes (``values_format`` says which).

A frame per open container stands on an explicit stack, so depth is bounded by memory alone. A frame is a
generator: it gives the next value that needs a frame of its own, or FLUSH where the buffer may be cut.

*Two phases.* ``walk`` goes through the state, which must not change meanwhile, and gives *parts*: bytes, or
``Later``, immutable values of the state whose bytes are made from them when they are wanted. ``_encoded``
makes the bytes, and looks at nothing but the parts. So a state can be walked quickly and written slowly
(``frozen``), at little more memory than references to its large values; or both at once (``write``), which
keeps nothing. The bytes are the same.

Objects with an identity are numbered in the order of appearance. The table of numbers is keyed by ``id()``;
ids never reach the output, and stay valid because the state holds the objects while it is walked. An object
that only one reference leads to will not be met again, unless that is a value's (which is written each time
it is met). It is counted without an entry: most are such, and a table of all would be as large as they are.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, Flag
from heapq import merge
from itertools import islice
from sys import getrefcount
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
from rsm.values_batches import ALONE, SIZED, chars_of, columns, encodes, weight
from rsm.values_format import (
    CHUNK_BYTES,
    FACTORIES,
    LATER_CHARS,
    LEAF_BYTES,
    LEAF_DEPTH,
    LEAF_ITEMS,
    MAGIC,
    NUMBER_MAX,
    ROW_FIELDS,
    RUN_CHARS,
    RUN_ITEMS,
    SEAM_BYTES,
    STEP_ITEMS,
    TOKEN,
    VALUE_DEPTH_MAX,
    Leaf,
    NotEncodable,
    Op,
)
from rsm.values_leaves import ATOM_BYTES, int_bytes, text_bytes
from rsm.values_shapes import Classes, Shape, is_named_tuple, qualified_name

Frame: TypeAlias = Iterator[object]


# A token that is written later: what it is, how the bytes in it are made, and of what. These are numbers and
# plain tuples because the garbage collector lets go of such once it has seen them: a million of anything else
# would have it go through the whole state again and again.
Later: TypeAlias = tuple[int, int, Any]
Part: TypeAlias = bytes | Later

_LEAVES: Final = 0  # a tuple of leaves
_VALUES: Final = 1  # a tuple of values that are leaves once they are encoded
_SLICE: Final = 2  # bytes or a text, and where its slice begins
_RUNS: Final = 3  # a tuple of leaves, too much for one token

_encode: Final = msgspec.msgpack.Encoder().encode
_INT_MIN: Final = -(1 << 63)
_INT_MAX: Final = (1 << 64) - 1
_FIXED: Final = frozenset({type(None), bool, float})
_PLAIN: Final = _FIXED | SIZED | {int}
_SORTABLE: Final = frozenset({int, str, bytes})

_NODE: Final = object()  # no leaf: needs a frame
_FLUSH: Final = object()
_END: Final = object()

PIECE_BYTES: Final = CHUNK_BYTES // 4

# What became of a batch that was to be written by one call. Below _DONE: into how many it is to be cut.
_DONE: Final = 0
_MIXED: Final = 1


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
        self.parts: list[Part] = []  # before what is in ``out``
        self.work = 0  # values looked at since the last step
        self.numbers: dict[int, int] = {}
        self.numbered = 0  # also those that are not in the table
        self.alone: bool | None = None  # the objects of the batch, if somebody has looked
        self.single = False  # what is given as the next node
        self.in_value = False  # what is looked at: it may be met again although it is alone
        self.layouts: dict[tuple[type, tuple[str, ...]], int] = {}

    def write(self, state: Mapping[str, object]) -> Iterator[bytes]:
        """The bytes, in pieces of at most ``CHUNK_BYTES``. The state must not change until all are made."""
        return self._encoded(self.walk(state))

    def frozen(self, state: Mapping[str, object]) -> Iterator[bytes]:
        """The same bytes. The state must not change until the first that are not empty; the empty ones
        before them are the places where somebody else may have a turn."""
        parts: deque[Part] = deque()
        for part in self.walk(state):
            if part:
                parts.append(part)
            else:
                yield b""
        self.numbers.clear()
        yield from self._encoded(_drained(parts))

    def walk(self, state: Mapping[str, object]) -> Iterator[Part]:
        """An empty part ends a step, of not much more than ``STEP_ITEMS`` values."""
        out, parts = self.out, self.parts
        out += MAGIC
        self._payload(Op.TYPES, self.classes.names)
        self._payload(Op.NAMES, list(state))
        stack: list[Frame] = [self._sequence(state.values())]
        depths = [0]  # of tuples in tuples
        while stack:
            self.in_value = depths[-1] > 0
            value = next(stack[-1], _END)
            if value is _END:
                stack.pop()
                depths.pop()
            elif value is not _FLUSH:
                frame = self._node(value)
                if frame is not None:
                    stack.append(frame)
                    depths.append(0 if self._has_identity(value) else depths[-1] + 1)
                    if depths[-1] > VALUE_DEPTH_MAX:
                        raise NotEncodable(
                            f"tuples or frozen objects are nested deeper than {VALUE_DEPTH_MAX}"
                        )
            if parts:
                yield from parts
                parts.clear()
            if len(out) >= SEAM_BYTES:
                yield bytes(out)
                out.clear()
            if self.work >= STEP_ITEMS:
                self.work = 0
                yield b""
        yield bytes(out)

    # -- tokens ----------------------------------------------------------------------------------

    def _token(self, op: Op, number: int) -> None:
        if number > NUMBER_MAX:
            raise NotEncodable(f"a container has {number} entries, more than {NUMBER_MAX}")
        self.out += TOKEN.pack(op, number)

    def _payload(self, op: Op, value: object) -> None:
        data = _encode(value)
        self.out += TOKEN.pack(op, len(data))
        self.out += data

    def _encoded(self, parts: Iterable[Part]) -> Iterator[bytes]:
        """The bytes of the parts, each cut where it is too large, and the checksum behind them."""
        crc = 0
        for part in parts:
            for data in (part,) if isinstance(part, bytes) else self._made(part):
                crc = google_crc32c.extend(crc, data)
                for start in range(0, len(data), CHUNK_BYTES):
                    yield data[start : start + CHUNK_BYTES]
        yield TOKEN.pack(Op.END, crc)

    def _made(self, later: Later) -> Iterator[bytes]:
        op, how, of = later
        if how == _RUNS:
            # By powers of two, so that a change of one leaf seldom moves the cuts between the others.
            parts = (chars_of(of, set(map(type, of))) // RUN_CHARS).bit_length()
            size = max(len(of) >> parts, 1)
            for start in range(0, len(of), size):
                data = _encode(of[start : start + size])
                yield TOKEN.pack(op, len(data)) + data
            return
        if how == _LEAVES:
            data = _encode(of)
        elif how == _VALUES:
            data = _encode(list(map(self._leaf, of)))
        else:
            value, start = of
            part = value[start : start + PIECE_BYTES]
            data = text_bytes(part) if type(part) is str else part
        yield TOKEN.pack(op, len(data)) + data

    def _later(self, op: Op, how: int, of: tuple[Any, ...]) -> None:
        if self.out:
            self.parts.append(bytes(self.out))
            self.out.clear()
        self.parts.append((int(op), how, of))

    def _pieces(self, code: int, value: str | bytes) -> Frame:
        """A slice at a time."""
        self._token(Op.BLOB, code)
        for start in range(0, len(value), PIECE_BYTES):
            self._later(Op.PIECE, _SLICE, (value, start))
            self.work += 1
            yield _FLUSH
        self._token(Op.PIECE, 0)

    # -- items -----------------------------------------------------------------------------------

    def _sequence(self, items: Iterable[object]) -> Frame:
        iterator = iter(items)
        while batch := list(islice(iterator, RUN_ITEMS)):
            yield from self._items(batch)

    def _items(self, batch: list[object]) -> Frame:
        work = [batch]
        self.alone = None
        while work:
            part = work.pop()
            outcome = self._at_once(part)
            if outcome < _DONE and len(part) > 1:
                size = max(-(len(part) // outcome), 1)
                work += [part[at : at + size] for at in reversed(range(0, len(part), size))]
            elif outcome != _DONE:
                yield from self._one_by_one(part)
            yield _FLUSH

    def _at_once(self, batch: list[Any]) -> int:
        """Many values by one call, if they are simple enough; decided by the values alone."""
        kinds = set(map(type, batch))
        self.work += len(batch)
        if kinds <= _PLAIN:
            chars = 0 if kinds.isdisjoint(SIZED) else chars_of(batch, kinds)
            if (
                chars > RUN_CHARS
                and kinds <= SIZED
                and max(map(len, batch)) <= RUN_CHARS
                and encodes(batch, kinds)
            ):
                self._later(Op.RUN, _RUNS, tuple(batch))
                return _DONE
            return _split(chars, RUN_CHARS) or self._run(Op.RUN, batch, kinds, chars)
        if len(kinds) == 1:
            shape = self.classes.shapes.get(type(batch[0]))
            if shape is not None:
                return self._rows(batch, shape)
        return _MIXED

    def _run(self, op: Op, leaves: list[Any], kinds: set[type], chars: int) -> int:
        """Now if that is small; large leaves stay where they are until later."""
        large = chars > LATER_CHARS * len(leaves) and Ext not in kinds
        if large and encodes(leaves, kinds):
            self._later(op, _LEAVES, tuple(leaves))
            return _DONE
        try:
            data = _encode(leaves)
        except (OverflowError, UnicodeEncodeError):
            return _MIXED
        if large:
            self._later(op, _LEAVES, tuple(leaves))
        else:
            self.out += TOKEN.pack(op, len(data))
            self.out += data
        return _DONE

    def _rows(self, batch: list[Any], shape: Shape) -> int:
        """Objects of one class, none of which came before, whose attributes are all leaves."""
        if self.alone is None:
            self.alone = max(map(getrefcount, batch)) <= ALONE and not self.in_value
        ids = [] if shape.by_value or self.alone else list(map(id, batch))
        if not (self.numbers.keys().isdisjoint(ids) and len(set(ids)) == len(ids)):
            return _MIXED
        names, fields = columns(batch, shape)
        if not names:
            return _MIXED
        if len(fields) > ROW_FIELDS:
            return _split(len(fields), ROW_FIELDS)
        kinds = set(map(type, fields))
        if not kinds <= _PLAIN:
            fields = list(map(self._leaf, fields))
            if any(field is _NODE for field in fields):
                return _MIXED
            kinds = set(map(type, fields))
        self.work += len(fields)
        chars = 0 if kinds <= _FIXED else chars_of(fields, kinds)
        if chars > RUN_CHARS:
            return _split(chars, RUN_CHARS)
        layout = self._layout(shape, names)
        if self._run(Op.ROWS, [layout, *fields], kinds, chars) != _DONE:
            return _MIXED
        if not shape.by_value:
            self.numbers.update(zip(ids, range(self.numbered, self.numbered + len(ids)), strict=True))
            self.numbered += len(batch)
        return _DONE

    def _one_by_one(self, batch: list[object]) -> Frame:
        run: list[object] = []
        values: list[object] = []  # whose leaves are in the run
        size = 0
        references, in_value = list(map(getrefcount, batch)), self.in_value
        for value, count in zip(batch, references, strict=True):
            leaf = self._leaf(value)
            if leaf is not _NODE:
                run.append(leaf)
                values.append(value)
                size += weight(leaf)
            if run and (leaf is _NODE or size > RUN_CHARS):
                self._leaves(run, values, size)
                run, values, size = [], [], 0
                yield _FLUSH
            if leaf is _NODE:
                self.single = count <= ALONE and not in_value
                yield value
            elif self.work >= STEP_ITEMS:
                yield _FLUSH
        if run:
            self._leaves(run, values, size)

    def _leaves(self, run: list[object], values: list[object], size: int) -> None:
        """Leaves that were made are copies; where they are large, they are made again later."""
        if size > LATER_CHARS * len(run):
            self._later(Op.RUN, _VALUES, tuple(values))
        else:
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
        self.work += len(items)
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
        return sorted(items, key=self._place)

    def _in_order(self, items: Any) -> Frame:
        """The same for many: sorted by the batch, and then merged."""
        kinds: set[type] = set()
        elements, batches = iter(items), []
        while batch := list(islice(elements, STEP_ITEMS)):
            kinds.update(map(type, batch))
            batches.append(batch)
            self.work += len(batch)
            yield _FLUSH
        key = None if len(kinds) == 1 and kinds <= _SORTABLE else self._place
        for batch in batches:
            batch.sort(key=key)
            self.work += len(batch)
            yield _FLUSH
        yield from self._sequence(merge(*batches, key=key))

    def _place(self, item: object) -> bytes:
        self.work += 1
        return _encode(self._rank(item, 0))

    def _rank(self, value: Any, depth: int) -> list[object]:
        """Like a leaf, but with nothing in it that depends on what was written before."""
        kind = type(value)
        if depth > LEAF_DEPTH:
            raise NotEncodable(f"an element of a set is nested deeper than {LEAF_DEPTH}")
        if kind in _FIXED or kind is bytes:
            return [0, value]
        if kind is str:
            return [Leaf.TEXT, text_bytes(value)]
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
        single, self.single = self.single, False
        self.work += 1
        plain = _CONTAINERS.get(kind)
        shape = self.classes.shapes.get(kind)
        if self._has_identity(value):
            number = None if single else self.numbers.get(id(value))
            if number is not None:
                self._token(Op.REF, number)
                return None
            if not single:
                self.numbers[id(value)] = self.numbered
            self.in_value = False
            self.numbered += 1
        else:
            self.in_value = True
        if plain is not None:
            return plain(self, value)
        if shape is not None:
            return self._object(value, shape)
        if kind in SIZED or kind in ATOM_BYTES:
            return self._blob(value, kind)
        if kind is tuple:
            self._token(Op.TUPLE, len(value))
            return self._sequence(value)
        if kind is frozenset:
            self._token(Op.FROZENSET, len(value))
            return self._in_order(value) if len(value) > STEP_ITEMS else self._sequence(self._ordered(value))
        if is_named_tuple(kind) and kind in self.classes.index:
            self._token(Op.NAMED, self.classes.index[kind])
            return self._sequence(value)
        raise unknown(value)

    def _has_identity(self, value: object) -> bool:
        kind = type(value)
        shape = self.classes.shapes.get(kind)
        return kind in _CONTAINERS or (shape is not None and not shape.by_value)

    def _blob(self, value: Any, kind: type) -> Frame:
        if kind in SIZED:
            return self._pieces(Leaf.BYTES if kind is bytes else Leaf.TEXT, value)
        code, convert = ATOM_BYTES[kind]
        return self._pieces(code, convert(value))

    def _object(self, value: object, shape: Shape) -> Frame | None:
        attributes = shape.apart(value)
        layout = self._layout(shape, tuple(attributes))
        self._token(Op.VALUE if shape.by_value else Op.OBJECT, layout)
        return self._few(list(attributes.values()))

    def _few(self, items: list[object]) -> Frame | None:
        """Items that may fit a run; most containers inside others are small. The list is no part of the
        state."""
        if not items:
            return None
        self.alone = None
        if len(items) <= RUN_ITEMS:
            outcome = self._at_once(items)
            if outcome == _DONE:
                return None
            if outcome == _MIXED:
                return self._one_by_one(items)
        return self._sequence(items)

    def _list(self, value: list[object]) -> Frame | None:
        self._token(Op.LIST, len(value))
        return self._counted(value) if len(value) > RUN_ITEMS else self._few(value[:])

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
        return self._in_order(value) if len(value) > STEP_ITEMS else self._few(self._ordered(value))

    def _sorted_list(self, value: Any) -> Frame:
        self._token(Op.SORTED_LIST, len(value))
        return self._sequence(value)

    def _sorted_set(self, value: Any) -> Frame:
        _check_key(value)
        self._token(Op.SORTED_SET, len(value))
        return self._sequence(value)

    def _bytearray(self, value: bytearray) -> Frame:
        """It can change, so it is copied."""
        self._token(Op.BYTEARRAY, 0)
        for start in range(0, len(value), PIECE_BYTES):
            data = bytes(value[start : start + PIECE_BYTES])
            self._token(Op.PIECE, len(data))
            self.out += data
            self.work += STEP_ITEMS // 32  # half a megabyte in a step
            yield _FLUSH
        self._token(Op.PIECE, 0)

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


def _drained(parts: deque[Part]) -> Iterator[Part]:
    """What was written is let go."""
    while parts:
        yield parts.popleft()


def _split(size: int, limit: int) -> int:
    """Into how many parts, as an outcome; _DONE if it is not too large."""
    return -(size // limit + 1) if size > limit else _DONE


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
