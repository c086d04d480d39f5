"""Actions in words: for people, and as JSON for programs."""

from typing import Any, Final

from rich.markup import escape

from apps.actions import Action, SiteState, State, Vote
from apps.actions.doubts import Doubt
from apps.actions.operations import shown, values_of
from apps.actions.outcomes import unfinished_at
from apps.actions.types import Operation
from rsm.logbook import plain

MS: Final = 1_000_000


def said_of(action: Action) -> dict[str, Any]:
    """For a program: slots are null for what has not happened."""
    return {
        "id": action.id,
        "state": action.state.value,
        "reason": action.reason,
        "operations": [_said_of_operation(each) for each in action.operations],
        "sites": action.sites,
        "depends": action.depends,
        "waits_for": action.waits_for,
        "initiator": action.initiator,
        "unit": action.unit,
        "opened": action.opened or None,
        "requested": action.requested or None,
        "decided": action.decided or None,
        "deadline_ms": action.deadline_ns // MS,
        "votes": [
            {"site": each.site, "yes": each.yes, "reason": each.reason, "slot": each.timestamp}
            for each in _in_order(action)
        ],
        "finished": [
            {"site": each.site, "error": each.error, "slot": each.timestamp} for each in action.finished
        ],
        "unfinished": unfinished_at(action),
    }


def _said_of_operation(operation: Operation) -> dict[str, Any]:
    return {
        "site": operation.site,
        "operation": operation.name,
        "arguments": plain(values_of(operation.arguments)),
        "keys": operation.keys,
    }


def said_of_site(site: SiteState, doubts: list[Doubt] | None) -> dict[str, Any]:
    said = None
    if doubts is not None:
        said = [
            {
                "unit": each.unit,
                "chain": f"{each.chain:x}",
                "operations": [_said_of_operation(operation) for operation in each.operations],
            }
            for each in doubts
        ]
    return {
        "name": site.name,
        "here": site.is_here,
        "address": site.address,
        "unfinished": site.unfinished,
        "in_doubt": said,
        "incarnation": site.incarnation,
        "site": f"{site.site:x}",
        "boot": site.boot,
    }


def _in_order(action: Action) -> list[Vote]:
    return sorted(action.votes, key=lambda vote: vote.timestamp)


def votes_of(action: Action) -> str:
    """In one line: who has voted how, in which slot; and who has not."""
    cast = [f"{each.site} {'yes' if each.yes else 'no'}@{each.timestamp}" for each in _in_order(action)]
    voted = {each.site for each in action.votes}
    missing = [f"{each} …" for each in action.sites if each not in voted]
    return ", ".join([*cast, *(missing if action.requested else [])])


def row_of(action: Action) -> list[str]:
    return [
        escape(action.id),
        action.state.value,
        escape(" ".join(action.sites)),
        escape(votes_of(action)),
        str(action.requested or ""),
        str(action.decided or ""),
        escape(" ".join(unfinished_at(action))),
        escape(action.reason),
    ]


def line_of(action: Action) -> str:
    more = [votes_of(action)]
    if left := unfinished_at(action):
        more.append(f"to be applied at {', '.join(left)}")
    elif action.state is State.COMMITTED:
        more.append("applied everywhere")
    if action.waits_for:
        more.append(f"waits for {', '.join(action.waits_for)}")
    more.append(action.reason)
    return f"{action.id}  {action.state.value}  " + "; ".join(each for each in more if each)


def told(action: Action) -> list[str]:
    """For a person."""
    when = f" at slot {action.decided}" if action.decided else ""
    why = f": {action.reason}" if action.reason else ""
    lines = [f"{action.id}: {action.state.value}{when}{why}"]
    if action.opened:
        lines.append(f"  opened at slot {action.opened}")
    if action.requested:
        by = f" by {action.initiator}" if action.initiator else ""
        lines.append(f"  requested at slot {action.requested}{by}")
    if action.unit:
        lines.append(f"  voted on as {action.unit}")
    if action.depends:
        lines.append(f"  depends on {', '.join(action.depends)}")
    if action.waits_for:
        lines.append(f"  waits for {', '.join(action.waits_for)}")
    lines.append("  operations:")
    for each in action.operations:
        keys = "everything" if each.keys is None else ", ".join(each.keys) or "nothing"
        lines.append(f"    {each.site}  {shown(each.name, each.arguments)}  touches {keys}")
    if action.requested:
        lines += ["  votes, as they were ordered:", *_votes_told(action)]
    if action.state is State.COMMITTED:
        lines += ["  applied:", *_finishes_told(action)]
    return lines


def _votes_told(action: Action) -> list[str]:
    lines = [
        f"    slot {each.timestamp}  {each.site}  {'yes' if each.yes else 'no'}"
        f"{f': {each.reason}' if each.reason else ''}"
        for each in _in_order(action)
    ]
    voted = {each.site for each in action.votes}
    return [*lines, *(f"    {each} has not voted" for each in action.sites if each not in voted)]


def _finishes_told(action: Action) -> list[str]:
    found = {each.site: each for each in action.finished}
    lines = []
    for site in action.sites:
        finish = found.get(site)
        if finish is None:
            lines.append(f"    {site}: not yet")
        else:
            lines.append(f"    slot {finish.timestamp}  {site}  {finish.error or 'yes'}")
    return lines


def doubt_line(doubt: Doubt) -> str:
    operations = ", ".join(shown(each.name, each.arguments) for each in doubt.operations)
    return f"{doubt.unit}  chain {doubt.chain:x}  {operations}"
