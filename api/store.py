"""What must a group give? The same for a gateway, which is a client of it, and for a replica that serves by
itself.

Proxies are made once for each way of asking: making one costs more than a call.
"""

from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from apps.kv.store import KeyValueStore
from rsm.feeds import Feed
from rsm.operations import Order, Outcome
from rsm.proxy import Consistency, DetailedProxy, Proxy
from rsm.state_machine import Query
from rsm.survey import Picture

PROXIES_MAX: Final = 256


class Group(Protocol):
    """A ``Client`` or a ``Replica`` of the key-value store."""

    @property
    def proxy(self) -> Proxy[KeyValueStore]: ...

    def follow(self, query: Query[Any, Any, Any], *args: Any) -> AsyncIterator[Feed[Any]]: ...

    async def survey(self) -> Picture: ...

    async def order(self, order: Order) -> Outcome: ...


class Store:
    """A group, and how it is asked."""

    def __init__(self, group: Group, timeout: float) -> None:
        self.group = group
        self._proxy = group.proxy.with_options(timeout=timeout).with_details()
        self._reading = {
            each: self._proxy.with_options(consistency=each) for each in Consistency
        }
        self._writing: dict[str, DetailedProxy[KeyValueStore]] = {"majority": self._proxy}

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
