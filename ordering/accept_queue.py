"""Messages that were accepted and wait for room in the window; packed when they are sent (RMP §4.6).

An idle sender sends at once, so a lone message goes alone. Under load messages of many submissions wait
here together and share full packets: packing adapts to the load by itself, without a timer.
"""

from bisect import bisect_right
from collections import deque
from itertools import accumulate

from ordering.pieces import PACKET_OVERHEAD
from ordering.qos import Qos


def wire_bytes(size: int, count: int) -> int:
    """At most so many bytes the codec makes of ``count`` messages of ``size`` bytes in all: two bytes for
    each, one more from 256 bytes on and another two from 64 kB on."""
    return size + 2 * count + (size >> 8) + 2 * (size >> 16)


class Parcel:
    """Messages of one submission; those before ``start`` have gone."""

    __slots__ = ("_ends", "first_seq", "messages", "qos", "size", "start")

    def __init__(self, first_seq: int, qos: Qos, messages: tuple[bytes, ...], size: int) -> None:
        self.first_seq = first_seq
        self.qos = qos
        self.messages = messages
        self.size = size  # of what has not gone
        self.start = 0
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self.messages) - self.start

    def take_all(self) -> tuple[bytes, ...]:
        return self.messages[self.start :] if self.start else self.messages

    def take(self, limit: int, most: int) -> tuple[bytes, ...]:
        """As many of the next messages as fit ``limit`` bytes on the wire, ``most`` at most; maybe none."""
        if not self._ends:
            self._ends = list(accumulate(map(len, self.messages), initial=0))
        ends, start = self._ends, self.start
        end = bisect_right(
            range(len(ends)),
            limit,
            lo=start + 1,
            hi=min(start + most, len(self.messages)) + 1,
            key=lambda index: wire_bytes(ends[index] - ends[start], index - start),
        )
        self.start = end - 1
        self.size -= ends[self.start] - ends[start]
        return self.messages[start : self.start]


class AcceptQueue:
    """Parcels in order of acceptance."""

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()
        self.messages = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parcels)

    @property
    def first_seq(self) -> int:
        parcel = self._parcels[0]
        return parcel.first_seq + parcel.start

    @property
    def qos(self) -> Qos:
        return self._parcels[0].qos

    @property
    def offered(self) -> int:
        """At most so many bytes on the wire."""
        return wire_bytes(self.bytes, self.messages) + PACKET_OVERHEAD

    @property
    def first_size(self) -> int:
        parcel = self._parcels[0]
        return len(parcel.messages[parcel.start])

    def put(self, first_seq: int, qos: Qos, messages: tuple[bytes, ...], size: int) -> None:
        self._parcels.append(Parcel(first_seq, qos, messages, size))
        self.messages += len(messages)
        self.bytes += size

    def take(self, limit: int, most: int) -> tuple[bytes, ...]:
        """The next messages of one quality that fit a packet of ``limit`` bytes; the first in any case."""
        limit = max(limit - PACKET_OVERHEAD, wire_bytes(self.first_size, 1))
        qos = self.qos
        taken: list[tuple[bytes, ...]] = []
        count = size = 0
        while self._parcels:
            parcel = self._parcels[0]
            if parcel.qos != qos or count >= most:
                break
            if wire_bytes(size + parcel.size, count + len(parcel)) <= limit and count + len(parcel) <= most:
                taken.append(parcel.take_all())
                self._parcels.popleft()
                count += len(taken[-1])
                size += parcel.size
                continue
            before = parcel.size
            some = parcel.take(limit - wire_bytes(size, count), most - count)
            taken.append(some)
            size += before - parcel.size
            if not len(parcel):
                self._parcels.popleft()
            break
        messages = taken[0] if len(taken) == 1 else tuple([m for part in taken for m in part])
        self.messages -= len(messages)
        self.bytes -= size
        return messages

    def clear(self) -> None:
        self._parcels.clear()
        self.messages = self.bytes = 0
