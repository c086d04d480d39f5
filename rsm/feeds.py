"""What happened behind a slot: a query that is asked again and again, and who follows it.

::

    @query
    def changes(self, since: int, prefix: bytes) -> Feed[Event]:
        ...

    async for feed in client.follow(Store.changes, since, prefix):
        for event in feed.events: ...

A feed is a query whose first argument is the position behind which to begin and whose result says where it
ended. Positions are the machine's, slots as a rule, so that any replica can go on where another has stopped.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from rsm import envelope
from rsm.methods import Method

T = TypeVar("T")


class Feed(msgspec.Struct, Generic[T], frozen=True):
    """``position`` is what to ask for next: everything up to there is in ``events``, or is none of them."""

    events: list[T]
    position: int


async def follow(
    method: Method,
    args: tuple[Any, ...],
    named: dict[str, Any],
    next_of: Callable[[msgspec.Struct], Awaitable[bytes]],
) -> AsyncIterator[Feed[Any]]:
    """``next_of`` gives the next reply to a query that is at its position, however long that takes."""
    query = method.bind(args, named)
    while True:
        feed: Feed[Any] = envelope.result_of(await next_of(query), method)
        yield feed
        setattr(query, method.fields[0][0], feed.position)
