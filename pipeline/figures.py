"""Figures that say by themselves what they show. Only what was summed up before comes here: a number of
windows, replicas and statistics."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from pyspark.sql import Row

from pipeline.beside import FIGURES, put, remove_figures

WIDTH: Final = 11.0
DPI: Final = 110
CHAINS_MAX: Final = 4
LEGEND_MAX: Final = 14
SECOND_NS: Final = 1_000_000_000
_MINUTES_FROM: Final = 900.0
_HOURS_FROM: Final = 4 * 3600.0
_LEAST_MS: Final = 0.001  # on an axis of powers nothing is less

# Okabe and Ito: told apart by everyone, without the yellow that nobody sees on white.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#5A5A5A")
_DASHES: Final = ("-", "--", ":", "-.")
_INK: Final = "#222222"
STYLE: Final[Any] = {
    "font.size": 10,
    "axes.grid": True,
    "grid.color": "#e2e2e2",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
}
_STATISTICS: Final = {
    "p50": COLOURS[0],
    "p90": COLOURS[4],
    "p99": COLOURS[1],
    "p99.9": COLOURS[5],
    "max": COLOURS[6],
}
_MARKERS: Final = {"p50": "o", "p90": "s", "p99": "^", "p99.9": "D", "max": "x"}
_WAITS: Final = {
    "delivery_latency": "Submitted to delivered at the same replica",
    "majority_latency": "Submitted to known to be held by a majority",
    "stable_latency": "Submitted to known to be held by everyone",
    "reply_latency": "Submitted to replied",
    "held_lag": "Delivered to held (on disk, if durable)",
    "applied_lag": "Delivered to applied",
}
_OVER_TIME: Final = tuple(_WAITS)[:4]
# Metric, statistic, title, axis, and what the values are divided by.
_RING: Final = (
    ("packets_per_message", "mean", "Datagrams sent for each message delivered", "datagrams", 1.0),
    ("bytes_per_message", "mean", "Bytes sent for each message delivered", "bytes", 1.0),
    ("token_rotation", "mean", "Time of one rotation of the token", "milliseconds", 1e6),
    ("retransmissions", "rate", "Sent again", "packets/s", 1.0),
    ("nacks", "rate", "Asked for again (NACK)", "NACKs/s", 1.0),
    ("buffered_slots", "max", "Slots kept for replicas that may lack them, most in a window", "slots", 1.0),
    ("waiting", "max", "Delivered and not yet executed, most in a window", "messages", 1.0),
)
_KINDS: Final[dict[str, tuple[Any, str, float, str]]] = {
    "view": ("-", "#9a9a9a", 0.8, "a new view of the group (epoch)"),
    "crashed": ("-", _INK, 1.3, "a replica crashed"),
    "halted": ("-.", _INK, 1.3, "a replica stopped by itself"),
    "ended": ("--", _INK, 1.0, "a replica's membership ended"),
    "started": (":", _INK, 1.3, "a replica started again"),
}

Point = tuple[float, float]


class Mark(NamedTuple):
    kind: str
    at_s: float


class Value(NamedTuple):
    """A row of ``gold/metrics``. ``at_s``: begin of the window; None if it is of the whole recording."""

    metric: str
    statistic: str
    site: int | None
    at_s: float | None
    value: float


class Scene(NamedTuple):
    """What the figures of a chain share. Times are seconds since 1970 until they are drawn."""

    values: Sequence[Value]
    marks: Sequence[Mark]
    names: Mapping[int, str]
    begin_s: float
    end_s: float
    width_s: float

    @property
    def scale(self) -> tuple[float, str]:
        length = self.end_s - self.begin_s
        if length >= _HOURS_FROM:
            return 3600.0, "hours"
        return (60.0, "minutes") if length >= _MINUTES_FROM else (1.0, "seconds")

    def at(self, seconds: float) -> float:
        return (seconds - self.begin_s) / self.scale[0]

    def series(self, metric: str, statistic: str, site: int | None) -> list[Point]:
        """Time and value, window by window; where there is none, no number: the line is broken there."""
        found = {
            round((value.at_s - self.begin_s) / self.width_s): value.value
            for value in self.values
            if (value.metric, value.statistic, value.site) == (metric, statistic, site)
            and value.at_s is not None
        }
        if not found:
            return []
        middles = {
            place: self.at(self.begin_s + (place + 0.5) * self.width_s)
            for place in range(min(found), max(found) + 1)
        }
        return [(middle, found.get(place, math.nan)) for place, middle in middles.items()]

    def sites(self, *metrics: str) -> list[int]:
        found = {value.site for value in self.values if value.metric in metrics and value.site is not None}
        return sorted(found, key=lambda site: self.names.get(site, ""))

    def has(self, metric: str) -> bool:
        return any(value.metric == metric for value in self.values)


# -- of the job metrics --------------------------------------------------------------------------


class Measured(NamedTuple):
    """Rows of ``gold/metrics`` and ``gold/view_changes``; what happened to replicas and views (chain, site,
    kind, ``wall_ns``); names (chain, site, name)."""

    metrics: Sequence[Row]
    changes: Sequence[Row]
    marks: Sequence[Row]
    names: Sequence[Row]


Draw = Callable[[Scene], Figure | None]
_NAMES: Final = ("throughput", "latency", "latency-by-replica", "ring", "view-changes")


def draw_metrics(measured: Measured, root: str, width_ns: int) -> list[str]:
    """Of each chain, the busiest first; where each figure is. Those of the run before go."""
    remove_figures(root, f"(?:{'|'.join(_NAMES)})(?:-[0-9a-f]+)?")
    made: list[str] = []
    chains = busiest(measured.metrics)
    for chain in chains:
        scene = _scene(chain, measured, width_ns)
        suffix = f"-{chain & (1 << 64) - 1:x}" if len(chains) > 1 else ""
        changes = [row for row in measured.changes if row["chain"] == chain]
        of_views = partial(_view_changes, changes=changes)
        ways: tuple[Draw, ...] = (_throughput, _latency, _latency_by_replica, _ring, of_views)
        drawn = ((name, _drawn(draw, scene)) for name, draw in zip(_NAMES, ways, strict=True))
        made += [save(root, f"{name}{suffix}", figure) for name, figure in drawn if figure is not None]
    return made


def busiest(metrics: Iterable[Row]) -> list[int]:
    delivered = {
        row["chain"]: row["samples"]
        for row in metrics
        if (row["metric"], row["site"], row["window"]) == ("delivered", None, None)
    }
    return sorted(delivered, key=lambda chain: (-delivered[chain], chain))[:CHAINS_MAX]


def save(root: str, name: str, figure: Figure) -> str:
    with mpl.rc_context(STYLE), io.BytesIO() as stream:
        figure.savefig(stream, format="png")
        return put(root, f"{FIGURES}/{name}.png", stream.getvalue())


def _drawn(draw: Draw, scene: Scene) -> Figure | None:
    with mpl.rc_context(STYLE):
        return draw(scene)


def _scene(chain: int, measured: Measured, width_ns: int) -> Scene:
    values = [
        Value(
            row["metric"],
            row["statistic"],
            row["site"],
            None if row["window"] is None else _seconds(row["window"]),
            row["value"],
        )
        for row in measured.metrics
        if row["chain"] == chain
    ]
    width_s = width_ns / SECOND_NS
    times = [value.at_s for value in values if value.at_s is not None]
    begin_s, end_s = min(times), max(times) + width_s
    sites = {value.site for value in values}
    known = {row["site"]: row["name"] for row in measured.names if row["chain"] == chain}
    happened = [
        Mark(row["kind"], row["wall_ns"] / SECOND_NS)
        for row in measured.marks
        if row["chain"] == chain or (row["chain"] == 0 and row["site"] in sites)
    ]
    shown = [
        mark
        for mark in happened
        # The group's first view, and the first start of each, are how it begins.
        if begin_s + width_s * (mark.kind in {"started", "view"}) <= mark.at_s <= end_s
    ]
    every = {site for site in sites if site is not None}
    return Scene(
        values, shown, _told_apart({site: known.get(site) for site in every}), begin_s, end_s, width_s
    )


def _seconds(time: datetime) -> float:
    """Spark hands out times without a zone, as this process has it."""
    return time.timestamp()


def _told_apart(names: Mapping[int, str | None]) -> dict[int, str]:
    """A replica that lost its memory comes back as another site at the same address."""
    given = list(names.values())
    shown = {}
    for site, name in names.items():
        identity = f"{site & (1 << 64) - 1:x}"
        if name is None:
            shown[site] = f"site {identity}"
        else:
            shown[site] = name if given.count(name) == 1 else f"{name} ({identity[:6]})"
    return shown


def figure_of(
    rows: int, height: float, *, sharex: bool = True, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, sharex=sharex, squeeze=False)
    return figure, list(axes.flat)


def looks(place: int) -> dict[str, Any]:
    """Of the line with this number: colours first, then dashes."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": _DASHES[place // len(COLOURS) % len(_DASHES)],
        "linewidth": 1.5,
        "marker": "os^Dv"[place // len(COLOURS) % 5],
        "markersize": 2.5,
    }


def _over_time(
    scene: Scene, figure: Figure, axes: Sequence[Axes], title: str, *, has_windows: bool = True
) -> Figure:
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    since = datetime.fromtimestamp(scene.begin_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    for each in axes:
        for mark in scene.marks:
            dash, colour, width, _ = _KINDS[mark.kind]
            each.axvline(
                scene.at(mark.at_s), linestyle=dash, color=colour, linewidth=width, alpha=0.55, zorder=1
            )
    windows = f"; each point is a window of {scene.width_s:g} s" if has_windows else ""
    axes[-1].set_xlabel(f"{scene.scale[1]} since {since}{windows}")
    axes[-1].set_xlim(0, scene.at(scene.end_s))
    kinds = [kind for kind in _KINDS if any(mark.kind == kind for mark in scene.marks)]
    handles = [
        Line2D(
            [],
            [],
            linestyle=_KINDS[kind][0],
            color=_KINDS[kind][1],
            linewidth=_KINDS[kind][2],
            label=_KINDS[kind][3],
        )
        for kind in kinds
    ]
    if handles:
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=3,
            fontsize=9,
            title="Vertical lines",
            alignment="left",
        )
    return figure


def _beside(axes: Axes, title: str | None = None) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    if len(handles) > LEGEND_MAX:
        rest = f"and {len(handles) - LEGEND_MAX} more"
        handles, labels = handles[:LEGEND_MAX], [*labels[: LEGEND_MAX - 1], rest]
    axes.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=9,
        title=title,
        alignment="left",
    )


