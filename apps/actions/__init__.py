"""Dynamic actions: change the databases of several sites, all or none (``docs/actions.md``)."""

from apps.actions.errors import (
    ActionAborted,
    ActionError,
    ActionMisused,
    ActionUnknown,
    NotPrepared,
    OperationDefect,
    OperationFailed,
    ParticipantError,
    RequestRefused,
    ResultChanged,
    SiteUnavailable,
    Superseded,
)
from apps.actions.handles import ActionHandle, NestedAction
from apps.actions.initiator import Initiator
from apps.actions.ledger import ActionLedger
from apps.actions.manager import ActionManager
from apps.actions.operations import BoundOperation, Operations
from apps.actions.participant import Participant, Prepared, Recovered, Unit
from apps.actions.sql import SqlParticipant
from apps.actions.types import Action, NewAction, Operation, SiteState, State, Vote

__all__ = [
    "Action",
    "ActionAborted",
    "ActionError",
    "ActionHandle",
    "ActionLedger",
    "ActionManager",
    "ActionMisused",
    "ActionUnknown",
    "BoundOperation",
    "Initiator",
    "NestedAction",
    "NewAction",
    "NotPrepared",
    "Operation",
    "OperationDefect",
    "OperationFailed",
    "Operations",
    "Participant",
    "ParticipantError",
    "Prepared",
    "Recovered",
    "RequestRefused",
    "ResultChanged",
    "SiteState",
    "SiteUnavailable",
    "SqlParticipant",
    "State",
    "Superseded",
    "Unit",
    "Vote",
]
