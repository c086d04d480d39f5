"""Single primary: a chain has one sequence of views. A slot has one view, a view one slot and one list, ids
grow with slots, and the ring that opens an epoch has a majority of its voters. Ordered changes may leave
fewer of them in it later, when who joins has not got its vote yet."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from pipeline.audit.recorded import in_chain
from pipeline.audit.verdicts import FOUND, SINGLE_PRIMARY, hashed, judged, slots_shown, verdict
from pipeline.ranges import before, earlier, part_of, within
from pipeline.schemas import shown

LOCKS_ONLY = "locks only"
_TELLER = ("site", "file")


def violations(events: DataFrame, width: int) -> DataFrame:
    views = (
        in_chain(events)
        .where("event = 'view' and first_ts is not null")
        .select("chain", "epoch", "revision", "first_ts", "site", hashed(), "detail")
        .withColumn("part", part_of(fn.col("first_ts"), width))
    )
    found = _one_view(views)
    for more in (_one_list(views), _one_slot(views, width), _growing(views), _majority(views)):
        found = found.unionByName(more)
    return found.select(*FOUND.fieldNames())


def _id(prefix: str = "") -> Column:
    return fn.concat_ws(".", f"{prefix}epoch", f"{prefix}revision")


def _pair(rule_words: list[Column | str], condition: Column, slot: Column, one: str, other: str) -> Column:
    return verdict(
        SINGLE_PRIMARY,
        condition,
        words=rule_words,
        sites=[fn.col(f"{one}.site"), fn.col(f"{other}.site")],
        files=[fn.col(f"{one}.file"), fn.col(f"{other}.file")],
        first_ts=slot,
        last_ts=slot,
        view=(fn.col(f"{other}.epoch"), fn.col(f"{other}.revision")),
    )


def _one_view(views: DataFrame) -> DataFrame:
    """Of a slot."""
    told = fn.struct("epoch", "revision", *_TELLER)
    at_slot = views.groupBy("chain", "part", "first_ts").agg(
        fn.min(told).alias("one"), fn.max(told).alias("other")
    )
    words: list[Column | str] = [
        slots_shown(fn.col("first_ts"), fn.col("first_ts")),
        ": view ",
        _id("one."),
        " at ",
        shown(fn.col("one.site")),
        ", view ",
        _id("other."),
        " at ",
        shown(fn.col("other.site")),
    ]
    return judged(at_slot, _pair(words, _id("one.") != _id("other."), fn.col("first_ts"), "one", "other"))


def _one_list(views: DataFrame) -> DataFrame:
    """Of a view. Who heard of the members before is told of locks only."""
    told = fn.struct("detail", "epoch", "revision", "first_ts", "part", *_TELLER)
    lists = (
        views.where(fn.col("detail").isNotNull() & (fn.col("detail") != LOCKS_ONLY))
        .groupBy("chain", "epoch", "revision")
        .agg(fn.min(told).alias("one"), fn.max(told).alias("other"))
        .withColumn("part", fn.col("one.part"))
    )
    words: list[Column | str] = [
        "view ",
        _id(),
        ": ",
        fn.col("one.detail"),
        " at ",
        shown(fn.col("one.site")),
        ", ",
        fn.col("other.detail"),
        " at ",
        shown(fn.col("other.site")),
    ]
    differs = fn.col("one.detail") != fn.col("other.detail")
    return judged(lists, _pair(words, differs, fn.col("one.first_ts"), "one", "other"))


def _one_slot(views: DataFrame, width: int) -> DataFrame:
    """Of a view."""
    told = fn.struct("first_ts", "epoch", "revision", *_TELLER)
    by_view = (
        views.groupBy("chain", "epoch", "revision")
        .agg(fn.min(told).alias("one"), fn.max(told).alias("other"))
        .withColumn("part", part_of(fn.col("one.first_ts"), width))
    )
    words: list[Column | str] = [
        "view ",
        _id(),
        ": at slot ",
        fn.col("one.first_ts"),
        " at ",
        shown(fn.col("one.site")),
        ", at slot ",
        fn.col("other.first_ts"),
        " at ",
        shown(fn.col("other.site")),
    ]
    differs = fn.col("one.first_ts") != fn.col("other.first_ts")
    return judged(by_view, _pair(words, differs, fn.col("one.first_ts"), "one", "other"))


def _growing(views: DataFrame) -> DataFrame:
    """In order of slots each id is above the one before, also of the parts before."""
    told = fn.struct("epoch", "revision", *_TELLER)
    at_slot = views.groupBy("chain", "part", "first_ts").agg(fn.min(told).alias("this"))
    highest = at_slot.groupBy("chain", "part").agg(fn.max("this").alias("highest"))
    carried = before(highest, ["chain"], {"came_from": fn.max("highest")}).drop("highest")
    spec = earlier(within(["chain", "part"], ["first_ts"]))
    ordered = at_slot.withColumn("here", fn.max("this").over(spec)).join(carried, ["chain", "part"])
    ordered = ordered.withColumn("highest", fn.greatest("here", "came_from"))
    words: list[Column | str] = [
        slots_shown(fn.col("first_ts"), fn.col("first_ts")),
        ": view ",
        _id("this."),
        " at ",
        shown(fn.col("this.site")),
        ", behind view ",
        _id("highest."),
        " at ",
        shown(fn.col("highest.site")),
    ]
    this = fn.struct("this.epoch", "this.revision")
    falls = this <= fn.struct("highest.epoch", "highest.revision")
    return judged(ordered, _pair(words, falls, fn.col("first_ts"), "highest", "this"))


def _majority(views: DataFrame) -> DataFrame:
    voters = fn.split(fn.regexp_extract("detail", r"; voters ([0-9 ]*)", 1), " ")
    ring = fn.split(fn.regexp_extract("detail", r"; ring ([0-9 ]*)", 1), " ")
    told = fn.struct(*_TELLER)
    lists = (
        views.where(
            (fn.col("revision") == 0)
            & fn.col("detail").contains("; voters ")
            & fn.col("detail").contains("; ring ")
        )
        .groupBy("chain", "part", "epoch", "revision", "first_ts", "detail")
        .agg(fn.min(told).alias("told"))
        .withColumns({"voters": voters, "ring": ring})
    )
    here = fn.size(fn.array_intersect("voters", "ring"))
    few = verdict(
        SINGLE_PRIMARY,
        here * 2 <= fn.size("voters"),
        words=[
            "view ",
            _id(),
            ": the ring has ",
            here,
            " of ",
            fn.size("voters"),
            " voters: ",
            fn.col("detail"),
        ],
        sites=[fn.col("told.site")],
        files=[fn.col("told.file")],
        first_ts=fn.col("first_ts"),
        last_ts=fn.col("first_ts"),
        view=(fn.col("epoch"), fn.col("revision")),
    )
    return judged(lists, few)
