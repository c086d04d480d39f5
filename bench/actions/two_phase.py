"""The rival: two-phase commit with a coordinator, *presumed abort*, as one would build it today.

::

    coordinator                            participant
        │── Attempt(operations) ───────────────▶│  changes nothing, result comes back
        │── Prepare(unit, operations) ─────────▶│  prepares, syncs     (all participants at once)
        │◀────────────────────────── Voted ─────│
        │ decision logged, caller answered      │
        │── Decide(unit, commit) ──────────────▶│  commits, syncs
        │◀────────────────────────── Ended ─────│
        │ forgotten                             │

One process coordinates and has the callers in it. Each participant has one TCP connection to it, which it
makes itself, and again when it breaks; it says first what it has prepared, and is told what became of that. A
commit that the log does not have was none. Decisions of one turn of the event loop share a sync. Whoever is
prepared keeps its keys until it is told, however long that takes.
"""

import asyncio
import contextlib
import os
import zlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from apps.actions.operations import BoundOperation, seen_of
from apps.actions.participant import Participant, Unit
from apps.actions.types import Operation
from bench.errors import BenchError
from rsm.links import Frames, framed

R = TypeVar("R")

FRAME_BYTES_MAX: Final = 1 << 20
LOG_BYTES: Final = 4 << 20  # written beforehand, so that a sync has no new blocks to note
LOCK_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 0.02
_LENGTH_BYTES: Final = 8  # of a record, and its checksum
_CHAIN: Final = 0


# -- what is said --------------------------------------------------------------------------------


class Attempt(msgspec.Struct, frozen=True, array_like=True, tag=0):
    number: int
    operations: tuple[Operation, ...]


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag=1):
    number: int
    unit: str
    operations: tuple[Operation, ...]


class Decide(msgspec.Struct, frozen=True, array_like=True, tag=2):
    number: int
    unit: str
    commit: bool


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first word of a participant: who it is, and what it has prepared."""

    site: str
    prepared: tuple[str, ...]


class Said(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The result of an attempt, a vote, or that a decision is carried out; with an error it is not."""

    number: int
    result: bytes = b""
    error: str = ""


ToParticipant: TypeAlias = Attempt | Prepare | Decide
ToCoordinator: TypeAlias = Hello | Said


