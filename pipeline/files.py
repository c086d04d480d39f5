"""Which files has a recording, and are they whole?

A recording's folder, and those below it, hold closed files (``NAME-000001.parquet``) and open tails
(``NAME.tail.arrows``); those in a folder called ``operations`` or ``changes`` are of that table, all others
are events. ``listed`` finds them, ``look`` judges one by reading all of it once, ``batches`` gives its rows
as the bronze tables have them. The latter two run in Spark's tasks: they need pyarrow and numpy, and no
other module of ours but the schemas.

==============  ==================================================================================
verdict         what became of the file
==============  ==================================================================================
``taken``       closed and whole; its rows are in the tables. With a reason: it came late
``open``        a tail; its whole batches are in the tables
``torn``        cut off: a Parquet file without its end, a tail without its beginning
``duplicate``   its rows are there by another file: the same content, or the closed file of a tail
``unreadable``  it cannot be opened, a column is missing or of another type, or there are nulls; or it
                went before it was read
``foreign``     not a recording
``newer``       of a schema version that is not known yet
``changed``     a file of this name or, of a tail, of this number was taken, and had other content
==============  ==================================================================================

Places are paths that all executors reach, or what ``pyarrow.fs`` opens: ``file://``, ``hdfs://``, ``s3://``.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql.types import BinaryType, LongType, StringType, StructField

from pipeline import schemas
from pipeline.errors import BadInput

TABLES: Final = {"events": schemas.EVENTS, "operations": schemas.OPERATIONS, "changes": schemas.CHANGES}
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 32 << 20
SAMPLES: Final = 8
_SAMPLES_PER_BATCH: Final = 256
_CLOSED: Final = re.compile(r"(?P<name>.+)-(?P<number>\d{6})\.parquet")
_TAIL_SUFFIX: Final = ".tail.arrows"
_TAIL_NUMBER: Final = -1  # a tail's number is inside of it
_BECOMES: Final = b"becomes"
_MAGIC: Final = b"PAR1"
_CHUNK: Final = 1 << 20
_IDENTITIES: Final = frozenset({"chain", "site", "source"})
_BOOT_BYTES: Final = 16
ROW_BITS: Final = 32


class Verdict(StrEnum):
    TAKEN = "taken"
    OPEN = "open"
    TORN = "torn"
    DUPLICATE = "duplicate"
    UNREADABLE = "unreadable"
    FOREIGN = "foreign"
    NEWER = "newer"
    CHANGED = "changed"


GOOD: Final = frozenset({Verdict.TAKEN, Verdict.OPEN})


class File(NamedTuple):
    """One that was found. ``recorder``: who wrote it, folder and name."""

    path: str
    table: str
    recorder: str
    number: int
    bytes: int
    modified_ns: int

    @property
    def is_tail(self) -> bool:
        return self.path.endswith(_TAIL_SUFFIX)

    @property
    def is_named(self) -> bool:
        """Whether its name is that of a recording's file."""
        return self.number != 0


class Span(NamedTuple):
    """What a file has of one boot, as ``schemas.SPANS`` has it. Callers have no boot."""

    chain: int
    site: int | None
    boot: int | None
    rows: int
    gaps: int
    gap_rows: int
    first_wall_ns: int
    last_wall_ns: int
    least_offset_ns: int | None
    most_offset_ns: int | None
    sample_ts: list[int]
    sample_wall_ns: list[int]


class Look(NamedTuple):
    """What a file is. ``is_gone``: it was not there any more, as a tail that was closed meanwhile."""

    file: File
    verdict: Verdict
    reason: str | None = None
    rows: int = 0
    content: str = ""
    spans: tuple[Span, ...] = ()
    is_gone: bool = False


class _Bad(Exception):
    """``args``: the verdict and the reason."""


# -- finding them --------------------------------------------------------------------------------


