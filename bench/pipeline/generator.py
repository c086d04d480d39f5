"""Recordings that keep all rules, of any size, fast: columns are computed, not rows.

The story is always the same. Replicas found a group and order *blocks*, ranges of messages of one source. In
the middle the last replica crashes, the others go on in a smaller ring, and it comes back from its disk
under a new boot with a state of the first. Callers record the operations of some sessions; some of them are
tried twice. A recording is cut into *chunks* of blocks, with one view each: no array is larger than one.

Everything is written as replicas and callers write it: a folder of closed files, ``operations/`` below it.
"""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ordering.recording import BOOT_BYTES, SCHEMA, SCHEMA_VERSION, EventKind

Column: TypeAlias = np.ndarray[Any, Any]
Step: TypeAlias = Callable[[str], None]

US: Final = 1_000
MS: Final = 1_000_000
WALL_NS: Final = 1_700_000_000_000_000_000
CHUNK_BLOCKS: Final = 1 << 16
ROWS_PER_FILE: Final = 100_000  # as a replica's recorder
COUNT_MAX: Final = 15  # messages in a block
GAP_NS: Final = 150 * US  # between blocks, on the average
PAUSE_NS: Final = 50 * MS  # between chunks: nothing is under way when the view changes
NULL_EVERY: Final = 64  # a block without messages has a slot, too
REACHED_EVERY: Final = 4  # a replica tells how far it is behind so many blocks
SESSIONS: Final = 16  # of each source; the callers of the first record
RETRIED: Final = 500  # one operation in so many is asked twice at once,
LOST: Final = 2_000  # or gets no answer
QUERIED: Final = 8  # one recorded block in so many is read behind
QUERY_CLIENTS: Final = 1 << 40
BEFORE: Final = 0.4  # of the blocks, until the last replica crashes
AWAY: Final = 0.1

NONE: Final = -1
# Kinds of rows, in the order in which those of one block happen.
_KINDS: Final = (
    EventKind.SUBMITTED,
    EventKind.DELIVERED,
    EventKind.HELD,
    EventKind.LEVEL,
    EventKind.APPLIED,
    EventKind.REPLIED,
    EventKind.STARTED,
    EventKind.VIEW,
    EventKind.RESTORED,
)
SUBMITTED, DELIVERED, HELD, LEVEL, APPLIED, REPLIED, STARTED, VIEW, RESTORED = range(len(_KINDS))
_AFTER_NS: Final = (-400 * US, 100 * US, 250 * US, 260 * US, 270 * US, 500 * US)
_LONGS: Final = ("first_ts", "count", "first_seq", "session", "first_request")

