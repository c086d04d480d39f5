"""Random programs on a state of everything: undone they leave no trace, recorded they do what they do."""

import copy
import operator
from bisect import insort
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedDict, SortedList, SortedSet

from rsm.journal import ARMED, Journal
from tests.rsm.test_journal import Account, Frozen, Row, Slotted


class Pair(NamedTuple):
    first: Any
    second: Any


class Machine:
    """A state of everything."""

    def __init__(self) -> None:
        shared = [1, 2]
        self.table: Any = {number: f"v{number}" for number in range(6)} | {"shared": shared}
        self.items: Any = [0, 1, [2, 3], {"k": shared}, Account(1, [5])]
        self.tags: Any = {1, 2, 3}
        self.queue: Any = deque([1, [2], 3], maxlen=4)
        self.free: Any = deque([{}, 1])
        self.counts: Any = Counter("abca")
        self.groups: Any = defaultdict(list, {"a": [1]})
        self.accounts: Any = {name: Account(0, []) for name in "xyz"}
        self.slotted: Any = Slotted({1: 2}, Slotted([1]))
        self.row: Any = Row([Row(1)])
        self.pair: Any = Pair(Frozen([1]), ({"deep": []},))
        self.ordered: Any = OrderedDict(a=1, b=[2])
        self.sorted: Any = SortedDict({3: [1], 1: 2})
        self.raw: Any = bytearray(b"abc")
        self.number: Any = 0


KINDS = {armed: at_rest.__mro__[1] for at_rest, armed in ARMED.items()} | {
    at_rest: at_rest.__mro__[1] for at_rest in ARMED
}


def inside(thing: Any) -> list[Any]:
    """What a thing holds, in order."""
    if isinstance(thing, dict):
        return [part for entry in list(thing.items()) for part in entry]
    if isinstance(thing, set):
        return sorted(thing, key=repr)
    if isinstance(thing, list | tuple | deque | SortedList | SortedSet):
        return list(thing)
    if isinstance(thing, Slotted):
        return [thing.value, getattr(thing, "next", "none")]
    if isinstance(thing, Row):
        return [thing.value]
    if isinstance(thing, Account | Frozen | Machine):
        return [part for entry in vars(thing).items() for part in entry]
    return []


def picture(root: object) -> tuple[list[Any], list[Any]]:
    """What a graph looks like, and the objects in it, in the order they are met."""
    looks: list[Any] = []
    met: dict[int, int] = {}
    objects: list[Any] = []
    ahead = [root]
    while ahead:
        thing = ahead.pop()
        kind = KINDS.get(type(thing), type(thing))
        if isinstance(thing, int | str | bytes | None):
            looks.append(thing)
        elif isinstance(thing, tuple):  # a value: adoption may make another one of it
            looks.append((kind, len(thing)))
            ahead += reversed(inside(thing))
        elif id(thing) in met:
            looks.append(("met", met[id(thing)]))
        else:
            met[id(thing)] = len(met)
            objects.append(thing)
            parts = inside(thing)
            own = (getattr(thing, "maxlen", None), repr(thing) if kind is bytearray else None)
            looks.append((kind, len(parts), own))
            ahead += reversed(parts)
    return looks, objects


# -- programs ------------------------------------------------------------------------------------

