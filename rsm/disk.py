"""A durable replica's storage as its event loop sees it: nothing here waits for a disk.

A ``Disk`` is opened once and closed once. In between it may be wiped, when the membership it belonged to is
over: the next one begins with an empty log (``docs/durability.md``).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from ordering.records import Ledger, Record
from rsm.config import ReplicaConfig
from rsm.executor import Executor
from rsm.logs import logger
from rsm.pace import unwatched
from rsm.storage import StorageStats, Store, Writer
from rsm.storage.errors import StorageError

log = logger(__name__)

_DIGEST_BYTES: Final = 4


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
        self._writer: Writer | None = None
        self._answers: dict[int, Callable[[StorageError | None], None]] = {}
        self._saving = asyncio.Lock()

    async def open(self) -> Came:
        """Take the directory, and read and verify what is there."""
        store, came = await asyncio.to_thread(self._open)
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
        store, _ = await asyncio.to_thread(lambda: self._open(wipe=True))
        self._writer = Writer(store, self._loop, self._answer, stats=self.stats)

    async def close(self) -> None:
        """Finish the log; a snapshot that is being saved is left out."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.close)
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

    @property
    def tenure(self) -> object:
        """Stands for the membership whose disk this is; another when it was emptied."""
        return self._writer

    def wants_snapshot(self, unsaved: int) -> bool:
        """Whether so many bytes of log are enough: however large the state is, snapshots write no more than
        the log does."""
        return unsaved >= max(self._snapshot_bytes, self.stats.snapshot_bytes)

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
