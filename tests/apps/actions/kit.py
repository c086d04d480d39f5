"""A ledger without a group: every call has a slot of its own, as the executor would give it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

import pytest

from apps.actions.ledger import ActionLedger
from apps.actions.types import Action, Duty, NewAction, Operation, State, Task
from ordering.views import SiteId
from rsm.errors import Rejected
from rsm.state_machine import Context, GroupView

P = ParamSpec("P")
R = TypeVar("R")

MS: Final = 1_000_000
BEGIN_NS: Final = 1_700_000_000 * 1000 * MS
CHAIN: Final = 7
SITES: Final = ("a", "b", "c")


def boot_of(site: int, life: int = 1) -> str:
    return f"{site * 1000 + life:032x}"


def at(site: str, *keys: str, whole: bool = False, arguments: bytes = b"") -> Operation:
    return Operation(site, "do", arguments, None if whole else keys)


def new(
    name: str, *operations: Operation, depends: tuple[str, ...] = (), timeout_ms: int = 10_000
) -> NewAction:
    return NewAction(name, operations, depends, timeout_ms, "kit")


class NoSuchAction(Exception):
    pass


class Group:
    """Sites a, b and c are members 1, 2 and 3, registered and in the ring."""

    def __init__(self, machine: type[ActionLedger] = ActionLedger) -> None:
        self.ledger = machine()
        self.context = self.ledger.context = Context()
        self.context.time_ns = BEGIN_NS
        self.lives = {1: 1, 2: 1, 3: 1}
        self.incarnations: dict[str, int] = {}
        self.view(1, 2, 3)
        for number, name in enumerate(SITES, 1):
            self.register(name, number)

    def call(self, command: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self.slot()
        return command(*args, **kwargs)

    def slot(self) -> int:
        """A message: what is due goes before it."""
        self.context.timestamp += 1
        self._ring_alarm()
        return self.context.timestamp

    def _ring_alarm(self) -> None:
        alarm = self.ledger.alarm()
        if alarm is not None and alarm <= self.context.time_ns:
            self.ledger.on_alarm()

    def wait(self, ms: int) -> int:
        """How many slots were ordered."""
        self.context.time_ns += ms * MS
        slots = 0
        while (alarm := self.ledger.alarm()) is not None and alarm <= self.context.time_ns:
            self.slot()
            slots += 1
            assert slots < 10_000, "alarms without an end"
        return slots

    def view(self, *ring: int, chain: int = CHAIN) -> None:
        self.context.timestamp += 1
        members = tuple(SiteId(number) for number in ring)
        boots = {SiteId(number): boot_of(number, life) for number, life in self.lives.items()}
        now = self.context.timestamp
        view = GroupView(now, chain, 1, now, members, members, (), dict.fromkeys(members, ""), boots)
        self.context.view = view
        self.ledger.on_view(view)

    def register(self, name: str, number: int) -> int:
        boot = boot_of(number, self.lives[number])
        registered = self.call(self.ledger.register, name, number, boot)
        self.incarnations[name] = registered.incarnation
        return registered.incarnation

    def request(self, name: str, *operations: Operation, **more: Any) -> Action:
        return self.call(self.ledger.request, new(name, *operations, **more))

    def vote(self, name: str, site: str, yes: bool = True, incarnation: int = 0) -> State:
        unit = self.of(name).unit
        incarnation = incarnation or self.incarnations[site]
        return self.call(self.ledger.vote, unit, site, incarnation, yes, "" if yes else "because")

    def finish(self, name: str, site: str, error: str = "") -> int:
        reports = [(self.of(name).unit, error)]
        return self.call(self.ledger.finished, site, self.incarnations[site], reports)

    def of(self, name: str) -> Action:
        action = self.ledger.action(name)
        if action is None:
            raise NoSuchAction(name)
        return action

    def state(self, name: str) -> State:
        return self.of(name).state

    def duties(self, site: str, since: int = 0) -> list[Duty]:
        """All pages, without what frames them."""
        found: list[Duty] = []
        while True:
            feed = self.ledger.duties(since, site)
            found += feed.events
            if feed.position >= self.context.timestamp:
                return [each for each in found if each.unit]
            since = feed.position

    def tasks(self, site: str, since: int = 0) -> list[tuple[Task, str]]:
        return [(each.task, each.unit.rpartition("@")[0]) for each in self.duties(site, since)]

    @contextmanager
    def refused(self, code: str) -> Iterator[None]:
        """What is done inside is refused like this, and changes nothing."""
        before = self.snapshot()
        with pytest.raises(Rejected) as caught:
            yield
        assert caught.value.message == code
        assert isinstance(caught.value.detail, dict)
        assert self.snapshot() == before

    def snapshot(self) -> bytes:
        return b"".join(self.ledger.snapshot())

    def restored(self) -> ActionLedger:
        other = type(self.ledger)()
        other.restore(self.ledger.snapshot())
        other.context = self.context
        return other
