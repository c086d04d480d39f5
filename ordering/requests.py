"""A member's own requests with a handler, from submission to the reply (RMP §3.2: handlers)."""

from ordering.config import MS
from ordering.effects import CallAnswered, CallFailed, CallFailure
from ordering.errors import Overloaded, SubmitError
from ordering.events import SubmitRequested
from ordering.packets import Answer, Call, CallFlag
from ordering.qos import Qos
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer
from ordering.views import HANDLERS, ViewId


class Request:
    """One request that waits for its reply."""

    __slots__ = ("asked_at", "call", "message", "qos", "since")

    def __init__(self, call: Call, message: bytes, qos: Qos, now: int) -> None:
        self.call = call
        self.message = message
        self.qos = qos
        self.since = self.asked_at = now


class Requests:
    """They have numbers of their own: levels that share no sequence of messages share these."""

    def __init__(self, site: Site, rtt: RoundTrip) -> None:
        self.site = site
        self.rtt = rtt
        self.next_number = 1
        self.waiting: dict[int, Request] = {}
        self.tries = 0

    def check(self, request: SubmitRequested) -> None:
        if not 0 <= request.handler <= HANDLERS[-1]:
            raise SubmitError(
                f"handler: {request.handler} is no handler lock; use 1 to {HANDLERS[-1]}, or 0 for none"
            )
        if request.reply_to_group and not request.handler:
            raise SubmitError(
                f"reply_to_group: handler 0 makes no reply; name a handler from 1 to {HANDLERS[-1]}"
            )
        most = self.site.config.call_messages
        if request.handler and len(self.waiting) + len(request.messages) > most:
            raise Overloaded(
                f"{len(self.waiting)} requests wait for a reply, at most {most} may; retry after the next"
                " CallAnswered, or raise call_messages"
            )

    def name(self, request: SubmitRequested) -> tuple[Call, ...]:
        """Number the messages of a submission, if they are requests."""
        if not request.handler:
            return ()
        site = self.site
        me = site.member
        flags = CallFlag.TO_GROUP.value if request.reply_to_group else 0
        calls = []
        for message in request.messages:
            call = Call(me.site, me.boot, self.next_number, me.address, request.handler, flags)
            self.waiting[call.number] = Request(call, message, request.qos, site.now)
            self.next_number += 1
            calls.append(call)
        site.arm_if_idle(Timer.CALL, 2 * self.rtt.rto)
        return tuple(calls)

    @property
    def floor(self) -> int:
        return next(iter(self.waiting), self.next_number)

    def answered(self, answer: Answer, view: ViewId) -> None:
        if self.waiting.pop(answer.number, None) is not None:
            self.tries = 0
            self.site.out.append(CallAnswered(answer.number, answer.ts, answer.payload, view))

    def answered_to_group(self, number: int) -> None:
        self.waiting.pop(number, None)

    def overdue(self) -> list[Request]:
        """Those to be repeated now, oldest first; what was waited for too long is given up."""
        site = self.site
        limit = site.config.call_ms * MS
        for number in [n for n, request in self.waiting.items() if site.now - request.since >= limit]:
            self._fail(number, CallFailure.UNANSWERED)
        due = [r for r in self.waiting.values() if site.now - r.asked_at >= self.rtt.rto]
        self.tries += 1
        if self.waiting:
            site.arm(Timer.CALL, min(2 * self.rtt.rto << min(self.tries, 6), site.config.rto_max_ms * MS))
        for request in due[: site.config.retransmit_burst]:
            request.asked_at = site.now
        return due[: site.config.retransmit_burst]

    def abandon(self) -> None:
        for number in list(self.waiting):
            self._fail(number, CallFailure.ENDED)

    def _fail(self, number: int, failure: CallFailure) -> None:
        del self.waiting[number]
        self.site.out.append(CallFailed(number, failure, self.site.view.id))
