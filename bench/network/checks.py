"""What the sites report, judged.

A *safety* line that fails is a defect, whatever the machine was doing. A *liveness* line that fails while a
site was kept off the CPU for long tells of the machine: that site looked dead, and was treated as such.
"""

from array import array
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from bench.network.cases import Case
from bench.network.replica import Report
from bench.results import Value, latencies
from ordering import Config

MILLISECOND = 1_000_000
_DETECTIONS = 10  # so many detection times may pass until a majority, and then everyone, goes on


class Verdict(StrEnum):
    HELD = "held"
    STARVED = "starved"
    FAILED = "failed"


class Line(msgspec.Struct, frozen=True):
    name: str
    held: bool
    safety: bool
    detail: str = ""


class Times(msgspec.Struct, kw_only=True):
    """When the fault began and ended. It is in force from ``broken`` to ``mending``."""

    breaking: int
    broken: int
    mending: int
    mended: int
    stopped: int  # no more load


class Bounds(msgspec.Struct, frozen=True):
    """How long things may take, milliseconds; they follow from the settings of the group."""

    silence_ms: int
    refuse_ms: int
    whole_ms: int
    starved_ms: int

    @classmethod
    def of(cls, config: Config) -> "Bounds":
        silence_ms = _DETECTIONS * config.detection_ms
        return cls(
            silence_ms=silence_ms,
            refuse_ms=config.minority_ms + 2 * config.detection_ms,
            whole_ms=silence_ms,
            starved_ms=config.suspect_ms // 2,
        )


class Judged(msgspec.Struct, kw_only=True):
    verdict: Verdict
    lines: list[Line]
    values: dict[str, Value]


def judge(
    case: Case, reports: Sequence[Report], times: Times, bounds: Bounds, *, gathered: bool, settled: bool,
    dropped: int,
) -> Judged:  # fmt: skip
    lines = [
        *_safety(case, reports, times),
        *_liveness(case, reports, times, bounds),
        Line("all in one ring again, by themselves", gathered, safety=False),
        Line(
            "everything accepted was delivered to all",
            settled,
            safety=False,
            detail="applied: " + ", ".join(str(report.state.applied) for report in reports),
        ),
    ]
    if case.needs_nft:
        lines.append(Line("the fault was met", dropped > 0, safety=False, detail=f"{dropped} frames"))
    if case.transfers:
        lines.append(Line("state was transferred", bool(reports[case.site].transfers), safety=False))
    values = figures(case, reports, times) | {"dropped": dropped}
    late_ms = max(report.late_ns for report in reports) // MILLISECOND
    verdict = Verdict.HELD
    if not all(line.held for line in lines):
        starved = all(line.held for line in lines if line.safety) and late_ms > bounds.starved_ms
        verdict = Verdict.STARVED if starved else Verdict.FAILED
    return Judged(verdict=verdict, lines=lines, values=values)


# -- safety --------------------------------------------------------------------------------------


def _safety(case: Case, reports: Sequence[Report], times: Times) -> list[Line]:
    wrongs = [wrong for report in reports for wrong in report.wrongs]
    differing = _differing(reports)
    lines = [
        Line(
            "each message once, in the order of its source", not wrongs, safety=True, detail="; ".join(wrongs)
        ),
        Line("one order at all sites", differing is None, safety=True, detail=differing or ""),
        _one_view_for_each_name(reports),
        _same_content(reports),
        _nothing_lost(reports),
    ]
    if case.minority:
        lines.append(_minority_delivers_nothing(case, reports, times))
    return lines


def _differing(reports: Sequence[Report]) -> str | None:
    """The first slot at which two sites have applied different things, up to there or there."""
    seen: dict[int, int] = {}
    for report in reports:
        slots, digests = array("Q", report.history[0]), array("Q", report.history[1])
        for slot, digest in zip(slots, digests, strict=True):
            if seen.setdefault(slot, digest) != digest:
                return f"site {report.site + 1} differs from another at slot {slot}"
    return None


def _one_view_for_each_name(reports: Sequence[Report]) -> Line:
    seen: dict[tuple[int, str], object] = {}
    for report in reports:
        for _, chain, view in report.views:
            ring = (view.ring, view.electorate, view.members)
            if seen.setdefault((chain, str(view.id)), ring) != ring:
                return Line("one primary", False, True, f"two views are called {view.id}")
    chains = {chain for chain, _ in seen}
    return Line("one primary", len(chains) <= 1, True, "" if len(chains) <= 1 else f"{len(chains)} chains")


def _furthest(reports: Sequence[Report]) -> list[Report]:
    """Those that have applied most: all of them, unless one has not caught up, which is said elsewhere."""
    most = max(report.state.applied for report in reports)
    return [report for report in reports if report.state.applied == most]


def _same_content(reports: Sequence[Report]) -> Line:
    """As much applied, the same applied."""
    digests = {report.state.digest for report in _furthest(reports)}
    return Line("the same content", len(digests) == 1, True, "" if len(digests) == 1 else "hashes differ")


def _nothing_lost(reports: Sequence[Report]) -> Line:
    """Acknowledged: its own site had applied it."""
    for report in reports:
        for source, number in report.acked.items():
            for other in _furthest(reports):
                if other.state.last.get(source, 0) < number:
                    detail = f"site {other.site + 1} lacks number {number} of source {source:x}"
                    return Line("nothing acknowledged is lost", False, True, detail)
    return Line("nothing acknowledged is lost", True, True)