def _plot(axes: Axes, points: Sequence[Point], divided_by: float = 1.0, **look: Any) -> None:
    axes.plot([at for at, _ in points], [value / divided_by for _, value in points], **look)


def _bridged(points: Sequence[Point]) -> list[Point]:
    """Samples come now and then, so not each window has one: the line goes on unless several are missing."""
    known = [point for point in points if not math.isnan(point[1])]
    steps = sorted(after[0] - before[0] for before, after in pairwise(known))
    if not steps:
        return known
    longest = 2.5 * steps[len(steps) // 2]
    found = known[:1]
    for before, after in pairwise(known):
        if after[0] - before[0] > longest:
            found.append(((before[0] + after[0]) / 2, math.nan))
        found.append(after)
    return found


def _by_replica(
    scene: Scene,
    axes: Axes,
    metric: str,
    statistic: str,
    divided_by: float = 1.0,
    draw: Callable[[Sequence[Point]], Sequence[Point]] = list,
) -> None:
    everyone = scene.sites("delivered", metric)
    for site in scene.sites(metric):
        points = draw(scene.series(metric, statistic, site))
        _plot(axes, points, divided_by, label=scene.names[site], **looks(everyone.index(site)))


def _throughput(scene: Scene) -> Figure:
    figure, axes = figure_of(2, 7.0)
    words = {
        "submitted": "submitted, all replicas",
        "delivered": "delivered, at the replica\nthat is furthest",
        "applied": "applied, at the replica\nthat is furthest",
        "replied": "replied, all replicas",
    }
    for place, (metric, label) in enumerate(words.items()):
        if scene.has(metric):
            _plot(axes[0], scene.series(metric, "rate", None), label=label, **looks(place))
    axes[0].set_title("The group")
    _beside(axes[0])
    _by_replica(scene, axes[1], "delivered", "rate")
    axes[1].set_title("Delivered at each replica (no line: it was away, or its recording has a gap)")
    _beside(axes[1], "Replica")
    for each in axes:
        each.set_ylabel("messages/s")
        each.set_ylim(bottom=0)
        each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return _over_time(scene, figure, axes, "Throughput: messages a second over time")


def milliseconds(axes: Axes, which: str = "y") -> None:
    axis = axes.yaxis if which == "y" else axes.xaxis
    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    axis.set_major_formatter(FuncFormatter(_plain))
    low, high = axes.get_ylim() if which == "y" else axes.get_xlim()
    near = low > 0 and high / low < 30
    axis.set_minor_formatter(FuncFormatter(_minor if near else lambda value, _: ""))


def _plain(value: float, _: Any) -> str:
    if value <= _LEAST_MS:
        return f"≤ {_LEAST_MS:g}" if math.isclose(value, _LEAST_MS) else ""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _minor(value: float, _: Any) -> str:
    """Only 2 and 5: the others would stand too close."""
    return _plain(value, _) if f"{value:e}"[0] in "25" else ""


def _latency(scene: Scene) -> Figure | None:
    shown = [metric for metric in _OVER_TIME if scene.has(metric)]
    if not shown:
        return None
    figure, axes = figure_of(len(shown), 1.2 + 2.6 * len(shown))
    for each, metric in zip(axes, shown, strict=True):
        for statistic, colour in _STATISTICS.items():
            points = [(at, max(ns / 1e6, _LEAST_MS)) for at, ns in scene.series(metric, statistic, None)]
            dash = ":" if statistic == "max" else "-"
            each.plot(
                [at for at, _ in points], [ms for _, ms in points], linestyle=dash, color=colour,
                linewidth=1.5, marker=".", markersize=4, label=statistic,
            )  # fmt: skip
        each.set_title(_WAITS[metric])
        each.set_ylabel("milliseconds (log)")
        milliseconds(each)
        _beside(each, "Of messages")
    return _over_time(scene, figure, axes, "Latency over time, by when the wait ended, all replicas")


def _latency_by_replica(scene: Scene) -> Figure | None:
    shown = [metric for metric in _WAITS if scene.has(metric)]
    if not shown:
        return None
    rows = math.ceil(len(shown) / 2)
    sites = scene.sites(*shown)
    figure, axes = figure_of(rows, 1.2 + rows * (1.0 + 0.32 * len(sites)), sharex=False, columns=2)
    for each, metric in zip(axes, shown, strict=False):
        _dots(scene, each, metric, sites)
    for spare in axes[len(shown) :]:
        spare.set_visible(False)
    handles = [
        Line2D([], [], linestyle="", marker=_MARKERS[name], color=colour, label=name)
        for name, colour in _STATISTICS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.suptitle(
        "Latency at each replica, whole recording", fontsize=13, fontweight="bold", x=0.01, ha="left"
    )
    return figure


def _dots(scene: Scene, axes: Axes, metric: str, sites: Sequence[int]) -> None:
    for value in scene.values:
        if value.metric == metric and value.site is not None and value.at_s is None:
            marker, colour = _MARKERS[value.statistic], _STATISTICS[value.statistic]
            place = sites.index(value.site)
            axes.plot(
                max(value.value / 1e6, _LEAST_MS),
                place,
                marker=marker,
                color=colour,
                linestyle="",
                markersize=6,
            )
    axes.set_yticks(range(len(sites)), [scene.names[site] for site in sites])
    axes.set_ylim(len(sites) - 0.5, -0.5)
    axes.set_xlabel("milliseconds (log)")
    axes.set_title(_WAITS[metric])
    milliseconds(axes, "x")


def _ring(scene: Scene) -> Figure | None:
    shown = [each for each in _RING if scene.has(each[0])]
    if not shown:
        return None
    figure, axes = figure_of(len(shown), 1.2 + 2.2 * len(shown))
    for each, (metric, statistic, title, unit, divided_by) in zip(axes, shown, strict=True):
        _by_replica(scene, each, metric, statistic, divided_by, draw=_bridged)
        each.set_title(title)
        each.set_ylabel(unit)
        each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        each.set_ylim(bottom=0)
    _beside(axes[0], "Replica")
    return _over_time(scene, figure, axes, "What the ring costs: traffic, token and buffers of each replica")


def _view_changes(scene: Scene, changes: Sequence[Row]) -> Figure | None:
    # Who reads several epochs from its disk at once is held up by none of them.
    rows = [row for row in changes if row["duration_ns"] / 1e6 > _LEAST_MS]
    if not rows:
        return None
    figure, (axes,) = figure_of(1, 5.0)
    everyone = scene.sites("delivered")
    group = [
        (scene.at(_seconds(row["ended"])), row["duration_ns"] / 1e6) for row in rows if row["site"] is None
    ]
    if group:
        places, heights = zip(*((at, max(ms, _LEAST_MS)) for at, ms in group), strict=True)
        axes.vlines(
            places, _LEAST_MS, heights, color="#b5b5b5", linewidth=5, label="the group: nobody delivered"
        )
    for place, site in enumerate(everyone):
        own = [row for row in rows if row["site"] == site]
        if own:
            times = [scene.at(_seconds(row["ended"])) for row in own]
            waits = [max(row["duration_ns"] / 1e6, _LEAST_MS) for row in own]
            look = looks(place) | {"linestyle": "", "markersize": 6}
            axes.plot(times, waits, label=scene.names[site], **look)
    least = min(max(row["duration_ns"] / 1e6, _LEAST_MS) for row in rows)
    axes.set_ylim(bottom=least / 2)
    axes.set_ylabel("milliseconds without a delivery (log)")
    axes.set_title("From the last delivery in the old epoch to the first in the new one, at its end")
    milliseconds(axes)
    _beside(axes, "Replica")
    bare = scene._replace(marks=[mark for mark in scene.marks if mark.kind != "view"])
    title = f"How long each of {len(group)} view changes held up deliveries"
    return _over_time(bare, figure, [axes], title, has_windows=False)


# -- of the job load -----------------------------------------------------------------------------


class Line(NamedTuple):
    """A value over time, and when it got worse. ``points``: seconds since 1970 and value."""

    title: str
    points: Sequence[Point]
    worse: Sequence[Point]


def draw_lines(title: str, lines: Sequence[Line], root: str, name: str) -> str:
    """Small multiples, three in a row."""
    with mpl.rc_context(STYLE):
        columns = 3
        rows = math.ceil(len(lines) / columns)
        figure, axes = figure_of(rows, 1.3 + 2.1 * rows, sharex=False, columns=columns)
        for each, line in zip(axes, lines, strict=False):
            _by_date(each, line.points, **looks(0))
            ring: dict[str, Any] = {
                "linestyle": "",
                "marker": "o",
                "markersize": 9,
                "markerfacecolor": "none",
            }
            _by_date(each, line.worse, color=COLOURS[5], markeredgewidth=2, **ring)
            each.set_title(line.title, fontsize=8)
            each.set_ylim(bottom=0, top=max([value for _, value in line.points] + [0.0]) * 1.15 or 1.0)
            each.tick_params(labelsize=7)
            dates = AutoDateLocator(minticks=2, maxticks=5)  # type: ignore[no-untyped-call]
            each.xaxis.set_major_locator(dates)
            each.xaxis.set_major_formatter(ConciseDateFormatter(dates))  # type: ignore[no-untyped-call]
            each.xaxis.get_offset_text().set_fontsize(7)
        for spare in axes[len(lines) :]:
            spare.set_visible(False)
        figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
        handle = Line2D(
            [], [], linestyle="", marker="o", markersize=9, markerfacecolor="none", color=COLOURS[5]
        )
        handle.set_label("worse than the runs before")
        figure.legend(handles=[handle], loc="outside lower left", fontsize=9)
    return save(root, name, figure)


def _by_date(axes: Axes, points: Sequence[Point], **look: Any) -> None:
    times: Any = [datetime.fromtimestamp(at, UTC) for at, _ in points]
    axes.plot(times, [value for _, value in points], **look)
