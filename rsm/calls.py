"""Calls of the process a replica lives in: the fast path, without a network of their own.

They have a session like everybody's, so that they are executed exactly once even if this replica is thrown
out of the group on the way and sends them again as a new member. Calls that are made in one turn of the event
loop travel together. The replies come from this replica's own executor.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, TypeAlias

from ordering.errors import MessageTooLarge, NotMember, Overloaded, SubmitError
from rsm import envelope
from rsm.errors import OutcomeUnknown, Refusal, Refused, RsmError
from rsm.histogram import Histogram
from rsm.sessions import Answer, Told

if TYPE_CHECKING:
    from rsm.operation_records import OperationRecords

BATCH_MESSAGES: Final = 4096
BATCH_BYTES: Final = 4 * 1024 * 1024
RETRY_SECONDS: Final = 0.05
_TOO_LARGE: Final = "the call has {} bytes, message_bytes_max allows {}; nothing was sent"
_SESSION_UNKNOWN: Final = envelope.REFUSED[Refusal.SESSION_UNKNOWN]

Submit: TypeAlias = Callable[[Sequence[bytes]], int]
SendFar: TypeAlias = Callable[[int, bytes], None]


class Call:
    """A message of ours on its way. ``number`` is 0 for those outside the session."""

    __slots__ = ("asked", "command", "future", "message", "must", "number", "session", "tries")

    def __init__(self, command: object, message: bytes, future: "asyncio.Future[Answer]") -> None:
        self.command = command  # None: ``message`` goes as it is
        self.message = message
        self.future = future
        self.session = 0
        self.number = 0
        self.tries = 0
        self.must = False  # be sent, whoever refuses it now
        self.asked = 0  # when, if somebody wants to know


class Calls:
    """``submit`` gives messages to the ring and returns the sequence number of the first. What is above
    ``packet_bytes``, ``send_far`` takes another way, one by one."""

    def __init__(
        self,
        language: envelope.Language,
        submit: Submit,
        loop: asyncio.AbstractEventLoop,
        *,
        outstanding_max: int,
        bytes_max: int,
        packet_bytes: int = 0,
        send_far: SendFar | None = None,
        latency: Histogram | None = None,
        operations: "OperationRecords | None" = None,
    ) -> None:
        self._language = language
        self._submit = submit
        self._loop = loop
        self._outstanding_max = outstanding_max
        self._bytes_max = bytes_max
        self._send_far = send_far  # takes what is above ``packet_bytes``
        self._near_bytes = packet_bytes if send_far is not None else bytes_max
        self._far = 0  # the last sequence number of such a call; they count down
        self._latency = latency  # of commands, from the call to the answer
        self.operations = operations  # hears how commands end
        self._turn_ns = 0
        self._session = 0
        self._opening = False
        self._next = 1
        self._outbox: deque[Call] = deque()
        self._numbered: dict[int, Call] = {}  # of the session, and without an answer, in order
        self._sent: dict[int, Call] = {}  # by sequence number
        self._barrier: asyncio.Future[Answer] | None = None
        self._flushing: asyncio.Handle | None = None
        self._paused = True  # there is no membership
        self._blocked = False  # nothing is taken at present: a full window, a place that is not there yet
        self._most = BATCH_MESSAGES  # that the window has lately had room for at once
        self._over: Exception | None = None
        self.seen = 0  # the latest slot of which an answer has come

    @property
    def outstanding(self) -> int:
        return len(self._outbox) + len(self._sent)

    def identity(self, seq: int) -> tuple[int | None, int | None]:
        """Session and number of what was sent under this sequence number and has no answer, if it has any."""
        call = self._sent.get(seq)
        return (None, None) if call is None or not call.number else (call.session, call.number)

    # -- the application's side ------------------------------------------------------------------

    def execute(self, command: object) -> "asyncio.Future[Answer]":
        """``command`` is bound, or raw bytes."""
        call = Call(command, b"", self._loop.create_future())
        if self._latency is not None:
            if self._flushing is None:  # the first of this turn of the loop; the others share its time
                self._turn_ns = monotonic_ns()
            call.asked = self._turn_ns
        if self.operations is not None:
            self.operations.told(call)
        return self._put(call)

    def send(self, message: bytes) -> "asyncio.Future[Answer]":
        """A message as it is, outside the session: it may be executed twice, or not at all."""
        return self.forward(message).future

    def forward(self, message: bytes) -> Call:
        """The same for somebody else's message; ``tries`` says how often it went out."""
        call = Call(None, message, self._loop.create_future())
        self._put(call)
        return call

    def mention(self, message: bytes) -> None:
        """A message whose answer nobody waits for."""
        if self._over is None:
            self._outbox.append(_quiet(Call(None, message, self._loop.create_future())))
            self._soon()

    def barrier(self) -> "asyncio.Future[Answer]":
        """Done when everything is applied here that was ordered before this call. Who asks in one turn of the
        event loop shares one."""
        if self._barrier is None:
            self._barrier = self._put(_quiet(Call(None, envelope.BARRIER, self._loop.create_future())))
        return self._barrier

    def _put(self, call: Call) -> "asyncio.Future[Answer]":
        if self._over is not None:
            raise NotMember(f"this replica takes no calls any more: {self._over}")
        if self.outstanding >= self._outstanding_max:
            raise Overloaded(
                f"{self.outstanding} calls of this replica have no answer yet; wait for some of them first"
            )
        self._outbox.append(call)
        self._soon()
        return call.future

    def _soon(self) -> None:
        if self._flushing is None and not (self._paused or self._blocked):
            self._flushing = self._loop.call_soon(self.flush)

    # -- the group's side ------------------------------------------------------------------------

    def begin(self, announcement: bytes | None = None) -> None:
        """A membership begins: say who we are, then everything that has no answer, in order."""
        again = [call for call in (*self._sent.values(), *self._outbox) if not call.must]
        self._sent.clear()
        for call in again:
            if call.future.done():  # given up: nobody waits for its answer, so it is as good as acknowledged
                self._forget(call)
        self._outbox = deque(call for call in again if not call.future.done())
        if announcement is not None:
            first = _quiet(Call(None, announcement, self._loop.create_future()))
            first.must = True
            self._outbox.appendleft(first)
        self._paused = self._blocked = False
        self.flush()

    def pause(self) -> None:
        """The membership is over, and everything waits for the next. What was sent may have been ordered."""
        self._paused = True

    def unblock(self) -> None:
        """There may be room in the window again."""
        if self._blocked:
            self._blocked = False
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the window has room."""
        self._flushing = self._barrier = None
        while self._outbox and not (self._paused or self._blocked):
            if not self._session and self._outbox[0].command is not None and not self._open_session():
                return
            batch = self._take_batch()
            if not batch:
                continue
            try:
                first = self._submit([call.message for call in batch])
            except Overloaded:
                self._outbox.extendleft(reversed(batch))
                self._blocked = len(batch) == 1
                self._most = max(len(batch) // 2, 1)
            except NotMember:  # the engine knows before we are told; perhaps not before it has sent some
                for call in batch:
                    call.tries += 1
                self._outbox.extendleft(reversed(batch))
                self._try_later()
            except SubmitError as error:
                self._refuse_all([*batch, *self._outbox], error)
            else:
                self._most = min(2 * self._most, BATCH_MESSAGES)
                for seq, call in enumerate(batch, first):
                    call.tries += 1
                    self._sent[seq] = call

    def _open_session(self) -> bool:
        """Before the first command; what has no need of a session goes on."""
        if not self._opening:
            self._opening = True
            opening = _quiet(Call(None, envelope.OPEN, self._loop.create_future()))
            opening.future.add_done_callback(self._opened)
            self._outbox.appendleft(opening)
            return True
        free = [call for call in self._outbox if call.command is None]
        if not free:
            return False
        rest = [call for call in self._outbox if call.command is not None]
        self._outbox = deque([*free, *rest])
        return True

    def _opened(self, future: "asyncio.Future[Answer]") -> None:
        self._opening = False
        try:
            self._session = envelope.session_of(future.result().reply)
        except (Refused, OutcomeUnknown, SubmitError):  # not ready, or no answer: who waits for it still does
            if self._over is None:
                self._loop.call_later(RETRY_SECONDS, self.flush)
            return
        except RsmError:  # this replica is over
            return
        self._next = 1
        self._numbered = {}  # what is left of the session before has numbers of its own
        self.flush()

    def _take_batch(self) -> list[Call]:
        batch: list[Call] = []
        size = acknowledged = 0
        outbox, numbered = self._outbox, self._numbered
        while outbox and len(batch) < self._most and size < BATCH_BYTES:
            call = outbox[0]
            if call.future.done() and not call.tries:  # given up before it was sent
                self._forget(outbox.popleft())
                continue
            if call.command is not None:
                if not self._session:
                    break
                if call.session != self._session:
                    if call.tries:  # under a session that has ended: it may have been executed in that
                        self._give_up(outbox.popleft())
                        continue
                    call.session, call.number = self._session, self._next
                    self._next += 1
                    numbered[call.number] = call
                if not acknowledged:
                    acknowledged = next(iter(numbered)) - 1  # the oldest stays the oldest
                call.message = self._language.encode(call.session, call.number, acknowledged, call.command)
            outbox.popleft()
            if len(call.message) > self._bytes_max:
                self._refuse([call], MessageTooLarge(_TOO_LARGE.format(len(call.message), self._bytes_max)))
                continue
            if len(call.message) > self._near_bytes:
                self._go_far(call)
                continue
            size += len(call.message)
            batch.append(call)
        return batch

    def _go_far(self, call: Call) -> None:
        assert self._send_far is not None
        call.tries += 1
        self._far -= 1
        self._sent[self._far] = call
        self._send_far(self._far, call.message)

    def message_of(self, seq: int) -> bytes | None:
        """What was sent under this number, if it has no answer yet."""
        call = self._sent.get(seq)
        return None if call is None else call.message

    def is_awaited(self, seq: int) -> bool:
        """Whether somebody still waits for the answer."""
        call = self._sent.get(seq)
        return call is not None and not call.future.done()

    def _refuse_all(self, calls: list[Call], error: SubmitError) -> None:
        """Who we are has to be said all the same, as soon as somebody takes it."""
        self._outbox = deque(call for call in calls if call.must)
        self._refuse([call for call in calls if not call.must], error)
        if self._outbox:
            self._try_later()

    def _try_later(self) -> None:
        self._blocked = True
        self._loop.call_later(RETRY_SECONDS, self.unblock)

    def _refuse(self, batch: list[Call], error: SubmitError) -> None:
        """The ring takes none of it. What was never sent before was surely not executed."""
        for call in batch:
            self._forget(call)
            if call.future.done():
                continue
            unknown = OutcomeUnknown(f"sent before this replica lost its place in the group; now: {error}")
            call.future.set_exception(unknown if call.tries else error)

    def _forget(self, call: Call) -> None:
        if self._numbered.get(call.number) is call:
            del self._numbered[call.number]

    def take(
        self,
        first_seq: int,
        first_ts: int,
        replies: list[bytes],
        repeats: dict[int, int],
        *,
        once: bool = True,
        origin: tuple[int, str] | None = None,
    ) -> int:
        """Messages of this membership were applied; ``repeats`` were executed before, elsewhere. ``once``:
        nobody can have ordered a copy of them. ``origin``: site and view of who says so, if it is not this
        process. Returns how many of them were calls that waited here."""
        sent = self._sent
        self.seen = max(self.seen, first_ts + len(replies) - 1)
        asked = alike = 0  # calls of one turn, one behind the other
        before = len(sent)
        for offset, reply in enumerate(replies):
            call = sent.pop(first_seq + offset, None)
            if call is None:
                continue
            if call.number:
                self._forget(call)
                if reply == _SESSION_UNKNOWN:
                    self._go_on_in_another_session(call, once=once)
                    continue
            if call.asked != asked:
                self._measured(asked, alike)
                asked, alike = call.asked, 0
            alike += 1
            if not call.future.done():
                ts = first_ts + offset
                ts = repeats.get(ts, ts) if repeats else ts
                call.future.set_result(Answer(ts, reply) if origin is None else Told(ts, reply, *origin))
        self._measured(asked, alike)
        return before - len(sent)

    def _measured(self, asked: int, count: int) -> None:
        if self._latency is not None and asked and count:
            self._latency.note(monotonic_ns() - asked, count)

    def _go_on_in_another_session(self, call: Call, *, once: bool) -> None:
        """Ours has ended, unused for long. A call that was sent once has certainly not been executed."""
        if call.session == self._session:
            self._session = 0
        if call.tries == 1 and once:
            call.session = call.number = call.tries = 0
            self._outbox.append(call)
            self._soon()
        else:
            self._give_up(call)

    @staticmethod
    def _give_up(call: Call) -> None:
        if not call.future.done():
            call.future.set_exception(OutcomeUnknown("the session ended before the call could be repeated"))

    def reconcile(self, reply_to: Callable[[int, int], Answer | None]) -> None:
        """A state was taken over: what it contains of ours will not be delivered here any more. Of the rest
        nobody knows: it may have been refused there. So it is sent again, as it was."""
        again: list[Call] = []
        for seq, call in list(self._sent.items()):
            kept = reply_to(call.session, call.number) if call.number else None
            del self._sent[seq]
            if kept is None:
                again.append(call)
                continue
            self._forget(call)
            if not call.future.done():
                call.future.set_result(kept)
        self._outbox.extendleft(reversed(again))
        self._soon()

    def farewell(self) -> bytes | None:
        """What ends the session, if it is not needed any more."""
        session, self._session = self._session, 0
        return envelope.encode(envelope.Close(session)) if session and not self.outstanding else None

    async def drained(self, seconds: float) -> None:
        """Wait until nothing is outstanding, for so long at most."""
        waiting = [call.future for call in (*self._sent.values(), *self._outbox) if not call.future.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=seconds)

    def lose(self, seq: int, error: Exception) -> None:
        """Nobody will say what became of a message."""
        call = self._sent.pop(seq, None)
        if call is not None:
            self._forget(call)
            if not call.future.done():
                call.future.set_exception(error)

    def fail(self, error: Exception) -> None:
        """This replica is over. Of what was sent the outcome is unknown."""
        self._paused, self._over = True, error
        unknown = OutcomeUnknown(f"this replica has stopped before the answer came: {error}")
        for call in [*self._sent.values(), *self._outbox]:
            if not call.future.done():
                call.future.set_exception(unknown if call.tries else error)
        self._sent.clear()
        self._outbox.clear()
        self._numbered.clear()


def _quiet(call: Call) -> Call:
    """Nobody waits for it."""
    call.future.add_done_callback(lambda future: future.cancelled() or future.exception())
    return call
