"""One page of everything: nothing outside it, nothing of a recording taken for HTML."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from pipeline import beside, marks
from pipeline import tables as at
from pipeline.errors import BadInput
from pipeline.figures import _RING, Measured, draw_metrics
from pipeline.jobs import report as job
from pipeline.report import PAGE, told
from pipeline.running import Done, run_job
from pipeline.runs import Outcome, Run
from pipeline.tables import Tables
from tests.pipeline.recordings import change, record, recorded_schema, rows, write_rows

PIXEL = b"\x89PNG\r\n\x1a\nnothing more"
EVIL = "<script>alert('words')</script>"


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "link", "img"}:
            self.open.append(tag)
        self.outside += [
            value or ""
            for name, value in attrs
            if name in {"src", "href"} and not (value or "").startswith("data:")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def run_on(tables: Tables) -> tuple[Outcome, str]:
    outcome = job.run(tables.spark, tables, Run(output=tables.root), lambda words: None)
    return outcome, Path(tables.root, PAGE).read_text(encoding="utf-8")


def write(tables: Tables, table: at.Table, *rows: dict[str, object]) -> None:
    names = table.schema.fieldNames()
    given = [tuple(row.get(name, 0) for name in names) for row in rows]
    tables.write(table, tables.spark.createDataFrame(given, table.schema))


def test_when_a_run_is_gathered_then_the_page_needs_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    seen = {
        "chain": "7",
        "sites": ["a", "b"],
        "first_ts": 10,
        "last_ts": 12,
        "words": EVIL,
        "files": ["x.parquet"],
    }
    write(tables, at.VERDICTS, {"rule": "agreement", "epoch": None, "revision": None} | seen)
    held = {"rule": "total-order", "verdict": "held", "rows": 5}
    write(tables, at.RULES, held, {"rule": "agreement", "verdict": "violated", "rows": 5, "violations": 1})
    whole = {"chain": 7, "window": None, "samples": 5, "unit": "ns", "metric": "delivery_latency"}
    write(
        tables,
        at.METRICS,
        whole | {"site": None, "statistic": "p50", "value": 1_500_000.0},
        whole | {"site": 1, "statistic": "p99", "value": 2e9},
    )
    file = {"table": "events", "recorder": "r", "content": "", "batch": "b"}
    write(tables, at.FILES, file | {"file": EVIL, "verdict": "torn", "reason": "ends early", "rows": 3})
    hot = {"chain": 7, "window": datetime(2026, 1, 31, tzinfo=UTC), "rank": 1, "changes": 41, "bytes": 9}
    write(tables, at.KV_HOT, hot | {"key": b"<i>hot\xff"})
    beside.put(tables.root, "figures/throughput.png", PIXEL)
    marks.leave(tables, "audit", {})
    outcome, text = run_on(tables)
    reader = Reader(text)
    assert not reader.outside
    assert not reader.open
    assert "script" not in reader.tags
    assert reader.tags.count("img") == 1
    for words in (
        "VIOLATED: 1 times: agreement",
        "1.5 ms",
        "2 s",
        "10 to 12",
        "ends early",
        "&lt;i&gt;hot\\xff</td><td>41</td>",
        "prefers-color-scheme",
    ):
        assert words in text
    assert outcome.words[0] == "VIOLATED: 1 times: agreement"
    assert outcome.violations == 1
    assert run_on(tables)[1] == text


def test_when_only_figures_are_there_then_the_page_says_that_nothing_was_audited(
    spark: SparkSession, tmp_path: Path
) -> None:
    beside.put(str(tmp_path), "figures/sweep-loss.png", PIXEL)
    _, text = run_on(Tables(spark, str(tmp_path)))
    assert "Not audited" in text
    assert re.findall("<h2>(.*?)</h2>", text) == ["Simulated experiments"]


def reported(tables: Tables, *inputs: Path) -> tuple[Done, str]:
    run = Run(input=tuple(map(str, inputs)), output=tables.root)
    done = run_job(tables.spark, "report", run, lambda words: None)
    return done, Path(tables.root, PAGE).read_text(encoding="utf-8")


def test_when_a_report_is_asked_for_then_its_tables_are_of_today_or_it_says_which_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables, recordings = Tables(spark, str(tmp_path / "out")), tmp_path / "in"
    record(recordings, "a", rows(1, 6))
    first, text = reported(tables, recordings)
    assert [done.job for done in first.before] == ["ingest", "lifecycle", "audit", "metrics"]
    assert first.violations == 0
    assert "rules that could be checked held" in first.words[0]
    assert 'class="verdict good"' in text
    asked = Run(output=tables.root, options={"window_s": "0.5"})
    run_job(spark, "metrics", asked, lambda words: None)
    assert reported(tables, recordings)[0].before == []  # windows are as somebody wanted them
    record(recordings, "b", rows(1, 6, site=2))  # other messages at the same slots
    write_rows(recordings / "changes" / "a-000001.parquet", recorded_schema("changes"), [change(1)])
    run_job(spark, "ingest", Run(input=(str(recordings),), output=tables.root), lambda words: None)
    without, text = reported(tables)
    assert "files were ingested since" in without.words[0]
    assert any(words.startswith("gold/verdicts, gold/rules: made before") for words in without.words)
    assert "What is not of today" in text
    assert 'class="verdict odd"' in text
    again, text = reported(tables, recordings)
    assert [done.job for done in again.before] == ["lifecycle", "audit", "metrics", "history"]
    assert again.violations > 0
    assert again.words[0].startswith("VIOLATED")
    assert "not of today" not in text
    assert "Hottest keys" in text


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process lives by another clock than Greenwich's."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_when_times_are_shown_then_they_are_of_utc(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    write(tables, at.KV_HOT, {"chain": 7, "window": noon, "rank": 1, "changes": 41, "key": b"k"})
    words = dict.fromkeys(("name", "run", "value_name", "parameters", "better"), "ring")
    figures = dict.fromkeys(("value", "median", "deviation", "worse"), 1.0)
    write(tables, at.REGRESSIONS, words | figures | {"time": noon.replace(hour=13), "is_ratio": False})
    _, text = run_on(tables)
    assert "<td>2026-01-31T12:00:00Z</td>" in text
    assert "<td>2026-01-31T13:00:00Z</td>" in text


def test_when_there_are_many_chains_then_the_busiest_are_told_and_the_rest_is_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    of_group = {"window": None, "site": None, "metric": "delivered", "statistic": "rate", "unit": "1/s"}
    many: list[dict[str, object]] = [
        of_group | {"chain": chain, "samples": chain, "value": 1.0} for chain in range(1, 1001)
    ]
    write(tables, at.METRICS, *many)
    _, text = run_on(tables)
    told = re.findall("<h2>The whole recording of chain (.*?)</h2>", text)
    assert sorted(int(chain, 16) for chain in told) == list(range(1001 - job.CHAINS_MAX, 1001))
    assert "988 more, with fewer messages" in text


def test_when_nothing_is_there_then_it_says_what_to_run(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--input"):
        run_on(Tables(spark, str(tmp_path)))


def test_when_the_tables_are_far_away_then_files_beside_them_are_there_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = f"file://{tmp_path}"
    assert beside.figures(root) == {}
    beside.put(root, "figures/b.png", PIXEL)
    beside.put(root, "figures/b.png", b"again")
    beside.put(root, "figures/a.png", PIXEL)
    assert list(beside.figures(root).items()) == [("a.png", PIXEL), ("b.png", b"again")]
    assert (tmp_path / "figures" / "b.png").read_bytes() == b"again"


def test_when_packets_are_sent_again_then_the_figure_counts_packets() -> None:
    assert {metric: unit for metric, _, _, unit, _ in _RING}["retransmissions"] == "packets/s"


def measured(*chains: int) -> Measured:
    window = datetime(2026, 1, 31, tzinfo=UTC)
    rate = {"site": None, "metric": "delivered", "statistic": "rate", "value": 1.0, "samples": 1}
    rows = [Row(**rate, chain=chain, window=when) for chain in chains for when in (window, None)]
    return Measured(rows, [], [], [])


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_when_metrics_are_drawn_again_then_no_figure_of_the_run_before_stays(
    spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    root = f"{scheme}{tmp_path}"
    beside.put(root, "figures/latency.png", PIXEL)
    beside.put(root, "figures/load-ring.png", PIXEL)
    draw_metrics(measured(7), root, 1_000_000_000)
    assert list(beside.figures(root)) == ["load-ring.png", "throughput.png"]
    draw_metrics(measured(7, 8), root, 1_000_000_000)
    assert list(beside.figures(root)) == ["load-ring.png", "throughput-7.png", "throughput-8.png"]
    draw_metrics(measured(), root, 1_000_000_000)
    assert list(beside.figures(root)) == ["load-ring.png"]


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0, "ns", "0 ns"),
        (999.0, "ns", "999 ns"),
        (1_558_000.0, "ns", "1.558 ms"),
        (12_345.6, "1/s", "12,346/s"),
        (0.5, "packets", "0.5 packets"),
    ],
)
def test_when_a_figure_is_told_then_people_can_read_it(value: float, unit: str, expected: str) -> None:
    assert told(value, unit) == expected
