"""What must a group give? The same for a gateway, which is a client of it, and for a replica that serves by
itself.

Proxies are made once for each way of asking: making one costs as much as half a call.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, ParamSpec, Protocol, TypeVar

from apps.kv.store import KeyValueStore
from apps.kv.types import Limits, Statistics
from ordering.errors import NoPrimary, OrderingError
from rsm.begun import Beginning
from rsm.errors import Refusal, Refused, Rejected, RsmError
from rsm.feeds import Feed
from rsm.logs import logger
from rsm.operations import Outcome
from rsm.proxy import Backend, Consistency, DetailedProxy, Fresh, Options, Proxy
from rsm.state_machine import Marked, StateMachine
from rsm.survey import Picture
from rsm.transfer import Peer

log = logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=StateMachine)

PROBE_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 1.0
LOST_SECONDS: Final = 0.25  # where the last look found no majority
_LOST: Final = "no majority of the group was reached lately"
_OTHER: Final = "the group runs another machine than this gateway serves; see rsm gateway --app"


class App(StrEnum):
    """What a gateway serves."""

    KV = "kv"
    ACTIONS = "actions"


class Group(Backend, Protocol[M]):
    """A ``Client`` or a ``Replica``."""

    @property
    def proxy(self) -> Proxy[M]: ...

    @property
    def linked_to(self) -> str: ...

    def follow(
        self, method: Marked[M, P, Feed[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[Feed[T], None]: ...

    async def survey(self, patience_s: float = ...) -> Picture: ...

    def peer(self, address: str) -> Peer: ...

    async def remove(self, member: str, timeout: float, *, force: bool = False) -> Outcome: ...


class Access(ABC, Generic[M]):
    """A group, and how it is asked, whatever machine it runs."""

    app: ClassVar[App]

    def __init__(self, group: Group[M], timeout: float) -> None:
        self.group = group
        self.timeout = timeout
        self._proxy = group.proxy.with_options(timeout=timeout).with_details()
        self._reading = {each: self._proxy.with_options(consistency=each) for each in Consistency}
        self._writing: dict[str, DetailedProxy[M]] = {"majority": self._proxy}
        self._probing = self._proxy.with_options(timeout=min(timeout, PROBE_SECONDS))
        self._vigil: asyncio.Task[None] | None = None
        self.is_lost = False
        self._why = _LOST

    def reading(
        self, consistency: Consistency = Consistency.LINEARIZABLE, after: int | None = None
    ) -> DetailedProxy[M]:
        """``after``: of a state that is not before this slot."""
        if consistency is Consistency.LINEARIZABLE:
            self.check_primary()
        proxy = self._reading[consistency]
        return proxy if after is None else proxy.with_options(after=after)

    def writing(self, qos: str = "majority") -> DetailedProxy[M]:
        self.check_primary()
        proxy = self._writing.get(qos)
        if proxy is None:
            proxy = self._writing[qos] = self._proxy.with_options(qos=qos)
        return proxy

    # -- whether there is a primary view ---------------------------------------------------------

    @abstractmethod
    async def probe(self) -> Fresh[Any]:
        """Returns if a majority can be reached; it takes no slot."""

    def check_primary(self) -> None:
        """Raises where nobody would answer: then nothing is sent, and the outcome is known."""
        if self.is_lost:
            raise NoPrimary(self._why)

    def start(self) -> None:
        self._vigil = asyncio.get_running_loop().create_task(self._keep_vigil())

    async def _keep_vigil(self) -> None:
        """Look whether a majority is there."""
        while True:
            try:
                await self.probe()
            except (OrderingError, RsmError, TimeoutError) as error:
                is_other = isinstance(error, Refused) and error.refusal is Refusal.UNREADABLE
                self._why = _OTHER if is_other else _LOST
                if not self.is_lost:
                    log.warning(self._why, error=str(error))
                self.is_lost = True
            else:
                if self.is_lost:
                    log.info("a majority of the group is reached again")
                self.is_lost = False
            await asyncio.sleep(LOST_SECONDS if self.is_lost else LOOK_SECONDS)

    async def stop(self) -> None:
        if self._vigil is not None:
            self._vigil.cancel()
            await asyncio.wait([self._vigil])


class Store(Access[KeyValueStore]):
    """A group that runs the key-value store."""

    app = App.KV

    def __init__(self, group: Group[KeyValueStore], timeout: float) -> None:
        super().__init__(group, timeout)
        calls = Beginning[KeyValueStore](group, Options(timeout=timeout))
        self._asking = {each: calls.with_options(consistency=each) for each in Consistency}
        self._telling = {"majority": calls}
        self.limits = Limits()  # the group's, as they were a moment ago
        self._newest = 0  # a slot that was reached

    def asking(
        self, consistency: Consistency = Consistency.LINEARIZABLE, after: int | None = None
    ) -> Beginning[KeyValueStore]:
        """The same as ``reading``, for calls that end in a callback."""
        if consistency is Consistency.LINEARIZABLE:
            self.check_primary()
        calls = self._asking[consistency]
        return calls if after is None else calls.with_options(after=after)

    def telling(self, qos: str = "majority") -> Beginning[KeyValueStore]:
        """The same as ``writing``, for calls that end in a callback."""
        self.check_primary()
        calls = self._telling.get(qos)
        if calls is None:
            calls = self._telling[qos] = self._telling["majority"].with_options(qos=qos)
        return calls

    async def check_reached(self, after: int | None) -> None:
        """Refuses a slot that nobody can have been told of: it would be waited for in vain."""
        if after is not None and after > self._newest:
            self._newest = max(self._newest, (await self.probe()).timestamp)
            if after > self._newest:
                raise Rejected("future", {"timestamp": after, "newest": self._newest})

    async def probe(self) -> Fresh[Statistics]:
        """It learns the group's limits as well: the machine has the last word, but what is too large need not
        be sent."""
        found = await self._probing.statistics()
        self.limits = found.value.limits
        return found
