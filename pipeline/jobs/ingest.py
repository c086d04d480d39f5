"""What did each replica record? Files become tables, and whatever is wrong with them becomes rows.

Each new file is read twice, in tasks that have some files each: once to judge it, which gives a row for the
file and a few figures (``pipeline.files.look``), and once, if it is good, for its rows. So no row is ever
written of a file that turns out to be bad, and none is written twice.

Order of writing: rows, figures, quality, and ``bronze/files`` last. A batch of which no row is in
``bronze/files`` was written by a run that died; the next one removes it.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from pipeline import tables as all_tables
from pipeline.errors import BadInput, BadSetting
from pipeline.files import (
    GOOD,
    TABLES,
    File,
    Look,
    Verdict,
    batches,
    closed_path,
    followed,
    is_there,
    listed,
    look,
)
from pipeline.quality import FileRow, Problem, SpanRow, problems
from pipeline.runs import Outcome, Run, Step
from pipeline.tables import Table, Tables

NEEDS: tuple[str, ...] = ()
HELP = """
Reads what is new in the folders of --input and below them: closed files
(NAME-000001.parquet) and open tails (NAME.tail.arrows), also of replicas that
run. Run it again at any time: nothing is read twice.

Files that are torn, there twice, or no recordings are left out and listed,
with the reason, in bronze/files and quality; the others are taken. So are
gaps, missing files, clocks that are off, and more than one chain.
"""

OPEN: Final = "open"
BYTES_PER_TASK: Final = 128 << 20
ROUNDS_MAX: Final = 5
_SHOWN_MAX: Final = 10
_BRONZE: Final = {
    "events": all_tables.EVENTS,
    "operations": all_tables.OPERATIONS,
    "changes": all_tables.CHANGES,
}


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    if not run.input:
        raise BadSetting("ingest needs --input: folders with recordings")
    known = _known(tables)
    step("looking at files")
    there, looks = _looks(spark, run.input, known, tables.root)
    if not there.files and not known:
        words = [f"{folder}: {reason}" for folder, reason in there.refused.items()]
        raise BadInput(
            f"there is no recording in {', '.join(run.input)}: no NAME-000001.parquet, no NAME.tail.arrows"
            + "".join(f"; {each}" for each in words)
        )
    judged = judge(looks, known, there.files)
    judged += _lost(judged, known)
    batch = _batch_name(judged)
    _clear(tables, known)
    judged = _without(judged, _write_rows(spark, tables, judged, batch, step))
    files = [_file_row(each, batch) for each in judged]
    spans = [row for each in judged if each.verdict in GOOD for row in _span_rows(each, batch)]
    kept_files = [each for each in known if each.batch != OPEN]
    kept_spans = [SpanRow(*each) for each in tables.read_or_empty(all_tables.SPANS).collect()]
    step("writing what is wrong")
    _write_small(tables, all_tables.SPANS, spans)
    wrong = problems([*kept_files, *files], [*kept_spans, *spans], there.empty, there.refused)
    tables.write_partition(
        all_tables.QUALITY, "ingest", _rows_of(spark, all_tables.QUALITY, wrong).coalesce(1)
    )
    _write_small(tables, all_tables.FILES, files)
    if not any(each.batch == OPEN for each in files):
        tables.drop(all_tables.FILES, OPEN)
    everything = [*kept_files, *files]
    _refuse_nothing(run, tables, everything)
    counts = {all_tables.FILES.path: len(files), all_tables.QUALITY.path: len(wrong)}
    return Outcome(rows=_counts(judged) | counts, words=_words(files, everything, wrong))


def has_unseen(tables: Tables, inputs: Iterable[str]) -> bool:
    """Whether a run would find files, or tails that have grown, which it has not read; or what a run left
    that died."""
    known = _known(tables)
    now = _there(inputs, known, tables.root).files.values()
    read = {(each.file, each.bytes, each.modified_ns) for each in known if each.batch == OPEN}
    tails = {(file.path, file.bytes, file.modified_ns) for file in now if file.is_tail}
    batches_known = {each.batch for each in known}
    open_tables = {each.table for each in known if each.verdict == Verdict.OPEN and each.rows}
    by_path = _by_path(known)
    return (
        tails != read
        or any(_is_new(file, by_path) for file in now if not file.is_tail)
        or any(not tables.partitions(table) <= batches_known for table in _BRONZE.values())
        or any(not tables.is_whole(_BRONZE[name], OPEN) for name in open_tables)
    )


def state_of(tables: Tables) -> str:
    """A digest of what was ingested; by it a job knows whether its tables are of today."""
    known = sorted((each.file, each.content) for each in _known(tables) if each.verdict in GOOD)
    return hashlib.blake2b(json.dumps(known).encode(), digest_size=8).hexdigest()


# -- what was seen -------------------------------------------------------------------------------


class _There(NamedTuple):
    """``files``: by path. ``empty``: input folders without any. ``refused``: folders that cannot be read."""

    files: dict[str, File]
    empty: list[str]
    refused: dict[str, str]


def _there(inputs: Iterable[str], known: Iterable[FileRow], besides: str) -> _There:
    """In the inputs, and what became of tails of other inputs: their rows are written anew, as all tails'."""
    refused: dict[str, str] = {}
    by_folder = {folder: listed(folder, besides, refused) for folder in dict.fromkeys(inputs)}
    files = {file.path: file for within in by_folder.values() for file in within}
    for each in known:
        if each.batch == OPEN and each.file not in files:
            files |= {file.path: file for file in followed(each.file, each.number)}
    empty = [folder for folder, within in by_folder.items() if not within and not refused]
    return _There(files, empty, refused)


