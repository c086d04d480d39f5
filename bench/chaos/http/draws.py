"""What is asked next.

Keys come in groups: three registers and a counter, between which transactions go. Most groups live for a
second: each is a short history of its own, whole from its first request on, which a search through all orders
can judge. Some stay for the whole round, so that what was written before a fault is read behind it.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from apps.kv.types import ABSENT, PRESENT, Add, Compare, Delete, Get, Operation, Put
from bench.chaos.http.store import Line, Name, delta_of, mark

GROUP_NS: Final = 1_000_000_000
SHORT_GROUPS: Final = 4
LASTING_GROUPS: Final = 4
REGISTERS: Final = (b"a", b"b", b"c")
COUNTER: Final = b"n"
_LASTING_SHARE: Final = 0.3
_ONCE_SHARE: Final = 0.5
_SEEN_MAX: Final = 64


class Request(NamedTuple):
    """A call of ``Shown``."""

    name: Name
    method: str
    arguments: tuple[Any, ...]

    @property
    def once(self) -> bytes | None:
        """Under which it may be repeated."""
        return None if self.method in {"get", "listing"} else self.arguments[-1]


class Draws:
    """The requests of one client."""

    def __init__(self, client: int, rng: Random, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._client = client
        self._rng = rng
        self._clock = clock
        self._seen: dict[bytes, tuple[bytes | None, int]] = {}  # value and revision that a key had last
        self._kinds: dict[Callable[[bytes, Name], tuple[str, tuple[Any, ...]]], int] = {
            self._get: 6,
            self._listing: 1,
            self._put: 4,
            self._put_if: 4,
            self._delete: 2,
            self._add: 3,
            self._txn: 4,
        }

    def draw(self, number: int) -> Request:
        name = (self._client, number)
        (kind,) = self._rng.choices(list(self._kinds), list(self._kinds.values()))
        return Request(name, *kind(self._group(), name))

    def _group(self) -> bytes:
        if self._rng.random() < _LASTING_SHARE:
            return b"lasting-%d" % self._rng.randrange(LASTING_GROUPS)
        return b"%d-%d" % (self._clock() // GROUP_NS, self._rng.randrange(SHORT_GROUPS))

    def _register(self, group: bytes) -> bytes:
        return group + b"/" + self._rng.choice(REGISTERS)

    def _once(self, name: Name) -> bytes | None:
        return mark(name) if self._rng.random() < _ONCE_SHARE else None

    def _value(self, name: Name) -> bytes:
        return mark(name) + b" " + b"." * self._rng.randrange(20)

    def _revision(self, key: bytes) -> int:
        return self._seen.get(key, (None, ABSENT))[1]

    # -- kinds -----------------------------------------------------------------------------------

    def _get(self, group: bytes, _: Name) -> tuple[str, tuple[Any, ...]]:
        return "get", (group + b"/" + self._rng.choice((*REGISTERS, COUNTER)),)

    def _listing(self, group: bytes, _: Name) -> tuple[str, tuple[Any, ...]]:
        return "listing", (group + b"/",)

    def _put(self, group: bytes, name: Name) -> tuple[str, tuple[Any, ...]]:
        return "put", (self._register(group), self._value(name), None, self._once(name))

    def _put_if(self, group: bytes, name: Name) -> tuple[str, tuple[Any, ...]]:
        key = self._register(group)
        expect = self._rng.choice((self._revision(key), self._revision(key), ABSENT, PRESENT))
        return "put", (key, self._value(name), expect, self._once(name))

    def _delete(self, group: bytes, name: Name) -> tuple[str, tuple[Any, ...]]:
        """With a key to repeat it under, always: nothing else names it."""
        key = self._register(group)
        return "delete", (key, self._rng.choice((None, None, self._revision(key) or PRESENT)), mark(name))

    def _add(self, group: bytes, name: Name) -> tuple[str, tuple[Any, ...]]:
        """Now and then to what is no number."""
        key = self._register(group) if self._rng.random() < 0.1 else group + b"/" + COUNTER
        return "add", (key, delta_of(name), self._once(name))

    def _txn(self, group: bytes, name: Name) -> tuple[str, tuple[Any, ...]]:
        first, second, third = (group + b"/" + each for each in self._rng.sample(REGISTERS, 3))
        counter = group + b"/" + COUNTER
        then: list[Operation] = [
            Put(first, self._value(name)),
            Add(counter, delta_of(name)),
            self._rng.choice((Delete(second), Put(second, self._value(name)))),
            Get(third),
        ]
        otherwise: list[Operation] = [Get(first), Get(counter), Put(third, self._value(name))]
        return "txn", (self._comparisons(first, counter), then, otherwise, self._once(name))

    def _comparisons(self, key: bytes, counter: bytes) -> list[Compare]:
        value, revision = self._seen.get(key, (None, ABSENT))
        return self._rng.choice(
            (
                [],
                [Compare(key, "revision", "=", revision)],
                [Compare(key, "exists", "=", self._rng.random() < 0.5)],
                [Compare(key, "value", "=", value or b""), Compare(counter, "version", ">", 1)],
                [Compare(counter, "version", "<", self._rng.randrange(1, 20))],
            )
        )

    # -- what was seen ---------------------------------------------------------------------------

    def see(self, request: Request, value: Any) -> None:
        """The answer of a request that went well."""
        match request.method, value:
            case "put", (revision, _, _):
                self._note(request.arguments[0], request.arguments[1], revision)
            case "get", (key, found, revision, _, _):
                self._note(key, found, revision)
            case "get" | "delete", _:
                self._note(request.arguments[0], None, ABSENT)
            case "listing", lines:
                for line in lines:
                    self._see_line(line)

    def _see_line(self, line: Line) -> None:
        self._note(line[0], line[1], line[2])

    def _note(self, key: bytes, value: bytes | None, revision: int) -> None:
        if key not in self._seen and len(self._seen) >= _SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = (value, revision)
