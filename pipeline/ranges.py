"""How are ranges of slots cut, put together and compared, without a row per message?

Everything is done within a *part*: so many consecutive slots (or sequence numbers) of a chain. ``cut`` makes
of a range one row for each part that it touches, so what must meet has one key, (…, part), and no boundary
hides anything. What must be known beyond a part is first summed up to one row for each part; ``before`` and
``behind`` hand these sums on from part to part.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as fn

PART: Final = 1 << 20  # slots, or sequence numbers


def part_of(place: Column, width: int) -> Column:
    """Places are not negative."""
    return fn.call_function("div", place, fn.lit(width).cast("long"))


def cut(rows: DataFrame, width: int, first: str = "first", last: str = "last") -> DataFrame:
    """One row for each ``part`` that the range from ``first`` to ``last`` touches, and of it what lies in
    that part."""
    touched = fn.sequence(part_of(fn.col(first), width), part_of(fn.col(last), width))
    begin = fn.col("part") * fn.lit(width).cast("long")
    return rows.withColumn("part", fn.explode(touched)).withColumns(
        {
            first: fn.greatest(fn.col(first), begin),
            last: fn.least(fn.col(last), begin + fn.lit(width - 1).cast("long")),
        }
    )


def within(keys: Sequence[str], order: Sequence[str | Column]) -> WindowSpec:
    """Rows of one key, in order. The key has a part in it, or the rows are sums."""
    return Window.partitionBy(*keys).orderBy(*order)


def so_far(spec: WindowSpec) -> WindowSpec:
    """All rows up to this one."""
    return spec.rowsBetween(Window.unboundedPreceding, Window.currentRow)


def earlier(spec: WindowSpec) -> WindowSpec:
    """All rows before this one."""
    return spec.rowsBetween(Window.unboundedPreceding, -1)


def below(spec: WindowSpec) -> WindowSpec:
    """All rows whose place is smaller than this one's; the order is one column of whole numbers."""
    return spec.rangeBetween(Window.unboundedPreceding, -1)


def before(sums: DataFrame, keys: Sequence[str], values: Mapping[str, Column]) -> DataFrame:
    """To the sums of each part (``keys`` and ``part``) aggregates over all parts before it."""
    spec = earlier(within(keys, ["part"]))
    return sums.withColumns({name: value.over(spec) for name, value in values.items()})


def behind(sums: DataFrame, keys: Sequence[str], values: Mapping[str, Column]) -> DataFrame:
    """To the sums of each part aggregates over all parts behind it."""
    spec = earlier(within(keys, [fn.col("part").desc()]))
    return sums.withColumns({name: value.over(spec) for name, value in values.items()})


def least_behind(
    rows: DataFrame, keys: Sequence[str], place: str, values: Mapping[str, Column], *, with_here: bool
) -> DataFrame:
    """To each row the least of each value behind its place, or also at it, in its part and in all parts that
    follow. ``keys`` are without the part."""
    sums = rows.groupBy(*keys, "part").agg(*(fn.min(value).alias(name) for name, value in values.items()))
    later = {f"{name}_later": fn.min(name) for name in values}
    sums = behind(sums, keys, later).drop(*values)
    until = Window.currentRow if with_here else -1
    spec = within([*keys, "part"], [fn.col(place).desc()]).rangeBetween(Window.unboundedPreceding, until)
    here = rows.withColumns({name: fn.min(value).over(spec) for name, value in values.items()})
    joined = here.join(fn.broadcast(sums), [*keys, "part"], "left")
    return joined.withColumns({name: fn.least(name, f"{name}_later") for name in values}).drop(*later)
