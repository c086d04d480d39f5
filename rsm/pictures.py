"""A picture of a replica's state at one slot, taken while the replica lives (``docs/large-states.md``).

Taking it keeps the executor waiting, and nothing else: deliveries go on to come in, the ring turns. How long
depends on the machine's ``snapshot``: for one that is ``detached`` until that has fixed the state, for others
until it is read to its end. A picture that was taken depends on nothing that changes; its chunks are made
when they are asked for, in whatever thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rsm.chunks import packed
from rsm.errors import MachineError
from rsm.intake import Intake
from rsm.pace import in_turns
from rsm.state_machine import is_detached


class Picture(NamedTuple):
    """``chunks`` can be read once."""

    ts: int
    digest: int
    chunks: Iterator[bytes]


class Pictures:
    """One is taken at a time. ``resume`` is called when the intake may go on."""

    def __init__(self, resume: Callable[[Intake], None]) -> None:
        self._resume = resume
        self._taking = asyncio.Lock()

    async def take(self, intake: Intake) -> Picture:
        async with self._taking:
            intake.hold()
            try:
                return await _take(intake)
            finally:
                intake.release()
                self._resume(intake)


async def _take(intake: Intake) -> Picture:
    executor = intake.executor
    detached = is_detached(executor.machine)
    ts, digest = executor.applied, executor.group.digest
    pieces = iter(executor.snapshot())
    held: deque[bytes] = deque()
    try:
        held.append(next(pieces))  # the executor's own part, as of now
        async for piece in in_turns(pieces):
            if piece:
                held.append(piece)
                if detached:
                    break
    except Exception as error:  # the machine's, whatever its commands have kept
        name = executor.catalogue.name
        raise MachineError(f"{name}: no snapshot can be taken: {type(error).__name__}: {error}") from error
    return Picture(ts, digest, packed(_rest(held, pieces)))


def _rest(held: deque[bytes], pieces: Iterator[bytes]) -> Iterator[bytes]:
    while held:
        yield held.popleft()
    yield from pieces
