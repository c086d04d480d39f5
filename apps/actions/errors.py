"""What can go wrong with actions.

::

    RsmError
    ├── Rejected               an operation refuses; operations raise it themselves
    └── ActionError
        ├── OperationDefect    a function cannot be an operation as it is written
        ├── OperationFailed    an operation raised something else than Rejected, or is not known at its site
        ├── ResultChanged      an operation gives another result than the initiator was told
        ├── ParticipantError   a site's database cannot do what it is asked for
        │   └── NotPrepared    it is to commit what it has neither prepared nor applied
        ├── SiteUnavailable    a site that is asked is not there, or does not answer
        │   └── SiteUnknown    nobody has ever registered it
        ├── RequestRefused     the ledger does not take the action: nothing of it happened, or will
        ├── ActionUnknown      the ledger knows no such action, or not any more
        ├── ActionAborted      decided: nothing of the action happened, or will
        ├── ActionMisused      a call that an action or a manager does not allow, or not any more
        └── Superseded         another process has the site's name now
"""

from collections.abc import Sequence

from apps.actions.types import Vote
from rsm.errors import RsmError


class ActionError(RsmError):
    """All of these."""


class OperationDefect(ActionError):
    """The message names the function, and says what is missing."""


class OperationFailed(ActionError):
    """A defect of the operation, or of the database it ran on: it raised ``kind``."""

    def __init__(self, operation: str, kind: str, message: str) -> None:
        super().__init__(f"{operation}: {kind}: {message}" if message else f"{operation}: {kind}")
        self.operation = operation
        self.kind = kind
        self.message = message


class ResultChanged(ActionError):
    """Somebody was faster."""


class ParticipantError(ActionError):
    """The message says what to do about it."""


class NotPrepared(ParticipantError):
    """The intent is lost, with the disk perhaps: it cannot be committed here."""


class SiteUnavailable(ActionError):
    """Nothing was changed anywhere; try again, or later."""


class SiteUnknown(SiteUnavailable):
    """The message says which there are."""


class RequestRefused(ActionError):
    """``code``: exists, away (a site is), behind (a site has too much to finish), full, or bad_request."""

    def __init__(self, id: str, code: str, detail: object) -> None:  # noqa: A002
        told = detail if isinstance(detail, dict) else {}
        words = {
            "exists": "there is one of this id, and it is {state}; choose another id",
            "away": "{site} is not there at present",
            "behind": "{site} has {unfinished} committed actions to finish first",
            "full": "the ledger is full: {told}",
            "bad_request": "{told}",
        }.get(code, f"{code}: {{told}}")
        super().__init__(f"action {id!r} was refused: {words.format_map({**told, 'told': told})}")
        self.id = id
        self.code = code
        self.detail = detail


class ActionUnknown(ActionError):
    pass


class ActionAborted(ActionError):
    """``votes`` as far as they were ordered before the decision."""

    def __init__(self, id: str, reason: str, votes: Sequence[Vote] = ()) -> None:  # noqa: A002 - as actions call it
        super().__init__(f"action {id!r} was aborted: {reason}")
        self.id = id
        self.reason = reason
        self.votes = tuple(votes)


class ActionMisused(ActionError):
    """The message says what is wrong with it."""


class Superseded(ActionError):
    """A site has one process at a time; the later one counts."""
