"""Places in a replica where it can be made to die, or to stop, exactly there.

A site cannot know beforehand who will be the next token site, or the donor of a state. So a fault is armed
at several sites at once, with a *permit*: a file that only one process can create. Who comes to the place
first creates it, writes its number into it, and is gone; the others find it there and go on. Whoever creates
the permit instead has called the fault off.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar, cast

import msgspec

from ordering.driver import Driver, Notice
from ordering.effects import Accepted, Delivery, RequestState
from ordering.groups import Outcome
from ordering.packets import Ack, NewList, Packet, RecoveryNewList
from ordering.state import State
from ordering.transports.bulk_tcp import BulkStream
from rsm import transfer
from rsm.executor import Executor
from rsm.replica import Replica
from rsm.state_machine import StateMachine
from rsm.transfer import Offer, StateWanted

M = TypeVar("M", bound=StateMachine)
_ASKED_SECONDS: Final = 0.003  # into a state transfer
_SENDS: Final = 3  # of a donor: the offer, the executor's part, the machine's part


class Role(StrEnum):
    """Who is struck, and when."""

    TOKEN_SITE = "token-site"
    """It has just ordered something: nobody was told, some were, all were."""
    NEXT_TOKEN_SITE = "next-token-site"
    """The token has come to it: it has not looked yet; or it holds it, and has ordered nothing."""
    SENDER = "sender"
    """Its own commands were accepted: nothing was sent, or everything was."""
    INITIATOR = "initiator"
    """It proposes the next view, or says that one was decided: to nobody, some, all."""
    JOINER = "joiner"
    """It has no disk and takes over the state: under way, here but not taken, taken."""
    DONOR = "donor"
    """It gives the state: nothing, a part, everything was sent."""
    LOCK_HOLDER = "lock-holder"
    """It has executed clients' calls and owes the replies: none, half, all were sent."""


class Point(StrEnum):
    """Where a site of actions is struck; the last two of these are places of who has begun an action."""

    BEFORE_ATTEMPT = "before-attempt"
    AFTER_ATTEMPT = "after-attempt"
    """It was carried out and undone; nobody was told the result."""
    REQUEST_ORDERED = "request-ordered"
    """Its replica has executed the request, and the site hears that it is to prepare."""
    BEFORE_PREPARE = "before-prepare"
    AFTER_PREPARE = "after-prepare"
    """The intent is on its disk, and no vote was cast."""
    AFTER_VOTE = "after-vote"
    """The vote is ordered."""
    AFTER_EARLY_VOTE = "after-early-vote"
    """Who has begun the action has its vote, or is about to, and has requested nothing yet."""
    BEFORE_COMMIT = "before-commit"
    AFTER_COMMIT = "after-commit"
    """It is applied, and the ledger was not told."""
    BEFORE_REQUEST = "before-request"
    AFTER_REQUEST = "after-request"
    """The request is ordered, and nobody waits for the decision any more."""


Struck: TypeAlias = Role | Point


class Cut(StrEnum):
    """How far it gets."""

    BEFORE = "before"
    HALF = "half"
    AFTER = "after"


class Arm(msgspec.Struct, frozen=True):
    role: Struck
    cut: Cut
    permit: str
    stop: bool = False  # SIGSTOP instead of SIGKILL


class Failpoints:
    """Of one process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.submitting = False  # commands of this process are on their way to the ring
        self._armed: dict[Struck, Arm] = {}

    def arm(self, arm: Arm) -> None:
        self._armed[arm.role] = arm

    def cut(self, role: Struck) -> Cut | None:
        arm = self._armed.get(role)
        return None if arm is None else arm.cut

    def reach(self, role: Struck, *cuts: Cut) -> None:
        """This is the place, if it is one of ``cuts`` that was armed. Who was stopped goes on from here."""
        arm = self._armed.get(role)
        if arm is None or arm.cut not in cuts:
            return
        del self._armed[role]
        if take_permit(arm.permit, str(self.number)):
            os.kill(os.getpid(), signal.SIGSTOP if arm.stop else signal.SIGKILL)


def take_permit(path: str, words: str) -> bool:
    """Whether nobody had it before; for one process this is true, whoever else asks at the same time."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(file, words.encode())
    os.close(file)
    return True


def role_of(packet: Packet) -> Role | None:
    """Who sends such a packet to all."""
    match packet:
        case RecoveryNewList():
            return Role.INITIATOR
        case Ack(head, order) | NewList(head, order) if order.orderer == head.sender:
            if order.is_install:
                return Role.INITIATOR
            return None if order.is_null else Role.TOKEN_SITE
        case _:
            return None