def place(path: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Where it is, and what it is called there. ``BadInput`` if nothing here opens such places."""
    if "://" not in path:
        return pyarrow.fs.LocalFileSystem(), str(Path(path).absolute())
    try:
        system, name = pyarrow.fs.FileSystem.from_uri(path)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(
            f"{path} cannot be opened: {error}. Give a path that all executors reach, or a place that"
            " pyarrow opens (file://, hdfs://, s3://)"
        ) from None
    return system, name


def listed(folder: str, besides: str | None = None, refused: dict[str, str] | None = None) -> list[File]:
    """Files in it and below, in order. Hidden ones and those on their way (``.tmp``) are no part of a
    recording; nor is what is below ``besides``, where the tables are. Tails come before closed files were
    looked for, so that one that is closed meanwhile is not missed. ``refused`` gets folders that cannot be
    read, with the reason; without it that is raised."""
    system, root = place(folder)
    is_local = isinstance(system, pyarrow.fs.LocalFileSystem)
    prefix = "" if is_local else folder.rstrip("/").removesuffix(root.rstrip("/"))
    if system.get_file_info(root).type != pyarrow.fs.FileType.Directory:
        raise BadInput(f"{folder} is no folder with recordings")
    hidden = None if besides is None else _absolute(besides).rstrip("/") + "/"
    found: dict[str, File] = {}
    for wants_tails in (True, False):
        waiting = [root]
        while waiting:
            within = waiting.pop()
            try:
                infos = _entries(system, within)
            except OSError as error:
                if refused is None:
                    raise
                refused[prefix + within] = f"the folder cannot be read: {_words(error)}"
                continue
            for info in infos:
                path = prefix + info.path
                if info.base_name.startswith((".", "_")) or (hidden and f"{path}/".startswith(hidden)):
                    continue
                if info.type == pyarrow.fs.FileType.Directory:
                    waiting.append(info.path)
                elif info.type != pyarrow.fs.FileType.File or path.endswith(".tmp"):
                    continue
                elif path.endswith(_TAIL_SUFFIX) == wants_tails:
                    found[path] = _file(path, info)
    return sorted(found.values())


def followed(tail: str, number: int) -> list[File]:
    """What became of a tail that was to be number ``number``: itself, if it is there, and closed files of its
    recorder from that number on, as far as none is missing."""
    recorder = tail.removesuffix(_TAIL_SUFFIX)
    found = [_found(tail)]
    while number and (closed := _found(closed_path(recorder, number))) is not None:
        found.append(closed)
        number += 1
    return [file for file in found if file is not None]


def _found(path: str) -> File | None:
    system, name = place(path)
    try:
        info = system.get_file_info(name)
    except OSError:
        return None
    return _file(path, info) if info.type == pyarrow.fs.FileType.File else None


def _entries(system: pyarrow.fs.FileSystem, folder: str) -> list[Any]:
    """Of one that was removed meanwhile there are none."""
    return list(system.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True)))


def _absolute(path: str) -> str:
    is_local = "://" not in path or path.startswith("file:")
    return place(path)[1] if is_local else path


def _file(path: str, info: Any) -> File:
    folder, _, name = path.rpartition("/")
    parent = folder.rpartition("/")[2]
    table = parent if parent in TABLES else "events"
    closed = _CLOSED.fullmatch(name)
    if closed is not None:
        recorder, number = closed["name"], int(closed["number"])
    elif name.endswith(_TAIL_SUFFIX):
        recorder, number = name.removesuffix(_TAIL_SUFFIX), _TAIL_NUMBER
    else:
        recorder, number = name, 0
    return File(path, table, f"{folder}/{recorder}", number, info.size, info.mtime_ns or 0)


# -- judging one ---------------------------------------------------------------------------------


def look(file: File) -> Look:
    """Reads all of it, once, a batch at a time."""
    if not file.is_named:
        return Look(file, Verdict.FOREIGN, "its name is not that of a recording's file")
    try:
        return _looked(file)
    except _Bad as bad:
        return Look(file, bad.args[0], bad.args[1])
    except FileNotFoundError:
        return Look(file, Verdict.UNREADABLE, "it is gone", is_gone=True)
    except (pa.ArrowException, OSError) as error:
        return Look(file, Verdict.UNREADABLE, _words(error))
    except Exception as error:  # noqa: BLE001 - whatever is in it, the others are read
        return Look(file, Verdict.UNREADABLE, f"{type(error).__name__}: {_words(error)}")


def _looked(file: File) -> Look:
    tally = _Tally(file.table)
    if not file.is_tail:
        for batch in _closed_batches(file):
            tally.add(batch)
        return Look(file, Verdict.TAKEN, None, tally.rows, _content(file.path), tally.spans())
    with Tail(file.path) as tail:
        try:
            _check_columns(file.table, tail.schema)
        except _Bad:
            if _has_version(tail.schema):
                for batch in tail:
                    _check_versions(batch.column("schema_version"))  # a newer one may have other columns
            raise
        for batch in tail:
            tally.add(batch)
        reason = None
        if tail.end < file.bytes:
            reason = f"it ends in the middle of a batch: {file.bytes - tail.end} bytes are not read"
        numbered = file._replace(number=tail.number)
    content = _content(file.path, tail.end)
    return Look(numbered, Verdict.OPEN, reason, tally.rows, content, tally.spans())


def _content(path: str, end: int | None = None) -> str:
    """A digest of its bytes, or of those before ``end``, a chunk at a time."""
    digest = hashlib.blake2b(digest_size=16)
    system, name = place(path)
    left = end
    with system.open_input_file(name) as opened:
        while chunk := opened.read(_CHUNK if left is None else min(_CHUNK, left)):
            digest.update(chunk)
            left = None if left is None else left - len(chunk)
    return digest.hexdigest()


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


class _Tally:
    """Sums of one file, for each boot."""

    def __init__(self, table: str) -> None:
        self.rows = 0
        self._table = table
        self._spans: dict[tuple[int, int | None, int | None], Span] = {}
        self._deliveries: dict[tuple[int, int | None, int | None], list[tuple[int, int]]] = {}

    def add(self, recorded: pa.RecordBatch) -> None:
        rows = pa.Table.from_batches([_converted(self._table, recorded)])
        self.rows += rows.num_rows
        keys = [name for name in ("chain", "site", "boot") if name in rows.column_names]
        wanted = [*keys, "wall_ns"]
        if self._table == "events":
            rows = rows.append_column("offset", pc.subtract(rows["wall_ns"], rows["mono_ns"]))
            is_gap = pc.equal(rows["event"], "gap")
            rows = rows.append_column("gap", pc.cast(is_gap, pa.int64()))
            lost = pc.if_else(is_gap, pc.fill_null(rows["count"], 0), 0)
            rows = rows.append_column("lost", lost)
            wanted += ["offset"]
            self._sample(rows)
        else:
            is_gap = pc.equal(rows["kind"], "gap")
            rows = rows.append_column("gap", pc.cast(is_gap, pa.int64()))
            number = rows["request"] if self._table == "operations" else pa.scalar(0, pa.int64())
            rows = rows.append_column("lost", pc.if_else(is_gap, number, 0))
        wanted += ["gap", "lost"]
        sums = [("wall_ns", "count"), ("wall_ns", "min"), ("wall_ns", "max"), ("gap", "sum"), ("lost", "sum")]
        sums += [("offset", "min"), ("offset", "max")] if "offset" in wanted else []
        for each in rows.select(wanted).group_by(keys).aggregate(sums).to_pylist():
            self._add_span(each)

    def _sample(self, rows: pa.Table) -> None:
        """Some deliveries of every batch, evenly spaced."""
        is_delivery = pc.and_(pc.equal(rows["event"], "delivered"), pc.is_valid(rows["first_ts"]))
        at = np.flatnonzero(is_delivery.to_numpy())
        if not len(at):
            return
        chosen = at[np.unique(np.linspace(0, len(at) - 1, _SAMPLES_PER_BATCH).astype(np.int64))]
        for each in rows.select(["chain", "site", "boot", "first_ts", "wall_ns"]).take(chosen).to_pylist():
            samples = self._deliveries.setdefault((each["chain"], each["site"], each["boot"]), [])
            samples.append((each["first_ts"], each["wall_ns"]))

    def _add_span(self, each: dict[str, Any]) -> None:
        key = (each["chain"], each.get("site"), each.get("boot"))
        span = Span(
            *key,
            rows=each["wall_ns_count"],
            gaps=each["gap_sum"],
            gap_rows=each["lost_sum"],
            first_wall_ns=each["wall_ns_min"],
            last_wall_ns=each["wall_ns_max"],
            least_offset_ns=each.get("offset_min"),
            most_offset_ns=each.get("offset_max"),
            sample_ts=[],
            sample_wall_ns=[],
        )
        before = self._spans.get(key)
        self._spans[key] = span if before is None else _together(before, span)

    def spans(self) -> tuple[Span, ...]:
        return tuple(self._sampled(key, span) for key, span in sorted(self._spans.items(), key=str))

    def _sampled(self, key: tuple[int, int | None, int | None], span: Span) -> Span:
        samples = self._deliveries.get(key, [])
        chosen = sorted({round(at * (len(samples) - 1) / (SAMPLES - 1)) for at in range(SAMPLES)})
        ordered = [samples[at] for at in chosen] if samples else []
        return span._replace(
            sample_ts=[ts for ts, _ in ordered], sample_wall_ns=[wall for _, wall in ordered]
        )


def _together(one: Span, other: Span) -> Span:
    is_clocked = one.least_offset_ns is not None and other.least_offset_ns is not None
    return one._replace(
        rows=one.rows + other.rows,
        gaps=one.gaps + other.gaps,
        gap_rows=one.gap_rows + other.gap_rows,
        first_wall_ns=min(one.first_wall_ns, other.first_wall_ns),
        last_wall_ns=max(one.last_wall_ns, other.last_wall_ns),
        least_offset_ns=min(one.least_offset_ns or 0, other.least_offset_ns or 0) if is_clocked else None,
        most_offset_ns=max(one.most_offset_ns or 0, other.most_offset_ns or 0) if is_clocked else None,
    )


# -- reading one ---------------------------------------------------------------------------------


class Tail:
    """An open tail, a batch at a time, as far as it is whole. ``number``: of the file it will become;
    ``end``: how many bytes were whole, up to here."""

    def __init__(self, path: str) -> None:
        system, name = place(path)
        self._source = system.open_input_file(name)
        try:
            self._stream = pa.ipc.open_stream(self._source)
        except (pa.ArrowException, OSError):
            self._source.close()
            raise _Bad(Verdict.TORN, "a tail without its beginning") from None
        self.schema = self._stream.schema
        self.end = self._source.tell()
        becomes = ""
        with suppress(UnicodeDecodeError):
            becomes = (self.schema.metadata or {}).get(_BECOMES, b"").decode()
        match = _CLOSED.fullmatch(becomes)
        if match is None:
            self._source.close()
            raise _Bad(Verdict.FOREIGN, "a tail that does not say which file it will become")
        self.becomes = becomes
        self.number = int(match["number"])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = self._stream.read_next_batch()
            except (StopIteration, pa.ArrowException, OSError):
                return  # the rest is not whole, or not there yet
            self.end = self._source.tell()
            yield batch

    def __enter__(self) -> "Tail":
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()


def batches(file: File, batch: str, first: int = 0, end: int | None = None) -> Iterator[pa.RecordBatch]:
    """Its rows from ``first`` to ``end``, as the table in bronze has them. A tail's ``file.number`` is known
    by now; if it was closed meanwhile, the closed file has the same rows in the same places."""
    try:
        yield from _cut(file, batch, first, end)
    except _Bad as bad:
        raise BadInput(f"{file.path}: {bad.args[0]}, {bad.args[1]}") from None


def _cut(file: File, batch: str, first: int, end: int | None) -> Iterator[pa.RecordBatch]:
    at = 0
    for recorded in _recorded(file):
        begin, stop = max(first - at, 0), recorded.num_rows
        if end is not None:
            stop = min(stop, end - at)
        if begin < stop:
            yield _with_origin(file, batch, at + begin, _converted(file.table, recorded[begin:stop]))
        at += recorded.num_rows
        if end is not None and at >= end:
            return
    if end is not None and at < end:
        raise BadInput(f"{file.path} has {at} rows, and had {end} when it was looked at; run again")


def _recorded(file: File) -> Iterator[pa.RecordBatch]:
    if file.is_tail:
        try:
            with Tail(file.path) as tail:
                if tail.number == file.number:
                    yield from tail
                    return
        except (_Bad, FileNotFoundError):
            pass  # it was closed since
        yield from _closed_batches(file._replace(path=closed_path(file.recorder, file.number)))
        return
    yield from _closed_batches(file)


def closed_path(recorder: str, number: int) -> str:
    return f"{recorder}-{number:06}.parquet"


def tail_path(recorder: str) -> str:
    return f"{recorder}{_TAIL_SUFFIX}"


def rows_of(path: str) -> int:
    """Of a closed file, by its footer."""
    system, name = place(path)
    try:
        with system.open_input_file(name) as opened:
            return int(pq.ParquetFile(opened).metadata.num_rows)
    except pa.ArrowException as error:
        raise BadInput(f"{path} is torn: {_words(error)}") from None


def tail_rows(path: str) -> tuple[int, int] | None:
    """Of an open tail: the number of its file, and how many rows are whole. None: there is no beginning."""
    try:
        with Tail(path) as tail:
            return tail.number, sum(batch.num_rows for batch in tail)
    except _Bad:
        return None


def is_there(file: File) -> bool:
    """Whether its rows can be read; a tail's also from its closed file."""
    if not file.is_tail:
        return exists(file.path)
    with suppress(_Bad, OSError), Tail(file.path) as tail:
        if tail.number == file.number:
            return True
    return exists(closed_path(file.recorder, file.number))


def exists(path: str) -> bool:
    system, name = place(path)
    return bool(system.get_file_info(name).type == pyarrow.fs.FileType.File)


def _closed_batches(file: File) -> Iterator[pa.RecordBatch]:
    system, name = place(file.path)
    with system.open_input_file(name) as opened:
        _check_ends(opened)
        try:
            parquet = pq.ParquetFile(opened)
        except pa.ArrowException as error:
            raise _Bad(Verdict.TORN, f"its end cannot be read: {_words(error)}") from None
        try:
            _check_columns(file.table, parquet.schema_arrow)
        except _Bad:
            _check_version(parquet)  # a newer one may have other columns
            raise
        columns = [field.name for field in _recorded_fields(file.table)]
        yield from parquet.iter_batches(_rows_at_once(parquet), columns=["schema_version", *columns])


def _rows_at_once(parquet: pq.ParquetFile) -> int:
    """By its footer, so many that they fit: a row may have a few bytes or 64 KiB."""
    groups = map(parquet.metadata.row_group, range(parquet.metadata.num_row_groups))
    widest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(min(BATCH_ROWS, BATCH_BYTES // max(widest, 1)), 1)


def _check_ends(opened: Any) -> None:
    size = opened.size()
    if size == 0:
        raise _Bad(Verdict.TORN, "it is empty: not a single byte")
    if opened.read(len(_MAGIC)) != _MAGIC:
        raise _Bad(Verdict.FOREIGN, "it is no Parquet file")
    opened.seek(max(size - len(_MAGIC), 0))
    if size < 3 * len(_MAGIC) or opened.read(len(_MAGIC)) != _MAGIC:
        raise _Bad(Verdict.TORN, f"a Parquet file without its end, cut off at {size} bytes")
    opened.seek(0)


def _check_version(parquet: pq.ParquetFile) -> None:
    if _has_version(parquet.schema_arrow):
        for batch in parquet.iter_batches(BATCH_ROWS, columns=["schema_version"]):
            _check_versions(batch.column(0))


def _has_version(schema: pa.Schema) -> bool:
    names = schema.names.count("schema_version")
    return names == 1 and bool(pa.types.is_integer(schema.field("schema_version").type))


def _check_versions(versions: pa.Array) -> None:
    newest = pc.max(versions).as_py()
    if newest is not None and newest > schemas.RECORDING_VERSION:
        words = (
            f"its schema version is {newest}, and {schemas.RECORDING_VERSION} is the newest that is known"
            " here; update rsm"
        )
        raise _Bad(Verdict.NEWER, words)


def _recorded_fields(table: str) -> list[StructField]:
    return TABLES[table].fields[: -len(schemas.ORIGIN)]


def _check_columns(table: str, schema: pa.Schema) -> None:
    if "schema_version" not in schema.names:
        raise _Bad(Verdict.FOREIGN, "not a recording: there is no column schema_version")
    fields = _recorded_fields(table)
    wanted = ["schema_version", *(field.name for field in fields)]
    twice = [name for name in wanted if schema.names.count(name) > 1]
    if twice:
        raise _Bad(Verdict.UNREADABLE, f"more than one column is called {', '.join(twice)}")
    if not _has_version(schema):
        found = schema.field("schema_version").type
        raise _Bad(Verdict.UNREADABLE, f"column schema_version is {found}, and must be a whole number")
    missing = [field.name for field in fields if field.name not in schema.names]
    if missing:
        raise _Bad(Verdict.UNREADABLE, f"columns of {table} are missing: {', '.join(missing)}")
    for field in fields:
        found = schema.field(field.name).type
        if not _fits(field, found):
            words = f"column {field.name} is {found}, and cannot be {field.dataType.simpleString()}"
            raise _Bad(Verdict.UNREADABLE, words)


def _fits(field: StructField, found: pa.DataType) -> bool:
    plain = found.value_type if pa.types.is_dictionary(found) else found
    if field.name == "boot":
        return bool(found == pa.binary(_BOOT_BYTES))
    if isinstance(field.dataType, LongType):
        return found in (pa.int64(), pa.uint64())
    if isinstance(field.dataType, StringType):
        return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))
    assert isinstance(field.dataType, BinaryType)
    return bool(
        pa.types.is_binary(plain) or pa.types.is_large_binary(plain) or pa.types.is_fixed_size_binary(plain)
    )


# -- as the tables have it -----------------------------------------------------------------------


def _converted(table: str, recorded: pa.RecordBatch) -> pa.RecordBatch:
    """The recorded columns, in the types of bronze."""
    _check_versions(recorded.column("schema_version"))
    arrays, fields = [], []
    for field in _recorded_fields(table):
        column = recorded.column(field.name)
        if not field.nullable and column.null_count:
            words = f"column {field.name} has {column.null_count} nulls where none may be"
            raise _Bad(Verdict.UNREADABLE, words)
        arrays.append(_signed(field, column))
        fields.append(pa.field(field.name, arrays[-1].type, field.nullable))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _signed(field: StructField, column: pa.Array) -> pa.Array:
    if field.name == "boot":
        return _half(column)
    if isinstance(field.dataType, LongType):
        if field.name in _IDENTITIES and column.type == pa.uint64():
            return column.view(pa.int64())  # the same bits
        return column.cast(pa.int64())
    return column.cast(pa.string() if isinstance(field.dataType, StringType) else pa.binary())


def _half(boots: pa.Array) -> pa.Array:
    """The first eight of sixteen bytes, as a number."""
    words = np.frombuffer(boots.buffers()[1], dtype=">i8") if len(boots) else np.empty(0, ">i8")
    return pa.array(words[2 * boots.offset : 2 * (boots.offset + len(boots)) : 2].astype(np.int64))


def _with_origin(file: File, batch: str, first: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    count = rows.num_rows
    positions = (file.number << ROW_BITS) + first + np.arange(count, dtype=np.int64)
    origin = [
        pa.repeat(pa.scalar(file.recorder, pa.string()), count),
        pa.array(positions),
        pa.repeat(pa.scalar(file.path, pa.string()), count),
        pa.repeat(pa.scalar(batch, pa.string()), count),
    ]
    fields = [
        pa.field(each.name, array.type, False) for each, array in zip(schemas.ORIGIN, origin, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *origin], schema=pa.schema([*list(rows.schema), *fields])
    )
