"""Results of ``rsm load`` and ``rsm bench … --json`` over time, and what got worse.

``--input``: files, or folders that have them somewhere below (``*.json``). When a run was is the time of its
file: copy with ``cp -p``. Runs of the same name and parameters are compared with each other. A value got
worse if it is worse than the median of the last ``last`` runs before it (10) by more than ``times`` times
their median absolute deviation (3), and by a tenth or more. That a value got worse is told, and is no
failure: a machine may have been busy, and ``calibration`` says how fast it was.
"""

import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Set
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructField, StructType

from pipeline import schemas
from pipeline import tables as at
from pipeline.beside import remove_figures
from pipeline.errors import BadInput, BadSetting
from pipeline.report import short
from pipeline.runs import Outcome, Run, Step
from pipeline.showing import utc_text
from pipeline.tables import Tables

NEEDS: Final[tuple[str, ...]] = ()
NAME: Final = "load"
LAST: Final = 10
TIMES: Final = 3.0
LEAST_WORSE: Final = 0.1
LEAST_RUNS: Final = 3  # fewer say nothing of how much they differ
OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "last": (LAST, "With so many runs before it a result is compared, 3 or more."),
    "times": (f"{TIMES:g}", "So many median absolute deviations may it be worse than their median."),
}
HELP: Final = """
--input: files (*.json), or folders with them below: what rsm load leaves in its
report folders, and what rsm bench … --json prints. All numbers go to gold/load,
those that got worse to gold/regressions, both over time as figures. The exit code
is 0 also then: look whether the machine was as fast as before.
"""
SHOWN_MAX: Final = 20
REASONS_MAX: Final = 3
LINES_MAX: Final = 18
TITLE_CHARACTERS: Final = 52
TITLE_LINES: Final = 3

_SERIES: Final = ("name", "parameters", "value_name", "is_ratio")
_NOT_COMPARED: Final = frozenset({"run", "endpoint", "report", "seed", "web_port"})
# The last word that is found in a value's name decides; a ratio is of what its name says.
_LESS: Final = re.compile(
    r"(?:_us|_ms|_ns|(?<!per)_s)$|p50|p9\d|latency|cpu|packets_per_message|resident|memory_mb|peak|lost|drops|gap"
    r"|late|stall|failed|unknown|unexpected|view_changes"
)
_MORE: Final = re.compile(r"per_s$|throughput|mb_per_s|(?:^|_)rate(?:$|[_,])")
_SHARE: Final = re.compile(r"^rate|_to_(?:ring|raw|bare|memory|writes|etcd)|to bare|packets_bytes")
# `intended_ms.p99.9` is one of `intended_ms`; `p99.9_us` says itself what it is.
_STATISTIC: Final = re.compile(r"\.(?:min|max|mean|median|p\d+(?:\.\d+)?)$")
_PARSED: Final = StructType(
    [StructField(field.name, field.dataType) for field in schemas.LOAD.fields]
    + [StructField("reason", StringType())]
)


def run(spark: SparkSession, tables: Tables, run: Run, step: Step) -> Outcome:
    last, times = _asked(run.options)
    step("reading results")
    read = parsed(_files(spark, run.input))
    _refuse_nothing(read, run.input)
    tables.write(at.LOAD, read.where("reason IS NULL"))
    tables.write(at.QUALITY, quality(read), whole=False)
    load = tables.read(at.LOAD)
    step("what got worse?")
    tables.write(at.REGRESSIONS, regressions(load, last, times))
    # Bounded: by the files read and the numbers in each.
    worse = tables.read(at.REGRESSIONS).collect()
    values = load.where("better IS NOT NULL").select(*_SERIES, "time", "value").collect()
    step("figures")
    figures = _draw(values, worse, tables.root)
    sums = load.agg(fn.count("*"), fn.count_distinct("run")).first()
    assert sums is not None
    rows = {at.LOAD.path: sums[0], at.REGRESSIONS.path: len(worse)}
    return Outcome(rows=rows, words=list(_words(sums[1], worse)), figures=figures)


def check(options: dict[str, str]) -> None:
    _asked(options)


def _asked(options: dict[str, str]) -> tuple[int, float]:
    """With how many runs before it a result is compared, and how many deviations may be between."""
    last, times = _number(options, "last", LAST, LEAST_RUNS), _number(options, "times", TIMES, 0)
    if last != int(last):
        raise BadSetting(f"last: {last:g} must be a whole number of runs")
    return int(last), times


def _number(options: dict[str, str], name: str, default: float, least: float) -> float:
    given = options.get(name)
    if given is None:
        return default
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise BadSetting(f"{name}: {given!r} must be a number, {least:g} or more")
    return value


# -- reading -------------------------------------------------------------------------------------


def _files(spark: SparkSession, places: Iterable[str]) -> DataFrame:
    places = list(places)
    if not places:
        raise BadInput("--input: name files or folders with results of rsm load, or of rsm bench … --json")
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        return reader.option("pathGlobFilter", "*.json").load(places)
    except AnalysisException as error:
        raise BadInput(f"--input: {error.getMessage()}") from None


