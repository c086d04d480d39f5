"""One feed from the group, any number of watchers.

While somebody watches, one feed of all changes comes from the group, and what it brings is given to each
watcher whose keys it is about. A watcher that begins further back is fed with pages until it has reached
the feed, and joins it then: every change it is to see comes behind its own position, so nothing is left out
or told twice. What the feed brought last is kept for that, so that a busy group cannot run away from who
catches up.

A watcher that does not read is dropped when too much waits for it; nobody else waits.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from itertools import groupby
from typing import Final

import msgspec

from api import schemas
from api.parameters import EVERYTHING, Span
from api.problems import Problem, problem_of
from api.settings import GatewaySettings
from api.store import Store
from apps.kv.store import KeyValueStore
from apps.kv.types import Event
from ordering.errors import OrderingError
from rsm.errors import RsmError
from rsm.feeds import Feed
from rsm.logs import logger

log = logger(__name__)

PAGE_EVENTS: Final = 1000
_OVERHEAD: Final = 64  # of an event that waits, roughly


class Told:
    """An event as watchers get it; it is encoded once."""

    __slots__ = ("_text", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._text: bytes | None = None

    def text(self, *, last: bool) -> bytes:
        """``last``: of what a watcher sees of its revision. Then it has an id, to resume behind."""
        if self._text is None:
            kind = b"delete" if self.event.value is None else b"put"
            self._text = b"event: %s\ndata: %s\n" % (kind, msgspec.json.encode(schemas.event(self.event)))
        return b"%sid: %d\n\n" % (self._text, self.event.revision) if last else self._text + b"\n"


def texts(told: Iterable[Told], span: Span) -> list[bytes]:
    """Of one revision, what is about the keys of a watcher."""
    found = [each for each in told if span.has(each.event.key)]
    return [each.text(last=each is found[-1]) for each in found]


class Recent:
    """What a feed brought last: everything behind ``begin``, bounded."""

    def __init__(self, begin: int, events_max: int, bytes_max: int) -> None:
        self.begin = begin
        self.revisions: deque[tuple[int, list[Told], int]] = deque()
        self._events_max, self._bytes_max = events_max, bytes_max
        self._events = self._bytes = 0

    def add(self, revision: int, told: list[Told]) -> None:
        size = sum(_OVERHEAD + len(each.event.key) + len(each.event.value or b"") for each in told)
        self.revisions.append((revision, told, size))
        self._events += len(told)
        self._bytes += size
        while self._events > self._events_max or self._bytes > self._bytes_max:
            self.begin, gone, size = self.revisions.popleft()
            self._events -= len(gone)
            self._bytes -= size


class Watcher:
    """Who watches ``span``, and has been given everything up to ``position``."""

    def __init__(
        self, span: Span, position: int, settings: GatewaySettings, abort: Callable[[], None]
    ) -> None:
        self.span = span
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
        found = texts(told, self.span)
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
        """All that waits; nothing if nothing comes in that time, or if it has ended."""
        if not self._waiting and self.problem is None:
            self._woken.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                return b""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return b"".join(waiting)


class Hub:
    """One feed, from ``position`` on, and who watches it."""

    def __init__(self, store: Store, position: int, settings: GatewaySettings) -> None:
        self.position = position
        self.watchers: dict[Watcher, None] = {}
        self.recent = Recent(position, settings.watch_events_max, settings.watch_bytes_max)
        self.is_over = False
        self._task = asyncio.get_running_loop().create_task(self._run(store))

    async def _run(self, store: Store) -> None:
        problem = Problem("defect", "the feed has ended")
        try:
            feeds = store.group.follow(KeyValueStore.changes, self.position, *EVERYTHING, PAGE_EVENTS)
            async for feed in feeds:
                self._publish(feed)
        except (OrderingError, RsmError) as error:
            problem = problem_of(error)
            log.warning("the feed of changes has ended", error=str(error), watchers=len(self.watchers))
        finally:
            self.is_over = True
            self.end(problem)

    def _publish(self, feed: Feed[Event]) -> None:
        for revision, events in groupby(feed.events, lambda event: event.revision):
            told = [Told(event) for event in events]
            self.recent.add(revision, told)
            for watcher in list(self.watchers):
                watcher.take(revision, told)
        self.position = feed.position

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


class Watches:
    """All of a gateway."""

    def __init__(self, store: Store, settings: GatewaySettings) -> None:
        self.store = store
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

    async def watch(self, span: Span, since: int | None, abort: Callable[[], None]) -> "Watch":
        """Refuses before anything is sent."""
        self.check_room()
        reading = self.store.reading()
        if since is None:
            fresh = await reading.lease(0)
            now = since = fresh.timestamp
            first: Feed[Event] = Feed([], now)
            greeting = b'event: ready\ndata: {"revision":%d}\nid: %d\n\n' % (now, now)
        else:
            page = await reading.changes(since, *span, PAGE_EVENTS)
            now, first, greeting = page.timestamp, page.value, b""
            if since > now:
                raise Problem("future", f"the newest slot is {now}", newest=now)
        self.check_room()
        watcher = Watcher(span, since, self.settings, abort)
        self._open[watcher] = None
        return Watch(self, watcher, greeting, first, now)

    def hub(self, now: int) -> Hub:
        """The one that runs; else one that begins at ``now``."""
        if self._hub is None or self._hub.is_over:
            self._hub = Hub(self.store, now, self.settings)
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

    def __init__(
        self, watches: Watches, watcher: Watcher, greeting: bytes, first: Feed[Event], now: int
    ) -> None:
        self._watches = watches
        self._watcher = watcher
        self._greeting = greeting
        self._first = first
        self._now = now

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
        watcher, page, now = self._watcher, self._first, self._now
        while watcher.problem is None:
            for _, events in groupby(page.events, lambda event: event.revision):
                yield b"".join(texts([Told(event) for event in events], watcher.span))
            ended = page.position == watcher.position  # then nothing else happened up to now
            watcher.position = max(page.position, now) if ended else page.position
            if self._watches.hub(now).admit(watcher):
                return
            fresh = await self._watches.store.reading().changes(watcher.position, *watcher.span, PAGE_EVENTS)
            now, page = fresh.timestamp, fresh.value
