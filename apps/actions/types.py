"""What goes into the ledger and comes out, and what a site has to do (``docs/actions.md``)."""

from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

TIMEOUT_MS: Final = 10_000


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """One operation at one site. ``keys``: what it touches there, None for everything. ``seen``: the digest
    of the result that the initiator was told, empty if it goes by none."""

    site: str
    name: str
    arguments: bytes
    keys: tuple[str, ...] | None = None
    seen: bytes = b""


class NewAction(msgspec.Struct, frozen=True, array_like=True):
    """``timeout_ms`` of the group's time, from the request on; of an open action also from its opening on."""

    id: str
    operations: tuple[Operation, ...] = ()
    depends: tuple[str, ...] = ()
    timeout_ms: int = TIMEOUT_MS
    initiator: str = ""  # a word for people
    asked: bytes = b""  # a digest of what the initiator itself was asked for, to know it again


class EarlyVote(msgspec.Struct, frozen=True, array_like=True):
    """A vote that a site gives to who will request the unit. ``heard``: the slot up to which it knew its
    duties when it began to prepare; nothing that competes was under way there."""

    site: str
    yes: bool
    reason: str
    chain: int
    incarnation: int
    heard: int


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What a site is asked to prepare before it is requested. ``unit``: a name that nobody else uses."""

    unit: str
    operations: tuple[Operation, ...]


class State(StrEnum):
    OPEN = "open"  # recorded, commit is not requested
    WAITING = "waiting"  # parked, or behind others
    VOTING = "voting"
    COMMITTED = "committed"
    ABORTED = "aborted"

    @property
    def is_decided(self) -> bool:
        return self in {State.COMMITTED, State.ABORTED}


class Vote(msgspec.Struct, frozen=True, array_like=True):
    """As it was ordered."""

    site: str
    yes: bool
    reason: str
    timestamp: int


class Finish(msgspec.Struct, frozen=True, array_like=True):
    """What became of a committed action at a site; ``error`` if it could not be applied so far."""

    site: str
    error: str
    timestamp: int


class Action(msgspec.Struct, frozen=True):
    """How an action stands, for people and programs."""

    id: str
    state: State
    operations: tuple[Operation, ...]
    depends: tuple[str, ...]
    unit: str  # the name of what is voted on, unique in its chain; empty until it has its place
    initiator: str
    opened: int  # slots, 0 for what has not happened
    requested: int
    decided: int
    deadline_ns: int  # in the group's time
    reason: str
    waits_for: tuple[str, ...]  # actions
    votes: tuple[Vote, ...]
    finished: tuple[Finish, ...]
    asked: bytes = b""

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(operation.site for operation in self.operations))


class Registered(msgspec.Struct, frozen=True, array_like=True):
    incarnation: int
    chain: int


class SiteState(msgspec.Struct, frozen=True):
    """A name and who has it."""

    name: str
    site: int
    boot: str  # as ``GroupView.boots`` has it
    incarnation: int
    is_here: bool
    unfinished: int  # committed actions that it has not finished
    address: str  # of its replica, empty if that is not in the view


class Task(StrEnum):
    PREPARE = "prepare"
    HOLD = "hold"  # it has voted yes and nothing is decided: keep what is prepared
    COMMIT = "commit"
    ABORT = "abort"
    RESET = "reset"  # all duties follow, in one page or several; ``incarnation`` is the newest that is known
    COMPLETE = "complete"  # those were all: what else the site has prepared was aborted
    OVER = "over"  # registrations before the slot ``incarnation`` are over
    WITHDRAWN = "withdrawn"  # early votes of before ``slot`` do not count any more


class Duty(msgspec.Struct, frozen=True):
    """What a site has to do for a unit, as of a slot. Operations are this site's, in order. ``slot``: of
    RESET, as of which all duties follow; of COMPLETE, up to which aborts are forgotten; of WITHDRAWN, its
    own."""

    task: Task
    unit: str = ""
    incarnation: int = 0
    operations: tuple[Operation, ...] = ()
    slot: int = 0
    chain: int = 0  # in which the unit took its place


# -- effects of a site's core --------------------------------------------------------------------


class Prepare(msgspec.Struct, frozen=True):
    unit: str
    operations: tuple[Operation, ...]


class Commit(msgspec.Struct, frozen=True):
    unit: str
    operations: tuple[Operation, ...]


class Abort(msgspec.Struct, frozen=True):
    unit: str


class CastVote(msgspec.Struct, frozen=True):
    unit: str
    incarnation: int
    yes: bool
    reason: str


class TellReady(msgspec.Struct, frozen=True):
    """Answer who has offered a unit: prepared, or not because of ``error``; or neither (``is_vote``), and it
    is to be requested without this vote."""

    unit: str
    is_vote: bool
    error: str = ""
    incarnation: int = 0
    heard: int = 0


class ReportFinished(msgspec.Struct, frozen=True):
    """``error`` is empty if it is applied."""

    unit: str
    error: str


class RetryLater(msgspec.Struct, frozen=True):
    """Call ``retry(unit)`` after a while."""

    unit: str


class Register(msgspec.Struct, frozen=True):
    """The registration is over, or of no use: order another, and call ``begin`` with what that gave. If the
    ledger says that the name is somebody else's by now, this process is superseded."""


SiteEffect: TypeAlias = (
    Prepare | Commit | Abort | CastVote | TellReady | ReportFinished | RetryLater | Register
)
