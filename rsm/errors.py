"""What can go wrong, as seen by who uses a replicated machine.

::

    RsmError
    ├── MachineError           the class cannot be replicated as it is written
    ├── InvalidCall            wrong arguments; nothing was sent
    ├── CallError              the answer to a call
    │   ├── Rejected           the application refuses; commands raise it themselves
    │   ├── CommandFailed      the command raised something else, at every replica
    │   └── Refused            it was not executed
    ├── NotHeld                it was executed and stays, but fewer voters hold it than were asked for
    ├── ChainChanged           what was followed went on in another chain: begin anew
    ├── AskError               a question to one replica has no answer
    │   ├── Unreachable        it is not there, or the connection broke twice
    │   ├── NotAnswered        not in time
    │   ├── AskRefused         nobody answers such questions there, or too many or too large ones
    │   └── AnswerFailed       who answers it there has raised something
    ├── OutcomeUnknown         it was executed, or will be, or neither: nobody here can tell
    └── Halted                 this replica must not go on
        ├── MismatchedMachine  the group runs another machine, or another version of it
        ├── Diverged           this replica has computed something else than the others
        └── StateLost          a snapshot cannot be read

``Rejected`` is the only one that a machine raises on purpose.
"""

from enum import IntEnum

from ordering.errors import ListenerHalts


class RsmError(Exception):
    """All of ours."""


class MachineError(RsmError):
    """The message names the method or attribute, and says what is missing."""


class InvalidCall(RsmError):
    """Arguments that the annotations do not allow, or a method that is not there."""


class CallError(RsmError):
    """The call had an outcome, and it was not a value. Whoever asked with details finds in which slot that
    was, and which replica has said so, in which view."""

    timestamp = 0
    replica = ""
    view = ""


class Rejected(CallError):
    """Raise it in a command to refuse; the caller gets it with the same words. ``detail`` is anything made of
    None, bool, int, float, str, bytes, lists and dicts with str keys."""

    def __init__(self, message: str = "", detail: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class CommandFailed(CallError):
    """A defect of the machine: the command raised ``kind``. What it changed stays, unless it is atomic."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


class Refusal(IntEnum):
    """Why a command was not executed."""

    UNREADABLE = 1
    """The version that the group runs has no such command, or takes other arguments."""
    NOT_READY = 2
    """No replica has said yet which machine the group runs."""
    SESSION_UNKNOWN = 3
    """It was never opened here, was closed, or has ended unused."""
    SESSION_FULL = 4
    """Too many requests, or bytes of replies, that the client has not acknowledged."""
    OLD = 5
    """The client has said before that it has the answer."""
    CANNOT_ACTIVATE = 6
    """Some voter cannot run that version."""
    TOO_LARGE = 7
    """The replica that was asked takes no call of that size from a client."""


class Refused(CallError):
    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.message = message


class NotHeld(RsmError):
    """The command was executed, and a majority holds it: it stays. ``value`` is its result, ``timestamp`` its
    slot, and ``qos`` the level that was reached."""

    def __init__(self, message: str, value: object, timestamp: int, qos: str) -> None:
        super().__init__(message)
        self.value = value
        self.timestamp = timestamp
        self.qos = qos


class AskError(RsmError):
    """What was asked may have been heard or not."""


class Unreachable(AskError):
    pass


class NotAnswered(AskError):
    pass


class AskRefused(AskError):
    pass


class AnswerFailed(AskError):
    """It raised ``kind``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


class ChainChanged(RsmError):
    """Survivors of a lost majority go on without what only the others had, under the same slots (R9)."""


class OutcomeUnknown(RsmError):
    """No answer came, and none will. Whether it was executed can only be found in the state itself."""


class Halted(RsmError):
    """To go on would make this replica differ from the others."""


class MismatchedMachine(Halted, ListenerHalts):
    """Run the machine the group runs, in a version it has; the message says which."""


class Diverged(Halted, ListenerHalts):
    """Commands gave different results at different replicas (R17), before slot ``checkpoint``. ``alone``: a
    majority agrees, and this replica must begin anew."""

    def __init__(self, message: str, checkpoint: int, *, alone: bool) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint
        self.alone = alone


class StateLost(Halted):
    """The state has to come from another replica."""
