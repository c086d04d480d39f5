"""What do actions look like in JSON?"""

from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias

import msgspec
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from api.schemas import Model, Text
from apps.actions.binding import Described
from apps.actions.records import Limits
from apps.actions.types import TIMEOUT_MS, Action, Operation, SiteState
from rsm.logbook import plain

LIMITS: Final = Limits()
MS: Final = 1_000_000

# -- answers -------------------------------------------------------------------------------------

StateWord: TypeAlias = Literal["open", "waiting", "voting", "committed", "aborted"]


class OperationShape(TypedDict):
    """``arguments`` as the site has bound them: a list, or base64 of what a site's own encoding has made of
    them. ``keys``: what it touches there, null for everything."""

    site: str
    operation: str
    arguments: Any
    keys: list[str] | None


class VoteShape(TypedDict):
    site: str
    yes: bool
    reason: str
    slot: int


class FinishShape(TypedDict):
    """``error``: why it could not be applied so far; empty: it is applied."""

    site: str
    error: str
    slot: int


class ActionShape(TypedDict):
    """``opened``, ``requested`` and ``decided`` are slots, null for what has not happened; ``deadline_ms`` is
    in the group's time, since 1970. Votes are in their order."""

    id: str
    state: StateWord
    reason: str
    operations: list[OperationShape]
    sites: list[str]
    depends: list[str]
    waits_for: list[str]
    initiator: str
    opened: int | None
    requested: int | None
    decided: int | None
    deadline_ms: int
    votes: list[VoteShape]
    finished: list[FinishShape]


class ActionsShape(TypedDict):
    """Ask for what is behind ``next`` until it is null."""

    items: list[ActionShape]
    next: str | None


class DescribedShape(TypedDict):
    """``arguments`` and ``result`` are JSON Schema; ``keys`` are the arguments that say what it touches."""

    operation: str
    words: str
    keys: list[str] | None
    arguments: dict[str, Any]
    result: dict[str, Any]


class SiteShape(TypedDict):
    """``unfinished``: committed actions that it has to apply. ``operations``: null if it did not tell."""

    name: str
    site: str
    address: str
    here: bool
    incarnation: int
    unfinished: int
    operations: NotRequired[list[DescribedShape] | None]


class SitesShape(TypedDict):
    items: list[SiteShape]


def _arguments(encoded: bytes) -> Any:
    """A participant may have an encoding of its own."""
    try:
        _, *arguments = msgspec.msgpack.decode(encoded, type=list[Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return plain(encoded)
    return plain(arguments)


def _operation(found: Operation) -> OperationShape:
    return {
        "site": found.site,
        "operation": found.name,
        "arguments": _arguments(found.arguments),
        "keys": None if found.keys is None else list(found.keys),
    }


def action(found: Action) -> ActionShape:
    return {
        "id": found.id,
        "state": found.state.value,
        "reason": found.reason,
        "operations": [_operation(each) for each in found.operations],
        "sites": list(found.sites),
        "depends": list(found.depends),
        "waits_for": list(found.waits_for),
        "initiator": found.initiator,
        "opened": found.opened or None,
        "requested": found.requested or None,
        "decided": found.decided or None,
        "deadline_ms": found.deadline_ns // MS,
        "votes": [
            {"site": each.site, "yes": each.yes, "reason": each.reason, "slot": each.timestamp}
            for each in sorted(found.votes, key=lambda vote: vote.timestamp)
        ],
        "finished": [
            {"site": each.site, "error": each.error, "slot": each.timestamp}
            for each in sorted(found.finished, key=lambda finish: finish.timestamp)
        ],
    }


def site(found: SiteState) -> SiteShape:
    return {
        "name": found.name,
        "site": f"{found.site:x}",
        "address": found.address,
        "here": found.is_here,
        "incarnation": found.incarnation,
        "unfinished": found.unfinished,
    }


def described(found: Described) -> DescribedShape:
    return {
        "operation": found.name,
        "words": found.words,
        "keys": None if found.keys is None else list(found.keys),
        "arguments": found.arguments,
        "result": found.result,
    }


# -- requests ------------------------------------------------------------------------------------

Name: TypeAlias = Annotated[Text, Field(min_length=1, max_length=LIMITS.text_max)]


class OperationBody(Model):
    """``arguments`` by name, or in their order."""

    site: Name
    operation: Name
    arguments: dict[str, Any] | list[Any] = Field(default_factory=dict)


class ActionBody(Model):
    """``id``: nobody else's; who sends the same again is told how it stands. ``commit``: request it, and
    answer when it is decided; else it is only opened. ``timeout_ms``: of the group's time, until it is
    aborted."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "transfer-42",
                    "operations": [
                        {"site": "a", "operation": "debit", "arguments": {"account": "alice", "amount": 10}},
                        {"site": "b", "operation": "credit", "arguments": ["bob", 10]},
                    ],
                }
            ]
        }
    )

    id: Name | None = None
    operations: list[OperationBody] = Field(default_factory=list, max_length=LIMITS.operations_max)
    depends: list[Name] = Field(default_factory=list, max_length=LIMITS.depends_max)
    timeout_ms: Annotated[int, Field(ge=1, le=LIMITS.timeout_ms_max, strict=True)] = TIMEOUT_MS
    commit: bool = True


class AddBody(Model):
    """``behind``: how many operations the action has, as far as the caller knows. With it the request may be
    repeated, and is carried out once."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"operations": [{"site": "b", "operation": "credit", "arguments": ["bob", 10]}]}]
        }
    )

    operations: Annotated[list[OperationBody], Field(min_length=1, max_length=LIMITS.operations_max)]
    behind: Annotated[int, Field(ge=0, le=LIMITS.operations_max, strict=True)] | None = None
