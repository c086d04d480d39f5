"""Whether a round was good: what its callers wrote down against what its replicas executed."""

import time
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from bench.chaos.books import Checked
from bench.chaos.history import History
from bench.chaos.registers import Registers, key_of
from bench.chaos.site import Standing
from rsm.linearizability import (
    Executed,
    Judgement,
    Model,
    Operation,
    Outcome,
    black_box,
    describe,
    witness,
)

STATES_MAX: Final = 20_000
SEARCH_SECONDS: Final = 4.0
_TOLD_MAX: Final = 20

Order = Sequence[tuple[int, int, int]]


def judge(
    history: History, order: Order, standings: Sequence[Standing], seed: int
) -> tuple[list[str], Checked]:
    """Everything that is wrong, and how much was looked at."""
    operations = [each for name, each in history.operations.items() if name not in history.refused]
    problems = [
        *compare_replicas(standings, order),
        *check_order(history, order),
        *witness(operations, Registers, executed=_executed(history, order)),
    ]
    searched, gave_up, found = search_keys(operations, seed)
    checked = Checked(
        operations=len(operations),
        acknowledged=sum(each.outcome is not Outcome.UNKNOWN for each in operations),
        unknown=sum(each.outcome is Outcome.UNKNOWN for each in operations),
        refused=len(history.refused),
        executed=len(order),
        searched=searched,
        gave_up=gave_up,
    )
    return [*problems, *found], checked


def compare_replicas(standings: Sequence[Standing], order: Order) -> list[str]:
    """At one slot all replicas have computed the same, which is what was fetched."""
    problems = []
    states = {
        (each.status.applied, each.status.digest, each.status.chain, each.order): each.status.address
        for each in standings
    }
    if len(states) != 1:
        told = "; ".join(f"{address}: {state}" for state, address in states.items())
        problems.append(f"the replicas differ at the end (slot, digest, chain, commands): {told}")
    lengths = {each.order[0] for each in standings}
    if lengths != {len(order)}:
        problems.append(f"{len(order)} commands were fetched; the replicas have executed {sorted(lengths)}")
    return problems


def check_order(history: History, order: Order) -> list[str]:
    """Slots grow; every command was called by somebody, who was not told that it would not be executed."""
    problems: list[str] = []
    last = 0
    for ts, client, request in order:
        if ts <= last:
            problems.append(f"slot {ts} was executed after slot {last}")
        last = ts
        name = (client, request)
        if name not in history.operations:
            problems.append(f"slot {ts}: nobody has called request {request} of client {client}")
        elif name in history.refused:
            why = history.refused[name]
            problems.append(
                f"slot {ts}: {describe(history.operations[name])} was executed; its caller was told that it"
                f" was refused: {why}"
            )
    return problems[:_TOLD_MAX]


def _executed(history: History, order: Order) -> list[Executed]:
    """The order with what was called; a call that nobody made is told already."""
    return [
        Executed(ts, client, request, each.method, each.arguments)
        for ts, client, request in order
        if (each := history.operations.get((client, request))) is not None
    ]


def search_keys(
    operations: Sequence[Operation], seed: int, seconds: float = SEARCH_SECONDS
) -> tuple[int, int, list[str]]:
    """Keys searched, given up on, and what no order explains. Those with calls of unknown outcome come
    first, in an order drawn; whatever fits into the time."""
    model = Model(Registers)
    keys: dict[str, list[Operation]] = {}
    for each in operations:
        values = msgspec.structs.astuple(model.bind(each.method, each.arguments))
        keys.setdefault(key_of(each.method, values), []).append(each)
    drawn = sorted(keys)
    Random(f"search {seed}").shuffle(drawn)
    drawn.sort(key=lambda key: all(each.outcome is not Outcome.UNKNOWN for each in keys[key]))
    searched = gave_up = 0
    problems: list[str] = []
    end = time.monotonic() + seconds
    for key in drawn:
        if time.monotonic() > end or len(problems) >= _TOLD_MAX:
            break
        verdict = black_box(keys[key], Registers, states_max=STATES_MAX)
        searched += 1
        gave_up += verdict.judgement is Judgement.GAVE_UP
        if verdict.judgement is Judgement.VIOLATION:
            problems.append(f"key {key}: {verdict.explanation}")
    return searched, gave_up, problems
