"""Chunks of a state that is on its way here, by name: what has come need not come again, whoever gives the
rest.

In memory each chunk is let go as it is restored, so that chunks and state together take little more than the
larger of them. A replica with a disk keeps them in a file of its directory, and finds them there if it dies
on the way. Nothing is synced, and nothing read is believed: a chunk that is not what its name says is lost.
"""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from pathlib import Path
from struct import Struct as Layout
from typing import Final

from rsm.chunks import CHUNK_MAX, DIGEST_BYTES, name_of
from rsm.errors import StateLost
from rsm.storage.errors import StorageFailed

NAMES_MAX: Final = 1 << 18  # so many can be told to a donor: 32 GiB
_GROWN: Final = 2  # times the largest state that was ever named: what is superfluous goes

_SEGMENT_BYTES: Final = 8 << 20
_HEAD: Final = Layout(f">{DIGEST_BYTES}sI")


class _Segment:
    """Memory that goes back to the system when nothing in it is needed any more. What is freed piece by piece
    goes back to a heap, and there of use to no other thread."""

    def __init__(self) -> None:
        self.memory = mmap(-1, _SEGMENT_BYTES)
        self.used = 0
        self.chunks = 0


class Spool:
    """In memory."""

    def __init__(self) -> None:
        self.size = 0
        self._largest = 0
        self._newest = _Segment()
        self._kept: dict[bytes, tuple[_Segment, int, int]] = {}

    async def open(self) -> None:
        """Before a state is asked for: have what is there, and not too much of it."""
        if self.size > _GROWN * self._largest:
            await self.clear()

    def names(self) -> bytes:
        """Of all chunks that are here, one behind the other."""
        return b"".join(list(self._names())[:NAMES_MAX])

    def named(self, length: int) -> None:
        """A donor has named so many bytes of one state."""
        self._largest = max(self._largest, length)

    def has(self, name: bytes) -> bool:
        return name in self._kept

    async def put(self, name: bytes, chunk: bytes) -> None:
        """One that is what its name says."""
        if self.has(name):
            return
        begin = self._newest.used
        if begin + len(chunk) > _SEGMENT_BYTES:
            self._newest, begin = _Segment(), 0
        segment = self._newest
        segment.used = begin + len(chunk)
        segment.memory[begin : segment.used] = chunk
        segment.chunks += 1
        self.size += len(chunk)
        self._kept[name] = (segment, begin, len(chunk))

    def read(self, names: list[bytes]) -> Iterable[bytes]:
        """The chunks, which are no longer here when they were read."""
        left = Counter(names)
        for name in names:
            left[name] -= 1
            segment, begin, length = self._kept[name]
            chunk = segment.memory[begin : begin + length]
            if not left[name]:
                self._drop(name)
            yield chunk

    def _drop(self, name: bytes) -> None:
        segment, _, length = self._kept.pop(name)
        self.size -= length
        segment.chunks -= 1
        if not segment.chunks and segment is not self._newest:
            segment.memory.close()

    async def clear(self) -> None:
        for name in list(self._kept):
            self._drop(name)
        self._newest.used = self._largest = 0

    def close(self) -> None:
        """Let go of what is open. A file stays."""

    def _names(self) -> Iterable[bytes]:
        return self._kept


class FileSpool(Spool):
    """In a file; ``read`` can be repeated."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: int | None = None
        self._using = threading.Lock()  # who gave up waiting for a thread has not ended it
        self._places: dict[bytes, tuple[int, int]] = {}

    async def open(self) -> None:
        await super().open()
        if self._file is None:
            await _of_the_disk(self._open)

    def _open(self) -> None:
        with self._using:
            if self._file is None:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    self._look(file)
                except BaseException:
                    os.close(file)
                    raise
                self._file = file

    def _look(self, file: int) -> None:
        """What is whole stays."""
        self._places.clear()
        self.size = 0
        while True:
            head = os.pread(file, _HEAD.size, self.size)
            if len(head) < _HEAD.size:
                break
            name, length = _HEAD.unpack(head)
            begin = self.size + _HEAD.size
            if length > CHUNK_MAX or name_of(os.pread(file, length, begin)) != name:
                break
            self._places[name] = (begin, length)
            self.size = begin + length
        self._largest = self.size
        os.ftruncate(file, self.size)

    def has(self, name: bytes) -> bool:
        return name in self._places

    async def put(self, name: bytes, chunk: bytes) -> None:
        if not self.has(name):
            await _of_the_disk(lambda: self._put(name, chunk))

    def _put(self, name: bytes, chunk: bytes) -> None:
        with self._using:
            if self._file is None or self.has(name):
                return
            data = memoryview(_HEAD.pack(name, len(chunk)) + chunk)
            at = self.size
            while data:
                written = os.pwrite(self._file, data, at)
                data, at = data[written:], at + written
            self._places[name] = (self.size + _HEAD.size, len(chunk))
            self.size = at

    def read(self, names: list[bytes]) -> Iterable[bytes]:
        return _Stored(self, names)

    def get(self, name: bytes) -> bytes:
        with self._using:
            begin, length = self._places.get(name, (0, 0))
            chunk = b"" if self._file is None else os.pread(self._file, length, begin)
        if name_of(chunk) != name:
            raise StateLost(f"{self._path}: a chunk that came is not there any more")
        return chunk

    async def clear(self) -> None:
        await _of_the_disk(self._clear)

    def _clear(self) -> None:
        self.close()
        self._places.clear()
        self.size = self._largest = 0
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        with self._using:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _names(self) -> Iterable[bytes]:
        return self._places


class _Stored:
    def __init__(self, spool: FileSpool, names: list[bytes]) -> None:
        self._spool = spool
        self._names = names

    def __iter__(self) -> Iterator[bytes]:
        return map(self._spool.get, self._names)


async def _of_the_disk(work: Callable[[], None]) -> None:
    try:
        await asyncio.to_thread(work)
    except OSError as error:
        raise StorageFailed(f"a state that comes in cannot be kept: {error}") from error
