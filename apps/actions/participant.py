"""What does a person subclass to have something other than a database take part in actions?

A participant carries operations out at one site. Units come to it by name and chain: a name means one thing
within a chain. Its manager calls ``attempt`` whenever somebody asks, and ``prepare``, ``commit`` and
``abort`` for several units at a time, but for one unit one after the other. Calls may be repeated, after a
crash too, so each of them must be idempotent. Whatever one of them raises counts as "not done".
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from apps.actions.operations import Operations
from apps.actions.types import Operation

NONE: Final = Operations()


class Unit(NamedTuple):
    """What is prepared, committed or aborted as one."""

    name: str
    chain: int


class Prepared(msgspec.Struct, frozen=True):
    """A unit that is prepared and neither committed nor aborted, with what it will carry out."""

    unit: Unit
    operations: tuple[Operation, ...]


class Recovered(msgspec.Struct, frozen=True):
    """What a participant finds when it is back. ``applied``: units whose marks it still keeps."""

    prepared: tuple[Prepared, ...] = ()
    applied: tuple[Unit, ...] = ()


class Participant(ABC):
    """The part of one site in actions. All calls come from one event loop, which they must not block.

    ``operations``: those that are told to who knows them by name alone, a gateway say; none unless set.
    """

    operations: Operations = NONE

    @abstractmethod
    async def open(self) -> None:
        """Get ready, or raise what is missing and what to do about it."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything; what is prepared stays prepared. It can be opened again."""

    @abstractmethod
    async def recover(self) -> Recovered:
        """Everything that is prepared here, of whichever chain, and the marks that are kept. It may be asked
        while other units are prepared, committed and aborted."""

    @abstractmethod
    async def attempt(self, operations: Sequence[Operation]) -> list[bytes]:
        """Carry the operations out one after the other, get their encoded results, and undo all of it: when
        it returns or raises, nothing is changed and nothing is held. ``Rejected`` is a refusal."""

    @abstractmethod
    async def prepare(self, unit: Unit, operations: Sequence[Operation]) -> None:
        """See to it that ``commit`` will succeed. The operations are carried out and compared with what the
        initiator has ``seen``, and what comes of them is not visible to anybody.

        When it returns, the unit and all that a ``commit`` needs is on the disk: that is the vote yes. When
        it raises, which is the vote no with the message as reason, the unit is not prepared. If the unit is
        prepared already, nothing is done. Crashing within it may leave it prepared or not."""

    @abstractmethod
    async def commit(self, unit: Unit, operations: Sequence[Operation]) -> None:
        """Make what was prepared visible, all of it at once and together with a mark that it is done.

        When it returns, both are on the disk. If the mark is there already, nothing is done. If there is
        neither mark nor unit, it raises ``NotPrepared``. When it raises anything else the unit is still
        prepared, or done, and it is called again later, for as long as it takes."""

    @abstractmethod
    async def abort(self, unit: Unit) -> None:
        """Undo what was prepared, so that nothing of it is left or held. If there is nothing, nothing is
        done. When it raises it is called again later."""

    @abstractmethod
    async def forget(self, units: Sequence[Unit]) -> None:
        """The marks of these units are not needed any more: nobody will ask to commit them again. Losing the
        call, in a crash say, costs a little room and nothing else."""
