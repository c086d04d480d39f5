"""Where a durable site keeps its log, its snapshots and its claim (R8, ``docs/storage.md``)."""

from rsm.storage.errors import (
    SchemaTooNew,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageForeign,
    StorageLocked,
    StorageMisuse,
    WriterFull,
)
from rsm.storage.rows import SnapshotInfo
from rsm.storage.store import Restored, Store
from rsm.storage.writer import StorageStats, Writer

__all__ = [
    "Restored",
    "SchemaTooNew",
    "SnapshotInfo",
    "StorageCorrupt",
    "StorageError",
    "StorageFailed",
    "StorageForeign",
    "StorageLocked",
    "StorageMisuse",
    "StorageStats",
    "Store",
    "Writer",
    "WriterFull",
]
