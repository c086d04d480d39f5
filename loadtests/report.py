"""One page that says how a run went, with its plots; the same as JSON for programs."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from apps.kv.types import Limits
from bench.chaos.books import Checked
from loadtests.faults import Fault, Mark
from loadtests.judging import Verdict
from loadtests.latencies import Latencies, Row, percentiles_ms, stalls
from loadtests.pace import SECOND_NS
from loadtests.plots import Scene, plot_distribution, plot_processes, plot_run
from loadtests.records import Kind
from loadtests.runs import FAULTS, PROCESSES, RINGS, LoadPlan
from loadtests.trends import WARM_UP, Trend, trend
from loadtests.watching import Ring, Sample, read_lines, read_rings

PAGE: Final = "index.html"
RESULT: Final = "result.json"
RUN_PLOT, DISTRIBUTION_PLOT, PROCESSES_PLOT = "run.png", "distribution.png", "processes.png"
_STYLE: Final = """
:root { color-scheme: light; color: #222; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.verdict { padding: .8rem 1rem; border-radius: 6px; font-weight: 600; }
.right { background: #e3f4e8; color: #14532d; } .wrong { background: #fde2e2; color: #7f1d1d; }
.unsure { background: #fff3d6; color: #713f12; }
.figures { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; padding: 0; list-style: none; }
.figures li { border: 1px solid #ddd; border-radius: 6px; padding: .5rem .9rem; min-width: 8rem; }
.figures b { display: block; font-size: 1.35rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #e5e5e5; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #bbb; }
img { width: 100%; height: auto; } .note { color: #555; } li.problem { font-family: monospace; }
"""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run came to. ``failed``: requests that were neither answered nor told to come back."""

    plan: LoadPlan
    seconds: float
    counts: dict[Kind, int]
    statuses: dict[int, int]
    rows: list[Row]
    verdict: Verdict
    faults: dict[Fault, int]
    view_changes: int
    stalls_s: list[tuple[float, float]]
    trends: list[Trend]

    @property
    def failed(self) -> int:
        return self.counts[Kind.UNKNOWN] + self.counts[Kind.UNEXPECTED]

    @property
    def good(self) -> bool:
        """Nothing was wrong, everything could be judged, and nothing failed for which there was no reason."""
        excused = bool(self.faults) and not self.counts[Kind.UNEXPECTED]
        return not (self.verdict.wrong or self.verdict.unsure or (self.failed and not excused))

    @property
    def words(self) -> str:
        checked, verdict = self.verdict.checked, self.verdict
        if verdict.wrong:
            return f"WRONG: {len(verdict.wrong)} or more answers that no right store gives"
        if verdict.unsure:
            return f"NOT JUDGED: {verdict.unsure[0]}"
        right = f"0 wrong of {checked.operations + checked.refused:,} requests"
        if not self.good:
            return f"FAILED: {right}, but {self.failed:,} failed without a fault to excuse them"
        failed = f"; {self.failed:,} of unknown outcome under faults" if self.failed else ""
        return f"RIGHT: {right}{failed}"


class Seen(NamedTuple):
    """What was noted beside the requests."""

    marks: list[Mark]
    rings: list[Ring]
    samples: list[Sample]

    @classmethod
    def read(cls, records: Path) -> "Seen":
        return cls(
            read_lines(records / FAULTS, Mark),
            read_rings(records / RINGS),
            read_lines(records / PROCESSES, Sample),
        )


def result_of(plan: LoadPlan, latencies: Latencies, verdict: Verdict, seen: Seen) -> Result:
    return Result(
        plan=plan,
        seconds=round(latencies.seconds, 1),
        counts=latencies.counts,
        statuses=dict(sorted(latencies.statuses.items())),
        rows=latencies.rows(),
        verdict=verdict,
        faults={fault: n for fault in Fault if (n := sum(mark.fault is fault for mark in seen.marks))},
        view_changes=sum(ring.at_ns > latencies.first_ns for ring in seen.rings),
        stalls_s=stalls(latencies),
        trends=list(_trends(latencies, seen.samples)),
    )


def write_report(result: Result, latencies: Latencies, seen: Seen) -> None:
    """Everything of it, into ``plan.report``."""
    report = result.plan.report
    scene = Scene(_title(result), latencies, seen.marks, seen.rings)
    plot_run(scene, report / RUN_PLOT)
    plot_distribution(scene, report / DISTRIBUTION_PLOT)
    if seen.samples:
        plot_processes(scene, seen.samples, report / PROCESSES_PLOT)
    latencies.write_logs(report)
    encoded = msgspec.json.encode(result, enc_hook=str)
    (report / RESULT).write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
    page = _page(result, _faults_table(seen.marks, latencies), bool(seen.samples))
    (report / PAGE).write_text(page, encoding="utf-8")


def _trends(latencies: Latencies, samples: Sequence[Sample]) -> Iterable[Trend]:
    run_s, limits = latencies.seconds, Limits()
    full_s = latencies.full_s(limits.history_events_max, limits.once_max)
    for who in sorted({each.who for each in samples}):
        own = [((each.at_ns - latencies.first_ns) / SECOND_NS, each) for each in samples if each.who == who]
        memory = [(at, each.resident_bytes / 1e6) for at, each in own]
        open_now = [(at, float(each.descriptors)) for at, each in own]
        for found in (
            trend(
                f"memory of {who}",
                "MB",
                memory,
                run_s,
                share=0.1,
                least=8.0,
                full_s=full_s if who.startswith("replica") else 0.0,
            ),
            trend(f"descriptors of {who}", "", open_now, run_s, share=0.1, least=5.0),
        ):
            if found is not None:
                yield found
    for name in ("p50", "p99"):
        points = [
            (latencies.middle_s(each), percentiles_ms(each.waits.intended)[name])
            for each in latencies.whole()
            if each.waits.intended.get_total_count()
        ]
        found = trend(f"{name} from the intended start", "ms", points, run_s, share=0.25, least=2.0)
        if found is not None:
            yield found


# -- the page ------------------------------------------------------------------------------------


def _title(result: Result) -> str:
    plan = result.plan
    where = f"{plan.sites} durable replicas" if plan.sites else plan.endpoint
    faults = ", with faults" if result.faults else ""
    return f"Load: {plan.users} users, {plan.shape}, {result.seconds:.0f} s on {where}{faults}"


def _page(result: Result, faults: str, processes: bool) -> str:
    kind = "right" if result.good else "unsure" if not result.verdict.wrong else "wrong"
    parts = [
        f"<h1>{escape(_title(result))}</h1>",
        f'<p class="verdict {kind}">{escape(result.words)}</p>',
        _figures(result),
        _problems(result),
        "<h2>Over time</h2>",
        _image(result.plan.report / RUN_PLOT, "Throughput, latency, failures and the ring over time"),
        "<h2>Latency</h2>",
        _image(result.plan.report / DISTRIBUTION_PLOT, "Latency by percentile"),
        _latency_table(result),
        "<h2>What was checked</h2>",
        _checked_table(result.verdict.checked),
        faults,
    ]
    if processes:
        parts += ["<h2>Processes</h2>", _image(result.plan.report / PROCESSES_PLOT, "Memory and descriptors")]
    parts += [_trend_table(result.trends), _settings(result)]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(_title(result))}</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _figures(result: Result) -> str:
    everything = result.rows[-1]
    figures = {
        "requests answered": f"{everything.answered:,}",
        "answered a second": f"{everything.per_s:,.0f}",
        **{f"{name} from intended start": _ms(value) for name, value in everything.intended_ms.items()},
        "told to come back": f"{result.counts[Kind.PUSHED_BACK]:,}",
        "failed": f"{result.failed:,}",
        "faults": f"{sum(result.faults.values()):,}",
        "changes of the view": f"{result.view_changes:,}",
    }
    items = "".join(f"<li><b>{escape(value)}</b>{escape(name)}</li>" for name, value in figures.items())
    return f'<ul class="figures">{items}</ul>'


def _ms(value: float) -> str:
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def _problems(result: Result) -> str:
    told = [*result.verdict.wrong, *result.verdict.unsure]
    if not told:
        return ""
    items = "".join(f'<li class="problem">{escape(each)}</li>' for each in told)
    return f"<h2>What was wrong</h2><ol>{items}</ol>"


def _image(path: Path, words: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{data}">'


def _table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(str(title))}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _latency_table(result: Result) -> str:
    names = list(result.rows[-1].intended_ms)
    titles = ["operation", "answered", "per s", *(f"{name}, intended" for name in names)]
    titles += [f"{name}, service" for name in names]
    rows = [
        [
            row.operation,
            f"{row.answered:,}",
            f"{row.per_s:,.1f}",
            *(_ms(row.intended_ms[name]) for name in names),
            *(_ms(row.service_ms[name]) for name in names),
        ]
        for row in result.rows
        if row.answered
    ]
    note = (
        "<p class=note>Each user has a schedule. <i>Intended</i> counts from when a request should have"
        " begun, so a user that was held up does not hide what others would have waited; <i>service</i>"
        " counts from when it was sent. The histograms are in intended.hlog and service.hlog.</p>"
    )
    return _table(titles, rows) + note


def _checked_table(checked: Checked) -> str:
    rows = [
        ("requests replayed on one machine (witness)", checked.operations),
        ("of them, acknowledged", checked.acknowledged),
        ("of them, of unknown outcome", checked.unknown),
        ("of them, sent again under the same Idempotency-Key", checked.repeated),
        ("refused, and not to be found in any state", checked.refused),
        ("commands in the order", checked.executed),
        ("watch events compared with the replay", checked.watched),
        ("samples searched without timestamps (black box)", checked.searched),
        ("of them, given up", checked.gave_up),
    ]
    return _table(("what", "count"), [(name, f"{count:,}") for name, count in rows])


def _faults_table(marks: Sequence[Mark], latencies: Latencies) -> str:
    if not marks:
        return ""
    rows = [
        (
            f"{mark.fault} {mark.who}",
            f"{(mark.began_ns - latencies.first_ns) / SECOND_NS:.1f} s",
            f"{(mark.back_ns - mark.began_ns) / SECOND_NS:.1f} s",
        )
        for mark in marks
    ]
    return "<h2>Faults</h2>" + _table(("fault", "began", "back after"), rows)


def _trend_table(trends: Sequence[Trend]) -> str:
    if not trends:
        return ""
    rows = [
        (
            each.what,
            f"{each.middle:,.1f} {each.unit}",
            f"{each.per_hour:+,.1f} {each.unit}",
            f"{each.growth:+,.1f} {each.unit}",
            f"{each.allowed:,.1f} {each.unit}",
            each.words,
        )
        for each in trends
    ]
    note = (
        f"<p class=note>Behind the first {WARM_UP:.0%} of the run, in which caches fill up; replicas, from"
        " when their retained history and Idempotency-Keys are full (100,000 each, as a rule). The slope is"
        " the median of those between all pairs of points.</p>"
    )
    titles = ("what", "median", "slope per hour", "growth over this part", "allowed", "")
    return "<h2>Does it grow?</h2>" + _table(titles, rows) + note


def _settings(result: Result) -> str:
    plan = msgspec.to_builtins(result.plan, enc_hook=str)
    rows = [(name, value) for name, value in plan.items() if value not in {None, ""}]
    statuses = [
        (f"answers with status {status or 'none'}", count) for status, count in result.statuses.items()
    ]
    beside = (
        '<p>Beside this page: <a href="locust.html">the report of locust</a>, <a href="locust.log">its'
        f' log</a>, <a href="{RESULT}">everything as JSON</a>.</p>'
    )
    return "<h2>Settings</h2>" + _table(("what", "value"), [*rows, *statuses]) + beside
