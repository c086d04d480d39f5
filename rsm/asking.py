"""Questions to the application beside one certain replica; nothing of them is ordered.

::

    replica.answer("price", price)    # async def price(question: bytes) -> bytes
    await other.ask(replica.address, "price", b"tea", timeout=1)    # of another replica, or a client

    asker      ASKING, then any number of Question and Left
    replica    Answered or Failed, for each Question

Each is MessagePack behind its length, over a connection of the bulk channel that is kept while it is used,
with many questions under way at a time. A question has a name and says how long its asker waits. If the
connection breaks a question is asked once more, over another, unless it is to be asked ``once``: handlers
must stand that, and should change nothing. Who asks itself does so without a network.

*Bounds.* So many connections and questions at a time, each question and answer of so many bytes, for so long.
A replica does not read from who does not read its answers, and refuses what it cannot keep until they are.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from enum import IntEnum
from functools import cached_property, partial
from typing import Final, TypeAlias

import msgspec

from ordering.errors import BulkError
from ordering.transports.bulk_tcp import BulkLimits, BulkStream
from rsm.errors import AnswerFailed, AskRefused, NotAnswered, RsmError, Unreachable
from rsm.links import Frames, framed
from rsm.logs import logger
from rsm.transfer import ASKING, Peer

log = logger(__name__)

BYTES_MAX: Final = 4 << 20  # of a question, or an answer
UNDER_WAY_MAX: Final = 1024  # at once, of one replica, or to one
UNDER_WAY_BYTES_MAX: Final = 64 << 20  # of questions, of one replica, or to one
UNSENT_ANSWERS_MAX: Final = 64 << 20  # bytes to one asker; one answer more may be on top
UNSENT_ANSWERS_MAX_IN_ALL: Final = 128 << 20  # of one replica
WORDS_MAX: Final = 4096  # characters of what was raised
CONNECTIONS_MAX: Final = 16  # of one replica: the rest is for the others' questions
SECONDS_MAX: Final = 60.0
UNSENT_BYTES_MAX: Final = 4 << 20  # then nothing more is read
PULSE_SECONDS: Final = 10.0  # less than a replica waits for a sign of life
IDLE_SECONDS: Final = 15.0  # that a connection is kept for the next question
_LIMITS: Final = BulkLimits(handshake_ms=1_000, idle_ms=0, stall_ms=5_000, linger_ms=500)
_SLACK_BYTES: Final = 4096

Handler: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class Question(msgspec.Struct, frozen=True, array_like=True, tag=1):
    number: int
    name: str
    body: bytes
    timeout_ms: int


class Left(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Nobody waits for it any more."""

    number: int


