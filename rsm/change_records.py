"""What happened to the keys of a machine, recorded by its replicas, off the way of commands.

A machine that offers a ``RecordedHistory`` is recorded by a replica whose ``recording`` is on: first how
everything was (``base``), as of the first slot that the machine still knows of, then every change in order,
read a few times a second from the history that it keeps anyway. If that was forgotten before it was read, or
another state has taken its place, a ``gap`` and a new base follow. Old files may go, so there is another base
now and then. Rows are made and written in a thread, to
``RECORDING/changes/NAME-…``, as events are (``ordering.recording``).

==================  ===================  =========================================================
``schema_version``  uint16               1
``chain``           uint64
``site``            uint64               who tells this row
``boot``            fixed binary, 16     boot of ``site``
``kind``            string, dictionary   ``put``, ``delete``, ``expire``; ``base``: it was so at ``ts``;
                                         without a key it begins a base, of as many rows as ``version``
                                         says; ``gap``: behind ``ts`` changes are missing, up to the next
                                         base; ``reached``: nothing else has happened up to ``ts``
``ts``              int64                slot of the change; of a base, the one it is as of
``key``             binary
``value``           binary               up to 64 KiB of it
``created``         int64                slot in which the key was created
``version``         int64                how often it was written since
``lease``           int64                0: none
``time_ns``         int64                the group's time at ``ts``, if it was executed here
``wall_ns``         int64                wall clock of the site when the row was read
``revision``        int64                slot of the change that made it so: ``ts`` but for bases
``value_bytes``     int64                length of the whole value
``value_digest``    fixed binary, 16     blake2b of the whole value, if it was cut
==================  ===================  =========================================================
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain as chained
from itertools import islice
from pathlib import Path
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from ordering.effects import Delivery
from ordering.recording import BOOT_BYTES, TableRecorder
from ordering.views import Member
from rsm.recorded_history import Changed, RecordedHistory
from rsm.recorded_rows import CLOSE_SECONDS, Writer

if TYPE_CHECKING:
    from rsm.executor import Executor

FOLDER: Final = "changes"
SCHEMA_VERSION: Final = 1
VALUE_BYTES_MAX: Final = 64 << 10
DIGEST_BYTES: Final = 16
POLL_SECONDS: Final = 0.1
REACHED_SECONDS: Final = 1.0
PAGE: Final = 2_048  # changes that are read at a time
PAGES_WAITING_MAX: Final = 8
ROWS_AT_ONCE: Final = 256
TIMES_MAX: Final = 1 << 16
AHEAD_MAX: Final = 1 << 14  # changes that are kept for the next reading
BASE_ROWS: Final = 1 << 20  # at least, between two bases
_WORD: Final = pa.dictionary(pa.int16(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("schema_version", pa.uint16(), nullable=False),
        pa.field("chain", pa.uint64(), nullable=False),
        pa.field("site", pa.uint64(), nullable=False),
        pa.field("boot", pa.binary(BOOT_BYTES), nullable=False),
        pa.field("kind", _WORD, nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("created", pa.int64()),
        pa.field("version", pa.int64()),
        pa.field("lease", pa.int64()),
        pa.field("time_ns", pa.int64()),
        pa.field("wall_ns", pa.int64(), nullable=False),
        pa.field("revision", pa.int64()),
        pa.field("value_bytes", pa.int64()),
        pa.field("value_digest", pa.binary(DIGEST_BYTES)),
    ]
)


_NOTHING: Final = Changed("", 0, b"")
State: TypeAlias = tuple["Executor", Member]
Times: TypeAlias = tuple[int, int, int]  # first and last slot of a delivery, and when it was


class Teller(NamedTuple):
    chain: int
    site: int
    boot: bytes


class Place(NamedTuple):
    """What is followed."""

    history: RecordedHistory
    teller: Teller
    executor: "Executor"


class Told(NamedTuple):
    """A row, but for what all rows of a page share."""

    kind: str
    ts: int
    changed: Changed | None = None
    entries: int | None = None
    time_ns: int | None = None


class Page(NamedTuple):
    """``rows`` are made in the thread."""

    teller: Teller
    wall_ns: int
    rows: Iterable[Told]


class ChangeWriter(Writer):
    """Pages wait until they are written; who reads them reads no more meanwhile."""

    def __init__(self, directory: Path, name: str, *, bytes_max: int) -> None:
        super().__init__(directory / FOLDER, name, SCHEMA, bytes_max=bytes_max)
        self._pages: deque[Page] = deque()

    @property
    def has_room(self) -> bool:
        return len(self._pages) < PAGES_WAITING_MAX

    def put(self, page: Page) -> None:
        if self.error is None:
            self._pages.append(page)

    def _clear(self) -> None:
        self._pages.clear()

    def _drain(self, recorder: TableRecorder) -> None:
        for _ in range(len(self._pages)):
            teller, wall_ns, rows = self._pages[0]
            remaining = iter(rows)
            while some := list(islice(remaining, ROWS_AT_ONCE)):
                recorder.write(columns(teller, wall_ns, some))
                self.rows += len(some)
            self._pages.popleft()


class ChangeRecords:
    """Follows the machine of one replica, over all of its states. ``state``: the executor and whose it is,
    while that has the state of its group."""

    def __init__(
        self,
        directory: Path,
        name: str,
        state: Callable[[], State | None],
        *,
        bytes_max: int,
    ) -> None:
        self.writer = ChangeWriter(directory, name, bytes_max=bytes_max)
        self._state = state
        self._seen: State | None = None  # the newest, by whom the last command was executed
        self._history: RecordedHistory | None = None
        self._teller: Teller | None = None
        self._next = 0  # number of the change that is to come
        self._ahead: list[Any] = []  # changes before it that are not told yet
        self._applied = 0  # the last slot that was executed
        self._last = 0  # everything up to this slot was read,
        self._told = 0  # and up to this one told
        self._told_at = 0.0
        self._base_due = 0  # behind so many rows there is another base, for old files may go
        self._late: RecordedHistory | None = None  # what it keeps is forgotten before it is read
        self._seen_times: deque[Times] = deque(maxlen=TIMES_MAX)  # of the newest state,
        self._times = self._seen_times  # and of that which is followed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.writer.start()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def executed(self, delivery: Delivery, state: State) -> None:
        """A change knows its slot; this is when that was. What has changed is kept, by reference, for it may
        soon be forgotten: somebody may compact the store."""
        self._see(state)
        executor, _ = state
        last = delivery.first_ts + len(delivery.messages) - 1
        self._seen_times.append((delivery.first_ts, last, executor.group.time))
        history = self._history
        if history is None or executor.machine.recorded_history() is not history:
            return
        self._applied = executor.applied
        try:
            found = history.since(self._next, max(AHEAD_MAX - len(self._ahead), 0))
        except Exception as error:  # noqa: BLE001 - as in ``_run``
            self._history = None
            self.writer.fail(error)
        else:
            if found:
                self._ahead += found
                self._next += len(found)

    def _see(self, state: State) -> None:
        """Slots of another state may be lower, and have other times."""
        if self._seen is not None and self._seen[0] is not state[0]:
            self._seen_times = deque(maxlen=TIMES_MAX)
        self._seen = state

    async def finish(self) -> None:
        """What has happened is read to its end, and written."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        until = monotonic() + CLOSE_SECONDS
        try:
            while self.writer.error is None and monotonic() < until:
                if not self.writer.has_room:
                    await asyncio.sleep(POLL_SECONDS)
                elif not await self._follows_last() or (not self._read() and self._history is not None):
                    break
            self._reach(self._last)
        except Exception as error:  # noqa: BLE001 - as in ``_run``
            self.writer.fail(error)
        await asyncio.to_thread(self.writer.finish)

    # -- reading ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self.writer.error is None:
            try:
                while await self._step():
                    await asyncio.sleep(0)
            except Exception as error:  # noqa: BLE001 - a defect in here ends the recording, not the replica
                self.writer.fail(error)
            await asyncio.sleep(POLL_SECONDS)

    async def _step(self) -> bool:
        """Whether there is more to read at once."""
        state = self._state()
        if state is None or not self.writer.has_room or (place := _place_of(state)) is None:
            return False
        self._see(state)
        if not self._is_at(place):
            return await self._follow(place)
        if self._read() == PAGE or self._history is None:
            return True
        if self.writer.rows < self._base_due or self._next < place.history.end():
            return False
        self._reach(place.executor.applied)  # the base is as of that slot, and nothing is between
        return await self._begin(place, now=True)

    async def _follows_last(self) -> bool:
        """Whether the newest state is what is followed. It may have come and gone between two looks at it."""
        if self._seen is None or (place := _place_of(self._seen)) is None:
            return self._history is not None
        return self._is_at(place) or await self._follow(place)

    def _is_at(self, place: Place) -> bool:
        return place.history is self._history and place.teller == self._teller

    async def _follow(self, place: Place) -> bool:
        is_same = place.history is self._history  # in another chain: what happened before is of the last one
        while not is_same and self._read():
            pass  # nobody comes back to it
        self._end()
        return await self._begin(place, now=is_same)

    def _end(self) -> None:
        """Nothing more comes of what was followed."""
        if self._teller is not None:
            self._put([Told("gap", self._last)])
        self._history = self._teller = None
        self._ahead = []

    async def _begin(self, place: Place, *, now: bool = False) -> bool:
        """A base: entries as they are when their turn comes, and those that are changed behind the slot that
        it is as of, as they were there. That is the first which the machine still knows of; if too much
        happens meanwhile, it is now."""
        history, teller, executor = place
        times = self._seen_times
        is_late = now or self._late is history
        first, as_of = (history.end(), executor.applied) if is_late else history.start()
        copied: list[Sequence[Any]] = []
        changed: list[Any] = []
        for some in chained(history.slices(), [()]):
            copied.append(some)
            await asyncio.sleep(0)
            following = first + len(changed)
            more = history.since(following, history.end() - following)
            if more is None:
                self._late = history
                return True
            changed += more
        self._late, self._times = None, times
        self._history, self._teller, self._last, self._applied = history, teller, as_of, executor.applied
        self._ahead, self._next = list(changed), first + len(changed)
        self._put(_base(history, as_of, copied, changed))
        self._base_due = self.writer.rows + max(BASE_ROWS, 4 * sum(map(len, copied)))
        return True

    def _reach(self, slot: int) -> None:
        """All that happened up to there was read."""
        self._last = max(self._last, slot)
        if self._last > self._told:
            self._put([Told("reached", self._last)])

    def _read(self) -> int:
        """The next changes, and how many."""
        history = self._history
        if history is None:
            return 0
        changes, self._ahead = self._ahead[:PAGE], self._ahead[PAGE:]
        if not changes:
            behind = history.since(self._next, PAGE)
            if behind is None:
                self._end()
                return 0
            changes = list(behind)
            self._next += len(changes)
        if changes:
            self._last = history.change_of(changes[-1]).revision
            self._put(_changes(history, changes, self._take_times(self._last)))
        else:
            self._last = max(self._last, self._applied)
            if self._last > self._told and monotonic() - self._told_at > REACHED_SECONDS:
                self._put([Told("reached", self._last)])
        return len(changes)

    def _take_times(self, until: int) -> list[Times]:
        """Of slots up to this one. What it shares a delivery with may still be to come."""
        times, taken = self._times, []
        while times and times[0][1] <= until:
            taken.append(times.popleft())
        return [*taken, times[0]] if times else taken

    def _put(self, rows: Iterable[Told]) -> None:
        assert self._teller is not None
        self._told_at, self._told = monotonic(), self._last
        self.writer.put(Page(self._teller, time_ns(), rows))


