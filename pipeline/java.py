"""Is there a Java that Spark runs on? Looked for as Spark itself does: JAVA_HOME, then PATH.

``python -m pipeline.java`` says what to do if there is none, and then ends with 1.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from pipeline.errors import JavaMissing

LEAST: Final = 17
INSTALL: Final = "apt-get install -y --no-install-recommends openjdk-17-jre-headless"
_SECONDS: Final = 20
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class Java(NamedTuple):
    path: Path
    version: int


def require_java() -> Java:
    """``JavaMissing`` says what to do."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME is {home}, and has no bin/java" if home else "there is no java on the PATH"
        raise JavaMissing(f"Spark needs Java {LEAST} or newer; {where}. {_advice()}")
    version = _version_of(found)
    if version is None:
        raise JavaMissing(f"Spark needs Java {LEAST} or newer; {found} does not say what it is. {_advice()}")
    if version < LEAST:
        raise JavaMissing(f"Spark needs Java {LEAST} or newer; {found} is {version}. {_advice()}")
    return Java(Path(found), version)


def _advice() -> str:
    return f"On Debian or Ubuntu, as root: {INSTALL} (or: make setup JAVA=install)"


def _version_of(java: str) -> int | None:
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told.stderr + told.stdout)
    return None if match is None else int(match[1])


if __name__ == "__main__":
    try:
        require_java()
    except JavaMissing as missing:
        sys.exit(str(missing))
