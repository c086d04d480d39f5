"""The claimed frontier, in a file of its own beside the database (R8).

SQLite ends a log silently at a bad frame; a database restored from an old copy looks sound. So what was
claimed is kept where neither can touch it: the number of the last transaction, a hash of what it left, and
how far the log went. Claims go by turns into two slots, each in a sector of its own: a torn write leaves the
claim before it. The file has its full size from the beginning, so that a sync writes data only.
"""

import os
from pathlib import Path
from struct import Struct as Layout
from typing import Final

import msgspec

from rsm.storage.errors import StorageCorrupt
from rsm.storage.rows import HASH_BYTES, checksum

MAGIC: Final = b"rsmclaim"
FORMAT: Final = 1
SLOT_BYTES: Final = 4096  # the largest sector that disks have
_LAYOUT: Final = Layout(f">8sI{HASH_BYTES}sQQQ{HASH_BYTES}s")
_CRC_BYTES: Final = 4
_USED: Final = _LAYOUT.size + _CRC_BYTES


class Claimed(msgspec.Struct, frozen=True):
    """What the directory's log must have. ``seq`` counts transactions; 0: nothing was ever written."""

    identity: bytes
    seq: int = 0
    epoch: int = 0
    held: int = 0
    mark: bytes = bytes(HASH_BYTES)
    # The other slot is unreadable: a later claim may have stood there.
    torn: bool = False


def _pack(claimed: Claimed) -> bytes:
    body = _LAYOUT.pack(
        MAGIC, FORMAT, claimed.identity, claimed.seq, claimed.epoch, claimed.held, claimed.mark
    )
    return body + checksum(body).to_bytes(_CRC_BYTES, "big")


def _unpack(slot: bytes) -> Claimed | None:
    body, crc = slot[: _LAYOUT.size], slot[_LAYOUT.size : _USED]
    if len(crc) != _CRC_BYTES or checksum(body).to_bytes(_CRC_BYTES, "big") != crc:
        return None
    magic, version, identity, seq, epoch, held, mark = _LAYOUT.unpack(body)
    if magic != MAGIC or version != FORMAT:
        return None
    return Claimed(identity, seq, epoch, held, mark)


def _latest(fd: int, path: Path) -> Claimed:
    slots = [_unpack(os.pread(fd, _USED, place * SLOT_BYTES)) for place in range(2)]
    found = [claimed for claimed in slots if claimed is not None]
    if not found or found[0].identity != found[-1].identity:
        raise StorageCorrupt(f"{path} has no claim that can be read")
    latest = max(found, key=lambda claimed: claimed.seq)
    return msgspec.structs.replace(latest, torn=len(found) < len(slots))


def look_at_claim(path: Path) -> Claimed | None:
    """The latest claim, for who only reads; its owner may be writing the other slot just now."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _latest(fd, path)
    finally:
        os.close(fd)


class ClaimFile:
    """The file ``claim`` of a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def read(self) -> Claimed | None:
        """The latest claim; None if there is no file. Raises ``StorageCorrupt``."""
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return _latest(self._fd, self.path)

    def create(self, identity: bytes) -> None:
        """A directory in which nothing was claimed; in one step, over whatever was there."""
        self.close()
        slot = _pack(Claimed(identity)).ljust(SLOT_BYTES, b"\0")
        draft = self.path.with_name(self.path.name + ".new")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, slot + slot, 0)
            os.fsync(fd)
            os.rename(draft, self.path)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        sync_directory(self.path.parent)

    def write(self, claimed: Claimed) -> None:
        """Synced when it returns. The slot of the claim before stays as it is."""
        packed = _pack(claimed)
        written = os.pwrite(self._fd, packed, claimed.seq % 2 * SLOT_BYTES)
        if written != len(packed):
            raise OSError(f"{self.path}: {written} of {len(packed)} bytes written")
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def sync_directory(directory: Path) -> None:
    """What was created, renamed or removed there stays so."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
