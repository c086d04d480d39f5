"""One feed from the group, any number of watchers.

While somebody watches, one feed of all changes comes from the group, and what it brings is given to each
watcher that it is for. A watcher that begins further back is fed with pages until it has reached
the feed, and joins it then: every change it is to see comes behind its own position, so nothing is left out
or told twice. What the feed brought last is kept for that, so that a busy group cannot run away from who
catches up.

A watcher that does not read is dropped when too much waits for it; nobody else waits.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from api.problems import Problem, problem_of
from api.settings import GatewaySettings
from ordering.errors import OrderingError
from rsm.errors import RsmError
from rsm.logs import logger

log = logger(__name__)

_OVERHEAD: Final = 64  # of an event that waits, roughly


class Wanted(Protocol):
    """What somebody watches."""

    def has(self, key: Any) -> bool: ...


W = TypeVar("W", bound=Wanted)


class Told(ABC):
    """An event as watchers get it; it is encoded once. ``key``: what it is about, ``number``: the slot behind
    which who has seen it resumes, ``size``: roughly, in bytes."""

    __slots__ = ("_text", "key", "number", "size")

    def __init__(self, key: Any, number: int, size: int) -> None:
        self.key = key
        self.number = number
        self.size = size
        self._text: bytes | None = None

    @abstractmethod
    def encode(self) -> tuple[bytes, bytes]:
        """Its kind, and its data."""

    def text(self, *, last: bool) -> bytes:
        """``last``: of what a watcher sees of its slot. Then it has an id, to resume behind."""
        if self._text is None:
            self._text = b"event: %s\ndata: %s\n" % self.encode()
        return b"%sid: %d\n\n" % (self._text, self.number) if last else self._text + b"\n"


def texts(told: Iterable[Told], wanted: Wanted) -> list[bytes]:
    """Of one slot, what somebody watches."""
    found = [each for each in told if wanted.has(each.key)]
    return [each.text(last=each is found[-1]) for each in found]


class Page(NamedTuple):
    """What happened, by slots, ascending, up to ``position``; in a group that has reached ``now``."""

    slots: list[tuple[int, list[Told]]]
    position: int
    now: int


class Source(ABC, Generic[W]):
    """Where the events come from."""

    @abstractmethod
    async def now(self) -> int:
        """The slot that the group has reached."""

    @abstractmethod
    async def page(self, since: int, wanted: W) -> Page:
        """What happened behind a slot, of what is wanted, or the beginning of it."""

    @abstractmethod
    def follow(self, since: int) -> AsyncGenerator[Page, None]:
        """Everything behind a slot, and whatever comes."""


class Recent:
    """What a feed brought last: everything behind ``begin``, bounded."""

    def __init__(self, begin: int, events_max: int, bytes_max: int) -> None:
        self.begin = begin
        self.revisions: deque[tuple[int, list[Told], int]] = deque()
        self._events_max, self._bytes_max = events_max, bytes_max
        self._events = self._bytes = 0

    def add(self, revision: int, told: list[Told]) -> None:
        size = sum(_OVERHEAD + each.size for each in told)
        self.revisions.append((revision, told, size))
        self._events += len(told)
        self._bytes += size
        while self._events > self._events_max or self._bytes > self._bytes_max:
            self.begin, gone, size = self.revisions.popleft()
            self._events -= len(gone)
            self._bytes -= size


class Watcher:
    """Who watches something, and has been given everything up to ``position``."""

    def __init__(
        self, wanted: Wanted, position: int, settings: GatewaySettings, abort: Callable[[], None]
    ) -> None:
        self.wanted = wanted
        self.position = position
        self.problem: Problem | None = None
        self._abort = abort
        self._events_max, self._bytes_max = settings.watch_events_max, settings.watch_bytes_max
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._woken = asyncio.Event()

    def take(self, revision: int, told: list[Told]) -> None:
        if revision <= self.position or self.problem is not None:
            return
        self.position = revision
        found = texts(told, self.wanted)
        if not found:
            return
        self._waiting += found
        self._bytes += sum(map(len, found))
        self._woken.set()
        if len(self._waiting) > self._events_max or self._bytes > self._bytes_max:
            self._waiting.clear()
            self.end(Problem("overloaded", "this watcher reads too slowly; resume behind its last id"))
            self._abort()

    def end(self, problem: Problem) -> None:
        self.problem = self.problem or problem
        self._woken.set()

    async def next(self, seconds: float) -> bytes:
        """All that waits; nothing if nothing comes in that time, or if it has ended. What comes just when the
        time is over is not left behind: ``position`` is beyond it."""
        if not self._waiting and self.problem is None:
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return b"".join(waiting)


class Hub:
    """One feed, from ``position`` on, and who watches it."""

    def __init__(self, source: Source[Any], position: int, settings: GatewaySettings) -> None:
        self.position = position
        self.watchers: dict[Watcher, None] = {}
        self.recent = Recent(position, settings.watch_events_max, settings.watch_bytes_max)
        self.is_over = False
        self._task = asyncio.get_running_loop().create_task(self._run(source))

    async def _run(self, source: Source[Any]) -> None:
        problem = Problem("defect", "the feed has ended")
        try:
            async for page in source.follow(self.position):
                self._publish(page)
        except (OrderingError, RsmError) as error:
            problem = problem_of(error)
            log.warning("the feed of changes has ended", error=str(error), watchers=len(self.watchers))
        finally:
            self.is_over = True
            self.end(problem)

    def _publish(self, page: Page) -> None:
        for slot, told in page.slots:
            self.recent.add(slot, told)
            for watcher in list(self.watchers):
                watcher.take(slot, told)
        self.position = page.position

    def admit(self, watcher: Watcher) -> bool:
        """Whether it can go on from here; then it gets what it lacks, and what comes."""
        if self.is_over or watcher.position < self.recent.begin:
            return False
        for revision, told, _ in list(self.recent.revisions):
            watcher.take(revision, told)
        self.watchers[watcher] = None
        return True

    def end(self, problem: Problem) -> None:
        for watcher in list(self.watchers):
            watcher.end(problem)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class Watches(Generic[W]):
    """All of a gateway."""

    def __init__(self, source: Source[W], settings: GatewaySettings) -> None:
        self.source = source
        self.settings = settings
        self._hub: Hub | None = None
        self._open: dict[Watcher, None] = {}
        self.others = 0  # streams of another kind
        self.stopped = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self._open) + self.others

    def check_room(self) -> None:
        if self.stopped.is_set():
            raise Problem("stopping", "this gateway stops; ask another one")
        if self.count >= self.settings.watches_max:
            raise Problem("overloaded", f"{self.count} streams are open; use fewer, or come later")

    async def watch(self, wanted: W, since: int | None, abort: Callable[[], None]) -> "Watch":
        """Refuses before anything is sent."""
        self.check_room()
        greeting = b""
        if since is None:
            since = await self.source.now()
            first = Page([], since, since)
            greeting = b'event: ready\ndata: {"revision":%d}\nid: %d\n\n' % (since, since)
        else:
            first = await self.source.page(since, wanted)
            if since > first.now:
                raise Problem("future", f"the newest slot is {first.now}", newest=first.now)
        self.check_room()
        watcher = Watcher(wanted, since, self.settings, abort)
        self._open[watcher] = None
        return Watch(self, watcher, greeting, first)

    def hub(self, now: int) -> Hub:
        """The one that runs; else one that begins at ``now``."""
        if self._hub is None or self._hub.is_over:
            self._hub = Hub(self.source, now, self.settings)
        return self._hub

    async def leave(self, watcher: Watcher) -> None:
        self._open.pop(watcher, None)
        hub = self._hub
        if hub is not None:
            hub.watchers.pop(watcher, None)
            if not self._open:
                self._hub = None
                await hub.close()

    def stop(self) -> None:
        """Watchers are told, and resume elsewhere."""
        self.stopped.set()
        for watcher in list(self._open):
            watcher.end(Problem("stopping", "this gateway stops; resume behind the last id elsewhere"))


class Watch:
    """One watcher's stream; it ends with ``close``."""

    def __init__(self, watches: Watches[Any], watcher: Watcher, greeting: bytes, first: Page) -> None:
        self._watches = watches
        self._watcher = watcher
        self._greeting = greeting
        self._first = first

    async def close(self) -> None:
        await self._watches.leave(self._watcher)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Events, and a sign of life whenever there is none for a while; an error at the end."""
        watcher = self._watcher
        if self._greeting:
            yield self._greeting
        try:
            async with aclosing(self._catch_up()) as pages:
                async for page in pages:
                    yield page
        except (OrderingError, RsmError, TimeoutError) as error:
            watcher.end(problem_of(error))
        while watcher.problem is None:
            chunk = await watcher.next(self._watches.settings.heartbeat_s)
            if not chunk and watcher.problem is None:
                reached = max(watcher.position, self._watches.hub(watcher.position).position)
                chunk = b": alive\nid: %d\n\n" % reached
            yield chunk
        rest = await watcher.next(0)
        yield b"%sevent: error\ndata: %s\n\n" % (rest, watcher.problem.body())

    async def _catch_up(self) -> AsyncGenerator[bytes, None]:
        """Pages of what happened, until the feed has the rest."""
        watcher, page = self._watcher, self._first
        while watcher.problem is None:
            for _, told in page.slots:
                yield b"".join(texts(told, watcher.wanted))
            ended = page.position == watcher.position  # then nothing else happened up to now
            watcher.position = max(page.position, page.now) if ended else page.position
            if self._watches.hub(page.now).admit(watcher):
                return
            page = await self._watches.source.page(watcher.position, watcher.wanted)