class Pulse(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The asker is there."""


class Fault(IntEnum):
    """Why there is no answer."""

    UNKNOWN = 1
    OVERLOADED = 2
    TOO_LARGE = 3
    LATE = 4
    RAISED = 5


class Answered(msgspec.Struct, frozen=True, array_like=True, tag=1):
    number: int
    body: bytes


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    number: int
    fault: Fault
    words: str
    kind: str = ""  # of what was raised


Asked: TypeAlias = Question | Left | Pulse
Said: TypeAlias = Answered | Failed


class _Outgoing:
    """What is said over a stream, by whoever, in one piece where it comes together."""

    def __init__(self, stream: BulkStream, pulse: bytes = b"") -> None:
        self._stream = stream
        self._pulse = pulse
        self.unsent = 0  # bytes
        self._out = bytearray()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._task = asyncio.ensure_future(self._send())

    def say(self, message: Asked | Said) -> None:
        told = framed(message)
        self._out += told
        self.unsent += len(told)
        if self.unsent >= UNSENT_BYTES_MAX:
            self._drained.clear()
        self._wake.set()

    async def has_room(self) -> None:
        await self._drained.wait()

    async def _send(self) -> None:
        try:
            while True:
                out, self._out = self._out, bytearray()
                self._wake.clear()
                if out:
                    await self._stream.send(out)
                self.unsent = len(self._out)
                if self.unsent < UNSENT_BYTES_MAX:
                    self._drained.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PULSE_SECONDS if self._pulse else None):
                        await self._wake.wait()
                if not self._wake.is_set():
                    self._out += self._pulse
                    self.unsent += len(self._pulse)
        except BulkError:
            self._stream.abort()  # who reads from it hears of that
        finally:
            self._drained.set()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


# -- at a replica --------------------------------------------------------------------------------


class Answers:
    """What a replica's application answers, by name."""

    def __init__(self) -> None:
        self.under_way = 0
        self.bytes_under_way = 0
        self._outgoing: dict[_Outgoing, None] = {}
        self._handlers: dict[str, Handler] = {}

    @property
    def connections(self) -> int:
        return len(self._outgoing)

    @property
    def bytes_unsent(self) -> int:
        return sum(each.unsent for each in self._outgoing)

    def offer(self, name: str, handler: Handler | None) -> None:
        """None: not any more."""
        if handler is None:
            self._handlers.pop(name, None)
        elif name in self._handlers:
            raise RsmError(f"{name}: is answered by somebody here already")
        else:
            self._handlers[name] = handler

    async def answer(self, question: Question) -> Said:
        """Whatever becomes of it is said."""
        number, handler = question.number, self._handlers.get(question.name)
        if handler is None:
            known = ", ".join(self._handlers) or "none"
            return Failed(number, Fault.UNKNOWN, f"nobody answers {question.name!r} here; there are: {known}")
        size = len(question.body)
        if self.under_way >= UNDER_WAY_MAX or self.bytes_under_way + size > UNDER_WAY_BYTES_MAX:
            words = f"{self.under_way} questions of {self.bytes_under_way} bytes are under way here"
            return Failed(number, Fault.OVERLOADED, words)
        self.under_way += 1
        self.bytes_under_way += size
        waiting = asyncio.timeout(min(question.timeout_ms / 1000, SECONDS_MAX))
        try:
            async with waiting:
                body = await handler(question.body)
        except Exception as error:  # noqa: BLE001 - whatever it is, who has asked is told
            if waiting.expired():
                return Failed(number, Fault.LATE, f"no answer within {question.timeout_ms} ms")
            words = str(error)[:WORDS_MAX].encode(errors="backslashreplace").decode()  # that can be sent
            return Failed(number, Fault.RAISED, words, type(error).__name__)
        finally:
            self.under_way -= 1
            self.bytes_under_way -= size
        if len(body) > BYTES_MAX:
            words = f"the answer has {len(body)} bytes, more than {BYTES_MAX}"
            return Failed(number, Fault.TOO_LARGE, words)
        return Answered(number, body)

    def _kept(self, said: Said, outgoing: _Outgoing) -> Said:
        """Unless too much waits to be read, there or anywhere."""
        unsent, in_all = outgoing.unsent, self.bytes_unsent
        if isinstance(said, Failed) or (unsent < UNSENT_ANSWERS_MAX and in_all < UNSENT_ANSWERS_MAX_IN_ALL):
            return said
        words = f"answers of {unsent} bytes to this asker are not sent yet, and of {in_all} in all"
        return Failed(said.number, Fault.OVERLOADED, words)

    async def serve(self, stream: BulkStream, first: bytes) -> None:
        """``first``: what came behind ``ASKING`` already."""
        if self.connections >= CONNECTIONS_MAX:
            return
        tasks: dict[int, asyncio.Task[None]] = {}
        outgoing = _Outgoing(stream)
        self._outgoing[outgoing] = None

        async def carry_out(question: Question) -> None:
            outgoing.say(self._kept(await self.answer(question), outgoing))

        def take(asked: Iterable[Asked]) -> None:
            for each in asked:
                if isinstance(each, Question) and each.number not in tasks:
                    task = tasks[each.number] = asyncio.ensure_future(carry_out(each))
                    task.add_done_callback(partial(_dropped, tasks, each.number))
                elif isinstance(each, Left) and each.number in tasks:
                    tasks[each.number].cancel()

        frames = Frames(Asked, BYTES_MAX + _SLACK_BYTES)
        try:
            take(frames.take(first))
            async for chunk in stream:
                take(frames.take(chunk))
                await outgoing.has_room()
        finally:
            del self._outgoing[outgoing]
            ending = list(tasks.values())
            for task in ending:
                task.cancel()
            await outgoing.end()
            await asyncio.gather(*ending, return_exceptions=True)


def _dropped(tasks: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    del tasks[number]


# -- who asks ------------------------------------------------------------------------------------


class _Broken(Exception):
    """``was_up``: it had been a connection; another may do."""

    def __init__(self, words: str, *, was_up: bool) -> None:
        super().__init__(words)
        self.was_up = was_up


class _Channel:
    """A connection to one replica, from the first question on until it breaks or is not used any more."""

    def __init__(self, peer: Peer) -> None:
        self.is_over = False
        self._peer = msgspec.structs.replace(peer, limits=_LIMITS)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Said]] = {}
        self._bytes = 0  # of these questions
        self._unsaid: list[Asked] = []  # until there is a connection
        self._outgoing: _Outgoing | None = None
        self._stream: BulkStream | None = None
        self._last = 0
        self._heard = 0  # chunks
        self._idle: asyncio.TimerHandle | None = None
        self.task = self._loop.create_task(self._run())

    async def ask(self, name: str, body: bytes, timeout: float) -> Said:
        if len(self._waiting) >= UNDER_WAY_MAX or self._bytes + len(body) > UNDER_WAY_BYTES_MAX:
            under_way = f"{len(self._waiting)} questions of {self._bytes} bytes"
            raise AskRefused(f"{under_way} to {self._peer.address} are under way")
        self._last += 1
        self._bytes += len(body)
        number, heard = self._last, self._heard
        self._waiting[number] = self._loop.create_future()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._say(Question(number, name, body, int(timeout * 1000)))
        try:
            async with asyncio.timeout(timeout):
                return await self._waiting[number]
        except TimeoutError:
            if self._heard == heard and self._stream is not None:
                self.is_over = True  # it has not said a word since then; the next question finds out more
                self._stream.abort()
            raise
        finally:
            self._bytes -= len(body)
            if self._waiting.pop(number).cancelled():
                self._say(Left(number))
            if not self._waiting and not self.is_over:
                self._idle = self._loop.call_later(IDLE_SECONDS, self.close)

    def _say(self, asked: Asked) -> None:
        if self._outgoing is not None:
            self._outgoing.say(asked)
        else:
            self._unsaid.append(asked)

    def close(self) -> None:
        self.is_over = True
        self.task.cancel()

    async def _run(self) -> None:
        why = "the connection was closed"
        try:
            async with self._peer.linked(ASKING) as stream:
                self._stream = stream
                await self._use(stream)
        except BulkError as error:
            why = str(error)
        finally:
            self.is_over = True
            if self._idle is not None:
                self._idle.cancel()
            broken = _Broken(f"{self._peer.address}: {why}", was_up=self._stream is not None)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(broken)

    async def _use(self, stream: BulkStream) -> None:
        outgoing = self._outgoing = _Outgoing(stream, framed(Pulse()))
        for asked in self._unsaid:
            outgoing.say(asked)
        frames = Frames(Said, BYTES_MAX + _SLACK_BYTES)
        try:
            async for chunk in stream:
                self._heard += 1
                for said in frames.take(chunk):
                    future = self._waiting.get(said.number)
                    if future is not None and not future.done():
                        future.set_result(said)
        finally:
            self.is_over = True
            stream.abort()
            await outgoing.end()