def _refuse_nothing(read: DataFrame, places: Iterable[str]) -> None:
    """Before anything is written: what was read some other day stays."""
    if not read.where("reason IS NULL").isEmpty():
        return
    why = [f"{row.run}: {row.reason}" for row in read.orderBy("run").limit(REASONS_MAX).collect()]
    first = "; ".join(why) or "no file that ends in .json has a number in it"
    raise BadInput(f"there is no result of rsm load or of rsm bench in {', '.join(places)}: {first}")


def parsed(files: DataFrame) -> DataFrame:
    """As ``schemas.LOAD``, and of a file that cannot be read one row with the reason."""
    named = files.select(fn.col("path").alias("run"), fn.col("modificationTime").alias("time"), "content")
    return named.mapInArrow(_parse, _PARSED)


def _parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = _PARSED.fieldNames()
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for run, time, content in zip(
            *(batch.column(name).to_pylist() for name in ("run", "time", "content")), strict=True
        ):
            place = {"run": run, "time": time}
            try:
                rows += [place | number for number in numbers_of(content)]
            except NotResult as error:
                rows.append(place | {"reason": str(error)})
        times = batch.schema.field("time").type
        types = {"time": times, "is_ratio": pa.bool_(), "value": pa.float64(), "loops_per_s": pa.float64()}
        arrays = [pa.array([row.get(name) for row in rows], types.get(name, pa.string())) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


class NotResult(ValueError):
    """The file is none; the words say why."""


class _Result(NamedTuple):
    name: str
    parameters: dict[str, Any]
    values: dict[str, Any]
    ratios: dict[str, Any]
    versions: dict[str, Any]
    calibration: dict[str, Any]


def numbers_of(content: bytes) -> Iterator[dict[str, Any]]:
    """All numbers of a result, as ``schemas.LOAD`` has them but for the run and its time."""
    try:
        told = json.loads(content)
    except ValueError as error:
        raise NotResult(f"not JSON, or cut off: {error}") from None
    result = _result_of(told)
    speed = result.calibration.get("python_loops_per_s")
    ground = {
        "name": result.name,
        "parameters": json.dumps(result.parameters, sort_keys=True),
        "versions": json.dumps(result.versions, sort_keys=True),
        "calibration": json.dumps(result.calibration, sort_keys=True),
        "loops_per_s": float(speed) if isinstance(speed, int | float) else None,
    }
    for is_ratio, values in ((False, result.values), (True, result.ratios)):
        for name, value in _flat(values):
            way = better(name, is_ratio=is_ratio)
            yield ground | {
                "value_name": name, "is_ratio": is_ratio, "value": value, "better": way,
            }  # fmt: skip


def _result_of(told: Any) -> _Result:
    if not isinstance(told, dict):
        raise NotResult("neither a result of rsm load nor of rsm bench")
    parts = {
        name: told.get(name, {}) for name in ("parameters", "values", "ratios", "versions", "calibration")
    }
    if isinstance(told.get("name"), str) and "values" in told:
        if not all(isinstance(part, dict) for part in parts.values()):
            raise NotResult("a result of rsm bench whose parameters, values or ratios are no objects")
        return _Result(told["name"], **parts)
    plan, rows = told.get("plan"), told.get("rows")
    if not isinstance(plan, dict) or not isinstance(rows, list):
        raise NotResult("neither a result of rsm load nor of rsm bench")
    kept = {name: value for name, value in plan.items() if name not in _NOT_COMPARED}
    values: dict[str, Any] = {"counts": told.get("counts", {}), "view_changes": told.get("view_changes")}
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("operation"), str):
            raise NotResult("a result of rsm load with a row that names no operation")
        values[row["operation"]] = {name: value for name, value in row.items() if name != "operation"}
    return _Result("load", kept, values, {}, {}, {})


