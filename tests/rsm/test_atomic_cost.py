"""What an atomic command costs in a large state, through the executor."""

import time
from collections.abc import Callable

from rsm.errors import Rejected
from rsm.state_machine import StateMachine, command
from tests.rsm.test_executor import Bench

ENTRIES = 1_000_000
BATCH = 50
BATCHES = 20
RATIO_MAX = 10


class Bank(StateMachine):
    def __init__(self) -> None:
        self.accounts = dict.fromkeys(range(ENTRIES), 10)
        self.moves = list(range(ENTRIES))
        self.names = set(range(ENTRIES))

    def _move(self, source: int, to: int) -> None:
        self.accounts[source] -= 1
        self.accounts[to] = self.accounts.pop(to) + 1
        self.moves.append(source)
        self.names.discard(to)
        self.names.add(-to)

    @command
    def move(self, source: int, to: int) -> int:
        self._move(source, to)
        return self.accounts[to]

    @command(atomic=True)
    def move_or_not(self, source: int, to: int) -> int:
        self._move(source, to)
        return self.accounts[to]

    @command(atomic=True)
    def refuse(self, source: int, to: int) -> int:
        self._move(source, to)
        raise Rejected("not today")


def fastest(give: Callable[[list[bytes]], object], batches: list[list[bytes]]) -> int:
    """Nanoseconds of the fastest batch: what else the machine does only adds to it."""
    took = []
    for batch in batches:
        begun = time.perf_counter_ns()
        give(batch)
        took.append(time.perf_counter_ns() - begun)
    return min(took)


def test_when_an_atomic_command_raises_in_a_state_of_a_million_then_it_costs_a_few_plain_ones() -> None:
    bench = Bench(Bank)

    def cost(name: str, first: int) -> int:
        batches = [
            [
                bench.message(name, at, ENTRIES // 2 + at, acknowledged=bench.number)
                for at in range(start, start + BATCH)
            ]
            for start in range(first, first + BATCHES * BATCH, BATCH)
        ]
        return fastest(bench.give, batches)

    plain = cost("move", 0)
    atomic = cost("move_or_not", 10_000)
    refused = cost("refuse", 20_000)
    bank = bench.executor.machine
    assert isinstance(bank, Bank)
    assert len(bank.moves) == ENTRIES + 2 * BATCHES * BATCH, "what was refused has changed nothing"
    assert atomic <= RATIO_MAX * plain, f"{atomic / plain:.1f} times a plain command"
    assert refused <= RATIO_MAX * plain, f"{refused / plain:.1f} times a plain command"