def _known(tables: Tables) -> list[FileRow]:
    """All files that were ever read: at the driver, as their list is."""
    return [FileRow(*each) for each in tables.read_or_empty(all_tables.FILES).collect()]


def _by_path(known: Iterable[FileRow]) -> dict[str, list[FileRow]]:
    by_path: defaultdict[str, list[FileRow]] = defaultdict(list)
    for each in known:
        by_path[each.file].append(each)
    return by_path


def _is_new(file: File, known: dict[str, list[FileRow]]) -> bool:
    """A tail always is. Others are looked at again if they were written since."""
    if file.is_tail:
        return True
    return not any(
        each.bytes == file.bytes and each.modified_ns == file.modified_ns for each in known.get(file.path, ())
    )


def _looks(
    spark: SparkSession, inputs: Iterable[str], known: list[FileRow], besides: str
) -> tuple[_There, list[Look]]:
    """Of all that is new. If a tail was closed while it was looked at, the list is made again: else its rows
    would be missing between those of the files around it. If that changes nothing, they are elsewhere."""
    by_path = _by_path(known)
    looks: dict[str, Look] = {}
    moved: set[str] = set()
    before: set[tuple[str, int]] | None = None
    there = _There({}, [], {})
    for _ in range(ROUNDS_MAX):
        looks = {path: each for path, each in looks.items() if path not in moved}
        there = _there(inputs, known, besides)
        wanted = [file for path, file in there.files.items() if path not in looks and _is_new(file, by_path)]
        looks |= {each.file.path: each for each in _look_at(spark, wanted)}
        moved = _moved(looks.values(), there.files.values(), known)
        now = {(file.path, file.number) for file in there.files.values() if not file.is_tail}
        now |= {(each.file.path, each.file.number) for each in looks.values()}
        if not moved or now == before:
            break
        before = now
    return there, [each for each in looks.values() if not each.is_gone]


def _moved(looks: Iterable[Look], files: Iterable[File], known: Iterable[FileRow]) -> set[str]:
    """Tails that are gone, or are another by now: the file before the one it will become was not there."""
    newest: defaultdict[str, int] = defaultdict(int)
    closed = [(row.recorder, row.number) for row in known if row.batch != OPEN]
    for recorder, number in (*closed, *((file.recorder, file.number) for file in files)):
        newest[recorder] = max(newest[recorder], number)
    return {
        each.file.path
        for each in looks
        if each.file.is_tail and (each.is_gone or each.file.number > newest[each.file.recorder] + 1)
    }


def _look_at(spark: SparkSession, files: list[File]) -> list[Look]:
    """A row for each file comes back, with some figures for each boot in it."""
    if not files:
        return []
    bins = _bins(spark, files, lambda file: file.bytes)
    spread = spark.sparkContext.parallelize(bins, len(bins))
    return spread.flatMap(lambda mine: [look(File(*each)) for each in mine]).collect()