class FailingDriver(Driver):
    """Looks at what comes and goes. One site to the process, hence a class attribute."""

    failpoints: Failpoints

    def _take_in(self, packets: list[Packet], began: int) -> None:
        role, points = Role.NEXT_TOKEN_SITE, self.failpoints
        if points.cut(role) is not None and any(self._passes_to_us(packet) for packet in packets):
            points.reach(role, Cut.BEFORE, Cut.HALF)
        super()._take_in(packets, began)
        if points.cut(role) is not None and self._holds_untouched():
            points.reach(role, Cut.AFTER)

    def _passes_to_us(self, packet: Packet) -> bool:
        if not isinstance(packet, Ack | NewList):
            return False
        order = packet.order
        return any(
            order.next_site == group.member.site
            and order.orderer != group.member.site
            and order.ts > group._engine.site.queue.frontier
            for group in self._open.values()
        )

    def _holds_untouched(self) -> bool:
        for group in self._open.values():
            engine = group._engine
            tail = engine.site.queue.tail
            if engine.state is State.TOKEN_SITE and tail is not None and tail.orderer != group.member.site:
                return True
        return False

    def _perform(self, outcomes: list[Outcome], now: int) -> None:
        if self.failpoints.submitting and any(
            isinstance(effect, Accepted) for outcome in outcomes for effect in outcome.effects
        ):
            self.failpoints.reach(Role.SENDER, Cut.BEFORE, Cut.HALF)
        super()._perform(outcomes, now)

    def _send(self, to: tuple[str, ...], packet: Packet) -> None:
        role = role_of(packet)
        if role is None or len(to) < 2 or self.failpoints.cut(role) is None:
            super()._send(to, packet)
            return
        self.failpoints.reach(role, Cut.BEFORE)
        half = len(to) // 2
        super()._send(to[:half], packet)
        self.failpoints.reach(role, Cut.HALF)
        super()._send(to[half:], packet)
        self.failpoints.reach(role, Cut.AFTER)


class _Giving:
    """A donor's stream: what is sent is counted, once there is an offer."""

    def __init__(self, stream: BulkStream, points: Failpoints) -> None:
        self.offering = False
        self._stream = stream
        self._points = points
        self._sends = 0

    def __aiter__(self) -> BulkStream:
        return self._stream

    async def send(self, data: bytes) -> None:
        if self.offering:
            if self._sends == 0:
                self._points.reach(Role.DONOR, Cut.BEFORE)
            elif self._sends == _SENDS - 1:
                self._points.reach(Role.DONOR, Cut.HALF)
            self._sends += 1
        await self._stream.send(data)


class _Source:
    """A replica that is asked over one stream."""

    def __init__(self, replica: "FailingReplica[M]", giving: _Giving) -> None:
        self._giving = giving
        self._replica = replica
        self.gifts = replica.gifts
        self.answers = replica.answers
        self.status = replica.status
        self.operate = replica.operate
        self.log = replica.log

    @property
    def executor(self) -> Executor:
        return self._replica.executor

    async def offer(self, wanted: StateWanted) -> Offer | None:
        offer = await self._replica.offer(wanted)
        self._giving.offering = offer is not None
        return offer


class FailingReplica(Replica[M]):
    """``failpoints`` are set before it is opened."""

    _driver_type = FailingDriver
    failpoints: Failpoints
    _taking = False

    def _submit(self, messages: Sequence[bytes]) -> int:
        points = self.failpoints
        if points.cut(Role.SENDER) is None or not any(map(self._is_command, messages)):
            return super()._submit(messages)
        points.submitting = True
        try:
            first = super()._submit(messages)
        finally:
            points.submitting = False
        points.reach(Role.SENDER, Cut.AFTER)
        return first

    def _is_command(self, message: bytes) -> bool:
        return type(self._language.decode(message)) is self._language.execute

    def _answer(self, delivery: Delivery, replies: list[bytes]) -> None:
        role, points = Role.LOCK_HOLDER, self.failpoints
        if points.cut(role) is None:
            super()._answer(delivery, replies)
            return
        points.reach(role, Cut.BEFORE)
        half = len(delivery.owed) // 2
        super()._answer(msgspec.structs.replace(delivery, owed=delivery.owed[:half]), replies)
        points.reach(role, Cut.HALF)
        super()._answer(msgspec.structs.replace(delivery, owed=delivery.owed[half:]), replies)
        points.reach(role, Cut.AFTER)

    # -- state transfer --------------------------------------------------------------------------

    async def _fetch(self, wanted: RequestState) -> Offer | None:
        role, points = Role.JOINER, self.failpoints
        if points.cut(role) is not None:
            asyncio.get_running_loop().call_later(_ASKED_SECONDS, points.reach, role, Cut.BEFORE)
        offer = await super()._fetch(wanted)
        if offer is not None:
            points.reach(role, Cut.BEFORE, Cut.HALF)
        return offer

    async def _take_over(self, wanted: RequestState, offer: Offer) -> None:
        self._taking = True
        try:
            await super()._take_over(wanted, offer)
        finally:
            self._taking = False

    def _listen(self, notices: list[Notice]) -> None:
        """Called at the end of a transfer as well: the state is synced, and the ring was told."""
        if self._taking and self._wanted is None:
            self.failpoints.reach(Role.JOINER, Cut.AFTER)
        super()._listen(notices)

    async def _serve(self, stream: BulkStream) -> None:
        giving = _Giving(stream, self.failpoints)
        await transfer.serve(cast(BulkStream, giving), _Source(self, giving), self._desk)
        if giving.offering:
            self.failpoints.reach(Role.DONOR, Cut.AFTER)
