"""The machine under attack: registers, and in ``Recorded`` also the order in which they were changed.

Commands carry the name of their call, client and request, which they do not use. ``Recorded`` notes it, so
that the order can be fetched when all is over and shows which calls of unknown outcome took effect. The
checkers replay ``Registers``, which has the same commands and no more state than the replies depend on.
"""

from typing import Any, Final

from rsm.errors import Rejected
from rsm.state_machine import StateMachine, command, query

PAGE: Final = 1700  # entries of 28 bytes at most


class Registers(StateMachine):
    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def _note(self, client: int, request: int) -> None:
        """Nothing here remembers who called."""

    @command
    def write(self, key: str, value: str, client: int, request: int) -> str:
        """Returns what was there before."""
        self._note(client, request)
        before = self.values.get(key, "")
        self.values[key] = value
        return before

    @command
    def append(self, key: str, value: str, client: int, request: int) -> str:
        self._note(client, request)
        self.values[key] = after = self.values.get(key, "") + value
        return after

    @command
    def swap(self, key: str, expected: str, value: str, client: int, request: int) -> None:
        """Compare and set."""
        self._note(client, request)
        found = self.values.get(key, "")
        if found != expected:
            raise Rejected("another value is there", found)
        self.values[key] = value

    @query
    def read(self, key: str) -> str:
        return self.values.get(key, "")


class Recorded(Registers):
    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[int, int, int]] = []  # slot, client, request

    def _note(self, client: int, request: int) -> None:
        self.order.append((self.context.timestamp, client, request))

    @query
    def executed(self, start: int) -> list[tuple[int, int, int]]:
        """A page of the order."""
        return self.order[start : start + PAGE]


def key_of(_: str, arguments: tuple[Any, ...]) -> str:
    """What a call is about; calls about different keys do not affect each other."""
    return str(arguments[0])
