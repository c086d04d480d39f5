"""Round-trip time and its variance (Jacobson 1988, as RMP §4.6 takes it over)."""

from ordering.config import MS, Config

LATE_MAX = 4


class RoundTrip:
    """One smoothed estimate for the ring; integer arithmetic, nanoseconds."""

    def __init__(self, config: Config) -> None:
        self._least = config.rto_min_ms * MS
        self._most = config.rto_max_ms * MS
        self.srtt = self._least
        self._variance = self._least // 2
        self._late = 0

    def sample(self, took_ns: int) -> None:
        """A packet that was sent once was answered after ``took_ns`` (Karn: never a resent one)."""
        error = took_ns - self.srtt
        self.srtt += error >> 3
        self._variance += (abs(error) - self._variance) >> 2
        self._late = 0

    def late(self) -> None:
        """A packet was answered only after it had been resent. That gives no sample; but if it happens
        every time, the estimate is below the real round trip and would never see one: let it grow."""
        self._late += 1
        if self._late >= LATE_MAX:
            self._late = 0
            self.srtt = min(2 * self.srtt, self._most)

    @property
    def rto(self) -> int:
        return min(max(self.srtt + 4 * self._variance, self._least), self._most)
