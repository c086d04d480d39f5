"""How the group and its processes stood over time: the ring as the gateway tells it, memory and descriptors
as the kernel does."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from bench.errors import BenchError

_PROC: Final = Path("/proc")
_SAME_NS: Final = 50_000_000
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
T = TypeVar("T")


class Ring(msgspec.Struct, frozen=True):
    """A view that was installed, and what made it another than the one before."""

    at_ns: int
    view: str
    ring: list[str]
    electorate: int
    why: str


class Sample(msgspec.Struct, frozen=True):
    at_ns: int
    who: str
    pid: int
    resident_bytes: int
    descriptors: int


class Rings:
    """Views out of what ``/v1/cluster/events`` says. Each replica tells when it has installed a view; the
    first one counts, so a view comes again when somebody turns out to have had it earlier."""

    def __init__(self) -> None:
        self._earliest: dict[str, int] = {}

    def take(self, cluster: Mapping[str, Any]) -> list[Ring]:
        """A view has the wall clock's time; ours is the monotonic one."""
        offset_s = time.time() - time.monotonic()
        new = []
        for view in cluster.get("views", []):
            at_ns = int((view["at_s"] - offset_s) * 1e9)
            known = self._earliest.get(view["view"])
            if known is None or at_ns < known - _SAME_NS:
                self._earliest[view["view"]] = at_ns
                new.append(Ring(at_ns, view["view"], view["ring"], len(view["electorate"]), view["why"]))
        return new


def read_rings(path: Path) -> list[Ring]:
    """Each view once, where it was first."""
    found: dict[str, Ring] = {}
    for ring in read_lines(path, Ring):
        if ring.view not in found or ring.at_ns < found[ring.view].at_ns:
            found[ring.view] = ring
    return sorted(found.values(), key=lambda ring: ring.at_ns)


def sample(pids: Mapping[str, int]) -> list[Sample]:
    """Of those that are there."""
    found = []
    for who, pid in pids.items():
        try:
            pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
            descriptors = sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())
        except (OSError, IndexError):
            continue  # it has gone this moment
        found.append(Sample(time.monotonic_ns(), who, pid, pages * _PAGE, descriptors))
    return found


class Lines:
    """A file that gets a line for each."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, each: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(each) + b"\n")

    def write_all(self, several: Iterable[msgspec.Struct]) -> None:
        for each in several:
            self.write(each)

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path, kind: type[T]) -> list[T]:
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(kind)
    try:
        return [decoder.decode(line) for line in path.read_bytes().splitlines()]
    except msgspec.MsgspecError as error:
        raise BenchError(f"{path}: cannot be read: {error}") from None
