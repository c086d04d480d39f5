"""Every call, written down before it is sent and when it is answered: lines of JSON.

A line is in the kernel's hands when the call goes out, so that it survives the death of the process that
called. Times are CLOCK_MONOTONIC, which is the same for all processes.
"""

import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from bench.errors import BenchError
from rsm.linearizability import NEVER, Operation, Outcome


class Ended(StrEnum):
    """How a call ended for its caller."""

    OK = "ok"
    REJECTED = "rejected"
    FAILED = "failed"
    REFUSED = "refused"
    """It was not executed, or so its caller was told."""
    UNKNOWN = "unknown"


class Called(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    client: int
    request: int
    method: str
    arguments: bytes
    at: int


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="return"):
    client: int
    request: int
    ended: Ended
    at: int
    ts: int = 0
    reply: bytes = b""
    why: str = ""


T = TypeVar("T")
Line: TypeAlias = Called | Returned
_DECODER = msgspec.json.Decoder(Line)


class Notes:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def write(self, line: msgspec.Struct) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


class History(msgspec.Struct):
    """All calls of a round. ``refused`` are those whose callers were told that they were not executed."""

    operations: dict[tuple[int, int], Operation]
    refused: dict[tuple[int, int], str]


def read_history(paths: Iterable[Path]) -> History:
    """What has no end is of unknown outcome, like what says so."""
    history = History({}, {})
    for path in paths:
        for line in lines_of(path, _DECODER):
            name = (line.client, line.request)
            if isinstance(line, Called):
                history.operations[name] = Operation(
                    client=line.client,
                    request=line.request,
                    method=line.method,
                    arguments=line.arguments,
                    call_ns=line.at,
                )
            else:
                _end(history, name, line)
    return history


def _end(history: History, name: tuple[int, int], line: Returned) -> None:
    if line.ended is Ended.REFUSED:
        history.refused[name] = line.why
    elif line.ended is not Ended.UNKNOWN:
        history.operations[name] = msgspec.structs.replace(
            history.operations[name],
            return_ns=line.at,
            outcome=Outcome(line.ended.value),
            ts=line.ts,
            reply=line.reply,
        )
    else:
        assert history.operations[name].return_ns == NEVER


def lines_of(path: Path, decoder: "msgspec.json.Decoder[T]") -> Iterator[T]:
    """The last line may be cut off: its process was killed, and has not sent the call."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            if number < len(lines):
                raise BenchError(f"{path}:{number}: is no line of a history: {error}") from None
