"""Units in doubt, as an operator sees and settles them from outside of their site's process."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from apps.actions.participant import Prepared, Unit
from apps.actions.types import Operation
from rsm.asking import Asking

Settle: TypeAlias = Callable[[Unit, bool], Awaitable[None]]


class Doubt(msgspec.Struct, frozen=True):
    """Prepared in a ``chain`` that is not the group's any more."""

    unit: str
    chain: int
    operations: tuple[Operation, ...]


class Settled(msgspec.Struct, frozen=True):
    """In doubt once, and committed or aborted; or of such a chain, and found to be applied."""

    unit: str
    chain: int
    committed: bool


class Doubts(msgspec.Struct, frozen=True):
    """At a site. ``settled``: the last of them, as far as it is known there."""

    left: tuple[Doubt, ...]
    settled: tuple[Settled, ...]


class Question(msgspec.Struct, frozen=True):
    """What is in doubt; or that this unit is to be settled. Asked twice, it is settled once, and both are
    told the same."""

    unit: Unit | None = None
    commit: bool = False


ONLY_LOOK: Final = Question()


def doubts_name(site: str) -> str:
    """Under which a site answers operators."""
    return f"actions/{site}/doubts"


class Desk:
    """Answers operators at a site."""

    def __init__(
        self, doubts: Callable[[], Mapping[Unit, Prepared]], settled: Mapping[Unit, bool], settle: Settle
    ) -> None:
        self._doubts = doubts
        self._settled = settled
        self._settle = settle

    async def answer(self, question: bytes) -> bytes:
        asked = msgspec.msgpack.decode(question, type=Question)
        if asked.unit is not None:
            await self._settle(asked.unit, asked.commit)
        left = tuple(Doubt(*each.unit, each.operations) for each in self._doubts().values())
        settled = tuple(Settled(*unit, committed) for unit, committed in self._settled.items())
        return msgspec.msgpack.encode(Doubts(left, settled))


async def ask_doubts(
    through: Asking, site: str, address: str, timeout: float, question: Question = ONLY_LOOK
) -> Doubts:
    """What is in doubt at a site, behind what was asked of it; ``AskError`` if it does not say so."""
    answer = await through.ask(address, doubts_name(site), msgspec.msgpack.encode(question), timeout)
    return msgspec.msgpack.decode(answer, type=Doubts)
