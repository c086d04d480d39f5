"""How does Spark read the recording of a replica that lives? The data source ``rsm_recording``::

    register(spark)
    spark.read.format("rsm_recording").load("recordings")
    spark.readStream.format("rsm_recording").option("maxRowsPerBatch", 100_000).load("recordings")

It gives what is there now, with the open tails, as the bronze tables have it; ``batch`` is ``live``. The
folder, and those below it, must be in reach of all executors.

===================  =========  ====================================================================
option               else       meaning
===================  =========  ====================================================================
``path``                        the folder; also what ``load`` is given
``table``            events     events, operations or changes
``maxRowsPerBatch``  1,000,000  rows in one micro-batch, at most, of all recorders together
``rowsPerTask``      100,000    rows that one task reads, at most
``failOnDataLoss``   true       stop if files went before they were read; false: go on behind them
===================  =========  ====================================================================

*Exactly once.* A stream's offset says for each recorder how far it was read: the number of a file, and rows
of it. A tail says in its metadata which number its file will have, and that file has the same rows in the
same order. So the offset means the same before and after a tail is closed, and after a restart; wherever the
rows are when a task looks for them, it reads the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
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
from pipeline.files import TABLES, File, batches, closed_path, exists, listed, rows_of, tail_path, tail_rows

NAME: Final = "rsm_recording"
LIVE: Final = "live"
ROUNDS_MAX: Final = 5

# For each recorder: the number of a file, and how many of its rows.
Offset = dict[str, list[int]]


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
            path,
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
        self._target = Extents(self.settings).latest({}, None)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return parts(Extents(self.settings, end), start, end, self.settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self.settings)


# -- how much there is ---------------------------------------------------------------------------


class Extents:
    """How many rows each file of each recorder has; not beyond ``until``. Rows of closed files are counted
    only where a stream has not been yet."""

    def __init__(self, settings: Settings, until: Offset | None = None) -> None:
        self._settings = settings
        self._until = until
        self._closed: dict[str, set[int]] = {}
        self._tails: dict[str, tuple[int, int]] = {}
        self._rows: dict[tuple[str, int], int] = {}
        before: tuple[Any, Any] | None = None
        for _ in range(ROUNDS_MAX):
            is_whole = self._list()
            now = (self._closed, {recorder: number for recorder, (number, _) in self._tails.items()})
            if is_whole or now == before:
                return
            before = now

    def _list(self) -> bool:
        """Whether no tail was closed, and perhaps begun anew, while the list was made: else the file that it
        became may not be in it."""
        files = [file for file in listed(self._settings.path) if file.table == self._settings.table]
        self._closed = {file.recorder: set() for file in files if file.is_named}
        for file in files:
            if file.number > 0:
                self._closed[file.recorder].add(file.number)
        self._tails = {}
        is_whole = True
        for file in files:
            if not file.is_tail:
                continue
            try:
                found = tail_rows(file.path)
            except FileNotFoundError:
                is_whole = False
                continue
            if found is None:
                continue  # it is just being begun
            closed = self._closed[file.recorder]
            is_whole &= found[0] <= max(closed, default=0) + 1
            if found[0] not in closed:
                self._tails[file.recorder] = found
        return is_whole

    def recorders(self) -> list[str]:
        return sorted(self._closed)

    def numbers(self, recorder: str) -> list[int]:
        tail = self._tails.get(recorder)
        return sorted(self._closed[recorder] | ({tail[0]} if tail is not None else set()))

    def rows(self, recorder: str, number: int) -> int:
        rows = self._count(recorder, number)
        if self._until is None:
            return rows
        last, last_rows = self._until.get(recorder, (0, 0))
        return 0 if number > last else min(rows, last_rows) if number == last else rows

    def _count(self, recorder: str, number: int) -> int:
        tail = self._tails.get(recorder)
        if tail is not None and tail[0] == number:
            return tail[1]
        if (recorder, number) not in self._rows:
            self._rows[recorder, number] = rows_of(closed_path(recorder, number))
        return self._rows[recorder, number]

    def latest(self, start: Offset, rows_max: int | None) -> Offset:
        """Where to read to, from ``start``: all that is there, or so many rows, of which all recorders have
        their share."""
        end = dict(start)
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
                    end[recorder] = end_of
                if left is not None:
                    left -= read
                if mine is not None and read == mine:
                    still.append(recorder)
            behind = still
        return end

    def _advance(
        self, recorder: str, at: list[int] | None, rows_max: int | None
    ) -> tuple[list[int] | None, int]:
        read = 0
        for number, first, there in self.pending(recorder, at):
            take = there - first if rows_max is None else min(there - first, rows_max - read)
            if take > 0:
                at = [number, first + take]
                read += take
            if rows_max is not None and read >= rows_max:
                break
        if read and at is not None and at[0] in self._closed[recorder]:
            at = [at[0] + 1, 0] if at[1] == self._count(recorder, at[0]) else at
        return at, read

    def pending(self, recorder: str, at: list[int] | None) -> Iterator[tuple[int, int, int]]:
        """Files that are not read to their end: number, first row, rows."""
        numbers = self.numbers(recorder)
        if at is not None:
            self._check_loss(recorder, at, numbers)
        for number in numbers:
            if at is None or number > at[0]:
                yield number, 0, self.rows(recorder, number)
            elif number == at[0]:
                yield number, at[1], self.rows(recorder, number)

    def _check_loss(self, recorder: str, at: list[int], numbers: list[int]) -> None:
        """The file where the stream stands is gone, and there are others behind it."""
        if not self._settings.fails_on_loss:
            return
        behind = [number for number in numbers if number > at[0]]
        if behind and at[0] not in numbers:
            raise BadInput(
                f"{recorder} was read up to row {at[1]} of file {at[0]}, and the next that is there is number"
                f" {behind[0]}: what is between is lost. With option failOnDataLoss=false the stream goes on"
            )
        if numbers and numbers[-1] < at[0] - 1:
            raise BadInput(
                f"{recorder} was read up to file {at[0]}, and its newest is number {numbers[-1]}: this is"
                " another recording; begin with a new checkpoint"
            )


# -- reading -------------------------------------------------------------------------------------


def parts(extents: Extents, start: Offset, end: Offset, settings: Settings) -> list[Part]:
    """From ``start`` to ``end``, in pieces for tasks."""
    found: list[Part] = []
    for recorder in sorted(end):
        if recorder not in extents.recorders():
            if settings.fails_on_loss and start.get(recorder) != end[recorder]:
                raise BadInput(f"the files of {recorder} went before they were read")
            continue
        last, last_rows = end[recorder]
        for number, first, rows in extents.pending(recorder, start.get(recorder)):
            stop = min(rows, last_rows) if number == last else rows
            if number <= last:
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
            words = f"file {number} of {recorder} went before it was read; see option failOnDataLoss"
            raise BadInput(words) from None