OPERATIONS: Final = pa.schema(
    [
        pa.field("schema_version", pa.uint16(), nullable=False),
        pa.field("chain", pa.uint64(), nullable=False),
        pa.field("client", pa.int64(), nullable=False),
        pa.field("request", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("argument", pa.binary()),
        pa.field("call_ns", pa.int64(), nullable=False),
        pa.field("return_ns", pa.int64()),
        pa.field("wall_ns", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("ts", pa.int64()),
        pa.field("reply", pa.binary()),
        pa.field("clock", pa.string()),
    ]
)
COMMAND, QUERY = 0, 1
OK, REJECTED, UNKNOWN = 0, 1, 2
_OPERATION_KINDS: Final = pa.array(["command", "query"])
_OPERATION_NAMES: Final = pa.array(["put", "get"])
_OUTCOMES: Final = pa.array(["ok", "rejected", "unknown"])


class Plant(NamedTuple):
    """A violation, and where it is. ``how``: what was done, in words."""

    rule: str
    how: str
    first_ts: int
    last_ts: int


class Generated(msgspec.Struct, kw_only=True):
    folder: Path
    events: int
    operations: int
    slots: int
    plants: list[Plant]

    @property
    def rows(self) -> int:
        return self.events + self.operations


class Group(NamedTuple):
    """Who there is. ``boots``: of each replica the first and, for the last, the second."""

    chain: int
    sites: Column
    boots: list[list[bytes]]

    @property
    def size(self) -> int:
        return len(self.sites)

    def view(self, ring: list[int]) -> str:
        members = " ".join(f"{site}=10.0.0.{number + 1}:7000" for number, site in enumerate(self.sites))
        voters = " ".join(map(str, self.sites))
        return f"members {members}; voters {voters}; ring {' '.join(str(self.sites[each]) for each in ring)}"


class Chunk(msgspec.Struct, kw_only=True):
    """Blocks in one view. Columns have one value for each block. ``is_new``: the view begins with it, at
    slot ``view_ts``; ``closes``: and ends; ``is_last``: nothing follows."""

    epoch: int
    ring: list[int]
    is_new: bool
    closes: bool
    is_last: bool
    view_ts: int
    begins_ns: int
    first_ts: Column
    count: Column
    source: Column
    first_seq: Column
    session: Column
    first_request: Column
    time: Column
    reached: Column  # whether a replica tells behind it how far it is
    rng: np.random.Generator

    @property
    def last_ts(self) -> Column:
        return self.first_ts + self.count - 1


Rows: TypeAlias = dict[str, Column]
Edit: TypeAlias = Callable[[Chunk, int, Rows], Rows]
EditOperations: TypeAlias = Callable[[Chunk, Rows], Rows]


class Edits(NamedTuple):
    """What is done to the rows of a replica, and to operations, before they are written."""

    events: Edit
    operations: EditOperations


def generate(
    folder: Path,
    rows: int,
    *,
    replicas: int = 3,
    seed: int = 1,
    planted: Collection[str] = (),
    rows_per_file: int = ROWS_PER_FILE,
    step: Step | None = None,
) -> Generated:
    """A recording of about so many rows, events and operations, in ``folder``. ``planted``: with
    violations of these rules (``plants.RULES``)."""
    from bench.pipeline.plants import Planting  # it is made of what is here

    rng = np.random.default_rng(seed)
    group = _group(replicas, rng)
    blocks = max(round(rows / _rows_per_block(replicas)), 64)
    writer = Writer(folder, group, rows_per_file)
    planting = Planting(planted)
    done = slots = 0
    with ThreadPoolExecutor(2) as pool:
        waiting: list[Future[None]] = []
        for chunk in _chunks(group, blocks, rng):
            edits = planting.edits(chunk) if planted else None
            made = [_events(group, chunk, replica) for replica in range(replicas)]
            operations = _operations(group, chunk)
            if edits is not None:
                made = [edits.events(chunk, replica, each) for replica, each in enumerate(made)]
                operations = edits.operations(chunk, operations)
            for each in waiting:
                each.result()
            waiting = [
                pool.submit(writer.write_events, replica, chunk, each) for replica, each in enumerate(made)
            ]
            waiting.append(pool.submit(writer.write_operations, chunk, operations))
            done += len(chunk.count)
            slots = int(chunk.last_ts[-1])
            if step is not None:
                step(f"generating {rows:,} rows: {100 * done // blocks} %")
        for each in waiting:
            each.result()
    return Generated(
        folder=folder,
        events=writer.events,
        operations=writer.operations,
        slots=slots,
        plants=planting.plants,
    )


def _rows_per_block(replicas: int) -> float:
    """Most of the time all are there; operations are one for each message of a recorded session."""
    up = replicas - AWAY
    operations = ((COUNT_MAX + 1) / 2 + 1 / QUERIED) / SESSIONS
    return 2 + up * (1 + 3 / REACHED_EVERY) + operations


def _group(replicas: int, rng: np.random.Generator) -> Group:
    identities = rng.integers(1, 1 << 64, replicas + 1, dtype=np.uint64, endpoint=False)
    boots = [[rng.bytes(BOOT_BYTES) for _ in range(2)] for _ in range(replicas)]
    return Group(int(identities[0]), identities[1:], boots)


# -- blocks --------------------------------------------------------------------------------------


def _chunks(group: Group, blocks: int, rng: np.random.Generator) -> Iterator[Chunk]:
    """Three views: all, all but the last replica, all again."""
    everyone = list(range(group.size))
    ends = (round(blocks * BEFORE), round(blocks * (BEFORE + AWAY)), blocks)
    carry = _Carry(group.size)
    done = 0
    for epoch, (end, ring) in enumerate(zip(ends, (everyone, everyone[:-1], everyone), strict=True), 1):
        is_new = True
        left = -(-(end - done) // CHUNK_BLOCKS)  # chunks, all of about the same size
        while done < end:
            size, left = (end - done) // left, left - 1
            made = carry.chunk(epoch, ring, size, done, rng, is_new=is_new)
            done += size
            made.closes, made.is_last, is_new = done == end, done == blocks, False
            yield made


class _Carry:
    """What goes on from chunk to chunk: the next slot, the time, and the last number of each source and
    session."""

    def __init__(self, replicas: int) -> None:
        self._ts = 0
        self._ns = 1_000 * MS
        self._seqs = np.zeros(replicas, np.int64)
        self._requests = np.zeros(replicas * SESSIONS, np.int64)

    def chunk(
        self,
        epoch: int,
        ring: list[int],
        size: int,
        done: int,
        rng: np.random.Generator,
        *,
        is_new: bool,
    ) -> Chunk:
        begins_ns = self._ns + PAUSE_NS
        count = rng.integers(1, COUNT_MAX, size, dtype=np.int64, endpoint=True)
        number = done + np.arange(size)
        source = rng.choice(np.array(ring, np.int64), size)
        session = source * SESSIONS + rng.integers(0, SESSIONS, size)
        spaces = count + (number % NULL_EVERY == NULL_EVERY - 1)
        view_ts = self._ts + 1
        last = self._ts + int(is_new) + np.cumsum(spaces)
        first_ts = last - spaces + 1
        time = begins_ns + np.cumsum(US + rng.exponential(GAP_NS - US, size).astype(np.int64))
        made = Chunk(
            epoch=epoch,
            ring=ring,
            is_new=is_new,
            closes=False,
            is_last=False,
            view_ts=view_ts,
            begins_ns=begins_ns,
            first_ts=first_ts,
            count=count,
            source=source,
            first_seq=_numbered(source, count, self._seqs),
            session=session,
            first_request=_numbered(session, count, self._requests),
            time=time,
            reached=(number + 1) % REACHED_EVERY == 0,
            rng=rng,
        )
        self._ts, self._ns = int(last[-1]), int(time[-1])
        return made


def _numbered(key: Column, count: Column, last: Column) -> Column:
    """The first number of each block: those of one key go on without a gap, from ``last``, which is moved."""
    order = np.argsort(key, kind="stable")
    sums = np.cumsum(count[order])
    before = sums - count[order]
    keys = key[order]
    begins = np.r_[True, keys[1:] != keys[:-1]]
    base = np.maximum.accumulate(np.where(begins, before, 0))
    found = np.empty(len(key), np.int64)
    found[order] = last[keys] + 1 + before - base
    np.add.at(last, key, count)
    return found


# -- rows ----------------------------------------------------------------------------------------


def _events(group: Group, chunk: Chunk, replica: int) -> Rows:
    """All rows of a replica in a chunk, not in order yet. Without any it is away."""
    if replica not in chunk.ring:
        return _rows(np.empty(0, np.int64), SUBMITTED, chunk)
    own = np.flatnonzero(chunk.source == replica)
    told = np.flatnonzero(chunk.reached)
    every = np.arange(len(chunk.count))
    parts = [_rows(own, SUBMITTED, chunk), _rows(every, DELIVERED, chunk), _rows(own, REPLIED, chunk)]
    parts += [_rows(told, kind, chunk) for kind in (HELD, LEVEL, APPLIED)]
    parts[0]["session"], parts[0]["first_request"] = chunk.session[own], chunk.first_request[own]
    parts[0]["first_ts"][:] = NONE
    parts += _begins(chunk, replica, group.size)
    return joined(parts)


def _rows(blocks: Column, kind: int, chunk: Chunk) -> Rows:
    """Rows of one kind, one for each of some blocks."""
    size = len(blocks)
    ranged = kind in (SUBMITTED, DELIVERED, REPLIED)
    nothing = np.full(size, NONE, np.int64)
    last = chunk.last_ts[blocks]
    return {
        "kind": np.full(size, kind, np.int16),
        "block": blocks,
        "time": chunk.time[blocks] + _AFTER_NS[kind],
        "epoch": np.full(size, chunk.epoch, np.int64),
        "first_ts": chunk.first_ts[blocks] if ranged else last,
        "count": chunk.count[blocks] if ranged else nothing.copy(),
        "source": chunk.source[blocks] if ranged else nothing.copy(),
        "first_seq": chunk.first_seq[blocks] if ranged else nothing.copy(),
        "session": nothing.copy(),
        "first_request": nothing.copy(),
        "digest": hashed(last) if kind == APPLIED else np.zeros(size, np.uint64),
        # Of a level the slot that is stable; of a view which list it has.
        "detail": np.maximum(last - COUNT_MAX * REACHED_EVERY, 0) if kind == LEVEL else nothing.copy(),
    }


def _begins(chunk: Chunk, replica: int, replicas: int) -> list[Rows]:
    """A view begins; some begin with it."""
    if not chunk.is_new:
        return []
    is_back = chunk.epoch == 3 and replica == replicas - 1
    found = []
    if chunk.epoch == 1 or is_back:
        found.append(single(chunk, STARTED, -30 * MS))
    found.append(single(chunk, VIEW, -20 * MS, first_ts=chunk.view_ts, detail=len(chunk.ring)))
    if is_back:
        state = chunk.view_ts - 1
        found.append(single(chunk, RESTORED, -10 * MS, first_ts=state, source=0))
        found[-1]["digest"][:] = hashed(np.array([state]))
    return found


def single(chunk: Chunk, kind: int, after_ns: int, **cells: int) -> Rows:
    """One row that belongs to no block."""
    row = {name: np.full(1, NONE, np.int64) for name in ("block", "detail", "source", *_LONGS)}
    row |= {
        "kind": np.full(1, kind, np.int16),
        "time": np.full(1, chunk.begins_ns + after_ns, np.int64),
        "epoch": np.full(1, chunk.epoch if kind != STARTED else 0, np.int64),
        "digest": np.zeros(1, np.uint64),
    }
    return row | {name: np.full(1, value, np.int64) for name, value in cells.items()}


def joined(parts: list[Rows]) -> Rows:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def hashed(slots: Column) -> Column:
    """The digest of the state at a slot (splitmix64's finisher): the same at every replica."""
    mixed = slots.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Column = mixed ^ (mixed >> np.uint64(31))
    return found


def _operations(group: Group, chunk: Chunk) -> Rows:
    """What callers saw of the first session of each source. A command takes place when its block is ordered:
    it was called before and returns behind that, so real time and slots agree."""
    rng = chunk.rng
    blocks = np.flatnonzero(chunk.session % SESSIONS == 0)
    of = np.repeat(blocks, chunk.count[blocks])
    size = len(of)
    offset = np.arange(size) - np.repeat(
        np.cumsum(chunk.count[blocks]) - chunk.count[blocks], chunk.count[blocks]
    )
    ts = chunk.first_ts[of] + offset
    commands: Rows = {
        "block": of,
        "client": chunk.session[of] + 1,
        "request": chunk.first_request[of] + offset,
        "kind": np.full(size, COMMAND, np.int8),
        "call_ns": chunk.time[of] - 450 * US - rng.integers(0, 200 * US, size),
        "return_ns": chunk.time[of] + 550 * US + rng.integers(0, 300 * US, size),
        "outcome": np.where(ts % 50 == 7, REJECTED, OK).astype(np.int8),
        "ts": ts,
        "reply": hashed(ts ^ (1 << 50)),
    }
    return joined([commands, _unlike_others(commands), _queries(chunk, blocks)])


def _unlike_others(commands: Rows) -> Rows:
    """Some were asked at two gateways at once, and answered by both: these. Of some no answer came."""
    number = np.arange(len(commands["ts"]))
    twice = _picked(commands, number % RETRIED == RETRIED // 2)
    twice["call_ns"] += 50 * US
    lost = number % LOST == LOST // 3
    commands["return_ns"][lost] += 300 * US
    commands["outcome"][lost] = UNKNOWN
    commands["ts"][lost] = NONE
    return twice


def _picked(rows: Rows, which: Column) -> Rows:
    return {name: column[which].copy() for name, column in rows.items()}


def _queries(chunk: Chunk, blocks: Column) -> Rows:
    """Linearizable reads: each takes place right behind a block, and names its last slot."""
    behind = blocks[::QUERIED]
    size = len(behind)
    return {
        "block": behind,
        "client": chunk.session[behind] + 1 + QUERY_CLIENTS,
        "request": chunk.first_ts[behind],
        "kind": np.full(size, QUERY, np.int8),
        "call_ns": chunk.time[behind] - 5 * US,
        "return_ns": chunk.time[behind] + 900 * US,
        "outcome": np.full(size, OK, np.int8),
        "ts": chunk.last_ts[behind],
        "reply": hashed(chunk.last_ts[behind]),
    }


# -- writing -------------------------------------------------------------------------------------


class Writer:
    """Rows in the order of their times, as closed files."""

    def __init__(self, folder: Path, group: Group, rows_per_file: int) -> None:
        self.folder = folder
        self.group = group
        self.events = self.operations = 0
        self._rows_per_file = rows_per_file
        self._files: dict[str, int] = {}
        self._event_counts = [0] * group.size
        (folder / "operations").mkdir(parents=True, exist_ok=True)

    def write_events(self, replica: int, chunk: Chunk, rows: Rows) -> None:
        if len(rows["time"]):
            order = np.argsort(rows["time"], kind="stable")
            ordered = {name: column[order] for name, column in rows.items()}
            table = self._event_table(replica, chunk, ordered)
            self._write(self.folder, f"replica-{replica + 1}", table)
            self._event_counts[replica] += table.num_rows
            self.events = sum(self._event_counts)

    def write_operations(self, chunk: Chunk, rows: Rows) -> None:
        order = np.argsort(rows["call_ns"], kind="stable")
        table = self._operation_table({name: column[order] for name, column in rows.items()})
        self._write(self.folder / "operations", "callers", table)
        self.operations += table.num_rows

    def _write(self, folder: Path, name: str, table: pa.Table) -> None:
        for first in range(0, table.num_rows, self._rows_per_file):
            number = self._files[name] = self._files.get(name, 0) + 1
            path = folder / f"{name}-{number:06}.parquet"
            pq.write_table(table.slice(first, self._rows_per_file), path, compression="zstd")

    def _event_table(self, replica: int, chunk: Chunk, rows: Rows) -> pa.Table:
        group, size = self.group, len(rows["time"])
        is_back = chunk.epoch == 3 and replica == group.size - 1
        kind = rows["kind"]
        has_qos = (kind == SUBMITTED) | (kind == DELIVERED)
        mono = rows["time"] + replica * 7_000 * MS  # clocks began at different times
        columns: dict[str, Any] = {
            "schema_version": pa.repeat(pa.scalar(SCHEMA_VERSION, pa.uint16()), size),
            "chain": pa.array(np.where(kind == STARTED, 0, group.chain).astype(np.uint64)),
            "site": pa.repeat(pa.scalar(int(group.sites[replica]), pa.uint64()), size),
            "boot": pa.repeat(pa.scalar(group.boots[replica][is_back], pa.binary(BOOT_BYTES)), size),
            "event": pa.DictionaryArray.from_arrays(
                pa.array(kind), pa.array([each.value for each in _KINDS])
            ),
            "epoch": pa.array(rows["epoch"]),
            "revision": pa.array(np.zeros(size, np.int64)),
            "source": _nullable(group.sites[np.maximum(rows["source"], 0)], rows["source"] == NONE),
            "qos": pa.DictionaryArray.from_arrays(
                _nullable(np.zeros(size, np.int16), ~has_qos), pa.array(["majority"])
            ),
            "mono_ns": pa.array(mono),
            "wall_ns": pa.array(rows["time"] + WALL_NS + replica * 40 * US),
            "digest": _binary(rows["digest"], rows["digest"] == 0),
            "detail": self._details(chunk, rows, is_back=is_back),
        }
        columns |= {name: _nullable(rows[name], rows[name] == NONE) for name in _LONGS}
        return pa.Table.from_arrays([columns[field.name] for field in SCHEMA], schema=SCHEMA)

    def _details(self, chunk: Chunk, rows: Rows, *, is_back: bool) -> pa.Array:
        """Words by kind; of levels the stable slot, of views the list."""
        kind, detail = rows["kind"], rows["detail"]
        words = {DELIVERED: "majority", REPLIED: "own", STARTED: "disk" if is_back else "founder"}
        known = pa.array([words.get(each) for each in range(len(_KINDS))], pa.string())
        plain = known.take(pa.array(kind))
        stable = pc.binary_join_element_wise("stable", pa.array(detail).cast(pa.string()), " ")
        made = pc.if_else(pa.array(kind == LEVEL), stable, plain)
        if not (kind == VIEW).any():
            return made
        lists = [self.group.view(list(range(length))) for length in range(self.group.size + 1)]
        views = pa.array(lists).take(pa.array(np.clip(detail, 0, self.group.size)))
        return pc.if_else(pa.array(kind == VIEW), views, made)

    def _operation_table(self, rows: Rows) -> pa.Table:
        size = len(rows["ts"])
        unknown = rows["outcome"] == UNKNOWN
        kinds = pa.array(rows["kind"])
        columns: dict[str, Any] = {
            "schema_version": pa.repeat(pa.scalar(SCHEMA_VERSION, pa.uint16()), size),
            "chain": pa.repeat(pa.scalar(self.group.chain, pa.uint64()), size),
            "client": pa.array(rows["client"]),
            "request": pa.array(rows["request"]),
            "kind": _OPERATION_KINDS.take(kinds),
            "operation": _OPERATION_NAMES.take(kinds),
            "argument": _binary(hashed(rows["request"]), np.zeros(size, bool)),
            "call_ns": pa.array(rows["call_ns"]),
            "return_ns": pa.array(rows["return_ns"]),
            "wall_ns": pa.array(rows["call_ns"] + WALL_NS),
            "outcome": _OUTCOMES.take(pa.array(rows["outcome"])),
            "ts": _nullable(rows["ts"], rows["ts"] == NONE),
            "reply": _binary(rows["reply"], unknown),
            "clock": pa.repeat("callers' host", size),
        }
        return pa.Table.from_arrays([columns[field.name] for field in OPERATIONS], schema=OPERATIONS)


def _nullable(values: Column, is_null: Column) -> pa.Array:
    return pa.array(values, mask=is_null)


def _binary(words: Column, is_null: Column) -> pa.Array:
    """Eight bytes each."""
    size = len(words)
    data = pa.py_buffer(words.astype(">u8").tobytes())
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), size, [None, data])
    return pc.if_else(pa.array(is_null), pa.scalar(None, pa.binary()), fixed.cast(pa.binary()))
