"""With CI=true a skipped test fails the run, unless allowed_skips.txt lists it with a reason. Tests on Spark
share one process."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A test that fails because the machine is busy says nothing about the product.
settings.register_profile("rsm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rsm")

# Consoles look at it once, when their module is loaded: no test may depend on which was loaded first.
os.environ["COLUMNS"] = "200"

# Who is started in the background of a shell, by nohup say, ignores it, and so would all processes of tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")


def read_allowed_skips(path: Path) -> dict[str, str]:
    """Map of node id to reason. Each line is `nodeid  # reason`."""
    allowed: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        node_id, _, reason = (part.strip() for part in line.partition("  #"))
        if not reason:
            raise pytest.UsageError(f"{path.name}:{number}: no reason is given for {node_id}")
        allowed[node_id] = reason
    return allowed


class OneSpark(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Each test goes to who is free, but those on Spark go to one process: others would start a Spark too,
    and make anew what a file's tests share."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSpark:
    return OneSpark(config, log)


class SkipGuard:
    def __init__(self, allowed: dict[str, str]) -> None:
        self.allowed = allowed
        self.skipped: set[str] = set()

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    @property
    def unlisted(self) -> list[str]:
        return sorted(self.skipped - self.allowed.keys())

    # First, so that the summary and every later hook see the changed exit status.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for node_id in sorted(self.skipped & self.allowed.keys()):
            terminalreporter.write_line(f"skip allowed: {node_id} ({self.allowed[node_id]})")
        for node_id in self.unlisted:
            terminalreporter.write_line(
                f"skip not allowed: {node_id} is not in tests/{ALLOWED_SKIPS.name}", red=True
            )


def pytest_configure(config: pytest.Config) -> None:
    is_xdist_worker = hasattr(config, "workerinput")
    if os.environ.get("CI") == "true" and not is_xdist_worker:
        config.pluginmanager.register(SkipGuard(read_allowed_skips(ALLOWED_SKIPS)), "skip-guard")