def _bins(spark: SparkSession, items: list[File], size: Callable[[File], int]) -> list[list[File]]:
    """As many tasks as there are cores, or more for many bytes, each with about as many bytes."""
    tasks = max(spark.sparkContext.defaultParallelism, sum(map(size, items)) // BYTES_PER_TASK + 1)
    bins: list[list[File]] = [[] for _ in range(min(tasks, len(items)))]
    loads = [(0, number) for number in range(len(bins))]
    for item in sorted(items, key=size, reverse=True):
        load, number = heappop(loads)
        bins[number].append(item)
        heappush(loads, (load + size(item), number))
    return bins


# -- judging them together -----------------------------------------------------------------------


def judge(looks: Iterable[Look], known: Iterable[FileRow], there: Container[str] = ()) -> list[Look]:
    """What each file is among the others: one that is there twice, came late, or was another before.
    ``there``: paths that were found now."""
    known = list(known)
    taken = {each.file: each for each in known if each.verdict == Verdict.TAKEN}
    contents = {each.content: each.file for each in taken.values() if each.rows}
    newest: defaultdict[str, int] = defaultdict(int)
    for row in taken.values():
        newest[row.recorder] = max(newest[row.recorder], row.number)
    before = {
        (each.recorder, each.number): each.file in there
        for each in known
        if each.batch != OPEN and each.verdict in {Verdict.TAKEN, Verdict.DUPLICATE}
    }
    closed = {place for place, is_there in before.items() if is_there}
    judged: list[Look] = []
    for each in sorted(looks, key=lambda each: (each.file.is_tail, each.file)):
        file = each.file
        place = (file.recorder, file.number)
        path = closed_path(*place)
        if each.verdict not in GOOD:
            judged.append(each)
        elif file.path in taken:
            judged.append(_again(each, taken[file.path]))
        elif file.is_tail and place in closed:
            judged.append(each._replace(verdict=Verdict.DUPLICATE, reason=f"its rows are in {path}"))
        elif file.is_tail and place in before:
            words = f"{path} was taken before and is gone: another recording has its name now"
            judged.append(each._replace(verdict=Verdict.CHANGED, reason=words))
        elif each.rows and each.content in contents:
            words = f"it has the same content as {contents[each.content]}"
            judged.append(each._replace(verdict=Verdict.DUPLICATE, reason=words))
            closed.add(place)
        else:
            contents[each.content] = file.path
            closed.add(place)
            if not file.is_tail and newest[file.recorder] > file.number:
                words = f"it came after {closed_path(file.recorder, newest[file.recorder])} had been read"
                judged.append(each._replace(reason=words))
            else:
                judged.append(each)
    return judged


def _again(each: Look, taken: FileRow) -> Look:
    """One that was taken, and written since."""
    if taken.content == each.content:
        words = "it was taken before, with the same content"
        return each._replace(verdict=Verdict.DUPLICATE, reason=words)
    words = "it was taken before, and had other content; what was taken stays"
    return each._replace(verdict=Verdict.CHANGED, reason=words)


def _lost(judged: Iterable[Look], known: Iterable[FileRow]) -> list[Look]:
    """Tails that were open when they were looked at last, and are neither there nor closed: under the name of
    the file that they would have become, for it may come yet."""
    found = {(each.file.recorder, each.file.number) for each in judged}
    found |= {(each.recorder, each.number) for each in known if each.batch != OPEN}
    words = "it went before it was closed, or before its closed file was read: its rows are not here any more"
    return [
        Look(File(closed_path(*place), each.table, *place, 0, 0), Verdict.UNREADABLE, words)
        for each in known
        if each.batch == OPEN and each.number and (each.rows or each.verdict == Verdict.UNREADABLE)
        if each.verdict in {Verdict.OPEN, Verdict.UNREADABLE}
        and (place := (each.recorder, each.number)) not in found
    ]


def _without(judged: list[Look], gone: set[str]) -> list[Look]:
    """After files went before their rows were read. Of which of them others were duplicates is not asked:
    those are looked at again next time."""
    if not gone:
        return judged
    words = "it went before it was read"
    return [
        Look(each.file, Verdict.UNREADABLE, words) if each.file.path in gone else each
        for each in judged
        if each.verdict is not Verdict.DUPLICATE or each.file.is_tail
    ]


def _batch_name(judged: Iterable[Look]) -> str:
    """A digest of its files: a run that died is done again in the same place."""
    named = sorted(
        (each.file.path, each.file.modified_ns, each.verdict, each.content)
        for each in judged
        if not each.file.is_tail
    )
    return "b" + hashlib.blake2b(json.dumps(named).encode(), digest_size=6).hexdigest()


def _batch_of(each: Look, batch: str) -> str:
    return OPEN if each.file.is_tail else batch


def _file_row(each: Look, batch: str) -> FileRow:
    return FileRow(
        file=each.file.path,
        table=each.file.table,
        recorder=each.file.recorder,
        number=max(each.file.number, 0),
        bytes=each.file.bytes,
        modified_ns=each.file.modified_ns,
        rows=each.rows,
        content=each.content,
        verdict=each.verdict.value,
        reason=each.reason,
        batch=_batch_of(each, batch),
    )


def _span_rows(each: Look, batch: str) -> Iterator[SpanRow]:
    for span in each.spans:
        yield SpanRow(each.file.path, each.file.recorder, *span, batch=_batch_of(each, batch))


# -- writing -------------------------------------------------------------------------------------


def _clear(tables: Tables, known: Iterable[FileRow]) -> None:
    """What was open is written anew; what no row stands for was written by a run that died, whatever folders
    it left. The list of what was open stays until the end: it may be of other inputs."""
    stands = {each.batch for each in known} - {OPEN}
    for table in (all_tables.FILES, *_BRONZE.values(), all_tables.SPANS):
        kept = stands | {OPEN} if table is all_tables.FILES else stands
        for batch in tables.partitions(table) - kept:
            tables.drop(table, batch)


def _write_rows(spark: SparkSession, tables: Tables, judged: list[Look], batch: str, step: Step) -> set[str]:
    """Which files went before they were read."""
    gone: set[str] = set()
    for name, table in _BRONZE.items():
        good = [each for each in judged if each.verdict in GOOD and each.file.table == name and each.rows]
        for target in (batch, OPEN):
            mine = [each for each in good if _batch_of(each, batch) == target]
            if mine:
                step(f"reading {name}: {len(mine)} {'open tails' if target == OPEN else 'files'}")
                _write_batch(spark, tables, table, name, target, mine)
                gone |= _gone(tables, table, target, mine)
        if not tables.has(table):
            tables.write(table, spark.createDataFrame([], table.schema))
    return gone


def _counts(judged: Iterable[Look]) -> dict[str, int]:
    """Rows that were written to each table."""
    counts: dict[str, int] = {}
    for each in judged:
        if each.verdict in GOOD and each.rows:
            path = _BRONZE[each.file.table].path
            counts[path] = counts.get(path, 0) + each.rows
    return counts


def _write_batch(
    spark: SparkSession, tables: Tables, table: Table, name: str, batch: str, looks: list[Look]
) -> None:
    rows = {each.file.path: each.rows for each in looks}
    bins = _bins(spark, [each.file for each in looks], lambda file: file.bytes)
    told = [(json.dumps([(*file, rows[file.path]) for file in mine]),) for mine in bins]
    spread = spark.createDataFrame(spark.sparkContext.parallelize(told, len(told)), "files string")

    def read(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for texts in given:
            for text in texts.column(0).to_pylist():
                for *file, count in json.loads(text):
                    yield from _rows_if_there(File(*file), batch, count)

    tables.write_partition(table, batch, spread.mapInArrow(read, TABLES[name]))


def _rows_if_there(file: File, batch: str, count: int) -> Iterator[pa.RecordBatch]:
    """All of them, or none if it went since: its recorder keeps so many bytes, and no more."""
    has_begun = False
    try:
        for rows in batches(file, batch, 0, count):
            has_begun = True
            yield rows
    except FileNotFoundError:
        if has_begun:
            raise


def _gone(tables: Tables, table: Table, batch: str, looks: list[Look]) -> set[str]:
    """Those of which nothing was written. Whoever is there now was there then; of others the rows tell."""
    doubtful = [each.file.path for each in looks if not is_there(each.file)]
    if not doubtful:
        return set()
    written = tables.read_partitions(table, [(batch,)]).where(fn.col("file").isin(doubtful))
    return set(doubtful) - {each.file for each in written.select("file").distinct().collect()}


def _rows_of(spark: SparkSession, table: Table, rows: Iterable[tuple[object, ...]]) -> DataFrame:
    return spark.createDataFrame([tuple(each) for each in rows], table.schema)


def _write_small(tables: Tables, table: Table, rows: list[FileRow] | list[SpanRow]) -> None:
    """One file for each batch: there is a row for a file, or for a boot in one."""
    for batch in sorted({each.batch for each in rows}):
        mine = [each for each in rows if each.batch == batch]
        tables.write_partition(table, batch, _rows_of(tables.spark, table, mine).coalesce(1))
    if not tables.has(table):
        tables.write(table, _rows_of(tables.spark, table, []))


# -- telling -------------------------------------------------------------------------------------


def _refuse_nothing(run: Run, tables: Tables, files: list[FileRow]) -> None:
    if any(each.verdict in GOOD for each in files):
        return
    reasons = [f"{each.file}: {each.verdict}, {each.reason}" for each in files]
    more = f"; and {len(reasons) - _SHOWN_MAX} more" if reasons[_SHOWN_MAX:] else ""
    raise BadInput(
        f"of {len(files)} files in {', '.join(run.input)} none can be read: "
        f"{'; '.join(reasons[:_SHOWN_MAX])}{more}. All are listed in {tables.path(all_tables.QUALITY)}"
    )


def _words(new: list[FileRow], everything: list[FileRow], wrong: list[Problem]) -> list[str]:
    words = [f"{len(new)} files read now, {len(everything)} in all: {_counted(each.verdict for each in new)}"]
    if wrong:
        words.append(f"quality: {_counted(f'{each.severity} {each.check}' for each in wrong)}")
        serious = sorted((each for each in wrong if each.severity != "note"), key=lambda each: each.severity)
        words += [
            f"{each.check}: {each.file or each.subject}: {each.reason}" for each in serious[:_SHOWN_MAX]
        ]
    return words


def _counted(names: Iterable[str]) -> str:
    counts = Counter(names)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
