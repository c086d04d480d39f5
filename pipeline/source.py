"""How does Spark read the recording of a replica that lives? The data source ``rsm_recording``::

    register(spark)
    spark.read.format("rsm_recording").load("recordings")
    spark.readStream.format("rsm_recording").option("maxRowsPerBatch", 100_000).load("recordings")

It gives what is there now, with the open tails, as the bronze tables have it; ``batch`` is ``live``. The
folder, and those below it, must be in reach of all executors. A file that is there under two names, by a
link, is read once; a copy is another file.

===================  =========  ====================================================================
option               else       meaning
===================  =========  ====================================================================
``path``                        the folder; also what ``load`` is given
``table``            events     events, operations or changes
``maxRowsPerBatch``  1,000,000  rows in one micro-batch, at most, of all recorders together
``rowsPerTask``      100,000    rows that one task reads, at most
``failOnDataLoss``   true       stop where something is lost; false: go on behind it
===================  =========  ====================================================================

*Exactly once.* A stream's offset says for each recorder how far it was read: the number of a file, and rows
of it. A tail says in its metadata which number its file will have, and that file has the same rows in the
same order. So the offset means the same before and after a tail is closed, and after a restart; wherever the
rows are when a task looks for them, it reads the same.

*What is lost.* The file where the stream stands is gone and there are others behind it; a closed file cannot
be read; what is there under a recorder's name is not what was read before (the offset has a digest of the
first row of the last file). With ``failOnDataLoss=false`` every such thing stands in the offset of the
micro-batch that passes it over (``LOST``). A number that is missing between two files that are there was
missing before, and is passed over.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pipeline.errors import BadInput, BadSetting
from pipeline.files import (
    GOOD,
    TABLES,
    File,
    batches,
    closed_path,
    exists,
    listed,
    look,
    place,
    rows_of,
    tail_path,
    tail_rows,
)

NAME: Final = "rsm_recording"
LIVE: Final = "live"
LOST: Final = "lost"
ROUNDS_MAX: Final = 5
GOES_ON: Final = "With option failOnDataLoss=false (rsm pipeline stream: --skip-lost) the stream goes on"
_BECOMES: Final = b"becomes"
_MARKED: Final = ("chain", "site", "boot", "client", "request", "call_ns", "ts", "mono_ns", "wall_ns")
_KNOWN_MAX: Final = 10_000
_Told = TypeVar("_Told")

# For each recorder a ``Place``. ``LOST``: of each thing that was passed over on the way its recorder, the
# number of a file, the first row of it, and words.
Offset = dict[str, list[Any]]


def register(spark: SparkSession) -> None:
    spark.dataSource.register(RecordingSource)


class Settings(NamedTuple):
    path: str
    table: str
    rows_per_batch: int
    rows_per_task: int
    fails_on_loss: bool


class RecordingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return TABLES[self._settings().table]

    def reader(self, schema: StructType) -> "RecordingReader":
        return RecordingReader(self._settings())

    def streamReader(self, schema: StructType) -> "RecordingStreamReader":  # noqa: N802 (Spark's name)
        return RecordingStreamReader(self._settings())

    def _settings(self) -> Settings:
        table = self.options.get("table", "events")
        if table not in TABLES:
            raise BadSetting(f"{NAME}: table is {table!r}, and must be one of {', '.join(TABLES)}")
        path = self.options.get("path")
        if not path:
            raise BadSetting(f"{NAME}: which folder? Give it to load(), or as option path")
        return Settings(
            resolved(path),
            table,
            self._number("maxRowsPerBatch", 1_000_000),
            self._number("rowsPerTask", 100_000),
            self.options.get("failOnDataLoss", "true").lower() != "false",
        )

    def _number(self, name: str, otherwise: int) -> int:
        text = self.options.get(name, str(otherwise))
        if not text.isdecimal() or int(text) < 1:
            raise BadSetting(f"{NAME}: {name} is {text!r}, and must be a number above 0")
        return int(text)


class Part(InputPartition):
    """Rows of one file, wherever they are by then."""

    def __init__(self, recorder: str, number: int, first: int, end: int) -> None:
        super().__init__((recorder, number, first, end))


class RecordingReader(DataSourceReader):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        extents = Extents(self.settings)
        return parts(extents, {}, extents.latest({}, None), self.settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self.settings)


class RecordingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.settings.rows_per_batch)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if isinstance(limit, ReadAllAvailable):
            rows = None
        return Extents(self.settings, self._target).latest(start, rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = Extents(self.settings).newest()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return parts(Extents(self.settings, end), start, end, self.settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self.settings)


# -- what there is -------------------------------------------------------------------------------


def resolved(path: str) -> str:
    """A folder's one name: links are followed, if it is on this machine."""
    system, name = place(path)
    is_local = isinstance(system, pyarrow.fs.LocalFileSystem)
    return os.path.realpath(name) if is_local else path.rstrip("/")


