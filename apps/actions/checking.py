"""What of a request is wrong, whatever the state?"""

from collections.abc import Iterable
from typing import NoReturn

from apps.actions.records import EARLY, OPERATION_BYTES, Limits, size_of
from apps.actions.types import EarlyVote, NewAction, Operation
from rsm.errors import Rejected


def refuse(what: str, **detail: object) -> NoReturn:
    raise Rejected("bad_request", {"what": what, **detail})


def check_text(what: str, text: str, limits: Limits) -> None:
    if not 1 <= len(text) <= limits.text_max:
        refuse(what, characters=len(text), least=1, most=limits.text_max)


def check_action(action: NewAction, limits: Limits) -> None:
    check_text("id", action.id, limits)
    if len(action.initiator) > limits.text_max:
        refuse("initiator", characters=len(action.initiator), most=limits.text_max)
    if len(action.asked) > limits.asked_max:
        refuse("asked", bytes=len(action.asked), most=limits.asked_max)
    if not 1 <= action.timeout_ms <= limits.timeout_ms_max:
        refuse("timeout_ms", value=action.timeout_ms, least=1, most=limits.timeout_ms_max)
    if len(action.depends) > limits.depends_max:
        refuse("depends", count=len(action.depends), most=limits.depends_max)
    for each in action.depends:
        check_text("depends", each, limits)
        if each == action.id:
            refuse("depends", id=each, why="an action does not depend on itself")


def check_early(action: NewAction, unit: str, votes: tuple[EarlyVote, ...], limits: Limits) -> None:
    """``unit``: a name that no slot gives, whatever the action's id is."""
    if not unit.startswith(f"{action.id}@{EARLY}") or len(unit) > len(action.id) + limits.text_max:
        refuse("unit", name=unit[: limits.text_max], begins=f"{action.id}@{EARLY}")
    sites = dict.fromkeys(operation.site for operation in action.operations)
    if len({vote.site for vote in votes}) < len(votes) or any(vote.site not in sites for vote in votes):
        refuse("votes", sites=[vote.site for vote in votes][: len(sites)], of=list(sites))


def check_operations(operations: Iterable[Operation], limits: Limits) -> int:
    """All of an action's; gives their bytes, and those of the action."""
    size, count = OPERATION_BYTES, 0
    for operation in operations:
        count += 1
        check_text("site", operation.site, limits)
        check_text("operation", operation.name, limits)
        if operation.keys is not None and len(operation.keys) > limits.keys_max:
            refuse("keys", count=len(operation.keys), most=limits.keys_max)
        for key in operation.keys or ():
            if len(key) > limits.text_max:
                refuse("key", characters=len(key), most=limits.text_max)
        size += size_of(operation)
    if count > limits.operations_max:
        refuse("operations", count=count, most=limits.operations_max)
    if size > limits.action_bytes_max:
        refuse("operations", bytes=size, most=limits.action_bytes_max)
    return size


def were_added(there: tuple[Operation, ...], added: tuple[Operation, ...], behind: int) -> bool:
    """Whether they stand behind the first ``behind`` already; refused if something else does."""
    if not 0 <= behind <= len(there):
        refuse("behind", value=behind, operations=len(there))
    if behind == len(there):
        return False
    if there[behind : behind + len(added)] != added:
        raise Rejected("changed", {"behind": behind, "operations": len(there)})
    return True
