"""Counts and waits over time, in HdrHistograms: of the service alone, and from the intended start."""

from pathlib import Path
from typing import Final

import msgspec
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogWriter

from loadtests.pace import SECOND_NS
from loadtests.records import Kind, Record

LONGEST_US: Final = 600 * 1_000_000
DIGITS: Final = 3
SLICES_MAX: Final = 120
WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)
SHOWN: Final = (50.0, 99.0, 99.9)
SERVICE, INTENDED = "service", "intended"
READS: Final = frozenset({"get", "listing"})
NIL: Final = b"\xc0"  # as the last argument of a command: it has no key


def histogram() -> HdrHistogram:
    return HdrHistogram(1, LONGEST_US, DIGITS)


def note(waits: HdrHistogram, nanoseconds: int) -> None:
    waits.record_value(min(max(nanoseconds // 1000, 1), LONGEST_US))


class Waits:
    """``service``: from the call to the answer. ``intended``: from when the request should have begun."""

    def __init__(self) -> None:
        self.service = histogram()
        self.intended = histogram()


class Row(msgspec.Struct, frozen=True):
    """One kind of operation, or all; milliseconds."""

    operation: str
    answered: int
    per_s: float
    service_ms: dict[str, float]
    intended_ms: dict[str, float]


class Slice:
    """``begin_s`` counts from where there is room for the first. ``meant``: requests that should have begun
    in it. ``changes`` and ``keys``: what the store has to retain of it, changes and Idempotency-Keys."""

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.meant = 0
        self.changes = 0
        self.keys = 0
        self.counts: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self.waits = Waits()


def width_for(seconds: float) -> int:
    return next((width for width in WIDTHS_S if seconds / width <= SLICES_MAX), WIDTHS_S[-1])


class Latencies:
    """What is answered counts for waits; what is not, only for how often."""

    def __init__(self, began_ns: int, ended_ns: int) -> None:
        """Room for all between these times; the run itself is from the first request to the last answer."""
        seconds = (ended_ns - began_ns) / SECOND_NS
        self.width_s = width_for(seconds)
        self._began_ns = began_ns
        self.first_ns, self.last_ns = ended_ns, began_ns
        count = int(seconds // self.width_s) + 1
        self.slices = [Slice(float(number * self.width_s)) for number in range(count)]
        self.totals: dict[str, Waits] = {}
        self.counts: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self.statuses: dict[int, int] = {}

    def note(self, record: Record) -> None:
        """Answers count when they come, waits when they begin: who looks at a stall sees it where it was."""
        kind = record.kind
        self.first_ns = min(self.first_ns, record.call_ns)
        self.last_ns = max(self.last_ns, record.return_ns)
        self.counts[kind] += 1
        self._slice(record.intended_ns).meant += 1
        self._slice(record.return_ns).counts[kind] += 1
        if kind is not Kind.ANSWERED:
            self.statuses[record.status] = self.statuses.get(record.status, 0) + 1
            return
        if record.is_success and record.method not in READS:
            self._slice(record.return_ns).changes += 1
            self._slice(record.return_ns).keys += record.arguments[-1:] != NIL
        service = record.return_ns - record.call_ns
        intended = record.return_ns - record.intended_ns
        total = self.totals.setdefault(record.method, Waits())
        for waits, wait in (
            (total.service, service),
            (total.intended, intended),
            (self._slice(record.call_ns).waits.service, service),
            (self._slice(record.intended_ns).waits.intended, intended),
        ):
            note(waits, wait)

    def _slice(self, at_ns: int) -> Slice:
        number = int((at_ns - self._began_ns) / SECOND_NS // self.width_s)
        return self.slices[min(max(number, 0), len(self.slices) - 1)]

    @property
    def seconds(self) -> float:
        return max((self.last_ns - self.first_ns) / SECOND_NS, 1e-9)

    def middle_s(self, each: Slice) -> float:
        """Of a slice, since the first request."""
        return each.begin_s + self.width_s / 2 - (self.first_ns - self._began_ns) / SECOND_NS

    def whole(self) -> list[Slice]:
        """Without those that the beginning and the end have cut: their rates would seem to fall."""
        half = self.width_s / 2
        found = [
            each
            for each in self.slices
            if half <= self.middle_s(each) + 1e-9 and self.middle_s(each) + half <= self.seconds + 1e-9
        ]
        return found or self.slices

    def full_s(self, changes_max: int, keys_max: int) -> float | None:
        """Since when the store has so much to retain that it forgets as much as comes; None: not yet."""
        changes = keys = 0
        for each in self.slices:
            changes, keys = changes + each.changes, keys + each.keys
            if changes >= changes_max and keys >= keys_max:
                return self.middle_s(each)
        return None

    def everything(self) -> Waits:
        everything = Waits()
        for waits in self.totals.values():
            everything.service.add(waits.service)
            everything.intended.add(waits.intended)
        return everything

    def rows(self) -> list[Row]:
        named = sorted(self.totals.items())
        return [self._row(name, waits) for name, waits in [*named, ("all", self.everything())]]

    def _row(self, name: str, waits: Waits) -> Row:
        count = waits.service.get_total_count()
        return Row(
            name,
            count,
            round(count / self.seconds, 1),
            percentiles_ms(waits.service),
            percentiles_ms(waits.intended),
        )

    def write_logs(self, directory: Path) -> None:
        """As tools for HdrHistogram read them: an interval histogram for each slice."""
        for place, name in enumerate((SERVICE, INTENDED)):
            with (directory / f"{name}.hlog").open("w", encoding="ascii") as file:
                log = HistogramLogWriter(file)
                log.output_log_format_version()
                log.output_comment("waits in microseconds, by when they began; seconds since the beginning")
                log.output_legend()
                for each in self.slices:
                    waits = (each.waits.service, each.waits.intended)[place]
                    log.output_interval_histogram(waits, each.begin_s, each.begin_s + self.width_s)


def percentiles_ms(waits: HdrHistogram) -> dict[str, float]:
    """And the longest. Nothing if there were none."""
    if not waits.get_total_count():
        return {}
    shown = {f"p{percent:g}": waits.get_value_at_percentile(percent) / 1000 for percent in SHOWN}
    return shown | {"max": waits.get_max_value() / 1000}


def distribution(waits: HdrHistogram) -> list[tuple[float, float]]:
    """Percentile and milliseconds, closer together towards the end."""
    points = [100 * (1 - 10**-nines) for nines in (step / 20 for step in range(121))]
    total = waits.get_total_count()
    kept = [percent for percent in points if total and (1 - percent / 100) * total >= 1]
    return [(percent, waits.get_value_at_percentile(percent) / 1000) for percent in kept]


def stalls(latencies: Latencies) -> list[tuple[float, float]]:
    """Seconds of the run in which nothing was answered, from and to."""
    half = latencies.width_s / 2
    found: list[tuple[float, float]] = []
    for each in latencies.whole():
        if each.counts[Kind.ANSWERED]:
            continue
        middle = latencies.middle_s(each)
        if found and abs(found[-1][1] - (middle - half)) < half:
            found[-1] = (found[-1][0], middle + half)
        else:
            found.append((middle - half, middle + half))
    return [(round(begin, 1), round(end, 1)) for begin, end in found]
