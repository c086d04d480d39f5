"""How are rows written that come from an event loop which must not wait?

The loop puts a row in a queue; a thread makes columns of what has come, and writes them. The queue is
bounded: when the thread is behind, rows are dropped and counted, and the next row that fits is a *gap* that
says so. Whatever goes wrong in the thread ends the recording, never the process.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import quote

import pyarrow as pa

from ordering.recording import TableRecorder
from rsm.logs import logger

log = logger(__name__)

T = TypeVar("T")

ROWS_WAITING_MAX: Final = 1 << 16
ROWS_AT_ONCE: Final = 1_024  # the interpreter is not kept for longer
FLUSH_SECONDS: Final = 0.25
CLOSE_SECONDS: Final = 10.0


class Writer(ABC):
    """One named recording, from ``start`` to ``finish``: a thread that writes what has come."""

    def __init__(
        self,
        directory: Path,
        name: str,
        schema: pa.Schema,
        *,
        bytes_max: int,
        flush_seconds: float = FLUSH_SECONDS,
        rows_per_file: int = 100_000,
    ) -> None:
        self.directory = directory
        self.name = quote(name, safe="")
        self.rows = 0  # written
        self.error: str | None = None
        self._schema = schema
        self._bytes_max = bytes_max
        self._flush_seconds = flush_seconds
        self._rows_per_file = rows_per_file
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rsm-recording", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """No more rows come; what is there is written. Blocks, so not in the loop."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self.fail(TimeoutError(f"the disk did not take the last rows in {CLOSE_SECONDS:.0f} s"))

    def fail(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = f"{type(error).__name__}: {error}"
        self._clear()
        log.error("the recording stopped", directory=str(self.directory), error=self.error)

    @abstractmethod
    def _clear(self) -> None:
        """Nothing will be written any more."""

    # -- in the thread ---------------------------------------------------------------------------

    def _open(self) -> TableRecorder:
        return TableRecorder(
            self.directory,
            self.name,
            self._schema,
            rows_per_file=self._rows_per_file,
            bytes_max=self._bytes_max,
        )

    @abstractmethod
    def _drain(self, recorder: TableRecorder) -> None:
        """Write what was there when it began: more may come faster than it goes."""

    def _end(self, recorder: TableRecorder) -> None:
        """Write what is left."""
        self._drain(recorder)

    def _run(self) -> None:
        recorder: TableRecorder | None = None
        try:
            recorder = self._open()
            while not self._closing.wait(self._flush_seconds) and self.error is None:
                self._drain(recorder)
            self._end(recorder)
            recorder.close()
        except Exception as error:  # noqa: BLE001 - a full disk or a defect: the process goes on without
            self.fail(error)
            if recorder is not None:
                recorder.abandon()


class RowWriter(Writer, Generic[T]):
    """Rows that nobody keeps: what finds the queue full is dropped."""

    def __init__(
        self,
        directory: Path,
        name: str,
        schema: pa.Schema,
        *,
        bytes_max: int,
        rows_waiting_max: int = ROWS_WAITING_MAX,
        flush_seconds: float = FLUSH_SECONDS,
        rows_per_file: int = 100_000,
    ) -> None:
        super().__init__(
            directory,
            name,
            schema,
            bytes_max=bytes_max,
            flush_seconds=flush_seconds,
            rows_per_file=rows_per_file,
        )
        self.dropped = 0
        self._rows_waiting_max = rows_waiting_max
        self._queue: deque[T] = deque()
        self._missing = 0  # rows dropped since the last that was kept,
        self._missing_since = 0  # and when that began

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def _put(self, row: T, at_ns: int) -> None:
        queue = self._queue
        if len(queue) >= self._rows_waiting_max:
            if not self._missing:
                self._missing_since = at_ns
            self._missing += 1
            self.dropped += 1
            return
        if self._missing:
            queue.append(self._gap())
        queue.append(row)

    def _gap(self) -> T:
        missing, self._missing = self._missing, 0
        return self._gap_row(missing, self._missing_since)

    @abstractmethod
    def _gap_row(self, missing: int, since_ns: int) -> T:
        """So many rows are missing here, since then."""

    @abstractmethod
    def _columns(self, rows: Sequence[T]) -> pa.RecordBatch:
        """As the schema has them."""

    def _clear(self) -> None:
        self._queue.clear()

    def _drain(self, recorder: TableRecorder) -> None:
        queue = self._queue
        left = len(queue)
        while left:
            count = min(left, ROWS_AT_ONCE)
            rows = [queue.popleft() for _ in range(count)]
            recorder.write(self._columns(rows))
            self.rows += count
            left -= count

    def _end(self, recorder: TableRecorder) -> None:
        self._drain(recorder)
        if self._missing:
            self._queue.append(self._gap())
            self._drain(recorder)
