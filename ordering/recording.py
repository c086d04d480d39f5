"""Recording v1: what sites did, as range rows, for audits, figures and the pipeline.

One row tells of a *range*: ``count`` consecutive messages of one source under consecutive
timestamps, as they were packed; never a row per message. A recording is a directory::

    NAME-000001.parquet    closed: complete, immutable, moved in place by one rename
    NAME-000002.parquet
    NAME-000003.tmp        never read: a closed file on its way
    NAME.tail.arrows       open: an Arrow stream that grows; its end may be torn by a crash
    .NAME.lock             held by who records under this name, while it lives

Several recorders may share a directory under different names. ``read_recording`` reads all of it.
No row is read twice: a tail names in its metadata the closed file it will become, and is passed over
once that file exists. Numbers only grow, also where closed files are carried away meanwhile.

Columns (null where an event has no such thing):

==================  ===================  =========================================================
``schema_version``  uint16               1
``chain``           uint64               the chain, 0 before the site has one
``site``            uint64               who tells this row
``boot``            fixed binary, 16     boot of ``site``, big-endian as on the wire
``event``           string, dictionary   see below
``epoch``           int64                view id the event happened in
``revision``        int64
``first_ts``        int64                first timestamp; null for messages without one
``count``           int64                messages in the range
``source``          uint64               whose messages
``first_seq``       int64                sequence number of the first (of its source's lane)
``qos``             string, dictionary   ``majority``, ``k=2`` …: what was asked for
``session``         int64                session of the first command in the range, if it has one
``first_request``   int64                its request number
``mono_ns``         int64                monotonic clock of the site
``wall_ns``         int64                wall clock of the site
``digest``          binary               of the application state after the event, where known
``detail``          string               free text: the view, the reason, the level reached
==================  ===================  =========================================================

Identities use 64 bits and are unsigned. Boots have 128, which no number column holds; hexadecimal
text would double them. Whatever counts is below 2⁶³ (as on the wire) and signed, which every reader
of Parquet understands.

Events:

=============  ====================================================================================
``started``    a membership begins, and with it this boot; ``detail``: ``founder``, ``joiner``, ``disk``
``submitted``  the engine accepted a range of messages, of this site or of callers outside that came to it
``abandoned``  accepted messages whose outcome this site will never know (R15)
``delivered``  a range was handed to the application; ``detail`` is the level reached
``held``       this site holds everything up to ``first_ts``, in durable mode on its disk
``retracted``  deliveries below majority with timestamps from ``first_ts`` on were taken back
``applied``    a replica's state at ``first_ts`` had this ``digest``
``replied``    the callers of a range got their replies; ``detail``: ``own``, or ``handler`` for clients
``level``      a majority holds everything up to ``first_ts``; ``detail`` is the stable timestamp
``view``       the view at slot ``first_ts`` is in force; ``detail`` lists members, voters and ring
``lock``       this site's lock, its token is ``first_ts``; ``detail``: ``granted NAME``, ``lost NAME``
``restored``   the application state at ``first_ts`` came from site ``source``
``ended``      the membership is over; ``detail`` says why
``halted``     the replica stopped by itself; ``detail`` says why
``gap``        ``count`` rows are missing before this one: the writer was behind, since ``mono_ns``
``crashed``    the process is gone, with its memory
``sample``     now and then how much was done so far, and how full everything is; ``detail``: JSON, see below
=============  ====================================================================================

``detail`` of a ``sample`` is an object of whole numbers. What counts up does so since the process began;
``first_ts`` is the last slot whose order and data are here. Names are only ever added:

======================  ===========================================================================
``datagrams_in``        and ``datagrams_out``, ``bytes_in``, ``bytes_out``: counted at the sockets
``dropped_by_kernel``   datagrams that found the receive buffer full; missing where nobody tells
``submitted``           own messages that the engine took
``delivered``           messages handed to the application
``passes``              blocks that were placed: with each the token went on
``retransmitted``       packets sent again because somebody asked for them
``nacks``               requests for what is missing
``window_messages``     and ``window_bytes``, now: own messages accepted, neither ordered nor confirmed
``buffered_slots``      now: slots kept for who may lack them, from the stable timestamp to the newest
``waiting``             now: messages delivered and not executed
``backlog_bytes``       now: the same in bytes, as the engine was told
``queued``              now: own calls that wait for room in the window
``receive_bytes``       now: bytes in the receive buffers of the sockets; missing where nobody tells
======================  ===========================================================================

The files of a recording are made by ``TableRecorder``, for rows of any schema: operations and changes are
recorded in the same way, in folders of their own (``rsm.operation_records``, ``rsm.change_records``).
"""

