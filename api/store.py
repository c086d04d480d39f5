"""What must a group give? The same for a gateway, which is a client of it, and for a replica that serves by
itself.

Proxies are made once for each way of asking: making one costs as much as half a call.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from apps.kv.store import KeyValueStore
from apps.kv.types import Limits
from ordering.errors import OrderingError
from rsm.errors import RsmError
from rsm.feeds import Feed
from rsm.operations import Outcome
from rsm.proxy import Consistency, DetailedProxy, Fresh, Proxy
from rsm.state_machine import Marked
from rsm.survey import Picture
from rsm.transfer import Peer

P = ParamSpec("P")
T = TypeVar("T")

PROBE_SECONDS: Final = 2.0
LIMITS_SECONDS: Final = 5.0  # after which the group's limits are asked for again


class Group(Protocol):
    """A ``Client`` or a ``Replica`` of the key-value store."""

    @property
    def proxy(self) -> Proxy[KeyValueStore]: ...

    @property
    def linked_to(self) -> str: ...

    def follow(
        self, method: Marked[KeyValueStore, P, Feed[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[Feed[T]]: ...

    async def survey(self) -> Picture: ...

    def peer(self, address: str) -> Peer: ...

    async def remove(self, member: str, timeout: float, *, force: bool = False) -> Outcome: ...


class Store:
    """A group, and how it is asked."""

    def __init__(self, group: Group, timeout: float) -> None:
        self.group = group
        self._proxy = group.proxy.with_options(timeout=timeout).with_details()
        self._reading = {each: self._proxy.with_options(consistency=each) for each in Consistency}
        self._writing: dict[str, DetailedProxy[KeyValueStore]] = {"majority": self._proxy}
        self._limits = Limits()
        self._limits_at = float("-inf")
        self._learning: asyncio.Task[None] | None = None

    def reading(
        self, consistency: Consistency = Consistency.LINEARIZABLE, after: int | None = None
    ) -> DetailedProxy[KeyValueStore]:
        """``after``: of a state that is not before this slot."""
        proxy = self._reading[consistency]
        return proxy if after is None else proxy.with_options(after=after)

    def writing(self, qos: str = "majority") -> DetailedProxy[KeyValueStore]:
        proxy = self._writing.get(qos)
        if proxy is None:
            proxy = self._writing[qos] = self._proxy.with_options(qos=qos)
        return proxy

    @property
    def limits(self) -> Limits:
        """The group's, as they were a moment ago: the machine has the last word."""
        now = asyncio.get_running_loop().time()
        if now - self._limits_at > LIMITS_SECONDS and self._learning is None:
            self._limits_at = now
            self._learning = asyncio.get_running_loop().create_task(self._learn())
        return self._limits

    async def probe(self) -> Fresh[Any]:
        """Returns if a majority can be reached; it takes no slot."""
        return await self._reading[Consistency.LINEARIZABLE].with_options(timeout=PROBE_SECONDS).lease(0)

    async def _learn(self) -> None:
        try:
            self._limits = (await self._reading[Consistency.STALE].statistics()).value.limits
        except (OrderingError, RsmError, TimeoutError):
            pass  # whoever asks next tries again
        finally:
            self._learning = None

    def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
