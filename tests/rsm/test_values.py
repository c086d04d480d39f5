"""A state survives being bytes: in structure, order and identity, or it is refused."""

import gc
import subprocess
import sys
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum, auto
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedDict, SortedList, SortedSet

from rsm.journal import adopt
from rsm.values import NotDecodable, NotEncodable, Values
from rsm.values_format import CHUNK_BYTES, MAGIC, TOKEN, Op

# -- classes of states ---------------------------------------------------------------------------


@dataclass
class Plain:
    name: Any = None
    other: Any = None


@dataclass(slots=True)
class Slotted:
    name: Any = None
    other: Any = None


@dataclass(frozen=True)
class Frozen:
    name: Any = None
    other: Any = None


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    name: Any = None


class Record(msgspec.Struct):
    name: Any = None
    other: Any = None

    def __post_init__(self) -> None:
        if self.name == "poison":
            raise AssertionError("a hook ran")


class FrozenRecord(msgspec.Struct, frozen=True):
    name: Any = None


class Free:
    def __init__(self, name: Any = None) -> None:
        self.name = name


class Closed:
    __slots__ = ("__hidden", "name", "unset")

    def __init__(self, name: Any = None) -> None:
        self.name = name
        self.__hidden = 1


class Pair(NamedTuple):
    first: Any
    second: Any


class Colour(Enum):
    RED = 1
    GREEN = "g"
    ALSO_RED = 1  # noqa: PIE796 - an alias on purpose


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    HELLO = "hello"


class Right(Flag):
    READ = auto()
    WRITE = auto()


TYPES = (
    *(Plain, Slotted, Frozen, FrozenSlotted, Record, FrozenRecord, Free, Closed, Pair),
    *(Colour, Level, Word, Right),
)
VALUES = Values(TYPES)


def round_trip(value: object, values: Values = VALUES) -> Any:
    """The value after a dump and a load, which must dump to the same bytes again."""
    data = b"".join(values.dump({"value": value}))
    loaded = values.load([data])
    assert b"".join(values.dump(loaded)) == data
    return loaded["value"]


# -- comparing graphs ----------------------------------------------------------------------------


def parts(thing: Any) -> list[Any]:
    """What a thing consists of, in an order that two equal ones share."""
    if isinstance(thing, dict):
        return [part for entry in thing.items() for part in entry]
    if isinstance(thing, set | frozenset):
        return []  # values only, compared by their bytes
    if isinstance(thing, list | tuple | deque | SortedList | SortedSet):
        return list(thing)
    if isinstance(thing, TYPES) and not isinstance(thing, Enum):
        names = [*getattr(thing, "__struct_fields__", ()), *getattr(thing, "__slots__", ())]
        mangled = [f"_Closed{name}" if name.startswith("__") else name for name in names]
        held = [(name, getattr(thing, name)) for name in mangled if hasattr(thing, name)]
        return [part for entry in (*held, *getattr(thing, "__dict__", {}).items()) for part in entry]
    return []


MUTABLE = (dict, list, set, deque, bytearray, SortedList, SortedSet, Plain, Slotted, Record, Free, Closed)


def same_alone(one: Any, other: Any) -> bool:
    """Whether two things without parts are the same."""
    if isinstance(one, set | frozenset):
        return b"".join(VALUES.dump({"": one})) == b"".join(VALUES.dump({"": other}))
    return (isinstance(one, TYPES) and not isinstance(one, Enum)) or repr(one) == repr(other)


def same(left: Any, right: Any) -> bool:
    """Equal in type, structure and order, and with the same objects shared."""
    paired: dict[int, int] = {}
    back: dict[int, int] = {}
    ahead = [(left, right)]
    while ahead:
        one, other = ahead.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, MUTABLE):
            if id(one) in paired or id(other) in back:
                if paired.get(id(one)) != id(other) or back.get(id(other)) != id(one):
                    return False
                continue
            paired[id(one)], back[id(other)] = id(other), id(one)
        ones, others = parts(one), parts(other)
        if len(ones) != len(others) or getattr(one, "maxlen", 0) != getattr(other, "maxlen", 0):
            return False
        if not ones and not same_alone(one, other):
            return False
        ahead += zip(ones, others, strict=True)
    return True


# -- arbitrary values ----------------------------------------------------------------------------

offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
zones = st.one_of(st.none(), st.just(UTC), offsets)
texts = st.text(st.characters(categories=None))
any_atom = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 1 << 12).map(lambda bits: -(1 << bits)),
    st.floats(),
    texts,
    st.binary(max_size=50),
    st.decimals(),
    st.fractions(),
    st.uuids(),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.sampled_from([*Colour, Level.LOW, Word.HELLO, Right.READ | Right.WRITE, Right(0)]),
)
# Deferred strategies have short names in messages.
atoms = st.deferred(lambda: any_atom)
# A signalling NaN has no hash.
hashable_atoms = any_atom.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan()))
hashables = st.recursive(
    st.deferred(lambda: hashable_atoms),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.builds(Frozen, inner, inner),
        st.builds(FrozenSlotted, inner),
        st.builds(FrozenRecord, inner),
    ),
    max_leaves=6,
)
numbers = st.integers(-1000, 1000)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.deferred(lambda: hashables)
    entries = st.dictionaries(keys, inner, max_size=4)
    return st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.builds(deque, st.lists(inner, max_size=5), st.one_of(st.none(), st.integers(0, 6))),
        entries,
        entries.map(OrderedDict),
        entries.map(lambda each: defaultdict(list, each)),
        st.dictionaries(keys, numbers, max_size=4).map(Counter),
        st.sets(keys, max_size=5),
        st.binary(max_size=9).map(bytearray),
        st.lists(numbers, max_size=5).map(SortedList),
        st.sets(numbers, max_size=5).map(SortedSet),
        st.dictionaries(numbers, inner, max_size=4).map(SortedDict),
        st.builds(Plain, inner, inner),
        st.builds(Slotted, inner, inner),
        st.builds(Frozen, inner, inner),
        st.builds(Record, inner, inner),
        st.builds(Free, inner),
        st.builds(Closed, inner),
        st.builds(Pair, inner, inner),
        inner.map(lambda each: [each, each]),
    )


trees = st.recursive(st.one_of(atoms, st.deferred(lambda: hashables)), containers, max_leaves=25)


@given(trees)
@settings(max_examples=300)
def test_whatever_is_saved_comes_back_the_same(value: object) -> None:
    assert same(round_trip(value), value)


@given(st.lists(trees, min_size=1, max_size=6), st.data())
def test_objects_reached_by_several_ways_are_one_object_again(values: list[Any], data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.sampled_from(range(len(values))), max_size=8))
    graph: list[Any] = [*values, *(values[pick] for pick in picks), {"again": values}]
    graph.append(graph)
    assert same(round_trip(graph), graph)