def _minority_delivers_nothing(case: Case, reports: Sequence[Report], times: Times) -> Line:
    """What was submitted while the network was apart, anywhere, has no business on the smaller side."""
    name = "the minority delivers nothing new"
    for site in case.minority:
        for when, newest, _ in reports[site].calls:
            if times.broken < newest and when < times.mending:
                return Line(name, False, True, f"site {site + 1} did")
    return Line(name, True, True)


# -- liveness ------------------------------------------------------------------------------------


def _liveness(case: Case, reports: Sequence[Report], times: Times, bounds: Bounds) -> list[Line]:
    lines = []
    went_on = [report for report in reports if _silence_ms(report, times) <= bounds.silence_ms]
    going = [report.site for report in went_on if _is_fresh(report, times)]
    name = "a majority goes on"
    if case.primary:
        held = set(case.primary) <= set(going)
    else:
        held = len(going) >= (case.sites if case.keeps_its_ring else case.majority)
    lines.append(Line(name, held, False, f"{len(going)} of {case.sites} sites"))
    for site in case.minority:
        refused_ms = _refused_ms(reports[site], times)
        held = refused_ms is not None and refused_ms <= bounds.refuse_ms
        detail = "it never did" if refused_ms is None else f"after {refused_ms} ms"
        lines.append(Line(f"site {site + 1} refuses (NoPrimary)", held, False, detail))
    if case.keeps_its_ring:
        changes = view_changes(reports, times.breaking, times.mended)
        lines.append(Line("the ring is not changed", not changes, False, f"{changes} view changes"))
    whole_ms = _whole_ms(case, reports, times)
    lines.append(Line("in one ring in time", 0 <= whole_ms <= bounds.whole_ms, False, f"after {whole_ms} ms"))
    return lines


def _is_fresh(report: Report, times: Times) -> bool:
    """Whether it applied something that was submitted during the fault."""
    return any(newest > times.broken for when, newest, _ in report.calls if when < times.mending)


def _silence_ms(report: Report, times: Times) -> int:
    """The longest time without delivery while the fault lasted, a silence at its end included."""
    return (
        longest_silence((when for when, _, _ in report.calls), times.breaking, times.mending) // MILLISECOND
    )


def longest_silence(moments: Iterable[int], since: int, until: int) -> int:
    within = [since, *(when for when in moments if since < when < until), until]
    return max(after - before for before, after in pairwise(within))


def _refused_ms(report: Report, times: Times) -> int | None:
    """When it began to refuse, if it still did when the network was mended."""
    stances = [(when, accepts) for when, accepts in report.stances if when < times.mending]
    if not stances or stances[-1][1]:
        return None
    return max(stances[-1][0] - times.breaking, 0) // MILLISECOND


def _whole_ms(case: Case, reports: Sequence[Report], times: Times) -> int:
    """From the mending until the last site has a ring of all, for good; -1: it has none."""
    latest = times.mended
    for report in reports:
        since = None
        for when, _, view in report.views:
            if when > times.stopped:
                break
            if len(view.ring) < case.sites:
                since = None
            elif since is None:
                since = when
        if since is None:
            return -1
        latest = max(latest, since)
    return (latest - times.mended) // MILLISECOND


def view_changes(reports: Sequence[Report], since: int, until: int) -> int:
    return max(sum(since < when < until for when, _, _ in report.views) for report in reports)


# -- figures -------------------------------------------------------------------------------------


def figures(case: Case, reports: Sequence[Report], times: Times) -> dict[str, Value]:
    seconds = (times.mending - times.broken) / 1e9
    primary = [report for report in reports if report.site in (case.primary or range(case.sites))]
    silences = sorted(_silence_ms(report, times) for report in primary)
    # Where nobody is named, the best majority counts.
    rates = sorted(_applied_during(report, times) / seconds for report in primary)
    silence_ms = silences[-1] if case.primary else silences[case.majority - 1]
    refused = [_refused_ms(reports[site], times) for site in case.minority]
    took = [ns for report in reports for when, ns in report.took_ns if times.broken < when < times.mending]
    shown: dict[str, Value] = dict(latencies(took))
    return {
        "silence_ms": silence_ms,
        "refuse_ms": max((each for each in refused if each is not None), default=None),
        "whole_ms": _whole_ms(case, reports, times),
        "views_during": view_changes(reports, times.breaking, times.mending),
        "views_after": view_changes(reports, times.mending, times.stopped),
        "messages_per_s": round(rates[0] if case.primary else rates[-case.majority]),
        "latency": shown,
        "retransmissions": _sum(reports, "retransmissions"),
        "nacks": _sum(reports, "nacks sent"),
        "datagrams": sum(report.datagrams for report in reports),
        "applied": max(report.state.applied for report in reports),
        "refused": sum(report.refused for report in reports),
        "transfers": sum(len(report.transfers) for report in reports),
        "lives_ended": [f"site {r.site + 1}: {how}" for r in reports for how in r.abandoned_lives],
        "late_ms": max(report.late_ns for report in reports) // MILLISECOND,
    }


def _applied_during(report: Report, times: Times) -> int:
    counts = [applied for when, _, applied in report.calls if times.broken < when < times.mending]
    return counts[-1] - counts[0] if counts else 0


def _sum(reports: Sequence[Report], counter: str) -> int:
    return sum(report.counters.get(counter, 0) for report in reports)
