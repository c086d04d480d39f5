"""The blocks of the order as rows: appending, erasing, reading back.

Every row has a checksum of its own, and the hash of itself and all rows before it. The tip of the database
(``rows.Tip``) has the hashes at both ends, so no row can be altered, taken away or put in unnoticed.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from sqlalchemy import Connection
from sqlalchemy import text as sql

from ordering.records import Entry
from rsm.storage.database import write_rows
from rsm.storage.errors import StorageCorrupt
from rsm.storage.rows import chained, checksum, decode_entry, encode_entry, row_head

_INSERT: Final = sql(
    "INSERT INTO rsm_entries (first_ts, last_ts, epoch, body, crc, chain)"
    " VALUES (:first_ts, :last_ts, :epoch, :body, :crc, :chain)"
)


class End(msgspec.Struct, frozen=True):
    """Where a log ends: the last slot, the epoch of the last block (0 if there is none), and its hash."""

    ts: int
    epoch: int
    head: bytes


class Log:
    """Changes of one transaction. Rows go out together; what must come before or behind them flushes."""

    def __init__(self, connection: Connection, anchor: bytes, end: End) -> None:
        self.connection = connection
        self.anchor = anchor
        self.end = end
        self.written = 0  # bytes
        self._rows: list[dict[str, Any]] = []

    @property
    def is_empty(self) -> bool:
        return self.end.head == self.anchor

    def append(self, entry: Entry) -> None:
        order = entry.order
        body = encode_entry(entry)
        head = row_head(order.ts, order.last_ts, order.epoch)
        chain = chained(self.end.head, head, body)
        self._rows.append(
            {
                "first_ts": order.ts,
                "last_ts": order.last_ts,
                "epoch": order.epoch,
                "body": body,
                "crc": checksum(head, body),
                "chain": chain,
            }
        )
        if order.view is not None:
            decode_entry(body)  # rare, and full of bounds: what cannot be read back must not be written
        self.end = End(order.last_ts, order.epoch, chain)
        self.written += len(body)

    def flush(self) -> None:
        if self._rows:
            write_rows(self.connection, _INSERT, self._rows)
            self._rows = []

    def cut_from(self, ts: int) -> None:
        """Delete every block that begins at ``ts`` or behind it."""
        self.flush()
        first = self._scalar("SELECT min(first_ts) FROM rsm_entries WHERE first_ts >= :ts", ts)
        if first is None:
            return
        self.connection.execute(sql("DELETE FROM rsm_entries WHERE first_ts >= :ts"), {"ts": ts})
        row = self.connection.execute(
            sql("SELECT epoch, chain FROM rsm_entries WHERE first_ts < :ts ORDER BY first_ts DESC LIMIT 1"),
            {"ts": ts},
        ).first()
        epoch, head = (0, self.anchor) if row is None else row
        self.end = End(min(self.end.ts, first - 1), epoch, head)

    def clear(self, ts: int) -> None:
        """Delete every block; the log goes on behind ``ts``."""
        self.flush()
        self.connection.execute(sql("DELETE FROM rsm_entries"))
        self.anchor = self.end.head
        self.end = End(ts, 0, self.end.head)

    def trim(self, ts: int) -> None:
        """Delete the blocks that end at ``ts`` or before it; the end stays."""
        self.flush()
        covered = "FROM rsm_entries WHERE first_ts <= :ts AND last_ts <= :ts"
        last = self._scalar(f"SELECT max(first_ts) {covered}", ts)
        if last is None:
            return
        self.anchor = self._scalar("SELECT chain FROM rsm_entries WHERE first_ts = :ts", last)
        self.connection.execute(sql(f"DELETE {covered}"), {"ts": ts})
        if self.is_empty:
            self.end = msgspec.structs.replace(self.end, epoch=0)

    def _scalar(self, text: str, ts: int) -> Any:
        return self.connection.scalar(sql(text), {"ts": ts})


def read_entries(connection: Connection, anchor: bytes) -> Iterator[tuple[Entry, End]]:
    """Every block with the end of the log up to it. Raises ``StorageCorrupt`` at the first bad row."""
    rows = connection.execute(
        sql("SELECT first_ts, last_ts, epoch, body, crc, chain FROM rsm_entries ORDER BY first_ts")
    )
    head, expected = anchor, None
    for row in rows:
        entry, head = _read(row, head, expected)
        expected = entry.order.last_ts + 1
        yield entry, End(entry.order.last_ts, entry.order.epoch, head)


def read_some(connection: Connection, since: int, blocks_max: int, bytes_max: int) -> list[Entry]:
    """The first blocks that have a slot behind ``since``, each verified by itself; so many bytes of them, but
    at least one."""
    rows = connection.execute(
        sql(
            "SELECT first_ts, last_ts, epoch, body, crc FROM rsm_entries WHERE last_ts > :since"
            " ORDER BY first_ts LIMIT :most"
        ),
        {"since": since, "most": blocks_max},
    )
    found: list[Entry] = []
    size = 0
    for first, last, epoch, body, crc in rows:
        size += len(body)
        if found and size > bytes_max:
            break
        if crc != checksum(row_head(first, last, epoch), body):
            raise StorageCorrupt(f"the block at slot {first} has a wrong checksum")
        found.append(decode_entry(body))
    return found


def _read(row: Any, previous: bytes, expected: int | None) -> tuple[Entry, bytes]:
    first, last, epoch, body, crc, chain = row
    whole = all(isinstance(number, int) and number >= 0 for number in (first, last, epoch))
    if not whole or not isinstance(body, bytes):
        raise StorageCorrupt(f"the block at slot {first!r} has columns of a wrong type")
    if expected is not None and first != expected:
        raise StorageCorrupt(f"the block at slot {expected} is missing; the next one is at {first}")
    head = row_head(first, last, epoch)
    if crc != checksum(head, body):
        raise StorageCorrupt(f"the block at slot {first} has a wrong checksum")
    if chain != chained(previous, head, body):
        raise StorageCorrupt(f"the block at slot {first} does not follow the one before it")
    try:
        entry = decode_entry(body)
    except StorageCorrupt as error:
        raise StorageCorrupt(f"the block at slot {first}: {error}") from None
    order = entry.order
    if (order.ts, order.last_ts, order.epoch) != (first, last, epoch):
        raise StorageCorrupt(f"the block at slot {first} says it is at {order.ts}")
    return entry, chain
