"""Who makes the requests: wrk where it is installed, for closed loops, else the bundled generator.

A result always says which. Their rates can be compared, their waits with care: for each slow answer wrk adds
the waits that it supposes other requests would have had meanwhile.
"""

import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from bench.errors import BenchError, NotAvailable
from bench.http_load import Load, Mishap, Report, is_accepted, is_refused, process
from bench.results import Value
from bench.workers import Crew

INSTALL: Final = "apt-get install -y wrk"
_SLACK_SECONDS: Final = 30.0
_TOLD: Final = re.compile(r"^told (\{.*\})$", re.MULTILINE)

_SCRIPT: Final = """\
local requests, at = {}, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  while true do
    local length = file:read(8)
    if not length then break end
    requests[#requests + 1] = file:read(tonumber(length))
  end
  file:close()
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency)
  local function us(percent) return latency:percentile(percent) end
  local e = summary.errors
  io.write(string.format(
    'told {"us":%d,"answered":%d,"bytes":%d,"connect":%d,"read":%d,"write":%d,"overdue":%d,"status":%d,'
    .. '"p50":%d,"p90":%d,"p99":%d,"p99.9":%d,"max":%d}\\n',
    summary.duration, summary.requests, summary.bytes, e.connect, e.read, e.write, e.timeout, e.status,
    us(50), us(90), us(99), us(99.9), latency.max))
end
"""


class Generator(StrEnum):
    AUTO = "auto"
    WRK = "wrk"
    BUNDLED = "bundled"


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def check(chosen: Generator) -> None:
    if chosen is Generator.WRK and not has_wrk():
        raise NotAvailable(f"wrk is not installed; to install it on Debian: {INSTALL}")


class Generators(AbstractContextManager["Generators"]):
    """Makes loads, one after the other; the bundled generator is one process for all of them."""

    def __init__(self, chosen: Generator, tick: Callable[[], None]) -> None:
        check(chosen)
        self.closed_by = "wrk" if chosen is not Generator.BUNDLED and has_wrk() else "bundled"
        self._crew = Crew(tick)

    def __enter__(self) -> Self:
        self._worker = self._crew.start("load generator", process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._crew.stop()

    def fill(self, load: Load) -> None:
        """Each request once; every one must be accepted, or nothing that follows means anything."""
        report = self.report(load)
        others = {status: waits.count for status, waits in report.waits.items() if not is_accepted(status)}
        if others or report.mishaps:
            raise BenchError(f"the keys could not be written: {_told_mishaps(report) or others}")

    def run(self, load: Load) -> dict[str, Value]:
        """A closed loop by whom it was chosen; an open one is always the bundled generator's."""
        if self.closed_by == "wrk" and not load.rate and len(load.addresses) == 1:
            return run_wrk(load)
        return shown(self.report(load))

    def report(self, load: Load) -> Report:
        self._worker.tell(load)
        seconds = load.seconds + 2 * load.overdue_seconds + _SLACK_SECONDS
        report: Report = self._crew.hear(self._worker, seconds)
        return report


def shown(report: Report) -> dict[str, Value]:
    """``errors``: what got no answer, or another than it asked for."""
    waits = report.merged(is_accepted)
    in_time = sum(count for status, count in report.in_time.items() if is_accepted(status))
    statuses: dict[str, Value] = {str(status): each.count for status, each in sorted(report.waits.items())}
    refusals = report.merged(is_refused)
    found: dict[str, Value] = {
        "generator": "bundled",
        "per_s": round(in_time / report.seconds),
        "answered": waits.count,
        "errors": sum(each.count for each in report.waits.values()) - waits.count + report.mishaps.total(),
        "statuses": statuses,
        "latency": waits.shown(),
        "mishaps": _told_mishaps(report),
        "bytes_received": report.bytes,
        "generator_cpu_s": round(report.cpu_s, 3),
    }
    if refusals.count:
        found |= {"refusals_latency": refusals.shown(), "refusals_without_retry_after": report.unadvised}
    return found


def _told_mishaps(report: Report) -> dict[str, Value]:
    return {str(why): count for why, count in report.mishaps.items()}


# -- wrk -----------------------------------------------------------------------------------------


class _Told(msgspec.Struct, rename={"p99_9": "p99.9"}):
    us: int
    answered: int
    bytes: int
    connect: int
    read: int
    write: int
    overdue: int
    status: int
    p50: int
    p90: int
    p99: int
    p99_9: int
    max: int


def run_wrk(load: Load) -> dict[str, Value]:
    """The same bytes as the bundled generator sends, from a file."""
    host, port = load.addresses[0]
    seconds = max(ceil(load.seconds), 1)  # it takes whole ones
    with tempfile.TemporaryDirectory(prefix="rsm-bench-wrk-") as made:
        script, requests = Path(made, "requests.lua"), Path(made, "requests")
        script.write_text(_SCRIPT, encoding="utf-8")
        requests.write_bytes(b"".join(b"%08d" % len(each) + each for each in load.requests))
        words = ["wrk", "--threads", "1", "--connections", str(load.connections), "--duration", f"{seconds}s"]
        words += ["--timeout", f"{ceil(load.overdue_seconds)}s", "--script", str(script)]
        before = _children_cpu_s()
        done = subprocess.run(
            [*words, f"http://{host}:{port}/", "--", str(requests)],
            capture_output=True,
            text=True,
            timeout=seconds + load.overdue_seconds + _SLACK_SECONDS,
            check=False,
        )
    told = _TOLD.search(done.stdout)
    if done.returncode or told is None:
        raise BenchError(f"wrk: {(done.stderr or done.stdout).strip() or 'said nothing'}")
    return wrk_shown(told[1].encode(), _children_cpu_s() - before)


def wrk_shown(told: bytes, cpu_s: float) -> dict[str, Value]:
    """In the words of ``shown``; wrk does not tell one wrong status from another."""
    said = msgspec.json.decode(told, type=_Told)
    mishaps: dict[str, Any] = {
        str(Mishap.REFUSED): said.connect, str(Mishap.RESET): said.read + said.write,
        str(Mishap.OVERDUE): said.overdue,
    }  # fmt: skip
    answered = said.answered - said.status
    return {
        "generator": "wrk",
        "per_s": round(answered / max(said.us / 1e6, 1e-9)),
        "answered": answered,
        "errors": said.status + sum(mishaps.values()),
        "statuses": {"below 400": answered, "others": said.status},
        "latency": {
            "samples": said.answered, "p50_us": said.p50, "p90_us": said.p90, "p99_us": said.p99,
            "p99.9_us": said.p99_9, "max_us": said.max,
        },
        "mishaps": {why: count for why, count in mishaps.items() if count},
        "bytes_received": said.bytes,
        "generator_cpu_s": round(cpu_s, 3),
    }  # fmt: skip


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
