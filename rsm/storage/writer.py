"""The thread that writes, so that the event loop never waits for a disk.

Log writes that wait together become one transaction. A snapshot is saved chunk by chunk between them. Answers
come back into the loop, all of a transaction with one wake-up. After an error everything that waits, and
everything that is handed over later, is answered with it (fail-stop).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import monotonic, monotonic_ns
from typing import TypeAlias

import msgspec

from ordering.records import Record
from rsm.histogram import Histogram
from rsm.storage.errors import StorageError, StorageFailed, StorageMisuse, WriterFull
from rsm.storage.rows import SnapshotInfo
from rsm.storage.store import Store

Done: TypeAlias = Callable[[int, StorageError | None], None]
Answer: TypeAlias = tuple[Done, int, StorageError | None]

WAITING_MAX = 64
LOOKS_MAX = 4
_SIZED_SECONDS = 1.0


class StorageStats:
    """What was written so far. The writer's thread counts, anybody may look."""

    def __init__(self) -> None:
        self.sync = Histogram()
        self.bytes_used = 0
        self.snapshots = 0
        self.snapshot_slot = 0
        self.snapshot_bytes = 0
        self.snapshot_at = 0.0  # monotonic; 0: not in this process

    def found(self, saved: SnapshotInfo | None, at: float = 0.0) -> None:
        """The latest snapshot, if there is one."""
        self.snapshot_slot, self.snapshot_bytes = (0, 0) if saved is None else (saved.ts, saved.length)
        self.snapshot_at = at


class Snapshot(msgspec.Struct):
    """A snapshot to be saved; ``steps`` once that has begun."""

    ts: int
    chunks: Iterable[bytes]
    digest: bytes
    done: Done
    steps: Iterator[None] | None = None


class Writer:
    """Owns a restored store from now on. ``on_done`` is called in the loop, with the ``seq`` that was
    submitted and the error, if there was one."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        on_done: Done,
        *,
        waiting_max: int = WAITING_MAX,
        stats: StorageStats | None = None,
    ) -> None:
        self._store = store
        self._loop = loop
        self._on_done = on_done
        self._waiting_max = waiting_max
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, tuple[Record, ...]]] = deque()
        self._snapshot: Snapshot | None = None
        self._looks: deque[Callable[[Store], None]] = deque()
        self._closing = False
        self._error: StorageError | None = None
        self.commits = 0
        self.stats = StorageStats() if stats is None else stats
        self.stats.found(store.snapshot)
        self._sized_at = 0.0
        self._thread = threading.Thread(target=self._run, name="rsm-storage", daemon=True)
        self._thread.start()

    def submit(self, seq: int, records: tuple[Record, ...]) -> None:
        """Write the records behind those of every earlier call."""
        with self._changed:
            self._check_open()
            if len(self._waiting) >= self._waiting_max:
                raise WriterFull(f"{self._waiting_max} writes wait for the disk; wait for an answer")
            self._waiting.append((seq, records))
            self._changed.notify()

    def save_snapshot(self, ts: int, chunks: Iterable[bytes], digest: bytes, on_saved: Done) -> None:
        """Save chunk by chunk; ``on_saved`` is called with ``ts`` once it is complete. ``chunks`` is iterated
        in the writer's thread, and the log waits for each: it must not touch a state that still changes."""
        with self._changed:
            self._check_open()
            if self._snapshot is not None:
                raise WriterFull("a snapshot is being saved already; wait for it")
            self._snapshot = Snapshot(ts, chunks, digest, on_saved)
            self._changed.notify()

    def look(self, action: Callable[[Store], None]) -> None:
        """Have the store read from, between two writes: it belongs to the writer's thread. What the action
        raises is its own business."""
        with self._changed:
            self._check_open()
            if len(self._looks) >= LOOKS_MAX:
                raise WriterFull(f"{LOOKS_MAX} readers wait for the disk; try again")
            self._looks.append(action)
            self._changed.notify()

    def close(self) -> None:
        """Write what was handed over to the log, then close the store. Blocks until that is done. A snapshot
        that is not complete is left out: it may be large, and nothing depends on it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _check_open(self) -> None:
        if self._closing:
            raise StorageMisuse("the writer is closed")

    # -- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        finally:
            self._store.close()

    def _step(self) -> bool:
        """Wait for work and do some of it: the writes that wait, and then a step of the snapshot."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting or self._snapshot is not None or self._looks or self._closing
            )
            batch = list(self._waiting)
            self._waiting.clear()
            snapshot = self._snapshot
            look = self._looks.popleft() if self._looks else None
            if not batch and look is None and (snapshot is None or self._closing):
                self._leave_out(snapshot)
                return False
        if batch:
            self._write(batch)
        if snapshot is not None:
            self._save(snapshot)
        if look is not None:
            look(self._store)
        return True

    def _leave_out(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            error = StorageError(
                f"the snapshot at slot {snapshot.ts} was not complete when the disk was closed"
            )
            self._answer([(snapshot.done, snapshot.ts, self._error or error)])

    def _write(self, batch: list[tuple[int, tuple[Record, ...]]]) -> None:
        began = monotonic_ns()
        error = self._attempt(lambda: self._store.write(tuple(r for _, records in batch for r in records)))
        took = monotonic_ns() - began
        self.commits += error is None
        self._answer([(self._on_done, seq, error) for seq, _ in batch])
        if error is None:
            self.stats.sync.note(took)
            self._attempt(self._store.tidy)
            self._measure()

    def _measure(self) -> None:
        now = monotonic()
        if now - self._sized_at >= _SIZED_SECONDS:
            self._sized_at = now
            with suppress(OSError):  # a figure, and no more than that
                self.stats.bytes_used = self._store.bytes_used()

    def _save(self, snapshot: Snapshot) -> None:
        """One step; a snapshot that is finished, or has failed, makes room for the next."""
        try:
            finished = self._error is not None or self._advance(snapshot)
            error = self._error
        except StorageError as failure:
            finished, error = True, failure
            if isinstance(failure, StorageFailed):
                self._error = failure
        except Exception as failure:  # noqa: BLE001 - the application's own iterator; the log is untouched
            finished, error = (
                True,
                StorageError(f"the snapshot at slot {snapshot.ts} was not made: {failure!r}"),
            )
        if finished:
            with self._changed:
                self._snapshot = None
            if error is None:
                self.stats.snapshots += 1
                self.stats.found(self._store.snapshot, monotonic())
            self._answer([(snapshot.done, snapshot.ts, error)])

    def _advance(self, snapshot: Snapshot) -> bool:
        if snapshot.steps is None:
            snapshot.steps = self._store.saving(snapshot.ts, snapshot.chunks, snapshot.digest)
        return next(snapshot.steps, self) is self

    def _attempt(self, action: Callable[[], None]) -> StorageError | None:
        if self._error is None:
            try:
                action()
            except StorageError as error:
                self._error = error
            except Exception as error:  # noqa: BLE001 - a defect; whoever waits must not wait for ever
                self._error = StorageFailed(f"the writer met a defect: {error!r}; start the process again")
        return self._error

    def _answer(self, answers: list[Answer]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(_tell, answers)


def _tell(answers: list[Answer]) -> None:
    for done, number, error in answers:
        done(number, error)
