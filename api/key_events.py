"""Changes of keys, for who watches them."""

from collections.abc import AsyncGenerator
from itertools import groupby
from typing import Final

import msgspec

from api import schemas
from api.parameters import EVERYTHING, Span
from api.store import Store
from api.watches import Page, Source, Told
from apps.kv.store import KeyValueStore
from apps.kv.types import Event
from rsm.feeds import Feed

PAGE_EVENTS: Final = 1000


class ToldKey(Told):
    __slots__ = ("_event",)

    def __init__(self, event: Event) -> None:
        super().__init__(event.key, event.revision, len(event.key) + len(event.value or b""))
        self._event = event

    def encode(self) -> tuple[bytes, bytes]:
        kind = b"delete" if self._event.value is None else b"put"
        return kind, msgspec.json.encode(schemas.event(self._event))


class KeyEvents(Source[Span]):
    """Of the key-value store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def now(self) -> int:
        return (await self._store.reading().lease(0)).timestamp

    async def page(self, since: int, wanted: Span) -> Page:
        fresh = await self._store.reading().changes(since, *wanted, PAGE_EVENTS)
        return _page(fresh.value, fresh.timestamp)

    async def follow(self, since: int) -> AsyncGenerator[Page, None]:
        feeds = self._store.group.follow(KeyValueStore.changes, since, *EVERYTHING, PAGE_EVENTS)
        async for feed in feeds:
            yield _page(feed, feed.position)


def _page(feed: Feed[Event], now: int) -> Page:
    by_revision = groupby(feed.events, lambda event: event.revision)
    slots: list[tuple[int, list[Told]]] = [
        (revision, [ToldKey(event) for event in events]) for revision, events in by_revision
    ]
    return Page(slots, feed.position, now)
