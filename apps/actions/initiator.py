"""Who has actions carried out: a process in the group or outside of it.

::

    async with Client(ActionLedger, config) as _, Initiator(client) as initiator:
        async with initiator.action("transfer-42") as action:
            await action.at("site-a", debit("alice", 10))
            await action.at("site-b", credit("bob", 10))

``ActionManager`` is one too.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Self, TypeAlias

import msgspec

from apps.actions.errors import (
    ActionError,
    ActionUnknown,
    OperationFailed,
    RequestRefused,
    ResultChanged,
    SiteUnavailable,
    SiteUnknown,
)
from apps.actions.handles import ActionHandle, Early
from apps.actions.outcomes import Outcomes, Through, is_decided, is_finished
from apps.actions.records import EARLY
from apps.actions.types import TIMEOUT_MS, Action, EarlyVote, NewAction, Offer, Operation
from ordering.errors import OrderingError
from rsm.errors import AskError, AskRefused, Rejected, RsmError, Unreachable
from rsm.logs import logger
from rsm.proxy import Consistency

log = logger(__name__)

OFFER_SECONDS: Final = 0.25  # until a request does without early votes
_TIMEOUT: Final = TIMEOUT_MS / 1000


# -- what an attempt is answered -----------------------------------------------------------------


class Attempted(msgspec.Struct, frozen=True, array_like=True, tag=0):
    result: bytes  # of the last operation


class AttemptRejected(msgspec.Struct, frozen=True, array_like=True, tag=1):
    message: str
    detail: Any


class AttemptFailed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    operation: str
    kind: str
    message: str


class AttemptChanged(msgspec.Struct, frozen=True, array_like=True, tag=3):
    message: str


AttemptAnswer: TypeAlias = Attempted | AttemptRejected | AttemptFailed | AttemptChanged


def question_name(site: str) -> str:
    """Under which a site answers attempts. Its name is in it: a replica may have another one meanwhile."""
    return f"actions/{site}"


def offer_question(site: str) -> str:
    """Under which a site prepares what will be requested, and votes."""
    return f"actions.offer/{site}"


class Initiator:
    """Has actions carried out by way of a replica or a client of the ledger's group."""

    def __init__(self, through: Through, *, name: str = "", offers: bool = True) -> None:
        """``name``: a word for people, in the ledger and in the ids that are made up. ``offers``: sites are
        asked for their votes before a request is ordered, and it is ordered with them."""
        self.name = name or f"client-{secrets.token_hex(4)}"
        self.through = through
        self.ledger = through.proxy
        self.outcomes = Outcomes(through)
        self._offers = offers
        self._addresses: dict[str, str] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.outcomes.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def action(self, id: str | None = None, *, timeout: float = _TIMEOUT) -> ActionHandle:  # noqa: A002
        """A new action. ``id``: nobody else's; without one it is made up. ``timeout``: seconds, of the
        group's time, from its commit to the decision."""
        return ActionHandle(self, id or f"{self.name}-{secrets.token_hex(8)}", timeout)

    async def outcome(self, id: str) -> Action:  # noqa: A002
        """An action as it is decided, once it is, whoever has begun it; ``ActionUnknown`` if nobody has, or
        if that is long over."""
        return await self._until(id, is_decided)

    async def finished(self, id: str) -> Action:  # noqa: A002
        """The same, once all its sites have applied it, or it is aborted."""
        return await self._until(id, is_finished)

    async def _until(self, id: str, holds: Any) -> Action:  # noqa: A002
        with self.outcomes.watch(id) as watch:
            if await self.outcomes.look(id) is None:
                raise ActionUnknown(f"action {id!r}: nobody has requested it, or it is long over")
            return await watch.until(holds)

    # -- for handles -----------------------------------------------------------------------------

    async def request(self, action: NewAction, early: Early | None = None) -> Action:
        try:
            if early is None:
                return await self.ledger.request(action)
            return await self.ledger.request_voted(action, early.unit, early.votes)
        except Rejected as refusal:
            raise RequestRefused(action.id, refusal.message, refusal.detail) from None

    async def offer(self, action: NewAction) -> Early | None:
        """Have all sites of an action prepare it and vote before it is requested. None: not all of them have,
        and none has refused; they are asked again in their turn, when the request is ordered."""
        if not self._offers:
            return None
        parts: dict[str, list[Operation]] = {}
        for each in action.operations:
            parts.setdefault(each.site, []).append(each)
        unit = f"{action.id}@{EARLY}{secrets.token_hex(8)}"
        offers = (self._offer(site, Offer(unit, tuple(own))) for site, own in parts.items())
        votes = tuple(vote for vote in await asyncio.gather(*offers) if vote is not None)
        if len(votes) == len(parts) or not all(vote.yes for vote in votes):
            return Early(unit, votes)
        return None

    async def _offer(self, site: str, offer: Offer) -> EarlyVote | None:
        question = msgspec.msgpack.encode(offer)
        try:
            async with asyncio.timeout(OFFER_SECONDS):  # to find out where it is takes time as well
                # Two processes of one name, which have one database, must not have the same offer.
                answer = await self.ask(site, offer_question(site), question, OFFER_SECONDS, once=True)
        except (ActionError, RsmError, OrderingError, OSError) as error:  # TimeoutError is one of the last
            log.debug("a site does not vote early", site=site, unit=offer.unit, why=str(error))
            return None
        return msgspec.msgpack.decode(answer, type=EarlyVote | None)

    def give_up(self, requesting: "asyncio.Future[Action]", reason: str) -> None:
        """Ask for an abort of what is requested; nobody waits for the answer. An action of the same id that
        somebody else has requested is left alone."""
        self._spawn(self._abort(requesting, reason))

    async def _abort(self, requesting: "asyncio.Future[Action]", reason: str) -> None:
        try:
            requested = await requesting
        except RequestRefused as refusal:
            log.debug("there is nothing to abort", action=refusal.id, why=refusal.code)
            return
        except (RsmError, OrderingError, OSError) as error:  # its deadline ends it, if it was ordered
            log.warning("whether an action was requested is not known", error=str(error))
            return
        try:
            await self.ledger.abort(requested.id, reason)
        except Rejected as refusal:  # it is committed, or long over
            log.debug("an action was not aborted", action=requested.id, why=refusal.message)
        except (RsmError, OrderingError, OSError) as error:
            log.warning("whether an action was aborted is not known", action=requested.id, error=str(error))

    async def applied_here(self, action: Action) -> None:
        """Returns when this process' own site has applied it, if that took part."""

    async def attempt(self, site: str, operations: Sequence[Operation], timeout: float) -> bytes:
        """The encoded result of the last one, carried out behind the others at a site, and undone."""
        answer: AttemptAnswer = msgspec.msgpack.decode(
            await self.ask(site, question_name(site), msgspec.msgpack.encode(operations), timeout),
            type=AttemptAnswer,
        )
        match answer:
            case Attempted(result):
                return result
            case AttemptRejected(message, detail):
                raise Rejected(message, detail)
            case AttemptFailed(operation, kind, message):
                raise OperationFailed(operation, kind, message)
            case AttemptChanged(message):
                raise ResultChanged(message)

    async def ask(
        self, site: str, name: str, question: bytes, timeout: float, *, once: bool = False
    ) -> bytes:
        """What a site answers, where it was last; if it is not there, where it is now, unless it is to be
        asked ``once``: it may have got the question. ``SiteUnavailable``: it is not there, or has no
        answer."""
        for address in (self._addresses.get(site), None):
            asked = address or await self._address(site)
            try:
                answer = await self.through.ask(asked, name, question, timeout, once=once)
            except AskError as error:
                if self._addresses.get(site) == asked:
                    del self._addresses[site]
                if address is None or once or not isinstance(error, Unreachable | AskRefused):
                    raise SiteUnavailable(f"{site}: {error}") from None
            else:
                self._addresses[site] = asked
                return answer
        raise AssertionError

    async def _address(self, site: str) -> str:
        """Where a site is, as the ledger knows it now."""
        sites = await self.ledger.with_options(consistency=Consistency.SEQUENTIAL).sites()
        found = next((each for each in sites if each.name == site), None)
        if found is None:
            known = ", ".join(each.name for each in sites) or "none"
            raise SiteUnknown(f"{site}: there is no such site; there are: {known}")
        if not found.is_here or not found.address:
            raise SiteUnavailable(f"{site}: is not there at present")
        return found.address

    async def operations_of(self, id: str) -> tuple[Operation, ...]:  # noqa: A002
        """What an action has so far that others have recorded, if it is not decided."""
        found = await self.ledger.with_options(consistency=Consistency.SEQUENTIAL).action(id)
        return () if found is None or found.state.is_decided else found.operations

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task
