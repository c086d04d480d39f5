"""Snapshots of the application: chunks, a transaction each, and then one that makes them count.

Nothing of a snapshot is seen before it is complete. The one before is deleted after that, in small steps too,
so that blocks of the log never wait for long.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from sqlalchemy import Connection, insert
from sqlalchemy import text as sql

from rsm.storage import schema
from rsm.storage.errors import StorageCorrupt
from rsm.storage.rows import HASH_BYTES, SnapshotInfo, checksum

DELETED_AT_ONCE: Final = 16


class Seal:
    """The hash of a snapshot: its slot, its digest, and every chunk with its length."""

    def __init__(self, ts: int, digest: bytes) -> None:
        self._state = blake2b(digest_size=HASH_BYTES)
        self.chunks = 0
        self.length = 0
        self._add(ts.to_bytes(8, "big"))
        self._add(digest)

    def add(self, chunk: bytes) -> None:
        self.chunks += 1
        self.length += len(chunk)
        self._add(chunk)

    def _add(self, piece: bytes) -> None:
        self._state.update(len(piece).to_bytes(8, "big"))
        self._state.update(piece)

    def value(self) -> bytes:
        return self._state.digest()


def _checksum(number: int, place: int, body: bytes) -> int:
    return checksum(number.to_bytes(8, "big"), place.to_bytes(8, "big"), body)


def insert_chunk(connection: Connection, number: int, place: int, body: bytes) -> None:
    row = {"number": number, "place": place, "body": body, "crc": _checksum(number, place, body)}
    connection.execute(insert(schema.chunks), [row])


def delete_some(connection: Connection, keep: int) -> bool:
    """Delete chunks of other snapshots than ``keep``; whether there may be more."""
    rows = connection.execute(
        sql(
            "SELECT number, place FROM rsm_chunks WHERE number <> :keep"
            f" ORDER BY number, place LIMIT {DELETED_AT_ONCE}"
        ),
        {"keep": keep},
    ).all()
    if rows:
        connection.execute(
            sql("DELETE FROM rsm_chunks WHERE number = :number AND place = :place"),
            [{"number": number, "place": place} for number, place in rows],
        )
    return len(rows) == DELETED_AT_ONCE


def read_chunk(connection: Connection, info: SnapshotInfo, place: int) -> bytes:
    row = connection.execute(
        sql("SELECT body, crc FROM rsm_chunks WHERE number = :number AND place = :place"),
        {"number": info.number, "place": place},
    ).first()
    if row is None:
        raise StorageCorrupt(f"chunk {place} of the snapshot at slot {info.ts} is missing")
    body, crc = row
    if not isinstance(body, bytes) or crc != _checksum(info.number, place, body):
        raise StorageCorrupt(f"chunk {place} of the snapshot at slot {info.ts} has a wrong checksum")
    return body


def verified(info: SnapshotInfo, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks, and ``StorageCorrupt`` at the end if they are not those that were saved."""
    seal = Seal(info.ts, info.digest)
    for chunk in chunks:
        seal.add(chunk)
        yield chunk
    if (seal.chunks, seal.length, seal.value()) != (info.chunks, info.length, info.seal):
        raise StorageCorrupt(f"the snapshot at slot {info.ts} is not the one that was saved")