class _Wire(asyncio.Protocol):
    """One end of a connection."""

    def __init__(
        self, kinds: Any, heard: Callable[["_Wire", Any], None], over: Callable[["_Wire"], None]
    ) -> None:
        self._frames = Frames(kinds, FRAME_BYTES_MAX)
        self._heard = heard
        self._over = over
        self._closed = asyncio.Event()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only

    def data_received(self, data: bytes) -> None:
        for message in self._frames.take(data):
            self._heard(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self._over(self)

    def say(self, message: ToParticipant | ToCoordinator) -> None:
        """To nobody, if it is broken."""
        self._transport.write(framed(message))

    async def close(self) -> None:
        self._transport.abort()
        await self._closed.wait()


# -- the log -------------------------------------------------------------------------------------


class DecisionLog:
    """Names of committed units. Without a path it keeps them in memory, and is lost with its process."""

    def __init__(self, path: Path | None) -> None:
        self.committed: dict[str, None] = {}
        self._file = -1
        self._end = 0
        self._unsynced: list[tuple[str, asyncio.Future[None]]] = []
        if path is not None:
            self._open(path)

    def _open(self, path: Path) -> None:
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if is_new:
            os.pwrite(self._file, bytes(LOG_BYTES), 0)
            os.fsync(self._file)
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        while (length := int.from_bytes(data[self._end : self._end + 4], "big")) > 0:
            at = self._end + _LENGTH_BYTES
            record = data[at : at + length]
            if int.from_bytes(data[at - 4 : at], "big") != zlib.crc32(record):
                break  # it was being written when the process died, so nobody was answered
            self.committed.update(dict.fromkeys(msgspec.msgpack.decode(record, type=list[str])))
            self._end = at + length

    async def commit(self, unit: str) -> None:
        """Returns when that is on the disk."""
        self.committed[unit] = None
        if self._file < 0:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not self._unsynced:
            loop.call_soon(self._sync)
        self._unsynced.append((unit, future))
        await future

    def _sync(self) -> None:
        unsynced, self._unsynced = self._unsynced, []
        record = msgspec.msgpack.encode([unit for unit, _ in unsynced])
        head = len(record).to_bytes(4, "big") + zlib.crc32(record).to_bytes(4, "big")
        os.pwrite(self._file, head + record, self._end)
        os.fdatasync(self._file)
        self._end += len(head) + len(record)
        for _, future in unsynced:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# -- the coordinator -----------------------------------------------------------------------------


class Gone(Exception):
    """A participant is not connected."""


class Aborted(Exception):
    """The caller's transaction."""


class Coordinator:
    """Of all participants that say hello to it."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self._numbers = count(1)
        self._wires: dict[str, _Wire] = {}
        self._waiting: dict[int, tuple[_Wire, asyncio.Future[Said]]] = {}
        self._voting: dict[str, None] = {}
        self._telling: dict[str, set[str]] = {}  # committed units, and who has not applied them
        self.before_decision: Callable[[], Awaitable[None]] | None = None  # all votes are there
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, port: int = 0) -> str:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Wire(ToCoordinator, self._heard, self._lost), "127.0.0.1", port
        )
        host, bound = self._server.sockets[0].getsockname()
        return f"{host}:{bound}"

    async def ready(self, sites: Sequence[str]) -> None:
        while not all(site in self._wires for site in sites):
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """As good as dead: what is under way is left as it is."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for wire in list(self._wires.values()):
            await wire.close()
        self._log.close()

    def transaction(self, unit: str) -> "Transaction":
        return Transaction(self, unit)

    # -- words -----------------------------------------------------------------------------------

    def _heard(self, wire: _Wire, message: ToCoordinator) -> None:
        if isinstance(message, Hello):
            self._wires[message.site] = wire
            self._changed.set()
            for unit in message.prepared:
                if unit not in self._voting:
                    self._tell(message.site, unit, commit=unit in self._log.committed)
        elif (found := self._waiting.pop(message.number, None)) is not None and not found[1].done():
            found[1].set_result(message)

    def _lost(self, wire: _Wire) -> None:
        for site in [site for site, each in self._wires.items() if each is wire]:
            del self._wires[site]
        for number in [number for number, (each, _) in self._waiting.items() if each is wire]:
            _, future = self._waiting.pop(number)
            if not future.done():
                future.set_exception(Gone())

    def _ask(self, site: str, make: Callable[[int], ToParticipant]) -> "asyncio.Future[Said]":
        future: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        wire = self._wires.get(site)
        if wire is None:
            future.set_exception(Gone())
            return future
        number = next(self._numbers)
        self._waiting[number] = wire, future
        wire.say(make(number))
        return future

    # -- transactions ----------------------------------------------------------------------------

    async def attempt(self, site: str, operations: tuple[Operation, ...]) -> bytes:
        said = await self._ask(site, lambda number: Attempt(number, operations))
        if said.error:
            raise Aborted(said.error)
        return said.result

    async def commit(self, unit: str, operations: Sequence[Operation]) -> None:
        """Returns when it is decided and logged; participants are told behind the caller's back."""
        parts: dict[str, list[Operation]] = {}
        for each in operations:
            parts.setdefault(each.site, []).append(each)
        self._voting[unit] = None
        try:
            votes = await asyncio.gather(
                *(self._prepare(site, unit, tuple(own)) for site, own in parts.items()),
                return_exceptions=True,
            )
            errors = [_error_of(vote) for vote in votes]
            why = next(filter(None, errors), "")
            if self.before_decision is not None:
                await self.before_decision()
            if not why:
                await self._log.commit(unit)
        finally:
            del self._voting[unit]
        if not why:
            self._telling[unit] = set(parts)
        for site in parts:
            self._tell(site, unit, commit=not why)
        if why:
            raise Aborted(why)

    def _prepare(self, site: str, unit: str, operations: tuple[Operation, ...]) -> "asyncio.Future[Said]":
        return self._ask(site, lambda number: Prepare(number, unit, operations))

    def _tell(self, site: str, unit: str, *, commit: bool) -> None:
        """Who is not there asks when it is back."""
        task = asyncio.ensure_future(self._end(site, unit, commit=commit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, site: str, unit: str, *, commit: bool) -> None:
        with contextlib.suppress(Gone):
            said = await self._ask(site, lambda number: Decide(number, unit, commit))
            if said.error:
                raise BenchError(f"{site} cannot end {unit}: {said.error}")
            if (owing := self._telling.get(unit)) is not None:
                owing.discard(site)
                if not owing:
                    del self._telling[unit], self._log.committed[unit]


def _error_of(vote: Said | BaseException) -> str:
    match vote:
        case Said():
            return vote.error
        case Gone():
            return "a participant is gone"
        case _:
            raise vote


class Transaction:
    """As an action's handle: each operation is attempted behind those before it, and commits at the end."""

    def __init__(self, by: Coordinator, unit: str) -> None:
        self._by = by
        self._unit = unit
        self._operations: list[Operation] = []

    async def at(self, site: str, operation: BoundOperation[R]) -> R:
        before = [each for each in self._operations if each.site == site]
        result = await self._by.attempt(site, (*before, operation.at(site)))
        self._operations.append(operation.at(site, seen_of(result)))
        return operation.result(result)

    def add(self, site: str, operation: BoundOperation[Any]) -> None:
        self._operations.append(operation.at(site))

    async def commit(self) -> None:
        await self._by.commit(self._unit, self._operations)


# -- a participant -------------------------------------------------------------------------------


class Keys:
    """Who is prepared has its keys to itself; who comes later waits in turn."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    async def take(self, keys: Sequence[str]) -> None:
        taken: list[str] = []
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                for key in sorted(keys):
                    await self._locks.setdefault(key, asyncio.Lock()).acquire()
                    taken.append(key)
        except BaseException:
            self.give(taken)
            raise

    def give(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._locks[key].release()


class Worker:
    """A participant's process: it does as the coordinator says, and finds it again when it is lost."""

    def __init__(self, site: str, participant: Participant, address: str) -> None:
        self.site = site
        self._participant = participant
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._keys = Keys()
        self._prepared: dict[str, tuple[Operation, ...]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wire: _Wire | None = None
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        if self._wire is not None:
            await self._wire.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def open(self) -> None:
        for each in (await self._participant.recover()).prepared:
            await self._keys.take(_keys_of(each.operations))
            self._prepared[each.unit.name] = each.operations
        await self._connect()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, wire = await loop.create_connection(
                    lambda: _Wire(ToParticipant, self._heard, self._lost), self._host, self._port
                )
            except OSError:
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            self._wire = wire
            wire.say(Hello(self.site, tuple(self._prepared)))
            return

    def _lost(self, _: _Wire) -> None:
        self._wire = None
        if self._is_open:
            self._spawn(self._connect())

    def _heard(self, wire: _Wire, message: ToParticipant) -> None:
        self._spawn(self._do(wire, message))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    async def _do(self, wire: _Wire, message: ToParticipant) -> None:
        said = Said(message.number)
        try:
            match message:
                case Attempt(number, operations):
                    said = Said(number, (await self._participant.attempt(operations))[-1])
                case Prepare(_, unit, operations):
                    await self._prepare(unit, operations)
                case Decide(_, unit, commit):
                    await self._end(unit, commit=commit)
        except Exception as error:  # noqa: BLE001 - a vote no, or told to who asks
            said = Said(message.number, error=str(error) or type(error).__name__)
        if wire is self._wire:
            wire.say(said)
        elif isinstance(message, Prepare):
            await self._end(message.unit, commit=False)  # it has not voted, so it may

    async def _prepare(self, unit: str, operations: tuple[Operation, ...]) -> None:
        await self._keys.take(_keys_of(operations))
        try:
            await self._participant.prepare(Unit(unit, _CHAIN), operations)
        except BaseException:
            self._keys.give(_keys_of(operations))
            raise
        self._prepared[unit] = operations

    async def _end(self, unit: str, *, commit: bool) -> None:
        operations = self._prepared.get(unit)
        if operations is None:
            return  # it was not prepared, or has ended before
        if commit:
            await self._participant.commit(Unit(unit, _CHAIN), operations)
        else:
            await self._participant.abort(Unit(unit, _CHAIN))
        if self._prepared.pop(unit, None) is not None:
            self._keys.give(_keys_of(operations))


def _keys_of(operations: Sequence[Operation]) -> list[str]:
    return sorted({key for each in operations for key in each.keys or ()})