def absolute(path: str) -> str:
    """The same without following links."""
    return path if "://" in path else place(path)[1]


def files_in(settings: Settings) -> list[File]:
    """Those of the table, each once: of several names of a file the one that is no link."""
    files = [file for file in listed(settings.path) if file.table == settings.table]
    if "://" in settings.path:
        return files
    real = {file.path: os.path.realpath(file.path) for file in files}
    found: dict[str, File] = {}
    for file in sorted(files, key=lambda each: (real[each.path] != each.path, each)):
        found.setdefault(real[file.path], file)
    return sorted(found.values())


class Place(NamedTuple):
    """How far a recorder was read. ``marked``, ``mark``: the number of the last file of which rows were read,
    and what identifies it; 0: not known."""

    number: int
    rows: int
    marked: int = 0
    mark: int = 0

    @classmethod
    def of(cls, offset: Sequence[int]) -> "Place":
        number, rows, *identity = offset
        return cls(number, rows, *(identity or (number if rows else number - 1, 0)))

    def behind(self, number: int) -> "Place":
        """At the beginning of a file."""
        return self._replace(number=number, rows=0)


class _Tail(NamedTuple):
    number: int
    rows: int
    mark: int


class _Gone(Exception):
    """A file that was listed is not there any more."""


def _digest(first: pa.RecordBatch) -> int:
    """Of the first row; never 0."""
    named = {name: first.column(name)[0].as_py() for name in _MARKED if name in first.schema.names}
    return int.from_bytes(hashlib.blake2b(repr(named).encode(), digest_size=6).digest(), "big") or 1


@lru_cache(_KNOWN_MAX)
def _rows(file: File) -> int:
    return rows_of(file.path)


@lru_cache(_KNOWN_MAX)
def _mark(file: File) -> int:
    """Of a closed file; 0 if it cannot be read."""
    system, name = place(file.path)
    try:
        with system.open_input_file(name) as opened:
            parquet = pq.ParquetFile(opened)
            columns = [each for each in _MARKED if each in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(1, columns=columns):
                return _digest(batch)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError):
        pass
    return 0


@lru_cache(_KNOWN_MAX)
def _fault(file: File) -> str | None:
    """Why it is not to be read. All of it is looked at, once."""
    told = look(file)
    if told.is_gone:
        raise FileNotFoundError(file.path)
    return None if told.verdict in GOOD else f"{file.path}: {told.verdict}, {told.reason}"


def _tail_of(file: File) -> _Tail | None:
    """None: it is just being begun, or another one already."""
    found = tail_rows(file.path)
    if found is None:
        return None
    number, rows = found
    if rows == 0:
        return _Tail(number, 0, 0)
    system, name = place(file.path)
    try:
        with system.open_input_file(name) as opened, pa.ipc.open_stream(opened) as stream:
            becomes = (stream.schema.metadata or {}).get(_BECOMES, b"").decode()
            if becomes != closed_path(file.recorder, number).rpartition("/")[2]:
                raise FileNotFoundError(file.path)
            first = next(batch for batch in stream if batch.num_rows)
    except (pa.ArrowException, StopIteration):
        return None
    return _Tail(number, rows, _digest(first))


