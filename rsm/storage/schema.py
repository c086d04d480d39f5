"""The tables, and how an older database becomes one of this version.

``rsm_store`` has one row: which version the tables are of, and whose they are. It never changes its form, so
that every version can read of every other what it is. A migration is a function on a connection; all that are
missing run in one transaction. There is no way back: an older rsm refuses the database.

Integers are 64 bits with a sign: what counts stays below 2⁶³ (``ordering.codec``).
"""

from collections.abc import Callable, Sequence
from secrets import token_bytes
from typing import Final, TypeAlias

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, MetaData, Table, insert, inspect
from sqlalchemy import text as sql

from rsm.storage.errors import SchemaTooNew, StorageCorrupt, StorageForeign
from rsm.storage.rows import HASH_BYTES, checksum

_Long = BigInteger().with_variant(Integer(), "sqlite")  # only an INTEGER key is SQLite's row number

metadata = MetaData()

store = Table(
    "rsm_store",
    metadata,
    Column("id", _Long, primary_key=True, autoincrement=False),
    Column("version", _Long, nullable=False),
    Column("identity", LargeBinary, nullable=False),
    Column("group_name", LargeBinary, nullable=False),
    Column("crc", _Long, nullable=False),
)

entries = Table(
    "rsm_entries",
    metadata,
    Column("first_ts", _Long, primary_key=True, autoincrement=False),
    Column("last_ts", _Long, nullable=False),
    Column("epoch", _Long, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("crc", _Long, nullable=False),
    Column("chain", LargeBinary, nullable=False),  # hash of this row and all before it
)

state = Table(
    "rsm_state",
    metadata,
    Column("part", _Long, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    Column("crc", _Long, nullable=False),
)

chunks = Table(
    "rsm_chunks",
    metadata,
    Column("number", _Long, primary_key=True, autoincrement=False),  # of the snapshot
    Column("place", _Long, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    Column("crc", _Long, nullable=False),
)

Migration: TypeAlias = Callable[[Connection], None]


def _create(connection: Connection) -> None:
    metadata.create_all(connection, [entries, state, chunks], checkfirst=False)


MIGRATIONS: Final[tuple[Migration, ...]] = (_create,)
VERSION: Final = len(MIGRATIONS)


class Identity(msgspec.Struct, frozen=True):
    """Whose the tables are. ``identity`` is drawn when they are made; the claim names it as well."""

    version: int
    identity: bytes
    group: str


def prepare(connection: Connection, group: str, migrations: Sequence[Migration] = MIGRATIONS) -> Identity:
    """Make the tables, or bring them to this version, within the caller's transaction."""
    if inspect(connection).has_table(store.name):
        found = read_identity(connection)
    else:
        store.create(connection)
        found = Identity(0, token_bytes(HASH_BYTES), group)
    if found.version > len(migrations):
        raise SchemaTooNew(
            f"the database has schema {found.version}, this version of rsm knows {len(migrations)};"
            " run the version that wrote it, or a later one"
        )
    if found.group != group:
        raise StorageForeign(
            f"the database belongs to group {found.group!r}, not to {group!r}; give each group of a site"
            " its own directory, or database"
        )
    if found.version == len(migrations):
        return found
    for migrate in migrations[found.version :]:
        migrate(connection)
    made = Identity(len(migrations), found.identity, group)
    connection.execute(sql("DELETE FROM rsm_store"))
    name = group.encode()
    crc = _checksum(made.version, made.identity, name)
    row = {"id": 1, "version": made.version, "identity": made.identity, "group_name": name, "crc": crc}
    connection.execute(insert(store), [row])
    return made


def _checksum(version: int, identity: bytes, name: bytes) -> int:
    return checksum(version.to_bytes(8, "big", signed=True), identity, name)


def read_identity(connection: Connection) -> Identity:
    """Whose the tables are, whatever version they are of."""
    rows = connection.execute(sql("SELECT version, identity, group_name, crc FROM rsm_store")).all()
    if len(rows) != 1:
        raise StorageCorrupt(f"rsm_store has {len(rows)} rows instead of one")
    version, identity, name, crc = rows[0]
    if not (
        isinstance(version, int) and isinstance(identity, bytes) and isinstance(name, bytes)
    ) or crc != _checksum(version, identity, name):
        raise StorageCorrupt("the row of rsm_store has a wrong checksum")
    return Identity(version, identity, name.decode())
