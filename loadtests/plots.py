"""What happened, over one axis of time; how long answers took; what the processes needed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from loadtests.faults import Fault, Mark
from loadtests.latencies import SHOWN, Latencies, Slice, distribution
from loadtests.pace import SECOND_NS
from loadtests.records import Kind
from loadtests.watching import Ring, Sample

LABELS_MAX: Final = 12  # more would stand on each other
WIDTH: Final = 12.0
DPI: Final = 110
MINUTES_FROM: Final = 600.0
COLOURS: Final = {"p50": "#2a9d8f", "p99": "#e09f3e", "p99.9": "#c1121f"}
FAULT_COLOURS: Final = {Fault.KILL: "#c1121f", Fault.PAUSE: "#e09f3e", Fault.RESTART: "#4361ee"}
COUNT_COLOURS: Final = {
    Kind.PUSHED_BACK: ("#4361ee", "told to come back (429, 503)"),
    Kind.UNKNOWN: ("#e09f3e", "outcome unknown (504, no answer)"),
    Kind.UNEXPECTED: ("#c1121f", "unexpected status"),
}
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


class Scene:
    """The time axis that all plots of a run share."""

    def __init__(
        self, title: str, latencies: Latencies, marks: Sequence[Mark], rings: Sequence[Ring]
    ) -> None:
        self.title = title
        self.latencies = latencies
        self.marks = marks
        self.rings = rings
        self._began_ns = latencies.first_ns
        self._unit_s, self.unit = (60.0, "minutes") if latencies.seconds >= MINUTES_FROM else (1.0, "seconds")

    def at(self, nanoseconds: int) -> float:
        return self.of((nanoseconds - self._began_ns) / SECOND_NS)

    def of(self, seconds: float) -> float:
        return seconds / self._unit_s

    @property
    def pad(self) -> float:
        """Above the first plot, where the words of faults stand."""
        return 48.0 if 0 < len(self.marks) <= LABELS_MAX else 6.0

    @property
    def end(self) -> float:
        return self.of(self.latencies.seconds)

    def shade(self, axes: Sequence[Axes]) -> None:
        """Faults, on all of them; the words stand above the first."""
        for mark in self.marks:
            begin, back = self.at(mark.began_ns), self.at(mark.back_ns)
            for each in axes:
                each.axvspan(begin, back, color=FAULT_COLOURS[mark.fault], alpha=0.16, linewidth=0)
                each.axvline(begin, color=FAULT_COLOURS[mark.fault], linewidth=0.8, alpha=0.7)
            if len(self.marks) <= LABELS_MAX:
                axes[0].annotate(
                    f"{mark.fault} {mark.who}",
                    (begin, 1.0),
                    xycoords=("data", "axes fraction"),
                    xytext=(2, 3),
                    textcoords="offset points",
                    rotation=30,
                    fontsize=8,
                    color=FAULT_COLOURS[mark.fault],
                )

    def legend_of_faults(self) -> list[Patch]:
        struck = [fault for fault in Fault if any(mark.fault is fault for mark in self.marks)]
        words = {
            Fault.KILL: "replica killed (SIGKILL)",
            Fault.PAUSE: "replica paused (SIGSTOP)",
            Fault.RESTART: "replica stopped and started",
        }
        return [Patch(color=FAULT_COLOURS[fault], alpha=0.3, label=words[fault]) for fault in struck]


def _figure(rows: int, height: float, ratios: Sequence[float]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": list(ratios)})
    return figure, [row[0] for row in axes]


def _plotted(draw: Callable[[], Figure], path: Path) -> None:
    with mpl.rc_context(STYLE):
        draw().savefig(path)


# -- over time -----------------------------------------------------------------------------------


def plot_run(scene: Scene, path: Path) -> None:
    def draw() -> Figure:
        figure, axes = _figure(4, 11.0, (3, 4, 2, 1.6))
        _throughput(scene, axes[0])
        _waits(scene, axes[1])
        _failures(scene, axes[2])
        _ring(scene, axes[3])
        scene.shade(axes)
        axes[-1].set_xlim(0, scene.end)
        axes[-1].set_xlabel(f"time since the beginning, {scene.unit}")
        figure.suptitle(scene.title, fontsize=13, fontweight="bold")
        faults = scene.legend_of_faults()
        if faults:
            figure.legend(handles=faults, loc="outside lower center", ncols=len(faults))
        return figure

    _plotted(draw, path)


def _times(scene: Scene, slices: Sequence[Slice]) -> list[float]:
    return [scene.of(scene.latencies.middle_s(each)) for each in slices]


def _throughput(scene: Scene, axes: Axes) -> None:
    slices, width = scene.latencies.whole(), scene.latencies.width_s
    rates = [each.counts[Kind.ANSWERED] / width for each in slices]
    meant = [each.meant / width for each in slices]
    axes.plot(_times(scene, slices), meant, ":", color="#e76f51", linewidth=1.4, label="meant to begin")
    axes.plot(_times(scene, slices), rates, color="#264653", linewidth=1.6, label="answered")
    axes.fill_between(_times(scene, slices), rates, color="#264653", alpha=0.12)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("requests/s")
    axes.set_title("Throughput", loc="left", fontsize=10, pad=scene.pad)
    axes.legend(ncols=2, fontsize=8, loc="lower right")


def _waits(scene: Scene, axes: Axes) -> None:
    slices = scene.latencies.whole()
    for percent in SHOWN:
        name = f"p{percent:g}"
        for style, which, words in (
            ("-", "intended", "from the intended start"),
            (":", "service", "service time"),
        ):
            points = [
                (when, getattr(each.waits, which).get_value_at_percentile(percent) / 1000)
                for when, each in zip(_times(scene, slices), slices, strict=True)
                if getattr(each.waits, which).get_total_count()
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    linestyle=style,
                    color=COLOURS[name],
                    linewidth=1.6 if style == "-" else 1.2,
                    label=f"{name} {words}",
                )
    _milliseconds(axes)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.25)  # room for the legend
    words = "Latency by when the request began (solid: waiting for its turn included; dotted: without)"
    axes.set_title(words, loc="left", fontsize=10)
    axes.legend(ncols=3, fontsize=8, loc="upper right")


def _milliseconds(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.yaxis.set_minor_formatter(FuncFormatter(_minor))
    axes.set_ylabel("milliseconds (log)")


def _minor(value: float, _: Any) -> str:
    """Only 2 and 5: the others would stand too close."""
    return _plain(value, _) if f"{value:e}"[0] in "25" else ""


def _plain(value: float, _: Any) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _failures(scene: Scene, axes: Axes) -> None:
    slices, width = scene.latencies.whole(), scene.latencies.width_s
    bar = scene.of(width)
    bottom = [0.0] * len(slices)
    for kind, (colour, words) in COUNT_COLOURS.items():
        rates = [each.counts[kind] / width for each in slices]
        total = sum(each.counts[kind] for each in scene.latencies.slices)
        axes.bar(
            *(_times(scene, slices), rates),
            width=bar * 0.95,
            bottom=bottom,
            color=colour,
            label=f"{words}: {total:,}",
        )
        bottom = [one + two for one, two in zip(bottom, rates, strict=True)]
    axes.set_ylim(0, max([*bottom, 1.0]) * 1.4)  # room for the legend
    axes.set_ylabel("requests/s")
    axes.set_title("Not answered", loc="left", fontsize=10)
    axes.legend(ncols=3, fontsize=8, loc="upper right")


def _ring(scene: Scene, axes: Axes) -> None:
    """How many members get the token, and each view that was installed."""
    axes.set_ylabel("members")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if not scene.rings:
        axes.set_title("Ring: the gateway told nothing of it", loc="left", fontsize=10)
        return
    times = [max(scene.at(each.at_ns), 0.0) for each in scene.rings]
    sizes = [len(each.ring) for each in scene.rings]
    axes.step([*times, scene.end], [*sizes, sizes[-1]], where="post", color="#264653", linewidth=1.6)
    during = [(when, size) for when, size in zip(times, sizes, strict=True) if when > 0]
    if during:
        axes.plot(*zip(*during, strict=True), "o", color="#264653", markersize=4)
    axes.set_ylim(0, max(each.electorate for each in scene.rings) + 0.7)
    words = f"Ring: members that get the token; each dot is a change of the view ({len(during)})"
    axes.set_title(words, loc="left", fontsize=10)


# -- how long ------------------------------------------------------------------------------------


def plot_distribution(scene: Scene, path: Path) -> None:
    def draw() -> Figure:
        figure, (axes,) = _figure(1, 5.0, (1,))
        waits = scene.latencies.everything()
        furthest = 1.0
        for which, style, words in (
            (waits.intended, "-", "from the intended start: what a client waits"),
            (waits.service, ":", "service time: from the call to the answer"),
        ):
            points = [(100 / (100 - percent), ms) for percent, ms in distribution(which)]
            if points:
                furthest = max(furthest, points[-1][0])
                axes.plot(*zip(*points, strict=True), style, color="#264653", linewidth=1.8, label=words)
        axes.set_xscale("log")
        ticks = {
            1: "0 %",
            2: "50 %",
            10: "90 %",
            100: "99 %",
            1000: "99.9 %",
            10_000: "99.99 %",
            100_000: "99.999 %",
        }
        shown = {place: words for place, words in ticks.items() if place <= furthest * 1.5}
        axes.set_xticks(list(shown), list(shown.values()))
        axes.xaxis.minorticks_off()
        _milliseconds(axes)
        axes.set_xlabel("share of requests that took no longer")
        axes.set_title("Latency of all answered requests", loc="left", fontsize=11)
        axes.legend(loc="upper left")
        return figure

    _plotted(draw, path)


# -- what for ------------------------------------------------------------------------------------


def plot_processes(scene: Scene, samples: Sequence[Sample], path: Path) -> None:
    def draw() -> Figure:
        figure, axes = _figure(2, 7.0, (3, 2))
        for place, who in enumerate(sorted({each.who for each in samples})):
            own = [each for each in samples if each.who == who]
            for pid in dict.fromkeys(each.pid for each in own):
                life = [each for each in own if each.pid == pid]
                times = [scene.at(each.at_ns) for each in life]
                label = who if pid == own[0].pid else None
                colour = f"C{place}"
                megabytes = [each.resident_bytes / 1e6 for each in life]
                axes[0].plot(times, megabytes, color=colour, label=label, linewidth=1.4)
                axes[1].plot(times, [each.descriptors for each in life], color=colour, linewidth=1.4)
        axes[0].set_ylim(bottom=0)
        axes[1].set_ylim(bottom=0)
        axes[0].set_ylabel("megabytes")
        axes[1].set_ylabel("open descriptors")
        words = "Resident memory of each process (a broken line: it was started again)"
        axes[0].set_title(words, loc="left", fontsize=10, pad=scene.pad)
        axes[1].set_title("Open descriptors of each process", loc="left", fontsize=10)
        axes[0].legend(ncols=5, fontsize=8, loc="lower right")
        scene.shade(axes)
        axes[-1].set_xlim(0, scene.end)
        axes[-1].set_xlabel(f"time since the beginning, {scene.unit}")
        return figure

    _plotted(draw, path)
