"""A snapshot is cut into chunks that have a name: their digest.

Two snapshots of a state that has changed a little in between have most chunks in common, so who has one needs
little of the other. For that the cuts must not depend on what came before them: a chunk ends behind a piece
whose own checksum says so, as it were by chance, and one that has become longer or shorter moves no cut but
the nearest.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

import google_crc32c

CHUNK_MAX: Final = 256 * 1024
DIGEST_BYTES: Final = 16
_MEAN: Final = 128 * 1024  # a power of two
_PIECE_MAX: Final = 64 * 1024


def packed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in chunks of at most ``CHUNK_MAX``, half of it on average."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        for start in range(0, len(piece), _PIECE_MAX):
            part = piece[start : start + _PIECE_MAX]
            if size + len(part) > CHUNK_MAX:
                yield b"".join(held)
                held, size = [], 0
            held.append(part)
            size += len(part)
            if google_crc32c.value(part) % _MEAN < len(part):
                yield b"".join(held)
                held, size = [], 0
    if held:
        yield b"".join(held)


def name_of(chunk: bytes) -> bytes:
    return blake2b(chunk, digest_size=DIGEST_BYTES).digest()


class Whole:
    """The digest of a snapshot: its slot, and the names of its chunks in order."""

    def __init__(self, ts: int) -> None:
        self._state = blake2b(ts.to_bytes(8, "big"), digest_size=DIGEST_BYTES)
        self.chunks = 0
        self.length = 0

    def add(self, name: bytes, length: int) -> None:
        self._state.update(name)
        self.chunks += 1
        self.length += length

    def digest(self) -> bytes:
        return self._state.digest()
