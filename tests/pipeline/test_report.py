"""One page of everything: nothing outside it, nothing of a recording taken for HTML."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline import beside
from pipeline import tables as at
from pipeline.errors import BadInput
from pipeline.jobs import report as job
from pipeline.report import PAGE, told
from pipeline.runs import Outcome, Run
from pipeline.tables import Tables

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
    assert outcome.violations == 0  # the audit says so, not the page
    assert run_on(tables)[1] == text


def test_when_only_figures_are_there_then_the_page_says_that_nothing_was_audited(
    spark: SparkSession, tmp_path: Path
) -> None:
    beside.put(str(tmp_path), "figures/sweep-loss.png", PIXEL)
    _, text = run_on(Tables(spark, str(tmp_path)))
    assert "Not audited" in text
    assert re.findall("<h2>(.*?)</h2>", text) == ["Simulated experiments"]


def test_when_nothing_is_there_then_it_says_what_to_run(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="rsm pipeline"):
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
