"""A Spark session: the one that spark-submit has made, or one on this machine."""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from pipeline.java import require_java

LOCAL: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"
_LOOPBACKS: Final = ("127.0.0.1", "localhost")
_LOGGING: Final = Path(__file__).with_name("log4j2.properties").resolve()
_SHIPPED: Final = ("pipeline", "ordering")

# What every job needs, wherever it runs.
NEEDED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # A folder may be read while another job adds to it.
    "spark.sql.files.ignoreMissingFiles": "false",
}

# For a session that is started here, wherever its executors are.
_STARTED: Final[Mapping[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
}

# Only for a session of this machine: nobody outside is to reach it, and it is small.
_HERE: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.memory": "2g",
}


@contextmanager
def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """``master``: none, what spark-submit says, or else this machine. Stopped at the end, if made here."""
    before = SparkSession.getActiveSession()
    if before is not None:
        for key, value in NEEDED.items():
            before.conf.set(key, value)
        yield before
        return
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"rsm {name}")
    chosen = dict(NEEDED)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_ENV_LOADED" in os.environ
    with tempfile.TemporaryDirectory(prefix="rsm-pipeline-") as scratch:
        if master is not None or not is_submitted:
            builder = builder.master(master or LOCAL)
            chosen |= _STARTED
            if (master or LOCAL).startswith("local"):
                os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
                chosen |= _HERE
                chosen["spark.local.dir"] = scratch
                chosen["spark.sql.warehouse.dir"] = scratch
            elif urlsplit(master or "").hostname in _LOOPBACKS:
                os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
                chosen |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
        for key, value in (chosen | dict(settings or {})).items():
            builder = builder.config(key, value)
        made = builder.getOrCreate()
        try:
            if not str(made.sparkContext.master).startswith("local"):
                made.sparkContext.addPyFile(str(packed(Path(scratch))))
            yield made
        finally:
            made.stop()


def packed(folder: Path) -> Path:
    """Our code in one file, for executors that do not have it; of the engine, for ``sweep``. What it imports
    from others (pyarrow, pandas) they must have."""
    path = folder / "rsm-pipeline.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _SHIPPED:
            spec = find_spec(name)
            if spec is None or not spec.submodule_search_locations:
                continue
            for root in map(Path, spec.submodule_search_locations):
                for source in sorted(root.rglob("*.py")):
                    archive.write(source, Path(name, source.relative_to(root)))
    return path
