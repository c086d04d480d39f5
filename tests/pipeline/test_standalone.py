"""A real master and a real worker on loopback, from the PySpark package: they give what one machine gives."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyspark
from pyspark.sql import SparkSession

from bench.ports import free_ports
from pipeline import tables as all_tables
from pipeline.jobs import ingest
from pipeline.runs import Run
from pipeline.tables import Tables
from tests.pipeline.recordings import record, rows

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"


def environment(**more: str) -> dict[str, str]:
    """Nobody outside this machine is to reach them, and none of our code is there but what is sent."""
    kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "SPARK_HOME"}}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return kept | {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"} | python | more


@contextmanager
def daemon(ready: str, *arguments: str, folder: Path) -> Iterator[None]:
    """Runs from when it says that it is ready until the block ends."""
    lines: list[str] = []
    is_ready, is_over = threading.Event(), threading.Event()

    def follow(told: IO[str]) -> None:
        for line in told:
            lines.append(line)
            if ready in line:
                is_ready.set()
        is_over.set()
        is_ready.set()

    with subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env=environment(SPARK_DAEMON_MEMORY="256m", SPARK_MASTER_OPTS="-Dspark.master.rest.enabled=false"),
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        follower = threading.Thread(target=follow, args=(process.stderr,))
        follower.start()
        try:
            assert is_ready.wait(120), "".join(lines)
            assert not is_over.is_set(), "".join(lines)
            yield
        finally:
            process.terminate()
            follower.join()


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    port, ui = free_ports(2)
    master = f"spark://127.0.0.1:{port}"
    where = ("--host", "127.0.0.1")
    with (
        daemon(
            "New state: ALIVE",
            f"{DEPLOY}.master.Master",
            *where,
            *("--port", str(port), "--webui-port", str(ui)),
            folder=folder,
        ),
        daemon(
            "Successfully registered with master",
            f"{DEPLOY}.worker.Worker",
            *where,
            *("--webui-port", "0", "--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work")),
            master,
            folder=folder,
        ),
    ):
        yield master


def test_when_a_job_is_submitted_to_a_cluster_then_the_result_is_that_of_one_machine(
    spark: SparkSession, tmp_path: Path
) -> None:
    recordings = tmp_path / "recordings"
    record(recordings, "a", rows(0, 300), rows(300, 500), tail=rows(500, 530))
    record(recordings, "b", rows(0, 400, site=2))
    (recordings / "c-000001.parquet").write_bytes(b"PAR1")
    here, there = Tables(spark, str(tmp_path / "here")), Tables(spark, str(tmp_path / "there"))
    ingest.run(spark, here, Run(input=(str(recordings),), output=here.root), lambda words: None)
    with cluster(tmp_path) as master:
        submitted = subprocess.run(
            [
                *(str(HOME / "bin" / "spark-submit"), "--master", master),
                *("--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"),
                *(str(ROOT / "pipeline" / "main.py"), "ingest"),
                *("--input", str(recordings), "--output", there.root, "-o", "json"),
            ],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        worked = list((tmp_path / "work").glob("app-*/*/stderr"))
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert worked, "no executor of the cluster has run"
    for table in (all_tables.EVENTS, all_tables.QUALITY, all_tables.FILES):
        assert sorted(map(str, there.read(table).collect())) == sorted(map(str, here.read(table).collect()))
    assert there.read(all_tables.EVENTS).count() == 930
