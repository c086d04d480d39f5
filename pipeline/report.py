"""One page that gathers a run: everything is in it, so that it can be sent to somebody. Light or dark, as the
reader has it; narrow enough for a phone."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

PAGE: Final = "report.html"
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d1d1f; --paper: #fff; --soft: #5b5b60; --line: #dcdce0;
  --good: #e3f4e8; --good-ink: #14532d; --bad: #fde2e2; --bad-ink: #7f1d1d; --odd: #fff3d6;
  --odd-ink: #713f12; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ea; --paper: #17181a; --soft: #a5a6ab;
  --line: #3a3b40; --good: #12331f; --good-ink: #a7e3bd; --bad: #451a1a; --bad-ink: #f6b5b5; --odd: #40300f;
  --odd-ink: #f2d492; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1.2rem 1rem 3rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .6rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.verdict { padding: .8rem 1rem; border-radius: 6px; font-weight: 600; }
.good { background: var(--good); color: var(--good-ink); }
.bad { background: var(--bad); color: var(--bad-ink); }
.odd { background: var(--odd); color: var(--odd-ink); }
.scroll { overflow-x: auto; margin-bottom: .9rem; }
td:not(:first-child) { white-space: nowrap; } .words td { white-space: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: normal; }
th:first-child, td:first-child, .words td, .words th { text-align: left; }
thead th { border-bottom: 2px solid var(--soft); }
td.good, td.bad, td.odd { font-weight: 600; }
figure { margin: 0 0 1.2rem; }
img { display: block; width: 100%; height: auto; border-radius: 6px; background: #fff; }
.note { color: var(--soft); } summary { cursor: pointer; margin: .6rem 0; }
"""


class Word(NamedTuple):
    """A cell that is good, bad or odd."""

    text: str
    kind: str


class Part(NamedTuple):
    """A heading and what stands below it, as HTML."""

    title: str
    body: str


def page(title: str, verdict: Word, parts: Iterable[Part]) -> str:
    body = "\n".join(
        f"<section><h2>{escape(part.title)}</h2>\n{part.body}</section>" for part in parts if part.body
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n"
        f'<p class="verdict {verdict.kind}">{escape(verdict.text)}</p>\n{body}\n</body></html>\n'
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]], *, is_words: bool = False) -> str:
    """Nothing if there are no rows. ``is_words``: text, to the left; else numbers, to the right."""
    lines = ["<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows]
    if not lines:
        return ""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    kind = ' class="words"' if is_words else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>\n"
    )


def _cell(cell: Any) -> str:
    if isinstance(cell, Word):
        return f'<td class="{cell.kind}">{escape(cell.text)}</td>'
    if cell is None:
        return "<td></td>"
    return f"<td>{escape(f'{cell:,}' if isinstance(cell, int) else str(cell))}</td>"


def note(words: str) -> str:
    return f'<p class="note">{escape(words)}</p>\n'


def folded(words: str, body: str) -> str:
    return f"<details><summary>{escape(words)}</summary>{body}</details>\n" if body else ""


def figure(content: bytes, words: str) -> str:
    data = base64.b64encode(content).decode("ascii")
    return f'<figure><img alt="{escape(words)}" src="data:image/png;base64,{data}"></figure>\n'


def told(value: float, unit: str) -> str:
    """A figure as people read it."""
    if unit == "ns":
        for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
            if value >= size:
                return f"{short(value / size)} {name}"
        return f"{value:.0f} ns"
    return f"{short(value)}/s" if unit == "1/s" else f"{short(value)} {unit}"


def short(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
