"""A store without a group: every call has a slot of its own, as the executor would give it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

import pytest

from apps.kv import KeyValueStore, Limits
from rsm.errors import Rejected
from rsm.state_machine import Context

P = ParamSpec("P")
R = TypeVar("R")

MS: Final = 1_000_000
BEGIN_NS: Final = 1_700_000_000 * 1000 * MS


class Group:
    """``call`` orders a command; ``wait`` lets time pass, and orders as many slots as alarms ask for."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.store = KeyValueStore()
        self.context = self.store.context = Context()
        self.context.time_ns = BEGIN_NS
        if limits is not None:
            self.call(self.store.configure, limits)

    @property
    def now(self) -> int:
        return self.context.timestamp

    def call(self, command: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self.slot()
        return command(*args, **kwargs)

    def slot(self) -> int:
        """A message: what is due goes before it."""
        self.context.timestamp += 1
        alarm = self.store.alarm()
        if alarm is not None and alarm <= self.context.time_ns:
            self.store.on_alarm()
        return self.context.timestamp

    def wait(self, ms: int) -> int:
        """How many slots were ordered."""
        self.context.time_ns += ms * MS
        slots = 0
        while (alarm := self.store.alarm()) is not None and alarm <= self.context.time_ns:
            self.slot()
            slots += 1
            assert slots < 10_000, "alarms without an end"
        return slots

    @contextmanager
    def refused(self, code: str, **detail: Any) -> Iterator[None]:
        """What is done inside is refused like this, and changes nothing."""
        before = b"".join(self.store.snapshot())
        with pytest.raises(Rejected) as caught:
            yield
        assert caught.value.message == code
        assert isinstance(caught.value.detail, dict)
        for name, value in detail.items():
            assert caught.value.detail[name] == value
        assert b"".join(self.store.snapshot()) == before

    def restored(self) -> "Group":
        """Another replica, which was given the state."""
        other = Group()
        other.store.restore(self.store.snapshot())
        other.context.timestamp, other.context.time_ns = self.context.timestamp, self.context.time_ns
        return other
