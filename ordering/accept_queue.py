"""Messages that were accepted and wait for room in the window; packed when they are sent (RMP §4.6).

An idle sender sends at once, so a lone message goes alone. Under load messages of many submissions wait
here together and share full packets: packing adapts to the load by itself, without a timer.
"""

from bisect import bisect_right
from collections import deque
from itertools import accumulate
from operator import add
from typing import TypeAlias

from ordering.packets import Batch, Call
from ordering.pieces import PACKET_OVERHEAD
from ordering.qos import Qos

CALL_OVERHEAD = 48
Load: TypeAlias = tuple[tuple[bytes, ...], tuple[Call, ...]]  # messages, and the calls they are, if any


def wire_bytes(size: int, count: int) -> int:
    """At most so many bytes the codec makes of ``count`` messages of ``size`` bytes in all: two bytes for
    each, one more from 256 bytes on and another two from 64 kB on."""
    return size + 2 * count + (size >> 8) + 2 * (size >> 16)


def call_bytes(call: Call) -> int:
    """At most so many bytes the codec makes of a call."""
    return CALL_OVERHEAD + 3 * len(call.address)


class Parcel:
    """Messages of one submission; those before ``start`` have gone."""

    __slots__ = ("_ends", "calls", "first_seq", "messages", "qos", "size", "start")

    def __init__(self, batch: Batch) -> None:
        self.first_seq = batch.first_seq
        self.qos = batch.qos
        self.messages = batch.messages
        self.calls = batch.calls
        self.size = batch.size + sum(map(call_bytes, batch.calls))  # of what has not gone
        self.start = 0
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self.messages) - self.start

    def take_all(self) -> Load:
        return self.messages[self.start :] if self.start else self.messages, self.calls[self.start :]

    def take(self, limit: int, most: int) -> Load:
        """As many of the next messages as fit ``limit`` bytes on the wire, ``most`` at most; maybe none."""
        if not self._ends:
            sizes = map(len, self.messages)
            if self.calls:
                sizes = map(add, sizes, map(call_bytes, self.calls))
            self._ends = list(accumulate(sizes, initial=0))
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
        return self.messages[start : self.start], self.calls[start : self.start]


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
        size = len(parcel.messages[parcel.start])
        return size + call_bytes(parcel.calls[parcel.start]) if parcel.calls else size

    def put(self, batch: Batch) -> None:
        parcel = Parcel(batch)
        self._parcels.append(parcel)
        self.messages += len(batch.messages)
        self.bytes += parcel.size

    def take(self, limit: int, most: int) -> Load:
        """The next messages of one quality that fit a packet of ``limit`` bytes; the first in any case.
        Messages that are calls share no packet with others: a batch has a call for each, or none."""
        limit = max(limit - PACKET_OVERHEAD, wire_bytes(self.first_size, 1))
        qos, are_calls = self.qos, bool(self._parcels[0].calls)
        taken: list[Load] = []
        count = size = 0
        while self._parcels:
            parcel = self._parcels[0]
            if parcel.qos != qos or bool(parcel.calls) != are_calls or count >= most:
                break
            if wire_bytes(size + parcel.size, count + len(parcel)) <= limit and count + len(parcel) <= most:
                taken.append(parcel.take_all())
                self._parcels.popleft()
                count += len(taken[-1][0])
                size += parcel.size
                continue
            before = parcel.size
            some = parcel.take(limit - wire_bytes(size, count), most - count)
            taken.append(some)
            size += before - parcel.size
            if not len(parcel):
                self._parcels.popleft()
            break
        messages, calls = taken[0]
        if len(taken) > 1:
            messages = tuple([message for part, _ in taken for message in part])
            calls = tuple([call for _, part in taken for call in part])
        self.messages -= len(messages)
        self.bytes -= size
        return messages, calls

    def clear(self) -> None:
        self._parcels.clear()
        self.messages = self.bytes = 0
