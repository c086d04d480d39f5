"""Round-trip time and its variance (Jacobson 1988, as RMP §4.6 takes it over)."""

from ordering.config import MS, Config


class RoundTrip:
    """One smoothed estimate for the ring; integer arithmetic, nanoseconds."""

    def __init__(self, config: Config) -> None:
        self._least = config.rto_min_ms * MS
        self._most = config.rto_max_ms * MS
        self.srtt = self._least
        self._variance = self._least // 2

    def sample(self, took_ns: int) -> None:
        """A packet that was sent once was answered after ``took_ns`` (Karn: never a resent one)."""
        error = took_ns - self.srtt
        self.srtt += error >> 3
        self._variance += (abs(error) - self._variance) >> 2

    @property
    def rto(self) -> int:
        return min(max(self.srtt + 4 * self._variance, self._least), self._most)
