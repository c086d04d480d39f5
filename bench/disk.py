"""The disk under a durable measurement: that it is one, and what a write that survives costs on it."""

import os
import time
from pathlib import Path
from typing import Final

from bench.errors import BenchError
from bench.results import Value, latencies

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_FILE_BYTES: Final = 4 * 1024 * 1024
_SYNCS_MAX: Final = 400
_SYNC_SECONDS: Final = 0.5


def file_system(directory: Path, mounts: str | None = None) -> str:
    """The type of the file system a directory is on, by the mount table; the last of two mounts at one place
    is the one that is seen."""
    if mounts is None:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    resolved = directory.resolve()
    found, depth = "unknown", -1
    for line in mounts.splitlines():
        _, place, kind, *_ = line.split(" ")
        mounted = Path(_plain(place))
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= depth:
            found, depth = kind, len(mounted.parts)
    return found


def _plain(place: str) -> str:
    """Blanks and the like stand as octal numbers in the table."""
    for code in ("040", "011", "012", "134"):
        place = place.replace(f"\\{code}", chr(int(code, 8)))
    return place


def require_disk(directory: Path) -> None:
    """Refuse what no sync ever reaches: durable figures from memory would be nothing but wrong."""
    if not directory.is_dir():
        raise BenchError(f"directory: {directory} is no directory")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise BenchError(f"directory: {directory} cannot be written to")
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise BenchError(f"directory: {directory} is mounted read-only")
    kind = file_system(directory)
    if kind in _IN_MEMORY:
        raise BenchError(
            f"directory: {directory} is on {kind}, which is memory; durable mode needs a directory on a disk"
        )


def sync_cost(directory: Path, size: int) -> dict[str, Value]:
    """One pwrite of ``size`` bytes and an fdatasync, again and again, into a file that has all its blocks:
    the least a durable write can take here."""
    path = directory / "calibration"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    took: list[int] = []
    try:
        os.posix_fallocate(fd, 0, _FILE_BYTES)
        os.pwrite(fd, bytes(_FILE_BYTES), 0)  # blocks that were never written would be journaled by the sync
        os.fsync(fd)
        data = b"\xa5" * size
        until = time.monotonic_ns() + int(_SYNC_SECONDS * 1e9)
        for number in range(_SYNCS_MAX):
            started = time.monotonic_ns()
            os.pwrite(fd, data, number * size % (_FILE_BYTES - size))
            os.fdatasync(fd)
            ended = time.monotonic_ns()
            took.append(ended - started)
            if ended > until:
                break
    finally:
        os.close(fd)
        path.unlink()
    return latencies(took)
