"""Files beside the tables: figures and pages. Written and read where the tables are, here or far away."""

import re
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pipeline.errors import PipelineError

FIGURES: Final = "figures"


def is_here(root: str) -> bool:
    return "://" not in root


def put(root: str, name: str, content: bytes) -> str:
    """In place of what was there; where it is now. ``name``: below ``root``, as ``figures/rates.png``."""
    place = f"{root}/{name}"
    if is_here(root):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_bytes(content)
        return place
    try:
        files, path = _far(place)
        stream = files.create(path, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
    except Py4JJavaError as error:
        raise PipelineError(f"{place} cannot be written: {error.java_exception}") from None
    return place


def figures(root: str) -> dict[str, bytes]:
    """Of every figure that is there, by its name, in order."""
    if is_here(root):
        return {path.name: path.read_bytes() for path in sorted(Path(root, FIGURES).glob("*.png"))}
    files, folder = _far(f"{root}/{FIGURES}")
    if not files.exists(folder):
        return {}
    found = {}
    for status in files.listStatus(folder):
        name = status.getPath().getName()
        if name.endswith(".png"):
            stream = files.open(status.getPath())
            try:
                found[name] = bytes(stream.readAllBytes())
            finally:
                stream.close()
    return dict(sorted(found.items()))


def remove_figures(root: str, names: str) -> None:
    """Those whose name matches as a whole, as ``load-.*``: what a job drew when it ran before."""
    wanted = re.compile(rf"(?:{names})\.png")
    if is_here(root):
        for path in Path(root, FIGURES).glob("*.png"):
            if wanted.fullmatch(path.name):
                path.unlink()
        return
    files, folder = _far(f"{root}/{FIGURES}")
    for status in files.listStatus(folder) if files.exists(folder) else ():
        if wanted.fullmatch(status.getPath().getName()):
            files.delete(status.getPath(), False)


def _far(place: str):  # type: ignore[no-untyped-def]
    """Hadoop's file system and path. Spark itself writes no single file."""
    spark = SparkSession.active()
    jvm = spark._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path