class Extents:
    """How many rows each file of each recorder has; not beyond ``until``. Rows of closed files are counted
    only where a stream has not been yet."""

    def __init__(self, settings: Settings, until: Offset | None = None) -> None:
        self._settings = settings
        self._until = until
        self._closed: dict[str, dict[int, File]] = {}
        self._tails: dict[str, _Tail] = {}
        self._lost: dict[tuple[str, int, int], str] = {}
        before: tuple[Any, Any] | None = None
        for _ in range(ROUNDS_MAX):
            is_whole = self._list()
            now = (self._closed, {recorder: tail.number for recorder, tail in self._tails.items()})
            if is_whole or now == before:
                return
            before = now
        # Before such a tail there may be a file that is not in the list yet: not in this round.
        for recorder, closed in self._closed.items():
            if recorder in self._tails and self._tails[recorder].number > max(closed, default=0) + 1:
                del self._tails[recorder]

    def _list(self) -> bool:
        """Whether no tail was closed, and perhaps begun anew, while the list was made: else the file that it
        became may not be in it."""
        files = files_in(self._settings)
        self._closed = {file.recorder: {} for file in files if file.is_named}
        for file in files:
            if file.number > 0:
                self._closed[file.recorder][file.number] = file
        self._tails = {}
        is_whole = True
        for file in files:
            if not file.is_tail:
                continue
            try:
                found = _tail_of(file)
                if found is None or (not self._settings.fails_on_loss and _fault(_named(file, found))):
                    continue  # it is passed over when it is closed
            except FileNotFoundError:
                is_whole = False
                continue
            closed = self._closed[file.recorder]
            is_whole &= found.number <= max(closed, default=0) + 1
            if found.number not in closed:
                self._tails[file.recorder] = found
        return is_whole

    def recorders(self) -> list[str]:
        return sorted(self._closed)

    def numbers(self, recorder: str) -> list[int]:
        tail = self._tails.get(recorder)
        return sorted({*self._closed[recorder], *([] if tail is None else [tail.number])})

    def rows(self, recorder: str, number: int) -> int:
        """Not beyond what is wanted."""
        if self._until is None:
            return self._count(recorder, number)
        last, last_rows = self._until.get(recorder, (0, 0))[:2]
        if number > last:
            return 0
        rows = self._count(recorder, number)
        return min(rows, last_rows) if number == last else rows

    def _count(self, recorder: str, number: int) -> int:
        tail = self._tails.get(recorder)
        if tail is not None and tail.number == number:
            return tail.rows
        return self._of(recorder, number, _rows)

    def _mark(self, recorder: str, number: int) -> int:
        tail = self._tails.get(recorder)
        if tail is not None and tail.number == number:
            return tail.mark
        return self._of(recorder, number, _mark)

    def _of(self, recorder: str, number: int, told: Callable[[File], _Told]) -> _Told:
        """Of a closed file, which may go at any time."""
        try:
            return told(self._closed[recorder][number])
        except FileNotFoundError:
            del self._closed[recorder][number]
            raise _Gone from None
        except (BadInput, OSError) as error:
            path = closed_path(recorder, number)
            words = str(error) if path in str(error) else f"{path}: {error}"
            raise BadInput(f"{words}. {GOES_ON}") from None

    def newest(self) -> Offset:
        """The end of all that is there."""
        ends: Offset = {}
        for recorder in self.recorders():
            while numbers := self.numbers(recorder):
                try:
                    is_bad = self._is_bad(recorder, numbers[-1])
                    ends[recorder] = [numbers[-1], 0 if is_bad else self._count(recorder, numbers[-1])]
                    break
                except _Gone:
                    pass
        return ends

    def latest(self, start: Offset, rows_max: int | None) -> Offset:
        """Where to read to, from ``start``: all that is there, or so many rows, of which all recorders have
        their share. A file that goes meanwhile is one that was not there."""
        while True:
            self._lost = {}
            try:
                return self._latest(start, rows_max)
            except _Gone:
                pass

    def _latest(self, start: Offset, rows_max: int | None) -> Offset:
        end = {recorder: at for recorder, at in start.items() if recorder != LOST}
        behind = self.recorders()
        left = rows_max
        while behind and (left is None or left > 0):
            share = None if left is None else max(left // len(behind), 1)
            still = []
            for recorder in behind:
                if left is not None and left <= 0:
                    break
                mine = share if left is None or share is None else min(share, left)
                end_of, read = self._advance(recorder, end.get(recorder), mine)
                if end_of is not None:
                    end[recorder] = list(end_of)
                if left is not None:
                    left -= read
                if mine is not None and read == mine:
                    still.append(recorder)
            behind = still
        if self._lost:
            end[LOST] = [[*what, words] for what, words in self._lost.items()]
        return end

    def _advance(
        self, recorder: str, offset: Sequence[int] | None, rows_max: int | None
    ) -> tuple[Sequence[int] | None, int]:
        at = None if offset is None else self._stands(recorder, Place.of(offset))
        read = 0
        for number in self._from(recorder, at):
            if rows_max is not None and read >= rows_max:
                break
            first = at.rows if at is not None and number == at.number else 0
            if self._passes_over(recorder, number, first):
                at = (at or Place(0, 0)).behind(self._after(recorder, number))
                continue
            there = self.rows(recorder, number)
            take = there - first if rows_max is None else min(there - first, rows_max - read)
            if take > 0:
                at = Place(number, first + take, number, self._mark(recorder, number))
                read += take
                at = self._next(recorder, at)
        if at is None or (offset is not None and at == Place.of(offset)):
            return offset, read
        return at, read

    def _next(self, recorder: str, at: Place) -> Place:
        """At the end of a closed file: the next that is there, or else that will be."""
        if at.number not in self._closed[recorder] or at.rows < self._count(recorder, at.number):
            return at
        return at.behind(self._after(recorder, at.number))

    def _after(self, recorder: str, number: int) -> int:
        later = (each for each in self.numbers(recorder) if each > number)
        return min(later, default=number + 1)

    def _from(self, recorder: str, at: Place | None) -> list[int]:
        return [number for number in self.numbers(recorder) if at is None or number >= at.number]

    def pending(
        self, recorder: str, offset: Sequence[int] | None, last: int
    ) -> Iterator[tuple[int, int, int]]:
        """Files up to ``last`` that are not read to their end: number, first row, rows."""
        at = None if offset is None else self._stands(recorder, Place.of(offset))
        for number in self._from(recorder, at):
            first = at.rows if at is not None and number == at.number else 0
            if number <= last and not self._passes_over(recorder, number, first):
                yield number, first, self.rows(recorder, number)

    # -- what is lost ----------------------------------------------------------------------------

    def _stands(self, recorder: str, at: Place) -> Place | None:
        """Where to go on, if what the place speaks of is not there any more. None: at the beginning."""
        numbers = self.numbers(recorder)
        if not numbers:
            return at
        read = f"{recorder} was read up to row {at.rows} of file {at.number}"
        found = self._mark(recorder, at.marked) if at.mark and at.marked in numbers else 0
        if numbers[-1] < at.marked or (found and found != at.mark):
            self._lose(
                (recorder, at.number, at.rows),
                f"{read}, and what is there now is another recording of the same name, up to file"
                f" {numbers[-1]}; begin with a new checkpoint (another --output)",
            )
            return None
        behind = [number for number in numbers if number > at.number]
        if at.number not in numbers and behind:
            self._lose(
                (recorder, at.number, at.rows),
                f"{read}, and the next that is there is number {behind[0]}: what is between is lost",
            )
            return at.behind(behind[0])
        return at

    def _passes_over(self, recorder: str, number: int, first: int) -> bool:
        """A closed file that cannot be read. If that ends the stream, its task says so."""
        if self._settings.fails_on_loss or not self._is_bad(recorder, number):
            return False
        words = self._of(recorder, number, _fault)
        self._lose((recorder, number, first), f"{words}: it is passed over")
        return True

    def _is_bad(self, recorder: str, number: int) -> bool:
        if self._settings.fails_on_loss or number not in self._closed[recorder]:
            return False
        return self._of(recorder, number, _fault) is not None

    def _lose(self, what: tuple[str, int, int], words: str) -> None:
        if self._settings.fails_on_loss:
            raise BadInput(f"{words}. {GOES_ON}")
        self._lost[what] = words


def _named(file: File, tail: _Tail) -> File:
    """A tail by its first row: it is looked at once."""
    return file._replace(number=tail.number, bytes=0, modified_ns=tail.mark)


# -- reading -------------------------------------------------------------------------------------


def parts(extents: Extents, start: Offset, end: Offset, settings: Settings) -> list[Part]:
    """From ``start`` to ``end``, in pieces for tasks."""
    while True:
        try:
            return _parts(extents, start, end, settings)
        except _Gone:
            pass


def _parts(extents: Extents, start: Offset, end: Offset, settings: Settings) -> list[Part]:
    found: list[Part] = []
    for recorder in sorted(end.keys() - {LOST}):
        if recorder not in extents.recorders():
            if settings.fails_on_loss and start.get(recorder) != end[recorder]:
                raise BadInput(f"the files of {recorder} went before they were read. {GOES_ON}")
            continue
        last, last_rows = end[recorder][:2]
        for number, first, rows in extents.pending(recorder, start.get(recorder), last):
            stop = min(rows, last_rows) if number == last else rows
            found += [
                Part(recorder, number, at, min(at + settings.rows_per_task, stop))
                for at in range(first, stop, settings.rows_per_task)
            ]
    return found


def read(partition: InputPartition, settings: Settings) -> Iterator[pa.RecordBatch]:
    recorder, number, first, end = partition.value
    path = closed_path(recorder, number)
    file = File(path if exists(path) else tail_path(recorder), settings.table, recorder, number, 0, 0)
    try:
        yield from batches(file, LIVE, first, end)
    except FileNotFoundError:
        if settings.fails_on_loss:
            words = f"file {number} of {recorder} went before it was read. {GOES_ON}"
            raise BadInput(words) from None
    except BadInput as error:
        raise BadInput(f"{error}. {GOES_ON}") from None
    except (KeyError, pa.ArrowException, OSError) as error:
        told = look(file)
        words = (
            f"{type(error).__name__} {error}" if told.verdict in GOOD else f"{told.verdict}, {told.reason}"
        )
        raise BadInput(f"{file.path}: {words}. {GOES_ON}") from None
