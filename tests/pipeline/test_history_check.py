"""The history of random lives, told by several replicas with gaps, bases and files that are gone, is what
DuckDB makes of the same rows, and where all was told it is what really happened."""

import random
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline import history
from pipeline import tables as all_tables
from pipeline.files import ROW_BITS
from tests.pipeline import duck_history
from tests.pipeline.histories import Recorded, change, run_job

CHAINS = 12
SLOTS = 150
KEYS = [b"key%d" % number for number in range(9)]
State = dict[bytes, tuple[bytes, int]]


class Truth:
    """What happened in a chain, and the state behind each slot."""

    def __init__(self, chain: int, chance: random.Random) -> None:
        self.chain = chain
        self.changes: list[Recorded] = [[]]
        self.states: list[State] = [{}]
        values = count()
        for slot in range(1, SLOTS + 1):
            state, rows = dict(self.states[-1]), []
            for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 4))):
                key = chance.choice(KEYS)
                if key in state and chance.random() < 0.5:
                    del state[key]
                    rows.append(change(chance.choice(("delete", "expire")), slot, key, chain=chain))
                else:
                    state[key] = (b"%d" % next(values), slot)
                    rows.append(change("put", slot, key, state[key][0], chain=chain))
            self.changes.append(rows)
            self.states.append(state)

    def base(self, slot: int) -> Recorded:
        entries = self.states[slot].items()
        return [
            change("base", slot, chain=self.chain, version=len(entries)),
            *(
                change("base", slot, key, value, revision=revision, chain=self.chain)
                for key, (value, revision) in entries
            ),
        ]


def told_by(truth: Truth, chance: random.Random) -> list[Recorded]:
    """What one replica records, slot by slot: it begins somewhere, loses its place and begins again."""
    found: list[Recorded] = []
    slot, boot = chance.randrange(40), 1
    while slot < SLOTS:
        found.append([{**row, "boot": boot} for row in truth.base(slot)])
        last = min(slot + chance.randrange(60), SLOTS)
        found += [
            [{**row, "boot": boot} for row in truth.changes[each]] for each in range(slot + 1, last + 1)
        ]
        match chance.randrange(4):
            case 0:  # a gap
                found.append([change("gap", last, chain=truth.chain, boot=boot)])
                slot = min(last + chance.randrange(30), SLOTS)
            case 1:  # another base, and nothing between
                found.append([change("reached", last, chain=truth.chain, boot=boot)])
                slot = last
            case 2:  # it crashes in the middle of a slot, and comes back with some that it had told
                cut = found[-1]
                found[-1] = cut[: chance.randrange(len(cut) + 1)] if cut and cut[0]["kind"] != "base" else cut
                slot, boot = max(last - chance.randrange(10), slot + 1), boot + 1
            case _:
                found.append([change("reached", last, chain=truth.chain, boot=boot)])
                slot = min(last + chance.randrange(1, 20), SLOTS)
                boot += 1
    return found


def in_files(told: list[Recorded], chance: random.Random) -> Recorded:
    """Files end behind a slot, and some are gone."""
    found: Recorded = []
    number, place, is_kept = 1, 0, True
    for rows in told:
        if chance.random() < 0.15:
            number, place, is_kept = number + 1, 0, chance.random() < 0.8
        if is_kept:
            found += [{**row, "position": (number << ROW_BITS) + place + n} for n, row in enumerate(rows)]
        place += len(rows)
    return found


def recorded(truths: list[Truth], chance: random.Random) -> Recorded:
    """By one to three replicas of each chain; some go from one chain to the next with the same recorder."""
    found: Recorded = []
    for one, other in zip(truths[::2], truths[1::2], strict=True):
        for site in range(1, chance.randrange(1, 4) + 1):
            life = [*told_by(one, chance), *told_by(other, chance)]
            name = f"{one.chain}-{site}"
            found += [{**row, "site": site, "recorder": name} for row in in_files(life, chance)]
    return found


def test_when_random_lives_are_told_in_part_then_the_states_are_those_of_another_reckoning(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(23)
    truths = [Truth(chain, chance) for chain in range(1, CHAINS + 1)]
    wanted = [(truth.chain, slot) for truth in truths for slot in sorted(chance.sample(range(SLOTS + 1), 40))]
    ran = run_job(spark, tmp_path, recorded(truths, chance))
    changes = ran.tables.read(all_tables.KV_CHANGES)
    slots = spark.createDataFrame(wanted, "chain long, as_of long")
    found: set[Any] = {
        (row.chain, row.as_of, bytes(row.key), bytes(row.value), row.revision)
        for row in history.state_as_of(changes, slots).collect()
    }
    expected, known = duck_history.states(tmp_path, wanted)
    assert found == expected
    assert len(found) > 1000
    assert changes.where("kind = 'gone'").count() > 10
    assert len(known) > len(wanted) // 3
    for chain, slot in known:
        state = {each[2]: each[3:] for each in found if each[:2] == (chain, slot)}
        assert state == truths[chain - 1].states[slot], (chain, slot)
    checks = {row.check for row in ran.tables.read(all_tables.QUALITY).where("severity != 'note'").collect()}
    assert checks <= {"hole", "torn-base", "ends-early", "begins-late"}