class Asker:
    """Asks replicas by their addresses. ``own``: what is answered in this very process, and where that is."""

    def __init__(
        self, peer: Callable[[str], Peer], own: Callable[[], tuple[str, Answers]] | None = None
    ) -> None:
        self._peer = peer
        self._own = own
        self._channels: dict[str, _Channel] = {}
        self._is_closed = False

    async def ask(
        self, address: str, name: str, question: bytes, timeout: float, *, once: bool = False
    ) -> bytes:
        if len(question) > BYTES_MAX:
            raise AskRefused(f"{name}: the question has {len(question)} bytes, more than {BYTES_MAX}")
        own_address, answers = self._own() if self._own is not None else ("", None)
        try:
            if answers is not None and address == own_address:
                said = await answers.answer(Question(0, name, question, int(timeout * 1000)))
            else:
                said = await self._ask(address, name, question, timeout, once=once)
        except TimeoutError:
            raise NotAnswered(f"{name}: {address} has not answered within {timeout:g} s") from None
        match said:
            case Answered(_, body):
                return body
            case Failed(_, Fault.RAISED, words, kind):
                raise AnswerFailed(kind, words)
            case Failed(_, Fault.LATE, words):
                raise NotAnswered(f"{name}: {address}: {words}")
            case Failed(_, _, words):
                raise AskRefused(f"{name}: {address}: {words}")

    async def _ask(self, address: str, name: str, question: bytes, timeout: float, *, once: bool) -> Said:
        until = asyncio.get_running_loop().time() + timeout
        for is_last in (False, True):
            try:
                left = until - asyncio.get_running_loop().time()
                return await self._channel(address).ask(name, question, left)
            except _Broken as broken:
                if is_last or once or not broken.was_up or self._is_closed:
                    raise Unreachable(f"{name}: {broken}") from None
        raise AssertionError

    def _channel(self, address: str) -> _Channel:
        if self._is_closed:
            raise RsmError("who asks was closed")
        channel = self._channels.get(address)
        if channel is None or channel.is_over:
            channel = self._channels[address] = _Channel(self._peer(address))
            channel.task.add_done_callback(lambda _: self._ended(address))
        return channel

    def _ended(self, address: str) -> None:
        channel = self._channels.get(address)
        if channel is not None and channel.is_over:
            del self._channels[address]

    async def close(self) -> None:
        """What is under way is unreachable."""
        self._is_closed = True
        tasks = [channel.task for channel in self._channels.values()]
        for channel in list(self._channels.values()):
            channel.close()
        await asyncio.gather(*tasks, return_exceptions=True)


class Asking(ABC):
    """Who can ask: replicas and clients."""

    @cached_property
    def asker(self) -> Asker:
        return Asker(self.peer)

    @abstractmethod
    def peer(self, address: str) -> Peer: ...

    async def ask(
        self, address: str, name: str, question: bytes, timeout: float, *, once: bool = False
    ) -> bytes:
        """What the application beside the replica at ``address`` answers, in ``timeout`` seconds; or an
        ``AskError``. ``once``: not again if the connection breaks."""
        return await self.asker.ask(address, name, question, timeout, once=once)


class Answering(Asking):
    """Who can be asked as well: replicas."""

    @property
    @abstractmethod
    def address(self) -> str: ...

    @cached_property
    def answers(self) -> Answers:
        return Answers()

    @cached_property
    def asker(self) -> Asker:
        return Asker(self.peer, lambda: (self.address, self.answers))

    def answer(self, name: str, handler: Handler | None) -> None:
        """Have questions of this name answered by ``handler``; None: not any more."""
        self.answers.offer(name, handler)
