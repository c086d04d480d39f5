"""What is in the database, checked against itself and against the claim (R8).

Whatever is wrong raises ``StorageCorrupt``: the voter is an amnesiac. The one exception is a bad block of a
last transaction that was never claimed, and did nothing but append: nobody was told of it, so it is cut away.
"""

import msgspec
from sqlalchemy import Connection
from sqlalchemy import text as sql

from ordering.records import Began, Commitment, Heard, Ledger
from rsm.storage.claim import Claimed
from rsm.storage.errors import StorageCorrupt
from rsm.storage.log import End, read_entries
from rsm.storage.rows import (
    Base,
    Part,
    Place,
    SnapshotInfo,
    Tip,
    Value,
    checksum,
    decode_part,
    digest_of,
    hashed,
)


class Found(msgspec.Struct):
    """A sound database. ``tip`` is as it was read; ``end`` is where the blocks end that may be kept."""

    ledger: Ledger
    tip: Tip
    mark: bytes
    hashes: dict[Part, bytes]
    end: End
    snapshot: SnapshotInfo | None
    cut: str | None  # why blocks behind the end are to be cut


def is_virgin(connection: Connection) -> bool:
    """Whether nothing was ever written there."""
    tables = ("rsm_state", "rsm_entries")  # chunks of a snapshot mean nothing before it is complete
    return all(connection.execute(sql(f"SELECT 1 FROM {table} LIMIT 1")).first() is None for table in tables)


def read(connection: Connection, claimed: Claimed | None, identity: bytes) -> Found | None:
    """Everything; None if nothing was ever written, nor claimed."""
    if claimed is None:
        raise StorageCorrupt("the claim is missing, and there is a log; nobody can tell how far it must go")
    bodies = _read_bodies(connection)
    if not bodies and is_virgin(connection):
        if claimed.seq or claimed.torn:
            raise StorageCorrupt(f"the database is empty, and transaction {claimed.seq} was claimed")
        return None
    if Part.TIP not in bodies:
        raise StorageCorrupt("the tip of the database is missing")
    tip = decode_part(Part.TIP, bodies[Part.TIP])
    assert isinstance(tip, Tip)
    mark = hashed(bodies.pop(Part.TIP))
    hashes = {part: hashed(body) for part, body in bodies.items()}
    if digest_of(hashes) != tip.digest:
        raise StorageCorrupt("a part of the small state is missing, or is not that of the last transaction")
    _compare(tip, mark, claimed, identity)
    values = {part: decode_part(part, body) for part, body in bodies.items()}
    ledger = _ledger_of(values)
    end, cut = _read_log(connection, ledger, tip, claimed)
    snapshot = values.get(Part.SNAPSHOT)
    assert snapshot is None or isinstance(snapshot, SnapshotInfo)
    return Found(ledger, tip, mark, hashes, end, snapshot, cut)


def _read_bodies(connection: Connection) -> dict[Part, bytes]:
    bodies: dict[Part, bytes] = {}
    for number, body, crc in connection.execute(sql("SELECT part, body, crc FROM rsm_state")):
        if number not in list(Part) or not isinstance(body, bytes):
            raise StorageCorrupt(f"the small state has a row {number!r} that cannot be")
        part = Part(number)
        if crc != checksum(bytes((part,)), body):
            raise StorageCorrupt(f"the {part.name.lower()} in the small state has a wrong checksum")
        bodies[part] = body
    return bodies


def _compare(tip: Tip, mark: bytes, claimed: Claimed, identity: bytes) -> None:
    """Tip and claim must be of one history. The claim is written after the log, and before anybody is told:
    so it is of the last transaction, or of the one before. A claim that cannot be read may have been of the
    transaction after the other one."""
    if claimed.identity != identity:
        raise StorageCorrupt("the claim was made for another database than the one in the directory")
    least = claimed.seq + claimed.torn
    if tip.seq < least:
        raise StorageCorrupt(
            f"the database ends with transaction {tip.seq}, and {least} was claimed: it was rolled back, or"
            " its log was cut"
        )
    if tip.seq > claimed.seq + 1:
        raise StorageCorrupt(
            f"the claim is of transaction {claimed.seq}, the database has {tip.seq}: the claim was rolled"
            " back"
        )
    if claimed.mark != (mark if tip.seq == claimed.seq else tip.before):
        raise StorageCorrupt(f"transaction {claimed.seq} of the database is not the one that was claimed")


def _ledger_of(values: dict[Part, Value]) -> Ledger:
    ledger = Ledger()
    for value in values.values():
        match value:
            case Began():
                ledger.began = value
            case Place(chain, descent, chains, transferred):
                ledger.chain, ledger.descent = chain, descent
                ledger.chains, ledger.transferred = chains, transferred
            case Base(position, departed):
                ledger.base, ledger.departed = position, departed
            case Commitment():
                ledger.commitment = value
            case Heard(claims):
                ledger.claims = dict(claims)
            case _:
                pass
    return ledger


def _read_log(connection: Connection, ledger: Ledger, tip: Tip, claimed: Claimed) -> tuple[End, str | None]:
    """Blocks into the ledger; where they end, and why the rest is to be cut, if it is."""
    end = End(_start(ledger), 0, tip.anchor)
    cut = None
    try:
        for entry, after in read_entries(connection, tip.anchor):
            ledger.entries[entry.order.ts] = entry
            end = after
        if end.head != tip.head or (ledger.entries and end.ts != tip.end):
            raise StorageCorrupt(f"the blocks behind slot {end.ts} are missing; the log went to {tip.end}")
        end = End(tip.end, end.epoch, end.head)
    except StorageCorrupt as error:
        cut = str(error)
    ledger.end = end.ts
    if cut is not None:
        unclaimed = tip.plain and tip.seq == claimed.seq + 1 and not claimed.torn
        if not unclaimed or (ledger.epoch, ledger.end) < (claimed.epoch, claimed.held):
            raise StorageCorrupt(f"{cut}; epoch {claimed.epoch} up to slot {claimed.held} was claimed")
    return end, cut


def _start(ledger: Ledger) -> int:
    """The slot before the first block, as far as the small state tells."""
    begun = ledger.began.started_at if ledger.began is not None else 0
    return max(begun, ledger.base.ts if ledger.base is not None else 0)
