"""A tiny real run of a replica that joins under load: content is compared, speed is not."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bench.errors import BenchError
from bench.transfer import TransferPlan, _by_role
from cli.main import app


def rsm_bench(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["bench", *words])


def test_when_a_replica_joins_processes_under_load_then_nobody_is_suspected_and_all_agree() -> None:
    run = rsm_bench("transfer", "--mib", "16", "--in-flight", "2", "--json")
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["values"]["joining"]["donor"]["sent_mb"] >= 16
    assert result["values"]["joining"]["per_s"] > 0
    assert 0 < result["ratios"]["donor_peak_to_memory"] < 1.3


def test_when_replicas_have_disks_then_the_state_gets_there(tmp_path: Path) -> None:
    run = rsm_bench("transfer", "--mib", "4", "--in-flight", "2", "--durable", "--directory", str(tmp_path))
    assert run.exit_code == 0, run.output
    assert "who gives" in run.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "plan", [TransferPlan(mib=0), TransferPlan(size=0), TransferPlan(directory=Path("/no"))]
)
def test_when_a_plan_cannot_be_measured_then_it_is_refused(plan: TransferPlan) -> None:
    with pytest.raises(BenchError):
        plan.check()


def test_when_nobody_gave_anything_then_there_is_no_donor() -> None:
    report = {"per_s": 5, "longest_gap_ms": 2.0, "sent_mb": 0}
    assert _by_role([report, report])["donor"] is None
    assert _by_role([report, report | {"sent_mb": 3}])["longest_gap_ms"] == 2.0
