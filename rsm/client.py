"""A process outside the group that calls its machine, by multi-RPC through any replica.

::

    async with Client(Counter, ClientConfig(group="counter", replicas=(...))) as counter:
        await counter.add(1)

A call goes to one replica and, while no answer comes, to others, under the same number of one session: it is
executed once. The replica that holds the handler lock answers; after a failure its successor does, from the
replicated session. What fits no datagram goes over the bulk channel (``far_calls``).
"""

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
)

import msgspec
from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ordering.caller import NO_VIEW, CallRequested
from ordering.caller_driver import CallerDriver, Outcome
from ordering.effects import CallAnswered, CallFailed
from ordering.errors import MessageTooLarge, OrderingError, Overloaded
from ordering.naming import group_id
from ordering.pieces import PACKET_OVERHEAD
from ordering.transports.addresses import default_packet_bytes
from rsm.asking import Asking
from rsm.calls import Calls
from rsm.config import HANDLER, check_ring, engine_config, read_keyring
from rsm.envelope import FETCH, Language
from rsm.errors import OutcomeUnknown, RsmError
from rsm.far_calls import FarCalls
from rsm.feeds import Feed, follow
from rsm.link_client import Link, LinkLost
from rsm.links import ReadWanted
from rsm.methods import Catalogue
from rsm.proxy import Changes, Consistency, DetailedProxy, Fresh, Options, Proxy, Reading
from rsm.quality import Held
from rsm.sessions import Answer, Origin, SessionLimits, Told
from rsm.state_machine import Marked, StateMachine
from rsm.survey import Surveyor
from rsm.transfer import Peer

if TYPE_CHECKING:
    from rsm.operation_records import OperationRecords

M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

AHEAD_SECONDS: Final = 0.25  # between two looks for a slot that is still to come
LINK_TRIES: Final = 2  # links that a read is given to before it is ordered
RELINK_SECONDS: Final = 0.1


class ClientConfig(BaseSettings):
    """Where the group is, and how to speak to it."""

    model_config = SettingsConfigDict(env_prefix="RSM_CLIENT_", extra="forbid", frozen=True)

    group: Annotated[str, Field(min_length=1)]
    replicas: Annotated[tuple[str, ...], Field(min_length=1, description="Some of them, host:port.")]
    bind: Annotated[str, Field(description="Own address; none: the one that faces the group.")] = ""
    key_file: Path | None = None
    insecure: bool = False
    timeout: Annotated[float | None, Field(gt=0, description="Seconds for each call.")] = None
    outstanding_max: Annotated[int, Field(ge=1)] = 4096
    message_bytes_max: Annotated[int, Field(ge=64)] = 2 << 20
    recording: Annotated[Path | None, Field(description="Where to record what callers see.")] = None
    recording_name: Annotated[str, Field(description="Of the files; none: the group and its address.")] = ""
    ring: Annotated[dict[str, Any], Field(description="Settings of the ordering engine.")] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.key_file is None and not self.insecure:
            raise ValueError("key_file: there is none; name the group's, or set insecure")
        check_ring(self.ring)
        return self


