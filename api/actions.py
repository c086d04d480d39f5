"""A group that runs actions, for who asks over HTTP.

The gateway has none of the operations: a site that has them binds what comes as JSON
(``apps.actions.binding``).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from api import action_schemas as shapes
from api.action_schemas import ActionBody, OperationBody
from api.problems import Problem, problem_of, where
from api.store import Access, App
from api.watches import Page, Source, Told
from apps.actions.binding import BindAnswer, Bound, Described, JsonCall, bind_question, describe_question
from apps.actions.errors import RequestRefused, SiteUnavailable, SiteUnknown
from apps.actions.initiator import Initiator
from apps.actions.ledger import ActionLedger
from apps.actions.outcomes import Through
from apps.actions.records import size_of
from apps.actions.types import Action, NewAction, Operation, SiteState
from rsm.errors import Rejected
from rsm.feeds import Feed
from rsm.proxy import Consistency, Fresh

INITIATOR: Final = "http"
DESCRIBE_SECONDS: Final = 2.0
DIGEST_BYTES: Final = 16
_CODES: Final = {
    "exists": "action_exists",
    "unknown": "action_not_found",
    "decided": "action_decided",
    "changed": "action_changed",
    "away": "site_away",
    "behind": "site_behind",
}


class Ledger(Access[ActionLedger]):
    """A group that runs actions."""

    app = App.ACTIONS

    def __init__(self, group: Through, timeout: float) -> None:
        super().__init__(group, timeout)
        self.initiator = Initiator(group, name=INITIATOR)

    async def probe(self) -> Fresh[list[SiteState]]:
        return await self._probing.sites()

    async def stop(self) -> None:
        await super().stop()
        await self.initiator.__aexit__()

    # -- sites -----------------------------------------------------------------------------------

    async def bind(self, wanted: Sequence[OperationBody]) -> tuple[Operation, ...]:
        """As the sites know them; each is asked for all of its own at once."""
        self.check_primary()
        by_site: dict[str, list[int]] = {}
        for place, each in enumerate(wanted):
            by_site.setdefault(each.site, []).append(place)
        found: dict[int, Operation] = {}
        for bound in await asyncio.gather(
            *(self._bind(site, wanted, places) for site, places in by_site.items()), return_exceptions=True
        ):
            if isinstance(bound, BaseException):
                raise bound
            found |= bound
        return tuple(found[place] for place in range(len(wanted)))

    async def _bind(
        self, site: str, wanted: Sequence[OperationBody], places: list[int]
    ) -> dict[int, Operation]:
        calls = [JsonCall(wanted[place].operation, _json(wanted[place].arguments, place)) for place in places]
        question = msgspec.msgpack.encode(calls)
        try:
            async with asyncio.timeout(self.timeout):
                said = await self.initiator.ask(site, bind_question(site), question, self.timeout)
        except SiteUnknown as error:
            raise _invalid(f"operations.{places[0]}.site", str(error)) from None
        except SiteUnavailable as error:
            raise Problem("site_away", f"{error}; nothing was requested", site=site) from None
        answer: BindAnswer = msgspec.msgpack.decode(said, type=BindAnswer)
        if isinstance(answer, Bound):
            return {
                place: Operation(site, wanted[place].operation, call.arguments, call.keys)
                for place, call in zip(places, answer.calls, strict=True)
            }
        field = "arguments" if answer.is_known else "operation"
        raise _invalid(f"operations.{places[answer.place]}.{field}", answer.words)

    async def operations_at(self, site: SiteState) -> list[Described] | None:
        """None if it does not tell."""
        if not site.is_here:
            return None
        try:
            async with asyncio.timeout(DESCRIBE_SECONDS):
                said = await self.initiator.ask(
                    site.name, describe_question(site.name), b"", DESCRIBE_SECONDS
                )
        except (SiteUnavailable, TimeoutError):
            return None
        return msgspec.msgpack.decode(said, type=list[Described])

    async def look(self) -> tuple[str, Any]:
        """For the board."""
        found = await self.reading(Consistency.STALE).sites()
        return "sites", {"items": [shapes.site(each) for each in found.value]}


def is_same(there: Action, wanted: NewAction) -> bool:
    """Whether an action is the one that is asked for, in the same words, or as far as it does anything."""
    if wanted.asked and there.asked == wanted.asked:
        return True
    return there.operations == wanted.operations and there.depends == tuple(dict.fromkeys(wanted.depends))


def asked_for(wanted: ActionBody) -> bytes:
    """The same for the same JSON, in whichever order its members come; it needs no site to tell."""
    said = wanted.model_dump(include={"operations", "depends"})
    try:
        words = msgspec.json.encode(said, order="deterministic")
    except (ValueError, OverflowError, RecursionError):  # to bind it fails too, and says where
        return b""
    return blake2b(words, digest_size=DIGEST_BYTES).digest()


def refusal_of(refusal: Rejected, action: str) -> Problem:
    """The ledger's word."""
    code = _CODES.get(refusal.message)
    if code is None:
        return problem_of(refusal)
    detail = refusal.detail if isinstance(refusal.detail, dict) else {}
    words = {
        "unknown": f"there is no action {action!r}, or it is long over",
        "decided": f"action {action!r} is {detail.get('state')}",
        "changed": f"action {action!r} has other operations behind the first {detail.get('behind')}",
    }.get(refusal.message) or str(RequestRefused(action, refusal.message, detail))
    headers = where(refusal.timestamp, refusal.replica, refusal.view) if refusal.timestamp else None
    return Problem(code, words, headers=headers, **detail)


def _invalid(place: str, words: str) -> Problem:
    return Problem("invalid", f"{place}: {words}", errors=[{"place": place, "words": words}])


def _json(arguments: dict[str, Any] | list[Any], place: int) -> bytes:
    try:
        return msgspec.json.encode(arguments)
    except (ValueError, OverflowError, RecursionError) as error:
        raise _invalid(f"operations.{place}.arguments", f"cannot be sent: {error}") from None


# -- watching ------------------------------------------------------------------------------------


class Ids:
    """One action, or all."""

    def __init__(self, only: str = "") -> None:
        self.only = only

    def has(self, key: Any) -> bool:
        return not self.only or key == self.only


class ToldAction(Told):
    __slots__ = ("_action",)

    def __init__(self, action: Action, position: int) -> None:
        super().__init__(action.id, position, sum(map(size_of, action.operations)))
        self._action = action

    def encode(self) -> tuple[bytes, bytes]:
        return b"action", msgspec.json.encode(shapes.action(self._action))


class ActionEvents(Source[Ids]):
    """Each action that has changed, as it is then: who was away for long is told the last of many changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def now(self) -> int:
        return (await self._ledger.reading().action("")).timestamp

    async def page(self, since: int, wanted: Ids) -> Page:
        try:
            fresh = await self._ledger.reading().changes(since, wanted.only)
        except Rejected as refusal:
            raise refusal_of(refusal, wanted.only) from None
        return _page(fresh.value, fresh.timestamp)

    async def follow(self, since: int) -> AsyncGenerator[Page, None]:
        async for feed in self._ledger.group.follow(ActionLedger.changes, since):
            yield _page(feed, feed.position)


def _page(feed: Feed[Action], now: int) -> Page:
    told: list[Told] = [ToldAction(action, feed.position) for action in feed.events]
    return Page([(feed.position, told)] if told else [], feed.position, now)
