"""A replica's seat in its group: how it stands there, and what it may ask of the ring.

A seat is lost and another one taken in the life of a replica. What is asked where there is none is refused,
or asked again when there is one.
"""

import asyncio
from collections.abc import Sequence
from time import time_ns

from ordering.config import MS
from ordering.driver import Group
from ordering.effects import RequestState
from ordering.errors import LockError, NoPrimary, NotMember
from ordering.events import HoldersRequested, LockReleased, LockRequested, ReadRequested
from ordering.views import Member
from rsm.executor import Executor
from rsm.intake import Intake
from rsm.reading import Reads
from rsm.status import Standing
from rsm.survey import Surveyor


class Seat(Surveyor):
    """Whoever has it (``Replica``) takes it and gives it up."""

    def __init__(self, executor: Executor) -> None:
        self._group: Group | None = None
        self._intake = Intake(executor, ready=False)
        self._announced = False  # this membership has begun to send
        self._minority_ms = 0
        self._wanted: RequestState | None = None  # a state that is still to come
        self._reads: Reads
        self._over: asyncio.Future[None]  # the replica is, and with it every seat

    @property
    def executor(self) -> Executor:
        return self._intake.executor

    @property
    def member(self) -> Member:
        """Who this replica is in its group, at present."""
        if self._group is None:
            raise NotMember("this replica has joined no group")
        return self._group.member

    def _standing(self) -> Standing:
        if self._over.done():
            return Standing.HALTED
        if self._group is None or self._group.is_over:
            return Standing.OUTSIDE
        if self._wanted is not None:
            return Standing.FETCHING
        if not self._intake.ready or not self._announced:
            return Standing.STARTING
        is_alone = self._group.majority_age_ns() // MS > self._minority_ms
        return Standing.CUT_OFF if is_alone else Standing.SERVING

    @property
    def has_state(self) -> bool:
        return self._intake.ready and not self._over.done()

    @property
    def is_serving(self) -> bool:
        return self._standing() is Standing.SERVING

    def _submit(self, messages: Sequence[bytes]) -> int:
        if self._group is None:
            raise NotMember("this replica has joined no group")
        return self._group.submit(messages).first_seq

    def _tell_lock(self, event: LockRequested | LockReleased) -> None:
        if self._group is not None and not self._group.is_over:
            self._group.handle(event)
        elif isinstance(event, LockRequested):
            raise LockError(f"lock {event.name!r}: this replica is no member of its group now")

    def _ask_holders(self, asked: HoldersRequested) -> None:
        if self._group is None or self._group.is_over:
            raise NotMember("this replica is no member of its group now")
        self._group.handle(asked)

    def caught_up(self) -> "asyncio.Future[None]":
        """Done when all that is final by now is executed here."""
        group = self._group
        if group is not None and not group.is_over and self._announced:
            age_ms = group.majority_age_ns() // MS
            if age_ms > self._minority_ms:
                raise NoPrimary(f"no majority was heard for {age_ms} ms; read stale, or ask another replica")
        return self._reads.read()

    def _ask_read(self, number: int) -> None:
        """Where this is no member yet, it is asked when it is."""
        if self._group is not None and self._announced and not self._group.is_over:
            self._group.handle(ReadRequested(number))

    def age_ns(self) -> int:
        """How long ago a majority was heard here; by a replica that is just back from its disk, before that
        stopped, and then the last slot tells."""
        assert self._group is not None
        back = 0 if self._announced else time_ns() - self.executor.group.time
        return max(self._group.majority_age_ns(), back)
