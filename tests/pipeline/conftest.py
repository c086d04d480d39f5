"""One Spark for all tests of a process: its start takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.errors import JavaMissing
from pipeline.java import require_java
from pipeline.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    small = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    with session("tests", "local[2]", small) as made:
        yield made
