"""Waits in buckets: however many there are, they take the same memory and the same time to note."""

from typing import Final

from bench.results import Value

_EXACT: Final = 256  # microseconds below this have a bucket each
_STEPS: Final = 128  # buckets in every doubling beyond: a wait is known to 0.8 %
_BITS_MAX: Final = 36  # nineteen hours; longer waits count as this
_BUCKETS: Final = (_BITS_MAX - 8) * _STEPS + _EXACT


class Histogram:
    """A percentile is the upper end of its bucket, so it flatters nobody; the maximum is exact."""

    __slots__ = ("count", "counts", "max_ns")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.count = 0
        self.max_ns = 0

    def note(self, nanoseconds: int) -> None:
        us = nanoseconds // 1000
        if us >= _EXACT:
            shift = us.bit_length() - 8
            us = min((shift * _STEPS) + (us >> shift), _BUCKETS - 1)
        self.counts[us] += 1
        self.count += 1
        self.max_ns = max(self.max_ns, nanoseconds)

    def add(self, other: "Histogram") -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.max_ns = max(self.max_ns, other.max_ns)

    def percentile_us(self, percent: float) -> float:
        """The nearest rank, as in ``bench.results.percentile``."""
        if not self.count:
            raise ValueError("no waits were noted; there is no percentile of nothing")
        if not 0 <= percent <= 100:
            raise ValueError(f"percent: must be between 0 and 100, is {percent}")
        rank = max(self.count * percent / 100, 1)
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                return min(_upper_us(bucket), self.max_ns / 1000)
        raise AssertionError("the buckets hold fewer waits than were counted")

    def shown(self) -> dict[str, Value]:
        """In the words of ``bench.results.latencies``."""
        if not self.count:
            return {"samples": 0}
        shown: dict[str, Value] = {
            f"p{name}_us": round(self.percentile_us(float(name)), 1) for name in ("50", "90", "99", "99.9")
        }
        return {"samples": self.count, **shown, "max_us": round(self.max_ns / 1000, 1)}


def _upper_us(bucket: int) -> float:
    if bucket < _EXACT:
        return bucket + 1
    shift = bucket // _STEPS - 1
    return (bucket - shift * _STEPS + 1) << shift