import fcntl
import glob
import os
import re
import weakref
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ordering.qos import Level, Qos
from ordering.views import ViewId

SCHEMA_VERSION: Final = 1
BOOT_BYTES: Final = 16
_BECOMES: Final = b"becomes"
_CLOSED: Final = re.compile(r"(?P<name>.+)-(?P<number>\d{6})\.parquet")
_TAIL_SUFFIX: Final = ".tail.arrows"
_SMALL_MAX: Final = 64
BYTES_PER_FILE: Final = 64 << 20  # of rows as they are in memory, where they stay until the file is closed
_WORD: Final = pa.dictionary(pa.int16(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("schema_version", pa.uint16(), nullable=False),
        pa.field("chain", pa.uint64(), nullable=False),
        pa.field("site", pa.uint64(), nullable=False),
        pa.field("boot", pa.binary(BOOT_BYTES), nullable=False),
        pa.field("event", _WORD, nullable=False),
        pa.field("epoch", pa.int64()),
        pa.field("revision", pa.int64()),
        pa.field("first_ts", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("source", pa.uint64()),
        pa.field("first_seq", pa.int64()),
        pa.field("qos", _WORD),
        pa.field("session", pa.int64()),
        pa.field("first_request", pa.int64()),
        pa.field("mono_ns", pa.int64(), nullable=False),
        pa.field("wall_ns", pa.int64(), nullable=False),
        pa.field("digest", pa.binary()),
        pa.field("detail", pa.string()),
    ]
)


class EventKind(StrEnum):
    """The vocabulary of the ``event`` column."""

    STARTED = "started"
    SUBMITTED = "submitted"
    ABANDONED = "abandoned"
    DELIVERED = "delivered"
    HELD = "held"
    RETRACTED = "retracted"
    APPLIED = "applied"
    REPLIED = "replied"
    LEVEL = "level"
    VIEW = "view"
    LOCK = "lock"
    RESTORED = "restored"
    ENDED = "ended"
    HALTED = "halted"
    GAP = "gap"
    CRASHED = "crashed"
    SAMPLE = "sample"


class Row(msgspec.Struct, kw_only=True):
    """One range row; ``schema_version`` is added on writing."""

    chain: int
    site: int
    boot: int
    event: EventKind
    mono_ns: int
    wall_ns: int
    view: ViewId | None = None
    first_ts: int | None = None
    count: int | None = None
    source: int | None = None
    first_seq: int | None = None
    qos: Qos | None = None
    session: int | None = None
    first_request: int | None = None
    digest: bytes | None = None
    detail: str | None = None


def qos_word(qos: Qos) -> str:
    """As ``ordering.qos.parse_qos`` reads it."""
    return f"k={qos.k}" if qos.level is Level.K_RESILIENT else qos.level.name.lower()


# How each column comes out of a row.
_COLUMNS: Final[dict[str, Callable[[Row], Any]]] = {
    "schema_version": lambda row: SCHEMA_VERSION,
    "chain": lambda row: row.chain,
    "site": lambda row: row.site,
    "boot": lambda row: row.boot.to_bytes(BOOT_BYTES, "big"),
    "event": lambda row: row.event.value,
    "epoch": lambda row: None if row.view is None else row.view.epoch,
    "revision": lambda row: None if row.view is None else row.view.revision,
    "first_ts": lambda row: row.first_ts,
    "count": lambda row: row.count,
    "source": lambda row: row.source,
    "first_seq": lambda row: row.first_seq,
    "qos": lambda row: None if row.qos is None else qos_word(row.qos),
    "session": lambda row: row.session,
    "first_request": lambda row: row.first_request,
    "mono_ns": lambda row: row.mono_ns,
    "wall_ns": lambda row: row.wall_ns,
    "digest": lambda row: row.digest,
    "detail": lambda row: row.detail,
}


class NameInUse(Exception):
    """Somebody else records under this name, in this directory."""


class TableRecorder:
    """Writes one named recording of rows of ``schema`` into a directory. ``NameInUse`` if somebody does.

    What is written is in the tail and survives the process. ``rotate()`` makes it a closed file, which
    survives the machine; it comes by itself behind so many rows or bytes. Closed files above ``bytes_max``
    go, the oldest first; the newest stays.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        schema: pa.Schema,
        *,
        rows_per_file: int = 100_000,
        bytes_per_file: int = BYTES_PER_FILE,
        bytes_max: int | None = None,
    ) -> None:
        self.directory = directory
        self.name = name
        self.schema = schema
        self.rows_per_file = rows_per_file
        self.bytes_per_file = bytes_per_file
        self.bytes_max = bytes_max
        directory.mkdir(parents=True, exist_ok=True)
        self._tail_path = directory / f"{name}{_TAIL_SUFFIX}"
        self._batches: list[pa.RecordBatch] = []
        self._small = 0  # batches at the end that are not put together yet
        self._rows = self._bytes = 0
        self._number = 0  # of the newest file that was closed or begun
        self._file: BinaryIO | None = None
        self._stream: pa.RecordBatchStreamWriter | None = None
        self._free = self._locked()
        try:
            self._close_leftover()
        except BaseException:
            self._unlock()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand rows that are columns already to the operating system, behind all others."""
        if self._stream is None:
            self._open_tail()
        assert self._stream is not None
        assert self._file is not None
        self._stream.write_batch(batch)
        self._file.flush()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        self._small += 1
        if self._small == _SMALL_MAX:
            self._put_together()
        if self._rows >= self.rows_per_file or self._bytes >= self.bytes_per_file:
            self.rotate()

    def rotate(self) -> Path | None:
        """Close the tail: its rows become the next Parquet file. None if there are no rows."""
        if not self._batches:
            return None
        path = self._path(self._number)
        self._write_closed(path, pa.Table.from_batches(self._batches, self.schema))
        assert self._stream is not None
        assert self._file is not None
        self._stream.close()
        self._file.close()
        self._stream = self._file = None
        self._tail_path.unlink(missing_ok=True)
        self._batches = []
        self._rows = self._bytes = self._small = 0
        self._retain()
        return path

    def _put_together(self) -> None:
        """A batch of one row takes as much memory as one of hundreds."""
        small = pa.Table.from_batches(self._batches[-_SMALL_MAX:], self.schema)
        self._batches[-_SMALL_MAX:] = small.unify_dictionaries().combine_chunks().to_batches()
        self._small = 0

    def close(self) -> None:
        self.rotate()
        self._unlock()

    def abandon(self) -> None:
        """Write nothing more. What the tail holds stays, for whoever reads it or takes up the name."""
        file, self._file, self._stream = self._file, None, None
        if file is not None:
            with suppress(OSError):
                file.close()
        self._unlock()

    # -- files -----------------------------------------------------------------------------------

    def _locked(self) -> "weakref.finalize[[int], TableRecorder] | None":
        """What frees it; the kernel does when the process is gone. None: this file system has no locks."""
        path = self._lock_path()
        while True:
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(opened)
                raise NameInUse(
                    f"somebody else records as {self.name} in {self.directory}; give each a name of its own"
                ) from None
            except OSError:
                os.close(opened)
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(opened), path.stat()):
                    return weakref.finalize(self, os.close, opened)
            os.close(opened)  # who had it removed it between the two calls

    def _unlock(self) -> None:
        if self._free is not None and self._free.alive:
            with suppress(OSError):
                self._lock_path().unlink(missing_ok=True)
            self._free()

    def _lock_path(self) -> Path:
        return self.directory / f".{self.name}.lock"

    def _path(self, number: int) -> Path:
        return self.directory / f"{self.name}-{number:06}.parquet"

    def _next_number(self) -> int:
        numbers = [number for path, name, number in _closed_files(self.directory) if name == self.name]
        return max([self._number, *numbers]) + 1

    def _retain(self) -> None:
        if self.bytes_max is None:
            return
        sizes: dict[Path, int] = {}
        for path in [path for path, name, _ in _closed_files(self.directory) if name == self.name]:
            with suppress(FileNotFoundError):  # whoever carries recordings away may be faster
                sizes[path] = path.stat().st_size
        size = sum(sizes.values())
        for path in list(sizes)[:-1]:
            if size <= self.bytes_max:
                break
            size -= sizes[path]
            path.unlink(missing_ok=True)

    def _open_tail(self) -> None:
        self._number = self._next_number()
        schema = self.schema.with_metadata({_BECOMES: self._path(self._number).name.encode()})
        self._file = self._tail_path.open("wb")
        self._stream = pa.ipc.new_stream(self._file, schema)

    def _write_closed(self, path: Path, table: pa.Table) -> None:
        """Temporary name, sync, rename, sync of the directory: seen whole or not at all."""
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _close_leftover(self) -> None:
        """A predecessor of this name died: what its tail holds becomes the closed file that it names, and
        what never became one goes."""
        for path in self.directory.glob(f"{glob.escape(self.name)}-??????.tmp"):
            path.unlink(missing_ok=True)
        if not self._tail_path.exists():
            return
        tail = _read_tail(self._tail_path)
        named = _CLOSED.fullmatch(tail.becomes)
        is_ours = named is not None and named["name"] == self.name
        number = int(named["number"]) if named is not None and is_ours else self._next_number()
        self._number = number - 1
        if tail.batches:
            self._number = number
            if not self._path(number).exists():
                self._write_closed(self._path(number), pa.Table.from_batches(tail.batches, self.schema))
        self._tail_path.unlink(missing_ok=True)


