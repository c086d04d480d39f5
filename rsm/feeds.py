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

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from rsm import envelope
from rsm.errors import ChainChanged
from rsm.methods import Method
from rsm.proxy import Reading

T = TypeVar("T")


class Feed(msgspec.Struct, Generic[T], frozen=True):
    """``position`` is what to ask for next: everything up to there is in ``events``, or is none of them."""

    events: list[T]
    position: int


async def follow(
    method: Method,
    args: tuple[Any, ...],
    named: dict[str, Any],
    next_of: Callable[[msgspec.Struct, Reading | None], Awaitable[Reading]],
) -> AsyncGenerator[Feed[Any], None]:
    """``next_of`` gives the next reply to a query that is at its position, however long that takes, and of a
    state that is not older than the reading before. One without events only moves the position."""
    query = method.bind(args, named)
    latest: Reading | None = None
    while True:
        reading = await next_of(query, latest)
        if latest is not None and latest.chain != reading.chain:
            raise ChainChanged(
                "the group goes on in another chain, where slots stand for something else; read the state"
                " anew, and follow from there"
            )
        latest = reading
        feed: Feed[Any] = envelope.result_of(reading.reply, method)
        if feed.events:
            yield feed
        setattr(query, method.fields[0][0], feed.position)
