"""A group of keys without a place in any order: the model of a search that does not believe timestamps.

The store's revisions are slots, which a search cannot know before it has found an order. Here they are marks:
a request carries the one that its effect had, and whoever read the key must have seen that and no other. It
shares nothing with the store itself: what both get wrong they do not get wrong together.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from apps.kv.types import ABSENT, PRESENT, Add, Compare, Delete, Get, Operation, Put
from rsm.errors import Rejected
from rsm.state_machine import StateMachine, command, query

Cell: TypeAlias = tuple[bytes, int, int, int]
"""Value, revision, created, version."""


class Cells(StateMachine):
    """``once``: the request is among several of one name, of which the first that is not refused counts."""

    def __init__(self) -> None:
        self.cells: dict[bytes, Cell] = {}
        self.answers: dict[bytes, Any] = {}

    def snapshot(self) -> Iterable[bytes]:
        state = (sorted(self.cells.items()), sorted(self.answers.items()))
        return [msgspec.msgpack.encode(state)]

    def restore(self, chunks: Iterable[bytes]) -> None:
        kind = tuple[list[tuple[bytes, Cell]], list[tuple[bytes, Any]]]
        cells, answers = msgspec.msgpack.decode(b"".join(chunks), type=kind)
        self.cells, self.answers = dict(cells), dict(answers)

    # -- commands and queries of ``Shown``, with the mark of their effect ------------------------

    @command
    def put(self, key: bytes, value: bytes, expect: int | None, once: bytes | None, effect: int) -> Any:
        if once in self.answers:
            return self.answers[once]
        self._expect(key, expect)
        return self._keep(once, self._write(self.cells, key, value, effect))

    @command
    def delete(self, key: bytes, expect: int | None, once: bytes | None) -> Any:
        if once in self.answers:
            return self.answers[once]
        self._expect(key, expect)
        return self._keep(once, self.cells.pop(key, None) is not None)

    @command
    def add(self, key: bytes, delta: int, once: bytes | None, effect: int) -> Any:
        if once in self.answers:
            return self.answers[once]
        return self._keep(once, self._count(self.cells, key, delta, effect))

    @command
    def txn(
        self,
        compare: list[Compare],
        then: list[Operation],
        otherwise: list[Operation],
        once: bytes | None,
        effect: int,
    ) -> Any:
        if once in self.answers:
            return self.answers[once]
        succeeded = all(map(self._holds, compare))
        sketch = dict(self.cells)
        results = []
        for place, operation in enumerate(then if succeeded else otherwise):
            try:
                results.append(self._do(sketch, operation, effect))
            except Rejected as refusal:
                raise Rejected(refusal.message, {"operation": place}) from None
        self.cells = sketch
        return self._keep(once, (succeeded, effect, results))

    @query
    def get(self, key: bytes) -> Any:
        return (key, *self.cells[key]) if key in self.cells else None

    @query
    def listing(self, prefix: bytes) -> Any:
        return [(key, *cell) for key, cell in sorted(self.cells.items()) if key.startswith(prefix)]

    # -- parts -----------------------------------------------------------------------------------

    def _keep(self, once: bytes | None, answer: Any) -> Any:
        if once is not None:
            self.answers[once] = answer
        return answer

    def _expect(self, key: bytes, expect: int | None) -> None:
        found = self.cells[key][1] if key in self.cells else ABSENT
        if expect is not None and expect != found and not (expect == PRESENT and found != ABSENT):
            raise Rejected("conflict", {"revision": found})

    @staticmethod
    def _write(cells: dict[bytes, Cell], key: bytes, value: bytes, effect: int) -> tuple[int, int, int]:
        before = cells.get(key)
        created, version = (effect, 1) if before is None else (before[2], before[3] + 1)
        cells[key] = (value, effect, created, version)
        return effect, created, version

    def _count(self, cells: dict[bytes, Cell], key: bytes, delta: int, effect: int) -> tuple[int, int]:
        before = cells[key][0] if key in cells else b"0"
        if not before.isdigit():
            raise Rejected("not_a_number", {})
        total = int(before) + delta
        self._write(cells, key, b"%d" % total, effect)
        return total, effect

    def _do(self, cells: dict[bytes, Cell], operation: Operation, effect: int) -> Any:
        match operation:
            case Put(key, value):
                return self._write(cells, key, value, effect)
            case Add(key, delta):
                return self._count(cells, key, delta, effect)
            case Delete(key):
                return effect, cells.pop(key, None) is not None
            case Get(key):
                return (key, *cells[key]) if key in cells else None
            case _:
                raise AssertionError(f"{type(operation).__name__}: the load draws no such operation")

    def _holds(self, compare: Compare) -> bool:
        value, revision, _, version = self.cells.get(compare.key, (None, ABSENT, 0, 0))
        match compare:
            case Compare(target="revision", op="=", operand=operand):
                return revision == operand
            case Compare(target="exists", op="=", operand=operand):
                return (value is not None) == operand
            case Compare(target="value", op="=", operand=operand):
                return value == operand
            case Compare(target="version", op=op, operand=int(number)):
                return version > number if op == ">" else version < number
            case _:
                raise AssertionError(f"{compare.target} {compare.op}: the load draws no such comparison")