Operation = Callable[[Any, Any, Any], Any]
# Each gets a container, a number or key, and a value.
OF_DICT: list[Operation] = [
    lambda d, k, v: d.__setitem__(k, v),
    lambda d, k, v: d.__delitem__(k),
    lambda d, k, v: d.pop(k),
    lambda d, k, v: d.pop(k, None),
    lambda d, k, v: d.popitem(),
    lambda d, k, v: d.setdefault(k, v),
    lambda d, k, v: d.update({k: v, "new": 1}),
    lambda d, k, v: d.update([(k, v), (k + 1, v)]),
    lambda d, k, v: d.update(named=v),
    lambda d, k, v: d.__setitem__(k, d.pop(k)),
    lambda d, k, v: d.clear(),
    lambda d, k, v: [d.__delitem__(key) for key in list(d)[:2]],
    lambda d, k, v: [d.__setitem__(key, d.pop(key)) for key in list(d)[1:3]],
    lambda d, k, v: [d.__setitem__(key, v) for key in reversed(d)],
    lambda d, k, v: d.pop(next(iter(d))),
    lambda d, k, v: [key for key in d if d.pop(key, 1)],
    lambda d, k, v: [d.__setitem__(k + 50, 1) for _ in d.values()],
    lambda d, k, v: (len(d), k in d, list(d.keys()), (k, d.get(k)) in d.items(), bool(d)),
    lambda d, k, v: d[k],
]
OF_PLAIN_DICT: list[Operation] = [
    lambda d, k, v: d.__ior__({k: v}),
    lambda d, k, v: (d | {k: v}).__setitem__(1, 1),
    lambda d, k, v: ({k: v} | d).__setitem__(1, 1),
    lambda d, k, v: (d == dict(d.items()), d == copy.copy(d), d != dict(d)),
]
OF_COUNTER: list[Operation] = [
    lambda c, k, v: c.update("abx"),
    lambda c, k, v: c.update({"a": 2}),
    lambda c, k, v: c.subtract("ab"),
    lambda c, k, v: c.__iadd__(Counter("xy")),
    lambda c, k, v: c.__isub__(Counter("aa")),
    lambda c, k, v: c.__ior__(Counter("zz")),
    lambda c, k, v: c.__iand__(Counter("ab")),
    lambda c, k, v: c.__delitem__("q"),
    lambda c, k, v: c.__setitem__("a", c["a"] + k),
    lambda c, k, v: (c.most_common(1), c.total(), c["nothing"], sorted(c.elements())),
    lambda c, k, v: c.clear() or c.update("first"),
]
OF_LIST: list[Operation] = [
    lambda s, n, v: s.append(v),
    lambda s, n, v: s.extend([v, n]),
    lambda s, n, v: s.extend(s),
    lambda s, n, v: s.insert(n - 3, v),
    lambda s, n, v: s.pop(),
    lambda s, n, v: s.pop(n - 3),
    lambda s, n, v: s.remove(n),
    lambda s, n, v: s.clear(),
    lambda s, n, v: s.reverse(),
    lambda s, n, v: s.sort(),
    lambda s, n, v: s.sort(key=str, reverse=True),
    lambda s, n, v: s.__setitem__(n - 3, v),
    lambda s, n, v: s.__delitem__(n - 3),
    lambda s, n, v: s.__setitem__(slice(n, n + 2), [v, v, v]),
    lambda s, n, v: s.__setitem__(slice(4, n), iter([v])),
    lambda s, n, v: s.__setitem__(slice(None, None, 2), [v, v]),
    lambda s, n, v: s.__setitem__(slice(None, None, -1), list(s)),
    lambda s, n, v: s.__delitem__(slice(n - 3, None)),
    lambda s, n, v: s.__delitem__(slice(None, None, 2)),
    lambda s, n, v: s.__delitem__(slice(5, 1)),
    lambda s, n, v: s.__iadd__((v,)),
    lambda s, n, v: s.__imul__(n % 3),
    lambda s, n, v: operator.add(s, [n]).append(1),
    lambda s, n, v: operator.add([n], s).append(1),
    lambda s, n, v: (s * 2).append(1),
    lambda s, n, v: insort(s, n),
    lambda s, n, v: (len(s), n in s, s.count(n), s == list(s), s[:2] == list(s)[:2], bool(s)),
    lambda s, n, v: [s.append(1) for _ in zip(s, range(3), strict=False)],
]
OF_SET: list[Operation] = [
    lambda s, n, v: s.add(n),
    lambda s, n, v: s.discard(n),
    lambda s, n, v: s.remove(n),
    lambda s, n, v: s.clear(),
    lambda s, n, v: s.update([n, 7], {n + 1}),
    lambda s, n, v: s.difference_update([n, 1], [2]),
    lambda s, n, v: s.intersection_update([n, 1, 2]),
    lambda s, n, v: s.symmetric_difference_update([n, 1]),
    lambda s, n, v: s.__ior__({n}),
    lambda s, n, v: s.__iand__({n, 1}),
    lambda s, n, v: s.__isub__({n}),
    lambda s, n, v: s.__isub__(s),
    lambda s, n, v: s.__ixor__({n, 2}),
    lambda s, n, v: s.__ior__([n]),
    lambda s, n, v: (s | {n}).add(99),
    lambda s, n, v: ({n} | s).add(99),
    lambda s, n, v: s.union([n]).add(99),
    lambda s, n, v: (sorted(s & {1, n}), sorted(s - {1}), sorted({1, 5} - s), s <= {1}, s == set(s), n in s),
]
OF_DEQUE: list[Operation] = [
    lambda q, n, v: q.append(v),
    lambda q, n, v: q.appendleft(v),
    lambda q, n, v: q.extend([v, n, n]),
    lambda q, n, v: q.extendleft([v, n]),
    lambda q, n, v: q.extend(q),
    lambda q, n, v: q.insert(n - 3, v),
    lambda q, n, v: q.pop(),
    lambda q, n, v: q.popleft(),
    lambda q, n, v: q.remove(n),
    lambda q, n, v: q.rotate(n - 3),
    lambda q, n, v: q.rotate(),
    lambda q, n, v: q.reverse(),
    lambda q, n, v: q.clear(),
    lambda q, n, v: q.__setitem__(n - 3, v),
    lambda q, n, v: q.__delitem__(n - 3),
    lambda q, n, v: q.__iadd__([v]),
    lambda q, n, v: q.__imul__(n % 3),
    lambda q, n, v: (q + deque([n])).append(1),
    lambda q, n, v: (q * 2).append(1),
    lambda q, n, v: (len(q), n in q, q == deque(q), q.copy().append(1), q.count(n), q.maxlen),
    lambda q, n, v: [q.append(1) for _ in q],
]
OF_ACCOUNT: list[Operation] = [
    lambda a, n, v: setattr(a, "balance", n),
    lambda a, n, v: setattr(a, "history", v),
    lambda a, n, v: setattr(a, "extra", v),
    lambda a, n, v: delattr(a, "balance"),
    lambda a, n, v: a.history.append(n),
]
OPERATIONS: list[tuple[type, list[Operation]]] = [
    (Counter, [*OF_DICT, *OF_COUNTER]),
    (OrderedDict, [lambda d, k, v: d.__setitem__(k, v), lambda d, k, v: d.move_to_end("a")]),
    (SortedDict, [lambda d, k, v: d.__setitem__(k, v), lambda d, k, v: d.pop(k, None)]),
    (dict, [*OF_DICT, *OF_PLAIN_DICT]),
    (list, OF_LIST),
    (set, OF_SET),
    (deque, OF_DEQUE),
    (Account, OF_ACCOUNT),
    (Slotted, [lambda s, n, v: setattr(s, "value", v), lambda s, n, v: delattr(s, "next")]),
    (Row, [lambda r, n, v: setattr(r, "value", v)]),
    (bytearray, [lambda b, n, v: b.append(n), lambda b, n, v: b.__setitem__(slice(0, 1), b"xy")]),
]


