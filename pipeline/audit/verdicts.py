"""What is a violation, and how many of them are told?"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from pipeline import schemas
from pipeline.schemas import shown

TOTAL_ORDER: Final = "total-order"
AGREEMENT: Final = "agreement"
INTEGRITY: Final = "integrity"
SOURCE_ORDER: Final = "source-order"
VIRTUAL_SYNCHRONY: Final = "virtual-synchrony"
SINGLE_PRIMARY: Final = "single-primary"
EXACTLY_ONCE: Final = "exactly-once"
ONE_REPLY: Final = "one-reply"
EQUAL_DIGESTS: Final = "equal-digests"
REAL_TIME: Final = "real-time"
RULES: Final = (
    TOTAL_ORDER,
    AGREEMENT,
    INTEGRITY,
    SOURCE_ORDER,
    VIRTUAL_SYNCHRONY,
    SINGLE_PRIMARY,
    EXACTLY_ONCE,
    ONE_REPLY,
    EQUAL_DIGESTS,
    REAL_TIME,
)

TOLD_MAX: Final = 1_000  # of each rule and part

# A verdict before its files have names: ``files`` are hashes of them, a twentieth of the bytes in every row.
FOUND: Final = StructType(
    [
        StructField("rule", StringType(), False),
        StructField("chain", LongType(), False),
        StructField("part", LongType(), False),
        StructField("sites", ArrayType(LongType()), False),
        StructField("first_ts", LongType()),
        StructField("last_ts", LongType()),
        StructField("epoch", LongType()),
        StructField("revision", LongType()),
        StructField("words", StringType(), False),
        StructField("files", ArrayType(LongType()), False),
    ]
)
# What is told of them, and for how many the first of each rule and part stands.
TOLD: Final = StructType([*FOUND.fields, StructField("rank", LongType()), StructField("of", LongType())])


def hashed(file: str = "file") -> Column:
    return fn.xxhash64(fn.col(file)).alias("file")


def verdict(
    rule: str,
    condition: Column,
    *,
    words: Sequence[Column | str],
    sites: Sequence[Column],
    files: Sequence[Column],
    first_ts: Column,
    last_ts: Column,
    view: tuple[Column, Column] | None = None,
) -> Column:
    """Null where the condition is not met; the row has a chain and a part."""
    none = fn.lit(None).cast("long")
    epoch, revision = (none, none) if view is None else view
    parts = [fn.lit(word) if isinstance(word, str) else word.cast("string") for word in words]
    made = fn.struct(
        fn.lit(rule).alias("rule"),
        fn.col("chain"),
        fn.col("part"),
        fn.array_compact(fn.array_distinct(fn.array(*sites))).alias("sites"),
        first_ts.alias("first_ts"),
        last_ts.alias("last_ts"),
        epoch.alias("epoch"),
        revision.alias("revision"),
        fn.concat(*(fn.coalesce(part, fn.lit("?")) for part in parts)).alias("words"),
        fn.array_compact(fn.array_distinct(fn.array(*files))).alias("files"),
    )
    return fn.when(condition, made)


def slots_shown(first: Column, last: Column) -> Column:
    one = fn.concat(fn.lit("slot "), first.cast("string"))
    many = fn.concat(fn.lit("slots "), first.cast("string"), fn.lit(" to "), last.cast("string"))
    return fn.when(first == last, one).otherwise(many)


def message_shown(source: Column, number: Column) -> Column:
    """As ``site:number``."""
    return fn.concat(shown(source), fn.lit(":"), number.cast("string"))


def judged(rows: DataFrame, *verdicts: Column) -> DataFrame:
    """All verdicts of all rows, as ``FOUND``."""
    named = [each.alias(f"verdict_{number}") for number, each in enumerate(verdicts)]
    several = rows.select(*named).select(
        fn.array_compact(fn.array(*(f"verdict_{n}" for n in range(len(named))))).alias("found")
    )
    return several.where(fn.size("found") > 0).select(fn.inline("found")).select(*FOUND.fieldNames())


def told(found: Sequence[DataFrame], most: int = TOLD_MAX) -> DataFrame:
    """As ``TOLD``: of each rule and part the first ones, and how many there are."""
    together = reduce(DataFrame.unionByName, (each.select(*FOUND.fieldNames()) for each in found))
    keys = ("rule", "chain", "part")
    ranked = Window.partitionBy(*keys).orderBy("first_ts", "last_ts", "words")
    counted = together.withColumns(
        {
            "rank": fn.row_number().over(ranked).cast("long"),
            "of": fn.count(fn.lit(1)).over(Window.partitionBy(*keys)),
        }
    )
    return counted.where(fn.col("rank") <= most)


def named(kept: DataFrame, events: DataFrame, *more: str) -> DataFrame:
    """As ``schemas.VERDICTS``: identities as people see them, files by name. ``more``: columns that stay."""
    names = events.select(fn.col("file").alias("name")).distinct().withColumn("file", hashed("name"))
    number = fn.struct("rule", "chain", "part", "rank")
    files = (
        kept.select(number.alias("key"), fn.explode("files").alias("file"))
        .join(fn.broadcast(names), "file")  # as many as there are files
        .groupBy("key")
        .agg(fn.array_sort(fn.collect_set("name")).alias("names"))
    )
    with_names = kept.withColumn("key", number).join(files, "key", "left")
    return with_names.select(
        "rule",
        shown(fn.col("chain")).alias("chain"),
        fn.transform("sites", shown).alias("sites"),
        "first_ts",
        "last_ts",
        "epoch",
        "revision",
        "words",
        fn.coalesce("names", fn.array().cast("array<string>")).alias("files"),
        *more,
    )


def rules(kept: DataFrame, checked: DataFrame) -> DataFrame:
    """As ``schemas.RULES``. ``checked``: rule and rows, any number of rows for each, one for every rule."""
    zero = fn.lit(0).cast("long")
    counted = checked.select("rule", "rows", zero.alias("violations")).unionByName(
        kept.where("rank = 1").select("rule", zero.alias("rows"), fn.col("of").alias("violations"))
    )
    sums = counted.groupBy("rule").agg(fn.sum("rows").alias("rows"), fn.sum("violations").alias("violations"))
    verdict = (
        fn.when(fn.col("violations") > 0, "violated").when(fn.col("rows") > 0, "held").otherwise("unchecked")
    )
    return sums.withColumn("verdict", verdict).select(*schemas.RULES.fieldNames())


def one_of(counts: Mapping[str, Column]) -> Column:
    """Rows checked, as an array of (rule, rows)."""
    return fn.array(
        *(fn.struct(fn.lit(rule).alias("rule"), count.alias("rows")) for rule, count in counts.items())
    )
