"""A durable replica's storage as its event loop sees it: nothing here waits for a disk.

A ``Disk`` is opened once and closed once. In between it may be wiped, when the membership it belonged to is
over: the next one begins with an empty log (``docs/durability.md``).
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from ordering.records import Entry, Ledger, Record
from rsm.config import ReplicaConfig
from rsm.executor import Executor
from rsm.logs import logger
from rsm.pace import unwatched
from rsm.storage import StorageStats, Store, Writer
from rsm.storage.errors import StorageError

log = logger(__name__)

_DIGEST_BYTES: Final = 4
ROW_BYTES: Final = 1024  # about what a row of the log costs beside its messages when it is read back


class Came(msgspec.Struct, frozen=True):
    """What the disk had. ``ledger`` is None for a site that begins anew; ``snapshot`` is the executor's."""

    ledger: Ledger | None = None
    snapshot: list[bytes] | None = None

    def restore(self, executor: Executor) -> None:
        """From the snapshot, if there is one. What was read of it is let go, so that it does not stand beside
        the state it becomes."""
        if self.snapshot is not None:
            self.snapshot.reverse()
            with unwatched():
                executor.restore(_drained(self.snapshot))


def _drained(held: list[bytes]) -> Iterator[bytes]:
    while held:
        yield held.pop()


class Disk:
    def __init__(self, config: ReplicaConfig) -> None:
        assert config.data is not None
        self._directory = config.data
        self._url = config.database
        self._group = config.group
        self._snapshot_bytes = config.snapshot_bytes
        self._loop = asyncio.get_running_loop()
        self.stats = StorageStats()
        self.unsaved = 0  # bytes executed since the last snapshot was begun: what a restart would go through
        self._is_saving = False
        self._writer: Writer | None = None
        self._answers: dict[int, Callable[[StorageError | None], None]] = {}
        self._saving = asyncio.Lock()

    async def open(self) -> Came:
        """Take the directory, and read and verify what is there."""
        return await self._take()

    async def _take(self, *, wipe: bool = False) -> Came:
        opening = asyncio.ensure_future(asyncio.to_thread(lambda: self._open(wipe=wipe)))
        try:
            await _ended(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                opening.result()[0].close()
            raise
        store, came = opening.result()
        self.unsaved = 0
        self._writer = Writer(store, self._loop, self._answer, stats=self.stats)
        return came

    def _open(self, *, wipe: bool = False) -> tuple[Store, Came]:
        store = Store.open(self._directory, self._url, group=self._group)
        try:
            restored = store.restore()
            for note in restored.notes:
                log.warning("the log was mended", group=self._group, data=str(self._directory), what=note)
            if restored.amnesiac is not None:
                log.error(
                    "this site has forgotten what it claimed; it begins anew",
                    group=self._group,
                    data=str(self._directory),
                    why=restored.amnesiac,
                )
            if wipe or restored.amnesiac is not None or restored.ledger.began is None:
                store.wipe()  # also of a snapshot without a log: a state that was taken over too late
                return store, Came()
            found = store.load_snapshot()
            return store, Came(restored.ledger, None if found is None else list(found[1]))
        except BaseException:
            store.close()
            raise

    async def wipe(self) -> None:
        """The site is over, and its log with it."""
        await self.close()
        await self._take(wipe=True)

    async def close(self) -> None:
        """Finish the log; a snapshot that is being saved is left out."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await _ended(asyncio.ensure_future(asyncio.to_thread(writer.close)))
        self._answers.clear()

    # -- writing ---------------------------------------------------------------------------------

    def persist(
        self, seq: int, records: tuple[Record, ...], done: Callable[[StorageError | None], None]
    ) -> None:
        """``done`` is called in the loop: the records are synced, or nobody knows whether they are."""
        if self._writer is None:
            return
        self._answers[seq] = done
        self._writer.submit(seq, records)

    def _answer(self, seq: int, error: StorageError | None) -> None:
        done = self._answers.pop(seq, None)
        if done is not None:
            done(error)

    async def blocks(self, since: int, blocks_max: int, bytes_max: int) -> list[Entry]:
        """The first blocks of the log that have a slot behind ``since``; read in the writer's thread."""
        found: asyncio.Future[list[Entry]] = self._loop.create_future()

        def look(store: Store) -> None:
            blocks: list[Entry] = []
            failure: StorageError | None = None
            try:
                blocks = store.blocks(since, blocks_max, bytes_max)
            except StorageError as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
                self._loop.call_soon_threadsafe(tell, blocks, failure)

        def tell(blocks: list[Entry], failure: StorageError | None) -> None:
            if found.done():
                return
            if failure is None:
                found.set_result(blocks)
            else:
                found.set_exception(failure)

        if self._writer is None:
            raise StorageError("the disk was closed")
        self._writer.look(look)
        return await found

    @property
    def tenure(self) -> object:
        """Stands for the membership whose disk this is; another when it was emptied."""
        return self._writer

    def executed(self, size: int, rows: int) -> None:
        """So many bytes, of so many rows of the log."""
        self.unsaved += size + rows * ROW_BYTES

    def begins_snapshot(self, *, wanted: bool = False) -> bool:
        """Whether a snapshot is to be saved now: one at a time, and however large the state is, snapshots
        write no more than the log does, unless one is ``wanted``. ``ends_snapshot`` follows, whatever
        becomes of it."""
        due = self.unsaved >= max(self._snapshot_bytes, self.stats.snapshot_bytes)
        begins = not self._is_saving and (due or wanted)
        if begins:
            self.unsaved, self._is_saving = 0, True
        return begins

    def ends_snapshot(self) -> None:
        self._is_saving = False

    async def save(self, ts: int, chunks: Iterable[bytes], digest: int, tenure: object) -> None:
        """Save a snapshot, one at a time; it is synced when this returns. ``tenure`` is from when the state
        was looked at. The chunks are read in another thread."""
        async with self._saving:
            saved: asyncio.Future[None] = self._loop.create_future()

            def done(_: int, error: StorageError | None) -> None:
                if saved.done():
                    return
                if error is None:
                    saved.set_result(None)
                else:
                    saved.set_exception(error)

            writer = self._writer
            if writer is None or writer is not tenure:
                raise StorageError("the disk was closed, or emptied for another membership")
            writer.save_snapshot(ts, chunks, digest.to_bytes(_DIGEST_BYTES, "big"), done)
            await saved


async def _ended(work: "asyncio.Future[Any]") -> None:
    """Wait for a thread, to its end also when cancelled: nobody else would know that it has the directory."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
