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

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Feed(msgspec.Struct, Generic[T], frozen=True):
    """``position`` is what to ask for next: everything up to there is in ``events``, or is none of them."""

    events: list[T]
    position: int