# -- single decisions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), -0.0, 1 << 64, -(1 << 63) - 1, 10**3000, "\ud800", "a\udfffb"),
        *(Decimal("-0E+5"), Decimal("sNaN12"), Fraction(1 << 90, 3), UUID(int=5), timedelta.min),
        *(datetime.max, datetime(2020, 1, 1, fold=1, tzinfo=UTC), time.max, date.min),  # noqa: DTZ901
        *(Closed(), Free(), defaultdict(None, {1: 2}), deque(maxlen=0), (), frozenset(), b"", bytearray()),
        *({1: 1, "1": 2, b"1": 3, (1,): 4}, {True: "kept as a bool"}, "x" * 300_000, b"y" * 300_000),
        *("ü" * 100_000 + "\ud800", bytearray(200_000), tuple(range(5000)), frozenset(range(5000))),
        *([Plain(i, str(i)) for i in range(3000)], {i: Slotted("n" * 500) for i in range(500)}),
        *([Frozen(i, None) for i in range(2000)], {"k" * 100 + str(i): "v" * 100 for i in range(2000)}),
        *([Free(tuple(range(100)))], {Frozen(tuple(range(100))): 1}, [Pair([1], "p" * 9000)] * 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_when_a_value_is_unusual_then_it_is_kept_exactly(value: object) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize("value", [1 << 300_000, Decimal("1" * 10_000), Fraction(1 << 80_000, 7)], ids=type)
def test_when_a_number_is_too_long_for_a_run_then_it_is_cut_into_pieces(value: object) -> None:
    assert round_trip([value]) == [value]


def test_when_an_object_holds_itself_then_the_restored_one_does() -> None:
    node = Free()
    node.name = {"self": node, "items": [node, (node,)]}
    loaded = round_trip(node)
    assert loaded.name["self"] is loaded
    assert loaded.name["items"] == [loaded, (loaded,)]


def test_when_a_tuple_leads_back_to_itself_through_a_list_then_the_cycle_is_kept() -> None:
    items: list[Any] = []
    items.append((items, 1))
    loaded = round_trip(items[0])
    assert loaded[0][0][0] is loaded[0]


def test_when_objects_are_linked_a_hundred_thousand_deep_then_nothing_recurses() -> None:
    first: Any = None
    for number in range(100_000):
        first = Slotted(number, first)
    loaded = VALUES.load(list(VALUES.dump({"first": first})))["first"]
    for number in reversed(range(100_000)):
        assert isinstance(loaded, Slotted)
        assert loaded.name == number
        loaded = loaded.other


def test_when_tuples_are_nested_too_deep_then_they_are_refused() -> None:
    nested: Any = ()
    for _ in range(2000):
        nested = (nested, [])
    with pytest.raises(NotEncodable, match="nested"):
        list(VALUES.dump({"nested": nested}))


def test_when_equal_constants_are_one_object_or_two_then_the_bytes_are_the_same() -> None:
    text, point = "a text", Frozen("p", (1, 2))
    shared = {"a": [(1, text), (1, text)], "b": [point, point]}
    apart = {"a": [(1, text), (1, "a " + text[2:])], "b": [point, Frozen("p", (1, 2))]}
    assert b"".join(VALUES.dump(shared)) == b"".join(VALUES.dump(apart))


def test_when_a_struct_is_restored_then_its_hooks_do_not_run() -> None:
    record = Record()
    record.name = "poison"
    assert round_trip([record, record])[1].name == "poison"


def test_when_attributes_were_added_or_deleted_then_the_restored_object_has_the_same_ones() -> None:
    extra = Plain(1)
    extra.more = [extra]  # type: ignore[attr-defined]
    del extra.other
    assert vars(round_trip(extra)).keys() == {"name", "more"}


def test_when_containers_are_journaled_then_they_are_written_as_plain_ones() -> None:
    state: dict[str, Any] = {
        "dict": {"a": [1, {2}]},
        "deque": deque([{}], 3),
        "default": defaultdict(int, {"x": 1}),
        "counter": Counter("abca"),
        "object": Plain([1], {2: 3}),
    }
    before = b"".join(VALUES.dump(state))
    adopted = {name: adopt(value) for name, value in state.items()}
    assert type(adopted["dict"]) is not dict
    assert b"".join(VALUES.dump(adopted)) == before
    assert type(VALUES.load([before])["dict"]) is dict


def test_when_python_types_are_listed_too_then_it_makes_no_difference() -> None:
    state = {"a": [UUID(int=1), UUID(int=2)], "b": [Fraction(1, 2)], "c": SortedList([1])}
    listed = Values([*TYPES, UUID, Fraction, SortedList, datetime, dict])
    assert b"".join(listed.dump(state)) == b"".join(VALUES.dump(state))


# -- refusals ------------------------------------------------------------------------------------


class Unlisted:
    pass


class OwnDict(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Unlisted(), "Unlisted cannot be saved: list its class"),
        ({"deep": [(Unlisted(),)]}, "Unlisted"),
        ({Unlisted(): 1}, "Unlisted"),
        (OwnDict(), "OwnDict"),
        (lambda: None, "function"),
        (Plain, "type"),
        ({Free()}, "place in it differs between processes"),
        (frozenset([(1, Free())]), "place in it differs between processes"),
        (defaultdict(lambda: 1), "makes its values by"),
        (SortedDict(abs, {1: 2}), "key function"),
        (SortedList([1], key=abs), "SortedKeyList"),
        (datetime(2020, 1, 1, tzinfo=ZoneInfo("UTC")), "use UTC"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_when_something_cannot_be_saved_then_the_error_names_it(value: object, words: str) -> None:
    with pytest.raises(NotEncodable, match=words):
        list(VALUES.dump({"value": value}))


def test_when_two_classes_have_one_name_then_they_are_refused() -> None:
    def made() -> type:
        class Twin:
            pass

        return Twin

    with pytest.raises(ValueError, match=r"two classes are named .*Twin"):
        Values([made(), made()])


@pytest.mark.parametrize("cls", [OwnDict, Random, KeyError, type])
def test_when_a_class_hides_something_in_c_then_it_is_refused(cls: type) -> None:
    with pytest.raises(ValueError, match="cannot be part of a state"):
        Values([cls])


def test_when_a_class_is_not_listed_at_load_then_the_error_names_it() -> None:
    data = list(VALUES.dump({"a": [Plain()], "b": 1}))
    with pytest.raises(NotDecodable, match=r"Plain: list the class"):
        Values([Slotted]).load(data)


def test_when_an_unused_class_is_gone_at_load_then_nothing_is_wrong() -> None:
    assert Values([Slotted]).load(VALUES.dump({"a": Slotted(1)})) == {"a": Slotted(1)}


def test_when_a_class_has_lost_a_slot_then_loading_says_so() -> None:
    older = type("Moved", (), {"__slots__": ("a", "b"), "__module__": "m"})
    newer = type("Moved", (), {"__slots__": ("a",), "__module__": "m"})
    thing = older()
    thing.b = 1
    with pytest.raises(NotDecodable, match=r"m\.Moved has no attribute 'b'"):
        Values([newer]).load(Values([older]).dump({"thing": thing}))


def test_when_the_source_of_the_chunks_fails_then_its_own_error_comes_out() -> None:
    def broken() -> Iterable[bytes]:
        yield MAGIC
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        VALUES.load(broken())


# -- canonical -----------------------------------------------------------------------------------

_SCRIPT = """
import hashlib, sys
sys.path[:0] = [{root!r}, {here!r}]
import test_values as t
from fractions import Fraction
words = [str(n) * 3 for n in range(200)]
state = {{
    "sets": [set(words), frozenset(words), {{t.Frozen(w, t.Pair(w, 1)) for w in words}}],
    "mixed": {{*words, *range(50), None, b"x", 1.5, Fraction(1, 3), t.Colour.RED, (1, frozenset(words[:9]))}},
    "nested": {{frozenset(words[:i]) for i in range(9)}},
    "records": {{t.FrozenRecord(t.FrozenSlotted(w)) for w in words}} | {{t.Frozen(w) for w in words}},
    "dict": {{w: {{w}} for w in words}},
}}
print(hashlib.sha256(b"".join(t.VALUES.dump(state))).hexdigest())
"""


def test_when_hash_seeds_differ_then_the_bytes_are_the_same() -> None:
    here = Path(__file__).resolve().parent
    script = _SCRIPT.format(root=str(here.parents[1]), here=str(here))
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


# -- streaming -----------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_when_chunks_are_cut_anywhere_then_the_state_is_the_same(sizes: list[int]) -> None:
    state = {"a": [Plain(i, "x" * i) for i in range(20)], "b": {"text": "y" * 2000}}
    data = b"".join(VALUES.dump(state))
    chunks: list[bytes] = []
    at = 0
    while at < len(data):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(data[at : at + size])
        at += size
    assert VALUES.load([*chunks, b""]) == state


def big_state() -> dict[str, object]:
    return {
        "numbers": {f"key {number}": number for number in range(100_000)},
        "texts": ["ä" * 200 for _ in range(20_000)],
        "blob": bytes(3_000_000),
        "long": "z" * 3_000_000,
        "values": [(number, str(number)) for number in range(20_000)],
        "mixed": ["m" * 10_000, (1, 2)] * 300,
    }


def test_when_a_state_is_large_then_saving_it_takes_a_few_chunks_of_memory() -> None:
    state = big_state()
    gc.collect()
    tracemalloc.start()
    size = longest = 0
    for chunk in VALUES.dump(state):
        size += len(chunk)
        longest = max(longest, len(chunk))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 12_000_000
    assert longest <= CHUNK_BYTES + TOKEN.size
    assert peak < 16 * CHUNK_BYTES


def test_when_a_state_is_large_then_loading_it_takes_little_more_than_the_state() -> None:
    chunks = list(VALUES.dump(big_state()))
    gc.collect()
    tracemalloc.start()
    loaded = VALUES.load(iter(chunks))
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(loaded) == 6
    assert peak - now < 8_000_000  # the pieces of the longest text, joined


def test_when_many_objects_are_saved_then_only_the_table_of_their_identities_is_kept() -> None:
    state = {"objects": [Slotted(number, "x") for number in range(50_000)]}
    gc.collect()
    tracemalloc.start()
    for _ in VALUES.dump(state):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000 * 160 + 16 * CHUNK_BYTES


def test_when_a_list_grows_while_it_is_saved_then_it_is_noticed() -> None:
    items = list(range(50_000))
    dump = VALUES.dump({"items": items})
    next(dump)
    items.append(1)
    with pytest.raises(RuntimeError, match="changed"):
        list(dump)


# -- hostile input -------------------------------------------------------------------------------


def sealed(body: bytes) -> bytes:
    """With a right checksum, so that the decoder itself is tried."""
    return body + TOKEN.pack(Op.END, google_crc32c.value(body))


def body_of(state: dict[str, object]) -> bytes:
    return b"".join(VALUES.dump(state))[: -TOKEN.size]


def load_or_refuse(data: bytes) -> None:
    try:
        loaded = VALUES.load([data])
    except NotDecodable:
        return
    assert isinstance(loaded, dict)


SAMPLE: dict[str, object] = {
    "a": {"k": [1, 2.5, None, "t", b"b"], "o": Plain(Slotted(1), {1, 2})},
    "b": [deque([1], 2), OrderedDict(a=1), defaultdict(int, a=1), Counter("ab"), SortedDict({1: [2]})],
    "c": (Colour.RED, Right.READ, Pair(1, [2]), Frozen(1, FrozenRecord(2)), Decimal(1), Fraction(1, 2)),
    "d": [SortedList([1]), SortedSet([1]), bytearray(b"x"), frozenset([1]), datetime(2020, 1, 1, tzinfo=UTC)],
    "e": [Plain(1, 2), Plain(3, 4)],
    "f": "x" * 20_000,
}
SAMPLE_BODY = body_of(SAMPLE)
INTERESTING = len(SAMPLE_BODY) - 20_000


@given(st.data())
@settings(max_examples=400)
def test_when_bytes_are_changed_then_the_decoder_refuses_or_finds_a_value(data: st.DataObject) -> None:
    body = bytearray(SAMPLE_BODY)
    for at in data.draw(st.lists(st.integers(0, INTERESTING - 1), min_size=1, max_size=4)):
        body[at] ^= data.draw(st.integers(1, 255))
    load_or_refuse(sealed(bytes(body)))


def test_when_any_single_byte_is_changed_then_the_decoder_refuses_or_finds_a_value() -> None:
    for at in range(INTERESTING):
        for change in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            body = bytearray(SAMPLE_BODY)
            body[at] ^= change
            load_or_refuse(sealed(bytes(body)))


NAMES = msgspec.msgpack.encode(["a"])
TABLE = msgspec.msgpack.encode([f"{cls.__module__}.{cls.__qualname__}" for cls in TYPES])
HEAD = MAGIC + TOKEN.pack(Op.TYPES, len(TABLE)) + TABLE + TOKEN.pack(Op.NAMES, len(NAMES)) + NAMES


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_when_a_body_is_noise_then_the_decoder_refuses_or_finds_a_value(noise: bytes) -> None:
    load_or_refuse(sealed(MAGIC + noise))
    load_or_refuse(sealed(HEAD + noise))


@given(st.lists(st.tuples(st.sampled_from(list(Op)), st.integers(0, 6), st.binary(max_size=6)), max_size=12))
@settings(max_examples=300)
def test_when_tokens_come_in_any_order_then_the_decoder_refuses_or_finds_a_value(
    tokens: list[tuple[Op, int, bytes]],
) -> None:
    body = b"".join(TOKEN.pack(op, number) + data[:number] for op, number, data in tokens)
    load_or_refuse(sealed(HEAD + body))


def test_when_a_dump_is_cut_anywhere_then_it_is_refused() -> None:
    data = b"".join(VALUES.dump({name: value for name, value in SAMPLE.items() if name != "f"}))
    for end in range(len(data)):
        with pytest.raises(NotDecodable):
            VALUES.load([data[:end]])


def test_when_a_bit_is_flipped_then_the_checksum_tells() -> None:
    data = bytearray(b"".join(VALUES.dump({"a": [1, "text"]})))
    for at in range(len(data)):
        data[at] ^= 1
        with pytest.raises(NotDecodable):
            VALUES.load([bytes(data)])
        data[at] ^= 1


def test_when_something_stands_behind_the_state_then_it_is_refused() -> None:
    data = list(VALUES.dump({"a": 1}))
    for more in ([b"x"], [b"", b"x"]):
        with pytest.raises(NotDecodable, match="behind"):
            VALUES.load([*data, *more])


@pytest.mark.parametrize("op", list(Op))
def test_when_a_length_is_a_lie_then_nothing_is_made_of_it(op: Op) -> None:
    tracemalloc.start()
    with pytest.raises(NotDecodable):
        VALUES.load([sealed(HEAD + TOKEN.pack(op, (1 << 32) - 1))])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("op", [Op.TUPLE, Op.LIST, Op.FROZENSET])
def test_when_a_hundred_thousand_containers_are_opened_then_the_decoder_survives(op: Op) -> None:
    with pytest.raises(NotDecodable):
        VALUES.load([sealed(HEAD + TOKEN.pack(op, 1) * 100_000)])


def test_when_leaves_are_nested_then_the_decoder_does_not_recurse_without_limit() -> None:
    leaf = msgspec.msgpack.encode([1])
    for _ in range(2000):
        leaf = msgspec.msgpack.encode([msgspec.msgpack.Ext(11, leaf)])
    with pytest.raises(NotDecodable, match="nested"):
        VALUES.load([sealed(HEAD + TOKEN.pack(Op.RUN, len(leaf)) + leaf)])
