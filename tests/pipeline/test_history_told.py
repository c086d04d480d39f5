"""The history of keys where replicas tell of it in another way, or not all of it."""

from pathlib import Path

from pyspark.sql import SparkSession

from pipeline import tables as all_tables
from tests.pipeline.histories import Recorded, change, placed, problems, run_job, values_as_of


def by_all(*rows: dict[str, object]) -> Recorded:
    """The same, told by three replicas."""
    return [{**row, "site": site, "recorder": f"of {site}"} for site in (1, 2, 3) for row in placed(*rows)]


# -- several changes of a key in one slot --------------------------------------------------------


def test_when_a_key_is_changed_again_in_its_slot_then_the_last_change_counts_and_nobody_disagrees(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A lease ends in the slot of a put, and a transaction has several operations on one key."""
    keys = [b"key%d" % number for number in range(8)]
    rows = [change("base", 0, version=0)]
    rows += [change("put", 5, key, b"leased", version=1, lease=3) for key in keys]
    for slot, key in enumerate(keys, 500):
        rows += [change("expire", slot, key), change("put", slot, key, b"again", version=1)]
    rows += [
        change(kind, 600, key, value)
        for key in keys
        for kind, value in (("put", b"1"), ("delete", None), ("put", b"2"), ("delete", None))
    ]
    rows.append(change("reached", 700))
    stopped = [{**row, "site": 4, "recorder": "of 4"} for row in [*rows[:9], change("expire", 500, keys[0])]]
    ran = run_job(spark, tmp_path, [*by_all(*rows), *placed(*stopped)])
    assert values_as_of(ran.tables, 1, 499) == dict.fromkeys(keys, b"leased")
    assert values_as_of(ran.tables, 1, 550) == dict.fromkeys(keys, b"again")
    assert values_as_of(ran.tables, 1, 600) == {}
    assert ran.tables.read(all_tables.KV_CHANGES).count() == 3 * len(keys)
    assert not problems(ran.tables)
