"""For pytest: the fixture ``rsm_simulate``, which fails the test with all that was found."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def rsm_simulate() -> Callable[..., Any]:
    """``simulate``, checked: ``rsm_simulate(Counter, calls, seeds=range(20))``."""
    from rsm.testing import Report, simulate

    def run(*args: Any, **options: Any) -> Report:
        report = simulate(*args, **options)
        if not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return run