class Client(Surveyor, Asking, Generic[M]):
    """Calls of one process to one group."""

    def __init__(self, machine: type[M], config: ClientConfig) -> None:
        self.catalogue = Catalogue(machine)
        self.config = config
        self.proxy: Proxy[M] = Proxy(self, Options(timeout=config.timeout))
        self._language = Language(self.catalogue)
        self._keyring = read_keyring(config.key_file)
        self._boot = secrets.randbits(128)  # of the bulk channel
        self._loop: asyncio.AbstractEventLoop
        self._caller: CallerDriver
        self._calls: Calls
        self._far: FarCalls
        self._link: Link
        self._operations: OperationRecords | None = None
        self._chain = 0  # in which a read was answered here
        self._view = (NO_VIEW, "")  # of the last answer, and in words

    async def __aenter__(self) -> Proxy[M]:
        await self.open()
        return self.proxy

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self._far.closed()
        await self._link.closed()
        await self.asker.close()
        if self._operations is not None:
            await asyncio.to_thread(self._operations.finish)

    async def open(self) -> None:
        config = self.config
        engine = engine_config(
            {"packet_bytes": default_packet_bytes(config.replicas[0]), **config.ring},
            group=config.group,
            contacts=config.replicas,
            call_messages=config.outstanding_max,
        )
        self._caller = await CallerDriver.open(
            engine,
            self._listen,
            keyring=self._keyring,
            insecure=config.insecure,
            bind=config.bind,
        )
        self._far = FarCalls(
            lambda: self._calls,
            lambda: self.addresses,
            self.peer,
            call_ms=engine.call_ms,
            reply_bytes_max=SessionLimits().reply_bytes_max,
            rng=Random(self._boot),
        )
        self._link = Link(
            lambda: self.addresses,
            self.peer,
            self._note,
            SessionLimits().reply_bytes_max,
            Random(self._boot),
        )
        self._loop = asyncio.get_running_loop()
        self._calls = Calls(
            self._language,
            self._submit,
            self._loop,
            outstanding_max=config.outstanding_max,
            bytes_max=config.message_bytes_max,
            packet_bytes=engine.packet_bytes - PACKET_OVERHEAD,
            send_far=self._far.send,
            operations=self._recorded(),
        )
        self._calls.begin()

    def _recorded(self) -> "OperationRecords | None":
        """What callers see, if that is wanted. The link tells in which chain that is."""
        config = self.config
        if config.recording is not None:
            from rsm.operation_records import OperationRecords

            name = config.recording_name or f"{config.group}-{self.address}"
            self._operations = OperationRecords(config.recording, name, lambda: self._link.chain)
            self._operations.start()
            self._link.begin()
        return self._operations

    @property
    def address(self) -> str:
        return self._caller.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the replicas, as far as they are known."""
        return self._caller.addresses

    @property
    def linked_to(self) -> str:
        return "" if self._link.hello is None else self._link.hello.address

    def close(self) -> None:
        """Its session ends with it, if the group hears of that; else when it was idle for long."""
        farewell = self._calls.farewell()
        if farewell is not None:
            with suppress(OrderingError):
                self._submit([farewell])
        self._far.close()
        self._link.close()
        self._calls.fail(RsmError("this client was closed"))
        self._caller.close()

    def _submit(self, messages: Sequence[bytes]) -> int:
        return self._caller.request(CallRequested(tuple(messages), handler=HANDLER)).first_seq

    def peer(self, address: str) -> Peer:
        return Peer(address, self._keyring, group_id(self.config.group), self._boot)

    def _listen(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case CallAnswered(number, ts, payload, view, once, site):
                    if payload == FETCH and (message := self._calls.message_of(number)) is not None:
                        self._far.send(number, message, ts)
                    else:
                        if view != self._view[0]:
                            self._view = (view, str(view))
                        origin = (site, self._view[1])
                        self._calls.take(number, ts, [payload], {}, once=once, origin=origin)
                case CallFailed(number, failure):
                    self._calls.lose(number, OutcomeUnknown(f"the group gave no answer: {failure.name}"))
        self._calls.unblock()

    # -- the proxy's side ------------------------------------------------------------------------

    def execute(self, command: Any) -> "asyncio.Future[Answer]":
        return self._calls.execute(command)

    def query(self, query: msgspec.Struct, consistency: Consistency, after: int) -> "asyncio.Future[Reading]":
        if self._operations is None:
            return self._read(query, consistency, after)
        return self._operations.asked(lambda: self._read(query, consistency, after), query, consistency)

    def _read(self, query: msgspec.Struct, consistency: Consistency, after: int) -> "asyncio.Future[Reading]":
        """Of the linked replica, without a slot; where there is no link, ordered like a command, which is
        as good as linearizable. Who takes it stale is also served while nothing can be ordered. A slot that
        nobody was answered yet is waited for. Most reads go over the link as it is, and need no task."""
        message, link, seen = self._language.encode_query(query), self._link, self._calls.seen
        is_stale = consistency is Consistency.STALE
        if is_stale or (after <= seen and self._chain and link.chain == self._chain):
            with suppress(LinkLost, Overloaded, MessageTooLarge):
                return link.ask(message, consistency, 0 if is_stale else seen, lost=self._ask_otherwise)
        return self._loop.create_task(self._query(message, consistency, after))

    def _ask_otherwise(self, future: "asyncio.Future[Reading]", wanted: ReadWanted, lost: LinkLost) -> None:
        """What was seen is not missed there either (``_linked``), in the chain that is then."""
        asking = self._loop.create_task(
            self._query(wanted.message, wanted.consistency, 0, broken=lost.is_broken)
        )

        def told(_: object) -> None:
            if asking.cancelled():
                future.cancel()
            elif (error := asking.exception()) is not None and not future.done():
                future.set_exception(error)
            elif not future.done():
                future.set_result(asking.result())

        asking.add_done_callback(told)
        future.add_done_callback(lambda _: asking.cancel())

    async def _query(
        self, message: bytes, consistency: Consistency, after: int, broken: bool | None = None
    ) -> Reading:
        """``broken``: it was given to a link that was lost for it, or as a whole."""
        while consistency is Consistency.STALE:
            await self._link.up(stale=True)
            with suppress(LinkLost):
                return await self._link.read(message, consistency)
        while True:
            reading = await self._current(message, consistency, after, broken)
            if consistency is Consistency.LINEARIZABLE or reading.timestamp >= after:
                return reading
            await asyncio.sleep(AHEAD_SECONDS)
            broken = None

    async def _current(
        self, message: bytes, consistency: Consistency, after: int, broken: bool | None
    ) -> Reading:
        link = self._link
        tries = LINK_TRIES if broken is None else LINK_TRIES - 1
        while tries and await self._is_linked(broken):
            tries -= 1
            try:
                return await self._linked(message, consistency, after)
            except LinkLost as lost:
                broken = lost.is_broken
            except (Overloaded, MessageTooLarge):
                break
        link.begin()
        answer = await self._calls.send(message)
        return Reading(answer.reply, answer.ts, 0.0, *self.origin(answer))

    async def _is_linked(self, broken: bool | None) -> bool:
        """Whether to ask over a link (again)."""
        if broken:
            with suppress(TimeoutError):  # most often another is there at once, and needs no slot
                async with asyncio.timeout(RELINK_SECONDS):
                    await self._link.up()
        return broken is not False and self._link.is_up

    async def _linked(
        self, message: bytes, consistency: Consistency, after: int, *, wait: bool = False
    ) -> Reading:
        """Nothing that was answered here is missed. In a chain of which nothing was, slots that were seen
        mean nothing: there the first read is linearizable."""
        link, calls = self._link, self._calls
        if link.chain != self._chain:
            if self._chain:
                self._chain = calls.seen = 0
            if not wait:
                consistency = Consistency.LINEARIZABLE
        after = max(after, calls.seen) if self._chain else after
        return await link.read(message, consistency, after, wait=wait)

    def _note(self, reading: Reading, consistency: Consistency) -> None:
        """A link has answered."""
        if consistency is Consistency.LINEARIZABLE:
            self._chain = reading.chain
        if reading.chain == self._chain:
            self._calls.seen = max(self._calls.seen, reading.timestamp)

    def origin(self, answer: Answer) -> Origin:
        """Who a site is, the linked replica has told."""
        if not isinstance(answer, Told):
            return Origin("", "")
        known = {} if self._link.hello is None else self._link.hello.members
        return Origin(known.get(answer.site, f"{answer.site:x}"), answer.view)

    def follow(
        self, method: Marked[M, P, Feed[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[Feed[T], None]:
        """What a feed has, and everything that comes behind it, from whichever replica; see ``feeds``."""
        return follow(self.catalogue.query(method.__name__), args, kwargs, self._next_of_feed)

    async def _next_of_feed(self, query: msgspec.Struct, latest: Reading | None) -> Reading:
        message = self._language.encode_query(query)
        link = self._link
        while True:
            await link.up()
            after = latest.timestamp if latest is not None and latest.chain == link.chain else 0
            with suppress(LinkLost):
                return await self._linked(message, Consistency.SEQUENTIAL, after, wait=True)

    async def held(self, ts: int, voters: int) -> Held | None:
        return await self._far.held(ts, voters)


class BlockingClient(Generic[M]):
    """The same for programs without an event loop: it has one of its own, in a thread.

    ::

        with BlockingClient(Counter, config) as counter:
            counter.add(1)

    Its methods may be called from any thread. To follow a feed::

        client = BlockingClient(Store, config)
        with client, client.follow(Store.changes, 0) as feeds:
            for feed in feeds: ...
    """

    def __init__(self, machine: type[M], config: ClientConfig) -> None:
        self._client = Client(machine, config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rsm-client", daemon=True)
        self._lock = threading.Lock()
        self._over = False  # nobody calls any more

    def __enter__(self) -> "BlockingProxy[M]":
        self._thread.start()
        try:
            self._run(self._client.open())
        except BaseException:
            self._end()
            raise
        return BlockingProxy(self._client.proxy, self._run)

    def __exit__(self, *_: object) -> None:
        """Calls of other threads that are under way get an error."""

        async def close() -> None:
            await self._client.__aexit__()
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

        self._run(close(), last=True)
        self._end()

    def follow(self, method: Marked[M, P, Feed[T]], *args: P.args, **kwargs: P.kwargs) -> "BlockingFeeds[T]":
        """What a feed has, and everything that comes behind it; see ``feeds``."""
        if self._thread.ident is None:
            raise RsmError("this client is not open yet; follow inside its with")
        return BlockingFeeds(self._client.follow(method, *args, **kwargs), self._run)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T], *, last: bool = False) -> T:
        """In the loop. What came behind the last one would wait for ever."""
        with self._lock:
            if self._over:
                work.close()
                raise RsmError("this client was closed")
            self._over = last
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        return running.result()


Run: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]


class BlockingFeeds(Generic[T]):
    """Pages of a feed; ``next`` waits for one, and is for one thread at a time. ``close`` ends it, from
    whichever thread. A wait that was interrupted, by Ctrl-C say, loses nothing: the page comes next."""

    def __init__(self, feeds: AsyncGenerator[Feed[T], None], run: Run) -> None:
        self._feeds = feeds
        self._run = run
        self._page: asyncio.Future[Feed[T]] | None = None  # that somebody waits for, or waited
        self._is_closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Feed[T]:
        page = cast("asyncio.Future[Feed[T]] | None", self._run(self._arrived()))
        if page is None:
            raise StopIteration
        self._page = None  # here, where it is taken: a wait that nobody awaits any more takes nothing
        try:
            return page.result()
        except StopAsyncIteration:  # it has raised before
            raise StopIteration from None

    async def _arrived(self) -> asyncio.Future[Feed[T]] | None:
        if self._is_closed:
            return None
        if self._page is None:
            self._page = asyncio.ensure_future(anext(self._feeds))
        page = self._page
        await asyncio.wait([page])
        return None if page.cancelled() else page  # cancelled: it was closed meanwhile

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(RsmError):  # its client was closed: then nothing is left to end
            self._run(self._close())

    async def _close(self) -> None:
        self._is_closed = True
        page = self._page
        if page is not None:
            page.cancel()
            await asyncio.wait([page])
        await self._feeds.aclose()


class BlockingProxy(Generic[M]):
    """The machine's methods; each returns when its answer is here."""

    def __init__(self, proxy: Proxy[M], run: Run) -> None:
        self._proxy = proxy
        self._run = run

    def with_options(self, **changes: Unpack[Changes]) -> "BlockingProxy[M]":
        return BlockingProxy(self._proxy.with_options(**changes), self._run)

    def with_details(self) -> "BlockingDetailedProxy[M]":
        return BlockingDetailedProxy(self._proxy.with_details(), self._run)

    def call(self, method: Marked[M, P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self._run(self._proxy.call(method, *args, **kwargs)))

    def reading(self, name: str, *args: Any, **kwargs: Any) -> Fresh[Any]:
        return cast(Fresh[Any], self._run(self._proxy.reading(name, *args, **kwargs)))

    def apply(self, data: bytes) -> bytes:
        return cast(bytes, self._run(self._proxy.apply(data)))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._proxy, name)
        return lambda *args, **kwargs: self._run(method(*args, **kwargs))


class BlockingDetailedProxy(Generic[M]):
    """The same, and each tells where in the order it was."""

    def __init__(self, proxy: DetailedProxy[M], run: Run) -> None:
        self._proxy = proxy
        self._run = run

    def with_options(self, **changes: Unpack[Changes]) -> "BlockingDetailedProxy[M]":
        return BlockingDetailedProxy(self._proxy.with_options(**changes), self._run)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._proxy, name)
        return lambda *args, **kwargs: self._run(method(*args, **kwargs))
