"""A result: what was asked, what came out, and on which ground it stands."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import ceil

import msgspec

Number = int | float
Value = Number | str | bool | None | list["Value"] | dict[str, "Value"]

_CALIBRATION_LOOPS = 1_000_000
# What went wrong in one round must not vanish in a median.
_WORST = frozenset({"view_changes", "kernel_drops", "lost", "loop_late_max_ms", "loop_busy_max_ms"})


class Result(msgspec.Struct, kw_only=True):
    """What a benchmark prints with ``--json``. ``calibration``: how fast and how busy the machine was."""

    name: str
    parameters: dict[str, Value]
    values: dict[str, Value]
    ratios: dict[str, float | None]
    calibration: dict[str, Value]
    versions: dict[str, str]

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def percentile(ordered: Sequence[int], percent: float) -> int:
    """The nearest-rank percentile of sorted values: always a value that was really measured."""
    if not ordered:
        raise ValueError("ordered: empty; there is no percentile of nothing")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent: must be between 0 and 100, is {percent}")
    return ordered[max(ceil(len(ordered) * percent / 100), 1) - 1]


def latencies(nanoseconds: Sequence[int]) -> dict[str, Value]:
    """Percentiles in microseconds, and how many samples they stand on."""
    ordered = sorted(nanoseconds)
    if not ordered:
        return {"samples": 0}
    shown: dict[str, Value] = {
        f"p{name}_us": round(percentile(ordered, float(name)) / 1000, 1)
        for name in ("50", "90", "99", "99.9")
    }
    return {"samples": len(ordered), **shown, "max_us": round(ordered[-1] / 1000, 1)}


def ratio(part: Value, whole: Value) -> float | None:
    """None where one side was not measured."""
    if not isinstance(part, int | float) or not isinstance(whole, int | float) or not whole:
        return None
    return round(part / whole, 4)


def median(numbers: Sequence[Number]) -> float:
    ordered = sorted(numbers)
    if not ordered:
        raise ValueError("numbers: empty; there is no median of nothing")
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def medians(rounds: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """One result out of several of the same shape: numbers by their medians, mishaps by the worst, the rest
    from the last one."""
    merged: dict[str, Value] = {}
    for name, last in rounds[-1].items():
        seen = [each[name] for each in rounds if name in each]
        if isinstance(last, dict):
            merged[name] = medians([each for each in seen if isinstance(each, dict)])
        elif isinstance(last, int | float) and not isinstance(last, bool):
            numbers = [each for each in seen if isinstance(each, int | float)]
            middle = max(numbers) if name in _WORST else median(numbers)
            merged[name] = round(middle) if isinstance(last, int) else round(middle, 5)
        else:
            merged[name] = last
    return merged


def median_ratios(rounds: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The median of each ratio: both of its sides were measured in the same round."""
    found: dict[str, float | None] = {}
    for name in rounds[-1]:
        seen = [each for ratios in rounds if (each := ratios.get(name)) is not None]
        found[name] = round(median(seen), 4) if seen else None
    return found


def calibrate() -> dict[str, Value]:
    """A loop of fixed work, so that results of different machines and hours can be told apart."""
    started = time.perf_counter()
    count = 0
    for _ in range(_CALIBRATION_LOOPS):
        count += 1
    spent = time.perf_counter() - started
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python_loops_per_s": round(count / spent),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def versions(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in ("rsm", "msgspec", "uvloop", "cryptography"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found | dict(extra or {})
