"""What must a machine tell so that what happens to its keys can be recorded (``change_records``)?"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Changed(NamedTuple):
    """A key as it was left at slot ``revision``. ``kind``: put, delete or expire; the latter two have no
    value."""

    kind: str
    revision: int
    key: bytes
    value: bytes | None = None
    created: int | None = None
    version: int | None = None
    lease: int | None = None


class RecordedHistory(ABC):
    """What a machine offers so that its changes are recorded (``StateMachine.recorded_history``). Changes are
    numbered, and kept for a while. Changes and entries may be of any type, but nothing of them may change:
    ``change_of`` and ``entry_of`` are called in another thread. All else is called between two commands."""

    @abstractmethod
    def start(self) -> tuple[int, int]:
        """The number of the oldest change that is kept, and the slot up to which all others happened."""

    @abstractmethod
    def end(self) -> int:
        """The number behind the newest change."""

    @abstractmethod
    def since(self, number: int, most: int) -> Sequence[Any] | None:
        """Changes from this number on; None: some of them are forgotten."""

    @abstractmethod
    def slices(self) -> Iterator[Sequence[Any]]:
        """All entries, some at a time; commands may be executed in between."""

    @staticmethod
    @abstractmethod
    def change_of(change: Any) -> Changed:
        """What a change has led to."""

    @staticmethod
    @abstractmethod
    def before(change: Any) -> Any | None:
        """The entry that it replaced, if there was one."""

    @staticmethod
    @abstractmethod
    def entry_of(entry: Any) -> Changed:
        """An entry, as the ``put`` that has made it."""
