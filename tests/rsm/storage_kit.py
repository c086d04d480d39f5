"""Histories of records, and stores to write them into."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from hypothesis import strategies as st

from ordering.packets import Ballot, Batch, Descent, Order, Position, Run
from ordering.qos import MAJORITY
from ordering.records import (
    Began,
    Claim,
    Commitment,
    Entries,
    Entry,
    Heard,
    Installed,
    Instance,
    Leapt,
    Ledger,
    Parent,
    Record,
    Transferred,
    Trimmed,
)
from ordering.views import Member, SiteId, View, ViewId
from rsm.storage import Store
from rsm.storage.claim import Claimed, ClaimFile

GROUP = "g"
LARGE = 100_000
BOOT = (1 << 127) + 5
ME = SiteId(1)
OTHER = SiteId((1 << 64) - 1)
MEMBERS = (Member(ME, BOOT, "a:1"), Member(OTHER, BOOT + 1, "b:1"))
VIEW = View(ViewId(0, 0), MEMBERS, (ME, OTHER), ())
DESCENT = Descent(5, 0)
BEGAN = Began(ME, 5, DESCENT, VIEW, 0, 0, ())
JOINED = Began(ME, 5, DESCENT, None, 6, 7, ((SiteId(9), 3),))


def view(epoch: int, revision: int = 0) -> View:
    return View(ViewId(epoch, revision), MEMBERS, (ME, OTHER), (OTHER, ME))


def block(ts: int, *messages: bytes, epoch: int = 1, seq: int | None = None) -> Entry:
    """A block at ``ts`` with its messages; without any, a NULL ACK."""
    first = ts if seq is None else seq
    runs = (Run(ME, first, len(messages)),) if messages else ()
    batches = (Batch(ME, BOOT, first, MAJORITY, messages),) if messages else ()
    return Entry(Order(epoch, ts, ME, OTHER, runs, time=ts), batches)


def blocks(first: int, count: int, epoch: int = 1) -> Entries:
    """Blocks of two slots each: one message."""
    return Entries(tuple(block(first + 2 * n, b"%d" % n, epoch=epoch) for n in range(count)))


def install(epoch: int, ts: int) -> Installed:
    order = Order(epoch, ts, ME, ME, view=view(epoch), vector=((ME, 3), (OTHER, 0)))
    return Installed(order, 5, DESCENT, ((ts, 5),))


def position(epoch: int, ts: int) -> Position:
    return Position(epoch, ts, min(ts, 1), view(epoch, 1), ((ME, 1), (OTHER, 1)), 7)


def promise(epoch: int, number: int) -> Commitment:
    accepted = Order(epoch + 1, 9, ME, ME, view=view(epoch + 1))
    instance = Instance(Ballot(number, OTHER), Ballot(number - 1, ME), accepted, None, True)
    parent = Parent(4, Descent(4, 1), VIEW, Instance())
    return Commitment(5, DESCENT, epoch, instance, view(epoch), (parent,))


def ledger_of(transactions: list[tuple[Record, ...]]) -> Ledger:
    ledger = Ledger()
    for records in transactions:
        ledger.apply(records)
    return ledger


@st.composite
def _record(draw: st.DrawFn, ledger: Ledger) -> Record:
    """One that may come next after what the ledger holds."""
    epoch = max(ledger.epoch, 1)
    kind = draw(st.sampled_from("EEEEEIICLTXHH"))
    if kind == "E":
        entries: list[Entry] = []
        ts = ledger.end + 1
        for _ in range(draw(st.integers(1, 3))):
            made = block(ts, *draw(st.lists(st.binary(max_size=30), max_size=3)), epoch=epoch)
            entries.append(made)
            ts = made.order.last_ts + 1
        return Entries(tuple(entries))
    if kind == "I":
        return install(epoch + 1, draw(st.sampled_from([*ledger.entries, ledger.end + 1])))
    if kind == "C":
        return promise(epoch + draw(st.integers(-1, 1)), draw(st.integers(1, 9)))
    if kind == "L":
        leapt = position(epoch + draw(st.integers(0, 1)), ledger.end + draw(st.integers(1, 5)))
        return Leapt(leapt, ((leapt.ts, 5), (1, 4)), ((SiteId(8), 1),))
    if kind == "T" and ledger.entries:
        last = draw(st.sampled_from(list(ledger.entries.values()))).order
        return Trimmed(position(last.epoch, last.last_ts), ((SiteId(7), last.ts),))
    if kind == "X":
        return Transferred(ledger.end)
    sites = draw(st.lists(st.integers(1, (1 << 64) - 1).map(SiteId), max_size=3, unique=True))
    return Heard(tuple((site, Claim(BOOT, epoch, draw(st.integers(0, 99)))) for site in sites))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Record, ...]]:
    """Transactions as an engine might ask for them."""
    began = draw(st.sampled_from([BEGAN, JOINED]))
    transactions: list[tuple[Record, ...]] = [(began,)]
    ledger = ledger_of(transactions)
    for _ in range(draw(st.integers(1, 7))):
        records: list[Record] = []
        for _ in range(draw(st.integers(1, 4))):
            records.append(draw(_record(ledger)))
            ledger.apply((records[-1],))
        transactions.append(tuple(records))
    return transactions


@contextmanager
def opened(directory: Path, url: str | None = None) -> Iterator[Store]:
    store = Store.open(directory, url, group=GROUP)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def restored(directory: Path) -> Iterator[Store]:
    with opened(directory) as store:
        assert store.restore().amnesiac is None
        yield store


def written(directory: Path, *transactions: tuple[Record, ...]) -> Ledger:
    """A closed store that holds the transactions, and what they come to."""
    with restored(directory) as store:
        for records in transactions:
            store.write(records)
    return ledger_of(list(transactions))


def copy_of(directory: Path, place: Path) -> Path:
    """As a crash of the process would leave it: nothing is closed, nothing brought into its file."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(directory, place)
    return place


def claimed_in(directory: Path) -> Claimed:
    file = ClaimFile(directory / "claim")
    try:
        claimed = file.read()
    finally:
        file.close()
    assert claimed is not None
    return claimed


def edit(directory: Path, statement: str, *values: object) -> None:
    """Change the database of a closed store behind its back."""
    connection = sqlite3.connect(directory / "rsm.db")
    try:
        cursor = connection.execute(statement, values)
        connection.commit()
        assert cursor.rowcount != 0
    finally:
        connection.close()


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def script(size: int = 100) -> Iterator[tuple[Record, ...]]:
    """The same transactions in every process: blocks of ``size`` bytes, and all the rest now and then.
    With large ones the log only grows."""
    rng = Random(size)
    ledger = Ledger()
    records: tuple[Record, ...] = (BEGAN,)
    while True:
        ledger.apply(records)
        yield records
        epoch = max(ledger.epoch, 1)
        records = (Entries((block(ledger.end + 1, rng.randbytes(size), epoch=epoch),)),)
        chance = rng.randrange(12)
        if chance == 0 and ledger.entries:
            records = (install(epoch + 1, rng.choice(list(ledger.entries)[-3:])),)
        elif chance == 1:
            records += (
                promise(epoch, rng.randrange(1, 99)),
                Heard(((OTHER, Claim(BOOT, epoch, ledger.end)),)),
            )
        elif chance == 2 and ledger.entries and size < LARGE:
            records += (
                Trimmed(position(epoch, rng.choice(list(ledger.entries.values())).order.last_ts), ()),
            )
        elif chance == 3 and size < LARGE:
            records += (Leapt(position(epoch, ledger.end + 9), ((1, 5),), ()),)
