"""Machines that several tests use."""

from random import Random
from typing import Annotated

from ordering.config import MS
from rsm.errors import Rejected
from rsm.state_machine import GroupView, Since, StateMachine, command, query


class Counter(StateMachine):
    def __init__(self) -> None:
        self.value = 0

    @command
    def add(self, n: int) -> int:
        self.value += n
        return self.value

    @command
    def subtract(self, n: int) -> int:
        if n > self.value:
            raise Rejected("too little is there", {"there": self.value})
        self.value -= n
        return self.value

    @command
    def break_down(self, n: int) -> int:
        self.value += n
        raise KeyError(f"{object()!r} {n}")

    @query
    def get(self) -> int:
        return self.value


class Ledger(StateMachine):
    """Everything a context tells, and everything that can go wrong."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int]] = []
        self.drawn: list[int] = []
        self.accounts: dict[str, int] = {"a": 10, "b": 0}
        self.views: list[int] = []

    @command
    def note(self) -> int:
        context = self.context
        self.entries.append((context.timestamp, context.time_ns, context.session))
        return context.timestamp

    @command
    def draw(self) -> int:
        chance: Random = self.context.random
        self.drawn.append(chance.randrange(1 << 40))
        return self.drawn[-1]

    @command(atomic=True)
    def move(self, source: str, to: str, amount: int) -> int:
        self.accounts[to] = self.accounts.get(to, 0) + amount
        if self.accounts[source] < amount:
            raise Rejected("not enough")
        self.accounts[source] -= amount
        return self.accounts[source]

    @command
    def give(self) -> int:
        return object()  # type: ignore[return-value]

    def on_view(self, view: GroupView) -> None:
        self.views.append(view.timestamp)


class Echo(StateMachine):
    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def apply(self, data: bytes) -> bytes:
        self.heard.append(data)
        return data[::-1]


class Hoard(StateMachine):
    """Its results can be larger than any packet."""

    def __init__(self) -> None:
        self.kept = b""
        self.calls = 0

    @command
    def keep(self, data: bytes) -> None:
        self.kept += data
        self.calls += 1

    @command
    def take(self) -> bytes:
        self.calls += 1
        return self.kept

    @command
    def make(self, size: int) -> bytes:
        self.calls += 1
        return bytes(size)

    @command
    def measure(self, data: bytes) -> int:
        self.calls += 1
        return len(data)

    @query
    def look(self) -> bytes:
        return self.kept

    @query
    def imagine(self, size: int) -> bytes:
        return bytes(size)

    @query
    def length(self, data: bytes) -> int:
        return len(data)

    @query
    def count(self) -> int:
        return self.calls


class Old(StateMachine):
    def __init__(self) -> None:
        self.value = 0

    @command
    def add(self, n: int) -> int:
        self.value += n
        return self.value


class New(StateMachine):
    """``Old``, with one more command and one more argument."""

    version = 2

    def __init__(self) -> None:
        self.value = 0

    @command
    def add(self, n: int, times: Annotated[int, Since(2)] = 1) -> int:
        self.value += n * times
        return self.value

    @command(since=2)
    def reset(self) -> None:
        self.value = 0


New.__name__ = "Old"


class Grid(StateMachine):
    """Its keys have no place in JSON."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], int] = {}

    @command
    def put(self, cells: dict[tuple[int, int], int]) -> None:
        self.cells |= cells

    @command
    def mark(self, x: int, y: int) -> dict[tuple[int, int], int]:
        self.cells[x, y] = 1
        return self.cells


class Timers(StateMachine):
    """Notes at which slot each went off; two at a slot at most."""

    def __init__(self) -> None:
        self.due: list[tuple[int, str]] = []
        self.gone: list[tuple[str, int]] = []

    @command
    def set(self, name: str, after_ms: int) -> int:
        self.due.append((self.context.time_ns + after_ms * MS, name))
        self.due.sort()
        return self.context.timestamp

    @query
    def went_off(self) -> list[tuple[str, int]]:
        return self.gone

    def alarm(self) -> int | None:
        return self.due[0][0] if self.due else None

    def on_alarm(self) -> None:
        for _ in range(2):
            if self.due and self.due[0][0] <= self.context.time_ns:
                self.gone.append((self.due.pop(0)[1], self.context.timestamp))