def hand_out(thing: Any, pick: int) -> list[Any]:
    """What a thing holds, by one of the ways to read it."""
    if isinstance(thing, dict):
        ways = [
            lambda: list(thing.values()),
            lambda: [thing[key] for key in thing],
            lambda: [value for _, value in thing.items()],
            lambda: [thing.get(key) for key in thing.keys()],  # noqa: SIM118 - one of the ways
            lambda: list(dict(thing).values()),
            lambda: list({**thing}.values()),
            lambda: list(thing.copy().values()),
            lambda: [*reversed(thing.values())],
        ]
        way: Callable[[], list[Any]] = ways[pick % len(ways)]
        return way()
    if isinstance(thing, list):
        reads: list[Callable[[Any], list[Any]]] = [
            list,
            lambda items: items[:],
            lambda items: operator.add(items, []),
            lambda items: items.copy(),
            lambda items: sorted(items, key=repr),
        ]
        return reads[pick % len(reads)](thing)
    if isinstance(thing, deque):
        return list(thing)
    if isinstance(thing, set | bytearray):
        return []
    return inside(thing)


def reach(machine: Machine, picks: list[int]) -> Any:
    """A thing, from the machine on by the ways a command has."""
    names = sorted(vars(machine))
    thing = getattr(machine, names[picks[0] % len(names)])
    for pick in picks[1:3]:
        further = [each for each in hand_out(thing, pick) if not isinstance(each, int | str | None)]
        if further and pick % 3:
            thing = further[pick % len(further)]
    return thing


