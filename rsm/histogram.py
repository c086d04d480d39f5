"""Durations counted by powers of two: cheap enough for every one of them, and enough for a percentile."""

from typing import Final

BUCKETS: Final = 40  # the last one has everything above nine minutes


class Histogram:
    """Bucket *i* has what took fewer than 2 to the *i* nanoseconds, and at least half of that. One thread
    notes, any may look."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_ns = 0

    def note(self, ns: int, count: int = 1) -> None:
        """``count`` of them took so long."""
        self.counts[min(ns.bit_length(), BUCKETS - 1)] += count
        self.sum_ns += ns * count

    @property
    def count(self) -> int:
        return sum(self.counts)
