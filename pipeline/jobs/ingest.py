"""What did each replica record? Files become tables, and whatever is wrong with them becomes rows.

Each new file is read twice, in tasks that have some files each: once to judge it, which gives a row for the
file and a few figures (``pipeline.files.look``), and once, if it is good, for its rows. So no row is ever
written of a file that turns out to be bad, and none is written twice.

Order of writing: rows, figures, quality, and ``bronze/files`` last. A batch that is not in ``bronze/files``
was written by a run that died; the next one removes it.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipeline import tables as all_tables
from pipeline.errors import BadInput, BadSetting
from pipeline.files import GOOD, TABLES, File, Look, Verdict, batches, closed_path, listed, look
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
    seen = _looks(spark, run.input, known, tables.root)
    if not seen.found and not known:
        raise BadInput(
            f"there is no recording in {', '.join(run.input)}: no NAME-000001.parquet, no NAME.tail.arrows"
        )
    judged = judge(seen.looks, known)
    batch = _batch_name(judged)
    files = [_file_row(each, batch) for each in judged]
    spans = [row for each in judged if each.verdict in GOOD for row in _span_rows(each, batch)]
    _clear(tables)
    rows = _write_rows(spark, tables, judged, batch, step)
    kept_files = [each for each in known if each.batch != OPEN]
    kept_spans = [SpanRow(*each) for each in tables.read_or_empty(all_tables.SPANS).collect()]
    step("writing what is wrong")
    _write_small(tables, all_tables.SPANS, spans)
    wrong = problems([*kept_files, *files], [*kept_spans, *spans], seen.empty)
    tables.write_partition(
        all_tables.QUALITY, "ingest", _rows_of(spark, all_tables.QUALITY, wrong).coalesce(1)
    )
    _write_small(tables, all_tables.FILES, files)
    everything = [*kept_files, *files]
    _refuse_nothing(run, tables, everything)
    counts = {all_tables.FILES.path: len(files), all_tables.QUALITY.path: len(wrong)}
    return Outcome(rows=rows | counts, words=_words(files, everything, wrong))


def has_unseen(tables: Tables, inputs: Iterable[str]) -> bool:
    """Whether a run would find files, or tails that have grown, which it has not read; or what a run left
    that died."""
    known = _known(tables)
    now = {file for folder in inputs for file in listed(folder, tables.root)}
    read = {(each.file, each.bytes, each.modified_ns) for each in known if each.batch == OPEN}
    tails = {(file.path, file.bytes, file.modified_ns) for file in now if file.is_tail}
    batches_known = {each.batch for each in known}
    by_path = _by_path(known)
    return (
        tails != read
        or any(_is_new(file, by_path) for file in now if not file.is_tail)
        or any(not tables.partitions(table) <= batches_known for table in _BRONZE.values())
    )


def state_of(tables: Tables) -> str:
    """A digest of what was ingested; by it a job knows whether its tables are of today."""
    known = sorted((each.file, each.content) for each in _known(tables) if each.verdict in GOOD)
    return hashlib.blake2b(json.dumps(known).encode(), digest_size=8).hexdigest()


# -- what was seen -------------------------------------------------------------------------------


class _Seen(NamedTuple):
    found: int
    empty: list[str]
    looks: list[Look]


def _known(tables: Tables) -> list[FileRow]:
    """All files that were ever read: at the driver, as their list is."""
    return [FileRow(*each) for each in tables.read_or_empty(all_tables.FILES).collect()]


def _by_path(known: Iterable[FileRow]) -> dict[str, list[FileRow]]:
    by_path: defaultdict[str, list[FileRow]] = defaultdict(list)
    for each in known:
        by_path[each.file].append(each)
    return by_path


def _is_new(file: File, known: dict[str, list[FileRow]]) -> bool:
    """A tail always is. What was taken is looked at again if it has another size, what was refused also if
    it was written since."""
    if file.is_tail:
        return True
    return not any(
        each.bytes == file.bytes and (each.verdict == Verdict.TAKEN or each.modified_ns == file.modified_ns)
        for each in known.get(file.path, ())
    )


def _looks(spark: SparkSession, inputs: Iterable[str], known: list[FileRow], besides: str) -> _Seen:
    """Of all that is new. If a tail was closed while it was looked at, the list is made again: else its rows
    would be missing between those of the files around it."""
    by_path = _by_path(known)
    looks: dict[str, Look] = {}
    files: dict[str, File] = {}
    empty: list[str] = []
    for _ in range(ROUNDS_MAX):
        by_folder = {folder: listed(folder, besides) for folder in dict.fromkeys(inputs)}
        empty = [folder for folder, within in by_folder.items() if not within]
        files = {file.path: file for within in by_folder.values() for file in within}
        wanted = [file for path, file in files.items() if path not in looks and _is_new(file, by_path)]
        looks |= {each.file.path: each for each in _look_at(spark, wanted)}
        moved = _moved(looks.values(), files.values())
        if not moved:
            break
        looks = {path: each for path, each in looks.items() if path not in moved}
    return _Seen(len(files), empty, [each for each in looks.values() if not each.is_gone])


def _moved(looks: Iterable[Look], files: Iterable[File]) -> set[str]:
    """Tails that are gone, or are another by now: the file before the one it will become was not there."""
    newest: defaultdict[str, int] = defaultdict(int)
    for file in files:
        newest[file.recorder] = max(newest[file.recorder], file.number)
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


def judge(looks: Iterable[Look], known: Iterable[FileRow]) -> list[Look]:
    """What each file is among the others: one that is there twice, came late, or was another before."""
    known = [each for each in known if each.verdict == Verdict.TAKEN]
    contents = {each.content: each.file for each in known if each.rows}
    taken = {each.file: each for each in known}
    newest: defaultdict[str, int] = defaultdict(int)
    for row in known:
        newest[row.recorder] = max(newest[row.recorder], row.number)
    closed = {(each.recorder, each.number) for each in known}
    judged: list[Look] = []
    for each in sorted(looks, key=lambda each: (each.file.is_tail, each.file)):
        file = each.file
        if each.verdict not in GOOD:
            judged.append(each)
        elif file.path in taken:
            if taken[file.path].content != each.content:
                words = "it was taken before, and had other content; what was taken stays"
                judged.append(each._replace(verdict=Verdict.CHANGED, reason=words))
        elif file.is_tail and (file.recorder, file.number) in closed:
            words = f"its rows are in {closed_path(file.recorder, file.number)}"
            judged.append(each._replace(verdict=Verdict.DUPLICATE, reason=words))
        elif each.rows and each.content in contents:
            words = f"it has the same content as {contents[each.content]}"
            judged.append(each._replace(verdict=Verdict.DUPLICATE, reason=words))
        else:
            contents[each.content] = file.path
            closed.add((file.recorder, file.number))
            if not file.is_tail and newest[file.recorder] > file.number:
                words = f"it came after {closed_path(file.recorder, newest[file.recorder])} had been read"
                judged.append(each._replace(reason=words))
            else:
                judged.append(each)
    return judged


def _batch_name(judged: Iterable[Look]) -> str:
    """A digest of its files: a run that died is done again in the same place."""
    named = sorted((each.file.path, each.content) for each in judged if not each.file.is_tail)
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


def _clear(tables: Tables) -> None:
    """What was open is written anew; what no file stands for was written by a run that died. The list goes
    first: what it does not name is read again."""
    tables.drop(all_tables.FILES, OPEN)
    known = tables.partitions(all_tables.FILES)
    for table in (*_BRONZE.values(), all_tables.SPANS):
        for batch in tables.partitions(table) - known:
            tables.drop(table, batch)


def _write_rows(
    spark: SparkSession, tables: Tables, judged: list[Look], batch: str, step: Step
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, table in _BRONZE.items():
        good = [each for each in judged if each.verdict in GOOD and each.file.table == name and each.rows]
        for target in (batch, OPEN):
            mine = [each for each in good if _batch_of(each, batch) == target]
            if mine:
                step(f"reading {name}: {len(mine)} {'open tails' if target == OPEN else 'files'}")
                _write_batch(spark, tables, table, name, target, mine)
                counts[table.path] = counts.get(table.path, 0) + sum(each.rows for each in mine)
        if not tables.has(table):
            tables.write(table, spark.createDataFrame([], table.schema))
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
                    yield from batches(File(*file), batch, 0, count)

    tables.write_partition(table, batch, spread.mapInArrow(read, TABLES[name]))


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
