"""What can go wrong with a directory.

    StorageError
    ├── StorageLocked       another process works in the directory, or on the database
    ├── StorageForeign      directory and database belong to somebody else
    ├── SchemaTooNew        a later version of rsm has written the database
    ├── StorageFailed       a write, a sync or a read failed: this store says and writes nothing more
    ├── StorageCorrupt      what is there is not what was written
    ├── StorageMisuse       a call that cannot be answered now
    └── WriterFull          too many writes wait; nothing was taken

A failed store stays failed: after a failed sync nobody knows what is on the disk. The process may be started
again from what is.
"""


class StorageError(Exception):
    """Root of everything that a store raises; the message says what to do."""


class StorageLocked(StorageError):
    """Two processes must never write one log."""


class StorageForeign(StorageError):
    """The directory or the database is another group's, or another site's."""


class SchemaTooNew(StorageError):
    """Written by a later version, whose rows this one cannot read."""


class StorageFailed(StorageError):
    """Fail-stop: what was being written is there or not, and nothing is tried again."""


class StorageCorrupt(StorageError):
    """A row, a file or a snapshot that was altered, cut or lost."""


class StorageMisuse(StorageError):
    """The store is closed, was not restored yet, or has an amnesiac's rows in it."""


class WriterFull(StorageError):
    """The bound of the writer's queue is reached; wait for an answer."""
