"""What came of a sweep, to look at: one sheet for each experiment, beside the paper that has it.

Lines are medians over the seeds, bands reach from the tenth to the ninetieth percentile.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from pipeline.beside import FIGURES, put

Point = Mapping[str, Any]  # a row of ``sweep.summary``

SIZE: Final = (12.0, 8.6)
DPI: Final = 110
BAND: Final = 0.15
SCALES_FROM: Final = 8.0  # values this far apart are shown on a logarithmic axis
COLOURS: Final = {"rotating": "#4361ee", "sequencer": "#c1121f"}
LINES: Final = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
STYLE: Final[Any] = {
    "font.size": 10,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


class Panel(NamedTuple):
    value: str
    title: str
    unit: str


class Sheet(NamedTuple):
    """``split``: what tells the lines of one discipline apart, and the words for it."""

    title: str
    paper: str
    x: str
    label: str
    split: Callable[[Point], str]
    panels: tuple[Panel, Panel, Panel, Panel]
    log: bool = False


DELIVERY: Final = Panel("delivery_p50_ms", "Until all sites have delivered a message (p50)", "ms")
MEAN_DELIVERY: Final = Panel("delivery_mean_ms", "Until all sites have delivered it (mean)", "ms")
SLOW_DELIVERY: Final = Panel("delivery_p99_ms", "The slowest: delivered at all sites (p99)", "ms")
STABILITY: Final = Panel("stability_mean_ms", "Until the source knows that all have it (mean)", "ms")
PACKETS: Final = Panel("packets_per_message", "Packets, a multicast counted once", "per message")
OVERHEAD: Final = Panel("overhead_per_message", "Overhead: packets that bring no new message", "per message")
BUFFER: Final = Panel("buffer_messages_mean", "Messages that a site keeps for others (mean)", "messages")
PASSES: Final = Panel("passes_per_message", "Orders sent: with each the token moves on", "per message")
AGAIN: Final = Panel("retransmissions_per_message", "Packets sent again", "per message")
SOURCE: Final = Panel("source_p50_ms", "Until the source's own application has it (p50)", "ms")


def _sites(point: Point) -> str:
    return f"{point['sites']} sites"


def _gap(point: Point) -> str:
    return f"1/λ {round(1000 * point['senders'] / point['rate'])} ms"


SHEETS: Final[Mapping[str, Sheet]] = {
    "rate": Sheet(
        "What an order costs against the load (5 sites, all send, 500 B)",
        "RMP §5: up to 3 multicasts per message at low load, little more than 1 at high load",
        "rate", "messages per second, all sites together", _sites,
        (DELIVERY, STABILITY, OVERHEAD, PASSES), True,
    ),
    "sites": Sheet(
        "What an order costs against the size of the group (all send, 500 B)",
        "DTP figures 2 (stability time), 3 (buffer), 4 (delivery time), 5 (packets per message)",
        "sites", "sites in the group", _gap,
        (STABILITY, BUFFER, MEAN_DELIVERY, PACKETS),
    ),
    "loss": Sheet(
        "What lost packets cost (100 messages/s, 500 B)",
        "RMP §5: packets grow with the error rate, and stay below one acknowledgement per site",
        "loss", "packets lost, of 100", _sites, (DELIVERY, SLOW_DELIVERY, AGAIN, PACKETS),
    ),
    "size": Sheet(
        "Small and large messages on links of 10 Mbit/s (20 messages/s)",
        "Jia figure 15: delay by message size for groups of 3 and of 16",
        "message_bytes", "bytes in a message", _sites, (DELIVERY, STABILITY, OVERHEAD, BUFFER), True,
    ),
    "qos": Sheet(
        "What each rung of the ladder waits for (one sender, 50 messages/s, 500 B)",
        "RMP figure 3.2 and 5.3: total order about twice the delay of source order; Jia figure 16",
        "qos", "quality of service", _sites, (DELIVERY, SOURCE, STABILITY, PACKETS),
    ),
}  # fmt: skip
RUNGS: Final = (
    "unreliable",
    "unordered",
    "source_ordered",
    "totally_ordered",
    "k=1",
    "k=2",
    "majority",
    "total",
)


def draw(points: Sequence[Point], root: str) -> list[str]:
    """A sheet for each experiment that there are points of; where each is."""
    drawn: list[str] = []
    for name, sheet in SHEETS.items():
        own = [point for point in points if point["experiment"] == name]
        if own:
            with mpl.rc_context(STYLE), io.BytesIO() as stream:
                _sheet(sheet, own).savefig(stream, format="png")
                drawn.append(put(root, f"{FIGURES}/sweep-{name}.png", stream.getvalue()))
    return drawn


def _sheet(sheet: Sheet, points: Sequence[Point]) -> Figure:
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    runs = sum(point["runs"] for point in points)
    seeds = max(point["runs"] for point in points)
    figure.suptitle(
        f"{sheet.title}\n{sheet.paper}\n"
        f"{runs:,} simulated runs; lines: medians over the seeds (at most {seeds}), bands: p10 to p90",
        fontsize=11,
    )
    axes = list(figure.subplots(2, 2).flat)
    for panel, each in zip(sheet.panels, axes, strict=True):
        _panel(sheet, panel, points, each)
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3)
    return figure


def _panel(sheet: Sheet, panel: Panel, points: Sequence[Point], axes: Axes) -> None:
    """Rungs stand side by side in their order; numbers where they belong."""
    named = sheet.x == "qos"
    for name, colour, (style, marker), line in _lines(sheet, points):
        shown = [point for point in line if point[f"{panel.value}_median"] is not None]
        xs = [RUNGS.index(point["qos"]) if named else _x(sheet, point) for point in shown]
        low, middle, high = (
            [point[f"{panel.value}_{word}"] for point in shown] for word in ("p10", "median", "p90")
        )
        axes.plot(xs, middle, style, color=colour, marker=marker, markersize=4, linewidth=1.4, label=name)
        axes.fill_between(xs, low, high, color=colour, alpha=BAND, linewidth=0)
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_ylabel(panel.unit)
    axes.set_xlabel(sheet.label)
    if named:
        axes.set_xticks(range(len(RUNGS)), [rung.replace("_", "\n") for rung in RUNGS], fontsize=8)
    if sheet.log:
        _ticks(axes, sorted({_x(sheet, point) for point in points}))
    middles = [each for point in points if (each := point[f"{panel.value}_median"])]
    if (
        middles
        and max(middles) / min(middles) > SCALES_FROM
        and all(point[f"{panel.value}_median"] != 0 for point in points)
    ):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)


def _ticks(axes: Axes, xs: Sequence[float]) -> None:
    """A logarithmic axis whose marks are the values that were measured."""
    axes.set_xscale("log")
    axes.set_xticks(xs, [f"{x:,.0f}" for x in xs])
    axes.xaxis.set_minor_locator(NullLocator())


def _x(sheet: Sheet, point: Point) -> float:
    value = float(point[sheet.x])
    return 100 * value if sheet.x == "loss" else value


def _lines(sheet: Sheet, points: Sequence[Point]) -> Iterator[tuple[str, str, tuple[str, str], list[Point]]]:
    """Name, colour, style and points of each line, in the order of the axis."""
    splits = sorted({sheet.split(point) for point in points}, key=lambda words: (len(words), words))
    for discipline, colour in COLOURS.items():
        for split, look in zip(splits, LINES, strict=False):
            line = [p for p in points if p["discipline"] == discipline and sheet.split(p) == split]
            if line:
                key = RUNGS.index if sheet.x == "qos" else float
                yield f"{discipline}, {split}", colour, look, sorted(line, key=lambda p: key(p[sheet.x]))