class Recorder(TableRecorder):
    """Records events row by row. Rows gather in memory until ``rows_per_flush`` or ``flush()``."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        rows_per_flush: int = 1_000,
        rows_per_file: int = 100_000,
        bytes_per_file: int = BYTES_PER_FILE,
        bytes_max: int | None = None,
    ) -> None:
        self.rows_per_flush = rows_per_flush
        self._waiting: list[Row] = []
        super().__init__(
            directory,
            name,
            SCHEMA,
            rows_per_file=rows_per_file,
            bytes_per_file=bytes_per_file,
            bytes_max=bytes_max,
        )

    def add(self, row: Row) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= self.rows_per_flush:
            self.flush()

    def flush(self) -> None:
        """Hand all rows to the operating system."""
        if not self._waiting:
            return
        batch = _batch(self._waiting)
        self._waiting = []
        self.write(batch)

    def rotate(self) -> Path | None:
        self.flush()
        return super().rotate()


def _batch(rows: list[Row]) -> pa.RecordBatch:
    arrays = [
        pa.array([column(row) for row in rows], SCHEMA.field(name).type) for name, column in _COLUMNS.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


# -- reading -------------------------------------------------------------------------------------


class Tail(NamedTuple):
    """An open tail: the closed file it will become, and its batches as far as they are whole."""

    becomes: str
    batches: list[pa.RecordBatch]


def read_recording(directory: Path, schema: pa.Schema = SCHEMA) -> pa.Table:
    """All rows of all recorders of a directory: closed files first, then open tails.

    A tail that ends in the middle of a batch (its writer died, or is writing) gives what is whole.
    Tails are read before the closed files are listed, so a rotation in between loses nothing.
    """
    tails = [_read_tail(path) for path in sorted(directory.glob(f"*{_TAIL_SUFFIX}"))]
    closed = [path for path, _, _ in _closed_files(directory)]
    done = {path.name for path in closed}
    tables = [pq.read_table(path, schema=schema) for path in closed]
    tables += [pa.Table.from_batches(tail.batches, schema) for tail in tails if tail.becomes not in done]
    return pa.concat_tables(tables).unify_dictionaries() if tables else schema.empty_table()


def _closed_files(directory: Path) -> list[tuple[Path, str, int]]:
    """Closed files with their recorder's name and number, in order."""
    matches = [(path, _CLOSED.fullmatch(path.name)) for path in sorted(directory.glob("*.parquet"))]
    return [(path, match["name"], int(match["number"])) for path, match in matches if match is not None]


def _read_tail(path: Path) -> Tail:
    becomes = ""
    batches: list[pa.RecordBatch] = []
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            becomes = stream.schema.metadata[_BECOMES].decode()
            batches.extend(batch.replace_schema_metadata(None) for batch in stream)
    except (pa.ArrowException, OSError):
        pass  # torn, or closed meanwhile: the rest was never whole
    return Tail(becomes, batches)
