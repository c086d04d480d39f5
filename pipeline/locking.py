"""Who works in a folder of tables? One job at a time: two would remove or repeat each other's rows."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pipeline.errors import BadSetting

NAME: Final = ".lock"
_WORDS_MAX: Final = 200


@contextmanager
def locked(root: str | None, job: str) -> Iterator[None]:
    """Meanwhile no other job begins in ``root``; ``BadSetting`` if one is there. The kernel frees it when the
    process is gone. None: not a path of this machine, and nothing is locked."""
    if root is None:
        yield
        return
    folder = Path(root)
    is_new = not folder.exists()
    opened = _take(folder, f"{job}, process {os.getpid()} of {socket.gethostname()}")
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / NAME).unlink()
            if is_new:
                folder.rmdir()  # a job that wrote nothing leaves nothing
        os.close(opened)


def _take(folder: Path, words: str) -> int:
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            opened = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # who made the folder removed it between the two calls
        except OSError as error:
            raise BadSetting(f"{folder} cannot be written to: {error}; name another --output") from None
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(opened, _WORDS_MAX, 0).decode(errors="replace") or "it does not say which"
            os.close(opened)
            raise BadSetting(
                f"another job works in {folder} ({other}); wait for it, or name another --output"
            ) from None
        except OSError:
            return opened  # there are no locks here
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(opened), os.stat(folder / NAME)):
                os.ftruncate(opened, 0)
                os.pwrite(opened, words.encode()[:_WORDS_MAX], 0)
                return opened
        os.close(opened)  # who had it removed it between the two calls
