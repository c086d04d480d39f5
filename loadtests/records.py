"""One record for each request that was sent, in blocks on disk: what went out, when, and what came back.

Arguments stand there in full and not as a hash: a checker carries the request out again. The answer is kept
as it came, so that nothing is decided while the load runs.
"""

import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.errors import BenchError

BLOCK_RECORDS: Final = 2000
BLOCK_SECONDS: Final = 1.0
SUFFIX: Final = ".ops"
KEPT: Final = ("x-rsm-timestamp", "etag", "x-rsm-created", "x-rsm-version", "content-type")
PUSHED_BACK: Final = frozenset({429, 503})
ANSWERS: Final = frozenset({200, 201, 204, 404, 409, 412})
UNKNOWN: Final = frozenset({0, 504})
BROKEN_OFF: Final = -1
_LENGTH: Final = 4
_LEVEL: Final = 1  # records repeat each other: even this is a tenth


class Kind(StrEnum):
    """What became of a request, as far as its status tells."""

    ANSWERED = "answered"
    PUSHED_BACK = "pushed back"  # 429, 503: nothing was done, come back later
    UNKNOWN = "unknown"  # 504, or the connection broke: it may or may not have been carried out
    UNEXPECTED = "unexpected"
    BROKEN_OFF = "broken off"  # by the user itself, that was told to go; nobody failed


def kind_of(status: int) -> Kind:
    if status == BROKEN_OFF:
        return Kind.BROKEN_OFF
    if status in ANSWERS:
        return Kind.ANSWERED
    if status in PUSHED_BACK:
        return Kind.PUSHED_BACK
    return Kind.UNKNOWN if status in UNKNOWN else Kind.UNEXPECTED


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``client`` and ``request`` name one try. ``intended_ns`` is when it should have begun. ``status`` is 0
    if no answer came, -1 if nobody waited for it. Times are of this machine's monotonic clock."""

    client: int
    request: int
    group: bytes  # of its keys: those of different groups do not affect each other
    method: str  # of ``bench.chaos.http.store.Shown``
    arguments: bytes
    intended_ns: int
    call_ns: int
    return_ns: int
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> Kind:
        return kind_of(self.status)

    @property
    def status_code(self) -> int:
        return self.status

    @property
    def content(self) -> bytes:
        return self.body

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def kept(headers: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(headers[name]) for name in KEPT if name in headers}


class Writer:
    """Holds no more than a second of records, or a block of them."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._held: list[Record] = []
        self._clock = clock
        self._since = clock()

    def write(self, record: Record) -> None:
        self._held.append(record)
        if len(self._held) >= BLOCK_RECORDS or self._clock() - self._since > BLOCK_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._since = self._clock()
        if self._held:
            os.write(self._file, packed(self._held))
            self._held.clear()

    def close(self) -> None:
        self.flush()
        os.close(self._file)


def packed(records: Sequence[Record]) -> bytes:
    block = zlib.compress(msgspec.msgpack.encode(records), _LEVEL)
    return len(block).to_bytes(_LENGTH, "big") + block


def read_records(path: Path) -> Iterator[Record]:
    """Block by block: a long run does not fit into memory."""
    decoder = msgspec.msgpack.Decoder(list[Record])
    with path.open("rb") as file:
        while head := file.read(_LENGTH):
            block = file.read(int.from_bytes(head, "big"))
            try:
                yield from decoder.decode(zlib.decompress(block))
            except (zlib.error, msgspec.MsgspecError) as error:
                raise BenchError(f"{path}: is no file of records, or was cut off: {error}") from None