def _place_of(state: State) -> Place | None:
    executor, member = state
    history = executor.machine.recorded_history()
    if history is None or not executor.group.chain:
        return None
    teller = Teller(executor.group.chain, member.site, member.boot.to_bytes(BOOT_BYTES, "big"))
    return Place(history, teller, executor)


# -- in the thread -------------------------------------------------------------------------------


def _base(
    history: RecordedHistory, as_of: int, copied: list[Sequence[Any]], changed: Sequence[Any]
) -> Iterator[Told]:
    before: dict[bytes, Any] = {}  # of each key that was changed meanwhile, what the first change found
    for change in changed:
        before.setdefault(history.change_of(change).key, history.before(change))
    entries = [
        entry
        for entry in map(history.entry_of, chained.from_iterable(copied))
        if entry.key not in before and entry.revision <= as_of
    ]
    entries += [history.entry_of(entry) for entry in before.values() if entry is not None]
    yield Told("base", as_of, None, len(entries))
    for entry in entries:
        yield Told("base", as_of, entry)


def _changes(history: RecordedHistory, changes: Sequence[Any], times: list[Times]) -> Iterator[Told]:
    ends = [last for _, last, _ in times]
    for change in map(history.change_of, changes):
        place = bisect_left(ends, change.revision)
        known = place < len(times) and times[place][0] <= change.revision
        yield Told(change.kind, change.revision, change, None, times[place][2] if known else None)


