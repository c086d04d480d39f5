"""The processes of a benchmark: started, spoken to, and always stopped, by their pid.

Each worker is a fresh interpreter (spawn), so that no site shares anything with another. It dies with us,
also when we are killed. It speaks through a pipe: ``say`` and ``hear``; a worker that raises says so.
"""

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, NamedTuple

from bench.errors import BenchError, WorkerFailed
from bench.namespaces import Namespace, enter

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 30.0  # a cold interpreter on a busy machine
_STOP_SECONDS = 2.0
_TICK_SECONDS = 0.1


class Placement(StrEnum):
    """Which CPU a process may use. Waking another core costs more than many a protocol."""

    FREE = "free"
    SPREAD = "spread"
    ONE = "one"

    def cpu(self, index: int) -> int | None:
        cpus = sorted(os.sched_getaffinity(0))
        match self:
            case Placement.FREE:
                return None
            case Placement.ONE:
                return cpus[0]
            case Placement.SPREAD:
                return cpus[index % len(cpus)]

    def describe(self, processes: int) -> str:
        match self:
            case Placement.FREE:
                cpus = len(os.sched_getaffinity(0))
                return f"{processes} processes where the scheduler puts them, {cpus} CPUs"
            case Placement.ONE:
                return f"{processes} processes on CPU {self.cpu(0)}"
            case Placement.SPREAD:
                return (
                    f"{processes} processes on CPUs {', '.join(str(self.cpu(i)) for i in range(processes))}"
                )


class Link:
    """The worker's end of its pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def say(self, what: object) -> None:
        """Whole, however long: an event loop that has read from the pipe left it non-blocking."""
        os.set_blocking(self._pipe.fileno(), True)
        self._pipe.send(("said", what))

    def hear(self) -> Any:
        return self._pipe.recv()

    def fileno(self) -> int:
        return self._pipe.fileno()


class Post(NamedTuple):
    """Where a worker runs."""

    namespace: Namespace | None = None
    cpu: int | None = None


ANYWHERE = Post()


def _main(
    parent: int,
    pipe: Connection,
    holder: tuple[int, bool] | None,
    cpu: int | None,
    target: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; we are stopped by pid
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before we asked to die with it
    try:
        if holder is not None:
            enter(holder[0], own_memory=holder[1])
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        target(Link(pipe), *args)
    except (EOFError, BrokenPipeError):
        return  # nobody listens any more
    except Exception as error:  # noqa: BLE001 - told to the one who waits, who raises it
        why = str(error) if isinstance(error, BenchError) else traceback.format_exc()
        os.set_blocking(pipe.fileno(), True)
        pipe.send(("failed", why))


class Worker:
    def __init__(self, name: str, process: BaseProcess, pipe: Connection) -> None:
        self.name = name
        self.process = process
        self.pipe = pipe

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def tell(self, what: object) -> None:
        try:
            self.pipe.send(what)
        except OSError as error:
            raise WorkerFailed(f"{self.name}: is gone") from error


class Crew:
    """All workers of one run. Leaving the ``with`` block stops every one of them."""

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._tick = tick
        self.workers: list[Worker] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, target: Callable[..., None], *args: object, post: Post = ANYWHERE) -> Worker:
        ours, theirs = self._context.Pipe()
        space = post.namespace
        holder = (space.pid, space.own_memory) if space is not None else None
        process = self._context.Process(
            target=_main, args=(os.getpid(), theirs, holder, post.cpu, target, args), name=name, daemon=True
        )
        process.start()
        theirs.close()
        worker = Worker(name, process, ours)
        self.workers.append(worker)
        return worker

    def hear(self, worker: Worker, seconds: float = _START_SECONDS) -> Any:
        return self.hear_all([worker], seconds)[0]

    def hear_all(self, workers: Sequence[Worker], seconds: float = _START_SECONDS) -> list[Any]:
        """One word from each, in the order of ``workers``."""
        until = time.monotonic() + seconds
        heard: dict[str, Any] = {}
        while len(heard) < len(workers):
            silent = {worker.pipe: worker for worker in workers if worker.name not in heard}
            for pipe in wait(list(silent), _TICK_SECONDS):
                assert isinstance(pipe, Connection)
                worker = silent[pipe]
                heard[worker.name] = self._read(worker)
            self._tick()
            if time.monotonic() > until and len(heard) < len(workers):
                late = ", ".join(worker.name for worker in workers if worker.name not in heard)
                raise WorkerFailed(f"{late}: said nothing for {seconds:.0f} s")
        return [heard[worker.name] for worker in workers]

    def _read(self, worker: Worker) -> Any:
        try:
            kind, what = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(_STOP_SECONDS)
            raise WorkerFailed(f"{worker.name}: ended with exit code {worker.process.exitcode}") from None
        if kind == "failed":
            raise WorkerFailed(f"{worker.name}: {what}")
        return what

    def pause(self, seconds: float, workers: Sequence[Worker] | None = None) -> None:
        """Let them work; a failure of one of them is noticed at once."""
        until = time.monotonic() + seconds
        pipes = {worker.pipe: worker for worker in (self.workers if workers is None else workers)}
        while (left := until - time.monotonic()) > 0:
            for pipe in wait(list(pipes), min(left, _TICK_SECONDS)):
                assert isinstance(pipe, Connection)
                self._read(pipes[pipe])
            self._tick()

    def kill(self, worker: Worker) -> None:
        os.kill(worker.pid, signal.SIGKILL)

    def stop(self) -> None:
        """They hold nothing worth saving, and a stopped one hears only this signal."""
        for worker in self.workers:
            worker.pipe.close()
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.process.close()
        self.workers.clear()


class CrewMaker:
    """Makes crews that tick the same progress display, each process in its place."""

    def __init__(self, tick: Callable[[], None] = lambda: None, namespaces: Sequence[Namespace] = ()) -> None:
        self._tick = tick
        self.namespaces = namespaces

    def __call__(self) -> Crew:
        return Crew(self._tick)

    def post(self, index: int, placement: Placement) -> Post:
        """One namespace is for all processes; several are taken in turn."""
        spaces = self.namespaces
        return Post(spaces[index % len(spaces)] if spaces else None, placement.cpu(index))