def run(machine: Machine, program: list[list[int]]) -> list[Any]:
    """Execute, and tell what can be seen of it."""
    seen: list[Any] = []
    for picks in program:
        try:
            thing = reach(machine, picks)
            values = [picks[4], [picks[4], {}], {"new": []}, reach(machine, picks[::-1]), Account(1)]
            value = values[picks[5] % len(values)]
            if picks[3] % 17 == 0:
                setattr(machine, f"new{picks[4] % 2}", value)
                continue
            for kind, operations in OPERATIONS:
                if isinstance(thing, kind):
                    result = operations[picks[3] % len(operations)](thing, picks[4] % 8, value)
                    seen.append(picture(result)[0])
                    break
        except (AttributeError, LookupError, RuntimeError, StopIteration, TypeError, ValueError) as error:
            seen.append(type(error).__name__)
    return seen


programs = st.lists(st.lists(st.integers(0, 2000), min_size=6, max_size=6), max_size=25)


class Refuse(Exception):
    pass


@contextmanager
def refused(journal: Journal, machine: object) -> Iterator[None]:
    """A command that raises at its end."""
    with suppress(Refuse), journal.recording(machine):
        yield
        raise Refuse


@given(programs)
@settings(max_examples=500)
def test_when_a_program_raises_then_everything_is_as_before(program: list[list[int]]) -> None:
    machine, journal = Machine(), Journal()
    journal.adopt(machine)
    looks, objects = picture(machine)
    saved = copy.deepcopy(machine)
    with refused(journal, machine):
        run(machine, program)
    now, same = picture(machine)
    assert now == looks == picture(saved)[0]
    assert all(one is other for one, other in zip(objects, same, strict=True))
    assert not any(hasattr(each, "_record") for each in same)


@given(programs)
@settings(max_examples=500)
def test_when_a_program_is_recorded_then_it_sees_and_does_what_it_would_without(
    program: list[list[int]],
) -> None:
    plain, machine, journal = Machine(), Machine(), Journal()
    journal.adopt(machine)
    assert picture(machine)[0] == picture(plain)[0]
    with journal.recording(machine):
        seen = run(machine, program)
    assert seen == run(plain, program)
    assert picture(machine)[0] == picture(plain)[0]


@given(st.lists(st.tuples(programs, st.booleans()), max_size=6))
def test_when_commands_follow_each_other_then_only_those_that_raised_are_undone(
    commands: list[tuple[list[list[int]], bool]],
) -> None:
    plain, machine, journal = Machine(), Machine(), Journal()
    journal.adopt(machine)
    for program, refused in commands:
        journal.begin(machine)
        run(machine, program)
        if refused:
            journal.rollback()
        else:
            journal.commit()
            run(plain, program)
        assert picture(machine)[0] == picture(plain)[0]