def columns(teller: Teller, wall_ns: int, rows: Sequence[Told]) -> pa.RecordBatch:
    """Rows as the schema has them."""
    count = len(rows)
    found = [row.changed or _NOTHING for row in rows]
    values = [each.value for each in found]
    made: dict[str, Any] = {
        "schema_version": [SCHEMA_VERSION] * count,
        "chain": [teller.chain] * count,
        "site": [teller.site] * count,
        "boot": [teller.boot] * count,
        "kind": pa.array([row.kind for row in rows], pa.string()).dictionary_encode().cast(_WORD),
        "ts": [row.ts for row in rows],
        "key": [None if row.changed is None else row.changed.key for row in rows],
        "value": [None if value is None else value[:VALUE_BYTES_MAX] for value in values],
        "created": [each.created for each in found],
        "version": [
            each.version if row.entries is None else row.entries
            for row, each in zip(rows, found, strict=True)
        ],
        "lease": [each.lease for each in found],
        "time_ns": [row.time_ns for row in rows],
        "wall_ns": [wall_ns] * count,
        "revision": [None if row.changed is None else row.changed.revision for row in rows],
        "value_bytes": [None if value is None else len(value) for value in values],
        "value_digest": [_digest(value) for value in values],
    }
    arrays = [
        each if isinstance(each := made[field.name], pa.Array) else pa.array(each, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _digest(value: bytes | None) -> bytes | None:
    if value is None or len(value) <= VALUE_BYTES_MAX:
        return None
    return blake2b(value, digest_size=DIGEST_BYTES).digest()
