"""Where tables are, and the only place that reads and writes them. A table is a folder of Parquet files below
``--output``, partitioned as listed here."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from pipeline import schemas
from pipeline.audit import by_slot
from pipeline.errors import BadInput


class Table(NamedTuple):
    """``made_by``: the job, for who finds it missing."""

    path: str
    schema: StructType
    made_by: str
    partitions: tuple[str, ...] = ()


EVENTS: Final = Table("bronze/events", schemas.EVENTS, "ingest", ("batch",))
OPERATIONS: Final = Table("bronze/operations", schemas.OPERATIONS, "ingest", ("batch",))
CHANGES: Final = Table("bronze/changes", schemas.CHANGES, "ingest", ("batch",))
FILES: Final = Table("bronze/files", schemas.FILES, "ingest", ("batch",))
SPANS: Final = Table("bronze/spans", schemas.SPANS, "ingest", ("batch",))
RUNS: Final = Table("runs", schemas.RUNS, "every job", ("job",))
QUALITY: Final = Table("quality", schemas.QUALITY, "ingest", ("job",))
LIFECYCLE: Final = Table("silver/lifecycle", schemas.LIFECYCLE, "lifecycle")
SWEEP: Final = Table("gold/sweep", schemas.SWEEP, "sweep", ("experiment", "batch"))
VERDICTS: Final = Table("gold/verdicts", schemas.VERDICTS, "audit", ("rule",))
RULES: Final = Table("gold/rules", schemas.RULES, "audit")
KV_CHANGES: Final = Table("gold/kv_changes", schemas.KV_CHANGES, "history", ("chain", "bucket"))
KV_SPANS: Final = Table("gold/kv_spans", schemas.KV_SPANS, "history")
KV_STATE: Final = Table("gold/kv_state", schemas.KV_STATE, "history", ("chain",))
KV_HOT: Final = Table("gold/kv_hot", schemas.KV_HOT, "history")
KV_TRAIL: Final = Table("gold/kv_trail", schemas.KV_TRAIL, "history")
METRICS: Final = Table("gold/metrics", schemas.METRICS, "metrics", ("metric",))
VIEW_CHANGES: Final = Table("gold/view_changes", schemas.VIEW_CHANGES, "metrics")
LOAD: Final = Table("gold/load", schemas.LOAD, "load", ("name",))
REGRESSIONS: Final = Table("gold/regressions", schemas.REGRESSIONS, "load")
ALERTS: Final = Table("live/alerts", schemas.ALERTS, "stream", ("batch",))
LIVE_EVENTS: Final = Table("live/events", schemas.LIVE_EVENTS, "stream", ("layout", "part", "batch"))
LIVE_OPERATIONS: Final = Table("live/operations", schemas.LIVE_OPERATIONS, "stream", ("part", "batch"))
LIVE_SUMS: Final = Table("live/sums", by_slot.SUMS, "stream", ("part",))
LIVE_VERDICTS: Final = Table("live/verdicts", schemas.LIVE_VERDICTS, "stream", ("part",))
LIVE_LIFECYCLE: Final = Table("live/lifecycle", schemas.LIVE_LIFECYCLE, "stream", ("part",))
LIVE_WINDOWS: Final = Table("live/windows", schemas.LIVE_WINDOWS, "stream", ("span", "batch"))
LIVE_METRICS: Final = Table("live/metrics", schemas.LIVE_METRICS, "stream", ("span",))
LIVE_STATE: Final = Table("live/state", schemas.LIVE_STATE, "stream", ("batch",))


class Tables:
    """Those below one folder: a path, or whatever Spark reads (``s3a://…``, ``hdfs://…``)."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")

    def path(self, table: Table) -> str:
        return f"{self.root}/{table.path}"

    def local_root(self) -> str | None:
        """Its path, if it is on a file system of this machine."""
        folder = self._hadoop_path(self.root)
        system = self._file_system(folder)
        is_local = system.getUri().getScheme() == "file"
        return str(system.makeQualified(folder).toUri().getPath()) if is_local else None

    def has(self, table: Table) -> bool:
        folder = self._hadoop_path(self.path(table))
        return bool(self._file_system(folder).exists(folder))

    def read(self, table: Table) -> DataFrame:
        if not self.has(table):
            raise BadInput(
                f"there is no table {table.path} in {self.root}; run: rsm pipeline {table.made_by}"
            )
        return self._reader(table).load(self.path(table)).select(*table.schema.fieldNames())

    def read_or_empty(self, table: Table) -> DataFrame:
        return self.read(table) if self.has(table) else self.spark.createDataFrame([], table.schema)

    def write(self, table: Table, rows: DataFrame, *, whole: bool = True) -> None:
        """In place of what was there. Not ``whole``: only of the partitions that the rows are in."""
        fitted = rows.select(*table.schema.fieldNames())
        writer = fitted.write.mode("overwrite").partitionBy(*table.partitions)
        writer.option("partitionOverwriteMode", "static" if whole else "dynamic").parquet(self.path(table))

    def write_partition(self, table: Table, value: str | tuple[str, ...], rows: DataFrame) -> None:
        """In place of the partition of this value, or of one value for each partition column. Nothing is
        sorted for it, as ``write`` would."""
        values = (value,) if isinstance(value, str) else value
        assert len(values) == len(table.partitions), table.path
        fitted = rows.select(*(name for name in table.schema.fieldNames() if name not in table.partitions))
        fitted.write.mode("overwrite").parquet(self._folder(table, *values))

    def partitions(self, table: Table, *above: str) -> set[str]:
        """Values of its first partition column, for which there is a folder; or of the next one below those
        that are given."""
        folder = self._hadoop_path(self._folder(table, *above))
        system = self._file_system(folder)
        if not system.exists(folder):
            return set()
        names = (each.getPath().getName() for each in system.listStatus(folder))
        key = f"{table.partitions[len(above)]}="
        return {name.removeprefix(key) for name in names if name.startswith(key)}

    def drop(self, table: Table, *values: str) -> None:
        """Remove one partition."""
        folder = self._hadoop_path(self._folder(table, *values))
        self._file_system(folder).delete(folder, True)

    def is_whole(self, table: Table, *values: str) -> bool:
        """Whether a partition that was written by itself was written to its end."""
        mark = self._hadoop_path(f"{self._folder(table, *values)}/_SUCCESS")
        return bool(self._file_system(mark).exists(mark))

    def read_partitions(self, table: Table, partitions: Iterable[tuple[str, ...]]) -> DataFrame:
        """These alone: no other is listed."""
        folders = [self._folder(table, *values) for values in partitions]
        if not folders:
            return self.spark.createDataFrame([], table.schema)
        reader = self._reader(table).option("basePath", self.path(table))
        return reader.load(folders).select(*table.schema.fieldNames())

    def _folder(self, table: Table, *values: str) -> str:
        keys = zip(table.partitions, values, strict=False)
        return "/".join((self.path(table), *(f"{key}={value}" for key, value in keys)))

    def _hadoop_path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _file_system(self, path: Any) -> Any:
        """Whatever Spark reads: its own file systems, by way of its JVM."""
        return path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration())

    @property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm

    def _reader(self, table: Table) -> DataFrameReader:
        return self.spark.read.format("parquet").schema(table.schema)