def _flat(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{above}{name}", float(value)


def better(name: str, *, is_ratio: bool) -> str | None:
    """Whether more or less of a value is better; none of both if nobody said so."""
    last = name if is_ratio else _STATISTIC.sub("", name).rsplit(".", 1)[-1]
    if _MORE.search(last) or (is_ratio and _SHARE.search(last) and not _LESS.search(last)):
        return "more"
    return "less" if _LESS.search(last) else None


# -- what got worse ------------------------------------------------------------------------------


def regressions(load: DataFrame, last: int = LAST, times: float = TIMES) -> DataFrame:
    """As ``schemas.REGRESSIONS``: every value that was worse than those before it, when it came."""
    before = Window.partitionBy(*_SERIES).orderBy("time", "run").rowsBetween(-last, -1)
    told = load.where("better IS NOT NULL").withColumn("before", fn.collect_list("value").over(before))
    middle = told.where(fn.size("before") >= LEAST_RUNS).withColumn("median", _median(fn.col("before")))
    away = fn.transform("before", lambda value: fn.abs(value - fn.col("median")))
    by = fn.when(fn.col("better") == "less", fn.col("value") - fn.col("median")).otherwise(
        fn.col("median") - fn.col("value")
    )
    # From nothing to something is all of it.
    share = fn.when(fn.col("median") == 0, fn.lit(1.0)).otherwise(fn.col("by") / fn.abs("median"))
    return (
        middle.withColumn("deviation", _median(away))
        .withColumn("by", by)
        .where((fn.col("by") > 0) & (fn.col("by") > fn.col("deviation") * times))
        .withColumn("worse", share)
        .where(fn.col("worse") >= LEAST_WORSE)
        .withColumn("runs_before", fn.size("before").cast("long"))
    )


def _median(values: Column) -> Column:
    """Of an array that is not empty."""
    ordered, size = fn.array_sort(values), fn.size(values)
    low = fn.floor((size - 1) / 2).cast("int")
    high = fn.floor(size / 2).cast("int")
    return (fn.get(ordered, low) + fn.get(ordered, high)) / 2


def quality(read: DataFrame) -> DataFrame:
    """One row for each file that could not be read, and one that says how many could: it is always there."""
    broken = read.where("reason IS NOT NULL").select(
        fn.lit(NAME).alias("job"), fn.lit("result").alias("check"), fn.lit("error").alias("severity"),
        fn.col("run").alias("file"), fn.lit(None).cast("string").alias("subject"),
        fn.lit(0).cast("long").alias("rows"), "reason", fn.lit("").alias("batch"),
    )  # fmt: skip
    good = read.where("reason IS NULL").agg(fn.count_distinct("run").alias("rows")).select(
        fn.lit(NAME).alias("job"), fn.lit("results").alias("check"), fn.lit("note").alias("severity"),
        fn.lit(None).cast("string").alias("file"), fn.lit(None).cast("string").alias("subject"),
        "rows", fn.lit("results were read").alias("reason"), fn.lit("").alias("batch"),
    )  # fmt: skip
    return broken.union(good)


# -- telling -------------------------------------------------------------------------------------


def _words(runs: int, worse: list[Row]) -> Iterator[str]:
    yield f"{runs:,} results"
    if not worse:
        yield "nothing got worse"
        return
    yield f"{len(worse):,} values got worse than the runs before (gold/regressions), the latest:"
    for row in sorted(worse, key=lambda row: (row["time"], row["worse"]), reverse=True)[:SHOWN_MAX]:
        yield (
            f"{utc_text(row['time'])} {row['name']}: {row['value_name']} {short(row['value'])},"
            f" {row['worse']:.0%} worse than {short(row['median'])} (median of {row['runs_before']}) in"
            f" {row['run']}"
        )


def _draw(values: list[Row], worse: list[Row], root: str) -> list[str]:
    """Of each benchmark: what got worse first, then ratios, then the rest, as many as a page has room for.
    Those of the run before go."""
    from pipeline.figures import Line, draw_lines  # not for executors, which load this module

    series: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in values:
        key = tuple(row[name] for name in _SERIES)
        series.setdefault(key, []).append((row["time"].timestamp(), row["value"]))
    flagged: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in worse:
        key = tuple(row[name] for name in _SERIES)
        flagged.setdefault(key, []).append((row["time"].timestamp(), row["value"]))
    remove_figures(root, "load-.*")
    made = []
    slugs: set[str] = set()
    for name in sorted({key[0] for key in series}):
        own = [key for key in series if key[0] == name and len(series[key]) > 1]
        chosen = sorted(own, key=lambda key: (key not in flagged, not key[3], -len(series[key]), key))[
            :LINES_MAX
        ]
        if not chosen:
            continue
        told = differing({key[1] for key in chosen})
        lines = [
            Line(_title(key, told[key[1]]), sorted(series[key]), sorted(flagged.get(key, [])))
            for key in chosen
        ]
        rest = f" ({len(chosen)} of {len(own)} values)" if len(own) > len(chosen) else ""
        slug = _slug(name, slugs)
        slugs.add(slug)
        made.append(draw_lines(f"Results of {name!r} over time{rest}", lines, root, f"load-{slug}"))
    return made


def _slug(name: str, taken: Set[str]) -> str:
    """Of a name that may have any characters; another for each."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "results"
    slug, number = plain, 1
    while slug in taken:
        number += 1
        slug = f"{plain}-{number}"
    return slug


def differing(sets: Set[str]) -> dict[str, str]:
    """For each of these parameters, as JSON, those that not all have alike."""
    flat = {each: dict(_leaves(json.loads(each))) for each in sets}
    names = sorted({name for own in flat.values() for name in own})
    apart = [name for name in names if len({own.get(name) for own in flat.values()}) > 1]
    return {
        each: ", ".join(f"{name}={own.get(name, 'none')}" for name in apart) for each, own in flat.items()
    }


def _leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value if isinstance(value, str) else json.dumps(value)


def _title(key: tuple[Any, ...], parameters: str) -> str:
    words = f"{key[2]}{' (ratio)' if key[3] else ''}"
    if len(words) > 46:
        words = f"{words[:22]}…{words[-22:]}"
    lines = textwrap.wrap(parameters, TITLE_CHARACTERS, max_lines=TITLE_LINES, placeholder=" …")
    return "\n".join([words, *lines])
