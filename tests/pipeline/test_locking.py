"""One job at a time works in a folder of tables."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.errors import BadSetting
from pipeline.locking import locked
from pipeline.running import run_job
from pipeline.runs import Run
from pipeline.tables import Tables
from tests.pipeline.recordings import record, rows

HOLDS = """
import sys, time
from pipeline.locking import locked
with locked(sys.argv[1], "audit"):
    print("mine", flush=True)
    time.sleep(600)
"""


def test_when_a_job_works_then_another_is_told_so_until_it_is_gone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(out)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mine\n"
        words = rf"another job works in {out} \(audit, process {other.pid} of .*\); wait for it, or name"
        with pytest.raises(BadSetting, match=words), locked(str(out), "ingest"):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with locked(str(out), "ingest"):
        (out / "table").mkdir()
    assert [path.name for path in out.iterdir()] == ["table"]


def test_when_a_job_wrote_nothing_then_nothing_is_left(tmp_path: Path) -> None:
    with locked(str(tmp_path / "new"), "ingest"):
        pass
    assert list(tmp_path.iterdir()) == []
    with locked(None, "ingest"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(BadSetting, match="cannot be written to"), locked(str(tmp_path / "file"), "ingest"):
        pass


@pytest.mark.parametrize("name", ["ingest", "stream"])
def test_when_the_tables_are_in_use_then_no_job_begins(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    record(tmp_path / "in", "a", rows(0, 5))
    run = Run(input=(str(tmp_path / "in"),), output=f"file://{tmp_path}/out", options={})
    with locked(str(tmp_path / "out"), "audit"), pytest.raises(BadSetting, match="another job works in"):
        run_job(spark, name, run, lambda words: None)
    assert Tables(spark, str(tmp_path / "out")).local_root() == str(tmp_path / "out")
    assert not (tmp_path / "out").exists()
